/** Users for reports about access, each with the answer to whether the gateway lets it in at the moment. */
import type { Connection } from '../db/database.ts';
import { enabledProviders } from '../providers/provider-store.ts';
import { findUser, type User, userStore } from '../users/user-store.ts';
import { admitsUser } from './admission.ts';

export interface FoundUser {
  readonly user: User;
  /** Whether the gateway lets the user in: neither the user nor its provider is disabled, and the provider admits the user. */
  readonly isAdmitted: boolean;
}

async function found(db: Connection, users: readonly User[]): Promise<FoundUser[]> {
  const providers = await enabledProviders(db);
  return users.map((user) => ({ user, isAdmitted: admitsUser(user, providers) }));
}

/** Returns up to `limit` users after this id, ordered by id. `db` should be a consistent snapshot. */
export const pageOfUsers = async (db: Connection, limit: number, after: string | null): Promise<FoundUser[]> =>
  found(db, await userStore(db).page(limit, after));

/** `called`: an id or e-mail, as for `findUser`. */
export async function lookUpUser(db: Connection, called: string): Promise<FoundUser | null> {
  const user = await findUser(db, called);
  return user && ((await found(db, [user]))[0] ?? null);
}
