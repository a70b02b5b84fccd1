/** `/api/invariants`. */
import { Router } from 'express';
import { AppError } from '../../base/errors.ts';
import { pathId, validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { sendLargeList } from '../../http/page.ts';
import type { HeavyWork } from '../../policies/heavy/heavy.ts';
import { type InvariantState, invariantJson, readInvariant, readInvariantUpdate } from '../../policies/invariants/invariant.ts';
import { type InvariantEdits, invariantEtag } from '../../policies/invariants/invariant-edits.ts';
import { fileOf, type InvariantPlan } from '../../policies/invariants/invariant-files.ts';
import { invariantStore } from '../../policies/invariants/invariant-store.ts';
import { answerWork } from '../policies/heavy-answer.ts';
import { applyBody, type InvariantFilesBody, planBody } from './contract.ts';

export interface InvariantRouteParts {
  readonly database: Database;
  readonly edits: InvariantEdits;
  readonly heavy: Pick<HeavyWork, 'answer'>;
}

export function createInvariantRoutes({ database, edits, heavy }: InvariantRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (_req, res) => {
    const store = invariantStore(database.knex);
    await sendLargeList(res, await store.ids(), store.some, invariantJson);
  });

  router.post('/', async (req, res) => {
    const invariant = await edits.create(callerOf(res), readInvariant(req.body));
    res.status(201).location(`${req.baseUrl}/${invariant.id}`).setHeader('ETag', invariantEtag(invariant));
    res.json(invariantJson(invariant));
  });

  router.get('/export', (req, res) => answerWork(req, res, (asked) => heavy.answer('exportInvariants', {}, asked)));

  router.post('/plan', async (req, res) => {
    const { plan, broken } = await edits.plan(callerOf(res), requestOf(validate(planBody, req.body)));
    const { changes, ...rest } = planJson(plan);
    // An invariant that is not created yet has no id.
    const planned = changes.map((change) => (change.action === 'create' ? { ...change, invariant_id: null } : change));
    res.json({ ...rest, changes: planned, invariants: broken });
  });

  router.post('/apply', async (req, res) => {
    const { reason, ...body } = validate(applyBody, req.body);
    const caller = callerOf(res);
    res.json(planJson(await edits.apply(reason === undefined ? caller : { ...caller, reason }, requestOf(body))));
  });

  router.get('/:id', async (req, res) => {
    const invariant = await invariantStore(database.knex).find(pathId(req.params.id));
    if (invariant === null) throw new AppError('not_found', 'No invariant has this id.');
    res.setHeader('ETag', invariantEtag(invariant)).json(invariantJson(invariant));
  });

  router.put('/:id', async (req, res) => {
    const update = readInvariantUpdate(req.body);
    const invariant = await edits.update(callerOf(res), pathId(req.params.id), update, req.get('If-Match'));
    res.setHeader('ETag', invariantEtag(invariant)).json(invariantJson(invariant));
  });

  router.delete('/:id', async (req, res) => {
    await edits.delete(callerOf(res), pathId(req.params.id), req.get('If-Match'));
    res.status(204).end();
  });

  return router;
}

const requestOf = ({ files, prune = false }: InvariantFilesBody) => ({ files: new Map(Object.entries(files)), prune });

export type InvariantPlanJson = ReturnType<typeof planJson>;

/** Shows targets and policies by name, as files do. */
function planJson(plan: InvariantPlan & InvariantState) {
  const shown = (invariant: InvariantPlan['changes'][number]['after']) => {
    if (invariant === null) return null;
    const { exceptions, ...rest } = fileOf(invariant, plan);
    return {
      ...rest,
      exceptions: exceptions.map((one) => ({ ...one, expires_at: new Date(one.expires_at).toISOString() })),
    };
  };
  const { changes, unchanged, left } = plan;
  return {
    changes: changes.map(({ action, file, members, before, after }) => ({
      ...{ action, file, invariant_id: (after ?? before)?.id ?? null, name: (after ?? before)?.name ?? '', members },
      ...{ before: shown(before), after: shown(after) },
    })),
    ...{ unchanged, left },
  };
}
