import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { readConfig } from '../../src/config/config.ts';
import {
  type Actor,
  type Change,
  changedBetween,
  createChanges,
  listRevisions,
  makeCounter,
  type ObjectType,
  type Position,
  readPosition,
} from '../../src/db/changes.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { eachEngine, eachServer } from '../support/databases/each-engine.ts';
import type { TestDatabase } from '../support/databases/engines.ts';

const actor: Actor = { id: 'admin-id', email: 'admin@example.com', request_id: 'request' };
const change = (object_id: string, over: Partial<Change> = {}): Change => ({
  action: 'policy.create',
  object_id,
  before: null,
  after: { name: object_id },
  ...over,
});

async function open(t: ExecutionContext, { url }: TestDatabase): Promise<Database> {
  const database = await openDatabase(readConfig({ DATABASE_URL: url }).database, makeCounter);
  t.teardown(() => database.close());
  return database;
}

eachEngine(test.serial, 'changes move the counter by one each, in the same transaction', async (t, at) => {
  const database = await open(t, at);
  const changes = await createChanges(database, () => 42);
  const before = await changes.position();
  t.like(before, { sequence: 0, revision: 0 });

  const { position } = await changes.change(actor, async () => ({
    result: null,
    changes: [change('one'), change('two', { action: 'user.update', before: { role: 'a' } })],
  }));
  t.like(position, { sequence: 2, revision: 1 });
  t.deepEqual(await changes.position(), position);
  t.deepEqual(changes.known(), database.kind === 'sqlite' ? position : null);
  if (database.kind === 'sqlite') {
    const first = { object_type: 'policy', object_id: 'one' };
    const second = { object_type: 'user', object_id: 'two' };
    t.like(changes.since(before), [first, second]);
    t.is(changes.since({ ...before, nonce: 'of another history' }), null);
  } else t.is(changes.since(before), null);
  t.deepEqual(await readPosition(database.knex), position);

  const [two, one] = (await changes.page(10, null)).changes;
  t.like(two, { sequence: 2, object_id: 'two', before: { role: 'a' }, created_at: 42, request_id: 'request' });
  t.deepEqual(two?.actor, { id: 'admin-id', email: 'admin@example.com' });
  t.like(one, { sequence: 1, object_id: 'one', revision: 1, after: { name: 'one' } });
  t.deepEqual(
    (await changes.page(1, null)).changes.map((row) => row.sequence),
    [2],
  );
  t.deepEqual(
    (await changes.page(10, 2)).changes.map((row) => row.sequence),
    [1],
  );
});

eachEngine(
  test.serial,
  'the feed returns the changes between two positions, or says that it cannot tell all of them',
  async (t, at) => {
    const database = await open(t, at);
    const { knex } = database;
    const changes = await createChanges(database, Date.now);
    const move = async (...objects: readonly [ObjectType, string][]): Promise<Position> => {
      const made = objects.map(([object_type, id]) => change(id, { action: `${object_type}.update` }));
      return (await changes.change(actor, async () => ({ result: null, changes: made }))).position;
    };
    const start = await readPosition(knex);
    const first = await move(['policy', 'p']);
    const second = await move(['user', 'u'], ['token', 't']);
    const third = await move(['target', 'x']);
    const between = async (from: Position, to: Position) =>
      (await changedBetween(knex, from, to))?.map(({ object_type, object_id }) => `${object_type} ${object_id}`) ?? null;

    t.deepEqual(await between(first, third), ['user u', 'token t', 'target x']);
    t.deepEqual(await between(second, third), ['target x']);
    t.deepEqual(await between(third, third), []);
    t.is(await between(start, third), null, 'before the first change there is no row to know the history by');
    t.is(await between({ ...first, nonce: 'other' }, third), null, 'a position of another history');
    t.is(await between({ ...third, nonce: 'other' }, third), null, 'the same number in another history');
    t.is(await between(third, second), null, 'a lower counter');
    t.is(await between(third, { ...third, sequence: third.sequence + 1 }), null, 'a counter without its row');
    t.is(await between(first, { ...third, nonce: 'other' }), null, 'a last row that is not of the counter');

    // Retention removes rows between those that it keeps.
    await knex('changes').where('sequence', second.sequence).delete();
    t.is(await between(first, third), null, 'a row in between is gone');
    t.is(await between(second, third), null, 'its own row is gone');
    t.deepEqual(await between({ ...second, ...third }, third), []);
    const fourth = await move(['draft', 'd']);
    t.deepEqual(await between(third, fourth), ['draft d']);

    const many = await move(...Array.from({ length: 1_000 }, (_, i) => ['user', `u${i}`] as [ObjectType, string]));
    t.is((await between(fourth, many))?.length, 1_000);
    t.is(await between(third, many), null, 'more than is followed');
  },
);

