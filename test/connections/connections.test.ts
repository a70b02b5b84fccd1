import { randomUUID } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { createLog } from '../../src/base/log.ts';
import { deferred } from '../../src/base/promises.ts';
import { redirectUriOf } from '../../src/connections/clients.ts';
import type { Visitor } from '../../src/connections/flows.ts';
import { createRevocations } from '../../src/connections/revocations.ts';
import type { Servers } from '../../src/connections/servers.ts';
import type { HeldToken, NoToken } from '../../src/connections/tokens.ts';
import { createChanges } from '../../src/db/changes.ts';
import { type AccountTarget, openTokens, sealTokens, type Tokens } from '../../src/targets/connections.ts';
import { targetStore } from '../../src/targets/target-store.ts';
import { type FactsRefusal, type ProviderFacts, type User, userStore } from '../../src/users/user-store.ts';
import { insertTarget, insertVisitor, PUBLIC_URL, type Replica, replica, vault } from '../support/connections.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import type { TestDatabase } from '../support/databases/engines.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import {
  type AccountProvider,
  type AccountTargetServer,
  type ProviderOptions,
  signInAt,
  startAccountTarget,
  startProvider,
} from '../support/upstreams/account-target.ts';

interface World {
  readonly provider: AccountProvider;
  readonly server: AccountTargetServer;
  readonly target: AccountTarget;
  readonly a: Replica;
  readonly b: Replica;
  readonly visitor: Visitor;
  /** Lets time pass for the gateway. The provider's clock is the real one, so its tokens stay valid there. */
  pass(ms: number): void;
  now(): number;
}

async function world(t: ExecutionContext, db: TestDatabase, options: ProviderOptions = {}): Promise<World> {
  const provider = await startProvider(options);
  const server = await startAccountTarget(provider);
  t.teardown(async () => {
    await server.stop();
    await provider.stop().catch(() => undefined);
  });
  const database = await openTestDatabase(t, db);
  const other = db.url.startsWith('mysql') ? await openTestDatabase(t, db) : database;
  let passed = 0;
  const now = () => Date.now() + passed;
  const [a, b] = [await replica(t, database, now), await replica(t, other, now)];
  const pass = (ms: number): void => {
    passed += ms;
  };
  return {
    provider,
    server,
    a,
    b,
    pass,
    now,
    target: await insertTarget(database, server.url),
    visitor: await insertVisitor(database),
  };
}

/** For what has no SQL that the other tests do not have. */
const onSqlite = (title: string, run: (t: ExecutionContext, db: TestDatabase) => Promise<void>): void =>
  test.serial(title, async (t) => {
    const db = await createSqlite();
    t.teardown(db.drop);
    await run(t, db);
  });

const headerOf = (token: HeldToken | NoToken): string => {
  if ('none' in token) throw new Error(`no token: ${token.none} ${token.cause}`);
  return token.credentials.headers[0]?.[1] ?? '';
};
const accountOf = ({ provider }: World, token: HeldToken | NoToken): string | undefined => {
  const value = headerOf(token).replace('Bearer ', '');
  return provider.issued.get(value);
};

/** Changes the body of an answer of the provider. */
function changeAnswer(res: ServerResponse, change: (text: string) => string): void {
  const write = res.end.bind(res) as (chunk?: unknown) => typeof res;
  res.end = ((chunk?: unknown) => {
    const text = change(String(chunk));
    res.setHeader('content-length', Buffer.byteLength(text));
    return write(text);
  }) as typeof res.end;
}

eachEngine(test.serial, 'an account is found, registered for, connected, and its token is the account', async (t, db) => {
  const w = await world(t, db);
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  t.is(row.issuer, w.provider.issuer);
  t.is(row.scope, 'tools');
  t.is(accountOf(w, await w.b.tokens.get(w.b.at(w.visitor, w.target, row.id))), 'alice');
  t.false(row.sealed.includes('Bearer'));
  t.is(openTokens(vault, { ...row, user_id: 'someone else' }), null, 'the tokens belong to the row of their user');
});

