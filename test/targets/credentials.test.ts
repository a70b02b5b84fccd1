/** Who may set which credentials, what the API shows of them, and with which calls they are sent. */
import { Writable } from 'node:stream';
import test, { type ExecutionContext } from 'ava';
import { createLog } from '../../src/base/log.ts';
import type { OwnCredentialJson } from '../../src/rest/targets/contract.ts';
import type { CredentialJson } from '../../src/targets/credentials.ts';
import type { TargetJson } from '../../src/targets/document.ts';
import { policyBody } from '../policies/policies.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { apiToken, type Person, person, rest, startGateway, type TestGateway } from '../support/gateway.ts';
import { sessionClient } from '../support/mcp.ts';
import { world } from '../support/world.ts';

const NOBODY = '0190163d-8694-739b-aea5-966c26f8ad90';
const SECRET = 'hunter2-of-a-kind';

interface Setup {
  readonly gateway: TestGateway;
  readonly admin: Person;
  readonly user: Person;
  readonly target: TargetJson;
  /** Everything that was answered and logged. */
  readonly seen: string[];
  as(who: Person): <T>(expected: number, method: string, path: string, body?: unknown) => Promise<T>;
}

const KEYS = [{ type: 'bearer' }, { type: 'header', name: 'X-Team' }];

async function setUp(
  t: ExecutionContext,
  databaseUrl: string | null = null,
  environment: Record<string, string> = {},
): Promise<Setup> {
  const seen: string[] = [];
  const sink = new Writable({
    write(chunk, _encoding, done) {
      seen.push(String(chunk));
      done();
    },
  });
  const gateway = await startGateway(t, databaseUrl, environment, { log: createLog('trace', sink) });
  const as: Setup['as'] =
    ({ token }) =>
    async <T>(expected: number, method: string, path: string, body?: unknown) => {
      const answer = await gateway.rest<T>(expected, method, `/api${path}`, { token, ...(body === undefined ? {} : { body }) });
      seen.push(JSON.stringify([answer.body ?? '', [...answer.headers]]));
      return answer.body;
    };
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const body = { name: 'one', url: 'http://127.0.0.1:9/mcp', user_credentials: KEYS };
  const target = await as(admin)<TargetJson>(201, 'POST', '/targets', body);
  await as(admin)(201, 'POST', '/policies', policyBody({ target_id: target.id, resource_type: 'all', resource_pattern: null }));
  return { gateway, admin, user, target, seen, as };
}

eachEngine(test.serial, 'credentials can be set for everybody, roles, groups and users of any name', async (t, at) => {
  const { admin, target, as } = await setUp(t, at.url);
  const call = as(admin);
  const path = `/targets/${target.id}/credentials`;
  const names = [
    'dev',
    'Dev',
    'a/b',
    'a b',
    'ä\u{1f600}',
    '%2F',
    '%',
    '?name=x#y',
    '__proto__',
    'default',
    '.hidden',
    'x'.repeat(256),
  ];
  for (const type of ['role', 'group', 'user']) {
    for (const name of names) {
      const at = `${path}/${type}/${encodeURIComponent(name)}`;
      const set = await call<CredentialJson>(201, 'PUT', at, { type: 'bearer', value: `of ${type}` });
      t.like(set, { subject_type: type, subject_value: name, name: 'authorization', usable: true, supplied_by: 'administrator' });
    }
  }
  const all = await call<CredentialJson[]>(200, 'GET', path);
  t.is(all.length, 3 * names.length);
  for (const type of ['role', 'group', 'user']) {
    const those = all.filter(({ subject_type }) => subject_type === type).map(({ subject_value }) => subject_value);
    t.deepEqual(those.sort(), [...names].sort());
    for (const name of names) await call(204, 'DELETE', `${path}/${type}/${encodeURIComponent(name)}`);
    await call(404, 'DELETE', `${path}/${type}/dev`);
  }
  t.deepEqual(await call(200, 'GET', path), []);

  for (const wrong of ['group/%00', `group/${'x'.repeat(257)}`, 'group/%C2%85', 'group/%ED%A0%80', 'group/%zz']) {
    await call(400, 'PUT', `${path}/${wrong}`, { type: 'bearer', value: 'v' });
  }
  for (const nowhere of ['group', 'group/', 'group/a/b', 'everyone/x', 'default/x', 'Group/a', 'tenant/a', '%67roup/a']) {
    await call(404, 'PUT', `${path}/${nowhere}`, { type: 'bearer', value: 'v' });
  }
  // The two credentials of one subject can be deleted one by one, or together.
  for (const [name, left] of [
    ['?name=x-a', 1],
    ['', 0],
  ] as const) {
    await call(201, 'PUT', `${path}/group/dev`, { type: 'header', name: 'X-A', value: 'v' });
    await call(201, 'PUT', `${path}/group/dev`, { type: 'header', name: 'X-B', value: 'v' });
    await call(204, 'DELETE', `${path}/group/dev${name}`);
    t.is((await call<object[]>(200, 'GET', path)).length, left);
    if (left > 0) await call(204, 'DELETE', `${path}/group/dev`);
  }
});

