/** Requests as Entra and Okta send them, after their documentation. */
import test from 'ava';
import { directoryWorld, ERROR, GROUP, type Listing, PATCH, type Refusal, USER } from './support.ts';

const ENTERPRISE = 'urn:ietf:params:scim:schemas:extension:enterprise:2.0:User';

test.serial('Entra keeps users up to date', async (t) => {
  const { directory, record } = await directoryWorld(t);
  const missing = await directory.send<Listing>(200, 'GET', '/Users?filter=userName+eq+%22Test_User%22');
  t.like(missing.body, { totalResults: 0, itemsPerPage: 0, startIndex: 1 });
  const { body: user, headers } = await directory.send(201, 'POST', '/Users', {
    schemas: [USER, ENTERPRISE],
    externalId: '0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef',
    userName: 'Test_User_ab6490ee@example.com',
    active: true,
    displayName: 'Lena Doe',
    emails: [{ primary: true, type: 'work', value: 'Test_User_ab6490ee@example.com' }],
    meta: { resourceType: 'User' },
    name: { formatted: 'givenName familyName', familyName: 'familyName', givenName: 'givenName' },
    roles: [],
    [ENTERPRISE]: { department: 'Sales', manager: { value: 'x' } },
  });
  t.is(headers.get('location'), user.meta.location);
  t.like(user, { externalId: '0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef', name: { givenName: 'givenName' }, active: true });
  const path = `/Users/${user.id}`;
  t.is((await record(user.id)).subject, user.externalId ?? '');
  t.deepEqual((await directory.find('Users', 'externalId eq "0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef"'))[0], user);

  const { body: changed } = await directory.patch(
    200,
    path,
    { op: 'Replace', path: 'emails[type eq "work"].value', value: 'updated@example.com' },
    { op: 'Replace', path: 'name.familyName', value: 'updatedFamilyName' },
    { op: 'Add', path: 'title', value: 'ignored' },
    { op: 'Add', path: `${ENTERPRISE}:department`, value: 'ignored' },
    { op: 'Add', path: 'phoneNumbers[type eq "mobile"].value', value: 'ignored' },
  );
  t.deepEqual(changed.emails, [{ value: 'updated@example.com', type: 'work', primary: true }]);
  t.like(changed.name, { familyName: 'updatedFamilyName', givenName: 'givenName' });
  t.is((await record(user.id)).email, 'updated@example.com');
  t.like((await directory.patch(200, path, { op: 'Replace', path: 'userName', value: '5b50642d@example.com' })).body, {
    userName: '5b50642d@example.com',
  });
  const { body: added } = await directory.patch(
    200,
    path,
    { op: 'Add', path: 'emails[type eq "home"].value', value: 'home@example.com' },
    {
      op: 'Add',
      value: {
        'name.formatted': 'F',
        displayName: 'D',
        'emails[type eq "work"].primary': 'True',
        [`${ENTERPRISE}:employeeNumber`]: '7',
      },
    },
  );
  t.is(added.emails?.length, 2);
  t.like(added, { displayName: 'D', name: { formatted: 'F', familyName: 'updatedFamilyName' } });
  // The three forms in which Entra has disabled users.
  for (const value of [false, 'False', [{ $ref: null, value: 'False' }]]) {
    t.false((await directory.patch(200, path, { op: 'Replace', path: 'active', value })).body.active);
    t.is((await record(user.id)).refusal, 'directory_inactive');
    t.true((await directory.patch(200, path, { op: 'Replace', path: 'active', value: 'True' })).body.active);
    t.is((await record(user.id)).refusal, null);
  }
  const removed = await directory.patch(
    200,
    path,
    { op: 'Remove', path: 'emails[type eq "home"]' },
    { op: 'Remove', path: 'displayName' },
  );
  t.is(removed.body.emails?.length, 1);
  t.is(removed.body.displayName, undefined);
  await directory.send(204, 'DELETE', path);
  await directory.send(404, 'DELETE', path);
});

