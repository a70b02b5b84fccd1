/**
 * Deletes rows that are no longer needed: expired sign-ins, grants and browser sessions, ended tokens, clients that are not used, and old tasks and
 * changes. It runs hourly and in batches, so that requests come first.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { browserSessionLimits, browserStore } from './auth/browser-store.ts';
import { removeExpiredGrants } from './auth/grant-store.ts';
import { tokenStore } from './auth/token-store.ts';
import type { Log } from './base/log.ts';
import { repeat } from './base/repeat.ts';
import { removeChanges } from './db/changes.ts';
import type { Database } from './db/database.ts';
import { removeOldTasks } from './mcp/sessions/task-store.ts';
import { clientStore } from './oauth/client-store.ts';
import { removeExpiredRecords } from './oauth/record-store.ts';

export interface UpkeepParts {
  readonly database: Database;
  /** How many days changes are kept, except those of policies. 0: for ever. */
  readonly changesDays: number;
  /** Throws if the clock should not be trusted now. Then the run deletes nothing. */
  readonly checkClock: () => Promise<void>;
  readonly log: Pick<Log, 'info' | 'warn'>;
  readonly now: () => number;
}

const DAY_MS = 24 * 60 * 60 * 1000;
const EVERY_MS = 60 * 60 * 1000;
const FIRST_MS = 90_000;
const BATCH = 500;
const PAUSE_MS = 20;
/**
 * How long the record of an ended token is kept, so that administrators can see when it ended. The token is refused with or
 * without its record.
 */
const ENDED_TOKENS_KEPT_DAYS = 30;

/** Longer than an access token is valid, so that no token is in force when its grant is deleted. */
const EXPIRED_GRANTS_KEPT_MS = DAY_MS;
/** An OAuth client that registers is approved minutes later, or never. */
const UNUSED_CLIENTS_KEPT_MS = DAY_MS;
/** A client whose last grant has ended is kept this long, because its user may come back. */
const FORMER_CLIENTS_KEPT_MS = 90 * DAY_MS;

export function createUpkeep({ database, changesDays, checkClock, log, now }: UpkeepParts) {
  const { knex } = database;
  let stopped = false;

  /** Deletes in batches, until there is nothing left. Returns how many rows. */
  async function inBatches(remove: (limit: number) => Promise<number>): Promise<number> {
    let removed = 0;
    for (let some = 1; some > 0 && !stopped; await sleep(PAUSE_MS)) {
      some = await remove(BATCH);
      removed += some;
    }
    return removed;
  }

  /** Deletes all rows that may be deleted now. */
  async function run(): Promise<void> {
    await checkClock();
    const time = now();
    await inBatches((limit) => removeExpiredRecords(knex, time, limit));
    await inBatches((limit) => removeExpiredGrants(knex, time - EXPIRED_GRANTS_KEPT_MS, limit));
    // The row of a client with a document comes back when a user approves the client.
    for (const kind of ['registered', 'document'] as const)
      await inBatches((limit) =>
        clientStore(knex).removeUnused(kind, time - UNUSED_CLIENTS_KEPT_MS, time - FORMER_CLIENTS_KEPT_MS, limit),
      );
    const ended = time - ENDED_TOKENS_KEPT_DAYS * DAY_MS;
    await inBatches((limit) => tokenStore(knex).deleteEnded(ended, limit));
    for (let deleted = BATCH; deleted === BATCH && !stopped; await sleep(PAUSE_MS)) {
      deleted = await browserStore(knex).deleteOver(browserSessionLimits(time), BATCH);
    }
    while (!stopped && (await removeOldTasks(knex, time, BATCH))) await sleep(PAUSE_MS);
    if (changesDays === 0) return;
    const removed = await inBatches((limit) => removeChanges(knex, time - changesDays * DAY_MS, limit));
    if (removed > 0) log.info({ removed, days: changesDays }, 'old administrative changes deleted');
  }

  const hourly = repeat(run, { everyMs: EVERY_MS, firstMs: FIRST_MS }, (err) =>
    log.warn({ err }, 'deleting old rows failed, retrying in an hour'),
  );
  return {
    run,
    stop(): Promise<void> {
      stopped = true;
      return hourly.stop();
    },
  };
}
