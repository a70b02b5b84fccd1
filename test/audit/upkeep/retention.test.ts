import test from 'ava';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { firstIdOf, retentionSignature } from '../../../src/audit/chain/chain.ts';
import { CHECKPOINT_TYPE } from '../../../src/audit/chain/checkpoint.ts';
import { dayOf, firstKeyOf } from '../../../src/audit/chain/facts.ts';
import { removalStore } from '../../../src/audit/chain/tables/removal-store.ts';
import { createRetention } from '../../../src/audit/upkeep/retention.ts';
import { genuinenessOf } from '../../../src/audit/verify/genuine.ts';
import { auditLines } from '../../../src/audit/verify/lines.ts';
import { createVerification } from '../../../src/audit/verify/verify.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine, eachServer } from '../../support/databases/each-engine.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, LATER, quietWriter, verified } from '../records.ts';
import { checkpointAt, keeperOf } from './keeper.ts';

const DAY = 24 * 60 * 60 * 1000;
const NOW = 1_800_000_000_000;
const quiet = { info: () => {}, warn: () => {}, error: () => {} };

/** A UUIDv7 of a moment. */
const idAt = (time: number): string => firstIdOf(time).slice(0, 14) + decision().id.slice(14);

async function write(
  database: Database,
  ages: readonly number[],
  writerOf: typeof quietWriter | typeof legacyWriter = quietWriter,
) {
  let at = NOW;
  const writer = writerOf(database, { now: () => at });
  for (const days of ages) {
    at = NOW - days * DAY;
    const record = decision({ id: idAt(at), created_at: at });
    await writer.decision(record);
    await writer.shown({
      decision_id: record.id,
      resource_type: 'tool',
      names: [days > 40 ? 'old' : 'new', 'both'.slice(0, days)],
      hidden: 0,
    });
    writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
    await writer.flush();
  }
  await writer.close();
}

function retention(database: Database, days: number, now = NOW) {
  return createRetention({
    database,
    key: KEY,
    previousKeys: [],
    days,
    resume: async () => {},
    checkClock: async () => {},
    onKept: () => {},
    log: quiet,
    now: () => now,
  });
}

/** How many decisions of the log are what was written. */
async function genuine(database: Database): Promise<number> {
  const { entries } = await auditStore(database.knex).page({}, 100, null);
  const checked = await Promise.all(entries.map((entry) => genuinenessOf(database.knex, [KEY], entry)));
  return checked.filter((one) => one === 'genuine').length;
}

const count = async (database: Database, table: string): Promise<number> => (await database.knex(table).select('*')).length;

for (const [version, writerOf] of [
  [1, legacyWriter],
  [2, quietWriter],
] as const) {
  eachEngine(
    test.serial,
    `older records are removed from the front of each chain, and the rest verifies, in version ${version}`,
    async (t, at) => {
      const database = await openTestDatabase(t, at);
      await write(database, [50, 45, 45, 41, 20, 10], writerOf);
      await write(database, [60, 50], writerOf);
      await write(database, [35, 1], writerOf);
      // The clock was set back: the newer record in front stays, and so does everything after it.
      await write(database, [5, 50], writerOf);
      const never = retention(database, 0);
      t.is(await never.run(), 0);
      await never.stop();
      const keeper = retention(database, 40);
      t.teardown(() => keeper.stop());
      t.is(await genuine(database), 12);
      t.is(await keeper.run(), 18);
      t.is(await genuine(database), 6);
      t.deepEqual((await verified(database)).problems, []);
      t.like(await verified(database), { chains: 4, shortened: 2, records: { decision: 6, shown: 6, outcome: 6 } });
      t.is(await keeper.run(), 0);
      const used = new Set(
        (await database.knex('audit_shown').select('set_hash')).map((row: { set_hash: string }) => row.set_hash),
      );
      t.is(await count(database, 'audit_sets'), used.size);

      const later = retention(database, 40, NOW + 30 * DAY);
      t.teardown(() => later.stop());
      t.is(await later.run(), 6);
      t.true((await verified(database)).intact);

      // A further removal by hand is missed, also if the record of the removal is removed or put back.
      const [row] = await database.knex('audit_retention').where('seq', '>', 6);
      await database.knex('audit_retention').where('chain_id', row.chain_id).delete();
      t.false((await verified(database)).intact);
      t.is(await genuine(database), 3, 'one record has lost the one that it continues');
      await database.knex('audit_retention').insert({ ...row, signature: 'other' });
      t.is(await genuine(database), 3);
      await database.knex('audit_retention').where('chain_id', row.chain_id).update({ signature: row.signature });
      t.is(await genuine(database), 4);
      t.true((await verified(database)).intact);
      await database
        .knex('audit_retention')
        .where('chain_id', row.chain_id)
        .update({ seq: row.seq + 1 });
      t.false((await verified(database)).intact);
    },
  );
}

