/** A directory that keeps users and groups of the gateway up to date. */
import test from 'ava';
import { request } from 'express';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person } from '../support/gateway.ts';
import { registration } from '../support/provider.ts';
import { connectDirectory, directoryWorld, GROUP, type Listing, type Refusal, type Resource, USER } from './support.ts';

eachEngine(test.serial, 'users and groups of the directory decide who may come in and with which groups', async (t, at) => {
  const rules = [{ if_group: 'Operators', role: 'operator', groups: ['release'] }];
  const { gateway, admin, directory, record, signIn } = await directoryWorld(t, at.url, { rules });
  t.is(await signIn('alice', { groups: ['Operators'] }), 401, 'the directory has not sent the user');

  const alice = await directory.user('alice', { emails: [{ value: 'alice@example.com', type: 'work', primary: true }] });
  const bob = await directory.user('bob');
  t.like(await record(alice.id), { subject: 'id-alice', email: 'alice@example.com', role: 'user', groups: [], refusal: null });
  t.is(await signIn('alice', { groups: ['Operators'], email: 'other@example.com' }), 200);
  t.like(await record(alice.id), { role: 'user', groups: [], email: 'alice@example.com' }, 'claims do not give groups');

  const operators = await directory.group('Operators', [alice]);
  t.deepEqual(operators.members, [{ value: alice.id, type: 'User', display: 'alice@example.com' } as never]);
  t.like(await record(alice.id), { role: 'operator', groups: ['Operators', 'release'] });

  t.is(
    (await directory.patch(204, `/Groups/${operators.id}`, { op: 'add', path: 'members', value: [{ value: bob.id }] })).status,
    204,
  );
  t.like(await record(bob.id), { role: 'operator', groups: ['Operators', 'release'] });
  await directory.patch(204, `/Groups/${operators.id}`, { op: 'replace', path: 'displayName', value: 'Staff' });
  for (const { id } of [alice, bob]) t.like(await record(id), { role: 'user', groups: ['Staff'] }, 'the name decides');
  await directory.patch(204, `/Groups/${operators.id}`, { op: 'remove', path: `members[value eq "${bob.id}"]` });
  t.deepEqual((await record(bob.id)).groups, []);
  const replaced = { schemas: [GROUP], displayName: 'Staff', members: [{ value: bob.id }] };
  const put = await directory.send(200, 'PUT', `/Groups/${operators.id}`, replaced);
  t.deepEqual(
    put.body.members?.map(({ value }) => value),
    [bob.id],
  );
  t.deepEqual([(await record(alice.id)).groups, (await record(bob.id)).groups], [[], ['Staff']]);
  await directory.send(204, 'DELETE', `/Groups/${operators.id}`);
  t.deepEqual((await record(bob.id)).groups, []);
  await directory.send<Refusal>(404, 'GET', `/Groups/${operators.id}`);

  await directory.patch(200, `/Users/${alice.id}`, { op: 'Replace', path: 'active', value: 'False' });
  t.like(await record(alice.id), { refusal: 'directory_inactive', enabled: true });
  t.is(await signIn('alice'), 401);
  await directory.patch(200, `/Users/${alice.id}`, { op: 'Replace', path: 'active', value: 'True' });
  t.is(await signIn('alice'), 200);
  await directory.send(204, 'DELETE', `/Users/${alice.id}`);
  t.is(await signIn('alice'), 401);
  t.is((await record(alice.id)).refusal, 'directory_inactive');
  await directory.send<Refusal>(404, 'GET', `/Users/${alice.id}`);
  const again = await directory.user('alice');
  t.is(again.id, alice.id, 'the record of the user is found again');
  t.is(await signIn('alice'), 200);

  const changes = await gateway.rest<{ actor: { email: string }; action: string; reason: string }[]>(200, 'GET', '/api/changes', {
    token: admin.token,
  });
  const byDirectory = changes.body.filter(({ actor }) => actor.email === 'directory company');
  for (const action of [
    'user.create',
    'user.update',
    'directory_group.create',
    'directory_group.update',
    'directory_group.delete',
  ])
    t.true(
      byDirectory.some((change) => change.action === action),
      action,
    );
  t.is((await gateway.rest<object[]>(200, 'GET', '/api/users', { token: admin.token })).body.length, 3);
});

