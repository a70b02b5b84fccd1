/** Who can use what. It asks the engine about every subject with every object, one by one. */
import { csvOf } from '../audit/search/log-json.ts';
import { createPace } from '../base/turns/pace.ts';
import { pause } from '../base/turns/slices.ts';
import type { Effect, Policy, ResourceType, SubjectType } from '../engine/compile/policy.ts';
import type { Engine, NamedObject, PrincipalFacts } from '../engine/decision.ts';
import { type FoundUser, type Reach, reaches } from '../state/found-users.ts';
import { decideOne } from './questions.ts';

/** A caller whose access is listed. */
export interface Holder {
  readonly subject_type: SubjectType;
  readonly subject_value: string | null;
  readonly email: string | null;
  readonly facts: PrincipalFacts;
  /** null for subjects that are not users, too. */
  readonly reach: Reach;
}

export interface AccessObject {
  readonly target: { readonly id: string; readonly name: string };
  /** null: the target itself. */
  readonly object: NamedObject | null;
}

/** States that a subject can use an object. */
export interface AccessRow {
  readonly subject_type: SubjectType;
  readonly subject_value: string | null;
  /** Set for users only, as are role and groups. */
  readonly email: string | null;
  readonly role: string | null;
  readonly groups: readonly string[] | null;
  readonly target: string;
  /** null: the row says that the subject can use the target at all. */
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  readonly policy_id: string;
  readonly policy_name: string;
  readonly policy_priority: number;
}

/** Returns a caller who has this subject and nothing else. */
export function holderOf(subject_type: Exclude<SubjectType, 'user'>, subject_value: string | null): Holder {
  const facts: PrincipalFacts = {
    sub: '',
    role: subject_type === 'role' ? (subject_value ?? '') : '',
    groups: subject_type === 'group' && subject_value !== null ? [subject_value] : [],
  };
  return { subject_type, subject_value, email: null, facts, reach: null };
}

export function holderOfUser({ user, reach }: FoundUser): Holder {
  const { id, email, role, groups } = user;
  return { subject_type: 'user', subject_value: id, email, facts: { sub: id, role, groups }, reach };
}

/** Returns `everyone`, and every role and group that an enabled policy names. */
export async function namedHolders(policies: readonly Policy[]): Promise<Holder[]> {
  const roles = new Set<string>();
  const groups = new Set<string>();
  for (const { enabled, subjects } of policies) {
    await pause();
    if (!enabled) continue;
    for (const { subject_type, subject_value } of subjects) {
      if (subject_type === 'role' && subject_value !== null) roles.add(subject_value);
      if (subject_type === 'group' && subject_value !== null) groups.add(subject_value);
    }
  }
  return [
    holderOf('everyone', null),
    ...[...roles].sort().map((role) => holderOf('role', role)),
    ...[...groups].sort().map((group) => holderOf('group', group)),
  ];
}

/** Yields what each holder can use, in the order of holders and objects. Denied combinations have no row. `by`: who asks. */
export async function* accessRows(
  engine: Engine,
  holders: Iterable<Holder>,
  objects: readonly AccessObject[],
  by: string,
): AsyncGenerator<AccessRow> {
  const pace = createPace(by);
  for (const { subject_type, subject_value, email, facts, reach } of holders) {
    const isUser = subject_type === 'user';
    for (const { target, object } of objects) {
      await pace();
      if (!reaches(reach, target.id)) continue;
      const { effect, policy } = decideOne(engine, { principal: facts, targetId: target.id, object });
      if (effect !== 'allow' || policy === null) continue;
      yield {
        ...{ subject_type, subject_value, email },
        role: isUser ? facts.role : null,
        groups: isUser ? facts.groups : null,
        target: target.name,
        resource_type: object?.resource_type ?? null,
        resource_name: object?.resource_name ?? null,
        ...{ policy_id: policy.id, policy_name: policy.name, policy_priority: policy.priority },
      };
    }
  }
}

/** A decision about a holder and an object. */
export interface AccessCell {
  readonly effect: Effect;
  /** null: no policy matches. */
  readonly policy: { readonly id: string; readonly name: string } | null;
}

/** Returns the decision for each holder (rows) and each object (cells). `by`: who asks. */
export async function accessCells(
  engine: Engine,
  holders: readonly Holder[],
  objects: readonly AccessObject[],
  by: string,
): Promise<AccessCell[][]> {
  const pace = createPace(by);
  const rows: AccessCell[][] = [];
  for (const { facts } of holders) {
    const cells: AccessCell[] = [];
    for (const { target, object } of objects) {
      await pace();
      const { effect, policy } = decideOne(engine, { principal: facts, targetId: target.id, object });
      cells.push({ effect, policy: policy && { id: policy.id, name: policy.name } });
    }
    rows.push(cells);
  }
  return rows;
}

const COLUMNS = [
  ...['subject_type', 'subject_value', 'email', 'role', 'groups', 'target', 'resource_type', 'resource_name'],
  ...['policy_id', 'policy_name', 'policy_priority'],
] as (keyof AccessRow)[];

/** Yields CSV in the same form as exports of the audit log. */
export const accessCsv = (rows: AsyncIterable<AccessRow> | Iterable<AccessRow>): AsyncGenerator<string> => csvOf(COLUMNS, rows);
