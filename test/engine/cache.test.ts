import test from 'ava';
import { createDecisionCache } from '../../src/engine/cache.ts';
import type { Decision, Engine, NamedObject } from '../../src/engine/decision.ts';

const ANN = { sub: 'ann', role: 'dev', groups: ['a', 'b'] };
const tool = (resource_name: string): NamedObject => ({ resource_type: 'tool', resource_name });

/** Makes an engine that repeats the question in its answer, and counts the questions. */
function spy(dataHash = 'h', reason: Decision['reason'] = 'matched'): Engine & { asked: number } {
  const answer = (...asked: unknown[]): Decision => {
    engine.asked++;
    return { effect: 'allow', reason, policy: { id: JSON.stringify([dataHash, ...asked]), name: '', priority: 0 } };
  };
  const engine = {
    asked: 0,
    revision: 1,
    dataHash,
    engineHash: 'e',
    decide: answer,
    decideMany: (...[principal, target, objects]: Parameters<Engine['decideMany']>) =>
      objects.map((object) => answer(principal, target, object)),
    estimate: () => 0,
    decideTarget: answer,
  } satisfies Engine & { asked: number };
  return engine;
}

test('the engine is asked the same question once', (t) => {
  const engine = spy();
  const cached = createDecisionCache(10).over(engine);
  const first = cached.decide(ANN, 't', tool('x'));
  t.is(cached.decide({ ...ANN }, 't', tool('x')), first);
  t.is(engine.asked, 1);
  t.deepEqual(
    cached.decideMany(ANN, 't', [tool('x'), tool('y'), tool('x')]).map(({ policy }) => policy?.id),
    ['x', 'y', 'x'].map((name) => JSON.stringify(['h', ANN, 't', tool(name)])),
  );
  t.is(engine.asked, 2, 'a list asks what calls have not');
  cached.decide(ANN, 't', tool('y'));
  t.is(engine.asked, 2, 'a call asks what lists have not');
  cached.decideTarget(ANN, 't');
  cached.decideTarget(ANN, 't');
  t.is(engine.asked, 3);
});

test('every fact of the caller is part of the cache key', (t) => {
  const cache = createDecisionCache(100);
  const seen = new Set<string>();
  const ask = (engine: Engine, ...question: Parameters<Engine['decide']>): void => {
    const { policy } = cache.over(engine).decide(...question);
    t.is(policy?.id, JSON.stringify([engine.dataHash, ...question]), 'the answer is to this question');
    seen.add(policy?.id ?? '');
  };
  const questions: Parameters<Engine['decide']>[] = [
    [ANN, 't', tool('x')],
    [ANN, 't', { resource_type: 'prompt', resource_name: 'x' }],
    [ANN, 't', tool('X')],
    [ANN, 'u', tool('x')],
    [{ ...ANN, sub: 'bob' }, 't', tool('x')],
    [{ ...ANN, role: 'ops' }, 't', tool('x')],
    [{ ...ANN, groups: ['a'] }, 't', tool('x')],
    [{ ...ANN, groups: ['a:1:b'] }, 't', tool('x')],
    [{ ...ANN, groups: ['ab'] }, 't', tool('x')],
    [{ ...ANN, groups: [] }, 't', tool('x')],
    [{ sub: 'an', role: 'ndev', groups: ANN.groups }, 't', tool('x')],
    [{ sub: 'ann3', role: ':dev', groups: ANN.groups }, 't', tool('x')],
    [{ ...ANN, groups: ['a', 'b|tool:x'] }, 't', tool('y')],
    [{ ...ANN, groups: ['a', 'b'] }, 't', tool('x|tool:y')],
  ];
  for (const question of questions) {
    ask(spy('h'), ...question);
    ask(spy('other'), ...question);
  }
  t.is(seen.size, questions.length * 2);
});

test('decisions for a caller with many long groups are kept, and every group counts', (t) => {
  const engine = spy();
  const cached = createDecisionCache(10).over(engine);
  const groups = Array.from({ length: 40 }, (_, n) => `${n}${'g'.repeat(98)}`);
  const other = groups.with(20, 'h'.repeat(100));
  for (const caller of [
    { ...ANN, groups },
    { ...ANN, groups: other },
    { ...ANN, role: 'r'.repeat(4_000) },
  ]) {
    const { asked } = engine;
    const object = tool('x'.repeat(2_000));
    const { policy } = cached.decide(caller, 't', object);
    t.is(policy?.id, JSON.stringify(['h', caller, 't', object]));
    t.is(cached.decide(caller, 't', object).policy, policy);
    t.is(engine.asked, asked + 1);
  }
});

test('a target question is not an object question', (t) => {
  const engine = spy();
  const cached = createDecisionCache(10).over(engine);
  cached.decideTarget({ ...ANN, groups: ['a|tool:x'] }, 't');
  cached.decide({ ...ANN, groups: ['a'] }, 't', tool('x'));
  t.is(engine.asked, 2);
});

test('a fault is not cached', (t) => {
  const engine = spy('h', 'error');
  const cached = createDecisionCache(10).over(engine);
  cached.decide(ANN, 't', tool('x'));
  cached.decide(ANN, 't', tool('x'));
  t.is(engine.asked, 2);
});

test('the cache is limited, and keeps the decisions that are used', (t) => {
  const engine = spy();
  const cache = createDecisionCache(100);
  const cached = cache.over(engine);
  for (let i = 0; i < 10_000; i++) {
    cached.decide(ANN, 't', tool(`x${i}`));
    cached.decide(ANN, 't', tool('hot'));
    t.true(cache.size <= 100);
  }
  t.is(engine.asked, 10_001);
  cached.decide(ANN, 't', tool('y'.repeat(10_000)));
  cached.decide(ANN, 't', tool('y'.repeat(10_000)));
  t.is(engine.asked, 10_003, 'what is huge is not kept');
});

test('decisions on long names take the room of several', (t) => {
  const decisions = createDecisionCache(100);
  const cached = decisions.over(spy());
  for (let n = 0; n < 100; n++) cached.decide(ANN, 't', tool(`${n}${'x'.repeat(2_000)}`));
  t.true(decisions.size >= 5 && decisions.size <= 15, String(decisions.size));
  const short = createDecisionCache(100);
  for (let n = 0; n < 100; n++) short.over(spy()).decide(ANN, 't', tool(`${n}`));
  t.true(short.size >= 50, String(short.size));
});
