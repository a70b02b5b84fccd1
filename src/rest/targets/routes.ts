/** `/api/targets`, and `/api/credentials`, which every caller reaches. */

import { type Request, type Response, Router } from 'express';
import { has } from '../../auth/rights.ts';
import type { Vault } from '../../auth/vault.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { laneSteps } from '../../base/turns/lane.ts';
import { pathId, refuseMembers, validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { stateProblemInSteps } from '../../engine/compile/pattern.ts';
import { fittingNames, type PolicyModule } from '../../engine/engine.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf, heldOf } from '../../http/context.ts';
import type { RateLimits } from '../../http/limits/rate-limit.ts';
import { ID_KEY, readPage, sendPage } from '../../http/page.ts';
import type { TargetCheck } from '../../mcp/check.ts';
import type { Catalogue } from '../../mcp/upstream/catalogue.ts';
import type { TargetReport } from '../../mcp/upstream/health.ts';
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import {
  type CredentialSubject,
  DEFAULT_SUBJECT,
  readCredential,
  readOwnValue,
  readSubject,
} from '../../targets/credential-document.ts';
import { credentialJson } from '../../targets/credentials.ts';
import { readTarget, readTargetUpdate, targetJson } from '../../targets/document.ts';
import { noTarget, nothingToSupply, type TargetEdits, targetEtag } from '../../targets/edit.ts';
import type { RoutedTarget, Target } from '../../targets/target.ts';
import { targetStore } from '../../targets/target-store.ts';
import { catalogueQuery, ownCredentialJson } from './contract.ts';

/** One answer has at most this many names. */
const CATALOGUE_SHOWN = 3_000;

const PAGE = { defaultLimit: null, maxLimit: 1000, key: ID_KEY };

export interface TargetRouteParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly edits: TargetEdits;
  /** Returns the health of a target as this replica alone has seen it. */
  readonly health: (target: Target) => TargetReport;
  readonly catalogue: Catalogue;
  readonly module: PolicyModule;
  readonly replicaId: string;
  readonly check: (target: RoutedTarget, admission: Admission) => Promise<TargetCheck>;
  readonly limits: Pick<RateLimits, 'own'>;
}

export function createTargetRoutes(parts: TargetRouteParts): Router {
  const { database, vault, edits, health, catalogue, module, replicaId, check, limits } = parts;
  const router = Router({ caseSensitive: true, strict: true });

  async function readable(res: Response, id: unknown): Promise<Target> {
    const target = await targetStore(database.knex).find(pathId(id));
    const ids = readableOf(res);
    if (!target || (ids !== null && !ids.has(target.id))) throw noTarget();
    return target;
  }

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const targets = await targetStore(database.knex).page(page.limit && page.limit + 1, page.cursor, readableOf(res));
    await sendPage(req, res, page, targets, ({ id }) => id, targetJson);
  });

  router.post('/', async (req, res) => {
    const target = await edits.create(callerOf(res), readTarget(req.body));
    res.status(201).location(`${req.baseUrl}/${target.id}`).setHeader('ETag', targetEtag(target)).json(targetJson(target));
  });

  router.get('/:id', async (req, res) => {
    const target = await readable(res, req.params.id);
    res.setHeader('ETag', targetEtag(target)).json(targetJson(target));
  });

  router.get('/:id/health', async (req, res) => {
    const target = await readable(res, req.params.id);
    res.json({ replica: replicaId, ...healthJson(health(target)) });
  });

  router.get('/:id/catalogue', async (req, res) => {
    const { text = '', resource_type: type, resource_pattern: pattern, limit } = validate(catalogueQuery, { ...req.query });
    const { id } = await readable(res, req.params.id);
    const problem =
      pattern === undefined
        ? null
        : (module.checkPattern(pattern) ?? (await laneSteps(admissionOf(res).principal.sub, stateProblemInSteps(pattern))));
    if (problem !== null) throw invalidRequest([{ path: 'resource_pattern', message: problem }]);
    const wanted = text.toLowerCase();
    const names = catalogue.ofTarget(
      id,
      ({ resource_type, resource_name }) =>
        resource_type === (type ?? resource_type) && resource_name.toLowerCase().includes(wanted),
    );
    const shown = names.slice(0, Math.min(CATALOGUE_SHOWN, Number(limit ?? CATALOGUE_SHOWN)));
    const tested = shown.map(({ resource_name }) => resource_name);
    const fitting = pattern === undefined ? null : await fittingNames(module, pattern, tested);
    res.json({
      replica: replicaId,
      names: shown.map(({ resource_type, resource_name, seen_at }) => ({
        ...{ resource_type, resource_name, seen_at: timeOf(seen_at) },
        matches: fitting?.has(resource_name) ?? null,
      })),
      names_count: names.length,
    });
  });

  router.post('/:id/check', async (req, res) => {
    refuseMembers(req);
    const { principal, snapshot } = admissionOf(res);
    const refusal = limits.own(principal.sub);
    if (refusal) throw refusal;
    const { id, name } = await readable(res, req.params.id);
    const target = snapshot.targets.get(name);
    if (target?.id !== id)
      throw new AppError('invalid_request', 'The target is disabled, so it cannot be tried: enable it first.');
    await edits.recordCheck(callerOf(res), id);
    res.json({ replica: replicaId, ...(await check(target, admissionOf(res))) });
  });

  router.put('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    const target = await edits.update(callerOf(res), id, readTargetUpdate(req.body), req.get('If-Match'));
    res.setHeader('ETag', targetEtag(target)).json(targetJson(target));
  });

  router.delete('/:id', async (req, res) => {
    await edits.delete(callerOf(res), pathId(req.params.id), req.get('If-Match'));
    res.status(204).end();
  });

  router.get('/:id/credentials', async (req, res) => {
    const id = pathId(req.params.id);
    const credentials = await database.snapshot(async (db) => {
      const store = targetStore(db);
      const target = await store.find(id);
      if (!target) throw noTarget();
      return (await store.credentials([id])).map((row) => credentialJson(vault, target, row));
    });
    res.json(credentials);
  });

  const set = (subjectOf: (req: Request) => CredentialSubject) => async (req: Request, res: Response) => {
    const id = pathId(req.params['id']);
    const { credential, created } = await edits.setCredential(callerOf(res), id, subjectOf(req), readCredential(req.body));
    res.status(created ? 201 : 200).json(credential);
  };
  const remove = (subjectOf: (req: Request) => CredentialSubject) => async (req: Request, res: Response) => {
    const id = pathId(req.params['id']);
    await edits.deleteCredentials(callerOf(res), id, subjectOf(req), nameOf(req));
    res.status(204).end();
  };
  const ofDefault = () => DEFAULT_SUBJECT;
  router.put('/:id/credentials/default', set(ofDefault));
  router.delete('/:id/credentials/default', remove(ofDefault));
  for (const type of ['role', 'group', 'user'] as const) {
    const ofValue = (req: Request) => readSubject(type, req.params['value']);
    router.put(`/:id/credentials/${type}/:value`, set(ofValue));
    router.delete(`/:id/credentials/${type}/:value`, remove(ofValue));
  }

  return router;
}

