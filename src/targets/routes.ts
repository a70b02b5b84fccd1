/** `/api/targets`. Mounted behind authentication of administrators. */
import { Router } from 'express';
import type { Vault } from '../auth/vault.ts';
import type { Database } from '../db/database.ts';
import { AppError } from '../errors.ts';
import { callerOf } from '../http/caller.ts';
import { ID_KEY, readPage, sendPage } from '../http/page.ts';
import { pathId } from '../http/validate.ts';
import { credentialJson } from './credentials.ts';
import { readCredential, readTarget, readTargetUpdate, targetJson } from './document.ts';
import { type TargetEdits, targetEtag } from './edit.ts';
import { targetStore } from './store.ts';

const PAGE = { defaultLimit: null, maxLimit: 1000, key: ID_KEY };

export interface TargetRouteParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly edits: TargetEdits;
}

export function createTargetRoutes({ database, vault, edits }: TargetRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const targets = await targetStore(database.knex).page(page.limit && page.limit + 1, page.cursor);
    sendPage(req, res, page, targets.map(targetJson), (target) => target.id);
  });

  router.post('/', async (req, res) => {
    const target = await edits.create(callerOf(res), readTarget(req.body));
    res.status(201).location(`${req.baseUrl}/${target.id}`).setHeader('ETag', targetEtag(target)).json(targetJson(target));
  });

  router.get('/:id', async (req, res) => {
    const target = await targetStore(database.knex).find(pathId(req.params.id));
    if (!target) throw new AppError('not_found', 'No target has this id.');
    res.setHeader('ETag', targetEtag(target)).json(targetJson(target));
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
      if (!target) throw new AppError('not_found', 'No target has this id.');
      return (await store.credentials(id)).map((row) => credentialJson(vault, target, row));
    });
    res.json(credentials);
  });

  router.put('/:id/credentials/default', async (req, res) => {
    const id = pathId(req.params.id);
    const { credential, created } = await edits.setCredential(callerOf(res), id, readCredential(req.body));
    res.status(created ? 201 : 200).json(credential);
  });

  router.delete('/:id/credentials/default', async (req, res) => {
    await edits.deleteCredential(callerOf(res), pathId(req.params.id));
    res.status(204).end();
  });

  return router;
}
