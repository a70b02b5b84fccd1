/**
 * Makes decisions durable before they take effect (law 5), many in one commit: whatever waits when a commit ends goes into
 * the next one, so that load makes batches larger and not the wait longer. The one place where records enter the chain.
 */
import { v7 as uuidv7 } from 'uuid';
import type { Connection, Database } from '../db/database.ts';
import { isDuplicate } from '../db/database.ts';
import { AppError } from '../errors.ts';
import type { Log } from '../log.ts';
import { CHAIN_VERSION, type ChainKey, type ChainRow, chainMac, type Head, nextStamp } from './chain.ts';
import { chainStore } from './chains/store.ts';
import type { AuditWriter, OutcomeRecord } from './event.ts';
import {
  type AuditStore,
  auditStore,
  type Chained,
  type DecisionRow,
  fitsOneStatement,
  type OutcomeRow,
  type ShownRow,
  type Stored,
  storedDecision,
  storedOutcome,
  storedShown,
} from './store.ts';

export interface AuditWriterParts {
  readonly database: Database;
  /** Of the chain. */
  readonly key: ChainKey;
  /** Says in the head of each chain which process writes it. */
  readonly host: Readonly<Record<string, string | number>>;
  readonly log: Pick<Log, 'info' | 'warn'>;
  readonly now: () => number;
  readonly store?: (db: Connection) => AuditStore;
  /** How long a record may wait until its request is refused. */
  readonly timeoutMs?: number;
  /** How much may wait at all. */
  readonly maxWaitingBytes?: number;
}

export interface GroupCommitWriter extends AuditWriter {
  /** Reads what the head of the chain will say, so that the first record need not wait for it. Rejects when it cannot be read. */
  start(): Promise<void>;
  /** The last record that is known to be durable; null: there is none in an open chain. */
  head(): Head | null;
  /** False: the database has not taken what it was last offered, or does not answer. */
  works(): boolean;
  /** What is neither durable nor refused yet: decisions with what lists showed, and outcomes. */
  unsettled(): { readonly decisions: number; readonly outcomes: number };
  /** Everything recorded so far is durable, or refused. */
  flush(): Promise<void>;
  /** Flushes; refuses what comes later. */
  close(): Promise<void>;
}

const TIMEOUT_MS = 10_000;
const MAX_WAITING_BYTES = 32 * 1024 * 1024;
const MAX_BATCH_BYTES = 4 * 1024 * 1024;
const OUTCOME_DELAY_MS = 250;
const OUTCOME_RETRY_MS = 1_000;
/** A database that has not answered for so long does not work. One that has failed may again: requests must come to show it. */
const HUNG_AFTER_MS = 5_000;
const FAILED_FOR_MS = 5_000;
const MAX_OUTCOMES = 20_000;
/** How often the same rows with the same stamps are offered, where it is not known whether the server has taken them. */
const ATTEMPTS = 3;

/** Called once, with what refused the record; null: it is durable. */
type Settle = (error: AppError | null) => void;
type Item =
  | { readonly kind: 'decision'; readonly stored: Stored<DecisionRow>; readonly settle: Settle }
  | { readonly kind: 'shown'; readonly stored: Stored<ShownRow>; readonly settle: Settle }
  | { readonly kind: 'outcome'; readonly stored: Stored<OutcomeRow>; readonly settle: Settle };

/** Rows of one commit, as they stand in the chain. */
interface Composed {
  /** The head of their chain, if they are its first records: a chain without any leaves no row. */
  readonly chain: ChainRow | null;
  readonly decisions: Chained<DecisionRow>[];
  readonly shown: Chained<ShownRow>[];
  readonly outcomes: Chained<OutcomeRow>[];
  /** After them. */
  readonly head: Head;
}

/**
 * `refused`: the server has said no to the rows, now and for ever. `failed`: it takes nothing now, and these rows are not there
 * and will not be. `unknown`: they may be there, or yet come to be there.
 */
type Fate = 'durable' | 'refused' | 'failed' | 'unknown';

