/**
 * Reports when the process has almost no file descriptors left. Without one, node closes new connections and emits no event, so
 * nothing else would show why clients are turned away.
 */
import { closeSync, openSync, readFileSync } from 'node:fs';
import { devNull } from 'node:os';
import type { Log } from '../base/log.ts';

export interface DescriptorsParts {
  readonly log: Pick<Log, 'error'>;
  /** Throws if descriptors are short, like `open`. */
  readonly trySome?: () => void;
  readonly everyMs?: number;
}

const EVERY_MS = 5_000;
const SAY_AGAIN_MS = 60_000;

/** Requests take and release fewer descriptors than this, so one may be free at times although they run short. */
const SPARE = 16;

function openSpare(): void {
  const spare: number[] = [];
  try {
    while (spare.length < SPARE) spare.push(openSync(devNull, 'r'));
  } finally {
    for (const descriptor of spare) closeSync(descriptor);
  }
}

/** Returns how many descriptors the process may have; infinite if the system does not say. */
export function descriptorLimit(): number {
  try {
    return Number(/^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1] ?? Number.POSITIVE_INFINITY);
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}

export function watchDescriptors({ log, trySome = openSpare, everyMs = EVERY_MS }: DescriptorsParts) {
  let saidAt = Number.NEGATIVE_INFINITY;

  /** Checks an error of a listener. False: it is not about descriptors. */
  function saw(error: unknown): boolean {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EMFILE' && code !== 'ENFILE') return false;
    if (performance.now() - saidAt < SAY_AGAIN_MS) return true;
    saidAt = performance.now();
    log.error(
      { code },
      'out of file descriptors, or nearly: new connections are refused. Raise the limit (ulimit -n, LimitNOFILE)',
    );
    return true;
  }

  const timer = setInterval(() => {
    try {
      trySome();
    } catch (error) {
      saw(error);
    }
  }, everyMs).unref();
  return { saw, stop: (): void => clearInterval(timer) };
}
