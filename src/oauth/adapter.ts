/**
 * Keeps what oidc-provider stores in the gateway's database, so that any replica can take the next step of a sign-in, and a code is redeemed
 * once. Grants and clients have tables of their own; all else is in `oauth_records`.
 */
import type { Adapter, AdapterPayload } from 'oidc-provider';
import type { Vault } from '../auth/vault.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Database } from '../db/database.ts';
import { CLIENT_SECRET_HASH } from './client-secrets.ts';
import { type ClientRecord, clientStore } from './client-store.ts';
import { GRANT_MS, type Grants } from './grants.ts';
import { hashOf, type Records, type StoredRecord } from './record-store.ts';
import { CLI_CLIENT } from './resources.ts';

/** A client that refreshes twice at once, or whose answer got lost, keeps its login: a used refresh token works for this long. */
export const GRACE_MS = 60_000;
/** How often a device may ask whether its user has answered. Clients are told five seconds. */
const POLL_MS = 4_000;
/** How many registered clients that no user has approved may exist. */
export const MOST_UNUSED_CLIENTS = 1_000;
/** A registration that no user has approved yet is kept at least this long, whatever else registers. */
const REGISTRATION_KEPT_MS = 15 * 60_000;
/** How many of them may come from one network. */
export const MOST_UNUSED_OF_SITE = 100;
/** Devices that wait for their users. Those of the command line have a limit of their own, which other clients cannot use up. */
const MOST_DEVICES = 10_000;
/** How many of them may come from one network. */
export const MOST_DEVICES_OF_SITE = 200;

/** The library's errors, which an adapter may throw. They become the answer to the client. */
export interface AdapterErrors {
  invalidGrant(detail: string): Error;
  /** The question was answered, and the browser has its answer. */
  sessionNotFound(detail: string): Error;
  slowDown(): Error;
  tooMany(detail: string): Error;
}

export interface AdapterParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly records: Records;
  readonly grants: Grants;
  readonly errors: AdapterErrors;
  /** What the library handles now: the route, the id of the request, and the network that it came from (`addressSite`). */
  readonly current: () => { readonly route: string | null; readonly requestId: string; readonly site: string };
  readonly now: () => number;
}

const seconds = (ms: number): number => Math.floor(ms / 1_000);

/** Payloads that contain other ids that must not be readable. They live for minutes, so they need not survive a new master key. */
const SEALED = new Set(['Interaction', 'DeviceCode']);

export function createAdapters(parts: AdapterParts): (kind: string) => Adapter {
  return (kind) => {
    switch (kind) {
      case 'Session':
        return sessionAdapter();
      case 'Grant':
        return grantAdapter(parts);
      case 'Client':
        return clientAdapter(parts);
      default:
        return recordAdapter(parts, kind);
    }
  };
}

const unsupported = async (): Promise<never> => {
  throw new Error('The authorization server does not use this');
};
const nothing = async (): Promise<undefined> => undefined;

/** The library's own session is never stored, so it has no authority: each authorization asks for the browser's session. */
function sessionAdapter(): Adapter {
  return {
    upsert: nothing,
    find: nothing,
    findByUid: nothing,
    destroy: nothing,
    findByUserCode: unsupported,
    consume: unsupported,
    revokeByGrantId: nothing,
  };
}

function grantAdapter({ grants, current }: AdapterParts): Adapter {
  return {
    // The consent page makes grants, with more than the library knows.
    upsert: unsupported,
    async find(id) {
      const grant = await grants.find(id);
      if (grant === null) return undefined;
      const client = await grants.clientOf(grant);
      if (client === null || !client.enabled) return undefined;
      return {
        kind: 'Grant',
        jti: grant.id,
        accountId: grant.user_id,
        clientId: client.client_id,
        resources: grant.resources,
        ...(grant.openid === '' ? {} : { openid: { scope: grant.openid } }),
        iat: seconds(grant.created_at),
        exp: seconds(grant.expires_at),
      } as AdapterPayload;
    },
    // The library calls this when a client revokes its tokens, and when a code or a refresh token is presented again.
    destroy: (id) => grants.endByProtocol(id, current().requestId),
    findByUid: unsupported,
    findByUserCode: unsupported,
    consume: unsupported,
    revokeByGrantId: nothing,
  };
}

function clientAdapter({ database, errors, current, now }: AdapterParts): Adapter {
  const store = clientStore(database.knex);
  return {
    async upsert(clientId, payload) {
      const { site } = current();
      if ((await store.countUnused(site)) >= MOST_UNUSED_OF_SITE) {
        // A stranger's flood makes room among its own registrations.
        const removed = await store.removeUnused('registered', now() - REGISTRATION_KEPT_MS, 0, 10, site);
        if (removed === 0)
          throw errors.tooMany('Too many clients have registered from your network that no user has approved. Try again later.');
      }
      if ((await store.countUnused()) >= MOST_UNUSED_CLIENTS) {
        // The oldest make room, so that a flood of registrations cannot keep people from signing in.
        const removed = await store.removeUnused('registered', now() - REGISTRATION_KEPT_MS, 0, 100);
        if (removed === 0) throw errors.tooMany('Too many clients have registered that no user has approved. Try again later.');
      }
      const { client_secret: secret, client_name: name } = payload;
      const record: ClientRecord = {
        id: uuidv7(),
        client_id: clientId,
        kind: 'registered',
        name: typeof name === 'string' ? name : '',
        metadata: { ...payload, ...(secret === undefined ? {} : { client_secret: `${CLIENT_SECRET_HASH}${hashOf(secret)}` }) },
        enabled: true,
        created_at: now(),
        used_at: null,
      };
      await store.insert(record, site);
    },
    async find(clientId) {
      const client = await store.findByClientId(clientId);
      // Clients that are not registered have their metadata elsewhere.
      return client?.kind === 'registered' && client.enabled ? (client.metadata as AdapterPayload) : undefined;
    },
    destroy: unsupported,
    findByUid: unsupported,
    findByUserCode: unsupported,
    consume: unsupported,
    revokeByGrantId: unsupported,
  };
}

