/** Token records. A token is valid only while its record exists. The token itself is not stored. */
import type { Connection } from '../db/database.ts';
import type { TokenKind } from './principal.ts';

export const TOKEN_NAME_MAX = 256;

export interface TokenRecord {
  /** The claim `jti`. */
  readonly id: string;
  readonly user_id: string;
  readonly kind: TokenKind;
  /** Chosen by the user; null exactly for login tokens. */
  readonly name: string | null;
  /** The id of the key that signed the token. A token with the same id that a different key signed is invalid. */
  readonly kid: string;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  /** null exactly for API tokens. */
  readonly expires_at: number | null;
  readonly revoked_at: number | null;
}

export interface TokenStore {
  insert(token: TokenRecord): Promise<void>;
  /** Finds revoked and expired tokens, too. */
  find(id: string): Promise<TokenRecord | null>;
  /** Returns the tokens with these ids, also revoked and expired ones. */
  findAll(ids: readonly string[]): Promise<TokenRecord[]>;
  /** Returns the user's API tokens that are not revoked, oldest first. */
  listOf(userId: string): Promise<TokenRecord[]>;
  /** Returns false if the token does not exist or is already revoked. */
  revoke(id: string, now: number): Promise<boolean>;
  /** Revokes the user's login tokens except `exceptTokenId`, and returns how many. */
  revokeLoginsOf(userId: string, exceptTokenId: string | null, now: number): Promise<number>;
  /** Counts the user's API tokens that are not revoked. */
  count(userId: string): Promise<number>;
  /** Deletes the user's login tokens that expired before `time`. */
  deleteExpiredOf(userId: string, time: number): Promise<number>;
  /**
   * Deletes up to `limit` tokens with ids after `after` that were revoked or expired before `time`. Returns the last deleted id;
   * null: there was none.
   */
  deleteEnded(time: number, after: string, limit: number): Promise<string | null>;
}

const COLUMNS = ['id', 'user_id', 'kind', 'name', 'kid', 'created_at', 'expires_at', 'revoked_at'] as const;

export function tokenStore(db: Connection): TokenStore {
  const held = (userId: string) => db('tokens').where({ user_id: userId, kind: 'api' }).whereNull('revoked_at');

  return {
    async insert(token) {
      await db('tokens').insert({ ...token });
    },

    async find(id) {
      const row = await db('tokens')
        .where({ id })
        .first<TokenRecord | undefined>(...COLUMNS);
      return row ? { ...row } : null;
    },

    async findAll(ids) {
      const rows: TokenRecord[] = await db('tokens')
        .whereIn('id', ids)
        .select(...COLUMNS);
      return rows.map((row) => ({ ...row }));
    },

    async listOf(userId) {
      const rows: TokenRecord[] = await held(userId)
        .select(...COLUMNS)
        .orderBy('id');
      return rows.map((row) => ({ ...row }));
    },

    async revoke(id, now) {
      return (await db('tokens').where({ id }).whereNull('revoked_at').update({ revoked_at: now })) > 0;
    },

    async revokeLoginsOf(userId, exceptTokenId, now) {
      return await db('tokens')
        .where({ user_id: userId, kind: 'login' })
        .whereNull('revoked_at')
        .modify((query) => {
          if (exceptTokenId !== null) query.whereNot({ id: exceptTokenId });
        })
        .update({ revoked_at: now });
    },

    async count(userId) {
      const row = await held(userId).count<{ n: number | string }[]>({ n: '*' }).first();
      return Number(row?.n ?? 0);
    },

    async deleteExpiredOf(userId, time) {
      return await db('tokens').where({ user_id: userId }).where('expires_at', '<', time).delete();
    },

    async deleteEnded(time, after, limit) {
      const rows: { id: string }[] = await db('tokens')
        .where('id', '>', after)
        .andWhere((ended) => ended.where('revoked_at', '<', time).orWhere('expires_at', '<', time))
        .orderBy('id')
        .limit(limit)
        .select('id');
      const ids = rows.map(({ id }) => id);
      if (ids.length > 0) await db('tokens').whereIn('id', ids).delete();
      return ids.at(-1) ?? null;
    },
  };
}

/** A row of `secret_keys`. */
export interface SecretKeyRow {
  readonly id: string;
  readonly purpose: 'signing' | 'sealing' | 'check';
  /** For people who read the table. The gateway derives the key from `sealed`, which can only be written with the master key. */
  readonly public_jwk: string | null;
  readonly sealed: string;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  readonly retired_at: number | null;
}

export interface SecretKeyStore {
  /** Oldest first. */
  list(): Promise<SecretKeyRow[]>;
  insert(row: SecretKeyRow): Promise<void>;
  replaceSealed(row: SecretKeyRow, sealed: string): Promise<void>;
  /** Retires every current signing key except `exceptId`. */
  retireSigning(exceptId: string, now: number): Promise<void>;
}

export function secretKeyStore(db: Connection): SecretKeyStore {
  return {
    async list() {
      const rows: SecretKeyRow[] = await db('secret_keys')
        .select('id', 'purpose', 'public_jwk', 'sealed', 'created_at', 'retired_at')
        .orderBy(['created_at', 'id']);
      return rows.map((row) => ({ ...row }));
    },
    async insert(row) {
      await db('secret_keys').insert({ ...row });
    },
    async replaceSealed({ id }, sealed) {
      await db('secret_keys').where({ id }).update({ sealed });
    },
    async retireSigning(exceptId, now) {
      await db('secret_keys')
        .where({ purpose: 'signing' })
        .whereNull('retired_at')
        .whereNot({ id: exceptId })
        .update({ retired_at: now });
    },
  };
}
