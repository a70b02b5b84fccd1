/** Opens the database, checks that it keeps what it is told, and brings its schema up to date. */
import { closeSync, mkdirSync, openSync } from 'node:fs';
import { dirname } from 'node:path';
import knex, { type Knex } from 'knex';
import type { DatabaseConfig } from '../config.ts';
import { AppError } from '../errors.ts';
import { makeCausal } from './causal.ts';
import { migrate } from './migrate.ts';
import { boundedMysql } from './mysql-client.ts';
import { SqliteClient } from './sqlite-client.ts';

/** What stores work on: the pool, or a transaction. */
export type Connection = Knex;
export type Transaction = Knex.Transaction;

export interface Database {
  readonly kind: DatabaseConfig['kind'];
  /** Reads see every commit that was answered before they began, in a cluster, too. */
  readonly knex: Knex;
  /** The same on connections of its own: what is new is read while all others are busy. */
  readonly reader: Knex;
  /** Reads of one moment: everything that `work` reads belongs to the state at its first read. */
  snapshot<T>(work: (db: Connection) => Promise<T>): Promise<T>;
  /** The connections of all pools. */
  connections(): Connections;
  /** Rejects unless the database takes writes. */
  probe(): Promise<void>;
  close(): Promise<void>;
}

export interface Connections {
  readonly used: number;
  readonly free: number;
  /** What waits for one. */
  readonly waiting: number;
}

const DUPLICATE = new Set(['ER_DUP_ENTRY', 'SQLITE_CONSTRAINT', 'SQLITE_CONSTRAINT_UNIQUE', 'SQLITE_CONSTRAINT_PRIMARYKEY']);

/** Whether an insert failed because its key is taken. */
export function isDuplicate(error: unknown): boolean {
  return DUPLICATE.has((error as { code?: string }).code ?? '');
}

const ACQUIRE_TIMEOUT_MS = 5_000;
/** No statement of a request takes as long on a server that is well; a server that hangs is given up after it. */
const STATEMENT_TIMEOUT_MS = 15_000;
/** The freshness read is one at a time; the others load what it found. */
const READERS = 4;
/** Includes the start of the worker thread, which a busy machine makes slow. */
const SQLITE_ACQUIRE_TIMEOUT_MS = 20_000;

// Every failure is thrown to the caller as well; knex would print it, bindings included.
const nothing = (): void => {};
const log = { warn: nothing, error: nothing, deprecate: nothing, debug: nothing };

function openSqlite(path: string): Knex {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  // Its owner's alone, in whatever folder; SQLite gives the files beside it the same mode.
  closeSync(openSync(path, 'a', 0o600));
  return knex({
    client: SqliteClient,
    connection: { filename: path },
    useNullAsDefault: true,
    pool: { min: 1, max: 1 },
    acquireConnectionTimeout: SQLITE_ACQUIRE_TIMEOUT_MS,
    compileSqlOnError: false,
    log,
  });
}

/** Of tarn, which knex has no types for. */
interface Pool {
  numUsed(): number;
  numFree(): number;
  numPendingAcquires(): number;
}

interface RawConnection {
  query(sql: string, done: (error: Error | null, rows?: unknown) => void): void;
  destroy(): void;
}

/** Each connection by itself: behind a proxy they may end at different servers. */
async function prepare(connection: RawConnection): Promise<void> {
  const ask = (sql: string): Promise<unknown> =>
    new Promise((resolve, reject) => connection.query(sql, (error, rows) => (error ? reject(error) : resolve(rows))));
  try {
    // `init_connect` may have chosen another, in which names that differ are equal.
    await ask('set names utf8mb4');
    await ask("set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', session time_zone = '+00:00'");
    await ask('set session transaction isolation level read committed');
    await makeCausal(ask);
  } catch (error) {
    // The pool forgets a connection that was never made, and would leave it open.
    connection.destroy();
    throw error;
  }
}

function openMysql(config: DatabaseConfig & { kind: 'mysql' }, max: number, client: string | typeof Knex.Client): Knex {
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
      // What has its values in it is not searched for places to put them.
      queryFormat: (sql: string, values: readonly unknown[]) =>
        values.length === 0 ? sql : opened.client.driver.format(sql, values, false, 'Z'),
      ...(url.searchParams.get('tls') === 'true' ? { ssl: { rejectUnauthorized: true } } : {}),
    },
    pool: {
      min: 0,
      max,
      afterCreate: (connection: RawConnection, done: (error: Error | null, c: unknown) => void) => {
        prepare(connection).then(
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

/** Refuses a server that acknowledges commits which a power cut undoes (law 5); returns the collation that compares bytes and pads nothing. */
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

/** `firstRows` runs under the migration lock, once the schema is up to date. Throws AppError `unavailable` with a reason an operator can act on. */
export async function openDatabase(config: DatabaseConfig, firstRows: (db: Connection) => Promise<void>): Promise<Database> {
  let db: Knex | undefined;
  try {
    // Migrations take as long as they take.
    db = config.kind === 'sqlite' ? openSqlite(config.path) : openMysql(config, config.poolSize, 'mysql2');
    const collation = config.kind === 'sqlite' ? null : await inspectMysql(db, config.allowWeakDurability);
    await migrate(db, collation, firstRows);
  } catch (error) {
    await db?.destroy();
    if (error instanceof AppError) throw error;
    throw new AppError('unavailable', explain(config, error), { cause: error });
  }
  if (config.kind === 'mysql') await db.destroy();
  const bounded = boundedMysql(STATEMENT_TIMEOUT_MS);
  const opened = config.kind === 'sqlite' ? db : openMysql(config, config.poolSize, bounded);
  const reader = config.kind === 'sqlite' ? opened : openMysql(config, READERS, bounded);
  let probing: Promise<void> | null = null;
  return {
    kind: config.kind,
    knex: opened,
    reader,
    snapshot: (work) =>
      config.kind === 'sqlite' ? reader.transaction(work) : reader.transaction(work, { isolationLevel: 'repeatable read' }),
    connections() {
      const pools = [...new Set([opened, reader])].map(({ client }) => client.pool as Pool);
      const sum = (count: (pool: Pool) => number): number => pools.reduce((total, pool) => total + count(pool), 0);
      return {
        used: sum((pool) => pool.numUsed()),
        free: sum((pool) => pool.numFree()),
        waiting: sum((pool) => pool.numPendingAcquires()),
      };
    },
    probe() {
      // Writes, but changes nothing, and waits for nobody's lock. One at a time, because anybody may ask for readiness.
      probing ??= (async () => {
        await opened('migrations').update({ applied_at: opened.ref('applied_at') });
      })().finally(() => {
        probing = null;
      });
      return probing;
    },
    async close() {
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
