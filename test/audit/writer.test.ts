import test, { type ExecutionContext } from 'ava';
import { v7 as uuidv7 } from 'uuid';
import { type AuditStore, auditStore } from '../../src/audit/audit-store.ts';
import { chainMac } from '../../src/audit/chain/chain.ts';
import { chainStore } from '../../src/audit/chain/tables/chain-store.ts';
import { type AuditWriterParts, createAuditWriter } from '../../src/audit/writer.ts';
import type { Connection, Database, Transaction } from '../../src/db/database.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { until } from '../support/listener.ts';
import { decision, KEY, verified } from './records.ts';

type Faults = (real: AuditStore) => Partial<AuditStore>;

function writerOn(t: ExecutionContext, database: Database, faults: Faults = () => ({}), over: Partial<AuditWriterParts> = {}) {
  const warnings: unknown[] = [];
  const writer = createAuditWriter({
    database,
    key: KEY,
    host: {},
    log: { info: () => {}, warn: (record: object) => void warnings.push(record) },
    now: () => 99,
    store: (db: Connection) => {
      const real = auditStore(db);
      return { ...real, ...faults(real) };
    },
    ...over,
  });
  t.teardown(() => writer.close());
  return { writer, warnings, store: auditStore(database.knex) };
}

const EMPTY = { chain_id: 'empty', version: 1, key_id: KEY.id, started_at: 1, host: '{}', found: '[]', unchained: 0 };

const unavailable = { name: 'AppError', code: 'unavailable' };

eachEngine(
  test.serial,
  '64 simultaneous decisions share one or two commits, and each is durable when its promise resolves',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const batches: number[] = [];
    const { writer, store } = writerOn(t, database, (real) => ({
      insert: (rows) => {
        batches.push(rows.decisions?.length ?? 0);
        return real.insert(rows);
      },
    }));
    const records = Array.from({ length: 64 }, () => decision());
    await Promise.all(
      records.map(async (record) => {
        await writer.decision(record);
        t.truthy(await store.find(record.id));
      }),
    );
    t.true(batches.length <= 2, String(batches));
    t.is(
      batches.reduce((a, b) => a + b),
      64,
    );
  },
);

eachEngine(test.serial, 'one bad row fails alone', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { writer, store } = writerOn(t, database);
  const bad = decision({ target_name: null as unknown as string });
  const records = [decision(), bad, decision(), decision()];
  const results = await Promise.allSettled(records.map((record) => writer.decision(record)));
  t.deepEqual(
    results.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled', 'fulfilled'],
  );
  t.like((results[1] as PromiseRejectedResult).reason, unavailable);
  t.is((await store.page({}, 10, null)).entries.length, 3);
});

eachEngine(
  test.serial,
  'a commit that fails at midnight stores nothing, although its facts must be stored again',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const { writer } = writerOn(t, database);
    const midnight = Math.ceil(Date.now() / 86_400_000) * 86_400_000;
    const listing = (ms: number) =>
      decision({ id: uuidv7({ msecs: ms }), created_at: ms, resource_type: null, resource_name: null });
    const show = (decision_id: string, n: number) => {
      const names = Array.from({ length: 100 }, (_, i) => `${n} ${i} `.padEnd(2_000, 'x'));
      return writer.shown({ decision_id, resource_type: 'resource', names, hidden: 0 });
    };
    // Until midnight, the facts of these lists are stored.
    for (let n = 0; n < 8; n++) {
      const before = listing(midnight - 5_000);
      await writer.decision(before);
      await show(before.id, n);
    }
    const last = Array.from({ length: 8 }, () => listing(midnight - 3));
    await Promise.all(last.map((record) => writer.decision(record)));
    await database.knex.raw(
      database.knex.client.dialect === 'mysql'
        ? `create trigger full before insert on log_lists for each row signal sqlstate 'HY000' set message_text = 'disk full'`
        : `create trigger full before insert on log_lists begin select raise(abort, 'disk full'); end`,
    );
    const lists = last.map(({ id }, n) => show(id, n));
    const decisions = [midnight - 1, midnight + 1].map((ms) => writer.decision(listing(ms)));
    const results = await Promise.allSettled([...lists, ...decisions]);
    t.true(results.some(({ status }) => status === 'rejected'));
    await database.knex.raw('drop trigger full');
    const stored = await database.knex('log_lists').count('* as n').first();
    t.is(Number(stored?.n), 8 + results.slice(0, 8).filter(({ status }) => status === 'fulfilled').length);
    await writer.decision(decision());
    t.true((await verified(database)).intact);
  },
);

eachEngine(test.serial, 'a commit whose answer was lost is read back, not repeated', async (t, at) => {
  const database = await openTestDatabase(t, at);
  let tries = 0;
  const { writer, store } = writerOn(t, database, (real) => ({
    insert: async (rows) => {
      await real.insert(rows);
      // The first record has the header of its chain beside it, and the first two have facts.
      if (tries++ > 1) throw Object.assign(new Error('Connection lost'), { code: 'PROTOCOL_CONNECTION_LOST' });
    },
  }));
  await writer.decision(decision());
  await writer.decision(decision());
  const records = [decision(), decision()];
  await Promise.all(records.map((record) => writer.decision(record)));
  t.is(tries, 3);
  t.is((await store.page({}, 10, null)).entries.length, 4);
});

