/** Tells which caller a request belongs to before its token is checked, so that callers can take turns. */
import { hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { isRefusal, principalKey, type TokenClaims } from '../auth/principal.ts';
import { keep, perObject } from '../base/kept.ts';
import { whenThere } from '../base/promises.ts';
import type { Admit } from '../state/admission.ts';
import { type Head, headOf, valuesOf } from './head.ts';
import { addressGroup, addressOf, forwardedAddress, peerOf } from './limits/client-address.ts';
import type { PacketSender } from './limits/connections.ts';
import { firstLook } from './limits/first-look.ts';

/** How many headers are remembered: as many as the verifier of tokens remembers. */
const KNOWN = 10_000;

export function createCallers(trustProxy: boolean) {
  /**
   * Principals by the digest of the `Authorization` header, so that no token stays in memory. An unknown token shares the turns of
   * its address, because anybody can make one up.
   */
  const known = new Map<string, string>();
  /** The digests of tokens that are verified, but perhaps not admitted yet. */
  const digests = new WeakMap<TokenClaims, string>();
  const digestOf = (authorization: string): string => hash('sha256', authorization, 'base64');
  const digestIn = perObject((head: Head): string | null => {
    const [authorization] = valuesOf(head, 'authorization');
    return authorization === undefined ? null : digestOf(authorization);
  });
  return {
    /** Returns the principal if its token was admitted the last time. null: it was not, or there is none. Only for turns and limits. */
    principalOf(req: IncomingMessage): string | null {
      const digest = digestIn(headOf(req));
      return digest === null ? null : (known.get(digest) ?? null);
    },
    addressOf: (req: IncomingMessage): string => addressGroup(addressOf(req, trustProxy)),
    /** Whose request begins with this packet. Only for turns. */
    senderIn(packet: Buffer, socket: Socket): PacketSender {
      const { authorization, forwardedFor, isHealth } = firstLook(packet);
      const principal = authorization === undefined ? undefined : known.get(digestOf(authorization));
      if (principal !== undefined) return { sender: principal, isStranger: false, isBody: false, isHealth };
      const address = addressGroup(trustProxy ? forwardedAddress(forwardedFor, socket) : peerOf(socket));
      return { sender: address, isStranger: true, isBody: false, isHealth };
    },
    /** Notes which header carries the token of these claims. */
    heard(authorization: string | undefined, claims: TokenClaims): void {
      if (authorization !== undefined && !digests.has(claims)) digests.set(claims, digestOf(authorization));
    },
    /**
     * Admits, and remembers whose token it was. A request with a refused token takes turns with strangers, and not with the user who lost
     * the token.
     */
    noting(admit: Admit): Admit {
      return (claims) =>
        whenThere(admit(claims), (admission) => {
          const digest = digests.get(claims);
          if (digest === undefined) return admission;
          if (isRefusal(admission)) known.delete(digest);
          else if (!known.has(digest)) keep(known, digest, principalKey(claims), KNOWN);
          return admission;
        });
    },
  };
}
