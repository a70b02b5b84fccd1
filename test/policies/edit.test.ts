import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { v7 as uuidv7 } from 'uuid';
import type { Administer, Caller } from '../../src/auth/caller.ts';
import { AppError } from '../../src/base/errors.ts';
import { createWork } from '../../src/base/work/work.ts';
import { createChanges, readPosition } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import type { Policy } from '../../src/engine/compile/policy.ts';
import { changeOf, createPolicyEdit, createPolicyEdits, type PolicyEditParts, policyEtag } from '../../src/policies/edit.ts';
import { createNameSearch } from '../../src/policies/limits/limits.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import { readPolicy, readPolicyUpdate, readSubject } from '../../src/policies/schema.ts';
import { createStoredSet } from '../../src/policies/stored-set.ts';
import { ADMIN, ALL_RIGHTS } from '../support/authority.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import type { TestDatabase } from '../support/databases/engines.ts';
import { NO_INVARIANTS, policy, policyBody } from './policies.ts';

async function start(t: ExecutionContext, at: TestDatabase, over: Partial<PolicyEditParts> = {}) {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_caller, _right, work) =>
    changes.change({ id: 'admin', email: 'a@example.com', request_id: 'request' }, async (trx) => {
      locked.on = true;
      return work(trx, ALL_RIGHTS).finally(() => {
        locked.on = false;
      });
    });
  let time = 1_000;
  const tried: (readonly Policy[])[] = [];
  /** Whether the transaction of a change is open. */
  const locked = { on: false };
  const edits = createPolicyEdits({
    database,
    guard: NO_INVARIANTS,
    readStoredSet: createStoredSet(),
    prepare: async (policies) => void tried.push(policies),
    findNames: createNameSearch(),
    administer,
    targetExists: async (_trx, id) => id.startsWith('0'),
    checkPattern: (pattern) => (pattern.includes('bad') ? 'The pattern is bad.' : null),
    newId: uuidv7,
    now: () => ++time,
    ...over,
  });
  return { edits, tried, locked, changes, database, store: policyStore(database.knex) };
}

const fields = (error: AppError | undefined) => error?.errors?.map(({ path }) => path);
const refused = async (t: ExecutionContext, work: Promise<unknown>) => t.throwsAsync<AppError>(work, { instanceOf: AppError });

eachEngine(test.serial, 'an edit compiles the candidate set, and does not store a set that cannot be compiled', async (t, at) => {
  let fault: Error | null = null;
  const tried: string[][] = [];
  const { edits, store, changes } = await start(t, at, {
    prepare: async (policies) => {
      tried.push(policies.map(({ name, priority }) => `${name} ${priority}`).sort());
      if (fault) throw fault;
    },
  });
  const one = (await edits.create(ADMIN, readPolicy(policyBody({ name: 'one' })))).result;
  await edits.create(ADMIN, readPolicy(policyBody({ name: 'two' })));
  await edits.update(ADMIN, one.id, readPolicyUpdate({ priority: 11 }), undefined);
  t.deepEqual(tried, [['one 10'], ['one 10', 'two 10'], ['one 11', 'two 10']]);

  const before = await store.all();
  fault = new Error('out of memory');
  for (const work of [
    () => edits.create(ADMIN, readPolicy(policyBody({ name: 'three' }))),
    () => edits.update(ADMIN, one.id, readPolicyUpdate({ name: 'other' }), undefined),
    () => edits.addSubject(ADMIN, one.id, readSubject({ subject_type: 'role', subject_value: 'x' }), undefined),
  ]) {
    const error = await refused(t, work());
    t.is(error?.code, 'invalid_request');
    t.false(error?.message.includes('memory'));
  }
  fault = new AppError('unavailable', 'Not now.');
  t.is((await refused(t, edits.create(ADMIN, readPolicy(policyBody()))))?.code, 'unavailable');
  t.deepEqual(await store.all(), before);
  t.is((await changes.page(10, null)).changes.length, 3);

  // A set that cannot be built must be possible to repair.
  fault = new Error('out of memory');
  await edits.delete(ADMIN, one.id, undefined);
});

