/** Searches in version 2 of the log: the index of segments hides no row, whatever state it is in. */
import test from 'ava';
import { type AuditStore, auditStore } from '../../src/audit/audit-store.ts';
import { firstIdOf } from '../../src/audit/chain/chain.ts';
import type { DecisionRecord } from '../../src/audit/records/records.ts';
import type { AuditPage } from '../../src/audit/search/entries.ts';
import type { LogFilter } from '../../src/audit/search/filter.ts';
import { createCloseAbandoned } from '../../src/audit/segments.ts';
import { createIndexCheck } from '../../src/audit/verify/index-check.ts';
import { auditLines } from '../../src/audit/verify/lines.ts';
import type { Connection, Database } from '../../src/db/database.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { legacyWriter } from './legacy-writer.ts';
import { decision, quietWriter, verified } from './records.ts';

const POLICY = '0190163d-8694-739b-aea5-966c26f8ad91';
const START = Date.UTC(2026, 5, 1);
const MINUTE = 60_000;

/** An id of the minute, with a tail that differs. */
const idAt = (ms: number, i: number): string =>
  `${firstIdOf(ms).slice(0, 14)}7${String(i).padStart(3, '0').slice(-3)}-8000-${i.toString(16).padStart(12, '0')}`;

const recordAt = (ms: number, i: number): DecisionRecord =>
  decision({
    id: idAt(ms, i),
    created_at: ms,
    user_id: `user ${i % 7}`,
    target_id: `id-${i % 3}`,
    target_name: `target-${i % 3}`,
    resource_type: i % 2 === 0 ? 'resource' : 'tool',
    resource_name: i === 4 ? 'zebra' : i % 5 === 0 ? `once ${i}` : `tool ${i % 9}`,
    method: i % 50 === 3 ? 'rare' : 'tools/call',
    effect: i % 10 === 0 ? 'deny' : 'allow',
    reason: i % 40 === 0 ? 'error' : 'matched',
    policy_id: i % 30 === 0 ? POLICY : null,
  });

const filters: readonly LogFilter[] = [
  {},
  { user_id: 'user 3' },
  { target_id: 'id-1', effect: 'deny' },
  { target_name: 'target-2', method: 'rare' },
  { resource_type: 'resource', reason: 'error' },
  { resource_name: 'zebra' },
  { resource_name: 'once 35' },
  { resource_name: 'nothing' },
  { resource_name_prefix: 'once' },
  { resource_name_prefix: 'zeb', effect: 'allow' },
  { policy_id: POLICY },
  { policy_id: POLICY, since: firstIdOf(START + 20 * MINUTE), before: firstIdOf(START + 70 * MINUTE) },
  { user_id: 'user 3', since: firstIdOf(START + 31 * MINUTE) },
  { user_id: 'user 3', before: firstIdOf(START + 31 * MINUTE) },
  { id: idAt(START + 4 * MINUTE, 4) },
  { id: idAt(START + 4 * MINUTE, 4), effect: 'deny' },
];

const matches = (filter: LogFilter, record: DecisionRecord): boolean =>
  Object.entries(filter).every(([name, value]) => {
    if (name === 'since') return record.id >= value;
    if (name === 'before') return record.id < value;
    if (name === 'resource_name_prefix') return record.resource_name?.startsWith(value);
    return record[name as keyof DecisionRecord] === value;
  });

/** `one`: one store for all pages, as an export has. Otherwise each page has its own, as requests have. */
async function read({ knex }: Database, filter: LogFilter, one: AuditStore | null = null, limit = 7): Promise<string[]> {
  const found: string[] = [];
  let cursor: string | null = null;
  do {
    const page: AuditPage = await (one ?? auditStore(knex)).page(filter, limit, cursor);
    found.push(...page.entries.map(({ id }) => id));
    cursor = page.next;
  } while (cursor !== null);
  return found;
}

/** Three writers take turns over 100 minutes, and one that ended before wrote version 1. The last does not close its segment. */
async function write(database: Database) {
  const records = Array.from({ length: 300 }, (_, i) => recordAt(START + (i % 100) * MINUTE, i));
  const old = legacyWriter(database);
  const writers = [old, quietWriter(database), quietWriter(database), quietWriter(database)];
  const inOrder = records.toSorted((a, b) => (a.id < b.id ? -1 : 1));
  for (const [i, record] of inOrder.entries()) await writers[i % 4]?.decision(record);
  await writers[1]?.close();
  await writers[2]?.close();
  return { records, killed: writers[3] };
}

