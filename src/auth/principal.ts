/** Reads the claims of a verified token, which identify the caller. Pure. */
import { perObject } from '../base/kept.ts';
import type { Now } from '../base/promises.ts';
import type { PrincipalFacts } from '../engine/decision.ts';

/** The claims that the gateway reads from every JWT. Their types are checked. */
export interface TokenClaims {
  readonly iss: string;
  readonly sub: string;
  readonly email: string;
  readonly role: string;
  readonly groups: readonly string[];
  /** The id of the token's record. A token without a record is invalid. */
  readonly jti: string;
  /** The id of the key that signed the token. */
  readonly kid: string;
  /** Seconds since the epoch; null: the token never expires. `judgeIdentity` accepts that only for API tokens. */
  readonly exp: number | null;
}

/** The key of a principal: issuer and subject, never the e-mail. */
export const principalKey = perObject(({ iss, sub }: Pick<TokenClaims, 'iss' | 'sub'>): string => JSON.stringify([iss, sub]));

/** The caller, from the user record at the time of the request (law 7). The claims only identify the record. */
export interface Principal extends PrincipalFacts {
  readonly issuer: string;
  readonly email: string;
  readonly token_id: string;
  readonly token_kind: TokenKind;
}

export type TokenKind = 'login' | 'api';

/** Refuses a missing or invalid token. The HTTP status is always 401. */
export interface AuthRefusal {
  readonly refused: 'unauthenticated' | 'invalid_token';
  readonly detail: string;
}

export function isRefusal(value: object): value is AuthRefusal {
  return 'refused' in value;
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';

/**
 * Reads the claims of a token whose signature, issuer, audience and times have been verified. A claim that is missing or has the
 * wrong type makes the token invalid. The gateway never guesses a value.
 */
export function readClaims(payload: Record<string, unknown>, kid: unknown): TokenClaims | AuthRefusal {
  const { iss, sub, email, role, groups, jti, exp = null } = payload;
  const wrong = (claim: string): AuthRefusal => ({
    refused: 'invalid_token',
    detail: `The claim ${claim} is missing or has the wrong type.`,
  });
  if (!isText(iss)) return wrong('iss');
  if (!isText(sub)) return wrong('sub');
  if (!isText(email)) return wrong('email');
  if (!isText(role)) return wrong('role');
  if (!Array.isArray(groups) || !groups.every(isText)) return wrong('groups');
  if (!isText(jti)) return wrong('jti');
  if (!isText(kid)) return wrong('kid');
  if (exp !== null && (typeof exp !== 'number' || !Number.isFinite(exp))) return wrong('exp');
  return { iss, sub, email, role, groups, jti, kid, exp };
}

/** Verifies an Authorization header: signature, issuer, audience, times, claims. Reads no stored state of the caller. */
export type VerifyToken = (authorization: string | undefined) => Now<TokenClaims | AuthRefusal>;
