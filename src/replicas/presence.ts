/** Announces this process to the replicas that share the database, and finds the others. */
import type { Vault } from '../auth/vault.ts';
import type { Log } from '../base/log.ts';
import type { Database } from '../db/database.ts';
import { type ReplicaRow, type ReplicaState, replicaStore } from './replica-store.ts';

export interface Presence {
  /** The id of this start of this process. */
  readonly id: string;
  /** Whether there can be no other replica: a SQLite database serves one process. */
  readonly alone: boolean;
  /** Returns the address of a replica that accepts requests. null: it has not been seen lately, or it is leaving. */
  addressOf(id: string): Promise<string | null>;
  /** Whether a replica was seen lately. One that is leaving still answers the requests that it has. */
  isSeen(id: string): Promise<boolean>;
  /** Returns this replica and the others that were seen lately. */
  live(): Promise<LiveReplica[]>;
  /** Sets the one listener, called when the other replicas may have considered this one gone and taken over its sessions. */
  whenLapsed(listener: () => void): void;
  /** From now on the other replicas take over this one's sessions instead of forwarding requests to it. */
  leave(): Promise<void>;
  stop(): Promise<void>;
}

export type LiveReplica = Omit<ReplicaRow, 'address'>;

export interface PresenceParts {
  readonly database: Database;
  readonly vault: Vault;
  readonly id: string;
  /** The origin at which the other replicas reach this one. */
  readonly address: string;
  /** Returns the newest state, or the loaded state if the newest cannot be read. */
  readonly state: () => Promise<ReplicaState>;
  readonly now: () => number;
  readonly log: Log;
}

const EVERY_MS = 5_000;
const GONE_AFTER_MS = 15_000;
const FORGOTTEN_AFTER_MS = 24 * 60 * 60 * 1000;

/** The address of a replica that is leaving. */
const NOWHERE = '';

const identityOf = (id: string): string => `replica:${id}`;

export async function createPresence({ database, vault, id, address, state, now, log }: PresenceParts): Promise<Presence> {
  const started_at = now();
  const own = async (): Promise<LiveReplica> => ({ id, started_at, unseen_ms: 0, ...(await state()) });
  if (database.kind === 'sqlite') {
    return {
      id,
      alone: true,
      addressOf: async () => null,
      isSeen: async () => true,
      live: async () => [await own()],
      whenLapsed: () => undefined,
      leave: async () => undefined,
      stop: async () => undefined,
    };
  }
  const store = replicaStore(database.knex);
  const seal = (origin: string): string => vault.seal(identityOf(id), Buffer.from(origin));
  let sealed = seal(address);
  // The first announcement may be slow. Until a listener is set, this replica owns no sessions that could be taken over.
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
    announcing = announce().catch((err: unknown) => log.warn({ err }, 'announcing this replica failed'));
  }, EVERY_MS).unref();
  return {
    id,
    alone: false,
    async addressOf(other) {
      const row = await store.find(other);
      if (!isLive(row)) return null;
      try {
        const origin = vault.open(identityOf(other), row.address).toString();
        return origin === NOWHERE ? null : origin;
      } catch (err) {
        log.error(
          { err, replica: other },
          'address of a replica rejected: its seal does not verify. The replica is considered gone',
        );
        return null;
      }
    },
    isSeen: async (other) => isLive(await store.find(other)),
    async live() {
      const others = (await store.seenWithin(GONE_AFTER_MS)).filter((row) => row.id !== id);
      const seen = others.map(({ address: _, ...row }): LiveReplica => row);
      return [await own(), ...seen].sort((a, b) => (a.id < b.id ? -1 : 1));
    },
    whenLapsed(listener) {
      lapsed = listener;
    },
    async leave() {
      sealed = seal(NOWHERE);
      await store.setAddress(id, sealed);
    },
    async stop() {
      clearInterval(timer);
      await announcing;
      await store.delete(id).catch(() => undefined);
    },
  };
}

function isLive(row: ReplicaRow | null): row is ReplicaRow {
  return row !== null && row.unseen_ms <= GONE_AFTER_MS;
}
