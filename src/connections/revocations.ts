/**
 * Revokes the tokens of ended connections at the authorization servers that gave them, and then deletes them. Servers do not wait for each
 * other: each has a line of its own.
 */
import type { Vault } from '../auth/vault.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Log } from '../base/log.ts';
import { repeat } from '../base/repeat.ts';
import type { Changes } from '../db/changes.ts';
import type { Database } from '../db/database.ts';
import { type ConnectionRow, connectionStore } from '../targets/connection-store.ts';
import { connectionChange, openTokens } from '../targets/connections.ts';
import { revoke } from './oauth.ts';
import type { Servers } from './servers.ts';

export interface RevocationParts {
  readonly database: Database;
  readonly changes: Pick<Changes, 'change'>;
  readonly vault: Vault;
  readonly servers: Servers;
  readonly now: () => number;
  readonly log: Log;
}

const EVERY_MS = 30_000;
const BATCH = 20;
const STRAYS_AT_ONCE = 100;
const ACTOR = { id: 'gateway', email: '', reason: 'the user is no longer admitted' } as const;
const SERVERS_AT_ONCE = 10;
/** The wait before the next attempt, which doubles. */
const FIRST_WAIT_MS = 30_000;
const MAX_WAIT_MS = 60 * 60_000;
/** The tokens are then deleted although they could not be revoked. */
const GIVEN_UP_MS = 24 * 60 * 60_000;

export type Revocations = ReturnType<typeof createRevocations>;

export function createRevocations({ database, changes, vault, servers, now, log }: RevocationParts) {
  const store = connectionStore(database.knex);
  /** By issuer, the servers that are asked at the moment. */
  const lines = new Map<string, { isWanted: boolean; ended: Promise<void> }>();
  let beginning: Promise<void> = Promise.resolve();
  let stopped = false;

  /** Returns false if the tokens are still valid, and this replica tries again later. */
  async function revokeOne(row: ConnectionRow): Promise<boolean> {
    const wait = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** row.attempts);
    if (!(await store.takeRevocation(row, now() + wait))) return true;
    const tokens = openTokens(vault, row);
    const of = { connection_id: row.id, user_id: row.user_id, target_id: row.target_id };
    try {
      if (tokens !== null) await revoke(await servers.known(tokens.place, row.issuer), tokens);
    } catch (err) {
      if (now() - (row.ended_at ?? 0) < GIVEN_UP_MS) {
        log.warn({ ...of, err }, 'tokens of an ended connection could not be revoked, retrying later');
        return false;
      }
      log.error({ ...of, err }, 'tokens of an ended connection could not be revoked for a day, deleting them');
    }
    await store.delete(row.id);
    return true;
  }

  /**
   * Disabling a user ends the user's connections, too. This finds the connections of users that lost access in a different way. Their end is
   * a change: a replica that has not read it would use their tokens again when the users are admitted again.
   */
  async function endStrays(): Promise<void> {
    for (let after: string | null = null; !stopped; ) {
      const ids: string[] = await store.strayIds(STRAYS_AT_ONCE, after);
      if (ids.length > 0) {
        await changes.change({ ...ACTOR, request_id: uuidv7() }, async (trx) => {
          const own = connectionStore(trx);
          const rows = await own.straysAmong(ids);
          await own.endAll(
            rows.map(({ id }) => id),
            now(),
          );
          return { result: null, changes: rows.map((row) => connectionChange('end', row)) };
        });
      }
      if (ids.length < STRAYS_AT_ONCE) return;
      after = ids.at(-1) ?? null;
    }
  }

  /** Returns false if some could not be revoked. The server then leaves its place to others until the next run. */
  async function revokeAt(issuer: string): Promise<boolean> {
    for (let isWell = true; ; ) {
      const rows = await store.toRevoke(now(), BATCH, { issuer });
      for (const row of rows) {
        if (stopped) return false;
        if (!(await revokeOne(row))) isWell = false;
      }
      if (!isWell || rows.length < BATCH) return isWell;
    }
  }

  function beginLine(issuer: string): void {
    const line = { isWanted: false, ended: Promise.resolve() };
    lines.set(issuer, line);
    const serve = async (): Promise<void> => {
      try {
        do line.isWanted = false;
        while ((await revokeAt(issuer)) && line.isWanted);
      } finally {
        lines.delete(issuer);
      }
    };
    // Others may have waited for a place.
    line.ended = serve().then(begin, failed);
  }

  async function beginAll(): Promise<void> {
    await endStrays();
    // Connections may have ended after the line of their server had read which ones.
    for (const line of lines.values()) line.isWanted = true;
    while (lines.size < SERVERS_AT_ONCE && !stopped) {
      const [next] = await store.toRevoke(now(), 1, { notAt: [...lines.keys()] });
      if (next === undefined) return;
      beginLine(next.issuer);
    }
  }

  const failed = (err: unknown): void => log.warn({ err }, 'revoking tokens of ended connections failed, retrying');
  const begin = (): Promise<void> => {
    beginning = beginning.then(() => (stopped ? undefined : beginAll())).catch(failed);
    return beginning;
  };
  async function allEnded(): Promise<void> {
    while (lines.size > 0) await Promise.all([...lines.values()].map(({ ended }) => ended));
  }
  const regular = repeat(begin, { everyMs: EVERY_MS }, failed);
  return {
    /** Revokes what is to be revoked now, at up to 10 servers at a time. Never rejects. */
    async run(): Promise<void> {
      await begin();
      await allEnded();
    },
    async stop(): Promise<void> {
      stopped = true;
      await regular.stop();
      await beginning;
      await allEnded();
    },
  };
}