eachEngine(test.serial, 'a chain gets its row with its first record, and not before', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const idle = writerOn(t, database).writer;
  await idle.start();
  await idle.close();
  t.deepEqual(await chainStore(database.knex).chains(), []);
  t.is(idle.head(), null);

  let full = true;
  const { writer } = writerOn(t, database, (real) => ({
    insert: async (rows) => {
      if (full) throw Object.assign(new Error('full'), { code: 'SQLITE_FULL', sqlState: 'HY000' });
      await real.insert(rows);
    },
  }));
  await writer.start();
  await t.throwsAsync(writer.decision(decision()), unavailable);
  t.deepEqual(await chainStore(database.knex).chains(), [], 'the two are written together, or not at all');
  t.is(writer.head(), null);
  full = false;
  const bad = decision({ target_name: null as unknown as string });
  const results = await Promise.allSettled([bad, decision(), decision()].map((record) => writer.decision(record)));
  t.deepEqual(
    results.map(({ status }) => status),
    ['rejected', 'fulfilled', 'fulfilled'],
  );
  const [chain, ...more] = await chainStore(database.knex).chains();
  t.deepEqual(more, []);
  t.like(writer.head(), { chain_id: chain?.chain_id, seq: 2 });
  t.true((await verified(database)).intact);

  // One without records, as versions before left it, stays and is found.
  await chainStore(database.knex).insertChain({ ...EMPTY, mac: chainMac(KEY, EMPTY) });
  const later = writerOn(t, database).writer;
  await later.decision(decision());
  t.like(await verified(database), { intact: true, chains: 3 });
  await database.knex('audit_chains').where('chain_id', EMPTY.chain_id).delete();
  t.like((await verified(database)).problems, [{ problem: 'missing', chain: EMPTY.chain_id }]);
});

eachEngine(test.serial, 'the first commit of a chain whose answer was lost is read back, not repeated', async (t, at) => {
  const database = await openTestDatabase(t, at);
  let commits = 0;
  const knex = new Proxy(database.knex, {
    get(target, name) {
      if (name !== 'transaction') return Reflect.get(target, name);
      return async (work: (trx: Transaction) => Promise<unknown>) => {
        await target.transaction(work);
        commits++;
        throw Object.assign(new Error('Connection lost'), { code: 'PROTOCOL_CONNECTION_LOST' });
      };
    },
  });
  const { writer } = writerOn(t, { ...database, knex });
  await writer.decision(decision());
  t.is(commits, 1);
  t.is(writer.head()?.seq, 1);
  await writer.decision(decision());
  t.like(await verified(database), { intact: true, chains: 1, records: { decision: 2 } });
});

eachEngine(test.serial, 'another row with the same id does not count as written, even with the same content', async (t, at) => {
  const { writer } = writerOn(t, await openTestDatabase(t, at));
  const record = decision();
  await writer.decision(record);
  await t.throwsAsync(writer.decision(record), unavailable);
  await t.throwsAsync(writer.decision({ ...record, effect: 'allow' }), unavailable);
});

eachEngine(test.serial, 'without a database every decision is refused', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { writer } = writerOn(t, database);
  await database.close();
  const results = await Promise.allSettled(Array.from({ length: 5 }, () => writer.decision(decision())));
  for (const result of results) t.like((result as PromiseRejectedResult).reason, unavailable);
});

eachEngine(
  test.serial,
  'a full database does not end a chain, and gets the waiting outcomes when it accepts writes again',
  async (t, at) => {
    let full = false;
    const fails = (): void => {
      if (full) throw Object.assign(new Error('full'), { code: 'SQLITE_FULL', sqlState: 'HY000' });
    };
    const { writer, store, warnings } = writerOn(t, await openTestDatabase(t, at), (real) => ({
      insert: async (rows) => {
        fails();
        await real.insert(rows);
      },
    }));
    const record = decision();
    await writer.decision(record);
    const before = writer.head();
    t.true(writer.works());

    full = true;
    writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
    await t.throwsAsync(writer.decision(decision()), unavailable);
    await until('it is seen that it does not work', () => writer.unsettled().outcomes === 1 && !writer.works());
    t.deepEqual(writer.head(), before);
    await t.throwsAsync(writer.decision(decision()), unavailable);

    full = false;
    // The row is visible before the writer has the answer to its commit.
    await until('the writer knows that it is written', () => writer.works() && writer.unsettled().outcomes === 0);
    t.is((await store.find(record.id))?.outcome, 'ok');
    t.is(writer.head()?.chain_id, before?.chain_id);
    t.is(writer.head()?.seq, 2);
    t.deepEqual(warnings, []);
    t.deepEqual(writer.unsettled(), { decisions: 0, outcomes: 0 });
  },
);

