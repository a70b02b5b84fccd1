/** The rows of sessions: what a replica needs to list, end and continue a session that it did not open itself. */

import { gather } from '../base/gather.ts';
import { deleteOldest } from '../db/batches.ts';
import type { Connection } from '../db/database.ts';
import { onePage, searchInParts } from '../db/page.ts';
import { isDuplicate } from '../db/statement.ts';
import type { ClientHello } from '../protocol/hello.ts';

export interface SessionRow {
  readonly id: string;
  readonly issuer: string;
  readonly user_id: string;
  /** null: the session covers every target that its user may use. */
  readonly target_id: string | null;
  readonly revision: string;
  readonly client: ClientHello;
  /** The owner: the replica that has the session in memory. null: any replica can serve it. */
  readonly holder: string | null;
  readonly created_at: number;
  readonly seen_at: number;
}

export type SessionEnd = 'client' | 'administrator';

/** An upstream session: the target's own session id, sealed, and the revision that the target chose. */
export interface UpstreamRow {
  readonly upstream_id: string | null;
  readonly revision: string;
}

export interface SessionSetting {
  /** `level`, or a digest of the subscribed URI. */
  readonly key: string;
  readonly value: string;
}

export interface SessionFilter {
  readonly user_id?: string;
  readonly target_id?: string;
}

type Row = Omit<SessionRow, 'client'> & { readonly client: string };

const COLUMNS = ['id', 'issuer', 'user_id', 'target_id', 'revision', 'client', 'holder', 'created_at', 'seen_at'];
/** Used instead of a target id for settings that apply to every target. */
export const EVERY_TARGET = '*';

/** How many sessions are searched at once. A user can open very many. */
const SEARCHED = 10_000;
const SETTINGS_KEPT = 1_000;
/** All are read, and all requests wait, when one of them changes. */
const MOST_RECYCLES = 10_000;

const toSession = (row: Row): SessionRow => ({ ...row, client: JSON.parse(row.client) as ClientHello });

interface UpstreamKey {
  readonly session_id: string;
  readonly cause: string;
}

interface UpstreamInsert extends UpstreamKey, UpstreamRow {
  readonly created_at: number;
}

const nameOf = ({ session_id, cause }: UpstreamKey): string => `${session_id} ${cause}`;
/** The line of statements in which all sessions are gathered. */
const ALL = '';

export type SessionStore = ReturnType<typeof sessionStore>;

/**
 * What sessions ask for while they wait for the same statement is gathered into the next one: a list at `/mcp` opens upstream sessions at
 * up to hundreds of targets at once, and on SQLite everybody waits for each of these statements.
 */
