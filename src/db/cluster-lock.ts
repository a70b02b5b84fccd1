/**
 * A lock for one replica at a time, for clusters whose members do not share their locks. It is a row with a lease that the owner
 * renews.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Knex } from 'knex';
import { AppError } from '../base/errors.ts';
import { transact } from './transact.ts';

/**
 * How long the lock of a killed replica blocks the others. It must be longer than the difference between the clocks of replicas, plus a
 * missed renewal.
 */
const LEASE_MS = 60_000;
const RENEWED_MS = 10_000;
const LOOK_MS = 250;

export const CLUSTER_LOCK_TABLE = 'migration_lock';

/**
 * Whether the database is a Galera or Group Replication cluster. There, named locks and row locks are local to each server, but
 * DDL is replicated.
 */
export async function isCluster(db: Knex): Promise<boolean> {
  const [rows] = (await db.raw("show variables where variable_name in ('wsrep_on', 'group_replication_group_name')")) as [
    { Value: string }[],
  ];
  return rows.some(({ Value }) => Value !== '' && Value !== 'OFF');
}

/**
 * Runs `work` while no other replica of the cluster does. Throws AppError `unavailable` if the lock is not free within `patienceMs`
 * milliseconds.
 */
export async function withClusterLock(db: Knex, patienceMs: number, work: () => Promise<void>): Promise<void> {
  await db.raw(
    `create table if not exists ${CLUSTER_LOCK_TABLE} (id int primary key, holder varchar(36) not null, until bigint not null)`,
  );
  const holder = randomUUID();

  /** Tries to take the lock. If several replicas try at once, the cluster lets one of them commit. */
  const take = (): Promise<boolean> =>
    transact({ knex: db }, async (trx) => {
      const held = await trx(CLUSTER_LOCK_TABLE).where('id', 1).forUpdate().first<{ until: number } | undefined>('until');
      if (held !== undefined && held.until > Date.now()) return false;
      const row = { id: 1, holder, until: Date.now() + LEASE_MS };
      if (held === undefined) await trx(CLUSTER_LOCK_TABLE).insert(row);
      else await trx(CLUSTER_LOCK_TABLE).where('id', 1).update(row);
      return true;
    }).catch((error: unknown) => {
      if ((error as { code?: string }).code === 'ER_DUP_ENTRY') return false;
      throw error;
    });

  const deadline = performance.now() + patienceMs;
  while (!(await take())) {
    if (performance.now() > deadline)
      throw new AppError('unavailable', 'Another replica is migrating the database. Start this one again later.');
    await sleep(LOOK_MS);
  }
  const renewal = setInterval(() => {
    // A failed renewal does no harm: the next one comes before the lease ends.
    db(CLUSTER_LOCK_TABLE)
      .where({ id: 1, holder })
      .update({ until: Date.now() + LEASE_MS })
      .catch(() => {});
  }, RENEWED_MS);
  try {
    await work();
  } finally {
    clearInterval(renewal);
    await db(CLUSTER_LOCK_TABLE).where({ id: 1, holder }).delete();
  }
}
