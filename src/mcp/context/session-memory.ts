/**
 * What this process remembers of sessions, by session, then by target. It is limited in memory, for each user and for all: the sessions that were
 * not used for the longest time are forgotten first, and looked up again when needed.
 */

/** Bytes. */
export interface MemoryLimits {
  readonly perUser: number;
  readonly all: number;
}

interface Held<T> {
  readonly entry: T;
  bytes: number;
}

interface Remembered<T> {
  readonly user: string;
  readonly byTarget: Map<string, Held<T>>;
  weight: number;
}

/** `forgotten` gets the id of each session that is forgotten for lack of memory. */
export function createSessionMemory<T>({ perUser, all }: MemoryLimits, forgotten: (sessionId: string) => void) {
  /** The session that was not used for the longest time comes first, here and in the sets of the users. */
  const sessions = new Map<string, Remembered<T>>();
  const users = new Map<string, { readonly ids: Set<string>; weight: number }>();
  let weight = 0;

  function used(sessionId: string, remembered: Remembered<T>): void {
    sessions.delete(sessionId);
    sessions.set(sessionId, remembered);
    const user = users.get(remembered.user) ?? { ids: new Set<string>(), weight: 0 };
    users.set(remembered.user, user);
    user.ids.delete(sessionId);
    user.ids.add(sessionId);
  }

  function weigh(remembered: Remembered<T>, bytes: number): void {
    remembered.weight += bytes;
    weight += bytes;
    const user = users.get(remembered.user);
    if (user !== undefined) user.weight += bytes;
  }

  function forget(sessionId: string): void {
    const remembered = sessions.get(sessionId);
    if (remembered === undefined) return;
    weigh(remembered, -remembered.weight);
    sessions.delete(sessionId);
    const user = users.get(remembered.user);
    user?.ids.delete(sessionId);
    if (user?.ids.size === 0) users.delete(remembered.user);
  }

  /** Makes room. The session itself stays, because it is in use. */
  function makeRoom(sessionId: string, { user }: Remembered<T>): void {
    const own = users.get(user);
    while ((own?.weight ?? 0) > perUser || weight > all) {
      const ids = (own?.weight ?? 0) > perUser ? own?.ids : sessions.keys();
      const [oldest] = ids ?? [];
      if (oldest === undefined || oldest === sessionId) return;
      forget(oldest);
      forgotten(oldest);
    }
  }

  return {
    get(sessionId: string, targetId: string): T | undefined {
      const remembered = sessions.get(sessionId);
      const held = remembered?.byTarget.get(targetId);
      if (remembered !== undefined && held !== undefined) used(sessionId, remembered);
      return held?.entry;
    },
    set(user: string, sessionId: string, targetId: string, entry: T, bytes: number): void {
      const remembered = sessions.get(sessionId) ?? { user, byTarget: new Map<string, Held<T>>(), weight: 0 };
      used(sessionId, remembered);
      weigh(remembered, bytes - (remembered.byTarget.get(targetId)?.bytes ?? 0));
      remembered.byTarget.set(targetId, { entry, bytes });
      makeRoom(sessionId, remembered);
    },
    /** Counts so many bytes more, unless the entry was replaced or forgotten. */
    grow(sessionId: string, targetId: string, entry: T, bytes: number): void {
      const remembered = sessions.get(sessionId);
      const held = remembered?.byTarget.get(targetId);
      if (remembered === undefined || held?.entry !== entry) return;
      held.bytes += bytes;
      weigh(remembered, bytes);
      makeRoom(sessionId, remembered);
    },
    /** Removes the entry, unless it was replaced. */
    remove(sessionId: string, targetId: string, entry: T): void {
      const remembered = sessions.get(sessionId);
      const held = remembered?.byTarget.get(targetId);
      if (remembered === undefined || held?.entry !== entry) return;
      remembered.byTarget.delete(targetId);
      weigh(remembered, -held.bytes);
      if (remembered.byTarget.size === 0) forget(sessionId);
    },
    forget,
    *entries(): Generator<T, undefined> {
      for (const { byTarget } of sessions.values()) for (const { entry } of byTarget.values()) yield entry;
    },
  };
}
