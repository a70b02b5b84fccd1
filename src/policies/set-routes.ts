/** `/api/policies` as a whole: files, history, rollback. Mounted behind authentication of administrators, ahead of single policies. */
import { type Request, type Response, Router } from 'express';
import Joi from 'joi';
import type { Caller } from '../auth/administer.ts';
import { listRevisions, type Position, type RevisionRow, readPosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';
import { AppError, invalidRequest } from '../errors.ts';
import { callerOf, REASON_MAX } from '../http/caller.ts';
import { readPage, sendPage } from '../http/page.ts';
import { readQuery, text, validate } from '../http/validate.ts';
import { DEFAULT_OWNER, fileOf, OWNER } from './files.ts';
import { type DecisionChanges, decisionChanges } from './flips.ts';
import { policiesAt, requireRevision } from './history.ts';
import { changedMembers, changesBetween, type PolicyChange, type PolicyPlan, setBefore } from './plan.ts';
import { showRevision } from './routes.ts';
import { policyJson, timestamp } from './schema.ts';
import type { ApplyRequest, PolicySets, TargetName } from './sets.ts';
import type { ApplyTested } from './test-set.ts';

const PAGE = { defaultLimit: 100, maxLimit: 1000, key: /^[0-9]{1,15}$/ };
const REVISION = /^[0-9]{1,15}$/;

export interface PlanBody {
  files: Record<string, string>;
  owner?: string;
  prune?: boolean;
  adopt?: boolean;
  expected_revision?: number;
}

const owner = Joi.string().pattern(OWNER).messages({
  'string.pattern.base': 'must be of a-z, 0-9, ".", "_" and "-", and at most 63 characters',
});
/** Texts by file name. */
export const texts = Joi.object<Record<string, string>>().pattern(Joi.string(), Joi.string().allow(''));
export const planMembers = {
  files: texts.required(),
  owner,
  prune: Joi.boolean(),
  adopt: Joi.boolean(),
  expected_revision: Joi.number().integer().min(0),
};
const reason = text(REASON_MAX);
const planBody = Joi.object<PlanBody>(planMembers).required();
const applyBody = Joi.object<PlanBody & { reason?: string; tests?: Record<string, string> }>({
  ...planMembers,
  reason,
  tests: texts.min(1),
}).required();
const rollbackBody = Joi.object<{ revision: number; expected_revision?: number; reason?: string }>({
  revision: Joi.number().integer().min(0).required(),
  expected_revision: planMembers.expected_revision,
  reason,
}).required();

export function createPolicySetRoutes(deps: {
  readonly database: Database;
  readonly sets: PolicySets;
  readonly applyTested: ApplyTested;
  readonly targets: (db: Connection) => Promise<readonly TargetName[]>;
}): Router {
  const { database, sets, applyTested, targets } = deps;
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/history', async (req, res) => {
    const page = readPage(req, PAGE);
    const cursor = page.cursor === null ? null : Number(page.cursor);
    const rows = await database.snapshot(async (db) => {
      showRevision(res, await readPosition(db));
      return listRevisions(db, (page.limit ?? PAGE.defaultLimit) + 1, cursor);
    });
    sendPage(req, res, page, rows.map(revisionJson), (row) => String(row.revision));
  });

  router.get('/history/:revision', async (req, res) => {
    const { revision } = req.params;
    if (!REVISION.test(revision)) throw new AppError('not_found', 'A revision is a number.');
    res.json(
      await database.snapshot(async (db) => {
        showRevision(res, await readPosition(db));
        const policies = await policiesAt(db, Number(revision));
        const [made] = await listRevisions(db, 1, Number(revision) + 1);
        return {
          revision: Number(revision),
          made: made?.revision === Number(revision) ? revisionJson(made) : null,
          policies: policies.map(policyJson),
        };
      }),
    );
  });

  /** The sets of both revisions that the query names, and what is between them. */
  async function between(req: Request, res: Response) {
    const { from, to } = readQuery(req.query, { from: REVISION, to: REVISION });
    if (from === undefined) throw invalidRequest([{ path: 'from', message: 'is required' }]);
    return database.snapshot(async (db) => {
      const position = await readPosition(db);
      showRevision(res, position);
      const last = to === undefined ? position.revision : Number(to);
      await requireRevision(db, last);
      const [before, after] = [await policiesAt(db, Number(from)), await policiesAt(db, last)];
      const shown = { from: Number(from), to: last };
      return { shown, before, after, changes: changesBetween(before, after), known: await targets(db) };
    });
  }

  router.get('/diff', async (req, res) => {
    const { shown, changes, known } = await between(req, res);
    res.json({ ...shown, changes: changesJson(changes, known) });
  });

  router.get('/compare', async (req, res) => {
    const { shown, before, after, changes, known } = await between(req, res);
    const { verdict, flipsOf } = await decisionChanges(before, after, known, () => true);
    res.json({ ...shown, verdict, changes: withFlips(changesJson(changes, known), flipsOf) });
  });

  router.get('/export', async (req, res) => {
    const { owner: given } = readQuery(req.query, { owner: OWNER });
    const { files, position } = await sets.export(given ?? DEFAULT_OWNER);
    showRevision(res, position);
    res.json({ owner: given ?? DEFAULT_OWNER, files: Object.fromEntries(files) });
  });

  router.post('/plan', async (req, res) => {
    const { plan, targets: known, position } = await sets.plan(requestOf(validate(planBody, req.body)));
    showRevision(res, position);
    const before = setBefore(plan.wouldBe, plan.changes);
    const stored = new Set(before.map(({ id }) => id));
    const { verdict, flipsOf } = await decisionChanges(before, plan.wouldBe, known, (id) => stored.has(id));
    const { changes, ...rest } = planJson(plan, known, position);
    res.json({
      ...rest,
      verdict,
      // What is not made yet has no id.
      changes: withFlips(changes, flipsOf).map((change) =>
        change.action === 'create' ? { ...change, policy_id: null } : change,
      ),
    });
  });

  router.post('/apply', async (req, res) => {
    const { reason, tests, ...body } = validate(applyBody, req.body);
    const [caller, request] = [callerFor(res, reason), requestOf(body)];
    const { result, position } =
      tests === undefined
        ? await sets.apply(caller, request)
        : await applyTested(caller, request, new Map(Object.entries(tests)));
    showRevision(res, position);
    res.json(planJson(result.plan, result.targets, position));
  });

  router.post('/rollback', async (req, res) => {
    const { revision, expected_revision, reason } = validate(rollbackBody, req.body);
    const { result, position } = await sets.rollback(callerFor(res, reason), revision, expected_revision ?? null);
    showRevision(res, position);
    res.json({ revision: position.revision, changes: changesJson(result.plan.changes, result.targets) });
  });

  return router;
}

