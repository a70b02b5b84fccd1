/**
 * Begins work in turns: in one turn of the event loop, only a few pieces of work of each caller begin. Otherwise a hundred requests
 * of one caller that arrive together would all begin before the next step of any other request. While only one caller brings work,
 * far more may begin at once, because larger batches cost less: fewer commits, and fewer processes to wake.
 */

/** `most`: how many pieces of work of one caller begin in one turn of the event loop. `longMs`: after a longer turn, fewer begin. */
const BESIDE_OTHERS = { most: 8, longMs: 2 };
const ALONE = { most: 64, longMs: 20 };
/** A caller is alone if no other has brought work for this time. */
const ALONE_AFTER_MS = 1_000;

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

export function createStarts({ now, later }: StartsClock = CLOCK) {
  /** The waiting work by caller; the first entry has the next turn. */
  const waiting = new Map<string, Waiting[]>();
  /** How much limited work of each caller has begun and not ended. */
  const running = new Map<string, number>();
  /** How much work of each caller has begun in this turn. */
  const begun = new Map<string, number>();
  /** How many pieces of work may begin for each caller in one turn. */
  let quota = BESIDE_OTHERS.most;
  let isArmed = false;
  let beganAt = 0;
  let lastCaller = '';
  /** When the last work came from a different caller than the work before. */
  let changedAt = Number.NEGATIVE_INFINITY;

  function arm(): void {
    if (isArmed) return;
    isArmed = true;
    beganAt = now();
    later(turn);
  }

  function begin(key: string, { work, most }: Waiting): void {
    begun.set(key, (begun.get(key) ?? 0) + 1);
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

  const mayBegin = (key: string, { most }: Pick<Waiting, 'most'>): boolean =>
    (begun.get(key) ?? 0) < quota && (running.get(key) ?? 0) < most;

  function turn(): void {
    isArmed = false;
    const at = now();
    const { most, longMs } = at - changedAt > ALONE_AFTER_MS ? ALONE : BESIDE_OTHERS;
    quota = Math.min(most, at - beganAt > longMs ? Math.ceil(quota / 2) : quota + 1);
    begun.clear();
    for (const [key, line] of waiting) {
      const [next] = line;
      if (next === undefined || !mayBegin(key, next)) continue;
      line.shift();
      waiting.delete(key);
      if (line.length > 0) waiting.set(key, line);
      begin(key, next);
    }
    // All other waiting work has reached its limit. It begins when earlier work of its caller ends.
    if ([...begun.keys()].some((key) => waiting.has(key))) arm();
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
      arm();
      // Work with a limit is a part of work without one, under a different key.
      if (key !== lastCaller && most === Number.POSITIVE_INFINITY) {
        lastCaller = key;
        changedAt = beganAt;
      }
      if (!waiting.has(key) && mayBegin(key, { most })) {
        begin(key, { work, most });
        return;
      }
      const line = waiting.get(key);
      if (line === undefined) waiting.set(key, [{ work, most }]);
      else line.push({ work, most });
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
