/** Signed statements of the heads of the chains. They are kept outside the database. */
import type { ChainKey } from './chain.ts';

/** The type in the protected header. No token has it. */
export const CHECKPOINT_TYPE = 'portcullis-audit-checkpoint';

/** The payload of the JWS. */
export interface Checkpoint {
  /** Milliseconds since the epoch. */
  readonly time: number;
  /** The revision of the policy set. */
  readonly revision: number;
  /** `[chain_id, seq, mac]` of each head that no later chain names as it is. */
  readonly heads: readonly (readonly [chain: string, seq: number, mac: string])[];
  readonly key_id: string;
  /** Allows a check with the master key and without the public keys. */
  readonly mac: string;
}

export function checkpointMac(key: ChainKey, { time, revision, heads }: Omit<Checkpoint, 'key_id' | 'mac'>): string {
  return key.mac(JSON.stringify([1, 'checkpoint', time, revision, heads]));
}

const BEGIN = '{"checkpoint":"';

/** Returns the line of a checkpoint file for a JWS. */
export const checkpointLine = (jws: string): string => `${BEGIN}${jws}"}`;

/** Whether the line is only the beginning of a checkpoint, after a full disk or a power cut. Such a line proves nothing. */
export function isCutOff(line: string): boolean {
  return line.startsWith(BEGIN) ? /^[\w.-]*"?$/.test(line.slice(BEGIN.length)) : BEGIN.startsWith(line);
}

/**
 * Reads a line of a checkpoint file: the JWS, or the answer of `/api/logs/checkpoint`. Does not check the signature. Returns
 * null if the line is not a checkpoint.
 */
export function readCheckpoint(line: string): Checkpoint | null {
  try {
    const jws = line.startsWith('{') ? (JSON.parse(line) as { checkpoint?: unknown }).checkpoint : line;
    const [header = '', payload = ''] = String(jws).split('.');
    const { typ } = decoded(header);
    const { time, revision, heads, key_id, mac } = decoded(payload) as Record<string, unknown>;
    const isHead = (head: unknown): boolean =>
      Array.isArray(head) && typeof head[0] === 'string' && Number.isSafeInteger(head[1]) && typeof head[2] === 'string';
    if (typ !== CHECKPOINT_TYPE || !Number.isSafeInteger(time) || !Number.isSafeInteger(revision)) return null;
    if (!Array.isArray(heads) || !heads.every(isHead) || typeof key_id !== 'string' || typeof mac !== 'string') return null;
    return { time, revision, heads, key_id, mac } as Checkpoint;
  } catch {
    return null;
  }
}

const decoded = (part: string): Record<string, unknown> => JSON.parse(Buffer.from(part, 'base64url').toString());
