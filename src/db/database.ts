/** Opens the database, checks that its commits are durable, and migrates its schema or checks that it is migrated. */
import { closeSync, mkdirSync, openSync } from 'node:fs';
import { dirname } from 'node:path';
import knex, { type Knex } from 'knex';
import { AppError } from '../base/errors.ts';
import type { DatabaseConfig } from '../config/config.ts';
import { makeCausal } from './causal.ts';
import { migrate, requireMigrated } from './migrate.ts';
import { boundedMysql } from './mysql-client.ts';
import { SqliteClient } from './sqlite-client.ts';

/** What the stores use: the pool or a transaction. */
export type Connection = Knex;
export type Transaction = Knex.Transaction;

export type Database = Awaited<ReturnType<typeof openDatabase>>;

const ACQUIRE_TIMEOUT_MS = 5_000;
/** A statement that takes longer fails. No statement takes this long on a healthy server, so the server is assumed to hang. */
const STATEMENT_TIMEOUT_MS = 15_000;
/**
 * The server ends a connection that is silent for longer. Otherwise, a replica that freezes in the middle of a change would keep its locks, and
 * no other replica could change anything. The pools close a free connection after half of this time.
 */
const SILENCE_SECONDS = 60;
/** One connection reads the change counter; the others load the new state. */
const READERS = 4;
/** They share one thread. More than one, because a statement should not wait until this thread has taken the answer of the one before. */
const SQLITE_CONNECTIONS = 32;
/** This includes the start of the worker thread, which is slow on a busy machine. */
const SQLITE_ACQUIRE_TIMEOUT_MS = 20_000;

// Failures are thrown to the caller. knex would also print them, including bound values.
const nothing = (): void => {};
const log = { warn: nothing, error: nothing, deprecate: nothing, debug: nothing };

function openSqlite(path: string): Knex {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  // Only the owner may read the file, even if others may read the folder. SQLite gives its other files the same mode.
  closeSync(openSync(path, 'a', 0o600));
  return knex({
    client: SqliteClient,
    connection: { filename: path },
    useNullAsDefault: true,
    pool: { min: 1, max: SQLITE_CONNECTIONS },
    acquireConnectionTimeout: SQLITE_ACQUIRE_TIMEOUT_MS,
    compileSqlOnError: false,
    log,
  });
}

/** The pool of tarn, for which knex has no types. */
interface Pool {
  numUsed(): number;
  numFree(): number;
  numPendingAcquires(): number;
  on(event: 'createSuccess', listener: () => void): void;
}

interface RawConnection {
  query(sql: string, done: (error: Error | null, rows?: unknown) => void): void;
  destroy(): void;
}

/** Prepares each connection separately, because behind a proxy they may lead to different servers. */
async function prepare(connection: RawConnection, endsSilence: boolean): Promise<void> {
  const ask = (sql: string): Promise<unknown> =>
    new Promise((resolve, reject) => connection.query(sql, (error, rows) => (error ? reject(error) : resolve(rows))));
  try {
    // `init_connect` may have set a different character set, in which different names compare as equal.
    await ask('set names utf8mb4');
    await ask("set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', session time_zone = '+00:00'");
    // A limit would leave out policies, without an error. With the others, changes would be refused or not committed, or connections would
    // end after each commit.
    await ask('set session sql_select_limit = 18446744073709551615, session sql_safe_updates = 0');
    await ask("set session autocommit = 1, session completion_type = 'NO_CHAIN'");
    await ask('set session transaction isolation level read committed');
    if (endsSilence) await ask(`set session wait_timeout = ${SILENCE_SECONDS}`);
    await makeCausal(ask);
  } catch (error) {
    // The pool would not close a connection that failed here.
    connection.destroy();
    throw error;
  }
}

const BOUNDED = boundedMysql(STATEMENT_TIMEOUT_MS);

/** Migrations have no limits: a statement may take long, and the connection that holds their lock is silent meanwhile. */
function openMysql(config: DatabaseConfig & { kind: 'mysql' }, max: number, client: typeof BOUNDED | 'mysql2'): Knex {
  const url = new URL(config.url);
  const opened: Knex = knex({
    client,
    connection: {
      host: url.hostname,
      port: url.port === '' ? 3306 : Number(url.port),
      user: decodeURIComponent(url.username),
      password: decodeURIComponent(url.password),
      database: decodeURIComponent(url.pathname.slice(1)),
      charset: 'utf8mb4',
      timezone: 'Z',
      connectTimeout: ACQUIRE_TIMEOUT_MS,
      // A statement without bound values is sent unchanged, so that a literal `?` in it stays.
      queryFormat: (sql: string, values: readonly unknown[]) =>
        values.length === 0 ? sql : opened.client.driver.format(sql, values, false, 'Z'),
      // Without `verifyIdentity`, the driver accepts a valid certificate of any host, and sends it the password in clear text.
      ...(url.search === '?tls=true' ? { ssl: { rejectUnauthorized: true, verifyIdentity: true } } : {}),
    },
    pool: {
      min: 0,
      max,
      idleTimeoutMillis: (SILENCE_SECONDS * 1_000) / 2,
      afterCreate: (connection: RawConnection, done: (error: Error | null, c: unknown) => void) => {
        prepare(connection, client === BOUNDED).then(
          () => done(null, connection),
          (error: Error) => done(error, connection),
        );
      },
    },
    acquireConnectionTimeout: ACQUIRE_TIMEOUT_MS,
    compileSqlOnError: false,
    log,
  });
  return opened;
}

