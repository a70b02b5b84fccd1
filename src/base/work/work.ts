/**
 * Runs heavy work of administrators in worker threads with memory and time limits. A job that exceeds them ends only its thread.
 * Callers take turns by the thread time that they use, so that none blocks the others.
 */
import { setImmediate } from 'node:timers/promises';
import { getHeapStatistics } from 'node:v8';
import { Worker } from 'node:worker_threads';
import { AppError } from '../errors.ts';
import { makeRoom } from '../turns/line.ts';
import { errorOf, type FromThread, failureOf, type Progress, type ToThread } from './messages.ts';
import { bunchesOf } from './thread.ts';
import { createUse } from './use.ts';

/** Answers the questions of a job. `give` sends many items, a few per message. */
export type Host = Readonly<Record<string, (give: Give, ...args: never[]) => Promise<unknown>>>;
export type Give = (items: Iterable<unknown>) => Promise<void>;

export interface Job {
  readonly name: string;
  readonly input: unknown;
  /**
   * The caller in whose turn the job runs. null: the job starts at once. A transaction is open for it, and jobs that are running
   * may be waiting for that transaction.
   */
  readonly by: string | null;
  readonly host: Host;
  /** Aborts the job and ends its thread, even while it is waiting. */
  readonly signal?: AbortSignal | undefined;
  readonly onItems?: (items: readonly unknown[]) => void;
  readonly onProgress?: ((progress: Progress) => void) | undefined;
}

export interface WorkOptions {
  /** The worker module, which calls `serve`. */
  readonly thread: URL;
  readonly limits?: Partial<WorkLimits>;
}

export interface WorkLimits {
  readonly atOnce: number;
  /** How many jobs of one caller, and of all callers, may wait. */
  readonly waitingOfCaller: number;
  readonly waiting: number;
  /** The memory limit of one thread, in MiB. */
  readonly memory: number;
  readonly ms: number;
}

/** A thread may use half as much memory as the gateway itself. */
const LIMITS: WorkLimits = {
  atOnce: 2,
  waitingOfCaller: 8,
  waiting: 32,
  memory: Math.min(1024, Math.max(64, Math.floor(getHeapStatistics().heap_size_limit / 2 ** 21))),
  ms: 240_000,
};
/** The memory of a thread for new objects, in MiB. By default V8 takes some 32, and drafts of 9,800 files are no faster with that. */
const YOUNG = 12;
/** How long an idle thread is kept, because starting one takes longer than most jobs. */
const IDLE_MS = 30_000;
const RETRY_AFTER_S = 5;

interface Waiting {
  readonly job: Job;
  start(thread: Thread): void;
  refuse(error: unknown): void;
}

interface Thread {
  readonly worker: Worker;
  idle: NodeJS.Timeout | null;
}

export type Work = ReturnType<typeof createWork>;

