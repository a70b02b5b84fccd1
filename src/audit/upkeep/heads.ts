/** Copies the heads of the chains out of the database: to the process log, and to signed checkpoints. */
import { constants } from 'node:fs';
import { type FileHandle, mkdir, open } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { KeyRing } from '../../auth/keys.ts';
import { AppError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { repeat } from '../../base/repeat.ts';
import { readPosition } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import type { ChainKey, Head } from '../chain/chain.ts';
import { CHECKPOINT_TYPE, checkpointLine, checkpointMac } from '../chain/checkpoint.ts';
import { chainStore } from '../chain/tables/chain-store.ts';

export interface HeadsParts {
  readonly database: Database;
  readonly key: ChainKey;
  readonly keys: KeyRing;
  readonly writer: { head(): Head | null };
  /** The file to which checkpoints are appended. */
  readonly file: string;
  readonly checkpointMs: number;
  readonly log: Pick<Log, 'info' | 'error'>;
  readonly now: () => number;
}

export type Heads = ReturnType<typeof createHeads>;

const LOG_EVERY_MS = 60_000;

/** Opening a pipe must fail at once, and not wait until somebody reads it. */
const APPEND = constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT | constants.O_NONBLOCK;

/** Opens the file on each use, and creates it if a log rotation has moved it away. */
async function openToAppend(file: string): Promise<FileHandle> {
  await makeFolder(dirname(file));
  return open(file, APPEND, 0o600);
}

/** Creates the folder unless it exists. The recursive `mkdir` of Node 20 never ends below a folder that accepts none, such as `/proc`. */
async function makeFolder(folder: string): Promise<void> {
  const make = (): Promise<void> =>
    mkdir(folder, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error;
    });
  await make().catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
    await makeFolder(dirname(folder));
    await make();
  });
}

/** Throws AppError `unavailable`, with a message for the operator, if no checkpoint can be appended to the file. */
export async function checkCheckpoints(file: string): Promise<void> {
  try {
    const handle = await openToAppend(file);
    try {
      // A device or a pipe would lose the checkpoints, or accept none.
      if (!(await handle.stat()).isFile()) throw new Error(`${file} is not a regular file`);
    } finally {
      await handle.close();
    }
  } catch (cause) {
    const reason = (cause as Error).message;
    throw new AppError(
      'unavailable',
      `Checkpoints of the audit log cannot be written: ${reason}. Let the gateway write there, or set DATA_DIR or AUDIT_CHECKPOINTS to another place.`,
      { cause },
    );
  }
}

export function createHeads({ database, key, keys, writer, file, checkpointMs, log, now }: HeadsParts) {
  let said: string | null = null;
  /** False if the last line of the file may be cut off, because the disk was full or a process ended. */
  let endsWhole = false;

  function say(): void {
    const head = writer.head();
    if (head === null || head.mac === said) return;
    said = head.mac;
    log.info({ chain: head.chain_id, seq: head.seq, mac: head.mac }, 'head of the audit chain');
  }

  /** Returns a checkpoint of this moment as a compact JWS. */
  async function checkpoint(): Promise<string> {
    const stored = await chainStore(database.knex).openHeads(key);
    // This process knows the head of its own chain. An attacker with write access to the tables could hide it.
    const own = writer.head();
    const others = stored.filter(({ chain_id }) => chain_id !== own?.chain_id);
    const heads = [...others, ...(own === null ? [] : [own])].map(({ chain_id, seq, mac }) => [chain_id, seq, mac] as const);
    const { revision } = await readPosition(database.knex);
    const content = { time: now(), revision, heads };
    const signer = await keys.signer();
    return signer.signAs(CHECKPOINT_TYPE, { ...content, key_id: key.id, mac: checkpointMac(key, content) });
  }

  async function append(): Promise<void> {
    const line = checkpointLine(await checkpoint());
    const handle = await openToAppend(file);
    try {
      const { size } = await handle.stat();
      const begin = endsWhole || size === 0 ? '' : '\n';
      endsWhole = false;
      await handle.appendFile(`${begin}${line}\n`);
      await handle.sync();
      endsWhole = true;
    } finally {
      await handle.close();
    }
  }
  const failed = (err: unknown): void => log.error({ err, file }, 'writing a checkpoint of the audit log failed');

  say();
  const saying = setInterval(say, LOG_EVERY_MS).unref();
  const appending = repeat(append, { everyMs: checkpointMs }, failed);

  return {
    checkpoint,
    /** Logs the head of the chain a last time, and appends a last checkpoint. */
    async stop(): Promise<void> {
      clearInterval(saying);
      await appending.stop();
      say();
      await append().catch(failed);
    },
  };
}
