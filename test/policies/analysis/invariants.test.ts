import test from 'ava';
import type { Policy } from '../../../src/engine/compile/policy.ts';
import type { Guarded } from '../../../src/policies/analysis/invariants.ts';
import { policy } from '../policies.ts';
import { breaches } from './whole.ts';

const subject = (subject_type: 'everyone' | 'group' | 'role' | 'user', subject_value: string | null = null) => ({
  ...{ id: `${subject_type} ${subject_value}`, subject_type, subject_value },
});
const EVERYONE = [subject('everyone')];
const STAFF = [subject('group', 'staff')];

const guarded = (never: Partial<Guarded['never']> = {}, excepted: readonly string[] = []): Guarded => ({
  never: {
    ...{ subjects: STAFF, except: { subjects: [], targets: [] }, targets: null, resource_type: 'tool' },
    ...{ resource_pattern: 'exec', ...never },
  },
  excepted: new Set(excepted),
});

const kindOf = (before: readonly Policy[], after: readonly Policy[], invariant: Guarded): string | undefined =>
  breaches(before, after, [invariant])[0]?.kind;

const allow = policy('allow', { subjects: EVERYONE });
const deny = policy('deny', { subjects: EVERYONE, effect: 'deny', priority: 1 });

test('an invariant for every target also covers targets that do not exist yet', (t) => {
  const [verdict] = breaches([], [allow], [guarded()], { targets: ['known'] });
  t.like(verdict, { kind: 'broken', breach: { target: 'known', resource_name: 'exec' } });
  // Each existing target is exempt or denied, so only a target of tomorrow breaks the invariant.
  const exempt = guarded({ except: { subjects: [], targets: ['known'] } });
  const denied = { ...deny, target_id: 'other' };
  const [tomorrow] = breaches([], [allow, denied], [exempt], { targets: ['known', 'other'] });
  t.true(tomorrow?.kind === 'broken' && !['known', 'other'].includes(tomorrow.breach.target));
  t.is(kindOf([], [{ ...allow, target_id: 'known' }], exempt), 'kept');
  t.is(kindOf([], [{ ...allow, target_id: 'third' }], guarded({ targets: ['known', 'other'] })), 'kept');
  t.is(kindOf([], [{ ...allow, target_id: 'other' }], guarded({ targets: ['known', 'other'] })), 'broken');
});

test('deleting a deny, or moving it below an allow, breaks an invariant', (t) => {
  t.is(kindOf([deny, allow], [allow], guarded()), 'broken');
  t.is(kindOf([deny, allow], [{ ...deny, priority: -1 }, allow], guarded()), 'broken');
  t.is(kindOf([deny, allow], [{ ...deny, enabled: false }, allow], guarded()), 'broken');
  t.is(kindOf([deny, allow], [deny], guarded()), 'kept');
  t.is(kindOf([deny, allow], [{ ...deny, resource_pattern: 'exec' }, allow], guarded()), 'kept');
  // The request was allowed before.
  t.is(kindOf([allow], [allow, { ...allow, id: 'second', priority: 5 }], guarded()), 'kept');
});

test('callers whom an exempt subject fits are not covered', (t) => {
  const admins = guarded({ except: { subjects: [subject('role', 'admins')], targets: [] } });
  t.is(kindOf([], [policy('p', { subjects: [subject('role', 'admins')] })], admins), 'kept');
  t.is(kindOf([], [policy('p', { subjects: [subject('role', 'others')] })], admins), 'broken');
  // A caller has one role only, and one id.
  const two = guarded({ subjects: [subject('role', 'a')] });
  t.is(kindOf([], [policy('p', { subjects: [subject('role', 'b')] })], two), 'kept');
  t.is(kindOf([], [policy('p', { subjects: [subject('group', 'b')] })], two), 'broken');
});

test('what an excepted policy decides does not break an invariant, and what it leaves to others does', (t) => {
  t.is(kindOf([], [allow], guarded({}, ['allow'])), 'kept');
  const later = { ...allow, id: 'later', priority: -1 };
  t.is(kindOf([allow, later], [later], guarded({}, ['allow'])), 'broken');
  t.is(kindOf([allow, later], [later, { ...allow, resource_pattern: '^a' }], guarded({}, ['allow'])), 'broken');
  t.is(kindOf([allow, later], [allow], guarded({}, ['allow'])), 'kept');
});

test('a check that exceeds its limits is undecided, and an unreadable invariant covers every name', (t) => {
  const hard = ['x[ab]{9}c.{12}d', 'a.{12}b'].map((resource_pattern, i) =>
    policy(`p${i}`, { subjects: EVERYONE, resource_pattern, effect: i === 0 ? 'allow' : 'deny', priority: i }),
  );
  const [verdict] = breaches([], hard, [guarded({ resource_pattern: '[bc].{11}d' })], {
    bounds: { steps: 3, allSteps: 1_000 },
  });
  t.is(verdict?.kind, 'undecided');
  t.is(breaches([], hard, [guarded()], { bounds: { steps: 1_000, allSteps: 0 } })[0]?.kind, 'undecided');
  t.is(kindOf([], [{ ...allow, resource_pattern: '^list$' }], guarded({ resource_pattern: '(' })), 'broken');
});
