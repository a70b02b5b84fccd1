/** Which replicas there are, where each is reached, and how far each is. Times are the server's, whose clock all replicas share. */
import type { Connection } from '../db/database.ts';

/** The state that a replica decides with. */
export interface ReplicaState {
  readonly sequence: number;
  readonly revision: number;
  readonly engine_hash: string;
}

export interface ReplicaRow extends ReplicaState {
  /** Of one start of one process. */
  readonly id: string;
  /** Sealed: what is sent there holds tokens, so a changed row must not redirect it. */
  readonly address: string;
  readonly started_at: number;
  /** Since it was heard of. */
  readonly unseen_ms: number;
}

export interface ReplicaStore {
  find(id: string): Promise<ReplicaRow | null>;
  /** Heard of within `ms`, by id. */
  seenWithin(ms: number): Promise<ReplicaRow[]>;
  insert(id: string, address: string, state: ReplicaState): Promise<void>;
  /** False: the row is gone. */
  seen(id: string, state: ReplicaState): Promise<boolean>;
  delete(id: string): Promise<void>;
  deleteUnseenFor(ms: number): Promise<void>;
}

type StoredRow = Omit<ReplicaRow, 'unseen_ms'> & { readonly unseen_ms: number | string };

const NOW = 'cast(unix_timestamp(now(3)) * 1000 as signed)';
const COLUMNS = ['id', 'address', 'sequence', 'revision', 'engine_hash', 'started_at'];

/** For MySQL: SQLite has one process. */
export function replicaStore(db: Connection): ReplicaStore {
  const rows = () => db('replicas').select(...COLUMNS, db.raw(`${NOW} - seen_at as unseen_ms`));
  const toRow = (row: StoredRow): ReplicaRow => ({ ...row, unseen_ms: Number(row.unseen_ms) });
  return {
    async find(id) {
      const [row]: StoredRow[] = await rows().where({ id });
      return row ? toRow(row) : null;
    },
    seenWithin: async (ms) =>
      (
        await rows()
          .where('seen_at', '>=', db.raw(`${NOW} - ?`, [ms]))
          .orderBy('id')
      ).map(toRow),
    async insert(id, address, state) {
      await db('replicas').insert({ id, address, ...state, started_at: db.raw(NOW), seen_at: db.raw(NOW) });
    },
    seen: async (id, state) =>
      (await db('replicas')
        .where({ id })
        .update({ ...state, seen_at: db.raw(NOW) })) > 0,
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
