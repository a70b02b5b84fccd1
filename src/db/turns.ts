/** One piece of work at a time. Principals take turns, so that the work of one does not wait behind all the work of another. */
import { AppError } from '../errors.ts';

/** Work of one principal that may wait. */
const MOST_WAITING = 100;

/** Runs `work` when it is the turn of `principal`. Throws AppError `too_many_requests` if too much work of theirs is waiting. */
export type InTurn = <T>(principal: string, work: () => Promise<T>) => Promise<T>;

export function createTurns(): InTurn {
  /** Whose turn comes first is first. */
  const lines = new Map<string, (() => void)[]>();
  let busy = false;

  function next(): void {
    const [first] = lines;
    if (first === undefined) {
      busy = false;
      return;
    }
    const [principal, line] = first;
    lines.delete(principal);
    const begin = line.shift();
    if (line.length > 0) lines.set(principal, line);
    begin?.();
  }

  return async (principal, work) => {
    if (busy) {
      const line = lines.get(principal) ?? [];
      if (line.length >= MOST_WAITING) {
        const detail = `${MOST_WAITING} requests of yours are waiting for their turn already. Send fewer at a time, and try again in 1 s.`;
        throw new AppError('too_many_requests', detail, { retryAfter: 1 });
      }
      lines.set(principal, line);
      await new Promise<void>((resolve) => line.push(resolve));
    }
    busy = true;
    try {
      return await work();
    } finally {
      next();
    }
  };
}

/** Takes each item of `source` in a turn of its own. */
export async function* eachInTurn<T>(inTurn: InTurn, principal: string, source: AsyncGenerator<T>): AsyncGenerator<T> {
  try {
    for (;;) {
      const step = await inTurn(principal, () => source.next());
      if (step.done === true) return;
      yield step.value;
    }
  } finally {
    await source.return(undefined);
  }
}