export function createWork({ thread: module, limits: given = {} }: WorkOptions) {
  const limits = { ...LIMITS, ...given };
  /** The waiting jobs by caller. */
  const queues = new Map<string, Waiting[]>();
  const running = new Set<string>();
  const use = createUse();
  const threads = new Set<Thread>();
  let spares: readonly Thread[] = [];
  let closed = false;

  function open(): Thread {
    let worker: Worker;
    try {
      worker = new Worker(module, { resourceLimits: { maxOldGenerationSizeMb: limits.memory, maxYoungGenerationSizeMb: YOUNG } });
    } catch (cause) {
      throw new AppError('unavailable', 'The thread for this work could not be started. Try again later.', { cause });
    }
    const thread: Thread = { worker, idle: null };
    threads.add(thread);
    worker.once('exit', () => {
      threads.delete(thread);
      spares = spares.filter((spare) => spare !== thread);
    });
    // `perform` reports the error if a job is running. Without a listener, the error would end the gateway.
    worker.on('error', () => undefined);
    return thread;
  }

  function end(thread: Thread): void {
    if (thread.idle !== null) clearTimeout(thread.idle);
    spares = spares.filter((spare) => spare !== thread);
    threads.delete(thread);
    thread.worker.terminate().catch(() => undefined);
  }

  function take(): Thread {
    if (closed) throw closing();
    const thread = spares.at(-1) ?? open();
    spares = spares.filter((spare) => spare !== thread);
    if (thread.idle !== null) clearTimeout(thread.idle);
    thread.idle = null;
    thread.worker.ref();
    return thread;
  }

  function putBack(thread: Thread): void {
    if (closed || !threads.has(thread)) {
      end(thread);
      return;
    }
    spares = [...spares, thread];
    thread.worker.unref();
    thread.idle = setTimeout(() => end(thread), IDLE_MS).unref();
  }

  /** Starts the next jobs. Each caller has at most one running job. */
  function next(): void {
    for (const by of use.sorted(queues.keys())) {
      if (running.has(by) || running.size >= limits.atOnce) continue;
      const [first, ...rest] = queues.get(by) ?? [];
      queues.delete(by);
      if (rest.length > 0) queues.set(by, rest);
      if (first === undefined) continue;
      try {
        first.start(take());
        running.add(by);
      } catch (error) {
        first.refuse(error);
      }
    }
    if (queues.size === 0 && running.size === 0) use.rest();
    // Only now: a thread for the next job must not be ended.
    for (const unneeded of spares.slice(0, -1)) end(unneeded);
  }

  function admit(by: string): void {
    if (closed) throw closing();
    if ((queues.get(by)?.length ?? 0) >= limits.waitingOfCaller) {
      const message = `${limits.waitingOfCaller} of your plans, comparisons or similar requests are already waiting for their turn. Wait for their answers.`;
      throw new AppError('too_many_requests', message, { retryAfter: RETRY_AFTER_S });
    }
    makeRoom(queues, by, limits.waiting, () => {
      const message = `${limits.waiting} plans, comparisons or similar requests are already waiting for their turn. Try again later.`;
      return new AppError('unavailable', message, { retryAfter: RETRY_AFTER_S });
    });
  }

  async function turn(job: Job, by: string): Promise<Thread> {
    const { signal } = job;
    signal?.throwIfAborted();
    admit(by);
    if (!queues.has(by) && !running.has(by)) use.arrive(by);
    return new Promise<Thread>((resolve, reject) => {
      const leave = (): void => {
        const rest = (queues.get(by) ?? []).filter((other) => other !== waiting);
        if (rest.length > 0) queues.set(by, rest);
        else queues.delete(by);
        reject(signal?.reason);
      };
      const waiting: Waiting = {
        job,
        start(thread) {
          signal?.removeEventListener('abort', leave);
          resolve(thread);
        },
        refuse: reject,
      };
      signal?.addEventListener('abort', leave, { once: true });
      queues.set(by, [...(queues.get(by) ?? []), waiting]);
      next();
    });
  }

  async function perform(thread: Thread, { name, input, host, signal, onItems, onProgress }: Job): Promise<unknown> {
    const { worker } = thread;
    const send = (message: ToThread): void => worker.postMessage(message);
    async function answer(question: number, asked: string, args: readonly unknown[]): Promise<void> {
      const give: Give = async (items) => {
        for (const some of bunchesOf(items)) {
          send({ kind: 'items', question, items: some });
          await setImmediate();
        }
      };
      try {
        const find = host[asked];
        if (find === undefined) throw new Error(`Nothing answers ${asked}`);
        const value = await find(give, ...(args as never[]));
        send({ kind: 'answer', question, value });
      } catch (error) {
        send({ kind: 'no answer', question, failure: failureOf(error) });
      }
    }
    const leaving = new AbortController();
    try {
      return await new Promise((resolve, reject) => {
        const { signal: over } = leaving;
        const on = (emitter: Worker, event: string, listen: (...args: never[]) => void): void => {
          emitter.on(event, listen as (...args: unknown[]) => void);
          over.addEventListener('abort', () => emitter.off(event, listen as (...args: unknown[]) => void));
        };
        const late = setTimeout(() => reject(tooLong(limits)), limits.ms);
        over.addEventListener('abort', () => clearTimeout(late));
        signal?.addEventListener('abort', () => reject(signal.reason), { signal: over });
        if (signal?.aborted) reject(signal.reason);
        on(worker, 'error', (error: NodeJS.ErrnoException) =>
          reject(error.code === 'ERR_WORKER_OUT_OF_MEMORY' ? tooMuch(limits) : error),
        );
        on(worker, 'exit', () => reject(closed ? closing() : new AppError('unavailable', ENDED)));
        on(worker, 'message', (message: FromThread) => {
          switch (message.kind) {
            case 'question':
              answer(message.question, message.name, message.args).catch(reject);
              return;
            case 'items':
              return onItems?.(message.items);
            case 'progress':
              return onProgress?.(message.progress);
            case 'done':
              return resolve(message.value);
            case 'failed':
              return reject(new Told(errorOf(message.failure)));
          }
        });
        send({ kind: 'job', name, input });
      });
    } finally {
      leaving.abort();
    }
  }

  return {
    /**
     * Runs a job. Rejects with the error of the job, the reason of `signal`, or an AppError: `too_large` if the job exceeds its
     * memory or time limit, `too_many_requests` or `unavailable` if too many jobs are already waiting.
     */
    async run<T>(job: Job): Promise<T> {
      const { by } = job;
      const thread = by === null ? take() : await turn(job, by);
      const ended = by === null ? null : use.begin(by);
      let isWell = false;
      try {
        const value = await perform(thread, job);
        isWell = true;
        return value as T;
      } catch (error) {
        isWell = error instanceof Told;
        throw error instanceof Told ? error.error : error;
      } finally {
        if (isWell) putBack(thread);
        else end(thread);
        if (by !== null) running.delete(by);
        ended?.();
        next();
      }
    },
    /** Ends every job. They reject with AppError `unavailable`. */
    async close(): Promise<void> {
      closed = true;
      const waiting = [...queues.values()].flat();
      queues.clear();
      for (const { refuse } of waiting) refuse(closing());
      await Promise.all([...threads].map(({ worker }) => worker.terminate()));
    },
  };
}

/** An error of the job itself. The thread can be reused. */
class Told {
  readonly error: Error;
  constructor(error: Error) {
    this.error = error;
  }
}

const ENDED = 'The worker thread of this request ended unexpectedly. Try again.';
const closing = (): AppError => new AppError('unavailable', 'The gateway is shutting down.');
const tooMuch = ({ memory }: WorkLimits): AppError =>
  new AppError(
    'too_large',
    `The request was stopped, because it exceeds the memory limit for requests of this kind (${memory} MiB). Give the gateway more memory (node --max-old-space-size), or ask for less at once.`,
  );
const tooLong = ({ ms }: WorkLimits): AppError =>
  new AppError(
    'too_large',
    `The request was stopped, because it exceeds the time limit for requests of this kind (${ms / 1_000} s). Ask for less at once.`,
  );
