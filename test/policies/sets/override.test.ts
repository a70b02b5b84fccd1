/** Changes of policies that belong to files, outside of these files. */
import test, { type ExecutionContext } from 'ava';
import { readConfig } from '../../../src/config/config.ts';
import { makeCounter } from '../../../src/db/changes.ts';
import { openDatabase } from '../../../src/db/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { person, startGateway, type TestGateway } from '../../support/gateway.ts';
import { type PolicyAnswer, policyBody } from '../policies.ts';
import { file, type PlanAnswer, type ProblemAnswer, policySets, type RevisionAnswer } from '../sets.ts';

interface ChangeAnswer {
  readonly revision: number;
  readonly action: string;
  readonly override: boolean;
  readonly object_type: string;
  readonly object_id: string;
  readonly after: PolicyAnswer | null;
}

const OVERRIDE = '?override=true';

function scene(gateway: TestGateway, token: string) {
  const sets = policySets(gateway, token);
  const changes = async () =>
    (await gateway.rest<ChangeAnswer[]>(200, 'GET', '/api/changes?limit=1000', { token })).body.filter(
      ({ object_type }) => object_type === 'policy',
    );
  return {
    ...sets,
    changes,
    named: async (name: string) => (await sets.policies()).find((policy) => policy.name === name) as PolicyAnswer,
    /** Returns the drift that a plan shows, by file. */
    driftIn: ({ changes, left }: PlanAnswer) =>
      Object.fromEntries(
        [...changes, ...left].flatMap(({ file, drift_since }) => (drift_since === null ? [] : [[file, drift_since]])),
      ),
  };
}

async function start(t: ExecutionContext, url: string | null = null) {
  const gateway = await startGateway(t, url);
  const { token } = await person(gateway, 'admin@example.com');
  return { gateway, token, ...scene(gateway, token) };
}

const FILES = { 'a.yaml': file({ name: 'A' }), 'deny.yaml': file({ name: 'Deny', effect: 'deny' }) };

eachEngine(test.serial, 'a policy of a file is changed over REST only with override', async (t, at) => {
  const { call, apply, changes, policies, named, revision } = await start(t, at.url);
  await apply(FILES, { owner: 'security' });
  const { id, subjects } = await named('Deny');
  const [before, recorded] = [await policies(), (await changes()).length];
  const everyway = [
    ['PUT', `/${id}`, { enabled: false }],
    ['PUT', `/${id}`, { priority: 5, target_id: '00000000-0000-7000-8000-000000000000' }],
    ['DELETE', `/${id}`, undefined],
    ['POST', `/${id}/subjects`, { subject_type: 'role', subject_value: 'x' }],
    ['DELETE', `/${id}/subjects/${subjects[0]?.id}`, undefined],
  ] as const;
  for (const [method, path, body] of everyway) {
    for (const query of ['', '?override=false']) {
      const { code, detail } = (await call<ProblemAnswer>(409, method, path + query, body)).body;
      t.is(code, 'managed_by_files');
      t.regex(detail, /"Deny" belongs to the file deny\.yaml of the owner security.*apply it.*\?override=true/);
    }
    for (const query of ['?override=', '?override=1', '?override=true&override=true', '?overide=true'])
      await call(400, method, path + query, body);
  }
  // What was read can be put back, because it changes nothing.
  await call(200, 'PUT', `/${id}`, (await call(200, 'GET', `/${id}`)).body);
  t.deepEqual(await policies(), before);
  t.is((await changes()).length, recorded);
  t.is(await revision(), 1);

  // Without a file, there is nothing to override.
  const { body: free } = await call<PolicyAnswer>(201, 'POST', '', policyBody({ name: 'Free' }));
  await call(200, 'PUT', `/${free.id}`, { priority: 7 });
  await call(200, 'PUT', `/${free.id}${OVERRIDE}`, { priority: 8 });
  t.is((await named('Free')).drift_since, null);
  t.false((await changes()).some(({ override }) => override));
});