eachEngine(test.serial, 'an edit is tried with the set that is there when it is stored', async (t, at) => {
  const tried: string[][] = [];
  let checked = 0;
  const { edits, store } = await start(t, at, {
    guard: {
      ...NO_INVARIANTS,
      async check(...asked) {
        if (++checked === 1) await edits.create(ADMIN, readPolicy(policyBody({ name: 'meanwhile' })));
        return NO_INVARIANTS.check(...asked);
      },
    },
    prepare: async (policies) => {
      tried.push(policies.map(({ name }) => name));
      if (policies.length > 1) throw new Error('too much');
    },
  });
  await refused(t, edits.create(ADMIN, readPolicy(policyBody({ name: 'slow' }))));
  t.deepEqual(tried, [['meanwhile'], ['meanwhile', 'slow']]);
  t.is((await store.all()).length, 1);
});

eachEngine(test.serial, 'a policy may have subjects up to the limit', async (t, at) => {
  const { edits } = await start(t, at);
  const subjects = Array.from({ length: 1000 }, (_, i) => ({ subject_type: 'group', subject_value: `g${i}` }));
  const { result } = await edits.create(ADMIN, readPolicy(policyBody({ subjects })));
  const add = (subject_value: string) =>
    edits.addSubject(ADMIN, result.id, readSubject({ subject_type: 'group', subject_value }), undefined);
  t.false((await add('g7')).result.added);
  t.is((await refused(t, add('more')))?.code, 'limit_reached');
});

eachEngine(test.serial, 'every kind of edit checks target and pattern together', async (t, at) => {
  const { edits, tried } = await start(t, at);
  const target_id = '10000000-0000-7000-8000-000000000000';
  const known = target_id.replace('1', '0');
  const wrong = { target_id, resource_pattern: 'bad' };
  t.deepEqual(fields(await refused(t, edits.create(ADMIN, readPolicy(policyBody(wrong))))), ['target_id', 'resource_pattern']);
  const { result } = await edits.create(ADMIN, readPolicy(policyBody({ target_id: known })));
  t.deepEqual(fields(await refused(t, edits.update(ADMIN, result.id, readPolicyUpdate(wrong), undefined))), [
    'target_id',
    'resource_pattern',
  ]);
  // A disabled policy is refused, too, because it could be enabled later.
  t.deepEqual(
    fields(
      await refused(t, edits.update(ADMIN, result.id, readPolicyUpdate({ resource_pattern: 'bad', enabled: false }), undefined)),
    ),
    ['resource_pattern'],
  );
  t.is(tried.length, 1);
});

eachEngine(
  test.serial,
  'an edit without effect makes no change, and each change is recorded with before and after',
  async (t, at) => {
    const { edits, changes } = await start(t, at);
    const created = await edits.create(ADMIN, readPolicy(policyBody()));
    const { id } = created.result;
    const etag = policyEtag(created.result);
    for (const update of [{}, { name: created.result.name }, { subjects: [{ subject_type: 'everyone', subject_value: null }] }]) {
      const { result, position } = await edits.update(ADMIN, id, readPolicyUpdate(update), { ifMatch: etag });
      t.deepEqual(result, created.result);
      t.deepEqual(position, created.position);
    }
    const changed = await edits.update(ADMIN, id, readPolicyUpdate({ description: 'why' }), { ifMatch: etag });
    t.is(changed.result.created_at, created.result.created_at);
    t.true(changed.result.updated_at > created.result.updated_at);
    t.is(changed.position.revision, 2);
    const [last] = (await changes.page(1, null)).changes;
    t.like(last, {
      action: 'policy.update',
      object_id: id,
      before: { id, description: null },
      after: { id, description: 'why' },
    });
  },
);

