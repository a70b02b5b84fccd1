/** Changes that are checked before their transaction, and checked again if what was checked has changed in the meantime. */
import { setTimeout as delay } from 'node:timers/promises';
import { AppError } from '../base/errors.ts';
import { createTurns } from '../db/turns.ts';

/** What was checked outside of the transaction has changed in the meantime. */
export class Moved extends Error {}

const TRIES = 3;
/** How long other changes wait for repeated work. */
const TURN_MS = 10_000;

/**
 * Runs the work, and repeats it while it throws `Moved`. Throws AppError `retry` if it does so too often. Repeated work takes turns by user
 * (`by`), and all other work waits in `calm`, before its transaction, until the turn is over. Otherwise a user who always makes changes
 * that are checked fast could keep all others from making one.
 */
export type Settle = <T>(by: string, work: (calm: () => Promise<void>) => Promise<T>) => Promise<T>;

export function createSettle(turnMs = TURN_MS): Settle {
  const inTurn = createTurns();
  let turn = Promise.resolve();

  async function repeated<T>(work: (calm: () => Promise<void>) => Promise<T>): Promise<T> {
    for (let tried = 2; tried <= TRIES; tried++) {
      try {
        return await work(async () => {});
      } catch (error) {
        if (!(error instanceof Moved)) throw error;
      }
    }
    const detail = `The change was not stored: policies or invariants changed ${TRIES} times while the gateway checked it. Repeat the request.`;
    throw new AppError('retry', detail, { retryAfter: 1 });
  }

  return async (by, work) => {
    try {
      return await work(() => turn);
    } catch (error) {
      if (!(error instanceof Moved)) throw error;
    }
    const { result } = await inTurn(by, async () => {
      const result = repeated(work);
      turn = Promise.race([result.then(ignore, ignore), delay(turnMs, undefined, { ref: false })]);
      await turn;
      return { result };
    });
    return result;
  };
}

const ignore = (): void => {};
