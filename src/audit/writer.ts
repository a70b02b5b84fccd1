/**
 * Makes decisions durable before they take effect (law 5), many in one commit. All records that wait when a commit ends go
 * into the next commit, so load makes batches larger and not the wait longer.
 */
import type { AppError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { gathered } from '../base/promises.ts';
import { inSlices, sortedInSteps } from '../base/turns/slices.ts';
import { type ChainWriterParts, createChainWriter, type Item, isAboutRows, refusal, type Settle } from './chain-writer.ts';
import { createRowMaker, isTooLarge, outcomesByRecord, type Stored } from './records/log-rows.ts';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from './records/records.ts';

export interface AuditWriterParts extends ChainWriterParts {
  readonly log: Pick<Log, 'info' | 'warn'>;
  /** How long a record may wait before its request is refused, in milliseconds. */
  readonly timeoutMs?: number;
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

export function createAuditWriter(parts: AuditWriterParts) {
  const { log, now } = parts;
  const rows = createRowMaker(parts.key);
  const chain = createChainWriter(parts, rows);
  const timeoutMs = parts.timeoutMs ?? TIMEOUT_MS;
  const maxWaitingBytes = parts.maxWaitingBytes ?? MAX_WAITING_BYTES;

  const waiting: Item[] = [];
  let waitingBytes = 0;
  let outcomes: OutcomeRecord[] = [];
  let outcomesDue = false;
  let outcomeTimer: NodeJS.Timeout | undefined;
  let lostOutcomes = 0;
  const unsettled = { decisions: 0, outcomes: 0 };
  /** When the write in progress began; null: there is none. */
  let offeredAt: number | null = null;
  let running: Promise<void> | null = null;
  let closed = false;

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
      await chain.append(batch);
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

  /** Waits until every record so far is durable or refused. */
  async function flush(): Promise<void> {
    while (running !== null || waiting.length > 0 || outcomes.length > 0) {
      outcomesDue = true;
      wake();
      await running;
    }
  }

  return {
    start: chain.start,
    /** Forgets the facts of these users; null: all facts. Call it before personal data is erased. */
    forget: rows.forget,
    head: chain.head,
    decision(record: DecisionRecord): Promise<void> {
      const stored = rows.decision(record);
      return enqueue(stored, (settle) => ({ kind: 'decision', stored, settle }));
    },
    async shown(record: ShownRecord): Promise<void> {
      // Sorting long names takes tens of milliseconds. `namesJson` sorts them again, which is fast for sorted names.
      const names = isTooLarge(record.names) ? await inSlices(sortedInSteps(record.names, (a, b) => a < b)) : record.names;
      const stored = rows.shown({ ...record, names });
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
      return since(chain.failedAt()) > FAILED_FOR_MS && (offeredAt === null || since(offeredAt) < HUNG_AFTER_MS);
    },
    /** Returns how many records are neither durable nor refused yet. `decisions` includes lists. */
    unsettled: () => ({ ...unsettled }),
    flush,
    /** Flushes, and refuses later records. */
    async close(): Promise<void> {
      closed = true;
      clearTimeout(outcomeTimer);
      await flush();
      await chain.close();
    },
  };
}
