import test from 'ava';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { keepWork, readPattern } from '../../../src/engine/compile/pattern.ts';
import type { Policy, PolicySubject } from '../../../src/engine/compile/policy.ts';
import {
  checkPolicySet,
  checkPolicySetInSteps,
  MAX_BUCKET_COST,
  MAX_SEARCHES,
  problemsOfChange,
} from '../../../src/engine/compile/set-limits.ts';
import { NO_OWNER, type OwnedPolicy, type SetProblem } from '../../../src/engine/compile/shares.ts';
import { policyWith } from '../support.ts';

/** The problems with what patterns cost; a regular expression is also searched for. */
const costProblems = (policies: readonly Policy[]): SetProblem[] =>
  checkPolicySet(policies).filter(({ limit }) => limit.startsWith('cost '));

test('a set is refused if the patterns of one target and type cost too much together, over all groups', (t) => {
  const dear = (n: number) => `^x${n}[a-z0-9]{1,900}$`;
  const each = readPattern(dear(10));
  const perGroup = Math.floor(MAX_BUCKET_COST / (typeof each === 'string' ? 1 : each.cost)) - 1;
  const groups = (count: number) =>
    Array.from({ length: count * perGroup }, (_, n) => {
      const subjects = [{ id: `s${n}`, subject_type: 'group' as const, subject_value: `g${n % count}` }];
      return policyWith({ id: `p${n}`, resource_pattern: dear(10 + n), subjects });
    });
  t.deepEqual(costProblems(groups(4)), []);
  const [problem, ...more] = costProblems(groups(6));
  t.deepEqual(more, []);
  t.regex(
    problem?.message ?? '',
    /^The patterns for all subjects, tool, every target cost \d+ together, more than the limit of 200000\. Use simpler patterns\.$/,
  );
});

test('a large set is checked in short steps', (t) => {
  const set = Array.from({ length: 1_000 }, (_, n) => policyWith({ id: `p${n}`, resource_pattern: `^x${n}[a-z]+$` }));
  t.true([...checkPolicySetInSteps(set)].length >= 1_000 / 20);
});

test('a set is refused if the patterns of one bucket cost too much together', (t) => {
  const dear = (n: number) => `^x${n}[a-z0-9]{1,900}$`;
  const each = readPattern(dear(10));
  t.not(typeof each, 'string');
  const count = Math.ceil(MAX_BUCKET_COST / (typeof each === 'string' ? 1 : each.cost)) + 1;
  const set = Array.from({ length: count }, (_, n) => policyWith({ id: `p${n}`, resource_pattern: dear(10 + n) }));
  const [problem, ...more] = checkPolicySet(set);
  t.deepEqual(more, []);
  t.regex(
    problem?.message ?? '',
    /^The patterns for everyone, tool, every target cost \d+ together, more than the limit of \d+\. Use simpler patterns\.$/,
  );
  t.is(problem?.policyIds.length, count);
  t.deepEqual(checkPolicySet(set.slice(0, count - 2)), []);
  t.deepEqual(
    checkPolicySet(set.map((policy, n) => ({ ...policy, target_id: `t${n % 2}` }))),
    [],
    'other targets are other buckets',
  );
  t.deepEqual(checkPolicySet(set.map((policy) => ({ ...policy, enabled: false }))), [], 'disabled policies cost nothing');
  t.deepEqual(
    checkPolicySet(set.map((policy) => ({ ...policy, resource_pattern: dear(10) }))),
    [],
    'one pattern is counted once',
  );
});

const everyone = [{ id: 's', subject_type: 'everyone' as const, subject_value: null }];
const searching = (count: number, pattern: (n: number) => string, more: object = {}) =>
  Array.from({ length: count }, (_, n) =>
    policyWith({ id: `p${n}`, resource_type: 'resource', resource_pattern: pattern(n), subjects: everyone, ...more }),
  );
const SEARCHED =
  /^The patterns for all subjects, resource, every target search one name (\d+) times, more than the limit of 1600\. Begin/;