eachEngine(
  test.serial,
  'nothing is removed while the clock is not trusted, and a removal by a clock that was ahead is reported',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    await write(database, [50, 20, 1]);
    const ahead = (checkClock: () => Promise<void>) => keeperOf(database, { days: 30, now: () => NOW + 28 * DAY, checkClock });
    await t.throwsAsync(ahead(() => Promise.reject(new Error('the clock has jumped'))).run(), {
      message: 'the clock has jumped',
    });
    t.is((await verified(database)).shortened, 0);
    const problems = async (now: number) => (await verified(database, [], [KEY], now)).problems;

    t.is(await keeperOf(database).run(), 3);
    t.deepEqual(await problems(NOW), [], 'the clocks agree');
    t.is(await ahead(async () => {}).run(), 3, 'the record that is 20 days old');
    const [future, ...others] = await problems(NOW);
    t.deepEqual(others, []);
    t.like(future, { problem: 'missing', seq: 6 });
    t.regex(future?.detail ?? '', /were removed at .*, which is in the future/);
    t.deepEqual(await problems(LATER), [], 'by then it was old enough');

    const checkpoint = await checkpointAt(database, NOW);
    const jws = [{ typ: CHECKPOINT_TYPE }, checkpoint].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'));
    const exported = createVerification([KEY], LATER);
    for await (const line of auditLines(database.knex, NOW, `${jws.join('.')}.`)) exported.takeExported(line);
    t.like(exported.finish().report.problems, [{ problem: 'missing', seq: 6 }], 'the export is from before');

    const row = await database.knex('audit_retention').first();
    const later = { ...row, removed_at: NOW, signature: retentionSignature(KEY, { ...row, removed_at: NOW }) };
    await database.knex('audit_retention').update(later);
    const [young] = await problems(NOW);
    t.like(young, { problem: 'missing', seq: 6 });
    t.regex(young?.detail ?? '', /it was too young to be removed/);
  },
);

eachEngine(test.serial, 'facts, names, arguments and index entries go with the last records that need them', async (t, at) => {
  const database = await openTestDatabase(t, at);
  let time = NOW;
  const writer = quietWriter(database, { now: () => time });
  for (const [i, days] of [50, 50, 45, 10, 1].entries()) {
    time = NOW - days * DAY;
    const id = `${firstIdOf(time).slice(0, 14)}7${i}00-8000-000000000000`;
    const made = { id, created_at: time, arguments: '{"value":1,"cut":false}', resource_name: `of day ${days}` };
    await writer.decision(decision(made));
    await writer.shown({ decision_id: id, resource_type: 'tool', names: [`of day ${days}`], hidden: 0 });
  }
  await writer.close();
  const left = async (): Promise<Record<string, number>> => {
    const tables = ['log_principals', 'log_objects', 'log_verdicts', 'log_names', 'log_arguments', 'log_segments'];
    return Object.fromEntries(await Promise.all(tables.map(async (table) => [table, await count(database, table)] as const)));
  };
  // The name that comes again on its day is a fact, besides the object without a name.
  t.deepEqual(await left(), {
    ...{ log_principals: 4, log_objects: 5, log_verdicts: 4, log_names: 4, log_arguments: 5, log_segments: 4 },
  });
  const keeper = retention(database, 40);
  t.teardown(() => keeper.stop());
  t.is(await keeper.run(), 6);
  t.deepEqual(await left(), {
    ...{ log_principals: 2, log_objects: 2, log_verdicts: 2, log_names: 2, log_arguments: 2, log_segments: 2 },
  });
  const segments: { segment: unknown }[] = await database.knex('log_terms').distinct('segment');
  t.is(segments.length, 2);
  t.like(await verified(database), { intact: true, shortened: 1, records: { decision: 2, shown: 2 } });
});

