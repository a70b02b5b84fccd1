/**
 * Deletes rows that are no longer needed: ended tokens and old changes. It runs hourly and in batches, so that requests come
 * first.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { tokenStore } from './auth/token-store.ts';
import type { Log } from './base/log.ts';
import { repeat } from './base/repeat.ts';
import { removeChanges } from './db/changes.ts';
import type { Database } from './db/database.ts';

export interface UpkeepParts {
  readonly database: Database;
  /** How many days changes are kept, except those of policies. 0: for ever. */
  readonly changesDays: number;
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

export function createUpkeep({ database, changesDays, log, now }: UpkeepParts) {
  const { knex } = database;
  let stopped = false;

  /** Deletes all rows that may be deleted now. */
  async function run(): Promise<void> {
    const ended = now() - ENDED_TOKENS_KEPT_DAYS * DAY_MS;
    for (let after: string | null = ''; after !== null && !stopped; await sleep(PAUSE_MS)) {
      after = await tokenStore(knex).deleteEnded(ended, after, BATCH);
    }
    if (changesDays === 0) return;
    let removed = 0;
    for (let some = 1; some > 0 && !stopped; await sleep(PAUSE_MS)) {
      some = await removeChanges(knex, now() - changesDays * DAY_MS, BATCH);
      removed += some;
    }
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
