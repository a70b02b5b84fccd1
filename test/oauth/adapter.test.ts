/** The contract of the adapter, on each kind of database: what is used once, by whichever replica, and what the tables do not show. */
import { createHash } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import type { AdapterPayload } from 'oidc-provider';
import { type BrowserSession, browserStore } from '../../src/auth/browser-store.ts';
import { createAdminister, createStillAdmits } from '../../src/auth/caller.ts';
import { BY_ASSERTION, grantStore } from '../../src/auth/grant-store.ts';
import type { Principal } from '../../src/auth/principal.ts';
import { endSessionsAndGrantsOf } from '../../src/auth/sign-in/sign-ins.ts';
import { createVault } from '../../src/auth/vault.ts';
import { uuidv7 } from '../../src/base/ids.ts';
import { createChanges } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import {
  type AdapterErrors,
  createAdapters,
  GRACE_MS,
  MOST_DEVICES_OF_SITE,
  MOST_UNUSED_CLIENTS,
  MOST_UNUSED_OF_SITE,
} from '../../src/oauth/adapter.ts';
import { clientStore } from '../../src/oauth/client-store.ts';
import { type Approval, createGrants, MOST_GRANTS, MOST_SAME_GRANTS, type NoGrant } from '../../src/oauth/grants.ts';
import { recordStore } from '../../src/oauth/record-store.ts';
import { createUpkeep } from '../../src/upkeep.ts';
import { localUser, userStore } from '../../src/users/user-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import type { TestDatabase } from '../support/databases/engines.ts';
import { createSqlite } from '../support/databases/sqlite.ts';

const errors: AdapterErrors = {
  invalidGrant: (detail) => new Error(`invalid_grant: ${detail}`),
  sessionNotFound: (detail) => new Error(`not found: ${detail}`),
  slowDown: () => new Error('slow_down'),
  tooMany: (detail) => new Error(`too many: ${detail}`),
};

let questions = 0;
const ANN = localUser({ id: '0190163d-8694-739b-aea5-966c26f8ad90', email: 'ann@example.com', role: 'user', groups: [] }, 1);
const SESSION = '0190163d-8694-739b-aea5-966c26f8ad91';
const principal = {
  sub: ANN.id,
  issuer: ANN.issuer,
  token_kind: 'browser',
  token_id: SESSION,
  email: '',
  limits: null,
} as Principal;

const sessionAt = (time: number): BrowserSession => ({
  ...{ id: SESSION, user_id: ANN.id, method: 'password', role: 'user', agent: '', address: '' },
  ...{ signed_in_at: time, proved_at: time, seen_at: time },
});

const approval: Omit<Approval, 'question'> = {
  principal,
  clientId: 'https://client.example/metadata.json',
  clientKind: 'document',
  clientName: 'A client',
  redirectUri: 'https://client.example/callback',
  resources: { 'https://gateway.example/mcp/x/': 'mcp' },
  openid: 'openid',
};

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

/** What one replica has. Replicas share the clock, so that tests can move it. */
async function replica(database: Database, clock: { time: number }) {
  const now = (): number => clock.time;
  const changes = await createChanges(database, now);
  const administer = createAdminister({ changes, now });
  const grants = createGrants({ database, changes, administer, stillAdmits: createStillAdmits({ now }), now });
  const state = { route: null as string | null, site: '192.0.2.1' };
  const adapterOf = createAdapters({
    ...{ database, grants, errors, now },
    vault: createVault(Buffer.alloc(32, 7)),
    records: recordStore(database),
    current: () => ({ ...state, requestId: 'request' }),
  });
  return {
    ...{ adapterOf, grants, state, changes },
    /** The user's answer to a new question. */
    async approve(change: Partial<Approval> = {}, silent = false): Promise<string | NoGrant> {
      const id = `question ${questions++}`;
      await adapterOf('Interaction').upsert(id, { kind: 'Interaction', jti: id }, 1_800);
      const made = await grants.create({ ...approval, question: { kind: 'Interaction', id }, ...change }, silent);
      return typeof made === 'string' ? made : made.grantId;
    },
  };
}

