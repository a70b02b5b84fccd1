/** Limits how many requests of one sender are handled at once. */

import type { Request, Response } from 'express';
import { starts } from '../../base/turns/caller-turns.ts';

/** The requests of one sender that are handled at once. */
const AT_ONCE = 4;
/** A client that reads its answer slowly keeps its other requests waiting no longer than this. */
const COUNTED_MS = 1_000;

/**
 * Goes on with the request when fewer than four others of the same sender are handled, and not at all if its client has left by then. A
 * client that leaves later still counts for its whole second, because the work for it goes on.
 */
export function takeTurn(sender: string, req: Request, res: Response, next: () => void): void {
  const work = (end: () => void): void => {
    // No further event comes.
    if (res.closed || !req.socket.writable) {
      end();
      return;
    }
    const counted = setTimeout(end, COUNTED_MS).unref();
    res.once('finish', () => {
      clearTimeout(counted);
      end();
    });
    next();
  };
  starts.run(sender, work, { most: AT_ONCE, partOf: null });
}
