/** Lines on standard output, written without waiting for its reader. */
import { write, writeSync } from 'node:fs';

/** What waits while it cannot be written, in characters. Further lines are lost. */
const MOST_WAITING = 1024 * 1024;
const TRY_AGAIN_MS = 100;
/** When the process ends: how often, and after which time, what a full pipe does not take is tried again. */
const LAST_TRIES = 100;
const LAST_TRY_MS = 10;

export interface OutputParts {
  readonly write: (bytes: Buffer, then: (error: Error | null, written: number) => void) => void;
  readonly later: (ms: number, then: () => void) => void;
}

/**
 * Never fails: with a full disk, or without a reader, lines wait and are tried again. `lost`: makes the line that says how many were lost.
 */
export function createOutput(parts: OutputParts, lost: (lines: number) => string) {
  let waiting = '';
  let lostLines = 0;
  /** What is being written, or must be written first: the end of a line can be missing. */
  let begun: Buffer | null = null;
  let isWriting = false;
  let isResting = false;

  function next(): void {
    if (isWriting || isResting) return;
    if (begun === null && waiting !== '') {
      begun = Buffer.from(waiting);
      waiting = '';
    }
    if (begun === null) return;
    isWriting = true;
    parts.write(begun, (error, written) => {
      isWriting = false;
      if (error !== null) {
        isResting = true;
        parts.later(TRY_AGAIN_MS, () => {
          isResting = false;
          next();
        });
        return;
      }
      begun = begun === null || written === begun.length ? null : begun.subarray(written);
      if (lostLines > 0 && begun === null) {
        waiting += lost(lostLines);
        lostLines = 0;
      }
      next();
    });
  }

  return {
    write(line: string): void {
      if (waiting.length + line.length > MOST_WAITING) lostLines++;
      else waiting += line;
      next();
    },
    /** Returns what is not being written. */
    rest(): Buffer {
      const end = lostLines > 0 ? lost(lostLines) : '';
      return Buffer.concat([...(begun === null || isWriting ? [] : [begun]), Buffer.from(waiting + end)]);
    },
  };
}

const STANDARD_OUTPUT = 1;
const PARTS: OutputParts = {
  write: (bytes, then) => write(STANDARD_OUTPUT, bytes, then),
  later: (ms, then) => void setTimeout(then, ms).unref(),
};

/** Call it once. What waits when the process ends is written if its reader takes it within a second. */
export function openStandardOutput(lost: (lines: number) => string): ReturnType<typeof createOutput> {
  const output = createOutput(PARTS, lost);
  process.once('exit', () => {
    let left = output.rest();
    for (let tries = 0; left.length > 0 && tries < LAST_TRIES; ) {
      try {
        left = left.subarray(writeSync(STANDARD_OUTPUT, left));
      } catch (error) {
        // A full pipe is tried again, because its reader may make room. After any other error nothing more is written.
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') return;
        tries++;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, LAST_TRY_MS);
      }
    }
  });
  return output;
}
