/** Rights of administration: giving and taking them, and what a holder tries beyond them. */
import test, { type ExecutionContext } from 'ava';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { type Answer, type Person, person, startGateway, type TestGateway } from '../../support/gateway.ts';

interface Problem {
  readonly code: string;
  readonly detail: string;
  readonly errors?: readonly { readonly path: string }[];
}

async function start(t: ExecutionContext, url: string | null = null) {
  const gateway = await startGateway(t, url);
  const admin = await person(gateway, 'admin@example.com');
  return {
    gateway,
    admin,
    as: caller(gateway, admin),
    async give(right: object): Promise<string> {
      const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/rights', { token: admin.token, body: right });
      return body.id;
    },
  };
}

const caller =
  (gateway: TestGateway, { token }: Pick<Person, 'token'>) =>
  <T = Problem>(
    expected: number,
    method: string,
    path: string,
    body?: unknown,
    headers?: Record<string, string>,
  ): Promise<Answer<T>> =>
    gateway.rest<T>(expected, method, path, {
      token,
      ...(body === undefined ? {} : { body }),
      ...(headers === undefined ? {} : { headers }),
    });

const toUser = ({ id }: Person, right: string, owner?: string) => ({
  subject_type: 'user',
  subject_value: id,
  right,
  ...(owner === undefined ? {} : { owner }),
});

eachEngine(
  test.serial,
  'a right is given, listed, recorded and taken, and applies from the next request at every replica',
  async (t, { url }) => {
    const { gateway, admin, as, give } = await start(t, url);
    const other = url.startsWith('sqlite:') ? gateway : await startGateway(t, url);
    const user = await person(gateway, 'user@example.com');
    const [here, there] = [caller(gateway, user), caller(other, user)];
    for (let i = 0; i < 5; i++) {
      await there(403, 'GET', '/api/users');
      const id = await give(toUser(user, 'read'));
      await there(200, 'GET', '/api/users');
      await here(200, 'GET', '/api/users');
      await as(204, 'DELETE', `/api/rights/${id}`);
      await there(403, 'GET', '/api/users');
      await here(403, 'GET', '/api/users');
    }
    for (const [type, change] of [
      ['group', { groups: ['Ops', 'x'] }],
      ['role', { role: 'Ops' }],
    ] as const) {
      const given = { subject_type: type, subject_value: 'Ops', right: 'policies:plan', owner: 'team-a' };
      const { body } = await as<{ id: string }>(201, 'POST', '/api/rights', given);
      t.like(body, given);
      t.is((await as<{ id: string }>(200, 'POST', '/api/rights', given)).body.id, body.id);
      await there(403, 'GET', '/api/policies');
      await as(200, 'PUT', `/api/users/${user.id}`, change);
      await there(200, 'GET', '/api/policies');
      t.deepEqual((await there<object>(200, 'GET', '/api/auth/rights')).body, {
        admin: false,
        rights: [{ right: 'policies:plan', owner: 'team-a' }],
        endpoints: ['*'],
      });
      t.like((await as<object[]>(200, 'GET', '/api/rights')).body, [{ ...body }]);
      await as(200, 'PUT', `/api/users/${user.id}`, { role: 'ops', groups: ['ops', 'Ops '] });
      await there(403, 'GET', '/api/policies');
      await as(204, 'DELETE', `/api/rights/${body.id}`);
      await as(404, 'DELETE', `/api/rights/${body.id}`);
      const { body: changes } = await as<{ action: string }[]>(200, 'GET', '/api/changes?limit=10');
      t.like(changes[0], { action: 'right.take', object_id: body.id, before: given, after: null, actor: { id: admin.id } });
      t.like(
        changes.find(({ action }) => action === 'right.give'),
        { object_id: body.id, before: null, after: given },
      );
    }
  },
);

