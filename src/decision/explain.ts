/** Why a request is decided as it is: each policy that is read before the one that decides, and why it does not. Pure. */
import { inReadingOrder, type ReadPolicy } from '../policies/compile.ts';
import type { Policy } from '../policies/document.ts';
import type { NamedObject, PrincipalFacts } from './decision.ts';

/** `object` null: may this caller use the target at all? */
export interface Question {
  readonly principal: PrincipalFacts;
  readonly targetId: string;
  readonly object: NamedObject | null;
}

/**
 * The first of these, in this order, that keeps a policy from fitting. `unreadable`: it is an allow that was stored in a form
 * which the gateway does not take, and grants nothing. Asked about the target, a deny of less than everything
 * does not speak of it, by its type or its pattern.
 */
export const MISFITS = ['enabled', 'unreadable', 'target', 'resource_type', 'subject', 'pattern'] as const;
export type Misfit = (typeof MISFITS)[number];

/** A policy as far as it can be told without looking for its pattern in the name. */
export interface Reading {
  readonly policy: Policy;
  /** null: it fits, if its pattern does. */
  readonly misfit: Misfit | null;
  /** To be looked for in the name; null: none has to be. */
  readonly pattern: string | null;
}

export interface Explanation {
  /** The first that fits; null: none does. */
  readonly policy: Policy | null;
  /** All that are read before, in this order. */
  readonly passedOver: readonly { readonly policy: Policy; readonly misfit: Misfit }[];
}

/** Every policy in reading order. `read` is what the compiler made of `policies`: what the engine goes by. */
export function readingsFor(policies: readonly Policy[], read: readonly ReadPolicy[], question: Question): Reading[] {
  const readById = new Map(read.map((policy) => [policy.id, policy]));
  return policies
    .map((policy) => ({ policy, as: readById.get(policy.id) }))
    .sort((a, b) => inReadingOrder(a.as ?? a.policy, b.as ?? b.policy))
    .map(({ policy, as }): Reading => {
      if (as === undefined) return { policy, misfit: policy.enabled ? 'unreadable' : 'enabled', pattern: null };
      const misfit = misfitOf(as, question);
      return { policy, misfit, pattern: misfit === null && question.object !== null ? as.pattern : null };
    });
}

function misfitOf({ target, type, subjects, pattern, effect }: ReadPolicy, question: Question): Misfit | null {
  const { principal, targetId, object } = question;
  const onTarget = object === null;
  if (target !== null && target !== targetId) return 'target';
  if (onTarget ? effect === 'deny' && type !== 'all' : type !== 'all' && type !== object.resource_type) return 'resource_type';
  if (!subjects.some((subject) => fitsSubject(subject, principal))) return 'subject';
  return onTarget && effect === 'deny' && pattern !== null ? 'pattern' : null;
}

function fitsSubject([kind, value = '']: readonly string[], { sub, role, groups }: PrincipalFacts): boolean {
  switch (kind) {
    case 'everyone':
      return true;
    case 'role':
      return value === role;
    case 'group':
      return groups.includes(value);
    case 'user':
      return value === sub;
    default:
      return false;
  }
}

/** The distinct patterns that have to be looked for: none that is read after a policy that fits without one. */
export function patternsToTry(readings: readonly Reading[]): string[] {
  const certain = readings.findIndex(({ misfit, pattern }) => misfit === null && pattern === null);
  const before = certain === -1 ? readings : readings.slice(0, certain);
  return [...new Set(before.flatMap(({ pattern }) => (pattern === null ? [] : [pattern])))];
}

/** `fitting`: those of `patternsToTry` that are found in the name. */
export function explain(readings: readonly Reading[], fitting: ReadonlySet<string>): Explanation {
  const passedOver: { policy: Policy; misfit: Misfit }[] = [];
  for (const { policy, misfit, pattern } of readings) {
    if (misfit === null && (pattern === null || fitting.has(pattern))) return { policy, passedOver };
    passedOver.push({ policy, misfit: misfit ?? 'pattern' });
  }
  return { policy: null, passedOver };
}