eachEngine(test.serial, 'each refresh token is used once when two replicas renew at once, and nothing is lost', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  for (let round = 0; round < 3; round++) {
    w.pass(1_000);
    const all = await Promise.all(
      [w.a, w.b, w.a, w.b, w.b].map(async (one) => accountOf(w, await one.tokens.get(one.at(w.visitor, w.target, row.id)))),
    );
    t.deepEqual(new Set(all), new Set(['alice']));
  }
  t.true(w.provider.refreshed.size >= 3);
  t.deepEqual(new Set(w.provider.refreshed.values()), new Set([1]));
});

eachEngine(
  test.serial,
  'two users renew expiring tokens at two replicas, and neither gets the token of the other',
  async (t, db) => {
    const w = await world(t, db, { accessTokenTtl: 1 });
    const second = await insertVisitor(w.a.database);
    const users = [
      { visitor: w.visitor, who: 'alice', id: (await w.a.connect(w.visitor, w.target, 'alice')).id },
      { visitor: second, who: 'bob', id: (await w.b.connect(second, w.target, 'bob')).id },
    ];
    const call = async (one: Replica, { visitor, who, id }: (typeof users)[number]): Promise<void> => {
      const token = one.tokens.fresh(one.at(visitor, w.target, id)) ?? (await one.tokens.get(one.at(visitor, w.target, id)));
      t.is(accountOf(w, token), who);
    };
    for (let round = 0; round < 20; round++) {
      w.pass(round % 2 === 0 ? 350 : 150);
      await Promise.all(users.flatMap((user) => [call(w.a, user), call(w.b, user), call(w.b, user)]));
    }
    t.true(w.provider.refreshed.size >= 6, `${w.provider.refreshed.size} renewals`);
    t.deepEqual(new Set(w.provider.refreshed.values()), new Set([1]));
    const [own] = users.map(({ visitor, id }) => w.a.at(visitor, w.target, id));
    if (own === undefined) return t.fail();
    t.is(accountOf(w, await w.a.tokens.get(own)), 'alice');
    t.truthy(w.a.tokens.fresh(own));
    t.is(w.a.tokens.fresh(w.a.at(second, w.target, own.id)), null, 'also not from memory');
    t.is(w.a.tokens.fresh({ ...own, target: { ...own.target, url: 'http://127.0.0.1:9/mcp' } }), null, 'nor for another server');
    const foreign = await w.a.tokens.get(w.a.at(second, w.target, users[0]?.id ?? ''));
    t.deepEqual(foreign, { none: 'reconnect' }, 'the connection of a different user gives nothing');
  },
);

eachEngine(test.serial, 'a stolen state, a different user, a different browser and a second use are refused', async (t, db) => {
  const w = await world(t, db);
  const thief = await insertVisitor(w.a.database);
  const other = await insertTarget(w.a.database, w.server.url);
  const { url } = await w.a.connecting.begin(w.visitor, w.target);
  const returned = await signInAt(url, 'alice', PUBLIC_URL);
  const foreign = { name: 'ConnectionFault', message: /begun by a different user or in a different browser/ };
  await t.throwsAsync(w.b.connecting.finish(thief, w.target, returned), foreign);
  const inSameBrowser = { ...thief, browserSessionId: w.visitor.browserSessionId };
  await t.throwsAsync(w.b.connecting.finish(inSameBrowser, w.target, returned), foreign);
  await t.throwsAsync(
    w.b.connecting.finish({ ...w.visitor, browserSessionId: thief.browserSessionId }, w.target, returned),
    foreign,
  );
  await t.throwsAsync(w.b.connecting.finish(w.visitor, other, returned), foreign);
  const altered = new URL(returned);
  altered.searchParams.set('state', 'x');
  await t.throwsAsync(w.b.connecting.finish(w.visitor, w.target, altered), foreign);
  altered.searchParams.append('state', returned.searchParams.get('state') ?? '');
  await t.throwsAsync(w.b.connecting.finish(w.visitor, w.target, altered), foreign);
  const row = await w.b.connecting.finish(w.visitor, w.target, returned);
  await t.throwsAsync(w.a.connecting.finish(w.visitor, w.target, returned), foreign);
  t.is((await w.a.store.ofUser(thief.caller.principal.sub)).length, 0);
  t.is((await w.a.store.findOf(w.visitor.caller.principal.sub, w.target.id))?.id, row.id);
});

