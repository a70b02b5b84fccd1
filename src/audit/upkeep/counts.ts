/**
 * Counts decisions in the background, so that a call does not pay for it. Each chain has one writer, which numbers its records in the order
 * of its commits. So the number of the last counted decision is a complete watermark: no decision below it can become visible later.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Log } from '../../base/log.ts';
import { repeat } from '../../base/repeat.ts';
import type { Database } from '../../db/database.ts';
import { transact } from '../../db/transact.ts';
import { countStore, type Part, type Uncounted } from '../search/count-store.ts';

export interface CountsParts {
  readonly database: Database;
  readonly log: Pick<Log, 'warn'>;
}

const EVERY_MS = 2_000;
/** The number is small because calls may wait for the read. */
const BATCH = 500;
const PAUSE_MS = 10;

export function createCounts({ database, log }: CountsParts) {
  let stopped = false;

  const add = (chain: Uncounted, part: Part): Promise<boolean> => transact(database, (trx) => countStore(trx).add(chain, part));

  async function count(chain: Uncounted): Promise<void> {
    for (let at = chain; !stopped; await sleep(PAUSE_MS)) {
      const part = await countStore(database.knex).part(at, BATCH);
      // If another replica was faster, it also counts the rest.
      if (part.size === 0 || !(await add(at, part)) || part.size < BATCH) return;
      at = { ...at, counted: part.upTo };
    }
  }

  /** Counts what is not counted yet. */
  async function run(): Promise<void> {
    for (const chain of await countStore(database.knex).uncounted()) await count(chain);
  }

  const often = repeat(run, { everyMs: EVERY_MS }, (err) =>
    log.warn({ err }, 'counting decisions failed, retrying in two seconds'),
  );
  return {
    run,
    stop(): Promise<void> {
      stopped = true;
      return often.stop();
    },
  };
}
