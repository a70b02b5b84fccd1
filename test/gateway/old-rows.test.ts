/** The hourly removal of rows that are no longer needed. In these tests the long timers of the gateway are short. */
import test, { type ExecutionContext } from 'ava';
import { readConfig } from '../../src/config/config.ts';
import { createChanges, makeCounter } from '../../src/db/changes.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { startGateway } from '../support/gateway.ts';
import { until } from '../support/listener.ts';

const DAY = 24 * 60 * 60 * 1000;
const NOW = Date.now();
const OLD = NOW - 100 * DAY;
const LONG_MS = 60_000;
/** The limit of the first load is a long timer, too, and a busy machine needs some time for it. */
const SOON_MS = 3_000;

/** Starts a gateway on a database with the rows of `fill`. Timers of a minute and longer end soon. */
async function startOn(
  t: ExecutionContext,
  url: string,
  fill: (database: Database) => Promise<void>,
  days = '0',
): Promise<Database> {
  const before = await openDatabase(readConfig({ DATABASE_URL: url }).database, makeCounter);
  await fill(before).finally(() => before.close());
  const opened: Database[] = [];
  const { setTimeout, setInterval } = globalThis;
  const shortened = (timer: typeof setTimeout | typeof setInterval) =>
    ((then: () => void, ms = 0, ...args: []) => timer(then, ms < LONG_MS ? ms : SOON_MS, ...args)) as never;
  Object.assign(globalThis, { setTimeout: shortened(setTimeout), setInterval: shortened(setInterval) });
  try {
    await startGateway(
      t,
      url,
      { CHANGES_RETENTION_DAYS: days },
      {
        async open(...parts) {
          opened.push(await openDatabase(...parts));
          return opened[0] as Database;
        },
      },
    );
  } finally {
    Object.assign(globalThis, { setTimeout, setInterval });
  }
  return opened[0] as Database;
}

eachEngine(test.serial, 'the gateway deletes tokens that ended long ago, and keeps the others', async (t, at) => {
  const token = { user_id: 'u', kid: 'k', kind: 'api', name: 'n', created_at: OLD, expires_at: null, revoked_at: null };
  const { knex } = await startOn(t, at.url, async (database) => {
    await database.knex('tokens').insert([
      { ...token, id: 'in force' },
      { ...token, id: 'revoked', revoked_at: OLD },
      { ...token, id: 'revoked lately', revoked_at: NOW - DAY },
      { ...token, id: 'expired', kind: 'login', name: null, expires_at: OLD },
    ]);
  });
  const ids = async (): Promise<string[]> => knex('tokens').orderBy('id').pluck('id');
  await until('a token is deleted', async () => (await ids()).length < 4);
  await until('the second one is deleted', async () => (await ids()).length < 3);
  t.deepEqual(await ids(), ['in force', 'revoked lately']);
});

eachEngine(test.serial, 'the gateway removes old changes, but no change of a policy', async (t, at) => {
  const { knex } = await startOn(
    t,
    at.url,
    async (database) => {
      let time = OLD;
      const changes = await createChanges(database, () => time);
      const actor = { id: 'a', email: 'a@x', request_id: 'r' };
      for (const object_type of ['user', 'policy', 'target'] as const) {
        const change = {
          action: `${object_type}.update`,
          object_type,
          object_id: `old ${object_type}`,
          before: null,
          after: {},
        } as const;
        await changes.change(actor, async () => ({ result: null, changes: [change] }));
      }
      time = NOW;
      const young = { action: 'user.update', object_id: 'young', before: null, after: {} } as const;
      await changes.change(actor, async () => ({ result: null, changes: [young] }));
    },
    '30',
  );
  const ids = async (): Promise<string[]> => knex('changes').orderBy('sequence').pluck('object_id');
  await until('one change is removed', async () => (await ids()).length < 4);
  await until('the second one is deleted', async () => (await ids()).length < 3);
  t.deepEqual(await ids(), ['old policy', 'young']);
});

test.serial('the gateway deletes old sessions in batches, so that requests do not wait long', async (t) => {
  const at = await createSqlite();
  t.teardown(() => at.drop());
  const { knex } = await startOn(t, at.url, async ({ knex: db }) => {
    const session = { issuer: 'i', user_id: 'u', target_id: null, revision: '2025-11-25', client: '{}', holder: null };
    const rows = Array.from({ length: 1_200 }, (_, n) => ({ ...session, id: `old ${n}`, created_at: OLD, seen_at: OLD }));
    await db.batchInsert('sessions', rows, 100);
    await db.raw('create table deleted (at text not null)');
    // In SQLite, 'now' has the same value throughout one statement.
    await db.raw(
      "create trigger deletion after delete on sessions begin insert into deleted values (strftime('%J', 'now')); end",
    );
  });
  await until('the sessions are deleted', async () => (await knex('sessions').first('id')) === undefined);
  const statements: { rows: number }[] = await knex('deleted').groupBy('at').count({ rows: '*' });
  t.is(
    statements.reduce((sum, { rows }) => sum + rows, 0),
    1_200,
  );
  t.true(Math.max(...statements.map(({ rows }) => rows)) <= 500, JSON.stringify(statements));
});
