/** Questions with known answers. A module or instance that fails one of them is not used. */
import type { Policy, PolicyResourceType, PolicySubject } from './compile/policy.ts';
import type { NamedObject, PrincipalFacts } from './decision.ts';

const T1 = '10000000-0000-4000-8000-000000000000';
const T2 = '20000000-0000-4000-8000-000000000000';
const EVERYONE: PolicySubject = { id: '', subject_type: 'everyone', subject_value: null };
const of = (subject_type: 'role' | 'group' | 'user', subject_value: string): PolicySubject => ({
  id: '',
  subject_type,
  subject_value,
});

type Row = readonly [
  priority: number,
  effect: 'allow' | 'deny',
  target: string | null,
  type: PolicyResourceType,
  pattern: string | null,
  subject: PolicySubject,
  enabled?: boolean,
];

const ROWS: readonly Row[] = [
  [100, 'deny', null, 'tool', 'delete', of('group', 'interns')],
  [90, 'allow', null, 'all', null, of('role', 'admin')],
  [80, 'deny', T1, 'all', null, of('user', 'mallory')],
  [70, 'allow', T1, 'tool', '^get_', EVERYONE],
  [70, 'deny', T1, 'tool', '^get_secret$', EVERYONE],
  [60, 'allow', T1, 'tool', '(?i)^list_[a-z]+s$', of('role', 'dev')],
  [50, 'allow', T1, 'resource', '^file:///srv/.*$', of('role', 'dev')],
  [40, 'allow', T2, 'prompt', '_summary$', of('group', 'writers')],
  [30, 'allow', T1, 'prompt', '^(a|b)$', EVERYONE],
  [20, 'allow', T2, 'all', null, EVERYONE, false],
];

/** Returns the id of the policy in row n. */
export const goldenId = (row: number): string => `${String(row).padStart(8, '0')}-0000-4000-8000-000000000000`;

export const GOLDEN_POLICIES: readonly Policy[] = ROWS.map(
  ([priority, effect, target_id, resource_type, resource_pattern, subject, enabled = true], row) => ({
    id: goldenId(row),
    name: `golden ${row}`,
    description: null,
    target_id,
    resource_type,
    resource_pattern,
    effect,
    priority,
    enabled,
    subjects: [subject],
    created_at: 0,
    updated_at: 0,
  }),
);

export interface GoldenQuestion {
  readonly principal: PrincipalFacts;
  readonly target: string;
  /** null: the question is about the whole target. */
  readonly object: NamedObject | null;
  /** The row of the policy that decides; null: no policy, so deny. */
  readonly row: number | null;
}

const question = (who: string, target: string, object: string | null, row: number | null): GoldenQuestion => {
  const [sub = '', role = '', ...groups] = who.split(' ');
  const [resource_type, resource_name = ''] =
    object === null ? [] : (object.split(/ (.*)/s) as [NamedObject['resource_type'], string]);
  return {
    principal: { sub, role, groups },
    target,
    object: resource_type === undefined ? null : { resource_type, resource_name },
    row,
  };
};

export const GOLDEN_QUESTIONS: readonly GoldenQuestion[] = [
  question('ann user', T1, 'tool get_issue', 3),
  question('ann user', T1, 'tool get_secret', 4),
  question('ann user', T1, 'tool get_secrets', 3),
  question('ann user', T1, 'tool Get_issue', null),
  question('ann user', T2, 'tool get_issue', null),
  question('ann user', T1, 'resource get_issue', null),
  question('ann user interns', T1, 'tool get_deleted', 0),
  question('ann admin interns', T2, 'tool undelete', 0),
  question('ann admin interns', T2, 'prompt undelete', 1),
  question('ann admin', T2, 'tool undelete', 1),
  question('mallory user', T1, 'tool get_issue', 2),
  question('mallory admin', T1, 'tool get_issue', 1),
  question('ann dev', T1, 'tool LIST_issues', 5),
  question('ann dev', T1, 'tool list_issue', null),
  question('ann dev', T1, 'resource file:///srv/a', 6),
  question('ann dev', T1, 'resource file:///srv/a\nb', null),
  question('ann user readers writers', T2, 'prompt weekly_summary', 7),
  question('ann user readers writers', T2, 'prompt weekly_summary_', null),
  question('ann user', T1, 'prompt b', 8),
  question('ann user', T1, 'prompt ab', null),
  question('ann user', T1, null, 3),
  question('mallory user', T1, null, 2),
  question('ann user writers', T2, null, 7),
  question('ann user', T2, null, null),
];
