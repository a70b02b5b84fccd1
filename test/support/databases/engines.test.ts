import { existsSync } from 'node:fs';
import test from 'ava';
import { createConnection, type RowDataPacket } from 'mysql2/promise';
import { eachEngine, withOneServer } from './each-engine.ts';
import { engines } from './engines.ts';

eachEngine(test.serial, 'each test gets a database without rows', async (t, database, engine) => {
  if (engine === 'sqlite') {
    t.regex(database.url, /^sqlite:\/.*\/portcullis\.db$/);
    return;
  }
  const connection = await createConnection(database.url);
  t.teardown(() => connection.end());
  const [tables] = await connection.query<RowDataPacket[]>('show tables');
  for (const name of tables.flatMap((row) => Object.values(row) as string[]).filter((one) => one !== 'migrations')) {
    const [found] = await connection.query(`select 1 from ${name} limit 1`);
    t.deepEqual(found, [], name);
  }
  const [rows] = await connection.query(
    'select version() as version, @@innodb_flush_log_at_trx_commit as flush, @@sync_binlog as sync',
  );
  const [server] = rows as { version: string; flush: number; sync: number }[];
  t.is(/mariadb/i.test(server?.version ?? ''), engine === 'mariadb');
  t.is(server?.flush, 1);
  t.is(server?.sync, 1);
});

eachEngine(
  test.serial,
  'a binary collation distinguishes texts that the default collation does not',
  async (t, database, engine) => {
    if (engine === 'sqlite') {
      t.pass();
      return;
    }
    const connection = await createConnection(database.url);
    t.teardown(() => connection.end());
    const binary = engine === 'mariadb' ? 'utf8mb4_nopad_bin' : 'utf8mb4_0900_bin';
    await connection.query(`create table names (exact varchar(9) collate ${binary} primary key, loose varchar(9))`);
    for (const name of ['a', 'A', 'a ']) await connection.query('insert into names values (?, ?)', [name, name]);
    const count = async (column: 'exact' | 'loose') => {
      const [rows] = await connection.query(`select count(*) as n from names where ${column} = 'a'`);
      return (rows as { n: number }[])[0]?.n;
    };
    t.is(await count('exact'), 1);
    t.true(((await count('loose')) ?? 0) > 1);
  },
);

eachEngine(
  test.serial,
  'a dropped database leaves nothing behind: it is removed, or emptied for the next test',
  async (t, _database, engine) => {
    const create = engines().find(({ name }) => name === engine)?.create;
    if (create === undefined) return t.fail();
    if (engine === 'sqlite') {
      const { url, drop } = await create();
      await drop();
      t.false(existsSync(url.slice('sqlite:'.length).replace(/\/[^/]*$/, '')));
      return;
    }
    const database = await create();
    const used = await createConnection(database.url);
    await used.query("insert into connection_flows values ('x', '', '', '', '', 0)");
    await used.end();
    await database.drop();
    const next = await create();
    const again = await createConnection(next.url);
    const [rows] = await again.query('select id from connection_flows');
    t.deepEqual(rows, []);
    await again.query('create table strange (id int)');
    await again.end();
    await next.drop();
    await t.throwsAsync(createConnection(next.url), { code: 'ER_BAD_DB_ERROR' }, 'a test has altered the schema');
  },
);

test('a title chooses one server and keeps SQLite, and titles choose each server', (t) => {
  const all = [{ name: 'sqlite' }, { name: 'mariadb' }, { name: 'mysql' }] as const;
  const chosen = Array.from({ length: 200 }, (_, at) => withOneServer(all, `title ${at}`).map(({ name }) => name));
  t.true(chosen.every(([first, ...servers]) => first === 'sqlite' && servers.length === 1));
  for (const name of ['mariadb', 'mysql'] as const) t.true(chosen.filter((names) => names.includes(name)).length > 60, name);
  t.deepEqual(withOneServer(all, 'x'), withOneServer(all, 'x'));
  t.deepEqual(withOneServer([all[0]], 'x'), [all[0]]);
  t.deepEqual(withOneServer([all[2]], 'x'), [all[2]]);
});
