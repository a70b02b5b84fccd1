/** Random policy sets for a target with the tools of the reference server, also with hostile names. */
import fc from 'fast-check';
import type { Person } from '../support/gateway.ts';
import { HOSTILE } from './scene.ts';

/** How many random sets the pages are compared on. */
export const SETS = 32;

export const matches = (pattern: string, name: string): boolean => new RegExp(pattern, 'u').test(name);

const subject = (users: readonly Person[]) =>
  fc.constantFrom(
    { subject_type: 'everyone', subject_value: null },
    { subject_type: 'role', subject_value: 'user' },
    { subject_type: 'role', subject_value: 'Dev' },
    { subject_type: 'group', subject_value: 'dev' },
    { subject_type: 'group', subject_value: HOSTILE },
    ...users.map(({ id }) => ({ subject_type: 'user', subject_value: id })),
  );

export const policyOf = (users: readonly Person[], targets: readonly string[]) =>
  fc.record({
    name: fc.constantFrom('a', 'b', HOSTILE),
    enabled: fc.boolean(),
    effect: fc.constantFrom('allow', 'deny'),
    priority: fc.integer({ min: 0, max: 3 }),
    target_id: fc.constantFrom(null, ...targets),
    resource_type: fc.constantFrom('tool', 'resource', 'prompt', 'all'),
    resource_pattern: fc.constantFrom(null, '^echo$', 'get-', 'e', '^get-(sum|env)$', 'x'),
    subjects: fc.uniqueArray(subject(users), { maxLength: 3, selector: (one) => JSON.stringify(one) }),
  });
