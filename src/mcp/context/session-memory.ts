/**
 * What this process remembers of sessions, by session, then by target. Its memory is limited, for each user and for all. The least recently used
 * sessions are evicted, and looked up again when needed.
 */

/** Bytes. */
export interface MemoryLimits {
  readonly perUser: number;
  readonly all: number;
}

interface Entry<T> {
  readonly value: T;
  bytes: number;
}

interface Remembered<T> {
  readonly user: string;
  readonly byTarget: Map<string, Entry<T>>;
  bytes: number;
  usedAt: number;
}

/** `evicted` gets the id of each session that is evicted. `elapsed`: milliseconds of a monotonic clock. */
export function createSessionMemory<T>(
  { perUser, all }: MemoryLimits,
  evicted: (sessionId: string) => void,
  elapsed = () => performance.now(),
) {
  /** The least recently used session comes first, here and in the sets of the users. */
  const sessions = new Map<string, Remembered<T>>();
  const users = new Map<string, { readonly ids: Set<string>; bytes: number }>();
  let total = 0;

  function used(sessionId: string, remembered: Remembered<T>): void {
    remembered.usedAt = elapsed();
    sessions.delete(sessionId);
    sessions.set(sessionId, remembered);
    const user = users.get(remembered.user) ?? { ids: new Set<string>(), bytes: 0 };
    users.set(remembered.user, user);
    user.ids.delete(sessionId);
    user.ids.add(sessionId);
  }

  function count(remembered: Remembered<T>, bytes: number): void {
    remembered.bytes += bytes;
    total += bytes;
    const user = users.get(remembered.user);
    if (user !== undefined) user.bytes += bytes;
  }

  function forget(sessionId: string): void {
    const remembered = sessions.get(sessionId);
    if (remembered === undefined) return;
    count(remembered, -remembered.bytes);
    sessions.delete(sessionId);
    const user = users.get(remembered.user);
    user?.ids.delete(sessionId);
    if (user?.ids.size === 0) users.delete(remembered.user);
  }

  /** Makes room. The session itself stays, because it is in use. */
  function makeRoom(sessionId: string, { user }: Remembered<T>): void {
    const own = users.get(user);
    while ((own?.bytes ?? 0) > perUser || total > all) {
      const ids = (own?.bytes ?? 0) > perUser ? own?.ids : sessions.keys();
      const [oldest] = ids ?? [];
      if (oldest === undefined || oldest === sessionId) return;
      forget(oldest);
      evicted(oldest);
    }
  }

  return {
    get(sessionId: string, targetId: string): T | undefined {
      const remembered = sessions.get(sessionId);
      const entry = remembered?.byTarget.get(targetId);
      if (remembered !== undefined && entry !== undefined) used(sessionId, remembered);
      return entry?.value;
    },
    set(user: string, sessionId: string, targetId: string, value: T, bytes: number): void {
      const remembered = sessions.get(sessionId) ?? { user, byTarget: new Map<string, Entry<T>>(), bytes: 0, usedAt: 0 };
      used(sessionId, remembered);
      count(remembered, bytes - (remembered.byTarget.get(targetId)?.bytes ?? 0));
      remembered.byTarget.set(targetId, { value, bytes });
      makeRoom(sessionId, remembered);
    },
    /** Counts so many bytes more, unless the value was replaced or forgotten. */
    grow(sessionId: string, targetId: string, value: T, bytes: number): void {
      const remembered = sessions.get(sessionId);
      const entry = remembered?.byTarget.get(targetId);
      if (remembered === undefined || entry?.value !== value) return;
      entry.bytes += bytes;
      used(sessionId, remembered);
      count(remembered, bytes);
      makeRoom(sessionId, remembered);
    },
    /** Forgets the value, unless it was replaced. */
    remove(sessionId: string, targetId: string, value: T): void {
      const remembered = sessions.get(sessionId);
      const entry = remembered?.byTarget.get(targetId);
      if (remembered === undefined || entry?.value !== value) return;
      remembered.byTarget.delete(targetId);
      count(remembered, -entry.bytes);
      if (remembered.byTarget.size === 0) forget(sessionId);
    },
    forget,
    /** Evicts the sessions that were not used for this many milliseconds. */
    evictUnused(ms: number): void {
      for (const [id, { usedAt }] of sessions) {
        if (elapsed() - usedAt < ms) return;
        forget(id);
        evicted(id);
      }
    },
    *values(): Generator<T, undefined> {
      for (const { byTarget } of sessions.values()) for (const { value } of byTarget.values()) yield value;
    },
  };
}
