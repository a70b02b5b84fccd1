/**
 * Users' own accounts at targets: how their tokens are sealed, what the API shows, and how connections end. The encryption binds tokens to
 * user, target and issuer, and includes the destination. So an attacker who edits a row cannot use the account of a different user, or
 * send a token to a different server.
 */
import { createHash } from 'node:crypto';
import type { Vault } from '../auth/vault.ts';
import type { Change } from '../db/changes.ts';
import type { Connection as Db, Transaction } from '../db/database.ts';
import {
  type ClientRow,
  type ConnectionRow,
  type ConnectionStore,
  clientKey,
  connectionStore,
  type LiveConnection,
} from './connection-store.ts';
import type { Access, HttpTarget, OwnAccounts, RoutedTarget, Target } from './target.ts';

/** A target whose users have their own accounts there. */
export type AccountTarget = HttpTarget & { readonly own_accounts: OwnAccounts };

export const hasOwnAccounts = (target: Target): target is AccountTarget =>
  target.transport !== 'stdio' && target.own_accounts !== null;

/** The gateway as a client of an authorization server. */
export interface OAuthClient {
  readonly client_id: string;
  /** null: a public client. */
  readonly client_secret: string | null;
  /** null: the server's metadata decides. */
  readonly auth_method: string | null;
  /** When the secret expires, in milliseconds since the epoch; null: never. */
  readonly expires_at: number | null;
}

export interface Tokens {
  readonly access_token: string;
  readonly refresh_token: string | null;
  /** When the access token was given. */
  readonly issued_at: number;
  /** Milliseconds since the epoch; null: not known. */
  readonly expires_at: number | null;
  /** The `resource` of the requests; null: they name none. */
  readonly resource: string | null;
  readonly client: OAuthClient;
  readonly place: Place;
}

/** How the gateway reaches the authorization server of a target. */
export interface Place {
  /** The address of the target. */
  readonly url: string;
  /** Whether an administrator chose the authorization server. Otherwise the target named it. */
  readonly trusted: boolean;
}

export const placeOf = ({ url, own_accounts }: AccountTarget): Place => ({ url, trusted: own_accounts.issuer !== null });

/** Returns a hash of all that a token depends on. A different value means a different server or client. */
export function originOf(target: AccountTarget): string {
  const { issuer, client_id } = target.own_accounts;
  const facts = [target.transport, new URL(target.url).href, issuer, client_id];
  return createHash('sha256').update(JSON.stringify(facts)).digest('base64url');
}

/** Whether existing connections must not be used any longer. */
export function accountsEnd(before: Target, after: Target): boolean {
  if (!hasOwnAccounts(before)) return false;
  return !hasOwnAccounts(after) || originOf(before) !== originOf(after);
}

type Identity = Pick<ConnectionRow, 'id' | 'user_id' | 'target_id' | 'issuer'>;

const identityOf = ({ id, user_id, target_id, issuer }: Identity): string =>
  JSON.stringify(['connection', id, user_id, target_id, issuer]);
const clientIdentity = ({ target_id, issuer, client_id }: Pick<ClientRow, 'target_id' | 'issuer' | 'client_id'>): string =>
  JSON.stringify(['connection-client', target_id, issuer, client_id]);

export const sealTokens = (vault: Vault, row: Identity, origin: string, tokens: Tokens): string =>
  vault.seal(identityOf(row), Buffer.from(JSON.stringify({ origin, tokens })));

/** Returns the tokens with the destination that they belong to; null: they were altered, or sealed under an unknown key. */
export function openTokens(vault: Vault, row: Identity & Pick<ConnectionRow, 'sealed'>): (Tokens & { origin: string }) | null {
  try {
    const { origin, tokens } = JSON.parse(vault.open(identityOf(row), row.sealed).toString()) as {
      origin: string;
      tokens: Tokens;
    };
    return { ...tokens, origin };
  } catch {
    return null;
  }
}

