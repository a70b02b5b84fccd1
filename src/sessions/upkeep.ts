/** Maintains the session rows: records when each session was last used, and deletes sessions that can no longer be used. */

import { setTimeout as sleep } from 'node:timers/promises';
import type { Log } from '../base/log.ts';
import { repeat } from '../base/repeat.ts';
import type { Database } from '../db/database.ts';
import { SESSION_LIFETIME_MS } from './rules.ts';
import { sessionStore } from './session-store.ts';

const EVERY_MS = 60_000;
const FORGET_EVERY_MS = 60 * 60 * 1000;
/** How many rows one statement updates or deletes. */
const BATCH = 500;
/** The pause between two batches of a deletion, so that requests come first. */
const PAUSE_MS = 20;

export function createSessionUpkeep({ database, now, log }: { database: Database; now: () => number; log: Log }) {
  const store = sessionStore(database.knex);
  const seen = new Set<string>();
  let forgottenAt = 0;
  let stopped = false;

  async function write(): Promise<void> {
    const ids = [...seen];
    seen.clear();
    for (let at = 0; at < ids.length; at += BATCH) await store.seen(ids.slice(at, at + BATCH), now());
    if (now() - forgottenAt < FORGET_EVERY_MS) return;
    forgottenAt = now();
    // Rows are kept a day longer than sessions can be used, for administrators who look into yesterday's events.
    const before = now() - 2 * SESSION_LIFETIME_MS;
    while (!stopped && (await store.forget(before, BATCH))) await sleep(PAUSE_MS);
  }

  const writing = repeat(write, { everyMs: EVERY_MS }, (err) => log.warn({ err }, 'recording the last use of sessions failed'));

  return {
    saw: (id: string): void => void seen.add(id),
    async stop(): Promise<void> {
      stopped = true;
      await writing.stop();
    },
  };
}
