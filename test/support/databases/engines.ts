/** The databases of this run: `test/run.ts` starts the servers and passes their URLs in the environment. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, unlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { createConnection, type Connection as MysqlConnection, type ResultSetHeader, type RowDataPacket } from 'mysql2/promise';
import { readConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/db/database.ts';
import { createSqlite } from './sqlite.ts';
import { MARIADB_URL, MYSQL_URL, SPARE_DATABASES, wantedDatabases } from './start.ts';

export type EngineName = 'sqlite' | 'mariadb' | 'mysql';

export interface TestDatabase {
  /** The URL in the form of `DATABASE_URL`. */
  readonly url: string;
  drop(): Promise<void>;
}

export interface Engine {
  readonly name: EngineName;
  /**
   * A database without rows. On a server, the tables are there already, and earlier tests may have used them: migrations take seconds
   * there.
   */
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

/** The schema and the recorded migrations, as text: a test may have altered them. By the URL of the server. */
const intact = new Map<string, string>();

const FINGERPRINT = `select concat_ws(' ',
  (select concat_ws(' ', count(*), sum(crc32(concat_ws('|', table_name, column_name, column_type, is_nullable, column_default, collation_name))))
    from information_schema.columns where table_schema = database()),
  (select concat_ws(' ', count(*), sum(crc32(concat_ws('|', table_name, index_name, column_name, seq_in_index))))
    from information_schema.statistics where table_schema = database()),
  (select count(*) from information_schema.triggers where trigger_schema = database()),
  (select concat_ws(' ', count(*), sum(crc32(name))) from migrations)) as text`;

async function fingerprintOf(connection: MysqlConnection): Promise<string> {
  const [rows] = await connection.query<RowDataPacket[]>(FINGERPRINT);
  return String(rows[0]?.['text']);
}

/** Whether nobody else is connected. The server notices a moment later that a connection was closed. */
async function isAlone(connection: MysqlConnection): Promise<boolean> {
  const [[current]] = await connection.query<RowDataPacket[]>('select database() as name');
  const name: unknown = current?.['name'];
  for (let tries = 0; tries < 50; tries++) {
    // MySQL's view in information_schema fails while another connection runs a statement with a character beyond U+FFFF.
    const [rows] = await connection.query<RowDataPacket[]>('show processlist');
    if (rows.filter(({ db }) => db === name).length === 1) return true;
    await sleep(20);
  }
  return false;
}

/**
 * Databases of earlier tests, migrated and without rows. Each is a file, named like the database, in the folder of its server: the
 * process that removes the file has the database.
 */
function spareOf(adminUrl: string): string | null {
  const folder = process.env[SPARE_DATABASES];
  return folder === undefined ? null : join(folder, new URL(adminUrl).port);
}

function takeSpare(folder: string | null): string | undefined {
  if (folder === null) return undefined;
  mkdirSync(folder, { recursive: true });
  return readdirSync(folder).find((name) => {
    try {
      unlinkSync(join(folder, name));
      return true;
    } catch {
      return false;
    }
  });
}

/** With more rows than this in a table, a new database is faster, and the statistics of this one would mislead later tests. */
const MANY_ROWS = 5_000;

/** Empties the tables of a database that is like a new one otherwise. False: it is not. */
async function emptied(url: string, adminUrl: string): Promise<boolean> {
  const connection = await createConnection({ uri: url, multipleStatements: true });
  try {
    if (!(await isAlone(connection))) return false;
    if ((await fingerprintOf(connection)) !== intact.get(adminUrl)) return false;
    const [tables] = await connection.query<RowDataPacket[]>(
      "select table_name as name from information_schema.tables where table_schema = database() and table_name <> 'migrations'",
    );
    const [results] = await connection.query<ResultSetHeader[]>(
      tables.map(({ name }) => `delete from \`${name}\` limit ${MANY_ROWS}`).join(';'),
    );
    return results.every(({ affectedRows }) => affectedRows < MANY_ROWS);
  } catch {
    return false;
  } finally {
    await connection.end();
  }
}

async function createOnServer(adminUrl: string): Promise<TestDatabase> {
  const url = new URL(adminUrl);
  const spare = spareOf(adminUrl);
  const name = takeSpare(spare) ?? (await createMigrated(adminUrl));
  url.pathname = `/${name}`;
  if (!intact.has(adminUrl)) {
    const connection = await createConnection(url.href);
    intact.set(adminUrl, await fingerprintOf(connection));
    await connection.end();
  }
  return {
    url: url.href,
    async drop() {
      // A server that was given keeps nothing of the tests.
      if (spare !== null && (await emptied(url.href, adminUrl))) writeFileSync(join(spare, name), '');
      else await administer(adminUrl, `drop database ${name}`);
    },
  };
}

// No collation is named: users create databases with the server's default too, so the migrations must not depend on it.
async function createMigrated(adminUrl: string): Promise<string> {
  const name = `portcullis_${process.pid}_${randomBytes(6).toString('hex')}`;
  await administer(adminUrl, `create database ${name} character set utf8mb4`);
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  const database = await openDatabase(readConfig({ DATABASE_URL: url.href }).database, async () => undefined);
  await database.close();
  return name;
}
