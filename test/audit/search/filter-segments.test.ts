/** Pages of a large log of version 2 are read in the order of ids from the segments that a filter leads to. */
import test from 'ava';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { firstIdOf } from '../../../src/audit/chain/chain.ts';
import type { AuditPage } from '../../../src/audit/search/entries.ts';
import type { LogFilter } from '../../../src/audit/search/filter.ts';
import type { Connection } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { decision, quietWriter } from '../records.ts';

const BASE = 12_500;
const BLOCKS = 16;
const POLICY = '0190163d-8694-739b-aea5-966c26f8ad91';

/** The least and the largest number of pages of a thousand rows, for the pages that a search of 100,000 rows gives. */
const paged: readonly (readonly [filter: LogFilter, fewest: number, most: number])[] = [
  [{ since: firstIdOf(5_000), before: firstIdOf(7_000) }, 2, 3],
  [{ user_id: 'user 7' }, 1, 3],
  [{ policy_id: POLICY }, 2, 4],
  [{ resource_name: 'tool 7' }, 1, 3],
  [{ resource_name: 'tool 7', target_name: 'target-7' }, 1, 3],
  [{ target_id: 'id-7' }, 4, 6],
  [{ method: 'rare' }, 1, 3],
  [{ method: 'rare', effect: 'allow', resource_type: 'tool' }, 1, 3],
  [{ resource_type: 'resource', method: 'rare' }, 1, 3],
  [{ reason: 'error' }, 1, 3],
  [{ reason: 'error', effect: 'allow' }, 1, 3],
  [{ effect: 'deny', method: 'tools/call' }, 2, 3],
  [{ resource_name: 'zebra' }, 1, 3],
  [{ resource_name: 'nothing' }, 1, 1],
  [{ resource_name_prefix: 'zeb' }, 2, 3],
  [{ resource_name_prefix: 'tool 3', method: 'rare' }, 1, 3],
  [{ resource_name_prefix: 'tool 197' }, 2, 4],
  [{ id: firstIdOf(7), effect: 'allow' }, 1, 1],
  [{ id: firstIdOf(7), effect: 'deny' }, 1, 1],
];

/** Copies of the base under ids with a different first digit, with their segments, as if they were of other times. */
async function copyBlocks(knex: Connection, isSqlite: boolean): Promise<void> {
  const moved = (column: string, digit: string): string =>
    isSqlite ? `unhex('${digit}' || substr(hex(${column}), 2))` : `unhex(concat('${digit}', substr(hex(${column}), 2)))`;
  const tables = {
    log_decisions: [['id'], 'created_at, principal, object, verdict, name, chain, seq, mac'],
    log_segments: [['id', 'low', 'high'], 'last_seq'],
    log_terms: [['segment'], 'term'],
  } as const;
  for (const [table, [ids, others]] of Object.entries(tables)) {
    // Read from a copy, because a server that selects from the table that it inserts into writes a temporary file first.
    await knex.raw(`create table base_rows as select * from ${table}`);
    for (let block = 1; block < BLOCKS; block++) {
      const values = ids.map((id) => moved(id, block.toString(16)));
      await knex.raw(`insert into ${table} (${ids.join()}, ${others}) select ${values.join()}, ${others} from base_rows`);
    }
    await knex.raw('drop table base_rows');
    if (!isSqlite) await knex.raw(`analyze table ${table}`);
  }
}

eachEngine(
  test.serial,
  'among 200,000 rows of version 2 every search reads the primary key in order, without a sort, and pages hold the matching rows',
  async (t, at, engine) => {
    t.timeout(240_000);
    const { knex, ...database } = await openTestDatabase(t, at);
    const store = auditStore(knex);
    // The keys of segments begin with the end of this id.
    const writer = quietWriter({ knex, ...database }, { newId: () => firstIdOf(1) });
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
    for (let from = 0; from < BASE; from += 500) {
      await Promise.all(records.slice(from, from + 500).map((record) => writer.decision(record)));
    }
    await writer.close();
    await copyBlocks(knex, engine === 'sqlite');

    const asked: { sql: string; bindings: unknown[] }[] = [];
    knex.on('query', ({ sql, bindings }: { sql: string; bindings: unknown[] }) => asked.push({ sql, bindings }));
    /** The steps of the query plans that search the log, and whether any plan sorts. */
    async function searched(): Promise<{ readonly rows: readonly string[]; readonly sorted: boolean }> {
      const rows: string[] = [];
      let sorted = false;
      const searches = asked.filter(
        ({ sql }) => sql.includes('from log_decisions as t') || sql.includes('from `log_decisions` as `t`'),
      );
      for (const { sql, bindings } of searches) {
        if (engine === 'sqlite') {
          const plan: { detail: string }[] = await knex.raw(`explain query plan ${sql}`, bindings as string[]);
          rows.push(...plan.map(({ detail }) => detail).filter((detail) => / t\b/.test(detail)));
          sorted ||= plan.some(({ detail }) => /TEMP B-TREE/.test(detail));
        } else {
          const [plan] = (await knex.raw(`explain format=traditional ${sql}`, bindings as string[])) as [
            { table: string; key: string; Extra: string }[],
          ];
          rows.push(...plan.map(({ table, key, Extra }) => `${table} ${key} ${Extra}`).filter((row) => row.startsWith('t ')));
          sorted ||= plan.some(({ Extra }) => /filesort|temporary/i.test(Extra ?? ''));
        }
      }
      asked.length = 0;
      return { rows, sorted };
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
      const { rows, sorted } = await searched();
      // One row needs no order.
      t.false(sorted && filter.id === undefined, `${JSON.stringify(filter)}: ${rows.join(' | ')}`);
      t.true(
        rows.every((row) => /PRIMARY/.test(row)),
        `${JSON.stringify(filter)}: ${rows.join(' | ')}`,
      );
      t.true(rows.length > 0 || expected.length === 0, JSON.stringify(filter));
    }
  },
);
