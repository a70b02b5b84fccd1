/** The thread time that callers use. It decides who has the next turn, and which callers have long jobs. */

/** Jobs that take at most this time are short. */
const SHORT_MS = 250;
/** How long the longest job of a caller counts. */
const COUNTED_MS = 60_000;

export function createUse(now: () => number = () => performance.now()) {
  /** In milliseconds, since there was last nothing to do. */
  const used = new Map<string, number>();
  /** The long jobs of each caller that count, without those before a longer one: the first is the longest. */
  const long = new Map<string, readonly { readonly ms: number; readonly until: number }[]>();
  /** What the caller of the last job that began had used. */
  let reached = 0;

  const usedBy = (by: string): number => used.get(by) ?? 0;
  const longOf = (by: string) => (long.get(by) ?? []).filter(({ until }) => now() < until);
  const longestOf = (by: string): number => longOf(by)[0]?.ms ?? 0;
  function count(by: string, ms: number): void {
    if (ms > SHORT_MS) long.set(by, [...longOf(by).filter((other) => other.ms > ms), { ms, until: now() + COUNTED_MS }]);
  }

  return {
    /** Call this when a caller brings a job and has no other: the time without jobs must not count in favour of the caller. */
    arrive(by: string): void {
      used.set(by, Math.max(usedBy(by), reached));
    },
    /** Call this when a caller brings a job that is expected to take this time: its first long job must not surprise the others. */
    expect: count,
    /** Returns the callers, with the one that has used least first. */
    sorted: (callers: Iterable<string>): string[] => [...callers].sort((a, b) => usedBy(a) - usedBy(b)),
    /** Whether both callers have long jobs. A job that takes at most half as long as those of the other caller is not long. */
    areLong(by: string, other: string): boolean {
      const [shorter, longer] = [longestOf(by), longestOf(other)].sort((a, b) => a - b) as [number, number];
      return shorter > Math.max(SHORT_MS, longer / 2);
    },
    /** Call this when a job begins. Returns the function to call when it has ended. `isFirst`: the time contains the start of its thread. */
    begin(by: string, isFirst = false): () => void {
      reached = usedBy(by);
      const began = now();
      return () => {
        const ms = now() - began;
        used.set(by, usedBy(by) + ms);
        if (!isFirst) count(by, ms);
      };
    },
    /** Call this when there is nothing to do. */
    rest(): void {
      used.clear();
      reached = 0;
      for (const by of long.keys()) if (longOf(by).length === 0) long.delete(by);
    },
  };
}
