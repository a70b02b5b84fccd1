/** Several sources of items as one stream, which takes from each only what its reader takes from it. */

export interface Merge<T> {
  /** Its items come in their order. Resolves when it has ended; its failures are its own business. */
  add(source: AsyncIterable<T>): Promise<void>;
  /** An item that waits for nobody; none where one of its kind is waiting still, which says the same. */
  push(item: T, kind: string): void;
  /** Nothing more comes; what is there is still read. */
  end(): void;
  readonly items: AsyncGenerator<T>;
}

export function createMerge<T>(): Merge<T> {
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
    async add(source) {
      try {
        for await (const item of source) {
          if (left || ended) return;
          await offer(item);
        }
      } catch {
        // The source has told whom it concerns.
      }
    },
    push(item, kind) {
      if (ended || waiting.some((one) => one.kind === kind)) return;
      waiting.push({ item, kind, taken: () => undefined });
      wake();
    },
    end() {
      ended = true;
      wake();
    },
    items: items(),
  };
}