onSqlite('an answer of a different issuer, or without an issuer, is refused (mix-up)', async (t, db) => {
  const w = await world(t, db);
  for (const iss of ['https://attacker.example', null]) {
    const { url } = await w.a.connecting.begin(w.visitor, w.target);
    const returned = await signInAt(url, 'alice', PUBLIC_URL);
    if (iss === null) returned.searchParams.delete('iss');
    else returned.searchParams.set('iss', iss);
    await t.throwsAsync(w.a.connecting.finish(w.visitor, w.target, returned), { message: /is not valid/ });
  }
  t.is(await w.a.store.findOf(w.visitor.caller.principal.sub, w.target.id), null);
});

onSqlite('a user who refuses at the server, or whose target has moved meanwhile, has no connection', async (t, db) => {
  const w = await world(t, db);
  await t.throwsAsync(w.a.connect(w.visitor, w.target, 'refuser'), { message: /was told not to give access/ });
  const { url } = await w.a.connecting.begin(w.visitor, w.target);
  const returned = await signInAt(url, 'alice', PUBLIC_URL);
  await targetStore(w.a.database.knex).update({ ...w.target, url: `${w.target.url}/elsewhere` });
  await t.throwsAsync(w.a.connecting.finish(w.visitor, w.target, returned), { message: /was changed meanwhile/ });
});

onSqlite(
  'tokens go to no other address, issuer or client, and a row given to a different user or target has none',
  async (t, db) => {
    const w = await world(t, db);
    const { id } = await w.a.connect(w.visitor, w.target, 'alice');
    const none = { none: 'reconnect' } as const;
    const get = (target: AccountTarget, visitor = w.visitor) => w.b.tokens.get(w.b.at(visitor, target, id));
    const { own_accounts } = w.target;
    const moved: readonly AccountTarget[] = [
      { ...w.target, url: 'https://evil.example/mcp' },
      { ...w.target, own_accounts: { ...own_accounts, issuer: 'https://evil.example' } },
      { ...w.target, own_accounts: { ...own_accounts, client_id: 'evil' } },
    ];
    for (const target of moved) t.deepEqual(await get(target), none);
    const [thief, other] = [await insertVisitor(w.a.database), await insertTarget(w.a.database, w.server.url)];
    const [user_id, target_id] = [w.visitor.caller.principal.sub, w.target.id];
    const edit = (row: object) => w.a.database.knex('connections').where({ id }).update(row);
    await edit({ user_id: thief.caller.principal.sub });
    t.deepEqual(await get(w.target, thief), none);
    await edit({ user_id, target_id: other.id });
    t.deepEqual(await get(other), none);
    await edit({ target_id });
    t.is(accountOf(w, await get(w.target)), 'alice');
  },
);

onSqlite('an authorization server that is down leaves the connection as it is', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(1_000);
  await w.provider.stop();
  const down = await w.a.tokens.get(w.a.at(w.visitor, w.target, row.id));
  t.is('none' in down && down.none, 'unavailable');
  t.is((await w.a.store.find(row.id))?.renewing_until, null, 'the refresh token was not sent');
  await w.provider.start();
  t.is(accountOf(w, await w.b.tokens.get(w.b.at(w.visitor, w.target, row.id))), 'alice');
});

