/** `/api/rights`. */
import { Router } from 'express';
import type { Administer } from '../../auth/caller.ts';
import { type RightRow, rightStore } from '../../auth/right-store.ts';
import { type GivenRight, isOwned } from '../../auth/rights.ts';
import { AppError, type FieldError, invalidRequest } from '../../base/errors.ts';
import { uuidv7 } from '../../base/ids.ts';
import { pathId, UUID, validate } from '../../base/validate.ts';
import type { Change } from '../../db/changes.ts';
import type { Database, Transaction } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { ADMIN, AUDITOR, userStore } from '../../users/user-store.ts';
import { newRight } from './contract.ts';

export interface RightRouteParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly now: () => number;
}

/** Every request reads them, and every replica keeps them in memory. */
const MOST = 1_000;

export function createRightRoutes({ database, administer, now }: RightRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (_req, res) => {
    res.json((await rightStore(database.knex).all()).map(rightJson));
  });

  router.post('/', async (req, res) => {
    const { owner = null, ...rest } = validate(newRight, req.body);
    const wanted: GivenRight = { ...rest, owner };
    const { result } = await administer(callerOf(res), 'admin', async (trx) => {
      await check(trx, wanted);
      const store = rightStore(trx);
      const all = await store.all();
      const there = all.find((row) => isSame(row, wanted));
      if (there !== undefined) return { result: { row: there, created: false }, changes: [] };
      if (all.length >= MOST) {
        throw new AppError('limit_reached', `At most ${MOST} rights can be given. Take one first, or give rights to groups.`);
      }
      const row: RightRow = { id: uuidv7(), ...wanted, created_at: now() };
      await store.insert(row);
      const change: Change = { action: 'right.give', object_id: row.id, before: null, after: rightJson(row) };
      return { result: { row, created: true }, changes: [change] };
    });
    if (result.created) res.status(201).location(`${req.baseUrl}/${result.row.id}`);
    res.json(rightJson(result.row));
  });

  router.delete('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    await administer(callerOf(res), 'admin', async (trx) => {
      const store = rightStore(trx);
      const row = (await store.all()).find((one) => one.id === id);
      if (row === undefined) throw new AppError('not_found', 'No right has this id.');
      await store.delete(id);
      const change: Change = { action: 'right.take', object_id: id, before: rightJson(row), after: null };
      return { result: null, changes: [change] };
    });
    res.status(204).end();
  });

  return router;
}

/** Throws AppError `invalid_request`. */
async function check(trx: Transaction, { subject_type, subject_value, right, owner }: GivenRight): Promise<void> {
  const errors: FieldError[] = [];
  const refuse = (path: string, message: string): number => errors.push({ path, message });
  if (owner !== null && !isOwned(right)) refuse('owner', `has no meaning for the right ${right}: leave it out`);
  if (subject_type === 'role' && subject_value === ADMIN) refuse('subject_value', 'the role admin has all rights already');
  if (subject_type === 'role' && subject_value === AUDITOR) {
    refuse('subject_value', 'the role auditor reads everything already, and changes nothing');
  }
  if (subject_type === 'user' && (!UUID.test(subject_value) || (await userStore(trx).find(subject_value)) === null)) {
    refuse('subject_value', 'no user has this id');
  }
  if (errors.length > 0) throw invalidRequest(errors);
}

const isSame = (a: GivenRight, b: GivenRight): boolean =>
  a.subject_type === b.subject_type && a.subject_value === b.subject_value && a.right === b.right && a.owner === b.owner;

const rightJson = ({ id, subject_type, subject_value, right, owner, created_at }: RightRow) => ({
  ...{ id, subject_type, subject_value, right, owner },
  created_at: new Date(created_at).toISOString(),
});
