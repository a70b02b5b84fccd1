/** Verifies the Authorization header and returns its claims. It needs only keys, and no stored state of the caller. */

import { hash as digest } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { decodeProtectedHeader, errors as joseErrors, jwtVerify } from 'jose';
import { keep, perObject } from '../base/kept.ts';
import type { Now } from '../base/promises.ts';
import { ACCESS_TOKEN_TYPE, type KeyRing, TOKEN_ALGORITHM, TOKEN_TYPE, type VerificationKey } from './keys.ts';
import type { VerifyToken } from './principal.ts';
import { type AuthRefusal, isRefusal, readAccessClaims, readClaims, type TokenClaims } from './principal.ts';

export const ISSUER = 'portcullis';
export const AUDIENCE = 'portcullis';
/** How long a login token is valid. A retired key verifies login tokens for as long. */
export const LOGIN_TOKEN_MS = 12 * 3_600_000;

export interface TokenRules {
  readonly issuer: string;
  readonly audience: string;
  /** The issuer of access tokens. Their audiences are addresses below it. */
  readonly publicUrl: string;
  readonly now: () => number;
}

export type TokenType = typeof TOKEN_TYPE | typeof ACCESS_TOKEN_TYPE;

/** How long after its end a token counts. */
const TOLERANCE_SECONDS = 5;
/** The clocks of replicas may differ by this much: a token is valid at once, also at a replica whose clock is behind. */
const CLOCKS_SECONDS = 30;
const REMEMBERED = 10_000;
const BEARER = /^bearer +([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)$/i;

export const INVALID_TOKEN: AuthRefusal = { refused: 'invalid_token', detail: 'The token is not valid.' };

/** Joins repeated headers, so that they are not a valid token. Node alone would silently keep the first. */
export function authorizationOf(req: IncomingMessage): string | undefined {
  return req.headersDistinct['authorization']?.join(', ');
}

/** Returns the token in the header's value (RFC 6750). The scheme is case-insensitive. */
export function bearerToken(authorization: string | undefined): string | AuthRefusal {
  if (authorization === undefined || !/^bearer(\s|$)/i.test(authorization)) {
    return { refused: 'unauthenticated', detail: 'Send a bearer token in the Authorization header.' };
  }
  return BEARER.exec(authorization)?.[1] ?? INVALID_TOKEN;
}

/** Returns key id and type of a protected header. Any further member, such as `jku`, `jwk` or `x5u`, makes the token invalid. */
export function readHeader(header: object): { readonly kid: string; readonly typ: TokenType } | AuthRefusal {
  const { alg, typ, kid, ...others } = header as Record<string, unknown>;
  const isKnown = typ === TOKEN_TYPE || typ === ACCESS_TOKEN_TYPE;
  if (alg !== TOKEN_ALGORITHM || !isKnown || typeof kid !== 'string') return INVALID_TOKEN;
  return Object.keys(others).length > 0 ? INVALID_TOKEN : { kid, typ };
}

/** `now` in milliseconds. */
export function hasExpired({ exp }: Pick<TokenClaims, 'exp'>, now: number): boolean {
  return exp !== null && now / 1000 >= exp + TOLERANCE_SECONDS;
}

interface Times {
  readonly iat: number;
  readonly nbf: number;
  readonly exp: number | null;
}

function timesAllow({ iat, nbf, exp }: Times, key: VerificationKey, now: number): boolean {
  if (hasExpired({ exp }, now) || Math.max(iat, nbf) > now / 1000 + CLOCKS_SECONDS) return false;
  // After the overlap, a retired key verifies only API tokens.
  return exp === null || key.retiredAt === null || now < key.retiredAt + LOGIN_TOKEN_MS;
}

function readTimes(payload: Record<string, unknown>, exp: number | null): Times | null {
  const { iat, nbf = iat } = payload;
  return typeof iat === 'number' && typeof nbf === 'number' ? { iat, nbf, exp } : null;
}

/** Whether `aud` is the audience, or a list that contains it (RFC 7519 section 4.1.3). */
function isMeantFor(aud: unknown, audience: string): boolean {
  if (!Array.isArray(aud)) return aud === audience;
  return aud.every((one) => typeof one === 'string') && aud.includes(audience);
}

/** The scope that a resource needs. */
const scopeOf = (resource: string): string => (resource === '/api' ? 'api' : 'mcp');

/** Returns the path of the one resource that the access token is for; null: it names none, or its scope does not fit. */
function resourceOf({ aud, scope }: Record<string, unknown>, publicUrl: string): string | null {
  if (typeof aud !== 'string' || typeof scope !== 'string' || !aud.startsWith(`${publicUrl}/`)) return null;
  const resource = aud.slice(publicUrl.length);
  return scope.split(' ').includes(scopeOf(resource)) ? resource : null;
}

function claimsOf(
  payload: Record<string, unknown>,
  typ: TokenType,
  { kid }: VerificationKey,
  { issuer, audience, publicUrl }: TokenRules,
): TokenClaims | AuthRefusal {
  switch (typ) {
    case TOKEN_TYPE:
      if (payload['iss'] !== issuer || !isMeantFor(payload['aud'], audience)) return INVALID_TOKEN;
      return readClaims(payload, kid);
    case ACCESS_TOKEN_TYPE: {
      const resource = payload['iss'] === publicUrl ? resourceOf(payload, publicUrl) : null;
      return resource === null ? INVALID_TOKEN : readAccessClaims(payload, kid, issuer, resource);
    }
  }
}

/** Judges the payload of a token of this type whose signature `key` verified. `/mcp` and the REST API both call it. */
export function judgePayload(
  payload: Record<string, unknown>,
  typ: TokenType,
  key: VerificationKey,
  rules: TokenRules,
): { readonly claims: TokenClaims; readonly times: Times } | AuthRefusal {
  const claims = claimsOf(payload, typ, key, rules);
  if (isRefusal(claims)) return claims;
  const times = readTimes(payload, claims.exp);
  return times !== null && timesAllow(times, key, rules.now()) ? { claims, times } : INVALID_TOKEN;
}

/** Tokens that the gateway has not issued. `hash`: that of the token (`hashOf`). */
export interface ForeignTokens {
  /** Returns the claims of a token that was verified before and needs no new check. */
  recall(hash: string): TokenClaims | null;
  /** null: the gateway may have issued the token. */
  check(token: string, hash: string): Now<TokenClaims | AuthRefusal | null>;
}
const NO_FOREIGN: ForeignTokens = { recall: () => null, check: () => null };

/** The key under which verified tokens are remembered, so that no token stays in memory. */
export const hashOf = (token: string): string => digest('sha256', token, 'base64');

/** The token in the header, and its hash. */
const tokenIn = perObject(({ authorization }: { readonly authorization: string | undefined }) => {
  const token = bearerToken(authorization);
  return typeof token === 'string' ? { token, hash: hashOf(token) } : token;
});

/**
 * Caches verified tokens by hash: the signature check is the most expensive part of a request. Times are checked each time. `heard`: called
 * with the header and the claims of each token whose signature is checked, because it is not cached.
 */
export function createVerifier(
  keys: KeyRing,
  rules: TokenRules,
  heard: (authorization: string | undefined, claims: TokenClaims) => void = () => undefined,
  foreign: ForeignTokens = NO_FOREIGN,
): VerifyToken {
  const remembered = new Map<string, { readonly claims: TokenClaims; readonly times: Times }>();

  function recall(hash: string): TokenClaims | AuthRefusal | null {
    const entry = remembered.get(hash);
    if (!entry) return null;
    const key = keys.find(entry.claims.kid);
    if (!key || !timesAllow(entry.times, key, rules.now())) {
      remembered.delete(hash);
      return key ? INVALID_TOKEN : null;
    }
    // Keep the map in the order of last use.
    remembered.delete(hash);
    remembered.set(hash, entry);
    return entry.claims;
  }

  async function check(token: string, hash: string): Promise<TokenClaims | AuthRefusal> {
    const other = await foreign.check(token, hash);
    if (other !== null) return other;
    const header = headerOf(token);
    if (isRefusal(header)) return header;
    const key = await keys.resolve(header.kid);
    if (!key) return INVALID_TOKEN;
    const payload = await verified(token, header.typ, key, rules);
    if (payload === null) return INVALID_TOKEN;
    const judged = judgePayload(payload, header.typ, key, rules);
    if ('refused' in judged) return judged;
    return keep(remembered, hash, judged, REMEMBERED).claims;
  }

  return (headers) => {
    const sent = tokenIn(headers);
    if ('refused' in sent) return sent;
    const { token, hash } = sent;
    return (
      recall(hash) ??
      foreign.recall(hash) ??
      check(token, hash).then((claims) => {
        if (!isRefusal(claims)) heard(headers.authorization, claims);
        return claims;
      })
    );
  };
}

function headerOf(token: string): ReturnType<typeof readHeader> {
  try {
    return readHeader(decodeProtectedHeader(token));
  } catch {
    return INVALID_TOKEN;
  }
}

async function verified(
  token: string,
  typ: TokenType,
  key: VerificationKey,
  rules: TokenRules,
): Promise<Record<string, unknown> | null> {
  try {
    const { payload } = await jwtVerify(token, key.publicKey, {
      algorithms: [TOKEN_ALGORITHM],
      typ,
      // `judgePayload` judges the audience of an access token: it depends on the path.
      ...(typ === TOKEN_TYPE ? { issuer: rules.issuer, audience: rules.audience } : { issuer: rules.publicUrl }),
      // `judgePayload` judges the times.
      clockTolerance: CLOCKS_SECONDS,
      currentDate: new Date(rules.now()),
    });
    return payload;
  } catch (error) {
    if (error instanceof joseErrors.JOSEError) return null;
    throw error;
  }
}
