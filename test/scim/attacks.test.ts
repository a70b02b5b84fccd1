/** What a directory, or the thief of its token, tries beyond what it may. */
import { randomUUID } from 'node:crypto';
import test from 'ava';
import { openDatabase } from '../../src/db/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, rest, startGateway } from '../support/gateway.ts';
import { registration, startProvider } from '../support/provider.ts';
import { connectDirectory, directoryAt, directoryWorld, GROUP, PATCH, type Refusal, USER } from './support.ts';

test.serial('only the token of the provider opens its endpoint, and a provider that does not exist looks the same', async (t) => {
  const { gateway, admin, directory, providerId } = await directoryWorld(t);
  const second = await startProvider(t);
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(second, { name: 'second' }),
  });
  const other = await connectDirectory(t, gateway, admin, body.id);
  t.not(other.token, directory.token);
  const answerOf = async (base: string, authorization: string | null) => {
    const answer = await fetch(`${base}/Users`, { headers: authorization === null ? {} : { authorization } });
    return [answer.status, answer.headers.get('www-authenticate'), await answer.text()];
  };
  const nowhere = directory.base.replace('company', 'nowhere');
  const refused = await answerOf(directory.base, `Bearer ${other.token}`);
  t.deepEqual(refused.slice(0, 2), [401, 'Bearer realm="scim"']);
  t.deepEqual(await answerOf(nowhere, `Bearer ${directory.token}`), refused);
  for (const authorization of [
    ...[
      `Bearer ${directory.token}x`,
      `Bearer ${directory.token.slice(0, -1)}`,
      `Bearer ${admin.token}`,
      `Basic ${directory.token}`,
    ],
    ...[
      'Bearer',
      `Bearer ${directory.token} ${directory.token}`,
      `Bearer portcullis_scim_${'A'.repeat(43)}`,
      'Bearer ../x',
      null,
    ],
  ]) {
    t.is((await answerOf(directory.base, authorization))[0], 401, String(authorization));
  }
  t.is((await answerOf(directory.base, `bearer ${directory.token}`))[0], 200);
  // It opens nothing else.
  t.is((await rest(gateway.url, 'GET', '/api/users', { token: directory.token })).status, 401);

  const user = await directory.user('alice');
  for (const method of ['GET', 'DELETE']) await other.send<Refusal>(404, method, `/Users/${user.id}`);
  t.deepEqual(await other.find('Users', `id eq "${user.id}"`), []);
  const strange = await other.send<Refusal>(400, 'POST', '/Groups', {
    schemas: [GROUP],
    displayName: 'x',
    members: [{ value: user.id }],
  });
  const unknown = randomUUID();
  const made = await other.send<Refusal>(400, 'POST', '/Groups', {
    schemas: [GROUP],
    displayName: 'x',
    members: [{ value: unknown }],
  });
  t.is(strange.body.detail.replace(user.id, ''), made.body.detail.replace(unknown, ''));

  const status = await gateway.rest<object>(200, 'GET', `/api/providers/${providerId}/scim`, { token: admin.token });
  t.like(status.body, { users: 1, groups: 0 });
  t.false(JSON.stringify(status.body).includes(directory.token));
  const rotated = await connectDirectory(t, gateway, admin, providerId);
  await directory.send<Refusal>(401, 'GET', '/Users');
  t.is((await rotated.find('Users', 'userName pr')).length, 1);
  await gateway.rest(200, 'PUT', `/api/providers/${providerId}`, { token: admin.token, body: { enabled: false } });
  await rotated.send<Refusal>(403, 'GET', '/Users');
  await gateway.rest(200, 'PUT', `/api/providers/${providerId}`, { token: admin.token, body: { enabled: true } });
  await gateway.rest(204, 'DELETE', `/api/providers/${providerId}/scim/token`, { token: admin.token });
  await rotated.send<Refusal>(401, 'PATCH', `/Users/${user.id}`, { schemas: [PATCH], Operations: [] });
  await gateway.rest(204, 'DELETE', `/api/providers/${providerId}/scim/token`, { token: admin.token });
});

