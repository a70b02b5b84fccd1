/** Makes, lists and ends grants: what users have allowed OAuth clients. */
import type { Administer, Caller, StillAdmits } from '../auth/caller.ts';
import { BY_ASSERTION, type Grant, grantStore, removeGrants } from '../auth/grant-store.ts';
import type { Principal } from '../auth/principal.ts';
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Change, Changes } from '../db/changes.ts';
import type { Connection, Database, Transaction } from '../db/database.ts';
import { transact } from '../db/transact.ts';
import { providerStore } from '../providers/provider-store.ts';
import { ADMIN, userStore } from '../users/user-store.ts';
import { type ClientHead, type ClientKind, type ClientRecord, clientStore } from './client-store.ts';
import { recordStore } from './record-store.ts';

/** A grant ends after this time, also if its client uses it. Then the user is asked again. */
export const GRANT_MS = 180 * 24 * 3_600_000;
/** A grant answers the same question of its client again only if it was used within this time. */
const SILENT_USED_MS = 30 * 24 * 3_600_000;
/** With this many grants for the same access, the user is asked, so that a client that signs in again and again does not fill the table. */
export const MOST_SAME_GRANTS = 20;
/** How many grants of one user may be in force. */
export const MOST_GRANTS = 1_000;

/**
 * The gateway remembers a used assertion this long after it has expired. With the greatest `clock_skew_seconds`, an expired
 * assertion still counts for half of this time.
 */
const ASSERTION_KEPT_SECONDS = 600;

export interface GrantParts {
  readonly database: Database;
  readonly changes: Changes;
  readonly administer: Administer;
  readonly stillAdmits: StillAdmits;
  readonly now: () => number;
}

export interface Approval {
  /** The user, with the browser session that the answer came from. */
  readonly principal: Principal;
  /** The question that the user answers. A question is answered once. */
  readonly question: { readonly kind: 'Interaction' | 'DeviceCode'; readonly id: string };
  readonly clientId: string;
  readonly clientKind: ClientKind;
  readonly clientName: string;
  readonly redirectUri: string;
  readonly resources: Readonly<Record<string, string>>;
  readonly openid: string;
}

/**
 * Why there is no grant. `ended`: the user is no longer admitted, or the browser session has ended. `client`: the client is disabled, or its
 * registration has ended. `ask`: no earlier grant allows the same, so the user must be asked. `answered`: the question was answered before.
 * `full`: the user has MOST_GRANTS.
 */
export type NoGrant = 'ended' | 'client' | 'ask' | 'answered' | 'full';

/** What the provider of a user has allowed a client by an assertion. */
export interface AssertedApproval extends Pick<Approval, 'principal' | 'clientId' | 'clientKind' | 'clientName'> {
  /** The address of the endpoint. */
  readonly resource: string;
  /** `key` identifies the assertion, `exp` is in seconds. An assertion counts once. */
  readonly assertion: { readonly key: string; readonly exp: number };
}

/** A grant that allowed a client the same before. */
export interface Earlier {
  /** When the user allowed it. */
  readonly since: number;
  readonly expiresAt: number;
  /** Whether it also answers the question now. */
  readonly suffices: boolean;
}

/** A grant, with what is known of its client. */
export interface GrantView {
  readonly grant: Grant;
  readonly client: ClientHead | null;
}

export type Grants = ReturnType<typeof createGrants>;

/** As the change feed and the REST API show a grant. */
export function grantDocument({ grant, client }: GrantView) {
  return {
    id: grant.id,
    user_id: grant.user_id,
    client: {
      id: grant.client,
      client_id: client?.client_id ?? null,
      name: client?.name ?? null,
      kind: client?.kind ?? null,
    },
    resources: Object.keys(grant.resources),
    redirect_uri: grant.redirect_uri,
    created_at: new Date(grant.created_at).toISOString(),
    used_at: new Date(grant.used_at).toISOString(),
    expires_at: new Date(grant.expires_at).toISOString(),
  };
}

