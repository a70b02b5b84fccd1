import test from 'ava';
import { createConnection, type RowDataPacket } from 'mysql2/promise';
import { idOf } from '../../src/audit/chain/binary-form.ts';
import { hexOfBytes } from '../../src/audit/chain/tables/log-tables.ts';
import { createIndexCheck } from '../../src/audit/verify/index-check.ts';
import { auditLines } from '../../src/audit/verify/lines.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { decision, quietWriter, verified } from './records.ts';

eachEngine(
  test.serial,
  'each acknowledged record exists exactly once, even if connections break at any moment',
  async (t, at, engine) => {
    // SQLite's only connection is a thread of the process.
    if (engine === 'sqlite') {
      t.pass();
      return;
    }
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    const killer = await createConnection(at.url);
    t.teardown(() => killer.end());

    const acknowledged: string[] = [];
    let refused = 0;
    let ended = false;
    const client = async (): Promise<void> => {
      while (!ended) {
        const record = decision();
        try {
          await writer.decision(record);
          acknowledged.push(record.id);
        } catch {
          refused++;
        }
      }
    };
    const { pathname } = new URL(at.url);
    const kill = async (): Promise<void> => {
      // On a busy machine no record may get through in 40 rounds.
      for (let round = 0; round < 40 || (acknowledged.length === 0 && round < 1_000); round++) {
        await new Promise((resolve) => setTimeout(resolve, 5 + 25 * Math.random()));
        const [rows] = await killer.query<RowDataPacket[]>('show processlist');
        for (const { Id, db } of rows) {
          if (Id !== killer.threadId && db === pathname.slice(1))
            await killer.query(`kill connection ${Number(Id)}`).catch(() => {});
        }
      }
    };
    const clients = Array.from({ length: 16 }, client);
    await kill().finally(() => {
      ended = true;
    });
    await Promise.all(clients);
    await writer.close();

    // Some of the earlier connections may be broken without knowing it yet.
    const after = await openTestDatabase(t, at);
    const rows: { id: unknown }[] = await after.knex('log_decisions').select('id');
    const stored = new Set(rows.map(({ id }) => idOf(hexOfBytes(id))));
    t.true(acknowledged.length > 0);
    t.deepEqual(
      acknowledged.filter((id) => !stored.has(id)),
      [],
    );
    t.is(rows.length, stored.size);
    const report = await verified(after);
    t.deepEqual(report.problems, []);
    t.is(report.records.decision, rows.length);
    t.log(`${report.chains} chains, ${acknowledged.length} acknowledged, ${refused} refused`);
  },
);

eachEngine(test.serial, 'a decision whose commit got no answer is in the search index', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { client } = database.knex;
  const writer = quietWriter(database);
  await writer.decision(decision());
  await writer.decision(decision());
  const run = client._query;
  const lost = () => Object.assign(new Error('Connection lost'), { code: 'PROTOCOL_CONNECTION_LOST' });
  let isLost = false;
  client._query = async (connection: unknown, query: { sql: string }) => {
    if (isLost) throw lost();
    const result = await run.call(client, connection, query);
    isLost = query.sql.startsWith('insert into log_decisions');
    if (isLost) throw lost();
    return result;
  };
  await t.throwsAsync(writer.decision(decision()));
  client._query = run;
  await writer.decision(decision());
  await writer.close();
  const report = await verified(database);
  t.deepEqual(report.problems, []);
  t.is(report.records.decision, 4);
  const index = createIndexCheck(database.knex);
  for await (const line of auditLines(database.knex, Date.now(), null)) if (line.kind === 'decision') await index.take(line);
  t.deepEqual(await index.hidden(), []);
});
