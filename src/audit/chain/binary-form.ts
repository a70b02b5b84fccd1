/**
 * Version 2 of the chain: the MAC of a record covers a short binary form, in which digests stand for the facts that the record
 * refers to. Pure.
 */
import { hash } from 'node:crypto';
import type { ResourceType } from '../../engine/compile/policy.ts';
import type { ChainKey, RecordKind } from './chain.ts';

/** The numbers that stand for these values in tables and MACs are their positions. Append only. */
export const OUTCOMES = ['ok', 'error', 'upstream_error', 'denied', 'cancelled'] as const;
export const TYPES = ['tool', 'resource', 'prompt'] as const satisfies ResourceType[];

const MAC_BYTES = 16;
const DIGEST_BYTES = 32;
const KINDS = { decision: 1, shown: 2, outcome: 3 } as const satisfies Record<RecordKind, number>;

/** What the MAC of a record covers. Digests are SHA-256. */
export type Covered =
  | {
      readonly kind: 'decision';
      readonly id: string;
      readonly created_at: number;
      readonly principal: Buffer;
      readonly object: Buffer;
      readonly verdict: Buffer;
      /** The digest of the name that the record itself has; null: its object has the name, or there is none. */
      readonly name: Buffer | null;
      /** The salted hash of the captured arguments; null: none were captured. */
      readonly args: Buffer | null;
    }
  | {
      readonly kind: 'shown';
      readonly decision_id: string;
      readonly resource_type: string;
      readonly shown: number;
      readonly hidden: number;
      readonly names: Buffer;
    }
  | {
      readonly kind: 'outcome';
      readonly created_at: number;
      /** What `outcomeBytes` returns. */
      readonly outcomes: Buffer | null;
    };

const HEX = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Returns the hexadecimal digits of an id; null: the text is not an id in the form that the gateway writes. */
export function hexOf(id: unknown): string | null {
  if (typeof id !== 'string' || !HEX.test(id)) return null;
  return id.slice(0, 8) + id.slice(9, 13) + id.slice(14, 18) + id.slice(19, 23) + id.slice(24);
}

export const idOf = (hex: string): string =>
  `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;

export const digestOfText = (text: string): Buffer => hash('sha256', text, 'buffer');

/** Returns the hash that a MAC covers in place of captured arguments. */
export const argumentsHash = (salt: string, args: string): string =>
  hash('sha256', JSON.stringify(['arguments', salt, args]), 'hex');

// One buffer serves all MACs, because each is computed in one go.
const form = Buffer.alloc(512);
let at = 0;
let isValid = true;

function byte(value: number): void {
  isValid &&= value >= 0;
  form[at++] = value;
}

function number(value: number): void {
  isValid &&= Number.isSafeInteger(value);
  at = form.writeDoubleBE(isValid ? value : 0, at);
}

function id(hex: string | null): void {
  isValid &&= hex !== null;
  at += form.write(hex ?? '', at, 'hex');
}

// Thousands of records in a row are of one chain.
let chain = { id: '', hex: null as string | null };

function hexOfChain(chainId: string): string | null {
  if (chain.id !== chainId) chain = { id: chainId, hex: hexOf(chainId) };
  return chain.hex;
}

function digest(value: Buffer | null): void {
  isValid &&= value === null || value.length === DIGEST_BYTES;
  byte(value === null ? 0 : 1);
  form.fill(0, at, at + DIGEST_BYTES);
  value?.copy(form, at, 0, DIGEST_BYTES);
  at += DIGEST_BYTES;
}

/**
 * Returns the MAC of a record, or null if the record has a value that the gateway never writes. `previous` is the MAC of the
 * record before it, or of the header of the chain. Every field has a fixed length, so no two records have the same form.
 */
export function binaryMac(key: ChainKey, chainId: string, seq: number, previous: string, covered: Covered): string | null {
  at = 0;
  isValid = true;
  byte(2);
  byte(KINDS[covered.kind]);
  id(hexOfChain(chainId));
  number(seq);
  // The MAC of a header has 32 bytes, the MAC of a record has 16.
  form.fill(0, at, at + DIGEST_BYTES);
  isValid &&= form.write(previous, at, 'base64url') <= DIGEST_BYTES;
  at += DIGEST_BYTES;
  switch (covered.kind) {
    case 'decision':
      id(hexOf(covered.id));
      number(covered.created_at);
      digest(covered.principal);
      digest(covered.object);
      digest(covered.verdict);
      digest(covered.name);
      digest(covered.args);
      break;
    case 'shown':
      id(hexOf(covered.decision_id));
      byte((TYPES as readonly string[]).indexOf(covered.resource_type));
      number(covered.shown);
      number(covered.hidden);
      digest(covered.names);
      break;
    case 'outcome':
      number(covered.created_at);
      isValid &&= covered.outcomes !== null;
      digest(covered.outcomes && hash('sha256', covered.outcomes, 'buffer'));
      break;
  }
  return isValid ? key.sign(form.subarray(0, at), MAC_BYTES, 'base64url') : null;
}

/** A record of outcomes has at most this many, so that some of them fit in a page of SQLite. */
export const OUTCOMES_AT_ONCE = 32;
/** All of its decisions were made within this time, so that pages find them. */
export const OUTCOMES_SPAN_MS = 1_000;
/** The bytes of an outcome: the id of its decision, its number, and its duration. */
export const OUTCOME_BYTES = 21;
const [NUMBER_AT, DURATION_AT] = [16, 17];

/** How the request of a decision ended. */
export interface Ended {
  readonly decision_id: string;
  readonly outcome: string;
  readonly duration_ms: number;
}

/** Whether the outcome is as the gateway writes it. */
export const isWritable = ({ decision_id, outcome, duration_ms }: Ended): boolean =>
  HEX.test(decision_id) && (OUTCOMES as readonly string[]).includes(outcome) && (duration_ms | 0) === duration_ms;

/** Returns outcomes as they are stored; null: one of them is not as the gateway writes it. */
export function outcomeBytes(outcomes: readonly Ended[]): Buffer | null {
  const bytes = Buffer.alloc(outcomes.length * OUTCOME_BYTES);
  let from = 0;
  for (const ended of outcomes) {
    if (!isWritable(ended)) return null;
    bytes.write(hexOf(ended.decision_id) ?? '', from, 'hex');
    bytes[from + NUMBER_AT] = (OUTCOMES as readonly string[]).indexOf(ended.outcome);
    bytes.writeInt32BE(ended.duration_ms, from + DURATION_AT);
    from += OUTCOME_BYTES;
  }
  return outcomes.length > 0 && outcomes.length <= OUTCOMES_AT_ONCE ? bytes : null;
}

/** Returns the outcomes of a record. An unknown number of an outcome becomes an empty text. */
export function outcomesIn(bytes: Buffer): Ended[] {
  return Array.from({ length: Math.floor(bytes.length / OUTCOME_BYTES) }, (_, i) => {
    const from = i * OUTCOME_BYTES;
    return {
      decision_id: idOf(bytes.toString('hex', from, from + NUMBER_AT)),
      outcome: OUTCOMES[bytes[from + NUMBER_AT] ?? -1] ?? '',
      duration_ms: bytes.readInt32BE(from + DURATION_AT),
    };
  });
}
