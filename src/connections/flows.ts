/**
 * Connects users' own accounts. The user who begins is the user who finishes: `state` belongs to one user, one browser session and one
 * target, and is used once.
 */
import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { Administer, Caller } from '../auth/caller.ts';
import type { Vault } from '../auth/vault.ts';
import { AppError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Database } from '../db/database.ts';
import { type ConnectionRow, connectionStore } from '../targets/connection-store.ts';
import {
  type AccountTarget,
  connectionChange,
  hasOwnAccounts,
  type OAuthClient,
  originOf,
  placeOf,
  sealTokens,
  type Tokens,
} from '../targets/connections.ts';
import type { Target } from '../targets/target.ts';
import { targetStore } from '../targets/target-store.ts';
import { scopesOf } from './challenge.ts';
import { type Clients, redirectUriOf } from './clients.ts';
import { ConnectionFault } from './fault.ts';
import { type Asking, authorizationUrl, type Given, isUnknownClient, newSecret, redeem, revoke, tokensOf } from './oauth.ts';
import type { Revocations } from './revocations.ts';
import type { Servers } from './servers.ts';

export interface FlowParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly administer: Administer;
  readonly servers: Servers;
  readonly clients: Clients;
  readonly revocations: Revocations;
  readonly publicUrl: string;
  readonly newId: () => string;
  readonly now: () => number;
  readonly log: Log;
}

/** The user, as their browser session has signed them in. */
export interface Visitor {
  readonly caller: Caller;
  readonly browserSessionId: string;
}

/** Where the user goes to sign in, and what they will be asked for. */
export interface Departure {
  readonly url: URL;
  readonly issuer: string;
  readonly scopes: readonly string[];
}

/** How long the user may take at the authorization server. */
const FLOW_MS = 15 * 60_000;
/** Sign-ins of one user that are under way at once. */
const MAX_FLOWS = 8;

interface Flow {
  readonly asking: Asking;
  readonly issuer: string;
  readonly client: OAuthClient;
  readonly origin: string;
}

const flowIdOf = (state: string): string => createHash('sha256').update(state).digest('hex');
const flowIdentity = (id: string, user: string, session: string, target: string): string =>
  JSON.stringify(['connection-flow', id, user, session, target]);

export type Connecting = ReturnType<typeof createConnecting>;