eachEngine(test.serial, 'changes of one actor do not wait behind all those of another', async (t, at) => {
  const database = await open(t, at);
  const changes = await createChanges(database, Date.now);
  const done: string[] = [];
  const make = async (id: string): Promise<void> => {
    await changes.change({ ...actor, id }, async () => ({ result: null, changes: [change('x')] }));
    done.push(id);
  };
  const bulk = Array.from({ length: 101 }, () => make('bulk'));
  const refused = await t.throwsAsync(make('bulk'), { instanceOf: AppError });
  t.is(refused.code, 'too_many_requests');
  t.is(refused.retryAfter, 1);
  await make('other');
  t.true(done.length <= 3, `${done.length} before the other`);
  await Promise.all(bulk);
  await make('bulk');
  t.is((await changes.position()).sequence, 103);
});

eachServer(test.serial, 'waiting changes hold no connection, and a failed change does not block the next', async (t, at) => {
  const database = await open(t, at);
  const changes = await createChanges(database, Date.now);
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  const results = Promise.allSettled(
    Array.from({ length: 30 }, (_, i) =>
      changes.change(actor, async () => {
        await held;
        if (i % 2 === 0) throw new AppError('limit_reached', 'no');
        return { result: null, changes: [change('x')] };
      }),
    ),
  );
  t.is((await database.knex('changes')).length, 0, 'the pool has ten connections');
  release();
  t.is((await results).filter(({ status }) => status === 'fulfilled').length, 15);
});

eachEngine(test.serial, 'a transaction is one revision with a reason, however many policies it changes', async (t, at) => {
  const database = await open(t, at);
  let time = 0;
  const changes = await createChanges(database, () => ++time);
  await changes.change(actor, async () => ({ result: null, changes: [change('one')] }));
  const { position } = await changes.change({ ...actor, reason: 'why – so' }, async () => ({
    result: null,
    changes: [
      change('user', { action: 'user.update' }),
      change('one', { action: 'policy.delete' }),
      change('two'),
      change('three'),
    ],
  }));
  t.like(position, { sequence: 5, revision: 2 });
  const rows = (await changes.page(10, null)).changes;
  t.deepEqual(
    rows.map(({ sequence, revision, reason, created_at }) => [sequence, revision, reason, created_at]),
    [...[5, 4, 3, 2].map((sequence) => [sequence, 2, 'why – so', 2]), [1, 1, null, 1]],
  );
  t.like((await listRevisions(database.knex, 10, null)).revisions, [
    { revision: 2, created: 2, updated: 0, deleted: 1, policy: null, reason: 'why – so', created_at: 2 },
    { revision: 1, created: 1, updated: 0, deleted: 0, policy: { id: 'one', name: 'one' }, reason: null },
  ]);
  t.deepEqual(
    (await listRevisions(database.knex, 1, 2)).revisions.map(({ revision }) => revision),
    [1],
  );
});

