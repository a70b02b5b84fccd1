import test from 'ava';
import { tokenStore } from '../src/auth/token-store.ts';
import { uuidv7 } from '../src/base/ids.ts';
import { createChanges, type ObjectType, policiesBefore, readPosition, removeChanges } from '../src/db/changes.ts';
import type { Database } from '../src/db/database.ts';
import type { Engine } from '../src/engine/decision.ts';
import { type ClientRecord, clientStore } from '../src/oauth/client-store.ts';
import { sessionStore } from '../src/sessions/session-store.ts';
import { readIdentities } from '../src/state/identity-store.ts';
import { createCurrent } from '../src/state/live-state.ts';
import { createUpkeep } from '../src/upkeep.ts';
import { localUser, userStore } from '../src/users/user-store.ts';
import { openTestDatabase } from './support/database.ts';
import { eachEngine } from './support/databases/each-engine.ts';
import { createSqlite } from './support/databases/sqlite.ts';

const DAY = 24 * 60 * 60 * 1000;
const NOW = 1_800_000_000_000;
const quiet = { info: () => {}, warn: () => {} };
const actor = { id: 'a', email: 'a@x', request_id: 'r' };

async function runOn(database: Database, changesDays: number): Promise<void> {
  const upkeep = createUpkeep({ database, changesDays, checkClock: async () => {}, log: quiet, now: () => NOW });
  await upkeep.run();
  await upkeep.stop();
}

// Servers choose by what is in the table.
test.serial('on SQLite, ended tokens and the tokens of keys are not searched for among the logins of strangers', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex } = await openTestDatabase(t, at);
  const selects: { readonly sql: string; readonly bindings: readonly string[] }[] = [];
  knex.on('query', (query) => void (query.sql.startsWith('select') && selects.push(query)));
  await tokenStore(knex).countByKey(NOW);
  await tokenStore(knex).deleteEnded(NOW, 500);
  t.is(selects.length, 3);
  for (const { sql, bindings } of [...selects]) {
    const plan = JSON.stringify(await knex.raw(`explain query plan ${sql}`, bindings));
    t.regex(plan, /SEARCH tokens USING (?:COVERING )?INDEX tokens_by_end \(kind=\? AND revoked_at/, sql);
  }
});

test.serial('on SQLite, the tokens of many users are found by the users, not among those of everybody', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex } = await openTestDatabase(t, at);
  const asked: { readonly sql: string; readonly bindings: unknown[] }[] = [];
  const listen = (query: { readonly sql: string; readonly bindings: unknown[] }) => asked.push(query);
  knex.on('query', listen);
  const ids = Array.from({ length: 40 }, (_, n) => `user ${n}`);
  await tokenStore(knex).revokeLoginsOf(ids, null, NOW);
  await tokenStore(knex).apiTokensOf(ids);
  await tokenStore(knex).endpointsOf(ids, NOW);
  await tokenStore(knex).listOf('u');
  knex.removeListener('query', listen);
  t.true(asked.length >= 4);
  for (const { sql, bindings } of asked) {
    const plan = JSON.stringify(await knex.raw(`explain query plan ${sql}`, bindings as string[]));
    t.regex(plan, /SEARCH tokens USING INDEX \w+ \(user_id=\?/, sql);
  }
});

eachEngine(test.serial, 'tokens are deleted a while after they were revoked or have expired, and others stay', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const tokens = tokenStore(database.knex);
  const base = { limits: null, user_id: 'u', kid: 'k', created_at: NOW - 400 * DAY };
  const api = { ...base, kind: 'api', name: 'n', expires_at: null } as const;
  const login = { ...base, kind: 'login', name: null } as const;
  const [long, lately] = [NOW - 31 * DAY, NOW - 29 * DAY];
  await tokens.insert({ ...api, id: 'api in force', revoked_at: null });
  await tokens.insert({ ...api, id: 'api revoked lately', revoked_at: lately });
  await tokens.insert({ ...login, id: 'login expired lately', expires_at: lately, revoked_at: null });
  await tokens.insert({ ...login, id: 'login revoked lately', expires_at: lately, revoked_at: lately });
  // More than one batch.
  for (let i = 0; i < 600; i++) await tokens.insert({ ...api, id: `old ${i}`, revoked_at: long });
  await tokens.insert({ ...login, id: 'old login', expires_at: long, revoked_at: null });
  await runOn(database, 0);
  const left: { id: string }[] = await database.knex('tokens').orderBy('id').select('id');
  t.deepEqual(
    left.map(({ id }) => id),
    ['api in force', 'api revoked lately', 'login expired lately', 'login revoked lately'],
  );
});

