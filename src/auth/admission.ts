/** Two steps from a bearer token to a principal: the first needs keys alone, the second the current state. */
import type { Engine } from '../decision/decision.ts';
import type { SessionRules } from '../sessions/rules.ts';
import type { RoutedTarget } from '../targets/target.ts';
import type { AuthRefusal, Principal, TokenClaims, TokenKind } from './principal.ts';

/** State of one moment: everything in it was read in one consistent snapshot. Immutable. */
export interface Snapshot {
  /** Counter of administrative changes that this state contains. */
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

/** Verifies the value of an Authorization header (signature, issuer, audience, times, claims). Consults no stored state of the caller. */
export type VerifyToken = (authorization: string | undefined) => Promise<TokenClaims | AuthRefusal>;

/**
 * The freshness gate (law 4) and the identity (law 7): waits for state at least as new as the call, then looks up the token's
 * record and user in it. Throws AppError `unavailable` when no such state can be had in time.
 */
export type Admit = (claims: TokenClaims) => Promise<Admission | AuthRefusal>;

/** What the state holds of a token and its user. */
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

/** Role, groups and e-mail come from the record; of the claims only what ties them to it is used. Pure. */
export function judgeIdentity(claims: TokenClaims, identity: Identity | null): Principal | AuthRefusal {
  const { token, user } = identity ?? {};
  const valid =
    token !== undefined &&
    user !== undefined &&
    token.revoked_at === null &&
    token.user_id === claims.sub &&
    user.id === claims.sub &&
    // A rotated key goes on for the tokens that it signed, and for no others.
    token.kid === claims.kid &&
    // Only a recorded API token may lack an expiry.
    (claims.exp !== null || token.kind === 'api') &&
    user.enabled;
  if (!valid) return { refused: 'invalid_token', detail: 'The token has been revoked, or its user may not sign in.' };
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
