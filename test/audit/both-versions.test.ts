/** After an upgrade, the rows of both versions are one log for everything that reads it. */
import test from 'ava';
import { auditStore } from '../../src/audit/audit-store.ts';
import { idAfter } from '../../src/audit/chain/chain.ts';
import { type ChainPositions, inOrder, recordedStore, seenObjects } from '../../src/audit/search/recorded-store.ts';
import { type AuditLine, auditLines, lineText, readLine } from '../../src/audit/verify/lines.ts';
import { createVerification } from '../../src/audit/verify/verify.ts';
import type { Database } from '../../src/db/database.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { legacyWriter } from './legacy-writer.ts';
import { decision, KEY, LATER, quietWriter, verified } from './records.ts';

/** Twelve decisions, by turns of a gateway before and after the upgrade; each third one has a list. */
async function write(database: Database) {
  const writers = [legacyWriter(database), quietWriter(database)];
  const records = Array.from({ length: 12 }, (_, i) =>
    decision({
      user_id: `user ${i % 3}`,
      target_id: 'x',
      resource_name: `tool ${i % 4}`,
      effect: i % 2 === 0 ? 'allow' : 'deny',
    }),
  );
  for (const [i, record] of records.entries()) {
    const writer = writers[i % 2];
    await writer?.decision(record);
    if (i % 3 === 0) await writer?.shown({ decision_id: record.id, resource_type: 'tool', names: ['a', `b${i}`], hidden: i });
    writer?.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: i });
  }
  for (const writer of writers) await writer.flush();
  await writers[1]?.close();
  return records;
}

