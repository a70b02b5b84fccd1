/**
 * Says when the process has hardly any file descriptor left. Without one the runtime closes new connections, and no event tells
 * of it: nothing else would show why clients are turned away.
 */
import { closeSync, openSync } from 'node:fs';
import { devNull } from 'node:os';
import type { Log } from '../log.ts';

export interface Descriptors {
  /** Takes an error of a listener; false: it is about something else. */
  saw(error: unknown): boolean;
  stop(): void;
}

export interface DescriptorsParts {
  readonly log: Pick<Log, 'error'>;
  /** Throws as `open` does. */
  readonly trySome?: () => void;
  readonly everyMs?: number;
}

const EVERY_MS = 5_000;
const SAY_AGAIN_MS = 60_000;

/** Fewer are taken and given back by every request, so that one is free at times. */
const SPARE = 16;

function openSpare(): void {
  const spare: number[] = [];
  try {
    while (spare.length < SPARE) spare.push(openSync(devNull, 'r'));
  } finally {
    for (const descriptor of spare) closeSync(descriptor);
  }
}

export function watchDescriptors({ log, trySome = openSpare, everyMs = EVERY_MS }: DescriptorsParts): Descriptors {
  let saidAt = Number.NEGATIVE_INFINITY;

  function saw(error: unknown): boolean {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EMFILE' && code !== 'ENFILE') return false;
    if (performance.now() - saidAt < SAY_AGAIN_MS) return true;
    saidAt = performance.now();
    log.error(
      { code },
      'out of file descriptors, or nearly: new connections are closed then. Raise the limit (ulimit -n, LimitNOFILE)',
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
  return { saw, stop: () => clearInterval(timer) };
}