eachEngine(
  test.serial,
  'API tokens rest while a user is not active, and end for good when the directory deletes the user',
  async (t, at) => {
    const { gateway, provider, admin, directory } = await directoryWorld(t, at.url);
    const bob = await person(gateway, 'bob@example.com');
    const { token } = await apiToken(gateway, bob);
    const body = { issuer: provider.issuer, subject: 'id-bob' };
    await gateway.rest(200, 'POST', `/api/users/${bob.id}/link`, { token: admin.token, body });
    await directory.user('bob');
    const use = async (status: number, when: string) => {
      const answer = await fetch(`${gateway.url}/api/auth/me`, { headers: { authorization: `Bearer ${token}` } });
      await answer.arrayBuffer();
      t.is(answer.status, status, when);
    };
    const active = (value: boolean) => directory.patch(200, `/Users/${bob.id}`, { op: 'replace', path: 'active', value });
    await use(200, 'sent');
    await active(false);
    await use(401, 'not active');
    await active(true);
    await use(200, 'active again');
    await active(false);
    await directory.send(204, 'DELETE', `/Users/${bob.id}`);
    t.is((await directory.user('bob')).id, bob.id);
    await use(401, 'deleted, and sent again');
    const changes = await gateway.rest<{ action: string }[]>(200, 'GET', '/api/changes', { token: admin.token });
    t.is(changes.body.filter(({ action }) => action === 'token.revoke').length, 1);
  },
);

eachEngine(test.serial, 'a user who has signed in before is adopted, and keeps what administrators gave', async (t, at) => {
  const { gateway, admin, directory, record, signIn, providerId } = await directoryWorld(t, at.url, { groups_from: 'token' });
  const set = (body: object) => gateway.rest(200, 'PUT', `/api/providers/${providerId}`, { token: admin.token, body });
  t.is(await signIn('alice', { groups: ['claimed'] }), 200);
  const users = await gateway.rest<{ id: string; subject: string }[]>(200, 'GET', '/api/users', { token: admin.token });
  const known = users.body.find(({ subject }) => subject === 'id-alice')?.id ?? '';
  await gateway.rest(200, 'PUT', `/api/users/${known}`, { token: admin.token, body: { given_groups: ['given'] } });
  t.deepEqual(await directory.find('Users', 'externalId eq "id-alice"'), [], 'the directory has not sent it yet');
  const alice = await directory.user('alice');
  t.is(alice.id, known);
  await directory.group('Directory', [alice]);
  t.deepEqual((await record(known)).groups, ['claimed', 'given'], 'groups still come from tokens');
  await set({ groups_from: 'directory' });
  t.deepEqual((await record(known)).groups, ['Directory', 'given']);
  t.is(await signIn('alice', { groups: ['claimed'], _claim_names: { groups: 'src1' } }), 200, 'groups overage does not matter');
  t.deepEqual((await record(known)).groups, ['Directory', 'given']);

  // What an administrator has disabled, the directory does not enable.
  await gateway.rest(200, 'PUT', `/api/users/${known}`, { token: admin.token, body: { enabled: false } });
  await directory.patch(200, `/Users/${known}`, { op: 'replace', value: { active: false } });
  await directory.patch(200, `/Users/${known}`, { op: 'replace', value: { active: true } });
  t.is(await signIn('alice'), 401);
  t.like(await record(known), { enabled: false, refusal: null });
});

eachEngine(test.serial, 'users show their groups again when groups come from tokens again', async (t, at) => {
  const { gateway, admin, directory, record, signIn, providerId } = await directoryWorld(t, at.url);
  const set = (body: object) => gateway.rest(200, 'PUT', `/api/providers/${providerId}`, { token: admin.token, body });
  const alice = await directory.user('alice');
  await directory.group('Blocked', [alice]);
  t.is(await signIn('alice'), 200);
  await set({ default_role: 'user', rules: [{ if_group: 'Blocked', role: 'operator' }] });
  t.is(await signIn('alice'), 200, 'other settings end nothing');
  const time = Date.now();
  await set({ groups_from: 'token' });
  const { valid_after } = (await record(alice.id)) as unknown as { valid_after: string };
  t.true(Date.parse(valid_after) >= time);
  t.is(await signIn('alice'), 401, 'this token needed no groups');
  t.like(await record(alice.id), { groups: ['Blocked'], role: 'operator' }, 'API tokens have the last ones until the next token');
  const { body: changes } = await gateway.rest<{ action: string; object_id: string; after: object }[]>(
    200,
    'GET',
    '/api/changes',
    {
      token: admin.token,
    },
  );
  const last = changes.find(({ action, object_id }) => action === 'user.update' && object_id === alice.id);
  t.deepEqual(last?.after, await record(alice.id), 'the log of changes has the record as it is');
});

