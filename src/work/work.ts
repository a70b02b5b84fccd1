/**
 * Heavy work of administrators, in threads with limits of memory and time: what is too much for one ends that thread alone. Callers take turns,
 * so that no one of them keeps the others waiting.
 */
import { setImmediate } from 'node:timers/promises';
import { getHeapStatistics } from 'node:v8';
import { Worker } from 'node:worker_threads';
import { AppError } from '../errors.ts';
import { errorOf, type FromThread, failureOf, type Progress, type ToThread } from './messages.ts';
import { bunchesOf } from './thread.ts';

/** Answers what a job asks. `give` sends many items, a few at a time. */
export type Host = Readonly<Record<string, (give: Give, ...args: never[]) => Promise<unknown>>>;
export type Give = (items: Iterable<unknown>) => Promise<void>;

export interface Job {
  readonly name: string;
  readonly input: unknown;
  /** Whose turn it takes; null: it waits for none, because a transaction is held for it, and what runs may wait for that. */
  readonly by: string | null;
  readonly host: Host;
  /** Ends the job, and its thread, wherever it is. */
  readonly signal?: AbortSignal | undefined;
  readonly onItems?: (items: readonly unknown[]) => void;
  readonly onProgress?: ((progress: Progress) => void) | undefined;
}

export interface Work {
  /**
   * Rejects with what the job rejects with, the reason of `signal`, or AppError: `too_large` where the job takes more memory or time than it
   * may, `too_many_requests` and `unavailable` where too many jobs wait already.
   */
  run<T>(job: Job): Promise<T>;
  /** Ends every job: they reject with AppError `unavailable`. */
  close(): Promise<void>;
}

export interface WorkOptions {
  /** The module of the thread, which calls `serve`. */
  readonly thread: URL;
  readonly limits?: Partial<WorkLimits>;
}

export interface WorkLimits {
  readonly atOnce: number;
  /** Jobs of one caller, and of all, that wait for their turn. */
  readonly waitingOfCaller: number;
  readonly waiting: number;
  /** MiB of one thread. */
  readonly memory: number;
  readonly ms: number;
}

/** A thread may take half of the memory that the gateway itself may take. */
const LIMITS: WorkLimits = {
  atOnce: 2,
  waitingOfCaller: 8,
  waiting: 32,
  memory: Math.min(1024, Math.max(64, Math.floor(getHeapStatistics().heap_size_limit / 2 ** 21))),
  ms: 240_000,
};
/** Starting a thread takes longer than most jobs. */
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

export function createWork({ thread: module, limits: given = {} }: WorkOptions): Work {
  const limits = { ...LIMITS, ...given };
  /** By caller, in the order of their turns. */
  const queues = new Map<string, Waiting[]>();
  const running = new Set<string>();
  const threads = new Set<Thread>();
  let spare: Thread | null = null;
  let closed = false;

  function open(): Thread {
    const worker = new Worker(module, { resourceLimits: { maxOldGenerationSizeMb: limits.memory } });
    const thread: Thread = { worker, idle: null };
    threads.add(thread);
    worker.once('exit', () => {
      threads.delete(thread);
      if (spare === thread) spare = null;
    });
    // Whoever runs a job hears of it, too.
    worker.on('error', () => undefined);
    return thread;
  }

  function opened(): Thread {
    try {
      return open();
    } catch (cause) {
      throw new AppError('unavailable', 'The thread for this work could not be started. Try again later.', { cause });
    }
  }

  function end(thread: Thread): void {
    if (thread.idle !== null) clearTimeout(thread.idle);
    threads.delete(thread);
    thread.worker.terminate().catch(() => undefined);
  }

  function take(): Thread {
    if (closed) throw closing();
    const thread = spare ?? opened();
    spare = null;
    if (thread.idle !== null) clearTimeout(thread.idle);
    thread.idle = null;
    thread.worker.ref();
    return thread;
  }

  function putBack(thread: Thread): void {
    if (closed || spare !== null || !threads.has(thread)) {
      end(thread);
      return;
    }
    spare = thread;
    thread.worker.unref();
    thread.idle = setTimeout(() => {
      if (spare === thread) spare = null;
      end(thread);
    }, IDLE_MS).unref();
  }

  /** Each caller has one job running at a time. */
  function next(): void {
    for (const [by, queue] of queues) {
      if (running.size >= limits.atOnce) return;
      if (running.has(by)) continue;
      const [first, ...rest] = queue;
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
  }

  const waitingOf = (queue: readonly unknown[] | undefined): number => queue?.length ?? 0;

  function admit(by: string): void {
    if (closed) throw closing();
    const all = [...queues.values()].reduce((sum, queue) => sum + queue.length, 0);
    if (waitingOf(queues.get(by)) >= limits.waitingOfCaller) {
      const message = `${limits.waitingOfCaller} of your plans, comparisons and the like wait for their turn already. Wait for their answers.`;
      throw new AppError('too_many_requests', message, { retryAfter: RETRY_AFTER_S });
    }
    if (all >= limits.waiting) {
      const message = `${limits.waiting} plans, comparisons and the like of administrators wait for their turn already.`;
      throw new AppError('unavailable', message, { retryAfter: RETRY_AFTER_S });
    }
  }

  async function turn(job: Job, by: string): Promise<Thread> {
    const { signal } = job;
    signal?.throwIfAborted();
    admit(by);
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
    async run<T>(job: Job): Promise<T> {
      const { by } = job;
      const thread = by === null ? take() : await turn(job, by);
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
        next();
      }
    },
    async close() {
      closed = true;
      const waiting = [...queues.values()].flat();
      queues.clear();
      for (const { refuse } of waiting) refuse(closing());
      await Promise.all([...threads].map(({ worker }) => worker.terminate()));
    },
  };
}

/** The job itself has failed, and the thread can go on. */
class Told {
  readonly error: Error;
  constructor(error: Error) {
    this.error = error;
  }
}

const ENDED = 'The thread of this work ended unexpectedly. Try again.';
const closing = (): AppError => new AppError('unavailable', 'The gateway is closing.');
const tooMuch = ({ memory }: WorkLimits): AppError =>
  new AppError(
    'too_large',
    `This takes more memory than one request of this kind may take (${memory} MiB), so it was ended. Give the gateway more (node --max-old-space-size), or ask for less at once.`,
  );
const tooLong = ({ ms }: WorkLimits): AppError =>
  new AppError(
    'too_large',
    `This takes longer than one request of this kind may take (${ms / 1_000} s), so it was ended. Ask for less at once.`,
  );
