/** An admission: the caller, and the state of the gateway, at one moment. Says which callers get one, and what it may use. */

import {
  type AuthRefusal,
  type Principal,
  type ProviderToken,
  type TokenClaims,
  type TokenKind,
  type TokenLimits,
  userKey,
} from '../auth/principal.ts';
import type { Providers } from '../auth/provider.ts';
import type { GivenRight } from '../auth/rights.ts';
import { hasEnded, type TokenRecord } from '../auth/token-store.ts';
import { perObject } from '../base/kept.ts';
import type { Now } from '../base/promises.ts';
import type { Decision, Engine, NamedObject } from '../engine/decision.ts';
import { type Decide, decideInSteps } from '../engine/estimate.ts';
import type { SessionRules } from '../sessions/rules.ts';
import type { RoutedTarget } from '../targets/target.ts';
import { EVERYBODY, type LocalSignIn, maySignIn } from '../users/local-sign-in.ts';
import { grantedOf, isAdmissible, isLocal, labelOf, type User } from '../users/user-store.ts';

/** The state of one moment. Everything in it was read in one consistent snapshot. Immutable. */
export interface Snapshot {
  /** The number of the newest administrative change in this state. */
  readonly sequence: number;
  readonly engine: Engine;
  /** Enabled targets by name. */
  readonly targets: ReadonlyMap<string, RoutedTarget>;
  readonly sessions: SessionRules;
  /** The rights of administration that administrators have given. */
  readonly rights: readonly GivenRight[];
  /** Enabled providers by issuer. */
  readonly providers: Providers;
}