eachEngine(
  test.serial,
  'thousands of changes in one transaction are stored as rows in order, in few statements',
  async (t, at) => {
    const database = await open(t, at);
    const { knex } = database;
    const changes = await createChanges(database, Date.now);
    let statements = 0;
    const prototype = Object.getPrototypeOf(knex.client) as { _query(connection: unknown, query: { sql: string }): unknown };
    const { _query } = prototype;
    prototype._query = function (connection, query) {
      if (/^insert into .changes/.test(query.sql)) statements++;
      return _query.call(this, connection, query);
    };
    t.teardown(() => {
      prototype._query = _query;
    });
    const many = Array.from({ length: 1_200 }, (_, i) =>
      change(`policy ${i}`, { after: { name: "'\u20ac".repeat(i < 300 ? 2_000 : 1) } }),
    );
    const { position } = await changes.change(actor, async () => ({ result: null, changes: many }));
    t.like(position, { sequence: 1_200, revision: 1 });
    const rows = (await changes.page(2_000, null)).changes.toReversed();
    t.deepEqual(
      rows.map(({ sequence, object_id, after }) => [sequence, object_id, after]),
      many.map(({ object_id, after }, i) => [i + 1, object_id, after]),
    );
    t.is(new Set(rows.map(({ nonce }) => nonce)).size, 1_200);
    t.is(rows.at(-1)?.nonce, position.nonce);
    t.true(statements > 3 && statements < 40, `${statements}`);
  },
);

eachEngine(test.serial, 'a page of revisions with many changes ends early, and the next pages have the others', async (t, at) => {
  const database = await open(t, at);
  const changes = await createChanges(database, Date.now);
  const sizes = [1, 3, 12, 2, 10, 5, 1];
  for (const size of sizes)
    await changes.change(actor, async () => ({
      result: null,
      changes: Array.from({ length: size }, (_, n) =>
        change(`${size} ${n}`, { action: n === 0 ? 'policy.create' : 'policy.update' }),
      ),
    }));
  const pages: number[][] = [];
  let cursor: number | null = null;
  do {
    const { revisions, next }: Awaited<ReturnType<typeof listRevisions>> = await listRevisions(database.knex, 4, cursor, 10);
    pages.push(revisions.map(({ created, updated }) => created + updated));
    cursor = next;
  } while (cursor !== null);
  t.deepEqual(pages, [[1, 5], [10], [2], [12], [3, 1]]);
  const whole = await listRevisions(database.knex, 10, null);
  t.deepEqual(
    whole.revisions.map(({ created, updated }) => created + updated),
    sizes.toReversed(),
  );
  t.is(whole.next, null);
});

eachEngine(test.serial, 'a page of large changes ends early, and the next pages have the others', async (t, at) => {
  const database = await open(t, at);
  const changes = await createChanges(database, Date.now);
  const large = Array.from({ length: 30 }, (_, i) =>
    change(`policy ${i}`, { after: { name: `${i}`, text: 'x'.repeat(500_000) } }),
  );
  await changes.change(actor, async () => ({ result: null, changes: large }));
  const found: string[] = [];
  let [cursor, pages]: [number | null, number] = [null, 0];
  do {
    const page = await changes.page(100, cursor);
    t.true(page.changes.length <= 8 && page.changes.length > 0);
    found.push(...page.changes.map(({ object_id }) => object_id));
    cursor = page.next;
    pages++;
  } while (cursor !== null);
  t.true(pages > 1);
  t.deepEqual(found, large.map(({ object_id }) => object_id).reverse());
  t.deepEqual((await listRevisions(database.knex, 10, null)).revisions[0]?.created, 30);
});

eachEngine(
  test.serial,
  'a change that fails leaves nothing behind, and one that changes nothing moves nothing',
  async (t, at) => {
    const database = await open(t, at);
    const changes = await createChanges(database, Date.now);
    await t.throwsAsync(
      changes.change(actor, async (trx) => {
        await trx('first_administrator').insert({ id: 1, user_id: 'x' });
        throw new AppError('last_administrator', 'no');
      }),
      { instanceOf: AppError, message: 'no' },
    );
    t.is(await database.knex('first_administrator').first(), undefined);
    const { position } = await changes.change(actor, async () => ({ result: null, changes: [] }));
    t.is(position.sequence, 0);
    t.deepEqual(await changes.page(10, null), { changes: [], next: null });
  },
);

