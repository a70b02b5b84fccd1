import test from 'ava';
import { createConnection, type RowDataPacket } from 'mysql2/promise';
import { idOf } from '../../src/audit/chain/binary-form.ts';
import { hexOfBytes } from '../../src/audit/chain/log-tables.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/engines.ts';
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