eachEngine(
  test.serial,
  'a provider that is registered again has no users of its directory until they are sent again',
  async (t, at) => {
    const { gateway, provider, admin, directory, record, signIn, providerId } = await directoryWorld(t, at.url);
    const alice = await directory.user('alice');
    const bob = await directory.user('bob', { active: false });
    await directory.group('Staff', [alice]);
    t.is(await signIn('alice'), 200);
    await gateway.rest(204, 'DELETE', `/api/providers/${providerId}`, { token: admin.token });
    const again = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
      token: admin.token,
      body: registration(provider, { groups_from: 'directory' }),
    });
    t.like(await record(alice.id), { refusal: 'not_in_directory', groups: [] });
    t.is(await signIn('alice'), 401);
    t.is((await record(bob.id)).refusal, 'directory_inactive', 'a deactivated user does not come back with the provider');
    await directory.send<Refusal>(401, 'GET', '/Users');

    const next = await connectDirectory(t, gateway, admin, again.body.id);
    t.is((await next.user('alice')).id, alice.id);
    t.like(await record(alice.id), { refusal: null, groups: [] });

    const time = Date.now();
    await gateway.rest(204, 'DELETE', `/api/providers/${again.body.id}`, { token: admin.token });
    await gateway.rest(201, 'POST', '/api/providers', { token: admin.token, body: registration(provider) });
    t.is((await record(alice.id)).refusal, null);
    t.is(await signIn('alice'), 401, 'earlier tokens needed no groups');
    const { valid_after } = (await record(alice.id)) as unknown as { valid_after: string };
    t.true(Date.parse(valid_after) >= time);
  },
);

eachEngine(test.serial, 'an account that a directory has sent is not linked until the directory deletes it', async (t, at) => {
  const { gateway, admin, provider, directory, record, signIn } = await directoryWorld(t, at.url);
  const bob = await person(gateway, 'bob@example.com');
  const sent = await directory.user('bob');
  const team = await directory.group('Team', [sent]);
  const link = (status: number, id: string, subject: string) =>
    gateway.rest<{ code: string; detail: string }>(status, 'POST', `/api/users/${id}/link`, {
      token: admin.token,
      body: { issuer: provider.issuer, subject },
    });
  const { body: refused } = await link(409, bob.id, 'id-bob');
  t.is(refused.code, 'identity_taken');
  t.regex(refused.detail, /Delete the user in the directory/);
  await link(409, sent.id, 'id-robert');
  t.like(await record(sent.id), { subject: 'id-bob', groups: ['Team'], refusal: null, enabled: true });
  // The id that the directory knows goes on to decide.
  await directory.patch(204, `/Groups/${team.id}`, { op: 'remove', path: `members[value eq "${sent.id}"]` });
  t.deepEqual((await record(sent.id)).groups, []);
  await directory.send(204, 'DELETE', `/Users/${sent.id}`);

  await gateway.rest(200, 'POST', `/api/users/${sent.id}/end-tokens`, { token: admin.token });
  await link(200, bob.id, 'id-bob');
  t.like(await record(bob.id), { subject: 'id-bob', groups: [], refusal: 'directory_inactive' });
  t.is((await directory.user('bob')).id, bob.id, 'the directory adopts the linked user');
  await directory.patch(204, `/Groups/${team.id}`, { op: 'add', path: 'members', value: [{ value: bob.id }] });
  t.like(await record(bob.id), { groups: ['Team'], refusal: null });
  t.is(await signIn('bob'), 401, 'the tokens that were ended stay ended');
  await directory.patch(200, `/Users/${bob.id}`, { op: 'replace', path: 'active', value: false });
  t.is((await record(bob.id)).refusal, 'directory_inactive');
});