test('a set is refused if one decision must search a name too often', (t) => {
  const unanchored = (n: number): string => `/repo-${n}/`;
  t.deepEqual(checkPolicySet(searching(MAX_SEARCHES, unanchored)), []);
  const [problem, ...more] = checkPolicySet(searching(MAX_SEARCHES + 1, unanchored));
  t.deepEqual(more, []);
  t.is(SEARCHED.exec(problem?.message ?? '')?.[1], '1601');
  t.is(problem?.policyIds.length, 1_601);
  const many = 3 * MAX_SEARCHES;
  t.deepEqual(checkPolicySet(searching(many, (n) => `^https://git\\.example/repo-${n}/`)), [], 'texts at an edge are looked up');
  t.deepEqual(checkPolicySet(searching(many, (n) => `^https://git\\.example/repo-${n}$`)), [], 'whole names are looked up');
  t.deepEqual(checkPolicySet(searching(many, () => '/repo/')), [], 'one pattern is searched for once');
  t.deepEqual(checkPolicySet(searching(many, unanchored, { enabled: false })), []);
  const ofTargets = searching(many, unanchored).map((policy, n) => ({ ...policy, target_id: `t${n % 3}` }));
  t.deepEqual(checkPolicySet(ofTargets), [], 'a decision is about one target');
});

test('what makes a search longer counts', (t) => {
  const repeated = 'a/'.repeat(240);
  t.regex(checkPolicySet(searching(200, (n) => `${repeated}${n}`))[0]?.message ?? '', SEARCHED, 'a text that repeats itself');
  t.regex(checkPolicySet(searching(1_001, (n) => `x${n}\\d`))[0]?.message ?? '', SEARCHED, 'a regular expression is one more');
  t.deepEqual(checkPolicySet(searching(1_400, (n) => `/r${n}/`)), []);
  t.regex(checkPolicySet(searching(1_400, (n) => `^.*/r${n}/.*$`))[0]?.message ?? '', SEARCHED, 'a line break is searched for');
  const sameBeginning = (n: number): string => `^abcd${String.fromCharCode(97 + (n % 26), 97 + ((n / 26) % 26), 97 + n / 676)}`;
  t.regex(checkPolicySet(searching(1_601, sameBeginning))[0]?.message ?? '', SEARCHED, 'names with the same beginning');
});

test('a pattern counts once for each group, because a caller can be in all of them, and once for all users and roles', (t) => {
  const given = (subject_type: 'group' | 'user' | 'role', count: number) =>
    searching(100, (n) => `/repo-${n}/`).map((policy) => ({
      ...policy,
      subjects: Array.from({ length: count }, (_, n) => ({ id: `s${n}`, subject_type, subject_value: `v${n}` })),
    }));
  t.deepEqual(checkPolicySet(given('group', 16)), []);
  t.regex(checkPolicySet(given('group', 17))[0]?.message ?? '', /^The patterns for all subjects, .* one name 1700 times/);
  for (const one of ['user', 'role'] as const) t.deepEqual(checkPolicySet(given(one, 100)), []);
});

test('the cost of a regular expression counts once for each group, and once for all users and roles', (t) => {
  const given = (subject_type: 'group' | 'user' | 'role', count: number) =>
    searching(10, (n) => `^x${n}[a-z0-9]{1,300}$`).map((policy) => ({
      ...policy,
      subjects: Array.from({ length: count }, (_, n) => ({ id: `s${n}`, subject_type, subject_value: `v${n}` })),
    }));
  const each = readPattern('^x1[a-z0-9]{1,300}$');
  const most = Math.floor(200_000 / 10 / (typeof each === 'string' ? 1 : each.cost));
  t.deepEqual(costProblems(given('group', most)), []);
  t.regex(costProblems(given('group', most + 1))[0]?.message ?? '', /^The patterns for all subjects, .* cost \d+ together/);
  for (const one of ['user', 'role'] as const) t.deepEqual(checkPolicySet(given(one, 100)), []);
});

test('a pattern whose states are without end is refused, whatever its cost', (t) => {
  for (const pattern of ['a[ab]{50}c', 'a/a.{0,150}[cd]', '((a|b){1,20}c?){1,30}[de]', `a${'[ab]'.repeat(40)}c`]) {
    const [problem, ...more] = checkPolicySet(searching(2, () => pattern));
    t.deepEqual(more, []);
    t.true(problem?.message.startsWith(`The pattern ${pattern} has too many states: `), pattern);
    t.deepEqual(problem?.policyIds, ['p0', 'p1']);
    t.deepEqual(checkPolicySet(searching(2, () => pattern, { enabled: false })), []);
  }
  const ordinary = [
    '^[a-z0-9_-]{1,64}$',
    '[a-z]{1,64}_[a-z]{1,64}$',
    '^x[a-z0-9]{1,900}$',
    '_(delete|drop|remove)(_[a-z]+){1,5}$',
    '(?i)secret|password|token',
    'a.*b.*c',
    '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
  ];
  for (const pattern of ordinary) t.deepEqual(checkPolicySet(searching(1, () => pattern)), [], pattern);
});

