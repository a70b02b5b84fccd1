/** Pages of a large log are read from an index in order. Without an index, the search for a page is limited. */
import test from 'ava';
import { firstIdOf } from '../../../src/audit/chain/chain.ts';
import type { AuditPage } from '../../../src/audit/search/entries.ts';
import { driversOf, type LogFilter, readFilter, unindexedOf } from '../../../src/audit/search/filter.ts';
import { LOOKED_AT } from '../../../src/audit/search/legacy-store.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { legacyStore as auditStore } from '../legacy-rows.ts';
import { decision, firstStamper as stamper } from '../records.ts';

const BASE = 12_500;
const BLOCKS = 16;
const POLICY = '0190163d-8694-739b-aea5-966c26f8ad91';

const EVERY: Required<LogFilter> = {
  since: firstIdOf(0),
  before: firstIdOf(2 ** 40),
  id: firstIdOf(7),
  user_id: 'user 7',
  target_id: 'id-7',
  target_name: 'target-7',
  method: 'tools/call',
  resource_type: 'tool',
  resource_name: 'tool 7',
  resource_name_prefix: 'tool',
  effect: 'allow',
  policy_id: POLICY,
  reason: 'matched',
};

const indexed: readonly (readonly [filter: LogFilter, index: RegExp])[] = [
  [{}, /primary|autoindex/i],
  [{ since: firstIdOf(5_000) }, /primary|autoindex/i],
  [{ user_id: 'user 7' }, /audit_decisions_user/],
  [{ policy_id: POLICY }, /audit_decisions_policy/],
  [{ resource_name: 'tool 7' }, /audit_decisions_resource/],
  [{ target_name: 'target-7' }, /audit_decisions_target\b/],
  [{ target_id: 'id-7' }, /audit_decisions_target_id/],
  [{ method: 'tools/call' }, /audit_decisions_method/],
  [{ reason: 'error' }, /audit_decisions_reason/],
  [{ effect: 'deny' }, /audit_decisions_effect/],
  [{ effect: 'deny', user_id: 'user 10', method: 'resources/read' }, /audit_decisions_user/],
  [{ effect: 'deny', target_name: 'target-10', before: firstIdOf(8_000) }, /audit_decisions_target\b/],
];

/** The number of pages of a search without an index. */
const WHOLE = (BASE * BLOCKS) / LOOKED_AT;

/** The least and the largest number of pages of a thousand rows. If one condition is rare, its rows limit the number. */
const paged: readonly (readonly [filter: LogFilter, fewest: number, most: number])[] = [
  [{ method: 'rare' }, 1, 1],
  [{ effect: 'allow', resource_type: 'tool', method: 'rare' }, 1, 1],
  [{ resource_type: 'resource', method: 'tools/call' }, WHOLE / 2, WHOLE / 2 + 1],
  [{ resource_type: 'resource', method: 'rare' }, 1, 1],
  [{ reason: 'matched', resource_type: 'resource', method: 'tools/call' }, 5, 6],
  [{ effect: 'deny', reason: 'error', target_id: 'id-0', target_name: 'target-0', resource_name: 'tool 0' }, 1, 1],
  [
    {
      policy_id: POLICY,
      reason: 'matched',
      user_id: 'user 100',
      since: firstIdOf(2_000),
      before: `7${firstIdOf(9_000).slice(1)}`,
    },
    1,
    1,
  ],
  [{ resource_name_prefix: 'zeb' }, WHOLE, WHOLE + 1],
  [{ resource_name_prefix: 'zeb', effect: 'deny' }, 1, 2],
  [{ resource_name_prefix: 'Zeb' }, WHOLE, WHOLE + 1],
  [{ resource_name_prefix: 'tool 3', method: 'rare' }, 1, 1],
  [{ resource_name_prefix: 'tool 19', method: 'rare' }, 1, 1],
  [{ resource_name_prefix: 'tool 19', resource_type: 'tool', effect: 'allow' }, 6, 12],
  [{ resource_name_prefix: 'tool 19', resource_type: 'tool', effect: 'deny' }, 1, 10],
  [{ resource_name_prefix: 'tool 197' }, WHOLE, WHOLE + 1],
  [EVERY, 1, 1],
  [{ id: `3${firstIdOf(7).slice(1)}`, resource_name_prefix: 'tool', effect: 'allow' }, 1, 1],
  [{ id: `3${firstIdOf(7).slice(1)}`, effect: 'deny' }, 1, 1],
];

