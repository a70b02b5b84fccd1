/** Reads the identities of callers for the freshness gate. */

import { grantStore } from '../auth/grant-store.ts';
import { isUserKey, userOfKey } from '../auth/principal.ts';
import { tokenStore } from '../auth/token-store.ts';
import type { Connection } from '../db/database.ts';
import { userStore } from '../users/user-store.ts';
import type { Identity } from './admission.ts';

/** Tokens per pair of statements. After a start, many tokens may wait to be looked up. */
const BATCH = 500;

/** Returns the records with these ids. Ids of grants are looked for last, because most callers have tokens of their own. */
async function recordsOf(db: Connection, ids: readonly string[]): Promise<NonNullable<Identity['token']>[]> {
  const tokens = await tokenStore(db).findAll(ids);
  if (tokens.length === ids.length) return tokens;
  const known = new Set(tokens.map(({ id }) => id));
  const grants = await grantStore(db).findAll(ids.filter((id) => !known.has(id)));
  return [
    ...tokens,
    ...grants.map(({ id, user_id, expires_at }) => ({
      id,
      user_id,
      kind: 'access' as const,
      kid: null,
      // An access token may have been issued just before its grant expires.
      expires_at,
      revoked_at: null,
      limits: null,
    })),
  ];
}

/**
 * Returns the identities that exist of the claims `jti`: those of tokens and grants that have a record and a user, and those of users whose
 * tokens have no record. `db` must be a snapshot.
 */
export async function readIdentities(db: Connection, keys: readonly string[]): Promise<Identity[]> {
  const found: Identity[] = [];
  for (let start = 0; start < keys.length; start += BATCH) {
    const some = keys.slice(start, start + BATCH);
    const tokens = await recordsOf(
      db,
      some.filter((key) => !isUserKey(key)),
    );
    const own = some.filter(isUserKey).map(userOfKey);
    const users = await userStore(db).findAll([...new Set([...tokens.map(({ user_id }) => user_id), ...own])]);
    const byId = new Map(users.map((user) => [user.id, user]));
    for (const token of tokens) {
      const user = byId.get(token.user_id);
      if (user !== undefined) found.push({ token, user });
    }
    for (const id of own) {
      const user = byId.get(id);
      if (user !== undefined) found.push({ token: null, user });
    }
  }
  return found;
}
