/**
 * What the bytes of a request say of its sender before node parses them. To parse a head takes more of the thread than to look at it, so whose turn
 * it is must be known before. Only for turns: nobody has checked the head.
 */

const LINES = /\r\n(authorization|x-forwarded-for):([^\r\n]*)/gi;
const HEALTH = /^\S+ \/health[/ ?]/;

export interface FirstLook {
  readonly authorization: string | undefined;
  readonly forwardedFor: string | undefined;
  /** Health checks of a load balancer do not wait behind other requests from its address. */
  readonly isHealth: boolean;
}

/** `packet`: what a connection sends first, or after a request. */
export function firstLook(packet: Buffer): FirstLook {
  const end = packet.indexOf('\r\n\r\n');
  const head = packet.toString('latin1', 0, end === -1 ? packet.length : end);
  const lines = [...head.matchAll(LINES)].map(([, name = '', value = '']) => ({ name: name.toLowerCase(), value: value.trim() }));
  return {
    authorization: lines.find(({ name }) => name === 'authorization')?.value,
    forwardedFor: lines.findLast(({ name }) => name === 'x-forwarded-for')?.value,
    isHealth: HEALTH.test(head),
  };
}
