/**
 * Makes decisions durable before they take effect (law 5), many in one commit. All records that wait when a commit ends go
 * into the next commit, so load makes batches larger and not the wait longer. Records enter the chain only here.
 */
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Log } from '../base/log.ts';
import { gathered } from '../base/promises.ts';
import type { Connection, Database } from '../db/database.ts';
import { isDuplicate } from '../db/statement.ts';
import { CHAIN_VERSION, type ChainKey, type ChainRow, chainMac, type Head } from './chain/chain.ts';
import { chainStore } from './chain/tables/chain-store.ts';
import { tailOf } from './chain/tables/log-tables.ts';
import { type SegmentRow, segmentStore } from './chain/tables/segment-store.ts';
import {
  type Chained,
  createRowMaker,
  type LogDecision,
  type LogList,
  type LogOutcomes,
  nextStamp,
  outcomesByRecord,
  type Stored,
} from './records/log-rows.ts';
import { type LogStore, logStore } from './records/log-store.ts';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from './records/records.ts';
import { createSegments } from './segments.ts';

export interface AuditWriterParts {
  readonly database: Database;
  /** The key of the chain. */
  readonly key: ChainKey;
  /** Identifies this process in the header of each chain that it writes. */
  readonly host: Readonly<Record<string, string | number>>;
  readonly log: Pick<Log, 'info' | 'warn'>;
  readonly now: () => number;
  readonly newId?: () => string;
  readonly store?: (db: Connection) => LogStore;
  /** How long a record may wait before its request is refused, in milliseconds. */
  readonly timeoutMs?: number;
  /** The largest number of a record. The next one begins a chain. */
  readonly maxSeq?: number;
  /** How many bytes of records may wait. */
  readonly maxWaitingBytes?: number;
}

export type GroupCommitWriter = ReturnType<typeof createAuditWriter>;

const TIMEOUT_MS = 10_000;
const MAX_WAITING_BYTES = 32 * 1024 * 1024;
const MAX_BATCH_BYTES = 4 * 1024 * 1024;
const OUTCOME_DELAY_MS = 250;
const OUTCOME_RETRY_MS = 1_000;
/**
 * The database counts as broken if a write is unanswered for HUNG_AFTER_MS, or for FAILED_FOR_MS after a failed write. A failure
 * is forgotten after that, because only new requests can show that the database works again.
 */
const HUNG_AFTER_MS = 5_000;
const FAILED_FOR_MS = 5_000;
const MAX_OUTCOMES = 20_000;
/** The largest number of a record in its chain. Its column has 4 bytes in MySQL. */
const MAX_SEQ = 2 ** 31 - 1;
/** How many times the same rows with the same stamps are written if it is unknown whether the server has stored them. */
const ATTEMPTS = 3;

/** Called once per record, with the error that refused it; null: the record is durable. */
type Settle = (error: AppError | null) => void;
type Item =
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

const refusal = (detail: string, cause?: unknown): AppError => new AppError('unavailable', detail, { retryAfter: 1, cause });

/** Whether the server rejected the rows themselves: SQLSTATE classes 22 and 23, or a constraint of SQLite. */
function isAboutRows(error: unknown): boolean {
  const { sqlState, code } = error as { sqlState?: string; code?: string };
  return isDuplicate(error) || /^2[23]/.test(sqlState ?? '') || /^SQLITE_(CONSTRAINT|MISMATCH|TOOBIG)/.test(code ?? '');
}

/** Whether the database itself reported the failure, for example because it is full or read-only. Then the failure is final. */
function isAnswer(error: unknown): boolean {
  const { sqlState, code, fatal } = error as { sqlState?: string; code?: string; fatal?: boolean };
  return (sqlState !== undefined && fatal !== true) || /^SQLITE_/.test(code ?? '');
}