/** A reason in the body counts before that of the header, which cannot hold every text as it stands. */
function callerFor(res: Response, reason: string | undefined): Caller {
  const caller = callerOf(res);
  return reason === undefined ? caller : { ...caller, reason };
}

export const requestOf = ({
  files,
  owner = DEFAULT_OWNER,
  prune = false,
  adopt = false,
  expected_revision,
}: PlanBody): ApplyRequest => ({
  files: new Map(Object.entries(files)),
  ...{ owner, prune, adopt, expectedRevision: expected_revision ?? null },
});

const revisionJson = (row: RevisionRow) => ({ ...row, created_at: timestamp(row.created_at) });

export const planJson = (plan: PolicyPlan, targets: readonly TargetName[], { revision }: Position) => ({
  revision,
  changes: changesJson(plan.changes, targets),
  unchanged: plan.unchanged,
  left: plan.left.map(({ file, policy }) => ({ file, policy_id: policy.id, name: policy.name })),
  unmanaged: plan.unmanaged,
});

/** Policies as their files say them: what people read has names, not ids. */
function changesJson(changes: readonly PolicyChange[], targets: readonly TargetName[]) {
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  return changes.map(({ action, file, before, after }) => ({
    action,
    file,
    policy_id: (after ?? before)?.id ?? null,
    name: (after ?? before)?.name ?? '',
    members: changedMembers(before, after).map((member) => (member === 'target_id' ? 'target' : member)),
    before: before && fileOf(before, (id) => names.get(id)),
    after: after && fileOf(after, (id) => names.get(id)),
  }));
}

const withFlips = (changes: ReturnType<typeof changesJson>, flipsOf: DecisionChanges['flipsOf']) =>
  changes.map((change) => ({ ...change, flips: flipsOf(change.policy_id ?? '') }));