eachEngine(test.serial, 'users supply their own values if they may use the target and it accepts such values', async (t, at) => {
  const { gateway, admin, user, target, as } = await setUp(t, at.url);
  const [mine, theirs] = [as(user), as(admin)];
  const path = `/targets/${target.id}`;
  const own = () => mine<OwnCredentialJson[]>(200, 'GET', '/credentials');
  const unset = { target: 'one', set: false, updated_at: null };
  t.deepEqual(await own(), [
    { ...unset, type: 'bearer', name: 'authorization' },
    { ...unset, type: 'header', name: 'x-team' },
  ]);
  const { token } = await apiToken(gateway, user);
  const set = await as({ ...user, token })<OwnCredentialJson>(201, 'PUT', '/credentials/one/authorization', { value: SECRET });
  t.like(set, { target: 'one', type: 'bearer', name: 'authorization', set: true });
  t.deepEqual((await own())[0], set);
  await mine(200, 'PUT', '/credentials/one/authorization', { value: SECRET });
  const [listed] = await theirs<CredentialJson[]>(200, 'GET', `${path}/credentials`);
  t.like(listed, { subject_type: 'user', subject_value: user.id, supplied_by: 'user', usable: true });
  t.deepEqual(
    (await theirs<OwnCredentialJson[]>(200, 'GET', '/credentials')).map((one) => one.set),
    [false, false],
    'the value of one user does not belong to another',
  );

  for (const name of ['x-other', 'X-Team', 'Authorization', '__proto__', 'constructor', 'x-team%20', 'TOKEN']) {
    await mine(404, 'PUT', `/credentials/one/${name}`, { value: 'v' });
  }
  for (const body of [undefined, {}, { value: '' }, { value: 5 }, { value: 'a\nb' }, { value: 'v', name: 'x' }, { value: 'é' }]) {
    await mine(400, 'PUT', '/credentials/one/x-team', body ?? {});
  }
  await mine(404, 'DELETE', '/credentials/one/x-team');
  await mine(403, 'PUT', `${path}/credentials/user/${user.id}`, { type: 'bearer', value: 'v' });
  await mine(403, 'GET', `${path}/credentials`);

  // A value is unusable while its key is not in the list of the target.
  await theirs(200, 'PUT', path, { user_credentials: [KEYS[1]] });
  t.false((await theirs<CredentialJson[]>(200, 'GET', `${path}/credentials`))[0]?.usable);
  await mine(404, 'PUT', '/credentials/one/authorization', { value: 'v' });
  await mine(404, 'DELETE', '/credentials/one/authorization');
  await theirs(200, 'PUT', path, { user_credentials: KEYS });
  await mine(204, 'DELETE', '/credentials/one/authorization');
  t.deepEqual(await theirs(200, 'GET', `${path}/credentials`), []);

  // A user cannot replace or delete a value that an administrator has set for the user.
  await theirs(201, 'PUT', `${path}/credentials/user/${user.id}`, { type: 'bearer', value: 'chosen' });
  t.true((await own())[0]?.set);
  await mine(403, 'PUT', '/credentials/one/authorization', { value: 'v' });
  await mine(403, 'DELETE', '/credentials/one/authorization');
});

