import test from 'ava';
import { INVARIANT_LIMITS } from '../../../src/policies/invariants/invariant.ts';
import { eachEngine, eachServer } from '../../support/databases/each-engine.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { file } from '../sets.ts';
import { asAdmin, breaking, CONTRACTORS, denial, invariantBody, type Refusal, scene } from './scene.ts';

const contractors = { subject_type: 'group', subject_value: 'contractors' } as const;
const runFile = file({ name: 'Run', resource_pattern: '^exec$', subjects: [contractors] });

eachEngine(test.serial, 'each way to change policies is refused if it adds a request that breaks an invariant', async (t, at) => {
  const { call, policy, refused, sets, prod, sandbox, invariant } = await scene(t, at.url);
  const empty = await sets.revision();
  const { code, detail, invariant: named } = await refused('POST', '/policies', breaking());
  t.is(code, 'invariant_broken');
  t.regex(
    detail,
    /"Contractors run nothing" \(Their machines are not managed\)\. For example, the policy "Run" would allow group "contractors" to use tool "exec" at prod\./,
  );
  t.like(named, { id: invariant.id, reason: 'Their machines are not managed' });
  t.like(named?.witness, {
    ...{ target: 'prod', resource_type: 'tool', resource_name: 'exec' },
    subjects: [contractors],
    policy: { id: null, name: 'Run' },
  });
  t.deepEqual(named?.witness?.principal.groups, ['contractors']);

  // Allowed: the exempt target, a different name, and what a deny covers.
  await policy(breaking({ target_id: sandbox }));
  const other = await policy(breaking({ resource_pattern: '^list$' }));
  const deny = await policy(denial());
  const run = await policy(breaking({ target_id: prod }));
  const elsewhere = await policy(breaking({ name: 'Elsewhere', priority: 30, subjects: [] }));
  const off = await policy(breaking({ name: 'Off', priority: 30, enabled: false }));

  for (const [method, path, body] of [
    ['PUT', `/policies/${run}`, { priority: 21 }],
    ['PUT', `/policies/${other}`, { resource_pattern: 'e', priority: 40 }],
    ['PUT', `/policies/${off}`, { enabled: true }],
    ['DELETE', `/policies/${deny}`, undefined],
    ['PUT', `/policies/${deny}`, { enabled: false }],
    ['PUT', `/policies/${deny}`, { priority: 0 }],
    ['POST', `/policies/${elsewhere}/subjects`, CONTRACTORS],
    ['POST', '/policies/apply', { files: { 'higher.yaml': file({ name: 'Higher', priority: 50, resource_pattern: null }) } }],
  ] as const) {
    t.is((await refused(method, path, body)).code, 'invariant_broken', `${method} ${path}`);
  }
  const { subjects } = await call<{ subjects: { id: string }[] }>(200, 'GET', `/policies/${deny}`);
  t.is((await refused('DELETE', `/policies/${deny}/subjects/${subjects[0]?.id}`)).code, 'invariant_broken');
  // An adoption that changes the policy.
  const adopted = file({ name: 'Off', priority: 60, resource_pattern: '^exec$', subjects: [contractors] });
  t.is((await refused('POST', '/policies/apply', { files: { 'off.yaml': adopted }, adopt: true })).code, 'invariant_broken');
  await call(201, 'PUT', '/policies/drafts/run', {
    files: { 'run-2.yaml': file({ name: 'Run 2', priority: 60, resource_pattern: 'exec' }) },
  });
  t.is((await refused('POST', '/policies/drafts/run/activate', {})).code, 'invariant_broken');

  // A rollback to a time before the deny. At that time there was no invariant.
  await call(200, 'PUT', `/invariants/${invariant.id}`, { enabled: false });
  await call(204, 'DELETE', `/policies/${deny}`);
  const denied = await sets.revision();
  await policy(denial());
  await call(200, 'PUT', `/invariants/${invariant.id}`, { enabled: true });
  const rollback = await refused('POST', '/policies/rollback', { revision: denied });
  t.is(rollback.code, 'invariant_broken');
  const planned = await call<{ invariants: unknown[] }>(200, 'POST', '/policies/rollback/plan', { revision: denied });
  t.is(planned.invariants.length, 1);
  // A rollback that breaks nothing.
  await call(200, 'POST', '/policies/rollback', { revision: empty });
});

