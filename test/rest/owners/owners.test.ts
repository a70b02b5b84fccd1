/** The limits of owners over REST: what a team tries to leave them, and what an administrator may do. */
import test, { type ExecutionContext } from 'ava';
import type { PolicyFile } from '../../../src/policies/files/yaml.ts';
import { ownerStore } from '../../../src/policies/limits/owner-store.ts';
import { policyStore } from '../../../src/policies/policy-store.ts';
import { policy } from '../../policies/policies.ts';
import { addTarget, file, type PlanAnswer, type ProblemAnswer } from '../../policies/sets.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { type Answer, person, rest, startGateway, type TestGateway } from '../../support/gateway.ts';

const GROUP = [{ subject_type: 'group', subject_value: 'a' }] as const;
/** A file within the limits that `start` sets. */
const within = (over: Partial<PolicyFile> = {}): string =>
  file({ name: 'Ours', target: 'ours', resource_pattern: '^read_', priority: 5, subjects: GROUP, ...over });

type Call = <T = ProblemAnswer>(
  status: number,
  method: string,
  path: string,
  body?: unknown,
  headers?: Record<string, string>,
) => Promise<Answer<T>>;
const calling =
  (gateway: TestGateway, token: string): Call =>
  (status, method, path, body, headers) =>
    gateway.rest(status, method, `/api${path}`, {
      token,
      ...(body === undefined ? {} : { body }),
      ...(headers === undefined ? {} : { headers }),
    });

const over = (path: string): string => `${path}?override=true`;

async function start(t: ExecutionContext, url: string | null = null) {
  const gateway = await startGateway(t, url);
  const admin = await person(gateway, 'admin@example.com');
  const member = await person(gateway, 'member@example.com');
  const as = calling(gateway, admin.token);
  const [ours, theirs] = [await addTarget(gateway, admin.token, 'ours'), await addTarget(gateway, admin.token, 'theirs')];
  const right = { subject_type: 'user', subject_value: member.id, right: 'policies:manage', owner: 'team-a' };
  await as(201, 'POST', '/rights', right);
  const { body } = await gateway.rest<{ token: string }>(201, 'POST', '/api/auth/tokens', {
    token: member.token,
    body: { name: 'CI', limits: { rights: ['policies:manage', 'policies:plan'], owner: 'team-a' } },
  });
  const limits = {
    targets: [ours],
    resource_types: ['tool'],
    resource_patterns: ['^read_', '^list_'],
    priority: { min: 0, max: 100 },
    effects: ['allow'],
    subjects: GROUP,
  };
  await as(201, 'PUT', '/owners/team-a', { limits });
  const apply = (call: Call, status: number, files: object, more: object = {}) =>
    call<PlanAnswer & ProblemAnswer>(status, 'POST', '/policies/apply', { files, owner: 'team-a', ...more });
  const { token } = body;
  return { gateway, admin, as, token, team: calling(gateway, token), ours, theirs, limits, apply };
}

test.serial('every member that is outside the limits is named with its position, by the plan and by the apply', async (t) => {
  const { as, team, apply } = await start(t);
  await apply(team, 200, { 'a.yaml': within() });
  const files = {
    'a.yaml': within({
      ...{ target: 'theirs', resource_type: 'prompt', resource_pattern: '^(read|write)_', effect: 'deny', priority: 101 },
      subjects: [{ subject_type: 'everyone', subject_value: null }, ...GROUP],
    }),
  };
  for (const call of [team, as]) {
    const applied = (await apply(call, 409, files)).body;
    t.is(applied.code, 'outside_limits');
    t.deepEqual(
      applied.errors?.map(({ path, line, message }) => [path, line, message.split(' ')[0]]),
      [
        ['files.a.yaml', 2, 'target'],
        ['files.a.yaml', 3, 'resource_type'],
        ['files.a.yaml', 4, 'resource_pattern'],
        ['files.a.yaml', 5, 'effect'],
        ['files.a.yaml', 6, 'priority'],
        ['files.a.yaml', 7, 'subjects'],
      ],
    );
    t.regex(applied.detail, /it matches "write_", which no pattern of the limits does\. Within the limits: \^read_, \^list_/);
    const body = { files, owner: 'team-a' };
    t.is((await call(409, 'POST', '/policies/plan', body)).body.detail, applied.detail);
    const tests = {
      'x.yaml': 'principals: {p: {role: x}}\nrequests: {r: {tool: x, target: ours}}\ntests: [{name: n, expect: []}]\n',
    };
    t.is((await call(409, 'POST', '/policies/test', { ...body, tests })).body.code, 'outside_limits');
    t.is((await call(409, 'PUT', '/policies/drafts/d', body)).body.code, 'outside_limits');
  }
  const requests = [{ principal: { role: 'x' }, target: 'ours' }];
  t.is((await as(409, 'POST', '/policies/simulate', { files, owner: 'team-a', requests })).body.code, 'outside_limits');
});