async function open(t: ExecutionContext, at: TestDatabase) {
  const database = await openTestDatabase(t, at);
  const clock = { time: Date.now() };
  await userStore(database.knex).insert(ANN, 'hash');
  await browserStore(database.knex).insert(sessionAt(clock.time), 'digest');
  /** Moves the clock. The user signs in again. */
  const later = async (ms: number): Promise<void> => {
    clock.time += ms;
    await browserStore(database.knex).end(SESSION);
    await browserStore(database.knex).insert(sessionAt(clock.time), 'digest');
  };
  return { database, clock, later, a: await replica(database, clock), b: await replica(database, clock) };
}

const refused = async (work: Promise<unknown>): Promise<string> => {
  try {
    await work;
    return 'done';
  } catch (error) {
    return (error as Error).message.split(':')[0] ?? '';
  }
};

eachEngine(test.serial, 'an assertion makes no grant if the provider of its user no longer takes assertions', async (t, at) => {
  const { a, clock } = await open(t, at);
  const assertion = { key: 'one', exp: Math.floor(clock.time / 1_000) + 60 };
  const made = await a.grants.createByAssertion({ ...approval, resource: 'https://gateway.example/mcp/x/', assertion });
  t.is(made, 'ended');
  t.deepEqual(await a.grants.ofUser(ANN.id), []);
});

eachEngine(test.serial, 'what is stored is found again, by every replica, until it is deleted', async (t, at) => {
  const { a, b } = await open(t, at);
  for (const kind of ['Interaction', 'AuthorizationCode', 'RefreshToken', 'DeviceCode']) {
    const payload: AdapterPayload = {
      kind,
      jti: `id of ${kind}`,
      accountId: 'ann',
      params: { scope: 'mcp', state: 'ü"\'\\' },
      exp: 1,
    };
    await a.adapterOf(kind).upsert(`id of ${kind}`, payload, 60);
    t.deepEqual(await b.adapterOf(kind).find(`id of ${kind}`), payload);
    await b.adapterOf(kind).upsert(`id of ${kind}`, { ...payload, accountId: 'ben' }, 60);
    t.like(await a.adapterOf(kind).find(`id of ${kind}`), { accountId: 'ben' });
    t.is(await a.adapterOf(kind).find(`ID OF ${kind}`), undefined);
    t.is(await a.adapterOf('Other').find(`id of ${kind}`), undefined);
    if (kind === 'RefreshToken') continue;
    await a.adapterOf(kind).destroy(`id of ${kind}`);
    t.is(await b.adapterOf(kind).find(`id of ${kind}`), undefined);
  }
});

eachEngine(test.serial, 'the tables show nothing that can be presented', async (t, at) => {
  const { a, database } = await open(t, at);
  const device: AdapterPayload = { kind: 'DeviceCode', jti: 'a-device-code', userCode: 'BCDFGHJK', params: {} };
  await a.adapterOf('DeviceCode').upsert('a-device-code', device, 60);
  await a.adapterOf('RefreshToken').upsert('a-refresh-token', { kind: 'RefreshToken', jti: 'a-refresh-token' }, 60);
  await a.adapterOf('AuthorizationCode').upsert('a-code', { kind: 'AuthorizationCode', jti: 'a-code' }, 60);
  await a
    .adapterOf('Interaction')
    .upsert('an-interaction', { kind: 'Interaction', jti: 'an-interaction', deviceCode: 'a-device-code' }, 60);
  await a.adapterOf('Client').upsert('a-client', { client_id: 'a-client', client_secret: 'a-client-secret' });
  const text = JSON.stringify([await database.knex('oauth_records'), await database.knex('oauth_clients')]);
  for (const secret of ['a-device-code', 'BCDFGHJK', 'a-refresh-token', 'a-code"', 'an-interaction', 'a-client-secret']) {
    t.false(text.includes(secret), secret);
  }
  t.true(text.includes(createHash('sha256').update('a-refresh-token').digest('hex')));
  t.deepEqual(await a.adapterOf('DeviceCode').findByUserCode('BCDFGHJK'), device);
  t.is(await a.adapterOf('DeviceCode').findByUserCode('BCDFGHJX'), undefined);
  t.is(await a.adapterOf('Session').find('anything'), undefined);
});

