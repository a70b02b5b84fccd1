/**
 * Begins work in turns: callers take turns, and only a few pieces of work begin in one turn of the event loop. Otherwise a hundred
 * requests that arrive together would all begin before the next step of any other request.
 */

/** The most that begins in one turn of the event loop. */
const MOST = 8;
/** After a turn that took longer, less begins in the next one. In milliseconds. */
const LONG_MS = 2;

export interface StartsClock {
  readonly now: () => number;
  /** Runs the function after the event loop has served what is ready. */
  readonly later: (then: () => void) => void;
}

const CLOCK: StartsClock = { now: () => performance.now(), later: (then) => void setImmediate(then) };

interface Waiting {
  readonly work: (end: () => void) => void;
  readonly most: number;
}

export type Starts = ReturnType<typeof createStarts>;

export function createStarts({ now, later }: StartsClock = CLOCK) {
  /** The waiting work by caller; the first entry has the next turn. */
  const waiting = new Map<string, Waiting[]>();
  /** How much limited work of each caller has begun and not ended. */
  const running = new Map<string, number>();
  let quota = MOST;
  let left = MOST;
  let isArmed = false;
  let beganAt = 0;

  function arm(): void {
    if (isArmed) return;
    isArmed = true;
    beganAt = now();
    later(turn);
  }

  function begin(key: string, { work, most }: Waiting): void {
    left--;
    // Work without a limit is not counted, and need not tell when it is over.
    if (most === Number.POSITIVE_INFINITY) {
      work(() => undefined);
      return;
    }
    running.set(key, (running.get(key) ?? 0) + 1);
    let hasEnded = false;
    work(() => {
      if (hasEnded) return;
      hasEnded = true;
      const others = (running.get(key) ?? 1) - 1;
      if (others > 0) running.set(key, others);
      else running.delete(key);
      if (waiting.has(key)) arm();
    });
  }

  function turn(): void {
    isArmed = false;
    quota = now() - beganAt > LONG_MS ? Math.ceil(quota / 2) : Math.min(MOST, quota + 1);
    left = quota;
    for (const [key, line] of waiting) {
      if (left === 0) break;
      const [next] = line;
      if (next === undefined || (running.get(key) ?? 0) >= next.most) continue;
      line.shift();
      waiting.delete(key);
      if (line.length > 0) waiting.set(key, line);
      begin(key, next);
    }
    // Otherwise all that waits has reached its limit, and the next end goes on.
    if (left === 0 && waiting.size > 0) arm();
  }

  return {
    /** How many callers are remembered. */
    get size(): number {
      return new Set([...waiting.keys(), ...running.keys()]).size;
    },
    /**
     * Begins the work: at once, or when it is the turn of the caller (`key`), and less than `most` work of the same caller is
     * under way. The work must not throw. If there is a limit, it calls `end` when it is over.
     */
    run(key: string, work: (end: () => void) => void, most = Number.POSITIVE_INFINITY): void {
      if (left > 0 && !waiting.has(key) && (running.get(key) ?? 0) < most) {
        arm();
        begin(key, { work, most });
        return;
      }
      const line = waiting.get(key);
      if (line === undefined) waiting.set(key, [{ work, most }]);
      else line.push({ work, most });
      if ((running.get(key) ?? 0) < most) arm();
    },
  };
}

/** The turns of this thread. */
export const starts = createStarts();

/** Does the work when it is the turn of the caller, and less than `most` work of the caller is under way. */
export function inTurnOf<T>(key: string, most: number, work: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    starts.run(
      key,
      (end) => {
        work().finally(end).then(resolve, reject);
      },
      most,
    );
  });
}
