import type { IncomingMessage, ServerResponse } from 'node:http';
import test from 'ava';
import { browserSessionLimits, browserStore } from '../../src/auth/browser-store.ts';
import { createAdminister, createStillAdmits } from '../../src/auth/caller.ts';
import { createLogin } from '../../src/auth/sign-in/login.ts';
import { createBrowserSessions } from '../../src/browser/sessions.ts';
import { createChanges } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import type { Snapshot } from '../../src/state/admission.ts';
import { createFreshRead } from '../../src/state/fresh-read.ts';
import { createUpkeep } from '../../src/upkeep.ts';
import { localUser, userStore } from '../../src/users/user-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { browse, signIn } from './browser.ts';

const MINUTE = 60_000;
const NOW = Date.parse('2026-06-01T12:00:00Z');
const ANN = localUser({ id: '0190163d-8694-739b-aea5-966c26f8ad90', email: 'ann@example.com', role: 'user', groups: [] }, 1);

/** Browser sessions with a clock that the test moves. `at` is the time since the first sign-in. */
async function clocked(database: Database) {
  let time = NOW;
  const changes = await createChanges(database, () => time);
  const fresh = async () => ({ sequence: (await changes.position()).sequence }) as Snapshot;
  const sessions = createBrowserSessions({
    database,
    freshRead: createFreshRead(database, fresh),
    trustProxy: false,
    now: () => time,
  });
  const request = (value: string | null, url = '/account') =>
    ({
      headers: { ...(value === null ? {} : { cookie: `__Host-portcullis=${value}` }), 'user-agent': 'test' },
      url,
      socket: {},
    }) as unknown as IncomingMessage;
  const set: string[] = [];
  const response = {
    headersSent: false,
    appendHeader(_name: string, line: string) {
      if (this.headersSent) throw new Error('ERR_HTTP_HEADERS_SENT');
      set.push(/=([^;]*)/.exec(line)?.[1] ?? '');
    },
  };
  await userStore(database.knex).insert(ANN, 'hash');
  return {
    sessions,
    /** Returns the value of the new cookie. */
    async signIn(value: string | null = null, provedAt: number | 'now' | null = 'now'): Promise<string> {
      await sessions.signIn(request(value), response as unknown as ServerResponse, ANN, { method: 'test', provedAt });
      return set.at(-1) ?? '';
    },
    pass: (ms: number) => {
      time += ms;
    },
    now: () => time,
    who: (value: string | null, url?: string, isActivity?: boolean) =>
      sessions.currentUser(request(value, url), response as unknown as ServerResponse, isActivity),
    response,
    set,
  };
}

eachEngine(test.serial, 'a session ends after 30 minutes without a request, and 12 hours after the sign-in', async (t, at) => {
  const { signIn, who, pass } = await clocked(await openTestDatabase(t, at));
  const idle = await signIn();
  pass(30 * MINUTE - 1);
  t.is((await who(idle))?.user.email, 'ann@example.com');
  pass(30 * MINUTE);
  t.is(await who(idle), null);

  const following = await signIn();
  for (let minutes = 0; minutes < 28; minutes += 4) {
    pass(4 * MINUTE);
    t.truthy(await who(following, '/console/log/rows', false), `after ${minutes} minutes`);
  }
  pass(2 * MINUTE);
  t.is(await who(following), null, 'what a script asks on its own does not keep a session');

  const busy = await signIn();
  for (let minutes = 29; minutes < 12 * 60; minutes += 29) {
    pass(29 * MINUTE);
    t.truthy(await who(busy), `after ${minutes} minutes`);
  }
  pass(29 * MINUTE);
  t.is(await who(busy), null);
});