test.serial('the query of a request is parsed as often for a page of users as for one user', async (t) => {
  const { directory } = await directoryWorld(t);
  for (const name of ['ann', 'ben', 'cay', 'dan']) await directory.user(name);
  const getter = Object.getOwnPropertyDescriptor(request, 'query') as PropertyDescriptor;
  t.teardown(() => void Object.defineProperty(request, 'query', getter));
  let parsed = 0;
  const get = function (this: object): unknown {
    parsed++;
    return getter.get?.call(this);
  };
  Object.defineProperty(request, 'query', { ...getter, get });
  const timesFor = async (count: number): Promise<number> => {
    parsed = 0;
    const { body } = await directory.send<Listing>(200, 'GET', `/Users?count=${count}&attributes=userName`);
    t.deepEqual(
      body.Resources.map((one) => Object.keys(one).sort()),
      Array.from({ length: count }, () => ['id', 'schemas', 'userName']),
    );
    return parsed;
  };
  t.is(await timesFor(4), await timesFor(1));
});

test.serial('a patch of a user has at most 50 operations', async (t) => {
  const { directory } = await directoryWorld(t);
  const { id } = await directory.user('ann');
  const rename = { op: 'replace', path: 'displayName', value: 'Ann' };
  await directory.patch(200, `/Users/${id}`, ...Array.from({ length: 50 }, () => rename));
  await directory.patch(400, `/Users/${id}`, ...Array.from({ length: 51 }, () => rename));
});

