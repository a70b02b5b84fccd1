/** Secrets of confidential clients are stored as hashes. They have 512 random bits, so a plain hash is enough. */
import { timingSafeEqual } from 'node:crypto';
import { hashOf } from './record-store.ts';

export const CLIENT_SECRET_HASH = 'sha256:';

export function isClientSecret(stored: string | undefined, given: string): boolean {
  const expected = Buffer.from(stored ?? '');
  const actual = Buffer.from(`${CLIENT_SECRET_HASH}${hashOf(given)}`);
  return expected.length === actual.length && timingSafeEqual(expected, actual);
}
