/**
 * Runs in the gateway's process, ahead of the gateway (`--import`): the longest slices of its main thread, in processor time of that thread.
 *
 * A slice goes from the begin of one callback of the event loop to the begin of the next: the callback with all microtasks and ticks that
 * follow it, during which nobody else is served. Time in which the thread waits, or another one runs, does not count. Slices that are
 * shorter than a millisecond are counted together with the next, so a figure may be up to that too long.
 *
 * On SIGUSR2 it writes what it has seen since the last time, as a file of the folder that `BENCH_SLICES` names.
 */
import { AsyncResource, createHook, executionAsyncResource } from 'node:async_hooks';
import { renameSync, writeFileSync } from 'node:fs';
import { PerformanceObserver } from 'node:perf_hooks';
import { WASI } from 'node:wasi';
import { isMainThread } from 'node:worker_threads';

export interface Slice {
  /** Processor time of the thread. */
  readonly ms: number;
  /** The collection of garbage in it, by the clock on the wall: on a busy machine that is more than the processor time. */
  gcMs: number;
  /** The resource whose callback it was, as Node calls it. */
  readonly callback: string;
  /** `performance.now()` */
  readonly from: number;
  readonly to: number;
}

export interface Slices {
  /** The longest first. */
  readonly longest: readonly Slice[];
  /** How many took longer than `OVER_MS`. */
  readonly over: number;
}

const OVER_MS = 50;
const KEPT = 5;
/** Reading the time of the thread is a system call, so it is not read more often. */
const GRAIN_MS = 1;
/** `CLOCK_THREAD_CPUTIME_ID`. Node 20 has no other way to it: `process.cpuUsage()` is of all threads. */
const THREAD_CLOCK = 3;

interface Wasm {
  readonly WebAssembly: { readonly Memory: new (pages: { readonly initial: number }) => { readonly buffer: ArrayBuffer } };
}

function threadClock(): () => number {
  const memory = new (globalThis as unknown as Wasm).WebAssembly.Memory({ initial: 1 });
  const wasi = new WASI({ version: 'preview1' });
  wasi.initialize({ exports: { memory, _initialize: () => undefined } });
  const read = wasi.wasiImport['clock_time_get'] as (clock: number, precision: bigint, at: number) => number;
  const nanoseconds = new BigUint64Array(memory.buffer, 0, 1);
  return () => {
    const failed = read(THREAD_CLOCK, 1n, 0);
    if (failed !== 0) throw new Error(`no clock of the thread: ${failed}`);
    return Number(nanoseconds[0]) / 1e6;
  };
}

/**
 * Promises are of no interest, and being told of each would cost the gateway a good part of its time. Node 24 takes the option
 * `trackPromises`; before, it has to be done by hand. If neither works, the figures are the same, and everything is slower.
 */
function forgetPromises(): void {
  const { binding } = process as unknown as { binding?: (name: string) => { setPromiseHooks?: (...hooks: undefined[]) => void } };
  try {
    binding?.('async_wrap').setPromiseHooks?.(undefined, undefined, undefined, undefined);
  } catch {
    // This Node has no such module.
  }
}

function measure(folder: string): void {
  const now = threadClock();
  let longest: Slice[] = [];
  let over = 0;
  let callback = 'start';
  let from = performance.now();
  let spent = now();

  function begin(next: string): void {
    const to = performance.now();
    if (to - from >= GRAIN_MS) {
      const total = now();
      const ms = total - spent;
      if (ms > OVER_MS) over++;
      if (longest.length < KEPT || ms > (longest.at(-1)?.ms ?? 0)) {
        longest = [...longest, { ms, gcMs: 0, callback, from, to }].sort((a, b) => b.ms - a.ms).slice(0, KEPT);
      }
      from = to;
      spent = total;
    }
    callback = next;
  }

  const hooks = {
    before() {
      const resource: object | undefined = executionAsyncResource();
      // None of these is a callback of the event loop: a promise and a tick belong to the slice that they follow.
      if (resource instanceof Promise || resource instanceof AsyncResource || resource?.constructor === Object) return;
      begin(resource?.constructor?.name ?? 'unknown');
    },
    trackPromises: false,
  };
  createHook(hooks).enable();
  forgetPromises();

  new PerformanceObserver((list) => {
    for (const { startTime, duration } of list.getEntries()) {
      for (const slice of longest) if (startTime >= slice.from && startTime < slice.to) slice.gcMs += duration;
    }
  }).observe({ entryTypes: ['gc'] });

  process.on('SIGUSR2', () => {
    begin('SIGUSR2');
    // Collections are told of later than they were.
    setTimeout(() => {
      const path = `${folder}/slices-${process.pid}.json`;
      writeFileSync(`${path}.new`, JSON.stringify({ longest, over } satisfies Slices));
      renameSync(`${path}.new`, path);
      longest = [];
      over = 0;
    }, 20);
  });
}

// The gateway's workers load this, too.
if (isMainThread) measure(process.env['BENCH_SLICES'] ?? '.');