export function createAuditWriter(parts: AuditWriterParts) {
  const { database, key, log, now } = parts;
  const storeOf = parts.store ?? logStore;
  const store = storeOf(database.knex);
  const rows = createRowMaker(key);
  const segments = createSegments({ database });
  const newId = parts.newId ?? uuidv7;
  const maxSeq = parts.maxSeq ?? MAX_SEQ;
  const timeoutMs = parts.timeoutMs ?? TIMEOUT_MS;
  const maxWaitingBytes = parts.maxWaitingBytes ?? MAX_WAITING_BYTES;

  const waiting: Item[] = [];
  let waitingBytes = 0;
  let outcomes: OutcomeRecord[] = [];
  let outcomesDue = false;
  let outcomeTimer: NodeJS.Timeout | undefined;
  let lostOutcomes = 0;
  const unsettled = { decisions: 0, outcomes: 0 };
  /** When the last failed write ended; null: a later write succeeded, or none has failed. */
  let failedAt: number | null = null;
  /** When the write in progress began; null: there is none. */
  let offeredAt: number | null = null;
  let running: Promise<void> | null = null;
  let closed = false;
  let head: Head | null = null;
  /** The header of the next chain. It is written with the chain's first record. */
  let next: ChainRow | null = null;
  let reading: Promise<ChainRow> | null = null;

  function enqueue({ bytes }: Stored<object>, itemOf: (settle: Settle) => Item): Promise<void> {
    if (closed) return Promise.reject(refusal('The gateway is shutting down.'));
    if (waitingBytes + bytes > maxWaitingBytes) return Promise.reject(refusal('The audit log cannot keep up.'));
    waitingBytes += bytes;
    unsettled.decisions++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(refusal('The decision could not be recorded in time.')), timeoutMs);
      const settle = (error: AppError | null): void => {
        clearTimeout(timer);
        waitingBytes -= bytes;
        unsettled.decisions--;
        if (error) reject(error);
        else resolve();
      };
      waiting.push(itemOf(settle));
      wake();
    });
  }

  const isDue = (): boolean => waiting.length > 0 || (outcomesDue && outcomes.length > 0);

  function wake(): void {
    running ??= drain().finally(() => {
      running = null;
      // A settled request may have added a record after the last check.
      if (isDue()) wake();
    });
  }

  async function drain(): Promise<void> {
    while (isDue()) {
      await gathered(() => waiting.length);
      const batch = takeBatch();
      if (outcomesDue) {
        for (const some of outcomesByRecord(outcomes)) {
          // An outcome gets the time of its writing. If it had the time of its request and waited for days, retention would
          // remove it too early.
          const stored = rows.outcomes(some, now());
          const settle = (error: AppError | null): void => {
            for (const outcome of some) settleOutcome(outcome, error);
          };
          batch.push({ kind: 'outcome', stored, settle });
        }
        outcomes = [];
      }
      outcomesDue = false;
      offeredAt = performance.now();
      await record(batch);
      offeredAt = null;
      if (lostOutcomes > 0) log.warn({ lost: lostOutcomes }, 'outcomes of recorded decisions were lost');
      lostOutcomes = 0;
    }
  }

  /**
   * No request waits for an outcome, so it is retried until the database works. If it was stored before the connection broke, it is
   * stored twice then, and readers take the first.
   */
  function settleOutcome(outcome: OutcomeRecord, error: AppError | null): void {
    unsettled.outcomes--;
    if (error === null) return;
    if (closed || isAboutRows(error.cause) || outcomes.length >= MAX_OUTCOMES) lostOutcomes++;
    else keepOutcome(outcome, OUTCOME_RETRY_MS);
  }

  function keepOutcome(outcome: OutcomeRecord, delayMs: number): void {
    outcomes.push(outcome);
    unsettled.outcomes++;
    outcomeTimer ??= setTimeout(() => {
      outcomeTimer = undefined;
      outcomesDue = true;
      wake();
    }, delayMs).unref();
  }

  function takeBatch(): Item[] {
    let size = 0;
    let count = 0;
    for (const { stored } of waiting) {
      if (count > 0 && size + stored.bytes > MAX_BATCH_BYTES) break;
      size += stored.bytes;
      count++;
    }
    return waiting.splice(0, count);
  }

  /** Settles every item. Finds the rows that the server rejects by halving the batch; they get no position in the chain. */
  async function record(batch: readonly Item[]): Promise<void> {
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
        await record(batch.slice(0, batch.length >> 1));
        return record(batch.slice(batch.length >> 1));
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

  /** Waits until every record so far is durable or refused. */
  async function flush(): Promise<void> {
    while (running !== null || waiting.length > 0 || outcomes.length > 0) {
      outcomesDue = true;
      wake();
      await running;
    }
  }

  return {
    /** Reads the content of the next chain's header, so that the first record need not wait for it. Rejects if the read fails. */
    async start(): Promise<void> {
      await nextChain();
    },
    /** Forgets the facts of these users; null: all facts. Call it before personal data is erased. */
    forget: rows.forget,
    /** Returns the last record that is known to be durable; null: the open chain has none, or no chain is open. */
    head: (): Head | null => head,
    decision(record: DecisionRecord): Promise<void> {
      const stored = rows.decision(record);
      return enqueue(stored, (settle) => ({ kind: 'decision', stored, settle }));
    },
    shown(record: ShownRecord): Promise<void> {
      const stored = rows.shown(record);
      return enqueue(stored, (settle) => ({ kind: 'shown', stored, settle }));
    },
    outcome(record: OutcomeRecord): void {
      if (closed || outcomes.length >= MAX_OUTCOMES) {
        log.warn({ lost: 1 }, 'outcomes of recorded decisions were lost');
        return;
      }
      keepOutcome(record, OUTCOME_DELAY_MS);
    },
    /** False if the last write to the database failed, or if the database does not answer. */
    works(): boolean {
      const since = (at: number | null): number => (at === null ? Number.POSITIVE_INFINITY : performance.now() - at);
      return since(failedAt) > FAILED_FOR_MS && (offeredAt === null || since(offeredAt) < HUNG_AFTER_MS);
    },
    /** Returns how many records are neither durable nor refused yet. `decisions` includes lists. */
    unsettled: () => ({ ...unsettled }),
    flush,
    /** Flushes, and refuses later records. */
    async close(): Promise<void> {
      closed = true;
      clearTimeout(outcomeTimer);
      await flush();
      await segments.close();
    },
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
