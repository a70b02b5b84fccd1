import test from 'ava';
import knex from 'knex';
import { boundedMysql } from '../../src/db/mysql-client.ts';
import { eachServer } from '../support/databases/each-engine.ts';

eachServer(
  test.serial,
  'a statement without an answer in time fails, and neither its connection nor the next statement is affected',
  async (t, at) => {
    const db = knex({ client: boundedMysql(2_000), connection: at.url, pool: { min: 0, max: 1 } });
    t.teardown(() => db.destroy());
    const idOf = async (): Promise<number> => (await db.raw('select connection_id() as id'))[0][0].id;
    const before = await idOf();
    const began = performance.now();
    await t.throwsAsync(Promise.resolve(db.raw('select sleep(20)')), { code: 'PROTOCOL_SEQUENCE_TIMEOUT' });
    t.true(performance.now() - began < 15_000);
    t.not(await idOf(), before, 'the one whose answer may yet come is not used again');
    await t.throwsAsync(
      db.transaction(async (trx) => {
        await trx.raw('create temporary table t (a int)');
        await trx.raw('select sleep(20)');
      }),
      { message: /closed state/ },
    );
    t.is((await db.raw('select sleep(0.1) as slept'))[0][0].slept, 0);
  },
);

eachServer(test.serial, 'a connection whose transaction the server does not end is not used again', async (t, at) => {
  // As a member of a cluster that is not ready does: the connection stays open, and the statement is not carried out.
  let refused: string | null = null;
  const refusing = (connection: { query: (query: { sql: string }, ...rest: unknown[]) => unknown }) => {
    const send = connection.query.bind(connection);
    connection.query = (query, ...rest) => {
      const [done] = rest.slice(-1) as [(error: Error) => void];
      if (query.sql !== refused) return send(query, ...rest);
      setImmediate(done, Object.assign(new Error('not ready'), { code: 'ER_UNKNOWN_COM_ERROR' }));
      return undefined;
    };
  };
  const db = knex({
    client: boundedMysql(2_000),
    connection: at.url,
    pool: { min: 0, max: 1, afterCreate: (connection: never, done: () => void) => [refusing(connection), done()] },
  });
  t.teardown(() => db.destroy());
  await db.schema.createTable('kept', (table) => void table.integer('a'));
  for (const end of ['ROLLBACK', 'COMMIT;']) {
    refused = end;
    await t.throwsAsync(
      db.transaction(async (trx) => {
        await trx('kept').insert({ a: 1 });
        if (end === 'ROLLBACK') throw new Error('wanted');
      }),
    );
    refused = null;
    await db.transaction(async (trx) => void (await trx('kept').insert({ a: 2 })));
    t.deepEqual(await db('kept').select('a'), [{ a: 2 }], end);
    await db('kept').delete();
  }
  refused = 'BEGIN;';
  await t.throwsAsync(db.transaction(async () => undefined, { isolationLevel: 'repeatable read', readOnly: true }));
  refused = null;
  await db.transaction(async (trx) => void (await trx('kept').insert({ a: 3 })));
  t.deepEqual(await db('kept').select('a'), [{ a: 3 }]);
});
