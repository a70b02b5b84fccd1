/**
 * One session with a target that sends everything on a single channel, sorted into the streams that Streamable HTTP has:
 * each request has one for its progress and its answer, and what belongs to no request has the standing stream. Where that
 * is not open, the newest request's stream takes it, and where there is none, it waits.
 */
import { errors } from 'undici';
import { isObject, type JsonObject, type JsonValue } from '../../http/json.ts';
import { isId, type RpcId } from '../message.ts';
import type { SseEvent } from '../sse.ts';

export interface Mailbox {
  /** A message of the target, as text. Whoever reads it judges it; here it only finds its way. */
  push(text: string): Unasked | null;
  /** To be opened before the request is sent, because the answer may come at once. null: the id is in use. */
  request(asked: MailRequest): MailStream | null;
  /** The standing stream. null: it is open already. */
  stand(): MailStream | null;
  /** Settled once the streams take more; null while they do. Until then nothing should be pushed. */
  room(): Promise<void> | null;
  /** Whether no stream is open. */
  isQuiet(): boolean;
  /** Ends the streams that are open, with this cause once they are read to their end. */
  fail(cause: unknown): void;
}

export interface MailRequest {
  readonly id: RpcId;
  readonly progressToken: RpcId | undefined;
  /** Whether its stream may carry what belongs to no request; that of `initialize` may not. */
  readonly takesOthers: boolean;
}

export interface MailStream {
  /** To be read once. */
  readonly events: AsyncIterable<readonly SseEvent[]>;
  /** Settled when there is something to read, if only the end. */
  readonly arrived: Promise<void>;
  /** Nobody reads on. */
  close(): void;
  /** Ends it at once; the reader gets the cause. */
  abort(cause: unknown): void;
}

/** A request of the target that nobody will see, so that whoever keeps the channel has to answer it. */
export interface Unasked {
  readonly id: RpcId;
  readonly method: string;
}

/** Characters that may wait to be read. One message more may come, whatever its size. */
const ROOM = 1024 * 1024;
const MAX_WAITING = 100;
/** Requests of the target whose stream is remembered, for their cancellation. */
const MAX_ASKED = 1_000;

interface Lane extends MailStream {
  put(event: SseEvent): void;
  end(failure?: Failure): void;
}

interface Failure {
  readonly cause: unknown;
}

interface Waiting {
  readonly event: SseEvent;
  readonly isRequest: boolean;
}

/** `idleMs`: how long the stream of a request may stay silent. `quiet`: told when the last stream has been closed. */
export function createMailbox(idleMs: number, quiet: () => void = () => undefined): Mailbox {
  /** By age. */
  const requests = new Map<RpcId, { readonly lane: Lane; readonly asked: MailRequest }>();
  const lanes = new Set<Lane>();
  const askedOn = new Map<RpcId, Lane>();
  const waiting: Waiting[] = [];
  let waitingLength = 0;
  let standing: Lane | null = null;
  let unread = 0;
  let awaited: { readonly room: Promise<void>; readonly settle: () => void } | null = null;

  function count(length: number): void {
    unread += length;
    if (unread <= ROOM) settleRoom();
  }

  function settleRoom(): void {
    awaited?.settle();
    awaited = null;
  }

  function open(laneIdleMs: number | null, left: (lane: Lane) => void): Lane {
    const lane = createLane(laneIdleMs, count, () => {
      left(lane);
      lanes.delete(lane);
      for (const [id, on] of askedOn) if (on === lane) askedOn.delete(id);
      if (lanes.size === 0) quiet();
    });
    lanes.add(lane);
    return lane;
  }

  function takeWaiting(lane: Lane): void {
    for (const { event } of waiting.splice(0)) putOther(lane, event, readEnvelope(event.data));
    waitingLength = 0;
  }

  function putOther(lane: Lane, event: SseEvent, { id }: Envelope): void {
    if (id !== undefined) {
      const [oldest] = askedOn.keys();
      if (askedOn.size >= MAX_ASKED && oldest !== undefined) askedOn.delete(oldest);
      askedOn.set(id, lane);
    }
    lane.put(event);
  }

  /** Notifications make place for what comes later; a request that finds no place is not asked. */
  function keep(event: SseEvent, unasked: Unasked | null): Unasked | null {
    const { length } = event.data;
    if (length > ROOM) return unasked;
    while (waiting.length >= MAX_WAITING || waitingLength + length > ROOM) {
      const at = waiting.findIndex(({ isRequest }) => !isRequest);
      if (at === -1) return unasked;
      waitingLength -= waiting[at]?.event.data.length ?? 0;
      waiting.splice(at, 1);
    }
    waiting.push({ event, isRequest: unasked !== null });
    waitingLength += length;
    return null;
  }

  function forOthers(): Lane | null {
    return standing ?? [...requests.values()].findLast(({ asked }) => asked.takesOthers)?.lane ?? null;
  }

  return {
    push(text) {
      const event: SseEvent = { data: text, id: undefined, retry: undefined };
      const envelope = readEnvelope(text);
      const { id, method } = envelope;
      if (method === undefined) {
        // An error without an id can only mean a request that is the only one. An answer to none that is under way is nobody's.
        const [only] = requests.keys();
        const answered = id ?? (envelope.isError && requests.size === 1 ? only : undefined);
        const lane = answered === undefined ? undefined : requests.get(answered)?.lane;
        if (answered !== undefined) requests.delete(answered);
        lane?.put(event);
        lane?.end();
        return null;
      }
      if (id === undefined && method === 'notifications/progress') {
        const { progressToken: token } = envelope;
        const of = [...requests.values()].find(({ asked }) => token !== undefined && asked.progressToken === token);
        of?.lane.put(event);
        return null;
      }
      if (id === undefined && method === 'notifications/cancelled') {
        if (envelope.requestId !== undefined) askedOn.get(envelope.requestId)?.put(event);
        return null;
      }
      const unasked = id === undefined ? null : { id, method };
      const lane = forOthers();
      // A ping that waits is answered too late.
      if (lane === null) return method === 'ping' ? unasked : keep(event, unasked);
      putOther(lane, event, envelope);
      return null;
    },
    request(asked) {
      const { id, takesOthers } = asked;
      if (requests.has(id)) return null;
      const lane = open(idleMs, (left) => {
        if (requests.get(id)?.lane === left) requests.delete(id);
      });
      requests.set(id, { lane, asked });
      if (takesOthers && standing === null) takeWaiting(lane);
      return lane;
    },
    stand() {
      if (standing !== null) return null;
      const lane = open(null, () => {
        standing = null;
      });
      standing = lane;
      takeWaiting(lane);
      return lane;
    },
    room() {
      if (unread <= ROOM) return null;
      if (awaited === null) {
        let settle = (): void => undefined;
        const room = new Promise<void>((resolve) => {
          settle = resolve;
        });
        awaited = { room, settle };
      }
      return awaited.room;
    },
    isQuiet: () => lanes.size === 0,
    fail(cause) {
      for (const lane of lanes) lane.end({ cause });
      settleRoom();
    },
  };
}