eachEngine(test.serial, 'a code that several replicas redeem at once is used once', async (t, at) => {
  const { a, b } = await open(t, at);
  for (const kind of ['AuthorizationCode', 'DeviceCode']) {
    await a.adapterOf(kind).upsert('code', { kind, jti: 'code', grantId: 'g' }, 60);
    const tries = Array.from({ length: 10 }, (_, at) => refused((at % 2 === 0 ? a : b).adapterOf(kind).consume('code')));
    const results = await Promise.all(tries);
    t.deepEqual(results.sort(), ['done', ...Array.from({ length: 9 }, () => 'invalid_grant')]);
    t.truthy(((await b.adapterOf(kind).find('code')) as AdapterPayload).consumed);
  }
});

eachEngine(test.serial, 'a used refresh token works for a minute, and is then shown as used', async (t, at) => {
  const { a, b, clock } = await open(t, at);
  const tokens = a.adapterOf('RefreshToken');
  await tokens.upsert('first', { kind: 'RefreshToken', jti: 'first', grantId: 'g', rotations: 0 }, 86_400);
  t.deepEqual(
    await Promise.all([1, 2, 3, 4].map((n) => refused((n % 2 === 0 ? a : b).adapterOf('RefreshToken').consume('first')))),
    [...['done', 'done', 'done', 'done']],
  );
  clock.time += GRACE_MS - 1;
  t.is(((await tokens.find('first')) as AdapterPayload).consumed, undefined);
  t.is(await refused(tokens.consume('first')), 'done');
  clock.time += 1;
  t.truthy(((await tokens.find('first')) as AdapterPayload).consumed);
  t.is(await refused(tokens.consume('first')), 'invalid_grant');
});

eachEngine(test.serial, 'the use of one successor of a refresh token uses up the others', async (t, at) => {
  const { a, b, clock } = await open(t, at);
  const tokens = a.adapterOf('RefreshToken');
  const store = (id: string, rotations: number, grantId = 'g') =>
    tokens.upsert(id, { kind: 'RefreshToken', jti: id, grantId, rotations }, 86_400);
  await store('first', 0);
  await store('of another grant', 1, 'h');
  await tokens.consume('first');
  await store('one', 1);
  await b.adapterOf('RefreshToken').consume('first');
  await store('other', 1);
  clock.time += HOUR;
  await tokens.consume('one');
  await store('next', 2);
  clock.time += HOUR;
  const isUsed = async (id: string): Promise<boolean> => ((await tokens.find(id)) as AdapterPayload).consumed !== undefined;
  t.deepEqual(await Promise.all(['first', 'one', 'other', 'next', 'of another grant'].map(isUsed)), [
    true,
    true,
    true,
    false,
    false,
  ]);
});

// Servers choose by what is in the table.
test('on SQLite, a refresh looks only at the refresh tokens of its grant that are not used', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex } = await openTestDatabase(t, at);
  for (const where of ["kind = 'RefreshToken' and grant_id = 'g' and rotation <= 3", "grant_id in ('g', 'h')"]) {
    const plan = await knex.raw(`explain query plan select payload from oauth_records where ${where} and consumed_at is null`);
    t.regex(JSON.stringify(plan), /oauth_records_unused/, where);
  }
});

eachEngine(test.serial, 'a device that asks too often is told to slow down, whichever replica it asks', async (t, at) => {
  const { a, b, clock } = await open(t, at);
  await a.adapterOf('DeviceCode').upsert('device', { kind: 'DeviceCode', jti: 'device', userCode: 'BCDFGHJK' }, 600);
  a.state.route = 'token';
  b.state.route = 'token';
  t.is(await refused(a.adapterOf('DeviceCode').find('device')), 'done');
  t.is(await refused(b.adapterOf('DeviceCode').find('device')), 'slow_down');
  t.is(await b.adapterOf('DeviceCode').find('no device'), undefined);
  clock.time += 4_000;
  t.is(await refused(b.adapterOf('DeviceCode').find('device')), 'done');
  a.state.route = null;
  t.is(await refused(a.adapterOf('DeviceCode').find('device')), 'done', 'pages may look at any time');
});

eachEngine(test.serial, 'a question to a person is answered once', async (t, at) => {
  const { a, database, clock } = await open(t, at);
  await a.adapterOf('Interaction').upsert('question', { kind: 'Interaction', jti: 'question' }, 60);
  const records = recordStore(database);
  const answers = await Promise.all([1, 2, 3].map(() => records.answer('Interaction', 'question', clock.time)));
  t.deepEqual(answers.sort(), [false, false, true]);
  t.false(await records.answer('Interaction', 'no question', clock.time));
});