const turnOver = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

const refusal = (detail: string, cause?: unknown): AppError => new AppError('unavailable', detail, { retryAfter: 1, cause });

/** Whether the server looked at the rows and would not have them: classes 22 and 23 of SQLSTATE, constraints of SQLite. */
function isAboutRows(error: unknown): boolean {
  const { sqlState, code } = error as { sqlState?: string; code?: string };
  return isDuplicate(error) || /^2[23]/.test(sqlState ?? '') || /^SQLITE_(CONSTRAINT|MISMATCH|TOOBIG)/.test(code ?? '');
}

/** Whether the database has said itself that a statement failed: full, read-only. Then nothing more will come of it. */
function isAnswer(error: unknown): boolean {
  const { sqlState, code, fatal } = error as { sqlState?: string; code?: string; fatal?: boolean };
  return (sqlState !== undefined && fatal !== true) || /^SQLITE_/.test(code ?? '');
}

export function createAuditWriter(parts: AuditWriterParts): GroupCommitWriter {
  const { database, key, log, now } = parts;
  const storeOf = parts.store ?? auditStore;
  const timeoutMs = parts.timeoutMs ?? TIMEOUT_MS;
  const maxWaitingBytes = parts.maxWaitingBytes ?? MAX_WAITING_BYTES;

  const waiting: Item[] = [];
  let waitingBytes = 0;
  let outcomes: OutcomeRecord[] = [];
  let outcomesDue = false;
  let outcomeTimer: NodeJS.Timeout | undefined;
  let lostOutcomes = 0;
  const unsettled = { decisions: 0, outcomes: 0 };
  /** When the database last took nothing; null: it has since. */
  let failedAt: number | null = null;
  /** Since when it has been asked to take what it is offered now. */
  let offeredAt: number | null = null;
  let running: Promise<void> | null = null;
  let closed = false;
  let head: Head | null = null;
  /** The head of the next chain, which is written with its first record. */
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
      // What a settled request recorded after the last look.
      if (isDue()) wake();
    });
  }

  async function drain(): Promise<void> {
    while (isDue()) {
      // What a turn brings shares a commit, whichever of its events is the first.
      await turnOver();
      const batch = takeBatch();
      if (outcomesDue) {
        for (const outcome of outcomes) {
          // Its time is that of its writing: what waited for days is not as old as it would look to who removes records by age.
          const stored = storedOutcome(outcome, now());
          batch.push({ kind: 'outcome', stored, settle: (error) => settleOutcome(outcome, error) });
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

  /** Nobody waits for it, so it can wait for a database that is out of order; written twice, it is there once. */
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

  /** Settles every item. Rows that the server refuses are found by halving, and take no place in the chain. */
  async function record(batch: readonly Item[]): Promise<void> {
    const refuse = (cause: unknown): void => {
      if (!isAboutRows(cause)) failedAt = performance.now();
      for (const item of batch) item.settle(refusal('The decision could not be recorded.', cause));
    };
    let from = head;
    let chain: ChainRow | null = null;
    if (from === null) {
      try {
        chain = await nextChain();
      } catch (error) {
        return refuse(error);
      }
      from = { chain_id: chain.chain_id, seq: 0, mac: chain.mac };
    }
    const composed = compose(key, from, chain, batch);
    const { fate, cause } = await commit(composed);
    switch (fate) {
      case 'durable':
        head = composed.head;
        if (chain !== null) {
          next = null;
          const { chain_id, mac, found } = chain;
          log.info({ chain: chain_id, seq: 0, mac, found: JSON.parse(found).length }, 'a chain of the audit log begins');
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
        // They may yet appear after the head that is known, and nothing else may take their places: the chain ends here.
        head = null;
        next = null;
        return refuse(cause);
    }
  }

  /**
   * A connection that is lost says nothing of what became of the commit. What is there is known by its MAC; what is not there
   * is offered again as it is, which the server takes once, since ids are unique.
   */
  async function commit(composed: Composed): Promise<{ readonly fate: Fate; readonly cause?: unknown }> {
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

  async function write({ chain, decisions, shown, outcomes: late }: Composed): Promise<void> {
    if (chain === null && shown.length === 0 && late.length === 0 && fitsOneStatement(decisions)) {
      return storeOf(database.knex).insertDecisions(decisions);
    }
    await database.knex.transaction(async (trx) => {
      if (chain !== null) await chainStore(trx).insertChain(chain);
      const store = storeOf(trx);
      await store.insertDecisions(decisions);
      await store.insertShown(shown);
      await store.insertOutcomes(late);
    });
  }

  /** One row stands for all: they are written whole or not at all. */
  function holds({ decisions: [decision], shown: [shown], outcomes: [outcome] }: Composed): Promise<boolean> {
    const store = storeOf(database.knex);
    if (decision) return store.holdsDecision(decision);
    if (shown) return store.holdsShown(shown);
    return outcome ? store.holdsOutcome(outcome) : Promise.resolve(true);
  }

  /** All who ask meanwhile share one read. */
  async function nextChain(): Promise<ChainRow> {
    if (next !== null) return next;
    reading ??= (async () => {
      const store = chainStore(database.knex);
      const found = (await store.openHeads()).map(({ chain_id, seq, mac }) => [chain_id, seq, mac]);
      const row = {
        chain_id: uuidv7(),
        version: CHAIN_VERSION,
        key_id: key.id,
        started_at: now(),
        host: JSON.stringify(parts.host),
        found: JSON.stringify(found),
        unchained: await store.countUnchained(),
      };
      return { ...row, mac: chainMac(key, row) };
    })().finally(() => {
      reading = null;
    });
    next = await reading;
    return next;
  }

  async function flush(): Promise<void> {
    while (running !== null || waiting.length > 0 || outcomes.length > 0) {
      outcomesDue = true;
      wake();
      await running;
    }
  }

  return {
    async start() {
      await nextChain();
    },
    head: () => head,
    decision(record) {
      const stored = storedDecision(record);
      return enqueue(stored, (settle) => ({ kind: 'decision', stored, settle }));
    },
    shown(record) {
      const stored = storedShown(record);
      return enqueue(stored, (settle) => ({ kind: 'shown', stored, settle }));
    },
    outcome(record) {
      if (closed || outcomes.length >= MAX_OUTCOMES) {
        log.warn({ lost: 1 }, 'outcomes of recorded decisions were lost');
        return;
      }
      keepOutcome(record, OUTCOME_DELAY_MS);
    },
    works() {
      const since = (at: number | null): number => (at === null ? Number.POSITIVE_INFINITY : performance.now() - at);
      return since(failedAt) > FAILED_FOR_MS && (offeredAt === null || since(offeredAt) < HUNG_AFTER_MS);
    },
    unsettled: () => ({ ...unsettled }),
    flush,
    async close() {
      closed = true;
      clearTimeout(outcomeTimer);
      await flush();
    },
  };
}

/** `chain`: the one that begins with the batch; null: that of `from` goes on. */
function compose(key: ChainKey, from: Head, chain: ChainRow | null, batch: readonly Item[]): Composed {
  const decisions: Chained<DecisionRow>[] = [];
  const shown: Chained<ShownRow>[] = [];
  const outcomes: Chained<OutcomeRow>[] = [];
  let head = from;
  const chained = <R extends object>(kind: Item['kind'], { row, bytes }: Stored<R>): Chained<R> => {
    const stamp = nextStamp(key, head, kind, row);
    head = { chain_id: stamp.chain_id, seq: stamp.chain_seq, mac: stamp.mac };
    return { row, bytes, stamp };
  };
  for (const item of batch) {
    switch (item.kind) {
      case 'decision':
        decisions.push(chained(item.kind, item.stored));
        break;
      case 'shown':
        shown.push(chained(item.kind, item.stored));
        break;
      case 'outcome':
        outcomes.push(chained(item.kind, item.stored));
        break;
    }
  }
  return { chain, decisions, shown, outcomes, head };
}