onSqlite('a refused renewal asks the user to connect again, and no further request goes out', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  const tokens = openTokens(vault, row);
  await (await w.provider.provider.RefreshToken.find(tokens?.refresh_token ?? ''))?.destroy();
  w.pass(1_000);
  for (const one of [w.a, w.b, w.a]) {
    const none = await one.tokens.get(one.at(w.visitor, w.target, row.id));
    t.is('none' in none && none.none, 'reconnect');
  }
  t.deepEqual([...w.provider.refreshed.values()], [1]);
  t.is((await w.a.store.find(row.id))?.problem, 'refused');
  const again = await w.a.connect(w.visitor, w.target, 'alice');
  t.not(again.id, row.id);
  t.is(accountOf(w, await w.b.tokens.get(w.b.at(w.visitor, w.target, again.id))), 'alice');
});

for (const [what, changed] of [
  ['a type that the gateway does not accept', (text: string) => text.replace('"Bearer"', '"mac"')],
  ['an ID token that is not valid', (text: string) => text.replace('{', '{"id_token":"a.b.c",')],
] as const) {
  onSqlite(`the tokens of a sign-in that came with ${what} are revoked`, async (t, db) => {
    const w = await world(t, db);
    let given = '';
    const keepGiven = (text: string): string => {
      given = text;
      return text;
    };
    w.provider.intercept = (req, res) => {
      if (req.url === '/token') changeAnswer(res, (text) => changed(keepGiven(text)));
      return false;
    };
    await t.throwsAsync(w.a.connect(w.visitor, w.target, 'alice'), { message: /is not valid/ });
    const { refresh_token } = JSON.parse(given) as { refresh_token: string };
    t.truthy(refresh_token);
    t.is(await w.provider.provider.RefreshToken.find(refresh_token), undefined);
    t.is(await w.a.store.findOf(w.visitor.caller.principal.sub, w.target.id), null);
  });
}

onSqlite('new tokens are stored even if the rest of the answer is not valid', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(1_000);
  // The answer of the first renewal has a type that the gateway does not accept.
  let spoilt = 0;
  w.provider.intercept = (req, res) => {
    if (req.url === '/token' && spoilt++ === 0) changeAnswer(res, (text) => text.replace('"Bearer"', '"Strange"'));
    return false;
  };
  const none = await w.a.tokens.get(w.a.at(w.visitor, w.target, row.id));
  t.is('none' in none && none.none, 'unavailable');
  t.is(spoilt, 1);
  w.pass(2_100);
  t.is(accountOf(w, await w.b.tokens.get(w.b.at(w.visitor, w.target, row.id))), 'alice');
  t.deepEqual([...w.provider.refreshed.values()], [1, 1], 'the second renewal used the new refresh token');
});

eachEngine(test.serial, 'a renewal whose process was killed is tried once more when its lock has run out', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(1_000);
  const now = w.now();
  t.true(await w.a.store.lock(row, 'killed', now + 15_000, now));
  t.false(await w.b.store.lock(row, 'second', now + 15_000, now), 'one lock for all replicas');
  let isRenewed = false;
  const renewing = w.b.tokens.get(w.b.at(w.visitor, w.target, row.id)).finally(() => {
    isRenewed = true;
  });
  await sleep(200);
  t.false(isRenewed, 'it waits for the lock');
  t.is(w.provider.refreshed.size, 0);
  w.pass(15_000);
  t.is(accountOf(w, await renewing), 'alice');
  t.true(JSON.stringify(w.b.logged).includes('was interrupted'));
});

/** The answer to the next statement with this text gets lost, after the database has run it. Returns whether that has happened. */
function loseAnswer({ knex }: Replica['database'], text: string): () => boolean {
  const client = knex.client as { _query: (connection: unknown, query: { readonly sql: string }) => Promise<unknown> };
  const run = client._query;
  let isLost = false;
  client._query = async (connection, query) => {
    const answer = await run.call(client, connection, query);
    if (isLost || !query.sql.includes(text)) return answer;
    isLost = true;
    throw Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' });
  };
  return () => isLost;
}

