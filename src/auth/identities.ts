/** Reads what the gate needs to know of callers. */
import type { Connection } from '../db/database.ts';
import { userStore } from '../users/store.ts';
import type { Identity } from './admission.ts';
import { tokenStore } from './store.ts';

/** Tokens of one pair of statements: many may wait after a start. */
const BATCH = 500;

/** The identities of those tokens that have a record and a user. `db` must be of one moment. */
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
