/** `/api/users`. */
import { type Response, Router } from 'express';
import Joi from 'joi';
import type { Administer, Authority } from '../../auth/caller.ts';
import type { Provider } from '../../auth/provider.ts';
import { holdsRights } from '../../auth/rights.ts';
import type { Passwords } from '../../auth/sign-in/passwords.ts';
import { endSessionsAndGrantsOf } from '../../auth/sign-in/sign-ins.ts';
import { AppError, type FieldError, invalidRequest } from '../../base/errors.ts';
import { requireMatch } from '../../base/etag.ts';
import { uuidv7 } from '../../base/ids.ts';
import { pathId, readOnlyErrors, validate } from '../../base/validate.ts';
import type { Change } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import { createRestingTurns, eachInTurn } from '../../db/turns.ts';
import { whileAllowed } from '../../http/allowed.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf } from '../../http/context.ts';
import { ID_KEY, readPage, sendList, sendPage } from '../../http/page.ts';
import { type Given, givenTo } from '../../providers/facts.ts';
import { rederived } from '../../providers/people.ts';
import { providerStore } from '../../providers/provider-store.ts';
import { endConnectionsOf } from '../../targets/connections.ts';
import {
  factsTooLarge,
  newUser,
  READ_ONLY,
  type UserFilter,
  type UserUpdate,
  userDocument,
  userEtag,
  userFilter,
  userUpdate,
} from '../../users/document.ts';
import { type LocalSignIn, requireKept } from '../../users/local-sign-in.ts';
import { ADMIN, grantedOf, isLocal, localUser, type User, userStore } from '../../users/user-store.ts';

export interface UserRouteParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly passwords: Passwords;
  readonly localSignIn: LocalSignIn;
  readonly now: () => number;
}

const PAGE = { defaultLimit: null, maxLimit: 1000, key: ID_KEY, also: Object.keys(userFilter), repeated: ['group'] };
const filter = Joi.object<UserFilter>(userFilter).unknown();

/** Ends if the client has left: a search can read very many users to find few. */
async function* oneByOne<T>(res: Response, parts: AsyncIterable<readonly T[]>): AsyncGenerator<T> {
  for await (const part of parts) {
    if (res.closed) return;
    yield* part;
  }
}

export function userRoutes({ database, administer, passwords, localSignIn, now }: UserRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });
  /** A call waits for at most one short read, however many read the list. */
  const inTurn = createRestingTurns();

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const { email, text, role, group } = validate(filter, { ...req.query });
    const wanted = { ...(email && { email }), ...(text && { text }), ...(role && { role }), ...(group && { group }) };
    const parts = userStore(database.knex).parts(page.cursor, wanted, page.limit === null ? null : page.limit + 1);
    const users = oneByOne(res, eachInTurn(inTurn, admissionOf(res).principal.sub, parts));
    if (page.limit === null) return sendList(res, '', whileAllowed(res, users), userDocument, '');
    const some: User[] = [];
    for await (const user of users) some.push(user);
    await sendPage(req, res, page, some, ({ id }) => id, userDocument);
  });

  router.get('/:id', async (req, res) => {
    const user = await userStore(database.knex).find(pathId(req.params.id));
    if (!user) throw missing();
    res.setHeader('ETag', userEtag(user)).json(userDocument(user));
  });

  router.post('/', async (req, res) => {
    const { email, password, role, groups } = validate(newUser, req.body);
    checkFacts({ role, groups });
    const passwordHash = await passwords.hash(password, callerOf(res).principal.sub);
    const { result } = await administer(callerOf(res), ['users:manage'], async (trx, authority) => {
      const user = localUser({ id: uuidv7(), email, role, groups }, now());
      requireOrdinary(authority, user);
      await userStore(trx).insert(user, passwordHash);
      return { result: user, changes: [changed('user.create', null, user)] };
    });
    res.status(201).location(`${req.baseUrl}/${result.id}`).setHeader('ETag', userEtag(result)).json(userDocument(result));
  });

  router.put('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    const update = validate(userUpdate, req.body);
    const caller = callerOf(res);
    const { result } = await administer(caller, ['users:manage'], async (trx, authority) => {
      const users = userStore(trx);
      const before = await users.lock(id);
      if (!before) throw missing();
      if (!authority.held.admin && id === caller.principal.sub) {
        throw new AppError('forbidden', 'You cannot change your own user record. Ask an administrator.');
      }
      requireOrdinary(authority, before);
      requireMatch(req.headers['if-match'], userEtag(before));
      const provider = isLocal(before) ? null : await providerStore(trx).findByIssuer(before.issuer);
      const after = applied(before, update, provider, now());
      requireOrdinary(authority, after);
      if (after === before) return { result: before, changes: [] };
      requireKept(localSignIn, after);
      await users.update(after);
      // They must not come back if the user is enabled again.
      const signIns = after.enabled ? [] : await endSessionsAndGrantsOf(trx, [id], null);
      if (isLocal(before) && isAdministrator(before) && (await users.countEnabledAdministrators()) === 0) {
        throw new AppError(
          'last_administrator',
          'This is the last enabled administrator with a local account. Make a different local account an administrator first.',
        );
      }
      const ended = before.enabled && !after.enabled ? await endConnectionsOf(trx, id, now()) : [];
      return { result: after, changes: [changed('user.update', before, after), ...signIns, ...ended] };
    });
    res.setHeader('ETag', userEtag(result)).json(userDocument(result));
  });

  return router;
}

