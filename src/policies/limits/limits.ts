/** What the policies of an owner may say. Each member of a policy is checked against one member of the limits. Pure. */
import { inSlices, pause } from '../../base/turns/slices.ts';
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

/** A policy, and the limits of its owner. */
export interface Limited {
  readonly policy: Policy;
  readonly limits: Limits;
}

/** Returns what is outside, for each policy. `targetName`: what messages call a target; its id if it is left out. */
export type LimitCheck = (
  of: readonly Limited[],
  findNames: FindNames,
  targetName?: (id: string) => string,
) => Promise<readonly (readonly Outside[])[]>;

/** Names of this type that the pattern matches, and none of the patterns of the limits. */
export interface NamesOutside {
  readonly type: ResourceType;
  readonly pattern: string | null;
  readonly patterns: readonly string[];
}

type Found = string | null | undefined;

/** Returns one of the names, for each; null: there is none; undefined: the search would exceed its budget. */
export type FindNames = (outside: readonly NamesOutside[]) => Promise<readonly Found[]>;

/** Tool and prompt names are the same language; names of resources are longer. */
const typesOf = (type: PolicyResourceType): readonly ResourceType[] => (type === 'all' ? ['tool', 'resource'] : [type]);

/** A search may take a tenth of a second. The gateway runs it in a thread (`HeavyWork.findNames`). */
export function createNameSearch(): FindNames {
  const ofLimits = createLibrary();
  function* search({ type, pattern, patterns }: NamesOutside): Generator<undefined, Found> {
    // A stored pattern may be older than a rule for patterns.
    if ([pattern, ...patterns].some((one) => one !== null && typeof readPattern(one) === 'string')) return undefined;
    try {
      const exclude = patterns.map((one) => ofLimits(one).automaton());
      // Thousands of patterns are compared with the same limits. Each is needed once.
      const ofPattern = createLibrary();
      return yield* shortestName([ofPattern(pattern).automaton()], exclude, domainOf(type), { left: BOUNDS.steps });
    } catch (error) {
      if (error instanceof TooLarge) return undefined;
      throw error;
    }
  }
  return async (outside) => {
    const found: Found[] = [];
    for (const one of outside) found.push(await inSlices(search(one)));
    return found;
  };
}

/** Returns a check that searches the names outside of the same limits only once for each pattern. */
export function createLimitCheck(): LimitCheck {
  /** What was found, by the patterns of the limits: each time the limits are read, these are a new list. */
  const all = new Map<string, Map<string, Found>>();
  const known = new WeakMap<readonly string[], Map<string, Found>>();

  function foundWith(patterns: readonly string[]): Map<string, Found> {
    let found = known.get(patterns);
    if (found === undefined) {
      const key = JSON.stringify(patterns);
      found = all.get(key) ?? new Map<string, Found>();
      all.set(key, found);
      known.set(patterns, found);
    }
    return found;
  }

  /** Tool and prompt names are the same language. */
  const nameKey = (type: ResourceType, pattern: string | null): string => JSON.stringify([type === 'resource', pattern]);

  async function find(of: readonly Limited[], findNames: FindNames): Promise<void> {
    const asked = new Map<Map<string, Found>, Map<string, NamesOutside>>();
    for (const { policy, limits } of of) {
      const { resource_patterns: patterns } = limits;
      if (patterns === undefined) continue;
      await pause();
      const found = foundWith(patterns);
      const missing = asked.get(found) ?? new Map<string, NamesOutside>();
      asked.set(found, missing);
      for (const type of typesOf(policy.resource_type)) {
        const key = nameKey(type, policy.resource_pattern);
        if (!found.has(key) && !missing.has(key)) missing.set(key, { type, pattern: policy.resource_pattern, patterns });
      }
    }
    const all = [...asked].flatMap(([found, missing]) => [...missing].map(([key, outside]) => ({ found, key, outside })));
    if (all.length === 0) return;
    const names = await findNames(all.map(({ outside }) => outside));
    for (const [at, { found, key }] of all.entries()) found.set(key, names[at]);
  }

  function* outside({ policy, limits }: Limited, targetName: (id: string) => string): Generator<undefined, Outside[]> {
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
        const name = foundWith(resource_patterns).get(nameKey(type, policy.resource_pattern));
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
      const covered = new Set(subjects.map(keyOf));
      const others: LimitSubject[] = [];
      for (const subject of policy.subjects) {
        yield;
        if (!covered.has(keyOf(subject)) && !covered.has(subject.subject_type)) others.push(subject);
      }
      if (others.length > 0) add('subjects', `${someOf(others, textOf)}. ${allowedText(subjects, textOf)}`);
    }
    return found;
  }

  return async (of, findNames, targetName = (id) => id) => {
    await find(of, findNames);
    const found: (readonly Outside[])[] = [];
    for (const one of of) {
      await pause();
      found.push(await inSlices(outside(one, targetName)));
    }
    return found;
  };
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

/** A list in an error message names at most this many values. */
const VALUES_NAMED = 20;

function someOf<T>(values: readonly T[], textOf: (value: T) => string): string {
  const more = values.length - VALUES_NAMED;
  return `${values.slice(0, VALUES_NAMED).map(textOf).join(', ')}${more > 0 ? `, and ${more} more` : ''}`;
}

const allowedText = <T>(allowed: readonly T[], textOf: (value: T) => string = String): string =>
  allowed.length === 0 ? 'No value is within the limits' : `Within the limits: ${someOf(allowed, textOf)}`;
