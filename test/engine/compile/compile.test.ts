import test from 'ava';
import fc from 'fast-check';
import { compile, compileInSteps, readInSteps, readStrictly } from '../../../src/engine/compile/compile.ts';
import { lower } from '../../../src/engine/compile/lower.ts';
import type { Effect, Policy } from '../../../src/engine/compile/policy.ts';
import { parse } from '../../../src/engine/compile/re2.ts';
import { loadPolicyModule } from '../../../src/engine/engine.ts';
import { world } from '../arbitraries.ts';
import { policyWith } from '../support.ts';

const module = await loadPolicyModule();

test('the same policies in any order compile to the same bytes', (t) => {
  fc.assert(
    fc.property(world({ maxPolicies: 8, requests: 0 }), fc.integer(), ({ policies }, seed) => {
      const shuffled = [...policies].sort((a, b) => ((a.id.length * 31 + seed) % 7) - ((b.id.length * 17 + seed) % 5)).reverse();
      const turned = shuffled.map((policy) => ({ ...policy, subjects: [...policy.subjects].reverse() }));
      return compile(policies, module).json === compile(turned, module).json;
    }),
    { numRuns: 300 },
  );
  t.pass();
});

test('policies with many subjects are read and placed in short steps', (t) => {
  const subjects = Array.from({ length: 1_000 }, (_, n) => ({
    id: `s${n}`,
    subject_type: 'role' as const,
    subject_value: `r${n}`,
  }));
  const policies = ['a', 'b', 'c'].map((id) =>
    policyWith({ id, resource_type: 'tool', resource_pattern: `^${id}[a-p]`, subjects }),
  );
  // One step for each of the policies that are read, and for each 20 subjects that are placed.
  t.true([...compileInSteps(policies, module)].length >= 3 + 3 * 50);
});

test('many policies, and many subjects of different policies, are put in order in short steps', (t) => {
  const policies = Array.from({ length: 1_000 }, (_, n) =>
    policyWith({ id: `p${n}`, subjects: [{ id: 's', subject_type: 'group', subject_value: `g${n}` }] }),
  );
  // 50 policies are read or placed in one step. To put 128 in order takes two steps at least.
  const inOrder = 2 * Math.floor(1_000 / 128);
  const read = readInSteps(policies, (policy) => readStrictly(policy, module.checkStoredPattern));
  t.true([...read].length >= 1_000 / 50 + inOrder);
  // The policies, and the groups in the tables of `use` and `tool`.
  t.true([...compileInSteps(policies, module)].length >= (2 * 1_000) / 50 + 3 * inOrder);
});

test('a list of tests has each test once, with its least rank, however long it is', (t) => {
  for (const count of [2, 15, 16, 17, 40]) {
    // These differ only in the regular expression, and these only in the text.
    const regexes = Array.from({ length: count }, (_, n) => `abcd[0-9]{${n + 2}}`);
    const texts = Array.from({ length: count }, (_, n) => `efgh${n}`);
    const patterns = [...regexes, ...texts, ...texts, ...regexes];
    const policies = patterns.map((resource_pattern, n) =>
      policyWith({ id: `p${String(n).padStart(3, '0')}`, priority: -n, resource_pattern }),
    );
    const tests = compile(policies, module).document.index.every.tool.everyone['']?.tests ?? [];
    t.deepEqual(
      tests.map(([rank, , text, pattern]) => [rank, pattern ?? text]),
      [...regexes, ...texts].map((text, rank) => [rank, text]),
    );
  }
});

test('the JSON is canonical, equals the document, and is the hashed text', (t) => {
  const policies = [
    policyWith({ id: 'b', target_id: '9', resource_pattern: '^12$' }),
    policyWith({
      id: 'a',
      target_id: '10',
      resource_pattern: '^__proto__$',
      subjects: [{ id: 's', subject_type: 'role', subject_value: '__proto__' }],
    }),
  ];
  const { json, document, hash } = compile(policies, module);
  t.is(json, canonical(JSON.parse(json)));
  t.is(json, canonical(JSON.parse(JSON.stringify(document))));
  t.regex(hash, /^[0-9a-f]{64}$/);
  t.not(compile(policies.slice(1), module).hash, hash);
});

function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const keys = Object.getOwnPropertyNames(value).sort();
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(Object.getOwnPropertyDescriptor(value, key)?.value)}`).join(',')}}`;
}

