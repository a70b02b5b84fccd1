/** Roles, groups and users that policies name and that are not there. Pure. */
import type { PolicyChange } from './plan.ts';

/** What the users have. */
export interface Holders {
  readonly roles: ReadonlySet<string>;
  readonly groups: ReadonlySet<string>;
  /** Ids. */
  readonly users: ReadonlySet<string>;
}

export interface PolicyWarning {
  readonly code: 'unknown_role' | 'unknown_group' | 'unknown_user';
  readonly file: string | null;
  readonly policy: string;
  /** For people. */
  readonly message: string;
}

/** What changed policies name and no user has. */
export function nobodyHas(changes: readonly PolicyChange[], { roles, groups, users }: Holders): PolicyWarning[] {
  const known = { role: roles, group: groups, user: users };
  return changes.flatMap(({ file, after }) => {
    if (after === null || !after.enabled) return [];
    return after.subjects.flatMap(({ subject_type: type, subject_value: value }): PolicyWarning[] => {
      if (type === 'everyone' || value === null || known[type].has(value)) return [];
      const message = `${JSON.stringify(after.name)} names a ${type} that nobody has: ${JSON.stringify(value)}.`;
      return [{ code: `unknown_${type}`, file, policy: after.name, message }];
    });
  });
}
