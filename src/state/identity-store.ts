/** Reads the identities of callers for the freshness gate. */

import { tokenStore } from '../auth/token-store.ts';
import type { Connection } from '../db/database.ts';
import { userStore } from '../users/user-store.ts';
import type { Identity } from './admission.ts';

/** Tokens per pair of statements. After a start, many tokens may wait to be looked up. */
const BATCH = 500;

/** Returns the identities of the tokens that have a record and a user. `db` must be a snapshot. */
export async function readIdentities(db: Connection, tokenIds: readonly string[]): Promise<Identity[]> {
  const found: Identity[] = [];
  for (let start = 0; start < tokenIds.length; start += BATCH) {
    const tokens = await tokenStore(db).findAll(tokenIds.slice(start, start + BATCH));
    const users = await userStore(db).findAll([...new Set(tokens.map(({ user_id }) => user_id))]);
    const byId = new Map(users.map((user) => [user.id, user]));
    for (const token of tokens) {
      const user = byId.get(token.user_id);
      if (user !== undefined) found.push({ token, user });
    }
  }
  return found;
}
