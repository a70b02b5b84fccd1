/** Which session is evicted for a new one. Pure. */

interface Owned {
  readonly user: string;
}

/** A session, or one that is being opened. */
export interface Slot extends Owned {
  readonly targetId: string;
}

/** The maximum of one user at one target, of one target, and of all targets. */
export interface MaxSlots {
  readonly ofUser: number;
  readonly ofTarget: number;
  readonly all: number;
}

/**
 * Returns the sessions that compete for a slot with the wanted one, and how many more slots its user takes by opening sessions. null: a slot is free.
 * `open`: the least recently used session comes first.
 */
export function competitors<T extends Slot>(
  open: readonly T[],
  opening: readonly Slot[],
  wanted: Slot,
  max: MaxSlots,
): { readonly sessions: readonly T[]; readonly opening: number } | null {
  const isOfUser = ({ user }: Slot): boolean => user === wanted.user;
  const isAtTarget = ({ targetId }: Slot): boolean => targetId === wanted.targetId;
  const isUsersAtTarget = (slot: Slot): boolean => isAtTarget(slot) && isOfUser(slot);
  const taken = (competes: (slot: Slot) => boolean): number => open.filter(competes).length + opening.filter(competes).length;
  const competing = (competes: (slot: Slot) => boolean) => ({
    sessions: open.filter(competes),
    opening: opening.filter((slot) => competes(slot) && isOfUser(slot)).length,
  });
  if (taken(isUsersAtTarget) >= max.ofUser) return competing(isUsersAtTarget);
  if (taken(isAtTarget) >= max.ofTarget) return competing(isAtTarget);
  return open.length + opening.length >= max.all ? competing(() => true) : null;
}

/**
 * Returns the session that is evicted for a new one of this user; null: none. `sessions`: those that compete for the slots, the least recently used
 * first. `opening`: how many more slots the user takes. If a user has at least two more than this user, the user with the most loses a session: an
 * unused one, or else the oldest. Otherwise an unused session of a user is evicted who has at least as many.
 */
export function toEvict<T extends Owned>(
  sessions: readonly T[],
  user: string,
  opening: number,
  isUnused: (session: T) => boolean,
): T | null {
  const counts = new Map<string, number>();
  const countOf = ({ user }: Owned): number => counts.get(user) ?? 0;
  counts.set(user, opening);
  for (const session of sessions) counts.set(session.user, countOf(session) + 1);
  const own = countOf({ user });
  const ofMost = (some: readonly T[]): T | null =>
    some.reduce<T | null>((most, next) => (most === null || countOf(next) > countOf(most) ? next : most), null);
  const most = ofMost(sessions);
  if (most !== null && countOf(most) >= own + 2) return sessions.find((one) => one.user === most.user && isUnused(one)) ?? most;
  return ofMost(sessions.filter((one) => isUnused(one) && countOf(one) >= own));
}