eachEngine(test.serial, 'a missing, a disabled and a forbidden target get the same answer', async (t, at) => {
  const { gateway, admin, user, target, as } = await setUp(t, at.url);
  const call = as(admin);
  const make = async (name: string) =>
    (await call<TargetJson>(201, 'POST', '/targets', { name, url: 'http://127.0.0.1:9/', user_credentials: KEYS })).id;
  await make('forbidden');
  const off = await make('off');
  await call(201, 'POST', '/policies', policyBody({ target_id: off, resource_type: 'all', resource_pattern: null }));
  await call(200, 'PUT', `/targets/${off}`, { enabled: false });
  const raw = async (method: string, path: string, body: string | null): Promise<string> => {
    const headers = { authorization: `Bearer ${user.token}`, 'content-type': 'application/json' };
    const answer = await fetch(`${gateway.url}/api/credentials${path}`, { method, headers, body });
    const text = (await answer.text()).replace(/"request_id":"[^"]*"/, '');
    return `${answer.status} ${answer.headers.get('content-type')} ${text}`;
  };
  for (const [method, body] of [
    ['PUT', '{"value":"v"}'],
    ['PUT', '{"value":"a\\nb"}'],
    ['PUT', '{"value":""}'],
    ['PUT', '{'],
    ['DELETE', null],
  ] as const) {
    const answers = await Promise.all(
      [
        '/forbidden/authorization',
        '/off/authorization',
        '/missing/authorization',
        '/constructor/authorization',
        `/${off}/x-team`,
      ].map((path) => raw(method, path, body)),
    );
    t.is(new Set(answers).size, 1, JSON.stringify(answers));
    if (body === null || body === '{"value":"v"}') t.regex(answers[0] ?? '', /^404 /);
  }
  t.deepEqual(
    (await as(user)<OwnCredentialJson[]>(200, 'GET', '/credentials')).map((one) => one.target),
    ['one', 'one'],
  );
  // When the right to the target is lost, the next request shows none of its credentials.
  const denied = policyBody({
    name: 'no',
    effect: 'deny',
    priority: 1000,
    target_id: target.id,
    resource_type: 'all',
    resource_pattern: null,
  });
  await call(201, 'POST', '/policies', denied);
  t.deepEqual(await as(user)(200, 'GET', '/credentials'), []);
  t.is(await raw('PUT', '/one/authorization', '{"value":"v"}'), await raw('PUT', '/missing/authorization', '{"value":"v"}'));
});

test.serial('a caller without a token sees no credentials', async (t) => {
  const { gateway } = await setUp(t);
  await gateway.rest(401, 'GET', '/api/credentials');
  await gateway.rest(401, 'PUT', '/api/credentials/one/authorization', { body: { value: 'v' } });
  await gateway.rest(401, 'DELETE', '/api/credentials/one/authorization');
  await gateway.rest(401, 'PUT', `/api/targets/${NOBODY}/credentials/group/a%2Fb`, { body: { value: 'v' } });
  t.pass();
});

eachEngine(test.serial, 'no value is ever answered, recorded as a change, or logged', async (t, at) => {
  const { admin, user, target, seen, as } = await setUp(t, at.url);
  const call = as(admin);
  const path = `/targets/${target.id}/credentials`;
  await call(201, 'PUT', `${path}/default`, { type: 'bearer', value: SECRET });
  await call(201, 'PUT', `${path}/group/dev`, { type: 'header', name: 'x-team', value: SECRET });
  await as(user)(201, 'PUT', '/credentials/one/authorization', { value: SECRET });
  await call(400, 'PUT', `${path}/default`, { type: 'bearer', value: `${SECRET}\n` });
  await call(400, 'PUT', `${path}/default`, { type: 'env', name: 'A', value: SECRET });
  await call(400, 'PUT', `${path}/default`, { type: SECRET, value: SECRET });
  await call(400, 'PUT', `${path}/default`, { type: 'bearer', value: SECRET.repeat(1000) });
  await call(404, 'PUT', `/targets/${NOBODY}/credentials/default`, { type: 'bearer', value: SECRET });
  await as(user)(404, 'PUT', '/credentials/missing/authorization', { value: SECRET });
  await as(user)(403, 'PUT', `${path}/default`, { type: 'bearer', value: SECRET });
  await call(200, 'GET', path);
  await as(user)(204, 'DELETE', '/credentials/one/authorization');
  const changes = await call<{ action: string; actor: { id: string }; before: object | null; after: object | null }[]>(
    200,
    'GET',
    '/changes',
  );
  const ofCredentials = changes.filter(({ action }) => action.startsWith('credential.'));
  t.deepEqual(
    ofCredentials.map(({ action, actor }) => `${action} ${actor.id === user.id ? 'user' : 'admin'}`),
    ['credential.delete user', 'credential.set user', 'credential.set admin', 'credential.set admin'],
  );
  t.like(ofCredentials[1]?.after, { subject_type: 'user', subject_value: user.id, supplied_by: 'user' });
  t.true(seen.some((line) => line.includes('credential.set')));
  t.true(
    seen.some((line) => line.includes('"route"')),
    'the log was read',
  );
  t.false(seen.join('\n').includes(SECRET));
});