const missing = (): AppError => new AppError('not_found', 'No user has this id.');

/**
 * Only administrators may make, change or disable a user with rights of administration, or give a role or group that carries one. Throws
 * AppError `forbidden`.
 */
function requireOrdinary({ held, given }: Authority, user: User): void {
  const { id, role } = user;
  if (held.admin || !holdsRights({ sub: id, granted: grantedOf(user) }, given)) return;
  throw new AppError(
    'forbidden',
    `The right \`users:manage\` does not cover users with rights of administration, and this user has some, directly, by the role ${role} or by a group. Ask an administrator.`,
  );
}

const isAdministrator = (user: User): boolean => user.role === ADMIN && user.enabled;

function changed(action: 'user.create' | 'user.update', before: User | null, after: User): Change {
  return { action, object_id: after.id, before: before && userDocument(before), after: userDocument(after) };
}

function checkFacts(facts: { readonly role: string; readonly groups: readonly string[] }): void {
  const message = factsTooLarge(facts);
  if (message !== null) throw invalidRequest([{ path: 'groups', message }]);
}

/**
 * Returns `before` itself if nothing changes. `provider`: that of the user; null: a local account, or the provider is gone. Throws
 * AppError `invalid_request` if a read-only member differs from its value, or two members contradict each other.
 */
function applied(before: User, update: UserUpdate, provider: Provider | null, now: number): User {
  const shown = userDocument(before);
  const errors = [...readOnlyErrors(READ_ONLY, update, shown), ...contradictions(shown, update, isLocal(before))];
  if (errors.length > 0) throw invalidRequest(errors);
  const { role, groups, given_role, given_groups, enabled = before.enabled } = update;
  const changed = { ...before, enabled, updated_at: now };
  const given = {
    // A client that sends back all that it has read changes only the member that differs.
    role: firstChanged([role, shown.role], [given_role, shown.given_role]) ?? shown.given_role,
    groups: firstChanged([groups, shown.groups], [given_groups, shown.given_groups]) ?? shown.given_groups,
  };
  if (given_role === null && !isLocal(before)) given.role = null;
  const after = isLocal(before)
    ? { ...changed, role: given.role ?? before.role, groups: given.groups }
    : withGiven(changed, given, provider);
  checkFacts(after);
  return isSame({ ...after, updated_at: before.updated_at }, before) ? before : after;
}

const isSame = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

const firstChanged = <T>(...members: readonly (readonly [given: T | undefined, shown: T])[]): T | undefined =>
  members.find(([given, shown]) => given !== undefined && !isSame(given, shown))?.[0];

/** Without its provider, nothing tells what role and groups the user has. */
function withGiven(user: User, given: Given, provider: Provider | null): User {
  if (isSame(given, givenTo(user))) return user;
  if (provider === null) throw new AppError('invalid_request', 'The provider of the user is no longer registered.');
  return rederived(provider, user, given);
}

function contradictions(shown: ReturnType<typeof userDocument>, update: UserUpdate, local: boolean): FieldError[] {
  const errors: FieldError[] = [];
  const differs = (name: 'role' | 'groups' | 'given_role' | 'given_groups'): boolean =>
    update[name] !== undefined && !isSame(update[name], shown[name]);
  for (const name of ['role', 'groups'] as const) {
    if (differs(name) && differs(`given_${name}`) && !isSame(update[name], update[`given_${name}`]))
      errors.push({ path: name, message: `must not differ from given_${name}, or be absent` });
  }
  if (local && update.given_role === null) errors.push({ path: 'given_role', message: 'must not be null for a local account' });
  if (!local && differs('groups'))
    errors.push({ path: 'groups', message: 'contains groups of the provider, so it cannot be set: set given_groups' });
  return errors;
}
