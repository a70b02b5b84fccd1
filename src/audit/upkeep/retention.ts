/**
 * Removes records by age. It removes the oldest records of a chain, and a signed record of the removal replaces them. An
 * attacker with write access to the tables can put any time into a row, so a record is removed only if its MAC fits the chain.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Log } from '../../base/log.ts';
import { repeat } from '../../base/repeat.ts';
import type { Database } from '../../db/database.ts';
import { transact } from '../../db/transact.ts';
import {
  type ChainKey,
  type ChainRow,
  chainMac,
  firstIdOf,
  type Head,
  type RetentionRow,
  retentionSignature,
  retentionVersion,
  unprovenOf,
} from '../chain/chain.ts';
import type { ChainedRecord } from '../chain/known-facts.ts';
import { fitsMac } from '../chain/record-mac.ts';
import { chainStore } from '../chain/tables/chain-store.ts';
import { removalStore } from '../chain/tables/removal-store.ts';
import { countStore, HOUR_MS } from '../search/count-store.ts';

export interface RetentionParts {
  readonly database: Database;
  readonly key: ChainKey;
  /** Chain keys under previous master keys. */
  readonly previousKeys: readonly ChainKey[];
  /** 0: nothing is removed. */
  readonly days: number;
  /** Continues unfinished erasures; called before each run. */
  readonly resume: () => Promise<void>;
  /** Throws if the clock should not be trusted now. Then the run removes nothing. */
  readonly checkClock: () => Promise<void>;
  /** Called after each run with the number of chains that keep old records because those fail the check. */
  readonly onKept: (chains: number) => void;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
  readonly now: () => number;
}

const DAY_MS = 24 * 60 * 60 * 1000;
const EVERY_MS = 60 * 60 * 1000;
const FIRST_MS = 60_000;
const BATCH = 500;
/** Pause between two batches, so that requests come first. */
const PAUSE_MS = 20;
/** How many chains one log line names. */
const NAMED = 5;

const UNFIT_HEADER = 'the header of the chain does not fit its MAC';

/** Says why the removal stops in a chain. */
class Unfit extends Error {
  /** The first record that stays; null: the chain's header fails its check. */
  readonly seq: number | null;

  constructor(seq: number | null, message: string) {
    super(message);
    this.seq = seq;
  }
}

type Removal = Omit<RetentionRow, 'key_id' | 'signature'>;

/** The first position of a chain that is still stored, and how it was checked. */
interface Front {
  /** The key of the chain. */
  readonly key: ChainKey;
  /** The last removed record, or the header of the chain. */
  readonly at: Head;
  readonly newest: number | null;
  readonly unproven: string | null;
}

