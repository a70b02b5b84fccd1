import test from 'ava';
import { atOnce } from '../../src/base/turns/slices.ts';
import type { Policy } from '../../src/engine/compile/policy.ts';
import { createEngine, type LoadedEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { layOutInSteps, MAX_PATTERNS } from '../../src/engine/partition.ts';
import { policyWith } from './support.ts';

/** OPA's regex cache fails with 100 patterns on one heap (see MAX_PATTERNS). */
const module = await loadPolicyModule();
const ANN = { sub: 'ann', role: 'dev', groups: ['a'] };

/** Pattern n matches `x<n>_` and digits, and nothing else here. */
const policiesWith = (patterns: number): Policy[] =>
  Array.from({ length: patterns }, (_, n) =>
    policyWith({
      id: `p${n}`,
      effect: n % 2 === 0 ? 'allow' : 'deny',
      priority: n,
      resource_pattern: `^x${n}_[0-9]+$`,
      target_id: n % 5 === 0 ? null : `t${n % 3}`,
    }),
  );

const targetOf = (n: number): string => (n % 5 === 0 ? 't9' : `t${n % 3}`);

function askAll(engine: LoadedEngine, patterns: number, rounds: number): string[] {
  const wrong: string[] = [];
  for (let round = 0; round < rounds; round++) {
    for (let n = 0; n < patterns; n++) {
      const { policy } = engine.decide(ANN, targetOf(n), { resource_type: 'tool', resource_name: `x${n}_${round}` });
      if (policy?.id !== `p${n}`) wrong.push(`${n}: ${policy?.id}`);
    }
  }
  return wrong;
}

for (const patterns of [99, 100, 101, 5_000]) {
  test(`${patterns} patterns are decided one question at a time`, async (t) => {
    const engine = await createEngine({
      module,
      policies: policiesWith(patterns),
      revision: 1,
      onFault: (error) => t.log(error),
    });
    t.deepEqual(askAll(engine, patterns, patterns > 1_000 ? 1 : 30), []);
  });

  test(`${patterns} patterns are decided in lists`, async (t) => {
    const engine = await createEngine({
      module,
      policies: policiesWith(patterns),
      revision: 1,
      onFault: (error) => t.log(error),
    });
    for (let round = 0; round < 3; round++) {
      for (const target of ['t0', 't1', 't2', 't9']) {
        const here = Array.from({ length: patterns }, (_, n) => n).filter((n) => n % 5 === 0 || targetOf(n) === target);
        const objects = here.map((n) => ({ resource_type: 'tool' as const, resource_name: `x${n}_${round}` }));
        const decided = engine.decideMany(ANN, target, objects).map(({ policy }) => policy?.id);
        t.deepEqual(
          decided,
          here.map((n) => `p${n}`),
        );
      }
    }
  });

  test(`${patterns} patterns are laid out so that no instance exceeds OPA's cache`, async (t) => {
    const { compiled } = await createEngine({ module, policies: policiesWith(patterns), revision: 1 });
    const { main, others } = atOnce(layOutInSteps(compiled.document, MAX_PATTERNS));
    const held = [main, ...others].map((pieces) => new Set([...pieces()].flatMap(({ value }) => value.match(/\^x\d+_/g) ?? [])));
    for (const { size } of held) t.true(size <= 99, `${size}`);
    t.is(new Set(held.flatMap((patterns) => [...patterns])).size, patterns);
  });
}

test('5000 patterns that only a match can distinguish are decided correctly', async (t) => {
  const policies = Array.from({ length: 5_000 }, (_, n) =>
    policyWith({ id: `p${n}`, priority: n, resource_pattern: `[0-9]+x${n}_$` }),
  );
  const engine = await createEngine({ module, policies, revision: 1, onFault: (error) => t.log(error) });
  for (let n = 0; n < 5_000; n += 500) {
    const objects = [n, n + 499].map((n) => ({ resource_type: 'tool' as const, resource_name: `7x${n}_` }));
    t.deepEqual(
      engine.decideMany(ANN, 't', objects).map(({ policy }) => policy?.id),
      [`p${n}`, `p${n + 499}`],
    );
    for (const object of objects) t.is(engine.decide(ANN, 't', object).policy?.id, `p${object.resource_name.slice(2, -1)}`);
  }
});

test('a bucket of more patterns than an instance may hold is decided', async (t) => {
  const policies = Array.from({ length: 250 }, (_, n) =>
    policyWith({ id: `p${n}`, priority: -n, resource_pattern: `^x${n}_[0-9]+$` }),
  );
  const engine = await createEngine({ module, policies, revision: 1, onFault: (error) => t.log(error) });
  const objects = policies.map((_, n) => ({ resource_type: 'tool' as const, resource_name: `x${n}_7` }));
  for (let round = 0; round < 20; round++) {
    t.deepEqual(
      engine.decideMany(ANN, 't', objects).map(({ policy }) => policy?.id),
      policies.map(({ id }) => id),
    );
  }
});

test('a bucket that is too long to be read in one piece is decided', async (t) => {
  const policies = Array.from({ length: 4_000 }, (_, n) =>
    policyWith({ id: `p${n}`, priority: n, resource_pattern: `^x${n}_${'long'.repeat(20)}[0-9]+$` }),
  );
  const engine = await createEngine({ module, policies, revision: 1, onFault: (error) => t.log(error) });
  const { main } = atOnce(layOutInSteps(engine.compiled.document, MAX_PATTERNS));
  t.true([...main()].length > 3);
  for (const n of [0, 98, 99, 1_234, 3_999]) {
    const object = { resource_type: 'tool' as const, resource_name: `x${n}_${'long'.repeat(20)}7` };
    t.is(engine.decide(ANN, 't', object).policy?.id, `p${n}`);
  }
});

test('many decisions do not make the process grow, because the heap is rewound', async (t) => {
  const engine = await createEngine({ module, policies: policiesWith(200), revision: 1, onFault: (error) => t.log(error) });
  const decisions = Number(process.env.HEAP_DECISIONS ?? 60_000);
  const run = (count: number): void => {
    for (let i = 0; i < count; i++) {
      const n = i % 200;
      const { policy } = engine.decide(ANN, targetOf(n), { resource_type: 'tool', resource_name: `x${n}_${i}` });
      if (policy?.id !== `p${n}`) t.fail(`${n}: ${policy?.id}`);
    }
  };
  run(decisions / 2);
  const before = process.memoryUsage().rss;
  run(decisions / 2);
  const grown = (process.memoryUsage().rss - before) / 2 ** 20;
  t.log(`grew by ${grown.toFixed(1)} MiB in ${decisions / 2} decisions`);
  t.true(grown < 40);
});

test('a subject with megabytes of texts is decided like any other', async (t) => {
  const text = (n: number): string => `${String(n).padStart(5, '0')}${'x'.repeat(395)}`;
  const everyone = policyWith({ id: 'e' }).subjects;
  const role = [{ id: 's', subject_type: 'role' as const, subject_value: 'dev' }];
  const patterns = Array.from({ length: 6_000 }, (_, n) =>
    n % 600 === 1 ? `^${text(n)}` : n % 600 === 2 ? `^${text(n)}[a-z]{3}[0-9]+$` : `^${text(n)}$`,
  );
  for (const [target, subjects] of [
    [null, everyone],
    ['t1', role],
  ] as const) {
    const policies = patterns.map((resource_pattern, n) =>
      policyWith({
        id: `p${n}`,
        effect: n % 2 === 0 ? 'allow' : 'deny',
        priority: -n,
        resource_pattern,
        target_id: target,
        subjects: [...subjects],
      }),
    );
    const engine = await createEngine({ module, policies, revision: 1, patternsPerInstance: 4 });
    const names = patterns.map((_, n) => (n % 600 === 2 ? `${text(n)}abc1` : text(n)));
    const objects = names.map((resource_name) => ({ resource_type: 'tool' as const, resource_name }));
    const decided = engine.decideMany(ANN, 't1', objects);
    t.deepEqual(
      decided.map(({ policy }) => policy?.id),
      patterns.map((_, n) => `p${n}`),
    );
    t.is(engine.decide(ANN, 't1', { resource_type: 'tool', resource_name: 'none' }).reason, 'default');
  }
});