/** `count`: by how many characters more, or less, wait to be read. */
function createLane(idleMs: number | null, count: (length: number) => void, closed: () => void): Lane {
  let queue: SseEvent[] = [];
  let length = 0;
  let ended: Failure | 'ended' | null = null;
  let isClosed = false;
  let wake = (): void => undefined;
  let tellArrived = (): void => undefined;
  const arrived = new Promise<void>((resolve) => {
    tellArrived = resolve;
  });

  function take(): readonly SseEvent[] {
    const taken = queue;
    queue = [];
    count(-length);
    length = 0;
    return taken;
  }

  function end(failure?: Failure): void {
    ended ??= failure ?? 'ended';
    tellArrived();
    wake();
  }

  function close(): void {
    end();
    if (isClosed) return;
    isClosed = true;
    take();
    closed();
  }

  async function* read(): AsyncGenerator<readonly SseEvent[]> {
    try {
      for (;;) {
        if (queue.length > 0) yield take();
        else if (ended === null) await something();
        else if (ended === 'ended') return;
        else throw ended.cause;
      }
    } finally {
      close();
    }
  }

  function something(): Promise<void> {
    return new Promise((resolve) => {
      const silent = (): void => end({ cause: new errors.BodyTimeoutError('nothing came for too long') });
      const timer = idleMs === null ? undefined : setTimeout(silent, idleMs).unref();
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  return {
    events: read(),
    arrived,
    close,
    end,
    abort(cause) {
      take();
      end({ cause });
    },
    put(event) {
      if (ended !== null) return;
      queue.push(event);
      length += event.data.length;
      count(event.data.length);
      tellArrived();
      wake();
    },
  };
}

/** What of a message says where it belongs. */
export interface Envelope {
  readonly id: RpcId | undefined;
  readonly method: string | undefined;
  readonly progressToken: RpcId | undefined;
  readonly isError: boolean;
  /** Of a cancellation. */
  readonly requestId: RpcId | undefined;
}

/** Only to find the way: whoever takes the message reads it strictly. */
export function readEnvelope(text: string): Envelope {
  const message = parse(text);
  const params = isObject(message.params) ? message.params : {};
  const holder = message.id !== undefined && isObject(params._meta) ? params._meta : params;
  return {
    id: idOf(message.id),
    method: typeof message.method === 'string' ? message.method : undefined,
    progressToken: idOf(holder.progressToken),
    isError: isObject(message.error),
    requestId: idOf(params.requestId),
  };
}

function idOf(value: JsonValue | undefined): RpcId | undefined {
  return isId(value) ? value : undefined;
}

function parse(text: string): JsonObject {
  try {
    const value = JSON.parse(text) as JsonValue;
    return isObject(value) ? value : {};
  } catch {
    return {};
  }
}
