/** Reads the claims of a verified token, which identify the caller. Pure. */
import type { Now } from '../base/promises.ts';
import type { PrincipalFacts } from '../engine/decision.ts';
import type { Granted } from '../users/user-store.ts';
import type { Provider } from './provider.ts';
import type { Right } from './rights.ts';

/** What a verified token says of its caller. Role and groups are not part of it: they come from the user record (law 7). */
export interface TokenClaims {
  readonly iss: string;
  /** The id of the user. For a token of a provider, the gateway has looked it up by issuer and subject. */
  readonly sub: string;
  /**
   * The id of the token's record, or of the grant behind an access token; without it, the token is invalid. For a token of a provider:
   * `userKey` of the user.
   */
  readonly jti: string;
  /** The id of the key that signed the token. For a token of a provider: the hash of the token. */
  readonly kid: string;
  /** Seconds since the epoch; null: the token never expires. `judgeIdentity` accepts that only for API tokens. */
  readonly exp: number | null;
  /** null: the gateway issued the token. */
  readonly provider: ProviderToken | null;
  /** The only endpoint that accepts this access token: `/mcp`, `/mcp/<target>` or `/api`. null: every endpoint accepts this kind of token. */
  readonly resource: string | null;
}

/** A verified access token of a provider. */
export interface ProviderToken {
  readonly issuer: string;
  readonly subject: string;
  /** Seconds since the epoch. */
  readonly iat: number;
  /** Judges the token under the present settings of its provider. null: they accept it; otherwise the reason for the caller. */
  readonly judge: (provider: Provider) => string | null;
}

/** The identity of a user whose token has no record. Ids of records are UUIDs, so it is never equal to one. */
export const userKey = (userId: string): string => `user:${userId}`;

const USER_KEY = userKey('');
export const isUserKey = (jti: string): boolean => jti.startsWith(USER_KEY);
export const userOfKey = (jti: string): string => jti.slice(USER_KEY.length);

/** The key of a principal: the id of the user record, which stands for one issuer and subject. */
export const principalKey = ({ sub }: Pick<TokenClaims, 'sub'>): string => sub;

/** The caller, from the user record at the time of the request (law 7). The claims only identify the record. */
export interface Principal extends PrincipalFacts {
  /** The issuer of the user record. */
  readonly issuer: string;
  /** The e-mail, or a different name of the user for people (`labelOf`). */
  readonly email: string;
  /** Which of `role` and `groups` may carry rights of administration. */
  readonly granted: Granted;
  /** The id of the token's record, or of the browser session. For a token of a provider: `userKey` of the user. */
  readonly token_id: string;
  readonly token_kind: TokenKind | 'browser' | 'provider';
  /** When a provider issued the token, in seconds; null: the gateway issued it. */
  readonly issued_at: number | null;
  /** null: the token may do what its user may. */
  readonly limits: TokenLimits | null;
}

/** What an API token may do at most. Its user must have the rights and the access, too. */
export interface TokenLimits {
  readonly rights: readonly Right[];
  /** Rights that can have an owner cover only this one; null: every owner. */
  readonly owner: string | null;
  /** The targets that the token may use, under the names that they had when the token was made; null: every target. */
  readonly endpoints: readonly { readonly id: string; readonly name: string }[] | null;
}

/** Kinds of tokens that have a record. `access`: an access token of an OAuth client, whose record is its grant. */
export type TokenKind = 'login' | 'api' | 'access';

/** Refuses a missing or invalid token. The HTTP status is always 401. */
export interface AuthRefusal {
  readonly refused: 'unauthenticated' | 'invalid_token';
  readonly detail: string;
}

export function isRefusal(value: object): value is AuthRefusal {
  return 'refused' in value;
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';

const wrong = (claim: string): AuthRefusal => ({
  refused: 'invalid_token',
  detail: `The claim ${claim} is missing or has the wrong type.`,
});

const isTime = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);

/**
 * Reads the claims of a token whose signature, issuer, audience and times have been verified. A claim that is missing or has the
 * wrong type makes the token invalid. The gateway never guesses a value.
 */
export function readClaims(payload: Record<string, unknown>, kid: unknown): TokenClaims | AuthRefusal {
  const { iss, sub, email, role, groups, jti, exp = null } = payload;
  if (!isText(iss)) return wrong('iss');
  if (!isText(sub)) return wrong('sub');
  if (!isText(email)) return wrong('email');
  if (!isText(role)) return wrong('role');
  if (!Array.isArray(groups) || !groups.every(isText)) return wrong('groups');
  if (!isText(jti)) return wrong('jti');
  if (!isText(kid)) return wrong('kid');
  if (exp !== null && !isTime(exp)) return wrong('exp');
  return { iss, sub, jti, kid, exp, provider: null, resource: null };
}

/**
 * Like `readClaims`, for an access token (RFC 9068). `iss`: the issuer of the user. `resource`: the path that its audience names.
 */
export function readAccessClaims(
  payload: Record<string, unknown>,
  kid: unknown,
  iss: string,
  resource: string,
): TokenClaims | AuthRefusal {
  const { sub, jti, client_id, grant, exp } = payload;
  if (!isText(sub)) return wrong('sub');
  if (!isText(jti)) return wrong('jti');
  if (!isText(client_id)) return wrong('client_id');
  if (!isText(grant)) return wrong('grant');
  if (!isText(kid)) return wrong('kid');
  if (!isTime(exp)) return wrong('exp');
  return { iss, sub, jti: grant, kid, exp, provider: null, resource };
}

/**
 * Verifies an Authorization header: signature, issuer, audience, times, claims. Reads no stored state of the caller. What follows from the header
 * alone is found once for the same object.
 */
export type VerifyToken = (headers: { readonly authorization: string | undefined }) => Now<TokenClaims | AuthRefusal>;
