/** Which session is evicted for a new one. Pure. */

interface Owned {
  readonly user: string;
}

/**
 * Returns the session that is evicted for a new one of this user; null: none. `sessions`: those that compete for the slots, the least recently used
 * first. `opening`: how many more slots the user has. If a user has at least two more than this user, the user with the most loses a session: an
 * unused one, or else the oldest. Otherwise an unused session of a user is evicted who has at least as many.
 */
export function toEvict<T extends Owned>(
  sessions: readonly T[],
  user: string,
  opening: number,
  isUnused: (session: T) => boolean,
): T | null {
  const counts = new Map<string, number>();
  const countOf = ({ user }: T): number => counts.get(user) ?? 0;
  for (const session of sessions) counts.set(session.user, countOf(session) + 1);
  const own = (counts.get(user) ?? 0) + opening;
  const ofMost = (some: readonly T[]): T | null =>
    some.reduce<T | null>((most, next) => (most === null || countOf(next) > countOf(most) ? next : most), null);
  const most = ofMost(sessions);
  if (most !== null && countOf(most) >= own + 2) return sessions.find((one) => one.user === most.user && isUnused(one)) ?? most;
  return ofMost(sessions.filter((one) => isUnused(one) && countOf(one) >= own));
}
