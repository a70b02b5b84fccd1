/** One replica at a time, in clusters whose members do not know each other's locks: a row that is held for as long as it is renewed. */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Knex } from 'knex';
import { AppError } from '../errors.ts';
import { transact } from './transact.ts';

/** How long a holder that was killed keeps the others waiting. More than clocks of replicas may differ, renewals included. */
const LEASE_MS = 60_000;
const RENEWED_MS = 10_000;
const LOOK_MS = 250;

const TABLE = 'migration_lock';

/** Galera and Group Replication: named locks and locks of rows are the server's own there, and its table definitions are not. */
async function isCluster(db: Knex): Promise<boolean> {
  const [rows] = (await db.raw("show variables where variable_name in ('wsrep_on', 'group_replication_group_name')")) as [
    { Value: string }[],
  ];
  return rows.some(({ Value }) => Value !== '' && Value !== 'OFF');
}

/** Runs `work` while no other replica does. Throws AppError `unavailable` where that takes longer than `patienceMs`. */
export async function withClusterLock(db: Knex, patienceMs: number, work: () => Promise<void>): Promise<void> {
  if (!(await isCluster(db))) return work();
  await db.raw(`create table if not exists ${TABLE} (id int primary key, holder varchar(36) not null, until bigint not null)`);
  const holder = randomUUID();

  /** Of several that try at once, the cluster lets one commit. */
  const take = (): Promise<boolean> =>
    transact({ knex: db }, async (trx) => {
      const held = await trx(TABLE).where('id', 1).forUpdate().first<{ until: number } | undefined>('until');
      if (held !== undefined && held.until > Date.now()) return false;
      const row = { id: 1, holder, until: Date.now() + LEASE_MS };
      if (held === undefined) await trx(TABLE).insert(row);
      else await trx(TABLE).where('id', 1).update(row);
      return true;
    }).catch((error: unknown) => {
      if ((error as { code?: string }).code === 'ER_DUP_ENTRY') return false;
      throw error;
    });

  const deadline = performance.now() + patienceMs;
  while (!(await take())) {
    if (performance.now() > deadline) throw new AppError('unavailable', 'Another replica is migrating the database.');
    await sleep(LOOK_MS);
  }
  const renewal = setInterval(() => {
    // One that fails is made up for by the next.
    db(TABLE)
      .where({ id: 1, holder })
      .update({ until: Date.now() + LEASE_MS })
      .catch(() => {});
  }, RENEWED_MS);
  try {
    await work();
  } finally {
    clearInterval(renewal);
    await db(TABLE).where({ id: 1, holder }).delete();
  }
}