test('a regular expression counts by the time to compile it and to make its states', (t) => {
  const most = (pattern: (n: number) => string): number => {
    let count = 1;
    while (checkPolicySet(searching(count, pattern)).length === 0) count++;
    return count - 1;
  };
  const simple = most((n) => `/x-[0-9]+/${n}?%`);
  t.true(simple > 150 && simple < 300, `${simple}`);
  const repeated = most((n) => `/x-[0-9]{1,300}/${n}?%`);
  t.true(repeated < simple / 3, `${repeated}`);
  const states = most((n) => `a[ab]{8}[cd]${n}?%`);
  t.true(states < simple / 10, `${states}`);
});

test('a regular expression counts only for names that can contain its text', (t) => {
  const distinct = (n: number): string => `[a-z]+_issue${n}_[0-9]`;
  t.deepEqual(checkPolicySet(searching(500, distinct, { resource_type: 'tool' })), []);
  t.not(checkPolicySet(searching(500, distinct)).length, 0, 'a URI has room for more texts');
  t.not(checkPolicySet(searching(500, (n) => `[a-z]+_issue_[0-9]${n}?%`, { resource_type: 'tool' })).length, 0);
});

test('of the roles, the one with the most searches counts', (t) => {
  const set = searching(4_000, (n) => `/repo-${n}/`).map((policy, n) => ({
    ...policy,
    subjects: [{ id: `s${n}`, subject_type: 'role' as const, subject_value: `r${n % 4}` }],
  }));
  t.deepEqual(checkPolicySet(set), []);
});

test('the searches of all groups count together', (t) => {
  const set = searching(1_601, (n) => `/repo-${n}/`).map((policy, n) => ({
    ...policy,
    subjects: [{ id: `s${n}`, subject_type: 'group' as const, subject_value: `g${n % 100}` }],
  }));
  t.deepEqual(checkPolicySet(set.slice(1)), []);
  t.regex(
    checkPolicySet(set)[0]?.message ?? '',
    /^The patterns for all subjects, resource, every target search one name 1601 times, more than the limit of 1600\. /,
  );
});

test('a policy with many subjects is checked in short steps', (t) => {
  const subjects = Array.from({ length: 1_000 }, (_, n) => ({
    ...{ id: `s${n}`, subject_type: 'group' as const, subject_value: `g${n}` },
  }));
  const set = searching(200, (n) => `${'a/'.repeat(240)}${n}`, { subjects: [] });
  const steps = checkPolicySetInSteps([{ ...(set[0] as Policy), subjects }, ...set.slice(1)]);
  t.true([...steps].length >= 1_000 / 100 + 2 * Math.floor(200 / 20));
});

test('the entries that policies take in the engine are limited, of one owner and of all', (t) => {
  const roles = (count: number) =>
    Array.from({ length: count }, (_, n) => ({ id: `s${n}`, subject_type: 'role' as const, subject_value: `r${n}` }));
  /** Sixteen fixed texts for 500 roles: 8,000 entries. */
  const large = (owner: string | null, count: number) =>
    Array.from({ length: count }, (_, n) => ({
      ...policyWith({ id: `${owner} ${n}`, resource_type: 'tool', resource_pattern: `^${n}[a-p]`, subjects: roles(500) }),
      managed_as: owner === null ? null : `${owner}/${n}`,
    }));
  t.deepEqual(checkPolicySet(large('team', 6)), []);
  const problems = checkPolicySet([...large('team', 7), ...large('other', 1)]);
  t.deepEqual(
    problems.map(({ message, policyIds }) => [message.slice(0, 97), policyIds.length]),
    [['The policies of owner team take 58000 entries in the engine, more than the limit of 50000. A poli', 7]],
  );
  const three = [...large('a', 5), ...large('b', 4), ...large('c', 2), ...large(null, 2)];
  const blamed = checkPolicySet(three);
  t.deepEqual(
    blamed.map(({ message }) => message.slice(0, 89)),
    [
      'The policies of owner a take 42000 entries in the engine, and all together 112000, more t',
      'The policies of owner b take 34000 entries in the engine, and all together 112000, more t',
    ],
    'owners with less than their share, and policies of no owner, can still be added',
  );
  t.deepEqual(
    checkPolicySet(
      large('a', 6).map((policy, n) => ({
        ...policy,
        subjects: roles(500).map((role) => ({ ...role, subject_value: `${n} ${role.subject_value}` })),
      })),
    ).length,
    1,
    'each subject has tables of its own',
  );
  t.is(checkPolicySet(large(null, 7)).length, 1);
  t.deepEqual(checkPolicySet(large(null, 7).map((policy) => ({ ...policy, enabled: false }))), []);
});