eachEngine(
  test.serial,
  'what is sensitive needs a sign-in within 10 minutes, and signing in again gives a new value',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const { signIn, who, pass, now } = await clocked(database);
    const first = await signIn();
    t.true((await who(first))?.isRecent);
    pass(10 * MINUTE);
    t.false((await who(first))?.isRecent);
    const second = await signIn(first);
    t.true((await who(second))?.isRecent);
    t.not(second, first);
    t.is(await who(first), null);
    const unasked = await signIn(second, null);
    t.false((await who(unasked))?.isRecent, 'the provider may not have asked for a password');
    t.is((await who(unasked))?.session.signed_in_at, now(), 'which does not make the sign-in older than it is');
    const proved = await signIn(unasked, now() - 9 * MINUTE);
    t.true((await who(proved))?.isRecent);
    pass(MINUTE);
    t.false((await who(proved))?.isRecent);
    const ahead = await signIn(proved, now() + 60 * MINUTE);
    pass(10 * MINUTE);
    t.false((await who(ahead))?.isRecent, 'the clock of the provider is ahead');
    // A replica of an older version does not know the column.
    await database.knex('browser_sessions').update({ proved_at: null, signed_in_at: now() - 9 * MINUTE });
    t.true((await who(ahead))?.isRecent);
  },
);

eachEngine(test.serial, 'a change of role gives the cookie a new value, once, and the session goes on', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { signIn, who, response, set } = await clocked(database);
  const value = await signIn();
  const before = await who(value);
  t.is(set.length, 1);
  await userStore(database.knex).update({ ...ANN, role: 'admin', groups: ['a'] });
  // A download asks again while it goes on, and can set no cookie: the value stays, for the next request to change.
  response.headersSent = true;
  t.is((await who(value))?.admission.principal.role, 'admin');
  response.headersSent = false;
  // Two requests of one browser at the same time: both are served, and one new value counts.
  const both = await Promise.all([who(value), who(value)]);
  t.true(both.some((current) => current?.admission.principal.role === 'admin'));
  t.is(set.length, 2);
  t.is(await who(value), null);
  const after = await who(set[1] ?? '');
  t.is(after?.session.id, before?.session.id);
  t.is(after?.session.signed_in_at, before?.session.signed_in_at);
  t.deepEqual(after?.admission.principal.groups, ['a']);
  t.is(set.length, 2);
});

eachEngine(test.serial, 'the table has no value of a cookie, and a value counts only where pages are', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { signIn, who } = await clocked(database);
  const value = await signIn();
  t.false(JSON.stringify(await database.knex('browser_sessions')).includes(value));
  const { digest } = await database.knex('browser_sessions').first();
  t.is(await who(digest), null);
  for (const url of ['/account', '/account?x', '/signin', '/oauth/authorize', '/console/x']) t.truthy(await who(value, url), url);
  for (const url of ['/', '/api/auth/me', '/mcp', '/mcp/account', '/accounts', '/health/live', '/?/account'])
    t.is(await who(value, url), null, url);
});

eachEngine(test.serial, 'a user has at most 50 sessions: the one used longest ago makes room', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { signIn, who, pass, now } = await clocked(database);
  const values: string[] = [];
  for (let count = 0; count < 52; count++) {
    values.push(await signIn());
    pass(1);
  }
  t.is((await browserStore(database.knex).listOf(ANN.id, browserSessionLimits(now()))).length, 50);
  t.deepEqual([await who(values[0] ?? ''), await who(values[1] ?? '')], [null, null]);
  t.truthy(await who(values[2] ?? ''));
});

eachEngine(test.serial, 'the upkeep deletes sessions whose time is over, in batches, and no others', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { signIn, who } = await clocked(database);
  const value = await signIn();
  const rows = Array.from({ length: 1_200 }, (_, row) => ({
    ...{ id: `old-${row}`, digest: `${row}`, user_id: ANN.id, method: 'x', role: 'user', agent: '', address: '' },
    signed_in_at: row % 2 === 0 ? NOW - 13 * 60 * MINUTE : NOW - 60 * MINUTE,
    seen_at: row % 2 === 0 ? NOW : NOW - 31 * MINUTE,
  }));
  for (let from = 0; from < rows.length; from += 400)
    await database.knex('browser_sessions').insert(rows.slice(from, from + 400));
  const nothing = { info: () => undefined, warn: () => undefined };
  const upkeep = createUpkeep({ database, changesDays: 0, checkClock: async () => {}, log: nothing, now: () => NOW });
  await upkeep.run();
  await upkeep.stop();
  t.is((await database.knex('browser_sessions')).length, 1);
  t.truthy(await who(value));
});

