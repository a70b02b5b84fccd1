/** A failure of the database is never reported as a fault of the gateway. */
import test, { type ExecutionContext } from 'ava';
import knex, { type Knex } from 'knex';
import { AppError } from '../../src/base/errors.ts';
import type { Log } from '../../src/base/log.ts';
import { boundedMysql } from '../../src/db/mysql-client.ts';
import { problemOf } from '../../src/http/problem.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';

const nothing = (): void => undefined;
const log = { warn: nothing, error: nothing, info: nothing } as unknown as Log;
const codeOf = (error: unknown): string => problemOf(error, { requestId: 'r', publicUrl: 'http://g', log }).body.code;

async function failure(t: ExecutionContext, work: PromiseLike<unknown>): Promise<Error> {
  const error = await t.throwsAsync(Promise.resolve(work));
  return error as Error;
}

function pool(t: ExecutionContext, url: string, over: Partial<Knex.Config> = {}): Knex {
  const log = { warn: nothing, error: nothing, debug: nothing, deprecate: nothing };
  const db = knex({ client: boundedMysql(10_000), connection: url, pool: { min: 0, max: 1 }, log, ...over });
  t.teardown(() => db.destroy());
  return db;
}

eachServer(test.serial, 'an interruption of a statement by the server is a 503', async (t, at, engine) => {
  const admin = pool(t, at.url);
  const db = pool(t, at.url);
  const idOf = async (): Promise<number> => (await db.raw('select connection_id() as id'))[0][0].id;
  const slow = 'select count(*) from information_schema.columns a, information_schema.columns b, information_schema.columns c';
  // The view of MySQL in information_schema fails while any other connection runs a statement with a character beyond U+FFFF.
  const statement =
    engine === 'mariadb'
      ? 'select info from information_schema.processlist where id = ?'
      : 'select processlist_info as info from performance_schema.threads where processlist_id = ?';
  const started = async (id: number): Promise<void> => {
    for (let running = false; !running; ) {
      const [rows] = await admin.raw(statement, [id]);
      running = /information_schema.columns a/.test(rows[0]?.info ?? '');
    }
  };
  for (const kill of ['connection', 'query']) {
    const id = await idOf();
    const failing = failure(t, db.raw(slow));
    await started(id);
    await admin.raw(`kill ${kill} ${id}`);
    const error = await failing;
    t.is(codeOf(error), 'unavailable', `${kill}: ${error.message}`);
  }
  const late =
    engine === 'mariadb'
      ? `set statement max_statement_time=0.2 for ${slow}`
      : slow.replace('select', 'select /*+ max_execution_time(200) */');
  const error = await failure(t, db.raw(late));
  t.is(codeOf(error), 'unavailable', error.message);

  const transaction = await db.transaction();
  await transaction.raw('set session transaction read only');
  await transaction.rollback();
  const refused = await failure(
    t,
    db.transaction((trx) => trx.raw('create table t (a int)')),
  );
  t.is(codeOf(refused), 'unavailable', refused.message);
});

eachServer(test.serial, 'a pool without a free or a possible connection is a 503', async (t, at) => {
  // In this time the one that holds it must have its connection made.
  const busy = pool(t, at.url, { acquireConnectionTimeout: 2_000 });
  const holding = await busy.transaction();
  t.is(codeOf(await failure(t, busy.raw('select 1'))), 'unavailable');
  await holding.rollback();
  const closed = pool(t, at.url);
  await closed.destroy();
  t.is(codeOf(await failure(t, closed.raw('select 1'))), 'unavailable');
  const elsewhere = new URL(at.url);
  elsewhere.pathname = '/no_such_database';
  t.is(codeOf(await failure(t, pool(t, elsewhere.href).raw('select 1'))), 'unavailable');
  elsewhere.password = 'wrong';
  t.is(codeOf(await failure(t, pool(t, elsewhere.href).raw('select 1'))), 'unavailable');
});

