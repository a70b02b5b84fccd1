/**
 * Appends records to this process's chain in the database. Records enter the chain only here, one batch at a time. A batch whose fate is
 * unknown ends the chain, and the next one begins a new chain.
 */
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Log } from '../base/log.ts';
import type { Connection, Database } from '../db/database.ts';
import { isDuplicate } from '../db/statement.ts';
import { CHAIN_VERSION, type ChainKey, type ChainRow, chainMac, type Head } from './chain/chain.ts';
import { chainStore } from './chain/tables/chain-store.ts';
import { tailOf } from './chain/tables/log-tables.ts';
import { type SegmentRow, segmentStore } from './chain/tables/segment-store.ts';
import {
  type Chained,
  type LogDecision,
  type LogList,
  type LogOutcomes,
  nextStamp,
  type RowMaker,
  type Stored,
} from './records/log-rows.ts';
import { type LogStore, logStore } from './records/log-store.ts';
import { createSegments } from './segments.ts';

export interface ChainWriterParts {
  readonly database: Database;
  /** The key of the chain. */
  readonly key: ChainKey;
  /** Identifies this process in the header of each chain that it writes. */
  readonly host: Readonly<Record<string, string | number>>;
  readonly log: Pick<Log, 'info'>;
  readonly now: () => number;
  readonly newId?: () => string;
  readonly store?: (db: Connection) => LogStore;
  /** The largest number of a record. The next one begins a chain. */
  readonly maxSeq?: number;
}

/** The largest number of a record in its chain. Its column has 4 bytes in MySQL. */
const MAX_SEQ = 2 ** 31 - 1;
/** How many times the same rows with the same stamps are written if it is unknown whether the server has stored them. */
const ATTEMPTS = 3;

/** Called once per record, with the error that refused it; null: the record is durable. */
export type Settle = (error: AppError | null) => void;
export type Item =
  | { readonly kind: 'decision'; readonly stored: Stored<LogDecision>; readonly settle: Settle }
  | { readonly kind: 'shown'; readonly stored: Stored<LogList>; readonly settle: Settle }
  | { readonly kind: 'outcome'; readonly stored: Stored<LogOutcomes>; readonly settle: Settle };

/**
 * The rows of one commit with their positions in the chain, and its head after them. `chain`: the header of the chain if these are
 * its first records, so that a chain without records leaves no row.
 */
type Composed = ReturnType<typeof compose> & { readonly segment: SegmentRow | null };

/**
 * `refused`: the server rejects these rows, and a retry would not help. `failed`: the server stores nothing at the moment, and
 * these rows will not appear. `unknown`: the rows may be stored, or may still appear.
 */
type Fate = 'durable' | 'refused' | 'failed' | 'unknown';

interface Committed {
  readonly fate: Fate;
  readonly cause?: unknown;
}

export const refusal = (detail: string, cause?: unknown): AppError =>
  new AppError('unavailable', detail, { retryAfter: 1, cause });

/** Whether the server rejected the rows themselves: SQLSTATE classes 22 and 23, or a constraint of SQLite. */
export function isAboutRows(error: unknown): boolean {
  const { sqlState, code } = error as { sqlState?: string; code?: string };
  return isDuplicate(error) || /^2[23]/.test(sqlState ?? '') || /^SQLITE_(CONSTRAINT|MISMATCH|TOOBIG)/.test(code ?? '');
}

/** Whether the database itself reported the failure, for example because it is full or read-only. Then the failure is final. */
function isAnswer(error: unknown): boolean {
  const { sqlState, code, fatal } = error as { sqlState?: string; code?: string; fatal?: boolean };
  return (sqlState !== undefined && fatal !== true) || /^SQLITE_/.test(code ?? '');
}

