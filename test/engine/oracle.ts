/** The semantics, in the plainest TypeScript: law 1 and docs/policies.md. Everything is held to this. */

import type { Policy, PolicySubject } from '../../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../src/engine/decision.ts';

export interface Answer {
  readonly effect: 'allow' | 'deny';
  /** null: no policy fits. */
  readonly policyId: string | null;
}

/** Whether RE2 finds the pattern in the name. */
export type Matches = (pattern: string, name: string) => boolean;

export function decide(
  policies: readonly Policy[],
  caller: PrincipalFacts,
  target: string,
  object: NamedObject,
  matches: Matches,
): Answer {
  return first(policies, (policy) => fitsCaller(policy, caller, target) && fitsObject(policy, object, matches));
}

export function decideTarget(policies: readonly Policy[], caller: PrincipalFacts, target: string): Answer {
  return first(policies, (policy) => fitsCaller(policy, caller, target) && speaksOfTarget(policy));
}

function first(policies: readonly Policy[], fits: (policy: Policy) => boolean): Answer {
  const found = policies
    .filter((policy) => policy.enabled)
    .sort(byReadingOrder)
    .find(fits);
  return { effect: found?.effect ?? 'deny', policyId: found?.id ?? null };
}

function byReadingOrder(a: Policy, b: Policy): number {
  if (a.priority !== b.priority) return b.priority - a.priority;
  if (a.effect !== b.effect) return a.effect === 'deny' ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

function fitsCaller(policy: Policy, caller: PrincipalFacts, target: string): boolean {
  if (policy.target_id !== null && policy.target_id !== target) return false;
  return policy.subjects.some((subject) => fitsSubject(subject, caller));
}

function fitsSubject({ subject_type, subject_value }: PolicySubject, { sub, role, groups }: PrincipalFacts): boolean {
  switch (subject_type) {
    case 'everyone':
      return true;
    case 'role':
      return subject_value === role;
    case 'group':
      return subject_value !== null && groups.includes(subject_value);
    case 'user':
      return subject_value === sub;
  }
}

function fitsObject({ resource_type, resource_pattern }: Policy, object: NamedObject, matches: Matches): boolean {
  if (resource_type !== 'all' && resource_type !== object.resource_type) return false;
  return resource_pattern === null || matches(resource_pattern, object.resource_name);
}

function speaksOfTarget({ effect, resource_type, resource_pattern }: Policy): boolean {
  return effect === 'allow' || (resource_type === 'all' && resource_pattern === null);
}
