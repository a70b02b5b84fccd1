/** Which policies would allow what is needed, and nothing else. Pure. */
import type { ReadPolicy } from '../../engine/compile/compile.ts';
import type { PolicySubject, ResourceType, StoredPolicy, SubjectType } from '../../engine/compile/policy.ts';
import { TooLarge } from '../analysis/automaton.ts';
import { canBeAsked, createLibrary } from '../analysis/names.ts';
import { groupBy } from '../analysis/requests.ts';
import { isOf } from '../files/file.ts';
import { exactPatterns, NO_NAME } from './exact-pattern.ts';
import type { Need } from './needs.ts';

/** A need, with its number in the list of needs. */
export interface NumberedNeed extends Need {
  readonly at: number;
}

export interface Proposed {
  readonly subject_type: SubjectType;
  readonly subject_value: string;
  readonly target_id: string;
  readonly resource_type: ResourceType;
  readonly resource_pattern: string;
  /** Empty: the policy allows only the use of the target. */
  readonly names: readonly string[];
  readonly priority: number;
  /** The numbers of the needs that this policy meets. */
  readonly needs: readonly number[];
  /** The ids of denies that decide before the policy exists, for some requests that it allows. */
  readonly outranks: readonly string[];
}

/**
 * - `denied`: a deny decides, and the suggestion may not outrank it.
 * - `highest`: a deny decides that has the highest priority.
 * - `inexpressible`: no pattern within the limits matches exactly this name, or no request can have it.
 * - `rare`: the requests are too few.
 * - `too_many`: there would be too many policies.
 */
export type LeftOutReason = 'denied' | 'highest' | 'inexpressible' | 'rare' | 'too_many';

export interface LeftOut {
  readonly reason: LeftOutReason;
  readonly need: number;
}

/** No person would review more. */
export const MAX_PROPOSED = 500;
/** A policy that outranks nothing has this priority, or a lower one if a deny has a lower one. */
const LOW = 0;
/** The highest priority that a policy can have. */
export const HIGHEST = 2 ** 31 - 1;

export interface Grants {
  readonly proposed: readonly Proposed[];
  readonly leftOut: readonly LeftOut[];
}

export interface GrantOptions {
  readonly subject_type: Exclude<SubjectType, 'everyone'>;
  /** Whether the policies may be evaluated before denies that decide now. */
  readonly overDenies: boolean;
  readonly minCount: number;
}

