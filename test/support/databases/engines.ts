/** The databases of this run, for contract suites: `test/run.ts` starts the servers and passes their URLs in the environment. */
import { randomBytes } from 'node:crypto';
import type { ExecutionContext } from 'ava';
import { createConnection } from 'mysql2/promise';
import { createSqlite } from './sqlite.ts';
import { MARIADB_URL, MYSQL_URL, wantedDatabases } from './start.ts';

export type EngineName = 'sqlite' | 'mariadb' | 'mysql';

export interface TestDatabase {
  /** The URL in the form of `DATABASE_URL`. */
  readonly url: string;
  drop(): Promise<void>;
}

export interface Engine {
  readonly name: EngineName;
  /** A fresh, empty database. */
  create(): Promise<TestDatabase>;
}

/** SQLite, unless `PORTCULLIS_TEST_DATABASES` leaves it out, and the servers that were started. */
export function engines(): Engine[] {
  const servers: [EngineName, string | undefined][] = [
    ['mariadb', process.env[MARIADB_URL]],
    ['mysql', process.env[MYSQL_URL]],
  ];
  const sqlite: Engine[] = wantedDatabases().has('sqlite') ? [{ name: 'sqlite', create: createSqlite }] : [];
  return [...sqlite, ...servers.flatMap(([name, url]) => (url ? [{ name, create: () => createOnServer(url) }] : []))];
}

async function administer(adminUrl: string, statement: string): Promise<void> {
  const connection = await createConnection(adminUrl);
  try {
    // A pool that a test forgot to close must not hang the drop for the default of a year.
    await connection.query('set session lock_wait_timeout = 10');
    await connection.query(statement);
  } finally {
    await connection.end();
  }
}

// No collation is named: users create databases with the server's default too, so the migrations must not depend on it.
async function createOnServer(adminUrl: string): Promise<TestDatabase> {
  const name = `portcullis_${process.pid}_${randomBytes(6).toString('hex')}`;
  await administer(adminUrl, `create database ${name} character set utf8mb4`);
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  return { url: url.href, drop: () => administer(adminUrl, `drop database ${name}`) };
}

type DeclareTest = (title: string, run: (t: ExecutionContext) => Promise<void>) => void;
type Declare = DeclareTest & { readonly skip: DeclareTest };

type Run = (t: ExecutionContext, database: TestDatabase, engine: EngineName) => Promise<void>;

function declareEach(on: readonly Engine[], declare: Declare, title: string, run: Run): void {
  for (const engine of on) {
    declare(`${title} [${engine.name}]`, async (t) => {
      const database = await engine.create();
      // Registered first, so that it runs after the test's own teardowns have closed their connections.
      t.teardown(database.drop);
      await run(t, database, engine.name);
    });
  }
}

/** Declares the test once for each engine, with a new database: `eachEngine(test, 'keeps order', async (t, database) => ...)`. */
export function eachEngine(declare: Declare, title: string, run: Run): void {
  declareEach(engines(), declare, title, run);
}

/**
 * `eachEngine` for what takes a server: several replicas, a connection that breaks. Without a server the test is declared as skipped:
 * the report names it, and a file that holds only such tests is not an empty file, which ava counts as a failure.
 */
export function eachServer(declare: Declare, title: string, run: Run): void {
  const servers = engines().filter((engine) => engine.name !== 'sqlite');
  if (servers.length === 0) declare.skip(`${title} [needs MariaDB or MySQL]`, async () => {});
  declareEach(servers, declare, title, run);
}