test('the memory of policies is limited, of one owner and of all, also if they are disabled', (t) => {
  const subjects = Array.from({ length: 1_000 }, (_, n) => ({
    id: `s${n}`,
    subject_type: 'group' as const,
    subject_value: `${String(n).padStart(6)}${'😀'.repeat(250)}`,
  }));
  /** About 1.1 MB each. */
  const large = (owner: string | null, count: number) =>
    Array.from({ length: count }, (_, n) => ({
      ...policyWith({ id: `${owner} ${n}`, enabled: false, subjects }),
      managed_as: owner === null ? null : `${owner}/${n}`,
    }));
  const short = (set: Parameters<typeof checkPolicySet>[0]) =>
    checkPolicySet(set).map(({ message, member, policyIds }) => [message.slice(0, 30), member, policyIds.length]);
  t.deepEqual(short(large('a', 11)), []);
  t.deepEqual(short(large('a', 12)), [['The policies of owner a take 1', 'subjects', 12]]);
  t.deepEqual(short([...large('a', 11), ...large('b', 11), ...large('c', 1), ...large(null, 10)]), [
    ['The policies of owner a take 1', 'subjects', 11],
    ['The policies of owner b take 1', 'subjects', 11],
  ]);
  const described = large('a', 4_000).map((policy) => ({ ...policy, subjects: [], description: 'x'.repeat(4_000) }));
  t.deepEqual(short(described), [['The policies of owner a take 1', 'description', 4_000]]);
  const other = large('b', 12).map((policy) => ({ ...policy, description: null }));
  t.deepEqual(
    short([...described, ...other]).map(([, member]) => member),
    ['description', 'subjects'],
  );
});

test('a policy without subjects takes entries as if it had one', (t) => {
  /** 64 texts each. */
  const set = (count: number) =>
    Array.from({ length: count }, (_, n) =>
      policyWith({ id: `p${n}`, resource_type: 'tool', resource_pattern: `^${n}[a-h][a-h]`, subjects: [] }),
    );
  t.deepEqual(checkPolicySet(set(780)), []);
  t.regex(checkPolicySet(set(800))[0]?.message ?? '', /take 51200 entries/);
});

const ofRole = (value: string): PolicySubject[] => [{ id: `s ${value}`, subject_type: 'role', subject_value: value }];

test('the patterns of stored policies are not counted as new, although no check has looked at them', (t) => {
  const set = Array.from({ length: 200 }, (_, n) =>
    policyWith({ id: `p${n}`, resource_type: 'tool', resource_pattern: `^s${n}_.*a[ab]{8}c`, subjects: ofRole(`r${n}`) }),
  );
  const added = policyWith({ id: 'z', resource_type: 'tool', resource_pattern: '^also_added_[a-z]+x', subjects: ofRole('r1') });
  const check = (changed: ReadonlySet<string>) => atOnce(checkPolicySetInSteps([...set, added], changed));
  t.true(check(new Set(set.map(({ id }) => id)))[0]?.policyIds.includes('p199'), 'a change that brings them all is too large');
  t.deepEqual(check(new Set(['z'])), []);
});

