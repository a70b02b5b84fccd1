/** The events of one stream between a process, which sends when it likes, and a reader, who takes them when it can. */
import type { SseEvent } from '../sse.ts';

export interface EventQueue {
  /** Characters that are not read yet, and the memory that their events take. */
  readonly pending: number;
  push(data: string, rest?: Omit<SseEvent, 'data'>): void;
  /** What is there is still read; then the reader gets the cause, if there is one. */
  end(cause?: Error): void;
  /** What is there is not read any more. */
  fail(cause: Error): void;
  /** By the reader: it wants nothing more. */
  close(): void;
  /** For one reader. */
  readonly events: AsyncIterable<readonly SseEvent[]>;
}

export interface QueueWatcher {
  /** By how much `pending` has changed. */
  moved(delta: number): void;
  /** Once: the reader has read to the end, or has gone, or the stream has failed. */
  closed(): void;
}

/** An event takes memory beside its data: many that are empty must not pass for none. */
const EVENT_COST = 128;
const NO_MORE = { id: undefined, retry: undefined };

type Step = IteratorResult<readonly SseEvent[]>;
const DONE: Step = { done: true, value: undefined };

export function createEventQueue(watcher: QueueWatcher): EventQueue {
  let waiting: SseEvent[] = [];
  let pending = 0;
  let state: 'open' | 'ended' | 'closed' = 'open';
  let failure: Error | null = null;
  let reader: { resolve(step: Step): void; reject(cause: Error): void } | null = null;

  function move(delta: number): void {
    pending += delta;
    if (delta !== 0) watcher.moved(delta);
  }

  function take(): Step {
    const value = waiting;
    waiting = [];
    move(-pending);
    return { done: false, value };
  }

  function close(): void {
    if (state === 'closed') return;
    state = 'closed';
    waiting = [];
    move(-pending);
    watcher.closed();
    reader?.resolve(DONE);
    reader = null;
  }

  const iterator: AsyncIterator<readonly SseEvent[]> = {
    async next() {
      if (waiting.length > 0) return take();
      if (state === 'ended') close();
      if (failure !== null) {
        const cause = failure;
        failure = null;
        throw cause;
      }
      if (state === 'closed') return DONE;
      return new Promise((resolve, reject) => {
        reader = { resolve, reject };
      });
    },
    async return() {
      close();
      return DONE;
    },
  };

  return {
    get pending() {
      return pending;
    },
    push(data, rest = NO_MORE) {
      if (state !== 'open') return;
      const event: SseEvent = { data, ...rest };
      if (reader === null) {
        waiting.push(event);
        return move(data.length + EVENT_COST);
      }
      const { resolve } = reader;
      reader = null;
      resolve({ done: false, value: [event] });
    },
    end(cause) {
      if (state !== 'open') return;
      if (reader !== null) {
        if (cause !== undefined) reader.reject(cause);
        if (cause !== undefined) reader = null;
        return close();
      }
      failure = cause ?? null;
      state = 'ended';
    },
    fail(cause) {
      if (state === 'closed') return;
      if (reader === null) failure = cause;
      else reader.reject(cause);
      reader = null;
      close();
    },
    close,
    events: { [Symbol.asyncIterator]: () => iterator },
  };
}
