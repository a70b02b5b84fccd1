/** What administrators have decided about sessions. It is part of the state that every request is checked against (law 4). */
import { pause } from '../base/turns/slices.ts';
import type { Connection } from '../db/database.ts';
import { sessionStore } from './session-store.ts';

/** The lifetime of a session, in milliseconds. Older sessions are rejected. */
export const SESSION_LIFETIME_MS = 24 * 60 * 60 * 1000;

export interface SessionRules {
  /** Sessions that an administrator has ended. */
  readonly ended: ReadonlySet<string>;
  /**
   * Returns a number that changes when the user's sessions with the target are recycled. Upstream sessions that were opened before must no
   * longer be used.
   */
  epochOf(userId: string, targetId: string): number;
}

/** Reads the rules. `db` must be a snapshot. */
export async function sessionRules(db: Connection, now: number): Promise<SessionRules> {
  const store = sessionStore(db);
  const epochs = new Map<string, number>();
  for (const { user_id, target_id, epoch } of await store.recycles()) {
    await pause();
    epochs.set(JSON.stringify([user_id, target_id]), Number(epoch));
  }
  const epoch = (userId: string, targetId: string): number => epochs.get(JSON.stringify([userId, targetId])) ?? 0;
  return {
    ended: new Set(await store.endedByAdministrators(now - SESSION_LIFETIME_MS)),
    epochOf: (userId, targetId) =>
      epochs.size === 0 ? 0 : Math.max(epoch('', ''), epoch(userId, ''), epoch('', targetId), epoch(userId, targetId)),
  };
}