test.serial('a database server that lags behind the gate answers nothing', async (t) => {
  const lagging = {
    snapshot: async (work: (db: never) => Promise<unknown>) =>
      work((() => ({ where: () => ({ first: async () => ({ sequence: 6 }) }) })) as never),
  };
  const freshRead = createFreshRead(lagging as never, async () => ({ sequence: 7 }) as Snapshot);
  await t.throwsAsync(
    () =>
      freshRead(
        async () => 'stale',
        (work) => work(),
      ),
    { message: /does not have the newest state/ },
  );
});

interface Listed {
  readonly id: string;
  readonly method: string;
  readonly agent: string;
}

eachEngine(test.serial, 'what ends a session counts at the next request, at every replica', async (t, at, engine) => {
  const gateway = await startGateway(t, at.url);
  // One process has a SQLite database.
  const other = engine === 'sqlite' ? gateway : await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const ann = await person(gateway, 'ann@example.com');
  const ends: Record<string, () => Promise<unknown>> = {
    'the user, over REST': async () => {
      const { body } = await gateway.rest<Listed[]>(200, 'GET', '/api/auth/browser-sessions', { token: ann.token });
      for (const { id } of body) await gateway.rest(204, 'DELETE', `/api/auth/browser-sessions/${id}`, { token: ann.token });
    },
    'the user, all at once': () => gateway.rest(204, 'DELETE', '/api/auth/browser-sessions', { token: ann.token }),
    'an administrator': () => gateway.rest(204, 'DELETE', `/api/auth/browser-sessions?user_id=${ann.id}`, { token: admin.token }),
    'a changed password': async () => {
      const body = { current_password: ann.password, new_password: ann.password };
      await gateway.rest(204, 'PUT', '/api/auth/password', { token: ann.token, body });
    },
    'the user is disabled, and enabled again': async () => {
      await gateway.rest(200, 'PUT', `/api/users/${ann.id}`, { token: admin.token, body: { enabled: false } });
      await gateway.rest(200, 'PUT', `/api/users/${ann.id}`, { token: admin.token, body: { enabled: true } });
    },
  };
  for (const [name, end] of Object.entries(ends)) {
    const browser = browse(gateway);
    await signIn(browser, ann);
    const there = browse(other);
    there.setCookie(browser.cookie());
    t.is((await there.get('/account')).status, 200, name);
    await end();
    t.is((await there.get('/account')).status, 303, name);
    t.is((await browser.get('/account')).status, 303, name);
  }
});

test.serial('a user lists and ends only own sessions, and an administrator those of any user', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const ann = await person(gateway, 'ann@example.com');
  const bob = await person(gateway, 'bob@example.com');
  const browsers = [browse(gateway), browse(gateway)] as const;
  for (const browser of browsers) await signIn(browser, ann);
  const list = async (token: string, query = '') =>
    (await gateway.rest<Listed[]>(200, 'GET', `/api/auth/browser-sessions${query}`, { token })).body;

  const [first, second] = await list(ann.token);
  t.is((await list(ann.token)).length, 2);
  t.deepEqual(Object.keys(first ?? {}), ['id', 'method', 'agent', 'address', 'signed_in_at', 'seen_at']);
  t.is(first?.method, 'password');
  t.deepEqual(await list(bob.token), []);
  t.is((await list(admin.token, `?user_id=${ann.id}`)).length, 2);
  await gateway.rest(403, 'GET', `/api/auth/browser-sessions?user_id=${ann.id}`, { token: bob.token });
  await gateway.rest(403, 'DELETE', `/api/auth/browser-sessions?user_id=${ann.id}`, { token: bob.token });
  await gateway.rest(404, 'DELETE', `/api/auth/browser-sessions/${first?.id}`, { token: bob.token });
  await gateway.rest(404, 'DELETE', '/api/auth/browser-sessions/nothing', { token: ann.token });
  await gateway.rest(400, 'DELETE', '/api/auth/browser-sessions?user_id=x', { token: admin.token });
  t.is((await list(ann.token)).length, 2);
  await gateway.rest(204, 'DELETE', `/api/auth/browser-sessions/${first?.id}`, { token: admin.token });
  await gateway.rest(404, 'DELETE', `/api/auth/browser-sessions/${first?.id}`, { token: ann.token });
  t.deepEqual(
    (await list(ann.token)).map(({ id }) => id),
    [second?.id],
  );
  const { body: changes } = await gateway.rest<{ action: string; object_id: string; before: unknown }[]>(
    200,
    'GET',
    '/api/changes',
    { token: admin.token },
  );
  t.like(changes[0], { action: 'browser_session.end', object_id: first?.id, before: { user_id: ann.id } });
});

