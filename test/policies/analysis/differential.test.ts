/** The analysis is checked by the oracle and the engine, and they by the analysis. */
import test from 'ava';
import fc from 'fast-check';
import type { Policy } from '../../../src/engine/compile/policy.ts';
import type { NamedObject } from '../../../src/engine/decision.ts';
import type { LoadedEngine } from '../../../src/engine/engine.ts';
import type { Difference } from '../../../src/policies/analysis/compare.ts';
import { canBeAsked } from '../../../src/policies/analysis/names.ts';
import type { Answer } from '../../../src/policies/analysis/witness.ts';
import { decideOne } from '../../../src/policies/questions.ts';
import { matcher } from '../../engine/arbitraries.ts';
import type { Matches } from '../../engine/oracle.ts';
import {
  type AskedRequest,
  ask,
  askEngine,
  build,
  check,
  edit,
  edits,
  hold,
  options,
  RUNS,
  remembering,
  requestsOf,
  same,
  worlds,
} from './random-sets.ts';
import { analyse, compare } from './whole.ts';

/** Answers like `simulate`, which asks no policy about a name that no request can have. */
function simulated(engine: LoadedEngine, { principal, target, ...object }: AskedRequest): Answer['effect'] {
  return decideOne(engine, {
    principal,
    targetId: target,
    object: object.resource_type === null ? null : (object as NamedObject),
  }).effect;
}

test('each policy is reported correctly, or has a request that shows its effect', async (t) => {
  t.timeout(120_000 + RUNS * 400);
  const counts = new Map<string, number>();
  const count = (what: string): void => void counts.set(what, (counts.get(what) ?? 0) + 1);
  await hold(
    fc.asyncProperty(worlds, fc.infiniteStream(fc.nat()), async (generated, stream) => {
      const { policies } = generated;
      const random = (below: number): number => (stream.next().value ?? 0) % below;
      const matches = remembering(matcher(generated.patterns));
      const engine = await build(policies);
      const { findings } = analyse(policies);
      const unreachable = new Set(findings.flatMap(({ code, policy_ids }) => (code === 'unreachable' ? [policy_ids[0]] : [])));
      const redundant = new Set(findings.flatMap(({ code, policy_ids }) => (code === 'redundant' ? [policy_ids[0]] : [])));
      const overruled = new Set(findings.flatMap(({ code, policy_ids }) => (code === 'contradiction' ? [policy_ids[0]] : [])));
      const idle = new Set(findings.flatMap(({ code, policy_ids }) => (code === 'shadowed' ? [policy_ids[0]] : [])));
      const requests = requestsOf(
        generated,
        findings.map(({ witness }) => witness?.resource_name ?? null),
        random,
      );

      for (const { code, policy_ids, witness, message } of findings) {
        count(code);
        const [about, other] = policy_ids;
        if (witness === null) continue;
        const { decision, without, ...request } = witness;
        const details = [code, message, witness, policies];
        if (request.resource_type !== null)
          check(canBeAsked(request.resource_type, request.resource_name ?? ''), 'no such name', ...details);
        const rest = policies.filter(({ id }) => id !== about);
        check(same(ask(policies, request, matches), decision), 'wrong decision', ...details);
        check(same(ask(rest, request, matches), without), 'wrong without', ...details);
        check(same(askEngine(engine, request), decision), 'engine: wrong decision', ...details);
        const alone = policies.filter(({ id }) => id === about);
        check(ask(alone, request, matches).policy_id === about, 'does not fit', ...details);
        const effect = alone[0]?.effect;
        switch (code) {
          case 'unreachable':
            check(decision.policy_id !== about && decision.policy_id !== null, 'decides', ...details);
            break;
          case 'contradiction':
            check(decision.policy_id !== about && decision.effect !== effect, 'does not contradict', ...details);
            break;
          case 'redundant':
            check(decision.policy_id === about && without.effect === decision.effect, 'is not redundant', ...details);
            break;
          case 'shadowed':
            check(decision.policy_id === about && request.resource_type === null, 'is not shadowed', ...details);
            break;
          case 'tie':
            check(decision.policy_id === other && decision.effect === 'deny', 'is no tie', ...details);
            check(
              ask(
                policies.filter(({ id }) => policy_ids.includes(id)),
                request,
                matches,
              ).policy_id === other,
              'is not between them',
              ...details,
            );
            break;
          case 'broad_allow':
            check(decision.policy_id === about, 'does not decide', ...details);
            break;
          default:
        }
      }

      // Removing a policy that is reported as needless changes nothing.
      const live = policies.filter(({ id }) => !unreachable.has(id));
      const liveEngine = await build(live);
      for (const request of requests) {
        const answer = ask(policies, request, matches);
        check(same(ask(live, request, matches), answer), 'not unreachable', [...unreachable], request, policies);
        if (random(20) === 0)
          check(same(askEngine(liveEngine, request), askEngine(engine, request)), 'engine', request, policies);
        const isObject = request.resource_type !== null;
        check(!isObject || !idle.has(answer.policy_id ?? ''), 'not shadowed', request, policies);
        for (const policy of isObject ? policies.filter(({ id }) => overruled.has(id)) : []) {
          const fits = ask([policy], request, matches).policy_id !== null;
          check(!fits || answer.effect !== policy.effect, 'no contradiction', policy, request, policies);
        }
        if (answer.policy_id === null || !redundant.has(answer.policy_id)) continue;
        const rest = policies.filter(({ id }) => id !== answer.policy_id);
        check(ask(rest, request, matches).effect === answer.effect, 'not redundant', request, policies);
      }

      // A policy that is not reported as needless is needed.
      for (const policy of policies) {
        if (!policy.enabled || policy.subjects.length === 0) continue;
        const rest = policies.filter(({ id }) => id !== policy.id);
        const { verdict, stricter, looser } = compare(policies, rest);
        const needless = unreachable.has(policy.id) || redundant.has(policy.id);
        check(verdict === 'equal' ? needless : !needless, 'compare', verdict, policy, policies);
        for (const difference of [stricter, looser]) {
          if (difference !== null) checkDifference(difference, policies, rest, matches);
        }
        count(needless ? 'needless' : 'needed');
      }
    }),
    options,
  );
  t.log([...counts].map(([what, times]) => `${what} ${times}`).join(', '));
  for (const code of [
    'unreachable',
    'shadowed',
    'redundant',
    'contradiction',
    'tie',
    'unanchored_allow',
    'broad_allow',
    'needed',
  ])
    t.true((counts.get(code) ?? 0) >= RUNS / 100, `the generators must bring about ${code}`);
  // An analysis that reaches its limits says so, and hardly any policies are so hard.
  t.true((counts.get('undecided') ?? 0) <= RUNS / 50);
});

