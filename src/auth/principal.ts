/** From the claims of a verified token to who is asking. Pure. */
import type { PrincipalFacts } from '../decision/decision.ts';

/** The claims that the gateway reads from every JWT; their types have been checked. */
export interface TokenClaims {
  readonly iss: string;
  readonly sub: string;
  readonly email: string;
  readonly role: string;
  readonly groups: readonly string[];
  /** Identifies the token's record, without which no token is valid. */
  readonly jti: string;
  /** Key that signed the token. */
  readonly kid: string;
  /** Seconds since the epoch; null: never. Only a recorded API token may lack it. */
  readonly exp: number | null;
}

/** The caller as the user record has it at the time of the request (law 7): the claims only lead to the record. */
export interface Principal extends PrincipalFacts {
  readonly issuer: string;
  readonly email: string;
  readonly token_id: string;
  readonly token_kind: TokenKind;
}

export type TokenKind = 'login' | 'api';

/** A token that is not good for anything: always HTTP 401. */
export interface AuthRefusal {
  readonly refused: 'unauthenticated' | 'invalid_token';
  readonly detail: string;
}

export function isRefusal(value: object): value is AuthRefusal {
  return 'refused' in value;
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';

/**
 * Reads the claims of a token whose signature, issuer, audience and times have been verified.
 * A missing claim or one of a wrong type makes the token invalid, never a guess.
 */
export function readClaims(payload: Record<string, unknown>, kid: unknown): TokenClaims | AuthRefusal {
  const { iss, sub, email, role, groups, jti, exp = null } = payload;
  const wrong = (claim: string): AuthRefusal => ({
    refused: 'invalid_token',
    detail: `The claim ${claim} is missing or of a wrong type.`,
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
