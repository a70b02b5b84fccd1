/** The turns of requests that anybody can send and that cost much, such as those of a sign-in. */
import type { ServerResponse } from 'node:http';
import { AppError } from '../../base/errors.ts';
import { createSpareTurns } from '../../base/turns/spare-turns.ts';
import { addressGroup } from './client-address.ts';
import { holdBody } from './crowded.ts';

const turns = createSpareTurns();

/** Resolves when it is the turn of the address. Throws AppError `too_many_requests` if too many of its requests wait already, or if the client is gone. */
export async function turnOfStranger(res: ServerResponse, address: string): Promise<void> {
  const release = holdBody(res.req);
  const end = await turns.come(addressGroup(address), () => res.closed);
  release();
  if (end === null)
    throw new AppError('too_many_requests', 'Too many requests of your address wait. Try again in 1 s.', { retryAfter: 1 });
  if (res.closed) end();
  else res.once('close', end);
}
