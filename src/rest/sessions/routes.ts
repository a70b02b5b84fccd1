/** `/api/sessions`, and the recycling of a user's sessions. */
import { Router } from 'express';
import Joi from 'joi';
import type { Administer, Caller } from '../../auth/caller.ts';
import { type Held, has, operates } from '../../auth/rights.ts';
import { AppError } from '../../base/errors.ts';
import { pathId, validate } from '../../base/validate.ts';
import type { Change } from '../../db/changes.ts';
import { readPosition } from '../../db/changes.ts';
import type { Database, Transaction } from '../../db/database.ts';
import { createRestingTurns, eachInTurn, readInTurn } from '../../db/turns.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf, heldOf } from '../../http/context.ts';
import { ID_KEY, readPage, sendPage } from '../../http/page.ts';
import { SESSION_LIFETIME_MS } from '../../sessions/rules.ts';
import { type SessionFilter, type SessionRow, sessionStore } from '../../sessions/session-store.ts';
import { targetStore } from '../../targets/target-store.ts';
import { userStore } from '../../users/user-store.ts';
import { recycling, sessionJson, sessionQuery } from './contract.ts';

export interface SessionRouteParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly now: () => number;
  /** Called with how long a session has lasted when an administrator ends it. */
  readonly onEnded: (lastedMs: number) => void;
}

type RecycleParts = Pick<SessionRouteParts, 'database' | 'administer' | 'now'>;

/** Sessions are counted, and all requests wait until the change is loaded. A loop of a holder of the right would keep them waiting. */
const recyclesInTurn = createRestingTurns();

const PAGE = { defaultLimit: 100, maxLimit: 1000, key: ID_KEY, also: Object.keys(sessionQuery) };
const listing = Joi.object<SessionFilter>(sessionQuery);

export function createSessionRoutes({ database, administer, now, onEnded }: SessionRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const { user_id, target_id } = req.query as Record<string, string>;
    const filter = validate(listing, {
      ...(user_id === undefined ? {} : { user_id }),
      ...(target_id === undefined ? {} : { target_id }),
    });
    const held = heldOf(res);
    if (!has(held, 'read')) requireOperated(held, filter.target_id);
    const since = now() - SESSION_LIFETIME_MS;
    const parts = sessionStore(database.knex).parts(since, filter, page.limit && page.limit + 1, page.cursor);
    const sessions: SessionRow[] = [];
    for await (const part of eachInTurn(readInTurn, admissionOf(res).principal.sub, parts)) {
      // A user can open very many sessions, and a filter can match few of them.
      if (res.closed) return;
      sessions.push(...part);
    }
    await sendPage(req, res, page, sessions, ({ id }) => id, sessionJson);
  });

  router.delete('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    const { result: lastedMs } = await administer(callerOf(res), 'admin', async (trx) => {
      const store = sessionStore(trx);
      const session = await store.find(id);
      if (session === null || !(await store.end(id, 'administrator', now())))
        throw new AppError('not_found', 'No session has this id.');
      const change: Change = { action: 'session.end', object_id: id, before: sessionJson(session), after: null };
      return { result: now() - session.created_at, changes: [change] };
    });
    onEnded(lastedMs);
    res.status(204).end();
  });

  router.post('/recycle', async (req, res) => {
    const { all: _, ...filter } = validate(recycling, req.body === undefined ? {} : req.body);
    res.json(await recycle({ database, administer, now }, callerOf(res), filter));
  });

  return router;
}

/** `POST /api/users/:id/recycle`. */
export function createUserRecycleRoute(parts: RecycleParts): Router {
  const router = Router({ caseSensitive: true, strict: true });
  router.post('/:id/recycle', async (req, res) => {
    res.json(await recycle(parts, callerOf(res), { user_id: pathId(req.params.id) }));
  });
  return router;
}

/** Throws AppError `forbidden` if the token may operate only some targets, and the request is not about one of them. */
function requireOperated(held: Held, targetId = ''): void {
  if (held.targets === null || operates(held, targetId)) return;
  throw new AppError('forbidden', 'The limits of this token name targets: send a `target_id` that is one of them.');
}

/** Recycles sessions: they continue with fresh upstream sessions. Returns how many sessions are affected. */
const recycle = (parts: RecycleParts, caller: Caller, filter: SessionFilter): Promise<{ readonly recycled: number }> =>
  recyclesInTurn(caller.principal.sub, () => recycleAlone(parts, caller, filter));

async function recycleAlone({ database, administer, now }: RecycleParts, caller: Caller, filter: SessionFilter) {
  const { user_id = '', target_id = '' } = filter;
  // Before the transaction, because other changes wait for it.
  const recycled = await sessionStore(database.knex).count(now() - SESSION_LIFETIME_MS, filter);
  const { result } = await administer(caller, ['targets:operate'], async (trx: Transaction, { held }) => {
    requireOperated(held, target_id);
    if (user_id !== '' && (await userStore(trx).find(user_id)) === null) throw new AppError('not_found', 'No user has this id.');
    if (target_id !== '' && (await targetStore(trx).find(target_id)) === null)
      throw new AppError('not_found', 'No target has this id.');
    const { sequence } = await readPosition(trx);
    await sessionStore(trx).recycle(user_id, target_id, sequence + 1);
    const object_id = user_id || target_id || '*';
    const change: Change = { action: 'session.recycle', object_id, before: null, after: { ...filter, recycled } };
    return { result: { recycled }, changes: [change] };
  });
  return result;
}