eachEngine(test.serial, 'replay, shadows, pages, exports and verification read both versions as one log', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const before = await recordedStore(database.knex).positions();
  const records = await write(database);
  const ids = records.map(({ id }) => id);
  const { knex } = database;

  // Replay reads by id, a few at a time.
  const store = recordedStore(knex);
  const replayed: string[] = [];
  const listed = new Map<string, string>();
  for (let since = ids[0] ?? ''; ; ) {
    const page = await store.page(since, 'ffffffff-ffff-ffff-ffff-ffffffffffff', 5);
    replayed.push(...page.decisions.map(({ id }) => id));
    for (const { decision, set_hash } of page.lists) listed.set(decision.id, set_hash);
    const last = page.decisions.at(-1);
    if (last === undefined) break;
    since = idAfter(last.id);
  }
  t.deepEqual(replayed, ids);
  // The hash of a list that somebody has altered can be anything.
  const names = await store.sets([...listed.values(), '-'.repeat(18), "'", '']);
  t.deepEqual(
    [...listed].map(([id, hash]) => [ids.indexOf(id), names.get(hash)]),
    [0, 3, 6, 9].map((i) => [i, ['a', `b${i}`]]),
  );
  const found = await store.find(ids);
  t.deepEqual(found.map(({ id }) => id).sort(), ids);
  for (const record of found) {
    const { user_id, resource_name, effect } = records[ids.indexOf(record.id)] ?? decision();
    t.like(record, { user_id, resource_name, effect, user_groups: JSON.stringify(['a', 'ü\u{1f600}']) });
  }

  // A shadow follows the chains, a few records at a time.
  let positions: ChainPositions = before;
  const followed: string[] = [];
  const lists: string[] = [];
  for (let more = true; more; ) {
    const next = await store.following(positions, 4);
    followed.push(...next.decisions.map(({ id }) => id));
    lists.push(...next.lists.map(({ decision }) => decision.id));
    ({ positions, more } = next);
  }
  t.deepEqual(followed.sort(), ids);
  t.deepEqual(
    lists.sort(),
    [0, 3, 6, 9].map((i) => ids[i]),
  );
  t.deepEqual(positions, await store.positions());
  for (const atOnce of [1, 4, 5, 1_000]) {
    t.deepEqual(
      (await inOrder(await seenObjects(knex, atOnce))).map(({ resource_name }) => resource_name),
      ['tool 0', 'tool 1', 'tool 2', 'tool 3'],
    );
  }

  // Pages.
  const pages: { readonly id: string; readonly outcome: unknown; readonly shown: unknown }[] = [];
  for (let cursor: string | null = null, first = true; first || cursor !== null; first = false) {
    const page = await auditStore(knex).page({}, 5, cursor);
    pages.push(...page.entries);
    cursor = page.next;
  }
  t.deepEqual(
    pages.map(({ id }) => id),
    ids.toReversed(),
  );
  t.true(pages.every(({ outcome }) => outcome === 'ok'));
  t.is(pages.filter(({ shown }) => shown !== null).length, 4);

  // Verification, in the database and of an export.
  const counted = { decision: 12, shown: 4, outcome: 12 };
  t.like(await verified(database), { intact: true, chains: 2, records: counted });
  const verification = createVerification([KEY], LATER);
  const columns = new Set<string>();
  for await (const line of auditLines(knex, 1, null)) {
    const read = readLine(lineText(line));
    if (read === null) return t.fail(lineText(line));
    verification.take(read);
    if (read.kind === 'decision') columns.add(['user_id', 'resource_name', 'effect'].map((name) => name in read.row).join());
  }
  t.like(verification.finish().report, { intact: true, chains: 2, records: counted });
  t.deepEqual([...columns], ['true,true,true'], 'lines of both versions have the members of a decision');

  // No MAC covers a member that the gateway does not write.
  const lines: string[] = [];
  for await (const line of auditLines(knex, 1, null)) lines.push(lineText(line));
  for (const [i, text] of lines.entries()) {
    const { kind, ...row } = JSON.parse(text);
    if (!('mac' in row)) continue;
    const added = [
      { kind, ...row, comment: 'approved by the CISO' },
      ...(Array.isArray(row.outcomes)
        ? [{ kind, ...row, outcomes: row.outcomes.map((one: object) => ({ ...one, comment: 'approved by the CISO' })) }]
        : []),
    ];
    for (const line of added) {
      const altered = createVerification([KEY], LATER);
      for (const one of lines.toSpliced(i, 1, JSON.stringify(line))) altered.take(readLine(one) as AuditLine);
      const { problems } = altered.finish().report;
      t.like(problems, [{ problem: 'altered', chain: row.chain_id, seq: row.chain_seq ?? 0 }], text);
    }
    t.is(readLine(text.replace('"mac":', '"mac":"","mac":')), null, 'a member that occurs twice');
    // A MAC covers the text of a value.
    for (const name of Object.keys(row).filter(
      (one) => one !== 'outcomes' && one !== 'chain_id' && typeof row[one] === 'string',
    )) {
      const altered = createVerification([KEY], LATER);
      const line = JSON.stringify({ kind, ...row, [name]: [row[name]] });
      for (const one of lines.toSpliced(i, 1, line)) altered.take(readLine(one) as AuditLine);
      t.false(altered.finish().report.intact, `${name} of ${text}`);
    }
  }
});

test.serial('in SQLite, where all calls wait for a statement, an export has none that searches a whole chain', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  await write(database);
  const asked: { sql: string; bindings: string[] }[] = [];
  const note = ({ sql, bindings }: (typeof asked)[number]) => asked.push({ sql, bindings });
  knex.on('query', note);
  let lines = 0;
  for await (const _ of auditLines(knex, 0, 'x')) lines++;
  knex.off('query', note);
  t.true(lines > 24);
  for (const { sql, bindings } of asked) {
    // A column that cannot be null is not searched for it, which the plan does not say.
    if (/ `?t?`?\.?seq is null limit/.test(sql) || sql.includes('count(')) continue;
    const plan: { detail: string }[] = await knex.raw(`explain query plan ${sql}`, bindings);
    const whole = plan.filter(({ detail }) => /(_chain|SEARCH t USING PRIMARY KEY) \((chain|chain_id)=\?\)$/.test(detail));
    t.deepEqual(whole, [], sql);
  }
});
