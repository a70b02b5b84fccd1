/** Files are applied only if their tests pass on exactly the set that is applied. */

import test from 'ava';
import { v7 as uuidv7 } from 'uuid';
import type { Administer, Caller } from '../../src/auth/caller.ts';
import { AppError } from '../../src/base/errors.ts';
import { createChanges } from '../../src/db/changes.ts';
import { loadPolicyModule } from '../../src/engine/engine.ts';
import { createPolicyEdits } from '../../src/policies/edit.ts';
import { createNameSearch } from '../../src/policies/limits/limits.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import { readPolicy } from '../../src/policies/schema.ts';
import { ANY, readFiles, type TargetName } from '../../src/policies/sets/planning.ts';
import { ACCEPTED } from '../../src/policies/sets/set-check.ts';
import { createPolicySets } from '../../src/policies/sets/sets.ts';
import { createApplyTested, readTests, testSet } from '../../src/policies/sets/test-set.ts';
import { createStoredSet } from '../../src/policies/stored-set.ts';
import { ALL_RIGHTS } from '../support/authority.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { person, startGateway } from '../support/gateway.ts';
import { NO_INVARIANTS, policyBody } from './policies.ts';
import { addTarget, file, type PlanAnswer, type ProblemAnswer, policySets } from './sets.ts';

const tests = (effect = 'allow', more = ''): string => `target: everything
principals:
  anybody: { role: user }
requests:
  echo: { tool: echo }
  other: { tool: other }
tests:
  - name: Echo
    expect:
      - requests: [echo]
        effect: ${effect}
${more}`;

eachEngine(test.serial, 'nothing is applied if a test fails', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { call, policies, revision } = policySets(gateway, admin.token);
  await addTarget(gateway, admin.token, 'everything');
  const files = { 'echo.yaml': file() };
  const apply = <T>(status: number, more: object) =>
    call<T>(status, 'POST', '/apply', { files, ...more }).then(({ body }) => body);

  const failed = await apply<ProblemAnswer>(409, { tests: { 'a.yaml': tests('deny'), 'b.yaml': tests() } });
  t.is(failed.code, 'tests_failed');
  t.is(failed.detail, 'Nothing was applied, because 1 of 4 tests failed.');
  t.deepEqual(failed.errors, [
    {
      path: 'tests.a.yaml',
      message: 'Echo: anybody, echo: expected deny, got allow by "Everyone may echo"',
      ...{ file: 'a.yaml', line: 10, column: 9 },
    },
  ]);
  // A request that the tests do not list must be denied.
  const wide = { files: { 'echo.yaml': file({ resource_pattern: null }) }, tests: { 'a.yaml': tests() } };
  t.like(await apply<ProblemAnswer>(409, wide), { code: 'tests_failed', errors: [{ file: 'a.yaml', line: 8 }] });
  for (const bad of [
    {},
    [],
    'echo',
    { 'a.yaml': 7 },
    { 'a.yaml': '' },
    { '../a.yaml': tests() },
    { 'a.yaml': tests('maybe') },
    { 'a.yaml': tests().replace('everything', 'nowhere') },
    { 'a.yaml': tests('allow', '        policy: no such policy\n') },
  ]) {
    const { code, errors = [] } = await apply<ProblemAnswer>(400, { tests: bad });
    t.is(code, 'invalid_request', JSON.stringify(bad));
    t.regex(errors[0]?.path ?? '', /^tests/, JSON.stringify(bad));
  }
  t.is(await revision(), 0);
  t.deepEqual(await policies(), []);

  const applied = await apply<PlanAnswer>(200, { tests: { 'a.yaml': tests('allow', '        policy: echo\n') }, reason: 'r' });
  t.like(applied, { revision: 1, changes: [{ action: 'create', file: 'echo.yaml' }] });
  t.is((await policies()).length, 1);
  // Also if nothing would change, or policies would only be removed.
  await apply(409, { tests: { 'a.yaml': tests('deny') } });
  t.like(await apply(200, { tests: { 'a.yaml': tests() } }), { revision: 1, changes: [] });
  const gone = {
    files: { 'other.yaml': file({ name: 'Other', target: 'everything', resource_pattern: '^other$' }) },
    prune: true,
  };
  await apply(409, { ...gone, tests: { 'a.yaml': tests() } });
  await apply(412, { tests: { 'a.yaml': tests() }, expected_revision: 0 });
  t.is(await revision(), 1);
});

