/**
 * Reads from the bytes of a request who has sent it, before node parses them. Parsing a head takes far longer, so it must wait for the sender's
 * turn. Use the result only for turns, because the head is not checked yet.
 */
import { HEAD_LIMITS } from './heads.ts';

const LINES = /\r\n(authorization|x-forwarded-for):([^\r\n]*)/gi;
const HEALTH = /^[A-Z]{1,16} \/health[/ ?]/;

export interface FirstLook {
  readonly authorization: string | undefined;
  readonly forwardedFor: string | undefined;
  readonly isHealth: boolean;
}

export const HEAD_END = '\r\n\r\n';

/** `packet`: what a connection sends first, or after a request. */
export function firstLook(packet: Buffer): FirstLook {
  // Node refuses a longer head. This search runs before any turn, so it must be short.
  const start = packet.subarray(0, HEAD_LIMITS.maxHeaderSize);
  const end = start.indexOf(HEAD_END);
  const head = start.toString('latin1', 0, end === -1 ? start.length : end);
  const lines = [...head.matchAll(LINES)].map(([, name = '', value = '']) => ({ name: name.toLowerCase(), value: value.trim() }));
  return {
    authorization: lines.find(({ name }) => name === 'authorization')?.value,
    forwardedFor: lines.findLast(({ name }) => name === 'x-forwarded-for')?.value,
    isHealth: HEALTH.test(head),
  };
}
