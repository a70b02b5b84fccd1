/** Tells which caller a request belongs to before its token is checked, so that callers can take turns. */
import { hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { TokenClaims } from '../auth/principal.ts';
import { keep } from '../base/kept.ts';
import { addressGroup, addressOf } from './client-address.ts';

/** As many as the verifier of tokens remembers. */
const KNOWN = 10_000;

export type Callers = ReturnType<typeof createCallers>;

export function createCallers(trustProxy: boolean) {
  /**
   * Principals by the digest of the `Authorization` header, so that no token stays in memory. An unknown token shares the turns of
   * its address, because anybody can make one up.
   */
  const known = new Map<string, string>();
  /** The claims of a remembered token are the same object in each of its requests, and need not be hashed again. */
  const heard = new WeakSet<TokenClaims>();
  const digestOf = (authorization: string): string => hash('sha256', authorization, 'base64');
  return {
    /** The principal, if the token was found valid before. null: it was not, or there is none. Only for the order of requests. */
    principalOf({ headers: { authorization } }: IncomingMessage): string | null {
      return authorization === undefined ? null : (known.get(digestOf(authorization)) ?? null);
    },
    addressOf: (req: IncomingMessage): string => addressGroup(addressOf(req, trustProxy)),
    /** Remembers whose token this header carries. */
    heard(authorization: string | undefined, claims: TokenClaims): void {
      if (authorization === undefined || heard.has(claims)) return;
      heard.add(claims);
      const digest = digestOf(authorization);
      if (!known.has(digest)) keep(known, digest, JSON.stringify([claims.iss, claims.sub]), KNOWN);
    },
  };
}
