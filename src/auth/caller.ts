/** Administrative changes. The right of the caller is checked again inside the transaction that makes the change. */
import { AppError } from '../base/errors.ts';
import type { Change, Changes, Position } from '../db/changes.ts';
import type { Transaction } from '../db/database.ts';
import { grantedOf, isAdmissible, isLocal, type User, userStore } from '../users/user-store.ts';
import { browserSessionLimits, browserStore } from './browser-store.ts';
import { grantStore } from './grant-store.ts';
import type { Principal } from './principal.ts';
import { rightStore } from './right-store.ts';
import { type AdministrativeNeed, type GivenRight, type Held, refusalOf, rightsOf } from './rights.ts';
import { hasEnded, tokenStore } from './token-store.ts';

export interface Caller {
  readonly principal: Principal;
  readonly requestId: string;
  /** The reason in the caller's own words; null or absent: the caller gave none. */
  readonly reason?: string | null;
  /** The only revision of the policies that a change of policies may start from; absent: any. */
  readonly atRevision?: number | undefined;
  /** Whether `managesAll` is true of the caller's rights at admission; absent: no. Heavy work of other callers has threads of its own. */
  readonly managesAll?: boolean;
  /** Aborted when the client disconnects. Heavy work for a change then ends, unless its transaction has begun. */
  readonly signal?: AbortSignal;
}

/** The rights that a change needs. `own`: none, because the change concerns only data of the caller. */
export type ChangeNeed = 'own' | AdministrativeNeed;

/** The rights in the transaction of a change. */
export interface Authority {
  /** Those of the caller. */
  readonly held: Held;
  /** All that administrators have given. */
  readonly given: readonly GivenRight[];
}

/**
 * Runs `work` in the transaction of one administrative change and records the changes that it returns. Resolves when every
 * later request will be decided with them (law 4). Throws AppError `invalid_token` or `forbidden` if the caller lost the
 * right after admission. `work` may run several times. It checks what the need does not say, such as the owner of a policy.
 */
export type Administer = <T>(
  caller: Caller,
  need: ChangeNeed,
  work: (trx: Transaction, authority: Authority) => Promise<{ result: T; changes: readonly Change[] }>,
) => Promise<{ result: T; position: Position }>;

/**
 * Whether the caller's token is neither revoked nor expired, or the browser session or the grant not ended. Locks the row of a browser
 * session. `now`: milliseconds since the epoch.
 */
async function isInForce(trx: Transaction, principal: Principal, now: number): Promise<boolean> {
  const { token_kind, token_id, sub, issued_at } = principal;
  switch (token_kind) {
    case 'browser':
      return await browserStore(trx).hold(token_id, sub, browserSessionLimits(now));
    case 'access': {
      const grant = await grantStore(trx).find(token_id);
      return grant !== null && grant.user_id === sub && grant.expires_at > now;
    }
    case 'provider':
      return issued_at !== null && issued_at * 1_000 > ((await userStore(trx).find(sub))?.valid_after ?? 0);
    case 'login':
    case 'api': {
      const token = await tokenStore(trx).find(token_id);
      return token !== null && token.user_id === sub && !hasEnded(token, now);
    }
  }
}

/** Whether the provider of this issuer is registered and enabled. */
export type ProviderAdmits = (trx: Transaction, issuer: string) => Promise<boolean>;

export interface AdministerParts {
  readonly changes: Changes;
  /** Absent: there are local accounts only. */
  readonly providerAdmits?: ProviderAdmits;
  readonly now?: () => number;
}

/**
 * Locks the record of the principal's user until the transaction ends (`lockForSignIn`). Returns whether the user is still admitted, and the
 * token or session still in force.
 */
export type StillAdmits = (trx: Transaction, principal: Principal) => Promise<boolean>;

export function createStillAdmits({
  providerAdmits = async () => false,
  now = Date.now,
}: Omit<AdministerParts, 'changes'>): StillAdmits {
  return async (trx, principal) => isAdmitted(trx, principal, userStore(trx).lockForSignIn(principal.sub), providerAdmits, now());
}

async function isAdmitted(
  trx: Transaction,
  principal: Principal,
  reading: Promise<User | null>,
  providerAdmits: ProviderAdmits,
  now: number,
): Promise<boolean> {
  // These statements are sent together, because other transactions wait for this one.
  const [user, inForce] = await Promise.all([reading, isInForce(trx, principal, now)]);
  return (
    inForce &&
    user !== null &&
    user.issuer === principal.issuer &&
    isAdmissible(user) &&
    (isLocal(user) || (await providerAdmits(trx, user.issuer)))
  );
}

export function createAdminister({ changes, providerAdmits = async () => false, now = Date.now }: AdministerParts): Administer {
  async function authorityOf(trx: Transaction, principal: Principal, need: ChangeNeed): Promise<Authority> {
    const reading = userStore(trx).find(principal.sub);
    const [user, admitted, given] = await Promise.all([
      reading,
      isAdmitted(trx, principal, reading, providerAdmits, now()),
      rightStore(trx).all(),
    ]);
    if (user === null || !admitted) throw new AppError('invalid_token', 'The token is no longer valid.');
    // The limits of a token never change.
    const current = { ...principal, role: user.role, groups: user.groups, granted: grantedOf(user) };
    const held = rightsOf(current, given);
    const refusal = need === 'own' ? null : refusalOf(need, current, held);
    if (refusal !== null) throw new AppError('forbidden', refusal);
    return { held, given };
  }

  return ({ principal, requestId, reason = null }, need, work) =>
    changes.change({ id: principal.sub, email: principal.email, request_id: requestId, reason }, async (trx) =>
      work(trx, await authorityOf(trx, principal, need)),
    );
}
