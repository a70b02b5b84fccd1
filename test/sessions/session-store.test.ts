/** The session store passes the same tests on every database, and so does the store in memory that other tests use. */
import test, { type ExecutionContext } from 'ava';
import { v7 as uuid } from 'uuid';
import type { Connection } from '../../src/db/database.ts';
import { sessionRules } from '../../src/sessions/rules.ts';
import { EVERY_TARGET, type SessionRow, type SessionStore, sessionStore } from '../../src/sessions/session-store.ts';
import { memorySessions } from '../mcp/stores.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';

const NOW = 1_800_000_000_000;
const HOUR = 3_600_000;

const row = (changes: Partial<SessionRow> = {}): SessionRow => ({
  id: uuid(),
  issuer: 'i',
  user_id: 'alice',
  target_id: 't',
  revision: '2025-11-25',
  client: { capabilities: { roots: {} }, clientInfo: { name: 'ü', version: '1' } },
  holder: null,
  created_at: NOW,
  seen_at: NOW,
  ...changes,
});

/** `knex` null: the store is in memory. */
function eachStore(
  title: string,
  run: (t: ExecutionContext, store: SessionStore, knex: Connection | null) => Promise<void>,
): void {
  test.serial(`${title} [memory]`, (t) => run(t, memorySessions(), null));
  eachEngine(test.serial, title, async (t, at) => {
    const { knex } = await openTestDatabase(t, at);
    await run(t, sessionStore(knex), knex);
  });
}

// Servers choose by what is in the table.
test.serial('on SQLite, open sessions are counted in an index, and a list follows the order of the ids', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex } = await openTestDatabase(t, at);
  const asked: { readonly sql: string; readonly bindings: readonly string[] }[] = [];
  knex.on('query', (query) => void (query.sql.includes('from `sessions`') && asked.push(query)));
  const store = sessionStore(knex);
  for (const filter of [{}, { user_id: 'u' }, { target_id: 't' }, { user_id: 'u', target_id: 't' }])
    await store.count(NOW, filter);
  await store.insert(row());
  const pages = [{}, { user_id: 'u' }, { target_id: 't' }, { user_id: 'u', target_id: 't' }].map((filter) =>
    store.parts(NOW, filter, 10, null, 1),
  );
  for (const page of pages) await page.next();
  const plans: string[] = [];
  for (const { sql, bindings } of [...asked]) plans.push(JSON.stringify(await knex.raw(`explain query plan ${sql}`, bindings)));
  const counts = plans.splice(0, 4);
  for (const plan of counts) t.true(plan.includes('COVERING INDEX sessions_open (created_at>?)'), plan);
  t.is(plans.length, 8);
  for (const plan of plans) t.true(plan.includes('INDEX sqlite_autoindex_sessions_1') && !plan.includes('ORDER BY'), plan);
});

eachStore('a session is found until it ends, and ends once', async (t, store) => {
  const session = row();
  t.is(await store.find(session.id), null);
  await store.insert(session);
  t.deepEqual(await store.find(session.id), session);
  await t.throwsAsync(store.insert(session));
  const ends = await Promise.all([store.end(session.id, 'client', NOW), store.end(session.id, 'administrator', NOW)]);
  t.deepEqual([...ends].sort(), [false, true]);
  t.is(await store.find(session.id), null);
  t.false(await store.end('nobody', 'client', NOW));
});

