/** The limits of owners: a random search against a plain oracle, and the comparison of patterns. */

import test from 'ava';
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import type { Administer } from '../../src/auth/caller.ts';
import { AppError } from '../../src/base/errors.ts';
import { createChanges } from '../../src/db/changes.ts';
import type { Policy, StoredPolicy } from '../../src/engine/compile/policy.ts';
import { createPolicyEdits } from '../../src/policies/edit.ts';
import { formatPolicyFile, type PolicyFile } from '../../src/policies/files/yaml.ts';
import {
  createLimitCheck,
  createNameSearch,
  type FindNames,
  type Limits,
  type Outside,
} from '../../src/policies/limits/limits.ts';
import { ownerStore } from '../../src/policies/limits/owner-store.ts';
import { createOwnerEdits } from '../../src/policies/owner-edits.ts';
import { ownerOf } from '../../src/policies/owners.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import { ANY, readFiles } from '../../src/policies/sets/planning.ts';
import { createSetCheck } from '../../src/policies/sets/set-check.ts';
import { createPolicySets } from '../../src/policies/sets/sets.ts';
import { createStoredSet } from '../../src/policies/stored-set.ts';
import { ADMIN, ALL_RIGHTS } from '../support/authority.ts';
import { openTestDatabase } from '../support/database.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { NO_INVARIANTS, policy } from './policies.ts';

/** Each case is one change. `PORTCULLIS_TEST_LIMIT_CASES=10000 npm run test:file -- test/policies/limits.test.ts` tries more. */
const CASES = Number(process.env['PORTCULLIS_TEST_LIMIT_CASES'] ?? 600);
const CHANGES_A_RUN = 12;

const TARGETS = ['0190163d-0000-7000-8000-000000000001', '0190163d-0000-7000-8000-000000000002'] as const;
const OWNERS = ['team-a', 'team-b'] as const;
const SUBJECTS = [
  { subject_type: 'everyone', subject_value: null },
  { subject_type: 'role', subject_value: 'x' },
  { subject_type: 'group', subject_value: 'x' },
  { subject_type: 'group', subject_value: 'y' },
] as const;
/** With the same meaning in JavaScript, except for the flag. */
const PATTERNS = [
  ...[
    '^a',
    'b$',
    '^a$',
    '^(a|b)$',
    'a|b',
    '^[ab]+$',
    '^a.*b$',
    'a',
    '.',
    '^a$b',
    '^(a|ab|abb)$',
    '^ab?b?$',
    '^..$',
    '^[^a]',
    '\\bb',
  ],
  ...['(?i)^a', '(?i)^(a|b)+$', '(?i)b$', '^(?:aa?|b)$|^ab'],
];
const NAMES = (function words(length: number): string[] {
  if (length === 0) return [''];
  const shorter = words(length - 1);
  return [
    ...shorter,
    ...shorter.filter((word) => word.length === length - 1).flatMap((word) => [...'abABc-'].map((letter) => word + letter)),
  ];
})(4).filter((word) => word !== '');

const matches = (pattern: string | null, name: string): boolean =>
  pattern === null || new RegExp(pattern.replace(/^\(\?i\)/, ''), pattern.startsWith('(?i)') ? 'iu' : 'u').test(name);

/** The oracle: each member alone, and names by trying them. */
function within(
  {
    target_id,
    resource_type,
    resource_pattern,
    effect,
    priority,
    subjects,
  }: Pick<Policy, 'target_id' | 'resource_type' | 'resource_pattern' | 'effect' | 'priority'> & {
    subjects: readonly { subject_type: string; subject_value: string | null }[];
  },
  limits: Limits,
): boolean {
  const types: readonly string[] = resource_type === 'all' ? ['tool', 'prompt', 'resource'] : [resource_type];
  const { resource_types, resource_patterns } = limits;
  return (
    (limits.targets === undefined || limits.targets.some((id) => id === target_id)) &&
    (resource_types === undefined || types.every((type) => resource_types.some((one) => one === type))) &&
    (resource_patterns === undefined ||
      NAMES.every((name) => !matches(resource_pattern, name) || resource_patterns.some((one) => matches(one, name)))) &&
    priority >= (limits.priority?.min ?? priority) &&
    priority <= (limits.priority?.max ?? priority) &&
    (limits.effects === undefined || limits.effects.some((one) => one === effect)) &&
    subjects.every(
      (subject) =>
        limits.subjects === undefined ||
        limits.subjects.some(
          (one) =>
            one.subject_type === subject.subject_type &&
            (one.subject_value === undefined || one.subject_value === null || one.subject_value === subject.subject_value),
        ),
    )
  );
}