test.serial('a team does not leave its limits, whichever way it tries', async (t) => {
  const { gateway, admin, as, team, ours, theirs, limits, apply } = await start(t);
  // Before there are limits.
  await as(200, 'PUT', '/owners/team-a', { limits: {} });
  await apply(team, 200, { 'a.yaml': within({ target: null, subjects: [{ subject_type: 'everyone', subject_value: null }] }) });
  const free = (await apply(team, 200, { 'a.yaml': within() })).body.revision - 1;
  await team(201, 'PUT', '/policies/drafts/wide', { files: { 'b.yaml': within({ priority: 200 }) }, owner: 'team-a' });
  await as(200, 'PUT', '/owners/team-a', { limits });
  const [policy] = (await team<{ id: string }[]>(200, 'GET', '/policies')).body;
  const path = `/policies/${policy?.id}`;
  const before = (await as<object[]>(200, 'GET', '/policies')).body;
  const refused = async (answer: Promise<Answer<ProblemAnswer>>, fields: string[]): Promise<void> => {
    const { body } = await answer;
    t.is(body.code, 'outside_limits');
    t.deepEqual(
      body.errors?.map((error) => error.path),
      fields,
    );
  };

  // Single policies, also by an administrator.
  for (const call of [team, as]) {
    await refused(call(409, 'PUT', over(path), { target_id: null }), ['target_id']);
    await refused(call(409, 'PUT', over(path), { target_id: theirs }), ['target_id']);
    await refused(call(409, 'PUT', over(path), { resource_type: 'all' }), ['resource_type']);
    await refused(call(409, 'PUT', over(path), { priority: -1, effect: 'deny' }), ['effect', 'priority']);
    await refused(call(409, 'PUT', over(path), { priority: 101, enabled: false }), ['priority']);
    await refused(call(409, 'POST', over(`${path}/subjects`), { subject_type: 'everyone' }), ['subjects']);
    await refused(call(409, 'POST', over(`${path}/subjects`), { subject_type: 'group', subject_value: 'b' }), ['subjects']);
    await refused(call(409, 'POST', over(`${path}/subjects`), { subject_type: 'role', subject_value: 'a' }), ['subjects']);
    for (const resource_pattern of [
      null,
      'read_',
      '^read_|^$|x',
      '(?i)^read_',
      '^(?:read_|exec)',
      '^.{5}',
      '^rea[d-e]_',
      '\\bread_',
    ])
      await refused(call(409, 'PUT', over(path), { resource_pattern }), ['resource_pattern']);
  }
  for (const resource_pattern of ['^read_|^list_', '^(read|list)_[a-z]*$', '^read_a$b'])
    await team(200, 'PUT', over(path), { resource_pattern });
  await team(200, 'PUT', over(path), { resource_pattern: '^read_' });

  // Ways around single changes.
  await team(403, 'PUT', '/owners/team-a', { limits: {} });
  await team(403, 'DELETE', '/owners/team-a');
  await team(403, 'PUT', '/owners/team-b', { limits: {} });
  await apply(team, 403, { 'a.yaml': within() }, { owner: 'team-b' });
  await apply(team, 403, { 'a.yaml': within() }, { adopt: true });
  await refused(team(409, 'POST', '/policies/rollback', { revision: free, owner: 'team-a' }), ['revision', 'revision']);
  await refused(as(409, 'POST', '/policies/rollback', { revision: free }), ['revision', 'revision']);
  await refused(team(409, 'POST', '/policies/rollback/plan', { revision: free, owner: 'team-a' }), ['revision', 'revision']);
  await refused(team(409, 'POST', '/policies/drafts/wide/activate', {}), ['files.b.yaml']);
  await refused(apply(team, 409, { 'a.yaml': within(), 'c.yaml': within({ target: 'theirs', enabled: false }) }), [
    'files.c.yaml',
  ]);

  // An administrator adopts a policy for the team only within the limits of the team.
  const api = { name: 'Ours', resource_type: 'tool', effect: 'deny', priority: 1, subjects: [] };
  const { body: loose } = await as<{ id: string }>(201, 'POST', '/policies', { ...api, name: 'Loose' });
  await refused(apply(as, 409, { 'loose.yaml': within({ name: 'Loose', effect: 'deny' }) }, { adopt: true }), [
    'files.loose.yaml',
  ]);
  await as(204, 'DELETE', `/policies/${loose.id}`);

  // A target that is made again under the same name is a different target.
  await team(200, 'POST', '/policies/apply', { files: {}, owner: 'team-a', prune: true });
  await as(204, 'DELETE', `/targets/${ours}`);
  await addTarget(gateway, admin.token, 'ours');
  await refused(apply(team, 409, { 'a.yaml': within() }), ['files.a.yaml']);
  // The record stays as it is, and can be put back as it was read.
  const { body: record, headers } = await as<object>(200, 'GET', '/owners/team-a');
  await as(200, 'PUT', '/owners/team-a', record, { 'if-match': headers.get('etag') ?? '' });
  t.is(before.length, 1);
});

