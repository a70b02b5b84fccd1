/** `/api/policies`: single policies. */

import { type Request, type Response, Router } from 'express';
import { AppError } from '../../base/errors.ts';
import { laneOnce } from '../../base/turns/lane.ts';
import { pathId, readQuery } from '../../base/validate.ts';
import { type Position, readPosition } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import { readInTurn } from '../../db/turns.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf, heldOf } from '../../http/context.ts';
import { ID_KEY, readPage, sendPage } from '../../http/page.ts';
import { type EditConditions, type PolicyEdits, policyEtag } from '../../policies/edit.ts';
import { ownerOf, plannableOwners, requireOwner } from '../../policies/owners.ts';
import { type OrderedPolicy, policyStore } from '../../policies/policy-store.ts';
import {
  orderedJson,
  orderMembers,
  policyJson,
  readOrderFilter,
  readPolicy,
  readPolicyUpdate,
  readSubject,
  subjectJson,
} from '../../policies/schema.ts';
import type { ReadStoredSet } from '../../policies/stored-set.ts';

const PAGE = { defaultLimit: null, maxLimit: 1000, key: ID_KEY };
/** Priority, effect and id: the members that the order of evaluation depends on. */
const PLACE = /^(-?[0-9]{1,10}) (allow|deny) ([0-9a-f-]{36})$/;
const ORDER_PAGE = { defaultLimit: 100, maxLimit: 1000, key: PLACE, also: Object.keys(orderMembers) };

export interface PolicyRouteParts {
  readonly database: Database;
  readonly edits: PolicyEdits;
  readonly readStoredSet: ReadStoredSet;
}

export function createPolicyRoutes({ database, edits, readStoredSet }: PolicyRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  /** Reads in a snapshot and labels the response with its revision. */
  const read = <T>(res: Response, work: (db: Connection) => Promise<T>): Promise<T> =>
    database.snapshot(async (db) => {
      showRevision(res, await readPosition(db));
      return work(db);
    });
  const readMany: typeof read = (res, work) => readInTurn(admissionOf(res).principal.sub, () => read(res, work));

  /** To read a policy with 1,000 subjects takes some 10 ms. Several of them must not follow each other at once. */
  const readInLane = <T>(res: Response, read: () => T): Promise<T> => laneOnce(admissionOf(res).principal.sub, read);

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const owners = plannableOwners(heldOf(res));
    const policies = await readMany(res, async (db) => {
      if (page.limit !== null || owners !== null) return policyStore(db).page(page.limit && page.limit + 1, page.cursor, owners);
      const { policies } = await readStoredSet(db);
      return policies.filter(({ id }) => page.cursor === null || id > page.cursor);
    });
    await sendPage(req, res, page, policies, ({ id }) => id, policyJson);
  });

  router.get('/order', async (req, res) => {
    const page = readPage(req, ORDER_PAGE);
    const filter = readOrderFilter(req.query);
    const [, priority, effect, id = ''] = PLACE.exec(page.cursor ?? '') ?? [];
    const after =
      page.cursor === null ? null : ({ priority: Number(priority), effect: effect === 'deny' ? 'deny' : 'allow', id } as const);
    const owners = plannableOwners(heldOf(res));
    const limit = page.limit ?? ORDER_PAGE.defaultLimit;
    const policies = await readMany(res, (db) => policyStore(db).inOrder(filter, limit + 1, after, owners));
    const placeOf = ({ policy }: OrderedPolicy): string => `${policy.priority} ${policy.effect} ${policy.id}`;
    await sendPage(req, res, page, policies, placeOf, orderedJson);
  });

  router.post('/', async (req, res) => {
    const { result, position } = await edits.create(callerOf(res), await readInLane(res, () => readPolicy(req.body)));
    showRevision(res, position);
    res.status(201).location(`${req.baseUrl}/${result.id}`).setHeader('ETag', policyEtag(result)).json(policyJson(result));
  });

  router.get('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    const policy = await read(res, (db) => policyStore(db).find(id));
    if (!policy) throw new AppError('not_found', 'No policy has this id.');
    requireOwner(heldOf(res), 'policies:plan', ownerOf(policy));
    res.setHeader('ETag', policyEtag(policy)).json(policyJson(policy));
  });

  router.put('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    const { result, position } = await edits.update(
      callerOf(res),
      id,
      await readInLane(res, () => readPolicyUpdate(req.body)),
      conditionsOf(req),
    );
    showRevision(res, position);
    res.setHeader('ETag', policyEtag(result)).json(policyJson(result));
  });

  router.delete('/:id', async (req, res) => {
    const { position } = await edits.delete(callerOf(res), pathId(req.params.id), conditionsOf(req));
    showRevision(res, position);
    res.status(204).end();
  });

  router.post('/:id/subjects', async (req, res) => {
    const id = pathId(req.params.id);
    const { result, position } = await edits.addSubject(callerOf(res), id, readSubject(req.body), conditionsOf(req));
    showRevision(res, position);
    res.status(result.added ? 201 : 200).json(subjectJson(result.subject));
  });

  router.delete('/:id/subjects/:subjectId', async (req, res) => {
    const id = pathId(req.params.id);
    const subjectId = pathId(req.params.subjectId);
    const { position } = await edits.removeSubject(callerOf(res), id, subjectId, conditionsOf(req));
    showRevision(res, position);
    res.status(204).end();
  });

  return router;
}

/** Throws AppError `invalid_request`. */
function conditionsOf(req: Request): EditConditions {
  const { override } = readQuery(req.query, { override: /^(true|false)$/ });
  return { ifMatch: req.get('If-Match'), override: override === 'true' };
}

export function showRevision(res: Response, position: Position): void {
  res.setHeader('Portcullis-Revision', String(position.revision));
}
