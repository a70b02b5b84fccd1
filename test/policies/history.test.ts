import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import type { Administer } from '../../src/auth/caller.ts';
import { AppError } from '../../src/base/errors.ts';
import { starts } from '../../src/base/turns/caller-turns.ts';
import { type Actor, createChanges, listRevisions, policiesBefore, readPosition } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import { readInTurn } from '../../src/db/turns.ts';
import { compile } from '../../src/engine/compile/compile.ts';
import type { StoredPolicy } from '../../src/engine/compile/policy.ts';
import { createPolicyEdits } from '../../src/policies/edit.ts';
import { createHeavyWork } from '../../src/policies/heavy/heavy.ts';
import { earlierSet, policiesAt } from '../../src/policies/history.ts';
import { createNameSearch } from '../../src/policies/limits/limits.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import { policyJson, readPolicy, readPolicyUpdate, readSubject } from '../../src/policies/schema.ts';
import { ANY, readFiles } from '../../src/policies/sets/planning.ts';
import { ACCEPTED, createSetCheck } from '../../src/policies/sets/set-check.ts';
import { createPolicySets, type PolicySetParts } from '../../src/policies/sets/sets.ts';
import { createStoredSet } from '../../src/policies/stored-set.ts';
import { localUser, userStore } from '../../src/users/user-store.ts';
import { ADMIN, ALL_RIGHTS } from '../support/authority.ts';
import { countRows, openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import type { TestDatabase } from '../support/databases/engines.ts';
import { world } from '../support/world.ts';
import { NO_INVARIANTS, policyBody } from './policies.ts';
import { file, policySets } from './sets.ts';

const actor: Actor = { id: 'admin', email: 'a@example.com', request_id: 'request' };
async function start(t: ExecutionContext, at: TestDatabase, over: Partial<PolicySetParts> = {}) {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_caller, _right, work) => changes.change(actor, (trx) => work(trx, ALL_RIGHTS));
  const parts = {
    ...{ database, administer, guard: NO_INVARIANTS, newId: uuidv7, now: Date.now },
    checkPattern: () => null,
    readStoredSet: createStoredSet(),
    prepare: async () => undefined,
    findNames: createNameSearch(),
    checkSet: createSetCheck(() => null),
  };
  const edits = createPolicyEdits({ ...parts, targetExists: async () => true });
  return { database, changes, edits, sets: createPolicySets({ ...parts, targets: async () => [], readFiles, ...over }) };
}

const live = (database: Database): Promise<{ revision: number; policies: StoredPolicy[] }> =>
  database.snapshot(async (db) => ({ revision: (await readPosition(db)).revision, policies: await policyStore(db).all() }));
const at = (database: Database, revision: number): Promise<StoredPolicy[]> =>
  database.snapshot(async (db) =>
    policiesAt(db, revision, { position: await readPosition(db), policies: await policyStore(db).all() }),
  );
const hash = (policies: readonly StoredPolicy[]): string => compile(policies, { checkPattern: () => null }).hash;

type Step =
  | {
      readonly do: 'create' | 'update' | 'delete' | 'add' | 'remove' | 'rollback';
      readonly which: number;
      readonly value: number;
    }
  | { readonly do: 'apply'; readonly files: readonly number[]; readonly prune: boolean; readonly value: number };

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({
    do: fc.constantFrom('create', 'create', 'update', 'delete', 'add', 'remove', 'rollback'),
    which: fc.nat(50),
    value: fc.nat(5),
  }),
  fc.record({
    do: fc.constant('apply' as const),
    files: fc.array(fc.nat(3), { maxLength: 3 }),
    prune: fc.boolean(),
    value: fc.nat(5),
  }),
);

eachEngine(test.serial, 'an earlier set is found behind more changes than are read at once', async (t, at_) => {
  const { database, sets } = await start(t, at_);
  const seen: StoredPolicy[][] = [[]];
  for (const priority of [1, 2, 3]) {
    const files = new Map(Array.from({ length: 450 }, (_, i) => [`f${i}.yaml`, file({ name: `f${i}`, priority })]));
    await sets.apply(ADMIN, { files, ...{ owner: 'default', prune: true, adopt: false, ...ANY } });
    seen.push((await live(database)).policies);
  }
  for (const [revision, policies] of seen.entries()) t.deepEqual(await at(database, revision), policies);
});