eachEngine(test.serial, 'renewed tokens are used although the answer to storing them got lost', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 60 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(60_000);
  const isLost = loseAnswer(w.a.database, '`sealed` = ');
  t.is(accountOf(w, await w.a.tokens.get(w.a.at(w.visitor, w.target, row.id))), 'alice');
  t.true(isLost());
  t.like(await w.a.store.find(row.id), { version: row.version + 1, problem: null, renewing_until: null });
});

eachEngine(test.serial, 'a renewal whose lock was taken, but not confirmed, does not block the next', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 60 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(60_000);
  const isLost = loseAnswer(w.a.database, '`renewing_by` = ');
  await t.throwsAsync(w.a.tokens.get(w.a.at(w.visitor, w.target, row.id)));
  t.true(isLost());
  t.is((await w.a.store.find(row.id))?.renewing_until, null);
  t.is(accountOf(w, await w.b.tokens.get(w.b.at(w.visitor, w.target, row.id))), 'alice');
  t.deepEqual([...w.provider.refreshed.values()], [1]);
});

onSqlite('the first token of an account that was long under way is renewed before it is used', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 10 });
  w.provider.intercept = async (req) => {
    if (req.url === '/token') w.pass(12_000);
    return false;
  };
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.provider.intercept = async () => false;
  t.is(accountOf(w, await w.a.tokens.get(w.a.at(w.visitor, w.target, row.id))), 'alice');
  t.is(w.provider.refreshed.size, 1);
});

onSqlite('a token that was long under way is renewed again when its target refuses it', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 10 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(10_000);
  w.provider.intercept = async (req) => {
    if (req.url === '/token') w.pass(12_000);
    return false;
  };
  const at = w.a.at(w.visitor, w.target, row.id);
  const late = await w.a.tokens.get(at);
  t.is(accountOf(w, late), 'alice');
  t.is(accountOf(w, await w.a.tokens.afterRefusal(at, late as HeldToken)), 'alice');
  t.is(w.provider.refreshed.size, 2);
});

eachEngine(test.serial, 'the reads of a replica do not grow with the number of renewals that wait for others', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  const tokens = openTokens(vault, row);
  if (tokens === null) return t.fail();
  const sealed = (id: string, user_id: string, given: Tokens): string =>
    sealTokens(vault, { ...row, id, user_id }, tokens.origin, given);
  w.pass(1_000);
  const until = w.now() + 30_000;
  const waiting = Array.from({ length: 200 }, () => ({ id: randomUUID(), user: randomUUID() }));
  for (const { id, user } of waiting) {
    const lock = { renewing_by: 'other', renewing_until: until };
    await w.a.store.insert({ ...row, id, user_id: user, sealed: sealed(id, user, tokens), ...lock });
  }
  let [reads, polls] = [0, 0];
  const count = ({ sql }: { sql: string }): void => {
    if (!/^select .*connections/.test(sql)) return;
    reads++;
    if (/ in \(/.test(sql)) polls++;
  };
  w.b.database.knex.on('query', count);
  t.teardown(() => w.b.database.knex.removeListener('query', count));
  const begun = performance.now();
  const all = Promise.all(waiting.map(({ id, user }) => w.b.tokens.get({ id, target: w.target, user })));
  while (reads - polls < 2 * waiting.length) await sleep(10);
  await sleep(1_000);
  const rounds = Math.floor((performance.now() - begun) / 45) + 1;
  t.true(polls > 0 && polls <= rounds, `${polls} queries for those that wait`);
  t.is(reads - polls, 2 * waiting.length, 'each was read before its wait, and not again');

  // One user disconnects, and the different replica renews the others.
  const [gone, ...renewed] = waiting;
  await w.a.store.end({ id: gone?.id ?? '' }, w.now());
  const next = { ...tokens, access_token: 'renewed', expires_at: w.now() + 3_600_000 };
  for (const { id, user } of renewed) {
    await w.a.store.renew({ ...row, id }, { sealed: sealed(id, user, next), scope: row.scope, renewed_at: w.now() });
  }
  const [none, ...given] = await all;
  t.deepEqual(none, { none: 'reconnect' });
  t.deepEqual(new Set(given.map(headerOf)), new Set(['Bearer renewed']));
  t.is(reads - polls, 3 * waiting.length, 'each was read once more');
  t.is(w.provider.refreshed.size, 0);
});

