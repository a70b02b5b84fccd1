/** `/api/policies` for the whole set: files, history, rollback. Mount it before single policies. */
import { type Request, type Response, Router } from 'express';
import type { Caller } from '../../auth/caller.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { readQuery, validate } from '../../base/validate.ts';
import { listRevisions, type RevisionRow, readPosition } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import { readInTurn } from '../../db/turns.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf, heldOf } from '../../http/context.ts';
import { linkNext, readPage, sendList } from '../../http/page.ts';
import { DEFAULT_OWNER, OWNER } from '../../policies/files/file.ts';
import type { HeavyWork } from '../../policies/heavy/heavy.ts';
import { earlierSet } from '../../policies/history.ts';
import { requireOwner } from '../../policies/owners.ts';
import { policyJson, timestamp } from '../../policies/schema.ts';
import { moveBody, moveOf, requestOf, rollbackBody, rollbackOf } from '../../policies/sets/bodies.ts';
import { changesBetween, type PolicyChange } from '../../policies/sets/plan.ts';
import { appliedCounts, changeJsonWith } from '../../policies/sets/plan-json.ts';
import type { TargetName } from '../../policies/sets/planning.ts';
import type { PolicySets } from '../../policies/sets/sets.ts';
import type { ApplyTested } from '../../policies/sets/test-set.ts';
import type { ReadStoredSet } from '../../policies/stored-set.ts';
import { answerWork, bytesOf } from '../policies/heavy-answer.ts';
import { showRevision } from '../policies/routes.ts';

const PAGE = { defaultLimit: 100, maxLimit: 1000, key: /^[0-9]{1,15}$/ };
const REVISION = /^[0-9]{1,15}$/;

export function createPolicySetRoutes(deps: {
  readonly database: Database;
  readonly sets: PolicySets;
  readonly applyTested: ApplyTested;
  readonly heavy: HeavyWork;
  readonly readStoredSet: ReadStoredSet;
  readonly targets: (db: Connection) => Promise<readonly TargetName[]>;
}): Router {
  const { database, sets, applyTested, heavy, readStoredSet, targets } = deps;
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/history', async (req, res) => {
    const page = readPage(req, PAGE);
    const cursor = page.cursor === null ? null : Number(page.cursor);
    const read = () =>
      database.snapshot(async (db) => {
        showRevision(res, await readPosition(db));
        return listRevisions(db, page.limit ?? PAGE.defaultLimit, cursor);
      });
    const { revisions, next } = await readInTurn(admissionOf(res).principal.sub, read);
    if (next !== null) linkNext(req, res, page, String(next));
    await sendList(res, '', revisions, revisionJson, '');
  });

  router.get('/history/:revision', async (req, res) => {
    const { revision } = req.params;
    if (!REVISION.test(revision)) throw new AppError('not_found', 'A revision must be a number.');
    const current = await database.snapshot(readStoredSet);
    showRevision(res, current.position);
    const policies = await earlierSet(database, admissionOf(res).principal.sub, Number(revision), current);
    const [made] = (await listRevisions(database.knex, 1, Number(revision) + 1, 2)).revisions;
    const head = { revision: Number(revision), made: made?.revision === Number(revision) ? revisionJson(made) : null };
    await sendList(res, `${JSON.stringify(head).slice(0, -1)},"policies":`, policies, policyJson, '}');
  });

  router.get('/diff', async (req, res) => {
    const { from, to } = revisionsOf(req);
    const [current, known] = await database.snapshot((db) => Promise.all([readStoredSet(db), targets(db)]));
    showRevision(res, current.position);
    const last = to ?? current.position.revision;
    const setAt = (revision: number) => earlierSet(database, admissionOf(res).principal.sub, revision, current);
    const [before, after] = await Promise.all([setAt(from), setAt(last)]);
    await sendChanges(res, { from, to: last }, changesBetween(before, after), known);
  });

  router.get('/compare', (req, res) => {
    const { from, to } = revisionsOf(req);
    return answerWork(req, res, (asked) => heavy.answer('compare', { from, to }, asked));
  });

  router.get('/context', (req, res) => {
    const { owner = DEFAULT_OWNER } = readQuery(req.query, { owner: OWNER });
    return answerWork(req, res, (asked) => heavy.answer('context', { owner }, asked));
  });

  router.get('/export', (req, res) => {
    const { owner = DEFAULT_OWNER } = readQuery(req.query, { owner: OWNER });
    return answerWork(req, res, (asked) => heavy.answer('export', { owner }, asked));
  });

  router.post('/plan', (req, res) => answerWork(req, res, (asked) => heavy.answer('plan', bytesOf(req, res), asked)));

  router.post('/rollback/plan', (req, res) =>
    answerWork(req, res, (asked) => heavy.answer('rollbackPlan', bytesOf(req, res), asked)),
  );

  router.post('/apply', async (req, res) => {
    const { reason, files, tests, ...rest } = await heavy.applyBody(bytesOf(req, res).body, callerOf(res));
    const [caller, request] = [callerFor(res, reason), { ...requestOf({ ...rest, files: {} }), files }];
    // The transaction checks every changed policy. The owner counts even if nothing changes.
    requireOwner(heldOf(res), 'policies:manage', request.adopt ? null : request.owner);
    const { result, position } = tests.size === 0 ? await sets.apply(caller, request) : await applyTested(caller, request, tests);
    showRevision(res, position);
    await sendChanges(res, appliedCounts(result.plan, position), result.plan.changes, result.targets);
  });

  router.post('/rollback', async (req, res) => {
    const { reason, ...body } = validate(rollbackBody, req.body);
    requireOwner(heldOf(res), 'policies:manage', body.owner ?? null);
    const { result, position } = await sets.rollback(callerFor(res, reason), rollbackOf(body));
    showRevision(res, position);
    await sendChanges(res, { revision: position.revision }, result.plan.changes, result.targets);
  });

  router.post('/order/plan', (req, res) => answerWork(req, res, (asked) => heavy.answer('movePlan', bytesOf(req, res), asked)));

  router.post('/order', async (req, res) => {
    const { reason, ...body } = validate(moveBody, req.body);
    // The order is that of all policies.
    requireOwner(heldOf(res), 'policies:manage', null);
    const { result, position } = await sets.move(callerFor(res, reason), moveOf(body));
    showRevision(res, position);
    await sendChanges(res, { revision: position.revision }, result.plan.changes, result.targets);
  });

  return router;
}

/** Answers with changes of the policy set. `rest`: the other members of the answer. */
export const sendChanges = (res: Response, rest: object, changes: readonly PolicyChange[], targets: readonly TargetName[]) =>
  sendList(res, `${JSON.stringify(rest).slice(0, -1)},"changes":`, changes, changeJsonWith(targets), '}');

/** Throws AppError `invalid_request`. `to` null: the newest revision. */
function revisionsOf(req: Request): { readonly from: number; readonly to: number | null } {
  const { from, to } = readQuery(req.query, { from: REVISION, to: REVISION });
  if (from === undefined) throw invalidRequest([{ path: 'from', message: 'is required' }]);
  return { from: Number(from), to: to === undefined ? null : Number(to) };
}

/** Prefer the reason in the body to the header, which cannot contain every text unescaped. */
function callerFor(res: Response, reason: string | undefined): Caller {
  const caller = callerOf(res);
  return reason === undefined ? caller : { ...caller, reason };
}

export type RevisionJson = ReturnType<typeof revisionJson>;

const revisionJson = (row: RevisionRow) => ({ ...row, created_at: timestamp(row.created_at) });
