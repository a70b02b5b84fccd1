/** Grants: what a user has allowed an OAuth client. A grant is the record behind its access tokens and refresh tokens. */
import type { Change } from '../db/changes.ts';
import type { Connection, Transaction } from '../db/database.ts';

/** How many ids one statement names. */
const AT_ONCE = 500;

/** The redirect address of a grant that a company's provider has given by an assertion. No browser was sent anywhere. */
export const BY_ASSERTION = 'urn:ietf:params:oauth:grant-profile:id-jag';

export interface Grant {
  /** Also the claim `grant` of its access tokens. */
  readonly id: string;
  readonly user_id: string;
  /** The id of the client's record, not its `client_id`. */
  readonly client: string;
  /** Scopes, separated by spaces, by resource. The resources are written as the client wrote them. */
  readonly resources: Readonly<Record<string, string>>;
  /** OpenID scopes, separated by spaces; may be empty. */
  readonly openid: string;
  readonly redirect_uri: string;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  /** When the client last got an access token. */
  readonly used_at: number;
  readonly expires_at: number;
}

/** What the change says that ends a grant. */
export type GrantHead = Pick<Grant, 'id' | 'user_id' | 'client'>;

interface GrantRow extends Omit<Grant, 'resources'> {
  readonly resources: string;
}

const COLUMNS = [
  ...(['id', 'user_id', 'client', 'resources', 'openid', 'redirect_uri', 'created_at', 'used_at', 'expires_at'] as const),
] as const;

const toGrant = (row: GrantRow): Grant => ({ ...row, resources: JSON.parse(row.resources) });

export function grantStore(db: Connection) {
  async function where(conditions: object): Promise<Grant[]> {
    const rows: GrantRow[] = await db('grants')
      .where(conditions)
      .orderBy('id')
      .select(...COLUMNS);
    return rows.map(toGrant);
  }

  return {
    async insert(grant: Grant): Promise<void> {
      await db('grants').insert({ ...grant, resources: JSON.stringify(grant.resources) });
    },

    /** Finds expired grants, too. */
    async find(id: string): Promise<Grant | null> {
      return (await where({ id }))[0] ?? null;
    },

    /** Returns the owners of the grants with these ids, also of expired ones. */
    async findAll(ids: readonly string[]): Promise<Pick<Grant, 'id' | 'user_id' | 'expires_at'>[]> {
      return await db('grants').whereIn('id', ids).select('id', 'user_id', 'expires_at');
    },

    /** Counts the grants of the user that are in force. */
    async countOf(userId: string, now: number): Promise<number> {
      const row = await db('grants')
        .where({ user_id: userId })
        .where('expires_at', '>', now)
        .count<{ n: number | string }[]>({ n: '*' })
        .first();
      return Number(row?.n ?? 0);
    },

    /** Oldest first. */
    ofUser: (userId: string): Promise<Grant[]> => where({ user_id: userId }),
    /** Those of all these users, for `endGrants`. */
    async ofUsers(userIds: readonly string[]): Promise<GrantHead[]> {
      return await db('grants').whereIn('user_id', userIds).orderBy('id').select('id', 'user_id', 'client');
    },
    /** The grants that a company's provider has given to its users by assertions. */
    async byAssertionOf(issuer: string): Promise<Grant[]> {
      const rows: GrantRow[] = await db('grants')
        .whereIn('user_id', db.from('users').where({ issuer }).select('id'))
        .andWhere({ redirect_uri: BY_ASSERTION })
        .orderBy('id')
        .select(...COLUMNS);
      return rows.map(toGrant);
    },
    ofClient: (client: string): Promise<Grant[]> => where({ client }),

    async used(id: string, now: number): Promise<void> {
      await db('grants').where({ id }).where('used_at', '<', now).update({ used_at: now });
    },
  };
}

/**
 * Deletes the grants, with their codes and refresh tokens that are not used. Used ones, which can be many, are worth nothing without their grant, and
 * are deleted when they expire. Returns how many grants there were.
 */
export async function removeGrants(trx: Transaction, ids: readonly string[]): Promise<number> {
  let removed = 0;
  for (let at = 0; at < ids.length; at += AT_ONCE) {
    const some = ids.slice(at, at + AT_ONCE);
    removed += await trx('grants').whereIn('id', some).delete();
    await trx('oauth_records').whereIn('grant_id', some).whereNull('consumed_at').delete();
  }
  return removed;
}

/** Ends the grants in the transaction of an administrative change, which must record the returned changes. */
export async function endGrants(trx: Transaction, grants: readonly GrantHead[]): Promise<Change[]> {
  await removeGrants(
    trx,
    grants.map(({ id }) => id),
  );
  return grants.map(({ id, user_id, client }) => ({
    action: 'grant.end',
    object_id: id,
    before: { id, user_id, client },
    after: null,
  }));
}

/** Deletes up to `limit` grants that expired before `time`. Returns how many. */
export async function removeExpiredGrants(db: Connection, time: number, limit: number): Promise<number> {
  const rows: { id: string }[] = await db('grants').where('expires_at', '<', time).limit(limit).select('id');
  if (rows.length === 0) return 0;
  return await db('grants')
    .whereIn(
      'id',
      rows.map(({ id }) => id),
    )
    .delete();
}