test.serial('only an administrator changes the policies of an owner without a record', async (t) => {
  const { gateway, as, admin } = await start(t);
  const manager = await person(gateway, 'manager@example.com');
  await as(201, 'POST', '/rights', { subject_type: 'user', subject_value: manager.id, right: 'policies:manage' });
  const call = calling(gateway, manager.token);
  const body = { files: { 'a.yaml': file() }, owner: 'team-b' };
  await call(200, 'POST', '/policies/plan', body);
  const { detail } = (await call(403, 'POST', '/policies/apply', body)).body;
  t.regex(detail, /Ask an administrator to make a record for owner team-b/);
  await as(200, 'POST', '/policies/apply', body);
  const [policy] = (await as<{ id: string }[]>(200, 'GET', '/policies')).body;
  await call(403, 'PUT', `/policies/${policy?.id}`, { priority: 1 });
  await call(403, 'DELETE', `/policies/${policy?.id}`);
  await call(403, 'POST', '/policies/rollback', { revision: 0, owner: 'team-b' });
  await call(403, 'POST', '/policies/rollback', { revision: 0 });
  // A limited token of an administrator is no administrator.
  const { body: limited } = await gateway.rest<{ token: string }>(201, 'POST', '/api/auth/tokens', {
    token: admin.token,
    body: { name: 'x', limits: { rights: ['policies:manage'] } },
  });
  await calling(gateway, limited.token)(403, 'DELETE', `/policies/${policy?.id}`);
  await as(201, 'PUT', '/owners/team-b', { limits: {} });
  await call(200, 'PUT', `/policies/${policy?.id}?override=true`, { priority: 1 });
  // What belongs to no file has no owner, and so no limits.
  await call(201, 'POST', '/policies', { name: 'Free', resource_type: 'all', effect: 'deny', priority: 1, subjects: [] });
});

