/** Writes rows of version 1, as older gateways did. */
import { v7 as uuidv7 } from 'uuid';
import { type ChainKey, chainMac, firstIdOf, type Head, legacyMac, type RecordKind } from '../../src/audit/chain/chain.ts';
import { chainStore } from '../../src/audit/chain/tables/chain-store.ts';
import type { Chained, Stored } from '../../src/audit/records/log-rows.ts';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from '../../src/audit/records/records.ts';
import type { Database } from '../../src/db/database.ts';
import { legacyStore, storedDecision, storedOutcome, storedShown } from './legacy-rows.ts';
import { decision, KEY } from './records.ts';

/** Makes the database what a gateway that knows only version 1 leaves behind. */
export async function removeLogTables({ knex }: Database): Promise<void> {
  const tables = [
    'decisions',
    'lists',
    'outcomes',
    'arguments',
    'principals',
    'objects',
    'verdicts',
    'names',
    'segments',
    'terms',
  ];
  for (const table of tables) await knex.schema.dropTable(`log_${table}`);
  await knex('migrations').where('name', '0012-lean-log').delete();
}

const AT_ONCE = 500;

/** Writes one chain of so many decisions, and an outcome for each. Their times are spread from `from` to `to`. */
export async function fillLegacy(database: Database, rows: number, from: number, to: number, key: ChainKey): Promise<void> {
  const store = legacyStore(database.knex);
  const chain = {
    chain_id: uuidv7(),
    version: 1,
    key_id: key.id,
    started_at: from,
    host: '{"pid":1}',
    found: '[]',
    unchained: 0,
  };
  let mac = chainMac(key, chain);
  await chainStore(database.knex).insertChain({ ...chain, mac });
  let seq = 0;
  const chained = <R extends object>(kind: RecordKind, { row, bytes }: Stored<R>): Chained<R> => {
    mac = legacyMac(key, 1, chain.chain_id, ++seq, mac, kind, row);
    return { row, bytes, stamp: { chain_id: chain.chain_id, chain_seq: seq, mac } };
  };
  for (let first = 0; first < rows; first += AT_ONCE) {
    const records = Array.from({ length: Math.min(AT_ONCE, rows - first) }, (_, n): DecisionRecord => {
      const i = first + n;
      const created_at = Math.floor(from + ((to - from) * i) / rows);
      const id = `${firstIdOf(created_at).slice(0, 14)}7000-8000-${i.toString(16).padStart(12, '0')}`;
      return decision({ id, created_at, user_id: `user ${i % 200}`, resource_name: `tool ${i % 400}` });
    });
    await store.insert({ decisions: records.map((record) => chained('decision', storedDecision(record))) });
    const outcomes = records.map(({ id, created_at }) =>
      chained('outcome', storedOutcome({ decision_id: id, outcome: 'denied', duration_ms: 1 }, created_at)),
    );
    await store.insert({ outcomes });
  }
}

export function legacyWriter(database: Database, { key = KEY, now = Date.now }: { key?: ChainKey; now?: () => number } = {}) {
  const chains = chainStore(database.knex);
  const store = legacyStore(database.knex);
  let head: Head | null = null;
  let running: Promise<void> = Promise.resolve();

  async function begin(): Promise<Head> {
    const found = (await chains.openHeads(key)).map(({ chain_id, seq, mac }) => [chain_id, seq, mac]);
    const unchained = await chains.countUnchained();
    const content = { chain_id: uuidv7(), version: 1, key_id: key.id, started_at: now(), host: '{"pid":1}', unchained };
    const row = { ...content, found: JSON.stringify(found) };
    const mac = chainMac(key, row);
    await chains.insertChain({ ...row, mac });
    return { chain_id: row.chain_id, seq: 0, mac };
  }

  function write<R extends object>(kind: RecordKind, { row, bytes }: Stored<R>, insert: (rows: Chained<R>[]) => Promise<void>) {
    const written = running.then(async () => {
      const { chain_id, seq, mac: previous } = head ?? (await begin());
      const mac = legacyMac(key, 1, chain_id, seq + 1, previous, kind, row);
      await insert([{ row, bytes, stamp: { chain_id, chain_seq: seq + 1, mac } }]);
      head = { chain_id, seq: seq + 1, mac };
    });
    running = written.catch(() => {});
    return written;
  }

  return {
    start: () => Promise.resolve(),
    head: () => head,
    decision: (record: DecisionRecord) => write('decision', storedDecision(record), (decisions) => store.insert({ decisions })),
    shown: (record: ShownRecord) => write('shown', storedShown(record), (shown) => store.insert({ shown })),
    outcome: (record: OutcomeRecord): void =>
      void write('outcome', storedOutcome(record, now()), (outcomes) => store.insert({ outcomes })),
    flush: () => running,
    close: () => running,
  };
}
