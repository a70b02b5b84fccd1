/** Finds users by the id or e-mail that questions about policies contain. */
import type { Connection } from '../db/database.ts';
import { UUID } from '../http/validate.ts';
import { type User, userStore } from '../users/store.ts';

export const findUser = (db: Connection, user: string): Promise<User | null> =>
  UUID.test(user) ? userStore(db).find(user) : userStore(db).findByEmail(user);