test.serial('a holder of boundaries:manage sets limits, and changes no policy', async (t) => {
  const { gateway, as, apply, team, limits, ours } = await start(t);
  const security = await person(gateway, 'security@example.com');
  await as(201, 'POST', '/rights', { subject_type: 'user', subject_value: security.id, right: 'boundaries:manage' });
  const call = calling(gateway, security.token);
  await apply(team, 200, { 'a.yaml': within() });
  await apply(call, 403, { 'a.yaml': within() });
  await call(403, 'GET', '/policies');

  // Limits that a policy breaks are refused, and the policy is named.
  for (const narrow of [
    { effects: ['deny'] },
    { priority: { max: 4 } },
    { subjects: [] },
    { targets: [null] },
    { resource_patterns: ['^read_a'] },
  ]) {
    const { body } = await call(409, 'PUT', '/owners/team-a', { limits: { ...limits, ...narrow } });
    t.is(body.code, 'outside_limits');
    t.regex(body.detail, /policy "Ours" \(team-a\/a, /);
  }
  const { body: owner, headers } = await call<{ limits: object }>(200, 'GET', '/owners/team-a');
  t.deepEqual(owner.limits, limits);
  await call(
    200,
    'PUT',
    '/owners/team-a',
    { limits: { ...limits, priority: { max: 5 } } },
    { 'if-match': headers.get('etag') ?? '' },
  );
  await call(412, 'PUT', '/owners/team-a', { limits }, { 'if-match': headers.get('etag') ?? '' });
  await call(412, 'DELETE', '/owners/team-a', undefined, { 'if-match': headers.get('etag') ?? '' });
  await call(412, 'PUT', '/owners/team-c', { limits }, { 'if-match': '"x"' });
  for (const [path, wrong] of [
    ['limits.targets.0', { targets: ['0190163d-8694-739b-aea5-966c26f8ad90'] }],
    ['limits.resource_patterns.0', { resource_patterns: ['('] }],
    ['limits.resource_patterns.0', { resource_patterns: ['a[ab]{50}c'] }],
    ['limits.resource_types.0', { resource_types: ['all'] }],
    ['limits.subjects.0.subject_value', { subjects: [{ subject_type: 'everyone', subject_value: 'x' }] }],
    ['limits.more', { more: 1 }],
  ] as const) {
    const { body } = await call(400, 'PUT', '/owners/team-a', { limits: wrong });
    t.deepEqual(
      body.errors?.map((error) => error.path),
      [path],
    );
  }
  t.is((await call(409, 'DELETE', '/owners/team-a')).body.code, 'owner_in_use');
  await as(200, 'POST', '/policies/apply', { files: {}, owner: 'team-a', prune: true });
  await call(204, 'DELETE', '/owners/team-a');
  await call(404, 'DELETE', '/owners/team-a');
  await team(404, 'GET', '/owners/team-a');
  await call(201, 'PUT', '/owners/team-b', {
    limits: { targets: [null, ours], subjects: [{ subject_type: 'everyone' }, { subject_type: 'group' }] },
  });
  t.deepEqual((await team<object[]>(200, 'GET', '/owners')).body, []);
  await team(403, 'GET', '/owners/team-b');
  t.is((await call<object[]>(200, 'GET', '/owners')).body.length, 1);
  const { body: changes } = await as<{ action: string }[]>(200, 'GET', '/changes?limit=5');
  t.deepEqual(
    changes.filter(({ action }) => action.startsWith('owner.')).map(({ action }) => action),
    ['owner.create', 'owner.delete', 'owner.update'],
  );
});

eachEngine(test.serial, 'limits that are narrowed during an apply hold for it, at every replica', async (t, { url }) => {
  const { gateway, admin, as, team, token, limits, apply } = await start(t, url);
  const other = url.startsWith('sqlite:') ? gateway : await startGateway(t, url);
  for (let round = 0; round < 8; round++) {
    await as(200, 'PUT', '/owners/team-a', { limits });
    await apply(team, 200, { 'a.yaml': within() });
    const narrow = { limits: { ...limits, priority: { max: 9 } } };
    const wide = { files: { 'a.yaml': within({ priority: 50 }) }, owner: 'team-a' };
    const answers = await Promise.all([
      rest(other.url, 'PUT', '/api/owners/team-a', { token: admin.token, body: narrow }),
      rest(gateway.url, 'POST', '/api/policies/apply', { token, body: wide }),
    ]);
    t.deepEqual(answers.map(({ status }) => status).sort(), [200, 409], `round ${round}`);
  }
});

eachEngine(test.serial, 'owners that are in use before the upgrade get a record without limits', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  await knex.schema.dropTable('owners');
  await knex('migrations').where('name', 'like', '%-owners').delete();
  const right = { id: 'r', subject_type: 'group', subject_value: 'g', created_at: 1 };
  await knex('rights').insert([
    { ...right, right: 'policies:plan', owner: 'by-right' },
    { ...right, id: 's', right: 'policies:manage', owner: '' },
  ]);
  await policyStore(knex).change([{ before: null, after: policy('p', { managed_as: 'by-policy/a' }) }]);
  await policyStore(knex).change([{ before: null, after: policy('q') }]);
  const token = { user_id: 'u', kind: 'api', name: 'n', kid: 'k', created_at: 1 };
  await knex('tokens').insert([
    { ...token, id: 't', limits: JSON.stringify({ rights: ['policies:plan'], owner: 'by-token', endpoints: [] }) },
    { ...token, id: 'v', limits: null },
  ]);
  await database.close();
  const after = await openTestDatabase(t, at);
  const store = ownerStore(after.knex);
  const owners = await store.some([...(await store.names())]);
  t.deepEqual(
    owners.map(({ name, limits }) => [name, limits]),
    [
      ['by-policy', {}],
      ['by-right', {}],
      ['by-token', {}],
    ],
  );
});