eachEngine(
  test.serial,
  'when administrators set the same credential at the same time, exactly one of their values is stored',
  async (t, at) => {
    const { gateway, admin, target, as } = await setUp(t, at.url);
    const call = as(admin);
    const path = `/targets/${target.id}/credentials`;
    const bodies = Array.from({ length: 8 }, (_, i) =>
      i % 2 === 0 ? { type: 'bearer', value: `v${i}` } : { type: 'header', name: 'authorization', value: `v${i}` },
    );
    const statuses = await Promise.all(
      bodies.map(async (body) => {
        const headers = { authorization: `Bearer ${admin.token}`, 'content-type': 'application/json' };
        return (await fetch(`${gateway.url}/api${path}/default`, { method: 'PUT', headers, body: JSON.stringify(body) })).status;
      }),
    );
    t.deepEqual(statuses.sort(), [200, 200, 200, 200, 200, 200, 200, 201]);
    const ofDefault = (await call<CredentialJson[]>(200, 'GET', path)).filter(({ subject_type }) => subject_type === 'default');
    t.is(ofDefault.length, 1);
    t.true(ofDefault[0]?.usable);
  },
);

/** Returns the credentials that the target got with the last call. */
const lastHeaders = (w: Awaited<ReturnType<typeof world>>) => {
  const { headers } = w.target.recorder.received.filter(({ message }) => message?.method === 'tools/call').at(-1) ?? {};
  return { authorization: headers?.authorization, team: headers?.['x-team'] };
};

eachEngine(test.serial, 'the next request carries the credential that is most specific at that time', async (t, at) => {
  const w = await world(t, at.url);
  await w.allow({ name: 'all' });
  const admin = (expected: number, method: string, path: string, body?: unknown) =>
    w.gateway.rest(expected, method, `/api${path}`, { token: w.admin.token, ...(body === undefined ? {} : { body }) });
  const path = `/targets/${w.target.id}`;
  const bearer = (value: string) => ({ type: 'bearer', value });
  const client = await sessionClient(t, w.mcp, w.token);
  const carries = async (expected: string | undefined, why: string) => {
    await client.callTool({ name: 'echo', arguments: { message: 'x' } });
    t.is(lastHeaders(w).authorization, expected && `Bearer ${expected}`, why);
  };
  await carries(undefined, 'no credential is set');
  await admin(201, 'PUT', `${path}/credentials/default`, bearer('default'));
  await admin(201, 'PUT', `${path}/credentials/default`, { type: 'header', name: 'x-team', value: 'nobody' });
  await carries('default', 'only the default');
  await admin(201, 'PUT', `${path}/credentials/role/user`, bearer('role'));
  await carries('role', 'role before default');
  await admin(201, 'PUT', `${path}/credentials/group/b`, bearer('b'));
  await admin(201, 'PUT', `${path}/credentials/group/a`, { type: 'header', name: 'x-team', value: 'a' });
  await admin(201, 'PUT', `${path}/credentials/group/%C3%A4`, bearer('umlaut'));
  await carries('role', 'the user is in no group');
  await admin(200, 'PUT', `/users/${w.user.id}`, { groups: ['ä', 'b', 'a'] });
  await carries('b', 'the first group that has the key, in byte order');
  t.is(lastHeaders(w).team, 'a', 'each name is chosen separately');
  await admin(200, 'PUT', `/users/${w.user.id}`, { groups: ['ä'] });
  await carries('umlaut', 'the user left the group');
  t.is(lastHeaders(w).team, 'nobody');
  await admin(200, 'PUT', path, { user_credentials: [{ type: 'bearer' }] });
  await w.gateway.rest(201, 'PUT', '/api/credentials/everything/authorization', { token: w.user.token, body: { value: 'own' } });
  await carries('own', 'the user before every group');
  await w.gateway.rest(200, 'PUT', '/api/credentials/everything/authorization', {
    token: w.user.token,
    body: { value: 'own 2' },
  });
  await carries('own 2', 'a new value of the user');
  await admin(200, 'PUT', path, { user_credentials: [] });
  await carries('umlaut', 'the target no longer accepts values of users');
  await admin(201, 'PUT', `${path}/credentials/user/${NOBODY}`, bearer('of another'));
  await carries('umlaut', 'a value of another user is not used');
  await admin(204, 'DELETE', `${path}/credentials/group/%C3%A4`);
  await carries('role', 'the credential of the group is deleted');
});

