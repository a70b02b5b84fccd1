import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as turnOver } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { deferred } from '../../src/base/promises.ts';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import { countTurns } from '../support/turns.ts';

interface Connection {
  run(sql: string, bindings: readonly unknown[] | null): Promise<unknown>;
  end(): void;
}

async function opened(t: ExecutionContext) {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-test-'));
  const { database: config } = readConfig({ DATABASE_URL: `sqlite:${folder}/test.db` });
  const database = await openDatabase(config, async () => {});
  const { knex } = database;
  t.teardown(async () => {
    await database.close();
    rmSync(folder, { recursive: true });
  });
  await knex.schema.createTable('entries', (table) => table.integer('n'));
  const count = async (): Promise<number> => (await knex('entries')).length;
  return { knex, count };
}

/** Waits without a turn of the event loop. The thread of SQLite goes on. */
const block = (ms: number): unknown => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

test('between two answers for one connection the event loop takes a turn, also if the next answer is there already', async (t) => {
  const { knex } = await opened(t);
  const connection: Connection = await knex.client.acquireConnection();
  const statements = 20;
  const turns = countTurns();
  for (let i = 0; i < statements; i++) {
    const answer = connection.run('select 1', []);
    block(10);
    await answer;
  }
  const taken = turns();
  await knex.client.releaseConnection(connection);
  t.true(taken >= statements - 1, `${taken} turns for ${statements} statements`);
});

test('a statement does not wait until this thread has taken the answers of those before', async (t) => {
  const { knex } = await opened(t);
  const statements = 20;
  const connections: Connection[] = await Promise.all(Array.from({ length: statements }, () => knex.client.acquireConnection()));
  const answers = Promise.all(connections.map((connection, n) => connection.run(`select ${n} as n`, [])));
  // Meanwhile the thread of SQLite answers them all.
  block(500);
  const turns = countTurns();
  const found = await answers;
  const taken = turns();
  t.deepEqual(
    found.map((answer) => (answer as { rows: { n: number }[] }).rows[0]?.n),
    Array.from({ length: statements }, (_, n) => n),
  );
  for (const connection of connections) await knex.client.releaseConnection(connection);
  t.true(taken < statements / 2, `${taken} turns`);
});

test('nobody reads what is not committed, and statements that came during a transaction run after it in their order', async (t) => {
  const { knex, count } = await opened(t);
  const inserted = deferred();
  const mayEnd = deferred();
  const order: string[] = [];
  const first = knex.transaction(async (trx) => {
    await trx('entries').insert({ n: 1 });
    inserted.resolve();
    await mayEnd.promise;
    order.push('first');
  });
  await inserted.promise;
  const reads = Promise.all(
    Array.from({ length: 5 }, async () => {
      const n = await count();
      order.push('read');
      return n;
    }),
  );
  const second = knex.transaction(async (trx) => {
    t.is((await trx('entries')).length, 1);
    await trx('entries').insert({ n: 2 });
    order.push('second');
  });
  for (let i = 0; i < 20; i++) await turnOver();
  t.deepEqual(order, []);
  mayEnd.resolve();
  await Promise.all([first, second]);
  t.deepEqual(await reads, [1, 1, 1, 1, 1]);
  t.deepEqual(order, ['first', ...Array(5).fill('read'), 'second']);
  t.is(await count(), 2);
});

test('others read during a transaction that only reads, and write after it, so that it reads one state', async (t) => {
  const { knex, count } = await opened(t);
  await knex('entries').insert({ n: 1 });
  const order: string[] = [];
  let written = Promise.resolve(0);
  await knex.transaction(async (trx) => {
    t.is((await trx('entries')).length, 1);
    written = knex('entries')
      .insert({ n: 2 })
      .then(() => order.push('written'));
    t.is(await count(), 1);
    t.is((await trx('entries')).length, 1);
    order.push('read');
    await trx('entries').insert({ n: 3 });
    const other = count().then((n) => order.push(`${n} after it`));
    for (let i = 0; i < 20; i++) await turnOver();
    t.deepEqual(order, ['read']);
    void other;
  });
  await written;
  t.is(await count(), 3);
  t.deepEqual(order, ['read', 'written', '3 after it']);
});