const aTarget = fc.constantFrom(null, ...TARGETS);
const aType = fc.constantFrom('tool', 'resource', 'prompt', 'all');
const anEffect = fc.constantFrom('allow', 'deny');
const aSubject = fc.constantFrom(...SUBJECTS);
const someLimits = fc.record(
  {
    targets: fc.subarray([null, ...TARGETS]),
    resource_types: fc.subarray(['tool', 'resource', 'prompt'] as const, { minLength: 1 }),
    resource_patterns: fc.subarray(PATTERNS, { minLength: 1, maxLength: 3 }),
    priority: fc.record({ min: fc.integer({ min: -3, max: 3 }), max: fc.integer({ min: -3, max: 3 }) }, { requiredKeys: [] }),
    effects: fc.subarray(['allow', 'deny'] as const, { minLength: 1 }),
    subjects: fc.subarray([...SUBJECTS, { subject_type: 'group' } as const], { minLength: 1 }),
  },
  { requiredKeys: [] },
);
const members = {
  target_id: aTarget,
  resource_type: aType,
  resource_pattern: fc.constantFrom(null, ...PATTERNS),
  effect: anEffect,
  priority: fc.integer({ min: -3, max: 3 }),
  enabled: fc.boolean(),
  subjects: fc.subarray([...SUBJECTS]),
};
const aPolicy = fc.record(members);
const anOwner = fc.constantFrom(...OWNERS);
const aChange = fc.oneof(
  fc.record({ kind: fc.constant('limits'), owner: anOwner, limits: someLimits }),
  fc.record({ kind: fc.constant('unlimit'), owner: anOwner }),
  fc.record({
    ...{ kind: fc.constant('apply'), owner: anOwner, prune: fc.boolean() },
    policies: fc.array(aPolicy, { minLength: 1, maxLength: 2 }),
  }),
  fc.record({ kind: fc.constant('update'), nth: fc.nat(3), change: fc.record(members, { requiredKeys: [] }) }),
  fc.record({ kind: fc.constant('subject'), nth: fc.nat(3), subject: aSubject }),
  fc.record({ kind: fc.constant('create'), policy: aPolicy }),
  fc.record({ kind: fc.constant('rollback'), back: fc.nat(6), owner: fc.option(anOwner) }),
);
type AnyChange = typeof aChange extends fc.Arbitrary<infer T> ? T : never;

