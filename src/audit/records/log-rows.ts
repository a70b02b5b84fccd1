/** Turns records into the rows of version 2 of the audit log. The rows refer to facts. */
import { bytesOfRow } from '../../db/batches.ts';
import {
  argumentsHash,
  binaryMac,
  type Covered,
  digestOfText,
  isWritable,
  OUTCOME_BYTES,
  OUTCOMES_AT_ONCE,
  OUTCOMES_SPAN_MS,
  outcomeBytes,
} from '../chain/binary-form.ts';
import { type ChainKey, type Head, newSalt, type Stamp, timeOf } from '../chain/chain.ts';
import { type DecisionFacts, type Fact, FactBook } from './fact-book.ts';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from './records.ts';

/** The row of a record, and about how many bytes it takes in a statement. Escapes at most double them. */
export interface Stored<R> {
  readonly row: R;
  readonly bytes: number;
}

/** A record with its position in the chain, which is stored in columns of the same table. */
export interface Chained<R> extends Stored<R> {
  readonly stamp: Stamp;
}

export interface LogDecision extends DecisionFacts {
  readonly kind: 'decision';
  readonly id: string;
  readonly created_at: number;
  /** null if no arguments were captured. `hash` is the salted hash that the MAC covers, in hexadecimal digits. */
  readonly args: { readonly hash: string; readonly salt: string; readonly text: string } | null;
}

export interface LogList extends Omit<ShownRecord, 'names'> {
  readonly kind: 'shown';
  readonly shown: number;
  readonly names: Fact<'names'>;
}

/** How some requests ended. */
export interface LogOutcomes {
  readonly kind: 'outcome';
  readonly created_at: number;
  /** The time of the first of their decisions. */
  readonly since: number;
  /** null: an outcome has a value that cannot be stored. */
  readonly outcomes: Buffer | null;
}

export type LogRow = LogDecision | LogList | LogOutcomes;

/** A larger set of names is stored without its last names. `shown` still counts them. */
export const MAX_SET_BYTES = 256 * 1024;

const SUSPICIOUS = /[\0\ud800-\udfff]/;

/** Returns the text as a database can store it, because the MAC covers the stored text: no lone surrogate, and no NUL. */
export function storable<T extends string | null>(text: T): T {
  if (text === null || !SUSPICIOUS.test(text)) return text;
  return text.toWellFormed().replaceAll('\0', '\ufffd') as T;
}

/** Whether the names exceed the limit even without their JSON. If not, the set may still be too large. */
export const isTooLarge = (names: readonly string[]): boolean =>
  names.reduce((length, name) => length + name.length, 0) > MAX_SET_BYTES;

/** Returns the canonical JSON of a set of names. It is sorted, so that the same items in a different order make the same set. */
export function namesJson(listed: readonly string[]): string {
  const sorted = listed.toSorted();
  if (!isTooLarge(sorted)) {
    const names = JSON.stringify(sorted);
    if (Buffer.byteLength(names) <= MAX_SET_BYTES) return names;
  }
  const kept: string[] = [];
  let size = 2;
  for (const name of sorted) {
    size += Buffer.byteLength(JSON.stringify(name)) + 1;
    if (size > MAX_SET_BYTES) break;
    kept.push(name);
  }
  return JSON.stringify(kept);
}

/** A longer duration does not fit in its column. A duration is negative if the clock was set back during the call. */
const MAX_DURATION_MS = 2 ** 31 - 1;

const storableOutcome = ({ decision_id, outcome, duration_ms }: OutcomeRecord): OutcomeRecord => ({
  decision_id,
  outcome,
  duration_ms: Math.max(-MAX_DURATION_MS, Math.min(duration_ms, MAX_DURATION_MS)),
});

/** Returns the outcomes in groups, each of which fits in one record. An outcome that no record can have is alone. */
export function outcomesByRecord(outcomes: readonly OutcomeRecord[]): OutcomeRecord[][] {
  const groups: OutcomeRecord[][] = [];
  let since = 0;
  let isOpen = false;
  for (const outcome of outcomes.map(storableOutcome).sort((a, b) => (a.decision_id < b.decision_id ? -1 : 1))) {
    const last = groups.at(-1);
    const isGood = isWritable(outcome);
    const time = timeOf(outcome.decision_id);
    if (isOpen && isGood && last !== undefined && last.length < OUTCOMES_AT_ONCE && time - since < OUTCOMES_SPAN_MS) {
      last.push(outcome);
      continue;
    }
    groups.push([outcome]);
    since = time;
    isOpen = isGood;
  }
  return groups;
}

