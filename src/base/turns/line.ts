/** A line of work. Those who bring it take turns, so that one does not wait behind all the work of another. */
import type { AppError } from '../errors.ts';

/** Runs `work` when it is the turn of `caller`. Rejects with the refusal of the line if too much work is waiting. */
export type InTurn = <T>(caller: string, work: () => Promise<T>) => Promise<T>;

export interface LineLimits {
  /** How many pieces of work run at a time. */
  readonly atOnce: number;
  /** How many may wait: of one caller, or of all. */
  readonly waitingOfCaller?: number;
  readonly waiting?: number;
  readonly refusal: () => AppError;
}

interface Waiting {
  begin(): void;
  refuse(refusal: AppError): void;
}

export function createLine({
  atOnce,
  waitingOfCaller = Number.POSITIVE_INFINITY,
  waiting = Number.POSITIVE_INFINITY,
  refusal,
}: LineLimits): InTurn {
  let running = 0;
  /** The waiting work by caller. The first caller has the next turn. */
  const queues = new Map<string, Waiting[]>();

  /** Hands the place to the next caller directly, so that no new caller can take it in between. */
  function handOn(): void {
    const [first] = queues;
    if (first === undefined) {
      running--;
      return;
    }
    const [caller, queue] = first;
    queues.delete(caller);
    const next = queue.shift();
    if (queue.length > 0) queues.set(caller, queue);
    next?.begin();
  }

  return async (caller, work) => {
    if (running < atOnce) running++;
    else {
      const queue = queues.get(caller) ?? [];
      if (queue.length >= waitingOfCaller) throw refusal();
      makeRoom(queues, caller, waiting, refusal);
      await new Promise<void>((begin, refuse) => {
        queue.push({ begin, refuse });
        queues.set(caller, queue);
      });
    }
    try {
      return await work();
    } finally {
      handOn();
    }
  };
}

/**
 * Throws the refusal if so much is waiting that this caller must be refused. A few callers must not keep out the others: the last piece of work
 * of the caller with the most is refused instead, if that is not this caller.
 */
export function makeRoom(
  queues: ReadonlyMap<string, Pick<Waiting, 'refuse'>[]>,
  caller: string,
  waiting: number,
  refusal: () => AppError,
): void {
  const all = [...queues.values()];
  if (all.reduce((sum, { length }) => sum + length, 0) < waiting) return;
  const most = all.reduce((longest, queue) => (queue.length > longest.length ? queue : longest));
  if (most.length <= (queues.get(caller)?.length ?? 0) + 1) throw refusal();
  most.pop()?.refuse(refusal());
}
