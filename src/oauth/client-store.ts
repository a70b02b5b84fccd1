/** OAuth clients: those that registered, and those with a metadata document that a user has approved. */
import { pause } from '../base/turns/slices.ts';
import type { Connection } from '../db/database.ts';
import { hashOf } from './record-store.ts';

/** `registered`: by dynamic registration. `document`: its id is the address of its metadata. `built-in`: part of the gateway. */
export const CLIENT_KINDS = ['registered', 'document', 'built-in'] as const;
export type ClientKind = (typeof CLIENT_KINDS)[number];

export interface ClientRecord {
  readonly id: string;
  readonly client_id: string;
  readonly kind: ClientKind;
  /** As the client calls itself. */
  readonly name: string;
  /** The metadata of a registered client; null for the others. */
  readonly metadata: Readonly<Record<string, unknown>> | null;
  readonly enabled: boolean;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  /** When a user last approved the client; null: never. */
  readonly used_at: number | null;
}

interface ClientRow extends Omit<ClientRecord, 'metadata' | 'enabled'> {
  readonly metadata: string | null;
  readonly enabled: boolean | number;
}

/** A client without its metadata, which can be long. */
export type ClientHead = Omit<ClientRecord, 'metadata'>;

const HEAD_COLUMNS = ['id', 'client_id', 'kind', 'name', 'enabled', 'created_at', 'used_at'] as const;
const COLUMNS = [...HEAD_COLUMNS, 'metadata'] as const;

const toHead = <T extends Pick<ClientRow, 'enabled'>>(row: T) => ({ ...row, enabled: row.enabled === true || row.enabled === 1 });

const toClient = (row: ClientRow): ClientRecord => ({
  ...toHead(row),
  metadata: row.metadata === null ? null : JSON.parse(row.metadata),
});

export function clientStore(db: Connection) {
  async function where(conditions: object): Promise<ClientRecord | null> {
    const row = await db('oauth_clients')
      .where(conditions)
      .first<ClientRow | undefined>(...COLUMNS);
    return row ? toClient(row) : null;
  }

  return {
    find: (id: string): Promise<ClientRecord | null> => where({ id }),
    findByClientId: (clientId: string): Promise<ClientRecord | null> => where({ key: hashOf(clientId) }),

    /** Like `findByClientId`, and locks the record until the transaction ends. */
    async lock(clientId: string): Promise<ClientRecord | null> {
      const row = await db('oauth_clients')
        .where({ key: hashOf(clientId) })
        .forUpdate()
        .first<ClientRow | undefined>(...COLUMNS);
      return row ? toClient(row) : null;
    },

    async findAll(ids: readonly string[]): Promise<ClientHead[]> {
      const rows: Omit<ClientRow, 'metadata'>[] = await db('oauth_clients')
        .whereIn('id', ids)
        .select(...HEAD_COLUMNS);
      return rows.map(toHead);
    },

    /** Returns the clients that a user has approved at some time, and with `all` the others, too; in the order of their ids. */
    async page(limit: number, after: string | null, all: boolean): Promise<ClientRecord[]> {
      const rows: ClientRow[] = await db('oauth_clients')
        .modify((query) => {
          if (after !== null) query.where('id', '>', after);
          if (!all) query.whereNotNull('used_at');
        })
        .orderBy('id')
        .limit(limit)
        .select(...COLUMNS);
      const clients: ClientRecord[] = [];
      for (const row of rows) {
        await pause();
        clients.push(toClient(row));
      }
      return clients;
    },

    /** Inserts the client unless its `client_id` has a record. `pool`: the network against whose limit the client counts until it is approved. */
    async insert({ metadata, ...client }: ClientRecord, pool: string | null = null): Promise<void> {
      await db('oauth_clients')
        .insert({
          ...client,
          pool,
          key: hashOf(client.client_id),
          metadata: metadata === null ? null : JSON.stringify(metadata),
        })
        .onConflict('key')
        .ignore();
    },

    /** A client may change its name in its document. */
    async used(id: string, name: string, now: number): Promise<void> {
      await db('oauth_clients').where({ id }).update({ name, used_at: now, pool: null });
    },

    async setEnabled(id: string, enabled: boolean): Promise<void> {
      await db('oauth_clients').where({ id }).update({ enabled });
    },

    async delete(id: string): Promise<boolean> {
      return (await db('oauth_clients').where({ id }).delete()) > 0;
    },

    /** Counts the registered clients that no user has approved. With `pool`, only those of this network. */
    async countUnused(pool: string | null = null): Promise<number> {
      const row = await db('oauth_clients')
        .where({ kind: 'registered', ...(pool === null ? {} : { pool }) })
        .whereNull('used_at')
        .count<{ n: number | string }[]>({ n: '*' })
        .first();
      return Number(row?.n ?? 0);
    },

    /**
     * Deletes up to `limit` clients of the kind without grants that were stored before `stored` and never approved, or were last approved
     * before `used`. The oldest come first. With `pool`, only those of this network. Returns how many.
     */
    async removeUnused(
      kind: 'registered' | 'document',
      stored: number,
      used: number,
      limit: number,
      pool: string | null = null,
    ): Promise<number> {
      const unused = () =>
        db('oauth_clients')
          .where({ kind, enabled: true, ...(pool === null ? {} : { pool }) })
          .andWhere((either) =>
            either
              .where((never) => never.whereNull('used_at').andWhere('created_at', '<', stored))
              .orWhere((formerly) => formerly.where('used_at', '<', used).whereNotIn('id', db.from('grants').select('client'))),
          );
      const rows: { id: string }[] = await unused().orderBy('created_at').limit(limit).select('id');
      const ids = rows.map(({ id }) => id);
      if (ids.length === 0) return 0;
      // A user may have approved one of them since.
      return await unused().whereIn('id', ids).delete();
    },
  };
}
