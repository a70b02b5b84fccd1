/** Lines in which one piece of work runs at a time, for what reads much or takes the database for long. */
import { setTimeout as sleep, setImmediate as turnOver } from 'node:timers/promises';
import { AppError } from '../base/errors.ts';
import { starts } from '../base/turns/caller-turns.ts';
import { createLine, type InTurn } from '../base/turns/line.ts';

/** How many pieces of work of one principal may wait. */
const MOST_WAITING = 100;

const refusal = (): AppError => {
  const detail = `${MOST_WAITING} of your requests are already waiting for their turn. Send fewer at a time, and try again in 1 s.`;
  return new AppError('too_many_requests', detail, { retryAfter: 1 });
};

/** Principals take turns. Rejects with AppError `too_many_requests` if too much work of one is waiting. */
export const createTurns = (): InTurn => createLine({ atOnce: 1, waitingOfCaller: MOST_WAITING, refusal });

/** After a piece of work the next one waits for this many times its duration, and no longer than this. */
const REST = 2;
const LONGEST_REST_MS = 1_000;

/**
 * Call this when work begins. Returns a function that rests `times` as long as the work took until then, and no longer than `longestMs`, unless only
 * one caller sends requests.
 */
export function restAfter(times: number, longestMs: number): () => Promise<void> {
  const began = performance.now();
  const wasAlone = starts.isAlone;
  return async () => {
    const rest = Math.min(longestMs, times * (performance.now() - began));
    // At the end of long work, a single other caller seems to be alone.
    if (!wasAlone || !starts.isAlone) await sleep(rest, undefined, { ref: false });
  };
}

/** Like `createTurns`, with a rest after each piece of work, unless only one caller sends requests. */
export function createRestingTurns(): InTurn {
  const inTurn = createTurns();
  return (principal, work) =>
    new Promise((resolve, reject) => {
      // Browsers send no token, so the turns of requests do not know their users.
      starts.note(principal);
      const withRest = async (): Promise<void> => {
        const rest = restAfter(REST, LONGEST_REST_MS);
        await work().then(resolve, reject);
        await rest();
      };
      inTurn(principal, withRest).catch(reject);
    });
}

/**
 * The turns of single answers that take long to make. One is made at a time, and a rest follows: otherwise calls would wait for the thread and
 * the database. Sending the answer is no part of it, because clients may read slowly.
 */
export const readInTurn = createRestingTurns();

/**
 * Yields the items of `source`. Each item is produced in its own turn, which ends with the turn of the event loop. Otherwise items that are
 * in memory would follow each other, also those of several sources, and all requests would wait meanwhile.
 */
export async function* eachInTurn<T>(inTurn: InTurn, principal: string, source: AsyncGenerator<T>): AsyncGenerator<T> {
  const next = async (): Promise<IteratorResult<T>> => {
    const step = await source.next();
    await turnOver();
    return step;
  };
  try {
    for (;;) {
      const step = await inTurn(principal, next);
      if (step.done === true) return;
      yield step.value;
    }
  } finally {
    await source.return(undefined);
  }
}
