import test from 'ava';
import fc from 'fast-check';
import { type AuditStore, auditStore } from '../../../src/audit/audit-store.ts';
import { idOf } from '../../../src/audit/chain/binary-form.ts';
import { chainMac, createChainKey, firstIdOf, newSalt, retentionSignature } from '../../../src/audit/chain/chain.ts';
import { recordMac } from '../../../src/audit/chain/record-mac.ts';
import { hexOfBytes } from '../../../src/audit/chain/tables/log-tables.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { decision, KEY, quietWriter, verified } from '../records.ts';

/** A statement, a commit or a read fails before it is done, after it is done or long before it is done, or it succeeds. */
type Fault = 'none' | 'before' | 'after' | 'late' | 'unreadable';

const lost = () => Object.assign(new Error('Connection lost'), { code: 'PROTOCOL_CONNECTION_LOST', fatal: true });

function faulty(database: Database, next: () => Fault) {
  const late: Promise<unknown>[] = [];
  const around = async <T>(work: () => Promise<T>): Promise<T> => {
    const fault = next();
    if (fault === 'before') throw lost();
    if (fault === 'late') {
      const pause = new Promise((resolve) => setTimeout(resolve, 4 * Math.random()));
      late.push(pause.then(work).catch(() => undefined));
      throw lost();
    }
    const result = await work();
    if (fault === 'after') throw lost();
    return result;
  };
  const knex = new Proxy(database.knex, {
    get(target, name) {
      if (name !== 'transaction') return Reflect.get(target, name);
      return (work: Parameters<typeof target.transaction>[0]) => around(() => target.transaction(work) as Promise<unknown>);
    },
  });
  const store = (db: Connection): AuditStore => {
    const real = auditStore(db);
    const read = async (work: () => Promise<boolean>): Promise<boolean> => {
      if (next() === 'unreadable') throw lost();
      return work();
    };
    return {
      ...real,
      insert: (rows) => around(() => real.insert(rows)),
      holdsDecision: (row) => read(() => real.holdsDecision(row)),
      holdsShown: (row) => read(() => real.holdsShown(row)),
      holdsOutcomes: (row) => read(() => real.holdsOutcomes(row)),
    };
  };
  return { writer: quietWriter({ ...database, knex }, { store }), settled: () => Promise.all(late) };
}

const FAULTS: readonly (readonly Fault[])[] = [
  ['none'],
  ['none', 'none'],
  ['none', 'none', 'none'],
  ['before'],
  ['after'],
  ['late'],
  ['after', 'unreadable'],
  ['late', 'unreadable'],
  ['late', 'none', 'before', 'none', 'before'],
];
const item = fc.constantFrom('good', 'good', 'good', 'list', 'bad', 'twice', 'ended');
const run = fc.record({
  faults: fc.array(fc.constantFrom(...FAULTS), { maxLength: 12 }),
  batches: fc.array(fc.array(item, { minLength: 1, maxLength: 8 }), { minLength: 1, maxLength: 6 }),
});

