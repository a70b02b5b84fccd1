/** A queue for the events of one stream: the producer adds events at any time, one reader takes them at its own pace. */
import type { SseEvent } from '../../protocol/sse.ts';
import { chargeEvents, turnOf } from './reading-turns.ts';

/** The memory that an event takes in addition to its texts. Without it, many empty events would count as nothing. */
const EVENT_COST = 128;
/** How many events a reader gets at once. After this many characters, no further event is added to these. An event with more comes alone. */
const PART_EVENTS = 32;
const PART_LENGTH = 16 * 1024;
const NO_MORE = { id: undefined, retry: undefined };

/** Ids are long, too: data of one character can come with an id of thousands. */
const lengthOf = ({ data, id, event }: SseEvent): number => data.length + (id?.length ?? 0) + (event?.length ?? 0);

type Step = IteratorResult<readonly SseEvent[]>;
const DONE: Step = { done: true, value: undefined };

export type EventQueue = ReturnType<typeof createEventQueue>;

/**
 * `source`: pays for the events; if there are very many, its readers take turns. `moved` gets the amount by which `pending` has
 * changed. `closed` is called once: when the reader reaches the end or leaves, or the stream fails.
 */
export function createEventQueue(source: string, watcher: { moved(delta: number): void; closed(): void }) {
  /** The queued events, in parts. A reader gets a whole part at once. */
  let waiting: { readonly events: SseEvent[]; length: number }[] = [];
  let pending = 0;
  let state: 'open' | 'ended' | 'closed' = 'open';
  let failure: Error | null = null;
  let reader: { resolve(step: Step): void; reject(cause: Error): void } | null = null;

  function move(delta: number): void {
    pending += delta;
    if (delta !== 0) watcher.moved(delta);
  }

  function keep(event: SseEvent): void {
    const last = waiting.at(-1);
    const length = lengthOf(event);
    if (last === undefined || last.events.length === PART_EVENTS || Math.max(last.length, length) >= PART_LENGTH) {
      waiting.push({ events: [event], length });
    } else {
      last.events.push(event);
      last.length += length;
    }
    move(length + EVENT_COST);
  }

  function take(): Step | null {
    const part = waiting.shift();
    if (part === undefined) return null;
    chargeEvents(source, part.events.length, part.length);
    move(-part.length - EVENT_COST * part.events.length);
    return { done: false, value: part.events };
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
      const turn = waiting.length > 0 ? turnOf(source) : null;
      if (turn !== null) await turn;
      const taken = take();
      if (taken !== null) return taken;
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
    /** The unread characters plus the memory that their events take. */
    get pending(): number {
      return pending;
    },
    push(data: string, rest: Omit<SseEvent, 'data'> = NO_MORE) {
      if (state !== 'open') return;
      const event: SseEvent = { data, ...rest };
      if (reader === null) return keep(event);
      const { resolve } = reader;
      reader = null;
      chargeEvents(source, 1, data.length);
      resolve({ done: false, value: [event] });
    },
    /** Ends the stream. The reader still gets the queued events, then the cause, if there is one. */
    end(cause?: Error) {
      if (state !== 'open') return;
      if (reader !== null) {
        if (cause !== undefined) reader.reject(cause);
        if (cause !== undefined) reader = null;
        return close();
      }
      failure = cause ?? null;
      state = 'ended';
    },
    /** Ends the stream at once and drops the queued events. */
    fail(cause: Error): void {
      if (state === 'closed') return;
      if (reader === null) failure = cause;
      else reader.reject(cause);
      reader = null;
      close();
    },
    /** The reader calls this when it wants no more events. */
    close,
    /** The events, for a single reader. */
    events: { [Symbol.asyncIterator]: () => iterator },
  };
}
