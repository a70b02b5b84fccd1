/**
 * The chain of the audit log. Each record carries a MAC over its own content and the MAC of the record before it. The key is
 * not in the database, so write access to the tables is not enough to change, add or remove a record unnoticed.
 */
import { createHmac, createSecretKey, hash, randomFillSync } from 'node:crypto';

/**
 * The version of the format that the MACs of a new chain cover. The header of each chain names its version. The legacy
 * version 1 stored whole rows, and its MACs cover JSON; `binary-form.ts` has the format of version 2.
 */
export const CHAIN_VERSION = 2;
export const LEGACY_VERSION = 1;
/** The version in the MACs of checkpoints and erasures. */
const STATEMENT_VERSION = 1;

export type RecordKind = 'decision' | 'shown' | 'outcome';

/** The position of a record in its chain. The first record has `chain_seq` 1 and continues the MAC of the chain's header. */
export interface Stamp {
  readonly chain_id: string;
  readonly chain_seq: number;
  readonly mac: string;
}

/** The head of a chain: its last record. If `seq` is 0 the chain has no record yet, and `mac` is that of its header. */
export interface Head {
  readonly chain_id: string;
  readonly seq: number;
  readonly mac: string;
}

export interface ChainKey {
  /** Tells keys apart and reveals nothing about the key. */
  readonly id: string;
  mac(text: string): string;
  /** Returns the first bytes of the HMAC, as many as `length`, in this encoding. */
  sign(bytes: Buffer, length: number, encoding: 'hex' | 'base64url'): string;
}

/**
 * The header of a chain. It names the process that writes the chain, and the heads that the other chains had when the chain began. So a
 * later verification notices if one of them is missing.
 */
export interface ChainRow {
  readonly chain_id: string;
  readonly version: number;
  readonly key_id: string;
  readonly started_at: number;
  /** JSON that identifies the process that writes the chain. */
  readonly host: string;
  /** JSON: `[chain_id, seq, mac]` for each of the other chains. */
  readonly found: string;
  /** How many records are older than the first chain. */
  readonly unchained: number;
  readonly mac: string;
}

/** States that the records of a chain up to `seq` were removed by age. */
export interface RetentionRow {
  readonly chain_id: string;
  readonly seq: number;
  /** The MAC of record `seq`. The next record continues it. */
  readonly mac: string;
  readonly removed_at: number;
  /** The newest time among the removed records, taken from records with a valid MAC; null: version 1 removed all of them. */
  readonly newest: number | null;
  /** JSON `[seq, removed_at]`: version 1 removed records up to this one without checking their MACs; null: it removed none. */
  readonly unproven: string | null;
  readonly key_id: string;
  readonly signature: string;
}

/** States that personal data was erased from the user's rows that existed at `erased_at`. */
export interface ErasureRow {
  readonly id: string;
  readonly user_id: string;
  readonly erased_at: number;
  readonly key_id: string;
  readonly signature: string;
}

/** Columns that the MAC of version 1 covers. It covers a salted hash of e-mail, groups and arguments, so that they can be erased. */
export const CHAINED = {
  decision: [
    ...['id', 'created_at', 'issuer', 'user_id', 'user_role', 'person_hash', 'target_id', 'target_name', 'method'],
    ...['resource_type', 'resource_name', 'effect', 'reason', 'policy_id', 'policy_name', 'policy_priority'],
    ...['revision', 'data_hash', 'engine_hash'],
  ],
  shown: ['decision_id', 'resource_type', 'shown', 'hidden', 'set_hash'],
  outcome: ['decision_id', 'outcome', 'duration_ms', 'created_at'],
} as const satisfies Record<RecordKind, readonly string[]>;

/** Columns of a record of version 1 that its MAC does not cover, or covers by hash. */
export const BESIDE = {
  decision: ['salt', 'user_email', 'user_groups', 'arguments', 'resource_key'],
  shown: [],
  outcome: [],
} as const satisfies Record<RecordKind, readonly string[]>;

const SALT_BYTES = 16;

/** `secret` is the result of `vault.derive('audit chain')`. */
export function createChainKey(secret: Buffer): ChainKey {
  const key = createSecretKey(secret);
  const mac = (text: string): string => createHmac('sha256', key).update(text).digest('base64url');
  return { id: mac('id').slice(0, 16), mac, sign: signer(secret) };
}

const BLOCK_BYTES = 64;
const MAX_SIGNED_BYTES = 512;

/** HMAC-SHA256 of short bytes (RFC 2104) from two hashes, because each object of `createHmac` takes longer than both. */
function signer(secret: Buffer): ChainKey['sign'] {
  if (secret.length > BLOCK_BYTES) throw new RangeError('the secret is longer than a block of SHA-256');
  const [inner, outer] = [Buffer.alloc(BLOCK_BYTES + MAX_SIGNED_BYTES, 0x36), Buffer.alloc(BLOCK_BYTES + 32, 0x5c)];
  for (const [i, byte] of secret.entries()) {
    inner[i] = byte ^ 0x36;
    outer[i] = byte ^ 0x5c;
  }
  return (bytes, length, encoding) => {
    if (bytes.length > MAX_SIGNED_BYTES) throw new RangeError('too many bytes to sign');
    inner.set(bytes, BLOCK_BYTES);
    outer.write(hash('sha256', inner.subarray(0, BLOCK_BYTES + bytes.length), 'hex'), BLOCK_BYTES, 'hex');
    const whole = hash('sha256', outer, 'hex').slice(0, 2 * length);
    return encoding === 'hex' ? whole : Buffer.from(whole, 'hex').toString(encoding);
  };
}

