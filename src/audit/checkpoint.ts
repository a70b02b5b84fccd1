/** Signed statements of where the chains of the log stand, to be kept outside the database. */
import { CHAIN_VERSION, type ChainKey } from './chain.ts';

/** In the protected header: no token is of this type. */
export const CHECKPOINT_TYPE = 'portcullis-audit-checkpoint';

/** The payload of the JWS. */
export interface Checkpoint {
  /** Milliseconds since the epoch. */
  readonly time: number;
  /** Of the policy set. */
  readonly revision: number;
  /** `[chain_id, seq, mac]` of each chain that no later one has found as it is. */
  readonly heads: readonly (readonly [chain: string, seq: number, mac: string])[];
  readonly key_id: string;
  /** For who has the master key and not the public keys. */
  readonly mac: string;
}

export function checkpointMac(key: ChainKey, { time, revision, heads }: Omit<Checkpoint, 'key_id' | 'mac'>): string {
  return key.mac(JSON.stringify([CHAIN_VERSION, 'checkpoint', time, revision, heads]));
}

const BEGIN = '{"checkpoint":"';

/** As a file of checkpoints has it. */
export const checkpointLine = (jws: string): string => `${BEGIN}${jws}"}`;

/** Whether the line is the beginning of a checkpoint, as a full disk or a power cut leaves it. It proves as little as a line that is not there. */
export function isCutOff(line: string): boolean {
  return line.startsWith(BEGIN) ? /^[\w.-]*"?$/.test(line.slice(BEGIN.length)) : BEGIN.startsWith(line);
}

/** One line of a file of checkpoints: the JWS, or what `/api/logs/checkpoint` answered. The signature is not looked at; null: it is no checkpoint. */
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