test('a transaction that failed, and one whose connection was closed, leave nothing and let the others go on', async (t) => {
  const { knex, count } = await opened(t);
  const failing = knex.transaction(async (trx) => {
    await trx('entries').insert({ n: 1 });
    throw new Error('broken');
  });
  await t.throwsAsync(failing, { message: 'broken' });
  t.is(await count(), 0);

  const connection: Connection = await knex.client.acquireConnection();
  await connection.run('begin', []);
  await connection.run('insert into entries values (1)', []);
  const waits = count();
  await knex.client.destroyRawConnection(connection);
  t.is(await waits, 0);
  await knex.client.releaseConnection(connection);
  await knex('entries').insert({ n: 2 });
  t.is(await count(), 1);
});

test('after a refused commit the connection can be used again', async (t) => {
  const { knex, count } = await opened(t);
  const [{ page_count: pages }] = (await knex.raw('pragma page_count')) as [{ page_count: number }];
  await knex.raw(`pragma max_page_count = ${pages}`);
  const refused = knex.transaction(async (trx) => {
    await t.throwsAsync(async () => trx.raw('insert into entries values (randomblob(1000000))'));
  });
  t.like(await t.throwsAsync(refused), { code: 'SQLITE_ABORT' });
  for (let i = 0; i < 60; i++) t.is(await count(), 0);
});

test('a statement does not wait for ever for the transaction of another connection', async (t) => {
  const { knex, count } = await opened(t);
  const inserted = deferred();
  const mayEnd = deferred();
  const endless = knex.transaction(async (trx) => {
    await trx('entries').insert({ n: 1 });
    inserted.resolve();
    await mayEnd.promise;
  });
  await inserted.promise;
  await t.throwsAsync(() => count(), { code: 'SQLITE_BUSY', message: /another transaction of this process did not end/ });
  mayEnd.resolve();
  await endless;
  t.is(await count(), 1);
});

test('if the thread ends, its statements fail, and the next ones get a new thread', async (t) => {
  const { knex, count } = await opened(t);
  await knex('entries').insert({ n: 1 });
  const connection: Connection = await knex.client.acquireConnection();
  await connection.run('begin', []);
  await connection.run('insert into entries values (2)', []);
  // A fault in the thread: the text of a statement is no text.
  const lost = await Promise.allSettled([count(), connection.run(1 as unknown as string, null)]);
  t.deepEqual(
    lost.map(({ status }) => status),
    ['rejected', 'rejected'],
  );
  await knex.client.releaseConnection(connection);
  t.deepEqual(await Promise.all([count(), count(), count()]), [1, 1, 1]);
});

test('a connection that ends while its transaction waits to begin keeps nobody waiting', async (t) => {
  const { knex } = await opened(t);
  const [holder, ended, other] = (await Promise.all([0, 1, 2].map(() => knex.client.acquireConnection()))) as [
    Connection,
    Connection,
    Connection,
  ];
  await holder.run('BEGIN', null);
  const waiting = ended.run('BEGIN', null);
  ended.end();
  t.like(await waiting, { error: { code: 'SQLITE_ABORT' } });
  await holder.run('COMMIT', null);
  t.like(await other.run('select 1 as one', []), { rows: [{ one: 1 }] });
  for (const connection of [holder, ended, other]) await knex.client.releaseConnection(connection);
});

test('of a transaction that SQLite has rolled back itself, nothing is committed', async (t) => {
  const { knex, count } = await opened(t);
  const [{ page_count: pages }] = (await knex.raw('pragma page_count')) as [{ page_count: number }];
  await knex.raw(`pragma max_page_count = ${pages}`);
  const full = await t.throwsAsync<Error & { code?: string }>(
    knex.transaction(async (trx) => {
      await Promise.all([
        // Too large for the database: a statement of one row takes the transaction with it. The others are small enough.
        trx.raw('insert into entries values (randomblob(1000000))'),
        trx('entries').insert({ n: 1 }),
        trx('entries').insert({ n: 2 }),
      ]);
    }),
  );
  t.is(full.code, 'SQLITE_FULL');
  t.is(await count(), 0);
  await knex.raw('pragma max_page_count = 1000000');
  await knex.transaction(async (trx) => {
    await trx('entries').insert({ n: 3 });
  });
  t.is(await count(), 1, 'the connection can be used again');
});
