/** Administrative changes. The right of the caller is checked again inside the transaction that makes the change. */
import { AppError } from '../base/errors.ts';
import type { Change, Changes, Position } from '../db/changes.ts';
import type { Transaction } from '../db/database.ts';
import { ADMIN, userStore } from '../users/user-store.ts';
import type { Principal } from './principal.ts';
import { tokenStore } from './token-store.ts';

export interface Caller {
  readonly principal: Principal;
  readonly requestId: string;
  /** The reason in the caller's own words; null or absent: the caller gave none. */
  readonly reason?: string | null;
}

/** `admin`: the caller must be an administrator. `own`: any valid caller may change what belongs to them. */
export type Right = 'admin' | 'own';

/**
 * Runs `work` in the transaction of one administrative change and records the changes that it returns. Resolves when every
 * later request will be decided with them (law 4). Throws AppError `invalid_token` or `forbidden` if the caller lost the
 * right after admission. `work` may run several times.
 */
export type Administer = <T>(
  caller: Caller,
  right: Right,
  work: (trx: Transaction) => Promise<{ result: T; changes: readonly Change[] }>,
) => Promise<{ result: T; position: Position }>;

async function checkRight(trx: Transaction, principal: Principal, right: Right): Promise<void> {
  const user = await userStore(trx).find(principal.sub);
  const token = await tokenStore(trx).find(principal.token_id);
  if (!user?.enabled || token === null || token.user_id !== user.id || token.revoked_at !== null) {
    throw new AppError('invalid_token', 'The token is no longer valid.');
  }
  if (right === 'admin' && user.role !== ADMIN) throw new AppError('forbidden', 'Only administrators may do this.');
}

export function createAdminister({ changes }: { readonly changes: Changes }): Administer {
  return ({ principal, requestId, reason = null }, right, work) =>
    changes.change({ id: principal.sub, email: principal.email, request_id: requestId, reason }, async (trx) => {
      await checkRight(trx, principal, right);
      return work(trx);
    });
}
