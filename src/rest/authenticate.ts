/**
 * Authentication of the REST API with express-jwt, by the keys and the functions that `verify.ts` uses for `/mcp`. The body is
 * read between its two steps, because a request arrives with its last byte (law 4).
 */
import type { Request, RequestHandler } from 'express';
import { expressjwt, UnauthorizedError } from 'express-jwt';
import { type KeyRing, TOKEN_ALGORITHM, type VerificationKey } from '../auth/keys.ts';
import { type AuthRefusal, isRefusal, type TokenClaims } from '../auth/principal.ts';
import { authorizationOf, bearerToken, INVALID_TOKEN, judgePayload, readHeader, type TokenRules } from '../auth/verify.ts';
import { starts } from '../base/caller-turns.ts';
import { AppError } from '../base/errors.ts';
import { admissionOf, contextOf } from '../http/context.ts';
import type { Admit } from '../state/admission.ts';

export interface Authenticate {
  /** Verifies the token with keys only. */
  readonly verify: RequestHandler;
  /** Waits until fewer than four requests with the same token are being handled. One that takes long counts only for a second. */
  readonly takeTurn: RequestHandler;
  /** Checks the token against the state at the time of the call, and puts the admission into the context. */
  readonly admit: RequestHandler;
}

/**
 * The requests with one token that are handled at once. Each token has its own slots, so that the thief of a token cannot keep its owner,
 * who can log in again, from revoking it.
 */
const AT_ONCE = 4;
/** A client that reads its answer slowly keeps its other requests waiting no longer than this. */
const COUNTED_MS = 1_000;

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

/** `heard`: called with the header and the claims of each verified token. */
export function createAuthenticate(
  keys: KeyRing,
  rules: TokenRules,
  admit: Admit,
  heard: (authorization: string | undefined, claims: TokenClaims) => void = () => undefined,
): Authenticate {
  const used = new WeakMap<object, VerificationKey>();
  const verified = new WeakMap<object, TokenClaims>();

  const readSignature = expressjwt({
    algorithms: [TOKEN_ALGORITHM],
    issuer: rules.issuer,
    audience: rules.audience,
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
      const kid = token ? readHeader(token.header) : INVALID_TOKEN;
      if (typeof kid !== 'string') throw new RefusedToken(kid);
      const key = await keys.resolve(kid);
      if (!key) throw new RefusedToken(INVALID_TOKEN);
      used.set(req, key);
      return key.publicKey;
    },
  });

  function claimsOf(req: Request): TokenClaims {
    const claims = verified.get(req);
    if (!claims) throw new Error('A protected route is mounted without token verification');
    return claims;
  }

  return {
    verify: (req, res, next) => {
      readSignature(req, res, (error?: unknown) => {
        if (error !== undefined) return next(toFault(error));
        const key = used.get(req);
        const payload = (req as Request & { auth?: unknown }).auth;
        if (!key || typeof payload !== 'object' || payload === null) return next(refused(INVALID_TOKEN));
        const judged = judgePayload(payload as Record<string, unknown>, key, rules);
        if ('refused' in judged) return next(refused(judged));
        verified.set(req, judged.claims);
        heard(authorizationOf(req), judged.claims);
        next();
      });
    },

    takeTurn: (req, res, next) => {
      const work = (end: () => void): void => {
        // The client has left. Its request is not handled, and no further event comes.
        if (res.closed || !req.socket.writable) {
          end();
          return;
        }
        const counted = setTimeout(end, COUNTED_MS).unref();
        res.once('close', () => {
          clearTimeout(counted);
          end();
        });
        next();
      };
      starts.run(`rest ${claimsOf(req).jti}`, work, AT_ONCE);
    },

    admit: async (req, res, next) => {
      const claims = claimsOf(req);
      const admission = await admit(claims);
      if (isRefusal(admission)) throw refused(admission);
      contextOf(res).admission = admission;
      next();
    },
  };
}

/** Passes requests of callers with one of these roles. Mount it behind `admit`. */
export function requireRole(...roles: readonly string[]): RequestHandler {
  return (_req, res, next) => {
    if (!roles.includes(admissionOf(res).principal.role)) {
      throw new AppError('forbidden', `This needs the role ${roles.join(' or ')}.`);
    }
    next();
  };
}