eachEngine(test.serial, 'closing the writer without a database loses outcomes and does not wait', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { writer, warnings } = writerOn(t, database);
  const record = decision();
  await writer.decision(record);
  writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
  await database.close();
  await writer.close();
  t.deepEqual(warnings, [{ lost: 1 }]);
});

eachEngine(test.serial, 'a list and its decision may share a batch, and outcomes follow', async (t, at) => {
  const { writer, store, warnings } = writerOn(t, await openTestDatabase(t, at));
  const record = decision({ method: 'tools/list' });
  await Promise.all([
    writer.decision(record),
    writer.shown({ decision_id: record.id, resource_type: 'tool', names: ['echo'], hidden: 1 }),
  ]);
  writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 12 });
  t.is((await store.find(record.id))?.outcome, null);
  await writer.flush();
  t.like(await store.find(record.id), { outcome: 'ok', duration_ms: 12, shown: { count: 1, hidden: 1, names: ['echo'] } });
  t.deepEqual(warnings, []);
});

eachEngine(test.serial, 'an outcome is written after a short delay even without other records', async (t, at) => {
  const { writer, store } = writerOn(t, await openTestDatabase(t, at));
  const record = decision();
  await writer.decision(record);
  writer.outcome({ decision_id: record.id, outcome: 'error', duration_ms: 1 });
  for (let tries = 0; tries < 100 && (await store.find(record.id))?.outcome === null; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  t.is((await store.find(record.id))?.outcome, 'error');
});

eachEngine(test.serial, 'only the bad outcome is lost', async (t, at) => {
  const { writer, store, warnings } = writerOn(t, await openTestDatabase(t, at));
  const record = decision();
  writer.outcome({ decision_id: record.id, outcome: null as unknown as 'ok', duration_ms: 1 });
  writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
  await Promise.all([writer.decision(record), writer.flush()]);
  t.is((await store.find(record.id))?.outcome, 'ok');
  t.deepEqual(warnings, [{ lost: 1 }]);
});

eachEngine(test.serial, 'a record that follows another one does not wait for the next batch', async (t, at) => {
  const { writer, store } = writerOn(t, await openTestDatabase(t, at));
  const chain = async (): Promise<void> => {
    for (let i = 0; i < 20; i++) await writer.decision(decision());
  };
  await Promise.all([chain(), chain(), chain()]);
  t.is((await store.page({}, 100, null)).entries.length, 60);
});

eachEngine(test.serial, 'a full queue refuses at once, and a hanging database within the time limit', async (t, at) => {
  let release = (): void => {};
  const stuck = new Promise<void>((resolve) => {
    release = resolve;
  });
  const { writer, store } = writerOn(
    t,
    await openTestDatabase(t, at),
    (real) => ({ insert: (rows) => stuck.then(() => real.insert(rows)) }),
    { timeoutMs: 200, maxWaitingBytes: 5_000 },
  );
  const first = t.throwsAsync(writer.decision(decision()), unavailable);
  const began = Date.now();
  await t.throwsAsync(writer.decision(decision({ resource_name: 'r'.repeat(5_000) })), unavailable);
  t.true(Date.now() - began < 100);
  await first;
  release();
  await writer.decision(decision());
  t.is((await store.page({}, 10, null)).entries.length, 2);
});

eachEngine(test.serial, 'closing writes waiting records and refuses later ones', async (t, at) => {
  const { writer, store } = writerOn(t, await openTestDatabase(t, at));
  const record = decision();
  const recorded = writer.decision(record);
  writer.outcome({ decision_id: record.id, outcome: 'denied', duration_ms: 0 });
  await writer.close();
  await recorded;
  t.is((await store.find(record.id))?.outcome, 'denied');
  await t.throwsAsync(writer.decision(decision()), unavailable);
});

eachEngine(test.serial, 'a chain whose numbers are used up is followed by a new one', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { writer } = writerOn(t, database, undefined, { maxSeq: 5 });
  for (let n = 0; n < 4; n++) await Promise.all([writer.decision(decision()), writer.decision(decision())]);
  t.like(await verified(database), { intact: true, chains: 2, records: { decision: 8 } });
});

eachEngine(
  test.serial,
  'a new chain gets an id whose end no other chain has, because records have only that end',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const ids = [
      '01939b3c-7a5e-7c3a-9d41-5a0c8f2b6e17',
      '01939b3c-7a5e-7c3a-9d41-5a0d8f2b6e17',
      '01939b3c-7a5e-7c3a-9d41-5a0c8f2b6e18',
    ];
    const newId = (): string => ids.shift() ?? '';
    await writerOn(t, database, undefined, { newId }).writer.decision(decision());
    await writerOn(t, database, undefined, { newId }).writer.decision(decision());
    t.deepEqual(ids, []);
    t.like(await verified(database), { intact: true, chains: 2, records: { decision: 2 } });
  },
);
