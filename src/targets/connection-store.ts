/** Users' connections to their own accounts at targets, the sign-ins that make them, and the gateway's clients at authorization servers. */
import { createHash } from 'node:crypto';
import type { Connection as Db } from '../db/database.ts';
import { isDuplicate } from '../db/statement.ts';

/** Why the user must connect again. `refused`: the authorization server no longer accepts the refresh token, or there is none. */
export const CONNECTION_PROBLEMS = ['refused', 'interrupted', 'scope'] as const;
export type ConnectionProblem = (typeof CONNECTION_PROBLEMS)[number];

export interface ConnectionRow {
  readonly id: string;
  readonly user_id: string;
  readonly target_id: string;
  readonly issuer: string;
  /** The granted scopes, separated by spaces. */
  readonly scope: string;
  readonly sealed: string;
  readonly version: number;
  readonly problem: ConnectionProblem | null;
  readonly wanted_scope: string | null;
  readonly renewing_by: string | null;
  readonly renewing_until: number | null;
  readonly created_at: number;
  readonly renewed_at: number;
  /** null: the connection is in use. */
  readonly ended_at: number | null;
  /** When its tokens are revoked at the authorization server; null: it is in use. */
  readonly revoke_at: number | null;
  readonly attempts: number;
}

/** The members of a connection that change when its renewal ends. */
export type RenewalState = Pick<ConnectionRow, 'id' | 'version' | 'problem' | 'renewing_until' | 'ended_at'>;

/** The members of a connection that the live state holds. */
export type LiveConnection = Pick<ConnectionRow, 'id' | 'user_id' | 'target_id'>;

export interface FlowRow {
  readonly id: string;
  readonly user_id: string;
  readonly browser_session_id: string;
  readonly target_id: string;
  readonly sealed: string;
  readonly created_at: number;
}

export interface ClientRow {
  readonly id: string;
  readonly target_id: string;
  readonly issuer: string;
  readonly client_id: string;
  /** Whether the gateway registered the client itself. */
  readonly registered: boolean;
  readonly sealed: string;
  readonly created_at: number;
}

/** Facts with a refusal (`ProviderFacts`). In JSON, no text inside of a value has these quotes. */
const REFUSED_FACTS = '%"refusal":"%';

export const clientKey = (targetId: string, issuer: string): string =>
  createHash('sha256')
    .update(JSON.stringify([targetId, issuer]))
    .digest('hex');

const stored = (row: ConnectionRow): ConnectionRow => ({
  ...row,
  version: Number(row.version),
  created_at: Number(row.created_at),
  renewed_at: Number(row.renewed_at),
});

export type ConnectionStore = ReturnType<typeof connectionStore>;

