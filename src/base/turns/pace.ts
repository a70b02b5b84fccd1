/** Paces long work on this thread that may take longer than a call: evaluations of recorded decisions, and reports about access. */
import { setImmediate } from 'node:timers/promises';
import { starts } from './caller-turns.ts';
import { createSpareTurns } from './spare-turns.ts';

const SLICE_MS = 1;
const turns = createSpareTurns({ mostUnderWay: 1, longestRestMs: 25, mostWaiting: Number.POSITIVE_INFINITY, mostAtOnce: 1 });

/**
 * Call the returned function between short steps of the work. After a slice it waits for spare time: until the thread was busy for less than half
 * of the time since the last slice of any such work began, or 25 ms have passed. Those for whom work is done (`by`) take turns. While no other
 * caller sends requests, it only yields to the event loop.
 */
export function createPace(by: string): () => Promise<void> {
  let until = 0;
  let end: (() => void) | null = null;
  return async () => {
    if (performance.now() < until) return;
    end?.();
    end = null;
    if (starts.isAlone) await setImmediate();
    else end = await turns.come(by, () => false);
    until = performance.now() + SLICE_MS;
  };
}
