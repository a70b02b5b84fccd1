/**
 * One session with a target that sends everything on a single channel, sorted into the streams that Streamable HTTP has:
 * each request has one for its progress and its answer, and what belongs to no request has the standing stream. Where that
 * is not open, the newest request's stream takes it, and where there is none, it waits.
 */
import { errors } from 'undici';
import { isObject, type JsonObject, type JsonValue } from '../../http/json.ts';
import { LARGE_TEXT, readLargeJson } from '../../http/json-large.ts';
import { UnreadFault } from '../../http/json-steps.ts';
import { isId, type RpcId } from '../message.ts';
import { TARGET_RULES } from '../selection.ts';
import type { SseEvent } from '../sse.ts';
import { createEventQueue } from './events.ts';
import type { UnreadAccount } from './unread.ts';

export interface Mailbox {
  /** A message of the target, as text. Whoever reads it judges it; here it only finds its way. */
  push(text: string, envelope?: Envelope): Unasked | null;
  /** To be opened before the request is sent, because the answer may come at once. null: the id is in use. */
  request(asked: MailRequest): MailStream | null;
  /** The standing stream. null: it is open already. */
  stand(): MailStream | null;
  /** Settled once the streams take more; null while they do. Until then nothing should be pushed. */
  room(): Promise<void> | null;
  /** Whether no stream is open. */
  isQuiet(): boolean;
  /** Ends the streams that are open, with this cause. */
  fail(cause: Error): void;
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
  abort(cause: Error): void;
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
  put(text: string): void;
  /** After the answer. */
  end(): void;
  /** Not after the answer. */
  breakOff(cause: Error): void;
}

interface Waiting {
  readonly text: string;
  readonly isRequest: boolean;
}

/** `idleMs`: how long the stream of a request may stay silent. `quiet`: told when the last stream has been closed. */
export function createMailbox(idleMs: number, account: UnreadAccount, quiet: () => void = () => undefined): Mailbox {
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
    const fault = account.set(unread + waitingLength);
    if (fault !== null) fail(fault);
    if (unread <= ROOM) settleRoom();
  }

  function fail(cause: Error): void {
    for (const lane of lanes) lane.breakOff(cause);
    settleRoom();
  }

  function settleRoom(): void {
    awaited?.settle();
    awaited = null;
  }

  function open(laneIdleMs: number | null, left: (lane: Lane) => void): Lane {
    let isAnswered = false;
    let timer: NodeJS.Timeout | undefined;
    let tellArrived = (): void => undefined;
    const arrived = new Promise<void>((resolve) => {
      tellArrived = resolve;
    });
    const queue = createEventQueue({
      moved: count,
      closed() {
        clearTimeout(timer);
        tellArrived();
        left(lane);
        lanes.delete(lane);
        for (const [id, on] of askedOn) if (on === lane) askedOn.delete(id);
        if (lanes.size === 0) quiet();
      },
    });
    function wait(): void {
      clearTimeout(timer);
      if (laneIdleMs === null) return;
      timer = setTimeout(() => queue.fail(new errors.BodyTimeoutError('nothing came for too long')), laneIdleMs).unref();
    }
    const lane: Lane = {
      events: queue.events,
      arrived,
      close: queue.close,
      abort: queue.fail,
      put(text) {
        if (isAnswered) return;
        wait();
        queue.push(text);
        tellArrived();
      },
      end() {
        isAnswered = true;
        clearTimeout(timer);
        queue.end();
      },
      breakOff(cause) {
        if (!isAnswered) queue.fail(cause);
      },
    };
    wait();
    lanes.add(lane);
    return lane;
  }

  function takeWaiting(lane: Lane): void {
    for (const { text } of waiting.splice(0)) putOther(lane, text, readEnvelope(text));
    waitingLength = 0;
  }

  function putOther(lane: Lane, text: string, { id }: Envelope): void {
    if (id !== undefined) {
      const [oldest] = askedOn.keys();
      if (askedOn.size >= MAX_ASKED && oldest !== undefined) askedOn.delete(oldest);
      askedOn.set(id, lane);
    }
    lane.put(text);
  }

  /** Notifications make place for what comes later; a request that finds no place is not asked. */
  function keep(text: string, unasked: Unasked | null): Unasked | null {
    const { length } = text;
    if (length > ROOM) return unasked;
    while (waiting.length >= MAX_WAITING || waitingLength + length > ROOM) {
      const at = waiting.findIndex(({ isRequest }) => !isRequest);
      if (at === -1) return unasked;
      waitingLength -= waiting[at]?.text.length ?? 0;
      waiting.splice(at, 1);
    }
    waiting.push({ text, isRequest: unasked !== null });
    waitingLength += length;
    return null;
  }

  function forOthers(): Lane | null {
    return standing ?? [...requests.values()].findLast(({ asked }) => asked.takesOthers)?.lane ?? null;
  }

  return {
    push(text, envelope = readEnvelope(text)) {
      const { id, method } = envelope;
      if (method === undefined) {
        // An error without an id can only mean a request that is the only one. An answer to none that is under way is nobody's.
        const [only] = requests.keys();
        const answered = id ?? (envelope.isError && requests.size === 1 ? only : undefined);
        const lane = answered === undefined ? undefined : requests.get(answered)?.lane;
        if (answered !== undefined) requests.delete(answered);
        lane?.put(text);
        lane?.end();
        return null;
      }
      if (id === undefined && method === 'notifications/progress') {
        const { progressToken: token } = envelope;
        const of = [...requests.values()].find(({ asked }) => token !== undefined && asked.progressToken === token);
        of?.lane.put(text);
        return null;
      }
      if (id === undefined && method === 'notifications/cancelled') {
        if (envelope.requestId !== undefined) askedOn.get(envelope.requestId)?.put(text);
        return null;
      }
      const unasked = id === undefined ? null : { id, method };
      const lane = forOthers();
      // A ping that waits is answered too late.
      if (lane === null) return method === 'ping' ? unasked : keep(text, unasked);
      putOther(lane, text, envelope);
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
      waiting.length = 0;
      waitingLength = 0;
      fail(cause);
      account.close();
    },
  };
}

/** What of a message says where it belongs. */
export interface Envelope {
  readonly id: RpcId | undefined;
  readonly method: string | undefined;
  readonly progressToken: RpcId | undefined;
  readonly isError: boolean;
  readonly hasResult: boolean;
  /** Of a cancellation. */
  readonly requestId: RpcId | undefined;
}

/** Only to find the way: whoever takes the message reads it strictly. */
export function readEnvelope(text: string): Envelope {
  return envelopeOf(parse(text));
}

/** The same of a text of any size; null: a large one that cannot be read. */
export async function readLargeEnvelope(text: string, owner: string): Promise<Envelope | null> {
  if (text.length <= LARGE_TEXT) return readEnvelope(text);
  const reading = await readLargeJson(text, TARGET_RULES, owner);
  try {
    return reading.ok && isObject(reading.value) ? envelopeOf(reading.value) : null;
  } catch (cause) {
    if (cause instanceof UnreadFault) return null;
    throw cause;
  }
}

function envelopeOf(message: JsonObject): Envelope {
  const params = isObject(message.params) ? message.params : {};
  const holder = message.id !== undefined && isObject(params._meta) ? params._meta : params;
  return {
    id: idOf(message.id),
    method: typeof message.method === 'string' ? message.method : undefined,
    progressToken: idOf(holder.progressToken),
    isError: isObject(message.error),
    hasResult: 'result' in message,
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
