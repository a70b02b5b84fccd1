/** When the check of the invariants runs, and what happens if it fails. */

import test, { type ExecutionContext } from 'ava';
import { v7 as uuidv7 } from 'uuid';
import type { Administer } from '../../../src/auth/caller.ts';
import { AppError } from '../../../src/base/errors.ts';
import { createChanges } from '../../../src/db/changes.ts';
import { createPolicyEdits } from '../../../src/policies/edit.ts';
import { readEach } from '../../../src/policies/files/read-files.ts';
import { invariantFindings } from '../../../src/policies/invariants/findings.ts';
import { loosens, readInvariant, readInvariantUpdate } from '../../../src/policies/invariants/invariant.ts';
import {
  type CheckInvariants,
  createGuard,
  createInvariantEdits,
  glanceOf,
} from '../../../src/policies/invariants/invariant-edits.ts';
import { errorAt, parseInvariantFile } from '../../../src/policies/invariants/invariant-files.ts';
import { judge } from '../../../src/policies/invariants/judge.ts';
import { createNameSearch } from '../../../src/policies/limits/limits.ts';
import { policyStore } from '../../../src/policies/policy-store.ts';
import { readPolicy, readPolicyUpdate } from '../../../src/policies/schema.ts';
import { invariantsJson } from '../../../src/policies/sets/lint-report.ts';
import { createStoredSet } from '../../../src/policies/stored-set.ts';
import { ADMIN, ALL_RIGHTS } from '../../support/authority.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import type { TestDatabase } from '../../support/databases/engines.ts';
import { build } from '../analysis/random-sets.ts';
import { policy, policyBody } from '../policies.ts';
import { invariantBody } from './scene.ts';

async function start(t: ExecutionContext, at: TestDatabase) {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  let locked = 0;
  const administer: Administer = (_caller, _right, work) =>
    changes.change({ id: 'admin', email: 'a@example.com', request_id: 'request' }, async (trx) => {
      locked++;
      return await work(trx, ALL_RIGHTS).finally(() => locked--);
    });
  const seen = { checks: 0, underLock: 0 };
  const on: { check: (times: number) => Promise<Awaited<ReturnType<CheckInvariants>>['broken'] | undefined> } = {
    check: async () => undefined,
  };
  const check: CheckInvariants = async () => {
    const { glance } = await database.snapshot(glanceOf);
    seen.checks++;
    seen.underLock += locked;
    return { glance, broken: (await on.check(seen.checks)) ?? [] };
  };
  const parts = {
    database,
    administer,
    newId: uuidv7,
    now: Date.now,
    checkPattern: () => null,
    readStoredSet: createStoredSet(),
    prepare: async () => undefined,
    findNames: createNameSearch(),
  };
  const replica = () => {
    const all = { ...parts, check, guard: createGuard({ database, check, compiled: async () => {}, now: Date.now }) };
    return {
      edits: createPolicyEdits({ ...all, targetExists: async () => true }),
      invariants: createInvariantEdits({
        ...all,
        targets: async () => targets,
        readFiles: (texts) => readEach(texts, parseInvariantFile),
      }),
    };
  };
  const targets = [{ id: uuidv7(), name: 'prod' }];
  const { edits, invariants } = replica();
  const { id } = await invariants.create(ADMIN, readInvariant(invariantBody()));
  seen.checks = 0;
  return { edits, invariants, elsewhere: replica(), invariantId: id, on, seen, targets, store: policyStore(database.knex) };
}

const create = (name: string) => readPolicy(policyBody({ name }));

eachEngine(
  test.serial,
  'a change is checked again if the policies change meanwhile, and refused after three times',
  async (t, at) => {
    const { edits, elsewhere, on, seen, store } = await start(t, at);
    const other = (await edits.create(ADMIN, create('other'))).result;
    seen.checks = 0;
    let nested = false;
    on.check = async () => {
      if (nested || seen.checks > 2) return undefined;
      nested = true;
      await elsewhere.edits.update(ADMIN, other.id, readPolicyUpdate({ description: `${seen.checks}` }), undefined);
      nested = false;
      return undefined;
    };
    await edits.create(ADMIN, create('twice'));
    t.is(seen.checks, 3);

    on.check = async () => {
      await elsewhere.edits.update(ADMIN, other.id, readPolicyUpdate({ description: `again ${seen.checks}` }), undefined);
      return undefined;
    };
    seen.checks = 0;
    const error = await t.throwsAsync<AppError>(edits.create(ADMIN, create('never')), { instanceOf: AppError });
    t.like(error, { code: 'retry', status: 503, retryAfter: 1 });
    t.is(seen.checks, 3);
    t.deepEqual((await store.all()).map(({ name }) => name).sort(), ['other', 'twice']);
    t.is(seen.underLock, 0);
  },
);

