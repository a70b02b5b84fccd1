/** Changes of a policy set that must not change any answer. */
import test from 'ava';
import fc from 'fast-check';
import type { Policy } from '../../src/engine/compile/policy.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { world } from './arbitraries.ts';
import { policyWith } from './support.ts';

const module = await loadPolicyModule();
const RUNS = { numRuns: 150 };
const worlds = world({ maxPolicies: 8, requests: 10 });
const build = (policies: readonly Policy[]) => createEngine({ module, policies, revision: 1 });

test('the order of insertion changes nothing, not even the hash', async (t) => {
  await fc.assert(
    fc.asyncProperty(worlds, fc.func(fc.integer()), async ({ policies, requests }, key) => {
      const [one, two] = await Promise.all([build(policies), build([...policies].sort((a, b) => key(a.id) - key(b.id)))]);
      if (one.dataHash !== two.dataHash) return false;
      return requests.every(
        ({ principal, target, object }) =>
          one.decide(principal, target, object).policy?.id === two.decide(principal, target, object).policy?.id,
      );
    }),
    RUNS,
  );
  t.pass();
});

test('a policy of lower rank never changes a decision that a policy made', async (t) => {
  await fc.assert(
    fc.asyncProperty(worlds, fc.boolean(), async ({ policies, requests }, denies) => {
      const lowest = policyWith({ id: 'zzz', priority: -(2 ** 31), effect: denies ? 'deny' : 'allow', resource_type: 'all' });
      const [before, after] = await Promise.all([build(policies), build([...policies, lowest])]);
      return requests.every(({ principal, target, object }) => {
        const then = before.decide(principal, target, object);
        const now = after.decide(principal, target, object);
        return then.reason === 'matched'
          ? now.policy?.id === then.policy?.id || (denies && then.effect === 'allow' && then.policy?.priority === lowest.priority)
          : now.policy?.id === 'zzz';
      });
    }),
    RUNS,
  );
  t.pass();
});

test('disabling a policy that did not decide changes nothing', async (t) => {
  await fc.assert(
    fc.asyncProperty(worlds, fc.nat(), async ({ policies, requests }, pick) => {
      const chosen = policies[pick % Math.max(1, policies.length)];
      const [before, after] = await Promise.all([
        build(policies),
        build(policies.map((policy) => (policy === chosen ? { ...policy, enabled: false } : policy))),
      ]);
      return requests.every(({ principal, target, object }) => {
        const then = before.decide(principal, target, object);
        return then.policy?.id === chosen?.id || after.decide(principal, target, object).policy?.id === then.policy?.id;
      });
    }),
    RUNS,
  );
  t.pass();
});

test('a list shows exactly what a call would be allowed', async (t) => {
  await fc.assert(
    fc.asyncProperty(worlds, async ({ policies, requests }) => {
      const engine = await build(policies);
      const objects = requests.map(({ object }) => object);
      return requests.every(({ principal, target }) => {
        const list = engine.decideMany(principal, target, objects);
        return objects.every((object, i) => JSON.stringify(engine.decide(principal, target, object)) === JSON.stringify(list[i]));
      });
    }),
    RUNS,
  );
  t.pass();
});

test('a caller that may use an object may use its target, unless a higher policy denies everything', async (t) => {
  await fc.assert(
    fc.asyncProperty(worlds, async ({ policies, requests }) => {
      const engine = await build(policies);
      return requests.every(({ principal, target, object }) => {
        const objectDecision = engine.decide(principal, target, object);
        return objectDecision.effect === 'deny' || engine.decideTarget(principal, target).effect === 'allow';
      });
    }),
    RUNS,
  );
  t.pass();
});
