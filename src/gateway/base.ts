/** What every part of the gateway is built with. */

import type { KeyRing } from '../auth/keys.ts';
import type { Vault } from '../auth/vault.ts';
import type { Log } from '../base/log.ts';
import type { Now } from '../base/promises.ts';
import type { Config } from '../config/config.ts';
import type { Changes } from '../db/changes.ts';
import type { Database } from '../db/database.ts';
import type { Metrics } from '../rest/metrics.ts';
import type { Timings } from '../rest/timings.ts';

/** Returns the result of the work and records how long it takes, even if its promise is rejected. */
export function timed<T>(timings: Timings, work: () => Now<T>): Now<T> {
  const began = performance.now();
  const over = (): void => timings.observe(performance.now() - began);
  const result = work();
  if (result instanceof Promise) result.then(over, over);
  else over();
  return result;
}

export interface Base {
  readonly config: Config;
  readonly log: Log;
  readonly vault: Vault;
  readonly database: Database;
  readonly changes: Changes;
  readonly keys: KeyRing;
  readonly metrics: Metrics;
  readonly now: () => number;
  readonly newId: () => string;
}
