/** The fast part of the decision suite, as a judge of mutants: does any answer differ from the oracle's? */
import fc from 'fast-check';
import type { CompiledDocument } from '../../../src/engine/compile/compile.ts';
import type { Policy, ResourceType } from '../../../src/engine/compile/policy.ts';
import type { PrincipalFacts } from '../../../src/engine/decision.ts';
import type { PolicyModule } from '../../../src/engine/engine.ts';
import { matcher, TARGETS, world } from '../arbitraries.ts';
import { type Answer, decide, decideTarget } from '../oracle.ts';
import { inputOf, loadDocument, type Verdict, verdictAnswer } from '../support.ts';

/** Names that one caller asks for. */
interface Asked {
  readonly principal: PrincipalFacts;
  readonly target: string;
  readonly type: ResourceType;
  readonly names: readonly string[];
}
export interface Trial {
  readonly policies: readonly Policy[];
  readonly asked: readonly (Asked & { readonly calls: readonly Answer[]; readonly use: Answer })[];
}

/** Returns random policy sets with random requests, and with requests about each policy. Every run gets the same ones. */
export function trials(count: number): Trial[] {
  return fc
    .sample(world({ maxPolicies: 10, requests: 10 }), { numRuns: count, seed: 1 })
    .map(({ policies, patterns, requests }) => {
      const matches = matcher(patterns);
      const sampleOf = ({ resource_pattern }: Policy): string =>
        patterns.find(({ re2 }) => re2 === resource_pattern)?.sample ?? 'anything';
      const atRandom = requests.map(
        ({ principal, target, object }): Asked => ({
          principal,
          target,
          type: object.resource_type,
          names: [object.resource_name],
        }),
      );
      return {
        policies,
        asked: [...atRandom, ...policies.flatMap((policy) => meant(policy, sampleOf(policy)))].map((asked) => ({
          ...asked,
          calls: asked.names.map((resource_name) =>
            decide(policies, asked.principal, asked.target, { resource_type: asked.type, resource_name }, matches),
          ),
          use: decideTarget(policies, asked.principal, asked.target),
        })),
      };
    });
}

/** Returns requests of a subject of the policy, for names that match and names that almost match. */
function meant({ subjects, target_id, resource_type }: Policy, sample: string): Asked[] {
  const near = [
    ...['', 'x', 'xyz', '\n', sample.slice(0, 4)].map((before) => before + sample),
    ...['x', 'xyz', '\n', sample.slice(-4)].map((after) => sample + after),
    ...[sample.slice(1), sample.slice(0, -1), sample.slice(0, sample.length / 2)],
  ];
  const names = near.filter((name) => name.isWellFormed());
  return subjects.map(({ subject_type, subject_value }) => {
    const principal = { sub: 'no user', role: 'no role', groups: [] as string[] };
    if (subject_type === 'user') principal.sub = subject_value ?? '';
    else if (subject_type === 'role') principal.role = subject_value ?? '';
    else if (subject_type === 'group') principal.groups = [subject_value ?? ''];
    return { principal, target: target_id ?? TARGETS[0], type: resource_type === 'all' ? 'tool' : resource_type, names };
  });
}

/** A set has few patterns, so that they may stay compiled. */
const KEPT_HEAP = 16 * 2 ** 20;

/** Whether the suite notices that this document differs from the policies. It notices a document that cannot be evaluated. */
export function notices(module: PolicyModule, document: CompiledDocument, { asked }: Trial): boolean {
  try {
    const rule = loadDocument(module, JSON.stringify(document), KEPT_HEAP);
    return asked.some(({ principal, target, type, names, calls, use }) => {
      const input = { ...inputOf(principal, target), type, names };
      const list = rule('gateway/decisions', input) as Verdict[];
      const first = { ...input, name: names[0] };
      return (
        list.some((verdict, i) => differ(verdictAnswer(verdict), calls[i])) ||
        differ(verdictAnswer(rule('gateway/target', input) as Verdict), use) ||
        differ(verdictAnswer(rule('reference/decision', first) as Verdict), calls[0]) ||
        differ(verdictAnswer(rule('reference/target', input) as Verdict), use)
      );
    });
  } catch {
    return true;
  }
}

const differ = (a: Answer, b: Answer | undefined): boolean => a.effect !== b?.effect || a.policyId !== b.policyId;
