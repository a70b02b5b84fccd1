/** The thread time that callers use. It decides who has the next turn, and which callers have long jobs. */

/** Jobs that take at most this time are short. */
const SHORT_MS = 250;
/** How long the longest job of a caller counts. */
const COUNTED_MS = 60_000;

export function createUse(now: () => number = () => performance.now()) {
  /** In milliseconds, since there was last nothing to do. */
  const used = new Map<string, number>();
  const longest = new Map<string, { readonly ms: number; readonly until: number }>();
  /** What the caller of the last job that began had used. */
  let reached = 0;

  const usedBy = (by: string): number => used.get(by) ?? 0;
  const longestOf = (by: string): number => {
    const { ms, until } = longest.get(by) ?? { ms: 0, until: 0 };
    return now() < until ? ms : 0;
  };

  return {
    /** Call this when a caller brings a job and has no other: the time without jobs must not count in favour of the caller. */
    arrive(by: string): void {
      used.set(by, Math.max(usedBy(by), reached));
    },
    /** Returns the callers, with the one that has used least first. */
    sorted: (callers: Iterable<string>): string[] => [...callers].sort((a, b) => usedBy(a) - usedBy(b)),
    /** Whether both callers have long jobs. A job that takes at most half as long as those of the other caller is not long. */
    areLong(by: string, other: string): boolean {
      const [shorter, longer] = [longestOf(by), longestOf(other)].sort((a, b) => a - b) as [number, number];
      return shorter > Math.max(SHORT_MS, longer / 2);
    },
    /** Call this when a job begins. Returns the function to call when it has ended. */
    begin(by: string): () => void {
      reached = usedBy(by);
      const began = now();
      return () => {
        const ms = now() - began;
        used.set(by, usedBy(by) + ms);
        if (ms >= longestOf(by)) longest.set(by, { ms, until: now() + COUNTED_MS });
      };
    },
    /** Call this when there is nothing to do. */
    rest(): void {
      used.clear();
      reached = 0;
      for (const [by, { until }] of longest) if (until <= now()) longest.delete(by);
    },
  };
}
