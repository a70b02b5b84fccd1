/** `/api/users`. Only administrators reach these routes. */
import { Router } from 'express';
import { v7 as uuidv7 } from 'uuid';
import type { Administer } from '../../auth/caller.ts';
import type { Passwords } from '../../auth/passwords.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { pathId, readOnlyErrors, validate } from '../../base/validate.ts';
import type { Change } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { ID_KEY, readPage, sendPage } from '../../http/page.ts';
import { factsTooLarge, newUser, READ_ONLY, type UserUpdate, userDocument, userUpdate } from '../../users/document.ts';
import { ADMIN, type User, userStore } from '../../users/user-store.ts';

export interface UserRouteParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly passwords: Passwords;
  readonly now: () => number;
}

const PAGE = { defaultLimit: null, maxLimit: 1000, key: ID_KEY };

export function userRoutes({ database, administer, passwords, now }: UserRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const users = await userStore(database.knex).page(page.limit && page.limit + 1, page.cursor);
    await sendPage(req, res, page, users, ({ id }) => id, userDocument);
  });

  router.get('/:id', async (req, res) => {
    const user = await userStore(database.knex).find(pathId(req.params.id));
    if (!user) throw missing();
    res.json(userDocument(user));
  });

  router.post('/', async (req, res) => {
    const { email, password, role, groups } = validate(newUser, req.body);
    checkFacts({ role, groups });
    const passwordHash = await passwords.hash(password);
    const { result } = await administer(callerOf(res), 'admin', async (trx) => {
      const time = now();
      const user: User = { id: uuidv7(), email, role, groups, enabled: true, created_at: time, updated_at: time };
      await userStore(trx).insert(user, passwordHash);
      return { result: user, changes: [changed('user.create', null, user)] };
    });
    res.status(201).location(`${req.baseUrl}/${result.id}`).json(userDocument(result));
  });

  router.put('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    const update = validate(userUpdate, req.body);
    const { result } = await administer(callerOf(res), 'admin', async (trx) => {
      const users = userStore(trx);
      const before = await users.lock(id);
      if (!before) throw missing();
      const after = applied(before, update, now());
      if (after === before) return { result: before, changes: [] };
      await users.update(after);
      if (isAdministrator(before) && (await users.countEnabledAdministrators()) === 0) {
        throw new AppError(
          'last_administrator',
          'This is the last enabled administrator. Make a different user an administrator first.',
        );
      }
      return { result: after, changes: [changed('user.update', before, after)] };
    });
    res.json(userDocument(result));
  });

  return router;
}

const missing = (): AppError => new AppError('not_found', 'No user has this id.');

const isAdministrator = (user: User): boolean => user.role === ADMIN && user.enabled;

function changed(action: 'user.create' | 'user.update', before: User | null, after: User): Change {
  return { action, object_id: after.id, before: before && userDocument(before), after: userDocument(after) };
}

function checkFacts(facts: { readonly role: string; readonly groups: readonly string[] }): void {
  const message = factsTooLarge(facts);
  if (message !== null) throw invalidRequest([{ path: 'groups', message }]);
}

/** Returns `before` itself if nothing changes. Throws AppError `invalid_request` if a read-only member differs from its value. */
function applied(before: User, update: UserUpdate, now: number): User {
  const errors = readOnlyErrors(READ_ONLY, update, userDocument(before));
  if (errors.length > 0) throw invalidRequest(errors);
  const { role = before.role, groups = before.groups, enabled = before.enabled } = update;
  checkFacts({ role, groups });
  const same = role === before.role && enabled === before.enabled && JSON.stringify(groups) === JSON.stringify(before.groups);
  return same ? before : { ...before, role, groups, enabled, updated_at: now };
}
