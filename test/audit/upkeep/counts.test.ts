/** Counts of decisions equal the rows of the log, whoever writes and whoever counts. */
import test from 'ava';
import fc from 'fast-check';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { firstIdOf } from '../../../src/audit/chain/chain.ts';
import type { DecisionRecord } from '../../../src/audit/records/records.ts';
import { countStore, HOUR_MS } from '../../../src/audit/search/count-store.ts';
import { createCounts } from '../../../src/audit/upkeep/counts.ts';
import { readConfig } from '../../../src/config/config.ts';
import { type Database, openDatabase } from '../../../src/db/database.ts';
import { up } from '../../../src/db/migrations/0023-log-counts.ts';
import { countsOf, readCounts } from '../../../src/rest/audit/counts.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, quietWriter } from '../records.ts';
import { keeperOf } from './keeper.ts';

const START = Date.UTC(2026, 5, 1);
const POLICIES = [null, '0190163d-8694-739b-aea5-966c26f8ad91', '0190163d-8694-739b-aea5-966c26f8ad92'];
const TARGETS = [null, '0190163d-8694-739b-aea5-966c26f8ad93', '0190163d-8694-739b-aea5-966c26f8ad94'];
const HOURS = 5;

const counter = (database: Pick<Database, 'knex'>) => {
  const counts = createCounts({ database: database as Database, log: { warn: () => {} } });
  return { ...counts, run: () => counts.run() };
};

/** A database that loses transactions before they are committed, as if the process had been killed. */
function failing({ knex }: Database, fails: () => boolean): Pick<Database, 'knex'> {
  const transaction = (work: (trx: unknown) => Promise<unknown>) =>
    knex.transaction(async (trx) => {
      const result = await work(trx);
      if (fails()) throw new Error('killed');
      return result;
    });
  return { knex: new Proxy(knex, { get: (of, name) => (name === 'transaction' ? transaction : Reflect.get(of, name)) }) };
}

let made = 0;
const recordOf = ([hour, policy, target, allow]: readonly [number, number, number, boolean]): DecisionRecord => {
  made++;
  const at = START + hour * HOUR_MS + (made % 3_599_000);
  const policy_id = POLICIES[policy] ?? null;
  return decision({
    id: `${firstIdOf(at).slice(0, 14)}7000-8000-${made.toString(16).padStart(12, '0')}`,
    created_at: at,
    policy_id,
    target_id: TARGETS[target] ?? null,
    effect: policy_id !== null && allow ? 'allow' : 'deny',
    reason: policy_id === null ? 'default' : 'matched',
  });
};

async function shown({ knex }: Database, by: 'hour' | 'policy' | 'target', query: object = {}) {
  const end = START + HOURS * HOUR_MS;
  const range = { from: new Date(START).toISOString(), to: new Date(end).toISOString() };
  return countsOf(countStore(knex), readCounts({ by, ...range, ...query }, end), (work) => work());
}

/** What the rows of the log say. */
async function expected(
  { knex }: Database,
  keyOf: (row: { id: string; policy_id: string | null; target_id: string | null }) => string,
) {
  const sums: Record<string, readonly number[]> = {};
  for (let cursor: string | null = null, store = auditStore(knex); ; ) {
    const page = await store.page({}, 1_000, cursor);
    for (const row of page.entries) {
      const key = keyOf(row);
      const at = row.effect === 'allow' ? 0 : row.policy_id === null ? 2 : 1;
      sums[key] = (sums[key] ?? [0, 0, 0]).map((sum, i) => sum + (i === at ? 1 : 0));
    }
    cursor = page.next;
    if (cursor === null) return sums;
  }
}

const hourIn = (id: string): string =>
  new Date(Math.floor(Number.parseInt(id.replaceAll('-', '').slice(0, 12), 16) / HOUR_MS) * HOUR_MS).toISOString();

eachEngine(
  test.serial,
  'the counts equal the rows of the log, with several writers, with replicas that count at once, and after kills',
  async (t, at) => {
    const databases = at.url.startsWith('mysql')
      ? [await openTestDatabase(t, at), await openTestDatabase(t, at)]
      : [await openTestDatabase(t, at)];
    const [database] = databases as [Database];
    const other = databases[1] ?? database;
    const old = legacyWriter(database);
    const writers = [quietWriter(database), quietWriter(other), old];
    const record = fc.tuple(fc.nat(HOURS - 1), fc.nat(2), fc.nat(2), fc.boolean());
    const step = fc.oneof(
      { weight: 4, arbitrary: fc.record({ writer: fc.nat(2), records: fc.array(record, { minLength: 1, maxLength: 20 }) }) },
      { weight: 2, arbitrary: fc.record({ counts: fc.array(fc.boolean(), { minLength: 1, maxLength: 3 }) }) },
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 8 }), async (steps) => {
        const counting: Promise<unknown>[] = [];
        for (const one of steps) {
          if ('counts' in one) {
            for (const [i, fails] of one.counts.entries()) {
              const by = counter(failing(i % 2 === 0 ? database : other, () => fails));
              counting.push(
                by
                  .run()
                  .catch(() => {})
                  .then(() => by.stop()),
              );
            }
          } else for (const each of one.records) await writers[one.writer]?.decision(recordOf(each));
        }
        await Promise.all(counting);
        const last = [counter(database), counter(other)];
        await Promise.all(last.map((by) => by.run()));
        await Promise.all(last.map((by) => by.stop()));
        const keys = {
          hour: ({ id }: { id: string }) => hourIn(id),
          policy: ({ policy_id }: { policy_id: string | null }) => String(policy_id),
          target: ({ target_id }: { target_id: string | null }) => String(target_id),
        };
        for (const by of ['hour', 'policy', 'target'] as const) {
          const { counts, more } = await shown(database, by);
          t.false(more);
          t.deepEqual(
            Object.fromEntries(
              counts.map(({ hour, policy_id, target_id, allowed, denied, unmatched }) => [
                String({ hour, policy: policy_id, target: target_id }[by]),
                [allowed, denied, unmatched],
              ]),
            ),
            await expected(database, keys[by]),
          );
        }
      }),
      { numRuns: at.url.startsWith('mysql') ? 8 : 25 },
    );
    for (const writer of writers) await writer.close();
  },
);