test.serial('a right that cannot mean what it says is refused', async (t) => {
  const { as, admin } = await start(t);
  const group = { subject_type: 'group', subject_value: 'g', right: 'read' };
  for (const [body, path] of [
    [{ ...group, owner: 'team-a' }, 'owner'],
    [{ ...group, owner: 'Team A', right: 'policies:plan' }, 'owner'],
    [{ ...group, owner: '', right: 'policies:plan' }, 'owner'],
    [{ ...group, right: 'admin' }, 'right'],
    [{ ...group, right: 'constructor' }, 'right'],
    [{ ...group, subject_type: 'everyone' }, 'subject_type'],
    [{ ...group, subject_value: '' }, 'subject_value'],
    [{ ...group, subject_type: 'role', subject_value: 'admin' }, 'subject_value'],
    [{ ...group, subject_type: 'role', subject_value: 'auditor' }, 'subject_value'],
    [{ ...group, subject_type: 'user', subject_value: admin.email }, 'subject_value'],
    [{ ...group, subject_type: 'user', subject_value: '0190163d-8694-739b-aea5-966c26f8ad90' }, 'subject_value'],
    [{ ...group, more: 1 }, 'more'],
  ] as const) {
    const { body: problem } = await as(400, 'POST', '/api/rights', body);
    t.deepEqual(
      problem.errors?.map((error) => error.path),
      [path],
      JSON.stringify(body),
    );
  }
  t.deepEqual((await as<object[]>(200, 'GET', '/api/rights')).body, []);
});

test.serial(
  'a holder of targets:operate enables targets and recycles sessions, and changes nothing else of a target',
  async (t) => {
    const { gateway, as, give } = await start(t);
    const user = await person(gateway, 'user@example.com');
    await give(toUser(user, 'targets:operate'));
    const op = caller(gateway, user);
    const url = 'http://127.0.0.1:9/mcp';
    const { body: target, headers } = await as<{ id: string }>(201, 'POST', '/api/targets', {
      name: 'one',
      transport: 'streamable-http',
      url,
      description: 'd',
    });
    const path = `/api/targets/${target.id}`;
    const { body: read } = await op<Record<string, unknown>>(200, 'GET', path);
    t.like((await op<object>(200, 'PUT', path, { enabled: false })).body, { enabled: false, url });
    // What was read can be put back.
    t.like((await op<object>(200, 'PUT', path, { ...read, updated_at: undefined })).body, { enabled: true, url });
    for (const more of [
      { url: 'http://127.0.0.1:10/mcp' },
      { url: 'http://127.0.0.1:9/mcp?x' },
      { name: 'two' },
      { description: null },
      { transport: 'sse' },
      { transport: 'stdio', command: '/bin/sh', url: undefined },
      { denials: 'hidden' },
      { capture_arguments: true },
      { user_credentials: [{ type: 'bearer' }] },
      { may_ask: ['sampling'] },
    ]) {
      const { status, body } = await gatewayCall(gateway, 'PUT', path, user.token, { enabled: false, ...more });
      t.true(status === 403 || status === 400, JSON.stringify([more, status, body]));
      if (!('may_ask' in more) && !('capture_arguments' in more)) t.is(status, 403, JSON.stringify([more, body]));
    }
    // A refused request changes nothing, not even the member that it may change.
    t.like((await as<object>(200, 'GET', path)).body, { enabled: true, url, name: 'one', description: 'd' });
    await op(412, 'PUT', path, { enabled: false }, { 'if-match': headers.get('etag') ?? '' });
    await op(403, 'DELETE', path);
    await op(403, 'POST', '/api/targets', { name: 'two', transport: 'streamable-http', url });
    await op(403, 'PUT', `${path}/credentials/default`, { type: 'bearer', value: 'x' });
    await op(403, 'PUT', `${path}/credentials/user/${user.id}`, { type: 'bearer', value: 'x' });
    await op(403, 'GET', `${path}/credentials`);
    await op(200, 'POST', '/api/sessions/recycle', { all: true });
    await op(200, 'POST', `/api/users/${user.id}/recycle`);
    await op(403, 'GET', '/api/changes');
  },
);