eachEngine(test.serial, 'a change is checked again if an invariant comes meanwhile', async (t, at) => {
  const { edits, invariants, invariantId, on, seen } = await start(t, at);
  on.check = async (times) => {
    if (times === 1) await invariants.create(ADMIN, readInvariant(invariantBody({ name: 'Meanwhile' })));
    return undefined;
  };
  await edits.create(ADMIN, create('one'));
  // The first check, that of the new invariant, and the second check.
  t.is(seen.checks, 3);
  await invariants.update(ADMIN, invariantId, readInvariantUpdate({ enabled: false }), undefined);
  t.is(seen.checks, 3);
});

eachEngine(test.serial, 'an invariant is checked again if a policy comes meanwhile', async (t, at) => {
  const { elsewhere, invariants, on, seen, store } = await start(t, at);
  on.check = async (times) => {
    if (times === 1) await elsewhere.edits.create(ADMIN, create('meanwhile'));
    // The second check is that of the policy.
    if (times !== 3) return undefined;
    t.is((await store.all()).length, 1);
    return [{ id: 'i', name: 'Never', reason: 'Because', witness: null }];
  };
  const created = invariants.create(ADMIN, readInvariant(invariantBody({ name: 'New' })));
  t.is((await t.throwsAsync<AppError>(created))?.code, 'invariant_undecided');
  t.is(seen.checks, 3);
});

test('an update of an invariant is checked unless each member obviously forbids no more', (t) => {
  const group = (subject_value: string) => ({ subject_type: 'group', subject_value });
  const [a, b] = ['00000000-0000-7000-8000-00000000000a', '00000000-0000-7000-8000-00000000000b'];
  const never = { subjects: [group('a')], targets: [a], except: { subjects: [group('x')], targets: [b] } };
  const exception = { policy: a, reason: 'r', expires_at: '2099-01-01T00:00:00Z' };
  const before = readInvariant(invariantBody({ exceptions: [exception] }, never));
  for (const [over, more] of [
    [{}, { subjects: [group('a'), group('b')] }],
    [{}, { subjects: [{ subject_type: 'everyone' }] }],
    [{}, { except: { ...never.except, subjects: [] } }],
    [{}, { except: { ...never.except, targets: [] } }],
    [{}, { targets: [a, b] }],
    [{}, { targets: null }],
    [{}, { resource_type: 'all' }],
    [{}, { resource_pattern: null }],
    [{ exceptions: [] }, {}],
  ] as const) {
    const after = readInvariant(invariantBody({ exceptions: [exception], ...over }, { ...never, ...more }));
    t.false(loosens(before, after, 0), JSON.stringify({ over, more }));
    t.true(loosens(after, before, 0), JSON.stringify({ over, more }));
    t.false(loosens({ ...after, enabled: false }, before, 0));
    t.true(loosens(before, { ...after, enabled: false }, 0));
  }
  t.false(loosens(before, readInvariant(invariantBody({ exceptions: [exception] }, { ...never, resource_type: 'prompt' })), 0));
});

eachEngine(test.serial, 'an invariant names no target that is deleted or renamed meanwhile', async (t, at) => {
  const { invariants, on, targets } = await start(t, at);
  const id = targets[0]?.id ?? '';
  const file = 'name: File\nreason: r\nnever: {subjects: [everyone], targets: [prod], resource_type: tool}\n';
  on.check = async () => void targets.splice(0, 1, { id, name: 'renamed' });
  const applied = invariants.apply(ADMIN, { files: new Map([['a.yaml', file]]), prune: false });
  t.is((await t.throwsAsync<AppError>(applied))?.code, 'invalid_request');
  on.check = async () => void targets.splice(0);
  const created = invariants.create(ADMIN, readInvariant(invariantBody({ name: 'New' }, { targets: [id] })));
  const error = await t.throwsAsync<AppError>(created);
  t.deepEqual(
    error?.errors?.map(({ path }) => path),
    ['never.targets.0'],
  );
});