eachEngine(test.serial, 'every filter finds the same rows in both versions, in closed and in open segments', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { records, killed } = await write(database);
  const expected = (filter: LogFilter) =>
    records
      .filter((record) => matches(filter, record))
      .map(({ id }) => id)
      .sort()
      .reverse();
  const check = async (state: string): Promise<void> => {
    for (const filter of filters) {
      const what = `${state}: ${JSON.stringify(filter)}`;
      t.deepEqual(await read(database, filter), expected(filter), what);
      t.deepEqual(await read(database, filter, auditStore(database.knex)), expected(filter), `${what}, as an export`);
    }
  };
  const open = async (): Promise<number> => (await database.knex('log_segments').whereNull('last_seq')).length;
  t.is(await open(), 1);
  await check('open');
  let elapsed = 0;
  const closeAbandoned = createCloseAbandoned(
    database,
    () => START + 300 * MINUTE,
    () => elapsed,
  );
  await closeAbandoned();
  t.is(await open(), 1, 'the clock may be wrong, and its process still write into it');
  elapsed = 19 * MINUTE;
  await closeAbandoned();
  t.is(await open(), 1);
  elapsed = 20 * MINUTE;
  await closeAbandoned();
  t.is(await open(), 0);
  await check('closed by upkeep');
  await killed?.close();
  await check('closed again');
  t.true((await verified(database)).intact);
  // Segments without the terms of a filter are not read.
  await database.knex('log_terms').delete();
  const rows: { id: string }[] = await database.knex('audit_decisions').select('id');
  const old = new Set(rows.map(({ id }) => id));
  const filter = { policy_id: POLICY, target_id: 'id-0' };
  t.deepEqual(
    await read(database, filter),
    expected(filter).filter((id) => old.has(id)),
  );
});

eachEngine(test.serial, 'a page of decisions with long lists ends early, and the next pages have the others', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const records = Array.from({ length: 30 }, (_, i) => recordAt(START + i * MINUTE, i));
  for (const { id: decision_id, ...record } of records) {
    await writer.decision({ id: decision_id, ...record });
    const names = Array.from({ length: 1_000 }, (_, i) => `${decision_id} ${i} ${'x'.repeat(150)}`);
    await writer.shown({ decision_id, resource_type: 'tool', names, hidden: 0 });
  }
  t.true((await auditStore(database.knex).page({}, 30, null)).entries.length <= 10);
  for (const filter of [{}, { resource_type: 'tool' }, { user_id: 'user 3' }, { resource_name_prefix: 'tool' }] as LogFilter[]) {
    const wanted = records.filter((record) => matches(filter, record)).map(({ id }) => id);
    t.deepEqual(await read(database, filter, null, 30), wanted.toReversed());
    t.deepEqual(await read(database, filter, auditStore(database.knex), 30), wanted.toReversed());
  }
  await writer.close();
});

eachEngine(test.serial, 'an export asks for its segments once, and two searches of one store do not mix', async (t, at) => {
  const database = await openTestDatabase(t, at);
  await write(database);
  // While there are legacy rows, they decide where a page ends.
  await database.knex('audit_decisions').delete();
  let asked = 0;
  database.knex.on('query', ({ sql }: { sql: string }) => {
    if (sql.includes('log_segments')) asked++;
  });
  const [filter, store] = [{ user_id: 'user 3' }, auditStore(database.knex)];
  const alone = await read(database, filter, store);
  const once = asked;
  t.true(alone.length > 21, `${alone.length} rows are several pages`);
  await read(database, filter);
  t.true(asked - once >= 3 * once, `${once} queries, and ${asked - once} for pages of their own`);
  t.deepEqual(await Promise.all([read(database, filter, store), read(database, filter, store)]), [alone, alone]);
});

eachEngine(test.serial, 'each statement of a search has one bound on each side', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { records } = await write(database);
  const statements: string[] = [];
  database.knex.on('query', ({ sql }: { sql: string }) => statements.push(sql));
  const filter = { effect: 'deny', since: firstIdOf(START), before: firstIdOf(START + 99 * MINUTE) } as const;
  const expected = records.filter((record) => matches(filter, record)).length;
  t.is((await read(database, filter)).length, expected);
  const searches = statements.filter((sql) => /from \(?log_decisions as t/.test(sql) || /`?audit_decisions`? as a/.test(sql));
  t.true(searches.length > 5, String(searches.length));
  for (const sql of searches) {
    for (const side of [/[ta]`?\.`?id`? >= /g, /[ta]`?\.`?id`? < /g]) t.true((sql.match(side) ?? []).length <= 1, sql);
  }
});

/** The connection, which does something after so many of its queries. */
function interrupted(knex: Connection, after: number, something: () => Promise<void>): Connection {
  let left = after;
  return new Proxy(knex, {
    apply(target, self, args) {
      const query = Reflect.apply(target, self, args) as ReturnType<Connection>;
      const then = query.then.bind(query);
      const interrupt = async (rows: unknown): Promise<unknown> => {
        if (--left === 0) await something();
        return rows;
      };
      Reflect.set(query, 'then', (...on: Parameters<typeof then>) => then(interrupt).then(...on));
      return query;
    },
  });
}

