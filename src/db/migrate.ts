/** Migrates the schema. If several replicas start, one of them migrates at a time. */
import type { Knex } from 'knex';
import { AppError } from '../base/errors.ts';
import { CLUSTER_LOCK_TABLE, isCluster, withClusterLock } from './cluster-lock.ts';
import * as initial from './migrations/0001-initial.ts';
import * as targets from './migrations/0002-targets.ts';
import * as sessions from './migrations/0003-sessions.ts';
import * as tasks from './migrations/0004-tasks.ts';
import * as auditChain from './migrations/0005-audit-chain.ts';
import * as auditArguments from './migrations/0006-arguments.ts';
import * as policyHistory from './migrations/0007-policy-history.ts';
import * as logIndexes from './migrations/0008-log-indexes.ts';
import * as policyDrafts from './migrations/0009-policy-drafts.ts';
import * as changesAge from './migrations/0010-changes-age.ts';
import * as retentionAge from './migrations/0010-retention-age.ts';
import * as credentialBindings from './migrations/0011-credential-bindings.ts';
import * as leanLog from './migrations/0012-lean-log.ts';
import * as browserSessions from './migrations/0013-browser-sessions.ts';
import * as rights from './migrations/0014-rights.ts';
import * as ownAccounts from './migrations/0015-own-accounts.ts';
import * as identities from './migrations/0016-identities.ts';
import * as oauth from './migrations/0017-oauth.ts';
import * as provedAt from './migrations/0018-proved-at.ts';
import * as directory from './migrations/0019-directory.ts';
import * as owners from './migrations/0020-owners.ts';
import * as invariants from './migrations/0021-invariants.ts';
import * as drift from './migrations/0022-drift.ts';
import * as logCounts from './migrations/0023-log-counts.ts';
import * as verification from './migrations/0024-verification.ts';
import * as countsByKey from './migrations/0025-counts-by-key.ts';
import * as shadowBeginners from './migrations/0026-shadow-beginners.ts';
import * as unusedRecords from './migrations/0027-unused-records.ts';
import * as signIns from './migrations/0028-sign-ins.ts';
import * as tokensByEnd from './migrations/0029-tokens-by-end.ts';
import * as openSessions from './migrations/0030-open-sessions.ts';

type Migration = (db: Knex, collation: string | null) => Promise<void>;

/** Append-only: the names are recorded in the database. An interrupted migration runs again, so each must be repeatable. */
const MIGRATIONS: readonly (readonly [name: string, up: Migration])[] = [
  ['0001-initial', initial.up],
  ['0002-targets', targets.up],
  ['0003-sessions', sessions.up],
  ['0004-tasks', tasks.up],
  ['0005-audit-chain', auditChain.up],
  ['0006-arguments', auditArguments.up],
  ['0007-policy-history', policyHistory.up],
  ['0008-log-indexes', logIndexes.up],
  ['0009-policy-drafts', policyDrafts.up],
  ['0010-retention-age', retentionAge.up],
  ['0010-changes-age', changesAge.up],
  ['0011-credential-bindings', credentialBindings.up],
  ['0012-lean-log', leanLog.up],
  ['0013-browser-sessions', browserSessions.up],
  ['0014-rights', rights.up],
  ['0015-own-accounts', ownAccounts.up],
  ['0016-identities', identities.up],
  ['0017-oauth', oauth.up],
  ['0018-proved-at', provedAt.up],
  ['0019-directory', directory.up],
  ['0020-owners', owners.up],
  ['0021-invariants', invariants.up],
  ['0022-drift', drift.up],
  ['0023-log-counts', logCounts.up],
  ['0024-verification', verification.up],
  ['0025-counts-by-key', countsByKey.up],
  ['0026-shadow-beginners', shadowBeginners.up],
  ['0027-unused-records', unusedRecords.up],
  ['0028-sign-ins', signIns.up],
  ['0029-tokens-by-end', tokensByEnd.up],
  ['0030-open-sessions', openSessions.up],
];

const LOCK_SECONDS = 120;