test('a plan shows the invariants that the apply would break', async (t) => {
  const { sets, call } = await scene(t);
  const plan = await call<{ invariants: { name: string; witness: object }[] }>(200, 'POST', '/policies/plan', {
    files: { 'run.yaml': runFile },
  });
  t.is(plan.invariants[0]?.name, 'Contractors run nothing');
  t.like(plan.invariants[0]?.witness, { policy: { id: null, name: 'Run', file: 'run.yaml' } });
  t.is((await sets.call<Refusal>(409, 'POST', '/apply', { files: { 'run.yaml': runFile } })).body.code, 'invariant_broken');
  const fine = await call<{ invariants: unknown[] }>(200, 'POST', '/policies/plan', { files: { 'run.yaml': file() } });
  t.deepEqual(fine.invariants, []);
});

test('an invariant that the policies break is not stored, and one that is loosened always is', async (t) => {
  const { call, policy, refused, invariant, sandbox, prod } = await scene(t);
  const path = `/invariants/${invariant.id}`;
  await policy(breaking({ target_id: sandbox }));
  await policy(breaking({ resource_pattern: '^deploy$' }));
  for (const never of [{ resource_pattern: null }, { resource_pattern: 'deploy' }, { except: { targets: [] } }]) {
    const { detail, code } = await refused('PUT', path, invariantBody({}, { except: { targets: [sandbox] }, ...never }));
    t.is(code, 'invariant_broken');
    t.regex(detail, /^The invariant was not stored, because the policies break it/);
    t.is(
      (await refused('POST', '/invariants', invariantBody({ name: 'New' }, { except: { targets: [sandbox] }, ...never }))).code,
      'invariant_broken',
    );
  }
  const { never } = invariantBody({}, { except: { targets: [] } });
  // A disabled invariant forbids nothing. It cannot be enabled while the policies break it.
  const off = await call<{ id: string }>(201, 'POST', '/invariants', invariantBody({ name: 'Off', never, enabled: false }));
  t.is((await refused('PUT', `/invariants/${off.id}`, { enabled: true })).code, 'invariant_broken');
  await call(200, 'PUT', path, { reason: 'Other words' });
  await call(200, 'PUT', path, { never: { ...invariantBody().never, except: { targets: [sandbox, prod] } } });
  await call(200, 'PUT', path, { enabled: false });
  await call(204, 'DELETE', path);
  await policy(breaking());
});

test('an exception covers one policy, ends with it, and never blocks a deny', async (t) => {
  const { call, policy, refused, invariant, invariants } = await scene(t);
  const path = `/invariants/${invariant.id}`;
  const deny = await policy(denial());
  const run = await policy(breaking());
  const excepted = (expires_at: string) => ({ exceptions: [{ policy: run, reason: 'Until they leave', expires_at }] });
  await call(200, 'PUT', path, excepted('2099-01-01T00:00:00Z'));
  // Without the deny, the excepted policy allows the request, and any other policy still must not.
  await call(204, 'DELETE', `/policies/${deny}`);
  t.is((await refused('POST', '/policies', breaking({ name: 'Other', priority: 11 }))).code, 'invariant_broken');
  // A policy that is evaluated later allows nothing, until the excepted policy leaves it something.
  const later = await policy(breaking({ name: 'Later', priority: 1 }));
  t.is((await refused('DELETE', `/policies/${run}`)).code, 'invariant_broken');
  t.is((await refused('PUT', path, { exceptions: [] })).code, 'invariant_broken');
  t.is((await refused('PUT', path, excepted('2020-01-01T00:00:00Z'))).code, 'invariant_broken');
  const again = await policy(denial());
  await call(204, 'DELETE', `/policies/${later}`);
  await call(204, 'DELETE', `/policies/${run}`);
  t.deepEqual(
    (await invariants()).map(({ exceptions }) => exceptions),
    [[]],
  );
  const [deleted, forgotten] = await call<{ action: string; before: object; after: object }[]>(
    200,
    'GET',
    '/changes?limit=2',
  ).then((rows) => rows.reverse());
  t.like([deleted, forgotten], [{ action: 'policy.delete' }, { action: 'invariant.update', after: { exceptions: [] } }]);
  t.truthy(again);
});

