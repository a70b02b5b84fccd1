/** `/api/connections`, which every caller reaches, and the connections and the client of a target, for administrators. */
import { type Response, Router } from 'express';
import type { Administer } from '../../auth/caller.ts';
import type { Vault } from '../../auth/vault.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { pathId, validate } from '../../base/validate.ts';
import { metadataUrlOf, redirectUriOf } from '../../connections/clients.ts';
import type { Connecting } from '../../connections/flows.ts';
import type { Change } from '../../db/changes.ts';
import type { Database, Connection as Db } from '../../db/database.ts';
import { callerOf } from '../../http/caller.ts';
import { admissionOf } from '../../http/context.ts';
import { mayUseTarget } from '../../state/admission.ts';
import { connectionStore } from '../../targets/connection-store.ts';
import { type AccountTarget, connectionJson, hasOwnAccounts, openClient, sealClient } from '../../targets/connections.ts';
import { targetStore } from '../../targets/target-store.ts';
import { type AccountClientJson, clientSecret, type OwnConnectionJson, ownConnectionJson } from './contract.ts';

export interface ConnectionRouteParts {
  readonly database: Database;
  readonly connecting: Connecting;
}

/** The caller's connections, and the targets that the caller may use and has no account at. */
export async function ownConnections(
  { database, connecting }: ConnectionRouteParts,
  admission: ReturnType<typeof admissionOf>,
): Promise<OwnConnectionJson[]> {
  const { sub, limits } = admission.principal;
  const rows = await connectionStore(database.knex).ofUser(sub);
  const usable = [...admission.snapshot.targets.values()].filter(
    (target) => target.own_accounts !== null && mayUseTarget(admission, target),
  );
  const known = usable.map((target) => {
    const row = rows.find(({ target_id }) => target_id === target.id) ?? null;
    return ownConnectionJson(row, target.name, connecting.linkTo(target, sub));
  });
  // Users can end connections at targets that they may no longer use, without learning whether the target is there.
  const others = limits === null ? rows.filter(({ target_id }) => !usable.some(({ id }) => id === target_id)) : [];
  return [...known, ...others.map((row) => ownConnectionJson(row, null, null))];
}

export function createOwnConnectionRoutes(parts: ConnectionRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });
  router.get('/', async (_req, res) => {
    res.json(await ownConnections(parts, admissionOf(res)));
  });
  router.delete('/:id', async (req, res) => {
    await parts.connecting.end(callerOf(res), 'own', { id: pathId(req.params.id) });
    res.status(204).end();
  });
  return router;
}

export interface TargetConnectionRouteParts extends ConnectionRouteParts {
  readonly vault: Vault;
  readonly administer: Administer;
  readonly publicUrl: string;
  readonly now: () => number;
}

async function clientJson(db: Db, vault: Vault, publicUrl: string, target: AccountTarget): Promise<AccountClientJson> {
  const { issuer, client_id } = target.own_accounts;
  const row = issuer === null ? null : await connectionStore(db).client(target.id, issuer);
  const stored = row === null ? null : openClient(vault, row);
  return {
    redirect_uri: redirectUriOf(publicUrl, target.id),
    metadata_url: metadataUrlOf(publicUrl, target.id),
    client_id,
    has_secret: client_id !== null && stored?.client_id === client_id && stored.client_secret !== null,
  };
}

export function createTargetConnectionRoutes(parts: TargetConnectionRouteParts): Router {
  const { database, vault, administer, connecting, publicUrl, now } = parts;
  const router = Router({ caseSensitive: true, strict: true });

  async function accountTarget(db: Db, id: string): Promise<AccountTarget> {
    const target = await targetStore(db).find(id);
    if (!target) throw new AppError('not_found', 'No target has this id.');
    if (!hasOwnAccounts(target))
      throw new AppError('not_found', 'The users of this target have no own accounts there (own_accounts).');
    return target;
  }
  const clientOf = (id: string): Promise<AccountClientJson> =>
    database.snapshot(async (db) => clientJson(db, vault, publicUrl, await accountTarget(db, id)));
  const change = (target: AccountTarget, has_secret: boolean): Change => {
    const { issuer, client_id } = target.own_accounts;
    return { action: 'connection.client', object_id: target.id, before: null, after: { issuer, client_id, has_secret } };
  };

  router.get('/:id/connections', async (req, res) => {
    const id = pathId(req.params.id);
    if ((await targetStore(database.knex).find(id)) === null) throw new AppError('not_found', 'No target has this id.');
    res.json((await connectionStore(database.knex).ofTarget(id)).map(connectionJson));
  });

  router.delete('/:id/connections/:connection', async (req, res) => {
    const where = { id: pathId(req.params.connection), target_id: pathId(req.params.id) };
    await connecting.end(callerOf(res), 'admin', where);
    res.status(204).end();
  });

  router.get('/:id/account-client', async (req, res) => {
    res.json(await clientOf(pathId(req.params.id)));
  });

  router.put('/:id/account-client', async (req, res) => {
    const id = pathId(req.params.id);
    const { client_secret } = validate(clientSecret, req.body);
    await administer(callerOf(res), 'admin', async (trx) => {
      const target = await accountTarget(trx, id);
      const { issuer, client_id } = target.own_accounts;
      if (issuer === null || client_id === null) {
        const message = 'needs a target with own_accounts.issuer and own_accounts.client_id';
        throw invalidRequest([{ path: 'client_secret', message }]);
      }
      const client = { client_id, client_secret, auth_method: null, expires_at: null };
      await connectionStore(trx).putClient(sealClient(vault, target, issuer, client, { registered: false, created_at: now() }));
      return { result: null, changes: [change(target, true)] };
    });
    res.json(await clientOf(id));
  });

  router.delete('/:id/account-client', async (req, res: Response) => {
    const id = pathId(req.params.id);
    await administer(callerOf(res), 'admin', async (trx) => {
      const target = await accountTarget(trx, id);
      const { issuer, client_id } = target.own_accounts;
      const store = connectionStore(trx);
      const row = issuer === null ? null : await store.client(id, issuer);
      if (row === null || client_id === null || row.client_id !== client_id) {
        throw new AppError('not_found', 'No secret is stored for the client of this target.');
      }
      await store.deleteClient(row.id, client_id);
      return { result: null, changes: [change(target, false)] };
    });
    res.status(204).end();
  });

  return router;
}