/** The bytes of a row in a statement, without texts. */
const ROW_BYTES = 240;

const newBytes = (facts: readonly Fact[]): number =>
  facts.reduce((sum, { row, isStored }) => (isStored ? sum : sum + bytesOfRow(row)), 0);

/** Makes the rows that a process writes. */
export type RowMaker = ReturnType<typeof createRowMaker>;

export function createRowMaker(key: ChainKey) {
  const book = new FactBook(key);
  return {
    forget: (users: ReadonlySet<string> | null): void => book.forget(users),
    /** How often all facts were forgotten. */
    forgotten: (): number => book.forgotten,

    decision(record: DecisionRecord): Stored<LogDecision> {
      const { id, created_at, arguments: text } = record;
      const facts = book.decision({
        id,
        created_at,
        issuer: record.issuer,
        user_id: storable(record.user_id),
        user_email: storable(record.user_email),
        user_role: storable(record.user_role),
        user_groups: JSON.stringify(record.user_groups),
        target_id: record.target_id,
        target_name: storable(record.target_name),
        method: storable(record.method),
        resource_type: record.resource_type,
        resource_name: storable(record.resource_name),
        arguments: null,
        effect: record.effect,
        reason: record.reason,
        policy_id: record.policy_id,
        policy_name: record.policy_name,
        policy_priority: record.policy_priority,
        revision: record.revision,
        data_hash: record.data_hash,
        engine_hash: record.engine_hash,
      });
      const salt = text === null ? '' : newSalt();
      const args = text === null ? null : { hash: argumentsHash(salt, text), salt, text };
      const { principal, object, verdict, ownName } = facts;
      const bytes = ROW_BYTES + (ownName?.length ?? 0) * 3 + (text?.length ?? 0) * 3 + newBytes([principal, object, verdict]);
      return { row: { kind: 'decision', id, created_at, principal, object, verdict, ownName, args }, bytes };
    },

    shown({ decision_id, resource_type, names: listed, hidden }: ShownRecord): Stored<LogList> {
      const names = book.names(decision_id, namesJson(listed));
      const row = { kind: 'shown', decision_id, resource_type, shown: listed.length, hidden, names } as const;
      return { row, bytes: ROW_BYTES + newBytes([names]) };
    },

    /** Call this when a commit with these rows is durable. */
    stored({
      decisions,
      shown,
    }: {
      readonly decisions: readonly Chained<LogDecision>[];
      readonly shown: readonly Chained<LogList>[];
    }) {
      for (const { row } of decisions) {
        row.principal.isStored = true;
        row.object.isStored = true;
        row.verdict.isStored = true;
      }
      for (const { row } of shown) row.names.isStored = true;
    },

    /** Returns the record of outcomes that `outcomesByRecord` returned. */
    outcomes(some: readonly OutcomeRecord[], now: number): Stored<LogOutcomes> {
      const outcomes = outcomeBytes(some);
      const since = timeOf(some[0]?.decision_id ?? '');
      return { row: { kind: 'outcome', created_at: now, since, outcomes }, bytes: ROW_BYTES + 2 * OUTCOME_BYTES * some.length };
    },
  };
}

/** Returns what the MAC of a new row covers. */
function coveredOf(row: LogRow): Covered {
  switch (row.kind) {
    case 'decision': {
      const { id, created_at, principal, object, verdict, ownName, args } = row;
      return {
        kind: 'decision',
        id,
        created_at,
        principal: principal.digest,
        object: object.digest,
        verdict: verdict.digest,
        name: ownName === null ? null : digestOfText(ownName),
        args: args === null ? null : Buffer.from(args.hash, 'hex'),
      };
    }
    case 'shown':
      return { ...row, names: row.names.digest };
    case 'outcome':
      return row;
  }
}

/** Returns the stamp of `row` as the record after `head`. The MAC is empty if the row has a value that cannot be stored. */
export function nextStamp(key: ChainKey, head: Head, row: LogRow): Stamp {
  const chain_seq = head.seq + 1;
  const mac = binaryMac(key, head.chain_id, chain_seq, head.mac, coveredOf(row)) ?? '';
  return { chain_id: head.chain_id, chain_seq, mac };
}
