/** Measures lists, cached decisions, and a rebuild while decisions continue. */
import { setImmediate } from 'node:timers/promises';
import { createDecisionCache } from '../src/engine/cache.ts';
import { createEngine, type PolicyModule } from '../src/engine/engine.ts';
import { type Figures, figuresOf } from './measure.ts';
import { ask, loop } from './peers/embedded.ts';
import type { Answer } from './peers/peer.ts';
import { type Oracle, readingOrder } from './questions.ts';
import { createWorkload, MIXES } from './workload.ts';

const since = (before: number): number => (performance.now() - before) * 1_000;

function mustEqual(name: string, given: readonly Answer[], expected: readonly Answer[]): void {
  given.forEach(({ policyId }, i) => {
    if (policyId !== expected[i]?.policyId) throw new Error(`${name} is wrong about item ${i}: ${policyId}`);
  });
}

export interface ListFigures {
  readonly list: Figures;
  readonly oneByOne: Figures;
  readonly loop: Figures;
}

/** Lists of `size` tools at `count` policies, each a new one. */
export async function lists(
  module: PolicyModule,
  oracle: Oracle,
  count: number,
  size: number,
  rounds: number,
): Promise<ListFigures> {
  const workload = createWorkload(MIXES.mixed, count, 3);
  const engine = await createEngine({ module, policies: workload.policies, revision: 1 });
  const plain = await loop.start(readingOrder(workload.policies));
  const times = { list: [] as number[], oneByOne: [] as number[], loop: [] as number[] };
  const warmUp = Math.ceil(rounds / 4);
  for (let round = -warmUp; round < rounds; round++) {
    const { principal, target, objects } = workload.list(size);
    const questions = objects.map((object) => ({ kind: 'hit' as const, principal, target, object }));
    let before = performance.now();
    const list = engine.decideMany(principal, target, objects);
    const listTime = since(before);
    before = performance.now();
    const single = questions.map(ask(engine));
    const singleTime = since(before);
    before = performance.now();
    const looped = questions.map((question) => plain.ask(question) as Answer);
    const loopTime = since(before);
    if (round < 0) continue;
    times.list.push(listTime);
    times.oneByOne.push(singleTime);
    times.loop.push(loopTime);
    const expected = oracle(workload.policies)(questions);
    mustEqual(
      'The list',
      list.map(({ effect, policy }) => ({ effect, policyId: policy?.id ?? null })),
      expected,
    );
    mustEqual('The engine', single, expected);
    mustEqual('The loop', looped, expected);
  }
  return { list: figuresOf(times.list), oneByOne: figuresOf(times.oneByOne), loop: figuresOf(times.loop) };
}

/** The same questions again and again, through the cache. */
export async function cached(module: PolicyModule, oracle: Oracle, count: number, rounds: number): Promise<Figures> {
  const workload = createWorkload(MIXES.mixed, count, 4);
  const engine = createDecisionCache(10_000).over(await createEngine({ module, policies: workload.policies, revision: 1 }));
  const questions = workload.questions(1_000);
  const asked = ask(engine);
  const times: number[] = [];
  for (let round = 0; round < rounds + 5; round++) {
    for (const question of questions) {
      const before = performance.now();
      asked(question);
      if (round >= 5) times.push(since(before));
    }
  }
  mustEqual('The cache', questions.map(asked), oracle(workload.policies)(questions));
  return figuresOf(times);
}

export interface RebuildFigures {
  /** All four are milliseconds. This is the time for a new set. */
  readonly alone: number;
  /** The time for the live set with one policy disabled. */
  readonly afterChange: number;
  readonly underLoad: number;
  /** The longest time in which no other work ran. */
  readonly longestGap: number;
  readonly decisionsMeanwhile: number;
  /** The times of the decisions during the rebuild. */
  readonly decision: Figures;
}

/** A new set is compiled, loaded and tried while the old engine decides, one decision for each turn of the event loop. */
export async function rebuild(module: PolicyModule, oracle: Oracle, count: number, rounds: number): Promise<RebuildFigures> {
  const workload = createWorkload(MIXES.mixed, count, 5);
  const live = await createEngine({ module, policies: workload.policies, revision: 1 });
  const asked = ask(live);
  for (const question of workload.questions(2_000)) asked(question);
  const worst = { alone: 0, afterChange: 0, underLoad: 0, longestGap: 0, decisionsMeanwhile: Number.POSITIVE_INFINITY };
  const times: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const next = createWorkload(MIXES.mixed, count, 6 + round * 2).policies;
    const another = createWorkload(MIXES.mixed, count, 7 + round * 2).policies;
    const questions = workload.questions(2_000);
    let before = performance.now();
    await createEngine({ module, policies: another, revision: 2 });
    worst.alone = Math.max(worst.alone, performance.now() - before);

    const changed = workload.policies.map((policy, i) => (i === round ? { ...policy, enabled: !policy.enabled } : policy));
    before = performance.now();
    await createEngine({ module, policies: changed, revision: 2 });
    worst.afterChange = Math.max(worst.afterChange, performance.now() - before);

    before = performance.now();
    let done = false;
    const building = createEngine({ module, policies: next, revision: 2 }).finally(() => {
      done = true;
    });
    let gap = 0;
    let turn = before;
    const answers: Answer[] = [];
    while (!done) {
      const question = questions[answers.length % questions.length];
      const start = performance.now();
      if (question !== undefined) answers.push(asked(question));
      times.push(since(start));
      await setImmediate();
      const now = performance.now();
      gap = Math.max(gap, now - turn);
      turn = now;
    }
    await building;
    worst.underLoad = Math.max(worst.underLoad, performance.now() - before);
    worst.longestGap = Math.max(worst.longestGap, gap);
    worst.decisionsMeanwhile = Math.min(worst.decisionsMeanwhile, answers.length);
    const some = questions.slice(0, Math.min(300, answers.length));
    mustEqual('The live engine', answers.slice(0, some.length), oracle(workload.policies)(some));
  }
  return { ...worst, decision: figuresOf(times) };
}
