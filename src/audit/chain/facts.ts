/**
 * Facts: values that repeat in many records of the audit log. A fact is stored once a day, and records refer to it by its key. Nothing
 * allocates keys: each follows from the content, so replicas agree on it without asking each other, and storing a fact twice does no harm.
 * Facts of a day are removed when no record of that day is left. Pure.
 */
import { hash } from 'node:crypto';
import type { Effect, ResourceType } from '../../engine/compile/policy.ts';
import { type ChainKey, coveredValue, timeOf } from './chain.ts';

/** The state of a principal. `person_hash` stands for the personal members, so that these can be erased. */
export interface PrincipalFact {
  readonly issuer: string;
  readonly user_id: string;
  readonly user_role: string;
  /** When the first record with this fact was decided. An erasure applies to facts that are older than the erasure. */
  readonly since: number;
  readonly person_hash: string;
  /** null after the personal data was erased. */
  readonly salt: string | null;
  readonly user_email: string;
  /** JSON: an array of strings. */
  readonly user_groups: string;
}

/** What a request is about. `resource_name` null: the request names nothing, or the record has the name itself. */
export interface ObjectFact {
  readonly target_id: string | null;
  readonly target_name: string;
  readonly method: string;
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
}

/** The answer, the policy that gave it, and the rules under which it was given. */
export interface VerdictFact {
  readonly effect: Effect;
  readonly reason: string;
  readonly policy_id: string | null;
  readonly policy_name: string | null;
  readonly policy_priority: number | null;
  readonly revision: number;
  readonly data_hash: string;
  readonly engine_hash: string;
}

/** The names that a list showed. The MAC of the list covers `set_hash`. */
export interface NamesFact {
  /** The SHA-256 of `names`, in hexadecimal digits. */
  readonly set_hash: string;
  /** Canonical JSON. */
  readonly names: string;
}

export interface FactRows {
  readonly principal: PrincipalFact;
  readonly object: ObjectFact;
  readonly verdict: VerdictFact;
  readonly names: NamesFact;
}
export type FactKind = keyof FactRows;

/** The members that the digest of a fact covers. */
export const COVERED = {
  principal: ['issuer', 'user_id', 'user_role', 'since', 'person_hash'],
  object: ['target_id', 'target_name', 'method', 'resource_type', 'resource_name'],
  verdict: ['effect', 'reason', 'policy_id', 'policy_name', 'policy_priority', 'revision', 'data_hash', 'engine_hash'],
  names: ['set_hash'],
} as const satisfies { readonly [K in FactKind]: readonly (keyof FactRows[K])[] };

/** All members of a fact, as they are stored. */
export const FACT_MEMBERS: Readonly<Record<FactKind, readonly string[]>> = {
  ...COVERED,
  principal: [...COVERED.principal, 'salt', 'user_email', 'user_groups'],
  names: [...COVERED.names, 'names'],
};

/** The first bytes of a key are the day, so that the facts of a day stand together. The others come from an HMAC. */
export const DAY_BYTES = 2;
export const KEY_BYTES = 9;
export const TERM_BYTES = 8;
const DAY_MS = 24 * 60 * 60 * 1000;

/** Returns the day of a decision: days since the epoch, in UTC. */
export const dayOf = (id: string): number => Math.floor(timeOf(id) / DAY_MS);

/** Returns the lowest key that a fact of the day can have, in hexadecimal digits. */
export const firstKeyOf = (day: number): string => {
  const bounded = Math.max(0, Math.min(day, 2 ** (8 * DAY_BYTES) - 1));
  return bounded
    .toString(16)
    .padStart(2 * DAY_BYTES, '0')
    .padEnd(2 * KEY_BYTES, '0');
};

/** Returns what the digest of a fact covers. */
function factText(kind: FactKind, row: object): string {
  const members: readonly string[] = COVERED[kind];
  const values = row as Readonly<Record<string, unknown>>;
  return JSON.stringify([kind, ...members.map((member) => coveredValue(values[member]))]);
}

/** Returns the digest of a fact. The MACs of the records that refer to the fact cover this digest, so a changed fact shows. */
export const digestOf = (kind: FactKind, row: object): Buffer => hash('sha256', factText(kind, row), 'buffer');

/**
 * Returns the key of a fact on a day, in hexadecimal digits. A caller who does not know the chain key cannot make two facts that
 * have the same key.
 */
export function keyOf(key: ChainKey, day: number, digest: Buffer): string {
  const signed = key.sign(Buffer.concat([Buffer.from('fact'), digest]), KEY_BYTES - DAY_BYTES, 'hex');
  return firstKeyOf(day).slice(0, 2 * DAY_BYTES) + signed;
}

/** The members of a decision by which the log can be searched. */
export const SEARCHED = [
  ...(['user_id', 'target_id', 'target_name', 'method', 'resource_type', 'resource_name'] as const),
  ...(['effect', 'reason', 'policy_id'] as const),
];
export type SearchedMember = (typeof SEARCHED)[number];

/**
 * Returns what the index of segments has in place of a member and its value, in hexadecimal digits. It needs no key, because two
 * values with one term only make a search read more than it must.
 */
export function termOf(member: SearchedMember, value: string): string {
  return hash('sha256', JSON.stringify([member, value]), 'hex').slice(0, 2 * TERM_BYTES);
}

/** Returns the terms of the members that a fact, or a whole decision, has. */
export function factTerms(row: Readonly<Record<string, unknown>>): string[] {
  return SEARCHED.flatMap((member) => {
    const value = row[member];
    return typeof value === 'string' ? [termOf(member, value)] : [];
  });
}
