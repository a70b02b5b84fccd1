/** Limits the questions that read large parts of the audit log. */
import type { Request, Response } from 'express';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { admissionOf } from '../../http/context.ts';
import { beforeRefusal } from '../../http/limits/rate-limit.ts';
import type { ReplayProgress, ReplayRange } from '../../policies/replay/replay.ts';
import { timestamp } from '../../policies/schema.ts';

/** Each uses one core while it runs. */
const AT_ONCE = 2;

/** Runs the work, or rejects with AppError `too_many_requests`, after a moment. */
export type LogReads = <T>(req: Request, res: Response, work: () => Promise<T>) => Promise<T>;

export function createLogReads(): LogReads {
  let running = 0;
  return async (req, res, work) => {
    if (running >= AT_ONCE) {
      await beforeRefusal(req, admissionOf(res).principal.sub);
      throw new AppError(
        'too_many_requests',
        `This replica already runs ${AT_ONCE} replays or suggestions, which is the limit. Try again later.`,
        { retryAfter: 10 },
      );
    }
    running++;
    try {
      return await work();
    } finally {
      running--;
    }
  };
}

/** Throws AppError `invalid_request`. */
export function rangeOf(from: number, to: number | undefined, now: number): ReplayRange {
  const range = { from, to: Math.min(to ?? now, now) };
  if (range.from < range.to) return range;
  throw invalidRequest([{ path: 'from', message: 'must be before `to`, and in the past' }]);
}

const PROGRESS_EVERY_MS = 500;

/** Returns a function that reports how far the log is read, in the form of the API and not too often. */
export function sayingHowFar(onProgress: ((progress: object) => void) | undefined): (progress: ReplayProgress) => void {
  let said = performance.now();
  return ({ done, at }) => {
    if (performance.now() - said < PROGRESS_EVERY_MS) return;
    said = performance.now();
    onProgress?.({ done, at: timestamp(at) });
  };
}
