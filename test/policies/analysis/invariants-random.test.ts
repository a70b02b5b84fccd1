/** Random changes under random invariants: the analysis refuses exactly those that the oracle refuses. */
import test from 'ava';
import fc from 'fast-check';
import { RESOURCE_TYPES } from '../../../src/engine/compile/policy.ts';
import type { Guarded } from '../../../src/policies/analysis/invariants.ts';
import { canBeAsked } from '../../../src/policies/analysis/names.ts';
import { matcher, type Pattern, subject } from '../../engine/arbitraries.ts';
import type { Matches } from '../../engine/oracle.ts';
import {
  type AskedRequest,
  ask,
  askEngine,
  build,
  CALLERS,
  check,
  edit,
  edits,
  hold,
  namesIn,
  options,
  RUNS,
  remembering,
  TARGETS,
  worlds,
} from './random-sets.ts';
import { breaches } from './whole.ts';

const subjects = fc.array(subject, { minLength: 1, maxLength: 2 });
const named = subject.filter(({ subject_type }) => subject_type !== 'everyone');
const never = (patterns: readonly Pattern[]): fc.Arbitrary<Guarded['never']> =>
  fc.record({
    subjects,
    except: fc.record({
      subjects: fc.oneof(fc.constant([]), fc.array(named, { maxLength: 2 })),
      targets: fc.oneof(fc.constant([]), fc.subarray(['t1', '__proto__'])),
    }),
    targets: fc.oneof(fc.constant(null), fc.subarray([...TARGETS], { minLength: 1 })),
    resource_type: fc.constantFrom('all', 'tool', 'tool', 'resource'),
    resource_pattern: fc.constantFrom(null, ...patterns.map(({ re2 }) => re2)),
  });

/** The meaning of an invariant, written down a second time. */
function covers({ subjects: callers, except, targets, ...objects }: Guarded['never'], request: AskedRequest, matches: Matches) {
  const { sub, role, groups } = request.principal;
  const fits = ({ subject_type: type, subject_value: value }: Guarded['never']['subjects'][number]): boolean =>
    type === 'everyone' || (type === 'group' ? groups.includes(value ?? '') : value === (type === 'role' ? role : sub));
  return (
    callers.some(fits) &&
    !except.subjects.some(fits) &&
    !except.targets.includes(request.target) &&
    (targets === null || targets.includes(request.target)) &&
    (objects.resource_type === 'all' || objects.resource_type === request.resource_type) &&
    (objects.resource_pattern === null || matches(objects.resource_pattern, request.resource_name ?? ''))
  );
}

test('a change is refused exactly if the oracle finds a request that it adds and that breaks an invariant', async (t) => {
  t.timeout(120_000 + RUNS * 400);
  const counts = new Map<string, number>();
  const count = (what: string): void => void counts.set(what, (counts.get(what) ?? 0) + 1);
  const cases = worlds.chain((generated) =>
    fc.record({
      generated: fc.constant(generated),
      edits,
      // One of four cases begins with nothing, as an invariant that is added does.
      isNew: fc.nat(3).map((n) => n === 0),
      never: never(generated.patterns),
      excepted: fc.subarray(generated.policies.map(({ id }) => id)).map((ids) => new Set(ids.slice(0, 2))),
    }),
  );
  await hold(
    fc.asyncProperty(cases, async ({ generated, edits: made, isNew, ...invariant }) => {
      const after = made.reduce(edit, generated.policies);
      const before = isNew ? [] : generated.policies;
      const matches = remembering(matcher(generated.patterns));
      const breaks = (policies: typeof before, request: AskedRequest): boolean => {
        const { effect, policy_id } = ask(policies, request, matches);
        return effect === 'allow' && !invariant.excepted.has(policy_id ?? '');
      };
      const isAdded = (request: AskedRequest): boolean =>
        covers(invariant.never, request, matches) && breaks(after, request) && !breaks(before, request);
      const [verdict] = breaches(before, after, [invariant], { targets: [...TARGETS] });
      count(`${isNew ? 'new invariant' : 'change'} ${verdict?.kind}`);
      if (verdict?.kind === 'undecided') return;
      if (verdict?.kind === 'broken') {
        const { breach } = verdict;
        check(canBeAsked(breach.resource_type ?? 'tool', breach.resource_name ?? ''), 'no such name', breach);
        check(isAdded(breach), 'no breach', breach, invariant, before, after);
        const { effect, policy_id } = askEngine(await build(after), breach);
        check(effect === 'allow' && policy_id === breach.policy_id, 'the engine contradicts', breach, after);
        return;
      }
      for (const resource_name of namesIn(generated)) {
        for (const resource_type of RESOURCE_TYPES) {
          if (!canBeAsked(resource_type, resource_name)) continue;
          for (const target of TARGETS) {
            for (const principal of CALLERS) {
              const request = { principal, target, resource_type, resource_name };
              check(!isAdded(request), 'missed', request, { ...invariant, excepted: [...invariant.excepted] }, before, after);
            }
          }
        }
      }
    }),
    options,
  );
  t.log([...counts].map(([what, times]) => `${what} ${times}`).join(', '));
  for (const what of ['change kept', 'change broken', 'new invariant kept', 'new invariant broken'])
    t.true((counts.get(what) ?? 0) >= RUNS / 200, `the generators must bring about: ${what}`);
  t.true((counts.get('change undecided') ?? 0) + (counts.get('new invariant undecided') ?? 0) <= RUNS / 1_000);
});