eachEngine(test.serial, 'a grant that the library ends is an administrative change, with its tokens', async (t, at) => {
  const { a, b, database } = await open(t, at);
  const id = await a.approve();
  t.like(await b.adapterOf('Grant').find(id), {
    accountId: ANN.id,
    clientId: approval.clientId,
    resources: approval.resources,
    openid: { scope: 'openid' },
  });
  await a.adapterOf('RefreshToken').upsert('token', { kind: 'RefreshToken', jti: 'token', grantId: id, rotations: 0 }, 60);
  // The library deletes the token first. A client repeats its revocation with it if the end of the grant fails.
  await a.adapterOf('RefreshToken').destroy('token');
  t.truthy(await b.adapterOf('RefreshToken').find('token'));
  const before = await a.changes.position();
  await Promise.all([a, b].map(({ adapterOf }) => adapterOf('Grant').destroy(id)));
  const after = await a.changes.position();
  t.is(after.sequence, Math.max(before.sequence, 0) + 1, 'one change');
  t.is(after.revision, before.revision);
  const [change] = (await a.changes.page(1, null)).changes;
  t.like(change, { action: 'grant.end', object_id: id, object_type: 'grant', after: null });
  t.is(await b.adapterOf('Grant').find(id), undefined);
  t.is(await b.adapterOf('RefreshToken').find('token'), undefined);
  t.deepEqual(await database.knex('oauth_records').whereNot({ kind: 'Interaction' }), []);
});

eachEngine(test.serial, 'a disabled client gets no grant, also if the user approves it at the same moment', async (t, at) => {
  const { a, b, database } = await open(t, at);
  await a.approve();
  const client = await a.grants.findClient(approval.clientId);
  const disabling = database.knex.transaction(async (trx) => {
    await clientStore(trx).lock(approval.clientId);
    await clientStore(trx).setEnabled(client?.id ?? '', false);
  });
  await disabling;
  t.deepEqual(await Promise.all([a.approve(), b.approve()]), ['client', 'client']);
  const [first] = await a.grants.ofUser(ANN.id);
  t.is(await b.adapterOf('Grant').find(first?.grant.id ?? ''), undefined, 'and its earlier grants are refused');
});

eachEngine(test.serial, 'a user or a session that has ended since the request arrived gets no grant', async (t, at) => {
  const { a, database } = await open(t, at);
  const { knex } = database;
  const ends: readonly (readonly [what: string, end: () => Promise<unknown>, undo: () => Promise<unknown>])[] = [
    [
      'a disabled user',
      () => knex('users').update({ enabled: false }),
      () => knex('users').where({ id: ANN.id }).update({ enabled: true }),
    ],
    [
      'a user of a different issuer',
      () => knex('users').update({ issuer: 'https://company.example' }),
      () => knex('users').update({ issuer: ANN.issuer }),
    ],
    [
      'an idle session',
      () => knex('browser_sessions').update({ seen_at: knex.raw('seen_at - 1900000') }),
      () => knex('browser_sessions').update({ seen_at: knex.raw('seen_at + 1900000') }),
    ],
    [
      'a session of a different user',
      () => knex('browser_sessions').update({ user_id: 'ben' }),
      () => knex('browser_sessions').update({ user_id: ANN.id }),
    ],
    ['an ended session', () => browserStore(knex).end(SESSION), async () => undefined],
    ['a user who is not there', () => knex('users').delete(), async () => undefined],
  ];
  t.is((await a.approve()).length, 36);
  const made = (await knex('grants')).length;
  for (const [what, end, undo] of ends) {
    await end();
    t.is(await a.approve(), 'ended', what);
    t.is((await knex('grants')).length, made, what);
    await undo();
  }
});

eachEngine(
  test.serial,
  'a user who is disabled while a sign-in is under way keeps no grant, at whichever replica',
  async (t, at) => {
    const { a, b, clock, database } = await open(t, at);
    for (let round = 0; round < 5; round++) {
      const disable = b.changes.change({ id: 'admin', email: '', request_id: '' }, async (trx) => {
        await userStore(trx).lock(ANN.id);
        await trx('users').where({ id: ANN.id }).update({ enabled: false });
        return { result: null, changes: await endSessionsAndGrantsOf(trx, [ANN.id], null) };
      });
      await Promise.all([a.approve(), disable, a.approve(), b.approve()]);
      t.deepEqual(await database.knex('grants'), [], `round ${round}`);
      await database.knex('users').update({ enabled: true });
      await browserStore(database.knex).insert(sessionAt(clock.time), 'digest');
    }
  },
);