/** Returns a table of a different program; null: the database is empty, or one of Portcullis. */
async function foreignTable(db: Knex, collation: string | null): Promise<string | null> {
  const tables: { name: string }[] =
    collation === null
      ? await db('sqlite_master').where({ type: 'table' }).select('name')
      : await db('information_schema.tables').whereRaw('table_schema = database()').select('table_name as name');
  const names = tables.map(({ name }) => name).filter((name) => name !== CLUSTER_LOCK_TABLE && !name.startsWith('sqlite_'));
  if (!names.includes('migrations')) return names[0] ?? null;
  return (await db.schema.hasColumn('migrations', 'applied_at')) ? null : 'migrations';
}

/** Returns the names of the migrations that the database has. Throws AppError `unavailable` if it is not one of this version or an older one. */
async function appliedIn(db: Knex, collation: string | null): Promise<ReadonlySet<string>> {
  const foreign = await foreignTable(db, collation);
  if (foreign !== null)
    throw new AppError(
      'unavailable',
      `The database belongs to a different program: it has a table ${foreign}. DATABASE_URL must name an empty database, or one of Portcullis.`,
    );
  if (!(await db.schema.hasTable('migrations'))) return new Set();
  const applied = new Set((await db('migrations').select<{ name: string }[]>('name')).map((row) => row.name));
  const known = new Set(MIGRATIONS.map(([name]) => name));
  const unknown = [...applied].filter((name) => !known.has(name));
  if (unknown.length > 0)
    throw new AppError(
      'unavailable',
      `The database was migrated by a newer version (${unknown.join(', ')}). Run that version or a later one.`,
    );
  return applied;
}

/** Throws AppError `unavailable` if the database lacks a migration. Changes nothing. */
export async function requireMigrated(db: Knex, collation: string | null): Promise<void> {
  const applied = await appliedIn(db, collation);
  const missing = MIGRATIONS.map(([name]) => name).filter((name) => !applied.has(name));
  if (missing.length === 0) return;
  const more = missing.length === 1 ? '' : `, and ${missing.length - 1} more`;
  throw new AppError(
    'unavailable',
    `The database lacks a migration of this version (${missing[0]}${more}), and this command does not migrate. Use the command of the version that the gateway runs, or start a gateway of this version first.`,
  );
}

async function bringUp(db: Knex, collation: string | null): Promise<void> {
  const applied = await appliedIn(db, collation);
  if (!(await db.schema.hasTable('migrations'))) {
    await db.schema.createTable('migrations', (t) => {
      t.string('name', 64).primary();
      t.bigInteger('applied_at').notNullable();
    });
  }
  for (const [name, up] of MIGRATIONS) {
    if (applied.has(name)) continue;
    await up(db, collation);
    await db('migrations').insert({ name, applied_at: Date.now() });
  }
}

/**
 * Migrates, then runs `work` under the same lock (it may insert first rows, such as keys). The lock of a single server belongs to a
 * connection, so a killed process leaves none behind. In a cluster it would be of no use, and Percona XtraDB Cluster refuses it.
 */
export async function migrate(db: Knex, collation: string | null, work: (db: Knex) => Promise<void>): Promise<void> {
  if (collation === null) {
    // SQLite waits for the disk once for all statements, not after each of them.
    await db.transaction((trx) => bringUp(trx, collation));
    return work(db);
  }
  const run = async (): Promise<void> => {
    await bringUp(db, collation);
    await work(db);
  };
  if (await isCluster(db)) return withClusterLock(db, LOCK_SECONDS * 1_000, run);
  const connection = await db.client.acquireConnection();
  // Lock names have at most 64 characters. Database names may have as many, so the name is hashed.
  const ask = async (call: string): Promise<unknown> => {
    const [[row]] = await db
      .raw(`select ${call} as answer from (select concat('portcullis.', left(sha2(database(), 256), 48)) as name) as l`)
      .connection(connection);
    return row.answer;
  };
  try {
    if (Number(await ask(`get_lock(name, ${LOCK_SECONDS})`)) !== 1) {
      throw new AppError(
        'unavailable',
        'Another replica has been migrating the database for two minutes. Start this one again later.',
      );
    }
    try {
      await run();
    } finally {
      await ask('release_lock(name)');
    }
  } finally {
    await db.client.releaseConnection(connection);
  }
}
