/** The estimate of what decisions take, and how decisions that take long are cut into steps. */
import test from 'ava';
import { atOnce } from '../../src/base/turns/slices.ts';
import { createDecisionCache } from '../../src/engine/cache.ts';
import { hashOf } from '../../src/engine/compile/collisions.ts';
import { compile } from '../../src/engine/compile/compile.ts';
import { knownWork, readPattern } from '../../src/engine/compile/pattern.ts';
import type { Policy, PolicySubject } from '../../src/engine/compile/policy.ts';
import { checkPolicySet, MAX_SEARCHES } from '../../src/engine/compile/set-limits.ts';
import { searches } from '../../src/engine/compile/weight.ts';
import type { Decision, Engine, NamedObject, PrincipalFacts } from '../../src/engine/decision.ts';
import { createEngine, loadPolicyModule, type PolicyModule } from '../../src/engine/engine.ts';
import { decideInSteps, estimateInSteps, SHORT_MS } from '../../src/engine/estimate.ts';
import { layOutInSteps, MAX_PATTERNS } from '../../src/engine/partition.ts';
import { policyWith } from './support.ts';

const ANN: PrincipalFacts = { sub: 'ann', role: 'dev', groups: ['a', 'b'] };
const uri = (length: number): NamedObject => ({ resource_type: 'resource', resource_name: 'x'.repeat(length) });

const subject = (subject_type: PolicySubject['subject_type'], subject_value: string | null): PolicySubject[] => [
  { id: 's', subject_type, subject_value } as PolicySubject,
];

const EVERYONE = subject('everyone', null);

function many(count: number, pattern: (n: number) => string, more: Partial<Policy> = {}): Policy[] {
  return Array.from({ length: count }, (_, n) =>
    policyWith({
      ...{ id: `p${n}`, resource_type: 'resource', resource_pattern: pattern(n), subjects: EVERYONE, target_id: null },
      ...more,
    }),
  );
}

function estimated(policies: readonly Policy[], object: NamedObject, who = ANN, target = 't'): number {
  const { document } = compile(policies, { checkPattern: () => null });
  return atOnce(estimateInSteps(document))(who, target, [object]);
}

const contained = (n: number): string => `/repo-${n}/`;

test('the estimate grows with the length of the name and with the number of texts that are searched for', (t) => {
  const short = estimated(many(300, contained), uri(30));
  const long = estimated(many(300, contained), uri(2_048));
  t.true(short < 0.5, `${short}`);
  t.true(long > 2 && long < 5, `${long}`);
  t.true(estimated(many(3_000, contained), uri(2_048)) > 9 * long);
  t.true(
    estimated(
      many(3_000, (n) => `^https://git\\.example/repo-${n}/`),
      uri(2_048),
    ) < 1,
    'texts at the beginning are looked up',
  );
});

test('an estimate finds out only so much about patterns, and counts the others as the worst until a later one', (t) => {
  const patterns = Array.from({ length: 400 }, (_, n) => `^unknown${n}_.*a[ab]{8}c`);
  const set = patterns.flatMap((pattern, n) => many(1, () => pattern, { id: `p${n}`, subjects: subject('role', `r${n}`) }));
  const unknown = (): string[] => patterns.filter((pattern) => knownWork(readPattern(pattern)) === undefined);
  const { document } = compile(set, { checkPattern: () => null });
  const estimate = () => {
    const made = atOnce(estimateInSteps(document));
    return (pattern: string) => made({ ...ANN, role: `r${patterns.indexOf(pattern)}` }, 't', [uri(100)]);
  };
  t.is(unknown().length, 400);
  const first = estimate();
  const [left = '', ...others] = unknown();
  t.true(others.length > 100 && others.length < 300, `${others.length}`);
  t.true(first(left) > first(patterns[0] ?? ''), 'as if it had the most work');
  let last = first;
  while (unknown().length > 0) last = estimate();
  t.true(last(left) < first(left), 'then it is known');
});

test('names with the same beginning share the tests of that beginning', (t) => {
  t.true(
    estimated(
      many(900, (n) => `^https://git.example/abc${100 + n}`),
      uri(2_048),
    ) > 5,
  );
});