/** The ids of the targets that the caller may read; null: all. A token may be limited to some. */
function readableOf(res: Response): ReadonlySet<string> | null {
  const held = heldOf(res);
  return has(held, 'read') ? null : held.targets;
}

const timeOf = (at: number | null): string | null => (at === null ? null : new Date(at).toISOString());

const healthJson = ({ status, last_success_at, last_fault, retry_at }: TargetReport) => ({
  status,
  last_success_at: timeOf(last_success_at),
  last_fault: last_fault && { ...last_fault, at: timeOf(last_fault.at) },
  retry_at: timeOf(retry_at),
});

/** Returns the query parameter `name`; null: it is absent. */
function nameOf(req: Request): string | null {
  const { name, ...others } = req.query;
  const errors = Object.keys(others).map((path) => ({ path, message: 'unknown query parameter' }));
  if (name !== undefined && (typeof name !== 'string' || name === '')) errors.push({ path: 'name', message: 'must be one name' });
  if (errors.length > 0) throw invalidRequest(errors);
  return typeof name === 'string' ? name : null;
}

export type OwnCredentialRouteParts = Pick<TargetRouteParts, 'database' | 'edits' | 'limits'>;

export function createOwnCredentialRoutes({ database, edits, limits }: OwnCredentialRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  function takeTurn(res: Response): void {
    const refusal = limits.own(admissionOf(res).principal.sub);
    if (refusal) throw refusal;
  }

  router.get('/', async (_req, res) => {
    const { principal } = admissionOf(res);
    const rows = await targetStore(database.knex).credentialsOfUser(principal.sub);
    const admission = admissionOf(res);
    const usable = [...admission.snapshot.targets.values()].filter((target) => mayUseTarget(admission, target));
    const keys = usable.flatMap((target) => target.user_credentials.map((key) => ({ target, key })));
    const shown = keys.map(({ target, key }) => {
      const row = rows.find((one) => one.target_id === target.id && one.key_name === key.name && one.key_type === key.type);
      return ownCredentialJson(target.name, key, row ? new Date(row.updated_at).toISOString() : null);
    });
    res.json(shown);
  });

  router.put('/:target/:name', async (req, res) => {
    const value = readOwnValue(req.body);
    const { id, name } = usableTarget(res, req.params.target);
    takeTurn(res);
    const { credential, created } = await edits.setOwn(callerOf(res), id, req.params.name, value);
    res.status(created ? 201 : 200).json(ownCredentialJson(name, credential, credential.updated_at));
  });

  router.delete('/:target/:name', async (req, res) => {
    const { id } = usableTarget(res, req.params.target);
    takeTurn(res);
    await edits.deleteOwn(callerOf(res), id, req.params.name);
    res.status(204).end();
  });

  return router;
}

function usableTarget(res: Response, name: string): RoutedTarget {
  const admission = admissionOf(res);
  const target = admission.snapshot.targets.get(name);
  if (!target || !mayUseTarget(admission, target)) throw nothingToSupply();
  return target;
}
