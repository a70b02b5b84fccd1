/**
 * The lane runs long work on the main thread: one piece at a time, in short slices with rests between them. So ordinary requests
 * keep most of the thread, however many large messages arrive at once.
 */

import type { Now } from '../promises.ts';

const SLICE_MS = 2;
/** After a slice the lane rests for this many times the duration of the slice, so it gets at most a third of the thread. */
const REST = 2;

/** Does a small part of the work. Returns true when all is done. Each step should take less than a millisecond. */
export type Step = () => boolean;

export interface LaneClock {
  readonly now: () => number;
  readonly later: (ms: number, then: () => void) => void;
}

const CLOCK: LaneClock = { now: () => performance.now(), later: (ms, then) => void setTimeout(then, ms) };

interface Piece {
  readonly step: Step;
  /** Whether all of the work is in the steps. Otherwise the work begins after the slice, and no other piece may begin with it. */
  readonly isWhole: boolean;
  readonly done: () => void;
  readonly failed: (cause: unknown) => void;
}

export function createLane({ now, later }: LaneClock = CLOCK) {
  /** The waiting work by owner; the first entry has the next turn. */
  const queues = new Map<string, Piece[]>();
  let restsUntil = Number.NEGATIVE_INFINITY;
  let isArmed = false;

  /** Runs one slice of the piece, which began at this time. Returns whether the piece is finished. */
  function slice({ step, done, failed }: Piece, began: number): boolean {
    try {
      do {
        if (!step()) continue;
        done();
        return true;
      } while (now() - began < SLICE_MS);
      return false;
    } catch (cause) {
      failed(cause);
      return true;
    } finally {
      const ended = now();
      restsUntil = ended + REST * (ended - began);
    }
  }

  function arm(): void {
    if (isArmed || queues.size === 0) return;
    isArmed = true;
    later(Math.max(1, restsUntil - now()), turn);
  }

  /** Short pieces share a slice: otherwise each of them would wait for a turn of the event loop, which may be long. */
  function turn(): void {
    isArmed = false;
    const began = now();
    if (restsUntil - began < 1) {
      for (const [key, pieces] of queues) {
        const [piece] = pieces;
        // The step itself may bring more work of this owner, which joins the queue.
        if (piece === undefined || slice(piece, began)) pieces.shift();
        queues.delete(key);
        if (pieces.length > 0) queues.set(key, pieces);
        if (piece?.isWhole === false || now() - began >= SLICE_MS) break;
      }
    }
    arm();
  }

  return {
    /**
     * Resolves when the work is done; rejects with the error of a step. Owners of work (`key`) take turns, slice by slice. `mayBegin`:
     * work that fits into one slice runs at once if the lane is free.
     */
    run(key: string, step: Step, mayBegin = true): Promise<void> {
      return new Promise((done, failed) => {
        const piece: Piece = { step, isWhole: mayBegin, done, failed };
        const began = now();
        if (mayBegin && queues.size === 0 && began >= restsUntil && slice(piece, began)) return;
        const pieces = queues.get(key);
        if (pieces === undefined) queues.set(key, [piece]);
        else pieces.push(piece);
        arm();
      });
    },
    /** Rests for work of this duration that was done outside, after its turn. */
    rest(ms: number): void {
      restsUntil = Math.max(restsUntil, now()) + REST * ms;
    },
    /** Whether work of this owner waits, which later work of the owner comes after. */
    isWaiting: (key: string): boolean => queues.has(key),
    /** The number of owners with waiting work. */
    get waiting(): number {
      return queues.size;
    },
  };
}

/** The lane of this thread. */
export const lane = createLane();

/** Runs the work in one turn of the lane and returns its result. */
export async function laneOnce<T>(key: string, work: () => T): Promise<T> {
  const results: T[] = [];
  await lane.run(key, () => {
    results.push(work());
    return true;
  });
  return results[0] as T;
}

/** Runs the steps of a generator in the lane and returns its result. */
export async function laneSteps<T>(key: string, steps: Generator<unknown, T>): Promise<T> {
  const results: T[] = [];
  await lane.run(key, () => {
    const { done, value } = steps.next();
    if (done) results.push(value as T);
    return done === true;
  });
  return results[0] as T;
}

/** Runs the work here until its first pause, and the rest in the lane. Most work has no pause. */
export function restInLane<T>(key: string, steps: Generator<unknown, T>): Now<T> {
  const step = steps.next();
  return step.done === true ? step.value : laneSteps(key, steps);
}

/** Like `map`, but with more than `few` items in the lane. */
export async function mapInLane<T, U>(key: string, items: readonly T[], few: number, make: (item: T) => U): Promise<U[]> {
  if (items.length <= few) return items.map(make);
  const made: U[] = [];
  const rest = items.values();
  await lane.run(key, () => {
    const { done, value } = rest.next();
    if (!done) made.push(make(value));
    return done === true;
  });
  return made;
}
