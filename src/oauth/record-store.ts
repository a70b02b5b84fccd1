/**
 * What the authorization server keeps between two requests: sign-ins under way, codes, refresh tokens and device codes. A person
 * who can read the table cannot use them: ids are stored as hashes, and payloads that repeat an id are sealed by the caller.
 */
import { createHash } from 'node:crypto';
import type { Knex } from 'knex';
import type { Connection, Database } from '../db/database.ts';
import { isDuplicate } from '../db/statement.ts';
import { transact } from '../db/transact.ts';

export interface StoredRecord {
  readonly payload: string;
  /** Milliseconds since the epoch. */
  readonly consumed_at: number | null;
}

export interface NewRecord {
  readonly payload: string;
  readonly grantId: string | null;
  readonly userCode: string | null;
  readonly rotation: number | null;
  /** Whose limit the record counts against; null: none. */
  readonly pool: string | null;
  readonly expiresAt: number;
}

interface Rotation {
  readonly grant_id: string | null;
  readonly rotation: number | null;
}

export const hashOf = (id: string): string => createHash('sha256').update(id).digest('hex');

export function recordStore(database: Pick<Database, 'knex'>) {
  const { knex } = database;
  const one = (kind: string, id: string) => knex('oauth_records').where({ kind, key: hashOf(id) });

  return {
    async find(kind: string, id: string): Promise<StoredRecord | null> {
      return (await one(kind, id).first<StoredRecord | undefined>('payload', 'consumed_at')) ?? null;
    },

    async findByUserCode(kind: string, userCode: string): Promise<(StoredRecord & { readonly key: string }) | null> {
      const row = await knex('oauth_records')
        .where({ kind, user_code: hashOf(userCode) })
        .first<(StoredRecord & { readonly key: string }) | undefined>('key', 'payload', 'consumed_at');
      return row ?? null;
    },

    /** Inserts the record, or replaces its payload. */
    async write(
      kind: string,
      id: string,
      { payload, grantId, userCode, rotation, pool, expiresAt }: NewRecord,
      now: number,
    ): Promise<void> {
      const row = {
        payload,
        grant_id: grantId,
        user_code: userCode === null ? null : hashOf(userCode),
        rotation,
        expires_at: expiresAt,
      };
      await knex('oauth_records')
        .insert({ kind, key: hashOf(id), pool, created_at: now, ...row })
        .onConflict(['kind', 'key'])
        .merge(Object.keys(row));
    },

    /** Notes that something was used, until a time. Returns true for exactly one caller. Runs in the caller's transaction. */
    async once(kind: string, id: string, expiresAt: number, now: number): Promise<boolean> {
      try {
        await knex('oauth_records').insert({ kind, key: hashOf(id), payload: '', created_at: now, expires_at: expiresAt });
        return true;
      } catch (error) {
        if (isDuplicate(error)) return false;
        throw error;
      }
    },

    /** Returns true for the caller that deleted the record: exactly one, whichever replica it asks. */
    delete: (kind: string, id: string): Promise<boolean> =>
      transact(database, async (trx) => {
        const deleted = await trx('oauth_records')
          .where({ kind, key: hashOf(id) })
          .delete();
        return deleted > 0;
      }),

    /** Marks a record as used. Returns true for exactly one caller, whichever replica it asks. */
    consume: (kind: string, id: string, now: number): Promise<boolean> =>
      transact(database, async (trx) => {
        const used = await trx('oauth_records')
          .where({ kind, key: hashOf(id) })
          .whereNull('consumed_at')
          .update({ consumed_at: now });
        return used > 0;
      }),

    /**
     * Marks a refresh token as used, and those of the same grant that were rotated at most as often. Returns true for exactly one caller,
     * whichever replica it asks.
     */
    consumeRotation: (id: string, now: number): Promise<boolean> =>
      transact(database, async (trx) => {
        const tokens = () => trx('oauth_records').where({ kind: 'RefreshToken' });
        const use = (some: Knex.QueryBuilder) => some.whereNull('consumed_at').update({ consumed_at: now });
        const token = tokens().where({ key: hashOf(id) });
        if ((await use(token.clone())) === 0) return false;
        const { grant_id = null, rotation = null } = (await token.first<Rotation | undefined>('grant_id', 'rotation')) ?? {};
        if (grant_id !== null && rotation !== null) await use(tokens().where({ grant_id }).where('rotation', '<=', rotation));
        return true;
      }),

    /** Marks a question to a person as answered. Returns true for exactly one caller. */
    async answer(kind: string, id: string, now: number): Promise<boolean> {
      return (await one(kind, id).whereNull('answered_at').update({ answered_at: now })) > 0;
    },

    /** Notes a question for the record. Returns false if the one before came less than `everyMs` milliseconds earlier. */
    async poll(kind: string, id: string, now: number, everyMs: number): Promise<boolean> {
      const polled = one(kind, id).where((due) => due.whereNull('polled_at').orWhere('polled_at', '<=', now - everyMs));
      return (await polled.update({ polled_at: now })) > 0;
    },

    /** Counts the records that a person has not answered, of one pool, or of all pools that begin with `prefix`. */
    async countOpen(kind: string, of: { readonly pool: string } | { readonly prefix: string }, now: number): Promise<number> {
      const row = await knex('oauth_records')
        .where({ kind })
        .modify((query) => ('pool' in of ? query.where({ pool: of.pool }) : query.where('pool', 'like', `${of.prefix}%`)))
        .whereNull('answered_at')
        .where('expires_at', '>', now)
        .count<{ n: number | string }[]>({ n: '*' })
        .first();
      return Number(row?.n ?? 0);
    },
  };
}

export type Records = ReturnType<typeof recordStore>;

/** Deletes up to `limit` records that expired before `time`. Returns how many. */
export async function removeExpiredRecords(db: Connection, time: number, limit: number): Promise<number> {
  const rows: { kind: string; key: string }[] = await db('oauth_records')
    .where('expires_at', '<', time)
    .limit(limit)
    .select('kind', 'key');
  if (rows.length === 0) return 0;
  return await db('oauth_records')
    .whereIn(
      ['kind', 'key'],
      rows.map(({ kind, key }) => [kind, key]),
    )
    .delete();
}