export function sessionStore(db: Connection) {
  /** With the sign, SQLite does not use the index of users: it would read the rows of all sessions of the user. */
  const ofUser = db.client.dialect === 'mysql' ? '?? = ?' : '+?? = ?';
  const active = (since: number, user_id: string | undefined) =>
    db('sessions')
      .whereNull('ended_at')
      .where('created_at', '>', since)
      .modify((query) => {
        if (user_id !== undefined) query.whereRaw(ofUser, ['user_id', user_id]);
      });
  const found = gather<string, Row | null>(async (_, ids) => {
    const rows = await db('sessions')
      .whereIn('id', [...new Set(ids)])
      .whereNull('ended_at')
      .select<Row[]>(COLUMNS);
    const byId = new Map(rows.map((row) => [row.id, row]));
    return ids.map((id) => byId.get(id) ?? null);
  });
  const upstreams = gather<UpstreamKey, UpstreamRow | null>(async (_, keys) => {
    const rows = await db('session_upstreams')
      .whereIn(
        ['session_id', 'cause'],
        keys.map(({ session_id, cause }) => [session_id, cause]),
      )
      .select<(UpstreamKey & UpstreamRow)[]>('session_id', 'cause', 'upstream_id', 'revision');
    const byKey = new Map(rows.map(({ upstream_id, revision, ...key }) => [nameOf(key), { upstream_id, revision }]));
    return keys.map((key) => byKey.get(nameOf(key)) ?? null);
  });
  const insertUpstreams = async (rows: readonly UpstreamInsert[]): Promise<boolean[]> => {
    try {
      await db('session_upstreams').insert(rows);
      return rows.map(() => true);
    } catch (error) {
      if (!isDuplicate(error)) throw error;
    }
    // One of them exists already, so none was stored. Halving finds it in few statements.
    if (rows.length === 1) return [false];
    const half = rows.length >> 1;
    return [...(await insertUpstreams(rows.slice(0, half))), ...(await insertUpstreams(rows.slice(half)))];
  };
  const upstreamInserts = gather<UpstreamInsert, boolean>((_, rows) => insertUpstreams(rows));
  const settings = gather<string, SessionSetting[]>(async (session_id, target_ids) => {
    const rows = await db('session_settings')
      .where({ session_id })
      .whereIn('target_id', [...target_ids, EVERY_TARGET])
      .orderBy('created_at')
      .limit(SETTINGS_KEPT)
      .select<(SessionSetting & { readonly target_id: string })[]>('target_id', 'key', 'value');
    return target_ids.map((id) =>
      rows.flatMap(({ target_id, ...setting }) => (target_id === id || target_id === EVERY_TARGET ? [setting] : [])),
    );
  });
  return {
    async insert(row: SessionRow): Promise<void> {
      await db('sessions').insert({ ...row, client: JSON.stringify(row.client), ended_at: null, ended_by: null });
    },
    /** Returns the session. null: it does not exist, or has ended. */
    async find(id: string): Promise<SessionRow | null> {
      const row = await found(ALL, id);
      return row && toSession(row);
    },
    /**
     * Yields open sessions created after `since`, ordered by id, in parts, which can be empty: at most `limit`, starting after the id `after`.
     * `atOnce`: how many sessions are searched for one part.
     */
    parts(
      since: number,
      { target_id, user_id }: SessionFilter,
      limit: number | null,
      after: string | null,
      atOnce = SEARCHED,
    ): AsyncGenerator<readonly SessionRow[]> {
      const page = async (most: number, from: string | null, last: string | null): Promise<SessionRow[]> => {
        const rows: Row[] = await active(since, user_id)
          .select(COLUMNS)
          .modify((query) => {
            if (target_id !== undefined) query.where({ target_id });
            if (last !== null) query.where('id', '<=', last);
          })
          .modify(onePage, most, from);
        return rows.map(toSession);
      };
      return searchInParts({ limit, after, atOnce, rows: () => db('sessions'), page });
    },
    /** Counts the open sessions that match the filter. A session with every target uses the target of the filter, too. */
    async count(since: number, { target_id, user_id }: SessionFilter): Promise<number> {
      const row = await active(since, user_id)
        .modify((query) => {
          if (target_id !== undefined) query.where((either) => void either.where({ target_id }).orWhereNull('target_id'));
        })
        .count<{ n: number | string }[]>({ n: '*' })
        .first();
      return Number(row?.n ?? 0);
    },
    /** Ends a session. False: it has already ended. */
    end: async (id: string, by: SessionEnd, now: number): Promise<boolean> =>
      (await db('sessions').where({ id }).whereNull('ended_at').update({ ended_at: now, ended_by: by })) > 0,
    /** Returns the ids of the sessions that administrators ended. */
    async endedByAdministrators(since: number): Promise<string[]> {
      const rows = await db('sessions')
        .where('created_at', '>', since)
        .where('ended_by', 'administrator')
        .select<{ id: string }[]>('id');
      return rows.map((row) => row.id);
    },
    async seen(ids: readonly string[], now: number): Promise<void> {
      await db('sessions').whereIn('id', ids).update({ seen_at: now });
    },
    /** Makes replica `to` the owner instead of `from`. False: another replica did so first, or the session has ended. */
    adopt: async (id: string, from: string | null, to: string): Promise<boolean> =>
      (await db('sessions').where({ id, holder: from }).whereNull('ended_at').update({ holder: to })) > 0,

    upstream: (session_id: string, cause: string): Promise<UpstreamRow | null> => upstreams(ALL, { session_id, cause }),
    /** Stores the upstream session. False: there already is one. */
    insertUpstream: (session_id: string, cause: string, row: UpstreamRow, created_at: number): Promise<boolean> =>
      upstreamInserts(ALL, { session_id, cause, ...row, created_at }),
    /** Returns the session's settings for the target and for every target (`EVERY_TARGET`). */
    settings: (session_id: string, target_id: string): Promise<SessionSetting[]> => settings(session_id, target_id),
    /** Stores a setting. A session keeps a limited number of settings. */
    async set(session_id: string, target_id: string, { key, value }: SessionSetting, created_at: number): Promise<void> {
      const where = { session_id, target_id, key };
      if ((await db('session_settings').where(where).update({ value })) > 0) return;
      const kept = await db('session_settings').where({ session_id }).count<{ n: number | string }[]>({ n: '*' }).first();
      if (Number(kept?.n ?? 0) >= SETTINGS_KEPT) return;
      try {
        await db('session_settings').insert({ ...where, value, created_at });
      } catch (error) {
        if (!isDuplicate(error)) throw error;
      }
    },
    async unset(session_id: string, target_id: string, key: string): Promise<void> {
      await db('session_settings').where({ session_id, target_id, key }).delete();
    },
    /** Deletes rows created before `before`, at most `limit` of each table. Returns whether there may be more. */
    async forget(before: number, limit: number): Promise<boolean> {
      let mayBeMore = false;
      for (const [table, key] of [
        ['session_settings', ['session_id', 'target_id', 'key']],
        ['session_upstreams', ['session_id', 'cause']],
        ['sessions', ['id']],
      ] as const)
        mayBeMore = (await deleteOldest(db, { table, key, before }, limit)) || mayBeMore;
      return mayBeMore;
    },
    /**
     * Sets the recycle epoch, which must be greater than all others. `''` means every user or every target. If there are `most` epochs
     * already, it sets that of all users with the target, which replaces those of single users.
     */
    async recycle(user_id: string, target_id: string, epoch: number, most = MOST_RECYCLES): Promise<void> {
      const recycles = () => db('recycles');
      if ((await recycles().where({ user_id, target_id }).update({ epoch })) > 0) return;
      const stored = await recycles().count<{ n: number | string }[]>({ n: '*' }).first();
      const isFull = Number(stored?.n ?? 0) >= most;
      // The new epoch covers what is deleted. If one became smaller, a session would use an upstream session again that it had before.
      if (isFull)
        await recycles()
          .where(target_id === '' ? {} : { target_id })
          .delete();
      await recycles().insert({ user_id: isFull ? '' : user_id, target_id, epoch });
    },
    recycles: (): Promise<{ readonly user_id: string; readonly target_id: string; readonly epoch: number }[]> =>
      db('recycles').select('user_id', 'target_id', 'epoch'),
  };
}