/** `read`: the policies as the engine reads them. The needs are sorted, the most important first. */
export function proposeGrants(
  needs: readonly NumberedNeed[],
  read: readonly ReadPolicy[],
  { subject_type, overDenies, minCount }: GrantOptions,
): Grants {
  const denies = new Map(read.filter(({ effect }) => effect === 'deny').map((deny) => [deny.id, deny]));
  const leftOut: LeftOut[] = [];
  const refuse = (reason: LeftOutReason, of: readonly NumberedNeed[]): void =>
    void leftOut.push(...of.map(({ at }) => ({ reason, need: at })));

  const objects = groupBy(needs, ({ subject, target_id, resource_type, resource_name }) =>
    JSON.stringify([subject, target_id, resource_type, resource_name]),
  );
  const wanted: { readonly needs: readonly NumberedNeed[]; readonly priority: number | null }[] = [];
  for (const same of objects.values()) {
    const [denied, open] = [
      same.filter(({ policy_id }) => policy_id !== null),
      same.filter(({ policy_id }) => policy_id === null),
    ];
    if (count(same) < minCount) refuse('rare', same);
    else if (!isExpressible(same[0])) refuse('inexpressible', same);
    else if (overDenies && denied.length > 0) {
      const highest = Math.max(...denied.map(({ policy_id }) => denies.get(policy_id ?? '')?.priority ?? HIGHEST));
      if (highest >= HIGHEST) refuse('highest', same);
      else wanted.push({ needs: same, priority: highest + 1 });
    } else {
      refuse('denied', denied);
      if (open.length > 0) wanted.push({ needs: open, priority: null });
    }
  }

  const priorities = createPriorities([...denies.values()]);
  const proposed: Proposed[] = [];
  const groups = groupBy(wanted, ({ needs: [need], priority }) =>
    JSON.stringify([need?.subject, need?.target_id, need?.resource_type, priority]),
  );
  // A policy for an object also lets its callers use the target, so those for the use come last.
  const sorted = [...groups.values()].sort((a, b) => Number(isUse(a[0]?.needs[0])) - Number(isUse(b[0]?.needs[0])));
  for (const group of sorted) {
    const [one] = group;
    const [need] = one?.needs ?? [];
    if (one === undefined || need === undefined) continue;
    const all = group.flatMap((each) => each.needs);
    const place = { subject_type, subject_value: need.subject, target_id: need.target_id };
    const { resource_type } = need;
    if (resource_type === null) {
      const covering = proposed.findIndex(
        (other) =>
          other.subject_value === place.subject_value &&
          other.target_id === place.target_id &&
          (one.priority === null || other.priority >= one.priority),
      );
      const other = proposed[covering];
      if (other !== undefined) {
        proposed[covering] = { ...other, needs: [...other.needs, ...all.map(({ at }) => at)] };
        continue;
      }
    }
    const { exact, inexpressible } =
      resource_type === null ? { exact: [{ pattern: NO_NAME, names: [] }], inexpressible: [] } : exactPatterns(all.map(nameOf));
    refuse('inexpressible', among(all, inexpressible));
    for (const { pattern, names } of exact) {
      const met = resource_type === null ? all : among(all, names);
      if (proposed.length >= MAX_PROPOSED) {
        refuse('too_many', met);
        continue;
      }
      const facing = priorities(place, resource_type, names);
      const priority = one.priority ?? Math.min(LOW, ...facing.map((deny) => deny.priority));
      proposed.push({
        ...place,
        ...{ resource_type: resource_type ?? 'tool', resource_pattern: pattern, names, priority },
        needs: met.map(({ at }) => at),
        outranks: facing.filter((deny) => deny.priority < priority).map(({ id }) => id),
      });
    }
  }
  return { proposed, leftOut };
}

const nameOf = ({ resource_name }: Need): string => resource_name ?? '';
const isUse = (need: Need | undefined): boolean => need?.resource_type === null;
const count = (needs: readonly Need[]): number => needs.reduce((sum, need) => sum + need.count, 0);

function among(needs: readonly NumberedNeed[], names: readonly string[]): NumberedNeed[] {
  const known = new Set(names);
  return needs.filter((need) => known.has(nameOf(need)));
}

/** A name that no request can contain, although it is in the log, gets no policy. */
const isExpressible = (need: Need | undefined): boolean =>
  need !== undefined && (need.resource_type === null || canBeAsked(need.resource_type, nameOf(need)));

type Place = Pick<Proposed, 'subject_type' | 'subject_value' | 'target_id'>;

/** Returns a function that finds the denies that match some request of the subject for one of the names, or for the use of the target. */
function createPriorities(denies: readonly ReadPolicy[]) {
  const library = createLibrary();
  const byTarget = groupBy(denies, ({ target }) => JSON.stringify(target));
  const fits = (pattern: string | null, names: readonly string[]): boolean => {
    const known = library(pattern);
    try {
      return known.isEvery || names.some((name) => known.has(name));
    } catch (error) {
      // In doubt, the deny counts as a match: then the policy does not outrank it, or the report names it.
      if (error instanceof TooLarge) return true;
      throw error;
    }
  };
  return ({ subject_type, subject_value, target_id }: Place, type: ResourceType | null, names: readonly string[]): ReadPolicy[] =>
    [null, target_id]
      .flatMap((target) => byTarget.get(JSON.stringify(target)) ?? [])
      .filter(
        (deny) =>
          (deny.type === 'all' || deny.type === type) &&
          deny.subjects.some(([kind, value]) => kind !== subject_type || kind === 'group' || value === subject_value) &&
          fits(deny.pattern, names),
      );
}

