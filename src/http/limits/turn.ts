/** Limits how many requests of one sender are handled at once, and how much of the thread those of all senders take. */

import type { Request, Response } from 'express';
import { starts } from '../../base/turns/caller-turns.ts';
import { createSpareTurns } from '../../base/turns/spare-turns.ts';

/** The requests of one sender that are handled at once. */
const OF_SENDER = { most: 4, partOf: null };
/** A client that reads its answer slowly keeps its other requests waiting no longer than this. */
const COUNTED_MS = 1_000;
/**
 * For the requests of all senders. A person can have many accounts, a request can take milliseconds of the thread in several turns of the event
 * loop, and a hundred of them would make each turn long for everybody's calls.
 */
export const OF_ALL = { mostUnderWay: 8, longestRestMs: 5, mostWaiting: Number.POSITIVE_INFINITY, mostAtOnce: 1 };

/** Calls `then` when the head of the answer is sent. What follows is written as the client reads it. */
function whenAnswering(res: Response, then: () => void): void {
  const writeHead = res.writeHead.bind(res) as (...given: unknown[]) => Response;
  res.writeHead = ((...given: unknown[]) => {
    then();
    return writeHead(...given);
  }) as Response['writeHead'];
}

/** Calls `end` when the answer is complete, or after this time. */
function endSoon(res: Response, end: () => void, ms: number): void {
  const counted = setTimeout(end, ms).unref();
  res.once('finish', () => {
    clearTimeout(counted);
    end();
  });
}

/** A user can have many tokens and browser sessions. Each is a sender, but the users take turns. */
interface Sender {
  readonly sender: string;
  readonly user: string;
}

/**
 * Goes on with the request when fewer than four others of the same sender are handled and the thread has time to spare for it, and not at all if
 * its client has left by then. A client that leaves later still counts for its whole time, because the work for it goes on.
 */
export type TakeTurn = (sender: Sender, req: Request, res: Response, next: () => void) => void;

export function createTakeTurn(ofAll = createSpareTurns(OF_ALL)): TakeTurn {
  return ({ sender, user }, req, res, next) => {
    // No further event comes.
    const isGone = (): boolean => res.closed || !req.socket.writable;
    async function work(end: () => void): Promise<void> {
      const endOfAll = isGone() ? null : await ofAll.come(user, isGone);
      if (endOfAll === null || isGone()) {
        endOfAll?.();
        end();
        return;
      }
      endSoon(res, end, COUNTED_MS);
      whenAnswering(res, endOfAll);
      next();
    }
    starts.run(sender, (end) => void work(end), OF_SENDER);
  };
}

export const takeTurn = createTakeTurn();
