/** Browser sessions. A cookie counts only while its row exists. The row has the digest of the cookie's value, and not the value. */
import type { Connection } from '../db/database.ts';

export interface BrowserSession {
  readonly id: string;
  readonly user_id: string;
  /** How the user signed in: `password`, or the name of a provider. */
  readonly method: string;
  /** The role of the user when the cookie got its value. A different role needs a new value. */
  readonly role: string;
  /** What the browser says it is. It is shown to people only. */
  readonly agent: string;
  readonly address: string;
  /** Milliseconds since the epoch. */
  readonly signed_in_at: number;
  /** When the user last proved who they are: by the password, or at a provider that asked for it. 0: it is not known. */
  readonly proved_at: number;
  /** The time of the last request, to within a minute. */
  readonly seen_at: number;
}

/** A session that was used or begun before these times has ended. */
export interface BrowserSessionLimits {
  readonly seenAfter: number;
  readonly signedInAfter: number;
}

/** Without a request for this long, or this long after the sign-in, a session ends. */
const IDLE_MS = 30 * 60_000;
const LIFETIME_MS = 12 * 60 * 60_000;

export const browserSessionLimits = (now: number): BrowserSessionLimits => ({
  seenAfter: now - IDLE_MS,
  signedInAfter: now - LIFETIME_MS,
});

interface BrowserSessionRow extends Omit<BrowserSession, 'proved_at'> {
  /** null: an older version of the gateway made the session. */
  readonly proved_at: number | null;
}

const COLUMNS = ['id', 'user_id', 'method', 'role', 'agent', 'address', 'signed_in_at', 'proved_at', 'seen_at'] as const;

const toSession = (row: BrowserSessionRow): BrowserSession => ({ ...row, proved_at: row.proved_at ?? row.signed_in_at });

export function browserStore(db: Connection) {
  const sessions = () => db('browser_sessions');
  const alive = ({ seenAfter, signedInAfter }: BrowserSessionLimits) =>
    sessions().where('seen_at', '>', seenAfter).where('signed_in_at', '>', signedInAfter);

  return {
    async insert(session: BrowserSession, digest: string): Promise<void> {
      await sessions().insert({ ...session, digest });
    },

    /** Finds sessions whose time is over, too. */
    async find(id: string): Promise<BrowserSession | null> {
      const row = await sessions()
        .where({ id })
        .first<BrowserSessionRow | undefined>(...COLUMNS);
      return row ? toSession(row) : null;
    },

    async findByDigest(digest: string, limits: BrowserSessionLimits): Promise<BrowserSession | null> {
      const row = await alive(limits)
        .where({ digest })
        .first<BrowserSessionRow | undefined>(...COLUMNS);
      return row ? toSession(row) : null;
    },

    /** Returns the user's open sessions, the last used first. */
    async listOf(userId: string, limits: BrowserSessionLimits): Promise<BrowserSession[]> {
      const rows: BrowserSessionRow[] = await alive(limits)
        .where({ user_id: userId })
        .select(...COLUMNS)
        .orderBy([
          { column: 'seen_at', order: 'desc' },
          { column: 'id', order: 'desc' },
        ]);
      return rows.map(toSession);
    },

    /**
     * Returns whether the session is open and belongs to the user. It also writes to the row. So if a different transaction ends
     * the session at the same time, one of the two comes first, also at different members of a cluster.
     */
    hold: async (id: string, userId: string, limits: BrowserSessionLimits): Promise<boolean> =>
      (await alive(limits).where({ id, user_id: userId }).increment('seen_at', 1)) > 0,

    async seen(id: string, now: number): Promise<void> {
      await sessions().where({ id }).where('seen_at', '<', now).update({ seen_at: now });
    },

    /** Gives the cookie a new value. False: a different request did so first, or the session has ended. */
    renew: async (id: string, from: string, digest: string, role: string): Promise<boolean> =>
      (await sessions().where({ id, digest: from }).update({ digest, role })) > 0,

    /** Returns false if there is no such session. */
    end: async (id: string): Promise<boolean> => (await sessions().where({ id }).delete()) > 0,

    async endByDigest(digest: string): Promise<void> {
      await sessions().where({ digest }).delete();
    },

    /** Ends the users' sessions except `exceptId`. */
    async endAllOf(userIds: readonly string[], exceptId: string | null): Promise<void> {
      await sessions()
        .whereIn('user_id', userIds)
        .modify((query) => {
          if (exceptId !== null) query.whereNot({ id: exceptId });
        })
        .delete();
    },

    /** Ends the user's sessions that were used longest ago, so that `most` are left. */
    async endBeyond(userId: string, most: number): Promise<void> {
      const kept: string[] = await sessions()
        .where({ user_id: userId })
        .orderBy([
          { column: 'seen_at', order: 'desc' },
          { column: 'id', order: 'desc' },
        ])
        .limit(most)
        .pluck('id');
      if (kept.length === most) await sessions().where({ user_id: userId }).whereNotIn('id', kept).delete();
    },

    /** Deletes up to `limit` sessions whose time is over. Returns how many. */
    async deleteOver({ seenAfter, signedInAfter }: BrowserSessionLimits, limit: number): Promise<number> {
      const ids: string[] = await sessions()
        .where('seen_at', '<=', seenAfter)
        .orWhere('signed_in_at', '<=', signedInAfter)
        .limit(limit)
        .pluck('id');
      return ids.length === 0 ? 0 : await sessions().whereIn('id', ids).delete();
    },
  };
}
