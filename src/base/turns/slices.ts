/** Runs long work in slices, between which other work runs. */
import { setImmediate } from 'node:timers/promises';

/** Yield to the event loop at least this often, in milliseconds. */
const SLICE_MS = 2;
/** When the slice is over. Pieces of work that follow each other share it: a slice for each would keep others waiting for the sum. */
let end = 0;

async function begin(): Promise<void> {
  await setImmediate();
  end = performance.now() + SLICE_MS;
}

/** Yields to the event loop if the slice is over, and otherwise does nothing. */
export async function pause(): Promise<void> {
  if (performance.now() >= end) await begin();
}

const RUN = 128;

/** Returns the items in order. `isBefore`: whether the first item belongs before the second. */
export function* sortedInSteps<T>(items: readonly T[], isBefore: (a: T, b: T) => boolean): Generator<undefined, readonly T[]> {
  let runs: (readonly T[])[] = [];
  for (let at = 0; at < items.length; at += RUN) {
    if (at > 0) yield;
    runs.push(items.slice(at, at + RUN).sort((a, b) => (isBefore(a, b) ? -1 : isBefore(b, a) ? 1 : 0)));
  }
  while (runs.length > 1) {
    const merged: (readonly T[])[] = [];
    for (let at = 0; at < runs.length; at += 2) {
      const [one = [], other = []] = runs.slice(at, at + 2);
      const both: T[] = [];
      let [i, j] = [0, 0];
      while (i < one.length && j < other.length) {
        if (both.length % RUN === 0) yield;
        const [a, b] = [one[i] as T, other[j] as T];
        const isOther = isBefore(b, a);
        both.push(isOther ? b : a);
        if (isOther) j++;
        else i++;
      }
      merged.push(both.concat(one.slice(i), other.slice(j)));
    }
    runs = merged;
  }
  return runs[0] ?? [];
}

/** Splits the texts into parts of at most this length, but never between the two code units of one character. */
export function* partsOf(texts: Iterable<string>, length: number): Generator<string, undefined> {
  for (const text of texts) {
    for (let from = 0; from < text.length; ) {
      let to = Math.min(from + length, text.length);
      if (to < text.length && text.charCodeAt(to - 1) >= 0xd800 && text.charCodeAt(to - 1) <= 0xdbff) to--;
      yield text.slice(from, to);
      from = to;
    }
  }
}

const PIECE_LENGTH = 64 * 1024;

/** Joins the parts as UTF-8, in slices. Producing each part should take less than a millisecond. */
export async function joinInSlices(parts: Iterable<string>): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let piece = '';
  for (const part of parts) {
    piece += part;
    if (piece.length > PIECE_LENGTH) {
      pieces.push(Buffer.from(piece));
      piece = '';
    }
    await pause();
  }
  pieces.push(Buffer.from(piece));
  return Buffer.concat(pieces);
}

/** Yields the same steps and calls `say` with each. */
export function* telling<Step, T>(steps: Generator<Step, T>, say: (step: Step) => void): Generator<Step, T> {
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
    say(step.value);
    yield step.value;
  }
}

/** Runs the generator to its end without yielding to the event loop. */
export function atOnce<T>(steps: Generator<unknown, T>): T {
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** Runs the steps of a generator and returns its result. */
export type RunSteps = <T>(steps: Generator<unknown, T>) => Promise<T>;

/** Runs the generator to its end in slices. Rejects with the reason of `signal` if that aborts. Each step must be short. */
export async function inSlices<T>(steps: Generator<unknown, T>, signal?: AbortSignal): Promise<T> {
  for (;;) {
    signal?.throwIfAborted();
    do {
      const step = steps.next();
      if (step.done === true) return step.value;
    } while (performance.now() < end);
    await begin();
  }
}