export function sealClient(
  vault: Vault,
  { id: target_id }: Pick<Target, 'id'>,
  issuer: string,
  client: OAuthClient,
  { registered, created_at }: Pick<ClientRow, 'registered' | 'created_at'>,
): ClientRow {
  const { client_id } = client;
  const sealed = vault.seal(clientIdentity({ target_id, issuer, client_id }), Buffer.from(JSON.stringify(client)));
  return { id: clientKey(target_id, issuer), target_id, issuer, client_id, registered, sealed, created_at };
}

export function openClient(vault: Vault, row: ClientRow): OAuthClient | null {
  try {
    return JSON.parse(vault.open(clientIdentity(row), row.sealed).toString()) as OAuthClient;
  } catch {
    return null;
  }
}

/** Chooses the connection of each user. The token is added when a request is sent, so it is not part of the state. */
export function accountAccessor(target: AccountTarget, connections: readonly LiveConnection[]): RoutedTarget['accessOf'] {
  const byUser = new Map(connections.map(({ user_id, id }) => [user_id, id]));
  const origin = originOf(target);
  const bindingOf = (connectionId: string | null): string =>
    createHash('sha256')
      .update(JSON.stringify(['account', origin, connectionId]))
      .digest('base64url');
  const accessOf = (user: string, connectionId: string | null, binding: string): Access => ({
    credentials: { headers: [], env: {}, identity: binding },
    account: { connectionId },
    scope: null,
    user,
    binding,
  });
  const made = new Map<string, Access>();
  const unconnected = bindingOf(null);
  return ({ sub: user }) => {
    const known = made.get(user);
    if (known !== undefined) return known;
    const connectionId = byUser.get(user);
    if (connectionId === undefined) return accessOf(user, null, unconnected);
    const access = accessOf(user, connectionId, bindingOf(connectionId));
    made.set(user, access);
    return access;
  };
}

export type ConnectionJson = ReturnType<typeof connectionJson>;

/** Returns everything of a connection except its tokens. */
export function connectionJson(row: ConnectionRow) {
  return {
    id: row.id,
    user_id: row.user_id,
    issuer: row.issuer,
    scopes: row.scope === '' ? [] : row.scope.split(' '),
    problem: row.problem,
    connected_at: new Date(row.created_at).toISOString(),
    renewed_at: new Date(row.renewed_at).toISOString(),
  };
}

/** The change of one connection. Its object is the target, which replicas then read again. */
export const connectionChange = (verb: 'create' | 'end', row: ConnectionRow): Change => ({
  action: `connection.${verb}`,
  object_id: row.target_id,
  before: verb === 'end' ? connectionJson(row) : null,
  after: verb === 'create' ? connectionJson(row) : null,
});

/** Ends all connections at a target, for a change that is recorded. */
export async function endAtTarget(store: ConnectionStore, target_id: string, time: number): Promise<readonly Change[]> {
  const ended = await store.end({ target_id }, time);
  if (ended === 0) return [];
  return [{ action: 'connection.end', object_id: target_id, before: { connections: ended }, after: null }];
}

/** Ends all connections of a user. The transaction must be that of an administrative change, which records the returned changes. */
export async function endConnectionsOf(trx: Transaction, userId: string, time: number): Promise<readonly Change[]> {
  const store = connectionStore(trx);
  const rows = await store.ofUser(userId);
  if (rows.length > 0) await store.end({ user_id: userId }, time);
  return rows.map((row) => connectionChange('end', row));
}

/** Re-encrypts tokens and clients that are sealed under a previous master key. Those that cannot be opened stay as they are. */
export async function resealConnections(db: Db, vault: Vault): Promise<void> {
  const store = connectionStore(db);
  const { connections, clients } = await store.sealed();
  const resealed = (identity: string, sealed: string): string | null => {
    try {
      return vault.reseal(identity, sealed);
    } catch {
      return null;
    }
  };
  for (const row of connections) {
    const sealed = resealed(identityOf(row), row.sealed);
    if (sealed !== null) await store.reseal('connections', row.id, row.sealed, sealed);
  }
  for (const row of clients) {
    const sealed = resealed(clientIdentity(row), row.sealed);
    if (sealed !== null) await store.reseal('connection_clients', row.id, row.sealed, sealed);
  }
}
