/** Helpers that the tests of the decision engine share. */

import type { Policy } from '../../src/engine/compile/policy.ts';
import type { Decision, NamedObject, PrincipalFacts } from '../../src/engine/decision.ts';
import type { PolicyModule } from '../../src/engine/engine.ts';
import { loadInstance, readResult } from '../../src/engine/instance.ts';
import type { Answer } from './oracle.ts';

export const answerOf = ({ effect, policy }: Decision): Answer => ({ effect, policyId: policy?.id ?? null });

export const inputOf = ({ sub, role, groups }: PrincipalFacts, target: string, object?: NamedObject): object => ({
  sub,
  role,
  groups,
  target,
  ...(object === undefined ? {} : { type: object.resource_type, name: object.resource_name }),
});

export interface Verdict {
  readonly effect: 'allow' | 'deny';
  readonly policy: string | null;
  readonly rank: number | null;
  readonly reason: string;
}
export const verdictAnswer = ({ effect, policy }: Verdict): Answer => ({ effect, policyId: policy });

/** Every rule of the module over the whole document, as the export holds it. */
export function loadDocument(module: PolicyModule, json: string, heapCeiling = 0): (rule: string, input: object) => unknown {
  const steps = loadInstance(module.instantiate(), [{ path: [], value: json }], heapCeiling);
  for (;;) {
    const step = steps.next();
    if (step.done === true) return (rule, input) => readResult(step.value.ask(`portcullis/${rule}`, JSON.stringify(input)));
  }
}

/** Returns a policy that allows everyone every tool, changed by the given members. */
export function policyWith(given: Partial<Policy> & { readonly id: string }): Policy {
  return {
    name: `policy ${given.id}`,
    description: null,
    target_id: null,
    resource_type: 'tool',
    resource_pattern: null,
    effect: 'allow',
    priority: 0,
    enabled: true,
    subjects: [{ id: 's', subject_type: 'everyone', subject_value: null }],
    created_at: 0,
    updated_at: 0,
    ...given,
  };
}
