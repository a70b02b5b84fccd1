/**
 * Demultiplexes the single channel of a target into the streams of Streamable HTTP. Each request has a stream for its progress
 * and answer. Other messages go to the standalone stream. If that is closed, the stream of the newest request carries them; if
 * there is none, they wait.
 */

import { errors } from 'undici';
import { createStock, isOverdrawn, type Taken } from '../../base/budgets.ts';
import { unlessUnread } from '../../base/json/built.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { LARGE_TEXT, readLargeJson } from '../../base/json/large.ts';
import { TARGET_RULES } from '../../base/json/selection.ts';
import { keep } from '../../base/kept.ts';
import { deferred } from '../../base/promises.ts';
import { isId, type RpcId, type RpcRequest } from '../../protocol/message.ts';
import type { SseEvent } from '../../protocol/sse.ts';
import { createEventQueue } from './events.ts';
import type { UnreadAccount } from './unread.ts';

export type Demultiplexer = ReturnType<typeof createDemultiplexer>;

export interface StreamRequest {
  readonly id: RpcId;
  readonly progressToken: RpcId | undefined;
  /** Whether its stream may carry messages that belong to no request. The stream of `initialize` may not. */
  readonly takesOthers: boolean;
}

export interface DemultiplexedStream {
  /** The events, for a single reader. */
  readonly events: AsyncIterable<readonly SseEvent[]>;
  /** Resolves when there is something to read, which may be the end of the stream. */
  readonly arrived: Promise<void>;
  /** Closes the stream, because its reader has left. */
  close(): void;
  /** Ends the stream at once; the reader gets the cause. */
  abort(cause: Error): void;
}

/** A request of the target that no client will see. The owner of the channel has to answer it. */
export type Unasked = Pick<RpcRequest, 'id' | 'method'>;

/** How many characters may wait to be read. One more message of any size may follow. */
const ROOM = 1024 * 1024;
const MAX_WAITING = 100;
/** The characters that wait for a stream, of one target and of all. The first of each session are not counted. */
const WAITING = { perKey: 8 * 1024 * 1024, all: 32 * 1024 * 1024 };
const FREE_WAITING = 16 * 1024;
const waitingRoom = createStock('messages without a stream', WAITING);
/** For how many requests of the target the stream is remembered, to route their cancellation. */
const MAX_ASKED = 100;

interface Lane extends DemultiplexedStream {
  put(text: string): void;
  /** Ends the stream after the answer. */
  end(): void;
  /** Fails the stream, unless it is already answered. */
  breakOff(cause: Error): void;
}

