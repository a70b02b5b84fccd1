/** Engines that are made ready for the next set. */
import test from 'ava';
import fc from 'fast-check';
import type { Policy } from '../../src/engine/compile/policy.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { createNextEngine } from '../../src/engine/engines.ts';
import { world } from './arbitraries.ts';
import { policyWith } from './support.ts';

const module = await loadPolicyModule();
const hashOf = async (policies: readonly Policy[]) => (await createEngine({ module, policies, revision: 0 })).dataHash;

test('an engine that is ready is used for the same set only, whatever its order', async (t) => {
  const next = createNextEngine({ module });
  const [a, b] = [policyWith({ id: 'a', resource_pattern: '^x' }), policyWith({ id: 'b', priority: 3 })];
  await next.prepare([b, a]);
  const subjects = b.subjects.map((subject) => ({ ...subject, id: 'stored under a different id' }));
  const engine = await next.engineOf([a, { ...b, subjects, description: 'says nothing to the engine' }], 7);
  t.is(engine.compiled, (await next.prepare([a, b])).compiled, 'it is not made again');
  t.is(engine.revision, 7);
  const changes: Partial<Policy>[] = [
    ...[{ id: 'c' }, { name: 'other' }, { effect: 'deny' as const }, { priority: 4 }, { enabled: false }, { target_id: 't' }],
    ...[{ resource_type: 'all' as const }, { resource_pattern: '^y' }, { subjects: [] }],
    { subjects: [{ id: 's', subject_type: 'role', subject_value: 'everyone' }] },
  ];
  for (const change of changes) {
    const changed = [a, { ...b, ...change }];
    t.is((await next.engineOf(changed, 8)).dataHash, await hashOf(changed), JSON.stringify(change));
    await next.prepare([a, b]);
  }
  t.is((await next.engineOf([a], 9)).dataHash, await hashOf([a]), 'fewer policies');
});

test('the engine of a change stays ready while others make those of theirs', async (t) => {
  const next = createNextEngine({ module });
  const set = (id: string) => [policyWith({ id })];
  const ours = await next.prepare(set('ours'));
  await next.prepare(set('theirs'));
  t.is((await next.prepare(set('ours'))).compiled, ours.compiled, 'again before it is stored');
  for (const other of ['a', 'b']) await next.prepare(set(other));
  t.is((await next.engineOf(set('ours'), 1)).compiled, ours.compiled);
});

test('for random sets, a prepared engine is that of the stored set', async (t) => {
  const next = createNextEngine({ module });
  let same = 0;
  const sets = world({ maxPolicies: 4, requests: 0 });
  // Half of the sets are the one that was made ready.
  const pair = fc.oneof(
    fc.tuple(sets, sets),
    sets.map((set) => [set, set] as const),
  );
  await fc.assert(
    fc.asyncProperty(pair, async ([one, other]) => {
      const made = await next.prepare(one.policies);
      const engine = await next.engineOf(structuredClone(other.policies), 1);
      if (engine.compiled === made.compiled) same++;
      t.is(engine.dataHash, await hashOf(other.policies));
    }),
    { numRuns: 200 },
  );
  t.true(same > 0);
});

test('a set that cannot be loaded is tried again', async (t) => {
  const broken = { on: true };
  const next = createNextEngine({
    module: {
      ...module,
      instantiate() {
        if (broken.on) throw new Error('no memory');
        return module.instantiate();
      },
    },
  });
  await t.throwsAsync(next.prepare([]), { message: 'no memory' });
  broken.on = false;
  t.is((await next.engineOf([], 2)).revision, 2);
});

test('an engine that fails while its set is compared is not kept', async (t) => {
  const broken = { on: true };
  let second: Promise<unknown> = Promise.resolve();
  // Reading this name takes longer than a slice, so compiling and comparing pause after it.
  const slowly = () =>
    Object.defineProperty(policyWith({ id: 'a', name: 'a' }), 'name', {
      get() {
        const began = performance.now();
        while (performance.now() - began < 5);
        return 'a';
      },
    });
  const next = createNextEngine({
    module: {
      ...module,
      instantiate() {
        if (!broken.on) return module.instantiate();
        broken.on = false;
        second = next.prepare([slowly()]);
        throw new Error('no memory');
      },
    },
  });
  await t.throwsAsync(next.prepare([slowly()]), { message: 'no memory' });
  await t.throwsAsync(second, { message: 'no memory' });
  t.is((await next.engineOf([policyWith({ id: 'a', name: 'a' })], 2)).revision, 2);
});
