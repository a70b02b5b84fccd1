/** Finds roles and groups that policies name but no user has, and users that do not exist. Pure. */
import { type Known, unknownText } from '../analysis/analyse.ts';
import type { PolicyChange } from './plan.ts';

/** The roles and groups of all users, and their ids. */
export type Holders = Required<Pick<Known, 'roles' | 'groups' | 'users'>>;

/** Returns a warning for each name in changed policies that no user has. */
export function nobodyHas(changes: readonly PolicyChange[], { roles, groups, users }: Holders) {
  const known = { role: roles, group: groups, user: users };
  return changes.flatMap(({ file, after }) => {
    if (after === null || !after.enabled) return [];
    return after.subjects.flatMap(({ subject_type: type, subject_value: value }) => {
      if (type === 'everyone' || value === null || known[type].has(value)) return [];
      return [{ code: `unknown_${type}`, file, policy: after.name, message: unknownText(after.name, type, value) }];
    });
  });
}