/** `idleMs`: how long the stream of a request may stay silent. `quiet` is called when the last stream closes. */
export function createDemultiplexer(
  targetId: string,
  idleMs: number,
  account: UnreadAccount,
  quiet: () => void = () => undefined,
) {
  /** Ordered by age, oldest first. */
  const requests = new Map<RpcId, { readonly lane: Lane; readonly asked: StreamRequest }>();
  const lanes = new Set<Lane>();
  const askedOn = new Map<RpcId, Lane>();
  /** `unasked`: the request that the text is; null: it is a notification. */
  const waiting: { readonly text: string; readonly unasked: Unasked | null }[] = [];
  let waitingLength = 0;
  let room: Taken | null = null;
  let standing: Lane | null = null;
  let isOver = false;
  let unread = 0;
  let awaited: ReturnType<typeof deferred<void>> | null = null;

  function count(length: number): void {
    unread += length;
    const fault = account.set(unread);
    if (fault !== null) fail(fault);
    if (unread <= ROOM) settleRoom();
  }

  function fail(cause: Error): void {
    for (const lane of lanes) lane.breakOff(cause);
    settleRoom();
  }

  function settleRoom(): void {
    awaited?.resolve();
    awaited = null;
  }

  function open(laneIdleMs: number | null, left: (lane: Lane) => void): Lane {
    let isAnswered = false;
    let timer: NodeJS.Timeout | undefined;
    const { promise: arrived, resolve: tellArrived } = deferred();
    const queue = createEventQueue(targetId, {
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
      timer = setTimeout(
        () => queue.fail(new errors.BodyTimeoutError('the target sent nothing for too long')),
        laneIdleMs,
      ).unref();
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
    setWaiting(0);
    for (const { text, unasked } of waiting.splice(0)) putOther(lane, text, unasked);
  }

  /** False: there is no room for so many characters. */
  function setWaiting(length: number): boolean {
    const counted = Math.max(0, length - FREE_WAITING);
    if (room !== null || counted > 0) {
      const taken = room ?? waitingRoom.take(targetId, 0);
      if (isOverdrawn(taken) || taken.set(counted) !== null) return false;
      room = counted === 0 ? null : taken;
    }
    waitingLength = length;
    return true;
  }

  function putOther(lane: Lane, text: string, unasked: Unasked | null): void {
    if (unasked !== null) keep(askedOn, unasked.id, lane, MAX_ASKED);
    lane.put(text);
  }

  /**
   * Keeps a message until a stream opens. Notifications are evicted for later messages. A request that does not fit is returned,
   * because no client will see it.
   */
  function hold(text: string, unasked: Unasked | null): Unasked | null {
    const { length } = text;
    if (isOver || length > ROOM) return unasked;
    while (waiting.length >= MAX_WAITING || waitingLength + length > ROOM) {
      const at = waiting.findIndex((held) => held.unasked === null);
      if (at === -1) return unasked;
      setWaiting(waitingLength - (waiting[at]?.text.length ?? 0));
      waiting.splice(at, 1);
    }
    if (!setWaiting(waitingLength + length)) return unasked;
    waiting.push({ text, unasked });
    return null;
  }

  function forOthers(): Lane | null {
    return standing ?? [...requests.values()].findLast(({ asked }) => asked.takesOthers)?.lane ?? null;
  }

  return {
    /** Routes a message of the target, as text. The reader of the stream validates it. Returns a request that no client can see. */
    push(text: string, envelope: Envelope = readEnvelope(text)): Unasked | null {
      const { id, method } = envelope;
      if (method === undefined) {
        // An error without an id belongs to the only request in flight, if there is exactly one. Other answers without a request
        // are dropped.
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
      // A ping is not kept, because its answer would come too late.
      if (lane === null) return method === 'ping' ? unasked : hold(text, unasked);
      putOther(lane, text, unasked);
      return null;
    },
    /**
     * Opens the stream of a request. Call this before sending the request, because the answer may come at once. null: the id is
     * in use.
     */
    request(asked: StreamRequest): DemultiplexedStream | null {
      const { id, takesOthers } = asked;
      if (requests.has(id)) return null;
      const lane = open(idleMs, (left) => {
        if (requests.get(id)?.lane === left) requests.delete(id);
      });
      requests.set(id, { lane, asked });
      if (takesOthers && standing === null) takeWaiting(lane);
      return lane;
    },
    /** Opens the standalone stream. null: it is already open. */
    stand(): DemultiplexedStream | null {
      if (standing !== null) return null;
      const lane = open(null, () => {
        standing = null;
      });
      standing = lane;
      takeWaiting(lane);
      return lane;
    },
    /** Ends the standalone stream, if it is open. */
    endStanding: (): void => standing?.end(),
    /** Resolves when the streams accept more; null if they do now. Do not push until then. */
    room(): Promise<void> | null {
      if (unread <= ROOM) return null;
      awaited ??= deferred();
      return awaited.promise;
    },
    /** Whether all streams are closed. */
    isQuiet: (): boolean => lanes.size === 0,
    /** Ends all streams, for ever. */
    fail(cause: Error): void {
      isOver = true;
      waiting.length = 0;
      setWaiting(0);
      fail(cause);
      account.close();
    },
  };
}

/** The members of a message that tell which stream it belongs to. */
export interface Envelope {
  readonly id: RpcId | undefined;
  readonly method: string | undefined;
  readonly progressToken: RpcId | undefined;
  readonly isError: boolean;
  readonly hasResult: boolean;
  /** The request that a cancellation names. */
  readonly requestId: RpcId | undefined;
}

/** Reads the envelope for routing only. The reader of the stream parses the message strictly. */
export function readEnvelope(text: string): Envelope {
  return envelopeOf(parse(text));
}

/** Like `readEnvelope`, for a text of any size. null: a large text that cannot be read. */
export async function readLargeEnvelope(text: string, owner: string): Promise<Envelope | null> {
  if (text.length <= LARGE_TEXT) return readEnvelope(text);
  const reading = await readLargeJson(text, TARGET_RULES, owner);
  return unlessUnread(() => (reading.ok && isObject(reading.value) ? envelopeOf(reading.value) : null));
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
