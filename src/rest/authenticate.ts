/**
 * Authentication of the REST API with express-jwt, by the keys and the functions that `verify.ts` uses for `/mcp`. The body is
 * read between its two steps, because a request arrives with its last byte (law 4).
 */
import type { Request, RequestHandler } from 'express';
import { expressjwt, UnauthorizedError } from 'express-jwt';
import { type KeyRing, TOKEN_ALGORITHM, type VerificationKey } from '../auth/keys.ts';
import { type AuthRefusal, isRefusal, type TokenClaims } from '../auth/principal.ts';
import {
  authorizationOf,
  bearerToken,
  type ForeignTokens,
  hashOf,
  INVALID_TOKEN,
  judgePayload,
  readHeader,
  type TokenRules,
  type TokenType,
} from '../auth/verify.ts';
import { AppError } from '../base/errors.ts';
import { contextOf } from '../http/context.ts';
import { takeTurn } from '../http/limits/turn.ts';
import type { Admit } from '../state/admission.ts';

export interface Authenticate {
  /** Verifies the token with keys only. */
  readonly verify: RequestHandler;
  /** Waits until fewer than four requests with the same token are being handled. One that takes long counts only for a second. */
  readonly takeTurn: RequestHandler;
  /** Checks the token against the state at the time of the call, and puts the admission into the context. */
  readonly admit: RequestHandler;
}

/** The resource that access tokens for the REST API name. */
const API = '/api';

/** Carries a refusal out of express-jwt's callbacks, which can only throw. */
class RefusedToken extends Error {
  readonly refusal: AuthRefusal;

  constructor(refusal: AuthRefusal) {
    super(refusal.detail);
    this.refusal = refusal;
  }
}

const refused = ({ refused, detail }: AuthRefusal): AppError => new AppError(refused, detail);

/** Every failure of a token becomes a 401. A fault of the gateway, such as an unreachable database, is passed on. */
function toFault(error: unknown): unknown {
  if (error instanceof RefusedToken) return refused(error.refusal);
  return error instanceof UnauthorizedError ? refused(INVALID_TOKEN) : error;
}

export interface AuthenticateParts {
  /** Called with the header and the claims of each verified token. */
  readonly heard?: (authorization: string | undefined, claims: TokenClaims) => void;
  readonly foreign?: ForeignTokens | null;
}

export function createAuthenticate(
  keys: KeyRing,
  rules: TokenRules,
  admit: Admit,
  { heard = () => undefined, foreign = null }: AuthenticateParts = {},
): Authenticate {
  const used = new WeakMap<object, { readonly key: VerificationKey; readonly typ: TokenType }>();
  const verified = new WeakMap<object, TokenClaims>();

  const readSignature = expressjwt({
    algorithms: [TOKEN_ALGORITHM],
    // `judgePayload` tells which of them belong to which type of token.
    issuer: [rules.issuer, rules.publicUrl],
    audience: [rules.audience, `${rules.publicUrl}${API}`],
    // Times are judged with the rest of the payload, by the gateway's clock.
    ignoreExpiration: true,
    ignoreNotBefore: true,
    getToken: (req) => {
      const token = bearerToken(authorizationOf(req));
      if (typeof token !== 'string') throw new RefusedToken(token);
      return token;
    },
    // express-jwt also asks for the key if it could not read the token. Then `token` is undefined.
    secret: async (req, token) => {
      const header = token ? readHeader(token.header) : INVALID_TOKEN;
      if (isRefusal(header)) throw new RefusedToken(header);
      const key = await keys.resolve(header.kid);
      if (!key) throw new RefusedToken(INVALID_TOKEN);
      used.set(req, { key, typ: header.typ });
      return key.publicKey;
    },
  });

  function claimsOf(req: Request): TokenClaims {
    const claims = verified.get(req);
    if (!claims) throw new Error('A protected route is mounted without token verification');
    return claims;
  }

  function accept(req: Request, claims: TokenClaims): void {
    verified.set(req, claims);
    heard(authorizationOf(req), claims);
  }

  /** Returns the claims of a token that the gateway has not issued; null: it may have issued the token. */
  async function readForeign(req: Request): Promise<TokenClaims | AuthRefusal | null> {
    const token = bearerToken(authorizationOf(req));
    if (foreign === null || typeof token !== 'string') return null;
    const hash = hashOf(token);
    return foreign.recall(hash) ?? (await foreign.check(token, hash));
  }

  return {
    verify: async (req, res, next) => {
      const other = await readForeign(req);
      if (other !== null) {
        if (isRefusal(other)) throw refused(other);
        accept(req, other);
        return next();
      }
      readSignature(req, res, (error?: unknown) => {
        if (error !== undefined) return next(toFault(error));
        const by = used.get(req);
        const payload = (req as Request & { auth?: unknown }).auth;
        if (!by || typeof payload !== 'object' || payload === null) return next(refused(INVALID_TOKEN));
        const judged = judgePayload(payload as Record<string, unknown>, by.typ, by.key, rules);
        if ('refused' in judged) return next(refused(judged));
        if (judged.claims.resource !== null && judged.claims.resource !== API) return next(refused(INVALID_TOKEN));
        accept(req, judged.claims);
        next();
      });
    },

    // Each token has its own turns, so that the thief of a token cannot keep its owner, who can log in again, from revoking it. Tokens of a
    // provider share the claim `jti` with the other tokens of their user.
    takeTurn: (req, res, next) => {
      const { jti, kid, sub } = claimsOf(req);
      takeTurn({ sender: `rest ${jti} ${kid}`, user: sub }, req, res, next);
    },

    admit: async (req, res, next) => {
      const [claims, context] = [claimsOf(req), contextOf(res)];
      context.admit = async () => {
        const admission = await admit(claims);
        if (isRefusal(admission)) throw refused(admission);
        return admission;
      };
      context.admission = await context.admit();
      next();
    },
  };
}
