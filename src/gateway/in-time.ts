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

/** Returns the result of the work. null: it takes longer than `ms` milliseconds. Rejects if the work fails first. */
export async function inTime<T>(work: Promise<T>, ms: number): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<null>((resolve) => {
    timer = setTimeout(() => resolve(null), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
