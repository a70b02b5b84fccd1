/** A suggestion in the form of the API. */
import { timeOf } from '../../audit/chain/chain.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { FoundUser } from '../../state/found-users.ts';
import { type PolicyRef, policyRef } from '../files/test-run.ts';
import { timestamp } from '../schema.ts';
import type { Moment } from '../sets/candidate-set.ts';
import type { Suggestion } from './job.ts';
import { type Need, type NeedBook, objectKey } from './needs.ts';
import type { Proposed } from './proposal.ts';

/** More entries of one list are only counted. */
const LISTED = 1_000;
const OTHERS_NAMED = 20;

export type SuggestedJson = ReturnType<ReturnType<typeof suggestedJson>>;
export type LeftOutJson = ReturnType<typeof leftOutJson>[number];

/** Users who have a subject. */
export interface Holders {
  readonly ids: Set<string>;
  /** E-mails of some who did not ask, by id. */
  readonly others: Map<string, string>;
}

type Place = Pick<Proposed, 'subject_type' | 'subject_value' | 'target_id'>;

/** The keys of those who reach every target, and of those who reach this one of a few. */
const keysOf = ({ subject_type, subject_value, target_id }: Place): string[] => {
  const subject = `${subject_type}:${subject_value}`;
  return [subject, keyAt(target_id, subject)];
};

const keyAt = (targetId: string, subject: string): string => `${targetId} ${subject}`;

export const holdersOf = (proposed: readonly Place[]) =>
  new Map(proposed.flatMap(keysOf).map((key) => [key, { ids: new Set(), others: new Map() } as Holders]));

/** Counts the user among those who have a subject. `asked`: the ids of the users who asked; null: they are not all known. */
export function addHolder(
  holders: ReadonlyMap<string, Holders>,
  { user, reach }: FoundUser,
  asked: ReadonlySet<string> | null,
): void {
  const { id, role, groups, email } = user;
  const subjects = [...new Set([`user:${id}`, `role:${role}`, ...groups.map((group) => `group:${group}`)])];
  const keys = reach === null ? subjects : reach.flatMap((target) => subjects.map((subject) => keyAt(target, subject)));
  for (const key of keys) {
    const found = holders.get(key);
    if (found === undefined) continue;
    found.ids.add(id);
    if (asked?.has(id) === false && found.others.size < OTHERS_NAMED) found.others.set(id, email ?? id);
  }
}

/** Forgets what was counted for the user. */
export function removeHolder(holders: ReadonlyMap<string, Holders>, id: string): void {
  for (const { ids, others } of holders.values()) {
    ids.delete(id);
    others.delete(id);
  }
}

const targetNames = ({ targets }: Pick<Moment, 'targets'>) => new Map(targets.map(({ id, name }) => [id, name]));

export function suggestedJson(moment: Moment, needs: readonly Need[], book: NeedBook, holders: ReadonlyMap<string, Holders>) {
  const names = targetNames(moment);
  return (each: Suggestion['suggested'][number]) => {
    const { file, subject_type, subject_value, target_id, resource_type, priority, outranks } = each;
    const met = each.needs.flatMap((at) => needs[at] ?? []);
    const byName = new Map<string | null, { count: number; users: Set<string> }>();
    for (const need of met) {
      const known = byName.get(need.resource_name) ?? { count: 0, users: new Set() };
      known.count += need.count;
      for (const user of book.usersOf(need)) known.users.add(user);
      byName.set(need.resource_name, known);
    }
    const found = keysOf(each).flatMap((key) => holders.get(key) ?? []);
    return {
      ...{ file, subject_type, subject_value, target: names.get(target_id) ?? target_id, resource_type },
      names: [...byName].map(([name, { count: times, users }]) => ({ resource_name: name, count: times, users: users.size })),
      ...{ priority, outranks, holders: found.reduce((sum, { ids }) => sum + ids.size, 0) },
      other_holders: found.flatMap(({ others }) => [...others.values()]).slice(0, OTHERS_NAMED),
    };
  };
}

/** Policies as people know them; null: the policy is not in the set. */
function refsOf({ policies }: Pick<Moment, 'policies'>): (id: string) => PolicyRef | null {
  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  return (id) => {
    const policy = byId.get(id);
    return policy === undefined ? null : policyRef(policy, () => true);
  };
}

export function leftOutJson(moment: Moment, needs: readonly Need[], leftOut: Suggestion['leftOut']) {
  const [names, refOf] = [targetNames(moment), refsOf(moment)];
  return leftOut.slice(0, LISTED).flatMap(({ reason, need: at }) => {
    const need = needs[at];
    if (need === undefined) return [];
    const { subject, target_id, resource_type, resource_name, policy_id, count, last } = need;
    return [
      {
        ...{ reason, subject_value: subject, target: names.get(target_id) ?? target_id, resource_type, resource_name, count },
        policy: policy_id === null ? null : refOf(policy_id),
        last: { id: last, created_at: timestamp(timeOf(last)) },
      },
    ];
  });
}

export interface RoleParts {
  readonly role: string;
  readonly moment: Moment;
  readonly suggestion: Suggestion;
  readonly needs: readonly Need[];
  readonly listed: readonly Need[];
  /** Requests that are allowed without the role, by policy. */
  readonly others: ReadonlyMap<string, number>;
  /** Whether the policy is an allow that names the role. */
  readonly allows: (policy: StoredPolicy) => boolean;
  readonly counts: { readonly replayed: number; readonly lost: number };
}

export type RoleJson = ReturnType<typeof roleJson>;

/** What a suggestion for a role keeps and takes away. */
export function roleJson({ role, moment, suggestion, needs, listed, others, allows, counts }: RoleParts) {
  const [names, refOf] = [targetNames(moment), refsOf(moment)];
  const lost = new Set(suggestion.leftOut.map(({ need }) => need));
  const used = new Set(needs.filter((_, at) => !lost.has(at)).map(objectKey));
  const whole = new Set(suggestion.inexpressible);
  const unused = listed.filter((need) => !used.has(objectKey(need)) && !whole.has(need.policy_id ?? ''));

  const changed = new Set(suggestion.changes.flatMap(({ before }) => before?.id ?? []));
  const gone = new Set(suggestion.changes.flatMap(({ before, after }) => (after?.subjects.length ? [] : (before?.id ?? []))));
  const requests = new Map(others);
  for (const { policy_id, count } of needs) {
    const id = policy_id ?? '';
    if (whole.has(id)) requests.set(id, (requests.get(id) ?? 0) + count);
  }
  const kept = moment.policies
    .filter((policy) => !gone.has(policy.id) && (requests.has(policy.id) || allows(policy)))
    .map((policy) => ({
      policy: refOf(policy.id),
      reason: whole.has(policy.id)
        ? ('inexpressible' as const)
        : allows(policy) && !changed.has(policy.id)
          ? ('other_owner' as const)
          : ('other_subjects' as const),
      count: requests.get(policy.id) ?? 0,
    }))
    .sort((a, b) => b.count - a.count);
  return {
    ...{ role, replayed: counts.replayed, lost: counts.lost },
    kept: kept.slice(0, LISTED).flatMap(({ policy, ...rest }) => (policy === null ? [] : [{ policy, ...rest }])),
    unused: unused.slice(0, LISTED).map(({ target_id, resource_type, resource_name }) => ({
      ...{ target: names.get(target_id) ?? target_id, resource_type, resource_name },
    })),
    unused_count: unused.length,
  };
}