test.serial('wrong tokens are limited', async (t) => {
  const gateway = await startGateway(t, null, { LOGIN_RATE_LIMIT: '5' });
  const directory = directoryAt(t, `${gateway.url}/scim/v2/company`, `portcullis_scim_${'A'.repeat(43)}`);
  for (let tried = 0; tried < 5; tried++) await directory.send<Refusal>(401, 'GET', '/Users');
  const { headers } = await directory.send<Refusal>(429, 'GET', '/Users');
  t.true(Number(headers.get('retry-after')) > 0);
});

test.serial('beyond their limit, wrong tokens cost no query, and the valid token still counts', async (t) => {
  let queries = 0;
  const gateway = await startGateway(
    t,
    null,
    { LOGIN_RATE_LIMIT: '12' },
    {
      open: async (...parts) => {
        const database = await openDatabase(...parts);
        database.knex.on('query', ({ sql }: { sql: string }) => {
          if (sql.includes('providers')) queries++;
        });
        return database;
      },
    },
  );
  const admin = await person(gateway, 'admin@example.com');
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(await startProvider(t)),
  });
  // The gateway sees the valid token only after all the wrong ones of the same address, as after a restart.
  const directory = await connectDirectory(t, gateway, admin, body.id);
  const wrong = directoryAt(t, directory.base, `portcullis_scim_${'A'.repeat(43)}`);
  for (let tried = 0; tried < 12; tried++) await wrong.send<Refusal>(401, 'GET', '/Users');
  await wrong.send<Refusal>(429, 'GET', '/Users');
  queries = 0;
  for (let tried = 0; tried < 5; tried++) await wrong.send<Refusal>(429, 'GET', '/Users');
  t.is(queries, 0);
  await directory.send(200, 'GET', '/Users');
  t.true(queries > 0);
});

test.serial('more requests of a directory than may wait are refused, and all others are answered', async (t) => {
  // The two requests that are handled wait for the database until the first request has been refused.
  let held: Promise<void> | null = null;
  const open: typeof openDatabase = async (...parts) => {
    const database = await openDatabase(...parts);
    const { client } = database.knex;
    const run = client._query;
    client._query = async (connection: unknown, query: { sql: string }) => {
      if (/^select count.*directory_users/.test(query.sql)) await held;
      return run.call(client, connection, query);
    };
    return database;
  };
  const { directory, providerId, gateway, admin } = await directoryWorld(t, null, {}, { open });
  let release = () => {};
  held = new Promise((resolve) => {
    release = resolve;
  });
  const headers = { authorization: `Bearer ${directory.token}` };
  const answers = await Promise.all(
    Array.from({ length: 400 }, async () => {
      const answer = await fetch(`${directory.base}/Users`, { headers });
      if (answer.status === 429) release();
      const body = (await answer.json()) as Partial<Refusal>;
      return [answer.status, answer.headers.get('retry-after'), body.status ?? null].join();
    }),
  );
  const kinds = new Set(answers);
  t.deepEqual([...kinds].sort(), ['200,,', '429,1,429']);
  t.true(answers.filter((one) => one === '200,,').length >= 102);
  t.is((await directory.find('Users', 'userName pr')).length, 0, 'there is room again');
  await gateway.rest(200, 'GET', `/api/providers/${providerId}/scim`, { token: admin.token });
});

