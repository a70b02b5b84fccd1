/**
 * Begins work when the thread and the database have time to spare. A rate for each sender is not enough: one person can have thousands of
 * addresses or accounts, and a step of a sign-in takes as much of the thread as several calls.
 */

/** The next piece begins if the thread was busy for less than this share of the time since the last one began. */
const BUSY_SHARE = 0.5;
/** Work that takes longer waits for something, such as a slow body, and no longer counts as under way. */
const COUNTED_MS = 50;
const LOOK_EVERY_MS = 1;

export interface SpareLimits {
  /** The next piece begins if fewer are under way. */
  readonly mostUnderWay: number;
  /**
   * Pieces that wait for something else must not keep others from beginning, so the next one begins so long after the last one in any case.
   * Milliseconds.
   */
  readonly longestRestMs: number;
  /** How many pieces of work of one caller may wait. */
  readonly mostWaiting: number;
  /** How many pieces may begin together, for work of which many pieces take less than `LOOK_EVERY_MS`. */
  readonly mostAtOnce: number;
}

export interface SpareClock {
  readonly now: () => number;
  /** For how many milliseconds the thread has been busy so far. */
  readonly busy: () => number;
  readonly later: (ms: number, then: () => void) => void;
}

const CLOCK: SpareClock = {
  now: () => performance.now(),
  busy: () => performance.eventLoopUtilization().active,
  later: (ms, then) => void setTimeout(then, ms),
};

interface Work {
  /** At least 0. Every other turn is that of the lowest rank. */
  readonly rank: number;
  /** Gets the function to call when the work is over; null: it does not begin. */
  readonly begin: (end: (() => void) | null) => void;
  readonly isGivenUp: () => boolean;
}

export type SpareTurns = ReturnType<typeof createSpareTurns>;

export function createSpareTurns(
  { mostUnderWay, longestRestMs, mostWaiting, mostAtOnce }: SpareLimits,
  { now, busy, later }: SpareClock = CLOCK,
) {
  /** The waiting work by caller; the first entry has the next turn. */
  const waiting = new Map<string, Work[]>();
  let last = { at: Number.NEGATIVE_INFINITY, busy: 0 };
  let underWay = 0;
  let isArmed = false;
  /** How many pieces begin together: more and more while the thread has time to spare. */
  let quota = 1;
  /** Whether the turn goes to the caller who has waited longest. If each went to the lowest rank, others could wait for ever. */
  let isInOrder = true;

  function begin(work: Work): void {
    underWay++;
    let hasEnded = false;
    const end = (): void => {
      if (!hasEnded) underWay--;
      hasEnded = true;
    };
    later(COUNTED_MS, end);
    work.begin(end);
  }

  /** Takes the work that has the next turn. Work that was given up needs none. */
  function take(): Work | undefined {
    isInOrder = !isInOrder;
    let chosen: { readonly key: string; readonly line: Work[]; readonly rank: number } | undefined;
    for (const [key, line] of waiting) {
      while (line[0]?.isGivenUp()) line.shift()?.begin(null);
      const [work] = line;
      if (work === undefined) waiting.delete(key);
      else if (chosen === undefined || work.rank < chosen.rank) chosen = { key, line, rank: work.rank };
      // There can be thousands of callers.
      if (chosen !== undefined && (isInOrder || chosen.rank === 0)) break;
    }
    if (chosen === undefined) return undefined;
    const { key, line } = chosen;
    const work = line.shift();
    waiting.delete(key);
    if (line.length > 0) waiting.set(key, line);
    return work;
  }

  /** How many pieces may begin now. */
  function room(): number {
    const elapsed = now() - last.at;
    const isSpare = underWay < mostUnderWay && busy() - last.busy < elapsed * BUSY_SHARE;
    if (!isSpare && elapsed < longestRestMs) return 0;
    quota = isSpare ? Math.min(mostAtOnce, quota + 1) : Math.ceil(quota / 2);
    last = { at: now(), busy: busy() };
    return quota;
  }

  function arm(): void {
    if (isArmed || waiting.size === 0) return;
    isArmed = true;
    later(LOOK_EVERY_MS, turn);
  }

  function turn(): void {
    isArmed = false;
    for (let left = room(); left > 0; left--) {
      const work = take();
      if (work === undefined) break;
      begin(work);
    }
    arm();
  }

  return {
    /** How many pieces of work of the caller wait. */
    waitingOf: (key: string): number => waiting.get(key)?.length ?? 0,

    /**
     * Resolves when it is the turn of the caller (`key`), with the function to call when the work is over. null: too much work of the caller
     * waits already, or the caller has given up. Callers take turns, but every other turn is that of the lowest `rank`.
     */
    come(key: string, isGivenUp: () => boolean, rank = 0): Promise<(() => void) | null> {
      return new Promise((resolve) => {
        const work: Work = { rank, begin: resolve, isGivenUp };
        const line = waiting.get(key);
        if (waiting.size === 0 && room() > 0) begin(work);
        else if (line === undefined) waiting.set(key, [work]);
        else if (line.length < mostWaiting) line.push(work);
        else resolve(null);
        arm();
      });
    },
  };
}