onSqlite('if the killed process had used the refresh token, the user is told so', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(1_000);
  const now = w.now();
  await w.a.store.lock(row, 'killed', now, now);
  const used = await w.provider.provider.RefreshToken.find(openTokens(vault, row)?.refresh_token ?? '');
  await used?.consume();
  const none = await w.b.tokens.get(w.b.at(w.visitor, w.target, row.id));
  t.is('none' in none && none.none, 'reconnect');
  t.is((await w.a.store.find(row.id))?.problem, 'interrupted');
});

eachEngine(
  test.serial,
  'an ended connection is revoked at the provider, again after an outage, and then deleted',
  async (t, db) => {
    const w = await world(t, db);
    const row = await w.a.connect(w.visitor, w.target, 'alice');
    const tokens = openTokens(vault, row);
    const isAlive = async () => (await w.provider.provider.RefreshToken.find(tokens?.refresh_token ?? '')) !== undefined;
    await w.provider.stop();
    await w.a.connecting.end(w.visitor.caller, 'own', { id: row.id });
    await w.a.revocations.run();
    t.deepEqual(await w.b.tokens.get(w.b.at(w.visitor, w.target, row.id)), { none: 'reconnect' }, 'ended at once');
    await w.provider.start();
    t.true(await isAlive());
    await w.a.database.knex('connections').update({ revoke_at: 0 });
    await w.b.revocations.run();
    t.false(await isAlive());
    t.is(await w.b.store.find(row.id), null);
  },
);

eachEngine(test.serial, 'tokens that a renewal gives after the connection has ended are revoked, too', async (t, db) => {
  const w = await world(t, db, { accessTokenTtl: 1 });
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  w.pass(1_000);
  let arrived = (): void => undefined;
  let go = (): void => undefined;
  const arrives = new Promise<void>((resolve) => (arrived = resolve));
  const goes = new Promise<void>((resolve) => (go = resolve));
  w.provider.intercept = async (req) => {
    if (req.url !== '/token') return false;
    arrived();
    await goes;
    return false;
  };
  const renewing = w.a.tokens.get(w.a.at(w.visitor, w.target, row.id));
  await arrives;
  await w.b.connecting.end(w.visitor.caller, 'own', { id: row.id });
  await w.b.revocations.run();
  t.not(await w.b.store.find(row.id), null, 'the revocation waits for the renewal');
  go();
  await renewing;
  w.provider.intercept = null;
  const stored = await w.b.store.find(row.id);
  const renewed = stored && openTokens(vault, stored);
  t.not(renewed?.refresh_token, openTokens(vault, row)?.refresh_token);
  await w.a.database.knex('connections').update({ revoke_at: 0 });
  await w.b.revocations.run();
  t.is(await w.provider.provider.RefreshToken.find(renewed?.refresh_token ?? ''), undefined);
});

