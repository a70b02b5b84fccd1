/** The turns of requests that begin only in spare time: those that anybody can send and that cost much, and those of crowded addresses. */
import type { ServerResponse } from 'node:http';
import { AppError } from '../../base/errors.ts';
import { createSpareTurns, type SpareTurns } from '../../base/turns/spare-turns.ts';
import { addressGroup } from './client-address.ts';
import { holdBody } from './crowded.ts';

const LIMITS = { mostUnderWay: 2, longestRestMs: 25, mostWaiting: 100 };
/** A request whose body has not arrived gives its turn back soon: its work has not begun, and its sender may be slow on purpose. */
const BODY_MS = 10;
const strangers = createSpareTurns(LIMITS);
const crowds = createSpareTurns(LIMITS);

async function come(turns: SpareTurns, key: string, whose: string, res: ServerResponse, rank = 0): Promise<void> {
  const release = holdBody(res.req);
  const end = await turns.come(key, () => res.closed, rank);
  release();
  if (end === null)
    throw new AppError('too_many_requests', `Too many requests of your ${whose} wait. Try again in 1 s.`, { retryAfter: 1 });
  if (res.closed) end();
  else res.once('close', end);
  if (!res.req.complete) setTimeout(end, BODY_MS).unref();
}

/** Resolves when it is the turn of the address. Throws AppError `too_many_requests` if too many of its requests wait already, or if the client is gone. */
export const turnOfStranger = (res: ServerResponse, address: string): Promise<void> =>
  come(strangers, addressGroup(address), 'address', res);

/** The same for a principal whose address has used up its limit. Every other turn is that of who has sent fewest requests in this minute (`uses`). */
export const turnInCrowd = (res: ServerResponse, principal: string, uses: number): Promise<void> =>
  come(crowds, principal, 'user', res, uses);