export function createRetention(parts: RetentionParts) {
  const { database, key, days, resume, checkClock, onKept, log, now } = parts;
  const keyOf = new Map([key, ...parts.previousKeys].map((known) => [known.id, known]));
  let stopped = false;

  /** Removes all records that are too old now, and returns how many. */
  async function run(): Promise<number> {
    if (days === 0) return 0;
    await checkClock();
    const before = now() - days * DAY_MS;
    const kept: { chain: string; seq: number | null; why: string }[] = [];
    let removed = 0;
    for (const chain of await chainStore(database.knex).chains()) {
      try {
        for (let some = 1; some > 0 && !stopped; removed += some) {
          some = await removeSome(chain, before);
          if (some > 0) await sleep(PAUSE_MS);
        }
      } catch (error) {
        if (!(error instanceof Unfit)) throw error;
        kept.push({ chain: chain.chain_id, seq: error.seq, why: error.message });
      }
    }
    for (let some = 1; some > 0 && !stopped; removed += some) {
      some = await transact(database, (trx) => removalStore(trx).removeUnchained(firstIdOf(before), BATCH));
      await sleep(PAUSE_MS);
    }
    const store = removalStore(database.knex);
    const day = await store.firstDay(now());
    // Somebody has altered an id. Until it is removed, no fact is known to be unused.
    if (!Number.isNaN(day)) while (!stopped && (await store.removeFacts(day, BATCH))) await sleep(PAUSE_MS);
    const hour = Math.floor(before / HOUR_MS);
    while (!stopped && (await countStore(database.knex).removeBefore(hour, BATCH))) await sleep(PAUSE_MS);
    if (removed > 0) log.info({ removed, days }, 'records of the audit log were removed by age');
    onKept(kept.length);
    if (kept.length > 0) {
      log.error(
        { chains: kept.length, kept: kept.slice(0, NAMED) },
        'old records of the audit log were not removed, because they are not what the gateway wrote: run "portcullis audit verify"',
      );
    }
    return removed;
  }

  async function removeSome(chain: ChainRow, before: number): Promise<number> {
    // SQLite accepts bytes in a column of texts.
    if (typeof chain.chain_id !== 'string') throw new Unfit(null, UNFIT_HEADER);
    const store = chainStore(database.knex);
    const row = await store.retention(chain.chain_id);
    try {
      return await removeAfter(chain, row, before);
    } catch (error) {
      // Another replica removed these records between two reads.
      if (error instanceof Unfit && (await store.retention(chain.chain_id))?.seq !== row?.seq) return 0;
      throw error;
    }
  }

  async function removeAfter(chain: ChainRow, row: RetentionRow | null, before: number): Promise<number> {
    const store = chainStore(database.knex, false);
    const [first] = await store.oldest(chain.chain_id, row?.seq ?? 0, 1);
    // An unknown key is reported only if there is something to remove.
    if (first === undefined || (isYounger(first, chain, before) && !keyOf.has(chain.key_id))) return 0;
    const front = frontOf(chain, row);
    // Most chains have no record that is old enough, and their first record shows it.
    if (oldestOf(chain, front, [first], before) === null) return 0;
    const removal = oldestOf(chain, front, await store.oldest(chain.chain_id, front.at.seq, BATCH), before);
    return removal !== null && (await removeUpTo(front, removal)) ? removal.seq - front.at.seq : 0;
  }

  /**
   * Returns the removal of the oldest records that are old enough, or null if there are none. It ends before the first record
   * that does not continue the chain. Throws Unfit if the very first record does not.
   */
  function oldestOf(chain: ChainRow, front: Front, records: readonly ChainedRecord[], before: number): Removal | null {
    let { at, newest } = front;
    for (const record of records) {
      const { row } = record;
      const seq = at.seq + 1;
      const fits = row.chain_seq === seq && fitsMac(front.key, chain.version, at.mac, record);
      if (!fits && at === front.at)
        throw new Unfit(seq, row.chain_seq === seq ? 'the record does not fit its MAC' : 'the record is missing');
      if (!fits || isYounger(record, chain, before)) break;
      at = { chain_id: chain.chain_id, seq, mac: row.mac };
      const time = timeOf(record, chain);
      if (time !== null) newest = Math.max(newest ?? time, time);
    }
    return at === front.at ? null : { ...at, removed_at: now(), newest, unproven: front.unproven };
  }

  /** Returns false if another replica is removing records of this chain. */
  function removeUpTo({ at }: Front, content: Removal): Promise<boolean> {
    const row = { ...content, key_id: key.id, signature: retentionSignature(key, content) };
    return transact(database, async (trx) => {
      const store = removalStore(trx);
      if (!(await store.lockChain(row.chain_id))) return false;
      if (((await chainStore(trx).retention(row.chain_id))?.seq ?? 0) !== at.seq) return false;
      const removed = await store.removeUpTo(at.seq, row);
      // Roll back, because only checked records may be removed.
      if (removed !== row.seq - at.seq) throw new Unfit(at.seq + 1, 'records were added or removed in the meantime');
      return true;
    });
  }

  function frontOf(chain: ChainRow, row: RetentionRow | null): Front {
    const writer = keyOf.get(chain.key_id);
    if (writer === undefined)
      throw new Unfit(null, 'the chain was written under a master key that is not in MASTER_KEY or MASTER_KEY_PREVIOUS');
    if (chainMac(writer, chain) !== chain.mac) throw new Unfit(null, UNFIT_HEADER);
    const { chain_id, mac } = chain;
    if (row === null) return { key: writer, at: { chain_id, seq: 0, mac }, newest: null, unproven: null };
    const signer = keyOf.get(row.key_id);
    const version = signer === undefined ? null : retentionVersion(signer, row);
    if (version === null) throw new Unfit(row.seq, 'the record of the removal by age does not fit its signature');
    const unproven = unprovenOf(version, row);
    return {
      key: writer,
      at: { chain_id, seq: row.seq, mac: row.mac },
      newest: version === 1 ? null : row.newest,
      unproven: unproven && JSON.stringify([unproven.seq, unproven.removed_at]),
    };
  }

  const hourly = repeat(
    () => resume().then(run),
    { everyMs: EVERY_MS, firstMs: FIRST_MS },
    (err) => log.warn({ err }, 'removing old records of the audit log failed, retrying in an hour'),
  );

  return {
    run,
    stop(): Promise<void> {
      stopped = true;
      return hourly.stop();
    },
  };
}

/** Returns null for a list, which has no time of its own: it is as old as the record before it, or as the header of its chain. */
function timeOf({ row }: ChainedRecord, chain: ChainRow): number | null {
  const at = row['created_at'] ?? (row.chain_seq === 1 ? chain.started_at : null);
  return typeof at === 'number' ? at : null;
}

function isYounger(record: ChainedRecord, chain: ChainRow, before: number): boolean {
  const at = timeOf(record, chain);
  return at !== null && at >= before;
}
