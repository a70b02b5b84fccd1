/** Lets a few pieces of work be under way at once. Callers take turns, so that much waiting work of one caller does not keep another waiting. */

type Work = (end: () => void) => void;

export function createPlaces(most: number, later: (then: () => void) => void = (then) => void setImmediate(then)) {
  /** The waiting work by caller; the first entry has the next turn. */
  const waiting = new Map<string, Work[]>();
  let underWay = 0;
  let isArmed = false;

  function begin(work: Work): void {
    underWay++;
    let hasEnded = false;
    work(() => {
      if (hasEnded) return;
      hasEnded = true;
      underWay--;
      arm();
    });
  }

  function arm(): void {
    if (isArmed || waiting.size === 0) return;
    isArmed = true;
    later(fill);
  }

  /** Work can end at once, so no more begins in one turn of the event loop than there are places. */
  function fill(): void {
    isArmed = false;
    for (const [key, line] of [...waiting].slice(0, most - underWay)) {
      const work = line.shift();
      waiting.delete(key);
      if (line.length > 0) waiting.set(key, line);
      if (work !== undefined) begin(work);
    }
    if (underWay < most) arm();
  }

  return {
    /** Begins the work when it is the turn of the caller (`key`) and a place is free. The work must not throw, and calls `end` when it is over. */
    run(key: string, work: Work): void {
      const line = waiting.get(key);
      if (line !== undefined) line.push(work);
      else if (waiting.size === 0 && underWay < most) begin(work);
      else waiting.set(key, [work]);
      if (underWay < most) arm();
    },
  };
}
