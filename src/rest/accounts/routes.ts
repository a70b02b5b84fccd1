/** `/api/auth` and `/api/keys`: account, logins and tokens of the caller, and the rotation of signing keys. */
import { type Request, type Response, Router } from 'express';
import Joi from 'joi';
import type { Administer } from '../../auth/caller.ts';
import type { KeyRing } from '../../auth/keys.ts';
import { type AdministrativeNeed, meets, needText, RIGHTS, type Right } from '../../auth/rights.ts';
import type { BrowserSessionList } from '../../auth/sign-in/browser-sessions.ts';
import type { Login } from '../../auth/sign-in/login.ts';
import type { Registration } from '../../auth/sign-in/registration.ts';
import { tokenStore } from '../../auth/token-store.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { createPace } from '../../base/turns/pace.ts';
import { pathId, refuseMembers, validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { readInTurn } from '../../db/turns.ts';
import { RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import type { NamedObject } from '../../engine/decision.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf, heldOf } from '../../http/context.ts';
import { addressOf, addressSite } from '../../http/limits/client-address.ts';
import type { RateLimits } from '../../http/limits/rate-limit.ts';
import type { Catalogue } from '../../mcp/upstream/catalogue.ts';
import { mayUseTarget } from '../../state/admission.ts';
import { userDocument } from '../../users/document.ts';
import { emailKey, userStore } from '../../users/user-store.ts';
import { apiTokenJson, endpointNames, readApiToken } from './api-tokens.ts';
import {
  account,
  browserSessionDocument,
  browserSessionQuery,
  newAccount,
  ownAccessQuery,
  passwordChange,
  signingKeyDocument,
} from './contract.ts';

export interface AuthParts {
  readonly database: Database;
  readonly registration: Registration;
  readonly login: Login;
  readonly sessionList: BrowserSessionList;
  readonly limits: RateLimits;
  readonly trustProxy: boolean;
  readonly publicUrl: string;
  readonly catalogue: Pick<Catalogue, 'of'>;
  readonly now: () => number;
}

/** Registration and login, for callers without a token. */
export function openAuthRoutes({ registration, login, limits, trustProxy }: AuthParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.post('/register', async (req, res) => {
    const from = limitPasswords(limits, trustProxy, req, req.body?.email);
    const { only_first = false, ...wanted } = validate(newAccount, req.body);
    const user = await registration.register({ ...wanted, from }, req.get('Portcullis-Setup-Code'), only_first);
    res.status(201).json(userDocument(user));
  });

  router.post('/login', async (req, res) => {
    const from = limitPasswords(limits, trustProxy, req, req.body?.email);
    const claimed = validate(account, req.body);
    const { user, token } = await login.login({ ...claimed, from });
    res.json({ user: userDocument(user), token });
  });

  return router;
}

/** Routes for what belongs to the caller. */
export function ownAuthRoutes({
  database,
  login,
  sessionList,
  limits,
  trustProxy,
  publicUrl,
  catalogue,
  now,
}: AuthParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/me', async (_req, res) => {
    const user = await userStore(database.knex).find(admissionOf(res).principal.sub);
    if (!user) throw new AppError('invalid_token', 'The token is no longer valid.');
    res.json(userDocument(user));
  });

  router.get('/rights', (_req, res) => {
    const { limits } = admissionOf(res).principal;
    const { admin, rights } = heldOf(res);
    const one = (right: Right, owner: string | null) => ({ right, owner });
    const list = RIGHTS.flatMap((right) => {
      const owners = rights.get(right);
      if (owners === undefined) return [];
      return owners === null ? [one(right, null)] : [...owners].sort().map((owner) => one(right, owner));
    });
    res.json({ admin, rights: list, endpoints: limits === null ? ['*'] : endpointNames(limits) });
  });

  router.get('/access', (_req, res) => {
    const admission = admissionOf(res);
    const usable = [...admission.snapshot.targets.values()].filter((target) => mayUseTarget(admission, target));
    res.json(usable.map(({ name }) => ({ target: name, endpoint: `${publicUrl}/mcp/${name}` })));
  });

  router.get('/access/:target', async (req, res) => {
    const { principal, snapshot } = admissionOf(res);
    const target = snapshot.targets.get(req.params.target);
    if (target === undefined || !mayUseTarget({ principal, snapshot }, target))
      throw new AppError('not_found', `There is no target ${req.params.target}, or no policy lets you use it.`);
    const { limit, ...query } = validate(ownAccessQuery, { ...req.query });
    const skip = Number(query.skip ?? 0);
    // A target can have thousands of long names.
    await readInTurn(principal.sub, async () => {
      const all = catalogue.of({ target, access: target.accessOf(principal) });
      const listed = RESOURCE_TYPES.flatMap((type) => all.filter(({ resource_type }) => resource_type === type));
      const pace = createPace(principal.sub);
      const end = limit === undefined ? Number.POSITIVE_INFINITY : skip + Number(limit);
      const allowed: NamedObject[] = [];
      for (const object of listed) {
        await pace();
        if (snapshot.engine.decide(principal, target.id, object).effect === 'allow') allowed.push(object);
        if (allowed.length > end) break;
      }
      res.json({
        target: target.name,
        endpoint: `${publicUrl}/mcp/${target.name}`,
        names: allowed.slice(skip, end).map(({ resource_type, resource_name }) => ({ resource_type, resource_name })),
        more: allowed.length > end,
      });
    });
  });

  router.post('/logout', async (req, res) => {
    refuseMembers(req);
    await login.logout(callerOf(res));
    res.status(204).end();
  });

  router.put('/password', async (req, res) => {
    const caller = callerOf(res);
    const from = limitPasswords(limits, trustProxy, req, caller.principal.email);
    const { current_password, new_password } = validate(passwordChange, req.body);
    await login.changePassword(caller, current_password, new_password, from);
    res.status(204).end();
  });

  router.get('/tokens', async (req, res) => {
    const records = await tokenStore(database.knex).listOf(userAskedFor(req, res, ['read']));
    res.json(records.map(apiTokenJson));
  });

  router.post('/tokens', async (req, res) => {
    const refusal = limits.own(admissionOf(res).principal.sub);
    if (refusal) throw refusal;
    const wanted = readApiToken(req.body, admissionOf(res), heldOf(res), now());
    const { record, token } = await login.createApiToken(callerOf(res), wanted);
    res.status(201).json({ api_token: apiTokenJson(record), token });
  });

  router.delete('/tokens/:id', async (req, res) => {
    await login.revokeApiToken(callerOf(res), pathId(req.params.id));
    res.status(204).end();
  });

  router.get('/browser-sessions', async (req, res) => {
    const open = await sessionList.listOf(userAskedFor(req, res, ['read']));
    res.json(open.map(browserSessionDocument));
  });

  router.delete('/browser-sessions', async (req, res) => {
    await sessionList.endAllOf(callerOf(res), userAskedFor(req, res, 'admin'), null);
    res.status(204).end();
  });

  router.delete('/browser-sessions/:id', async (req, res) => {
    await sessionList.end(callerOf(res), pathId(req.params.id));
    res.status(204).end();
  });

  return router;
}