interface ServerSettings {
  version: string;
  flush: number;
  log_bin: number;
  sync_binlog: number;
}

/**
 * Refuses a server that can lose acknowledged commits in a power failure (law 5). Returns the collation that compares bytes
 * without padding.
 */
async function inspectMysql(db: Knex, allowWeakDurability: boolean): Promise<string> {
  const [[settings]] = (await db.raw(
    'select version() as version, @@innodb_flush_log_at_trx_commit as flush, @@log_bin as log_bin, @@sync_binlog as sync_binlog',
  )) as [[ServerSettings]];
  const weak = [
    ...(settings.flush === 1 ? [] : [`innodb_flush_log_at_trx_commit is ${settings.flush}, not 1`]),
    ...(settings.log_bin === 0 || settings.sync_binlog === 1 ? [] : [`sync_binlog is ${settings.sync_binlog}, not 1`]),
  ];
  if (weak.length > 0 && !allowWeakDurability) {
    throw new AppError(
      'unavailable',
      `The database may lose committed audit rows: ${weak.join(', ')}. Change the server, or accept the loss with ALLOW_WEAK_DURABILITY=true.`,
    );
  }
  return /mariadb/i.test(settings.version) ? 'utf8mb4_nopad_bin' : 'utf8mb4_0900_bin';
}

/**
 * Opens the database. `firstRows` runs under the migration lock after the migrations; null: a database that lacks a migration is refused, not
 * migrated. Throws AppError `unavailable` with a reason that an operator can act on.
 */
export async function openDatabase(config: DatabaseConfig, firstRows: ((db: Connection) => Promise<void>) | null) {
  let db: Knex | undefined;
  try {
    db = config.kind === 'sqlite' ? openSqlite(config.path) : openMysql(config, config.poolSize, 'mysql2');
    const collation = config.kind === 'sqlite' ? null : await inspectMysql(db, config.allowWeakDurability);
    await (firstRows === null ? requireMigrated(db, collation) : migrate(db, collation, firstRows));
  } catch (error) {
    await db?.destroy();
    if (error instanceof AppError) throw error;
    throw new AppError('unavailable', explain(config, error), { cause: error });
  }
  if (config.kind === 'mysql') await db.destroy();
  const opened = config.kind === 'sqlite' ? db : openMysql(config, config.poolSize, BOUNDED);
  const reader = config.kind === 'sqlite' ? opened : openMysql(config, READERS, BOUNDED);
  let probing: Promise<void> | null = null;
  return {
    kind: config.kind,
    /** The pool. Reads see every commit that was acknowledged before they began, in a cluster, too. */
    knex: opened,
    /** A pool of separate connections for reading new state, which works even if all other connections are busy. */
    reader,
    /** Runs `work` on a snapshot: everything it reads is the state at its first read. */
    snapshot: <T>(work: (db: Connection) => Promise<T>): Promise<T> =>
      config.kind === 'sqlite' ? reader.transaction(work) : reader.transaction(work, { isolationLevel: 'repeatable read' }),
    /**
     * Calls `listener` for each new connection to a server: after a failover, it may lack commits that the one before acknowledged.
     */
    whenConnected(listener: () => void): void {
      if (config.kind === 'mysql') (opened.client.pool as Pool).on('createSuccess', listener);
    },
    connections() {
      const pools = [...new Set([opened, reader])].map(({ client }) => client.pool as Pool);
      const sum = (count: (pool: Pool) => number): number => pools.reduce((total, pool) => total + count(pool), 0);
      return {
        used: sum((pool) => pool.numUsed()),
        free: sum((pool) => pool.numFree()),
        /** How much work waits for a connection. */
        waiting: sum((pool) => pool.numPendingAcquires()),
      };
    },
    /** Rejects unless the database accepts writes. */
    probe(): Promise<void> {
      // This write changes nothing and waits for no lock. Only one runs at a time, because anyone may request readiness.
      probing ??= (async () => {
        await opened('migrations').update({ applied_at: opened.ref('applied_at') });
      })().finally(() => {
        probing = null;
      });
      return probing;
    },
    async close(): Promise<void> {
      await opened.destroy();
      if (reader !== opened) await reader.destroy();
    },
  };
}

function explain(config: DatabaseConfig, error: unknown): string {
  const reason = error instanceof Error ? error.message || (error as NodeJS.ErrnoException).code : String(error);
  if (config.kind === 'sqlite') {
    return /locked|busy/i.test(String(reason))
      ? `The database ${config.path} is in use by another process. SQLite serves one gateway; use DATABASE_URL=mysql://... for several.`
      : `The database ${config.path} cannot be opened: ${reason}`;
  }
  const url = new URL(config.url);
  return `The database at ${url.hostname}:${url.port || 3306}${url.pathname} cannot be used: ${reason}`;
}
