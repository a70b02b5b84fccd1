/** Pages of a large log: found by an index in their order, and bounded where no index finds them. */
import test from 'ava';
import { firstIdOf } from '../../src/audit/chain.ts';
import { driverOf, type LogFilter, readFilter, remainder } from '../../src/audit/filter.ts';
import { auditStore, LOOKED_AT } from '../../src/audit/store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/engines.ts';
import { decision, stamper } from './records.ts';

const BASE = 12_500;
const BLOCKS = 16;
const POLICY = '0190163d-8694-739b-aea5-966c26f8ad91';

const indexed: readonly (readonly [filter: LogFilter, index: RegExp])[] = [
  [{}, /primary|autoindex/i],
  [{ since: firstIdOf(5_000) }, /primary|autoindex/i],
  [{ user_id: 'user 7' }, /audit_decisions_user/],
  [{ policy_id: POLICY }, /audit_decisions_policy/],
  [{ resource_name: 'tool 7' }, /audit_decisions_resource/],
  [{ target_name: 'target-7' }, /audit_decisions_target/],
  [{ reason: 'error' }, /audit_decisions_reason/],
  [{ effect: 'deny' }, /audit_decisions_effect/],
  [{ effect: 'deny', user_id: 'user 10', method: 'tools/call' }, /audit_decisions_user/],
  [{ effect: 'deny', target_name: 'target-10', before: firstIdOf(8_000) }, /audit_decisions_target/],
];

eachEngine(
  test.serial,
  'among 200,000 rows every filter reads its index in order, and no page reads much',
  async (t, at, engine) => {
    t.timeout(240_000);
    const { knex } = await openTestDatabase(t, at);
    const store = auditStore(knex);
    const chain = stamper();
    const base = Array.from({ length: BASE }, (_, i) =>
      chain.decision(
        decision({
          id: firstIdOf(i),
          user_id: `user ${i % 500}`,
          target_name: `target-${i % 50}`,
          resource_name: `tool ${i % 200}`,
          method: i === 3 ? 'rare' : 'tools/call',
          effect: i % 10 === 0 ? 'deny' : 'allow',
          reason: i % 1000 === 0 ? 'error' : 'matched',
          policy_id: i % 100 === 0 ? POLICY : null,
        }),
      ),
    );
    await store.insertDecisions(base);
    // A copy to read from: of its own table, a server would select into a file first.
    await knex.raw('create table audit_base as select * from audit_decisions');
    const columns = Object.keys(base[0]?.row ?? {}).filter((name) => name !== 'id');
    for (let block = 1; block < BLOCKS; block++) {
      const first = block.toString(16);
      const id = engine === 'sqlite' ? `'${first}' || substr(id, 2)` : `concat('${first}', substr(id, 2))`;
      await knex.raw(`insert into audit_decisions (id, ${columns}) select ${id}, ${columns} from audit_base`);
    }
    if (engine !== 'sqlite') await knex.raw('analyze table audit_decisions');

    const asked: { sql: string; bindings: unknown[] }[] = [];
    knex.on('query', ({ sql, bindings }: { sql: string; bindings: unknown[] }) => asked.push({ sql, bindings }));
    for (const [filter, index] of indexed) {
      asked.length = 0;
      const { entries, next } = await store.page(filter, 100, null);
      t.is(entries.length, 100, JSON.stringify(filter));
      t.is(next, entries.at(-1)?.id ?? '');
      for (const { sql, bindings } of [...asked]) {
        const plan = await explained(engine, sql, bindings);
        const rows = plan.filter((row) => /audit_decisions/.test(row));
        t.true(rows.length > 0 && rows.every((row) => index.test(row)), `${JSON.stringify(filter)}: ${plan.join(' | ')}`);
        t.false(
          rows.some((row) => /filesort|temporary/i.test(row)),
          `${JSON.stringify(filter)}: ${plan.join(' | ')}`,
        );
      }
    }
    async function explained(name: string, sql: string, bindings: unknown[]): Promise<string[]> {
      if (name === 'sqlite') {
        const rows: { detail: string }[] = await knex.raw(`explain query plan ${sql}`, bindings as string[]);
        return rows.map(({ detail }) => detail);
      }
      const [rows] = (await knex.raw(`explain format=traditional ${sql}`, bindings as string[])) as [
        { table: string; key: string; type: string; Extra: string }[],
      ];
      return rows.map(({ table, key, type, Extra }) => `${table} ${key} ${type} ${Extra}`);
    }

    // No index has it: page after page is empty, and each ends after so many rows.
    const found: string[] = [];
    let cursor: string | null = null;
    let pages = 0;
    do {
      const page: Awaited<ReturnType<typeof store.page>> = await store.page({ method: 'rare' }, 1000, cursor);
      found.push(...page.entries.map(({ id }) => id));
      cursor = page.next;
      pages++;
    } while (cursor !== null);
    t.is(found.length, BLOCKS);
    t.true(pages >= (BASE * BLOCKS) / LOOKED_AT);
    t.deepEqual(found, found.toSorted().reverse());
  },
);

test('what is not found by an index is asked of each row', (t) => {
  const filter: LogFilter = { user_id: 'u', effect: 'deny', resource_name: 'echo', resource_name_prefix: 'e', method: 'm' };
  const driver = driverOf(filter);
  t.deepEqual(driver?.where, { user_id: 'u' });
  t.deepEqual(
    remainder(filter, driver).map(([column]) => column),
    ['method', 'resource_name', 'effect', 'resource_name', 'resource_name'],
  );
  t.is(driverOf({ method: 'm', target_id: 't' }), null);
});

test('times are read with their zone', (t) => {
  t.deepEqual(readFilter({ from: '2026-01-01T01:00:00+01:00', to: '2026-01-01T00:00Z' }), {
    since: firstIdOf(Date.UTC(2026, 0, 1)),
    before: firstIdOf(Date.UTC(2026, 0, 1)),
  });
  t.deepEqual(readFilter({ limit: '5', from: 'now', effect: 'x' }), [
    { path: 'from', message: 'must be a time such as 2026-01-31T12:00:00Z' },
    { path: 'effect', message: 'must be one of [allow, deny]' },
  ]);
});
