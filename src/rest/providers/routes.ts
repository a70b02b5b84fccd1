/** `/api/providers`, and the accounts of users at providers. Only administrators reach these routes. */
import { Router } from 'express';
import { pathId, validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf } from '../../http/context.ts';
import type { RateLimits } from '../../http/limits/rate-limit.ts';
import { identity } from '../../providers/document.ts';
import { findShown, type ProviderEdits, providerEtag, type Shown, shownJson } from '../../providers/edit.ts';
import { type FaultLog, forUser } from '../../providers/faults.ts';
import type { ProviderKeys } from '../../providers/keys.ts';
import { providerStore } from '../../providers/provider-store.ts';
import type { ScimTokens } from '../../scim/tokens.ts';
import { userDocument } from '../../users/document.ts';
import { noMembers } from './contract.ts';

export interface ProviderRouteParts {
  readonly database: Database;
  readonly edits: ProviderEdits;
  readonly keys: ProviderKeys;
  readonly faults: FaultLog;
  readonly limits: Pick<RateLimits, 'own'>;
  readonly replicaId: string;
  readonly scim: ScimTokens;
}

export function createProviderRoutes({ database, edits, keys, faults, limits, replicaId, scim }: ProviderRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (_req, res) => {
    const shown = await database.snapshot(async (db) => {
      const secrets = new Set((await providerStore(db).sealedSecrets()).map(({ id }) => id));
      return (await providerStore(db).list()).map((provider): Shown => ({ provider, secretSet: secrets.has(provider.id) }));
    });
    res.json(shown.map(shownJson));
  });

  router.post('/', async (req, res) => {
    const shown = await edits.create(callerOf(res), req.body);
    res.status(201).location(`${req.baseUrl}/${shown.provider.id}`).setHeader('ETag', providerEtag(shown)).json(shownJson(shown));
  });

  router.get('/:id', async (req, res) => {
    const shown = await findShown(database.knex, pathId(req.params.id));
    res.setHeader('ETag', providerEtag(shown)).json(shownJson(shown));
  });

  router.put('/:id', async (req, res) => {
    const shown = await edits.update(callerOf(res), pathId(req.params.id), req.body, req.get('If-Match'));
    res.setHeader('ETag', providerEtag(shown)).json(shownJson(shown));
  });

  router.delete('/:id', async (req, res) => {
    await edits.delete(callerOf(res), pathId(req.params.id), req.get('If-Match'));
    res.status(204).end();
  });

  router.get('/:id/health', async (req, res) => {
    res.json(healthOf(await findShown(database.knex, pathId(req.params.id))));
  });

  router.post('/:id/probe', async (req, res) => {
    validate(noMembers, req.body ?? {});
    const shown = await findShown(database.knex, pathId(req.params.id));
    const refusal = limits.own(admissionOf(res).principal.sub);
    if (refusal) throw refusal;
    await keys.probe(shown.provider);
    res.json(healthOf(shown));
  });

  router.get('/:id/scim', async (req, res) => {
    res.json(await scim.status(database.knex, pathId(req.params.id)));
  });

  router.post('/:id/scim/token', async (req, res) => {
    validate(noMembers, req.body ?? {});
    const made = await scim.create(callerOf(res), pathId(req.params.id));
    res.status(201).json(made);
  });

  router.delete('/:id/scim/token', async (req, res) => {
    await scim.revoke(callerOf(res), pathId(req.params.id));
    res.status(204).end();
  });

  function healthOf({ provider }: Shown) {
    const { status, read, failure } = keys.report(provider);
    return {
      replica: replicaId,
      status,
      read_at: read === null ? null : iso(read.at),
      failure: failure && { at: iso(failure.at), message: failure.reason },
      keys: (read?.keys ?? []).map(({ kid, alg, key }) => ({ kid, alg, type: key.asymmetricKeyType ?? '' })),
      faults: faults.of(provider.id).map(({ kind, message, count, at }) => ({
        ...{ kind, message, count },
        user_message: forUser({ fault: kind, reason: message }),
        at: iso(at),
      })),
    };
  }

  return router;
}

/** Below `/api/users`. */
export function createLinkRoutes({ edits }: Pick<ProviderRouteParts, 'edits'>): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.post('/:id/link', async (req, res) => {
    const user = await edits.link(callerOf(res), pathId(req.params.id), validate(identity, req.body));
    res.json(userDocument(user));
  });

  router.post('/:id/end-tokens', async (req, res) => {
    validate(noMembers, req.body ?? {});
    res.json(userDocument(await edits.endTokens(callerOf(res), pathId(req.params.id))));
  });

  return router;
}

const iso = (at: number): string => new Date(at).toISOString();