eachEngine(test.serial, 'simultaneous changes run one at a time, also at several replicas', async (t, at) => {
  const database = await open(t, at);
  const other = database.kind === 'sqlite' ? database : await open(t, at);
  const writers = [
    await createChanges(database, Date.now),
    ...(other === database ? [] : [await createChanges(other, Date.now)]),
  ];
  // Each change adds one to the number that it has read, so a lost update would show.
  await database.knex('audit_sets').insert({ hash: 'sum', names: '0' });
  await Promise.all(
    Array.from({ length: 40 }, (_, i) =>
      writers[i % writers.length]?.change(actor, async (trx) => {
        const { names } = await trx('audit_sets').where('hash', 'sum').first();
        await trx('audit_sets')
          .where('hash', 'sum')
          .update({ names: String(Number(names) + 1) });
        return { result: null, changes: [change(`c${i}`)] };
      }),
    ),
  );
  t.is((await database.knex('audit_sets').where('hash', 'sum').first()).names, '40');
  const rows = (await writers[0]?.page(100, null))?.changes;
  t.deepEqual(
    rows?.map((row) => row.sequence),
    Array.from({ length: 40 }, (_, i) => 40 - i),
  );
  t.is(new Set(rows?.map((row) => row.nonce)).size, 40);
});

eachServer(test.serial, 'a change that the server rolls back while it is recorded leaves nothing behind', async (t, at) => {
  const [database, other] = [await open(t, at), await open(t, at)];
  const changes = await createChanges(database, Date.now);
  await changes.change(actor, async () => ({ result: null, changes: [change('first'), change('second')] }));
  // As a different member of a cluster would, a larger transaction changes the same at the same time. It does not begin with the counter.
  const large = await other.knex.transaction({ isolationLevel: 'repeatable read' });
  const ballast = Array.from({ length: 500 }, (_, i) => ({ hash: `${i}`, names: 'x'.repeat(100) }));
  await large('audit_sets').insert(ballast);
  await large('changes').where('sequence', '>=', 1).forUpdate();
  let locked = (): void => {};
  const hasLocked = new Promise<void>((resolve) => {
    locked = resolve;
  });
  let tried = 0;
  const late = changes.change(actor, async () => {
    tried++;
    locked();
    return { result: null, changes: [change('user', { action: 'user.update' })] };
  });
  await hasLocked;
  const { sequence, revision } = await large('counter').where('id', 1).forUpdate().first();
  const own = { sequence: sequence + 1, nonce: 'b'.repeat(32), revision: revision + 1 };
  const { object_id, ...more } = change('third');
  const actorColumns = { actor_id: 'b', actor_email: 'b', request_id: 'b', created_at: 1, owner: null, override: false };
  await large('changes').insert({ ...own, ...actorColumns, object_type: 'policy', object_id, action: more.action });
  await large('counter').where('id', 1).update(own);
  await large.commit();
  t.is((await late).position.sequence, 4);
  t.is(tried, 2, 'the server rolled it back once');
  const rows = (await changes.page(10, null)).changes;
  t.deepEqual(
    rows.map((row) => [row.sequence, row.revision, row.object_id]),
    [
      [4, 2, 'user'],
      [3, 2, 'third'],
      [2, 1, 'second'],
      [1, 1, 'first'],
    ],
  );
  t.deepEqual(await readPosition(database.knex), (await late).position);
});

eachServer(test.serial, 'a snapshot does not see what is committed after its first read', async (t, at) => {
  const database = await open(t, at);
  const changes = await createChanges(database, Date.now);
  await database.snapshot(async (db) => {
    const before = await readPosition(db);
    await changes.change(actor, async () => ({ result: null, changes: [change('meanwhile')] }));
    t.deepEqual(await readPosition(db), before);
    t.is((await db('changes')).length, 0);
  });
  t.is((await readPosition(database.knex)).sequence, 1);
});

