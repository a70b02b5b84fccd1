/** Lists and ends browser sessions: users their own, administrators those of any user. */
import { AppError } from '../../base/errors.ts';
import type { Change } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import { ADMIN } from '../../users/user-store.ts';
import { type BrowserSession, browserSessionLimits, browserStore } from '../browser-store.ts';
import type { Administer, Caller } from '../caller.ts';

export type BrowserSessionList = ReturnType<typeof createBrowserSessionList>;

export interface BrowserSessionListParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly now: () => number;
}

const ended = ({ id, user_id }: BrowserSession): Change => ({
  ...{ action: 'browser_session.end', object_id: id },
  ...{ before: { user_id }, after: null },
});

export function createBrowserSessionList({ database, administer, now }: BrowserSessionListParts) {
  const missing = (): AppError => new AppError('not_found', 'You have no browser session with this id.');

  return {
    /** Returns the user's open sessions, the last used first. */
    listOf: (userId: string): Promise<BrowserSession[]> =>
      browserStore(database.knex).listOf(userId, browserSessionLimits(now())),

    /** Ends one session, for every request that arrives from now on. Throws AppError `not_found`, also for a session of a different user. */
    async end(caller: Caller, id: string): Promise<void> {
      const session = await browserStore(database.knex).find(id);
      const own = session?.user_id === caller.principal.sub;
      // Refuse before the transaction, because all administrative changes wait in one line.
      if (session === null || (!own && caller.principal.role !== ADMIN)) throw missing();
      await administer(caller, own ? 'own' : 'admin', async (trx) => {
        if (!(await browserStore(trx).end(id))) throw missing();
        return { result: null, changes: [ended(session)] };
      });
    },

    /** Ends the user's sessions, except the one with the id `exceptId`. Throws AppError `forbidden` if they are not the caller's to end. */
    async endAllOf(caller: Caller, userId: string, exceptId: string | null): Promise<void> {
      await administer(caller, userId === caller.principal.sub ? 'own' : 'admin', async (trx) => {
        const sessions = await browserStore(trx).listOf(userId, browserSessionLimits(now()));
        await browserStore(trx).endAllOf([userId], exceptId);
        return { result: null, changes: sessions.filter(({ id }) => id !== exceptId).map(ended) };
      });
    },
  };
}