eachEngine(test.serial, 'an override is recorded, and is drift until its file is applied', async (t, at) => {
  const { call, apply, plan, changes, named, driftIn, policies } = await start(t, at.url);
  await apply(FILES);
  const { id } = await named('Deny');
  const answered = (await call<PolicyAnswer>(200, 'PUT', `/${id}${OVERRIDE}`, { enabled: false })).body;
  t.like(answered, { managed_as: 'default/deny', drift_since: 2 });
  t.deepEqual(await named('Deny'), answered);
  await call(201, 'POST', `/${id}/subjects${OVERRIDE}`, { subject_type: 'role', subject_value: 'x' });
  const { subjects, drift_since } = await named('Deny');
  t.is(drift_since, 2, 'the first revision counts');
  await call(204, 'DELETE', `/${id}/subjects/${subjects.at(-1)?.id}${OVERRIDE}`);
  t.deepEqual(
    (await changes()).map(({ action, override }) => [action, override]),
    [
      ['policy.remove_subject', true],
      ['policy.add_subject', true],
      ['policy.update', true],
      ['policy.create', false],
      ['policy.create', false],
    ],
  );
  const history = (await call<RevisionAnswer[]>(200, 'GET', '/history')).body;
  t.deepEqual(
    history.map(({ override }) => override),
    [true, true, true, false],
  );
  t.deepEqual(driftIn(await plan(FILES)), { 'deny.yaml': 2 });
  t.deepEqual(driftIn(await plan({ 'a.yaml': FILES['a.yaml'] })), { 'deny.yaml': 2 }, 'a file that is missing hides no drift');

  // The content is that of the file again. Only an apply ends the drift.
  await call(200, 'PUT', `/${id}${OVERRIDE}`, { enabled: true });
  const planned = await plan(FILES);
  t.like(planned.changes, [{ action: 'update', file: 'deny.yaml', members: ['drift_since'], drift_since: 2 }]);
  t.is(planned.unchanged, 1);
  t.is((await apply(FILES)).revision, 6);
  t.is((await named('Deny')).drift_since, null);
  t.deepEqual((await plan(FILES)).changes, []);
  const [cleared] = await changes();
  t.like(cleared, { action: 'policy.update', override: false, object_id: id });

  // A policy that was deleted outside of its file comes back with the file.
  await call(204, 'DELETE', `/${id}${OVERRIDE}`);
  t.like((await changes())[0], { action: 'policy.delete', override: true });
  const again = await plan(FILES);
  t.like(again.changes, [{ action: 'create', file: 'deny.yaml', drift_since: 7 }]);
  await apply(FILES);
  t.true((await policies()).every((policy) => policy.drift_since === null));
  await apply({ 'a.yaml': FILES['a.yaml'] }, { prune: true });
  t.deepEqual(driftIn(await plan(FILES)), {}, 'a file deleted it this time');
});

eachEngine(test.serial, 'a team cannot hide what it has changed outside of its files', async (t, at) => {
  const { call, apply, plan, changes, named, driftIn, gateway, token } = await start(t, at.url);
  await apply(FILES, { owner: 'team' });
  await apply({ 'b.yaml': file({ name: 'B' }) }, { owner: 'other' });
  const { id } = await named('Deny');
  await call(200, 'PUT', `/${id}${OVERRIDE}`, { enabled: false });
  const drift = async () => driftIn(await plan(FILES, { owner: 'team' }));
  t.deepEqual(await drift(), { 'deny.yaml': 3 });

  for (const wrong of [{ drift_since: null }, { drift_since: 4 }, { managed_as: null }])
    await call(400, 'PUT', `/${id}${OVERRIDE}`, wrong);
  await apply({}, { owner: 'team' });
  await apply({ 'a.yaml': file({ name: 'A', priority: 11 }) }, { owner: 'team' });
  await apply({ 'a.yaml': FILES['a.yaml'] }, { owner: 'team' });
  await apply({ 'deny.yaml': file({ name: 'C' }) }, { owner: 'other' });
  t.deepEqual(await drift(), { 'deny.yaml': 3 });

  // Neither a rollback of everything nor one of the owner ends the drift. A rollback is itself a change outside of files.
  for (const owner of [undefined, 'team']) {
    const rolled = (await call<PlanAnswer>(200, 'POST', '/rollback', { revision: 2, owner })).body;
    t.true(rolled.changes.some(({ policy_id, drift_since }) => policy_id === id && drift_since === 3) === (owner === undefined));
    t.deepEqual(await drift(), { 'deny.yaml': 3 });
  }
  t.true((await changes()).filter(({ object_id, override }) => object_id === id && override).length >= 2);
  await apply(FILES, { owner: 'team' });
  t.deepEqual(await drift(), {});
  await apply({ ...FILES, 'a.yaml': file({ name: 'A', priority: 12 }) }, { owner: 'team' });
  await call(200, 'POST', '/rollback', { revision: 2, owner: 'team' });
  const { revision } = await plan(FILES, { owner: 'team' });
  t.deepEqual(await drift(), { 'a.yaml': revision }, 'a rollback leaves its mark');

  // A policy that was deleted outside of its file, and comes back by a rollback or as a policy without a file.
  await call(204, 'DELETE', `/${id}${OVERRIDE}`);
  await call(200, 'POST', '/rollback', { revision: 2, owner: 'team' });
  t.deepEqual(await drift(), { 'a.yaml': revision, 'deny.yaml': revision + 2 });
  await call(204, 'DELETE', `/${id}${OVERRIDE}`);
  const { enabled: _, ...like } = policyBody({ name: 'Deny', effect: 'deny', resource_pattern: '^echo$' }) as { enabled?: true };
  const { body: copy } = await call<PolicyAnswer>(201, 'POST', '', like);
  t.is((await plan(FILES, { owner: 'team' })).unmanaged, 1);
  await call(204, 'DELETE', `/${copy.id}`);
  await apply({ 'a.yaml': file({ name: 'A', priority: 13 }) }, { owner: 'team' });
  t.deepEqual(await drift(), { 'deny.yaml': revision + 2 }, 'an apply of other files');

  // A draft is an apply of its files.
  await gateway.rest(201, 'PUT', '/api/policies/drafts/d', { token, body: { files: FILES, owner: 'team' } });
  await gateway.rest(200, 'POST', '/api/policies/drafts/d/activate', { token, body: {} });
  t.deepEqual(await drift(), {});
});

