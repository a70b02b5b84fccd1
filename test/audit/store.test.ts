import test from 'ava';
import type { OutcomeRecord } from '../../src/audit/event.ts';
import { auditStore, MAX_SET_BYTES, storedDecision, storedOutcome, storedShown } from '../../src/audit/store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/engines.ts';
import { decision } from './records.ts';

const outcome = (over: Partial<OutcomeRecord>) => storedOutcome({ decision_id: '', outcome: 'ok', duration_ms: 7, ...over }, 5);

eachEngine(test.serial, 'a decision is read back as it was written, with what it showed and how it ended', async (t, at) => {
  const store = auditStore((await openTestDatabase(t, at)).knex);
  const denied = decision();
  const allowed = decision({
    method: 'tools/list',
    effect: 'allow',
    reason: 'matched',
    target_id: 't1',
    policy_id: 'p1',
    policy_name: 'Line "one" \\ \u{1f600}',
    policy_priority: -2147483648,
    resource_type: null,
    resource_name: null,
  });
  await store.insertDecisions([storedDecision(denied), storedDecision(allowed)]);
  await store.insertShown([storedShown({ decision_id: allowed.id, resource_type: 'tool', names: ['b', 'a'], hidden: 3 })]);
  await store.insertOutcomes([outcome({ decision_id: allowed.id })]);

  t.deepEqual(await store.list(10, null), [
    { ...allowed, shown: { count: 2, hidden: 3, names: ['a', 'b'] }, outcome: 'ok', duration_ms: 7 },
    { ...denied, shown: null, outcome: null, duration_ms: null },
  ]);
  t.deepEqual(await store.find(denied.id), { ...denied, shown: null, outcome: null, duration_ms: null });
  t.is(await store.find('nothing'), null);
});

eachEngine(test.serial, 'the newest come first, page by page', async (t, at) => {
  const store = auditStore((await openTestDatabase(t, at)).knex);
  const records = Array.from({ length: 5 }, () => decision());
  await store.insertDecisions(records.map(storedDecision));
  const ids = records.map(({ id }) => id).reverse();
  const read = async (limit: number, cursor: string | null) => (await store.list(limit, cursor)).map(({ id }) => id);
  t.deepEqual(await read(2, null), ids.slice(0, 2));
  t.deepEqual(await read(2, ids[1] ?? ''), ids.slice(2, 4));
  t.deepEqual(await read(2, ids[4] ?? ''), []);
});

eachEngine(test.serial, 'a set of names is stored once, in whatever order, and capped', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = auditStore(knex);
  const records = Array.from({ length: 4 }, () => decision());
  await store.insertDecisions(records.map(storedDecision));
  const [one, two, three, four] = records.map(({ id }) => id) as [string, string, string, string];
  const shown = (decision_id: string, names: string[]) =>
    storedShown({ decision_id, resource_type: 'tool' as const, names, hidden: 0 });
  await store.insertShown([shown(one, ['a', 'b']), shown(two, ['b', 'a'])]);
  await store.insertShown([shown(three, ['a', 'b'])]);
  t.is((await knex('audit_sets')).length, 1);

  const many = Array.from({ length: 3000 }, (_, i) => `${'n'.repeat(200)}${i}`);
  await store.insertShown([shown(four, many)]);
  const [last] = await store.list(1, null);
  t.is(last?.shown?.count, 3000);
  const kept = last?.shown?.names ?? [];
  t.true(kept.length > 1000 && kept.length < 3000);
  t.true(JSON.stringify(kept).length <= MAX_SET_BYTES);
});

eachEngine(test.serial, 'many that store the same new sets at once all succeed', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const records = Array.from({ length: 24 }, () => decision());
  await auditStore(knex).insertDecisions(records.map(storedDecision));
  const shown = records.map(({ id }, i) =>
    storedShown({ decision_id: id, resource_type: 'tool', names: [`set ${i % 3}`], hidden: 0 }),
  );
  const pairs = Array.from({ length: 12 }, (_, i) => shown.slice(2 * i, 2 * i + 2));
  await Promise.all(pairs.map((pair) => knex.transaction((trx) => auditStore(trx).insertShown(pair))));
  t.is((await knex('audit_sets')).length, 3);
  t.is((await knex('audit_shown')).length, 24);
});

eachEngine(test.serial, 'many and large rows go in statements of bounded size', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = auditStore(knex);
  const sizes: number[] = [];
  knex.on('query', ({ sql, bindings }: { sql: string; bindings: unknown[] }) => {
    if (sql.startsWith('insert into audit_decisions')) sizes.push(bindings.map(String).join('').length);
  });
  const records = Array.from({ length: 1200 }, () =>
    decision({ resource_name: 'r'.repeat(2048), user_groups: ['g'.repeat(2000)] }),
  );
  await store.insertDecisions(records.map(storedDecision));
  t.true(sizes.length >= 5);
  t.true(Math.max(...sizes) <= 1024 * 1024);
  const [{ n } = { n: 0 }] = await knex('audit_decisions').count<{ n: number }[]>({ n: '*' });
  t.is(Number(n), 1200);
});

eachEngine(test.serial, 'a row is told from another with the same id, and outcomes are written once', async (t, at) => {
  const store = auditStore((await openTestDatabase(t, at)).knex);
  const record = decision();
  const { row } = storedDecision(record);
  t.false(await store.holdsDecision(row));
  await store.insertDecisions([storedDecision(record)]);
  t.true(await store.holdsDecision(row));
  t.false(await store.holdsDecision({ ...row, effect: 'allow' }));
  await t.throwsAsync(store.insertDecisions([storedDecision(record)]));

  await store.insertOutcomes([outcome({ decision_id: record.id })]);
  await store.insertOutcomes([outcome({ decision_id: record.id, outcome: 'error' })]);
  t.is((await store.find(record.id))?.outcome, 'ok');
});
