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