eachEngine(test.serial, 'each revision shows the policies that were live then, whatever changed later', async (t, at_) => {
  const { database, edits, sets } = await start(t, at_);
  const seen = new Map<number, StoredPolicy[]>([[0, []]]);
  const conditions = { override: true };

  async function run(it: Step): Promise<void> {
    const { policies, revision } = await live(database);
    const policy = policies['which' in it ? it.which % Math.max(1, policies.length) : 0];
    const role = { subject_type: 'role', subject_value: `r${it.value}` };
    switch (it.do) {
      case 'create':
        await edits.create(ADMIN, readPolicy(policyBody({ name: `p${it.value}`, priority: it.value })));
        return;
      case 'apply':
        await sets.apply(ADMIN, {
          files: new Map(it.files.map((n) => [`f${n}.yaml`, file({ name: `f${n}`, priority: it.value })])),
          ...{ owner: 'default', prune: it.prune, adopt: false, ...ANY },
        });
        return;
      case 'rollback':
        await sets.rollback(ADMIN, { revision: it.which % (revision + 1), owner: null, expectedRevision: revision });
        return;
      case 'update':
        if (policy) await edits.update(ADMIN, policy.id, readPolicyUpdate({ priority: it.value, description: 'x' }), conditions);
        return;
      case 'delete':
        if (policy) await edits.delete(ADMIN, policy.id, conditions);
        return;
      case 'add':
        if (policy) await edits.addSubject(ADMIN, policy.id, readSubject(role), conditions);
        return;
      case 'remove': {
        const subject = policy?.subjects[it.value % Math.max(1, policy.subjects.length)];
        if (policy && subject) await edits.removeSubject(ADMIN, policy.id, subject.id, conditions);
        return;
      }
      default:
        it satisfies never;
    }
  }

  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 25 }), async (steps) => {
      for (const it of steps) {
        await run(it);
        const { revision, policies } = await live(database);
        // A revision is one transaction, and no revision is two sets.
        if (seen.has(revision)) t.deepEqual(policies, seen.get(revision));
        else t.is(revision, seen.size);
        seen.set(revision, policies);
      }
      const recent = [...seen].slice(-40);
      for (const [revision, policies] of recent) t.deepEqual(await at(database, revision), policies);
      // Later changes do not matter for who began from an earlier set.
      const [newest, policies] = recent[Math.floor(recent.length / 2)] ?? [0, []];
      const current = { position: { ...(await readPosition(database.knex)), revision: newest }, policies };
      for (const [revision, policies] of recent) {
        if (revision <= newest) t.deepEqual(await policiesAt(database.knex, revision, current), policies);
      }
    }),
    { numRuns: 6 },
  );
  for (const revision of [0, Math.floor(seen.size / 2), seen.size - 1]) {
    t.is(hash(await at(database, revision)), hash(seen.get(revision) ?? []));
    // Going back makes the same policies, but for the time of the change.
    await sets.rollback(ADMIN, { revision: revision, owner: null, expectedRevision: null });
    const { policies } = await live(database);
    t.is(hash(policies), hash(seen.get(revision) ?? []));
  }
  for (const revision of [-1, 0.5, seen.size + 5, Number.NaN]) {
    t.is((await t.throwsAsync<AppError>(at(database, revision), { instanceOf: AppError }))?.code, 'not_found');
  }
  const { revisions: rows } = await listRevisions(database.knex, 1000, null);
  t.deepEqual(
    rows.map(({ revision }) => revision),
    Array.from({ length: rows.length }, (_, i) => rows.length - i),
  );
});

eachEngine(test.serial, 'changes without file and reason, from older versions, can be read', async (t, where) => {
  const { database, edits } = await start(t, where);
  const { result } = await edits.create(ADMIN, readPolicy(policyBody()));
  await edits.update(ADMIN, result.id, readPolicyUpdate({ priority: 11 }), undefined);
  const { managed_as: _, ...old } = policyJson(result);
  await database
    .knex('changes')
    .where('sequence', 2)
    .update({ before: JSON.stringify(old) });
  t.deepEqual(await at(database, 1), [result]);
  t.is((await database.snapshot((db) => policiesBefore(db, 1))).length, 1);
});

