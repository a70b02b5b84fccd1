/** Ids that somebody has altered in SQLite, which accepts every type in every column. */
import test from 'ava';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { openTestDatabase } from '../../support/database.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { decision, quietWriter } from '../records.ts';
import { DAY, idAt, keeperOf, NOW } from './keeper.ts';

const ALTERED = {
  'of 8 bytes': "x'ffffffffffffffff'",
  'a number': '5',
  'an empty text': "''",
  'its own bytes as a text': 'cast(id as text) || char(0)',
};

for (const [what, altered] of Object.entries(ALTERED)) {
  for (const table of ['log_decisions', 'log_lists']) {
    test.serial(
      `an id in ${table} that is ${what} keeps neither the log from being read nor other records from being removed`,
      async (t) => {
        const at = await createSqlite();
        t.teardown(at.drop);
        const database = await openTestDatabase(t, at);
        const { knex } = database;
        const chains: string[] = [];
        for (const days of [60, 50]) {
          const time = NOW - days * DAY;
          const writer = quietWriter(database, { now: () => time });
          for (let i = 0; i < 3; i++) {
            const record = decision({ id: idAt(time + i), created_at: time + i });
            await writer.decision(record);
            await writer.shown({ decision_id: record.id, resource_type: 'tool', names: ['a'], hidden: 0 });
          }
          chains.push(writer.head()?.chain_id ?? '');
          await writer.close();
        }
        const [first] = await knex(table).orderBy('id').limit(1).select(knex.raw('hex(id) as hex'));
        await knex(table)
          .whereRaw(`id = x'${first.hex}'`)
          .update({ id: knex.raw(altered) });
        t.true((await auditStore(knex).page({}, 10, null)).entries.length >= 5);
        const keeper = keeperOf(database);
        t.true((await keeper.run()) >= 6);
        t.deepEqual(
          keeper.errors.flatMap(({ kept = [] }) => kept.map(({ chain }) => chain)),
          [chains[0]],
        );
        t.is((await knex('log_decisions').whereRaw(`chain = x'${chains[1]?.replaceAll('-', '').slice(-8)}'`)).length, 0);
      },
    );
  }
}

test.serial('a chain whose id is bytes keeps no other chain from being removed', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  for (const days of [60, 50]) {
    const time = NOW - days * DAY;
    const writer = quietWriter(database, { now: () => time });
    await writer.decision(decision({ id: idAt(time), created_at: time }));
    await writer.close();
  }
  const [{ chain_id }] = await knex('audit_chains').orderBy('started_at').limit(1).select('chain_id');
  await knex('audit_chains')
    .where({ chain_id })
    .update({ chain_id: knex.raw('cast(chain_id as blob)') });
  const keeper = keeperOf(database);
  t.is(await keeper.run(), 1);
  t.is(keeper.errors.length, 1);
});