eachEngine(test.serial, 'the answer says to when decisions are counted, and filters by policy and target', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const first = recordOf([1, 1, 1, true]);
  for (const record of [first, recordOf([1, 2, 1, false]), recordOf([2, 1, 2, false])]) await writer.decision(record);
  const before = await shown(database, 'hour');
  t.deepEqual(before.counts, []);
  t.is(before.counted_to, new Date(first.created_at).toISOString());
  const counts = counter(database);
  await counts.run();
  await counts.stop();
  const after = await shown(database, 'hour');
  t.is(after.counted_to, after.to);
  t.deepEqual(
    after.counts.map(({ allowed, denied }) => [allowed, denied]),
    [
      [1, 1],
      [0, 1],
    ],
  );
  const sums = async (query: object) =>
    (await shown(database, 'hour', query)).counts.reduce((sum, { allowed, denied }) => sum + allowed + denied, 0);
  t.is(await sums({ policies: `${POLICIES[1]}` }), 2);
  t.is(await sums({ policies: `${POLICIES[1]},${POLICIES[2]}` }), 3);
  t.is(await sums({ policies: `${POLICIES[1]}`, target_id: `${TARGETS[2]}` }), 1);
  // Retention removes the counts of the hours that it removes.
  await keeperOf(database, { days: 1, now: () => START + 26 * HOUR_MS }).run();
  t.deepEqual(
    (await shown(database, 'hour')).counts.map(({ hour }) => hour),
    [new Date(START + 2 * HOUR_MS).toISOString()],
  );
  await writer.close();
});

eachEngine(test.serial, 'the counts of old hours are removed in batches', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const [young, old] = [START / HOUR_MS, START / HOUR_MS - 30 * 24];
  const rows = Array.from({ length: 1_200 }, (_, i) => ({
    ...{ hour: old + (i % 3), effect: 'allow', policy_id: `p${i}`, target_id: '', decisions: 1 },
  }));
  await database.knex.batchInsert('log_counts', [...rows, { ...rows[0], hour: young }], 100);
  let most = 0;
  database.knex.on('query-response', (response: unknown, { method }: { method?: string }) => {
    if (method === 'del') most = Math.max(most, Number(response));
  });
  await keeperOf(database, { days: 1, now: () => START }).run();
  t.deepEqual(await database.knex('log_counts').pluck('hour'), [young]);
  t.is(most, 500);
});

test('fast reads cover more and more hours, and all reads together cover each hour once', async (t) => {
  const end = START + 31 * 24 * HOUR_MS;
  const query = readCounts({ by: 'hour', from: new Date(START).toISOString(), to: new Date(end).toISOString() }, end);
  const reads: (readonly [number, number])[] = [];
  const sums: ReturnType<typeof countStore>['sums'] = async (_, from, to) => {
    reads.push([from, to]);
    return [];
  };
  await countsOf({ sums, uncounted: async () => [] }, query, (work) => work());
  t.true(reads.length < 90, String(reads.length));
  // Each begins where the one before it ended.
  t.deepEqual([...reads.map(([from]) => from), query.to], [query.from, ...reads.map(([, to]) => to)]);
});

test('a range that is too long, or ends before it begins, and unknown parameters are refused', (t) => {
  const from = new Date(START).toISOString();
  for (const query of [
    {},
    { by: 'user' },
    { by: 'hour', from: new Date(START + HOUR_MS).toISOString() },
    { by: 'hour', from: new Date(START - 32 * 24 * HOUR_MS).toISOString() },
    { by: 'hour', from: 'yesterday' },
    { by: ['hour', 'policy'] },
    { by: 'policy', policies: 'x' },
    { by: 'policy', policies: Array.from({ length: 101 }, () => POLICIES[1]).join() },
    { by: 'hour', user_id: 'u1' },
  ])
    t.throws(() => readCounts({ from, ...query }, START), { code: 'invalid_request' } as never, JSON.stringify(query));
  t.like(readCounts({ by: 'hour' }, START + 1), { from: START / HOUR_MS - 23, to: START / HOUR_MS + 1 });
});

test('on SQLite, counts of an older version are kept, in the order of their key', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const open = () => openDatabase(readConfig({ DATABASE_URL: at.url }).database, async () => undefined);
  const counts = [1, 2].map((hour) => ({ hour, effect: 'allow', policy_id: '', target_id: 'x', decisions: 5 }));
  const before = await open();
  await before.knex('migrations').where({ name: '0025-counts-by-key' }).delete();
  await before.knex.schema.dropTable('log_counts');
  await up(before.knex, null);
  await before.knex('log_counts').insert(counts);
  await before.close();
  const { knex, close } = await open();
  t.teardown(close);
  t.deepEqual(await knex('log_counts').select('*').orderBy('hour'), counts);
  const [{ sql }] = (await knex('sqlite_master').where({ name: 'log_counts' }).select('sql')) as [{ sql: string }];
  t.regex(sql, /without rowid/);
});
