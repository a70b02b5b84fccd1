/** Stores tasks that targets made for calls through the gateway, to find the client's id by the target's id. */
import { deleteOldest } from '../../db/batches.ts';
import type { Connection } from '../../db/database.ts';
import { TASK_LIFETIME_MS } from './tasks.ts';

const KEYS_PER_QUERY = 500;

export type TaskStore = ReturnType<typeof taskStore>;

export function taskStore(db: Connection) {
  return {
    /** Stores the handle, durably when the promise resolves. */
    async remember(key: string, handle: string, now: number): Promise<void> {
      await db('tasks').insert({ id: key, handle, created_at: now }).onConflict('id').merge();
    },
    /** The stored handles, by key. Unknown keys are left out. */
    async handles(keys: readonly string[]): Promise<ReadonlyMap<string, string>> {
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

/** Deletes up to `limit` tasks whose time is over. Returns whether there may be more. */
export const removeOldTasks = (db: Connection, now: number, limit: number): Promise<boolean> =>
  deleteOldest(db, { table: 'tasks', key: ['id'], before: now - TASK_LIFETIME_MS }, limit);