eachEngine(
  test.serial,
  'after any fault the chains are complete, with every acknowledged record and no bad record',
  async (t, at, engine) => {
    const database = await openTestDatabase(t, at);
    const acknowledged = new Set<string>();
    const bad = new Set<string>();
    await fc.assert(
      fc.asyncProperty(run, async ({ faults, batches }) => {
        const pending = faults.flat();
        const { writer, settled } = faulty(database, () => pending.shift() ?? 'none');
        for (const items of batches) {
          await Promise.all(
            items.map(async (kind) => {
              const record = decision(kind === 'bad' ? { target_name: null as unknown as string } : {});
              if (kind === 'bad') bad.add(record.id);
              const recorded = [writer.decision(record)];
              if (kind === 'twice') recorded.push(writer.decision({ ...record, method: 'other' }));
              if (kind === 'list')
                recorded.push(writer.shown({ decision_id: record.id, resource_type: 'tool', names: [record.id], hidden: 0 }));
              if (kind === 'ended') writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
              const [first] = await Promise.allSettled(recorded);
              if (first?.status === 'fulfilled') acknowledged.add(record.id);
            }),
          );
        }
        await writer.close();
        await settled();
        const report = await verified(database);
        t.deepEqual(report.problems, []);
        const rows: { id: unknown }[] = await database.knex('log_decisions').select('id');
        const stored = new Set(rows.map(({ id }) => idOf(hexOfBytes(id))));
        t.is(report.records.decision, rows.length);
        t.deepEqual(
          [...acknowledged].filter((id) => !stored.has(id)),
          [],
        );
        t.deepEqual(
          [...bad].filter((id) => stored.has(id)),
          [],
        );
      }),
      { numRuns: engine === 'sqlite' ? 60 : 25 },
    );
    t.true(acknowledged.size > 20 && bad.size > 5);
  },
);

test.serial('the MAC changes with each value and with the key', (t) => {
  const row = { id: 'a', created_at: 1, issuer: 'i', user_id: 'u', person_hash: 'p', target_id: null };
  const record = { kind: 'decision' as const, row };
  const mac = recordMac(KEY, 1, 'c', 1, 'previous', record);
  t.is(recordMac(KEY, 1, 'c', 1, 'previous', { ...record, row: { ...row } }), mac);
  const others = [
    recordMac(KEY, 2, 'c', 1, 'previous', record),
    recordMac(KEY, 1, 'd', 1, 'previous', record),
    recordMac(KEY, 1, 'c', 2, 'previous', record),
    recordMac(KEY, 1, 'c', 1, 'other', record),
    recordMac(KEY, 1, 'c', 1, 'previous', { kind: 'outcome', row }),
    recordMac(createChainKey(Buffer.alloc(32, 8)), 1, 'c', 1, 'previous', record),
    ...Object.keys(row).map((name) => recordMac(KEY, 1, 'c', 1, 'previous', { ...record, row: { ...row, [name]: 'other' } })),
  ];
  t.is(new Set([mac, ...others]).size, others.length + 1);
});

test.serial('no number that is not finite has the MAC of an absent one', (t) => {
  const removal = { chain_id: 'c', seq: 1, mac: 'm', removed_at: 1, newest: null, unproven: null };
  const absent = retentionSignature(KEY, removal);
  const header = { version: 2, chain_id: 'c', key_id: 'k', started_at: 1, host: '{}', found: '[]', unchained: 0 };
  const nothing = chainMac(KEY, { ...header, unchained: null as unknown as number });
  for (const number of [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN]) {
    t.not(retentionSignature(KEY, { ...removal, newest: number }), absent);
    t.not(chainMac(KEY, { ...header, unchained: number }), nothing);
  }
});

test.serial('no id of a millisecond sorts before its first id', (t) => {
  for (const ms of [0, 1, 1_700_000_000_000, 2 ** 48 - 1]) {
    t.true(firstIdOf(ms) < firstIdOf(ms + 1) || ms === 2 ** 48 - 1);
    t.regex(firstIdOf(ms), /^[0-9a-f]{8}-[0-9a-f]{4}-0000-0000-0{12}$/);
  }
  const before = Date.now();
  const { id } = decision();
  t.true(firstIdOf(before) <= id && id < firstIdOf(Date.now() + 1_000));
});

test.serial('each salt is 16 random bytes and used once', (t) => {
  const salts = Array.from({ length: 2000 }, newSalt);
  t.is(new Set(salts).size, salts.length);
  t.true(salts.every((salt) => Buffer.from(salt, 'base64url').length === 16 && salt.length === 22));
  // Nor do any two share a part, as they would if they were cut from the same bytes.
  const parts = salts.flatMap((salt) => [salt.slice(0, 11), salt.slice(11)]);
  t.is(new Set(parts).size, parts.length);
});