eachEngine(test.serial, 'local accounts are out of reach, and equal values join nothing', async (t, at) => {
  const { gateway, admin, directory, record } = await directoryWorld(t, at.url);
  const me = async () => (await rest(gateway.url, 'GET', '/api/auth/me', { token: admin.token })).body;
  const before = await me();
  for (const externalId of [admin.email, admin.id]) {
    const { body } = await directory.send(201, 'POST', '/Users', {
      ...{ schemas: [USER], externalId, userName: externalId, active: false },
      emails: [{ value: admin.email, primary: true }],
    });
    t.not(body.id, admin.id);
    t.like(await record(body.id), { role: 'user', subject: externalId });
  }
  const patch = { schemas: [PATCH], Operations: [{ op: 'replace', path: 'active', value: false }] };
  await directory.send<Refusal>(404, 'GET', `/Users/${admin.id}`);
  await directory.send<Refusal>(404, 'PATCH', `/Users/${admin.id}`, patch);
  await directory.send<Refusal>(404, 'PUT', `/Users/${admin.id}`, { schemas: [USER], userName: 'x' });
  await directory.send<Refusal>(404, 'DELETE', `/Users/${admin.id}`);
  t.deepEqual(await directory.find('Users', `id eq "${admin.id}"`), []);
  await directory.send<Refusal>(400, 'POST', '/Groups', { schemas: [GROUP], displayName: 'x', members: [{ value: admin.id }] });
  t.deepEqual(await me(), before);
  await gateway.rest(200, 'POST', '/api/auth/login', { body: { email: admin.email, password: admin.password } });
});

test.serial('names of groups give no rights of administration', async (t) => {
  const { gateway, provider, admin, directory, record } = await directoryWorld(t);
  await gateway.rest(201, 'POST', '/api/rights', {
    token: admin.token,
    body: { subject_type: 'group', subject_value: 'readers', right: 'read', owner: null },
  });
  const mallory = await directory.user('mallory', { roles: [{ value: 'admin', primary: true }] });
  for (const name of ['admin', 'auditor', 'readers']) await directory.group(name, [mallory]);
  t.like(await record(mallory.id), { role: 'user', groups: ['admin', 'auditor', 'readers'] });
  const token = await provider.token({ sub: 'id-mallory' });
  t.is((await rest(gateway.url, 'GET', '/api/auth/me', { token })).status, 200);
  for (const path of ['/api/users', '/api/policies', '/api/providers'])
    t.is((await rest(gateway.url, 'GET', path, { token })).status, 403, path);
});

