/** Revokes the tokens of ended connections at the authorization servers that gave them, and then deletes them. */
import type { Vault } from '../auth/vault.ts';
import type { Log } from '../base/log.ts';
import { repeat } from '../base/repeat.ts';
import type { Database } from '../db/database.ts';
import { type ConnectionRow, connectionStore } from '../targets/connection-store.ts';
import { openTokens } from '../targets/connections.ts';
import { revoke } from './oauth.ts';
import type { Servers } from './servers.ts';

export interface RevocationParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly servers: Servers;
  readonly now: () => number;
  readonly log: Log;
}

const EVERY_MS = 30_000;
const BATCH = 20;
/** The wait before the next attempt, which doubles. */
const FIRST_WAIT_MS = 30_000;
const MAX_WAIT_MS = 60 * 60_000;
/** The tokens are then deleted although they could not be revoked. */
const GIVEN_UP_MS = 24 * 60 * 60_000;

export type Revocations = ReturnType<typeof createRevocations>;

export function createRevocations({ database, vault, servers, now, log }: RevocationParts) {
  const store = connectionStore(database.knex);
  let running: Promise<void> = Promise.resolve();
  let stopped = false;

  async function revokeOne(row: ConnectionRow): Promise<void> {
    const wait = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** row.attempts);
    if (!(await store.takeRevocation(row, now() + wait))) return;
    const tokens = openTokens(vault, row);
    const of = { connection_id: row.id, user_id: row.user_id, target_id: row.target_id };
    try {
      if (tokens !== null) await revoke(await servers.known(tokens.place, row.issuer), tokens);
    } catch (err) {
      if (now() - (row.ended_at ?? 0) < GIVEN_UP_MS) {
        log.warn({ ...of, err }, 'tokens of an ended connection could not be revoked, retrying later');
        return;
      }
      log.error({ ...of, err }, 'tokens of an ended connection could not be revoked for a day, deleting them');
    }
    await store.delete(row.id);
  }

  async function run(): Promise<void> {
    // Disabling a user ends the user's connections, too. This finds the connections of users that lost access in a different way.
    for (const { id } of await store.strays(BATCH)) await store.end({ id }, now());
    for (;;) {
      const rows = await store.toRevoke(now(), BATCH);
      for (const row of rows) {
        if (stopped) return;
        await revokeOne(row);
      }
      if (rows.length < BATCH) return;
    }
  }

  const failed = (err: unknown): void => log.warn({ err }, 'revoking tokens of ended connections failed, retrying');
  const next = (): Promise<void> => {
    running = running.then(() => (stopped ? undefined : run())).catch(failed);
    return running;
  };
  const regular = repeat(next, { everyMs: EVERY_MS }, failed);
  return {
    /** Revokes what is to be revoked now. Never rejects. */
    run: next,
    async stop(): Promise<void> {
      stopped = true;
      await regular.stop();
      await running;
    },
  };
}
