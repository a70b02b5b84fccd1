/**
 * Runs in the gateway's process and is loaded ahead of it (`--import`). It finds the longest slices of the main thread, in processor time
 * of that thread.
 *
 * A slice goes from the start of one callback of the event loop to the start of the next: the callback, with all microtasks and ticks that
 * follow it. The thread serves nobody else meanwhile. Time in which the thread waits, or another thread runs, does not count. A slice
 * shorter than a millisecond is counted together with the next one, so a figure may be a millisecond too long.
 *
 * On SIGUSR2 it writes the slices since the last signal to a file in the folder that `BENCH_SLICES` names.
 */
import { AsyncResource, createHook, executionAsyncResource } from 'node:async_hooks';
import { renameSync, writeFileSync } from 'node:fs';
import { PerformanceObserver } from 'node:perf_hooks';
import { WASI } from 'node:wasi';
import { isMainThread } from 'node:worker_threads';

export interface Slice {
  /** Processor time of the thread. */
  readonly ms: number;
  /** Garbage collection within it, in wall-clock time: on a busy machine this is more than the processor time. */
  gcMs: number;
  /** Node's name for the resource whose callback it was. */
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
/** The thread's clock is not read more often than this, because reading it is a system call. */
const GRAIN_MS = 1;
/** `CLOCK_THREAD_CPUTIME_ID`. Node 20 gives no other access to it: `process.cpuUsage()` counts all threads. */
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
 * Turns off the hooks for promises, which would cost the gateway a good part of its time. Node 24 has the option `trackPromises` for this;
 * earlier versions need the call below. If neither works, the instrument still reads the same, and the gateway is slower.
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
      // These are no callbacks of the event loop: a promise, a tick and a resource of JavaScript belong to the slice that they run in.
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
    // The observer hears of a garbage collection some time after it.
    setTimeout(() => {
      const path = `${folder}/slices-${process.pid}.json`;
      writeFileSync(`${path}.new`, JSON.stringify({ longest, over } satisfies Slices));
      renameSync(`${path}.new`, path);
      longest = [];
      over = 0;
    }, 20);
  });
}

// Node loads this into the gateway's worker threads too.
if (isMainThread) measure(process.env['BENCH_SLICES'] ?? '.');
