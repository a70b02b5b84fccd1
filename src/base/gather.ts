/** Joins calls that come while the same work is under way. */

/** How many calls one run answers. */
const MOST = 100;

interface Waiting<Item, Result> {
  readonly item: Item;
  resolve(result: Result): void;
  reject(error: unknown): void;
}

/**
 * Returns a function that queues an item under a key, and resolves to its result. `run` gets items of one key, and returns their results
 * in the same order. The first item goes at once and alone. Items that come in the meantime go together afterwards: so each run begins
 * after all the calls that it answers. If it rejects, so do they.
 */
export function gather<Item, Result>(run: (key: string, items: readonly Item[]) => Promise<readonly Result[]>) {
  const lines = new Map<string, Waiting<Item, Result>[]>();

  async function serve(key: string, line: Waiting<Item, Result>[]): Promise<void> {
    while (line.length > 0) {
      const some = line.splice(0, MOST);
      const items = some.map(({ item }) => item);
      try {
        const results = await run(key, items);
        for (const [i, { resolve }] of some.entries()) resolve(results[i] as Result);
      } catch (error) {
        for (const { reject } of some) reject(error);
      }
    }
    lines.delete(key);
  }

  return (key: string, item: Item): Promise<Result> =>
    new Promise((resolve, reject) => {
      const line = lines.get(key) ?? [];
      line.push({ item, resolve, reject });
      if (lines.has(key)) return;
      lines.set(key, line);
      void serve(key, line);
    });
}
