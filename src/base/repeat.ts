/** Repeats background work at an interval. */

/**
 * Runs `work` every `everyMs` milliseconds, first after `firstMs`, and never two runs at once. `failed` gets the error of a
 * failed run.
 */
export function repeat(
  work: () => Promise<unknown>,
  { everyMs, firstMs = everyMs }: { readonly everyMs: number; readonly firstMs?: number },
  failed: (err: unknown) => void,
) {
  let running: Promise<unknown> = Promise.resolve();
  let timer = setTimeout(run, firstMs).unref();
  function run(): void {
    timer = setTimeout(run, everyMs).unref();
    running = running.then(work).catch(failed);
  }
  return {
    /** Starts no further run. Resolves when the current run has ended. */
    async stop(): Promise<void> {
      clearTimeout(timer);
      await running;
    },
  };
}
