/** `/api/owners`. */
import { type Request, type Response, Router } from 'express';
import { type Held, has } from '../../auth/rights.ts';
import { AppError } from '../../base/errors.ts';
import { validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { heldOf } from '../../http/context.ts';
import { sendLargeList } from '../../http/page.ts';
import { OWNER } from '../../policies/files/file.ts';
import { ownerStore } from '../../policies/limits/owner-store.ts';
import { ownerBody, ownerJson } from '../../policies/owner-document.ts';
import { type OwnerEdits, ownerEtag } from '../../policies/owner-edits.ts';
import { isReadable, plannableOwners, requireOwner } from '../../policies/owners.ts';

export function createOwnerRoutes({ database, edits }: { readonly database: Database; readonly edits: OwnerEdits }): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (_req, res) => {
    const held = heldOf(res);
    const store = ownerStore(database.knex);
    const names = [...(await store.names())].filter((name) => readsAll(held) || isReadable(plannableOwners(held), name));
    await sendLargeList(res, names, store.some, ownerJson);
  });

  router.get('/:name', async (req, res) => {
    const name = nameOf(req);
    if (!readsAll(heldOf(res))) requireOwner(heldOf(res), 'policies:plan', name);
    const owner = await ownerStore(database.knex).find(name);
    if (owner === null) throw new AppError('not_found', `The owner ${name} has no record.`);
    res.setHeader('ETag', ownerEtag(owner)).json(ownerJson(owner));
  });

  router.put('/:name', async (req, res) => {
    const { owner, created } = await edits.put(callerOf(res), nameOf(req), validate(ownerBody, req.body), req.get('If-Match'));
    if (created) res.status(201).location(`${req.baseUrl}/${owner.name}`);
    res.setHeader('ETag', ownerEtag(owner)).json(ownerJson(owner));
  });

  router.delete('/:name', async (req, res: Response) => {
    await edits.remove(callerOf(res), nameOf(req), req.get('If-Match'));
    res.status(204).end();
  });

  return router;
}

/** Callers who may set the limits of every owner may read them. */
const readsAll = (held: Held): boolean => has(held, 'boundaries:manage');

function nameOf({ params: { name } }: Request<{ name: string }>): string {
  if (OWNER.test(name)) return name;
  throw new AppError(
    'invalid_request',
    'The name of an owner must consist of a-z, 0-9, ".", "_" and "-", begin with a letter or digit, and have at most 63 characters.',
  );
}
