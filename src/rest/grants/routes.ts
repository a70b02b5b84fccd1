/** `/api/auth/grants` and `/api/clients`. */
import { Router } from 'express';
import Joi from 'joi';
import { pathId, validate } from '../../base/validate.ts';
import { callerOf } from '../../http/caller.ts';
import { ID_KEY, readPage, sendPage } from '../../http/page.ts';
import { clientDocument, type Grants, grantDocument } from '../../oauth/grants.ts';
import { userAskedFor } from '../accounts/routes.ts';
import { clientQuery, clientUpdate } from './contract.ts';

const PAGE = { defaultLimit: 100, maxLimit: 1000, key: ID_KEY, also: Object.keys(clientQuery) };
const listing = Joi.object<{ unused?: 'true' }>(clientQuery);

export function grantRoutes(grants: Grants): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (req, res) => {
    const views = await grants.ofUser(userAskedFor(req, res, ['read']));
    res.json(views.map(grantDocument));
  });

  router.delete('/:id', async (req, res) => {
    await grants.end(callerOf(res), pathId(req.params.id));
    res.status(204).end();
  });

  return router;
}

export function clientRoutes(grants: Grants): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const { unused } = req.query as Record<string, string>;
    const { unused: all } = validate(listing, unused === undefined ? {} : { unused });
    const clients = await grants.clients((page.limit ?? PAGE.defaultLimit) + 1, page.cursor, all === 'true');
    await sendPage(req, res, page, clients, ({ id }) => id, clientDocument);
  });

  router.get('/:id', async (req, res) => {
    res.json(clientDocument(await grants.client(pathId(req.params.id))));
  });

  router.put('/:id', async (req, res) => {
    const id = pathId(req.params.id);
    const { enabled } = validate(clientUpdate, req.body);
    res.json(clientDocument(await grants.setEnabled(callerOf(res), id, enabled)));
  });

  router.delete('/:id', async (req, res) => {
    await grants.removeClient(callerOf(res), pathId(req.params.id));
    res.status(204).end();
  });

  return router;
}
