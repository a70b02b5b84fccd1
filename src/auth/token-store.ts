/** Token records. A token is valid only while its record exists. The token itself is not stored. */
import { pause } from '../base/turns/slices.ts';
import type { Connection } from '../db/database.ts';
import type { TokenKind, TokenLimits } from './principal.ts';
import { RIGHTS } from './rights.ts';

export const TOKEN_NAME_MAX = 256;
/** A user can have many tokens, each with the names of many targets. */
const USERS_AT_ONCE = 20;
/** A user can make and revoke tokens without end, and everybody waits while they are read. So only the newest are kept. */
const ENDED_KEPT = 100;
/** How many older ones are deleted for each new token. */
const ENDED_AT_ONCE = 100;

export interface TokenRecord {
  /** The claim `jti`. */
  readonly id: string;
  readonly user_id: string;
  readonly kind: 'login' | 'api';
  /** Chosen by the user; null exactly for login tokens. */
  readonly name: string | null;
  /** The id of the key that signed the token. A token with the same id that a different key signed is invalid. */
  readonly kid: string;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  /** A login token also has it as its claim `exp`. null: an API token that never expires. */
  readonly expires_at: number | null;
  readonly revoked_at: number | null;
  /** null: the token may do what its user may. Login tokens have no limits. */
  readonly limits: TokenLimits | null;
}

interface TokenRow extends Omit<TokenRecord, 'limits'> {
  readonly limits: string | null;
}

const KINDS: readonly TokenRecord['kind'][] = ['login', 'api'];
const COLUMNS = ['id', 'user_id', 'kind', 'name', 'kid', 'created_at', 'expires_at', 'revoked_at', 'limits'] as const;

/** Whether the token is revoked, or an API token or grant that has expired. The verifier judges the expiry of login tokens by their claims. */
export function hasEnded(
  { kind, expires_at, revoked_at }: Pick<TokenRecord, 'expires_at' | 'revoked_at'> & { readonly kind: TokenKind },
  now: number,
): boolean {
  return revoked_at !== null || (kind !== 'login' && expires_at !== null && now >= expires_at);
}

/** The limits of a token may name rights of a newer version, which mean nothing here. */
function readLimits(stored: string | null): TokenLimits | null {
  if (stored === null) return null;
  const { rights, owner, endpoints }: TokenLimits = JSON.parse(stored);
  return { rights: rights.filter((right) => RIGHTS.includes(right)), owner, endpoints };
}

const toRecord = (row: TokenRow): TokenRecord => ({ ...row, limits: readLimits(row.limits) });

