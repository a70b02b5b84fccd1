import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import { type Administer, type Caller, createAdminister } from '../../../src/auth/caller.ts';
import { tokenStore } from '../../../src/auth/token-store.ts';
import { AppError } from '../../../src/base/errors.ts';
import { createChanges } from '../../../src/db/changes.ts';
import { createPolicyEdits } from '../../../src/policies/edit.ts';
import { FILE_NAME } from '../../../src/policies/files/file.ts';
import { createHeavyWork, type HeavyParts } from '../../../src/policies/heavy/heavy.ts';
import { createNameSearch } from '../../../src/policies/limits/limits.ts';
import { policyStore } from '../../../src/policies/policy-store.ts';
import { readPolicy, readPolicyUpdate } from '../../../src/policies/schema.ts';
import { ANY, readFiles } from '../../../src/policies/sets/planning.ts';
import { ACCEPTED, createSetCheck } from '../../../src/policies/sets/set-check.ts';
import { type Alongside, createPolicySets, type PolicySetParts, recordsOf } from '../../../src/policies/sets/sets.ts';
import { createSettle } from '../../../src/policies/settle.ts';
import { createStoredSet } from '../../../src/policies/stored-set.ts';
import { localUser, userStore } from '../../../src/users/user-store.ts';
import { ADMIN, ALL_RIGHTS } from '../../support/authority.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { NO_INVARIANTS, policy, policyBody } from '../policies.ts';
import { addTarget, type Files, file, type PlanAnswer, type ProblemAnswer, policySets, type RevisionAnswer } from '../sets.ts';

const starters = join(import.meta.dirname, '../../../policies');
const starterFiles = (): Files =>
  Object.fromEntries(
    readdirSync(starters)
      .filter((name) => FILE_NAME.test(name))
      .map((name) => [name, readFileSync(join(starters, name), 'utf8')]),
  );
const places = ({ errors = [] }: ProblemAnswer) => errors.map((e) => `${e.file}:${e.line}:${e.column}`);

test('the change feed has one change for each of many policies', (t) => {
  const [before, after] = [policy('a'), policy('a', { name: 'changed' })];
  const steps = recordsOf(
    [
      { before: null, after },
      { before, after },
      { before, after: null },
    ],
    false,
  );
  for (let i = 0; i < 3; i++) t.false(steps.next().done);
  const { value } = steps.next();
  t.deepEqual(
    value?.map(({ action, object_id }) => `${action} ${object_id}`),
    ['policy.create a', 'policy.update a', 'policy.delete a'],
  );
});

eachEngine(test.serial, 'files are applied in one change, and applied again change nothing', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { apply, plan, policies, revision, call, exported } = policySets(gateway, admin.token);
  const target = await addTarget(gateway, admin.token, 'everything');
  const files = starterFiles();
  const count = Object.keys(files).length;

  const planned = await plan(files);
  t.is(planned.revision, 0);
  t.deepEqual(
    planned.changes.map(({ action, file, policy_id }) => ({ action, file, policy_id })),
    Object.keys(files)
      .sort()
      .map((name) => ({ action: 'create', file: name, policy_id: null })),
  );
  t.is(await revision(), 0);

  const applied = await apply(files, { reason: 'first – ever' });
  t.is(applied.revision, 1);
  t.deepEqual(
    applied.changes.map((change) => ({ ...change, policy_id: null })),
    planned.changes.map(({ flips: _, ...change }: PlanAnswer['changes'][number] & { flips?: unknown }) => change),
  );
  const stored = await policies();
  t.deepEqual(stored.map(({ id }) => id).sort(), applied.changes.map(({ policy_id }) => policy_id ?? '').sort());
  t.true(stored.every(({ target_id }) => target_id === target));
  t.true(stored.some(({ managed_as }) => managed_as === 'default/nobody-prints-the-environment'));
  const { body: changes } = await gateway.rest<{ revision: number; reason: string; action: string }[]>(
    200,
    'GET',
    '/api/changes',
    {
      token: admin.token,
    },
  );
  t.deepEqual(
    changes.filter(({ action }) => action === 'policy.create').map(({ revision, reason }) => `${revision} ${reason}`),
    Array(count).fill('1 first – ever'),
  );

  const again = await apply(files);
  t.like(again, { revision: 1, changes: [], unchanged: count, left: [], unmanaged: 0 });
  t.deepEqual(await policies(), stored);
  const out = await exported();
  t.deepEqual(Object.keys(out).sort(), Object.keys(files).sort());
  t.like(await apply(out, { prune: true, adopt: true }), { revision: 1, changes: [] });

  // One file changes, one is new, one is gone.
  const { 'developers-get-prompts.yaml': _, ...rest } = files;
  const next = {
    ...rest,
    'new.yaml': file({ name: 'New' }),
    'developers-read-resources.yaml': (files['developers-read-resources.yaml'] ?? '').replace('priority: 50', 'priority: 51'),
  };
  const kept = await plan(next);
  t.deepEqual(
    kept.changes.map(({ action, file, members }) => [action, file, ...members]),
    [
      ['update', 'developers-read-resources.yaml', 'priority'],
      ['create', 'new.yaml'],
    ],
  );
  t.deepEqual(
    kept.left.map(({ file }) => file),
    ['developers-get-prompts.yaml'],
  );
  const pruned = await apply(next, { prune: true });
  t.deepEqual(
    pruned.changes.map(({ action }) => action),
    ['delete', 'update', 'create'],
  );
  t.is(pruned.revision, 2);
  t.like((await call<RevisionAnswer[]>(200, 'GET', '/history')).body, [
    { revision: 2, created: 1, updated: 1, deleted: 1, policy: null, reason: null, actor: { email: 'admin@example.com' } },
    { revision: 1, created: count, updated: 0, deleted: 0, reason: 'first – ever' },
  ]);
  // Policies that stay keep their ids, and so do their subjects.
  const was = stored.find(({ managed_as }) => managed_as === 'default/developers-read-resources');
  const is = (await policies()).find(({ id }) => id === was?.id);
  t.deepEqual(is, was && { ...was, priority: 51, updated_at: is?.updated_at ?? '' });
});