eachServer(test.serial, 'a wrong statement is a fault of the gateway', async (t, at) => {
  const db = pool(t, at.url);
  await db.raw('create table t (a int primary key)');
  await db.raw('insert into t values (1)');
  for (const sql of ['selekt', 'select b from t', 'select * from u', 'insert into t values (1)']) {
    t.is(codeOf(await failure(t, db.raw(sql))), 'internal', sql);
  }
});

test.serial('a file error of SQLite is a 503', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex: db } = await openTestDatabase(t, at);
  await db.raw('pragma query_only = 1');
  t.is(codeOf(await failure(t, db('users').delete())), 'unavailable');
  await db.raw('pragma query_only = 0');
  const [{ page_count: pages }] = (await db.raw('pragma page_count')) as [{ page_count: number }];
  await db.raw(`pragma max_page_count = ${pages}`);
  const large = 'x'.repeat(1_000_000);
  t.is(codeOf(await failure(t, db('audit_sets').insert({ hash: 'h', names: large }))), 'unavailable');
  t.is(codeOf(await failure(t, db.raw('select * from nowhere'))), 'internal');
});

/** Errors as the drivers report them. Some of them need a failing machine or a cluster. */
const MADE: readonly (readonly [over: object, code: string])[] = [
  [{ code: 'EE_DELETE', errno: 6, sqlState: 'HY000' }, 'unavailable'],
  [{ code: undefined, errno: 1927, sqlState: '70100' }, 'unavailable'],
  [{ code: undefined, errno: 1969, sqlState: '70100' }, 'unavailable'],
  [{ code: 'ER_GET_ERRNO', errno: 1030, sqlState: 'HY000' }, 'unavailable'],
  [{ code: 'ER_TABLE_DEF_CHANGED', errno: 1412, sqlState: 'HY000' }, 'unavailable'],
  [{ code: 'ER_UNKNOWN_COM_ERROR', errno: 1047, sqlState: '08S01' }, 'unavailable'],
  [{ code: 'ER_LOCK_DEADLOCK', errno: 1213, sqlState: '40001' }, 'unavailable'],
  [{ code: 'ER_USER_LIMIT_REACHED', errno: 1226, sqlState: '42000' }, 'unavailable'],
  [{ code: 'ER_TOO_MANY_USER_CONNECTIONS', errno: 1203, sqlState: '42000' }, 'unavailable'],
  [{ code: 'ER_CON_COUNT_ERROR', errno: 1040, sqlState: '' }, 'unavailable'],
  [{ code: 'PROTOCOL_CONNECTION_LOST', fatal: true }, 'unavailable'],
  [{ code: 'PROTOCOL_SEQUENCE_TIMEOUT' }, 'unavailable'],
  [{ code: 'EMFILE', fatal: true }, 'unavailable'],
  [{ code: 'EPIPE' }, 'unavailable'],
  [{ code: 'SQLITE_IOERR_WRITE' }, 'unavailable'],
  [{ code: 'SQLITE_BUSY_RECOVERY' }, 'unavailable'],
  [{ code: 'SQLITE_CORRUPT' }, 'unavailable'],
  [{ code: 'SQLITE_CONSTRAINT_UNIQUE' }, 'internal'],
  [{ code: 'SQLITE_ERROR' }, 'internal'],
  [{ code: 'ER_BAD_FIELD_ERROR', errno: 1054, sqlState: '42S22' }, 'internal'],
  [{ code: 'ER_DATA_TOO_LONG', errno: 1406, sqlState: '22001' }, 'internal'],
  [{}, 'internal'],
];

test.serial('faults of different drivers become different errors', (t) => {
  for (const [over, code] of MADE) t.is(codeOf(Object.assign(new Error('failed'), over)), code, JSON.stringify(over));
  t.is(codeOf(new Error("Can't add new command when connection is in closed state")), 'unavailable');
});

test('a fault that the gateway foresees has its text, and any other fault has none', (t) => {
  const detailOf = (error: Error): string => problemOf(error, { requestId: 'r', publicUrl: 'http://g', log }).body.detail;
  t.is(detailOf(new AppError('internal', 'A check failed. Report this.')), 'A check failed. Report this.');
  t.regex(detailOf(new Error('select secret')), /^The gateway failed\./);
});