eachEngine(test.serial, 'the connections of users who were disabled in any way, refused or deleted end', async (t, db) => {
  const w = await world(t, db);
  const users = userStore(w.a.database.knex);
  const ends = async (name: string, change: (user: User) => Promise<unknown>, doesEnd = true): Promise<void> => {
    const visitor = await insertVisitor(w.a.database);
    const row = await w.a.connect(visitor, w.target, 'alice');
    const user = await users.find(visitor.caller.principal.sub);
    await change(user as User);
    await w.b.revocations.run();
    t.is((await w.a.store.find(row.id)) === null, doesEnd, name);
  };
  const facts = (refusal: FactsRefusal | null): ProviderFacts => ({
    claims: { role: null, groups: ['"refusal":"', 'refusal'], email: null } as unknown as ProviderFacts['claims'],
    ...{
      claims_iat: 1,
      given_role: null,
      given_groups: [],
      rule_groups: ['\\"refusal":"'],
      role_from: 'none',
      refusal,
      directory: null,
    },
  });
  await ends('disabled', (user) => users.update({ ...user, enabled: false }));
  await ends('no role', (user) => users.update({ ...user, facts: facts('no_role') }));
  await ends('another domain', (user) => users.update({ ...user, facts: facts('email_domain') }));
  await ends('deleted', ({ id }) => w.a.database.knex('users').where({ id }).delete());
  await ends('admitted', (user) => users.update({ ...user, facts: facts(null) }), false);
});

onSqlite('a server that does not answer delays neither the revocations at others nor the end of connections', async (t, db) => {
  const w = await world(t, db);
  const slow = await startProvider();
  const server = await startAccountTarget(slow);
  t.teardown(async () => {
    await server.stop();
    await slow.stop();
  });
  const slowTarget = await insertTarget(w.a.database, server.url);
  const slowRow = await w.a.connect(w.visitor, slowTarget, 'alice');
  const refused = await insertVisitor(w.a.database);
  const row = await w.a.connect(refused, w.target, 'alice');
  const isAsked = deferred();
  let isHanging = true;
  slow.intercept = (req, res) => {
    if (!req.url?.includes('revocation')) return false;
    res.once('close', () => (isHanging = false));
    isAsked.resolve();
    return true;
  };
  await w.a.connecting.end(w.visitor.caller, 'own', { id: slowRow.id });
  await isAsked.promise;
  await w.a.database.knex('users').where({ id: refused.caller.principal.sub }).delete();
  void w.a.revocations.run();
  while ((await w.a.store.find(row.id)) !== null) await sleep(5);
  t.true(isHanging);
});

onSqlite('each of many servers is asked as soon as there is a place', async (t, db) => {
  const database = await openTestDatabase(t, db);
  const now = Date.now();
  const client = { client_id: 'c', client_secret: null, auth_method: 'none' } as const;
  for (let n = 0; n < 25; n++) {
    const id = { id: `c${n}`, user_id: 'u', target_id: `t${n}`, issuer: `https://as${n}.example.com` };
    const sealed = sealTokens(vault, id, 'o', { place: {}, client, access_token: 'a', refresh_token: 'r' } as unknown as Tokens);
    const times = { created_at: now, renewed_at: now, ended_at: now, revoke_at: now };
    await database.knex('connections').insert({ ...id, scope: '', sealed, version: 1, ...times, attempts: 0 });
  }
  let asked = 0;
  const all = deferred();
  const known = async () => {
    if (++asked === 10) all.resolve();
    await all.promise;
    return { metadata: {} };
  };
  const revocations = createRevocations({
    ...{ database, changes: await createChanges(database, Date.now), vault, servers: { known } as unknown as Servers },
    ...{ now: Date.now, log: createLog('silent') },
  });
  t.teardown(() => revocations.stop());
  await revocations.run();
  t.deepEqual(await database.knex('connections').pluck('id'), []);
  t.is(asked, 25);
});

