/** Limits how many requests of one sender are handled at once. */

import type { Request, Response } from 'express';
import { starts } from '../../base/turns/caller-turns.ts';
import { createPlaces } from '../../base/turns/places.ts';

/** The requests of one sender that are handled at once. */
const OF_SENDER = { most: 4, partOf: null };
/** A client that reads its answer slowly keeps its other requests waiting no longer than this. */
const COUNTED_MS = 1_000;
/**
 * The requests of all senders that are handled at once. A person can have many accounts. A request takes several turns of the event loop, and a
 * hundred of them would make each turn long for everybody's calls.
 */
const OF_ALL = createPlaces(8);
/** A request that takes longer waits for something, and costs this thread little. */
const COUNTED_OF_ALL_MS = 50;

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
 * Goes on with the request when fewer than four others of the same sender and eight of all are handled, and not at all if its client has left by
 * then. A client that leaves later still counts for its whole time, because the work for it goes on.
 */
export function takeTurn({ sender, user }: Sender, req: Request, res: Response, next: () => void): void {
  // No further event comes.
  const isGone = (): boolean => res.closed || !req.socket.writable;
  const begin = (end: () => void, endOfAll: () => void): void => {
    if (isGone()) {
      end();
      endOfAll();
      return;
    }
    whenAnswering(res, endOfAll);
    endSoon(res, endOfAll, COUNTED_OF_ALL_MS);
    next();
  };
  const work = (end: () => void): void => {
    if (isGone()) {
      end();
      return;
    }
    endSoon(res, end, COUNTED_MS);
    OF_ALL.run(user, (endOfAll) => begin(end, endOfAll));
  };
  starts.run(sender, work, OF_SENDER);
}