eachEngine(test.serial, 'a user can have so many grants, and gets more when some have ended', async (t, at) => {
  const { a, database, clock } = await open(t, at);
  const first = await a.approve();
  const { knex } = database;
  const [row] = await knex('grants');
  const others = Array.from({ length: MOST_GRANTS - 1 }, () => ({ ...row, id: uuidv7() }));
  for (let from = 0; from < others.length; from += 50) await knex('grants').insert(others.slice(from, from + 50));
  t.is(await a.approve(), 'full');
  await knex('grants').where({ id: first }).update({ expires_at: clock.time });
  t.is((await a.approve()).length, 36);
  t.is(await a.approve(), 'full');
});

eachEngine(test.serial, 'an earlier grant answers again only while it is in use, and while there are few', async (t, at) => {
  const { a, b, clock, database, later } = await open(t, at);
  const { knex } = database;
  t.is(await a.approve({}, true), 'ask', 'the user has allowed nothing yet');
  const first = await a.approve();
  t.is(await a.approve({ redirectUri: 'https://client.example/other' }, true), 'ask');
  t.is(await a.approve({ resources: { 'https://gateway.example/mcp/y': 'mcp' } }, true), 'ask');
  t.is(await a.approve({ openid: 'openid offline_access' }, true), 'ask');

  // It does not renew itself: what it answers ends when it ends.
  const end = (await a.grants.find(first))?.expires_at ?? 0;
  await later(20 * DAY);
  const second = await a.approve({}, true);
  t.is((await a.grants.find(second))?.expires_at, end);
  // The client revokes one of them. The others stay.
  await a.adapterOf('Grant').destroy(first);
  await later(20 * DAY);
  t.is((await a.grants.find(await a.approve({}, true)))?.expires_at, end);

  // Nobody has used it for 30 days.
  await later(30 * DAY);
  t.is(await a.approve({}, true), 'ask');
  await a.grants.used(second);
  const many = await Promise.all(Array.from({ length: 30 }, (_, n) => (n % 2 === 0 ? a : b).approve({}, true)));
  t.is(many.filter((made) => made !== 'ask').length, MOST_SAME_GRANTS - 2);
  t.is((await knex('grants')).length, MOST_SAME_GRANTS);
  t.is((await a.approve()).length, 36, 'a person may allow more');
  const { question, ...same } = { ...approval, question: { kind: 'Interaction', id: '' } as const };
  t.like(await a.grants.earlier({ question, ...same }), { suffices: false });
  await later(end - clock.time);
  await knex('grants').where('expires_at', '>', end).delete();
  t.is(await a.approve({}, true), 'ask', 'they have all ended');
});

eachEngine(test.serial, 'the end of a grant ends all grants that go back to the same answer of the user', async (t, at) => {
  const { a, b, database, later } = await open(t, at);
  const caller = { principal, requestId: 'request' };
  const first = await a.approve();
  await later(DAY);
  const second = await a.approve({}, true);
  const third = await b.approve({}, true);
  const others = [
    await a.approve({ redirectUri: 'https://client.example/other' }),
    await a.approve({ clientId: 'https://other.example/metadata.json' }),
  ];
  await later(1);
  others.push(await a.approve());
  await a.adapterOf('RefreshToken').upsert('token', { kind: 'RefreshToken', jti: 'token', grantId: third, rotations: 0 }, 60);

  const before = await a.changes.position();
  await b.grants.end(caller, second);
  t.deepEqual((await a.grants.ofUser(ANN.id)).map(({ grant }) => grant.id).sort(), others.sort());
  t.is(await a.adapterOf('RefreshToken').find('token'), undefined);
  const ended = (await a.changes.page(10, null)).changes.filter(({ sequence }) => sequence > before.sequence);
  t.deepEqual(ended.map(({ object_id }) => object_id).sort(), [first, second, third].sort());
  for (const change of ended)
    t.like(change, { action: 'grant.end', actor: { id: ANN.id }, before: { user_id: ANN.id }, after: null });

  // A company may allow a client several endpoints at the same moment. Those are several answers.
  const [any] = await a.grants.ofUser(ANN.id);
  const ids = ['0190163d-8694-739b-aea5-966c26f8ada0', '0190163d-8694-739b-aea5-966c26f8ada1'];
  for (const id of ids) {
    if (any !== undefined) await grantStore(database.knex).insert({ ...any.grant, id, redirect_uri: BY_ASSERTION });
  }
  await a.grants.end(caller, ids[0] ?? '');
  t.is(await a.grants.find(ids[0] ?? ''), null);
  t.truthy(await a.grants.find(ids[1] ?? ''));
});

