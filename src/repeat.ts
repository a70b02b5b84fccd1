/** Work in the background that comes again and again. */

export interface Repeated {
  /** Starts no further run, and resolves when the one under way has ended. */
  stop(): Promise<void>;
}

/** Runs `work` every `everyMs`, for the first time after `firstMs`; never two runs at once. `failed` gets what a run rejects with. */
export function repeat(
  work: () => Promise<unknown>,
  { everyMs, firstMs = everyMs }: { readonly everyMs: number; readonly firstMs?: number },
  failed: (err: unknown) => void,
): Repeated {
  let running: Promise<unknown> = Promise.resolve();
  let timer = setTimeout(run, firstMs).unref();
  function run(): void {
    timer = setTimeout(run, everyMs).unref();
    running = running.then(work).catch(failed);
  }
  return {
    async stop() {
      clearTimeout(timer);
      await running;
    },
  };
}
