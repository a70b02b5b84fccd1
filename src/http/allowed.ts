/** Ends long answers when their readers lose the right to them. */
import type { Response } from 'express';
import { AppError } from '../base/errors.ts';
import { authorizeAgain } from './context.ts';

/** How long after a check an answer goes on without another. */
const ALLOWED_MS = 200;
/** An answer goes on for this long while the rights of its reader cannot be read. */
const UNKNOWN_MS = 5_000;

/**
 * Yields the items while the caller may still carry out the operation: a client that reads slowly can make a long answer last for hours. Only for
 * routes behind authorization.
 */
export async function* whileAllowed<T>(res: Response, items: AsyncIterable<T>): AsyncGenerator<T> {
  let [triedAt, allowedAt] = [performance.now(), performance.now()];
  for await (const item of items) {
    if (performance.now() - triedAt >= ALLOWED_MS) {
      try {
        await authorizeAgain(res);
        allowedAt = performance.now();
      } catch (error) {
        // The state cannot be read at the moment, or too many requests wait for it.
        const isForNow = error instanceof AppError && error.retryAfter !== undefined;
        if (!isForNow || performance.now() - allowedAt >= UNKNOWN_MS) throw error;
      }
      triedAt = performance.now();
    }
    yield item;
  }
}