eachEngine(
  test.serial,
  'a credential is not sent after its target has moved, nor after the target has moved back',
  async (t, at) => {
    const w = await world(t, at.url);
    await w.allow({ name: 'all' });
    const elsewhere = await world(t);
    const admin = (expected: number, method: string, path: string, body?: unknown) =>
      w.gateway.rest(expected, method, `/api${path}`, { token: w.admin.token, ...(body === undefined ? {} : { body }) });
    const path = `/targets/${w.target.id}`;
    await admin(201, 'PUT', `${path}/credentials/default`, { type: 'bearer', value: 'of all' });
    await admin(201, 'PUT', `${path}/credentials/role/user`, { type: 'bearer', value: 'of the role' });
    const call = async () => (await sessionClient(t, w.mcp, w.token)).callTool({ name: 'echo', arguments: { message: 'x' } });
    await call();
    t.is(lastHeaders(w).authorization, 'Bearer of the role');
    const before = w.target.recorder.received.length;
    await admin(200, 'PUT', path, { url: elsewhere.target.recorder.url });
    await t.throwsAsync(call());
    await admin(200, 'PUT', path, { url: w.target.recorder.url });
    await t.throwsAsync(call());
    // A less specific credential does not replace the one that wins.
    await admin(200, 'PUT', `${path}/credentials/default`, { type: 'bearer', value: 'of all' });
    await t.throwsAsync(call());
    t.is(w.target.recorder.received.length, before);
    t.deepEqual(elsewhere.target.recorder.received, []);
    await admin(200, 'PUT', `${path}/credentials/role/user`, { type: 'bearer', value: 'again' });
    await call();
    t.is(lastHeaders(w).authorization, 'Bearer again');
  },
);

test.serial('a target that the configuration no longer allows can be disabled, but not get a different command', async (t) => {
  const database = await createSqlite();
  t.teardown(() => database.drop());
  const first = await startGateway(t, database.url, { STDIO_ALLOWED: '/bin/server' });
  const admin = await person(first, 'admin@example.com');
  const body = { name: 'local', transport: 'stdio', command: '/bin/server' };
  const made = await first.rest<TargetJson>(201, 'POST', '/api/targets', { token: admin.token, body });
  await first.gateway.close();
  const second = await startGateway(t, database.url);
  const put = (expected: number, change: object) =>
    second.rest<TargetJson>(expected, 'PUT', `/api/targets/${made.body.id}`, { token: admin.token, body: change });
  t.like((await put(200, { enabled: false })).body, { ...body, enabled: false });
  await put(400, { command: '/bin/other' });
  await put(200, { command: '/bin/server', description: 'as it was' });
});

eachEngine(test.serial, 'the master key is replaced, and nothing that it sealed is lost', async (t, at) => {
  const w = await world(t, at.url);
  await w.allow({ name: 'all' });
  const path = `/api/targets/${w.target.id}/credentials/default`;
  await w.gateway.rest(201, 'PUT', path, { token: w.admin.token, body: { type: 'bearer', value: 'secret' } });
  await w.gateway.gateway.close();
  const key = (fill: number) => Buffer.alloc(32, fill).toString('base64');
  const runs = async (environment: Record<string, string>) => {
    const gateway = await startGateway(t, at.url, environment);
    const client = await sessionClient(t, `${gateway.url}/mcp/everything`, w.token);
    await client.callTool({ name: 'echo', arguments: { message: 'x' } });
    t.is(lastHeaders(w).authorization, 'Bearer secret');
    await gateway.gateway.close();
  };
  await t.throwsAsync(startGateway(t, at.url, { MASTER_KEY: key(8) }), { message: /a different master key/ });
  await t.throwsAsync(startGateway(t, at.url, { MASTER_KEY: key(8), MASTER_KEY_PREVIOUS: key(9) }), {
    message: /a different master key/,
  });
  // A previous key only decrypts, so everything stays under the current key.
  await runs({ MASTER_KEY: key(7), MASTER_KEY_PREVIOUS: key(8) });
  await runs({ MASTER_KEY: key(7) });
  await runs({ MASTER_KEY: key(8), MASTER_KEY_PREVIOUS: `${key(9)},${key(7)}` });
  await t.throwsAsync(startGateway(t, at.url, { MASTER_KEY: key(7) }), { message: /a different master key/ });
  await runs({ MASTER_KEY: key(8) });
});

test.serial('users change their own credentials at a limited rate, so that administrators need not wait', async (t) => {
  const { user, gateway } = await setUp(t, null, { CHANGE_RATE_LIMIT: '30' });
  const put = () =>
    rest(gateway.url, 'PUT', '/api/credentials/one/authorization', { token: user.token, body: { value: 'mine' } });
  const statuses = (await Promise.all(Array.from({ length: 40 }, put))).map(({ status }) => status);
  t.is(statuses.filter((status) => status === 429).length, 10);
  const refused = await put();
  t.is(refused.status, 429);
  t.regex(refused.headers.get('retry-after') ?? '', /^\d+$/);
});
