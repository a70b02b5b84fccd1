/** This process among the replicas that share a database: it says where it is, and finds the others. */
import type { Vault } from '../auth/vault.ts';
import type { Database } from '../db/database.ts';
import type { Log } from '../log.ts';
import { type ReplicaState, replicaStore } from './store.ts';

export interface Presence {
  /** Of this start of this process. */
  readonly id: string;
  /** There can be no other: SQLite has one process. */
  readonly alone: boolean;
  /** Where a replica is reached, if it has been heard of lately; null: it is gone. */
  addressOf(id: string): Promise<string | null>;
  /** This one, and the others that have been heard of lately. */
  live(): Promise<LiveReplica[]>;
  /** One listener, called when the others may have considered this replica gone, and may have taken its sessions over. */
  whenLapsed(listener: () => void): void;
  stop(): Promise<void>;
}

export interface LiveReplica extends ReplicaState {
  readonly id: string;
  readonly started_at: number;
  /** How old this word of it is. */
  readonly unseen_ms: number;
}

export interface PresenceParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly id: string;
  /** Origin under which the other replicas reach this one. */
  readonly address: string;
  /** The newest state that can be had, or, where none can, the one that is there. */
  readonly state: () => Promise<ReplicaState>;
  readonly now: () => number;
  readonly log: Log;
}

const EVERY_MS = 5_000;
const GONE_AFTER_MS = 15_000;
const FORGOTTEN_AFTER_MS = 24 * 60 * 60 * 1000;

const identityOf = (id: string): string => `replica:${id}`;

export async function createPresence({ database, vault, id, address, state, now, log }: PresenceParts): Promise<Presence> {
  const started_at = now();
  const own = async (): Promise<LiveReplica> => ({ id, started_at, unseen_ms: 0, ...(await state()) });
  if (database.kind === 'sqlite') {
    return {
      id,
      alone: true,
      addressOf: async () => null,
      live: async () => [await own()],
      whenLapsed: () => undefined,
      stop: async () => undefined,
    };
  }
  const store = replicaStore(database.knex);
  const sealed = vault.seal(identityOf(id), Buffer.from(address));
  // The first announcement may be slow, and until somebody listens this replica owns no sessions that could lapse.
  let lapsed = (): void => undefined;
  let announcedAt = performance.now();
  const announce = async (): Promise<void> => {
    const reached = await state();
    if (!(await store.seen(id, reached))) await store.insert(id, sealed, reached);
    const before = announcedAt;
    announcedAt = performance.now();
    if (announcedAt - before > GONE_AFTER_MS) lapsed();
  };
  await announce();
  await store.deleteUnseenFor(FORGOTTEN_AFTER_MS);
  let announcing: Promise<void> = Promise.resolve();
  const timer = setInterval(() => {
    announcing = announce().catch((err: unknown) => log.warn({ err }, 'this replica could not say that it is here'));
  }, EVERY_MS).unref();
  return {
    id,
    alone: false,
    async addressOf(other) {
      const row = await store.find(other);
      if (row === null || row.unseen_ms > GONE_AFTER_MS) return null;
      try {
        return vault.open(identityOf(other), row.address).toString();
      } catch (err) {
        log.error({ err, replica: other }, 'the address of a replica is not what it has said; it is taken to be gone');
        return null;
      }
    },
    async live() {
      const others = (await store.seenWithin(GONE_AFTER_MS)).filter((row) => row.id !== id);
      const seen = others.map(({ address: _, ...row }): LiveReplica => row);
      return [await own(), ...seen].sort((a, b) => (a.id < b.id ? -1 : 1));
    },
    whenLapsed(listener) {
      lapsed = listener;
    },
    async stop() {
      clearInterval(timer);
      await announcing;
      await store.delete(id).catch(() => undefined);
    },
  };
}
