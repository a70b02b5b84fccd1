/** Ends every process of a benchmark, however the benchmark ends. */
import type { Guardian } from '../test/support/databases/guardian.ts';
import type { StartedDatabases } from '../test/support/databases/start.ts';

/** What `run` has started beside what the guardian knows. */
export interface Databases {
  stop: StartedDatabases['stop'] | null;
}

const SIGNALS = [
  ['SIGINT', 130],
  ['SIGTERM', 143],
  ['SIGHUP', 129],
] as const;

export async function guarded(guardian: Guardian, run: (databases: Databases) => Promise<void>): Promise<void> {
  const databases: Databases = { stop: null };
  for (const [signal, code] of SIGNALS) process.once(signal, () => void guardian.close().then(() => process.exit(code)));
  try {
    await run(databases);
  } finally {
    await databases.stop?.();
    await guardian.close();
  }
}
