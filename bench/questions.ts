/** The oracle's answers, and the order in which policies are read. */
import type { Policy } from '../src/engine/compile/policy.ts';
import { decide } from '../test/engine/oracle.ts';
import type { Answer } from './peers/peer.ts';
import type { Question } from './workload.ts';

export type Oracle = (policies: readonly Policy[]) => (questions: readonly Question[]) => Answer[];

/** The benchmark's patterns mean the same in JavaScript as in RE2. */
export const oracle: Oracle = (policies) => {
  const compiled = new Map(policies.map(({ resource_pattern }) => [resource_pattern, new RegExp(resource_pattern ?? '', 'u')]));
  const matches = (pattern: string, name: string): boolean => compiled.get(pattern)?.test(name) === true;
  // The oracle sorts at every question, which is quick where there is nothing to do.
  const sorted = readingOrder(policies);
  return (questions) => questions.map(({ principal, target, object }) => decide(sorted, principal, target, object, matches));
};

/** Priority, deny before allow, id. */
export const readingOrder = (policies: readonly Policy[]): Policy[] =>
  [...policies].sort(
    (a, b) => b.priority - a.priority || Number(b.effect === 'deny') - Number(a.effect === 'deny') || (a.id < b.id ? -1 : 1),
  );