test.serial('no change leaves the limits of an owner, and none that keeps them is refused', async (t) => {
  t.timeout(3_600_000);
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_caller, _right, work) =>
    changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS));
  const findNames = createNameSearch();
  const parts = {
    database,
    administer,
    newId: uuidv7,
    now: Date.now,
    checkPattern: () => null,
    targetExists: async () => true,
    findNames,
  };
  const targets = async () => TARGETS.map((id, i) => ({ id, name: `t${i}` }));
  const guarded = {
    ...parts,
    guard: NO_INVARIANTS,
    readStoredSet: createStoredSet(),
    prepare: async () => undefined,
  };
  const edits = createPolicyEdits(guarded);
  const owners = createOwnerEdits({ ...parts, settle: NO_INVARIANTS.settle });
  const checkSet = createSetCheck(parts.checkPattern);
  const sets = createPolicySets({ ...guarded, targets, readFiles, checkSet });
  const counts = { accepted: 0, refused: 0, undecided: 0, other: 0 };
  const history = new Map<number, StoredPolicy[]>();

  const fileOf = (written: Record<string, unknown>) =>
    formatPolicyFile({
      ...(written as unknown as PolicyFile),
      ...{
        name: 'p',
        description: null,
        target: written['target_id'] === null ? null : `t${TARGETS.indexOf(written['target_id'] as never)}`,
      },
    });

  async function make(
    change: AnyChange,
    policies: readonly StoredPolicy[],
  ): Promise<{ after: readonly unknown[]; work: () => Promise<unknown> }> {
    const nth = (n: number): StoredPolicy | undefined => policies[n % Math.max(1, policies.length)];
    switch (change.kind) {
      case 'limits':
        return { after: [], work: () => owners.put(ADMIN, change.owner, { limits: change.limits as Limits }, undefined) };
      case 'unlimit':
        return { after: [], work: () => owners.remove(ADMIN, change.owner, undefined) };
      case 'apply': {
        const files = new Map(change.policies.map((one, i) => [`p${i}.yaml`, fileOf(one)]));
        return {
          after: change.policies.map((one) => ({ ...one, managed_as: `${change.owner}/p` })),
          work: () => sets.apply(ADMIN, { files, owner: change.owner, prune: change.prune, adopt: false, ...ANY }),
        };
      }
      case 'update': {
        const it = nth(change.nth);
        return {
          after: it === undefined ? [] : [{ ...it, ...change.change }],
          work: () => edits.update(ADMIN, it?.id ?? '', change.change as never, { override: true }),
        };
      }
      case 'subject': {
        const it = nth(change.nth);
        return {
          after: it === undefined ? [] : [{ ...it, subjects: [...it.subjects, change.subject] }],
          work: () => edits.addSubject(ADMIN, it?.id ?? '', change.subject, { override: true }),
        };
      }
      case 'create':
        return {
          after: [{ ...change.policy, managed_as: null }],
          work: () => edits.create(ADMIN, { ...change.policy, name: 'free', description: null } as never),
        };
      case 'rollback': {
        const { revision } = await changes.position();
        const to = Math.max(0, revision - change.back);
        const old = history.get(to) ?? [];
        return {
          after: old.filter((one) => change.owner === null || ownerOf(one) === change.owner),
          work: () => sets.rollback(ADMIN, { revision: to, owner: change.owner, expectedRevision: null }),
        };
      }
    }
  }

  async function tryChange(change: AnyChange): Promise<void> {
    const before = await policyStore(database.knex).all();
    const limits = await ownerStore(database.knex).limits();
    const { after, work } = await make(change, before);
    const breaks = (one: unknown, its: Limits | undefined) => its !== undefined && !within(one as StoredPolicy, its);
    const expected =
      change.kind === 'limits'
        ? before.some((one) => ownerOf(one) === change.owner && breaks(one, change.limits as Limits))
        : after.some((one) => breaks(one, limits.get(ownerOf(one as StoredPolicy) ?? '')));
    let code: string | null = null;
    try {
      await work();
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      code = error.code;
    }
    counts[
      code === null ? 'accepted' : code === 'outside_limits' ? 'refused' : code === 'limits_undecided' ? 'undecided' : 'other'
    ]++;
    const policies = await policyStore(database.knex).all();
    history.set((await changes.position()).revision, policies);
    const now = await ownerStore(database.knex).limits();
    for (const one of policies) {
      if (breaks(one, now.get(ownerOf(one) ?? ''))) throw new Error(`left the limits: ${JSON.stringify([change, one])}`);
    }
    if (code === 'outside_limits' && !expected) throw new Error(`refused without a reason: ${JSON.stringify(change)}`);
    if (code === null && expected) throw new Error(`accepted although it breaks limits: ${JSON.stringify(change)}`);
  }

  const clear = async (): Promise<void> => {
    for (const table of ['policy_subjects', 'policies', 'owners', 'changes']) await database.knex(table).delete();
    history.clear();
    history.set((await changes.position()).revision, []);
  };
  const run = fc.asyncProperty(fc.array(aChange, { minLength: CHANGES_A_RUN, maxLength: CHANGES_A_RUN }), async (list) => {
    await clear();
    for (const change of list) await tryChange(change);
  });
  await fc.assert(run, { numRuns: Math.ceil(CASES / CHANGES_A_RUN), endOnFailure: true });
  t.log(JSON.stringify(counts));
  t.true(counts.accepted > CASES / 4 && counts.refused > CASES / 100, JSON.stringify(counts));
  t.true(counts.undecided <= CASES / 1_000, JSON.stringify(counts));
});

const outsideOf = async (one: StoredPolicy, limits: Limits): Promise<readonly Outside[]> =>
  (await createLimitCheck()([{ policy: one, limits }], createNameSearch()))[0] ?? [];

const outside = (resource_pattern: string | null, resource_patterns: string[], resource_type: Policy['resource_type'] = 'tool') =>
  outsideOf(policy('p', { resource_pattern, resource_type }), { resource_patterns });

test('a pattern is within the union of the patterns of the limits, whatever its form', async (t) => {
  for (const [pattern, patterns] of [
    ['^(read_a|write_b)$', ['^read_', '^write_']],
    ['^read_[ab]$', ['^read_a$', '^read_b$']],
    ['^[a-z]+$', ['^[a-m]', '^[n-z]']],
    ['(?i)^abc$', ['^(?i:a)[bB][Cc]$']],
    // No name matches.
    ['^a$b', ['^c$']],
    [null, ['^a', '^[^a]']],
    // No name has so many characters.
    ['^(?:a{256}|b)a', ['^b']],
  ] as const) {
    t.deepEqual(await outside(pattern, [...patterns]), [], String(pattern));
  }
});