export function createConnecting(parts: FlowParts) {
  const { database, vault, administer, servers, clients, revocations, publicUrl, newId, now, log } = parts;
  const linkKey = vault.derive('connection links');

  const markOf = (target: Pick<Target, 'id'>, user: string): string =>
    createHmac('sha256', linkKey)
      .update(JSON.stringify([target.id, user]))
      .digest('base64url')
      .slice(0, 22);

  const foreign = (): ConnectionFault =>
    new ConnectionFault(
      'foreign',
      'This sign-in was begun by a different user or in a different browser, has been used before, or is too old. Connect the account again.',
    );

  /** Connects the account in one administrative change, so that every replica uses it from then on. */
  async function keepTokens(
    caller: Caller,
    target: AccountTarget,
    flow: Flow,
    given: Given,
    askedAt: number,
  ): Promise<ConnectionRow> {
    const { asking, issuer, origin } = flow;
    const time = now();
    const id = newId();
    const identity = { id, user_id: caller.principal.sub, target_id: target.id, issuer };
    const tokens = tokensFrom(given, flow, target, askedAt);
    const row: ConnectionRow = {
      ...identity,
      scope: given.scope ?? asking.scopes.join(' '),
      sealed: sealTokens(vault, identity, origin, tokens),
      version: 1,
      problem: null,
      wanted_scope: null,
      renewing_by: null,
      renewing_until: null,
      created_at: time,
      renewed_at: time,
      ended_at: null,
      revoke_at: null,
      attempts: 0,
    };
    const { result } = await administer(caller, 'own', async (trx) => {
      const current = await targetStore(trx).find(target.id);
      if (!current?.enabled || !hasOwnAccounts(current) || originOf(current) !== origin) throw moved(target);
      const store = connectionStore(trx);
      const before = await store.findOf(identity.user_id, target.id);
      if (before !== null) {
        // Some servers end the whole consent when one of its tokens is revoked: that would end the new tokens, too.
        if (before.issuer === issuer) await store.delete(before.id);
        else await store.end({ id: before.id }, time);
      }
      await store.insert(row);
      const changes = [...(before === null ? [] : [connectionChange('end', before)]), connectionChange('create', row)];
      return { result: row, changes };
    });
    return result;
  }

  return {
    /** The address at which the user connects an account. It holds nothing personal, and nothing that signs anybody in. */
    linkTo(target: Pick<Target, 'id' | 'name'>, user: string): string {
      return `${publicUrl.replace(/\/$/, '')}/account/connections?target=${target.name}&for=${markOf(target, user)}`;
    },
    /** Whether the link was made for this user. */
    isFor(target: Pick<Target, 'id'>, user: string, mark: string): boolean {
      const own = Buffer.from(markOf(target, user));
      const shown = Buffer.from(mark);
      return own.length === shown.length && timingSafeEqual(own, shown);
    },

    /** Begins to connect the visitor's account. Throws ConnectionFault. */
    async begin({ caller, browserSessionId }: Visitor, target: AccountTarget): Promise<Departure> {
      const user = caller.principal.sub;
      const store = connectionStore(database.knex);
      const server = await servers.find(target);
      const client = await clients.clientFor(target, server);
      const before = await store.findOf(user, target.id);
      const configured = target.own_accounts.scopes.length > 0 ? target.own_accounts.scopes : server.scopes;
      const wanted = before?.problem === 'scope' ? [...scopesOf(before.scope), ...scopesOf(before.wanted_scope)] : [];
      const scopes = [...new Set([...configured, ...wanted])];
      const asking: Asking = {
        redirectUri: redirectUriOf(publicUrl, target.id),
        scopes,
        resource: server.resource,
        state: newSecret(),
        verifier: newSecret(),
      };
      const url = await authorizationUrl(server, client, asking);
      const flow: Flow = { asking, issuer: server.metadata.issuer, client, origin: originOf(target) };
      const id = flowIdOf(asking.state);
      const sealed = vault.seal(flowIdentity(id, user, browserSessionId, target.id), Buffer.from(JSON.stringify(flow)));
      await store.insertFlow({
        ...{ id, sealed },
        user_id: user,
        browser_session_id: browserSessionId,
        target_id: target.id,
        created_at: now(),
      });
      await store.trimFlows(user, MAX_FLOWS, now() - FLOW_MS);
      return { url, issuer: server.metadata.issuer, scopes };
    },

    /** Finishes with the address to which the authorization server sent the visitor. Throws ConnectionFault and AppError. */
    async finish({ caller, browserSessionId }: Visitor, target: AccountTarget, returned: URL): Promise<ConnectionRow> {
      const user = caller.principal.sub;
      const store = connectionStore(database.knex);
      const [state = '', ...more] = returned.searchParams.getAll('state');
      const id = flowIdOf(state);
      const row = state === '' || more.length > 0 ? null : await store.findFlow(id);
      const isOwn = row?.user_id === user && row.browser_session_id === browserSessionId && row.target_id === target.id;
      if (row === null || !isOwn || Number(row.created_at) < now() - FLOW_MS || !(await store.takeFlow(id))) {
        log.warn(
          { user_id: user, target: target.name },
          'sign-in at a target refused: it does not belong to this user and browser',
        );
        throw foreign();
      }
      const flow = JSON.parse(vault.open(flowIdentity(id, user, browserSessionId, target.id), row.sealed).toString()) as Flow;
      if (flow.origin !== originOf(target)) throw moved(target);
      const server = await servers.known(placeOf(target), flow.issuer);
      const got: { given: Given | null } = { given: null };
      // The registered redirect address counts, however the request reached this replica.
      const address = new URL(flow.asking.redirectUri);
      address.search = returned.search;
      // As for a renewal (tokens.ts).
      const askedAt = now();
      try {
        await redeem(server, flow.client, flow.asking, address, async (given) => {
          got.given = given;
        });
        if (got.given === null) throw new ConnectionFault('refused', 'The authorization server gave no usable token.');
        const kept = await keepTokens(caller, target, flow, got.given, askedAt);
        void revocations.run();
        return kept;
      } catch (fault) {
        // The server can give tokens in an answer that is not valid. No call would use tokens that are not kept, so they must not stay valid.
        if (got.given !== null) {
          await revoke(server, tokensFrom(got.given, flow, target, now())).catch((err: unknown) =>
            log.warn({ err, user_id: user }, 'unused tokens could not be revoked'),
          );
        }
        if (!isUnknownClient((fault as Error).cause) || !(await clients.replace(target, server, flow.client.client_id)))
          throw fault;
        const { host } = new URL(flow.issuer);
        const text = `The authorization server ${host} no longer knew the gateway, which has registered itself again. Connect the account again.`;
        throw new ConnectionFault('no_client', text, { cause: fault });
      }
    },

    /** Ends a connection and revokes its tokens. `own`: only a connection of the caller. Throws AppError. */
    async end(
      caller: Caller,
      right: 'own' | 'admin',
      where: { readonly id: string; readonly target_id?: string },
    ): Promise<void> {
      await administer(caller, right, async (trx) => {
        const store = connectionStore(trx);
        const row = await store.find(where.id);
        const isMeant = row !== null && row.ended_at === null && (where.target_id ?? row.target_id) === row.target_id;
        if (!isMeant || (right === 'own' && row.user_id !== caller.principal.sub)) {
          throw new AppError('not_found', 'There is no such connection.');
        }
        await store.end({ id: row.id }, now());
        return { result: null, changes: [connectionChange('end', row)] };
      });
      void revocations.run();
    },
  };
}

function tokensFrom(given: Given, { asking, client }: Flow, target: AccountTarget, now: number): Tokens {
  return tokensOf(given, { refresh_token: null, resource: asking.resource, client, place: placeOf(target) }, now);
}

const moved = ({ name }: Pick<Target, 'name'>): ConnectionFault =>
  new ConnectionFault('metadata', `The target \`${name}\` was changed meanwhile. Connect the account again.`);