eachEngine(
  test.serial,
  'a policy made over the API is exported under its name, adopted only on request, and never pruned',
  async (t, at) => {
    const gateway = await startGateway(t, at.url);
    const admin = await person(gateway, 'admin@example.com');
    const { apply, plan, policies, call, exported, refused } = policySets(gateway, admin.token);
    for (const over of [
      { name: 'Twins' },
      { name: 'Twins', effect: 'deny' },
      { name: 'Änderung Nº 1!' },
      { name: '../../etc/passwd' },
      { name: '☃' },
      { name: 'con' },
    ]) {
      await call(201, 'POST', '', policyBody(over));
    }
    const files = await exported();
    const names = Object.keys(files);
    t.deepEqual(names.filter((name) => !name.startsWith('twins')).sort(), [
      'anderung-no-1.yaml',
      'etc-passwd.yaml',
      'policy-con.yaml',
      'policy.yaml',
    ]);
    t.regex(names.filter((name) => name.startsWith('twins')).join(' '), /^twins-[0-9a-f]{8}\.yaml twins-[0-9a-f]{8}\.yaml$/);
    t.like(await apply(files, { prune: true }), { revision: 6, changes: [], unchanged: 6, unmanaged: 6 });
    t.true((await policies()).every(({ managed_as }) => managed_as === null));

    // A file that differs from a policy without an owner does not adopt that policy.
    const changed = { 'policy-con.yaml': (files['policy-con.yaml'] ?? '').replace('priority: 10', 'priority: 11') };
    const refusal = await refused(400, changed);
    t.deepEqual(places(refusal), ['policy-con.yaml:1:1']);
    t.regex(refusal.detail, /created over the API and differs: adopt the policy/);
    const both = await refused(400, { 'twins.yaml': file({ name: 'Twins' }) }, { adopt: true });
    t.regex(both.detail, /twins\.yaml:1:1: name matches 2 policies/);

    const planned = await plan(changed, { adopt: true });
    t.deepEqual(
      planned.changes.map(({ action, members }) => [action, ...members]),
      [['adopt', 'priority', 'managed_as']],
    );
    t.is(planned.unmanaged, 5);
    await apply(changed, { adopt: true });
    t.is((await policies()).find(({ name }) => name === 'con')?.managed_as, 'default/policy-con');
    t.like(await apply(changed), { changes: [], revision: 7 });

    const all = await apply({ ...files, ...changed }, { adopt: true });
    t.deepEqual(
      all.changes.map(({ action, members }) => [action, ...members]),
      Array(5).fill(['adopt', 'managed_as']),
    );
    t.is(all.revision, 8);
    t.deepEqual(await exported(), { ...files, ...changed });

    // A policy that is of a file can still be changed over the API; the file wins the next time.
    const id = (await policies()).find(({ name }) => name === 'con')?.id;
    await call(200, 'PUT', `/${id}?override=true`, { priority: 99 });
    await call(400, 'PUT', `/${id}`, { managed_as: 'default/other' });
    await call(200, 'PUT', `/${id}`, (await call(200, 'GET', `/${id}`)).body);
    await call(201, 'POST', '', policyBody({ name: 'By hand' }));
    const drift = await apply(changed, { prune: true });
    t.deepEqual(drift.changes.map(({ action }) => action).sort(), ['delete', 'delete', 'delete', 'delete', 'delete', 'update']);
    t.deepEqual(
      (await policies()).map(({ name, priority }) => `${name} ${priority}`),
      ['con 11', 'By hand 10'],
    );
  },
);

