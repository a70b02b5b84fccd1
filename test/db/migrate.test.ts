import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import knex, { type Knex } from 'knex';
import { openExisting } from '../../src/cli/audit.ts';
import { readConfig } from '../../src/config/config.ts';
import { makeCounter } from '../../src/db/changes.ts';
import { openDatabase } from '../../src/db/database.ts';
import { migrate } from '../../src/db/migrate.ts';
import { SqliteClient } from '../../src/db/sqlite-client.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine, eachServer } from '../support/databases/each-engine.ts';

test('a database of a different program is refused, and stays as it is', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-foreign-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const filename = join(folder, 'foreign.db');
  const { database } = readConfig({ DATABASE_URL: `sqlite:${filename}` });
  /** SQLite serves one process at a time. */
  const raw = async <T>(work: (db: Knex) => Promise<T>): Promise<T> => {
    const db = knex({ client: SqliteClient, connection: { filename }, useNullAsDefault: true });
    return work(db).finally(() => db.destroy());
  };
  await raw((db) => db.schema.createTable('users', (table) => void table.string('login', 10)));
  await t.throwsAsync(openDatabase(database, makeCounter), {
    message: /^The database belongs to a different program: it has a table users\. DATABASE_URL must name an empty database/,
  });
  t.false(await raw((db) => db.schema.hasTable('migrations')));
  await raw((db) => db.schema.renameTable('users', 'books'));
  await t.throwsAsync(openDatabase(database, makeCounter), { message: /it has a table books\./ });
  await raw((db) => db.schema.createTable('migrations', (table) => void table.string('name')));
  await t.throwsAsync(openDatabase(database, makeCounter), { message: /it has a table migrations\./ });
  await raw((db) => db.schema.dropTable('books').dropTable('migrations'));
  await (await openDatabase(database, makeCounter)).close();
  t.true(await raw((db) => db.schema.hasTable('migrations')));
});

eachServer(test, 'the newest migration runs again if it was interrupted before it was recorded', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const recorded = (): Promise<string[]> => knex('migrations').orderBy('name').pluck('name');
  const all = await recorded();
  await knex('migrations')
    .where({ name: all.at(-1) ?? '' })
    .delete();
  await openTestDatabase(t, at);
  t.deepEqual(await recorded(), all);
});

eachEngine(test, 'a command on the host refuses a database that lacks a migration, and does not migrate it', async (t, at) => {
  const { knex, close } = await openTestDatabase(t, at);
  const { name } = await knex('migrations').orderBy('name', 'desc').first<{ name: string }>('name');
  await knex('migrations').where({ name }).delete();
  await close();
  for (const _ of [1, 2])
    await t.throwsAsync(openExisting(readConfig({ DATABASE_URL: at.url }).database), {
      message: `The database lacks a migration of this version (${name}), and this command does not migrate. Use the command of the version that the gateway runs, or start a gateway of this version first.`,
    });
});

// Percona XtraDB Cluster refuses named locks, unless its operator allows them.
eachServer(test, 'in a cluster, replicas migrate one after the other without a named lock', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const named: string[] = [];
  knex.on('query', ({ sql }: { sql: string }) => void (/get_lock|release_lock/.test(sql) && named.push(sql)));
  /** The server, as if it were a member of a cluster. */
  const member = new Proxy(knex, {
    get: (db, name) =>
      name === 'raw'
        ? (sql: string) => (sql.startsWith('show variables') ? Promise.resolve([[{ Value: 'ON' }]]) : db.raw(sql))
        : Reflect.get(db, name),
  });
  let [running, most] = [0, 0];
  const work = async (): Promise<void> => {
    running++;
    most = Math.max(most, running);
    await knex('migrations').select('name');
    running--;
  };
  await Promise.all([1, 2, 3].map(() => migrate(member, 'utf8mb4_bin', work)));
  t.is(most, 1);
  t.deepEqual(named, []);
  t.deepEqual(await knex('migration_lock').select('id'), []);
});
