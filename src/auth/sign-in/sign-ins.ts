/** Everything by which users are signed in: logins, browser sessions, and the access that applications were allowed. */
import type { Change } from '../../db/changes.ts';
import type { Transaction } from '../../db/database.ts';
import { browserStore } from '../browser-store.ts';
import { endGrants, grantStore } from '../grant-store.ts';
import { tokenStore } from '../token-store.ts';

/**
 * Ends all of it in the transaction of an administrative change, which must record the returned changes. API tokens stay. `exceptId`: the
 * id of the login, session or grant with which the caller asks for it. The transaction must have written the record of the user before: a
 * sign-in under way at a different member of a cluster then fails at its commit (`lockForSignIn`), and is tried again.
 */
export async function endSignInsOf(
  trx: Transaction,
  userIds: readonly string[],
  exceptId: string | null,
  now: number,
): Promise<Change[]> {
  await tokenStore(trx).revokeLoginsOf(userIds, exceptId, now);
  return await endSessionsAndGrantsOf(trx, userIds, exceptId);
}

/** Like `endSignInsOf`, but leaves logins: those of a disabled user are refused, and valid again when the user is enabled. */
export async function endSessionsAndGrantsOf(
  trx: Transaction,
  userIds: readonly string[],
  exceptId: string | null,
): Promise<Change[]> {
  await browserStore(trx).endAllOf(userIds, exceptId);
  return await endGrants(
    trx,
    (await grantStore(trx).ofUsers(userIds)).filter(({ id }) => id !== exceptId),
  );
}

/** Revokes their API tokens for good. */
export async function endApiTokensOf(trx: Transaction, userIds: readonly string[], now: number): Promise<Change[]> {
  const tokens = await tokenStore(trx).apiTokensOf(userIds);
  await tokenStore(trx).revokeAll(
    tokens.map(({ id }) => id),
    now,
  );
  return tokens.map(({ id, name, user_id }) => ({
    ...{ action: 'token.revoke', object_id: id, before: { name, user_id }, after: null },
  }));
}
