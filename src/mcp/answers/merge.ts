/** Merges several sources of items into one stream, at the pace of its reader. */

export function createMerge<T>() {
  const waiting: { readonly item: T; readonly kind?: string; readonly taken: () => void }[] = [];
  let wake: () => void = () => undefined;
  let ended = false;
  let left = false;

  const offer = (item: T): Promise<void> =>
    new Promise((taken) => {
      if (ended) return taken();
      waiting.push({ item, taken });
      wake();
    });

  async function* items(): AsyncGenerator<T> {
    try {
      for (;;) {
        const next = waiting.shift();
        if (next !== undefined) {
          try {
            yield next.item;
          } finally {
            next.taken();
          }
        } else if (ended) return;
        else {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      }
    } finally {
      ended = true;
      left = true;
      for (const { taken } of waiting.splice(0)) taken();
    }
  }

  return {
    /** Adds a source, whose items keep their order. Resolves when the source has ended, also by a failure. */
    async add(source: AsyncIterable<T>): Promise<void> {
      try {
        for await (const item of source) {
          if (left || ended) return;
          await offer(item);
        }
      } catch {
        // The source reports its own failures.
      }
    },
    /** Adds an item without waiting for the reader. Ignored while an item of the same kind still waits. */
    push(item: T, kind: string): void {
      if (ended || waiting.some((one) => one.kind === kind)) return;
      waiting.push({ item, kind, taken: () => undefined });
      wake();
    },
    /** Takes no more items; those that wait are still read. */
    end(): void {
      ended = true;
      wake();
    },
    items: items(),
  };
}
