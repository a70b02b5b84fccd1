/** Limits the time and memory for answers that wait in this process because their clients do not read them. */
import type { ServerResponse } from 'node:http';
import { createStock, isOverdrawn, type Stock } from '../../base/budgets.ts';
import type { Log } from '../../base/log.ts';
import type { OutboxLimits } from './outbox.ts';

export interface UnreadLimits {
  /** How long a client may stop reading its answer, in milliseconds. */
  readonly stallMs: number;
  /** The waiting bytes by owner, for the whole process. */
  readonly waiting: Stock;
  /** The most that one answer counts. A list for an administrator may be larger than the limit of many answers together. */
  readonly bytesOfAnswer: number;
}

/** Returns the same limits as for answers at `/mcp`, with a separate count. */
export function createUnreadLimits({
  waitingBytesOfPrincipal: perKey,
  waitingBytesOfAll: all,
  stallMs,
}: OutboxLimits): UnreadLimits {
  return { stallMs, waiting: createStock('answers that clients have not taken', { perKey, all }), bytesOfAnswer: perKey / 2 };
}

/** Call this before anything is answered. `ownerOf` is called when the answer is written. */
export function limitUnread(res: ServerResponse, ownerOf: () => string, limits: UnreadLimits, log: Log): void {
  const { stallMs, waiting, bytesOfAnswer } = limits;
  const close = (why: string): void => {
    log.warn({ owner: ownerOf(), bytes: res.writableLength }, `client closed: ${why}`);
    res.req.socket.destroy();
  };
  // Node restarts this timeout with every part that the client reads. A request that is still being handled is not a stalled
  // answer.
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