export function clientDocument({ id, client_id, kind, name, metadata, enabled, created_at, used_at }: ClientRecord) {
  const redirects = metadata?.['redirect_uris'];
  return {
    id,
    client_id,
    kind,
    name,
    redirect_uris: Array.isArray(redirects) ? redirects.filter((uri) => typeof uri === 'string') : [],
    enabled,
    created_at: new Date(created_at).toISOString(),
    used_at: used_at === null ? null : new Date(used_at).toISOString(),
  };
}

const ended = (view: GrantView): Change => ({
  action: 'grant.end',
  object_id: view.grant.id,
  before: grantDocument(view),
  after: null,
});

export function createGrants({ database, changes, administer, stillAdmits, now }: GrantParts) {
  const missing = (): AppError => new AppError('not_found', 'No grant has this id.');
  const noClient = (): AppError => new AppError('not_found', 'No client has this id.');

  async function viewsOf(grants: readonly Grant[]): Promise<GrantView[]> {
    const clients = await clientStore(database.knex).findAll([...new Set(grants.map(({ client }) => client))]);
    const byId = new Map(clients.map((client) => [client.id, client]));
    return grants.map((grant) => ({ grant, client: byId.get(grant.client) ?? null }));
  }

  const inForce = (grants: readonly Grant[]): Grant[] => grants.filter(({ expires_at }) => expires_at > now());

  async function earlierIn(
    db: Connection,
    clientId: string,
    { principal, redirectUri, resources, openid }: Approval,
  ): Promise<Earlier | null> {
    const client = await clientStore(db).findByClientId(clientId);
    if (client === null) return null;
    const scopes = openid.split(' ');
    const same = inForce(await grantStore(db).ofUser(principal.sub)).filter(
      (grant) =>
        grant.client === client.id &&
        grant.redirect_uri === redirectUri &&
        Object.entries(resources).every(([resource, scope]) => grant.resources[resource] === scope) &&
        scopes.every((scope) => scope === '' || grant.openid.split(' ').includes(scope)),
    );
    const inUse = same.filter(({ used_at }) => used_at > now() - SILENT_USED_MS);
    // A grant that was made without a question expires with the one that the user gave. That one is the oldest of those that expire last.
    const given = (inUse.length > 0 ? inUse : same).reduce<Grant | null>(
      (last, grant) => (last === null || grant.expires_at > last.expires_at ? grant : last),
      null,
    );
    if (given === null) return null;
    const suffices = inUse.length > 0 && same.length < MOST_SAME_GRANTS;
    return { since: given.created_at, expiresAt: given.expires_at, suffices };
  }

  /** Ends a grant in the transaction of an administrative change. Throws AppError `not_found`. */
  async function endIn(trx: Transaction, id: string): Promise<Change[]> {
    const grant = await grantStore(trx).find(id);
    if (grant === null || (await removeGrants(trx, [id])) === 0) throw missing();
    return [ended({ grant, client: await clientStore(trx).find(grant.client) })];
  }

  /** Like `endIn`, and ends all grants that go back to the same answer of the user: those made without a question expire with it. */
  async function endAnswerIn(
    trx: Transaction,
    { id, user_id, client: clientId, redirect_uri, expires_at }: Grant,
  ): Promise<Change[]> {
    // `create` does so, too. A grant that it makes at the same time ends here, or the earlier grant is gone when it looks.
    await userStore(trx).lockForSignIn(user_id);
    const copies = (await grantStore(trx).ofUser(user_id)).filter(
      (grant) =>
        grant.id !== id &&
        redirect_uri !== BY_ASSERTION &&
        grant.client === clientId &&
        grant.redirect_uri === redirect_uri &&
        grant.expires_at === expires_at,
    );
    const changes = await endIn(trx, id);
    if (copies.length === 0) return changes;
    await removeGrants(
      trx,
      copies.map((copy) => copy.id),
    );
    const client = await clientStore(trx).find(clientId);
    return changes.concat(copies.map((grant) => ended({ grant, client })));
  }

  async function endAllOf(trx: Transaction, client: ClientRecord): Promise<Change[]> {
    const grants = await grantStore(trx).ofClient(client.id);
    await removeGrants(
      trx,
      grants.map(({ id }) => id),
    );
    return grants.map((grant) => ended({ grant, client }));
  }

  return {
    /**
     * Stores what a user has allowed a client. `silent`: the user is not asked, because an earlier grant allows the same; the new grant
     * expires when that one does.
     */
    create: (approval: Approval, silent = false): Promise<{ readonly grantId: string } | NoGrant> =>
      transact(database, async (trx) => {
        const { principal, question, clientId, clientKind: kind, clientName: name, redirectUri, resources, openid } = approval;
        const time = now();
        // The lock of the user comes first. A change that disables the user, or ends the sign-ins, ends this grant or refuses it.
        if (!(await stillAdmits(trx, principal))) return 'ended';
        if (kind !== 'registered') {
          const record = { client_id: clientId, kind, name, metadata: null, enabled: true, created_at: time, used_at: null };
          await clientStore(trx).insert({ id: uuidv7(), ...record });
        }
        // If an administrator disables the client at the same time, that change ends this grant, or this finds the client disabled.
        const client = await clientStore(trx).lock(clientId);
        if (client === null || !client.enabled) return 'client';
        const earlier = silent ? await earlierIn(trx, clientId, approval) : null;
        if (silent && !earlier?.suffices) return 'ask';
        if ((await grantStore(trx).countOf(principal.sub, time)) >= MOST_GRANTS) return 'full';
        if (!(await recordStore({ knex: trx }).answer(question.kind, question.id, time))) return 'answered';
        const id = uuidv7();
        const times = { created_at: time, used_at: time, expires_at: earlier?.expiresAt ?? time + GRANT_MS };
        await grantStore(trx).insert({
          ...{ id, user_id: principal.sub, client: client.id, resources, openid, redirect_uri: redirectUri },
          ...times,
        });
        await clientStore(trx).used(client.id, name, time);
        return { grantId: id };
      }),

    /** Stores what the provider has allowed a client. Assertions for the same access share a grant, so that the user sees one and can end it. */
    createByAssertion: (approval: AssertedApproval): Promise<{ readonly grantId: string } | Exclude<NoGrant, 'ask'>> =>
      transact(database, async (trx) => {
        const { principal, clientId, clientKind: kind, clientName: name, resource, assertion } = approval;
        const time = now();
        if (!(await stillAdmits(trx, principal))) return 'ended';
        // The user is locked now. A change that turns assertions off locks all users of the provider, then ends their grants.
        const provider = await providerStore(trx).findByIssuer(principal.issuer);
        if (!provider?.id_jag) return 'ended';
        if (kind !== 'registered') {
          const record = { client_id: clientId, kind, name, metadata: null, enabled: true, created_at: time, used_at: null };
          await clientStore(trx).insert({ id: uuidv7(), ...record });
        }
        const client = await clientStore(trx).lock(clientId);
        if (client === null || !client.enabled) return 'client';
        const all = inForce(await grantStore(trx).ofUser(principal.sub));
        const known = all.find(
          (grant) => grant.client === client.id && grant.redirect_uri === BY_ASSERTION && grant.resources[resource] !== undefined,
        );
        // The assertion is not used up: it counts when the user has ended some grants.
        if (known === undefined && all.length >= MOST_GRANTS) return 'full';
        const until = (assertion.exp + ASSERTION_KEPT_SECONDS) * 1_000;
        if (!(await recordStore({ knex: trx }).once('IdJag', assertion.key, until, time))) return 'answered';
        await clientStore(trx).used(client.id, name, time);
        if (known !== undefined) return { grantId: known.id };
        // A member of a cluster does not see that a different one has locked the users. Both transactions write the provider.
        await providerStore(trx).countSignIn(provider.id);
        const id = uuidv7();
        await grantStore(trx).insert({
          ...{ id, user_id: principal.sub, client: client.id, resources: { [resource]: 'mcp' }, openid: '' },
          ...{ redirect_uri: BY_ASSERTION, created_at: time, used_at: time, expires_at: time + GRANT_MS },
        });
        return { grantId: id };
      }),

    find: (id: string): Promise<Grant | null> => grantStore(database.knex).find(id),
    used: (id: string): Promise<void> => grantStore(database.knex).used(id, now()),
    clientOf: ({ client }: Grant): Promise<ClientRecord | null> => clientStore(database.knex).find(client),
    findClient: (clientId: string): Promise<ClientRecord | null> => clientStore(database.knex).findByClientId(clientId),

    /** Returns what allowed the client the same before, at the same redirect address. null: nothing did. */
    earlier: (approval: Approval): Promise<Earlier | null> => earlierIn(database.knex, approval.clientId, approval),

    /**
     * Ends a grant because its client revoked it, or because a code or refresh token of it was presented again. Other grants stay, also
     * those of the same answer: this says nothing about their tokens.
     */
    async endByProtocol(id: string, requestId: string): Promise<void> {
      const grant = await grantStore(database.knex).find(id);
      if (grant === null) return;
      const user = await userStore(database.knex).find(grant.user_id);
      const actor = { id: grant.user_id, email: user?.email ?? '', request_id: requestId };
      await changes.change(actor, async (trx) => {
        const found = await grantStore(trx).find(id);
        return { result: null, changes: found === null ? [] : await endIn(trx, id) };
      });
    },

    /** Oldest first. */
    ofUser: async (userId: string): Promise<GrantView[]> => viewsOf(inForce(await grantStore(database.knex).ofUser(userId))),

    /**
     * Users may end their own grants; administrators may end any. Also ends the grants of the same client that go back to the same answer of
     * the user. Throws AppError `not_found`.
     */
    async end(caller: Caller, id: string): Promise<void> {
      const { sub, role } = caller.principal;
      const grant = await grantStore(database.knex).find(id);
      const isOwn = grant?.user_id === sub;
      // Refuse before the transaction, because all administrative changes wait in one line.
      if (grant === null || (!isOwn && role !== ADMIN)) throw missing();
      await administer(caller, isOwn ? 'own' : 'admin', async (trx) => ({
        result: null,
        changes: await endAnswerIn(trx, grant),
      }));
    },

    clients: (limit: number, after: string | null, all: boolean): Promise<ClientRecord[]> =>
      clientStore(database.knex).page(limit, after, all),

    async client(id: string): Promise<ClientRecord> {
      const client = await clientStore(database.knex).find(id);
      if (client === null) throw noClient();
      return client;
    },

    /** A disabled client gets no new grants, and its grants end. Throws AppError `not_found`. */
    async setEnabled(caller: Caller, id: string, enabled: boolean): Promise<ClientRecord> {
      const { result } = await administer(caller, 'admin', async (trx) => {
        const store = clientStore(trx);
        const known = await store.find(id);
        const client = known && (await store.lock(known.client_id));
        if (!client) throw noClient();
        await store.setEnabled(id, enabled);
        const after = { ...client, enabled };
        const change: Change = {
          action: 'client.update',
          object_id: id,
          before: clientDocument(client),
          after: clientDocument(after),
        };
        return { result: after, changes: [change, ...(enabled ? [] : await endAllOf(trx, client))] };
      });
      return result;
    },

    /** Ends the client's registration and its grants. A client with a document can be approved again. Throws AppError `not_found`. */
    async removeClient(caller: Caller, id: string): Promise<void> {
      await administer(caller, 'admin', async (trx) => {
        const store = clientStore(trx);
        const known = await store.find(id);
        const client = known && (await store.lock(known.client_id));
        if (!client) throw noClient();
        const grants = await endAllOf(trx, client);
        await store.delete(id);
        const change: Change = { action: 'client.delete', object_id: id, before: clientDocument(client), after: null };
        return { result: null, changes: [change, ...grants] };
      });
    },
  };
}