eachEngine(test.serial, 'each owner has its own file names, and removes only its own policies', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { apply, exported, policies } = policySets(gateway, admin.token);
  await apply({ 'a.yaml': file({ name: 'of one' }), 'b.yaml': file() }, { owner: 'one' });
  await apply({ 'a.yaml': file({ name: 'of two' }) }, { owner: 'two', prune: true, adopt: true });
  t.deepEqual(Object.keys(await exported('one')).sort(), ['a.yaml', 'b.yaml']);
  t.deepEqual(Object.keys(await exported('two')), ['a.yaml']);
  t.deepEqual(await exported(), {});
  await apply({}, { owner: 'one', prune: true });
  t.deepEqual(
    (await policies()).map(({ managed_as }) => managed_as),
    ['two/a'],
  );
  // One that only begins alike.
  await apply({}, { owner: 'tw', prune: true });
  t.is((await policies()).length, 1);
});

eachEngine(test.serial, 'every mistake in a file is refused with its place, and nothing is stored', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { call, refused, revision, policies } = policySets(gateway, admin.token);
  const good = file();
  const wrong: [Files, string[]][] = [
    [{ 'a.yaml': `${good}priority: 11\n` }, ['a.yaml:8:1']],
    [{ 'a.yaml': '' }, ['a.yaml:1:1']],
    [{ 'a.yaml': `# ${'x'.repeat(70_000)}\n${good}` }, ['a.yaml:1:1']],
    [{ 'a.yaml': file({ target: 'nowhere' }) }, ['a.yaml:2:1']],
    [{ 'a.yaml': `# comment\n${file({ resource_pattern: '(?=a)b' })}` }, ['a.yaml:4:1']],
    [{ 'a.yaml': file({ resource_pattern: '((\\d{100}){100}){10}' }) }, ['a.yaml:3:1']],
    [
      { 'b.yaml': 'name: x', 'a.yaml': '- 1', 'c.yaml': good },
      ['b.yaml:1:1', 'b.yaml:1:1', 'b.yaml:1:1', 'b.yaml:1:1', 'a.yaml:1:1'],
    ],
    ...[
      'A.yaml',
      'a.yml',
      'a',
      '.yaml',
      '../a.yaml',
      'x/a.yaml',
      'a b.yaml',
      '-a.yaml',
      'a.yaml ',
      `${'a'.repeat(101)}.yaml`,
    ].map((name): [Files, string[]] => [{ [name]: good }, [`${name}:1:1`]]),
  ];
  for (const [files, expected] of wrong) {
    t.deepEqual(places(await refused(400, { ...files, 'fine.yaml': good })), expected, JSON.stringify(files).slice(0, 100));
  }
  // Each is affordable, all are not.
  const expensive = Object.fromEntries(
    Array.from({ length: 60 }, (_, i) => [`f${i}.yaml`, file({ resource_pattern: `${i}[a-z]{900}[0-9]{900}` })]),
  );
  t.regex((await refused(400, expensive)).detail, /^f\d+\.yaml:3:1: resource_pattern exceeds a limit of the policy set\. /);
  const many = await refused(400, Object.fromEntries(Array.from({ length: 500 }, (_, i) => [`f${i}.yaml`, ''])));
  t.is(many.errors?.length, 200);
  t.true(many.detail.length < 2_000);
  for (const body of [
    undefined,
    {},
    { files: [] },
    { files: { 'a.yaml': 1 } },
    { files: {}, prun: true },
    { files: {}, owner: 'A' },
    { files: {}, owner: 'a/b' },
    { files: {}, expected_revision: -1 },
    { files: {}, reason: 'a\nb' },
    '{"files": {"a.yaml": "", "a.yaml": ""}}',
  ]) {
    await call(400, 'POST', '/apply', body);
  }
  t.is(await revision(), 0);
  t.deepEqual(await policies(), []);
});