export function createChainWriter(parts: ChainWriterParts, rows: RowMaker) {
  const { database, key, log, now } = parts;
  const storeOf = parts.store ?? logStore;
  const store = storeOf(database.knex);
  const segments = createSegments({ database });
  const newId = parts.newId ?? uuidv7;
  const maxSeq = parts.maxSeq ?? MAX_SEQ;

  let head: Head | null = null;
  /** The header of the next chain. It is written with the chain's first record. */
  let next: ChainRow | null = null;
  let reading: Promise<ChainRow> | null = null;
  /** When the last failed write ended; null: a later write succeeded, or none has failed. */
  let failedAt: number | null = null;

  /** Settles every item. Finds the rows that the server rejects by halving the batch; they get no position in the chain. */
  async function append(batch: readonly Item[]): Promise<void> {
    const refuse = (cause: unknown): void => {
      if (!isAboutRows(cause)) failedAt = performance.now();
      for (const item of batch) item.settle(refusal('The decision could not be recorded.', cause));
    };
    let from = head;
    if (from !== null && from.seq + batch.length > maxSeq) from = null;
    let chain: ChainRow | null = null;
    if (from === null) {
      try {
        chain = await nextChain();
      } catch (error) {
        return refuse(error);
      }
      from = { chain_id: chain.chain_id, seq: 0, mac: chain.mac };
    }
    const rowsOf = compose(key, from, chain, batch);
    const composed = { ...rowsOf, segment: segments.next(rowsOf.decisions) };
    const { fate, cause } = await commit(composed);
    switch (fate) {
      case 'durable':
        head = composed.head;
        rows.stored(composed);
        segments.stored(composed.segment, composed.decisions);
        if (chain !== null) {
          next = null;
          const { chain_id, mac, found } = chain;
          log.info({ chain: chain_id, seq: 0, mac, found: JSON.parse(found).length }, 'audit chain begun');
        }
        failedAt = null;
        for (const item of batch) item.settle(null);
        return;
      case 'refused':
        if (batch.length === 1) return refuse(cause);
        await append(batch.slice(0, batch.length >> 1));
        return append(batch.slice(batch.length >> 1));
      case 'failed':
        return refuse(cause);
      case 'unknown':
        // The rows may still appear after the known head, so no other record may use their positions: the chain ends here.
        head = null;
        next = null;
        segments.leave();
        return refuse(cause);
    }
  }

  /**
   * After a lost connection it is unknown whether the commit succeeded. The MAC tells whether the rows are stored. If they are
   * not, the same rows are written again; the server stores them only once, because ids are unique.
   */
  async function commit(composed: Composed): Promise<Committed> {
    const forgotten = rows.forgotten();
    const committed = await commitRows(composed);
    if (committed.fate !== 'durable' || rows.forgotten() === forgotten) return committed;
    // A connection was opened meanwhile. It may lead to a server that lacks facts to which these rows refer.
    try {
      await store.insertFacts([...composed.decisions, ...composed.shown]);
      return committed;
    } catch (cause) {
      return { fate: 'unknown', cause };
    }
  }

  async function commitRows(composed: Composed): Promise<Committed> {
    let answered = true;
    for (let tried = 1; ; tried++) {
      try {
        await write(composed);
        return { fate: 'durable' };
      } catch (cause) {
        answered &&= isAnswer(cause);
        try {
          if (await holds(composed)) return { fate: 'durable' };
        } catch {
          return { fate: 'unknown', cause };
        }
        if (isAboutRows(cause)) return { fate: 'refused', cause };
        if (tried === ATTEMPTS) return { fate: answered ? 'failed' : 'unknown', cause };
      }
    }
  }

  async function write(composed: Composed): Promise<void> {
    const { chain, segment } = composed;
    if (chain === null && segment === null && store.isAtomic(composed)) return store.insert(composed);
    await database.knex.transaction(async (trx) => {
      if (chain !== null) await chainStore(trx).insertChain(chain);
      if (segment !== null) await segmentStore(trx).begin(segment);
      await storeOf(trx).insert(composed);
    });
  }

  /** Checks one row for all, because a commit writes all of them or none. */
  function holds({ decisions: [decision], shown: [shown], outcomes: [outcome] }: Composed): Promise<boolean> {
    if (decision) return store.holdsDecision(decision);
    if (shown) return store.holdsShown(shown);
    return outcome ? store.holdsOutcomes(outcome) : Promise.resolve(true);
  }

  /** Returns an id whose tail no other chain has, because records hold only the tail of the id. */
  function newChainId(chains: readonly ChainRow[]): string {
    const tails = new Set(chains.map(({ chain_id }) => tailOf(chain_id)));
    let id = newId();
    while (tails.has(tailOf(id))) id = newId();
    return id;
  }

  /** Returns the header of the next chain. Callers share a read that is in progress. */
  async function nextChain(): Promise<ChainRow> {
    if (next !== null) return next;
    reading ??= (async () => {
      const chains = chainStore(database.knex);
      const found = (await chains.openHeads(key)).map(({ chain_id, seq, mac }) => [chain_id, seq, mac]);
      const row = {
        chain_id: newChainId(await chains.chains()),
        version: CHAIN_VERSION,
        key_id: key.id,
        started_at: now(),
        host: JSON.stringify(parts.host),
        found: JSON.stringify(found),
        unchained: await chains.countUnchained(),
      };
      return { ...row, mac: chainMac(key, row) };
    })().finally(() => {
      reading = null;
    });
    next = await reading;
    return next;
  }

  return {
    append,
    /** Reads the content of the next chain's header, so that the first record need not wait for it. Rejects if the read fails. */
    async start(): Promise<void> {
      await nextChain();
    },
    /** Returns the last record that is known to be durable; null: the open chain has none, or no chain is open. */
    head: (): Head | null => head,
    /** When the last failed write ended, on the clock of `performance`; null: a later write succeeded, or none has failed. */
    failedAt: (): number | null => failedAt,
    close: segments.close,
  };
}

/** Gives each item its position after `from`. `chain`: the header of the new chain; null: the chain of `from` continues. */
function compose(key: ChainKey, from: Head, chain: ChainRow | null, batch: readonly Item[]) {
  const decisions: Chained<LogDecision>[] = [];
  const shown: Chained<LogList>[] = [];
  const outcomes: Chained<LogOutcomes>[] = [];
  const lists: Readonly<Record<Item['kind'], Chained<object>[]>> = { decision: decisions, shown, outcome: outcomes };
  let head = from;
  for (const { kind, stored } of batch) {
    const stamp = nextStamp(key, head, stored.row);
    head = { chain_id: stamp.chain_id, seq: stamp.chain_seq, mac: stamp.mac };
    lists[kind].push({ row: stored.row, bytes: stored.bytes, stamp });
  }
  return { chain, decisions, shown, outcomes, head };
}