export interface Admission {
  /** For a token that is limited to endpoints, the snapshot has no other targets, so that they are unknown to every part. */
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

/** Decisions that take longer by the estimate of the engine take turns in the lane: they would keep the requests of others waiting. */
const LONG_MS = 2;

/** Whether the decisions must take turns in the lane. */
export function isLongDecision({ snapshot, principal }: Admission, targetId: string, objects: readonly NamedObject[]): boolean {
  try {
    return snapshot.engine.estimate(principal, targetId, objects) > LONG_MS;
  } catch {
    // The decision itself will be a deny.
    return false;
  }
}

/** Decides which objects an answer may list, exactly as a call to each would be decided. A fault counts as a deny. */
export function decideListed(admission: Admission, targetId: string): Decide {
  const { snapshot, principal } = admission;
  const allowed = (decisions: readonly Decision[], objects: readonly NamedObject[]): boolean[] =>
    objects.map((_, index) => decisions.length === objects.length && decisions[index]?.effect === 'allow');
  function* inSteps(objects: readonly NamedObject[]): Generator<undefined, boolean[]> {
    // Its turn comes before the first decision.
    yield;
    try {
      return allowed(yield* decideInSteps(snapshot.engine, principal, targetId, objects), objects);
    } catch {
      return objects.map(() => false);
    }
  }
  return (objects) => {
    if (objects.length === 0) return [];
    try {
      if (isLongDecision(admission, targetId, objects)) return inSteps(objects);
      return allowed(snapshot.engine.decideMany(principal, targetId, objects), objects);
    } catch {
      return objects.map(() => false);
    }
  };
}

/** Whether both decide the same about every object: the policies and what they say about the caller have not changed. */
export const isDecidedAlike = (a: Admission, b: Admission): boolean =>
  a.snapshot.engine === b.snapshot.engine &&
  a.principal.sub === b.principal.sub &&
  a.principal.role === b.principal.role &&
  a.principal.groups === b.principal.groups;

/** A token, or the grant behind an access token, and its user, as the state has them. */
export interface Identity {
  /** null: a user whose token has no record. */
  readonly token:
    | (Pick<TokenRecord, 'id' | 'user_id' | 'expires_at' | 'revoked_at' | 'limits'> & {
        readonly kind: TokenKind;
        /** null: a grant, for whose tokens every signing key may sign. */
        readonly kid: string | null;
      })
    | null;
  readonly user: Omit<User, 'created_at' | 'updated_at'>;
}

const refused = (detail: string): AuthRefusal => ({ refused: 'invalid_token', detail });

/**
 * Whether the record lets the user in with any token at all: the user is enabled, the facts of the provider admit the user, and the
 * provider is enabled.
 */
export const admitsUser = (user: Identity['user'], providers: Providers): boolean =>
  isAdmissible(user) && (isLocal(user) || providers.has(user.issuer));

/**
 * Role, groups and e-mail come from the user record. The claims only identify the records of the token and the user. `now`: milliseconds
 * since the epoch. `localSignIn`: whose logins and grants count. Pure.
 */
export function judgeIdentity(
  claims: TokenClaims,
  identity: Identity | null,
  providers: Providers,
  now: number,
  localSignIn: LocalSignIn = EVERYBODY,
): Principal | AuthRefusal {
  if (claims.provider !== null) return judgeForeign(claims.provider, identity, providers);
  const { token, user } = identity ?? {};
  const valid =
    token !== undefined &&
    token !== null &&
    user !== undefined &&
    !hasEnded(token, now) &&
    token.user_id === claims.sub &&
    user.id === claims.sub &&
    (token.kind === 'access') === (claims.resource !== null) &&
    // A retired key stays valid only for the tokens that it signed.
    (token.kid === claims.kid || token.kind === 'access') &&
    // Only a recorded API token may lack an expiry.
    (claims.exp !== null || token.kind === 'api') &&
    admitsUser(user, providers);
  if (!valid) return refused('The token is revoked or expired, or its user is disabled. Log in again.');
  if (token.kind !== 'api' && !maySignIn(localSignIn, user))
    return refused("Local accounts cannot sign in here any more. Sign in with your company's account.");
  return principalWith(user, token.id, token.kind, null, token.limits);
}

/** Judges a token of a provider, which has no record, by the provider and the user in the same state. */
function judgeForeign(token: ProviderToken, identity: Identity | null, providers: Providers): Principal | AuthRefusal {
  const provider = providers.get(token.issuer);
  if (provider === undefined) return refused('The provider of the token is disabled. Ask an administrator.');
  const problem = token.judge(provider);
  if (problem !== null) return refused(problem);
  const user = identity?.user;
  // The account may have been linked to a different user meanwhile.
  if (user === undefined || user.issuer !== token.issuer || user.subject !== token.subject)
    return refused('The account of this token has changed. Get a new token and try again.');
  if (!isAdmissible(user)) return refused('The user is disabled, or has no role here. Ask an administrator.');
  if (user.valid_after !== null && token.iat * 1_000 <= user.valid_after)
    return refused('The token was issued before your tokens were ended. Get a new token.');
  return principalWith(user, userKey(user.id), 'provider', token.iat, null);
}

/** The members are listed one by one because every call comes here: spreading an object is slow to make and to read. */
const principalWith = (
  user: Identity['user'],
  token_id: Principal['token_id'],
  token_kind: Principal['token_kind'],
  issued_at: Principal['issued_at'],
  limits: Principal['limits'],
): Principal => {
  const { issuer, sub, email, role, groups, granted } = principalOf(user);
  return { issuer, sub, email, role, groups, granted, token_id, token_kind, issued_at, limits };
};

/** What the record says of the caller. */
export const principalOf = (user: Identity['user']) => ({
  issuer: user.issuer,
  sub: user.id,
  email: labelOf(user),
  role: user.role,
  groups: user.groups,
  granted: grantedOf(user),
});

type Targets = Snapshot['targets'];

/** The targets by the limits of tokens. The same limits get the same map for the same targets, which shows that nothing has changed. */
const limitedTargets = perObject((_: Targets) => new WeakMap<object, Targets>());

/** Returns the snapshot without the targets that the limits of the token leave out. */
export function withinLimits(snapshot: Snapshot, limits: TokenLimits | null): Snapshot {
  const endpoints = limits?.endpoints ?? null;
  if (endpoints === null) return snapshot;
  const known = limitedTargets(snapshot.targets);
  let targets = known.get(endpoints);
  if (targets === undefined) {
    const ids = new Set(endpoints.map(({ id }) => id));
    targets = new Map([...snapshot.targets].filter(([, { id }]) => ids.has(id)));
    known.set(endpoints, targets);
  }
  const { sequence, engine, sessions, rights, providers } = snapshot;
  return { sequence, engine, targets, sessions, rights, providers };
}
