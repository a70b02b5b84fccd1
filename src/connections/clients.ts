/** Which client the gateway is at an authorization server: one that is registered for it, its metadata document, or one that it registers. */
import type { Vault } from '../auth/vault.ts';
import type { Database } from '../db/database.ts';
import { connectionStore } from '../targets/connection-store.ts';
import { type AccountTarget, type OAuthClient, openClient, sealClient } from '../targets/connections.ts';
import { ConnectionFault } from './fault.ts';
import { register } from './oauth.ts';
import type { FoundServer } from './servers.ts';

export interface ClientParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly publicUrl: string;
  readonly now: () => number;
}

/** A registered secret is replaced this long before it expires. */
const SPARE_MS = 24 * 60 * 60_000;

/** Each target has a redirect address of its own, so that an answer cannot be taken for that of a different server. */
export const redirectUriOf = (publicUrl: string, targetId: string): string =>
  `${publicUrl.replace(/\/$/, '')}/account/connections/${targetId}/callback`;

/** The address of the gateway's client ID metadata document for a target, which is its client id. */
export const metadataUrlOf = (publicUrl: string, targetId: string): string =>
  `${publicUrl.replace(/\/$/, '')}/account/connections/${targetId}/client`;

/** The client ID metadata document. It is the same for targets that exist and those that do not. */
export function clientDocument(publicUrl: string, targetId: string) {
  return {
    client_id: metadataUrlOf(publicUrl, targetId),
    client_name: 'Portcullis',
    client_uri: publicUrl,
    redirect_uris: [redirectUriOf(publicUrl, targetId)],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  };
}

/** How many registrations the gateway keeps for one target, however many issuers the target names. */
const MAX_REGISTERED = 8;
/** A user who connects needs the registration for at least this long. Without a connection, it is then removed. */
const UNUSED_MS = 24 * 60 * 60_000;

export type Clients = ReturnType<typeof createClients>;

export function createClients({ database, vault, publicUrl, now }: ClientParts) {
  const store = connectionStore(database.knex);

  async function stored(target: AccountTarget, issuer: string): Promise<OAuthClient | null> {
    const row = await store.client(target.id, issuer);
    return row === null ? null : openClient(vault, row);
  }

  async function registered(target: AccountTarget, server: Pick<FoundServer, 'metadata' | 'fetch'>): Promise<OAuthClient> {
    const { issuer } = server.metadata;
    const before = await store.client(target.id, issuer);
    const known = before?.registered ? openClient(vault, before) : null;
    if (known !== null && (known.expires_at === null || known.expires_at - SPARE_MS > now())) return known;
    const made = await register(server, { redirectUri: redirectUriOf(publicUrl, target.id), url: publicUrl });
    if (before !== null) await store.deleteClient(before.id, before.client_id);
    const kept = await store.addClient(sealClient(vault, target, issuer, made, { registered: true, created_at: now() }));
    await store.trimClients(target.id, kept.id, MAX_REGISTERED, now() - UNUSED_MS);
    return openClient(vault, kept) ?? made;
  }

  const clients = {
    /** Returns the client with which users connect. Throws ConnectionFault. */
    async clientFor(target: AccountTarget, server: Pick<FoundServer, 'metadata' | 'fetch'>): Promise<OAuthClient> {
      const { metadata } = server;
      const { client_id } = target.own_accounts;
      const plain = { client_secret: null, auth_method: 'none', expires_at: null } as const;
      if (client_id !== null) {
        const known = await stored(target, metadata.issuer);
        return known?.client_id === client_id ? known : { ...plain, client_id };
      }
      if (metadata['client_id_metadata_document_supported'] === true && publicUrl.startsWith('https://')) {
        return { ...plain, client_id: metadataUrlOf(publicUrl, target.id) };
      }
      if (typeof metadata.registration_endpoint === 'string') return registered(target, server);
      const { host } = new URL(metadata.issuer);
      const text = `The gateway is not known to the authorization server ${host}. An administrator must register it there, and set \`own_accounts.client_id\` of the target.`;
      throw new ConnectionFault('no_client', text);
    },
    /** Returns the client of existing tokens, with a secret that was set since. */
    async current(target: AccountTarget, issuer: string, used: OAuthClient): Promise<OAuthClient> {
      const known = await stored(target, issuer);
      return known?.client_id === used.client_id ? known : used;
    },
    /** Forgets a client that the server no longer knows, so that the gateway registers itself again. */
    async forget(target: AccountTarget, issuer: string, client_id: string): Promise<void> {
      const row = await store.client(target.id, issuer);
      if (row?.registered && row.client_id === client_id) await store.deleteClient(row.id, client_id);
    },
    /** For a client that the server no longer knows: registers the gateway again. False: it has no other client. Throws ConnectionFault. */
    async replace(target: AccountTarget, server: Pick<FoundServer, 'metadata' | 'fetch'>, client_id: string): Promise<boolean> {
      await clients.forget(target, server.metadata.issuer, client_id);
      return (await clients.clientFor(target, server)).client_id !== client_id;
    },
  };
  return clients;
}