export function connectionStore(db: Db) {
  const live = () => db<ConnectionRow>('connections').whereNull('ended_at');
  const end = (time: number) => ({ ended_at: time, revoke_at: time });
  const strays = () =>
    db('connections')
      .leftJoin('users', 'users.id', 'connections.user_id')
      .whereNull('connections.ended_at')
      .andWhere((query) =>
        query.whereNull('users.id').orWhere('users.enabled', false).orWhere('users.facts', 'like', REFUSED_FACTS),
      );
  const listed = async (where: Partial<ConnectionRow>): Promise<ConnectionRow[]> =>
    ((await live().where(where).orderBy('id')) as ConnectionRow[]).map(stored);

  return {
    /** Returns the connections in use at these targets. null: at every target. */
    async live(targetIds: readonly string[] | null): Promise<LiveConnection[]> {
      return (await live()
        .modify((query) => {
          if (targetIds !== null) query.whereIn('target_id', targetIds);
        })
        .select('id', 'user_id', 'target_id')) as LiveConnection[];
    },
    /** Returns a connection in use, or one that has ended and whose tokens are not revoked yet. */
    async find(id: string): Promise<ConnectionRow | null> {
      const row = (await db<ConnectionRow>('connections').where({ id }).first()) as ConnectionRow | undefined;
      return row === undefined ? null : stored(row);
    },
    /** Returns the states of these connections by id. Connections that are no longer stored are left out. */
    async renewalStates(ids: readonly string[]): Promise<ReadonlyMap<string, RenewalState>> {
      const rows = (await db<ConnectionRow>('connections')
        .whereIn('id', ids)
        .select('id', 'version', 'problem', 'renewing_until', 'ended_at')) as RenewalState[];
      return new Map(rows.map((row) => [row.id, row]));
    },
    async findOf(user_id: string, target_id: string): Promise<ConnectionRow | null> {
      return (await listed({ user_id, target_id }))[0] ?? null;
    },
    ofTarget: (target_id: string): Promise<ConnectionRow[]> => listed({ target_id }),
    ofUser: (user_id: string): Promise<ConnectionRow[]> => listed({ user_id }),
    async insert(row: ConnectionRow): Promise<void> {
      await db('connections').insert({ ...row });
    },
    /** Ends connections in use. Their tokens remain until they are revoked. Returns how many it ended. */
    async end(where: Partial<Pick<ConnectionRow, 'id' | 'user_id' | 'target_id'>>, time: number): Promise<number> {
      return live().where(where).update(end(time));
    },
    async endAll(ids: readonly string[], time: number): Promise<void> {
      await live().whereIn('id', ids).update(end(time));
    },
    /**
     * Returns the ids of connections of users that are disabled, gone, or refused because of what their provider says of them: at most
     * `limit`, after the id `after` (null: from the first).
     */
    async strayIds(limit: number, after: string | null): Promise<string[]> {
      return strays()
        .modify((query) => {
          if (after !== null) query.where('connections.id', '>', after);
        })
        .orderBy('connections.id')
        .limit(limit)
        .pluck('connections.id');
    },
    /** Returns those of these connections that `strayIds` returns. */
    async straysAmong(ids: readonly string[]): Promise<ConnectionRow[]> {
      const rows: ConnectionRow[] = await strays().whereIn('connections.id', ids).select('connections.*');
      return rows.map(stored);
    },

    /**
     * Takes the lock of a renewal until `until`, for the tokens of this version. False: they have been renewed, or somebody else has
     * the lock, or had it after the row was read.
     */
    async lock(
      row: Pick<ConnectionRow, 'id' | 'version' | 'renewing_until'>,
      by: string,
      until: number,
      now: number,
    ): Promise<boolean> {
      const { id, version, renewing_until } = row;
      const taken = await db<ConnectionRow>('connections')
        .where({ id, version, renewing_until })
        .whereNull('ended_at')
        .andWhere((query) => query.whereNull('renewing_until').orWhere('renewing_until', '<=', now))
        .update({ renewing_by: by, renewing_until: until });
      return taken === 1;
    },
    /** `until`: null, or a time that has passed if the authorization server may have used the refresh token. */
    async unlock(id: string, by: string, until: number | null): Promise<void> {
      await db<ConnectionRow>('connections').where({ id, renewing_by: by }).update({ renewing_by: null, renewing_until: until });
    },
    /**
     * Stores renewed tokens and gives the lock back. Also stores those of a connection that has ended meanwhile, so that they are
     * revoked. False: tokens of this version are no longer stored.
     */
    async renew(row: ConnectionRow, renewed: Pick<ConnectionRow, 'sealed' | 'scope' | 'renewed_at'>): Promise<boolean> {
      const { id, version } = row;
      const changed = await db<ConnectionRow>('connections')
        .where({ id, version })
        .update({ ...renewed, version: version + 1, renewing_by: null, renewing_until: null });
      return changed === 1;
    },
    /**
     * Notes that the tokens of this version cannot be renewed. `by`: the holder that must have the lock; null: the lock does not
     * matter. Returns false if the connection has newer tokens or has ended, or if `by` does not have the lock.
     */
    async noteUnrenewable(
      { id, version }: Pick<ConnectionRow, 'id' | 'version'>,
      by: string | null,
      problem: Exclude<ConnectionProblem, 'scope'>,
    ): Promise<boolean> {
      const noted = await live()
        .where({ id, version, ...(by === null ? {} : { renewing_by: by }) })
        .update({ problem });
      return noted === 1;
    },
    async noteScope(id: string, wanted_scope: string): Promise<void> {
      await live().where({ id }).update({ problem: 'scope', wanted_scope });
    },

    /** Returns ended connections whose tokens are to be revoked now, and whose renewal is not under way. */
    async toRevoke(
      now: number,
      limit: number,
      at: { readonly issuer: string } | { readonly notAt: readonly string[] },
    ): Promise<ConnectionRow[]> {
      const rows = (await db<ConnectionRow>('connections')
        .where('revoke_at', '<=', now)
        .andWhere((query) => query.whereNull('renewing_until').orWhere('renewing_until', '<=', now))
        .modify((query) => ('issuer' in at ? query.where('issuer', at.issuer) : query.whereNotIn('issuer', at.notAt)))
        .orderBy('revoke_at')
        .limit(limit)) as ConnectionRow[];
      return rows.map(stored);
    },
    /** Takes a revocation, so that no other replica tries at the same time. */
    async takeRevocation({ id, attempts }: ConnectionRow, revoke_at: number): Promise<boolean> {
      const taken = await db<ConnectionRow>('connections')
        .where({ id, attempts })
        .update({ attempts: attempts + 1, revoke_at });
      return taken === 1;
    },
    async delete(id: string): Promise<void> {
      await db('connections').where({ id }).delete();
    },

    async insertFlow(row: FlowRow): Promise<void> {
      await db('connection_flows').insert({ ...row });
    },
    async findFlow(id: string): Promise<FlowRow | null> {
      return ((await db<FlowRow>('connection_flows').where({ id }).first()) as FlowRow | undefined) ?? null;
    },
    /** False: a different request has taken it. */
    async takeFlow(id: string): Promise<boolean> {
      return (await db('connection_flows').where({ id }).delete()) === 1;
    },
    /** Deletes the flows of the user except the newest `kept`, and those that began before `time`. */
    async trimFlows(user_id: string, kept: number, time: number): Promise<void> {
      await db('connection_flows').where('created_at', '<', time).delete();
      const rows: { id: string }[] = await db('connection_flows').where({ user_id }).orderBy('created_at', 'desc').select('id');
      const old = rows.slice(kept).map(({ id }) => id);
      if (old.length > 0) await db('connection_flows').whereIn('id', old).delete();
    },

    async client(targetId: string, issuer: string): Promise<ClientRow | null> {
      const row = (await db<ClientRow>('connection_clients').where('id', clientKey(targetId, issuer)).first()) as
        | ClientRow
        | undefined;
      return row === undefined ? null : { ...row, registered: Boolean(row.registered) };
    },
    async putClient(row: ClientRow): Promise<void> {
      await db('connection_clients').where('id', row.id).delete();
      await db('connection_clients').insert({ ...row });
    },
    /** Returns the client that is stored in the end: a different replica may have registered one at the same time. */
    async addClient(row: ClientRow): Promise<ClientRow> {
      try {
        await db('connection_clients').insert({ ...row });
        return row;
      } catch (error) {
        if (!isDuplicate(error)) throw error;
        const first = (await db<ClientRow>('connection_clients').where('id', row.id).first()) as ClientRow | undefined;
        return first === undefined ? row : { ...first, registered: Boolean(first.registered) };
      }
    },
    async deleteClient(id: string, client_id: string): Promise<number> {
      return db('connection_clients').where({ id, client_id }).delete();
    },
    /**
     * Deletes registrations of a target, except `current`: those that no connection in use needs and that were made before `unusedSince`, and
     * then the oldest ones above `max`. Connections keep the client that they were made with.
     */
    async trimClients(target_id: string, current: string, max: number, unusedSince: number): Promise<void> {
      const used: { issuer: string }[] = await live().where({ target_id }).distinct('issuer');
      const rows = (await db<ClientRow>('connection_clients')
        .where({ target_id, registered: true })
        .whereNot('id', current)
        .orderBy('created_at', 'desc')) as ClientRow[];
      const isUsed = ({ issuer }: ClientRow): boolean => used.some((one) => one.issuer === issuer);
      const kept = rows.filter((row) => isUsed(row) || Number(row.created_at) >= unusedSince);
      const ordered = [...kept.filter(isUsed), ...kept.filter((row) => !isUsed(row))].slice(0, max - 1);
      const removed = rows.filter((row) => !ordered.includes(row)).map(({ id }) => id);
      if (removed.length > 0) await db('connection_clients').whereIn('id', removed).delete();
    },
    /** Deletes the clients of a target. */
    async deleteClients(target_id: string): Promise<void> {
      await db('connection_clients').where({ target_id }).delete();
    },

    /** Every sealed value, for a new master key. */
    async sealed(): Promise<{ readonly connections: ConnectionRow[]; readonly clients: ClientRow[] }> {
      return { connections: await db('connections'), clients: await db('connection_clients') };
    },
    /** Writes only if the value is still `before`. */
    async reseal(table: 'connections' | 'connection_clients', id: string, before: string, sealed: string): Promise<void> {
      await db(table).where({ id, sealed: before }).update({ sealed });
    },
  };
}