export interface KeyParts {
  readonly keys: KeyRing;
  readonly database: Database;
  readonly administer: Administer;
  readonly now: () => number;
}

export function keyRoutes({ keys, database, administer, now }: KeyParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (_req, res) => {
    const count = () => tokenStore(database.knex).countByKey(now());
    const [all, tokens] = await Promise.all([keys.list(), readInTurn(callerOf(res).principal.sub, count)]);
    res.json(all.map((key) => signingKeyDocument(key, tokens)));
  });
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

/**
 * Also counts a body that is wrong, because reading it and saying what is wrong takes time. `email`: as it was sent. Returns the network of
 * the caller.
 */
function limitPasswords(limits: RateLimits, trustProxy: boolean, req: Request, email: unknown): string {
  const address = addressOf(req, trustProxy);
  const refusal = limits.password(address, typeof email === 'string' ? emailKey(email) : null);
  if (refusal) throw refusal;
  return addressSite(address);
}

/** Returns the user whom the request is about: `user_id`, which needs these rights unless it is the caller, or else the caller. */
export function userAskedFor(req: Request, res: Response, need: AdministrativeNeed): string {
  const { sub } = admissionOf(res).principal;
  const unknown = Object.keys(req.query).filter((name) => name !== 'user_id');
  if (unknown.length > 0) throw invalidRequest(unknown.map((path) => ({ path, message: 'unknown query parameter' })));
  const { user_id } = validate(Joi.object<{ user_id?: string }>(browserSessionQuery), { ...req.query });
  if (user_id !== undefined && user_id !== sub && !meets(heldOf(res), need)) {
    throw new AppError('forbidden', `To name a different user needs ${needText(need)}. Ask an administrator.`);
  }
  return user_id ?? sub;
}