test('a pattern that matches one more name is outside, and the refusal names such a name', async (t) => {
  for (const [pattern, patterns, name] of [
    ['^(read_a|delete_b)$', ['^read_', '^write_'], 'delete_b'],
    ['^read_|x', ['^read_'], 'x'],
    ['(?i)^read_$', ['^read_$'], null],
    ['^read_', ['^read_$'], null],
    ['read_', ['^read_'], null],
    [null, ['^a'], null],
    ['^a', [], 'a'],
    ['^(a|b)$|^c', ['^[ab]'], 'c'],
    ['^read_\\w$', ['^read_[a-z0-9_]$'], 'read_A'],
  ] as const) {
    const [found, ...more] = await outside(pattern, [...patterns]);
    t.like(found, { member: 'resource_pattern', undecided: false }, String(pattern));
    t.deepEqual(more, []);
    const [, witness = ''] = /it matches ("(?:[^"\\]|\\.)*")/.exec(found?.message ?? '') ?? [];
    const given = JSON.parse(witness) as string;
    if (name !== null) t.is(given, name);
    t.true(matches(pattern, given) && !patterns.some((one) => matches(one, given)), `${pattern} ${given}`);
  }
  // The names of resources are longer than those of tools.
  t.deepEqual(await outside('^(?:a{256}|b)a', ['^b'], 'tool'), []);
  t.is((await outside('^(?:a{256}|b)a', ['^b'], 'resource')).length, 1);
  t.is((await outside('^(?:a{256}|b)a', ['^b'], 'all')).length, 1);
});

test('a pattern that cannot be compared within the budget is refused, and the refusal says so', async (t) => {
  const [found] = await outside('a(a|b){16}$', ['a[ab]{16}$']);
  t.like(found, { member: 'resource_pattern', undecided: true });
  t.regex(found?.message ?? '', /cannot tell/);
});

test('a thousand subjects are compared with a thousand of the limits in one pass', async (t) => {
  const names = (prefix: string): string[] => Array.from({ length: 1_000 }, (_, i) => `${prefix}${i}`);
  let read = 0;
  const limited = names('in').map((name) => ({
    subject_type: 'group' as const,
    get subject_value() {
      read++;
      return name;
    },
  }));
  const subjects = [...names('out'), 'in7'].map((subject_value) => ({
    id: uuidv7(),
    subject_type: 'group' as const,
    subject_value,
  }));
  const outside = await outsideOf(policy('p', { subjects }), { subjects: limited });
  t.is(outside.length, 1);
  t.regex(
    outside[0]?.message ?? '',
    /group "out0", group "out1", .*, and 980 more\. Within the limits: group "in0", .*, and 980 more$/,
  );
  t.true(read < 3_000, `${read} reads`);
});

test('the names outside of the same limits are searched once for each pattern, and all together', async (t) => {
  const asked: string[][] = [];
  const search = createNameSearch();
  const findNames: FindNames = (names) => {
    asked.push(names.map(({ type, pattern }) => `${type} ${pattern}`));
    return search(names);
  };
  const check = createLimitCheck();
  const of = (...patterns: readonly (readonly [string, Policy['resource_type']])[]) =>
    patterns.map(([resource_pattern, resource_type]) => ({
      policy: policy('p', { resource_pattern, resource_type }),
      limits: { resource_patterns: ['^a'] },
    }));
  const found = await check(of(['^ab', 'tool'], ['b', 'all'], ['^ab', 'prompt']), findNames);
  t.deepEqual(
    found.map((one) => one.map(({ member }) => member)),
    [[], ['resource_pattern'], []],
  );
  // The limits are read again when a plan is repeated.
  t.is((await check(of(['b', 'tool'], ['^ab', 'tool'], ['c', 'prompt']), findNames))[0]?.length, 1);
  t.deepEqual(asked, [['tool ^ab', 'tool b', 'resource b'], ['prompt c']]);
  // A search that fails leaves nothing behind.
  await t.throwsAsync(check(of(['d', 'tool']), async () => Promise.reject(new Error('no thread'))));
  t.deepEqual(
    (await check(of(['d', 'tool']), findNames))[0]?.map(({ undecided }) => undecided),
    [false],
  );
});