eachStore('sessions are listed in the order of their ids, filtered, without ended ones', async (t, store) => {
  const sessions = Array.from({ length: 7 }, (_, i) =>
    row({ user_id: i % 2 === 0 ? 'alice' : 'bob', target_id: i === 6 ? null : `t${i % 3}` }),
  );
  const [first, , , , , , everywhere] = sessions;
  for (const session of [...sessions].reverse()) await store.insert(session);
  await store.insert(row({ created_at: NOW - 25 * HOUR }));
  const ended = row();
  await store.insert(ended);
  await store.end(ended.id, 'client', NOW);
  const since = NOW - 24 * HOUR;
  const ids = async (...args: Parameters<typeof store.parts>) => {
    const found: string[] = [];
    for await (const part of store.parts(...args)) found.push(...part.map(({ id }) => id));
    return found;
  };
  t.deepEqual(
    await ids(since, {}, null, null),
    sessions.map(({ id }) => id),
  );
  t.deepEqual(
    await ids(since, {}, 2, first?.id ?? null),
    sessions.slice(1, 3).map(({ id }) => id),
  );
  t.deepEqual(
    await ids(since, { user_id: 'bob', target_id: 't1' }, null, null),
    sessions.filter((s) => s.user_id === 'bob' && s.target_id === 't1').map(({ id }) => id),
  );
  for (const atOnce of [1, 2, 3, 9, 10])
    for (const limit of [1, 2, 3, 4, null])
      t.deepEqual(
        await ids(since, { user_id: 'bob' }, limit, first?.id ?? null, atOnce),
        sessions
          .slice(1)
          .filter(({ user_id }) => user_id === 'bob')
          .slice(0, limit ?? 9)
          .map(({ id }) => id),
        `${limit} ${atOnce}`,
      );
  t.is(await store.count(since, {}), 7);
  t.is(await store.count(since, { user_id: 'alice' }), 4);
  t.is(await store.count(since, { target_id: 't0' }), 3, 'a session with every target is one with this one');
  t.true((await ids(since, { user_id: 'alice' }, null, null)).includes(everywhere?.id ?? ''));
});

eachStore('one of several replicas that take over a session at the same time becomes its owner', async (t, store) => {
  const session = row({ holder: 'a' });
  await store.insert(session);
  const taken = await Promise.all(['b', 'c', 'd'].map((to) => store.adopt(session.id, 'a', to)));
  t.is(taken.filter(Boolean).length, 1);
  t.is((await store.find(session.id))?.holder, ['b', 'c', 'd'][taken.indexOf(true)] ?? '');
  t.false(await store.adopt(session.id, null, 'e'));
  await store.end(session.id, 'client', NOW);
  t.false(await store.adopt(session.id, ['b', 'c', 'd'][taken.indexOf(true)] ?? '', 'e'));
});

eachStore('each cause has one upstream session, whichever replica opens it first', async (t, store) => {
  const half = (upstream_id: string | null) => ({ upstream_id, revision: '2025-11-25' });
  const halves = [half('one'), half(null), half('three')];
  const won = await Promise.all(halves.map((h) => store.insertUpstream('s', 'cause', h, NOW)));
  t.is(won.filter(Boolean).length, 1);
  t.deepEqual(await store.upstream('s', 'cause'), halves[won.indexOf(true)] ?? null);
  t.is(await store.upstream('s', 'another'), null);
  t.is(await store.upstream('another', 'cause'), null);
  t.true(await store.insertUpstream('s', 'Cause', half('four'), NOW), 'compared byte for byte');
});

eachStore('upstream sessions of many targets are found and stored at once, and each of them once', async (t, store) => {
  const half = (upstream_id: string) => ({ upstream_id, revision: '2025-11-25' });
  const causes = Array.from({ length: 250 }, (_, i) => `cause-${i}`);
  await store.insertUpstream('s', 'cause-120', half('first'), NOW);
  t.deepEqual(
    await Promise.all(causes.map((cause) => store.insertUpstream('s', cause, half(cause), NOW))),
    causes.map((cause) => cause !== 'cause-120'),
  );
  const others = store.insertUpstream('other', 'cause-1', half('other'), NOW);
  t.deepEqual(await Promise.all([...causes, 'unknown'].map((cause) => store.upstream('s', cause))), [
    ...causes.map((cause) => half(cause === 'cause-120' ? 'first' : cause)),
    null,
  ]);
  t.true(await others);
  t.deepEqual(await Promise.all([store.upstream('other', 'cause-1'), store.upstream('other', 'cause-2')]), [half('other'), null]);
});

eachEngine(test.serial, 'sessions that wait for the same statement share the next one', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = sessionStore(knex);
  const sessions = Array.from({ length: 12 }, () => row());
  for (const session of sessions.slice(0, 10)) await store.insert(session);
  const half = (upstream_id: string) => ({ upstream_id, revision: '2025-11-25' });
  await store.insertUpstream('s5', 'cause', half('first'), NOW);
  let statements = 0;
  knex.on('query', () => statements++);
  const statementsOf = async <T>(work: (session: SessionRow, i: number) => Promise<T>): Promise<[T[], number]> => {
    statements = 0;
    return [await Promise.all(sessions.map(work)), statements];
  };
  // The first goes at once and alone.
  t.deepEqual(await statementsOf(({ id }) => store.find(id)), [[...sessions.slice(0, 10), null, null], 2]);
  const [stored, inserts] = await statementsOf((_, i) => store.insertUpstream(`s${i}`, 'cause', half(`${i}`), NOW));
  t.deepEqual(
    stored,
    sessions.map((_, i) => i !== 5),
  );
  t.true(inserts < sessions.length, 'the one that exists is found by halving');
  t.deepEqual(await statementsOf((_, i) => store.upstream(`s${i}`, i % 2 === 0 ? 'cause' : 'other')), [
    sessions.map((_, i) => (i % 2 === 0 ? half(`${i}`) : null)),
    2,
  ]);
});

