/** Names and values in the tables of the log. In those of version 2, ids, keys, hashes and MACs are binary. */
import { hexOf, idOf } from '../binary-form.ts';
import type { RecordKind } from '../chain.ts';
import type { FactKind } from '../facts.ts';

export const KINDS = ['decision', 'shown', 'outcome'] as const satisfies RecordKind[];
/** The tables of version 1. */
export const LEGACY_TABLES = { decision: 'audit_decisions', shown: 'audit_shown', outcome: 'audit_outcomes' } as const;
export const LOG_TABLES = { decision: 'log_decisions', shown: 'log_lists', outcome: 'log_outcomes' } as const;
export const FACT_TABLES = {
  principal: 'log_principals',
  object: 'log_objects',
  verdict: 'log_verdicts',
  names: 'log_names',
} as const satisfies Record<FactKind, string>;

/** Returns the hexadecimal digits of bytes from a database; empty: the value is not bytes. */
export function hexOfBytes(value: unknown): string {
  // The driver of SQLite gives an ArrayBuffer, the driver of MySQL a Buffer.
  if (value instanceof ArrayBuffer) return Buffer.from(value).toString('hex');
  return value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex') : '';
}

/** A writer begins no chain with a tail that another chain has, so few bytes suffice. */
export const TAIL_BYTES = 4;

/** Returns what stands for the chain in its records: the last bytes of its id, in hexadecimal digits. */
export const tailOf = (chainId: string): string => hexOf(chainId)?.slice(-2 * TAIL_BYTES) ?? '';

/** The id of a chain that has no header, so that only its tail is known. */
export const unknownChain = (tail: string): string => idOf(tail.padStart(32, '0'));

/** Returns the bytes as an SQL literal; `null`: they do not have this length. */
export const literalBytes = (hex: string | null, length: number): string => (hex?.length === 2 * length ? `x'${hex}'` : 'null');
/** The literal of an id, as `x'..'`. An id in a different form is null, which no column accepts. */
export const literalId = (id: string): string => literalBytes(hexOf(id), 16);
export const literalMac = (mac: string): string => literalBytes(Buffer.from(mac, 'base64url').toString('hex'), 16);
