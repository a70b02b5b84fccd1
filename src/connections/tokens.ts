/**
 * The tokens of users' own accounts. The access token of each connection is kept in memory until it expires, so a call with a fresh one
 * reads nothing. A refresh token may rotate: each is used once, under a lock that all replicas respect, and the new ones are stored before
 * the rest of the answer is looked at.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Vault } from '../auth/vault.ts';
import { keep, perObject } from '../base/kept.ts';
import type { Log } from '../base/log.ts';
import type { Database } from '../db/database.ts';
import { type ConnectionRow, connectionStore } from '../targets/connection-store.ts';
import { type AccountTarget, openTokens, originOf, sealTokens, type Tokens } from '../targets/connections.ts';
import type { Credentials } from '../targets/target.ts';
import type { Clients } from './clients.ts';
import { REQUEST_MS } from './fetch.ts';
import { isUnknownClient, type Renewal, renew, tokensOf } from './oauth.ts';
import type { Servers } from './servers.ts';
import { createWaits } from './waits.ts';

/** A token to send, and where it may be sent as whom. */
export interface HeldToken {
  readonly user: string;
  readonly targetId: string;
  /** As `originOf` returns it. */
  readonly origin: string;
  readonly version: number;
  readonly credentials: Credentials;
  /** If the target refuses the token before this time, it is not renewed: the target would make the gateway ask without end. */
  readonly youngUntil: number;
  /** From this time on, the token is renewed in the background. */
  readonly renewAt: number;
  /** From this time on, the token is not sent. */
  readonly deadAt: number;
}

/** Why there is no token. `reconnect`: the user must connect again. `unavailable`: the authorization server cannot be asked now. */
export type NoToken = { readonly none: 'reconnect' | 'unavailable'; readonly cause?: unknown };

/** Whom a renewal asks, and as which client. */
interface Asked {
  readonly server: Awaited<ReturnType<Servers['known']>>;
  readonly client: Tokens['client'];
}

/** A connection of this user at this target. */
export interface ConnectionAt {
  readonly id: string;
  readonly target: AccountTarget;
  readonly user: string;
}

export interface TokenParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly servers: Servers;
  readonly clients: Clients;
  /** Identifies this process. */
  readonly processId: string;
  readonly now: () => number;
  readonly log: Log;
}

const KEPT = 20_000;
/** How long the lock of a renewal is held at most. A replica that was killed blocks the connection for this long. */
const LOCK_MS = 2 * REQUEST_MS + 10_000;
/** How long a call waits for a renewal. */
const WAIT_MS = 20_000;
/** After a renewal that failed, the authorization server is not asked for this connection for this long. */
const PAUSE_MS = 2_000;
const YOUNG_MS = 30_000;
/** The end of a token's life in which it is renewed in the background: a fifth of it, at most this long. */
const EARLY_MS = 60_000;
const STORE_ATTEMPTS = 8;

const NEVER = Number.POSITIVE_INFINITY;

interface Found {
  readonly row: ConnectionRow;
  readonly tokens: Tokens & { readonly origin: string };
}

const destinationOf = perObject(originOf);

const isFor = ({ target, user }: ConnectionAt, token: HeldToken): boolean =>
  token.user === user && token.targetId === target.id && token.origin === destinationOf(target);

export type TokenKeeper = ReturnType<typeof createTokens>;

