/** The two steps from a bearer token to a principal: the first needs only keys, the second needs the current state. */

import type { AuthRefusal, Principal, TokenClaims, TokenKind } from '../auth/principal.ts';
import type { Now } from '../base/promises.ts';
import type { Engine } from '../engine/decision.ts';
import type { SessionRules } from '../sessions/rules.ts';
import type { RoutedTarget } from '../targets/target.ts';

/** The state of one moment. Everything in it was read in one consistent snapshot. Immutable. */
export interface Snapshot {
  /** The number of the newest administrative change in this state. */
  readonly sequence: number;
  readonly engine: Engine;
  /** Enabled targets by name. */
  readonly targets: ReadonlyMap<string, RoutedTarget>;
  readonly sessions: SessionRules;
}

export interface Admission {
  readonly snapshot: Snapshot;
  readonly principal: Principal;
}

/**
 * The freshness gate (law 4) and the identity (law 7). Waits for state at least as new as the call, then looks up the record
 * and the user of the token in it. Throws AppError `unavailable` if such state cannot be read in time.
 */
export type Admit = (claims: TokenClaims) => Now<Admission | AuthRefusal>;

/** Whether the caller may use the target at all, by the same decision as a call. A fault is a deny (law 6). */
export function mayUseTarget({ snapshot, principal }: Admission, { id }: Pick<RoutedTarget, 'id'>): boolean {
  try {
    return snapshot.engine.decideTarget(principal, id).effect === 'allow';
  } catch {
    return false;
  }
}

/** A token and its user, as the state has them. */
export interface Identity {
  readonly token: {
    readonly id: string;
    readonly user_id: string;
    readonly kind: TokenKind;
    readonly kid: string;
    readonly revoked_at: number | null;
  };
  readonly user: {
    readonly id: string;
    readonly email: string;
    readonly role: string;
    readonly groups: readonly string[];
    readonly enabled: boolean;
  };
}

/** Role, groups and e-mail come from the user record. The claims only identify the records of the token and the user. Pure. */
export function judgeIdentity(claims: TokenClaims, identity: Identity | null): Principal | AuthRefusal {
  const { token, user } = identity ?? {};
  const valid =
    token !== undefined &&
    user !== undefined &&
    token.revoked_at === null &&
    token.user_id === claims.sub &&
    user.id === claims.sub &&
    // A retired key stays valid only for the tokens that it signed.
    token.kid === claims.kid &&
    // Only a recorded API token may lack an expiry.
    (claims.exp !== null || token.kind === 'api') &&
    user.enabled;
  if (!valid) return { refused: 'invalid_token', detail: 'The token is revoked, or its user is disabled. Log in again.' };
  return {
    issuer: claims.iss,
    sub: user.id,
    email: user.email,
    role: user.role,
    groups: user.groups,
    token_id: token.id,
    token_kind: token.kind,
  };
}
