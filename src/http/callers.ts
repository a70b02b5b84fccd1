/** Tells which caller a request belongs to before its token is checked, so that callers can take turns. */
import type { IncomingMessage } from 'node:http';
import type { TokenClaims } from '../auth/principal.ts';
import { keep } from '../base/kept.ts';
import { addressGroup, addressOf } from './client-address.ts';

const KNOWN = 5_000;

export type Callers = ReturnType<typeof createCallers>;

export function createCallers(trustProxy: boolean) {
  /** Principals by `Authorization` header. An unknown token shares the turns of its address, because anybody can make one up. */
  const known = new Map<string, string>();
  return {
    /** The principal, if the token was found valid before. null: it was not, or there is none. Only for the order of requests. */
    principalOf: (req: IncomingMessage): string | null => known.get(req.headers.authorization ?? '') ?? null,
    addressOf: (req: IncomingMessage): string => addressGroup(addressOf(req, trustProxy)),
    /** Remembers whose token this header carries. */
    heard(authorization: string | undefined, { iss, sub }: TokenClaims): void {
      if (authorization === undefined || known.has(authorization)) return;
      keep(known, authorization, JSON.stringify([iss, sub]), KNOWN);
    },
  };
}
