/** `/api/policies/drafts`. Mount it before single policies. */
import { Router } from 'express';
import type { Caller } from '../../auth/caller.ts';
import { AppError } from '../../base/errors.ts';
import { validate } from '../../base/validate.ts';
import { readPosition } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf, heldOf } from '../../http/context.ts';
import { draftStore, type Shadow, shadowStore } from '../../policies/drafts/draft-store.ts';
import { type Drafts, draftEtag } from '../../policies/drafts/drafts.ts';
import { DEFAULT_OWNER } from '../../policies/files/file.ts';
import type { Moments } from '../../policies/heavy/moments.ts';
import { isReadable, plannableOwners, requireOwner } from '../../policies/owners.ts';
import { reportOf } from '../../policies/replay/report.ts';
import { timestamp } from '../../policies/schema.ts';
import { expectedOf } from '../../policies/sets/bodies.ts';
import type { Moment } from '../../policies/sets/candidate-set.ts';
import { DRAFT_NAME, type Draft, type DraftSummary } from '../../policies/sets/draft.ts';
import { appliedCounts } from '../../policies/sets/plan-json.ts';
import { cannotBeApplied } from '../../policies/sets/planning.ts';
import { showRevision } from '../policies/routes.ts';
import { sendChanges } from '../policy-sets/routes.ts';
import { activateBody, draftBody } from './contract.ts';

export interface DraftRouteParts {
  readonly database: Database;
  readonly drafts: Drafts;
  readonly moments: Moments;
}

export function createDraftRoutes({ database, drafts, moments }: DraftRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/drafts', async (_req, res) => {
    const { all, shadowed } = await database.snapshot(async (db) => ({
      all: await draftStore(db).all(),
      shadowed: new Set(await shadowStore(db).names()),
    }));
    const owners = plannableOwners(heldOf(res));
    res.json(all.filter(({ owner }) => isReadable(owners, owner)).map((draft) => summaryJson(draft, shadowed.has(draft.name))));
  });

  router.put('/drafts/:name', async (req, res) => {
    const name = nameOf(req.params.name);
    const { files, tests = {}, owner = DEFAULT_OWNER, prune = false, adopt = false } = validate(draftBody, req.body);
    requireOwner(heldOf(res), 'policies:manage', adopt ? null : owner);
    const { draft, created } = await drafts.save(callerOf(res), name, { files, tests, owner, prune, adopt }, req.get('If-Match'));
    const shadow = (await shadowStore(database.knex).find(name)) !== null;
    if (created) res.status(201).location(`${req.baseUrl}/drafts/${name}`);
    res.setHeader('ETag', draftEtag(draft)).json(draftJson(draft, shadow));
  });

  router.get('/drafts/:name', async (req, res) => {
    const { draft, shadow } = await find(req.params.name);
    requireOwner(heldOf(res), 'policies:plan', draft.owner);
    res.setHeader('ETag', draftEtag(draft)).json(draftJson(draft, shadow !== null));
  });

  router.delete('/drafts/:name', async (req, res) => {
    await drafts.remove(callerOf(res), nameOf(req.params.name), req.get('If-Match'));
    res.status(204).end();
  });

  router.post('/drafts/:name/activate', async (req, res) => {
    const { reason, ...expected } = validate(activateBody, req.body);
    const caller = callerOf(res);
    // The transaction checks it again, with every changed policy. Tests of a different owner's draft do not even run.
    requireOwner(heldOf(res), 'policies:manage', (await find(req.params.name)).draft.owner);
    const { result, position } = await drafts.activate(
      reason === undefined ? caller : ({ ...caller, reason } satisfies Caller),
      nameOf(req.params.name),
      { ifMatch: req.get('If-Match'), expected: expectedOf(expected) },
    );
    showRevision(res, position);
    await sendChanges(res, appliedCounts(result.plan, position), result.plan.changes, result.targets);
  });

  router.put('/drafts/:name/shadow', async (req, res) => {
    const name = nameOf(req.params.name);
    const begun = await drafts.beginShadow(callerOf(res), name);
    res.status(begun ? 201 : 200).json(await shadowJson(name, admissionOf(res).principal.sub));
  });

  router.get('/drafts/:name/shadow', async (req, res) => {
    res.json(await shadowJson(nameOf(req.params.name), admissionOf(res).principal.sub));
  });

  router.delete('/drafts/:name/shadow', async (req, res) => {
    await drafts.endShadow(callerOf(res), nameOf(req.params.name));
    res.status(204).end();
  });

  async function find(given: string): Promise<{ draft: Draft; shadow: Shadow | null }> {
    const name = nameOf(given);
    const { draft, shadow } = await database.snapshot(async (db) => ({
      draft: await draftStore(db).find(name),
      shadow: await shadowStore(db).find(name),
    }));
    if (draft === null) throw new AppError('not_found', `No draft has the name ${name}.`);
    return { draft, shadow };
  }

  async function shadowJson(name: string, by: string) {
    const { draft, shadow } = await find(name);
    if (shadow === null) throw new AppError('not_found', `The draft ${name} has no shadow.`);
    const { since, progress, flips } = shadow;
    // The draft may be saved again meanwhile, and then has other counts.
    const now = await momentOf(draft, by);
    const problem = 'problem' in now ? now.problem : progress.problem;
    const moment = 'problem' in now ? { changes: [], stored: [], position: await readPosition(database.knex) } : now;
    return {
      draft: name,
      revision: moment.position.revision,
      from: timestamp(since),
      to: timestamp(progress.updated_at),
      problem,
      ...(await reportOf(database.knex, { ...progress, flips }, moment)),
    };
  }

  /** If the draft can no longer be applied, it is unknown what it changes, so this returns the problem. */
  async function momentOf({ files, owner, prune, adopt }: Draft, by: string): Promise<Moment | { readonly problem: string }> {
    try {
      return await moments.of({ files, owner, prune, adopt }, { by });
    } catch (error) {
      if (cannotBeApplied(error)) return { problem: error.message };
      throw error;
    }
  }

  return router;
}

/** Throws AppError `invalid_request`, which explains the form of a name, instead of `not_found`. */
function nameOf(name: string): string {
  if (DRAFT_NAME.test(name)) return name;
  throw new AppError(
    'invalid_request',
    'A draft name must consist of a-z, 0-9, ".", "_" and "-", and have at most 63 characters.',
  );
}

const summaryJson = ({ name, owner, prune, adopt, author, hash, created_at, updated_at }: DraftSummary, shadow: boolean) => ({
  ...{ name, owner, prune, adopt, shadow, author, hash },
  created_at: timestamp(created_at),
  updated_at: timestamp(updated_at),
});

export type DraftSummaryJson = ReturnType<typeof summaryJson>;
export type DraftJson = ReturnType<typeof draftJson>;

const draftJson = (draft: Draft, shadow: boolean) => ({
  ...summaryJson(draft, shadow),
  files: draft.files,
  tests: draft.tests,
});