eachEngine(
  test.serial,
  'when the user or an administrator ends a grant, a client that asks again at the same moment keeps none',
  async (t, at) => {
    const { a, b, clock, database } = await open(t, at);
    const admin = localUser(
      { id: '0190163d-8694-739b-aea5-966c26f8ad92', email: 'admin@example.com', role: 'admin', groups: [] },
      1,
    );
    const token_id = '0190163d-8694-739b-aea5-966c26f8ad93';
    await userStore(database.knex).insert(admin, 'hash');
    await browserStore(database.knex).insert({ ...sessionAt(clock.time), id: token_id, user_id: admin.id }, 'other');
    const callers = [principal, { ...principal, sub: admin.id, role: 'admin', token_id }];
    for (let round = 0; round < 10; round++) {
      const id = await a.approve();
      const end = b.grants.end({ principal: callers[round % 2] ?? principal, requestId: 'request' }, id);
      await Promise.all([a.approve({}, true), end, b.approve({}, true), a.approve({}, true)]);
      t.deepEqual(await a.grants.ofUser(ANN.id), [], `round ${round}`);
    }
  },
);

eachEngine(test.serial, 'a grant that ends while its client asks again answers nothing', async (t, at) => {
  const { a, b, database } = await open(t, at);
  for (let round = 0; round < 5; round++) {
    const id = await a.approve();
    const results = await Promise.all([a.approve({}, true), b.adapterOf('Grant').destroy(id), b.approve({}, true)]);
    t.is(await a.grants.find(id), null);
    const silent = results.filter((made) => typeof made === 'string' && made.length === 36);
    t.is((await database.knex('grants')).length, silent.length);
    await database.knex('grants').delete();
    t.is(await a.approve({}, true), 'ask');
  }
});

eachEngine(test.serial, 'a question gives one grant and one answer, whichever replica is asked', async (t, at) => {
  const { a, b, database } = await open(t, at);
  await a.adapterOf('Interaction').upsert('q', { kind: 'Interaction', jti: 'q' }, 1_800);
  const question = { kind: 'Interaction', id: 'q' } as const;
  const made = await Promise.all(Array.from({ length: 6 }, (_, n) => (n % 2 === 0 ? a : b).approve({ question })));
  t.deepEqual(made.filter((one) => one === 'answered').length, 5);
  t.is((await database.knex('grants')).length, 1);
  const taken = await Promise.all(
    Array.from({ length: 6 }, (_, n) => refused((n % 2 === 0 ? a : b).adapterOf('Interaction').destroy('q'))),
  );
  t.deepEqual(taken.sort(), ['done', ...Array.from({ length: 5 }, () => 'not found')]);
});

eachEngine(test.serial, 'the second of several uses of a code at once ends its grant', async (t, at) => {
  const { a, b } = await open(t, at);
  for (const kind of ['AuthorizationCode', 'DeviceCode']) {
    const grantId = await a.approve();
    await a.adapterOf(kind).upsert(`used ${kind}`, { kind, jti: `used ${kind}`, grantId }, 60);
    await a.adapterOf(kind).consume(`used ${kind}`);
    t.truthy(await a.grants.find(grantId));
    t.is(await refused(b.adapterOf(kind).consume(`used ${kind}`)), 'invalid_grant');
    t.is(await a.grants.find(grantId), null, kind);
  }
});

