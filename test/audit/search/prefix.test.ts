/** The filter for the beginning of a name, in both versions of the log. */
import test from 'ava';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, quietWriter } from '../records.ts';

const BEGINNING = ['delete_', 'delete_\u{10ffff}', `delete_${'\u{10ffff}'.repeat(500)}`, 'delete_a', 'delete_\u{1f600}'];
const OTHERS = ['delete', 'Delete_a', 'delete-', 'delete`', ''];

eachEngine(test.serial, 'a search for the beginning of a name finds every name that begins so', async (t, at) => {
  const database = await openTestDatabase(t, at);
  for (const writer of [legacyWriter(database), quietWriter(database)]) {
    for (const resource_name of [...BEGINNING, ...OTHERS]) await writer.decision(decision({ resource_name }));
    await writer.close();
  }
  const { entries } = await auditStore(database.knex).page({ resource_name_prefix: 'delete_' }, 100, null);
  t.deepEqual(entries.map(({ resource_name }) => resource_name ?? '').sort(), [...BEGINNING, ...BEGINNING].sort());
});
