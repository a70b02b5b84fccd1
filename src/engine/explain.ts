/** Explains a decision: which policy decides, which policies are evaluated before it, and why those do not match. Pure. */
import { inReadingOrder, type ReadPolicy } from './compile/compile.ts';
import type { Policy } from './compile/policy.ts';
import type { NamedObject, PrincipalFacts } from './decision.ts';

/** A null `object` asks whether the caller may use the target at all. */
export interface Question {
  readonly principal: PrincipalFacts;
  readonly targetId: string;
  readonly object: NamedObject | null;
}

/**
 * The reasons why a policy does not match, in the order in which they are checked: the first one counts.
 * - `unreadable`: the policy is an allow in a stored form that the gateway does not accept, so it grants nothing.
 * - For a question about the target, a deny that covers only a type or a pattern does not match.
 */
export const MISFITS = ['enabled', 'unreadable', 'target', 'resource_type', 'subject', 'pattern'] as const;
export type Misfit = (typeof MISFITS)[number];

/** How far one policy matches, before its pattern is tested against the name. */
export interface Reading<P extends Policy = Policy> {
  readonly policy: P;
  /** null: the policy matches if its pattern does. */
  readonly misfit: Misfit | null;
  /** The pattern to test against the name; null: none. */
  readonly pattern: string | null;
}

export interface Explanation<P extends Policy = Policy> {
  /** The first policy that matches; null: none. */
  readonly policy: P | null;
  /** All policies evaluated before it, in the order of evaluation. */
  readonly passedOver: readonly { readonly policy: P; readonly misfit: Misfit }[];
}

/** `as`: what the compiler made of the policy; null: nothing. */
interface Entry<P extends Policy> {
  readonly policy: P;
  readonly as: ReadPolicy | null;
}

/** The order of evaluation by policy set, because most questions are about one set. */
const ordered = new WeakMap<
  readonly Policy[],
  { readonly read: readonly ReadPolicy[]; readonly entries: readonly Entry<Policy>[] }
>();

function inOrder<P extends Policy>(policies: readonly P[], read: readonly ReadPolicy[]): readonly Entry<P>[] {
  const known = ordered.get(policies);
  if (known?.read === read) return known.entries as readonly Entry<P>[];
  const rest = new Map(policies.map((policy) => [policy.id, policy]));
  const entries: Entry<P>[] = [];
  for (const as of read) {
    const policy = rest.get(as.id);
    if (policy !== undefined) entries.push({ policy, as });
    rest.delete(as.id);
  }
  for (const policy of rest.values()) entries.push({ policy, as: null });
  // Most of them are in this order already, which makes the sort short.
  entries.sort((a, b) => inReadingOrder(a.as ?? a.policy, b.as ?? b.policy));
  ordered.set(policies, { read, entries });
  return entries;
}

/**
 * Returns a reading of every policy, in the order of evaluation. Pauses after each. `read`: what the compiler made of `policies` for the engine, in
 * the order of evaluation. Neither list may change later.
 */
export function* readingsInSteps<P extends Policy>(
  policies: readonly P[],
  read: readonly ReadPolicy[],
  question: Question,
): Generator<undefined, Reading<P>[]> {
  const groups = new Set(question.principal.groups);
  const readings: Reading<P>[] = [];
  for (const { policy, as } of inOrder(policies, read)) {
    if (as === null) readings.push({ policy, misfit: policy.enabled ? 'unreadable' : 'enabled', pattern: null });
    else {
      const misfit = misfitOf(as, question, groups);
      readings.push({ policy, misfit, pattern: misfit === null && question.object !== null ? as.pattern : null });
    }
    yield;
  }
  return readings;
}

/** `groups`: those of the principal. A policy can be about a thousand groups, and the principal in as many. */
function misfitOf(as: ReadPolicy, { principal, targetId, object }: Question, groups: ReadonlySet<string>): Misfit | null {
  const { target, type, subjects, pattern, effect } = as;
  const onTarget = object === null;
  if (target !== null && target !== targetId) return 'target';
  if (onTarget ? effect === 'deny' && type !== 'all' : type !== 'all' && type !== object.resource_type) return 'resource_type';
  if (!subjects.some((subject) => fitsSubject(subject, principal, groups))) return 'subject';
  return onTarget && effect === 'deny' && pattern !== null ? 'pattern' : null;
}

function fitsSubject([kind, value = '']: readonly string[], principal: PrincipalFacts, groups: ReadonlySet<string>): boolean {
  switch (kind) {
    case 'everyone':
      return true;
    case 'role':
      return value === principal.role;
    case 'group':
      return groups.has(value);
    case 'user':
      return value === principal.sub;
    default:
      return false;
  }
}

/** Returns the distinct patterns that must be tested. Patterns after a policy that matches without one are left out. */
export function patternsToTry(readings: readonly Reading[]): string[] {
  const certain = readings.findIndex(({ misfit, pattern }) => misfit === null && pattern === null);
  const before = certain === -1 ? readings : readings.slice(0, certain);
  return [...new Set(before.flatMap(({ pattern }) => (pattern === null ? [] : [pattern])))];
}

/** `fitting`: those of `patternsToTry` that match the name. */
export function explain<P extends Policy>(readings: readonly Reading<P>[], fitting: ReadonlySet<string>): Explanation<P> {
  const passedOver: { policy: P; misfit: Misfit }[] = [];
  for (const { policy, misfit, pattern } of readings) {
    if (misfit === null && (pattern === null || fitting.has(pattern))) return { policy, passedOver };
    passedOver.push({ policy, misfit: misfit ?? 'pattern' });
  }
  return { policy: null, passedOver };
}