eachEngine(test.serial, 'registrations make room for each other when there are too many', async (t, at) => {
  const { a, clock, database } = await open(t, at);
  const clients = a.adapterOf('Client');
  const register = (id: string) => clients.upsert(id, { client_id: id, redirect_uris: ['https://client.example/callback'] });
  const row = (n: number) => ({
    ...{
      id: `0190163d-8694-739b-aea5-${String(n).padStart(12, '0')}`,
      key: `key ${n}`,
      client_id: `client ${n}`,
      kind: 'registered',
    },
    ...{ name: 'x', metadata: '{}', enabled: true, created_at: clock.time, used_at: null },
  });
  for (let n = 0; n < MOST_UNUSED_CLIENTS; n += 250) {
    await database.knex('oauth_clients').insert(Array.from({ length: 250 }, (_, i) => row(n + i)));
  }
  t.is(await refused(register('too many')), 'too many');
  clock.time += 16 * 60_000;
  t.is(await refused(register('later')), 'done');
  t.like(await clients.find('later'), { client_id: 'later' });
});

eachEngine(test.serial, 'one network cannot use up the registrations or the device codes of others', async (t, at) => {
  const { a, clock } = await open(t, at);
  let made = 0;
  const register = () => {
    const id = `client ${made++}`;
    return refused(a.adapterOf('Client').upsert(id, { client_id: id, redirect_uris: ['https://client.example/callback'] }));
  };
  const device = (clientId: string) => {
    const id = `device ${made++}`;
    return refused(a.adapterOf('DeviceCode').upsert(id, { kind: 'DeviceCode', jti: id, clientId, userCode: id }, 600));
  };
  for (const [most, use] of [
    [MOST_UNUSED_OF_SITE, register],
    [MOST_DEVICES_OF_SITE, () => device('an application')],
  ] as const) {
    a.state.site = '192.0.2.1';
    for (let n = 0; n < most; n++) if ((await use()) !== 'done') return t.fail(`refused after ${n}`);
    t.is(await use(), 'too many');
    // A network whose address begins with the same digits is a different one.
    for (const other of ['192.0.2.10', '192.0.2', '2001:db8:1::/48']) {
      a.state.site = other;
      t.is(await use(), 'done', other);
    }
  }
  a.state.site = '192.0.2.1';
  t.is(await device('portcullis-cli'), 'done', 'the command line has a limit of its own');

  // Approved clients count no more, and old registrations make room for those of the same network.
  await a.approve({ clientId: 'client 0', clientKind: 'registered' });
  t.is(await register(), 'done');
  t.is(await register(), 'too many');
  clock.time += 16 * 60_000;
  t.is(await register(), 'done');
  t.truthy(await a.adapterOf('Client').find('client 0'));
  t.is(await device('an application'), 'done', 'the codes have ended');
});

eachEngine(test.serial, 'expired rows are removed, and those in use stay', async (t, at) => {
  const { a, clock, database } = await open(t, at);
  await a.adapterOf('Client').upsert('unused', { client_id: 'unused', client_name: 'x' });
  await a.adapterOf('Client').upsert('used', { client_id: 'used', client_name: 'y' });
  await a.adapterOf('AuthorizationCode').upsert('code', { kind: 'AuthorizationCode', jti: 'code' }, 60);
  await a.adapterOf('RefreshToken').upsert('token', { kind: 'RefreshToken', jti: 'token' }, 30 * 86_400);
  const id = await a.approve({ clientId: 'used', clientKind: 'registered' });
  const log = { info: () => undefined, warn: () => undefined };
  const upkeep = createUpkeep({ database, changesDays: 0, checkClock: async () => {}, log, now: () => clock.time });
  t.teardown(() => upkeep.stop());
  await upkeep.run();
  t.truthy(await a.adapterOf('AuthorizationCode').find('code'));
  clock.time += 60_001;
  await upkeep.run();
  t.is(await a.adapterOf('AuthorizationCode').find('code'), undefined, 'it ends with its time, and not a day later');
  clock.time += 2 * 24 * HOUR;
  await upkeep.run();
  t.is(await a.adapterOf('Client').find('unused'), undefined);
  t.truthy(await a.adapterOf('Client').find('used'));
  t.is(await a.adapterOf('AuthorizationCode').find('code'), undefined);
  t.truthy(await a.adapterOf('RefreshToken').find('token'));
  t.truthy(await a.grants.find(id));
  clock.time += 200 * 24 * HOUR;
  await upkeep.run();
  t.is(await a.grants.find(id), null);
  t.is(await a.adapterOf('Client').find('used'), undefined);
  t.is(await a.adapterOf('RefreshToken').find('token'), undefined);
});
