/** The worker thread's side: runs one job at a time, and asks the gateway for data that only the gateway has. */
import { getPriority, platform, setPriority } from 'node:os';
import { parentPort, type TransferListItem } from 'node:worker_threads';
import { errorOf, type FromThread, failureOf, type Progress, type ToThread } from './messages.ts';

/** What a job can use in addition to its input. */
export interface Desk {
  /** Asks the gateway. `items` are the items that came before the answer. Rejects if the gateway's answer does. */
  ask<T, Item = never>(
    name: string,
    ...args: readonly unknown[]
  ): Promise<{ readonly value: T; readonly items: readonly Item[] }>;
  /** Sends many results, a few per message, so that reading them does not block the event loop of the gateway. */
  give(items: Iterable<unknown>): void;
  progress(progress: Progress): void;
}

export type Jobs = Readonly<Record<string, (input: never, desk: Desk) => Promise<unknown>>>;

/** The most items per message, and about the most values in them. Reading them takes the other side a millisecond or two. */
export const ITEMS_AT_ONCE = 100;
const VALUES_AT_ONCE = 3_000;
/** A text counts as one value more for each so many characters. */
const TEXT_LENGTH = 1_024;
const PROGRESS_MS = 500;

export function* bunchesOf<T>(items: Iterable<T>): Generator<T[]> {
  let bunch: T[] = [];
  let values = 0;
  for (const item of items) {
    bunch.push(item);
    values += valuesIn(item, VALUES_AT_ONCE);
    if (bunch.length < ITEMS_AT_ONCE && values < VALUES_AT_ONCE) continue;
    yield bunch;
    bunch = [];
    values = 0;
  }
  if (bunch.length > 0) yield bunch;
}

/** Counts up to `most` values. A policy can have a thousand subjects. */
function valuesIn(item: unknown, most: number): number {
  if (typeof item === 'string') return 1 + Math.floor(item.length / TEXT_LENGTH);
  if (typeof item !== 'object' || item === null || ArrayBuffer.isView(item)) return 1;
  let values = 1;
  for (const member of Object.values(item)) {
    values += valuesIn(member, most - values);
    if (values >= most) break;
  }
  return values;
}

/**
 * Lowers the priority of this thread: requests come first. Only Linux has thread priorities: elsewhere this would lower the priority of the
 * whole process.
 */
export function comeSecond(): void {
  // A gateway that was started with less must not ask for more: it may not have the right.
  if (platform() === 'linux' && getPriority() < PRIORITY) setPriority(PRIORITY);
}

/** A niceness: the higher, the later. */
const PRIORITY = 10;

export function serve(jobs: Jobs): void {
  const send = (message: FromThread, transfer: readonly TransferListItem[] = []): void =>
    parentPort?.postMessage(message, [...transfer]);
  const open = new Map<number, { items: unknown[]; resolve(value: unknown): void; reject(error: Error): void }>();
  let last = 0;

  function deskOfJob(): Desk {
    let said = performance.now();
    return {
      async ask<T, Item>(name: string, ...args: readonly unknown[]) {
        const question = ++last;
        const items: unknown[] = [];
        const value = await new Promise<unknown>((resolve, reject) => {
          open.set(question, { items, resolve, reject });
          send({ kind: 'question', question, name, args });
        });
        return { value: value as T, items: items as Item[] };
      },
      give(items) {
        for (const bunch of bunchesOf(items)) send({ kind: 'items', items: bunch });
      },
      progress(progress) {
        if (performance.now() - said < PROGRESS_MS) return;
        said = performance.now();
        send({ kind: 'progress', progress });
      },
    };
  }

  async function work(name: string, input: unknown): Promise<void> {
    try {
      const job = jobs[name];
      if (job === undefined) throw new Error(`There is no job ${name}`);
      const value = await job(input as never, deskOfJob());
      send({ kind: 'done', value }, buffersOf(value));
    } catch (error) {
      send({ kind: 'failed', failure: failureOf(error) });
    }
  }

  parentPort?.on('message', (message: ToThread) => {
    if (message.kind === 'job') {
      work(message.name, message.input).catch(() => undefined);
      return;
    }
    const asked = open.get(message.question);
    if (message.kind === 'items') for (const item of message.items) asked?.items.push(item);
    else {
      open.delete(message.question);
      if (message.kind === 'answer') asked?.resolve(message.value);
      else asked?.reject(errorOf(message.failure));
    }
  });
}

/** Returns the buffers of a result, which are transferred instead of copied. */
const buffersOf = (value: unknown): ArrayBuffer[] =>
  typeof value === 'object' && value !== null
    ? Object.values(value).flatMap((member) => (member instanceof Uint8Array ? [member.buffer as ArrayBuffer] : []))
    : [];
