/** What administrators have decided on sessions; part of the state that every request is judged by (law 4). */
import type { Connection } from '../db/database.ts';
import { sessionStore } from './store.ts';

/** A session that is older is gone, whoever holds its id. */
export const SESSION_LIFETIME_MS = 24 * 60 * 60 * 1000;

export interface SessionRules {
  /** Sessions that an administrator has ended. */
  readonly ended: ReadonlySet<string>;
  /** Moves when the user's sessions with the target are recycled: what was opened at the target before must not be used on. */
  epochOf(userId: string, targetId: string): number;
}

/** `db` must be of one moment. */
export async function sessionRules(db: Connection, now: number): Promise<SessionRules> {
  const store = sessionStore(db);
  const epochs = new Map<string, number>();
  for (const { user_id, target_id, epoch } of await store.recycles())
    epochs.set(JSON.stringify([user_id, target_id]), Number(epoch));
  const epoch = (userId: string, targetId: string): number => epochs.get(JSON.stringify([userId, targetId])) ?? 0;
  return {
    ended: new Set(await store.endedByAdministrators(now - SESSION_LIFETIME_MS)),
    epochOf: (userId, targetId) =>
      epochs.size === 0 ? 0 : Math.max(epoch('', ''), epoch(userId, ''), epoch('', targetId), epoch(userId, targetId)),
  };
}
