/** Lines on standard output, written without waiting for its reader. */
import { write, writeFileSync } from 'node:fs';

/** What waits while it cannot be written, in characters. Further lines are lost. */
const MOST_WAITING = 1024 * 1024;
const TRY_AGAIN_MS = 100;

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
  let isBusy = false;

  function next(): void {
    if (isBusy) return;
    if (begun === null && waiting !== '') {
      begun = Buffer.from(waiting);
      waiting = '';
    }
    if (begun === null) return;
    isBusy = true;
    parts.write(begun, (error, written) => {
      if (error !== null) {
        parts.later(TRY_AGAIN_MS, () => {
          isBusy = false;
          next();
        });
        return;
      }
      isBusy = false;
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
    /** Returns what waits. */
    rest: (): string => waiting,
  };
}

const STANDARD_OUTPUT = 1;
const PARTS: OutputParts = {
  write: (bytes, then) => write(STANDARD_OUTPUT, bytes, then),
  later: (ms, then) => void setTimeout(then, ms).unref(),
};

/** Call it once. What waits when the process ends is tried once more. */
export function openStandardOutput(lost: (lines: number) => string): ReturnType<typeof createOutput> {
  const output = createOutput(PARTS, lost);
  process.once('exit', () => {
    try {
      writeFileSync(STANDARD_OUTPUT, output.rest());
    } catch {
      // There is nobody to tell.
    }
  });
  return output;
}
