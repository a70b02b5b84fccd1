/** Work that takes long, in slices between which other work runs. */
import { setImmediate } from 'node:timers/promises';

/** Longer than this the event loop is not kept. */
const SLICE_MS = 5;

/** Gives what pauses once the slice is over, and does nothing before. */
export function createPause(): () => Promise<void> {
  let end = performance.now() + SLICE_MS;
  return async () => {
    if (performance.now() < end) return;
    await setImmediate();
    end = performance.now() + SLICE_MS;
  };
}

const PIECE_LENGTH = 64 * 1024;

/** The parts, one after the other, in UTF-8. Making each of them should take less than a millisecond. */
export async function joinInSlices(parts: Iterable<string>): Promise<Buffer> {
  const pause = createPause();
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

/** The same steps, of which `say` is told. */
export function* telling<Step, T>(steps: Generator<Step, T>, say: (step: Step) => void): Generator<Step, T> {
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
    say(step.value);
    yield step.value;
  }
}

/** Runs to the end in one turn. */
export function atOnce<T>(steps: Generator<unknown, T>): T {
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** Runs to the end, unless `signal` ends it: then it rejects with the reason. Each step is to be short. */
export async function inSlices<T>(steps: Generator<unknown, T>, signal?: AbortSignal): Promise<T> {
  for (;;) {
    signal?.throwIfAborted();
    const end = performance.now() + SLICE_MS;
    do {
      const step = steps.next();
      if (step.done === true) return step.value;
    } while (performance.now() < end);
    await setImmediate();
  }
}
