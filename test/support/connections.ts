/** The services for users' own accounts, as a replica has them. */
import { randomUUID } from 'node:crypto';
import type { ExecutionContext } from 'ava';
import type { createAdminister } from '../../src/auth/caller.ts';
import type { Principal } from '../../src/auth/principal.ts';
import { createVault } from '../../src/auth/vault.ts';
import { createLog } from '../../src/base/log.ts';
import { createOutbound } from '../../src/base/network/outbound.ts';
import { createClients } from '../../src/connections/clients.ts';
import { createFetchFor } from '../../src/connections/fetch.ts';
import { createConnecting, type Visitor } from '../../src/connections/flows.ts';
import { createRevocations } from '../../src/connections/revocations.ts';
import { createServers } from '../../src/connections/servers.ts';
import { createTokens } from '../../src/connections/tokens.ts';
import { createChanges } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import { connectionStore } from '../../src/targets/connection-store.ts';
import { type AccountTarget, hasOwnAccounts } from '../../src/targets/connections.ts';
import { membersOf, OPTIONS, type OwnAccounts } from '../../src/targets/target.ts';
import { targetStore } from '../../src/targets/target-store.ts';
import { localUser, userStore } from '../../src/users/user-store.ts';
import { signInAt } from './upstreams/account-target.ts';

export const PUBLIC_URL = 'http://127.0.0.1:9999';
export const vault = createVault(Buffer.alloc(32, 3));
export const FOUND: OwnAccounts = { issuer: null, client_id: null, scopes: [], send_resource: true };

/** Inserts a target with own accounts. */
export async function insertTarget(database: Database, url: string, own: Partial<OwnAccounts> = {}): Promise<AccountTarget> {
  const id = randomUUID();
  const own_accounts = { ...FOUND, ...own };
  const base = { id, name: `t${id.slice(0, 8)}`, description: null, enabled: true, created_at: 0, updated_at: 0 };
  const target = { ...base, ...membersOf(OPTIONS, { own_accounts }), transport: 'streamable-http', url } as const;
  if (!hasOwnAccounts(target)) throw new Error('no own accounts');
  await targetStore(database.knex).insert(target);
  return target;
}

export async function insertVisitor(database: Database): Promise<Visitor> {
  const id = randomUUID();
  const email = `${id}@example.com`;
  const user = localUser({ id, email, role: 'user', groups: [] }, 0);
  await userStore(database.knex).insert(user, 'no password');
  const token_id = randomUUID();
  const principal = {
    issuer: 'portcullis',
    sub: id,
    email,
    role: 'user',
    groups: [],
    granted: { role: 'user', groups: [] },
    token_id,
    token_kind: 'login',
    issued_at: null,
    limits: null,
  } satisfies Principal;
  return { caller: { principal, requestId: randomUUID() }, browserSessionId: randomUUID() };
}

/** One replica. `trusting`: changes are not checked for the caller's right, so that visitors need no token. */
export async function replica(t: ExecutionContext, database: Database, now: () => number = Date.now) {
  const logged: object[] = [];
  const log = createLog('debug', { write: (line) => void logged.push(JSON.parse(line) as object) });
  const changes = await createChanges(database, now);
  const administer: ReturnType<typeof createAdminister> = ({ principal, requestId }, _right, work) =>
    changes.change({ id: principal.sub, email: principal.email, request_id: requestId }, (trx) =>
      work(trx, { held: { admin: true, rights: new Map(), targets: null }, given: [] }),
    );
  const outbound = createOutbound({ allowed: [] });
  const servers = createServers({ fetchFor: createFetchFor(outbound), now });
  const clients = createClients({ database, vault, publicUrl: PUBLIC_URL, now });
  const tokens = createTokens({ database, vault, servers, clients, processId: randomUUID(), now, log });
  const revocations = createRevocations({ database, changes, vault, servers, now, log });
  const connecting = createConnecting({
    ...{ database, vault, administer, servers, clients, revocations, publicUrl: PUBLIC_URL, newId: randomUUID, now, log },
  });
  t.teardown(async () => {
    await revocations.stop();
    await outbound.close();
  });
  return {
    ...{ database, servers, clients, tokens, revocations, connecting, logged },
    /** Connects the account `who` of the provider for the visitor. */
    async connect(visitor: Visitor, target: AccountTarget, who: string) {
      const { url } = await connecting.begin(visitor, target);
      const returned = await signInAt(url, who, PUBLIC_URL);
      return connecting.finish(visitor, target, returned);
    },
    at: (visitor: Visitor, target: AccountTarget, id: string) => ({ id, target, user: visitor.caller.principal.sub }),
    store: connectionStore(database.knex),
  };
}
export type Replica = Awaited<ReturnType<typeof replica>>;
