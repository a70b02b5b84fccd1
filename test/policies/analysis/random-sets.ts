/** Random policy sets and changes of them, and who answers for them: the oracle and the engine. */
import fc from 'fast-check';
import { type Policy, RESOURCE_TYPES } from '../../../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../../src/engine/decision.ts';
import { createEngine, type LoadedEngine, loadPolicyModule } from '../../../src/engine/engine.ts';
import { canBeAsked } from '../../../src/policies/analysis/names.ts';
import type { Answer, AskedRequest as Asked } from '../../../src/policies/analysis/witness.ts';
import { type World, world } from '../../engine/arbitraries.ts';
import { decide, decideTarget, type Matches } from '../../engine/oracle.ts';

export type AskedRequest = Omit<Asked, 'is_template'>;

/** Each run is one policy set. */
export const RUNS = Number(process.env.ANALYSIS_RUNS ?? 400);
const { ANALYSIS_SEED: SEED } = process.env;
const module = await loadPolicyModule();

const VALUES = ['dev', '__proto__', 'Dev', 'nobody'];
export const TARGETS = ['t1', '__proto__', 't2'];
export const CALLERS: readonly PrincipalFacts[] = VALUES.flatMap((sub) =>
  VALUES.flatMap((role) =>
    [[], ['dev'], ['__proto__'], ['Dev'], ['dev', 'Dev'], ['dev', '__proto__', 'Dev']].map((groups) => ({ sub, role, groups })),
  ),
);

export function ask(policies: readonly Policy[], { principal, target, ...object }: AskedRequest, matches: Matches): Answer {
  const { effect, policyId } =
    object.resource_type === null
      ? decideTarget(policies, principal, target)
      : decide(policies, principal, target, object as NamedObject, matches);
  return { effect, policy_id: policyId };
}

export function askEngine(engine: LoadedEngine, { principal, target, ...object }: AskedRequest): Answer {
  const { effect, policy, reason } =
    object.resource_type === null
      ? engine.decideTarget(principal, target)
      : engine.decide(principal, target, object as NamedObject);
  if (reason === 'error') throw new Error('The engine does not answer');
  return { effect, policy_id: policy?.id ?? null };
}

export function check(holds: boolean, what: string, ...details: unknown[]): void {
  if (!holds) throw new Error(`${what} ${details.map((detail) => JSON.stringify(detail)).join('; ')}`);
}
export const same = (a: object, b: object): boolean => JSON.stringify(a) === JSON.stringify(b);
export const build = (policies: readonly Policy[]): Promise<LoadedEngine> => createEngine({ module, policies, revision: 1 });

/** Caches the matches, because the same names and patterns occur for every caller. */
export function remembering(matches: Matches): Matches {
  const known = new Map<string, boolean>();
  return (pattern, name) => {
    const key = `${pattern}\0${name}`;
    const match = known.get(key) ?? matches(pattern, name);
    known.set(key, match);
    return match;
  };
}

/** Names at which patterns part. */
export function namesIn({ patterns, requests }: World): string[] {
  const samples = patterns.flatMap(({ sample }) => [sample, `x${sample}`, `${sample}x`, sample.slice(1), sample.slice(0, -1)]);
  return [...new Set([...samples, ...requests.map(({ object }) => object.resource_name), 'x', 'get'])];
}

/** Requests for names at which patterns part, with some of the callers for each. */
export function requestsOf(
  generated: World,
  names: readonly (string | null)[],
  random: (below: number) => number,
): AskedRequest[] {
  const all = [...new Set([...namesIn(generated), ...names])];
  const asked = all.flatMap((name): AskedRequest[] =>
    RESOURCE_TYPES.flatMap((resource_type) => {
      if (name === null || !canBeAsked(resource_type, name)) return [];
      return TARGETS.flatMap((target) =>
        Array.from({ length: 6 }, () => CALLERS[random(CALLERS.length)] ?? { sub: '', role: '', groups: [] }).map(
          (principal) => ({
            principal,
            target,
            resource_type,
            resource_name: name,
          }),
        ),
      );
    }),
  );
  const use = TARGETS.flatMap((target) =>
    CALLERS.map((principal) => ({ principal, target, resource_type: null, resource_name: null })),
  );
  return [...asked, ...use];
}

export const worlds = world({ maxPolicies: 9, requests: 10 });
export const options = { numRuns: RUNS, ...(SEED === undefined ? {} : { seed: Number(SEED) }) };

/** The error is enough, because it names the policies. */
export async function hold<T>(property: fc.IAsyncProperty<T>, parameters: fc.Parameters<T>): Promise<void> {
  const { failed, errorInstance, seed } = await fc.check(property, parameters);
  if (failed) throw new Error(`ANALYSIS_SEED=${seed}: ${errorInstance instanceof Error ? errorInstance.stack : errorInstance}`);
}

export const edits = fc.array(
  // Small changes, so that equal, stricter and looser sets come up, too.
  fc.record({ at: fc.nat(), how: fc.constantFrom('drop', 'copy', 'flip', 'widen', 'narrow', 'raise') }),
  { minLength: 1, maxLength: 3 },
);

export function edit(policies: readonly Policy[], { at, how }: { at: number; how: string }): readonly Policy[] {
  const chosen = policies[at % Math.max(1, policies.length)];
  if (chosen === undefined) return policies;
  const replace = (...by: Policy[]): Policy[] => policies.flatMap((policy) => (policy === chosen ? by : [policy]));
  switch (how) {
    case 'drop':
      return replace();
    case 'copy':
      return replace(chosen, { ...chosen, id: unused(`${chosen.id}x`, policies) });
    case 'flip':
      return replace({ ...chosen, effect: chosen.effect === 'allow' ? 'deny' : 'allow' });
    case 'widen':
      return replace({ ...chosen, resource_type: 'all', resource_pattern: null });
    case 'narrow':
      return replace({ ...chosen, subjects: chosen.subjects.slice(1) });
    default:
      return replace({ ...chosen, priority: Math.min(2_147_483_647, chosen.priority + 1) });
  }
}

const unused = (id: string, policies: readonly Policy[]): string =>
  policies.some((policy) => policy.id === id) ? unused(`${id}x`, policies) : id;