test('an exception covers its policy as it is: an owner cannot widen it, at once or while it allows nothing', async (t) => {
  const { call, gateway, sets, invariant, prod, refused } = await scene(t);
  const team = await person(gateway, 'team@example.com');
  const right = { subject_type: 'user', subject_value: team.id, owner: 'team' };
  await call(201, 'PUT', '/owners/team', { limits: {} });
  await call(201, 'POST', '/rights', { ...right, right: 'policies:manage' });
  const as = async (status: number, method: string, path: string, body?: object): Promise<string | undefined> =>
    (await gateway.rest<Refusal>(status, method, `/api${path}`, { token: team.token, ...(body === undefined ? {} : { body }) }))
      .body?.code;
  const narrow = { name: 'Run', target: 'prod', resource_pattern: '^exec$', subjects: [contractors] };
  const apply = (over: object = {}) => ({ owner: 'team', files: { 'run.yaml': file({ ...narrow, ...over }) } });
  await as(200, 'POST', '/policies/apply', apply({ enabled: false, resource_pattern: null }));
  const wide = await sets.revision();
  await as(200, 'POST', '/policies/apply', apply({ enabled: false }));
  const [run] = await call<{ id: string }[]>(200, 'GET', '/policies');
  const path = `/policies/${run?.id}?override=true`;
  const exceptions = [{ policy: run?.id, reason: 'Until they leave', expires_at: '2099-01-01T00:00:00Z' }];
  await call(200, 'PUT', `/invariants/${invariant.id}`, { exceptions });
  for (const enabled of [false, true]) {
    await as(200, 'POST', '/policies/apply', apply({ enabled }));
    for (const over of [
      { resource_pattern: null },
      { resource_pattern: 'exec' },
      { target_id: null },
      { resource_type: 'all' },
      { priority: 1_000 },
      { subjects: [CONTRACTORS, { subject_type: 'group', subject_value: 'more' }] },
      { subjects: [{ subject_type: 'everyone' }] },
    ]) {
      t.is(await as(403, 'PUT', path, over), 'forbidden', JSON.stringify({ enabled, over }));
    }
    await as(403, 'POST', `/policies/${run?.id}/subjects?override=true`, { subject_type: 'everyone' });
    await as(403, 'POST', '/policies/apply', apply({ enabled: true, resource_pattern: 'exec' }));
    await as(403, 'POST', '/policies/rollback', { revision: wide, owner: 'team' });
    // A deny allows nothing, and so it may become wider. It must not come back as a wide allow.
    await as(200, 'PUT', path, { effect: 'deny', resource_pattern: null });
    await as(403, 'PUT', path, { effect: 'allow' });
    await as(403, 'PUT', path, { effect: 'allow', enabled: false });
    await call(200, 'PUT', path, { effect: 'allow', resource_pattern: '^exec$' });
  }
  // Neither while the invariant is disabled, nor after the exception has expired: both can begin to count again.
  const [exception] = exceptions;
  for (const [off, on] of [
    [{ enabled: false }, { enabled: true }],
    [{ exceptions: [{ ...exception, expires_at: '2001-01-01T00:00:00Z' }] }, { exceptions }],
  ]) {
    await as(200, 'POST', '/policies/apply', apply({ enabled: false }));
    await call(200, 'PUT', `/invariants/${invariant.id}`, off);
    await as(403, 'PUT', path, { resource_pattern: null });
    await as(403, 'PUT', path, { resource_pattern: null, enabled: true });
    await call(200, 'PUT', `/invariants/${invariant.id}`, on);
    await as(200, 'POST', '/policies/apply', apply({ enabled: true }));
  }
  await as(200, 'PUT', path, { name: 'Other words', priority: 9 });
  await as(200, 'PUT', path, { subjects: [] });
  await as(403, 'PUT', path, { subjects: [CONTRACTORS] });
  // Whoever may make exceptions may also widen the policy. Another policy has no exception.
  await call(200, 'PUT', path, { subjects: [CONTRACTORS], resource_pattern: 'exec' });
  t.is((await refused('POST', '/policies', breaking({ target_id: prod, priority: 50 }))).code, 'invariant_broken');
});