test.serial('the set of a revision compiles to the hash that the log recorded', async (t) => {
  const { gateway, admin, token, allow, mcp } = await world(t);
  const { apply, call } = policySets(gateway, admin.token);
  interface Row {
    readonly revision: number;
    readonly data_hash: string;
  }
  const decide = async (): Promise<void> => {
    await fetch(mcp, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'initialize',
        params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'x', version: '1' } },
      }),
    });
  };
  await decide();
  const { id } = await allow({ name: 'One' });
  await decide();
  await apply({ 'a.yaml': file({ target: 'everything' }), 'b.yaml': file({ effect: 'deny' }) });
  await decide();
  await call(204, 'DELETE', `/${id}`);
  await decide();
  await call(200, 'POST', '/rollback', { revision: 1 });
  await decide();
  const { body: rows } = await gateway.rest<Row[]>(200, 'GET', '/api/logs', { token: admin.token });
  t.deepEqual(
    rows.map(({ revision }) => revision),
    [4, 3, 2, 1, 0],
  );
  for (const { revision, data_hash } of rows) {
    const { body } = await call<{ policies: ReturnType<typeof policyJson>[] }>(200, 'GET', `/history/${revision}`);
    const policies = body.policies.map((policy) => ({ ...policy, created_at: 0, updated_at: 0 }));
    t.is(hash(policies), data_hash, `revision ${revision}`);
  }
});

eachEngine(
  test.serial,
  'an earlier set is refused if the database was restored after the current one was read',
  async (t, where) => {
    const { database, edits } = await start(t, where);
    await edits.create(ADMIN, readPolicy(policyBody()));
    const current = { position: await readPosition(database.knex), policies: await policyStore(database.knex).all() };
    t.deepEqual(await earlierSet(database, 'ann', 0, current), []);
    const other = { ...current, position: { ...current.position, nonce: 'that of another history' } };
    t.is((await t.throwsAsync<AppError>(earlierSet(database, 'ann', 0, other)))?.code, 'unavailable');
  },
);

test('users take turns to read earlier states, and after each a rest follows', async (t) => {
  // While only one caller sends requests, no rest is needed.
  for (const caller of ['ann', 'ben']) starts.run(caller, () => undefined);
  const running = setInterval(() => undefined, 1_000);
  t.teardown(() => clearInterval(running));
  const begun: { readonly by: string; readonly at: number }[] = [];
  const read = (by: string) =>
    readInTurn(by, async () => {
      begun.push({ by, at: performance.now() });
      await sleep(50);
    });
  await Promise.all([read('ann'), read('ann'), read('ann'), read('ben')]);
  t.deepEqual(
    begun.map(({ by }) => by),
    ['ann', 'ann', 'ben', 'ann'],
  );
  const [first, second] = begun;
  t.true((second?.at ?? 0) - (first?.at ?? 0) > 120);
});

test('earlier states are read one at a time, also after a failure', async (t) => {
  // The rests alone do not keep a process running.
  const running = setInterval(() => undefined, 1_000);
  t.teardown(() => clearInterval(running));
  let [reading, most] = [0, 0];
  const read = (fails: boolean) =>
    readInTurn('ann', async () => {
      most = Math.max(most, ++reading);
      await setImmediate();
      reading--;
      if (fails) throw new Error('failed');
    });
  const results = await Promise.allSettled([read(false), read(true), read(false)]);
  t.deepEqual(
    results.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled'],
  );
  t.is(most, 1);
});

/** Heavy work that calls `before` with the number of each snapshot that it reads. */
function startWork(t: ExecutionContext, database: Database, before: (nth: number) => Promise<unknown> | undefined) {
  let snapshots = 0;
  const work = createHeavyWork({
    database: {
      ...database,
      async snapshot(read) {
        await before(++snapshots);
        return database.snapshot(read);
      },
    },
    targets: async () => [{ id: 'x', name: 'x', enabled: true }],
    findDraft: async () => null,
    readStoredSet: createStoredSet(),
    foundUsers: { find: async () => null },
  });
  t.teardown(() => work.close());
  return {
    work,
    /** Returns how many snapshots were read, and counts from the beginning. */
    restart(): number {
      const count = snapshots;
      snapshots = 0;
      return count;
    },
  };
}