async function gatewayCall(gateway: TestGateway, method: string, path: string, token: string, body: unknown) {
  const answer = await fetch(gateway.url + path, {
    method,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  return { status: answer.status, body: (await answer.json()) as Problem };
}

test.serial('a holder of users:manage reaches no right, for itself or for others', async (t) => {
  const { gateway, admin, as, give } = await start(t);
  const [manager, peer, auditor, ordinary, operator] = await Promise.all(
    ['manager', 'peer', 'auditor', 'ordinary', 'operator'].map((name) => person(gateway, `${name}@example.com`)),
  );
  if (!manager || !peer || !auditor || !ordinary || !operator) throw new Error('a person is missing');
  await give(toUser(manager, 'users:manage'));
  await give({ subject_type: 'group', subject_value: 'managers', right: 'users:manage' });
  await give({ subject_type: 'role', subject_value: 'planner', right: 'policies:plan', owner: 'team-a' });
  await give(toUser(operator, 'targets:operate'));
  await as(200, 'PUT', `/api/users/${peer.id}`, { groups: ['x', 'managers'] });
  await as(200, 'PUT', `/api/users/${auditor.id}`, { role: 'auditor' });
  const mine = caller(gateway, manager);
  const password = 'a long passphrase';

  t.like(
    (await mine<object>(200, 'PUT', `/api/users/${ordinary.id}`, { role: 'dev', groups: ['a', 'Managers', 'admin'] })).body,
    {
      role: 'dev',
    },
  );
  await mine(200, 'PUT', `/api/users/${ordinary.id}`, { enabled: false });
  await mine(200, 'PUT', `/api/users/${ordinary.id}`, { enabled: true });
  await mine(201, 'POST', '/api/users', { email: 'new@example.com', password, role: 'Admin', groups: ['b'] });

  for (const facts of [
    { role: 'admin' },
    { role: 'auditor' },
    { role: 'planner' },
    { groups: ['managers'] },
    { groups: ['a', 'managers'] },
  ]) {
    await mine(403, 'POST', '/api/users', { email: 'evil@example.com', password, ...facts });
    await mine(403, 'PUT', `/api/users/${ordinary.id}`, facts);
    await mine(403, 'PUT', `/api/users/${manager.id}`, facts);
  }
  for (const { id } of [admin, manager, peer, auditor, operator]) {
    for (const body of [{}, { enabled: false }, { role: 'user', groups: [] }, { groups: ['y'] }]) {
      await mine(403, 'PUT', `/api/users/${id}`, body);
    }
  }
  for (const body of [
    '{"role":"dev","role":"admin"}',
    '{"role":"dev","__proto__":{"role":"admin"}}',
    '{"groups":"managers"}',
    '[]',
  ]) {
    t.is((await gatewayCall(gateway, 'PUT', `/api/users/${ordinary.id}`, manager.token, body)).status, 400, body);
  }
  await mine(403, 'POST', '/api/rights', toUser(manager, 'read'));
  await mine(403, 'POST', '/api/rights', { subject_type: 'group', subject_value: 'a', right: 'read' });
  await mine(403, 'GET', '/api/rights');
  await mine(403, 'GET', `/api/auth/tokens?user_id=${ordinary.id}`);
  const { body: users } = await as<{ email: string; role: string }[]>(200, 'GET', '/api/users');
  t.is(users.filter(({ role }) => role === 'admin').length, 1);
  t.false(users.some(({ email }) => email === 'evil@example.com'));
  // A right that the group gets later covers its members, and then the manager can no longer change them.
  await give({ subject_type: 'group', subject_value: 'b', right: 'bundles:read' });
  const added = (await as<{ id: string; email: string }[]>(200, 'GET', '/api/users')).body.find(
    ({ email }) => email === 'new@example.com',
  );
  await mine(403, 'PUT', `/api/users/${added?.id}`, { groups: [] });
});

const yaml = (name: string, priority = 1) =>
  `name: ${name}\nresource_type: tool\neffect: deny\npriority: ${priority}\nsubjects: [everyone]\n`;

const tests = {
  'a.yaml': `principals:
  p: { role: user }
requests:
  r: { tool: t, target: none }
tests:
  - name: nobody
    expect:
      - principals: [p]
        requests: [r]
        effect: deny
`,
};

test.serial('a holder of policies:manage for an owner changes only policies of this owner, whichever way it tries', async (t) => {
  const { gateway, as, give } = await start(t);
  const user = await person(gateway, 'user@example.com');
  await give(toUser(user, 'policies:manage', 'team-a'));
  await as(201, 'PUT', '/api/owners/team-a', { limits: {} });
  const mine = caller(gateway, user);
  const files = { 'one.yaml': yaml('One') };
  for (const owner of ['team-a', 'team-b', 'team', 'default']) await as(200, 'POST', '/api/policies/apply', { files, owner });
  const api = { name: 'Two', resource_type: 'tool', effect: 'deny', priority: 1, subjects: [] };
  const { body: unowned } = await as<{ id: string }>(201, 'POST', '/api/policies', api);
  const { body: every } = await as<{ id: string; managed_as: string | null }[]>(200, 'GET', '/api/policies');
  const of = (owner: string): string => every.find(({ managed_as }) => managed_as === `${owner}/one`)?.id ?? '';
  const { revision } = (await as<{ revision: number }>(200, 'GET', '/api/status')).body;
  await as(201, 'POST', '/api/targets', { name: 'none', transport: 'streamable-http', url: 'http://127.0.0.1:9' });

  // Reading.
  const { body: own } = await mine<{ id: string }[]>(200, 'GET', '/api/policies');
  t.deepEqual(
    own.map(({ id }) => id),
    [of('team-a')],
  );
  t.deepEqual(
    (await mine<{ id: string }[]>(200, 'GET', '/api/policies?limit=1')).body.map(({ id }) => id),
    [of('team-a')],
  );
  await mine(200, 'GET', `/api/policies/${of('team-a')}`);
  for (const id of [of('team-b'), of('team'), of('default'), unowned.id]) {
    await mine(403, 'GET', `/api/policies/${id}`);
    await mine(403, 'PUT', `/api/policies/${id}`, { priority: 7 });
    await mine(403, 'PUT', `/api/policies/${id}`, {});
    await mine(403, 'DELETE', `/api/policies/${id}`);
    await mine(403, 'POST', `/api/policies/${id}/subjects`, { subject_type: 'everyone' });
  }
  for (const path of ['history', 'export', 'diff?from=0', 'compare?from=0', 'lint', 'access'])
    await mine(403, 'GET', `/api/policies/${path}`);

  // Changing.
  await mine(403, 'POST', '/api/policies', api);
  await mine(200, 'PUT', `/api/policies/${of('team-a')}?override=true`, { priority: 3 });
  for (const managed_as of ['team-b/one', 'team-a/two', null])
    await mine(400, 'PUT', `/api/policies/${of('team-a')}`, { managed_as });
  await mine(200, 'POST', '/api/policies/plan', { files, owner: 'team-a', prune: true });
  await mine(200, 'POST', '/api/policies/test', { files, owner: 'team-a', tests });
  await mine(403, 'POST', '/api/policies/test', { files, owner: 'team-b', tests });
  await mine(403, 'POST', '/api/policies/test', { files, tests });
  for (const more of [{ owner: 'team-b' }, { owner: 'team' }, {}, { owner: 'default' }, { owner: 'team-a', adopt: true }]) {
    for (const prune of [false, true]) {
      await mine(403, 'POST', '/api/policies/plan', { files, ...more, prune });
      await mine(403, 'POST', '/api/policies/apply', { files, ...more, prune });
      await mine(403, 'PUT', '/api/policies/drafts/mine', { files, ...more, prune });
    }
    await mine(403, 'POST', '/api/policies/apply', { files: {}, prune: true, ...more });
  }
  await mine(200, 'POST', '/api/policies/apply', { files: { 'three.yaml': yaml('Three', 5) }, owner: 'team-a' });
  for (const owner of ['team-b', 'team', undefined]) {
    const body = { revision: 0, ...(owner === undefined ? {} : { owner }) };
    await mine(403, 'POST', '/api/policies/rollback/plan', body);
    await mine(403, 'POST', '/api/policies/rollback', body);
    await mine(403, 'POST', '/api/policies/test', { rollback: body, tests });
  }
  await mine(403, 'POST', '/api/policies/test', { move: { policy_id: of('team-a'), position: 1 }, tests });
  await mine(200, 'POST', '/api/policies/test', { rollback: { revision, owner: 'team-a' }, tests });
  await mine(200, 'POST', '/api/policies/rollback/plan', { revision, owner: 'team-a' });
  await mine(200, 'POST', '/api/policies/rollback', { revision, owner: 'team-a' });

  // Drafts.
  await as(201, 'PUT', '/api/policies/drafts/theirs', { files: { 'x.yaml': yaml('X') }, owner: 'team-b' });
  await mine(201, 'PUT', '/api/policies/drafts/mine', { files: { 'x.yaml': yaml('X') }, owner: 'team-a' });
  t.deepEqual(
    (await mine<{ name: string }[]>(200, 'GET', '/api/policies/drafts')).body.map(({ name }) => name),
    ['mine'],
  );
  await mine(403, 'GET', '/api/policies/drafts/theirs');
  await mine(403, 'PUT', '/api/policies/drafts/theirs', { files, owner: 'team-a' });
  await mine(403, 'DELETE', '/api/policies/drafts/theirs');
  await mine(403, 'POST', '/api/policies/drafts/theirs/activate');
  await mine(403, 'PUT', '/api/policies/drafts/theirs/shadow');
  await mine(403, 'POST', '/api/policies/test', { draft: 'theirs', tests });
  await mine(403, 'POST', '/api/policies/simulate', { draft: 'theirs', requests: [] });
  await mine(200, 'POST', '/api/policies/drafts/mine/activate');

  const { body: after } = await as<{ id: string; managed_as: string | null; priority: number }[]>(200, 'GET', '/api/policies');
  const others = (all: typeof after | typeof every) => all.filter(({ managed_as }) => !managed_as?.startsWith('team-a/'));
  t.deepEqual(others(after), others(every));
});

test.serial('a rollback does not bring a policy to an owner that has lost it', async (t) => {
  const { gateway, as, give } = await start(t);
  const user = await person(gateway, 'user@example.com');
  await give(toUser(user, 'policies:manage', 'team-a'));
  await as(201, 'PUT', '/api/owners/team-a', { limits: {} });
  const mine = caller(gateway, user);
  const { body: policy } = await as<{ id: string }>(201, 'POST', '/api/policies', {
    ...{ name: 'One', resource_type: 'tool', effect: 'deny', priority: 1, subjects: [{ subject_type: 'everyone' }] },
  });
  await as(200, 'POST', '/api/policies/apply', { files: { 'one.yaml': yaml('One') }, owner: 'team-a', adopt: true });
  const { revision } = (await as<{ revision: number }>(200, 'GET', '/api/status')).body;
  // An administrator takes the policy from the owner: it belongs to no file again.
  await as(200, 'POST', '/api/policies/rollback', { revision: revision - 1 });
  t.like((await as<object>(200, 'GET', `/api/policies/${policy.id}`)).body, { managed_as: null });
  await mine(403, 'POST', '/api/policies/rollback', { revision, owner: 'team-a' });
  t.like((await as<object>(200, 'GET', `/api/policies/${policy.id}`)).body, { managed_as: null });
});

test.serial('an auditor with given rights changes nothing', async (t) => {
  const { gateway, as, give } = await start(t);
  const user = await person(gateway, 'user@example.com');
  for (const right of ['targets:operate', 'users:manage', 'policies:manage', 'policies:plan']) await give(toUser(user, right));
  const mine = caller(gateway, user);
  await mine(201, 'POST', '/api/users', { email: 'a@example.com', password: 'a long passphrase' });
  await as(200, 'PUT', `/api/users/${user.id}`, { role: 'auditor' });
  await mine(403, 'POST', '/api/users', { email: 'b@example.com', password: 'a long passphrase' });
  await mine(403, 'POST', '/api/sessions/recycle', { all: true });
  await mine(403, 'POST', '/api/policies/apply', { files: {} });
  for (const path of [
    'users',
    'policies',
    'targets',
    'sessions',
    'logs',
    'changes',
    'rights',
    'policies/lint',
    'policies/bundle',
    'policies/access',
  ]) {
    const answer = await fetch(`${gateway.url}/api/${path}`, { headers: { authorization: `Bearer ${user.token}` } });
    t.is(answer.status, 200, path);
    await answer.arrayBuffer();
  }
});