test('the order of evaluation is priority, then deny before allow, then id', (t) => {
  const set = [
    policyWith({ id: 'e', priority: 1 }),
    policyWith({ id: 'd', priority: 1, effect: 'deny' }),
    policyWith({ id: 'c', priority: 10 }),
    policyWith({ id: 'b', priority: 1 }),
    policyWith({ id: 'a', priority: -1, effect: 'deny' }),
    policyWith({ id: 'off', priority: 99, enabled: false }),
  ];
  t.deepEqual(
    compile(set, module).document.policies.map(({ id }) => id),
    ['c', 'd', 'b', 'e', 'a'],
  );
});

test('the document leaves out times, subject ids, descriptions and duplicate subjects', (t) => {
  const policy = policyWith({ id: 'a' });
  const [subject] = policy.subjects;
  const other: Policy = {
    ...policy,
    created_at: 5,
    updated_at: 6,
    description: 'x',
    subjects: subject ? [{ ...subject, id: 'z' }, subject] : [],
  };
  t.is(compile([other], module).hash, compile([policy], module).hash);
});

test('stored policies that the API would have refused are findings, in id order', (t) => {
  const { findings, document } = compile(
    [
      policyWith({ id: 'e', effect: 'deny', priority: Number.NaN }),
      policyWith({ id: 'd', priority: 2 ** 31 }),
      policyWith({ id: 'c', effect: 'permit' as Effect }),
      policyWith({ id: 'b', resource_pattern: '(' }),
      policyWith({ id: 'a', effect: 'deny', resource_pattern: '(?=x)' }),
      policyWith({ id: 'fine' }),
    ],
    module,
  );
  t.deepEqual(
    findings.map(({ policyId, message }) => `${policyId}: ${message}`),
    [
      'a: The pattern cannot be compiled. RE2 has no lookahead or lookbehind. It is a deny, so it covers everything that it could mean.',
      'b: The pattern cannot be compiled. A group is not closed. It is an allow, so it grants nothing.',
      'c: The effect is neither allow nor deny, so it counts as deny.',
      'd: The priority is not a 32-bit integer. It is an allow, so it grants nothing.',
      'e: The priority is not a 32-bit integer. It is a deny, so it covers everything that it could mean.',
    ],
  );
  t.deepEqual(
    document.policies.map(({ id }) => id),
    ['e', 'a', 'c', 'fine'],
  );
  t.is(document.policies[0]?.priority, 2 ** 31 - 1);
  t.is(document.policies[1]?.pattern, null);
});

test('policies with equal ids still have one order', (t) => {
  const twins = [policyWith({ id: 'a', name: 'one' }), policyWith({ id: 'a', name: 'two' })];
  t.is(compile(twins, module).json, compile([...twins].reverse(), module).json);
});

const SHAPES: readonly (readonly [pattern: string, shapes: string | null])[] = [
  ['^get$', 'exact get'],
  ['\\Aget\\z', 'exact get'],
  ['^get', 'prefix get'],
  ['get$', 'suffix get'],
  ['get', 'contains get'],
  ['.*get.*', 'contains get'],
  ['^.*get.*$', 'contains get one line'],
  ['^get.*$', 'prefix get one line'],
  ['^get.*', 'prefix get'],
  ['^(?s:get.*)$', 'prefix get'],
  ['^.*get$', 'suffix get one line'],
  ['^.*get', null],
  ['get.*$', null],
  ['^.*', 'contains '],
  ['^.*$', 'suffix  one line'],
  ['^(a|b)c$', 'exact ac, exact bc'],
  ['^a|b$', 'prefix a, suffix b'],
  ['^(a|b)$|c', 'exact a, exact b, contains c'],
  ['^[ab]?$', 'exact , exact a, exact b'],
  ['^a{2}$', 'exact aa'],
  ['^a{0,2}$', 'exact , exact a, exact aa'],
  ['(?i)^ab$', 'exact AB, exact Ab, exact aB, exact ab'],
  ['(?i)^k$', 'exact K, exact k, exact \u212a'],
  ['^.+$', null],
  ['^[0-9]+$', null],
  ['^[^a]$', null],
  ['(?m)^a$', null],
  ['\\ba', null],
  ['^a\\n$', null],
  ['^(^a)$', null],
  ['^[0-9]{2}$', null],
];

for (const [pattern, shapes] of SHAPES) {
  test(`lowering ${pattern}`, (t) => {
    const lowered = lower(parse(pattern));
    t.is(lowered?.map(({ kind, text, oneLine }) => `${kind} ${text}${oneLine ? ' one line' : ''}`).join(', ') ?? null, shapes);
  });
}
