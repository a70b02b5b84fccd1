/** Answers that wait in this process for clients that do not take them: bounded in time and in memory. */
import type { ServerResponse } from 'node:http';
import type { Log } from '../log.ts';
import { createStock, isOverdrawn, type Stock } from '../mcp/budgets.ts';
import type { OutboxLimits } from '../mcp/outbox.ts';

export interface UnreadLimits {
  /** How long a client may take nothing of its answer. */
  readonly stallMs: number;
  /** Bytes that wait, by owner: one stock for the process. */
  readonly waiting: Stock;
  /** What one answer counts at most: the list of an administrator may be larger than what many answers together may be. */
  readonly bytesOfAnswer: number;
}

/** Those of answers at `/mcp`, counted apart from them. */
export function createUnreadLimits({
  waitingBytesOfPrincipal: perKey,
  waitingBytesOfAll: all,
  stallMs,
}: OutboxLimits): UnreadLimits {
  return { stallMs, waiting: createStock('answers that clients have not taken', { perKey, all }), bytesOfAnswer: perKey / 2 };
}

/** To be told before anything is answered. `ownerOf` is asked when the answer is written. */
export function limitUnread(res: ServerResponse, ownerOf: () => string, limits: UnreadLimits, log: Log): void {
  const { stallMs, waiting, bytesOfAnswer } = limits;
  const close = (why: string): void => {
    log.warn({ owner: ownerOf(), bytes: res.writableLength }, `client closed: ${why}`);
    res.req.socket.destroy();
  };
  // Node begins anew with every part that the client takes. A request that is still worked on is no stalled answer.
  res.setTimeout(stallMs, () => {
    if (res.writableLength > 0) close(`it took nothing of its answer for ${stallMs / 1_000} s`);
  });
  res.once('prefinish', () => {
    if (res.writableLength === 0) return;
    const taken = waiting.take(ownerOf(), Math.min(res.writableLength, bytesOfAnswer));
    if (isOverdrawn(taken)) close('too many bytes of answers wait for clients');
    else res.once('finish', taken.giveBack).once('close', taken.giveBack);
  });
}