/** Returns what a digest or a MAC covers for a value. JSON would write a number that is not finite as null, and SQLite stores such numbers. */
export const coveredValue = (value: unknown): unknown =>
  typeof value === 'number' && !Number.isFinite(value) ? String(value) : (value ?? null);

/** Returns the MAC of a record of version 1. A JSON array can be read in only one way. */
export function legacyMac(
  key: ChainKey,
  version: number,
  chainId: string,
  seq: number,
  previous: string,
  kind: RecordKind,
  row: object,
): string {
  const values = CHAINED[kind].map((column) => coveredValue((row as Readonly<Record<string, unknown>>)[column]));
  return key.mac(JSON.stringify([version, chainId, seq, previous, kind, values]));
}

// Salts are drawn many at a time, because each draw costs as much as a MAC.
const salts = Buffer.alloc(256 * SALT_BYTES);
let drawn = salts.length;

/** Each row gets its own salt, so that equal e-mails have different hashes. */
export function newSalt(): string {
  if (drawn === salts.length) {
    randomFillSync(salts);
    drawn = 0;
  }
  drawn += SALT_BYTES;
  return salts.toString('base64url', drawn - SALT_BYTES, drawn);
}

/** The value, if it is a text; otherwise a text that the gateway never writes: a number must not pass for its digits. */
export const asText = (value: unknown): string => (typeof value === 'string' ? value : '\0');

/**
 * Returns the hash that the MAC covers in place of e-mail, groups and arguments. Groups and arguments are JSON, as stored. Without the salt
 * the hash reveals nothing. A row without arguments has the same hash as in versions that captured no arguments.
 */
export function personHash(salt: string, email: string, groups: string, args: string | null): string {
  return hash('sha256', JSON.stringify(args === null ? [salt, email, groups] : [salt, email, groups, args]), 'base64url');
}

/** Returns the indexed key of a resource, because its name is too long for an index; null: the request names no resource. */
export function resourceKey(name: string | null): string | null {
  return name === null ? null : hash('sha256', name, 'base64url').slice(0, 22);
}

export function chainMac(key: ChainKey, row: Omit<ChainRow, 'mac'>): string {
  const { version, chain_id, started_at, host, found, unchained, key_id } = row;
  return key.mac(
    JSON.stringify([version, chain_id, 0, '', 'chain', [key_id, started_at, host, found, unchained].map(coveredValue)]),
  );
}

export function retentionSignature(key: ChainKey, row: Omit<RetentionRow, 'key_id' | 'signature'>): string {
  const { chain_id, seq, mac, removed_at, newest, unproven } = row;
  return key.mac(JSON.stringify([2, 'retention', chain_id, seq, mac, removed_at, newest, unproven].map(coveredValue)));
}

/**
 * Returns the version under which the row was signed, or null if the signature is invalid. Only the signature decides,
 * because a replica of an older version leaves the newer columns unchanged.
 */
export function retentionVersion(key: ChainKey, row: RetentionRow): 1 | 2 | null {
  if (retentionSignature(key, row) === row.signature) return 2;
  const first = key.mac(JSON.stringify([1, 'retention', row.chain_id, row.seq, row.mac, row.removed_at].map(coveredValue)));
  return first === row.signature ? 1 : null;
}

/** Returns up to which record, and when, records were removed without a proof of their age; null: every removal is proven. */
export function unprovenOf(version: 1 | 2, row: RetentionRow): { readonly seq: number; readonly removed_at: number } | null {
  if (version === 1) return { seq: row.seq, removed_at: row.removed_at };
  // An absent member has the same signature as null.
  const unproven = row.unproven ?? null;
  if (unproven === null) return null;
  const [seq, removed_at] = JSON.parse(unproven) as [number, number];
  return { seq, removed_at };
}

export function erasureSignature(key: ChainKey, row: Omit<ErasureRow, 'key_id' | 'signature'>): string {
  return key.mac(JSON.stringify([STATEMENT_VERSION, 'erasure', row.id, row.user_id, row.erased_at]));
}

export const LOWEST_ID = '00000000-0000-0000-0000-000000000000';
export const HIGHEST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff';

/** Returns the lowest UUIDv7 that can be made at `ms`: lower ids are older. */
export function firstIdOf(ms: number): string {
  const hex = Math.max(0, Math.min(ms, 2 ** 48 - 1))
    .toString(16)
    .padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-0000-0000-000000000000`;
}

/** Returns the id after this one, as if ids were numbers. */
export function idAfter(id: string): string {
  const next = (BigInt(`0x${id.replaceAll('-', '')}`) + 1n).toString(16).padStart(32, '0');
  return [next.slice(0, 8), next.slice(8, 12), next.slice(12, 16), next.slice(16, 20), next.slice(20)].join('-');
}

/** Returns when a decision id was made, in milliseconds since the epoch. */
export function timeOf(id: string): number {
  return Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
}