eachEngine(test.serial, 'filters, pages and versions', async (t, at) => {
  const { directory } = await directoryWorld(t, at.url);
  const made: Resource[] = [];
  for (const name of ['ann', 'ben', 'cay_x', 'cayzx', 'Dörte']) made.push(await directory.user(name));
  const [ann, ben] = made as [Resource, Resource];
  const names = async (filter: string) => (await directory.find('Users', filter)).map(({ userName }) => userName);
  t.deepEqual(await names('userName eq "ANN@example.com"'), ['ann@example.com']);
  t.deepEqual(await names('urn:ietf:params:scim:schemas:core:2.0:User:userName Eq "dörte@example.com"'), ['Dörte@example.com']);
  t.deepEqual(await names('externalId eq "id-ben"'), ['ben@example.com']);
  t.deepEqual(await names('externalId eq "ID-BEN"'), [], 'subjects are compared exactly');
  t.deepEqual(await names('userName co "y_x"'), ['cay_x@example.com'], 'no character is a wildcard');
  t.deepEqual(await names('userName sw "DÖ"'), ['Dörte@example.com']);
  t.deepEqual(await names('userName ew "_X@example.com"'), ['cay_x@example.com']);
  for (const operator of ['co', 'sw', 'ew']) {
    t.is((await names(`userName ${operator} ""`)).length, 5);
    t.deepEqual(await names(`userName ${operator} "\\u0000"`), []);
    t.deepEqual(await names(`userName ${operator} "${'ann@example.com'.repeat(2)}"`), []);
  }
  t.deepEqual(await names(`id eq "${ann.id}" or (userName sw "be" and active eq true)`), ['ann@example.com', 'ben@example.com']);
  t.is((await names('not (userName ew "@example.com")')).length, 0);
  t.is((await names('active eq "False"')).length, 0);
  t.is((await names('externalId pr')).length, 5);
  t.deepEqual(await names('userName eq "a\\"b\\\\c"'), []);
  for (const filter of [
    ...[
      'userName',
      'userName eq',
      'userName eq x',
      'userName eq "a" and',
      '(userName eq "a"',
      'userName eq "a")',
      'password eq "a"',
    ],
    ...[
      'userName gt "a"',
      'externalId co "a"',
      'userName eq "a',
      "userName eq 'a'",
      'userName eq "a" userName eq "b"',
      'constructor eq "a"',
    ],
    ...[
      '__proto__ eq "a"',
      'active co "t"',
      'emails[type eq "work"].value eq "a"',
      'userName eq 1',
      `userName eq "${'a'.repeat(1_100)}"`,
    ],
    'userName co "a" or userName sw "b" or userName ew "c"',
    ...[`userName eq "${'\\a'.repeat(40)}`, '('.repeat(100), Array.from({ length: 20 }, () => 'id eq "a"').join(' or ')],
  ]) {
    const { body } = await directory.send<Refusal>(400, 'GET', `/Users?filter=${encodeURIComponent(filter)}`);
    t.is(body.scimType, 'invalidFilter', filter);
  }

  const page = async (query: string) => (await directory.send<Listing>(200, 'GET', `/Users?${query}`)).body;
  const all = await page('count=500');
  t.like(all, { totalResults: 5, startIndex: 1, itemsPerPage: 5 });
  const [two, rest] = [await page('startIndex=1&count=2'), await page('startIndex=3&count=100')];
  t.deepEqual([...two.Resources, ...rest.Resources], [...all.Resources]);
  t.like(await page('count=0'), { totalResults: 5, itemsPerPage: 0 });
  t.like(await page('startIndex=-3&count=-1'), { startIndex: 1, itemsPerPage: 0 });
  t.like(await page('startIndex=100'), { totalResults: 5, itemsPerPage: 0 });
  await directory.send<Refusal>(400, 'GET', '/Users?startIndex=one');
  const few = await page('attributes=userName&count=1');
  t.deepEqual(Object.keys(few.Resources[0] ?? {}).sort(), ['id', 'schemas', 'userName']);

  const read = await directory.send(200, 'GET', `/Users/${ben.id}`);
  const etag = read.headers.get('etag') ?? '';
  t.is(read.body.meta.version, etag);
  await directory.send(304, 'GET', `/Users/${ben.id}`, undefined, { 'if-none-match': etag });
  const body = { schemas: [USER], userName: 'ben2@example.com' };
  const changed = await directory.send(200, 'PUT', `/Users/${ben.id}`, body, { 'if-match': etag });
  t.like(changed.body, { userName: 'ben2@example.com', externalId: 'id-ben', active: true });
  await directory.send<Refusal>(412, 'PUT', `/Users/${ben.id}`, body, { 'if-match': etag });
  await directory.send<Refusal>(412, 'DELETE', `/Users/${ben.id}`, undefined, { 'if-match': etag });
  const taken = await directory.send<Refusal>(409, 'PUT', `/Users/${ben.id}`, { ...body, userName: 'Ann@Example.com' });
  t.is(taken.body.scimType, 'uniqueness');

  const group = await directory.group('One', [ann]);
  await directory.group('Two');
  t.deepEqual(
    (await directory.find('Groups', `members[value eq "${ann.id}"]`)).map(({ id }) => id),
    [group.id],
  );
  t.deepEqual(
    (await directory.find('Groups', `displayName eq "one" and members eq "${ann.id}"`)).map(({ id }) => id),
    [group.id],
  );
  const bare = (await directory.send<Listing>(200, 'GET', '/Groups?excludedAttributes=members')).body;
  t.is(bare.totalResults, 2);
  t.true(bare.Resources.every(({ members }) => members === undefined));
});

test.serial('the endpoint says what it supports', async (t) => {
  const { directory } = await directoryWorld(t);
  const { body: config } = await directory.send<Record<string, { supported: boolean }>>(200, 'GET', '/ServiceProviderConfig');
  t.deepEqual(
    ['patch', 'bulk', 'filter', 'changePassword', 'sort', 'etag'].map((name) => config[name]?.supported),
    [true, false, true, false, false, true],
  );
  for (const path of ['/Schemas', '/ResourceTypes']) {
    const { body } = await directory.send<Listing>(200, 'GET', path);
    t.is(body.totalResults, 2);
    for (const { id } of body.Resources) t.is((await directory.send(200, 'GET', `${path}/${id}`)).body.id, id);
    await directory.send<Refusal>(404, 'GET', `${path}/nothing`);
  }
  for (const path of ['/Bulk', '/.search', '/Users/.search']) await directory.send<Refusal>(501, 'POST', path, {});
  await directory.send<Refusal>(501, 'GET', '/Me');
  await directory.send<Refusal>(404, 'GET', '/Nothing');
  await directory.send<Refusal>(405, 'DELETE', '/Users');
});