test('wrong members are named, and an invariant keeps its targets from being deleted', async (t) => {
  const { call, invariant, sandbox, prod } = await scene(t);
  const bad = (body: object) =>
    call<Refusal>(400, 'POST', '/invariants', body).then(({ errors }) => errors?.map(({ path }) => path));
  const none = '00000000-0000-7000-8000-000000000000';
  t.deepEqual(await bad(invariantBody({}, {})), ['name']);
  t.deepEqual(await bad(invariantBody({ name: 'x' }, { targets: [none], except: { targets: [none] } })), [
    'never.targets.0',
    'never.except.targets.0',
  ]);
  t.deepEqual(await bad(invariantBody({ name: 'x', reason: '' }, { subjects: [], resource_type: 'no' })), [
    'reason',
    'never.subjects',
    'never.resource_type',
  ]);
  for (const resource_pattern of ['(', 'a[ab]{50}c'])
    t.deepEqual(await bad(invariantBody({ name: 'x' }, { resource_pattern })), ['never.resource_pattern']);
  t.deepEqual(await bad(invariantBody({ name: 'x' }, { except: { subjects: [{ subject_type: 'everyone' }] } })), [
    'never.except.subjects.0',
  ]);
  const exception = { policy: none, reason: 'x', expires_at: '2099-01-01T00:00:00Z' };
  t.deepEqual(await bad(invariantBody({ name: 'x', exceptions: [exception] })), ['exceptions.0.policy']);
  t.deepEqual(await bad(invariantBody({ name: 'x', exceptions: [{ policy: none, reason: 'x' }] })), ['exceptions.0.expires_at']);
  t.is((await call<Refusal>(409, 'DELETE', `/targets/${sandbox}`)).code, 'target_in_use');
  await call(204, 'DELETE', `/targets/${prod}`);
  t.like(await call(200, 'PUT', `/invariants/${invariant.id}`, invariant), { id: invariant.id });
});

test('too many invariants are refused before their patterns are looked at', async (t) => {
  const { call, refused, invariant } = await scene(t);
  const texts = (count: number, pattern: string) =>
    Object.fromEntries(
      Array.from({ length: count }, (_, n) => [
        `file-${n}.yaml`,
        `name: Invariant ${n}\nreason: x\nnever:\n  subjects: [{ group: x }]\n  resource_type: tool\n  resource_pattern: ${pattern}\n`,
      ]),
    );
  const { invariants } = INVARIANT_LIMITS;
  t.is((await refused('POST', '/invariants/apply', { files: texts(invariants, '(') })).code, 'limit_reached');
  const bad = await call<Refusal>(400, 'POST', '/invariants/plan', { files: texts(invariants - 1, '(') });
  t.is(bad.errors?.length, invariants - 1);
  await call(200, 'POST', '/invariants/apply', { files: texts(invariants - 1, 'x') });
  t.is((await refused('POST', '/invariants', invariantBody({ name: 'One more' }))).code, 'limit_reached');
  await call(200, 'PUT', `/invariants/${invariant.id}`, { reason: 'None is added' });
});

test('all invariants together have a limited length', async (t) => {
  const { call, refused } = await scene(t);
  const subjects = Array.from({ length: 100 }, (_, n) => ({
    subject_type: 'group',
    subject_value: `${n}`.padEnd(256, 'x'),
  }));
  const file = (n: number, count: number) =>
    `name: Long ${n}\nreason: ${'x'.repeat(1_000)}\nnever:\n  resource_type: tool\n  subjects: ${JSON.stringify(
      subjects.slice(0, count).map(({ subject_value }) => ({ group: subject_value })),
    )}\n  except:\n    subjects: ${JSON.stringify(subjects.slice(0, count).map(({ subject_value }) => ({ group: subject_value })))}\n`;
  const files = (count: number, length: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, n) => [`f${n}.yaml`, file(n, length)]));
  t.is((await refused('POST', '/invariants/plan', { files: files(45, 100) })).code, 'limit_reached');
  await call(200, 'POST', '/invariants/plan', { files: files(30, 100) });
});