test('the work of the patterns of one owner, and of all owners, is limited', (t) => {
  const of = (owner: string | null, count: number, from = 0) =>
    Array.from({ length: count }, (_, n) => {
      const pattern = `^${owner}_${from + n}_[ab]+c`;
      const reading = readPattern(pattern);
      if (typeof reading === 'object') keepWork(reading, 200_000);
      const managed_as = owner === null ? null : `${owner}/p${from + n}`;
      const subjects = ofRole(`r${owner}${from + n}`);
      return {
        ...policyWith({ id: `${owner} ${from + n}`, resource_type: 'tool', resource_pattern: pattern, subjects }),
        managed_as,
      };
    });
  const found = (set: Parameters<typeof checkPolicySet>[0]) =>
    checkPolicySet(set).map(({ message, policyIds }) => [
      message.replace(/, it takes/, ' takes').split('. ')[0],
      policyIds.length,
    ]);
  t.deepEqual(found(of('a', 125)), []);
  t.deepEqual(found([...of('a', 125), ...of('a', 125)]), [], 'the same pattern counts once');
  t.deepEqual(found(of('a', 126)), [
    ['The patterns of owner a have too many states: it takes 25200000 steps to make them, more than the limit of 25000000', 126],
  ]);
  const all = [...of('a', 125), ...of('b', 124), ...of('c', 2), ...of(null, 100)];
  t.deepEqual(found(all.slice(0, 250)), []);
  const [first, ...more] = found(all);
  t.is(first?.[1], 125);
  t.regex(String(first?.[0]), /owner a .*25000000 steps.* and all together 70200000, more than the limit of 50000000$/);
  t.deepEqual(
    more.map(([, count]) => count),
    [124],
  );
});

test('the patterns of stored policies without subjects are not counted as new', (t) => {
  const set = Array.from({ length: 200 }, (_, n) =>
    policyWith({ id: `p${n}`, resource_type: 'tool', resource_pattern: `^idle${n}_.*a[ab]{9}c`, subjects: [] }),
  );
  const added = policyWith({ id: 'z', resource_type: 'tool', resource_pattern: '^added_[a-z]+x' });
  const check = (changed: ReadonlySet<string> | null) =>
    atOnce(checkPolicySetInSteps([...set, added], changed)).flatMap(({ policyIds }) => policyIds);
  t.deepEqual(check(new Set(['z'])), []);
  t.true(check(new Set(set.map(({ id }) => id))).includes('p199'), 'a change that brings them all is too large');
});

test('long texts take more entries, and one subject may have so many names', (t) => {
  const set = (count: number, pattern: (n: number) => string) =>
    Array.from({ length: count }, (_, n) => policyWith({ id: `p${String(n).padStart(4, '0')}`, resource_pattern: pattern(n) }));
  const padded = (n: number, length: number, by = '0'): string => String(n).padStart(length, by);
  const messages = (policies: readonly Policy[]): string[] => checkPolicySet(policies).map(({ message }) => message.slice(0, 62));
  // 64 texts each.
  const [prefix, suffix, name] = [
    (n: number) => `^${padded(n, 11)}[0-9a-zA-Z_-]`,
    (n: number) => `[0-9a-zA-Z_-]${padded(n, 11)}$`,
    (n: number) => `^${padded(n, 39)}[0-9a-zA-Z_-]$`,
  ];
  t.deepEqual(messages([...set(70, prefix), ...set(40, name).map((policy, n) => ({ ...policy, id: `q${n}` }))]), []);
  for (const [count, pattern, names] of [
    [94, prefix, 12_032],
    [94, suffix, 12_032],
    [188, name, 12_032],
  ] as const)
    t.deepEqual(messages(set(count, pattern)), [`The patterns for everyone, tool, every target have ${names} names`]);
  const own = (policy: Policy, n: number): Policy => ({
    ...policy,
    subjects: [{ id: 's', subject_type: 'role', subject_value: `r${n % 5}` }],
  });
  t.deepEqual(messages(set(780, name).map(own)), [], '49,920 names of 40 bytes, for different subjects');
  for (const pattern of [
    (n: number) => `^${padded(n, 40)}[0-9a-zA-Z_-]$`,
    (n: number) => `^${padded(n, 16, '\u4e00')}[0-9a-zA-Z_-]$`,
  ])
    t.deepEqual(messages(set(400, pattern).map(own)), ['The policies of no owner take 51200 entries in the engine, mor']);
});

