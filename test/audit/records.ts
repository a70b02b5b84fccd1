import { v7 as uuidv7 } from 'uuid';
import { createChainKey, type Head, legacyMac, type RecordKind } from '../../src/audit/chain/chain.ts';
import type { Checkpoint } from '../../src/audit/chain/checkpoint.ts';
import { type Chained, createRowMaker, type LogRow, nextStamp, type Stored } from '../../src/audit/records/log-rows.ts';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from '../../src/audit/records/records.ts';
import { auditLines } from '../../src/audit/verify/lines.ts';
import type { Report } from '../../src/audit/verify/report.ts';
import { createVerification } from '../../src/audit/verify/verify.ts';
import { type AuditWriterParts, createAuditWriter } from '../../src/audit/writer.ts';
import type { Database } from '../../src/db/database.ts';
import { storedDecision, storedOutcome, storedShown } from './legacy-rows.ts';

export function decision(over: Partial<DecisionRecord> = {}): DecisionRecord {
  return {
    id: uuidv7(),
    created_at: 1_700_000_000_000,
    issuer: 'portcullis',
    user_id: 'u1',
    user_email: 'Someone@example.com',
    user_role: 'developer',
    user_groups: ['a', 'ü\u{1f600}'],
    target_id: null,
    target_name: 'everything',
    method: 'tools/call',
    resource_type: 'tool',
    resource_name: 'echo',
    arguments: null,
    effect: 'deny',
    reason: 'default',
    policy_id: null,
    policy_name: null,
    policy_priority: null,
    revision: 3,
    data_hash: 'd'.repeat(64),
    engine_hash: 'e'.repeat(64),
    ...over,
  };
}

export const KEY = createChainKey(Buffer.alloc(32, 9));

/** Stamps rows of version 1, as its writer did. */
export function firstStamper(chain_id = uuidv7()) {
  let head: Head = { chain_id, seq: 0, mac: 'begin' };
  const stamp = <R extends object>(kind: RecordKind, { row, bytes }: Stored<R>): Chained<R> => {
    const chain_seq = head.seq + 1;
    const stamp = { chain_id, chain_seq, mac: legacyMac(KEY, 1, chain_id, chain_seq, head.mac, kind, row) };
    head = { chain_id, seq: chain_seq, mac: stamp.mac };
    return { row, bytes, stamp };
  };
  return {
    decision: (record: DecisionRecord) => stamp('decision', storedDecision(record)),
    shown: (record: ShownRecord) => stamp('shown', storedShown(record)),
    outcome: (record: OutcomeRecord, now: number) => stamp('outcome', storedOutcome(record, now)),
  };
}

/** Stamps the records for a store, as the writer does. */
export function stamper(chain_id = uuidv7()) {
  const rows = createRowMaker(KEY);
  let head: Head = { chain_id, seq: 0, mac: 'begin' };
  const stamp = <R extends LogRow>({ row, bytes }: Stored<R>): Chained<R> => {
    const stamp = nextStamp(KEY, head, row);
    head = { chain_id, seq: stamp.chain_seq, mac: stamp.mac };
    return { row, bytes, stamp };
  };
  return {
    decision: (record: DecisionRecord) => stamp(rows.decision(record)),
    shown: (record: ShownRecord) => stamp(rows.shown(record)),
    outcome: (record: OutcomeRecord, now: number) => stamp(rows.outcomes([record], now)),
  };
}

/** A writer that says nothing. */
export function quietWriter(database: Database, over: Partial<AuditWriterParts> = {}) {
  const log = { info: () => {}, warn: () => {} };
  return createAuditWriter({ database, key: KEY, host: { pid: 1 }, log, now: Date.now, ...over });
}

/** A time at which everything that the tests remove was old enough. */
export const LATER = Date.parse('2100-01-01T00:00:00Z');

/** The report of `portcullis audit verify` about the database. `now`: the time of the verification. */
export async function verified(
  database: Database,
  checkpoints: readonly Checkpoint[] = [],
  keys = [KEY],
  now = LATER,
): Promise<Report> {
  const verification = createVerification(keys, now);
  for (const checkpoint of checkpoints) verification.expect(checkpoint);
  for await (const line of auditLines(database.knex, Date.now(), null)) verification.take(line);
  return verification.finish().report;
}