function checkDifference(
  { before, after, ...request }: Difference,
  was: readonly Policy[],
  is: readonly Policy[],
  matches: Matches,
): void {
  check(same(ask(was, request, matches), before), 'wrong before', before, request, was);
  check(same(ask(is, request, matches), after), 'wrong after', after, request, is);
  check(before.effect !== after.effect, 'no difference', request);
}

test('the comparison of two sets agrees with their decisions', async (t) => {
  t.timeout(120_000 + RUNS * 400);
  const verdicts = new Map<string, number>();
  const count = (what: string): void => void verdicts.set(what, (verdicts.get(what) ?? 0) + 1);
  const pairs = worlds.chain((generated) =>
    fc.record({
      generated: fc.constant(generated),
      edits,
      stream: fc.infiniteStream(fc.nat()),
    }),
  );
  await hold(
    fc.asyncProperty(pairs, async ({ generated, edits: made, stream }) => {
      const before = generated.policies;
      const after = made.reduce(edit, before);
      const matches = remembering(matcher(generated.patterns));
      const { verdict, stricter, looser, flips } = compare(before, after, { targets: ['t1', 't2', 't3'] });
      count(verdict);
      check(verdict !== 'unknown', 'unknown', before, after);
      const found = { stricter, looser };
      const claimed = {
        stricter: verdict === 'stricter' || verdict === 'incomparable',
        looser: verdict === 'looser' || verdict === 'incomparable',
      };
      const effects = { stricter: 'deny', looser: 'allow' } as const;
      const [was, is] = [await build(before), await build(after)];
      for (const way of ['stricter', 'looser'] as const) {
        const difference = found[way];
        check((difference !== null) === claimed[way], 'verdict and witness', verdict, way);
        const all = [...flips.values()].flatMap((each) => each[way] ?? []);
        check(all.length > 0 === claimed[way], 'verdict and flips', verdict, way);
        for (const each of [...(difference === null ? [] : [difference]), ...all]) {
          checkDifference(each, before, after, matches);
          check(each.after.effect === effects[way], 'the other way', way, each);
          check(same(askEngine(was, each), each.before), 'engine before', each);
          check(same(askEngine(is, each), each.after), 'engine after', each);
          count(each.resource_type === 'resource' ? (each.is_template ? 'template' : 'URI') : 'other');
          check(
            same([simulated(was, each), simulated(is, each)], [each.before.effect, each.after.effect]),
            'simulate contradicts',
            each,
          );
        }
      }
      for (const [id, { undecided, ...ways }] of flips) {
        check(!undecided, 'undecided', id, before, after);
        for (const difference of Object.values(ways)) {
          count(difference === null ? 'no flip' : 'flip');
          if (difference === null) continue;
          check([difference.before.policy_id, difference.after.policy_id].includes(id), 'of another policy', id, difference);
        }
      }
      const random = (below: number): number => (stream.next().value ?? 0) % below;
      for (const request of requestsOf(generated, [], random)) {
        const [then, now] = [ask(before, request, matches), ask(after, request, matches)];
        if (then.effect === now.effect) continue;
        const way = now.effect === 'deny' ? 'stricter' : 'looser';
        check(claimed[way], 'missed', verdict, request, before, after);
        const deciders = [then, now].flatMap(({ policy_id }) => flips.get(policy_id ?? '') ?? []);
        check(deciders.length > 0, 'of no change', request, before, after);
        for (const flip of deciders) check(flip[way] !== null, 'a missed flip', way, request, before, after);
      }
    }),
    options,
  );
  t.log([...verdicts].map(([verdict, times]) => `${verdict} ${times}`).join(', '));
  for (const verdict of ['equal', 'stricter', 'looser', 'incomparable', 'flip', 'no flip', 'URI', 'template'])
    t.true((verdicts.get(verdict) ?? 0) >= RUNS / 400, `the generators must bring about ${verdict}`);
});
