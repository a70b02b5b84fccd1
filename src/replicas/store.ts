/** Which replicas there are, and where each is reached. Times are the server's, whose clock all replicas share. */
import type { Connection } from '../db/database.ts';

export interface ReplicaRow {
  /** Of one start of one process. */
  readonly id: string;
  /** Sealed: what is sent there holds tokens, so a changed row must not redirect it. */
  readonly address: string;
  /** Since it was heard of. */
  readonly unseen_ms: number;
}

export interface ReplicaStore {
  find(id: string): Promise<ReplicaRow | null>;
  insert(id: string, address: string): Promise<void>;
  /** False: the row is gone. */
  seen(id: string): Promise<boolean>;
  delete(id: string): Promise<void>;
  deleteUnseenFor(ms: number): Promise<void>;
}

const NOW = 'cast(unix_timestamp(now(3)) * 1000 as signed)';

/** For MySQL: SQLite has one process. */
export function replicaStore(db: Connection): ReplicaStore {
  return {
    async find(id) {
      const row = await db('replicas')
        .where({ id })
        .first<{ address: string; unseen_ms: number | string } | undefined>('address', db.raw(`${NOW} - seen_at as unseen_ms`));
      return row ? { id, address: row.address, unseen_ms: Number(row.unseen_ms) } : null;
    },
    async insert(id, address) {
      await db('replicas').insert({ id, address, started_at: db.raw(NOW), seen_at: db.raw(NOW) });
    },
    seen: async (id) =>
      (await db('replicas')
        .where({ id })
        .update({ seen_at: db.raw(NOW) })) > 0,
    async delete(id) {
      await db('replicas').where({ id }).delete();
    },
    async deleteUnseenFor(ms) {
      await db('replicas')
        .where('seen_at', '<', db.raw(`${NOW} - ?`, [ms]))
        .delete();
    },
  };
}
