/** How long work of the gateway takes, and how long others wait for it. */
import type { Timings } from '../rest/timings.ts';

/** Returns the result of the work and records how long it takes, even if it fails. */
export async function timed<T>(timings: Timings, work: Promise<T>): Promise<T> {
  const began = performance.now();
  try {
    return await work;
  } finally {
    timings.observe(performance.now() - began);
  }
}

/** Returns the result of the work. null: it failed, or took longer than `ms` milliseconds. */
export async function bounded<T>(work: Promise<T>, ms: number): Promise<T | null> {
  let result: T | null = null;
  const stored = work.then((value) => {
    result = value;
  });
  await inTime(stored, ms).catch(() => false);
  return result;
}

/** Returns whether the work is done within `ms` milliseconds. Rejects if it fails first. */
export async function inTime(work: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  try {
    return await Promise.race([work.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}
