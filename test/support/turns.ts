/** Counts the turns of the event loop. Returns a function that ends it and returns their number. */
export function countTurns(): () => number {
  let turns = 0;
  let timer: NodeJS.Immediate;
  const next = (): void => {
    turns++;
    timer = setImmediate(next);
  };
  timer = setImmediate(next);
  return () => {
    clearImmediate(timer);
    return turns;
  };
}