for (const after of [1, 2]) {
  eachEngine(test.serial, `a search finds the decisions of a segment that is closed after statement ${after}`, async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    for (let i = 0; i < 8; i++) await writer.decision(recordAt(START, i));
    let isClosed = false;
    const closing = interrupted(database.knex, after, async () => {
      await writer.close();
      isClosed = true;
    });
    const { entries } = await auditStore(closing).page({ user_id: 'user 3' }, 100, null);
    t.true(isClosed);
    t.is(entries.length, 1);
  });
}

eachEngine(test.serial, 'a decision that was taken out of the search index is reported', async (t, at, engine) => {
  const database = await openTestDatabase(t, at);
  const { killed } = await write(database);
  const hidden = async (knex: Connection) => {
    const index = createIndexCheck(knex);
    for await (const line of auditLines(knex, 1, null)) if (line.kind === 'decision') await index.take(line);
    return index.hidden();
  };
  t.deepEqual(await hidden(database.knex), []);
  const closed = (knex: Connection) => knex('log_segments').whereNotNull('last_seq');
  const one = async (knex: Connection, table: string, column: string) => {
    const [row] = await knex(table).limit(1).select(column);
    return Buffer.from(row[column]);
  };
  const attacks: Readonly<Record<string, (knex: Connection) => Promise<unknown>>> = {
    'a term deleted': async (knex) =>
      knex('log_terms')
        .where('term', await one(knex, 'log_terms', 'term'))
        .delete(),
    'a term moved to a different segment': async (knex) =>
      knex('log_terms')
        .where('segment', await one(knex, 'log_terms', 'segment'))
        .update({ segment: Buffer.alloc(8) }),
    'closed segments deleted': (knex) => closed(knex).delete(),
    'the open segment deleted': (knex) => knex('log_segments').whereNull('last_seq').delete(),
    'the ranges moved up': (knex) => closed(knex).update({ low: Buffer.alloc(16, 255) }),
    'the ranges moved down': (knex) => closed(knex).update({ high: Buffer.alloc(16) }),
    async 'segments said to begin later'(knex) {
      const rows: { id: Buffer }[] = await closed(knex).orderBy('id', 'desc').select('id');
      for (const { id } of rows) {
        const key = Buffer.from(id);
        const later = Buffer.concat([key]);
        later.writeUInt32BE(key.readUInt32BE(4) + 1, 4);
        await knex('log_segments').where('id', key).update({ id: later });
        await knex('log_terms').where('segment', key).update({ segment: later });
      }
    },
    'segments said to end earlier': (knex) => closed(knex).decrement('last_seq', 1),
    ...(engine === 'sqlite' && {
      // SQLite accepts such bytes, and they are no id.
      'the ranges moved to bytes that are no id': (knex: Connection) => closed(knex).update({ low: Buffer.alloc(17, 255) }),
      'the ranges moved to a text': (knex: Connection) => closed(knex).update({ low: 'text' }),
    }),
    'an open segment said to be closed': (knex) => knex('log_segments').whereNull('last_seq').update({ last_seq: 1_000 }),
  };
  class Undo extends Error {}
  for (const [name, attack] of Object.entries(attacks)) {
    await t.throwsAsync(
      database.knex.transaction(async (trx) => {
        await attack(trx);
        const [problem] = await hidden(trx);
        t.is(problem?.problem, 'altered', name);
        t.regex(problem?.detail ?? '', /search index/);
        throw new Undo();
      }),
      { instanceOf: Undo },
      name,
    );
  }
  await killed?.close();
  t.deepEqual(await hidden(database.knex), []);
});

eachEngine(test.serial, 'a segment that somebody has made up hides no decision', async (t, at, engine) => {
  const database = await openTestDatabase(t, at);
  const { records, killed } = await write(database);
  await killed?.close();
  const lowest = `x'${'00'.repeat(16)}'`;
  const highest = `x'${'ff'.repeat(16)}'`;
  const bounds = [
    [lowest, highest],
    [highest, highest],
    [highest, lowest],
  ];
  // SQLite accepts every value in every column.
  if (engine === 'sqlite')
    bounds.push(["'text'", highest], ["x'00'", highest], [lowest, `x'${'ff'.repeat(17)}'`], [lowest, "'text'"]);
  const ids = records.filter(({ user_id }) => user_id === 'user 3').map(({ id }) => id);
  for (const [low, high] of bounds) {
    const key = "x'0011223300000001'";
    await database.knex.raw(`insert into log_segments (id, low, high) values (${key}, ${low}, ${high})`);
    t.deepEqual(await read(database, { user_id: 'user 3' }), ids.toSorted().reverse(), `${low} to ${high}`);
    await database.knex.raw(`delete from log_segments where id = ${key}`);
  }
});