export function tokenStore(db: Connection) {
  /** Those that are not revoked. With the sign, SQLite reads the tokens of these users. In the index of ended tokens, it would read those of all. */
  const ofUsers = (userIds: readonly string[], kind: TokenRecord['kind']) =>
    db('tokens')
      .whereIn('user_id', userIds)
      .whereRaw(`${db.client.dialect === 'mysql' ? '' : '+'}?? = ?`, ['kind', kind])
      .whereNull('revoked_at');
  const held = (userId: string) => ofUsers([userId], 'api');

  return {
    async insert(token: TokenRecord): Promise<void> {
      await db('tokens').insert({ ...token, limits: token.limits && JSON.stringify(token.limits) });
    },

    /** Finds revoked and expired tokens, too. */
    async find(id: string): Promise<TokenRecord | null> {
      const row = await db('tokens')
        .where({ id })
        .first<TokenRow | undefined>(...COLUMNS);
      return row ? toRecord(row) : null;
    },

    /** Returns the tokens with these ids, also revoked and expired ones. */
    async findAll(ids: readonly string[]): Promise<TokenRecord[]> {
      const rows: TokenRow[] = await db('tokens')
        .whereIn('id', ids)
        .select(...COLUMNS);
      return rows.map(toRecord);
    },

    /** Returns the user's API tokens that are not revoked, oldest first. Expired ones are among them until they are deleted. */
    async listOf(userId: string): Promise<TokenRecord[]> {
      const rows: TokenRow[] = await held(userId)
        .select(...COLUMNS)
        .orderBy('id');
      return rows.map(toRecord);
    },

    /** Returns the API tokens of these users that are not revoked. */
    async apiTokensOf(userIds: readonly string[]): Promise<Pick<TokenRecord, 'id' | 'user_id' | 'name'>[]> {
      return await ofUsers(userIds, 'api').select('id', 'user_id', 'name');
    },

    async revokeAll(ids: readonly string[], now: number): Promise<void> {
      await db('tokens').whereIn('id', ids).update({ revoked_at: now });
    },

    /** Returns false if the token does not exist or is already revoked. */
    async revoke(id: string, now: number): Promise<boolean> {
      return (await db('tokens').where({ id }).whereNull('revoked_at').update({ revoked_at: now })) > 0;
    },

    /** Revokes the users' login tokens except `exceptTokenId`, and returns how many. */
    async revokeLoginsOf(userIds: readonly string[], exceptTokenId: string | null, now: number): Promise<number> {
      return await ofUsers(userIds, 'login')
        .modify((query) => {
          if (exceptTokenId !== null) query.whereNot({ id: exceptTokenId });
        })
        .update({ revoked_at: now });
    },

    /** Counts the user's API tokens that are valid at `time`. */
    async count(userId: string, time: number): Promise<number> {
      const row = await held(userId)
        .andWhere((valid) => valid.whereNull('expires_at').orWhere('expires_at', '>', time))
        .count<{ n: number | string }[]>({ n: '*' })
        .first();
      return Number(row?.n ?? 0);
    },

    /**
     * Returns the ids of the targets that the users' API tokens may use that are valid at `time`, by user. null: every target. Users without
     * such a token are left out.
     */
    async endpointsOf(userIds: readonly string[], time: number): Promise<ReadonlyMap<string, ReadonlySet<string> | null>> {
      const byUser = new Map<string, Set<string> | null>();
      for (let at = 0; at < userIds.length; at += USERS_AT_ONCE) {
        const rows: Pick<TokenRow, 'user_id' | 'limits'>[] = await ofUsers(userIds.slice(at, at + USERS_AT_ONCE), 'api')
          .andWhere((valid) => valid.whereNull('expires_at').orWhere('expires_at', '>', time))
          .distinct('user_id', 'limits');
        for (const { user_id, limits } of rows) {
          await pause();
          const known = byUser.get(user_id);
          const endpoints = readLimits(limits)?.endpoints ?? null;
          if (endpoints === null || known === null) byUser.set(user_id, null);
          else byUser.set(user_id, new Set([...(known ?? []), ...endpoints.map(({ id }) => id)]));
        }
      }
      return byUser;
    },

    /** Counts the API tokens that are valid at `time`, by the key that signed them. */
    async countByKey(time: number): Promise<ReadonlyMap<string, number>> {
      const rows: { kid: string; n: number | string }[] = await db('tokens')
        .where({ kind: 'api' })
        .whereNull('revoked_at')
        .andWhere((valid) => valid.whereNull('expires_at').orWhere('expires_at', '>', time))
        .groupBy('kid')
        .select('kid')
        .count({ n: '*' });
      return new Map(rows.map(({ kid, n }) => [kid, Number(n)]));
    },

    /** Deletes the user's login tokens that expired before `time`. */
    async deleteExpiredOf(userId: string, time: number): Promise<number> {
      return await db('tokens').where({ user_id: userId, kind: 'login' }).where('expires_at', '<', time).delete();
    },

    /** Deletes the oldest of the user's API tokens that were revoked or have expired, so that a limited number of them stays. */
    async deleteOldestEndedOf(userId: string, time: number): Promise<void> {
      const rows: { id: string }[] = await db('tokens')
        .where({ user_id: userId, kind: 'api' })
        .andWhere((ended) => ended.whereNotNull('revoked_at').orWhere('expires_at', '<=', time))
        .orderBy('id', 'desc')
        .offset(ENDED_KEPT)
        .limit(ENDED_AT_ONCE)
        .select('id');
      const ids = rows.map(({ id }) => id);
      if (ids.length > 0) await db('tokens').whereIn('id', ids).delete();
    },

    /** Deletes up to `limit` tokens that were revoked before `time`, or expired before it and were not revoked. Returns how many. */
    async deleteEnded(time: number, limit: number): Promise<number> {
      const some = () => db('tokens').whereIn('kind', KINDS).limit(limit);
      // Two statements, because each reads only a range of an index.
      const revoked: string[] = await some().where('revoked_at', '<', time).pluck('id');
      const ids = revoked.length > 0 ? revoked : await some().whereNull('revoked_at').where('expires_at', '<', time).pluck('id');
      return ids.length === 0 ? 0 : await db('tokens').whereIn('id', ids).delete();
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

export function secretKeyStore(db: Connection) {
  return {
    /** Oldest first. */
    async list(): Promise<SecretKeyRow[]> {
      const rows: SecretKeyRow[] = await db('secret_keys')
        .select('id', 'purpose', 'public_jwk', 'sealed', 'created_at', 'retired_at')
        .orderBy(['created_at', 'id']);
      return rows.map((row) => ({ ...row }));
    },
    async insert(row: SecretKeyRow): Promise<void> {
      await db('secret_keys').insert({ ...row });
    },
    async replaceSealed({ id }: SecretKeyRow, sealed: string): Promise<void> {
      await db('secret_keys').where({ id }).update({ sealed });
    },
    /** Retires every current signing key except `exceptId`. */
    async retireSigning(exceptId: string, now: number): Promise<void> {
      await db('secret_keys')
        .where({ purpose: 'signing' })
        .whereNull('retired_at')
        .whereNot({ id: exceptId })
        .update({ retired_at: now });
    },
  };
}
