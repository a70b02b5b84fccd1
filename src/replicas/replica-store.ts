/** Rows of replicas: address and loaded state. Times come from the clock of the database server, which all replicas share. */
import type { Connection } from '../db/database.ts';

/** The state that a replica decides with. */
export interface ReplicaState {
  readonly sequence: number;
  readonly revision: number;
  readonly engine_hash: string;
}

export interface ReplicaRow extends ReplicaState {
  /** The id of one start of one process. */
  readonly id: string;
  /** Sealed, because forwarded requests contain tokens: a changed row must not redirect them. */
  readonly address: string;
  readonly started_at: number;
  /** How long ago the replica was last seen, in milliseconds. */
  readonly unseen_ms: number;
}

type StoredRow = Omit<ReplicaRow, 'unseen_ms'> & { readonly unseen_ms: number | string };

const NOW = 'cast(unix_timestamp(now(3)) * 1000 as signed)';
const COLUMNS = ['id', 'address', 'sequence', 'revision', 'engine_hash', 'started_at'];

/** The store for MySQL. SQLite needs none, because it serves one process. */
export function replicaStore(db: Connection) {
  const rows = () => db('replicas').select(...COLUMNS, db.raw(`${NOW} - seen_at as unseen_ms`));
  const toRow = (row: StoredRow): ReplicaRow => ({ ...row, unseen_ms: Number(row.unseen_ms) });
  return {
    async find(id: string): Promise<ReplicaRow | null> {
      const [row]: StoredRow[] = await rows().where({ id });
      return row ? toRow(row) : null;
    },
    /** Returns the replicas that were seen within `ms` milliseconds, ordered by id. */
    async seenWithin(ms: number): Promise<ReplicaRow[]> {
      const since = db.raw(`${NOW} - ?`, [ms]);
      return (await rows().where('seen_at', '>=', since).orderBy('id')).map(toRow);
    },
    async insert(id: string, address: string, state: ReplicaState): Promise<void> {
      await db('replicas').insert({ id, address, ...state, started_at: db.raw(NOW), seen_at: db.raw(NOW) });
    },
    /** Updates the row of a replica. False: the row does not exist. */
    seen: async (id: string, state: ReplicaState): Promise<boolean> =>
      (await db('replicas')
        .where({ id })
        .update({ ...state, seen_at: db.raw(NOW) })) > 0,
    async setAddress(id: string, address: string): Promise<void> {
      await db('replicas').where({ id }).update({ address });
    },
    async delete(id: string): Promise<void> {
      await db('replicas').where({ id }).delete();
    },
    async deleteUnseenFor(ms: number): Promise<void> {
      await db('replicas')
        .where('seen_at', '<', db.raw(`${NOW} - ?`, [ms]))
        .delete();
    },
  };
}
