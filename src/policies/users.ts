/** Finds users by the id or e-mail that questions about policies contain. */

import { UUID } from '../base/validate.ts';
import type { Connection } from '../db/database.ts';
import { type User, userStore } from '../users/user-store.ts';

export const findUser = (db: Connection, user: string): Promise<User | null> =>
  UUID.test(user) ? userStore(db).find(user) : userStore(db).findByEmail(user);