test.serial('the account page ends one session or all others, and not those of a different user', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const ann = await person(gateway, 'ann@example.com');
  const [here, there, third, administrator] = [browse(gateway), browse(gateway), browse(gateway), browse(gateway)] as const;
  for (const browser of [here, there, third]) await signIn(browser, ann);
  await signIn(administrator, admin);
  const endings = async () =>
    [...(await here.get('/account')).text.matchAll(/action="(\/account\/sessions\/[0-9a-f-]{36}\/end)"/g)].map(
      ([, path = '']) => path,
    );
  const paths = await endings();
  t.is(paths.length, 2);
  // An administrator has the right, but a page about one's own account is the wrong place for it.
  t.is((await administrator.post(paths[0] ?? '')).status, 404);
  const one = await here.post(paths[0] ?? '');
  t.deepEqual([one.status, one.headers.location], [303, '/account?done=session']);
  t.regex((await here.get('/account?done=session')).text, /The session is ended\./);
  t.is([await there.get('/account'), await third.get('/account')].filter(({ status }) => status === 200).length, 1);
  t.is((await here.post(paths[0] ?? '')).status, 404);
  await signIn(third, ann);
  t.is((await here.post('/account/sessions/end-others')).headers.location, '/account?done=sessions');
  t.deepEqual(await endings(), []);
  t.is((await third.get('/account')).status, 303);
  t.is((await here.get('/account')).status, 200);
  t.is((await administrator.get('/account')).status, 200);
});

test.serial(
  'a changed password on the account page ends other sessions and logins, and gives the cookie a new value',
  async (t) => {
    const gateway = await startGateway(t);
    const ann = await person(gateway, 'ann@example.com');
    const [here, there] = [browse(gateway), browse(gateway)] as const;
    for (const browser of [here, there]) await signIn(browser, ann);
    const old = here.cookie();
    const change = (current_password: string, new_password: string) =>
      here.post('/account/password', { username: ann.email, current_password, new_password });

    const wrong = await change('not the password', 'a new passphrase');
    t.is(wrong.status, 400);
    t.regex(wrong.text, /The current password is not your current password\./);
    t.regex((await change(ann.password, 'short')).text, /The new password must have at least 8 characters\./);
    t.regex((await here.post('/account/password')).text, /The current password is missing\.[\s\S]*The new password is missing\./);
    t.is((await there.get('/account')).status, 200);

    t.is((await change(ann.password, 'a new passphrase')).headers.location, '/account?done=password');
    t.is((await here.get('/account')).status, 200);
    t.not(here.cookie(), old);
    t.is((await there.get('/account')).status, 303);
    here.setCookie(old);
    t.is((await here.get('/account')).status, 303);
    await gateway.rest(401, 'GET', '/api/auth/me', { token: ann.token });
    t.is((await browse(gateway).post('/signin', { email: ann.email, password: ann.password })).status, 403);
    t.is((await browse(gateway).post('/signin', { email: ann.email, password: 'a new passphrase' })).status, 303);
  },
);

test.serial('the limit on tries stops guesses of the password with a stolen session', async (t) => {
  const gateway = await startGateway(t, null, { LOGIN_RATE_LIMIT: '30' });
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  await signIn(browser, ann);
  const guess = async () =>
    (await browser.post('/account/password', { current_password: 'guess', new_password: 'a new passphrase' })).status;
  t.deepEqual([await guess(), await guess(), await guess()], [400, 400, 429]);
});