eachEngine(test.serial, 'a comparison is refused if the database was restored between its sets', async (t, at) => {
  const { database, edits } = await start(t, at);
  for (const name of ['one', 'two', 'three']) await edits.create(ADMIN, readPolicy(policyBody({ name })));
  const restore = async (): Promise<void> => {
    const { sequence } = await readPosition(database.knex);
    const nonce = uuidv7().slice(0, 16);
    await database.knex('changes').where({ sequence }).update({ nonce });
    await database.knex('counter').update({ nonce });
  };
  let restoredBefore = 0;
  const { work, restart } = startWork(t, database, (nth) => (nth === restoredBefore ? restore() : undefined));
  const compare = () => work.answer('compare', { from: 1, to: 2 }, { by: 'ann' });
  await compare();
  for (let nth = restart(); nth > 1; nth--) {
    restoredBefore = nth;
    t.is((await t.throwsAsync<AppError>(compare()))?.code, 'unavailable', `before snapshot ${nth}`);
    restart();
  }
});

eachEngine(test.serial, 'a plan knows a group that went to another user while the users were read', async (t, at) => {
  const { database, changes, edits } = await start(t, at);
  await edits.create(ADMIN, readPolicy(policyBody()));
  const user = (name: string, groups: string[]) =>
    localUser({ id: uuidv7(), email: `${name}@example.com`, role: 'user', groups }, 1);
  const [ann, ben] = [user('ann', []), user('ben', [])];
  for (const each of [ann, ben]) await userStore(database.knex).insert(each, null);
  const swap = () =>
    changes.change(actor, async (trx) => {
      await userStore(trx).update({ ...ann, groups: ['g'] });
      const action = 'user.update' as const;
      return { result: null, changes: [ann, ben].map(({ id }) => ({ action, object_id: id, before: null, after: {} })) };
    });
  let isRead = false;
  database.knex.on('query', ({ sql }: { sql: string }) => {
    if (/ from .users. .*limit/.test(sql)) isRead = true;
  });
  let swaps = 0;
  const { work } = startWork(t, database, () => (isRead && swaps++ === 0 ? swap() : undefined));
  const subjects = ['h', 'g'].map((subject_value) => ({ subject_type: 'group', subject_value }) as const);
  const body = Buffer.from(JSON.stringify({ files: { 'a.yaml': file({ subjects }) } }));
  const { json } = await work.answer('plan', { body, owners: null }, { by: 'ann' });
  const { warnings } = JSON.parse(Buffer.from(json).toString()) as { warnings: { message: string }[] };
  t.deepEqual(
    warnings.map(({ message }) => message),
    ['"Everyone may echo" names a group that no user has: "h".'],
  );
  t.is(swaps, 1);
});

eachEngine(test.serial, 'a plan reads few users at once, and all of them', async (t, at) => {
  const { database } = await start(t, at);
  for (let n = 0; n < 450; n++) {
    const of = { id: uuidv7(), email: `${n}@example.com`, role: 'user', groups: [`g${n}`] };
    await userStore(database.knex).insert(localUser(of, 1), null);
  }
  const rows = countRows(database);
  const { work } = startWork(t, database, () => undefined);
  const subjects = [0, 199, 200, 449, 450].map((n) => ({ subject_type: 'group', subject_value: `g${n}` }) as const);
  const body = Buffer.from(JSON.stringify({ files: { 'a.yaml': file({ subjects }) } }));
  const { json } = await work.answer('plan', { body, owners: null }, { by: 'ann' });
  const { warnings } = JSON.parse(Buffer.from(json).toString()) as { warnings: { message: string }[] };
  t.deepEqual(
    warnings.map(({ message }) => message),
    ['"Everyone may echo" names a group that no user has: "g450".'],
  );
  t.is(rows(), 200);
});