eachStore(
  'settings of many targets are read at once, and each target gets its own and those of every target',
  async (t, store) => {
    const targets = Array.from({ length: 150 }, (_, i) => `t${i}`);
    for (const [i, target] of targets.entries())
      if (i % 3 === 0) await store.set('s', target, { key: 'level', value: target }, i);
    await store.set('s', EVERY_TARGET, { key: 'all', value: 'x' }, 1_000);
    t.deepEqual(
      await Promise.all(targets.map((target) => store.settings('s', target))),
      targets.map((target, i) => [...(i % 3 === 0 ? [{ key: 'level', value: target }] : []), { key: 'all', value: 'x' }]),
    );
  },
);

eachStore('a session that ended before it is asked for is not found, also while others ask for it', async (t, store) => {
  const session = row();
  await store.insert(session);
  const before = Array.from({ length: 5 }, () => store.find(session.id));
  const ended = store.end(session.id, 'client', NOW).then(() => Promise.all([store.find(session.id), store.find(session.id)]));
  t.deepEqual(await ended, [null, null]);
  await Promise.all(before);
});

eachStore('a setting belongs to a session and one target, or to every target', async (t, store) => {
  await store.set('s', 't', { key: 'a', value: 'file:///ä' }, NOW);
  await store.set('s', 't', { key: 'level', value: 'info' }, NOW + 1);
  await store.set('s', 't', { key: 'level', value: 'debug' }, NOW + 2);
  await store.set('s', 'u', { key: 'b', value: 'file:///b' }, NOW);
  await store.set('s', EVERY_TARGET, { key: 'c', value: 'file:///c' }, NOW + 3);
  await store.set('other', 't', { key: 'd', value: 'file:///d' }, NOW);
  t.deepEqual(await store.settings('s', 't'), [
    { key: 'a', value: 'file:///ä' },
    { key: 'level', value: 'debug' },
    { key: 'c', value: 'file:///c' },
  ]);
  await store.unset('s', 't', 'a');
  await store.unset('s', 't', 'c');
  t.deepEqual(
    (await store.settings('s', 't')).map(({ key }) => key),
    ['level', 'c'],
  );
  await Promise.all(Array.from({ length: 5 }, (_, i) => store.set('s', 'v', { key: 'level', value: String(i) }, NOW)));
  t.is((await store.settings('s', 'v')).filter(({ key }) => key === 'level').length, 1);
});

eachStore('a session stores at most a thousand settings', async (t, store, knex) => {
  const rows = Array.from({ length: 999 }, (_, i) => ({
    session_id: 's',
    target_id: `t${i % 3}`,
    key: `k${i}`,
    value: 'v',
    created_at: NOW,
  }));
  if (knex !== null) await knex.batchInsert('session_settings', rows, 100);
  else for (const { target_id, key, value } of rows) await store.set('s', target_id, { key, value }, NOW);
  const count = async () => {
    const of = await Promise.all(['t0', 't1', 't2'].map((target) => store.settings('s', target)));
    return of.flat().length;
  };
  await store.set('s', 't0', { key: 'last', value: 'v' }, NOW);
  await store.set('s', 't0', { key: 'too many', value: 'v' }, NOW);
  t.is(await count(), 1000);
  await store.set('s', 't0', { key: 'k0', value: 'w' }, NOW);
  t.true(
    (await store.settings('s', 't0')).some(({ key, value }) => key === 'k0' && value === 'w'),
    'what is there can change',
  );
});

