/** Changes that are checked before their transaction, and checked again if what was checked has changed in the meantime. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Caller } from '../auth/caller.ts';
import { AppError } from '../base/errors.ts';
import { createTurns } from '../db/turns.ts';

/** What was checked outside of the transaction has changed in the meantime. */
export class Moved extends Error {}

const TRIES = 3;
/** How long other changes wait for repeated work. */
const TURN_MS = 10_000;

/**
 * Runs the work, and repeats it while it throws `Moved`. Throws AppError `retry` if it does so too often. Repeated work takes turns by user,
 * and other work waits in `calm`, before its transaction, until the turn is over. Otherwise a user who always makes changes that are checked
 * fast could keep all others from making one. Callers with `managesAll` have turns of their own, and do not wait for the turns of others,
 * whose checks may wait long for a thread.
 */
export type Settle = <T>(
  caller: Pick<Caller, 'principal' | 'managesAll'>,
  work: (calm: () => Promise<void>) => Promise<T>,
) => Promise<T>;

export function createSettle(turnMs = TURN_MS): Settle {
  const newLine = () => ({ inTurn: createTurns(), turn: Promise.resolve() });
  const [all, ofOwners] = [newLine(), newLine()];

  async function repeated<T>(work: () => Promise<T>): Promise<T> {
    for (let tried = 2; tried <= TRIES; tried++) {
      try {
        return await work();
      } catch (error) {
        if (!(error instanceof Moved)) throw error;
      }
    }
    const detail = `The change was not stored: policies or invariants changed ${TRIES} times while the gateway checked it. Repeat the request.`;
    throw new AppError('retry', detail, { retryAfter: 1 });
  }

  return async ({ principal, managesAll }, work) => {
    const line = managesAll === true ? all : ofOwners;
    try {
      return await work(async () => void (await Promise.all([all.turn, line.turn])));
    } catch (error) {
      if (!(error instanceof Moved)) throw error;
    }
    const { result } = await line.inTurn(principal.sub, async () => {
      const result = repeated(() => work(async () => (line === all ? undefined : all.turn)));
      line.turn = Promise.race([result.then(ignore, ignore), delay(turnMs, undefined, { ref: false })]);
      await line.turn;
      return { result };
    });
    return result;
  };
}

const ignore = (): void => {};