/** The most rows that one deletion removes from now on. */
function mostDeleted({ knex }: Database): () => number {
  let most = 0;
  knex.on('query-response', (response: unknown, { method }: { method?: string }) => {
    if (method === 'del') most = Math.max(most, Number(response));
  });
  return () => most;
}

eachEngine(test.serial, 'tasks are deleted in batches when their time is over', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const old = Array.from({ length: 1_200 }, (_, i) => ({ id: `old ${i}`, handle: 'h', created_at: NOW - 31 * DAY + (i % 3) }));
  await database.knex.batchInsert('tasks', [...old, { id: 'young', handle: 'h', created_at: NOW - 29 * DAY }], 100);
  const most = mostDeleted(database);
  await runOn(database, 0);
  t.deepEqual(await database.knex('tasks').select('id'), [{ id: 'young' }]);
  t.is(most(), 500);
});

eachEngine(test.serial, 'the rows of one old session are deleted in batches', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const settings = Array.from({ length: 1_000 }, (_, i) => ({
    ...{ session_id: 's', target_id: 't', key: `${i}`, value: 'v', created_at: NOW - 50 * DAY },
  }));
  await database.knex.batchInsert('session_settings', settings, 100);
  const most = mostDeleted(database);
  const store = sessionStore(database.knex);
  while (await store.forget(NOW, 300));
  t.deepEqual(await database.knex('session_settings').select('key'), []);
  t.is(most(), 300);
});

eachEngine(test.serial, 'old changes are removed, except those of policies and the newest change', async (t, at) => {
  const database = await openTestDatabase(t, at);
  let time = NOW - 100 * DAY;
  const changes = await createChanges(database, () => time);
  const make = (object_type: ObjectType, object_id: string) => {
    const change = { action: `${object_type}.update`, object_id, before: null, after: { name: object_id } } as const;
    return changes.change(actor, async () => ({ result: null, changes: [change] }));
  };
  await make('policy', 'p1');
  for (const type of ['user', 'token', 'target', 'credential', 'key', 'session', 'draft'] as const) await make(type, 'old');
  await make('policy', 'p2');
  time = NOW - 5 * DAY;
  await make('user', 'young');
  time = NOW - 100 * DAY;
  await make('token', 'newest');

  await runOn(database, 0);
  t.is((await changes.page(100, null)).changes.length, 11);
  await runOn(database, 30);
  t.deepEqual(
    (await changes.page(100, null)).changes.map(({ object_id }) => object_id),
    ['newest', 'young', 'p2', 'p1'],
  );
  t.deepEqual(
    (await policiesBefore(database.knex, 0)).map(({ object_id }) => object_id),
    ['p1', 'p2'],
  );
  const [newest] = (await changes.page(1, null)).changes;
  t.like(await readPosition(database.knex), { sequence: newest?.sequence, nonce: newest?.nonce });

  time = NOW;
  await make('user', 'next');
  t.is(await removeChanges(database.knex, NOW - 30 * DAY, 500), 1, 'it is not the newest any more');
  await make('user', 'one more');
  t.is((await changes.page(100, null)).changes.length, 5);
});

