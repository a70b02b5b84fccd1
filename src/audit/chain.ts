/**
 * The chain of the audit log. Each record carries a MAC over its own content and the MAC before it, under a key that is not
 * in the database, so that who can write the tables can neither change nor add nor leave out a record unseen.
 */
import { createHmac, createSecretKey, hash, randomFillSync } from 'node:crypto';

/** Of the form of what is under a MAC; stands in the head of each chain. */
export const CHAIN_VERSION = 1;

/** Retention never removes younger records, whatever the configuration says. */
export const MIN_RETENTION_DAYS = 30;

export type RecordKind = 'decision' | 'shown' | 'outcome';

/** The place of a record in its chain. The first has `chain_seq` 1 and follows the head of the chain itself. */
export interface Stamp {
  readonly chain_id: string;
  readonly chain_seq: number;
  readonly mac: string;
}

/** The last record of a chain; `seq` 0: none yet, and `mac` is that of the chain's head. */
export interface Head {
  readonly chain_id: string;
  readonly seq: number;
  readonly mac: string;
}

export interface ChainKey {
  /** Tells keys apart, and nothing of the key. */
  readonly id: string;
  mac(text: string): string;
}

/** How a chain begins: who writes it, and the heads of the others at that moment, so that one that vanishes is missed. */
export interface ChainRow {
  readonly chain_id: string;
  readonly version: number;
  readonly key_id: string;
  readonly started_at: number;
  /** JSON: the process that writes it. */
  readonly host: string;
  /** JSON: `[chain_id, seq, mac]` of each. */
  readonly found: string;
  /** Records from before there were chains. */
  readonly unchained: number;
  readonly mac: string;
}

/** Says that the records of a chain up to `seq` were removed by age. */
export interface RetentionRow {
  readonly chain_id: string;
  readonly seq: number;
  /** MAC of record `seq`, which the next one continues. */
  readonly mac: string;
  readonly removed_at: number;
  /** The newest time among the removed records, read from records whose MAC fitted; null: version 1 removed all of them. */
  readonly newest: number | null;
  /** JSON `[seq, removed_at]`: version 1 removed the records up to this one and did not check their MACs; null: it removed none. */
  readonly unproven: string | null;
  readonly key_id: string;
  readonly signature: string;
}

/** Says that what is personal was erased from the rows of a user that were there at `erased_at`. */
export interface ErasureRow {
  readonly id: string;
  readonly user_id: string;
  readonly erased_at: number;
  readonly key_id: string;
  readonly signature: string;
}

/** Columns under the MAC. E-mail, groups and arguments are under it as their salted hash, so that they can be erased. */
const CHAINED = {
  decision: [
    ...['id', 'created_at', 'issuer', 'user_id', 'user_role', 'person_hash', 'target_id', 'target_name', 'method'],
    ...['resource_type', 'resource_name', 'effect', 'reason', 'policy_id', 'policy_name', 'policy_priority'],
    ...['revision', 'data_hash', 'engine_hash'],
  ],
  shown: ['decision_id', 'resource_type', 'shown', 'hidden', 'set_hash'],
  outcome: ['decision_id', 'outcome', 'duration_ms', 'created_at'],
} as const satisfies Record<RecordKind, readonly string[]>;

const SALT_BYTES = 16;

/** `secret` as `vault.derive('audit chain')` gives it. */
export function createChainKey(secret: Buffer): ChainKey {
  const key = createSecretKey(secret);
  const mac = (text: string): string => createHmac('sha256', key).update(text).digest('base64url');
  return { id: mac('id').slice(0, 16), mac };
}

/** One MAC of a record. An array of JSON has one reading, whatever the values are. */
export function recordMac(
  key: ChainKey,
  version: number,
  chainId: string,
  seq: number,
  previous: string,
  kind: RecordKind,
  row: object,
): string {
  const values = CHAINED[kind].map((column) => (row as Readonly<Record<string, unknown>>)[column] ?? null);
  return key.mac(JSON.stringify([version, chainId, seq, previous, kind, values]));
}

/** The next place of the chain, which the row takes. */
export function nextStamp(key: ChainKey, head: Head, kind: RecordKind, row: object): Stamp {
  const chain_seq = head.seq + 1;
  const mac = recordMac(key, CHAIN_VERSION, head.chain_id, chain_seq, head.mac, kind, row);
  return { chain_id: head.chain_id, chain_seq, mac };
}

// Drawn many at a time: each draw costs as much as a MAC.
const salts = Buffer.alloc(256 * SALT_BYTES);
let drawn = salts.length;

/** Different for each row: equal e-mails do not show. */
export function newSalt(): string {
  if (drawn === salts.length) {
    randomFillSync(salts);
    drawn = 0;
  }
  drawn += SALT_BYTES;
  return salts.toString('base64url', drawn - SALT_BYTES, drawn);
}

/**
 * What stands for e-mail, groups and arguments under the MAC; the latter two are JSON, as they are stored. Without the salt
 * it tells nothing. Rows without arguments are as they were before any had them.
 */
export function personHash(salt: string, email: string, groups: string, args: string | null): string {
  return hash('sha256', JSON.stringify(args === null ? [salt, email, groups] : [salt, email, groups, args]), 'base64url');
}

/** By which rows of a resource are found: its name is too long for an index. null: the request names none. */
export function resourceKey(name: string | null): string | null {
  return name === null ? null : hash('sha256', name, 'base64url').slice(0, 22);
}

export function chainMac(key: ChainKey, row: Omit<ChainRow, 'mac'>): string {
  const { version, chain_id, started_at, host, found, unchained, key_id } = row;
  return key.mac(JSON.stringify([version, chain_id, 0, '', 'chain', [key_id, started_at, host, found, unchained]]));
}

export function retentionSignature(key: ChainKey, row: Omit<RetentionRow, 'key_id' | 'signature'>): string {
  const { chain_id, seq, mac, removed_at, newest, unproven } = row;
  return key.mac(JSON.stringify([2, 'retention', chain_id, seq, mac, removed_at, newest, unproven]));
}

/**
 * The version under which the row was signed; null: it is not what was signed. The signature alone decides, because a replica
 * of an older version leaves the newer columns as they are.
 */
export function retentionVersion(key: ChainKey, row: RetentionRow): 1 | 2 | null {
  if (retentionSignature(key, row) === row.signature) return 2;
  const first = key.mac(JSON.stringify([1, 'retention', row.chain_id, row.seq, row.mac, row.removed_at]));
  return first === row.signature ? 1 : null;
}

/** What no proof says of the age of removed records: up to which one, and when they were removed. */
export function unprovenOf(version: 1 | 2, row: RetentionRow): { readonly seq: number; readonly removed_at: number } | null {
  if (version === 1) return { seq: row.seq, removed_at: row.removed_at };
  if (row.unproven === null) return null;
  const [seq, removed_at] = JSON.parse(row.unproven) as [number, number];
  return { seq, removed_at };
}

export function erasureSignature(key: ChainKey, row: Omit<ErasureRow, 'key_id' | 'signature'>): string {
  return key.mac(JSON.stringify([CHAIN_VERSION, 'erasure', row.id, row.user_id, row.erased_at]));
}

/** The least id that a UUIDv7 made at `ms` can be: ids before it are older. */
export function firstIdOf(ms: number): string {
  const hex = Math.max(0, Math.min(ms, 2 ** 48 - 1))
    .toString(16)
    .padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-0000-0000-000000000000`;
}

/** When a decision id was made: milliseconds since the epoch. */
export function timeOf(id: string): number {
  return Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
}