test.serial('Entra keeps groups up to date', async (t) => {
  const { directory, record } = await directoryWorld(t);
  const [one, two] = [await directory.user('one'), await directory.user('two')];
  const { body: group } = await directory.send(201, 'POST', '/Groups', {
    schemas: [GROUP, 'http://schemas.microsoft.com/2006/11/ResourceManagement/ADSCIM/2.0/Group'],
    externalId: '8aa1a0c0-c4c3-4bc0-b4a5-2ef676900159',
    displayName: 'displayName',
    meta: { resourceType: 'Group' },
  });
  const path = `/Groups/${group.id}`;
  const found = await directory.send<Listing>(
    200,
    'GET',
    '/Groups?excludedAttributes=members&filter=displayName%20eq%20%22displayName%22',
  );
  t.is(found.body.Resources[0]?.id, group.id);
  t.is((await directory.send(200, 'GET', `${path}?excludedAttributes=members`)).body.members, undefined);
  await directory.patch(204, path, { op: 'Replace', path: 'displayName', value: '1879db59-3bdf-4490-ad68-ab880a269474' });
  await directory.patch(204, path, {
    op: 'Add',
    path: 'members',
    value: [one, two].map(({ id }) => ({ $ref: null, value: id })),
  });
  await directory.patch(204, path, { op: 'Add', path: 'members', value: [{ $ref: null, value: one.id }] });
  t.deepEqual((await record(one.id)).groups, ['1879db59-3bdf-4490-ad68-ab880a269474']);
  await directory.patch(204, path, { op: 'Remove', path: 'members', value: [{ $ref: null, value: one.id }] });
  t.deepEqual(
    [(await record(one.id)).groups.length, (await record(two.id)).groups.length],
    [0, 1],
    'only the named member leaves',
  );
  await directory.patch(204, path, { op: 'Remove', path: 'members' });
  t.deepEqual((await record(two.id)).groups, []);
  await directory.send(204, 'DELETE', path);
});

test.serial('Okta keeps users and groups up to date', async (t) => {
  const { directory, record } = await directoryWorld(t);
  const listed = await directory.send<Listing>(200, 'GET', '/Users?startIndex=1&count=2');
  t.like(listed.body, { totalResults: 0 });
  t.deepEqual(listed.body.Resources, []);
  const okta = {
    schemas: [USER],
    userName: 'test.user@okta.local',
    name: { givenName: 'Test', familyName: 'User' },
    emails: [{ primary: true, value: 'test.user@okta.local', type: 'work' }],
    displayName: 'Test User',
    locale: 'en-US',
    externalId: '00ujl29u0le5T6Aj10h7',
    groups: [],
    password: '1mz050nq',
    active: true,
  };
  const { body: user } = await directory.send(201, 'POST', '/Users', okta);
  t.false(JSON.stringify(user).includes(okta.password));
  const twice = await directory.send<Refusal>(409, 'POST', '/Users', okta);
  t.like(twice.body, { schemas: [ERROR], status: '409', scimType: 'uniqueness' });
  t.is((await directory.find('Users', 'userName eq "test.user@okta.local"'))[0]?.id, user.id);

  const path = `/Users/${user.id}`;
  const put = await directory.send(200, 'PUT', path, {
    ...okta,
    id: user.id,
    name: { givenName: 'Another', familyName: 'User' },
    meta: user.meta,
  });
  t.like(put.body, { id: user.id, name: { givenName: 'Another' } });
  const patched = await directory.send(200, 'PATCH', path, {
    schemas: [PATCH],
    Operations: [{ op: 'replace', value: { active: false } }],
  });
  t.false(patched.body.active);
  t.is((await record(user.id)).refusal, 'directory_inactive');
  await directory.send(200, 'PUT', path, { ...okta, id: user.id, active: true });
  t.is((await record(user.id)).refusal, null);

  const { body: group } = await directory.send(201, 'POST', '/Groups', {
    schemas: [GROUP],
    displayName: 'Test SCIMv2',
    members: [{ value: user.id, display: 'test.user@okta.local' }],
  });
  const groupPath = `/Groups/${group.id}`;
  await directory.patch(204, groupPath, { op: 'replace', value: { id: group.id, displayName: 'Test SCIMv2 renamed' } });
  t.deepEqual((await record(user.id)).groups, ['Test SCIMv2 renamed']);
  await directory.patch(
    204,
    groupPath,
    { op: 'remove', path: `members[value eq "${user.id}"]` },
    { op: 'add', path: 'members', value: [{ value: user.id, display: 'x' }] },
  );
  t.deepEqual((await record(user.id)).groups, ['Test SCIMv2 renamed'], 'operations apply in their order');
  await directory.patch(204, groupPath, { op: 'replace', path: 'members', value: [] });
  t.deepEqual((await record(user.id)).groups, []);
  await directory.patch(204, groupPath, { op: 'replace', value: { members: [{ value: user.id }] } });
  t.deepEqual((await record(user.id)).groups, ['Test SCIMv2 renamed']);
  await directory.send(200, 'PUT', groupPath, { schemas: [GROUP], displayName: 'Test SCIMv2', members: [] });
  t.deepEqual((await record(user.id)).groups, []);
});
