/**
 * Backpressure: limits the bytes of answers that wait in this process for their clients, per principal and in total. The
 * connection of a client that reads nothing for a while is closed, because its answer holds memory and a stream of its target.
 */
import type { ServerResponse } from 'node:http';
import { createStock, isOverdrawn, type Overdrawn, type Taken } from '../../base/budgets.ts';
import type { Log } from '../../base/log.ts';

/** The text for a principal that is refused. */
export const LEFT_UNREAD =
  'Your clients have left too many bytes of their answers unread. Read them, or close those connections.';

export interface OutboxLimits {
  /** Bytes that wait for clients: of one principal, and of all principals. */
  readonly waitingBytesOfPrincipal: number;
  readonly waitingBytesOfAll: number;
  /** How long a client may read nothing while an answer waits for it. */
  readonly stallMs: number;
}

export interface Recipient {
  readonly principal: string;
  /**
   * Resolves when the client has read what was written, or is gone. Closes its connection if it reads nothing, or if too much
   * waits. `rest`: characters of the same answer that are not written yet.
   */
  taken(rest: number): Promise<void>;
}

export type Outbox = ReturnType<typeof createOutbox>;

export function createOutbox({ waitingBytesOfPrincipal, waitingBytesOfAll, stallMs }: OutboxLimits) {
  const stock = createStock('answers that clients have not read', { perKey: waitingBytesOfPrincipal, all: waitingBytesOfAll });

  return {
    /** Bytes that wait now. */
    get waiting(): number {
      return stock.taken;
    },
    /** Refuses a principal while less than a quarter of its bytes is free, until its clients have read some. null: not refused. */
    refusal(principal: string): Overdrawn | null {
      if (stock.taken === 0) return null;
      const room = stock.take(principal, waitingBytesOfPrincipal / 4);
      // Unread answers of other principals do not refuse this one.
      if (isOverdrawn(room)) return room.overdrawn === 'key' ? room : null;
      room.giveBack();
      return null;
    },
    /** Counts a part of an answer that waits for the other parts. */
    hold: (principal: string, bytes: number): Taken | Overdrawn => stock.take(principal, bytes),
    /** Registers the client of one answer. */
    open: (res: ServerResponse, principal: string, log: Log): Recipient => ({
      principal,
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
          log.warn({ principal, bytes }, `client closed: it read nothing of its answer for ${stallMs / 1_000} s`);
        });
        account.giveBack();
      },
    }),
  };
}

/** Resolves when all that was written has been sent, or the connection is closed. Closes it after `stallMs`. */
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
    // An answer that waits behind others on its connection gets no event when the connection ends.
    socket.on('close', settle);
  });
}