eachEngine(test.serial, 'a simulation is refused if policies or targets change before its users are read', async (t, at) => {
  const { database, changes, edits } = await start(t, at);
  await edits.create(ADMIN, readPolicy(policyBody()));
  let changesBefore = 0;
  let make = async (): Promise<unknown> => edits.create(ADMIN, readPolicy(policyBody({ name: 'New' })));
  const { work, restart } = startWork(t, database, (nth) => (nth === changesBefore ? make() : undefined));
  const requests = [{ principal: { user: 'ann@example.com' }, target: 'x', resource_type: 'tool', resource_name: 'y' }];
  const body = Buffer.from(JSON.stringify({ files: {}, requests }));
  const refused = async () => (await t.throwsAsync<AppError>(work.answer('simulate', { body }, { by: 'ann' })))?.code;
  t.is(await refused(), 'invalid_request', 'there is no such user');
  changesBefore = restart();
  t.is(await refused(), 'unavailable', 'a policy');
  for (const [type, expected] of [
    ['target', 'unavailable'],
    ['token', 'invalid_request'],
  ] as const) {
    const change = { action: `${type}.update`, object_id: 'x', before: null, after: {} } as const;
    make = () => changes.change(actor, async () => ({ result: null, changes: [change] }));
    restart();
    t.is(await refused(), expected, type);
  }
});

eachEngine(test.serial, 'changes do not wait for the jobs of those who only ask', async (t, at) => {
  const { database } = await start(t, at);
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  const { work } = startWork(t, database, () => held);
  const asked = Array.from({ length: 5 }, (_, user) =>
    Array.from({ length: 9 }, () => work.answer('context', { owner: 'default' }, { by: `reader ${user}` })),
  ).flat();
  const outcomes = Promise.allSettled(asked);
  const files = new Map([['a.yaml', 'name: a\nresource_type: tool\neffect: deny\npriority: 1\nsubjects: [everyone]\n']]);
  t.is((await work.readFiles(files, ADMIN)).size, 1);
  await work.checkTests(new Map(), ADMIN);
  release();
  t.deepEqual(
    [...new Set((await outcomes).map(({ status }) => status))].sort(),
    ['fulfilled', 'rejected'],
    'their line was full',
  );
});

eachEngine(
  test.serial,
  'a rollback reads the history once, while no snapshot is open, and also restores what changes meanwhile',
  async (t, at) => {
    let meanwhile = async (): Promise<unknown> => undefined;
    const { database, edits, sets } = await start(t, at, {
      async checkSet() {
        const then = meanwhile;
        meanwhile = async () => undefined;
        await then();
        return ACCEPTED;
      },
    });
    const create = async (name: string) => (await edits.create(ADMIN, readPolicy(policyBody({ name })))).result;
    const [a, b] = [await create('a'), await create('b')];
    await edits.update(ADMIN, a.id, readPolicyUpdate({ priority: 11 }));
    /** For each query that reads the history, the transaction or snapshot that made it. */
    const read: unknown[] = [];
    for (const knex of new Set([database.knex, database.reader])) {
      knex.on('query', ({ sql, __knexTxId }: { readonly sql: string; readonly __knexTxId?: string }) => {
        if (/^select `object_id`, `before` from `changes`/.test(sql)) read.push(__knexTxId);
      });
    }
    let moved = 0;
    meanwhile = async () => {
      moved++;
      await edits.update(ADMIN, b.id, readPolicyUpdate({ priority: 12 }));
      await create('c');
    };
    await sets.rollback(ADMIN, { revision: 2, owner: null, expectedRevision: null });
    t.is(moved, 1);
    t.deepEqual(read, [undefined], 'outside of snapshots and transactions');
    t.deepEqual(
      (await live(database)).policies.map(({ name, priority }) => [name, priority]),
      [
        ['a', 10],
        ['b', 10],
      ],
    );
    meanwhile = async () => {
      for (const table of ['changes', 'counter']) await database.knex(table).update({ nonce: 'another history' });
    };
    const restored = sets.rollback(ADMIN, { revision: 3, owner: null, expectedRevision: null });
    t.is((await t.throwsAsync<AppError>(restored, { instanceOf: AppError }))?.code, 'precondition_failed');
  },
);