function recordAdapter({ vault, records, grants, errors, current, now }: AdapterParts, kind: string): Adapter {
  const identity = (key: string): string => `oauth:${kind}:${key}`;

  /** Stores the id itself only in a sealed payload. */
  function write(id: string, { jti, ...payload }: AdapterPayload): string {
    return SEALED.has(kind)
      ? vault.seal(identity(hashOf(id)), Buffer.from(JSON.stringify({ ...payload, jti })))
      : JSON.stringify(payload);
  }

  function read(key: string, id: string | null, { payload, consumed_at }: StoredRecord): AdapterPayload | undefined {
    const grace = kind === 'RefreshToken' ? GRACE_MS : 0;
    const isUsed = consumed_at !== null && now() - consumed_at >= grace;
    const stored = opened(key, payload);
    if (stored === null) return undefined;
    return { ...stored, ...(id === null ? {} : { jti: id }), ...(isUsed ? { consumed: seconds(consumed_at) } : {}) };
  }

  function opened(key: string, payload: string): AdapterPayload | null {
    if (!SEALED.has(kind)) return JSON.parse(payload);
    try {
      return JSON.parse(vault.open(identity(key), payload).toString());
    } catch {
      // Sealed under a master key that has been replaced since.
      return null;
    }
  }

  /** Returns the pool of a new device code. Throws if too many devices wait. */
  async function deviceRoom(clientId: string | undefined): Promise<string> {
    const prefix = clientId === CLI_CLIENT ? 'cli ' : 'app ';
    const pool = `${prefix}${current().site}`;
    if ((await records.countOpen(kind, { pool }, now())) >= MOST_DEVICES_OF_SITE)
      throw errors.tooMany('Too many devices of your network wait for their users. Try again later.');
    if ((await records.countOpen(kind, { prefix }, now())) >= MOST_DEVICES)
      throw errors.tooMany('Too many devices wait for their users. Try again later.');
    return pool;
  }

  return {
    async upsert(id, payload, expiresIn) {
      const isNewDevice = kind === 'DeviceCode' && payload.accountId === undefined && payload['error'] === undefined;
      const pool = isNewDevice ? await deviceRoom(payload.clientId) : null;
      const { grantId = null, userCode = null, rotations = null } = payload as { rotations?: number } & AdapterPayload;
      const expiresAt = now() + (expiresIn === undefined ? GRANT_MS : expiresIn * 1_000);
      await records.write(
        kind,
        id,
        { payload: write(id, payload), grantId, userCode, rotation: rotations, pool, expiresAt },
        now(),
      );
    },

    async find(id) {
      if (kind === 'DeviceCode' && current().route === 'token' && !(await records.poll(kind, id, now(), POLL_MS))) {
        // A code that does not exist was not polled, either.
        if ((await records.find(kind, id)) !== null) throw errors.slowDown();
      }
      const record = await records.find(kind, id);
      return record === null ? undefined : read(hashOf(id), id, record);
    },

    async findByUserCode(userCode) {
      const record = await records.findByUserCode(kind, userCode);
      return record === null ? undefined : read(record.key, null, record);
    },

    async consume(id) {
      const time = now();
      if (kind !== 'RefreshToken') {
        if (await records.consume(kind, id, time)) return;
        // The library read the code before the first use was stored, so it did not notice that this is the second use.
        const used = await records.find(kind, id);
        const { grantId } = used === null ? {} : (read(hashOf(id), id, used) ?? {});
        if (grantId !== undefined) await grants.endByProtocol(grantId, current().requestId);
        throw errors.invalidGrant(`the ${kind} was used at the same time`);
      }
      // Within the grace, a refresh token can have two successors. The one that is used ends the other, so that a thief who used the token
      // first, or at the same time, does not stay unnoticed.
      if (await records.consumeRotation(id, time)) return;
      const record = await records.find(kind, id);
      if (record === null) throw errors.invalidGrant('the refresh token has ended');
      if (record.consumed_at !== null && time - record.consumed_at >= GRACE_MS)
        throw errors.invalidGrant('refresh token already used');
    },

    async destroy(id) {
      // The library asks for the end of the grant as well, which deletes them in its transaction. If the tokens were gone before, a client
      // whose revocation failed could not repeat it.
      if (kind === 'RefreshToken') return;
      const isFirst = await records.delete(kind, id);
      // An answer gives one code. The library deletes the question before it makes the code, and does not check that there was one to delete.
      if (!isFirst && kind === 'Interaction') throw errors.sessionNotFound('the question was answered at the same time');
    },
    // As in `destroy`.
    revokeByGrantId: nothing,
    findByUid: unsupported,
  };
}