eachEngine(test.serial, 'an edit is refused first for the right, then for the file, then for what it says', async (t, at) => {
  const { call, apply, named, gateway, token } = await start(t, at.url);
  await apply(FILES, { owner: 'team' });
  const { id } = await named('Deny');
  const as = (method: string, path: string, body: object) => gateway.rest(201, method, `/api${path}`, { token, body });
  await as('PUT', '/owners/team', { limits: { priority: { min: 0 } } });
  const never = { subjects: [{ subject_type: 'everyone' }], resource_type: 'tool', resource_pattern: '^echo$' };
  await as('POST', '/invariants', { name: 'Nobody echoes', reason: 'x', never });
  const other = await person(gateway, 'other@example.com');
  const right = { subject_type: 'user', subject_value: other.id, right: 'policies:manage', owner: 'elsewhere' };
  await as('POST', '/rights', right);
  const [unsound, outside, breaking] = [{ resource_pattern: '(' }, { priority: -1 }, { priority: 1 }];
  const code = async (status: number, query: string, body: object, by = token) =>
    (await gateway.rest<ProblemAnswer>(status, 'PUT', `/api/policies/${id}${query}`, { token: by, body })).body.code;
  for (const body of [unsound, outside, breaking]) {
    for (const query of ['', OVERRIDE]) t.is(await code(403, query, body, other.token), 'forbidden');
    t.is(await code(409, '', body), 'managed_by_files');
  }
  t.is(await code(400, OVERRIDE, { ...unsound, ...outside }), 'invalid_request');
  t.is(await code(409, OVERRIDE, outside), 'outside_limits');
  t.is(await code(409, OVERRIDE, breaking), 'invariant_broken');
  t.is(
    (await call<ProblemAnswer>(412, 'PUT', `/${id}`, { priority: 3 }, { 'if-match': '"x"' })).body.code,
    'precondition_failed',
  );
});

eachEngine(
  test.serial,
  'however overrides and applies race, a mark says whether a change came from outside',
  async (t, at, engine) => {
    const one = await start(t, at.url);
    const other = engine === 'sqlite' ? one : scene(await startGateway(t, at.url), one.token);
    await one.apply(FILES);
    const ids = (await one.policies()).map(({ id }) => id);
    const files = (n: number) => ({
      'a.yaml': file({ name: 'A', priority: n }),
      'deny.yaml': file({ name: 'Deny', priority: n }),
    });
    for (let n = 0; n < 5; n++) {
      await Promise.all([
        one.apply(files(n)),
        ...ids.map((id) => other.call(200, 'PUT', `/${id}${OVERRIDE}`, { priority: 100 + n })),
        one.call(200, 'PUT', `/${ids[0]}${OVERRIDE}`, { priority: 200 + n }),
      ]);
      const recorded = await one.changes();
      for (const { id, drift_since } of await other.policies()) {
        const its = recorded.filter(({ object_id }) => object_id === id);
        const applied = its.findIndex(({ override }) => !override);
        t.is(drift_since, applied === 0 ? null : (its[applied - 1]?.revision ?? -1));
      }
    }
  },
);

eachEngine(test.serial, 'the policies and changes of an older version are no drift', async (t, at, engine) => {
  const older = await start(t, at.url);
  await older.apply(FILES);
  await older.gateway.gateway.close();
  const { knex, close } = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, makeCounter);
  await knex.raw(`drop index changes_owner${engine === 'sqlite' ? '' : ' on changes'}`);
  await knex.schema.alterTable('changes', (table) => table.dropColumns('owner', 'override'));
  await knex.schema.alterTable('policies', (table) => table.dropColumn('drift_since'));
  await knex.schema.dropTable('deleted_policies');
  const rows: { sequence: number; after: string | null }[] = await knex('changes').select('sequence', 'after');
  for (const { sequence, after } of rows) {
    const { drift_since: _, ...document } = JSON.parse(after ?? '{}');
    if (after !== null)
      await knex('changes')
        .where({ sequence })
        .update({ after: JSON.stringify(document) });
  }
  await knex('migrations').where('name', 'like', '%-drift').delete();
  await close();

  const gateway = await startGateway(t, at.url);
  const { call, plan, policies, changes, named, driftIn } = scene(gateway, older.token);
  t.deepEqual((await plan(FILES)).changes, []);
  t.deepEqual(
    (await policies()).map(({ drift_since }) => drift_since),
    [null, null],
  );
  t.deepEqual((await call<{ policies: PolicyAnswer[] }>(200, 'GET', '/history/1')).body.policies, await policies());
  t.false((await changes()).some(({ override }) => override));
  await call(200, 'PUT', `/${(await named('A')).id}${OVERRIDE}`, { priority: 3 });
  t.deepEqual(driftIn(await plan(FILES)), { 'a.yaml': 2 });
});
