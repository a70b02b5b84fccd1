/** How much one principal may have under way in this process, so that none can take all connections to a target. */
import type { TokenClaims } from '../auth/principal.ts';

export interface Places {
  /** Returns how to leave, once or more often; null where the principal holds all it may. */
  take(claims: TokenClaims): (() => void) | null;
}

/** By issuer and subject, never by e-mail. */
export function principalKey({ iss, sub }: Pick<TokenClaims, 'iss' | 'sub'>): string {
  return JSON.stringify([iss, sub]);
}

export function createPlaces(limit: number): Places {
  const taken = new Map<string, number>();
  return {
    take(claims) {
      const key = principalKey(claims);
      const before = taken.get(key) ?? 0;
      if (before >= limit) return null;
      taken.set(key, before + 1);
      let left = false;
      return () => {
        if (left) return;
        left = true;
        const now = (taken.get(key) ?? 1) - 1;
        if (now === 0) taken.delete(key);
        else taken.set(key, now);
      };
    },
  };
}
