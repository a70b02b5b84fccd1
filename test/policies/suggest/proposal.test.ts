/** The priorities of suggested policies: no deny stops deciding unless it is named. */
import test from 'ava';
import { atOnce } from '../../../src/base/turns/slices.ts';
import type { Policy, PolicySubject } from '../../../src/engine/compile/policy.ts';
import { readInOrder } from '../../../src/policies/analysis/requests.ts';
import { type GrantOptions, type NumberedNeed, proposeGrants } from '../../../src/policies/suggest/proposal.ts';
import { policy } from '../policies.ts';

const id = (n: number): string => `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`;
const subject = (subject_type: PolicySubject['subject_type'], subject_value: string): PolicySubject => ({
  ...{ id: 's', subject_type, subject_value },
});
const deny = (n: number, priority: number, to: PolicySubject, over: Partial<Policy> = {}) =>
  policy(id(n), { effect: 'deny', priority, subjects: [to], resource_pattern: '^e', ...over });
const need = (over: Partial<NumberedNeed> = {}): NumberedNeed => ({
  ...{ at: 0, subject: 'a', target_id: 't', resource_type: 'tool', resource_name: 'echo', policy_id: null, count: 1, last: '' },
  principal: { sub: '', role: 'a', groups: [] },
  ...over,
});
const propose = (policies: readonly Policy[], needs: readonly NumberedNeed[], options: Partial<GrantOptions> = {}) =>
  proposeGrants(needs, atOnce(readInOrder(policies)), { subject_type: 'role', overDenies: false, minCount: 1, ...options });

test('a policy is evaluated after every deny that some caller with the subject can meet', (t) => {
  const priorityBeside = (one: Policy, options: Partial<GrantOptions> = {}): number | undefined =>
    propose([one], [need()], options).proposed[0]?.priority;
  const [role, group] = [subject('role', 'a'), subject('group', 'a')];
  t.is(priorityBeside(deny(1, -5, role)), -5);
  t.is(priorityBeside(deny(1, 5, role)), 0);
  t.is(priorityBeside(deny(1, -5, group)), -5, 'a caller with the role can be in the group');
  t.is(priorityBeside(deny(1, -5, subject('group', 'b')), { subject_type: 'group' }), -5, 'a caller can be in both groups');
  t.is(priorityBeside(deny(1, -5, subject('role', 'b'))), 0, 'a caller has one role');
  t.is(priorityBeside(deny(1, -5, role, { target_id: 'u' })), 0);
  t.is(priorityBeside(deny(1, -5, role, { resource_type: 'prompt' })), 0);
  t.is(priorityBeside(deny(1, -5, role, { resource_pattern: '^f' })), 0);
  t.is(priorityBeside(deny(1, -5, role, { resource_type: 'all', resource_pattern: null })), -5);
  t.is(priorityBeside(deny(1, -5, role, { enabled: false })), 0);
});

test('a policy over a deny has the least priority that comes before it, and names each deny that it outranks', (t) => {
  const policies = [deny(1, 7, subject('role', 'a')), deny(2, 3, subject('group', 'g')), deny(3, 9, subject('group', 'g'))];
  const needs = [need({ policy_id: id(1) }), need({ at: 1, resource_name: 'other' })];
  const { proposed, leftOut } = propose(policies, needs, { overDenies: true });
  t.deepEqual(
    proposed.map(({ resource_pattern, priority, outranks }) => [resource_pattern, priority, [...outranks].sort()]),
    [
      ['^echo$', 8, [id(1), id(2)]],
      ['^other$', 0, []],
    ],
  );
  t.deepEqual(leftOut, []);
  t.deepEqual(propose(policies, needs).leftOut, [{ reason: 'denied', need: 0 }]);
  const highest = [deny(1, 2 ** 31 - 1, subject('role', 'a'))];
  t.deepEqual(propose(highest, [need({ policy_id: id(1) })], { overDenies: true }).leftOut, [{ reason: 'highest', need: 0 }]);
});

test('the use of a target needs a policy of its own only if no policy for an object covers it', (t) => {
  const all = deny(1, 7, subject('role', 'a'), { resource_type: 'all', resource_pattern: null });
  const use = need({ at: 1, resource_type: null, resource_name: null });
  const patterns = (...given: Parameters<typeof propose>) =>
    propose(...given).proposed.map(({ resource_pattern }) => resource_pattern);
  t.deepEqual(patterns([], [use]), ['^$']);
  t.deepEqual(patterns([], [use, need()]), ['^echo$']);
  t.deepEqual(patterns([], [use, need({ subject: 'b' })]), ['^echo$', '^$']);
  // A caller for whom nothing matches, and one whom the deny refuses: the low policy does not let the second one in.
  t.deepEqual(patterns([all], [need(), { ...use, policy_id: id(1) }], { overDenies: true }), ['^echo$', '^$']);
});