eachEngine(test.serial, 'facts are removed in batches', async (t, at) => {
  const database = await openTestDatabase(t, at);
  await write(database, [50, 45, 44, 43, 1]);
  const { knex } = database;
  t.is(await count(database, 'log_principals'), 5);
  for (const table of ['log_decisions', 'log_lists']) await knex(table).delete();
  const store = removalStore(knex);
  const day = await store.firstDay(NOW);
  t.true(await store.removeFacts(day, 2));
  t.is(await count(database, 'log_principals'), 3);
  t.true(await store.removeFacts(day, 2));
  t.false(await store.removeFacts(day, 2));
  t.is(await count(database, 'log_principals'), 1);
});

eachEngine(test.serial, 'few lists of names are removed at once, because they can be large', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const store = removalStore(database.knex);
  const day = dayOf(firstIdOf(NOW));
  for (let i = 10; i < 55; i++)
    await database.knex.raw(
      `insert into log_names (id, set_hash, names) values (x'${firstKeyOf(day - 1).slice(0, -2)}${i}', 'h', '[]')`,
    );
  const limits: number[] = [];
  database.knex.on('query', ({ sql, method }: { sql: string; method?: string }) => {
    if (method === 'del') limits.push(sql.split('<').length - 1);
  });
  t.true(await store.removeFacts(day, 500));
  t.deepEqual(limits, [1, 1, 1, 1], 'with two upper limits, SQLite reads all old rows');
  t.is(await count(database, 'log_names'), 25);
  t.true(await store.removeFacts(day, 500));
  t.false(await store.removeFacts(day, 500));
  t.is(await count(database, 'log_names'), 0);
});

eachEngine(test.serial, 'records that were removed by age and put back from a copy are reported', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  await write(database, [50, 45, 45, 41, 20, 10]);
  await knex.raw('create table copied as select * from log_decisions');
  await retention(database, 30).run();
  t.true((await verified(database)).intact);
  const removed = 'from copied where seq not in (select seq from log_decisions)';
  for (const some of [`${removed} and seq = 1`, removed]) {
    await knex.raw('create table kept as select * from log_decisions');
    await knex.raw(`insert into log_decisions select * ${some}`);
    const { intact, problems } = await verified(database);
    t.false(intact);
    t.like(problems[0], { problem: 'added', detail: 'the record was removed by age, and somebody has put it back' });
    await knex('log_decisions').delete();
    await knex.raw('insert into log_decisions select * from kept');
    await knex.raw('drop table kept');
  }
  t.true((await verified(database)).intact);
});

eachEngine(test.serial, 'a young list stays if it is the first record of its chain', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const before = quietWriter(database, { now: () => NOW - 50 * DAY });
  const after = quietWriter(database, { now: () => NOW });
  const list = decision({ created_at: NOW });
  const shown = { decision_id: list.id, resource_type: 'tool', names: ['a'], hidden: 0 } as const;
  await before.decision(list);
  // After a lost connection, a process begins a new chain between a decision and its list.
  await after.shown(shown);
  await after.decision(decision({ created_at: NOW }));
  await Promise.all([before.close(), after.close()]);
  const [keeper, later] = [retention(database, 40), retention(database, 40, NOW + 41 * DAY)];
  t.teardown(() => Promise.all([keeper.stop(), later.stop()]));
  t.is(await keeper.run(), 0);
  t.is(await later.run(), 3);
  t.true((await verified(database)).intact);
});