for (const challenged of [false, true]) {
  const how = challenged ? ' and answers with a challenge' : '';
  onSqlite(
    `a server that has forgotten the gateway${how} gets one new registration, and the user connects again`,
    async (t, db) => {
      const w = await world(t, db);
      const own = w.visitor.caller.principal.sub;
      let registrations = 0;
      let forgets = true;
      w.provider.intercept = (req, res) => {
        if (req.url === '/reg') registrations++;
        if (req.url !== '/token' || !forgets) return false;
        const headers = { 'content-type': 'application/json', ...(challenged ? { 'www-authenticate': 'Basic realm="x"' } : {}) };
        res.writeHead(401, headers).end('{"error":"invalid_client"}');
        return true;
      };
      const used = async () => (await w.a.store.client(w.target.id, w.provider.issuer))?.client_id;
      const again = { name: 'ConnectionFault', message: /no longer knew the gateway, which has registered itself again/ };
      const { url } = await w.a.connecting.begin(w.visitor, w.target);
      const first = await used();
      await t.throwsAsync(w.a.connecting.finish(w.visitor, w.target, await signInAt(url, 'alice', PUBLIC_URL)), again);
      const second = await used();
      t.not(second, first);
      t.is(registrations, 2, 'once, and not until the server is content');
      forgets = false;
      const row = await w.b.connect(w.visitor, w.target, 'alice');
      t.is(registrations, 2, 'the new registration is used by every replica');

      forgets = true;
      const at = w.a.at(w.visitor, w.target, row.id);
      const token = await w.a.tokens.get(at);
      if ('none' in token) return t.fail();
      const none = await w.a.tokens.afterRefusal(at, { ...token, youngUntil: 0 });
      t.is('none' in none && none.none, 'reconnect');
      t.is(await used(), undefined, 'a renewal forgets the registration, too');
      forgets = false;
      await w.a.connect(w.visitor, w.target, 'alice');
      t.is(registrations, 3);
      t.not(await used(), second);
      t.is((await w.a.store.findOf(own, w.target.id))?.problem, null);
    },
  );
}

onSqlite('a configured client that the server does not accept is not replaced', async (t, db) => {
  const client = { client_id: 'gateway', token_endpoint_auth_method: 'none', redirect_uris: ['http://127.0.0.1:1/none'] };
  const w = await world(t, db, { clients: [client] });
  const target = await insertTarget(w.a.database, w.server.url, {
    issuer: w.provider.issuer,
    client_id: 'gateway',
    scopes: ['tools'],
  });
  const found = await w.provider.provider.Client.find('gateway');
  Object.assign(found ?? {}, { redirectUris: [redirectUriOf(PUBLIC_URL, target.id)] });
  const { url } = await w.a.connecting.begin(w.visitor, target);
  w.provider.intercept = (req, res) => {
    if (req.url === '/reg') t.fail('registered');
    if (req.url !== '/token') return false;
    res.writeHead(401, { 'content-type': 'application/json' }).end('{"error":"invalid_client"}');
    return true;
  };
  const returned = await signInAt(url, 'alice', PUBLIC_URL);
  await t.throwsAsync(w.a.connecting.finish(w.visitor, target, returned), { message: /gave no token \(invalid_client\)/ });
});

onSqlite('a token that the target refuses is renewed, and not again while the new one is young', async (t, db) => {
  const w = await world(t, db);
  const row = await w.a.connect(w.visitor, w.target, 'alice');
  const at = w.a.at(w.visitor, w.target, row.id);
  const first = await w.a.tokens.get(at);
  if ('none' in first) return t.fail();
  t.deepEqual(await w.a.tokens.afterRefusal(at, first), { none: 'reconnect' }, 'a minute must pass');
  const old = { ...first, youngUntil: 0 };
  const second = await w.a.tokens.afterRefusal(at, old);
  t.is(accountOf(w, second), 'alice');
  t.not(headerOf(second), headerOf(first));
  t.is(
    headerOf(await w.b.tokens.afterRefusal(w.b.at(w.visitor, w.target, row.id), old)),
    headerOf(second),
    'the stored one is newer',
  );
  t.deepEqual([...w.provider.refreshed.values()], [1]);
});
