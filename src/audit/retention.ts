/** Removes records by age: always the oldest of a chain, and a signed record of where it begins now takes their place. */
import type { Database } from '../db/database.ts';
import { transact } from '../db/transact.ts';
import type { Log } from '../log.ts';
import { type ChainKey, firstIdOf, type RetentionRow, retentionSignature } from './chain.ts';
import { type ChainedRecord, type ChainStore, chainStore } from './chains/store.ts';

export interface RetentionParts {
  readonly database: Database;
  readonly key: ChainKey;
  /** 0: nothing is removed. */
  readonly days: number;
  /** What was begun and not finished, each time as well. */
  readonly resume: () => Promise<void>;
  readonly log: Pick<Log, 'info' | 'warn'>;
  readonly now: () => number;
}

export interface Retention {
  /** Removes all that is too old now; says how many records. */
  run(): Promise<number>;
  stop(): Promise<void>;
}

const DAY_MS = 24 * 60 * 60 * 1000;
const EVERY_MS = 60 * 60 * 1000;
const FIRST_MS = 60_000;
const BATCH = 500;
/** Between two batches, so that requests come first. */
const PAUSE_MS = 20;

export function createRetention({ database, key, days, resume, log, now }: RetentionParts): Retention {
  let stopped = false;

  async function run(): Promise<number> {
    if (days === 0) return 0;
    const before = now() - days * DAY_MS;
    let removed = 0;
    for (const { chain_id, first } of await chainStore(database.knex).extents()) {
      if (first === null) continue;
      for (let some = 1; some > 0 && !stopped; removed += some) {
        some = await transact(database, (trx) => removeSome(chainStore(trx), chain_id, before));
        await pause();
      }
    }
    for (let some = 1; some > 0 && !stopped; removed += some) {
      some = await transact(database, (trx) => chainStore(trx).removeUnchained(firstIdOf(before), BATCH));
      await pause();
    }
    if (removed > 0) log.info({ removed, days }, 'records of the audit log were removed by age');
    return removed;
  }

  async function removeSome(store: ChainStore, chainId: string, before: number): Promise<number> {
    if (!(await store.lockChain(chainId))) return 0;
    const since = (await store.retention(chainId))?.seq ?? 0;
    const records = await store.records(chainId, since, Number.MAX_SAFE_INTEGER, BATCH);
    const old = oldest(records, since, before);
    const last = old.at(-1);
    if (last === undefined) return 0;
    const content = { chain_id: chainId, seq: last.row.chain_seq, mac: last.row.mac, removed_at: now() };
    const row: RetentionRow = { ...content, key_id: key.id, signature: retentionSignature(key, content) };
    await store.removeUpTo(row);
    return old.length;
  }

  let running: Promise<unknown> = Promise.resolve();
  const work = (): void => {
    running = running.then(async () => {
      try {
        await resume();
        await run();
      } catch (err) {
        log.warn({ err }, 'the audit log could not be kept to its age; it is tried again in an hour');
      }
    });
  };
  const first = setTimeout(work, FIRST_MS).unref();
  const timer = setInterval(work, EVERY_MS).unref();

  return {
    run,
    async stop() {
      stopped = true;
      clearTimeout(first);
      clearInterval(timer);
      await running;
    },
  };
}

/**
 * The records in front that are older than `before`. What a list showed has no time of its own: it is as old as what is
 * before it. A gap ends them: who has removed records otherwise must not have that signed.
 */
function oldest(records: readonly ChainedRecord[], since: number, before: number): ChainedRecord[] {
  const old: ChainedRecord[] = [];
  for (const record of records) {
    const at = record.row['created_at'];
    if (record.row.chain_seq !== since + old.length + 1) break;
    if (typeof at === 'number' && at >= before) break;
    old.push(record);
  }
  return old;
}

const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