eachEngine(test.serial, 'of many requests for the same user or group at once, one creates it', async (t, at) => {
  const { gateway, admin, directory } = await directoryWorld(t, at.url);
  const post = async (path: string, body: object) => {
    const answer = await fetch(directory.base + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${directory.token}`, 'content-type': 'application/scim+json' },
      body: JSON.stringify(body),
    });
    await answer.arrayBuffer();
    return answer.status;
  };
  const users = Array.from({ length: 8 }, (_, n) =>
    post('/Users', { schemas: [USER], externalId: 'same', userName: `same-${n}` }),
  );
  const names = Array.from({ length: 8 }, (_, n) =>
    post('/Users', { schemas: [USER], externalId: `other-${n}`, userName: 'Other' }),
  );
  const groups = Array.from({ length: 8 }, (_, n) => post('/Groups', { schemas: [GROUP], displayName: n % 2 ? 'Team' : 'TEAM' }));
  for (const all of [users, names, groups]) t.deepEqual((await Promise.all(all)).sort(), [201, ...Array(7).fill(409)]);
  t.is((await gateway.rest<object[]>(200, 'GET', '/api/users', { token: admin.token })).body.length, 3);
});

test.serial('adding null to the members of a group removes nobody', async (t) => {
  const { directory, record } = await directoryWorld(t);
  const alice = await directory.user('alice');
  const { id } = await directory.group('Staff', [alice]);
  const written = [{ path: 'members' }, { path: `members[value eq "${alice.id}"]` }].map((op) => ({
    op: 'add',
    ...op,
    value: null,
  }));
  for (const operation of [...written, { op: 'add', value: { members: null } }])
    await directory.patch(400, `/Groups/${id}`, operation);
  t.deepEqual((await record(alice.id)).groups, ['Staff']);
});

test.serial('malformed requests are refused in the form of SCIM', async (t) => {
  const { directory, record } = await directoryWorld(t);
  const alice = await directory.user('alice');
  const team = await directory.group('Team', [alice]);
  const before = JSON.stringify(await record(alice.id));
  const [user, group] = [`/Users/${alice.id}`, `/Groups/${team.id}`];
  const refuses = async (scimType: string, method: string, path: string, body: unknown, status = 400) => {
    const answer = await directory.send<Refusal>(status, method, path, body);
    t.is(answer.body.scimType, scimType, JSON.stringify(body).slice(0, 200));
  };
  const good = { schemas: [USER], externalId: 'x', userName: 'x' };
  for (const [scimType, body] of [
    ['invalidValue', { ...good, externalId: undefined }],
    ['invalidValue', { ...good, externalId: '' }],
    ['invalidValue', { ...good, externalId: 7 }],
    ['invalidValue', { ...good, externalId: 'x'.repeat(256) }],
    ['invalidValue', { ...good, externalId: 'a\u0000b' }],
    ['invalidValue', { ...good, userName: ' ' }],
    ['invalidValue', { ...good, userName: 'x'.repeat(257) }],
    ['invalidValue', { ...good, active: 'maybe' }],
    ['invalidValue', { ...good, emails: [{ value: 'no address' }] }],
    ['invalidValue', { ...good, emails: Array.from({ length: 21 }, (_, n) => ({ value: `a${n}@example.com` })) }],
    ['invalidSyntax', { ...good, EXTERNALID: 'y' }],
    ['invalidSyntax', { ...good, schemas: [] }],
    ['invalidSyntax', []],
    ['invalidSyntax', '{"schemas":["x"],"schemas":["y"]}'],
    ['invalidSyntax', '{"__proto__":{"externalId":"x"}}'],
    ['invalidSyntax', '['.repeat(100)],
    ['invalidSyntax', 'not JSON'],
    ['uniqueness', { ...good, externalId: 'id-alice' }],
    ['uniqueness', { ...good, externalId: 'released:x' }],
  ] as const)
    await refuses(scimType, 'POST', '/Users', body, scimType === 'uniqueness' ? 409 : 400);
  await refuses('mutability', 'PUT', user, { ...good, externalId: 'id-bob' });
  for (const [scimType, operation] of [
    ['invalidPath', { op: 'replace', path: 'actve', value: false }],
    ['invalidPath', { op: 'replace', path: 'constructor', value: 'x' }],
    ['invalidPath', { op: 'replace', path: '__proto__.active', value: 'x' }],
    ['invalidPath', { op: 'replace', path: 'emails[type eq "work"', value: 'x' }],
    ['invalidPath', { op: 'replace', path: 'emails[type eq "work"].value.x', value: 'x' }],
    ['invalidPath', { op: 'replace', path: 'emails.nothing', value: 'x' }],
    ['invalidPath', { op: 'replace', path: 'name.nothing', value: 'x' }],
    ['invalidPath', { op: 'replace', path: 'active.value', value: true }],
    ['invalidPath', { op: 'replace', path: 'a'.repeat(2_000), value: true }],
    ['noTarget', { op: 'replace', path: 'emails[not (type eq "work")].value', value: 'a@example.com' }],
    ['noTarget', { op: 'remove' }],
    ['mutability', { op: 'replace', path: 'externalId', value: 'id-bob' }],
    ['mutability', { op: 'remove', path: 'userName' }],
    ['mutability', { op: 'remove', path: 'active' }],
    ['mutability', { op: 'replace', path: 'id', value: randomUUID() }],
    ['invalidValue', { op: 'replace', path: 'active', value: {} }],
    ['invalidValue', { op: 'replace', path: 'userName', value: null as never }],
    ['invalidSyntax', { op: 'move', path: 'userName', value: 'x' }],
    ['invalidSyntax', { op: 'add', value: 'x' }],
  ] as const)
    await refuses(
      scimType === 'invalidValue' && 'path' in operation && operation.path === 'userName' ? 'mutability' : scimType,
      'PATCH',
      user,
      {
        schemas: [PATCH],
        Operations: [operation],
      },
    );
  await refuses('invalidSyntax', 'PATCH', user, { schemas: [PATCH], Operations: [] });
  await refuses('invalidSyntax', 'PATCH', user, {
    schemas: [PATCH],
    Operations: Array.from({ length: 1_001 }, () => ({ op: 'replace', path: 'displayName', value: 'x' })),
  });
  // Members of values count as well.
  const names = Object.fromEntries(Array.from({ length: 501 }, (_, n) => [`emails[value eq "${n}@example.com"].type`, 'work']));
  for (const path of [user, group])
    await refuses('invalidSyntax', 'PATCH', path, { schemas: [PATCH], Operations: Array(2).fill({ op: 'add', value: names }) });
  const wide = { schemas: [PATCH], ...Object.fromEntries(Array.from({ length: 1_000 }, (_, n) => [`m${n}`, 1])) };
  await refuses('invalidSyntax', 'PATCH', user, { ...wide, Operations: [{ op: 'replace', path: 'displayName', value: 'x' }] });
  for (const [scimType, operation] of [
    ['invalidValue', { op: 'add', path: 'members', value: [{ value: team.id }] }],
    ['invalidValue', { op: 'add', path: 'members', value: [{ value: alice.id, type: 'Group' }] }],
    ['invalidValue', { op: 'add', path: 'members', value: [{ value: "x' or '1'='1" }] }],
    ['invalidValue', { op: 'replace', path: 'displayName', value: 'x'.repeat(257) }],
    ['invalidValue', { op: 'replace', path: 'displayName', value: '' }],
    ['invalidPath', { op: 'remove', path: 'members[display eq "x"]' }],
    ['invalidPath', { op: 'add', path: 'owners', value: [] }],
  ] as const)
    await refuses(scimType, 'PATCH', group, { schemas: [PATCH], Operations: [operation] });
  const huge = JSON.stringify({
    schemas: [PATCH],
    Operations: [{ op: 'add', path: 'displayName', value: 'x'.repeat(3 * 1024 * 1024) }],
  });
  await directory.send<Refusal>(413, 'PATCH', user, huge);
  await directory.send<Refusal>(415, 'PATCH', user, '{}', { 'content-type': 'text/plain' });
  await directory.send<Refusal>(404, 'GET', '/Users/not-an-id');
  t.is(JSON.stringify(await record(alice.id)), before);
});

test.serial('a user in more groups than a record can hold is refused, and comes back with fewer', async (t) => {
  const { directory, record, signIn } = await directoryWorld(t);
  const alice = await directory.user('alice');
  const groups = [];
  for (let n = 0; n < 18; n++) groups.push(await directory.group(`${n} ${'x'.repeat(240)}`, [alice]));
  t.like(await record(alice.id), { refusal: 'too_many_groups', groups: [] });
  t.is(await signIn('alice'), 401, 'it would look like a user in no group');
  // What the directory changes beside the groups does not make them none.
  await directory.patch(200, `/Users/${alice.id}`, { op: 'replace', path: 'displayName', value: 'Alice' });
  await directory.send(200, 'PUT', `/Users/${alice.id}`, { schemas: [USER], userName: 'alice@example.org' });
  t.like(await record(alice.id), { refusal: 'too_many_groups', groups: [] });
  t.is(await signIn('alice'), 401);
  for (const { id } of groups.slice(0, 5)) await directory.send(204, 'DELETE', `/Groups/${id}`);
  t.is((await record(alice.id)).groups.length, 13);
  t.is(await signIn('alice'), 200);
});