test('a caller who may not change the policy does not learn which other policies break an invariant', async (t) => {
  const { gateway, admin, policy, call } = await scene(t);
  const team = await person(gateway, 'team@example.com');
  await call(201, 'POST', '/rights', { subject_type: 'user', subject_value: team.id, right: 'policies:manage', owner: 'team' });
  const deny = await policy(denial());
  await policy(breaking());
  const path = `/api/policies/${deny}`;
  t.is((await gateway.rest<Refusal>(403, 'DELETE', path, { token: team.token })).body.code, 'forbidden');
  t.is((await gateway.rest<Refusal>(409, 'DELETE', path, { token: admin.token })).body.code, 'invariant_broken');
  // Who may plan may read why.
  t.is((await gateway.rest<unknown[]>(200, 'GET', '/api/invariants', { token: team.token })).body.length, 1);
  await gateway.rest(403, 'POST', '/api/invariants', { token: team.token, body: invariantBody({ name: 'x' }) });
});

test('a user who changes policies all the time does not keep others from changing them', async (t) => {
  const { gateway, policy, call, sets } = await scene(t);
  const team = await person(gateway, 'team@example.com');
  await call(201, 'PUT', '/owners/team', { limits: {} });
  const right = { subject_type: 'user', subject_value: team.id, right: 'policies:manage', owner: 'team' };
  await call(201, 'POST', '/rights', right);
  await call(200, 'POST', '/policies/apply', { owner: 'team', files: { 'a.yaml': file({ name: 'Theirs' }) } });
  const [theirs] = await call<{ id: string }[]>(200, 'GET', '/policies');
  const headers = { authorization: `Bearer ${team.token}`, 'content-type': 'application/json' };
  const stopped = new AbortController();
  let made = 0;
  const repeat = async (): Promise<void> => {
    while (!stopped.signal.aborted) {
      const body = JSON.stringify({ description: `${made++}` });
      await (await fetch(`${gateway.url}/api/policies/${theirs?.id}`, { method: 'PUT', headers, body })).text();
    }
  };
  const repeated = [repeat(), repeat()];
  try {
    for (let i = 0; i < 5; i++) await policy(breaking({ resource_pattern: `^other_${i}$` }));
    await sets.call(200, 'POST', '/apply', { files: { 'b.yaml': file({ name: 'Another' }) } });
    await call(201, 'POST', '/invariants', invariantBody({ name: 'Another' }, { resource_pattern: 'different' }));
  } finally {
    stopped.abort();
    await Promise.all(repeated);
  }
  t.true(made > 0);
});

eachEngine(test.serial, 'of two changes that break an invariant only together, one is refused', async (t, at) => {
  const { call, policy, gateway, admin } = await scene(t, at.url);
  const denials = async (): Promise<string[]> =>
    (await call<{ id: string; effect: string }[]>(200, 'GET', '/policies')).flatMap(({ id, effect }) =>
      effect === 'deny' ? [id] : [],
    );
  await policy(denial());
  await policy(breaking());
  for (let round = 0; round < 3; round++) {
    await policy(denial({ priority: 30 }));
    const found = await Promise.all((await denials()).map((id) => deleted(gateway.url, admin.token, id)));
    t.deepEqual(found.sort(), [204, 409]);
    t.is((await denials()).length, 1);
  }
});

const deleted = async (url: string, token: string, id: string): Promise<number> =>
  (await fetch(`${url}/api/policies/${id}`, { method: 'DELETE', headers: { authorization: `Bearer ${token}` } })).status;

eachServer(test.serial, 'of two changes at two replicas that break an invariant only together, one is refused', async (t, at) => {
  const { policy, gateway, admin, invariant } = await scene(t, at.url);
  const other = await startGateway(t, at.url);
  const denies = [await policy(denial()), await policy(denial({ priority: 30 }))];
  await policy(breaking());
  const found = await Promise.all(denies.map((id, i) => deleted([gateway, other][i]?.url ?? '', admin.token, id)));
  t.deepEqual(found.sort(), [204, 409]);
  // A policy and an invariant that do not fit together.
  const there = asAdmin(other, admin);
  await there.call(204, 'DELETE', `/invariants/${invariant.id}`);
  const ask = async (url: string, path: string, body: object): Promise<number> =>
    (
      await fetch(`${url}/api${path}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${admin.token}`, 'content-type': 'application/json' },
        body: JSON.stringify(body),
      })
    ).status;
  const both = await Promise.all([
    ask(gateway.url, '/policies', breaking({ priority: 50, resource_pattern: '^other$' })),
    ask(other.url, '/invariants', invariantBody({ name: 'Other' }, { resource_pattern: 'other' })),
  ]);
  t.deepEqual(both.sort(), [201, 409]);
});
