/** A cache of identities by token. Entries can be removed by token or by user. */
import { userKey } from '../auth/principal.ts';
import type { Identity } from './admission.ts';

/** The claim `jti` of the tokens to which the identity belongs. */
export const keyOf = ({ token, user }: Identity): string => token?.id ?? userKey(user.id);

/** Holds at most `capacity` identities, and evicts the oldest one for a new one. */
export function createIdentities(capacity: number) {
  const byToken = new Map<string, Identity>();
  const tokensOf = new Map<string, Set<string>>();

  function forgetToken(tokenId: string): void {
    const identity = byToken.get(tokenId);
    if (identity === undefined) return;
    byToken.delete(tokenId);
    const tokens = tokensOf.get(identity.user.id);
    tokens?.delete(tokenId);
    if (tokens?.size === 0) tokensOf.delete(identity.user.id);
  }

  return {
    get: (tokenId: string): Identity | undefined => byToken.get(tokenId),
    remember(identity: Identity): void {
      const { user } = identity;
      const key = keyOf(identity);
      forgetToken(key);
      const [oldest] = byToken.keys();
      if (byToken.size >= capacity && oldest !== undefined) forgetToken(oldest);
      byToken.set(key, identity);
      tokensOf.set(user.id, (tokensOf.get(user.id) ?? new Set<string>()).add(key));
    },
    forgetToken,
    /** Removes the identities of all tokens of the user. The time depends only on the number of these tokens. */
    forgetUser(userId: string): void {
      for (const tokenId of tokensOf.get(userId) ?? []) forgetToken(tokenId);
    },
    clear(): void {
      byToken.clear();
      tokensOf.clear();
    },
  };
}
