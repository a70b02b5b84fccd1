/**
 * Who may sign in with a local account: everybody, or one administrator, so that all others come from the company's providers. The rule is a
 * setting of the process, so every replica must have the same one.
 */
import { AppError } from '../base/errors.ts';
import type { Connection } from '../db/database.ts';
import { ADMIN, isLocal, type User, userStore } from './user-store.ts';

/** `on`: every local account. Otherwise the id of the only user. */
export type LocalSignIn = string;
export const EVERYBODY: LocalSignIn = 'on';

/** Whether the rule lets this user sign in, and lets their login tokens, browser sessions and grants count. API tokens count anyway. */
export const maySignIn = (rule: LocalSignIn, user: Pick<User, 'id' | 'issuer'>): boolean =>
  rule === EVERYBODY || !isLocal(user) || user.id === rule;

const canHold = (user: User): boolean => isLocal(user) && user.enabled && user.role === ADMIN;

/** Refuses a change after which no user could sign in with a password. Throws AppError `last_administrator`. */
export function requireKept(rule: LocalSignIn, after: User): void {
  if (rule === EVERYBODY || after.id !== rule || canHold(after)) return;
  throw new AppError(
    'last_administrator',
    'LOCAL_SIGN_IN names this user, who must stay an enabled administrator with a local account. Set LOCAL_SIGN_IN to a different user first.',
  );
}

/** Refuses to start if the rule would lock everybody out. Throws AppError `unavailable`. */
export async function checkLocalSignIn(db: Connection, rule: LocalSignIn): Promise<void> {
  if (rule === EVERYBODY) return;
  const user = await userStore(db).find(rule);
  const problem =
    user === null
      ? 'no user has this id'
      : isLocal(user)
        ? user.enabled
          ? `the role of this user is ${user.role}`
          : 'this user is disabled'
        : 'this user has an account at a provider';
  if (user !== null && canHold(user)) return;
  throw new AppError(
    'unavailable',
    `LOCAL_SIGN_IN is ${rule}, but ${problem}. Set it to \`on\`, or to the id of an enabled administrator with a local account (GET /api/users).`,
  );
}