test.serial('a caller without the right to an owner learns nothing about its limits and policies', async (t) => {
  const { gateway, as, ours, apply } = await start(t);
  await apply(as, 200, { 'a.yaml': within() });
  const [policy] = (await as<{ id: string; subjects: { id: string }[] }[]>(200, 'GET', '/policies')).body;
  const other = await person(gateway, 'other@example.com');
  await as(201, 'POST', '/rights', { subject_type: 'user', subject_value: other.id, right: 'policies:manage', owner: 'team-b' });
  const call = calling(gateway, other.token);
  const path = `/policies/${policy?.id}`;
  const none = '00000000-0000-7000-8000-000000000000';
  const stale = { 'if-match': '"x"' };
  const known = `${path}/subjects/${policy?.subjects[0]?.id}`;
  for (const [method, at, body, headers, status] of [
    ['PUT', path, { priority: 5_000 }, {}, 409],
    ['POST', `${path}/subjects`, { subject_type: 'everyone' }, {}, 409],
    ['PUT', path, { managed_as: 'team-a/b' }, {}, 400],
    ['PUT', path, { managed_as: 'team-a/a' }, {}, 200],
    ['PUT', path, { created_at: '2020-01-01T00:00:00.000Z' }, {}, 400],
    ['PUT', path, { subjects: [{ ...GROUP[0], id: none }] }, {}, 400],
    ['PUT', path, { target_id: none }, {}, 400],
    ['PUT', path, { target_id: ours, resource_pattern: '(' }, {}, 400],
    ['PUT', path, { name: 'x' }, stale, 412],
    ['DELETE', path, undefined, stale, 412],
    ['DELETE', `${path}/subjects/${none}`, undefined, {}, 404],
    ['DELETE', known, undefined, stale, 412],
    ['DELETE', known, undefined, {}, 204],
  ] as const) {
    for (const asked of [at, over(at)]) {
      const { detail } = (await call(403, method, asked, body, headers)).body;
      t.is(detail, 'This needs the right `policies:manage` for policies of the owner team-a. Ask an administrator.');
    }
    await as(status, method, over(at), body, headers);
  }
});