eachEngine(test.serial, 'a replica that is behind while changes are removed does not miss any of them', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  let time = NOW - 100 * DAY;
  const changes = await createChanges(database, () => time);
  const users = userStore(knex);
  const person = (id: string) => localUser({ id, email: `${id}@x`, role: 'user', groups: [] }, NOW);
  const record = { kind: 'api', name: 'n', kid: 'k', created_at: NOW, expires_at: null, revoked_at: null, limits: null } as const;
  for (const id of ['a', 'b']) {
    await users.insert(person(id), 'hash');
    await tokenStore(knex).insert({ ...record, id: `token of ${id}`, user_id: id });
  }
  const loads: string[] = [];
  const current = createCurrent({
    database,
    // A replica that has not made the changes itself.
    changes: { ...changes, known: () => null },
    policies: async () => [],
    targets: async (_, ids) => {
      loads.push(ids === null ? 'everything' : ids.join());
      return new Map();
    },
    sessions: async () => ({ ended: new Set<string>(), epochOf: () => 0 }),
    rights: async () => [],
    clock: () => Date.now(),
    providers: async () => new Map(),
    identities: readIdentities,
    build: async () => ({}) as Engine,
    gateTimeoutMs: 30_000,
    boundMs: 0,
    now: () => performance.now(),
  });
  const roleOf = async (id: string): Promise<string | null> => {
    const base = { iss: 'portcullis', sub: id, kid: 'k', exp: null, provider: null, resource: null };
    const admitted = await current.admit({ ...base, jti: `token of ${id}` });
    return 'refused' in admitted ? null : admitted.principal.role;
  };
  const set = (id: string, facts: { readonly role?: string; readonly enabled?: boolean }) =>
    changes.change(actor, async (trx) => {
      await userStore(trx).update({ ...person(id), ...facts });
      const change = { action: 'user.update', object_id: id, before: null, after: null } as const;
      return { result: null, changes: [change] };
    });

  await set('a', { role: 'first' });
  t.deepEqual([await roleOf('a'), await roleOf('b')], ['first', 'user']);
  // Of the changes that the replica has not seen, only the newest is left, and it concerns a different user.
  await set('a', { enabled: false });
  await set('b', { role: 'second' });
  await runOn(database, 30);
  t.is((await changes.page(10, null)).changes.length, 1);
  t.deepEqual([await roleOf('a'), await roleOf('b')], [null, 'second']);
  t.deepEqual(loads, ['everything', 'everything']);

  // The change that the replica has seen is stored, but the next one was removed, because clocks of replicas differ.
  time = NOW;
  await set('b', { role: 'third' });
  t.is(await roleOf('b'), 'third');
  time = NOW - 100 * DAY;
  await set('a', { role: 'third' });
  await set('b', { enabled: false });
  await runOn(database, 30);
  t.is((await changes.page(10, null)).changes.length, 2);
  t.deepEqual([await roleOf('a'), await roleOf('b')], ['third', null]);
  t.deepEqual(loads, ['everything', 'everything', 'everything']);

  // No change is missing between the position of the replica and the newest one.
  await set('a', { role: 'fourth' });
  await removeChanges(knex, NOW - 200 * DAY, 500);
  t.deepEqual([await roleOf('a'), await roleOf('b')], ['fourth', null]);
  t.is(loads.length, 3);
});

eachEngine(test, 'clients that nobody uses any more are deleted, those with a document, too', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  const store = clientStore(knex);
  const add = async (client_id: string, more: Partial<ClientRecord>) => {
    const record = {
      kind: 'document' as const,
      name: 'c',
      metadata: null,
      enabled: true,
      created_at: NOW - 400 * DAY,
      used_at: null,
    };
    await store.insert({ id: uuidv7(), client_id, ...record, ...more });
  };
  const old = NOW - 91 * DAY;
  await add('registered', { kind: 'registered', used_at: old });
  await add('document', { used_at: old });
  await add('document, never approved', {});
  await add('document, in use', { used_at: NOW - DAY });
  await add('document, disabled', { used_at: old, enabled: false });
  await add('document, with a grant', { used_at: old });
  await add('built in', { kind: 'built-in', used_at: old });
  const granted = (await store.findByClientId('document, with a grant'))?.id ?? '';
  await knex('grants').insert({
    ...{ id: uuidv7(), user_id: 'u', client: granted, resources: '{}', openid: '', redirect_uri: '' },
    ...{ created_at: old, used_at: old, expires_at: NOW + DAY },
  });
  await runOn(database, 0);
  t.deepEqual((await knex('oauth_clients').pluck('client_id')).sort(), [
    ...['built in', 'document, disabled', 'document, in use', 'document, with a grant'],
  ]);
});