eachEngine(test.serial, 'the log verifies if the last removed record is an outcome that waited for days', async (t, at) => {
  const database = await openTestDatabase(t, at);
  let now = NOW - 50 * DAY;
  const writer = quietWriter(database, { now: () => now });
  const record = decision({ created_at: now });
  await writer.decision(record);
  writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
  now += 3 * DAY;
  // It finds the first chain without the outcome.
  const other = quietWriter(database, { now: () => now });
  await other.decision(decision({ created_at: now }));
  await writer.flush();
  now = NOW;
  await writer.decision(decision({ created_at: now }));
  await Promise.all([writer.close(), other.close()]);
  const keeper = retention(database, 40);
  t.teardown(() => keeper.stop());
  t.is(await keeper.run(), 3);
  t.deepEqual((await verified(database)).problems, []);
});

/** `knex`, where `work` runs once, before the first query that reads rows of `table`. */
function interrupted(knex: Connection, table: string, work: () => Promise<unknown>): Connection {
  let done = false;
  const hooked = (query: ReturnType<Connection>) => {
    const then = query.then.bind(query);
    return Object.assign(query, {
      // biome-ignore lint/suspicious/noThenProperty: as knex's builder has it
      async then(...told: Parameters<typeof then>) {
        const sql = query.toString();
        // The extents of the chains are read before the rows.
        if (!done && sql.includes(table) && !sql.includes('from `audit_chains`')) {
          done = true;
          await work();
        }
        return then(...told);
      },
    });
  };
  return new Proxy(knex, {
    apply: (target, self, args: Parameters<Connection>) => hooked(Reflect.apply(target, self, args)),
    get: (target, name) =>
      name === 'from' ? (...args: Parameters<Connection['from']>) => hooked(target.from(...args)) : Reflect.get(target, name),
  });
}

for (const table of [
  ...['audit_decisions', 'audit_shown', 'audit_outcomes', 'log_decisions', 'log_lists', 'log_outcomes'].map(
    (name) => `\`${name}\` as \`t\``,
  ),
  ...['log_principals', 'log_objects', 'log_verdicts', 'log_names'].map((name) => `from \`${name}\``),
]) {
  eachEngine(
    test.serial,
    `a log verifies although records are removed by age before it reads ${table.replaceAll('`', '')}`,
    async (t, at) => {
      const database = await openTestDatabase(t, at);
      await write(database, [60, 55, 50, 20, 10], table.includes('audit') ? legacyWriter : quietWriter);
      const keeper = retention(database, 40);
      t.teardown(() => keeper.stop());
      const removed: number[] = [];
      const knex = interrupted(database.knex, table, async () => void removed.push(await keeper.run()));
      const verification = createVerification([KEY], LATER);
      for await (const line of auditLines(knex, NOW, null)) verification.take(line);
      t.deepEqual(removed, [9]);
      const { report } = verification.finish();
      t.like(report, { intact: true, problems: [], records: { shown: 2, outcome: 2 } });
      // The first record may have been read before the names of the second.
      t.true(report.records.decision <= 3);
    },
  );
}

eachServer(
  test.serial,
  'replicas that remove and write at the same time leave complete chains, and no list without its names',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    await write(
      database,
      Array.from({ length: 40 }, (_, i) => 90 - i),
    );
    const keepers = [retention(database, 40), retention(database, 40)];
    const writer = quietWriter(database, { now: () => NOW });
    const lists = async (): Promise<void> => {
      for (let i = 0; i < 40; i++) {
        const record = decision({ created_at: NOW });
        await writer.decision(record);
        await writer.shown({ decision_id: record.id, resource_type: 'tool', names: ['both', 'old'], hidden: 0 });
      }
    };
    await Promise.all([...keepers.map((keeper) => keeper.run()), lists(), lists()]);
    await Promise.all(keepers.map((keeper) => keeper.stop()));
    await writer.close();
    await retention(database, 40).run();
    t.deepEqual((await verified(database)).problems, []);
    t.is((await verified(database)).records.decision, 80);
  },
);
