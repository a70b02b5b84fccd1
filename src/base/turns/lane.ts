/**
 * The lane runs long work on the main thread: one piece at a time, in short slices with rests between them. So ordinary requests
 * keep most of the thread, however many large messages arrive at once. Short work for a user who has used little of the lane is light: it does not
 * wait behind the long work of others.
 */

import { createFlow } from '../budgets.ts';
import type { Now } from '../promises.ts';

const SLICE_MS = 2;
/** After a slice the lane rests for this many times the duration of the slice, so it gets at most a third of the thread. */
const REST = 2;

/**
 * Milliseconds of the lane. `LITTLE`: a user who has used no more has light work; what all use together does not matter. `LIGHT`: what light work
 * may take. With more, calls beside many long lists at `/mcp` become slow (*large lists* in bench/neighbours.ts).
 */
const LITTLE = { perKey: { perSecond: 130, burst: 40 }, all: { perSecond: 1e6, burst: 1e6 } };
const LIGHT = { perKey: LITTLE.perKey, all: { perSecond: 130, burst: 40 } };

/** Does a small part of the work. Returns true when all is done. Each step should take less than a millisecond. */
export type Step = () => boolean;

export interface LaneClock {
  readonly now: () => number;
  readonly later: (ms: number, then: () => void) => void;
  /** Calls `then` when the event loop has served others. */
  readonly soon: (then: () => void) => void;
}

const CLOCK: LaneClock = {
  now: () => performance.now(),
  later: (ms, then) => void setTimeout(then, ms),
  soon: (then) => void setImmediate(then),
};

interface Piece {
  readonly step: Step;
  /** Whether all of the work is in the steps. Otherwise the work begins after the slice, and no other piece may begin with it. */
  readonly isWhole: boolean;
  readonly done: () => void;
  readonly failed: (cause: unknown) => void;
}

/** The waiting work by user, then by owner. The first entry has the next turn. */
type Queues = Map<string, Map<string, Piece[]>>;

/** A user who reads from many targets has many owners. */
export const userOf = (key: string): string => key.split(' at ', 1)[0] ?? key;

function enqueue(queues: Queues, key: string, pieces: readonly Piece[]): void {
  const user = userOf(key);
  const own = queues.get(user) ?? new Map<string, Piece[]>();
  queues.set(user, own);
  const before = own.get(key);
  if (before === undefined) own.set(key, [...pieces]);
  else before.push(...pieces);
}

function nextIn(queues: Queues): { readonly key: string; readonly pieces: Piece[] } | null {
  for (const own of queues.values()) for (const [key, pieces] of own) return { key, pieces };
  return null;
}

/** Takes the work of the owner out. The user gets the next turn after all others. */
function takeOut(queues: Queues, key: string): void {
  const user = userOf(key);
  const own = queues.get(user);
  own?.delete(key);
  queues.delete(user);
  if (own !== undefined && own.size > 0) queues.set(user, own);
}

const isIn = (queues: Queues, key: string): boolean => queues.get(userOf(key))?.has(key) === true;

export function createLane({ now, later, soon }: LaneClock = CLOCK) {
  const queues: Queues = new Map();
  /** Light work. */
  const light: Queues = new Map();
  const taken = createFlow(LITTLE, now);
  const takenLightly = createFlow(LIGHT, now);
  let restsUntil = Number.NEGATIVE_INFINITY;
  let isArmed = false;
  let isLightArmed = false;

  const isLight = (key: string): boolean => taken.wait(userOf(key)) === 0 && takenLightly.wait(userOf(key)) === 0;

  /** Runs one slice of the piece, which began at this time. Returns whether the piece is finished. */
  function slice(key: string, { step, done, failed }: Piece, began: number): boolean {
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
      taken.charge(userOf(key), ended - began);
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
      for (let next = nextIn(queues); next !== null; next = nextIn(queues)) {
        const { key, pieces } = next;
        const [piece] = pieces;
        // The step itself may bring more work of this owner, which joins the queue.
        if (piece === undefined || slice(key, piece, began)) pieces.shift();
        takeOut(queues, key);
        if (pieces.length > 0) enqueue(queues, key, pieces);
        if (piece?.isWhole === false || now() - began >= SLICE_MS) break;
      }
    }
    arm();
  }

  function armLight(): void {
    if (isLightArmed || light.size === 0) return;
    isLightArmed = true;
    soon(turnLight);
  }

  /** Work that does not end in its slice is not light, and waits for its turns. */
  function turnLight(): void {
    isLightArmed = false;
    const until = now() + SLICE_MS;
    for (let next = nextIn(light); next !== null; next = nextIn(light)) {
      const { key, pieces } = next;
      const [piece] = pieces;
      const began = now();
      // Who is not served in this turn is the first in the next.
      if (began >= until || piece === undefined) break;
      takeOut(light, key);
      if (!slice(key, piece, began)) enqueue(queues, key, [piece]);
      takenLightly.charge(userOf(key), now() - began);
      pieces.shift();
      if (pieces.length > 0) enqueue(isLight(key) ? light : queues, key, pieces);
    }
    armLight();
    arm();
  }

  return {
    /**
     * Resolves when the work is done; rejects with the error of a step. Users take turns, slice by slice, and so do the owners of work (`key`) of
     * each user. `mayBegin`:
     * work that fits into one slice runs at once if the lane is free. `mayBeLight`: it need not wait for its turn if its owner has used little.
     */
    run(key: string, step: Step, mayBegin = true, mayBeLight = mayBegin): Promise<void> {
      return new Promise((done, failed) => {
        const piece: Piece = { step, isWhole: mayBegin, done, failed };
        const began = now();
        const isFree = queues.size === 0 && light.size === 0 && began >= restsUntil;
        if (mayBegin && isFree && slice(key, piece, began)) return;
        enqueue(mayBeLight && !isFree && isLight(key) ? light : queues, key, [piece]);
        armLight();
        arm();
      });
    },
    /** Rests for work of this duration that was done outside, after its turn. */
    rest(ms: number): void {
      restsUntil = Math.max(restsUntil, now()) + REST * ms;
    },
    /** Whether work of this owner waits. */
    isWaiting: (key: string): boolean => isIn(queues, key) || isIn(light, key),
    /** The number of owners with waiting work. */
    get waiting(): number {
      return new Set([...queues.values(), ...light.values()].flatMap((own) => [...own.keys()])).size;
    },
  };
}

/** The lane of this thread. */
export const lane = createLane();

/** Runs the work in one turn of the lane and returns its result. `mayBeLight`: as for `run`. */
export async function laneOnce<T>(key: string, work: () => T, mayBeLight = true): Promise<T> {
  const results: T[] = [];
  const once = (): boolean => {
    results.push(work());
    return true;
  };
  await lane.run(key, once, true, mayBeLight);
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
