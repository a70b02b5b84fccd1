/** What the policies of an owner may say. Each member of a policy is checked against one member of the limits. Pure. */
import { inSlices } from '../../base/turns/slices.ts';
import { readPattern } from '../../engine/compile/pattern.ts';
import type { Effect, Policy, PolicyResourceType, ResourceType, SubjectType } from '../../engine/compile/policy.ts';
import { RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { shortestName, TooLarge } from '../analysis/automaton.ts';
import { createLibrary, domainOf } from '../analysis/names.ts';
import { BOUNDS } from '../analysis/search.ts';

/** A member that is absent limits nothing. */
export interface Limits {
  /** Ids of targets; null in the list: policies for every target. */
  readonly targets?: readonly (string | null)[];
  readonly resource_types?: readonly ResourceType[];
  /** Each name that the pattern of a policy matches must match one of these. */
  readonly resource_patterns?: readonly string[];
  readonly priority?: { readonly min?: number; readonly max?: number };
  readonly effects?: readonly Effect[];
  readonly subjects?: readonly LimitSubject[];
}

export interface LimitSubject {
  readonly subject_type: SubjectType;
  /** Absent or null: every subject of this type. */
  readonly subject_value?: string | null;
}

/** The limits by owner. An owner that is missing has no record. */
export type LimitsByOwner = ReadonlyMap<string, Limits>;

/** The members of a policy that limits concern. */
type LimitedMember = 'target_id' | 'resource_type' | 'resource_pattern' | 'effect' | 'priority' | 'subjects';

/** A member of a policy that is not within the limits. */
export interface Outside {
  readonly member: LimitedMember;
  readonly message: string;
  /** true: the comparison of patterns would exceed its budget, so it is unknown whether the pattern is within the limits. */
  readonly undecided: boolean;
}

/** `targetName`: what messages call a target; its id if it is left out. */
export type LimitCheck = (policy: Policy, limits: Limits, targetName?: (id: string) => string) => Promise<readonly Outside[]>;

/** Tool and prompt names are the same language; names of resources are longer. */
const typesOf = (type: PolicyResourceType): readonly ResourceType[] => (type === 'all' ? ['tool', 'resource'] : [type]);

/** Returns a check that compares each pattern with the same limits only once. It runs in slices. */
export function createLimitCheck(): LimitCheck {
  const namesOf = createLibrary();
  const known = new Map<string, string | null | undefined>();

  /** Returns a name that only the pattern matches; null: there is none; undefined: unknown. */
  function* nameOutside(type: ResourceType, pattern: string | null, patterns: readonly string[]) {
    const key = JSON.stringify([type === 'resource', pattern, patterns]);
    if (known.has(key)) return known.get(key);
    const found = yield* search(type, pattern, patterns);
    known.set(key, found);
    return found;
  }

  function* search(
    type: ResourceType,
    pattern: string | null,
    patterns: readonly string[],
  ): Generator<undefined, string | null | undefined> {
    // A stored pattern may be older than a rule for patterns.
    if ([pattern, ...patterns].some((one) => one !== null && typeof readPattern(one) === 'string')) return undefined;
    try {
      const exclude = patterns.map((one) => namesOf(one).automaton());
      return yield* shortestName([namesOf(pattern).automaton()], exclude, domainOf(type), { left: BOUNDS.steps });
    } catch (error) {
      if (error instanceof TooLarge) return undefined;
      throw error;
    }
  }

  function* outside(policy: Policy, limits: Limits, targetName: (id: string) => string): Generator<undefined, Outside[]> {
    const { targets, resource_types, resource_patterns, priority, effects, subjects } = limits;
    const found: Outside[] = [];
    const add = (member: LimitedMember, message: string, undecided = false): number =>
      found.push({ member, message: `is outside the limits of the owner: ${message}`, undecided });
    if (targets !== undefined && !targets.includes(policy.target_id)) {
      const what = policy.target_id === null ? 'it has no policies for every target' : 'it has no policies for this target';
      add('target_id', `${what}. ${allowedText(targets, (id) => (id === null ? 'every target' : targetName(id)))}`);
    }
    if (resource_types !== undefined) {
      const types = policy.resource_type === 'all' ? RESOURCE_TYPES : [policy.resource_type];
      if (!types.every((type) => resource_types.includes(type))) add('resource_type', allowedText(resource_types));
    }
    if (resource_patterns !== undefined) {
      for (const type of typesOf(policy.resource_type)) {
        const name = yield* nameOutside(type, policy.resource_pattern, resource_patterns);
        if (name === null) continue;
        if (name === undefined) {
          const why = 'the gateway cannot tell whether the pattern matches a name that the patterns of the limits do not';
          add('resource_pattern', `${why}. Use a simpler pattern`, true);
        } else {
          add(
            'resource_pattern',
            `it matches ${JSON.stringify(name)}, which no pattern of the limits does. ${allowedText(resource_patterns)}`,
          );
        }
        break;
      }
    }
    if (effects !== undefined && !effects.includes(policy.effect)) add('effect', allowedText(effects));
    const { min, max } = { min: priority?.min ?? -Infinity, max: priority?.max ?? Infinity };
    if (policy.priority < min || policy.priority > max) add('priority', `it must be from ${shown(min)} to ${shown(max)}`);
    if (subjects !== undefined) {
      const [covered, text] = [new Set(subjects.map(keyOf)), allowedText(subjects, textOf)];
      for (const subject of policy.subjects) {
        yield;
        if (!covered.has(keyOf(subject)) && !covered.has(subject.subject_type)) add('subjects', `${textOf(subject)}. ${text}`);
      }
    }
    return found;
  }

  return (policy, limits, targetName = (id) => id) => inSlices(outside(policy, limits, targetName));
}

/** A limit without a value covers every subject of its type. Its key is the type. */
const keyOf = ({ subject_type, subject_value = null }: LimitSubject): string =>
  subject_value === null ? subject_type : `${subject_type} ${subject_value}`;

const textOf = ({ subject_type, subject_value = null }: LimitSubject): string => {
  if (subject_type === 'everyone') return 'everyone';
  return subject_value === null ? `any ${subject_type}` : `${subject_type} ${JSON.stringify(subject_value)}`;
};

const shown = (priority: number): string =>
  Number.isFinite(priority) ? String(priority) : priority < 0 ? 'the lowest' : 'the highest';

/** An error message names at most this many allowed values. */
const VALUES_NAMED = 20;

function allowedText<T>(allowed: readonly T[], textOf: (value: T) => string = String): string {
  if (allowed.length === 0) return 'No value is within the limits';
  const more = allowed.length - VALUES_NAMED;
  return `Within the limits: ${allowed.slice(0, VALUES_NAMED).map(textOf).join(', ')}${more > 0 ? `, and ${more} more` : ''}`;
}
