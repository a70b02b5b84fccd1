/** The contract of the adapter, on each kind of database: what is used once, by whichever replica, and what the tables do not show. */
import { createHash } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import type { AdapterPayload } from 'oidc-provider';
import { createAdminister } from '../../src/auth/caller.ts';
import { createVault } from '../../src/auth/vault.ts';
import { createChanges } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import { type AdapterErrors, createAdapters, GRACE_MS, MOST_UNUSED_CLIENTS } from '../../src/oauth/adapter.ts';
import { clientStore } from '../../src/oauth/client-store.ts';
import { type Approval, createGrants } from '../../src/oauth/grants.ts';
import { recordStore } from '../../src/oauth/record-store.ts';
import { createUpkeep } from '../../src/upkeep.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine, type TestDatabase } from '../support/databases/engines.ts';

const errors: AdapterErrors = {
  invalidGrant: (detail) => new Error(`invalid_grant: ${detail}`),
  slowDown: () => new Error('slow_down'),
  tooMany: (detail) => new Error(`too many: ${detail}`),
};

const HOUR = 3_600_000;

/** What one replica has. Replicas share the clock, so that tests can move it. */
async function replica(database: Database, clock: { time: number }) {
  const now = (): number => clock.time;
  const changes = await createChanges(database, now);
  const grants = createGrants({ database, changes, administer: createAdminister({ changes }), now });
  const state = { route: null as string | null };
  const adapterOf = createAdapters({
    ...{ database, grants, errors, now },
    vault: createVault(Buffer.alloc(32, 7)),
    records: recordStore(database),
    current: () => ({ route: state.route, requestId: 'request' }),
  });
  return { adapterOf, grants, state, changes };
}

async function open(t: ExecutionContext, at: TestDatabase) {
  const database = await openTestDatabase(t, at);
  const clock = { time: Date.now() };
  return { database, clock, a: await replica(database, clock), b: await replica(database, clock) };
}

const approval: Approval = {
  userId: '0190163d-8694-739b-aea5-966c26f8ad90',
  clientId: 'https://client.example/metadata.json',
  clientKind: 'document',
  clientName: 'A client',
  redirectUri: 'https://client.example/callback',
  resources: { 'https://gateway.example/mcp/x/': 'mcp' },
  openid: 'openid',
};

const refused = async (work: Promise<unknown>): Promise<string> => {
  try {
    await work;
    return 'done';
  } catch (error) {
    return (error as Error).message.split(':')[0] ?? '';
  }
};

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
  const id = (await a.grants.create(approval)) ?? '';
  t.like(await b.adapterOf('Grant').find(id), {
    accountId: approval.userId,
    clientId: approval.clientId,
    resources: approval.resources,
    openid: { scope: 'openid' },
  });
  await a.adapterOf('RefreshToken').upsert('token', { kind: 'RefreshToken', jti: 'token', grantId: id, rotations: 0 }, 60);
  const before = await a.changes.position();
  await Promise.all([a, b].map(({ adapterOf }) => adapterOf('Grant').destroy(id)));
  const after = await a.changes.position();
  t.is(after.sequence, Math.max(before.sequence, 0) + 1, 'one change');
  t.is(after.revision, before.revision);
  const [change] = await a.changes.list(1, null);
  t.like(change, { action: 'grant.end', object_id: id, object_type: 'grant', after: null });
  t.is(await b.adapterOf('Grant').find(id), undefined);
  t.is(await b.adapterOf('RefreshToken').find('token'), undefined);
  t.deepEqual(await database.knex('oauth_records'), []);
});

eachEngine(test.serial, 'a disabled client gets no grant, also if the user approves it at the same moment', async (t, at) => {
  const { a, b, database } = await open(t, at);
  await a.grants.create(approval);
  const client = await a.grants.findClient(approval.clientId);
  const disabling = database.knex.transaction(async (trx) => {
    await clientStore(trx).lock(approval.clientId);
    await clientStore(trx).setEnabled(client?.id ?? '', false);
  });
  await disabling;
  t.deepEqual(await Promise.all([a.grants.create(approval), b.grants.create(approval)]), [null, null]);
  const [first] = await a.grants.ofUser(approval.userId);
  t.is(await b.adapterOf('Grant').find(first?.grant.id ?? ''), undefined, 'and its earlier grants are refused');
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

eachEngine(test.serial, 'expired rows are removed, and those in use stay', async (t, at) => {
  const { a, clock, database } = await open(t, at);
  await a.adapterOf('Client').upsert('unused', { client_id: 'unused', client_name: 'x' });
  await a.adapterOf('Client').upsert('used', { client_id: 'used', client_name: 'y' });
  await a.adapterOf('AuthorizationCode').upsert('code', { kind: 'AuthorizationCode', jti: 'code' }, 60);
  await a.adapterOf('RefreshToken').upsert('token', { kind: 'RefreshToken', jti: 'token' }, 30 * 86_400);
  const id = (await a.grants.create({ ...approval, clientId: 'used', clientKind: 'registered' })) ?? '';
  const log = { info: () => undefined, warn: () => undefined };
  const upkeep = createUpkeep({ database, changesDays: 0, log, now: () => clock.time });
  t.teardown(() => upkeep.stop());
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
