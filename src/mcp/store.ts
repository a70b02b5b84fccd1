/** The tasks that targets made for calls through the gateway: what leads from a target's id to the one its client holds. */
import type { Connection } from '../db/database.ts';
import { TASK_LIFETIME_MS } from './tasks.ts';

export interface TaskStore {
  /** Durable when it resolves. */
  remember(key: string, handle: string, now: number): Promise<void>;
  /** Handles by key, of those that are known. */
  handles(keys: readonly string[]): Promise<ReadonlyMap<string, string>>;
}

const FORGET_EVERY_MS = 60 * 60 * 1000;
const KEYS_PER_QUERY = 500;

export function taskStore(db: Connection): TaskStore {
  let forgotAt = Number.NEGATIVE_INFINITY;
  return {
    async remember(key, handle, now) {
      if (now - forgotAt >= FORGET_EVERY_MS) {
        forgotAt = now;
        await db('tasks')
          .where('created_at', '<', now - TASK_LIFETIME_MS)
          .delete();
      }
      await db('tasks').insert({ id: key, handle, created_at: now }).onConflict('id').merge();
    },
    async handles(keys) {
      const found = new Map<string, string>();
      for (let from = 0; from < keys.length; from += KEYS_PER_QUERY) {
        const rows = await db('tasks')
          .whereIn('id', keys.slice(from, from + KEYS_PER_QUERY))
          .select<{ id: string; handle: string }[]>('id', 'handle');
        for (const { id, handle } of rows) found.set(id, handle);
      }
      return found;
    },
  };
}
