/** `/api/auth` and `/api/keys`: account, logins and tokens of the caller, and the rotation of signing keys. */
import { type Request, type RequestHandler, type Response, Router } from 'express';
import Joi from 'joi';
import type { Administer } from '../../auth/caller.ts';
import type { KeyRing } from '../../auth/keys.ts';
import type { Login } from '../../auth/login.ts';
import type { Registration } from '../../auth/registration.ts';
import { type TokenRecord, tokenStore } from '../../auth/token-store.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { pathId, validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { addressOf } from '../../http/client-address.ts';
import { admissionOf } from '../../http/context.ts';
import type { RateLimits } from '../../http/rate-limit.ts';
import { userDocument } from '../../users/document.ts';
import { ADMIN, emailKey, userStore } from '../../users/user-store.ts';
import { account, newAccount, newApiToken, passwordChange, tokenQuery } from './contract.ts';

export interface AuthParts {
  readonly database: Database;
  readonly registration: Registration;
  readonly login: Login;
  readonly limits: RateLimits;
  readonly trustProxy: boolean;
}

const apiTokenDocument = ({ id, name, created_at }: TokenRecord) => ({
  id,
  name,
  created_at: new Date(created_at).toISOString(),
});

/** Registration and login, for callers without a token. */
export function openAuthRoutes({ registration, login, limits, trustProxy }: AuthParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.post('/register', async (req, res) => {
    const wanted = validate(newAccount, req.body);
    limitPasswords(limits, trustProxy, req, wanted.email);
    const user = await registration.register(wanted, req.get('Portcullis-Setup-Code'));
    res.status(201).json(userDocument(user));
  });

  router.post('/login', async (req, res) => {
    const claimed = validate(account, req.body);
    limitPasswords(limits, trustProxy, req, claimed.email);
    const { user, token } = await login.login(claimed.email, claimed.password);
    res.json({ user: userDocument(user), token });
  });

  return router;
}

/** Routes for callers with any valid token. A route that makes or revokes tokens needs a login token. */
export function ownAuthRoutes({ database, login, limits, trustProxy }: AuthParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/me', async (_req, res) => {
    const user = await userStore(database.knex).find(admissionOf(res).principal.sub);
    if (!user) throw new AppError('invalid_token', 'The token is no longer valid.');
    res.json(userDocument(user));
  });

  router.post('/logout', needLogin, async (req, res) => {
    refuseMembers(req);
    await login.logout(callerOf(res));
    res.status(204).end();
  });

  router.put('/password', needLogin, async (req, res) => {
    const { current_password, new_password } = validate(passwordChange, req.body);
    const caller = callerOf(res);
    limitPasswords(limits, trustProxy, req, caller.principal.email);
    await login.changePassword(caller, current_password, new_password);
    res.status(204).end();
  });

  router.get('/tokens', async (req, res) => {
    const records = await tokenStore(database.knex).listOf(ownerAskedFor(req, res));
    res.json(records.map(apiTokenDocument));
  });

  router.post('/tokens', needLogin, async (req, res) => {
    const { name } = validate(newApiToken, req.body);
    const refusal = limits.own(admissionOf(res).principal.sub);
    if (refusal) throw refusal;
    const { record, token } = await login.createApiToken(callerOf(res), name);
    res.status(201).json({ api_token: apiTokenDocument(record), token });
  });

  router.delete('/tokens/:id', needLogin, async (req, res) => {
    await login.revokeApiToken(callerOf(res), pathId(req.params.id));
    res.status(204).end();
  });

  return router;
}

/** Only administrators reach these routes. */
export function keyRoutes(keys: KeyRing, administer: Administer, now: () => number): Router {
  const router = Router({ caseSensitive: true, strict: true });
  router.post('/rotate', async (req, res) => {
    refuseMembers(req);
    const { result } = await administer(callerOf(res), 'admin', async (trx) => {
      const created = now();
      const { kid, retired } = await keys.rotate(trx, created);
      const document = { kid, created_at: new Date(created).toISOString() };
      return {
        result: document,
        changes: [{ action: 'key.rotate', object_id: kid, before: { kids: retired }, after: document }],
      };
    });
    res.status(201).json(result);
  });
  return router;
}

function limitPasswords(limits: RateLimits, trustProxy: boolean, req: Request, address: string): void {
  const refusal = limits.password(addressOf(req, trustProxy), emailKey(address));
  if (refusal) throw refusal;
}

/** An attacker with a leaked API token must not be able to make tokens that outlive its revocation, or to lock the owner out. */
const needLogin: RequestHandler = (_req, res, next) => {
  if (admissionOf(res).principal.token_kind !== 'login') {
    throw new AppError('forbidden', 'An API token may not do this: use a login token.');
  }
  next();
};

function refuseMembers(req: Request): void {
  validate(Joi.object({}), req.body);
}

/** Returns the user whose tokens are listed: `user_id` if an administrator names one, else the caller. */
function ownerAskedFor(req: Request, res: Response): string {
  const { principal } = admissionOf(res);
  const unknown = Object.keys(req.query).filter((name) => name !== 'user_id');
  if (unknown.length > 0) throw invalidRequest(unknown.map((path) => ({ path, message: 'unknown query parameter' })));
  const { user_id } = validate(Joi.object<{ user_id?: string }>(tokenQuery), { ...req.query });
  if (user_id !== undefined && user_id !== principal.sub && principal.role !== ADMIN) {
    throw new AppError('forbidden', 'Only administrators may list the tokens of other users.');
  }
  return user_id ?? principal.sub;
}
