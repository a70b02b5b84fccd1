/**
 * Limits the processor time that reading from targets takes. It depends less on the number of bytes than on their form: a chunk
 * of one byte or an empty line costs about as much as a whole message. A target above its limit is read in small parts, which
 * have their turns in the lane, so that the requests of others keep most of the thread.
 */
import type { Socket } from 'node:net';
import { createFlow } from '../../base/budgets.ts';
import { laneOnce } from '../../base/lane.ts';

/** Milliseconds of processor time. */
const LIMITS = { perKey: { perSecond: 250, burst: 50 }, all: { perSecond: 500, burst: 100 } };
/** The bytes of a connection that are read in one turn. */
const PART_BYTES = 8 * 1024;
/** An estimate of what delivering one event takes. */
const EVENT_MS = 0.015;

const used = createFlow(LIMITS, () => performance.now());

/** Charges the source for the time that the work takes. */
export function timed<T>(source: string, work: () => T): T {
  const began = performance.now();
  try {
    return work();
  } finally {
    used.charge(source, performance.now() - began);
  }
}

export function chargeEvents(source: string, count: number): void {
  used.charge(source, EVENT_MS * count);
}

/** Resolves when it is the turn of the source. null: it is within its limit and need not wait. */
export function turnOf(source: string): Promise<void> | null {
  return used.wait(source) > 0 ? laneOnce(source, () => undefined) : null;
}

/** Hands the bytes of a source to `take`: all at once, or in parts if it takes turns. `free`: called when all are taken. */
export function partsInTurn(source: string, partBytes: number, take: (bytes: Buffer) => void, free: () => void) {
  let pending: Promise<void> | null = null;

  async function takeParts(bytes: Buffer): Promise<void> {
    for (let from = 0; from < bytes.length; from += partBytes) {
      await laneOnce(source, () => timed(source, () => take(bytes.subarray(from, from + partBytes))));
    }
  }

  return {
    /** False: the bytes are taken later. Pause the stream until `free` is called. */
    push(bytes: Buffer): boolean {
      if (pending === null && used.wait(source) === 0) {
        timed(source, () => take(bytes));
        return true;
      }
      const own = (pending ?? Promise.resolve())
        .then(() => takeParts(bytes))
        .then(() => {
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

/** Makes the reader of the socket, which is undici, take turns if its server is above the limit. */
export function readInTurns<S extends Socket>(socket: S, server: string): S {
  const read = socket.read.bind(socket);
  let state: 'free' | 'waits' | 'turn' = 'free';
  let gaveAt: number | null = null;

  /** undici has handled what it got when it reads again, or when its call stack has ended. */
  function settle(): void {
    if (gaveAt !== null) used.charge(server, performance.now() - gaveAt);
    gaveAt = null;
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
    if (state === 'free' && used.wait(server) > 0) {
      state = 'waits';
      // Not in this call stack: the lane may begin at once.
      setImmediate(() => void laneOnce(server, beginTurn));
    }
    if (state === 'waits') return null;
    const chunk: unknown = read(state === 'turn' && socket.readableLength > PART_BYTES ? PART_BYTES : undefined);
    state = 'free';
    if (chunk !== null) {
      gaveAt = performance.now();
      queueMicrotask(settle);
    }
    return chunk;
  };
  return socket;
}
