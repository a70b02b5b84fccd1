/** Which session is evicted for a new one. Pure. */

interface Owned {
  readonly user: string;
}

/**
 * Returns the session that is evicted for a new one of this user; null: none. `sessions`: those that compete for the slots, the least recently used
 * first. If a user has at least two more than this user, the user with the most loses one: an unused one, or else the oldest. Otherwise only an
 * unused session is evicted, of any user.
 */
export function toEvict<T extends Owned>(sessions: readonly T[], user: string, isUnused: (session: T) => boolean): T | null {
  const counts = new Map<string, number>();
  for (const session of sessions) counts.set(session.user, (counts.get(session.user) ?? 0) + 1);
  const [most, highest] = [...counts].reduce((most, next) => (next[1] > most[1] ? next : most), [user, 0]);
  if (highest < (counts.get(user) ?? 0) + 2) return sessions.find(isUnused) ?? null;
  const theirs = sessions.filter((session) => session.user === most);
  return theirs.find(isUnused) ?? theirs[0] ?? null;
}