eachEngine(
  test.serial,
  'a change is refused if the check fails, breaks an invariant, or ends without an answer',
  async (t, at) => {
    const { edits, on, store, seen, invariants } = await start(t, at);
    const kept = (await edits.create(ADMIN, create('kept'))).result;
    const broken = { id: 'i', name: 'Never', reason: 'Because' };
    const witness = {
      ...{ principal: { sub: 's', role: 'r', groups: [] }, subjects: [], target: 't', is_template: false },
      policy: { id: null, name: 'p', priority: 1, file: null },
    };
    for (const [code, answer] of [
      ['unavailable', () => Promise.reject(new AppError('unavailable', 'The worker thread of this request ended unexpectedly.'))],
      [undefined, () => Promise.reject(new Error('the database has gone'))],
      ['invariant_undecided', async () => [{ ...broken, witness: null }]],
      [
        'invariant_broken',
        async () => [{ ...broken, witness: { ...witness, resource_type: 'tool', resource_name: 'x' } as const }],
      ],
    ] as const) {
      on.check = answer;
      for (const change of [
        () => edits.create(ADMIN, create('new')),
        () => edits.update(ADMIN, kept.id, readPolicyUpdate({ priority: 11 }), undefined),
        () => edits.delete(ADMIN, kept.id, undefined),
        () => edits.removeSubject(ADMIN, kept.id, kept.subjects[0]?.id ?? '', undefined),
        () => invariants.create(ADMIN, readInvariant(invariantBody({ name: 'new' }))),
      ]) {
        t.is<string | undefined, string | undefined>((await t.throwsAsync<AppError>(change()))?.code, code);
      }
    }
    t.deepEqual(await store.all(), [kept]);
    // What changes no decision needs no check.
    seen.checks = 0;
    await edits.update(ADMIN, kept.id, readPolicyUpdate({ name: 'Renamed', description: 'x' }), undefined);
    t.is(seen.checks, 0);
  },
);

test('an expired exception no longer counts, and lint reports it; a set that breaks an invariant can still be changed', async (t) => {
  const everyone = [{ id: 's', subject_type: 'everyone' as const, subject_value: null }];
  const run = policy('run', { subjects: everyone, resource_pattern: '^exec$' });
  const exception = { policy: 'run', reason: 'Soon', expires_at: 1_000 };
  const document = readInvariant(invariantBody());
  const invariants = [{ ...document, exceptions: [exception], id: 'i', version: 1, created_at: 0, updated_at: 0 }];
  const ask = (before: (typeof run)[], after: (typeof run)[], now: number) =>
    judge({ before, after, invariants, targets: [], now, isStored: () => true }, build);
  t.deepEqual(await ask([], [run], 999), []);
  const broken = await ask([], [run], 1_000);
  t.like(broken, [{ id: 'i', witness: { resource_name: 'exec', policy: { name: 'run' } } }]);
  const other = policy('other', { subjects: everyone, resource_pattern: '^list$' });
  t.deepEqual(await ask([run], [run, other], 1_000), []);
  t.deepEqual(await ask([run], [{ ...run, priority: 5 }], 1_000), []);
  t.is((await ask([run], [run, { ...other, resource_pattern: '^exec2$' }], 1_000)).length, 1);

  const at = (now: number, found = broken, isLost = (_: string) => false) =>
    invariantFindings(found, invariants, [run], { now, isLost });
  const day = 24 * 60 * 60 * 1000;
  t.deepEqual(at(999 - 14 * day, []), []);
  t.like(at(1_000 - 14 * day, []), [{ code: 'expiring_exception', severity: 'info', policy: 'run' }]);
  t.like(at(999, []), [{ code: 'expiring_exception' }]);
  t.like(
    at(0, [], () => true),
    [{ code: 'lost_exception', severity: 'warning', policy: 'run' }],
  );
  const findings = at(1_000);
  t.like(invariantsJson(findings, [run]), [
    { code: 'invariant_broken', severity: 'error', policies: [{ id: 'run' }] },
    { code: 'expired_exception', severity: 'warning', policies: [{ id: 'run' }] },
  ]);
  t.regex(findings[1]?.message ?? '', /"Contractors run nothing" for "run" expired at 1970-01-01T00:00:01\.000Z/);
});

test('a witness that the engine does not confirm is not shown', async (t) => {
  const run = policy('run', { subjects: [{ id: 's', subject_type: 'everyone', subject_value: null }] });
  const invariants = [{ ...readInvariant(invariantBody()), id: 'i', version: 1, created_at: 0, updated_at: 0 }];
  const judged = { before: [], after: [run], invariants, targets: [], now: 0, isStored: () => true };
  t.deepEqual(
    (await judge(judged, () => build([]))).map(({ witness }) => witness),
    [null],
  );
});

test('a file of an invariant is read in a thread, and its errors are placed here', (t) => {
  const text = `name: prod
reason: prod is for operators
never:
  subjects: [everyone]
  targets:
    - prod
  resource_type: tool
`;
  const read = parseInvariantFile(text, 'prod.yaml');
  if ('errors' in read) return t.fail(JSON.stringify(read.errors));
  const sent = structuredClone(read);
  for (const [path, line, column] of [
    ['name', 1, 1],
    ['never.targets.0', 6, 7],
    ['never.subjects.0', 4, 14],
    ['never.resource_pattern', 3, 1],
    ['exceptions.0.policy', 1, 1],
    ['', 1, 1],
  ] as const)
    t.deepEqual(errorAt(sent, path, 'is wrong'), { file: 'prod.yaml', line, column, message: 'is wrong' }, path);
});
