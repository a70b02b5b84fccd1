import test from 'ava';
import fc from 'fast-check';
import { parse } from 'yaml';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { matcher, world } from './arbitraries.ts';
import { casesOf, saveFailure } from './failures.ts';
import { decide, decideTarget } from './oracle.ts';
import { answerOf, inputOf, loadDocument, type Verdict, verdictAnswer } from './support.ts';

/** Each run is one policy set with this many requests. */
const REQUESTS = 20;
const RUNS = Number(process.env.DIFFERENTIAL_RUNS ?? 1_000);
const { DIFFERENTIAL_SEED: SEED } = process.env;

test('oracle, reference, gateway, list and target question agree, on one instance and on several', async (t) => {
  // An evaluation that does not return is noticed from outside: nothing in this process can end it.
  t.timeout(120_000 + RUNS * 60);
  const module = await loadPolicyModule();
  let matched = 0;
  const outcome = await fc.check(
    fc.asyncProperty(
      world({ maxPolicies: 10, requests: REQUESTS }),
      fc.integer({ min: 1, max: 3 }),
      async (generated, patternsPerInstance) => {
        const { policies, requests } = generated;
        const matches = matcher(generated.patterns);
        const engine = await createEngine({ module, policies, revision: 1 });
        const split = await createEngine({ module, policies, revision: 1, patternsPerInstance });
        const rule = loadDocument(module, engine.compiled.json);
        for (const { principal, target, object } of requests) {
          const expected = decide(policies, principal, target, object, matches);
          const input = inputOf(principal, target, object);
          if (expected.policyId !== null) matched++;
          const answers = {
            gateway: answerOf(engine.decide(principal, target, object)),
            split: answerOf(split.decide(principal, target, object)),
            reference: verdictAnswer(rule('reference/decision', input) as Verdict),
            exported: verdictAnswer(rule('gateway/decision', input) as Verdict),
          };
          const expectedTarget = decideTarget(policies, principal, target);
          const targetAnswers = {
            gateway: answerOf(engine.decideTarget(principal, target)),
            split: answerOf(split.decideTarget(principal, target)),
            reference: verdictAnswer(rule('reference/target', input) as Verdict),
          };
          for (const [who, answer] of Object.entries(answers)) {
            if (!same(answer, expected))
              throw new Error(`${who}: ${show(answer)}, not ${show(expected)} for ${JSON.stringify(input)}`);
          }
          for (const [who, answer] of Object.entries(targetAnswers)) {
            if (!same(answer, expectedTarget))
              throw new Error(`${who}, target: ${show(answer)}, not ${show(expectedTarget)} for ${JSON.stringify(input)}`);
          }
        }
        const [{ principal, target } = { principal: { sub: '', role: '', groups: [] }, target: '' }] = requests;
        const objects = requests.map(({ object }) => object);
        const calls = JSON.stringify(objects.map((object) => decide(policies, principal, target, object, matches)));
        for (const each of [engine, split]) {
          const list = JSON.stringify(each.decideMany(principal, target, objects).map(answerOf));
          if (list !== calls) throw new Error(`list: ${list}, not ${calls}`);
        }
      },
    ),
    { numRuns: RUNS, ...(SEED === undefined ? {} : { seed: Number(SEED) }) },
  );
  if (outcome.failed) {
    const [generated] = outcome.counterexample ?? [];
    if (generated !== undefined) t.log(`saved as ${saveFailure(generated, outcome.seed)}`);
    return t.fail(fc.defaultReportMessage(outcome) ?? 'failed');
  }
  t.log(`${RUNS * REQUESTS} requests, ${matched} of them decided by a policy`);
  t.true(matched > (RUNS * REQUESTS) / 10, 'the generators must hit');
});

const same = (a: object, b: object): boolean => show(a) === show(b);
const show = (value: object): string => JSON.stringify(value);

test('a failure is saved in the form of a case', (t) => {
  const [generated] = fc.sample(world({ maxPolicies: 10, requests: REQUESTS }), { numRuns: 1, seed: 1 });
  if (generated === undefined) return t.fail();
  const [group] = parse(casesOf(generated)) as { policies: object[]; cases: object[] }[];
  t.is(group?.policies.length, generated.policies.length);
  t.is(group?.cases.length, REQUESTS * 2);
});
