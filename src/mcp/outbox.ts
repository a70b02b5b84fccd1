/**
 * Answers that wait in this process for their clients to take them: bounded by principal and for the process. A client that takes
 * nothing for a while is closed, because what waits for it holds memory and a stream of its target.
 */
import type { ServerResponse } from 'node:http';
import type { Log } from '../log.ts';
import { createStock, isOverdrawn, type Overdrawn } from './budgets.ts';

export interface OutboxLimits {
  /** Bytes that wait for clients: of one principal, and of all. */
  readonly waitingBytesOfPrincipal: number;
  readonly waitingBytesOfAll: number;
  /** How long a client may take nothing while an answer waits for it. */
  readonly stallMs: number;
}

export interface Outbox {
  /** Why the principal gets no more answers until its clients have taken some: less than a quarter of its bytes is left. null: it gets them. */
  refusal(principal: string): Overdrawn | null;
  /** The client of one answer. */
  open(res: ServerResponse, principal: string, log: Log): Recipient;
  /** Bytes that wait at present. */
  readonly waiting: number;
}

export interface Recipient {
  /**
   * Resolves when the client has taken what was written, or is gone: it is closed when it takes nothing, or too much waits.
   * `rest`: characters of the same answer that are not written yet.
   */
  taken(rest: number): Promise<void>;
}

export function createOutbox({ waitingBytesOfPrincipal, waitingBytesOfAll, stallMs }: OutboxLimits): Outbox {
  const stock = createStock('answers that clients have not taken', { perKey: waitingBytesOfPrincipal, all: waitingBytesOfAll });

  return {
    get waiting() {
      return stock.taken;
    },
    refusal(principal) {
      if (stock.taken === 0) return null;
      const room = stock.take(principal, waitingBytesOfPrincipal / 4);
      // What others have not taken refuses nobody.
      if (isOverdrawn(room)) return room.overdrawn === 'key' ? room : null;
      room.giveBack();
      return null;
    },
    open: (res, principal, log) => ({
      async taken(rest) {
        const bytes = res.writableLength + rest;
        if (res.writableLength === 0 || res.req.socket.destroyed) return;
        const account = stock.take(principal, bytes);
        if (isOverdrawn(account)) {
          const whose = account.overdrawn === 'key' ? 'the clients of one principal' : 'all clients';
          log.warn({ principal, bytes, limit: account.limit }, `client closed: too many bytes of answers wait for ${whose}`);
          res.req.socket.destroy();
          return;
        }
        await drained(res, stallMs, () => {
          log.warn({ principal, bytes }, `client closed: it took nothing of its answer for ${stallMs / 1_000} s`);
        });
        account.giveBack();
      },
    }),
  };
}

/** Resolves when all that was written has left, or the connection is closed: after `stallMs` it is. */
function drained(res: ServerResponse, stallMs: number, stalled: () => void): Promise<void> {
  const { socket } = res.req;
  return new Promise((resolve) => {
    const settle = (): void => {
      clearTimeout(timer);
      res.off('drain', settle).off('finish', settle).off('close', settle);
      socket.off('close', settle);
      resolve();
    };
    const timer = setTimeout(() => {
      stalled();
      socket.destroy();
    }, stallMs);
    res.on('drain', settle).on('finish', settle).on('close', settle);
    // An answer that waits behind others of its connection is not told of the end of that.
    socket.on('close', settle);
  });
}