eachEngine(
  test.serial,
  'among 200,000 rows every filter reads its index in order, and a page reads few rows and holds the matching ones',
  async (t, at, engine) => {
    t.timeout(240_000);
    const { knex } = await openTestDatabase(t, at);
    const store = auditStore(knex);
    const chain = stamper();
    const records = Array.from({ length: BASE }, (_, i) =>
      decision({
        id: firstIdOf(i),
        user_id: `user ${i % 500}`,
        target_id: `id-${i % 50}`,
        target_name: `target-${i % 50}`,
        resource_type: i % 2 === 0 ? 'resource' : 'tool',
        resource_name: i === 4 ? 'zebra' : `tool ${i % 200}`,
        method: i % 5000 === 3 ? 'rare' : i % 2 === 0 && i !== 8 ? 'resources/read' : 'tools/call',
        effect: i % 10 === 0 ? 'deny' : 'allow',
        reason: i % 1000 === 0 ? 'error' : 'matched',
        policy_id: i % 100 === 0 ? POLICY : null,
      }),
    );
    const base = records.map(chain.decision);
    await store.insert({ decisions: base });
    // Read from a copy, because a server that selects from the table that it inserts into writes a temporary file first.
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
    /** The steps of the query plans that search the log, and whether any plan sorts. */
    async function searched(): Promise<{ readonly rows: readonly string[]; readonly sorted: boolean }> {
      const rows: string[] = [];
      let sorted = false;
      for (const { sql, bindings } of asked.splice(0)) {
        if (engine === 'sqlite') {
          const plan: { detail: string }[] = await knex.raw(`explain query plan ${sql}`, bindings as string[]);
          const details = plan.map(({ detail }) => detail);
          // The read after the search is the page itself.
          const page = details.findIndex((detail) => /^SCAN k\b/.test(detail));
          const search = page < 0 ? details : details.slice(0, page);
          rows.push(...search.filter((detail) => /^(SCAN|SEARCH) (a|o\d)\b/.test(detail)));
          sorted ||= search.some((detail) => /TEMP B-TREE/.test(detail));
        } else {
          const [plan] = (await knex.raw(`explain format=traditional ${sql}`, bindings as string[])) as [
            { table: string; key: string; type: string; Extra: string }[],
          ];
          const search = plan.filter(({ table }) => /^(a|o\d)$/.test(table));
          rows.push(...search.map(({ table, key, type, Extra }) => `${table} ${key} ${type} ${Extra}`));
          sorted ||= search.some(({ Extra }) => /filesort|temporary/i.test(Extra));
        }
      }
      asked.length = 0;
      return { rows, sorted };
    }

    for (const [filter, index] of indexed) {
      const { entries, next } = await store.page(filter, 100, null);
      t.is(entries.length, 100, JSON.stringify(filter));
      t.is(next, entries.at(-1)?.id ?? '');
      const { rows, sorted } = await searched();
      t.true(rows.some((row) => index.test(row)) && !sorted, `${JSON.stringify(filter)}: ${rows.join(' | ')}`);
      if (Object.keys(filter).length === 1)
        t.true(
          rows.every((row) => index.test(row)),
          rows.join(' | '),
        );
    }

    const matches = (filter: LogFilter, record: (typeof records)[number], id: string): boolean =>
      Object.entries(filter).every(([name, value]) => {
        if (name === 'since') return id >= value;
        if (name === 'before') return id < value;
        if (name === 'resource_name_prefix') return record.resource_name?.startsWith(value);
        return name === 'id' ? id === value : record[name as keyof typeof record] === value;
      });
    for (const [filter, fewest, most] of paged) {
      const expected: string[] = [];
      for (let block = BLOCKS - 1; block >= 0; block--) {
        for (const record of records.toReversed()) {
          const id = `${block.toString(16)}${record.id.slice(1)}`;
          if (matches(filter, record, id)) expected.push(id);
        }
      }
      const found: string[] = [];
      let cursor: string | null = null;
      let pages = 0;
      do {
        const page: AuditPage = await store.page(filter, 1000, cursor);
        found.push(...page.entries.map(({ id }) => id));
        cursor = page.next;
        pages++;
      } while (cursor !== null);
      t.deepEqual(found, expected, JSON.stringify(filter));
      t.true(pages >= fewest && pages <= most, `${JSON.stringify(filter)}: ${pages} pages`);
    }

    asked.length = 0;
    t.is((await store.page({ effect: 'deny', method: 'tools/call' }, 100, null)).entries.length, 0);
    const both = await searched();
    t.true(
      both.rows.length >= 4 && !both.sorted && both.rows.every((row) => /COVERING|Using index/.test(row)),
      `two common conditions are held against each other in their indexes: ${both.rows.join(' | ')}`,
    );
  },
);

test.serial('every condition uses an index, or is checked against the rows', (t) => {
  const { since: _, before: __, ...asked } = EVERY;
  const columns = [...driversOf(EVERY).flatMap(({ conditions }) => conditions), ...unindexedOf(EVERY)].map(([column]) => column);
  const expected = { resource_name: ['resource_key'], resource_name_prefix: ['resource_name', 'resource_name'] };
  t.deepEqual(
    columns.toSorted(),
    Object.keys(asked)
      .flatMap((name) => expected[name as keyof typeof expected] ?? [name])
      .toSorted(),
  );
  t.deepEqual(driversOf({ since: 'a', before: 'b', resource_name_prefix: 'e' }), []);
  t.deepEqual(unindexedOf({ resource_name: 'e' }), []);
});

test.serial('times are parsed with their time zone', (t) => {
  t.deepEqual(readFilter({ from: '2026-01-01T01:00:00+01:00', to: '2026-01-01T00:00Z' }), {
    since: firstIdOf(Date.UTC(2026, 0, 1)),
    before: firstIdOf(Date.UTC(2026, 0, 1)),
  });
  t.deepEqual(readFilter({ limit: '5', from: 'now', effect: 'x' }), [
    { path: 'from', message: 'must be a time such as 2026-01-31T12:00:00Z' },
    { path: 'effect', message: 'must be one of [allow, deny]' },
  ]);
});
