/** Finds roles, groups and users that policies name but that do not exist. Pure. */
import type { PolicyChange } from './plan.ts';

/** The roles and groups of all users, and their ids. */
export interface Holders {
  readonly roles: ReadonlySet<string>;
  readonly groups: ReadonlySet<string>;
  /** User ids. */
  readonly users: ReadonlySet<string>;
}

export interface PolicyWarning {
  readonly code: 'unknown_role' | 'unknown_group' | 'unknown_user';
  readonly file: string | null;
  readonly policy: string;
  /** Text for people. */
  readonly message: string;
}

/** Returns a warning for each name in changed policies that no user has. */
export function nobodyHas(changes: readonly PolicyChange[], { roles, groups, users }: Holders): PolicyWarning[] {
  const known = { role: roles, group: groups, user: users };
  return changes.flatMap(({ file, after }) => {
    if (after === null || !after.enabled) return [];
    return after.subjects.flatMap(({ subject_type: type, subject_value: value }): PolicyWarning[] => {
      if (type === 'everyone' || value === null || known[type].has(value)) return [];
      const message = `${JSON.stringify(after.name)} names an unknown ${type}: ${JSON.stringify(value)}.`;
      return [{ code: `unknown_${type}`, file, policy: after.name, message }];
    });
  });
}