export function createTokens({ database, vault, servers, clients, processId, now, log }: TokenParts) {
  const store = connectionStore(database.knex);
  const waits = createWaits({ states: store.renewalStates, now });
  const held = new Map<string, HeldToken>();
  const renewals = new Map<string, Promise<HeldToken | NoToken>>();
  const paused = new Map<string, number>();
  let locks = 0;

  function heldOf(row: ConnectionRow, origin: string, tokens: Tokens): HeldToken {
    const { access_token, issued_at, expires_at } = tokens;
    const life = expires_at === null ? NEVER : expires_at - issued_at;
    const token: HeldToken = {
      ...{ user: row.user_id, targetId: row.target_id, origin },
      version: row.version,
      credentials: { headers: [['authorization', `Bearer ${access_token}`]], env: {}, identity: row.id },
      youngUntil: issued_at + Math.min(YOUNG_MS, life / 2),
      renewAt: expires_at === null ? NEVER : expires_at - Math.min(EARLY_MS, life / 5),
      // The request takes a moment to arrive, and servers count whole seconds.
      deadAt: expires_at === null ? NEVER : expires_at - Math.min(2_000, life / 4),
    };
    return keep(held, row.id, token, KEPT);
  }

  /** Reads the connection; null: it is not this user's at this target, has ended, or belongs to a different destination. */
  async function read({ id, target, user }: ConnectionAt): Promise<Found | null> {
    const row = await store.find(id);
    if (row === null || row.ended_at !== null || row.user_id !== user || row.target_id !== target.id) return null;
    const tokens = openTokens(vault, row);
    return tokens === null || tokens.origin !== originOf(target) ? null : { row, tokens };
  }

  const isUsable = (row: ConnectionRow): boolean => row.problem === null || row.problem === 'scope';

  /** Returns the stored token if it may be sent. `refused`: a version that the target has refused. */
  function usable({ row, tokens }: Found, refused: number | null): HeldToken | null {
    if (refused !== null && row.version <= refused) return null;
    const token = heldOf(row, tokens.origin, tokens);
    return now() < token.deadAt ? token : null;
  }

  function renewOnce(at: ConnectionAt, refused: number | null): Promise<HeldToken | NoToken> {
    const under = renewals.get(at.id);
    if (under !== undefined) return under.then((token) => ('none' in token || isFor(at, token) ? token : { none: 'reconnect' }));
    const renewal = renewed(at, refused).finally(() => renewals.delete(at.id));
    renewals.set(at.id, renewal);
    return renewal;
  }

  /** Renews the tokens, or waits until a different replica has. `refused` null: because they expire. */
  async function renewed(at: ConnectionAt, refused: number | null): Promise<HeldToken | NoToken> {
    const until = now() + WAIT_MS;
    // A background renewal of a token that may still be sent must not return that token at once.
    const stale = refused ?? held.get(at.id)?.version ?? null;
    for (;;) {
      const found = await read(at);
      if (found === null) return { none: 'reconnect' };
      const { row, tokens } = found;
      const token = usable(found, stale);
      if (token !== null) return token;
      if (!isUsable(row)) return { none: 'reconnect' };
      if (tokens.refresh_token === null) {
        if (await store.noteUnrenewable(row, null, 'refused')) return { none: 'reconnect' };
        return (await replaced(at, row)) ?? { none: 'reconnect' };
      }
      if ((paused.get(row.id) ?? 0) > now()) return { none: 'unavailable' };
      if (row.renewing_until === null || row.renewing_until <= now()) {
        const asked = await prepared(at, row, tokens);
        if ('none' in asked) return asked;
        const time = now();
        const lock = { by: `${processId.slice(0, 24)}:${++locks}`, until: time + LOCK_MS };
        if (await locked(row, lock, time)) {
          return perform(at, row, { ...tokens, refresh_token: tokens.refresh_token, client: asked.client }, asked.server, lock);
        }
      }
      if (now() > until) return { none: 'unavailable', cause: new Error('a renewal by a different replica took too long') };
      await waits.over(row, until);
    }
  }

  async function locked(
    row: ConnectionRow,
    lock: { readonly by: string; readonly until: number },
    time: number,
  ): Promise<boolean> {
    try {
      return await store.lock(row, lock.by, lock.until, time);
    } catch (error) {
      // The lock may be taken although the answer got lost.
      await store.unlock(row.id, lock.by, row.renewing_until).catch(() => undefined);
      throw error;
    }
  }

  const logged = ({ target, user, id }: ConnectionAt) => ({ target: target.name, user_id: user, connection_id: id });

  /** Reads what a renewal needs before its lock is taken, because the lock lasts no longer than a token request may. */
  async function prepared(at: ConnectionAt, row: ConnectionRow, tokens: Tokens): Promise<Asked | NoToken> {
    try {
      const server = await servers.known(tokens.place, row.issuer);
      return { server, client: await clients.current(at.target, row.issuer, tokens.client) };
    } catch (cause) {
      log.warn({ ...logged(at), err: cause }, 'account could not be renewed');
      keep(paused, row.id, now() + PAUSE_MS, KEPT);
      return { none: 'unavailable', cause };
    }
  }

  /** Returns the token of a version that a different replica has stored since `row` was read. null: there is none. */
  async function replaced(at: ConnectionAt, row: ConnectionRow): Promise<HeldToken | null> {
    const found = await read(at);
    return found !== null && isUsable(found.row) ? usable(found, row.version) : null;
  }

  async function perform(
    at: ConnectionAt,
    row: ConnectionRow,
    tokens: Tokens & { readonly refresh_token: string },
    server: Asked['server'],
    { by, until }: { readonly by: string; readonly until: number },
  ): Promise<HeldToken | NoToken> {
    const { target } = at;
    // The lock of an earlier renewal has run out: it is unknown whether the server has used the refresh token.
    const wasInterrupted = row.renewing_until !== null && row.renewing_until <= now();
    const of = logged(at);
    if (wasInterrupted) log.warn(of, 'renewal of an account was interrupted, trying its refresh token once more');
    const got: { tokens: Tokens | null; token: HeldToken | null } = { tokens: null, token: null };
    let ended: Renewal;
    try {
      // A request that outlasts the lock would use the refresh token at the same time as a different replica.
      if (until - now() < REQUEST_MS) throw new Error('the lock of the renewal has almost run out');
      // The server counts the life of the token from before its answer arrives, which may take long.
      const askedAt = now();
      ended = await renew(server, tokens, async (given) => {
        const next = tokensOf(given, tokens, askedAt);
        const scope = given.scope ?? row.scope;
        const sealed = sealTokens(vault, row, originOf(target), next);
        if (await storeRenewed(row, { sealed, scope, renewed_at: now() })) {
          got.tokens = next;
          got.token = heldOf({ ...row, version: row.version + 1 }, originOf(target), next);
        }
      });
    } catch (cause) {
      ended = { outcome: 'unsent', cause };
    }
    switch (ended.outcome) {
      case 'renewed':
        paused.delete(row.id);
        if (got.token !== null) return got.token;
        log.error(of, 'renewed tokens of an account could not be stored');
        return { none: 'reconnect' };
      case 'refused': {
        held.delete(row.id);
        if (isUnknownClient(ended.cause)) {
          if (target.own_accounts.client_id !== null) {
            // The connection is sound: an administrator must set the secret of the client.
            log.error({ ...of, err: ended.cause }, 'authorization server does not accept the registered client of the target');
            keep(paused, row.id, now() + PAUSE_MS, KEPT);
            await store.unlock(row.id, by, null);
            return { none: 'unavailable', cause: ended.cause };
          }
          await clients.forget(target, row.issuer, tokens.client.client_id);
        }
        const problem = wasInterrupted ? 'interrupted' : 'refused';
        const isNoted = await store.noteUnrenewable(row, by, problem);
        await store.unlock(row.id, by, null);
        // A different replica has renewed the tokens, or is about to.
        if (!isNoted) return (await replaced(at, row)) ?? { none: 'unavailable', cause: ended.cause };
        log.warn(
          { ...of, problem, err: ended.cause },
          'authorization server refused to renew an account, the user must connect again',
        );
        return { none: 'reconnect', cause: ended.cause };
      }
      case 'unknown':
      case 'unsent': {
        log.warn({ ...of, err: ended.cause }, 'account could not be renewed');
        keep(paused, row.id, now() + PAUSE_MS, KEPT);
        // What the server gave is stored even if the rest of its answer is not valid.
        if (got.tokens === null) await store.unlock(row.id, by, ended.outcome === 'unsent' && !wasInterrupted ? null : now());
        else {
          // The new refresh token counts, but an access token from an answer that is not valid is not sent.
          held.delete(row.id);
          const next = { ...row, version: row.version + 1 };
          const expired = sealTokens(vault, row, originOf(target), { ...got.tokens, expires_at: now() });
          await storeRenewed(next, { sealed: expired, scope: row.scope, renewed_at: now() });
        }
        return { none: 'unavailable', cause: ended.cause };
      }
    }
  }

  /** The old refresh token may already be used, so a database that is away for a moment must not lose the new one. */
  async function storeRenewed(
    row: ConnectionRow,
    renewed: Pick<ConnectionRow, 'sealed' | 'scope' | 'renewed_at'>,
  ): Promise<boolean> {
    for (let attempt = 1; ; attempt++) {
      try {
        if (await store.renew(row, renewed)) return true;
        // An earlier attempt may have stored them, and its answer got lost.
        return attempt > 1 && (await store.find(row.id))?.sealed === renewed.sealed;
      } catch (err) {
        if (attempt === STORE_ATTEMPTS) throw err;
        log.warn({ err, connection_id: row.id }, 'storing renewed tokens failed, retrying');
        await sleep(Math.min(2_000, 50 * 2 ** attempt));
      }
    }
  }

  return {
    /** Resolves when the renewals that are under way now have ended. */
    async settled(): Promise<void> {
      await Promise.allSettled(renewals.values());
    },
    /** The token of the connection, if this process has it and it is fresh. It is sent only for its user to its destination. */
    fresh(at: ConnectionAt): HeldToken | null {
      const token = held.get(at.id);
      return token !== undefined && now() < token.renewAt && isFor(at, token) ? token : null;
    },
    /** Returns a token that may be sent. Renews it if necessary. */
    async get(at: ConnectionAt): Promise<HeldToken | NoToken> {
      const found = await read(at);
      if (found === null) return { none: 'reconnect' };
      const token = isUsable(found.row) ? usable(found, null) : null;
      if (token === null) return isUsable(found.row) ? renewOnce(at, null) : { none: 'reconnect' };
      if (now() >= token.renewAt && found.tokens.refresh_token !== null) {
        void renewOnce(at, token.version).catch((err: unknown) =>
          log.warn({ err, connection_id: at.id }, 'account could not be renewed'),
        );
      }
      return token;
    },
    /** Returns a different token than one that the target has refused. */
    async afterRefusal(at: ConnectionAt, refused: HeldToken): Promise<HeldToken | NoToken> {
      const found = await read(at);
      if (found === null || !isUsable(found.row)) return { none: 'reconnect' };
      const other = usable(found, refused.version);
      if (other !== null) return other;
      if (now() < refused.youngUntil) return { none: 'reconnect' };
      return renewOnce(at, refused.version);
    },
    /** Notes the scopes that the target asks for. The user is asked for them when they connect again. */
    async wants(id: string, scopes: readonly string[]): Promise<void> {
      await store.noteScope(id, scopes.join(' '));
    },
  };
}