eachEngine(
  test.serial,
  'a probe writes to a table, is shared by simultaneous callers, and fails if the table cannot be written',
  async (t, at) => {
    const database = await open(t, at);
    let writes = 0;
    database.knex.on('query', ({ sql }: { sql: string }) => {
      if (/^update/i.test(sql)) writes++;
    });
    await Promise.all(Array.from({ length: 50 }, () => database.probe()));
    t.is(writes, 1);
    await database.probe();
    t.is(writes, 2);
    await database.knex.schema.dropTable('migrations');
    await t.throwsAsync(database.probe());
  },
);

eachEngine(test.serial, 'identifiers are compared byte for byte', async (t, at) => {
  const { knex } = await open(t, at);
  for (const hash of ['a', 'A', 'a ', 'á', 'a\u0301', '𝒂']) await knex('audit_sets').insert({ hash, names: hash });
  for (const hash of ['a', 'A', 'a ', 'á', 'a\u0301', '𝒂']) {
    const rows = await knex('audit_sets').where('hash', hash);
    t.deepEqual(
      rows.map((row: { names: string }) => row.names),
      [hash],
    );
  }
});

eachEngine(test.serial, 'replicas that start at once migrate once, and a second start finds nothing to do', async (t, at) => {
  const first = await open(t, at);
  if (first.kind === 'sqlite') {
    await first.close();
    t.truthy(await open(t, at));
    return;
  }
  const made: string[] = [];
  const more = await Promise.all(
    Array.from({ length: 4 }, (_, i) =>
      openDatabase(readConfig({ DATABASE_URL: at.url }).database, async (db) => {
        made.push(`in ${i}`);
        await makeCounter(db);
        await new Promise(setImmediate);
        made.push(`out ${i}`);
      }),
    ),
  );
  for (const database of more) t.teardown(() => database.close());
  t.is((await first.knex('counter')).length, 1);
  for (let i = 0; i < made.length; i += 2) t.is(made[i]?.slice(3), made[i + 1]?.slice(4), 'one at a time');
});

test.serial('a SQLite file serves one process at a time, and is free when that process is killed', async (t) => {
  const { createSqlite } = await import('../support/databases/sqlite.ts');
  const at = await createSqlite();
  t.teardown(at.drop);
  const holder = spawn(
    process.execPath,
    ['--import=./scripts/loader/register.js', 'test/support/databases/hold-sqlite.ts', at.url.slice('sqlite:'.length)],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  t.teardown(() => holder.kill('SIGKILL'));
  await once(holder.stdout, 'data');
  const error = await t.throwsAsync(() => open(t, at), { instanceOf: AppError });
  t.regex(error.message, /in use by another process/);
  holder.kill('SIGKILL');
  await once(holder, 'exit');
  t.truthy(await open(t, at));
});

test.serial('a missing database server gets a clear error', async (t) => {
  const error = await t.throwsAsync(
    () => openDatabase(readConfig({ DATABASE_URL: 'mysql://root:hunter2@127.0.0.1:1/x' }).database, makeCounter),
    { instanceOf: AppError },
  );
  t.is(error.code, 'unavailable');
  t.regex(error.message, /127\.0\.0\.1:1\/x cannot be used: .*ECONNREFUSED/);
  t.notRegex(error.message, /hunter2/);
});

test.serial("a SQLite database is its owner's alone, in whatever folder", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-mode-'));
  chmodSync(folder, 0o755);
  t.teardown(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'p.db');
  const database = await openDatabase({ kind: 'sqlite', path }, makeCounter);
  t.teardown(() => database.close());
  const files = readdirSync(folder);
  t.true(files.length >= 2);
  for (const file of files) t.is(statSync(join(folder, file)).mode & 0o077, 0, file);
});
