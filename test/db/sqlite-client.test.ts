import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';

interface Connection {
  run(sql: string, bindings: readonly unknown[]): Promise<unknown>;
}

test('between two answers of SQLite the event loop takes a turn, also if the next answer is there already', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-test-'));
  const { database: config } = readConfig({ DATABASE_URL: `sqlite:${folder}/test.db` });
  const database = await openDatabase(config, async () => {});
  const connection: Connection = await database.knex.client.acquireConnection();
  t.teardown(async () => {
    await database.knex.client.releaseConnection(connection);
    await database.close();
    rmSync(folder, { recursive: true });
  });
  const statements = 20;
  const busy = new Int32Array(new SharedArrayBuffer(4));
  let turns = 0;
  let timer: NodeJS.Immediate;
  const count = (): void => {
    turns++;
    timer = setImmediate(count);
  };
  timer = setImmediate(count);
  for (let i = 0; i < statements; i++) {
    const answer = connection.run('select 1', []);
    // The thread of SQLite answers while this thread is busy.
    Atomics.wait(busy, 0, 0, 10);
    await answer;
  }
  clearImmediate(timer);
  t.true(turns >= statements - 1, `${turns} turns for ${statements} statements`);
  const both = await Promise.all([connection.run('select 1 as n', []), connection.run('select 2 as n', [])]);
  t.like(both, [{ rows: [{ n: 1 }] }, { rows: [{ n: 2 }] }]);
});