test('a long text counts as more names, by its JSON', (t) => {
  const named = (count: number, pattern: (n: string) => string): string[] => {
    const set = Array.from({ length: count }, (_, n) =>
      policyWith({ id: `p${n}`, resource_pattern: pattern(String(n).padStart(5, '0')) }),
    );
    return checkPolicySet(set).flatMap(({ limit, amount }) => (limit.startsWith('names ') ? [`${amount}`] : []));
  };
  // 64 texts each.
  t.deepEqual(
    named(100, (n) => `^${'x'.repeat(72)}${n}[0-9a-zA-Z_-]$`),
    [],
  );
  t.deepEqual(
    named(100, (n) => `^${'"'.repeat(40)}${n}[0-9a-zA-Z_-]$`),
    ['12800'],
  );
  t.deepEqual(
    named(100, (n) => `^${'x'.repeat(73)}${n}[0-9a-zA-Z_-]$`),
    ['12800'],
  );
  // A regular expression is there with each of its 20 texts.
  const texts = (n: string): string => [...'abcdefghijklmnopqrst'].map((letter) => `${letter}${n}`).join('|');
  t.deepEqual(
    named(50, (n) => `^(${texts(n)})[0-9]+${'"'.repeat(50)}`),
    [],
  );
  t.deepEqual(
    named(50, (n) => `^(${texts(n)})[0-9]+${'"'.repeat(300)}`),
    ['34000'],
  );
});

test('one owner cannot use up the searches or names of a target for the others', (t) => {
  const of = (owner: string | null, policies: readonly Policy[]): OwnedPolicy[] =>
    policies.map((policy) => ({ ...policy, id: `${owner} ${policy.id}`, managed_as: owner === null ? null : `${owner}/x` }));
  const searchingFor = (owner: string | null, count: number) =>
    of(
      owner,
      searching(count, (n) => `/${owner}-${n}/`),
    );
  /** 64 each. */
  const named = (owner: string | null, count: number): OwnedPolicy[] =>
    of(
      owner,
      Array.from({ length: count }, (_, n) => policyWith({ id: `${n}`, resource_pattern: `^${owner}_${n}_[0-9a-zA-Z_-]$` })),
    );
  const messages = (...sets: OwnedPolicy[][]) => checkPolicySet(sets.flat()).map(({ message }) => message.split('. ')[0]);
  const place = 'for all subjects, resource, every target';
  t.deepEqual(messages(searchingFor('a', 1_600)), []);
  t.deepEqual(messages(searchingFor('a', 1_601)), [
    `The patterns of owner a ${place} search one name 1601 times, more than the limit of 1600`,
  ]);
  t.deepEqual(messages(searchingFor(null, 1_601)), [
    `The patterns ${place} search one name 1601 times, more than the limit of 1600`,
  ]);
  t.deepEqual(messages(searchingFor('a', 1_600), searchingFor('b', 400)), [
    `The patterns of owner a ${place} search one name 1600 times, and all together 2000, more than the limit of 1600`,
  ]);
  const third = messages(searchingFor('a', 1_600), searchingFor('b', 790), searchingFor('c', 20));
  const small = third.find((message) => message?.includes('of owner c'));
  t.regex(small ?? '', /^The patterns of owner c .* 20 times, and all together 2410, more than the limit of 2400$/);
  const withAdmin = messages(searchingFor('a', 1_600), searchingFor('b', 800), searchingFor(null, 800));
  const blamed = new Set(withAdmin.map((message) => /of owner (.)/.exec(message ?? '')?.[1]));
  t.deepEqual(blamed, new Set(['a', 'b']), 'policies of no owner can still be added');
  const plan = of(
    NO_OWNER,
    searching(100, (n) => `/plan-${n}/`),
  );
  const planned = messages(searchingFor('a', 1_600), searchingFor('b', 800), searchingFor(null, 700), plan);
  t.deepEqual(planned, withAdmin, 'a plan of policies of no owner is judged like them');
  const beyond = messages(searchingFor('a', 1_600), searchingFor('b', 800), searchingFor(null, 801));
  t.true(beyond.some((message) => message?.startsWith(`The patterns ${place} search one name 801 times, and all together 3201`)));
  t.deepEqual(messages(named('a', 187)), []);
  t.deepEqual(messages(named('a', 187), named('b', 80), named(null, 10)), [
    'The patterns of owner a for everyone, tool, every target have 11968 names, and all together 17728, more than the limit of 12000',
  ]);
});