eachEngine(test.serial, 'an edit is not stored if the database was restored while its invariants were checked', async (t, at) => {
  let restore = async (): Promise<void> => undefined;
  let histories = 0;
  const { edits, store, database } = await start(t, at, {
    guard: {
      ...NO_INVARIANTS,
      glance: async () => ({ glance: '', guarded: true }),
      async check() {
        await restore();
        return { glance: '', refusal: null, widening: null };
      },
    },
  });
  await edits.create(ADMIN, readPolicy(policyBody({ name: 'one' })));
  restore = async () => {
    const nonce = `another history ${++histories}`;
    for (const table of ['changes', 'counter']) await database.knex(table).update({ nonce });
  };
  const error = await refused(t, edits.create(ADMIN, readPolicy(policyBody({ name: 'two' }))));
  t.is(error?.code, 'retry');
  t.is((await store.all()).length, 1);
});

eachEngine(test.serial, 'one of two simultaneous edits is refused if both together exceed a limit', async (t, at) => {
  const { edits, store } = await start(t, at);
  // 16 times 3602 is more than one bucket may hold, but each pattern alone is admitted.
  const results = await Promise.allSettled(
    Array.from({ length: 16 }, (_, i) =>
      edits.create(ADMIN, readPolicy(policyBody({ resource_pattern: `${i}[a-z]{900}[0-9]{900}` }))),
    ),
  );
  const stored = (await store.all()).length;
  t.true(stored > 0 && stored < 16, String(stored));
  t.is(results.filter(({ status }) => status === 'fulfilled').length, stored);
});

eachEngine(test.serial, 'a transaction waits for no thread that waits for its connection', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const work = createWork({ thread: new URL('../base/work/jobs.ts', import.meta.url), limits: { atOnce: 1 } });
  t.teardown(work.close);
  let plan: Promise<unknown> = Promise.resolve(null);
  const edit = createPolicyEdit({
    database,
    guard: NO_INVARIANTS,
    readStoredSet: createStoredSet(),
    prepare: async () => undefined,
    administer: (_caller, _right, change) =>
      database.knex.transaction(async (trx) => {
        // A plan of the same administrator begins, and reads the policies.
        let asked = (): void => {};
        const asks = new Promise<void>((resolve) => {
          asked = resolve;
        });
        const policies = async () => {
          asked();
          return (await database.snapshot((db) => policyStore(db).all())).length;
        };
        plan = work.run({ name: 'ask', input: { name: 'policies' }, by: 'admin', host: { policies } });
        await asks;
        const { result } = await change(trx, ALL_RIGHTS);
        return { result, position: { sequence: 0, nonce: '', revision: 0 } };
      }),
  });
  let moves = 0;
  const { result } = await edit(ADMIN, {
    glance: async () => ({ revision: moves++ }),
    read: async () => null,
    async plan(_state, turnOf) {
      await work.run({ name: 'bytes', input: {}, by: turnOf?.principal.sub ?? null, host: {} });
      return { result: 'done', candidate: null, touches: [], apply: null };
    },
  });
  t.is(result, 'done');
  t.is(await plan, 0);
});

eachEngine(test.serial, 'the engine of the next set is made before the transaction, also for deletions', async (t, at) => {
  const prepared: string[] = [];
  const committed: (Promise<number> | null)[] = [];
  const on: { fault: Error | null; database: Database | null } = { fault: null, database: null };
  const prepare = async (policies: readonly Policy[]) => {
    prepared.push(policies.map(({ name }) => name).join());
    committed.push(on.database && readPosition(on.database.knex).then(({ revision }) => revision));
    if (on.fault !== null) throw on.fault;
  };
  const { edits, store, database } = await start(t, at, { prepare });
  on.database = database;
  const { result: first } = await edits.create(ADMIN, readPolicy(policyBody({ name: 'first' })));
  await edits.create(ADMIN, readPolicy(policyBody({ name: 'second' })));
  await edits.update(ADMIN, first.id, readPolicyUpdate({ name: 'renamed' }));
  await edits.update(ADMIN, first.id, readPolicyUpdate({ name: 'renamed' }));
  on.fault = new Error('The set cannot be compiled');
  await edits.delete(ADMIN, first.id);
  t.deepEqual(prepared, ['first', 'first,second', 'second,renamed', 'second']);
  t.deepEqual(await Promise.all(committed), [0, 1, 2, 3]);
  t.deepEqual(
    (await store.all()).map(({ name }) => name),
    ['second'],
    'a set that cannot be compiled is repaired by deletions',
  );
});

