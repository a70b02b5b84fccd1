/** The thread time that callers use. It decides who has the next turn. */
export function createUse(now: () => number = () => performance.now()) {
  /** In milliseconds, since there was last nothing to do. */
  const used = new Map<string, number>();
  /** What the caller of the last job that began had used. */
  let reached = 0;

  const usedBy = (by: string): number => used.get(by) ?? 0;

  return {
    /** Call this when a caller brings a job and has no other: the time without jobs must not count in favour of the caller. */
    arrive(by: string): void {
      used.set(by, Math.max(usedBy(by), reached));
    },
    /** Returns the callers, with the one that has used least first. */
    sorted: (callers: Iterable<string>): string[] => [...callers].sort((a, b) => usedBy(a) - usedBy(b)),
    /** Call this when a job begins. Returns the function to call when it has ended. */
    begin(by: string): () => void {
      reached = usedBy(by);
      const began = now();
      return () => void used.set(by, usedBy(by) + now() - began);
    },
    /** Call this when there is nothing to do. */
    rest(): void {
      used.clear();
      reached = 0;
    },
  };
}
