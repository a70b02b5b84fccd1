/**
 * Limits the processor time that reading from targets takes. It depends less on the number of bytes than on their form: a chunk
 * of one byte or an empty line costs about as much as a whole message. A target above its limit is read in small parts, which
 * have their turns in the lane, so that the requests of others keep most of the thread.
 */
import type { Socket } from 'node:net';
import { createFlow } from '../../base/budgets.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import { lane, laneOnce, userOf } from '../../base/turns/lane.ts';

/** Milliseconds of processor time. A source is a user at a target. */
const LIMITS = { perKey: { perSecond: 250, burst: 50 }, all: { perSecond: 500, burst: 100 } };
/** The bytes of a connection that are read in one turn. */
export const PART_BYTES = 4 * 1024;
/** The most bytes of a connection that are read before their source is charged. */
const UNCHARGED_BYTES = 16 * 1024;
/** A source within its limit is read for this long at once. The rest of a chunk waits for its turn. */
const AT_ONCE_MS = 4;
/** A source that has used this much in one turn of the event loop waits for its next turn. */
const TURN_MS = 2;
/** An estimate of what delivering one event takes, and each of its characters, which are read, decided and written. */
const EVENT_MS = 0.015;
const CHARACTER_MS = 8e-6;
/** An estimate of what the kernel takes to copy a byte, before this thread sees it. */
const COPIED_BYTE_MS = 1.5e-6;

const used = createFlow(LIMITS, () => performance.now(), userOf);
/** What each source has used in this turn of the event loop. */
const usedInTurn = new Map<string, number>();
const endTurn = (): void => usedInTurn.clear();

/** Charges the source with this much processor time. */
export function charge(source: string, ms: number): void {
  used.charge(source, ms);
  if (usedInTurn.size === 0) setImmediate(endTurn);
  usedInTurn.set(source, (usedInTurn.get(source) ?? 0) + ms);
}

const isAboveLimit = (source: string): boolean => used.wait(source) > 0;
const mustWait = (source: string): boolean => (usedInTurn.get(source) ?? 0) > TURN_MS || isAboveLimit(source);

/** What reading the bytes has taken. It is limited, because a wait for the processor is not the fault of the source. */
const readingSince = (began: number, bytes: number): number => Math.min(performance.now() - began, 0.1 + bytes * 0.002);

/** Runs work on a message of the source, which may be far longer than reading its bytes, and charges its time. */
export function chargedTo<T>(source: string, length: number, work: () => T): T {
  const began = performance.now();
  try {
    return work();
  } finally {
    const ms = readingSince(began, length);
    charge(source, ms);
    if (isAboveLimit(source)) lane.rest(ms);
  }
}

/** Charges for delivering events of this length in all. What is long is read and written in the lane. */
export function chargeEvents(source: string, count: number, length: number): void {
  const ms = EVENT_MS * count + CHARACTER_MS * Math.min(length, LARGE_TEXT);
  charge(source, ms);
  if (isAboveLimit(source)) lane.rest(ms);
}

/**
 * Resolves when it is the turn of the source, and never before the event loop has served others. null: it is within its limits
 * and need not wait.
 */
export function turnOf(source: string): Promise<void> | null {
  return mustWait(source) ? lane.run(source, () => true, false) : null;
}

/**
 * Hands the bytes of a source to `take` in parts: all at once (null), or each in its turn if the source is above its limit or
 * reading the first parts has taken long.
 */
export function takeInTurns(
  source: string,
  bytes: Buffer,
  partBytes: number,
  take: (part: Buffer) => void,
): Promise<void> | null {
  const timed = (part: Buffer): void => {
    const began = performance.now();
    take(part);
    charge(source, readingSince(began, part.length));
  };
  if (mustWait(source)) return takeParts(source, bytes, partBytes, timed);
  const until = performance.now() + AT_ONCE_MS;
  for (let from = 0; from < bytes.length; from += partBytes) {
    if (from > 0 && performance.now() >= until) return takeParts(source, bytes.subarray(from), partBytes, timed);
    timed(bytes.subarray(from, from + partBytes));
  }
  return null;
}

async function takeParts(source: string, bytes: Buffer, partBytes: number, take: (part: Buffer) => void): Promise<void> {
  for (let from = 0; from < bytes.length; from += partBytes) {
    await laneOnce(source, () => take(bytes.subarray(from, from + partBytes)), false);
  }
}

/** The same for a stream that cannot always be paused at once. `free`: called when all bytes are taken. */
export function pipeInTurns(source: string, partBytes: number, take: (bytes: Buffer) => void, free: () => void) {
  let pending: Promise<void> | null = null;
  return {
    /** False: the bytes are taken later. Pause the stream until `free` is called. */
    push(bytes: Buffer): boolean {
      const taking =
        pending === null
          ? takeInTurns(source, bytes, partBytes, take)
          : pending.then(() => takeInTurns(source, bytes, partBytes, take) ?? undefined);
      if (taking === null) return true;
      const own = taking.then(() => {
        if (pending !== own) return;
        pending = null;
        free();
      });
      pending = own;
      return false;
    },
    /** Resolves when all bytes are taken. null: they are. */
    get pending(): Promise<void> | null {
      return pending;
    },
  };
}

/** Makes the reader of the socket, which is undici, take turns if the source that it carries now is above the limit. */
export function readInTurns<S extends Socket>(socket: S, sourceOf: (socket: S) => string): S {
  const read = socket.read.bind(socket) as (size?: number) => Buffer | null;
  let state: 'free' | 'waits' | 'turn' = 'free';
  let given: { readonly source: string; readonly at: number; readonly bytes: number } | null = null;

  /** undici has handled what it got when it reads again, or when its call stack has ended. */
  function settle(): void {
    if (given !== null) charge(given.source, readingSince(given.at, given.bytes) + given.bytes * COPIED_BYTE_MS);
    given = null;
  }

  function beginTurn(): void {
    state = 'turn';
    socket.emit('readable');
    if (state === 'turn') state = 'free';
  }

  socket.read = (size?: number): unknown => {
    // Node's own reads pass a size.
    if (size !== undefined) return read(size);
    settle();
    const source = sourceOf(socket);
    if (state === 'free' && mustWait(source)) {
      state = 'waits';
      // Leave this call stack first, because the lane may begin at once.
      setImmediate(() => void laneOnce(source, beginTurn, false));
    }
    if (state === 'waits') return null;
    const most = state === 'turn' && isAboveLimit(source) ? PART_BYTES : UNCHARGED_BYTES;
    const chunk = read(socket.readableLength > most ? most : undefined);
    state = 'free';
    if (chunk !== null) {
      given = { source, at: performance.now(), bytes: chunk.length };
      queueMicrotask(settle);
    }
    return chunk;
  };
  return socket;
}