test('a regular expression counts by its cost, and a text that repeats itself by what can be compared in vain', (t) => {
  const plain = estimated(
    many(50, (n) => `x[a-z]+/${n}/`),
    uri(2_048),
  );
  t.true(
    estimated(
      many(50, (n) => `x[a-z]{1,300}/${n}/`),
      uri(2_048),
    ) >
      3 * plain,
  );
  t.deepEqual(['/repo-1/', 'a', 'ab', 'a/b/c/'].map(searches), [1, 1, 1, 1]);
  t.true(searches('a/'.repeat(200)) > 20);
  t.true(searches('a'.repeat(512)) > 50);
});

test('a pattern with many states counts by the work to make them', (t) => {
  const ms = (pattern: string): number =>
    estimated(
      many(1, () => pattern),
      uri(2_048),
    );
  t.true(ms('a[ab]{7}c') < 0.1);
  t.true(ms('a[ab]{9}c') > 0.3);
  t.true(ms('a[ab]{50}c') > 400, 'a stored pattern whose states are without end');
});

test('only the policies that are about the caller, the target and the type count', (t) => {
  const sets: [string, Partial<Policy>, boolean][] = [
    ['the role', { subjects: subject('role', 'dev') }, true],
    ['a group', { subjects: subject('group', 'b') }, true],
    ['the user', { subjects: subject('user', 'ann') }, true],
    ['the target', { target_id: 't' }, true],
    ['every type', { resource_type: 'all' }, true],
    ['a different role', { subjects: subject('role', 'ops') }, false],
    ['a different group', { subjects: subject('group', 'c') }, false],
    ['a different user', { subjects: subject('user', 'bob') }, false],
    ['a different target', { target_id: 'other' }, false],
    ['a different type', { resource_type: 'tool' }, false],
  ];
  for (const [what, more, counts] of sets) {
    const ms = estimated(many(1_000, contained, more), uri(2_048));
    t.is(ms > 2, counts, `${what}: ${ms}`);
  }
});

test('a large set is weighed in short steps', (t) => {
  const { document } = compile(many(5_000, contained), { checkPattern: () => null });
  t.true([...estimateInSteps(document)].length >= 5_000 / 50);
});

test('a table of many subjects is weighed and laid out in short steps', (t) => {
  const subjects = Array.from({ length: 1_000 }, (_, n) => ({
    ...{ id: `s${n}`, subject_type: 'group' as const, subject_value: `g${n}` },
  }));
  const { document } = compile([policyWith({ id: 'p', subjects })], { checkPattern: () => null });
  t.true([...estimateInSteps(document)].length >= 1_000 / 100);
  t.true([...layOutInSteps(document, MAX_PATTERNS)].length >= 1_000 / 100);
});

const DENY: Decision = { effect: 'deny', reason: 'default', policy: null };

/** Answers with the name, and takes `msEach` for each by its estimate. */
function slow(msEach: number): Engine & { readonly batches: number[] } {
  const batches: number[] = [];
  return {
    ...{ batches, revision: 1, dataHash: `${msEach}`, engineHash: 'e' },
    decide: () => DENY,
    decideMany: (_principal, _target, objects) => {
      batches.push(objects.length);
      return objects.map(({ resource_name }) => ({ ...DENY, policy: { id: resource_name, name: '', priority: 0 } }));
    },
    estimate: (_principal, _target, objects) => msEach * objects.length,
    decideTarget: () => DENY,
  };
}

test('decisions that take long are made in short steps, and in order', (t) => {
  const objects = Array.from({ length: 499 }, (_, n) => ({ ...uri(1), resource_name: `n${n}` }));
  for (const [msEach, most] of [
    [0.001, 499],
    [0.1, 10],
    [0.4, 2],
    [7, 1],
  ] as const) {
    const engine = slow(msEach);
    const steps = decideInSteps(engine, ANN, 't', objects);
    let pauses = 0;
    let step = steps.next();
    for (; step.done !== true; step = steps.next()) {
      pauses++;
      t.true(engine.batches.length <= pauses, 'a step makes one batch of decisions');
    }
    t.deepEqual(
      step.value.map(({ policy }) => policy?.id),
      objects.map(({ resource_name }) => resource_name),
    );
    t.true(Math.max(...engine.batches) <= most, `${msEach}: ${engine.batches}`);
    t.is(pauses, engine.batches.length - 1);
  }
  t.true(SHORT_MS <= 1);
});

