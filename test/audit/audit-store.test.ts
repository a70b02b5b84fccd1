import test from 'ava';
import { auditStore } from '../../src/audit/audit-store.ts';
import { MAX_SET_BYTES } from '../../src/audit/records/log-rows.ts';
import type { OutcomeRecord } from '../../src/audit/records/records.ts';
import type { Connection } from '../../src/db/database.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { legacyStore } from './legacy-rows.ts';
import { decision, firstStamper, stamper } from './records.ts';

interface Version {
  readonly storeOf: (db: Connection) => ReturnType<typeof legacyStore>;
  readonly chain: ReturnType<typeof firstStamper>;
  readonly tables: { readonly decisions: string; readonly lists: string; readonly names: string };
}

const versions: Readonly<Record<string, Version>> = {
  1: {
    storeOf: legacyStore,
    chain: firstStamper(),
    tables: { decisions: 'audit_decisions', lists: 'audit_shown', names: 'audit_sets' },
  },
  2: {
    storeOf: auditStore as unknown as Version['storeOf'],
    chain: stamper() as unknown as Version['chain'],
    tables: { decisions: 'log_decisions', lists: 'log_lists', names: 'log_names' },
  },
};

for (const [version, { storeOf, chain, tables }] of Object.entries(versions)) {
  const outcome = (over: Partial<OutcomeRecord>) => chain.outcome({ decision_id: '', outcome: 'ok', duration_ms: 7, ...over }, 5);

  eachEngine(
    test.serial,
    `a decision is read back unchanged, with its listed names and its outcome, in version ${version}`,
    async (t, at) => {
      const store = storeOf((await openTestDatabase(t, at)).knex);
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
      await store.insert({ decisions: [chain.decision(denied), chain.decision(allowed)] });
      await store.insert({
        shown: [chain.shown({ decision_id: allowed.id, resource_type: 'tool', names: ['b', 'a'], hidden: 3 })],
      });
      await store.insert({ outcomes: [outcome({ decision_id: allowed.id })] });

      const { entries } = await store.page({}, 10, null);
      t.deepEqual(
        entries.map(({ chain_id, chain_seq, ...entry }) => entry),
        [
          { ...allowed, shown: { count: 2, hidden: 3, names: ['a', 'b'] }, outcome: 'ok', duration_ms: 7 },
          { ...denied, shown: null, outcome: null, duration_ms: null },
        ],
      );
      t.like(await store.find(denied.id), { ...denied, shown: null, outcome: null, duration_ms: null });
      t.is(await store.find('nothing'), null);
    },
  );

  eachEngine(test.serial, `decisions are read newest first, page by page, in version ${version}`, async (t, at) => {
    const store = storeOf((await openTestDatabase(t, at)).knex);
    const records = Array.from({ length: 5 }, () => decision());
    await store.insert({ decisions: records.map(chain.decision) });
    const ids = records.map(({ id }) => id).reverse();
    const read = async (limit: number, cursor: string | null) =>
      (await store.page({}, limit, cursor)).entries.map(({ id }) => id);
    t.deepEqual(await read(2, null), ids.slice(0, 2));
    t.deepEqual(await read(2, ids[1] ?? ''), ids.slice(2, 4));
    t.deepEqual(await read(2, ids[4] ?? ''), []);
  });

  eachEngine(test.serial, `a set of names is stored once in any order, up to a limit, in version ${version}`, async (t, at) => {
    const { knex } = await openTestDatabase(t, at);
    const store = storeOf(knex);
    const records = Array.from({ length: 4 }, () => decision());
    await store.insert({ decisions: records.map(chain.decision) });
    const [one, two, three, four] = records.map(({ id }) => id) as [string, string, string, string];
    const shown = (decision_id: string, names: string[]) =>
      chain.shown({ decision_id, resource_type: 'tool' as const, names, hidden: 0 });
    await store.insert({ shown: [shown(one, ['a', 'b']), shown(two, ['b', 'a'])] });
    await store.insert({ shown: [shown(three, ['a', 'b'])] });
    t.is((await knex(tables.names)).length, 1);

    const many = Array.from({ length: 3000 }, (_, i) => `${'n'.repeat(200)}${i}`);
    await store.insert({ shown: [shown(four, many)] });
    const [last] = (await store.page({}, 1, null)).entries;
    t.is(last?.shown?.count, 3000);
    const kept = last?.shown?.names ?? [];
    t.true(kept.length > 1000 && kept.length < 3000);
    t.true(JSON.stringify(kept).length <= MAX_SET_BYTES);
  });

  eachEngine(test.serial, `many writers can store the same new sets at the same time, in version ${version}`, async (t, at) => {
    const { knex } = await openTestDatabase(t, at);
    const records = Array.from({ length: 24 }, () => decision());
    await storeOf(knex).insert({ decisions: records.map(chain.decision) });
    const shown = records.map(({ id }, i) =>
      chain.shown({ decision_id: id, resource_type: 'tool', names: [`set ${i % 3}`], hidden: 0 }),
    );
    const pairs = Array.from({ length: 12 }, (_, i) => shown.slice(2 * i, 2 * i + 2));
    await Promise.all(pairs.map((pair) => knex.transaction((trx) => storeOf(trx).insert({ shown: pair }))));
    t.is((await knex(tables.names)).length, 3);
    t.is((await knex(tables.lists)).length, 24);
  });

  eachEngine(
    test.serial,
    `many and large rows are written in statements of limited size, in version ${version}`,
    async (t, at) => {
      const { knex } = await openTestDatabase(t, at);
      const sizes: number[] = [];
      const records = Array.from({ length: 1200 }, (_, i) =>
        decision({ resource_name: `${"'\u20ac".repeat(1020)}${i}`, user_groups: [`\\`.repeat(500)] }),
      );
      await knex.transaction((trx) => {
        const run = trx.client._query;
        trx.client._query = (connection: unknown, query: { sql: string }) => {
          if (query.sql.startsWith(`insert into ${tables.decisions}`)) sizes.push(Buffer.byteLength(query.sql));
          return run.call(trx.client, connection, query);
        };
        return storeOf(trx).insert({ decisions: records.map(chain.decision) });
      });
      t.true(sizes.length >= 5);
      t.true(Math.max(...sizes) <= 1_000_000);
      const [{ n } = { n: 0 }] = await knex(tables.decisions).count<{ n: number }[]>({ n: '*' });
      t.is(Number(n), 1200);
    },
  );

  eachEngine(
    test.serial,
    `rows with the same id are told apart, and each row is written once, in version ${version}`,
    async (t, at) => {
      const store = storeOf((await openTestDatabase(t, at)).knex);
      const record = decision();
      const stored = chain.decision(record);
      t.false(await store.holdsDecision(stored));
      await store.insert({ decisions: [stored] });
      t.true(await store.holdsDecision(stored));
      t.false(await store.holdsDecision(chain.decision({ ...record, effect: 'allow' })));
      await t.throwsAsync(store.insert({ decisions: [stored] }));

      const first = outcome({ decision_id: record.id });
      await store.insert({ outcomes: [first] });
      const second = outcome({ decision_id: record.id, outcome: 'error' });
      // A record of version 2 has several outcomes, so it is not unique by their decisions. The first outcome counts.
      if (version === '1') await t.throwsAsync(store.insert({ outcomes: [second] }));
      else await store.insert({ outcomes: [second] });
      t.deepEqual([await store.holdsOutcomes(first), await store.holdsOutcomes(second)], [true, version === '2']);
      t.is((await store.find(record.id))?.outcome, 'ok');
    },
  );
}

eachEngine(test.serial, 'rows of one commit are stored together or not at all, also if they are large', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = auditStore(knex);
  const chain = stamper();
  const listed = decision({ method: 'tools/list', effect: 'allow', reason: 'matched', resource_type: null, resource_name: null });
  const list = (n: number) => {
    const names = Array.from({ length: 100 }, (_, i) => `${n} ${i} `.padEnd(2_000, 'x'));
    return chain.shown({ decision_id: n < 8 ? decision().id : listed.id, resource_type: 'tool', names, hidden: 0 });
  };
  // The last of the lists is there twice.
  const shown = Array.from({ length: 10 }, (_, n) => list(n));
  const rows = { decisions: [chain.decision(listed)], shown, outcomes: [] };
  const insert = store.isAtomic(rows) ? store.insert(rows) : knex.transaction((trx) => auditStore(trx).insert(rows));
  await t.throwsAsync(insert);
  for (const table of ['log_decisions', 'log_lists', 'log_names']) t.deepEqual(await knex(table), [], table);
});