eachEngine(test.serial, 'an edit of moved policies is planned again outside of the transaction', async (t, at) => {
  let others = 0;
  let most = 0;
  let tookMs = 0;
  const underLock: boolean[] = [];
  const { edits, store, locked, changes } = await start(t, at, {
    guard: {
      ...NO_INVARIANTS,
      async check(...asked) {
        await delay(tookMs);
        return NO_INVARIANTS.check(...asked);
      },
      // Others store a change while the checked one waits to be stored.
      settle: (caller, work) =>
        NO_INVARIANTS.settle(caller, (calm, isLast) =>
          work(async (size) => {
            await calm(size);
            if (others >= most) return;
            const other = policy(uuidv7(), { name: `other ${++others}` });
            await changes.change({ id: 'other', email: 'o@example.com', request_id: 'other' }, async (trx) => {
              await policyStore(trx).change([{ before: null, after: other }], null);
              return { result: null, changes: [changeOf('create', null, other, true)] };
            });
          }, isLast),
        ),
    },
    prepare: async () => void underLock.push(locked.on),
  });
  const manager: Caller = { ...ADMIN, managesAll: false, principal: { ...ADMIN.principal, sub: 'manager' } };
  const create = (caller: Caller, name: string) => edits.create(caller, readPolicy(policyBody({ name })));
  most = 1;
  await create(manager, 'managed');
  t.deepEqual(
    (await store.all()).map(({ name }) => name),
    ['managed', 'other 1'],
  );
  t.false(underLock.includes(true));
  most = 100;
  tookMs = 110;
  const error = await refused(t, create(manager, 'never'));
  t.is(error?.code, 'retry', 'others who may change everything come first');
  t.false(underLock.includes(true));
  await create(ADMIN, 'always');
  t.true(underLock.includes(true), 'the last time');
  underLock.length = 0;
  tookMs = 0;
  await create(manager, 'quick');
  t.true(underLock.includes(true), 'the last time, because it is quick');
  const names = (await store.all()).map(({ name }) => name);
  t.true(names.includes('always') && names.includes('quick') && !names.includes('never'));
});

eachEngine(test.serial, 'simultaneous edits make one engine for each change that is stored', async (t, at) => {
  const { edits, tried, store } = await start(t, at);
  const names = Array.from({ length: 8 }, (_, i) => `p${i}`);
  await Promise.all(names.map((name) => edits.create(ADMIN, readPolicy(policyBody({ name })))));
  t.is((await store.all()).length, 8);
  t.is(tried.length, 8);
});

eachEngine(test.serial, 'a change whose client left before its transaction is not stored', async (t, at) => {
  const [waiting, locking] = [new AbortController(), new AbortController()];
  const left = new AppError('unavailable', 'left');
  let meanwhile = (): void => undefined;
  const { edits, store, tried } = await start(t, at, {
    guard: {
      ...NO_INVARIANTS,
      // Before the engine is made.
      async check(...asked) {
        if (tried.length === 0) waiting.abort(left);
        return NO_INVARIANTS.check(...asked);
      },
    },
    prepare: async (policies) => {
      tried.push(policies);
      meanwhile();
    },
  });
  const create = (signal: AbortSignal) => edits.create({ ...ADMIN, signal }, readPolicy(policyBody()));
  await t.throwsAsync(create(waiting.signal), { is: left });
  t.is(tried.length, 0, 'no engine is made for it');
  meanwhile = () => locking.abort(left);
  tried.push([]);
  await t.throwsAsync(create(locking.signal), { is: left });
  t.deepEqual(await store.all(), []);
});
