/** The rows of sessions: what a replica needs to list, end and continue a session that it did not open itself. */

import type { JsonObject } from '../base/json/json.ts';
import type { Connection } from '../db/database.ts';
import { isDuplicate } from '../db/database.ts';

/** What the client declared about itself in `initialize`. These members of the protocol are never used for decisions. */
export interface ClientHello {
  readonly capabilities: JsonObject;
  readonly clientInfo: JsonObject;
}

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

export interface SessionStore {
  insert(row: SessionRow): Promise<void>;
  /** Returns the session. null: it does not exist, or has ended. */
  find(id: string): Promise<SessionRow | null>;
  /** Returns up to `limit` open sessions created after `since`, ordered by id, starting after the id `after`. */
  page(since: number, filter: SessionFilter, limit: number | null, after: string | null): Promise<SessionRow[]>;
  /** Counts the open sessions that match the filter. A session with every target uses the target of the filter, too. */
  count(since: number, filter: SessionFilter): Promise<number>;
  /** Ends a session. False: it has already ended. */
  end(id: string, by: SessionEnd, now: number): Promise<boolean>;
  /** Returns the ids of the sessions that administrators ended. */
  endedByAdministrators(since: number): Promise<string[]>;
  seen(ids: readonly string[], now: number): Promise<void>;
  /** Makes replica `to` the owner instead of `from`. False: another replica did so first, or the session has ended. */
  adopt(id: string, from: string | null, to: string): Promise<boolean>;
  upstream(sessionId: string, cause: string): Promise<UpstreamRow | null>;
  /** Stores the upstream session. False: there already is one. */
  insertUpstream(sessionId: string, cause: string, row: UpstreamRow, now: number): Promise<boolean>;
  /** Returns the session's settings for the target and for every target (`EVERY_TARGET`). */
  settings(sessionId: string, targetId: string): Promise<SessionSetting[]>;
  /** Stores a setting. A session keeps a limited number of settings. */
  set(sessionId: string, targetId: string, setting: SessionSetting, now: number): Promise<void>;
  unset(sessionId: string, targetId: string, key: string): Promise<void>;
  /** Deletes rows created before `before`, of at most `limit` sessions per table. Returns whether there may be more. */
  forget(before: number, limit: number): Promise<boolean>;
  /** Sets the recycle epoch. `''` means every user or every target. */
  recycle(userId: string, targetId: string, epoch: number): Promise<void>;
  recycles(): Promise<{ readonly user_id: string; readonly target_id: string; readonly epoch: number }[]>;
}

type Row = Omit<SessionRow, 'client'> & { readonly client: string };

const COLUMNS = ['id', 'issuer', 'user_id', 'target_id', 'revision', 'client', 'holder', 'created_at', 'seen_at'];
/** Used instead of a target id for settings that apply to every target. */
export const EVERY_TARGET = '*';

const SETTINGS_KEPT = 1_000;

const toSession = (row: Row): SessionRow => ({ ...row, client: JSON.parse(row.client) as ClientHello });

export function sessionStore(db: Connection): SessionStore {
  const active = (since: number, filter: SessionFilter) =>
    db('sessions')
      .whereNull('ended_at')
      .where('created_at', '>', since)
      .where({ ...filter });
  return {
    async insert(row) {
      await db('sessions').insert({ ...row, client: JSON.stringify(row.client), ended_at: null, ended_by: null });
    },
    async find(id) {
      const row = await db('sessions').where({ id }).whereNull('ended_at').first<Row | undefined>(COLUMNS);
      return row ? toSession(row) : null;
    },
    async page(since, filter, limit, after) {
      const rows: Row[] = await active(since, filter)
        .select(COLUMNS)
        .modify((query) => {
          if (after !== null) query.where('id', '>', after);
          if (limit !== null) query.limit(limit);
        })
        .orderBy('id');
      return rows.map(toSession);
    },
    async count(since, { target_id, ...filter }) {
      const row = await active(since, filter)
        .modify((query) => {
          if (target_id !== undefined) query.where((either) => void either.where({ target_id }).orWhereNull('target_id'));
        })
        .count<{ n: number | string }[]>({ n: '*' })
        .first();
      return Number(row?.n ?? 0);
    },
    end: async (id, by, now) =>
      (await db('sessions').where({ id }).whereNull('ended_at').update({ ended_at: now, ended_by: by })) > 0,
    async endedByAdministrators(since) {
      const rows = await db('sessions')
        .where('created_at', '>', since)
        .where('ended_by', 'administrator')
        .select<{ id: string }[]>('id');
      return rows.map((row) => row.id);
    },
    async seen(ids, now) {
      await db('sessions').whereIn('id', ids).update({ seen_at: now });
    },
    adopt: async (id, from, to) =>
      (await db('sessions').where({ id, holder: from }).whereNull('ended_at').update({ holder: to })) > 0,

    async upstream(session_id, cause) {
      const row = await db('session_upstreams')
        .where({ session_id, cause })
        .first<UpstreamRow | undefined>('upstream_id', 'revision');
      return row ?? null;
    },
    async insertUpstream(session_id, cause, row, created_at) {
      try {
        await db('session_upstreams').insert({ session_id, cause, ...row, created_at });
        return true;
      } catch (error) {
        if (isDuplicate(error)) return false;
        throw error;
      }
    },
    async settings(session_id, target_id) {
      return db('session_settings')
        .where({ session_id })
        .whereIn('target_id', [target_id, EVERY_TARGET])
        .orderBy('created_at')
        .limit(SETTINGS_KEPT)
        .select('key', 'value');
    },
    async set(session_id, target_id, { key, value }, created_at) {
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
    async unset(session_id, target_id, key) {
      await db('session_settings').where({ session_id, target_id, key }).delete();
    },
    async forget(before, limit) {
      let mayBeMore = false;
      for (const [table, key] of [
        ['session_settings', 'session_id'],
        ['session_upstreams', 'session_id'],
        ['sessions', 'id'],
      ] as const) {
        const ids: string[] = await db(table).where('created_at', '<', before).limit(limit).pluck(key);
        await db(table)
          .whereIn(key, [...new Set(ids)])
          .where('created_at', '<', before)
          .delete();
        mayBeMore ||= ids.length === limit;
      }
      return mayBeMore;
    },
    async recycle(user_id, target_id, epoch) {
      const where = { user_id, target_id };
      if ((await db('recycles').where(where).update({ epoch })) > 0) return;
      await db('recycles').insert({ ...where, epoch });
    },
    recycles: () => db('recycles').select('user_id', 'target_id', 'epoch'),
  };
}