eachEngine(test.serial, 'an apply names the expected revision, and its caller must still be an administrator', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const other = await person(gateway, 'other@example.com');
  await gateway.rest(200, 'PUT', `/api/users/${other.id}`, { token: admin.token, body: { role: 'admin' } });
  const { apply, call, refused, revision, policies } = policySets(gateway, admin.token);
  await apply({ 'a.yaml': file() }, { expected_revision: 0 });
  const late = await refused(412, { 'a.yaml': file({ priority: 11 }) }, { expected_revision: 0 });
  t.is(late.code, 'precondition_failed');
  t.regex(late.detail, /owner default changed at revision 1, .* of revision 0\./);
  await call(412, 'POST', '/rollback', { revision: 0, expected_revision: 0 });

  // One of several applies of the same revision wins.
  const answers = await Promise.all(
    Array.from({ length: 6 }, async (_, i) => {
      const answer = await fetch(`${gateway.url}/api/policies/apply`, {
        method: 'POST',
        headers: { authorization: `Bearer ${admin.token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ files: { 'a.yaml': file({ priority: 100 + i }) }, expected_revision: 1 }),
      });
      return answer.status;
    }),
  );
  t.deepEqual(answers.sort(), [200, 412, 412, 412, 412, 412]);
  t.is(await revision(), 2);

  await gateway.rest(200, 'PUT', `/api/users/${other.id}`, { token: admin.token, body: { role: 'user' } });
  const theirs = policySets(gateway, other.token);
  for (const [method, path, body] of [
    ['POST', '/apply', { files: { 'a.yaml': file() } }],
    ['POST', '/plan', { files: {} }],
    ['POST', '/rollback', { revision: 0 }],
    ['GET', '/export'],
    ['GET', '/history'],
    ['GET', '/history/1'],
    ['GET', '/diff?from=0'],
  ] as const) {
    await theirs.call(403, method, path, body);
    await gateway.rest(401, method, `/api/policies${path}`);
  }
  t.is((await policies()).length, 1);
});

eachEngine(test.serial, 'a set that is applied to another gateway has the same export', async (t, at) => {
  const here = await startGateway(t, at.url);
  const admin = await person(here, 'admin@example.com');
  const one = policySets(here, admin.token);
  const elsewhere = await startGateway(t);
  const their = await person(elsewhere, 'admin@example.com');
  const two = policySets(elsewhere, their.token);
  const ids = [null, await addTarget(here, admin.token, 'a'), await addTarget(here, admin.token, 'b')];
  for (const name of ['b', 'c', 'a']) await addTarget(elsewhere, their.token, name);

  const word = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 12 }).filter((s) => !/\p{Cc}/u.test(s) && s.isWellFormed());
  const subject = fc.oneof(
    fc.constant({ subject_type: 'everyone' }),
    fc.record({ subject_type: fc.constantFrom('role', 'group'), subject_value: word }),
    fc.record({ subject_type: fc.constant('user'), subject_value: fc.uuid() }),
  );
  const body = fc.record({
    name: fc.oneof(word, fc.constantFrom('Same', 'same', 'SAME', 'x')),
    description: fc.option(word),
    target_id: fc.constantFrom(...ids),
    resource_type: fc.constantFrom('all', 'tool', 'resource', 'prompt'),
    resource_pattern: fc.constantFrom(null, '^a$', '^(a|b)_\\d+$', 'é: #'),
    effect: fc.constantFrom('allow', 'deny'),
    priority: fc.integer({ min: -5, max: 5 }),
    enabled: fc.boolean(),
    subjects: fc.uniqueArray(subject, { maxLength: 4, selector: (s) => JSON.stringify(s) }),
  });
  const runs = await fc.assert(
    fc.asyncProperty(fc.array(body, { maxLength: 8 }), async (bodies) => {
      for (const { id } of await one.policies()) await one.call(204, 'DELETE', `/${id}?override=true`);
      await two.apply({}, { prune: true });
      for (const policy of bodies) await one.call(201, 'POST', '', policy);

      const files = await one.exported();
      t.is(Object.keys(files).length, bodies.length);
      const before = await one.policies();
      const revision = await one.revision();
      t.like(await one.apply(files, { prune: true }), {
        changes: [],
        unchanged: bodies.length,
        revision,
        unmanaged: bodies.length,
      });
      t.deepEqual(await one.policies(), before);

      await two.apply(files, { prune: true });
      t.deepEqual(await two.exported(), files);
      t.like(await two.plan(files, { prune: true, adopt: true }), { changes: [], unchanged: bodies.length });

      await one.apply(files, { adopt: true });
      t.deepEqual(await one.exported(), files);
      t.like(await one.plan(files, { prune: true, adopt: true }), { changes: [], unchanged: bodies.length });
    }),
    { numRuns: 8 },
  );
  t.is(runs, undefined);
});

eachEngine(
  test.serial,
  'history shows each change with its author and reason, each revision and each comparison, and allows rollback',
  async (t, at) => {
    const gateway = await startGateway(t, at.url);
    const admin = await person(gateway, 'admin@example.com');
    const { call, apply, policies } = policySets(gateway, admin.token);
    const target = await addTarget(gateway, admin.token, 'everything');
    const why = { 'portcullis-reason': Buffer.from('because – of this').toString('latin1') };
    const made = (await call<{ id: string }>(201, 'POST', '', policyBody({ name: 'One', target_id: target }), why)).body;
    await call(200, 'PUT', `/${made.id}`, { priority: 11 });
    const second = await policies();
    await apply({ 'a.yaml': file(), 'b.yaml': file() }, { reason: 'files' });
    await call(204, 'DELETE', `/${made.id}`, undefined, { 'portcullis-reason': 'gone' });

    const { body: history, headers } = await call<RevisionAnswer[]>(200, 'GET', '/history?limit=3');
    t.deepEqual(
      history.map(({ revision, created, updated, deleted, policy, reason }) => [
        revision,
        created,
        updated,
        deleted,
        policy?.name,
        reason,
      ]),
      [
        [4, 0, 0, 1, 'One', 'gone'],
        [3, 2, 0, 0, undefined, 'files'],
        [2, 0, 1, 0, 'One', null],
      ],
    );
    const next = /<(.*)>/.exec(headers.get('link') ?? '')?.[1]?.replace('/api/policies', '') ?? '';
    t.like((await call<RevisionAnswer[]>(200, 'GET', next)).body, [{ revision: 1, reason: 'because – of this' }]);
    t.like(await call(200, 'GET', '/history/2'), { body: { revision: 2, policies: second, made: { revision: 2, updated: 1 } } });
    t.like(await call(200, 'GET', '/history/0'), { body: { revision: 0, policies: [], made: null } });
    for (const path of [
      '/history/5',
      '/history/x',
      '/history/-1',
      '/history/1e1',
      '/history/99999999999999',
      '/diff?from=0&to=5',
      '/diff?from=5',
    ]) {
      t.is((await call<ProblemAnswer>(404, 'GET', path)).body.code, 'not_found', path);
    }
    for (const path of [
      '/diff',
      '/diff?from=x',
      '/diff?from=1&from=2',
      '/diff?from=0&x=1',
      '/history?limit=0',
      '/export?owner=A',
      '/export?x=1',
    ]) {
      await call(400, 'GET', path);
    }
    interface Diff {
      readonly changes: PlanAnswer['changes'];
    }
    const diff = async (query: string) =>
      (await call<Diff>(200, 'GET', `/diff?${query}`)).body.changes.map(({ action, name, members, after }) => [
        action,
        name,
        after?.target,
        ...members,
      ]);
    t.deepEqual(await diff('from=1&to=2'), [['update', 'One', 'everything', 'priority']]);
    t.deepEqual(await diff('from=2&to=1'), [['update', 'One', 'everything', 'priority']]);
    t.deepEqual(await diff('from=4&to=4'), []);
    t.deepEqual(
      (await diff('from=1')).map(([action]) => action),
      ['create', 'create', 'delete'],
    );

    const back = (
      await call<{ revision: number; changes: PlanAnswer['changes'] }>(200, 'POST', '/rollback', {
        revision: 2,
        expected_revision: 4,
      })
    ).body;
    t.is(back.revision, 5);
    t.deepEqual(back.changes.map(({ action }) => action).sort(), ['create', 'delete', 'delete']);
    const now = await policies();
    t.deepEqual(
      now,
      second.map((policy, i) => ({ ...policy, updated_at: now[i]?.updated_at ?? '' })),
    );
    t.like((await call<RevisionAnswer[]>(200, 'GET', '/history')).body, [
      { revision: 5, reason: 'rollback to revision 2', created: 1, deleted: 2 },
    ]);
    // A rollback to the current revision.
    t.like((await call(200, 'POST', '/rollback', { revision: 2 })).body, { revision: 5, changes: [] });
    t.is((await call<ProblemAnswer>(404, 'POST', '/rollback', { revision: 6 })).body.code, 'not_found');
    for (const body of [{}, { revision: -1 }, { revision: '1' }, { revision: 1.5 }, { revision: 1, x: 1 }])
      await call(400, 'POST', '/rollback', body);

    // A target that an old set names may have been deleted.
    await call(200, 'POST', '/rollback', { revision: 0, reason: 'none' });
    await gateway.rest(204, 'DELETE', `/api/targets/${target}`, { token: admin.token });
    const gone = (await call<ProblemAnswer>(400, 'POST', '/rollback', { revision: 2 })).body;
    t.regex(gone.detail, /policy "One" \(.*\) names a target that no longer exists/);
    t.deepEqual(
      gone.errors?.map(({ path }) => path),
      ['revision'],
    );
    t.deepEqual(await policies(), []);
  },
);

test.serial('a reason is stored unchanged or refused', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call } = policySets(gateway, admin.token);
  const latin1 = (text: string) => Buffer.from(text).toString('latin1');
  await call(400, 'POST', '', policyBody(), { 'portcullis-reason': '\u00ff' });
  await call(400, 'POST', '', policyBody(), { 'portcullis-reason': 'x'.repeat(1025) });
  await call(201, 'POST', '', policyBody(), { 'portcullis-reason': latin1('é'.repeat(1024)) });
  const user = await person(gateway, 'user@example.com');
  await gateway.rest(200, 'PUT', `/api/users/${user.id}`, {
    token: admin.token,
    body: { role: 'x' },
    headers: { 'portcullis-reason': 'a new role' },
  });
  const { body } = await gateway.rest<{ action: string; reason: string | null }[]>(200, 'GET', '/api/changes', {
    token: admin.token,
  });
  t.deepEqual(
    body.filter(({ reason }) => reason !== null).map(({ action, reason }) => [action, reason]),
    [
      ['user.update', 'a new role'],
      ['policy.create', 'é'.repeat(1024)],
    ],
  );
});

eachEngine(test.serial, 'a caller that is no longer administrator at the time of the change cannot make it', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const email = 'a@example.com';
  const admin = localUser({ id: uuidv7(), email, role: 'admin', groups: [] }, 1);
  const token = {
    id: uuidv7(),
    user_id: admin.id,
    kind: 'login',
    name: null,
    kid: 'k',
    expires_at: null,
    revoked_at: null,
    limits: null,
  } as const;
  await userStore(database.knex).insert(admin, 'x');
  await tokenStore(database.knex).insert({ ...token, created_at: 1 });
  let meanwhile: () => Promise<unknown> = async () => undefined;
  const sets = createPolicySets({
    ...{
      database,
      guard: NO_INVARIANTS,
      readStoredSet: createStoredSet(),
      prepare: async () => undefined,
      findNames: createNameSearch(),
      administer: createAdminister({ changes }),
      newId: uuidv7,
      now: Date.now,
    },
    readFiles,
    targets: async () => [],
    // Between the first look and the lock.
    async checkSet() {
      await meanwhile();
      return ACCEPTED;
    },
  });
  const granted = { role: 'admin', groups: [] };
  const principal = { issuer: 'portcullis', sub: admin.id, email, ...granted, granted, token_id: token.id } as const;
  const caller: Caller = { requestId: 'r', principal: { ...principal, token_kind: 'login', issued_at: null, limits: null } };
  const request = { owner: 'default', prune: false, adopt: false, ...ANY };
  const apply = (priority: number) => sets.apply(caller, { ...request, files: new Map([['a.yaml', file({ priority })]]) });
  await apply(1);
  meanwhile = () => database.knex('users').where('id', admin.id).update({ role: 'user' });
  for (const work of [() => apply(2), () => sets.rollback(caller, { revision: 0, owner: null, expectedRevision: null })]) {
    t.is((await t.throwsAsync<AppError>(work(), { instanceOf: AppError }))?.code, 'forbidden');
  }
  t.deepEqual(
    (await policyStore(database.knex).all()).map(({ priority }) => priority),
    [1],
  );
  t.is((await changes.position()).revision, 1);
});

eachEngine(test.serial, 'no engine is made for a change while that of another is made or stored', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  let [busy, most, prepared] = [0, 0, 0];
  const parts = {
    ...{
      database,
      guard: NO_INVARIANTS,
      readStoredSet: createStoredSet(),
      findNames: createNameSearch(),
      newId: uuidv7,
      now: Date.now,
    },
    administer: ((_caller, _right, work) =>
      changes
        .change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS))
        .finally(() => void busy--)) satisfies Administer as Administer,
    async prepare() {
      most = Math.max(most, ++busy);
      prepared++;
      await setImmediate();
    },
    checkPattern: () => null,
    checkSet: async () => ACCEPTED,
  };
  const edits = createPolicyEdits({ ...parts, targetExists: async () => true });
  const sets = createPolicySets({ ...parts, readFiles, targets: async () => [] });
  const request = { owner: 'default', prune: false, adopt: false, ...ANY };
  const caller = (sub: string): Caller => ({ ...ADMIN, principal: { ...ADMIN.principal, sub } });
  await Promise.all([
    ...['a', 'b', 'c'].map((name) => edits.create(caller(name), readPolicy(policyBody({ name })))),
    ...['d', 'e', 'f'].map((name) =>
      sets.apply(caller(name), { ...request, files: new Map([[`${name}.yaml`, file({ name })]]) }),
    ),
  ]);
  t.is((await policyStore(database.knex).all()).length, 6);
  t.is(most, 1);
  t.true(prepared >= 6);
});

eachEngine(test.serial, 'an apply makes its plan again if an edit came between reading and locking', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_caller, _right, work) =>
    changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS));
  const caller = { requestId: 'r', principal: { sub: 'admin' } } as Caller;
  let meanwhile: () => Promise<unknown> = async () => undefined;
  const parts = {
    database,
    administer,
    guard: NO_INVARIANTS,
    readStoredSet: createStoredSet(),
    prepare: async () => undefined,
    findNames: createNameSearch(),
    newId: uuidv7,
    now: Date.now,
    checkPattern: () => null,
  };
  const edits = createPolicyEdits({ ...parts, targetExists: async () => true });
  const sets = createPolicySets({
    ...parts,
    readFiles,
    targets: async () => [],
    async checkSet() {
      const work = meanwhile();
      meanwhile = async () => undefined;
      await work;
      return ACCEPTED;
    },
  });
  const request = { owner: 'default', prune: true, adopt: false, ...ANY };
  const files = (priority: number) => new Map([['a.yaml', file({ priority })]]);
  const { result } = await sets.apply(caller, { ...request, files: files(1) });
  const id = result.plan.changes[0]?.after?.id ?? '';

  meanwhile = () => edits.update(caller, id, readPolicyUpdate({ priority: 2, name: 'other' }), { override: true });
  const { result: second } = await sets.apply(caller, { ...request, files: files(3) });
  t.like(second.plan.changes[0]?.before, { priority: 2, name: 'other' });
  t.like((await policyStore(database.knex).all())[0], { id, priority: 3, name: 'Everyone may echo' });

  meanwhile = () => edits.delete(caller, id, { override: true });
  const late = sets.apply(caller, { ...request, files: files(4), expectedRevision: 3 });
  t.is((await t.throwsAsync<AppError>(late, { instanceOf: AppError }))?.code, 'precondition_failed');
  t.deepEqual(await policyStore(database.knex).all(), []);
});

eachEngine(test.serial, 'an apply whose client disconnects happens as a whole or not at all', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_caller, _right, work) =>
    changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS));
  const heavy = createHeavyWork({} as HeavyParts);
  t.teardown(heavy.close);
  /** Called at each trial of a set. `inTransaction`: after the lock is taken. */
  let meanwhile = async (_inTransaction: boolean): Promise<unknown> => undefined;
  const parts = {
    database,
    administer,
    guard: NO_INVARIANTS,
    readStoredSet: createStoredSet(),
    prepare: async () => undefined,
    findNames: createNameSearch(),
    newId: uuidv7,
    now: Date.now,
    checkPattern: () => null,
  };
  const edits = createPolicyEdits({ ...parts, targetExists: async () => true });
  const sets = createPolicySets({
    ...{ ...parts, readFiles, targets: async () => [] },
    async checkSet(policies, changed, stored, caller) {
      await meanwhile(caller === null);
      return heavy.checkSet(policies, changed, stored, caller);
    },
  });
  const request = { owner: 'default', prune: true, adopt: false, ...ANY };
  const apply = (names: readonly string[], signal?: AbortSignal, alongside?: Alongside) => {
    const files = new Map(names.map((name) => [`${name}.yaml`, file({ name })]));
    return sets.apply({ ...ADMIN, ...(signal === undefined ? {} : { signal }) }, { ...request, files }, alongside);
  };
  const stored = async () => ({
    names: (await policyStore(database.knex).all()).map(({ name }) => name).sort(),
    revision: (await changes.position()).revision,
    recorded: (await database.knex('changes').select('object_id')).length,
  });
  await apply(['a', 'b']);
  const before = await stored();
  t.like(before, { names: ['a', 'b'], revision: 1 });

  const [early, within, late] = [new AbortController(), new AbortController(), new AbortController()];
  meanwhile = async () => early.abort(new AppError('unavailable', 'left'));
  const error = await t.throwsAsync(apply(['c', 'd'], early.signal), { instanceOf: AppError });
  t.is(error?.message, 'left');
  t.deepEqual(await stored(), before);

  // The policies change after each trial, so the last one is in the transaction.
  meanwhile = async (inTransaction) => {
    if (inTransaction) within.abort();
    else await edits.create(ADMIN, readPolicy(policyBody({ name: 'by hand' })));
  };
  await apply(['c', 'd'], within.signal);
  t.true(within.signal.aborted);
  const byHand = ['by hand', 'by hand', 'by hand'];
  t.like(await stored(), { names: [...byHand, 'c', 'd'], revision: 5, recorded: before.recorded + 7 });

  meanwhile = async () => undefined;
  await apply(['e'], late.signal, async () => {
    late.abort();
    return [];
  });
  t.like(await stored(), { names: [...byHand, 'e'], revision: 6, recorded: before.recorded + 10 });
});

/** Sets on a database of their own, which are checked and settled as given. */
async function setsOnSqlite(t: ExecutionContext, { checkSet, guard }: Pick<PolicySetParts, 'checkSet' | 'guard'>) {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_caller, _right, work) =>
    changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS));
  const sets = createPolicySets({
    database,
    guard,
    readStoredSet: createStoredSet(),
    prepare: async () => undefined,
    findNames: createNameSearch(),
    administer,
    newId: uuidv7,
    now: Date.now,
    targets: async () => [],
    readFiles,
    checkSet,
  });
  return { database, sets };
}

test.serial('applying many files lets other work run, and checks each pattern once and outside the lock', async (t) => {
  const looked: string[] = [];
  let longest = 0;
  let before = 0;
  let ended = false;
  const turn = (): void => {
    longest = Math.max(longest, looked.length - before);
    before = looked.length;
    if (!ended) setImmediate(turn);
  };
  const { sets } = await setsOnSqlite(t, {
    guard: NO_INVARIANTS,
    checkSet: createSetCheck((pattern) => {
      looked.push(pattern);
      for (const began = performance.now(); performance.now() - began < 2; );
      return null;
    }),
  });
  const files = new Map(Array.from({ length: 200 }, (_, i) => [`p${i}.yaml`, file({ resource_pattern: `^t${i}$` })]));
  turn();
  const request = { owner: 'default', prune: false, adopt: false, ...ANY };
  await sets.apply({ requestId: 'r', principal: { sub: 'admin' } } as Caller, { ...request, files });
  ended = true;
  t.is(looked.length, 200);
  t.true(longest < 20, `${longest} patterns in one turn`);
});

test.serial('large applies are counted as what they store, and then refused, while small ones are not', async (t) => {
  const settle = createSettle(async () => undefined, 10_000, { small: 2, rate: { perSecond: 0.01, burst: 3 } });
  const { database, sets } = await setsOnSqlite(t, {
    guard: { ...NO_INVARIANTS, settle },
    checkSet: async () => ACCEPTED,
  });
  const request = { owner: 'default', prune: true, adopt: false, ...ANY };
  const apply = (count: number, priority: number) => {
    const files = new Map(Array.from({ length: count }, (_, i) => [`p${i}.yaml`, file({ priority })]));
    return sets.apply({ requestId: 'r', principal: { sub: 'manager' } } as Caller, { ...request, files });
  };
  await apply(3, 1);
  await apply(3, 1);
  await apply(3, 2);
  const refused = await t.throwsAsync<AppError>(apply(3, 3), { instanceOf: AppError });
  t.is(refused?.code, 'too_many_requests');
  await apply(3, 2);
  // It deletes a policy and changes none.
  await apply(2, 2);
  t.deepEqual(
    (await policyStore(database.knex).all()).map(({ priority }) => priority),
    [2, 2],
  );
});
