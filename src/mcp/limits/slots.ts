/**
 * Concurrency slots: limits the calls of one principal in flight in this process, so that no principal takes all connections to a target.
 */
import { principalKey, type TokenClaims } from '../../auth/principal.ts';

export type Slots = ReturnType<typeof createSlots>;

export function createSlots(limit: number) {
  const taken = new Map<string, number>();
  return {
    /** Takes a slot. Returns a function that frees it, which may be called more than once. null: the principal has no slot left. */
    take(claims: TokenClaims): (() => void) | null {
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