eachStore('sessions that are too old are deleted completely', async (t, store) => {
  const [older, old, young] = [row({ created_at: NOW - 50 * HOUR }), row({ created_at: NOW - 49 * HOUR }), row()];
  for (const { id, created_at } of [older, old, young]) {
    await store.insert(row({ id, created_at }));
    await store.insertUpstream(id, 'c', { upstream_id: 'u', revision: '2025-11-25' }, created_at);
    await store.set(id, 't', { key: 'level', value: 'info' }, created_at);
  }
  while (await store.forget(NOW - 48 * HOUR, 1));
  t.is(await store.find(older.id), null);
  t.is(await store.find(old.id), null);
  t.is(await store.upstream(old.id, 'c'), null);
  t.deepEqual(await store.settings(old.id, 't'), []);
  t.truthy(await store.find(young.id));
  t.truthy(await store.upstream(young.id, 'c'));
  t.is((await store.settings(young.id, 't')).length, 1);
});

eachStore('the last use is recorded only for sessions that exist', async (t, store) => {
  const session = row();
  await store.insert(session);
  await store.seen([session.id, 'nobody'], NOW + 5);
  await store.seen([], NOW + 6);
  t.is((await store.find(session.id))?.seen_at, NOW + 5);
});

eachStore('the rules hold sessions ended by administrators, and the latest recycles', async (t, store, knex) => {
  const [byClient, byAdmin, longAgo] = [row(), row(), row({ created_at: NOW - 25 * HOUR })];
  for (const session of [byClient, byAdmin, longAgo]) await store.insert(session);
  await store.end(byClient.id, 'client', NOW);
  await store.end(byAdmin.id, 'administrator', NOW);
  await store.end(longAgo.id, 'administrator', NOW);
  await store.recycle('alice', '', 3);
  await store.recycle('', 't', 5);
  await store.recycle('bob', 't', 4);
  await store.recycle('alice', '', 7);
  t.deepEqual(await store.endedByAdministrators(NOW - 24 * HOUR), [byAdmin.id]);
  t.deepEqual((await store.recycles()).map(({ user_id, target_id, epoch }) => `${user_id} ${target_id} ${epoch}`).sort(), [
    ' t 5',
    'alice  7',
    'bob t 4',
  ]);
  if (knex === null) return;
  const rules = await sessionRules(knex, NOW);
  t.deepEqual([...rules.ended], [byAdmin.id]);
  t.is(rules.epochOf('alice', 't'), 7);
  t.is(rules.epochOf('alice', 'u'), 7);
  t.is(rules.epochOf('bob', 't'), 5);
  t.is(rules.epochOf('bob', 'u'), 0);
  t.is(rules.epochOf('', ''), 0);
  await store.recycle('', '', 9);
  t.is((await sessionRules(knex, NOW)).epochOf('bob', 'u'), 9);
});

eachEngine(
  test.serial,
  'beyond a limit, a recycle is one of all users with the target, and no epoch becomes smaller',
  async (t, at) => {
    const { knex } = await openTestDatabase(t, at);
    const store = sessionStore(knex);
    const pairs = [
      ['a', 't'],
      ['b', 't'],
      ['a', 'u'],
      ['a', ''],
      ['b', 'u'],
      ['c', 'v'],
      ['c', ''],
    ] as const;
    const epochs = async () => {
      const { epochOf } = await sessionRules(knex, NOW);
      return ['a', 'b', 'c'].flatMap((user) => ['t', 'u', 'v'].map((target) => epochOf(user, target)));
    };
    const stored: number[] = [];
    let before = await epochs();
    for (const [i, [user, target]] of pairs.entries()) {
      await store.recycle(user, target, i + 1, 3);
      const after = await epochs();
      t.true(
        after.every((epoch, n) => epoch >= (before[n] ?? 0)),
        `${after}`,
      );
      before = after;
      stored.push((await store.recycles()).length);
    }
    // The fourth pair concerns every target of its user.
    t.deepEqual(stored, [1, 2, 3, 1, 2, 3, 1]);
    t.deepEqual(before, Array(9).fill(7));
    for (const [i, user] of ['a', 'b', 'c', 'd'].entries()) await store.recycle(user, 't', 8 + i, 3);
    t.deepEqual((await store.recycles()).map(({ user_id, target_id, epoch }) => `${user_id} ${target_id} ${epoch}`).sort(), [
      '  7',
      ' t 10',
      'd t 11',
    ]);
    const { epochOf } = await sessionRules(knex, NOW);
    t.deepEqual([epochOf('a', 't'), epochOf('d', 't'), epochOf('d', 'u')], [10, 11, 7]);
  },
);
