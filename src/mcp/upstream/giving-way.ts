/** Which session ends when a new one needs its place. Pure. */

interface Placed {
  readonly user: string;
}

/**
 * Returns the session that gives way to a new one of this user; null: none. `sessions`: those that compete for places, the one unused for longest
 * first. The user with the most sessions gives way, if that leaves this user with as many at least: an unused session if there is one.
 * Otherwise only sessions that are not in use give way, whoever has them.
 */
export function givesWay<T extends Placed>(sessions: readonly T[], user: string, isUnused: (session: T) => boolean): T | null {
  const counts = new Map<string, number>([[user, 0]]);
  for (const session of sessions) counts.set(session.user, (counts.get(session.user) ?? 0) + 1);
  const own = counts.get(user) ?? 0;
  const [most = user] = [...counts].reduce((most, next) => (next[1] > most[1] ? next : most));
  const unused = sessions.find(isUnused) ?? null;
  if ((counts.get(most) ?? 0) < own + 2) return unused;
  const theirs = sessions.filter((session) => session.user === most);
  return theirs.find(isUnused) ?? theirs[0] ?? unused;
}