test('a new engine is tried out with one decision in a step', async (t) => {
  const module = await loadPolicyModule();
  let evaluations = 0;
  const counting: PolicyModule = {
    ...module,
    instantiate() {
      const bare = module.instantiate();
      const counted = (context: number): number => {
        evaluations++;
        return bare.exports.eval(context);
      };
      return { ...bare, exports: { ...bare.exports, eval: counted } };
    },
  };
  const inSteps: number[] = [];
  await createEngine({ module: counting, policies: many(100, (n) => `^n${n}$`), revision: 1 }, async (steps) => {
    for (;;) {
      const before = evaluations;
      const step = steps.next();
      inSteps.push(evaluations - before);
      if (step.done === true) return step.value;
    }
  });
  t.is(evaluations, 100);
  t.is(Math.max(...inSteps), 1);
});

test('a decision that is in the cache takes no time', (t) => {
  const engine = createDecisionCache(100).over(slow(10));
  const [one, other] = [uri(1), uri(2)];
  t.is(engine.estimate(ANN, 't', [one, other]), 20);
  engine.decideMany(ANN, 't', [one]);
  t.is(engine.estimate(ANN, 't', [one, other]), 10);
  t.is(engine.estimate({ ...ANN, role: 'ops' }, 't', [one]), 10);
});

test('a stored set above the limit of searches is decided', async (t) => {
  const module = await loadPolicyModule();
  const policies = many(2 * MAX_SEARCHES, contained);
  t.is(checkPolicySet(policies).length, 1);
  const engine = await createEngine({ module, policies, revision: 1 });
  t.deepEqual(engine.findings, []);
  const object = { resource_type: 'resource', resource_name: 'x/repo-3199/' } as const;
  t.is(engine.decide(ANN, 't', object).policy?.id, 'p3199');
});

test('the estimate counts a look-up for each group of the caller that has texts', (t) => {
  const groups = Array.from({ length: 50 }, (_, n) => `g${n}`);
  const set = groups.map((group, n) =>
    policyWith({ id: `p${n}`, resource_type: 'tool', resource_pattern: '^x$', ...{ subjects: subject('group', group) } }),
  );
  const of = (count: number): number =>
    estimated(
      set,
      { resource_type: 'tool', resource_name: 'y'.repeat(10_000) },
      { sub: 'ann', role: 'dev', groups: groups.slice(0, count) },
    );
  t.true(of(50) - of(0) > 0.8, `${of(0)} and ${of(50)} ms`);
});

test('the estimate counts the texts in the fullest slot of each table that a decision looks up', (t) => {
  const names = Array.from({ length: 60_000 }, (_, n) => `tool_${n}`);
  const colliding = names.filter((name) => hashOf(name) % 256 === 7).slice(0, 140);
  const groups = Array.from({ length: 100 }, (_, n) => `g${n}`);
  const who: PrincipalFacts = { sub: 'ann', role: 'dev', groups };
  const of = (some: readonly string[], resource_name = 'x'): number => {
    const patterns = Array.from({ length: 7 }, (_, n) => `^(${some.slice(20 * n, 20 * n + 20).join('|')})$`);
    const set = groups.flatMap((group) =>
      many(7, (n) => patterns[n] ?? '', { resource_type: 'tool', subjects: subject('group', group) }),
    );
    return estimated(set, { resource_type: 'tool', resource_name }, who);
  };
  const extra = of(colliding) - of(names.slice(0, 140));
  t.true(extra > 0.05 && extra < 0.2, `${extra} ms for 100 tables of 140 texts`);
  // The texts can begin as the name does.
  const long = 'x'.repeat(500);
  const ofLong = of(colliding, long) - of(names.slice(0, 140), long);
  t.true(ofLong > 5, `${ofLong} ms for a name of ${long.length} characters`);
});