test('what a stored set has above a limit keeps nobody from a change that adds nothing to it', async (t) => {
  const stored = searching(1_610, (n) => `/repo-${n}/`);
  const with_ = async (...changed: Policy[]): Promise<number> => {
    const ids = new Set(changed.map(({ id }) => id));
    const candidate = [...stored.filter(({ id }) => !ids.has(id)), ...changed];
    return (await problemsOfChange(candidate, ids, async () => stored)).length;
  };
  const [first, second] = stored as [Policy, Policy];
  t.is(await with_({ ...first, priority: 7 }), 0);
  t.is(await with_({ ...first, effect: 'deny' }), 0);
  t.is(await with_({ ...first, resource_pattern: '/other-1/' }), 0);
  t.is(await with_({ ...first, resource_pattern: '/(other|more)-1/' }), 1);
  t.is(await with_({ ...first, id: 'further', resource_pattern: '/other-1/' }), 1);
  t.is(await with_({ ...first, resource_pattern: '/a/' }, { ...second, resource_pattern: '^/b/' }), 0);
  t.is(await with_({ ...first, resource_pattern: 'a[ab]{50}k' }), 1);
});

test('an owner above the limit of all cannot add to it with as much as before', async (t) => {
  const ofOwner = (owner: string, count: number, pattern: (n: number) => string): OwnedPolicy[] =>
    searching(count, pattern).map((policy) => ({ ...policy, id: `${owner} ${policy.id}`, managed_as: `${owner}/x` }));
  const alike = (n: number) => `/repo-${n}/`;
  // Owners have 1,200 patterns alike, which count once.
  const stored = [...ofOwner('a', 1_500, alike), ...ofOwner('b', 1_200, alike), ...ofOwner('c', 200, (n) => `/c-${n}/`)];
  const changed = async (owner: string, pattern: (n: number) => string) => {
    const own = stored.filter(({ managed_as }) => managed_as === `${owner}/x`);
    const after = own.map((policy, n) => ({ ...policy, resource_pattern: pattern(n) }));
    const candidate = [...stored.filter((policy) => !own.includes(policy)), ...after];
    const problems = await problemsOfChange(candidate, new Set(after.map(({ id }) => id)), async () => stored);
    return problems.map(({ amount, total }) => [amount, total]);
  };
  t.deepEqual(await changed('a', alike), []);
  t.deepEqual(await changed('a', (n) => `/other-${n}/`), [[1_500, 2_900]]);
});

test('a set near the limit of searches is checked in short steps', (t) => {
  const set = searching(400, (n) => `${n}[0-9]+${'abcdefgh'.repeat(4)}`, { resource_type: 'tool' });
  // Each step does as much as 20 texts need.
  t.true([...checkPolicySetInSteps(set)].length > 400 / 20 + 40);
});

test('a change that brings many patterns with many states is refused before all of them are made', (t) => {
  const endless = searching(100, (n) => `a[ab]{50}e${n}`, { resource_type: 'tool' });
  const check = (policies: Policy[]) => atOnce(checkPolicySetInSteps(policies));
  const named = (problems: SetProblem[]): Set<string> => new Set(problems.flatMap(({ policyIds }) => policyIds));
  const unread = (problems: SetProblem[]): number =>
    problems.find(({ message }) => message.startsWith('The new patterns have too many states'))?.policyIds.length ?? 0;
  const first = check(endless);
  t.is(named(first).size, 100, 'each is refused');
  t.is(unread(first), 59);
  // Those that an earlier check has looked at count no more. No check has looked at the others.
  const second = check(endless);
  t.is(named(second).size, 100);
  t.is(unread(second), 18);
  const simple = policyWith({ id: 'simple', resource_type: 'tool', resource_pattern: 'x[0-9]y', subjects: everyone });
  t.false(named(check([simple, ...endless])).has('simple'));
  t.is(
    unread(checkPolicySet(searching(100, (n) => `a[ab]{50}g${n}`, { resource_type: 'tool' }))),
    0,
    'a folder is checked as a whole',
  );
});

test('a set over one limit is checked for the others', (t) => {
  const roles = Array.from({ length: 1_000 }, (_, n) => ({ id: `s${n}`, subject_type: 'role' as const, subject_value: `r${n}` }));
  const large = Array.from({ length: 6 }, (_, n) =>
    policyWith({ id: `large ${n}`, resource_type: 'tool', resource_pattern: `^${n}[a-p]`, subjects: roles }),
  );
  const endless = policyWith({ id: 'endless', resource_type: 'tool', resource_pattern: 'a[ab]{50}f', subjects: everyone });
  const problems = checkPolicySet([...large, endless]);
  t.deepEqual(
    problems.map(({ message }) => message.slice(0, 12)),
    ['The policies', 'The pattern '],
  );
});
