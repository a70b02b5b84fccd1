/** Users for reports about access, each with the answer to whether the gateway lets it in at the moment. */
import { tokenStore } from '../auth/token-store.ts';
import type { Connection } from '../db/database.ts';
import { enabledProviders } from '../providers/provider-store.ts';
import { EVERYBODY, type LocalSignIn, maySignIn } from '../users/local-sign-in.ts';
import { findUser, type User, userStore } from '../users/user-store.ts';
import { admitsUser } from './admission.ts';

export interface FoundUser {
  readonly user: User;
  /** Whether the gateway lets the user in with any token that the user has or can get. */
  readonly isAdmitted: boolean;
}

export type FoundUsers = ReturnType<typeof createFoundUsers>;

/** `db` should be a consistent snapshot. */
export function createFoundUsers(localSignIn: LocalSignIn = EVERYBODY, now: () => number = Date.now) {
  async function found(db: Connection, users: readonly User[]): Promise<FoundUser[]> {
    const providers = await enabledProviders(db);
    const withoutSignIn = users.filter((user) => !maySignIn(localSignIn, user)).map(({ id }) => id);
    const withToken = withoutSignIn.length === 0 ? new Set() : await tokenStore(db).holders(withoutSignIn, now());
    const mayCome = (user: User): boolean => maySignIn(localSignIn, user) || withToken.has(user.id);
    return users.map((user) => ({ user, isAdmitted: admitsUser(user, providers) && mayCome(user) }));
  }

  return {
    /** Returns up to `limit` users after this id, ordered by id. */
    page: async (db: Connection, limit: number, after: string | null): Promise<FoundUser[]> =>
      found(db, await userStore(db).page(limit, after)),

    /** `called`: an id or e-mail, as for `findUser`. */
    async find(db: Connection, called: string): Promise<FoundUser | null> {
      const user = await findUser(db, called);
      return user && ((await found(db, [user]))[0] ?? null);
    },
  };
}