export interface LeastOptions {
  readonly role: string;
  readonly owner: string;
  readonly minCount: number;
}

export interface Least extends Grants {
  /** The policies without the role in those allows that can be replaced. */
  readonly rest: readonly StoredPolicy[];
  /** The ids of the policies that keep the role because the names that they allow cannot be written exactly. */
  readonly inexpressible: readonly string[];
}

const isRole = ({ subject_type, subject_value }: PolicySubject, role: string): boolean =>
  subject_type === 'role' && subject_value === role;

/** Whether the policy is an allow that names the role. */
export const allowsRole = ({ enabled, effect, subjects }: StoredPolicy, role: string): boolean =>
  enabled && effect === 'allow' && subjects.some((subject) => isRole(subject, role));

/** Returns the set without the role in the allows of the owner, and in those that belong to no file. `kept`: ids of policies that stay. */
export function withoutRole(
  policies: readonly StoredPolicy[],
  { role, owner }: Pick<LeastOptions, 'role' | 'owner'>,
  kept: ReadonlySet<string> = new Set(),
): StoredPolicy[] {
  return policies.map((policy) => {
    const { id, managed_as, subjects } = policy;
    const isReplaced = allowsRole(policy, role) && !kept.has(id) && (managed_as === null || isOf(managed_as, owner));
    return isReplaced ? { ...policy, subjects: subjects.filter((subject) => !isRole(subject, role)) } : policy;
  });
}

/**
 * Each policy that is proposed is a part of one that allows the role something now, with the same priority: so it allows nothing more.
 */
export function proposeLeast(needs: readonly NumberedNeed[], policies: readonly StoredPolicy[], options: LeastOptions): Least {
  const { role, minCount } = options;
  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  const deciding = ({ policy_id }: Need): StoredPolicy | undefined => byId.get(policy_id ?? '');
  const leftOut: LeftOut[] = [];
  const wanted: NumberedNeed[] = [];
  for (const need of needs) {
    if (need.count < minCount) leftOut.push({ reason: 'rare', need: need.at });
    else wanted.push(need);
  }

  const proposed: Proposed[] = [];
  const kept = new Set<string>();
  const place = { subject_type: 'role', subject_value: role } as const;
  const groups = groupBy(
    wanted.filter(({ resource_type }) => resource_type !== null),
    (need) => JSON.stringify([need.target_id, need.resource_type, deciding(need)?.priority]),
  );
  for (const group of groups.values()) {
    const [need] = group;
    const policy = need && deciding(need);
    if (need === undefined || need.resource_type === null || policy === undefined) continue;
    const expressible = group.filter(isExpressible);
    const { exact, inexpressible } = exactPatterns(expressible.map(nameOf));
    const others = [...group.filter((each) => !isExpressible(each)), ...among(group, inexpressible)];
    for (const { policy_id } of others) kept.add(policy_id ?? '');
    for (const { pattern, names } of exact) {
      proposed.push({
        ...place,
        ...{ target_id: need.target_id, resource_type: need.resource_type, resource_pattern: pattern, names },
        ...{ priority: policy.priority, needs: among(expressible, names).map(({ at }) => at), outranks: [] },
      });
    }
  }
  for (const use of wanted.filter(isUse)) {
    const policy = deciding(use);
    if (policy === undefined) continue;
    const { priority, resource_type } = policy;
    if (proposed.some((other) => other.target_id === use.target_id && other.priority >= priority)) continue;
    proposed.push({
      ...place,
      ...{ target_id: use.target_id, resource_type: resource_type === 'all' ? 'tool' : resource_type },
      ...{ resource_pattern: NO_NAME, names: [], priority, needs: [use.at], outranks: [] },
    });
  }
  // A policy that keeps the role already allows what its parts would allow.
  const needed = proposed.filter(({ needs: met }) => met.some((at) => !kept.has(needs[at]?.policy_id ?? '')));
  return { proposed: needed, leftOut, rest: withoutRole(policies, options, kept), inexpressible: [...kept] };
}