test.serial('the applied set is exactly the one that passed the tests', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_caller, _right, work) =>
    changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS));
  const caller = { requestId: 'r', principal: { sub: 'admin' } } as Caller;
  const module = await loadPolicyModule();
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
  const here = { id: uuidv7(), name: 'everything' };
  const there = { id: uuidv7(), name: 'there' };
  let targets: readonly TargetName[] = [here, there];
  /** Called at each trial of a set: before the tests run, and before the lock is taken. */
  let meanwhile: (() => unknown)[] = [];
  const sets = createPolicySets({
    ...parts,
    targets: async () => targets,
    readFiles,
    async checkSet() {
      await meanwhile.shift()?.();
      return ACCEPTED;
    },
  });
  const applyTested = createApplyTested({
    sets,
    async test(texts, set) {
      const { failed, results } = await testSet(module, await readTests(texts), { ...set, stored: [] });
      return { failed, all: results.length, failures: results.filter(({ passed }) => !passed) };
    },
  });
  const apply = (what: string) => {
    const files = new Map([[`${what.replaceAll(' ', '-')}.yaml`, file({ name: what, target: 'everything' })]]);
    const request = { owner: 'default', prune: false, adopt: false, ...ANY, files };
    return applyTested(caller, request, new Map([['a.yaml', tests()]]));
  };
  const names = async () => (await policyStore(database.knex).all()).map(({ name }) => name);
  const late = async (why: string, ...work: (() => unknown)[]): Promise<void> => {
    meanwhile = work;
    const error = await t.throwsAsync(apply(why), { instanceOf: AppError }, why);
    t.is(error?.code, 'precondition_failed', `${why}: ${error?.message}`);
    for (const { id, name } of await policyStore(database.knex).all()) {
      if (name === 'meanwhile') await edits.delete(caller, id, undefined);
    }
    t.deepEqual(await names(), ['first'], why);
  };
  const deny = () =>
    edits.create(caller, readPolicy(policyBody({ name: 'meanwhile', effect: 'deny', resource_type: 'all', priority: 99 })));

  await apply('first');
  await late('another policy before the tests', deny);
  await late('another policy before the lock', () => undefined, deny);
  // After a failover or restore, the same revision can be a different set.
  const restore = async () => {
    const nonce = uuidv7();
    for (const table of ['changes', 'counter']) await database.knex(table).update({ nonce });
  };
  await late('another history before the tests', restore);
  await late('another history before the lock', () => undefined, restore);
  // A change of targets does not change the revision, but the same file then describes a different policy.
  const swap = () => {
    targets = [
      { ...here, name: 'there' },
      { ...there, name: 'everything' },
    ];
  };
  const gone = () => {
    targets = [there, { id: uuidv7(), name: 'everything' }];
  };
  for (const change of [swap, gone]) {
    await late('another target before the tests', change);
    targets = [here, there];
    await late('another target before the lock', () => undefined, change);
    targets = [here, there];
  }
  // An additional target changes nothing.
  meanwhile = [() => (targets = [here, there, { id: uuidv7(), name: 'more' }])];
  await apply('second');
  t.deepEqual(await names(), ['first', 'second']);
});

test('of many files with errors, only some are read', async (t) => {
  const repeat = '      - effect: deny\n      - effect: deny\n';
  const texts = new Map(Array.from({ length: 30 }, (_, i) => [`wrong-${i}.yaml`, tests('allow', repeat)]));
  const error = await t.throwsAsync(readTests(texts), { instanceOf: AppError });
  t.is(error?.errors?.length, 20);
});