test.serial(
  'cookies that nobody was given take one connection at a time, and their sender gets no more than a line',
  async (t) => {
    let [running, most] = [0, 0];
    const sessions = createBrowserSessions({
      database: {} as Database,
      trustProxy: false,
      now: () => NOW,
      freshRead: async (_read, inTurn) => {
        await inTurn(async () => {
          most = Math.max(most, ++running);
          await new Promise((resolve) => setTimeout(resolve, 1));
          running--;
        });
        return { snapshot: {} as Snapshot, found: null as never };
      },
    });
    const ask = (address: string) => {
      const cookie = `__Host-portcullis=${'A'.repeat(43)}`;
      const req = { headers: { cookie }, url: '/account', socket: { remoteAddress: address } } as unknown as IncomingMessage;
      return sessions.currentUser(req, {} as ServerResponse);
    };
    let served = 0;
    const flood = Promise.allSettled(Array.from({ length: 300 }, () => ask('192.0.2.1').then(() => void served++)));
    const before = ask('192.0.2.2').then(() => served);
    const settled = await flood;
    t.true((await before) <= 3, 'a different sender has the next turn but one');
    t.is(most, 1);
    t.is(settled.filter(({ status }) => status === 'rejected').length, 199);
    t.like(
      settled.find(({ status }) => status === 'rejected'),
      { reason: { code: 'too_many_requests' } },
    );
  },
);

eachEngine(test.serial, 'a session that has ended since the request arrived makes no change and no token', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { signIn, who } = await clocked(database);
  const current = await who(await signIn());
  const principal = current?.admission.principal;
  if (principal === undefined) throw new Error('not signed in');
  const changes = await createChanges(database, () => NOW);
  const administer = createAdminister({ changes, now: () => NOW });
  const change = () => administer({ principal, requestId: 'r' }, 'own', async () => ({ result: 'done', changes: [] }));
  let made = 0;
  const login = createLogin({
    stillAdmits: createStillAdmits({ now: () => NOW }),
    ...{ database, administer, passwords: {} as never, config: { rateLimits: { apiTokens: 10 } } as never, now: () => NOW },
    draftToken: async () => ({
      record: (user) => ({
        ...{ id: `token ${made++}`, user_id: user.id, kind: 'api', name: 'n', kid: 'k', created_at: NOW },
        ...{ expires_at: null, revoked_at: null, limits: null },
      }),
      sign: async () => 'signed',
    }),
  });
  const token = (issuer = ANN.issuer) =>
    login.createApiToken({ principal: { ...principal, issuer }, requestId: 'r' }, { name: 'n', expires_at: null, limits: null });
  t.is((await token()).token, 'signed');
  const company = 'https://company.example';
  await database.knex('users').update({ issuer: company });
  await t.throwsAsync(() => token(company), { code: 'invalid_token' }, 'the provider is disabled');
  await database.knex('users').update({ issuer: ANN.issuer });
  t.is((await change()).result, 'done');
  await t.throwsAsync(
    () =>
      administer({ principal: { ...principal, sub: 'other' }, requestId: 'r' }, 'own', async () => ({
        result: null,
        changes: [],
      })),
    {
      code: 'invalid_token',
    },
  );
  await browserStore(database.knex).endAllOf([ANN.id], null);
  await t.throwsAsync(change, { code: 'invalid_token' });
  await t.throwsAsync(() => token(), { code: 'invalid_token' });
  t.is((await database.knex('tokens')).length, 1);
});

test.serial('the thief of an older session cannot make a token, which would outlive it', async (t) => {
  const { now } = Date;
  let ahead = 0;
  Date.now = () => now() + ahead;
  t.teardown(() => {
    Date.now = now;
  });
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  await signIn(browser, ann);
  const make = { do: 'make', name: 'mine', days: '90' };
  t.regex((await browser.get('/console/tokens')).text, /Make the token/);
  ahead = 11 * MINUTE;
  const page = await browser.get('/console/tokens');
  t.notRegex(page.text, /Make the token/);
  const [, again = ''] = /<a href="(\/signin\?[^"]+)">Sign in again<\/a>/.exec(page.text) ?? [];
  const refused = await browser.post('/console/tokens', make);
  t.deepEqual([refused.status, refused.headers.location], [303, again.replaceAll('&#38;', '&')]);
  t.regex((await browser.get(refused.headers.location ?? '')).text, /Sign in again as ann@example\.com/);
  await signIn(browser, ann);
  t.is((await browser.post('/console/tokens', make)).status, 201);
});
