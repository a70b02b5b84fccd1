/**
 * Makes decisions durable before they take effect (law 5), many in one commit: whatever waits when a commit ends goes into
 * the next one, so that load makes batches larger and not the wait longer.
 */
import type { Connection, Database } from '../db/database.ts';
import { AppError } from '../errors.ts';
import type { Log } from '../log.ts';
import type { AuditWriter } from './event.ts';
import {
  type AuditStore,
  auditStore,
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
  readonly log: Pick<Log, 'warn'>;
  readonly now: () => number;
  readonly store?: (db: Connection) => AuditStore;
  /** How long a record may wait until its request is refused. */
  readonly timeoutMs?: number;
  /** How much may wait at all. */
  readonly maxWaitingBytes?: number;
}

export interface GroupCommitWriter extends AuditWriter {
  /** Everything recorded so far is durable, or refused. */
  flush(): Promise<void>;
  /** Flushes; refuses what comes later. */
  close(): Promise<void>;
}

const TIMEOUT_MS = 10_000;
const MAX_WAITING_BYTES = 32 * 1024 * 1024;
const MAX_BATCH_BYTES = 4 * 1024 * 1024;
const OUTCOME_DELAY_MS = 250;
const MAX_OUTCOMES = 20_000;
/** Outcomes that fail one after another are given up: the next decision must not wait for them. */
const MAX_OUTCOME_FAILURES = 3;

type Item = { settle(error: AppError | null): void } & (
  | { readonly kind: 'decision'; readonly stored: Stored<DecisionRow> }
  | { readonly kind: 'shown'; readonly stored: Stored<ShownRow> }
);
type ItemBody = Item extends infer I ? (I extends Item ? Omit<I, 'settle'> : never) : never;

const refusal = (detail: string, cause?: unknown): AppError => new AppError('unavailable', detail, { retryAfter: 1, cause });

export function createAuditWriter(parts: AuditWriterParts): GroupCommitWriter {
  const { database, log, now } = parts;
  const storeOf = parts.store ?? auditStore;
  const timeoutMs = parts.timeoutMs ?? TIMEOUT_MS;
  const maxWaitingBytes = parts.maxWaitingBytes ?? MAX_WAITING_BYTES;

  const waiting: Item[] = [];
  let waitingBytes = 0;
  let outcomes: Stored<OutcomeRow>[] = [];
  let outcomesDue = false;
  let outcomeTimer: NodeJS.Timeout | undefined;
  let running: Promise<void> | null = null;
  let closed = false;

  function enqueue(body: ItemBody): Promise<void> {
    const { bytes } = body.stored;
    if (closed) return Promise.reject(refusal('The gateway is shutting down.'));
    if (waitingBytes + bytes > maxWaitingBytes) return Promise.reject(refusal('The audit log cannot keep up.'));
    waitingBytes += bytes;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(refusal('The decision could not be recorded in time.')), timeoutMs);
      const settle = (error: AppError | null): void => {
        clearTimeout(timer);
        waitingBytes -= bytes;
        if (error) reject(error);
        else resolve();
      };
      waiting.push({ ...body, settle });
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
    // Records made in the same turn share the first commit.
    await null;
    while (isDue()) {
      const batch = takeBatch();
      const late = outcomesDue ? outcomes : [];
      if (outcomesDue) outcomes = [];
      outcomesDue = false;
      try {
        await write(batch, late);
        for (const item of batch) item.settle(null);
      } catch (error) {
        await salvage(batch, error);
        await salvageOutcomes(late);
      }
    }
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

  async function write(batch: readonly Item[], late: readonly Stored<OutcomeRow>[]): Promise<void> {
    const decisions = batch.flatMap((item) => (item.kind === 'decision' ? [item.stored] : []));
    const shown = batch.flatMap((item) => (item.kind === 'shown' ? [item.stored] : []));
    if (shown.length === 0 && late.length === 0 && fitsOneStatement(decisions)) {
      return storeOf(database.knex).insertDecisions(decisions);
    }
    await database.knex.transaction(async (trx) => {
      const store = storeOf(trx);
      await store.insertDecisions(decisions);
      await store.insertShown(shown);
      await store.insertOutcomes(late);
    });
  }

  /** After a failure that may have come from one row, or from a connection that was lost while the commit went through. */
  async function salvage(batch: readonly Item[], cause: unknown): Promise<void> {
    let outage: unknown = null;
    for (const item of batch) {
      if (outage === null) {
        try {
          const error = (await holds(item)) ? null : await writeAlone(item);
          item.settle(error);
          continue;
        } catch (error) {
          outage = error;
        }
      }
      item.settle(refusal('The decision could not be recorded.', outage ?? cause));
    }
  }

  const holds = (item: Item): Promise<boolean> => {
    const store = storeOf(database.knex);
    return item.kind === 'decision' ? store.holdsDecision(item.stored.row) : store.holdsShown(item.stored.row);
  };

  /** Rejects if it cannot even be told whether the row is there. */
  async function writeAlone(item: Item): Promise<AppError | null> {
    try {
      await database.knex.transaction(async (trx) => {
        if (item.kind === 'decision') await storeOf(trx).insertDecisions([item.stored]);
        else await storeOf(trx).insertShown([item.stored]);
      });
      return null;
    } catch (error) {
      return (await holds(item)) ? null : refusal('The decision could not be recorded.', error);
    }
  }

  async function salvageOutcomes(late: readonly Stored<OutcomeRow>[]): Promise<void> {
    let lost = 0;
    let failures = 0;
    for (const row of late) {
      if (failures < MAX_OUTCOME_FAILURES) {
        try {
          await storeOf(database.knex).insertOutcomes([row]);
          failures = 0;
          continue;
        } catch {
          failures++;
        }
      }
      lost++;
    }
    if (lost > 0) log.warn({ lost }, 'outcomes of recorded decisions were lost');
  }

  async function flush(): Promise<void> {
    while (running !== null || waiting.length > 0 || outcomes.length > 0) {
      outcomesDue = true;
      wake();
      await running;
    }
  }

  return {
    decision: (record) => enqueue({ kind: 'decision', stored: storedDecision(record) }),
    shown: (record) => enqueue({ kind: 'shown', stored: storedShown(record) }),
    outcome(record) {
      if (closed || outcomes.length >= MAX_OUTCOMES) {
        log.warn({ lost: 1 }, 'outcomes of recorded decisions were lost');
        return;
      }
      outcomes.push(storedOutcome(record, now()));
      outcomeTimer ??= setTimeout(() => {
        outcomeTimer = undefined;
        outcomesDue = true;
        wake();
      }, OUTCOME_DELAY_MS).unref();
    },
    flush,
    async close() {
      closed = true;
      clearTimeout(outcomeTimer);
      await flush();
    },
  };
}
