/** Users for reports about access, each with the targets that the gateway lets it reach at the moment. */
import { tokenStore } from '../auth/token-store.ts';
import { pause } from '../base/turns/slices.ts';
import type { Connection } from '../db/database.ts';
import { enabledProviders } from '../providers/provider-store.ts';
import { EVERYBODY, type LocalSignIn, maySignIn } from '../users/local-sign-in.ts';
import { findUser, type User, userStore } from '../users/user-store.ts';
import { admitsUser } from './admission.ts';

export interface FoundUser {
  readonly user: User;
  readonly reach: Reach;
}

/** The ids of the targets that a user reaches with any token that the user has or can get. null: every target. */
export type Reach = readonly string[] | null;

export const reaches = (reach: Reach, targetId: string): boolean => reach === null || reach.includes(targetId);

const NOWHERE: readonly string[] = [];

/** How many users are read at once. The groups of one user can have thousands of bytes. */
const AT_ONCE = 200;

export type FoundUsers = ReturnType<typeof createFoundUsers>;

/** `db` should be a consistent snapshot. Statements are sent together: on SQLite, everybody else waits for the end of a snapshot. */
export function createFoundUsers(localSignIn: LocalSignIn = EVERYBODY, now: () => number = Date.now) {
  async function found(db: Connection, reading: Promise<readonly User[]>): Promise<FoundUser[]> {
    const [users, providers] = await Promise.all([reading, enabledProviders(db)]);
    const withoutSignIn = users.filter((user) => !maySignIn(localSignIn, user)).map(({ id }) => id);
    const byToken = await tokenStore(db).endpointsOf(withoutSignIn, now());
    const reachOf = (user: User): Reach => {
      if (!admitsUser(user, providers)) return NOWHERE;
      if (maySignIn(localSignIn, user)) return null;
      const endpoints = byToken.get(user.id);
      return endpoints === null ? null : [...(endpoints ?? NOWHERE)];
    };
    return users.map((user) => ({ user, reach: reachOf(user) }));
  }

  return {
    /**
     * Yields up to `limit` users (null: all) after this id, in parts, ordered by id. `read` is called for each part, and returns what `page` returns
     * for its connection.
     */
    async *parts(
      read: (page: (db: Connection) => Promise<FoundUser[]>) => Promise<FoundUser[]>,
      after: string | null = null,
      limit: number | null = null,
    ): AsyncGenerator<readonly FoundUser[]> {
      let left = limit ?? Number.POSITIVE_INFINITY;
      for (let last = after; left > 0; ) {
        const asked = Math.min(AT_ONCE, left);
        const from = last;
        const some = await read((db) => found(db, userStore(db).page(asked, from)));
        yield some;
        if (some.length < asked) return;
        left -= some.length;
        last = some.at(-1)?.user.id ?? null;
        await pause();
      }
    },

    findAll: (db: Connection, ids: readonly string[]): Promise<FoundUser[]> => found(db, userStore(db).findAll(ids)),

    /** `called`: an id or e-mail, as for `findUser`. */
    async find(db: Connection, called: string): Promise<FoundUser | null> {
      const user = await findUser(db, called);
      return user && ((await found(db, Promise.resolve([user])))[0] ?? null);
    },
  };
}
