import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import fc from 'fast-check';
import type { Policy, PolicySubject } from '../../../src/engine/compile/policy.ts';
import { type AnalysisFinding, analyseInSteps, type FindingCode, type Known } from '../../../src/policies/analysis/analyse.ts';
import { createLibrary } from '../../../src/policies/analysis/names.ts';
import type { Progress } from '../../../src/policies/analysis/search.ts';
import { URI_LIKE, URIS } from '../../../src/policies/analysis/uris.ts';
import { FILE_NAME } from '../../../src/policies/files/file.ts';
import { parsePolicyFile } from '../../../src/policies/files/yaml.ts';
import { isCanonicalUri } from '../../../src/protocol/uri.ts';
import { policyWith } from '../../engine/support.ts';
import { analyse, compare } from './whole.ts';

const subject = (subject_type: PolicySubject['subject_type'], subject_value: string | null = null): PolicySubject => ({
  id: 's',
  subject_type,
  subject_value,
});
const role = (value: string): Partial<Policy> => ({ subjects: [subject('role', value)] });
const group = (value: string): Partial<Policy> => ({ subjects: [subject('group', value)] });
const named = (pattern: string): Partial<Policy> => ({ resource_pattern: pattern });
const deny = { effect: 'deny', priority: 10 } as const;

/** Each finding as its code and the policies that it is about, least of all that it should not be there. */
const said = (policies: readonly Policy[], known?: Known): string[] =>
  analyse(policies, known).findings.map(({ code, policy_ids }) => [code, ...policy_ids].join(' '));
const only = (findings: readonly AnalysisFinding[], code: FindingCode): AnalysisFinding => {
  const [found, more] = findings.filter((finding) => finding.code === code);
  if (found === undefined || more !== undefined) throw new Error(`Not one ${code}: ${JSON.stringify(findings)}`);
  return found;
};

const CASES: readonly (readonly [what: string, policies: readonly Policy[], findings: readonly string[], known?: Known])[] = [
  ['nothing', [], []],
  ['one allow of one name', [policyWith({ id: 'a', ...named('^read$') })], []],
  ['a disabled policy', [policyWith({ id: 'a', enabled: false, subjects: [] })], []],
  [
    'an allow within another of the same callers',
    [
      policyWith({ id: 'a', priority: 2, ...named('^read_'), ...role('dev') }),
      policyWith({ id: 'b', ...named('^read_(one|two)$'), ...role('dev') }),
    ],
    ['unreachable b a'],
  ],
  [
    'the same, of other callers',
    [
      policyWith({ id: 'a', priority: 2, ...named('^read_'), ...role('ops') }),
      policyWith({ id: 'b', ...named('^read_(one|two)$'), ...role('dev') }),
    ],
    [],
  ],
  [
    'an allow within what two others fit together',
    [
      policyWith({ id: 'a', priority: 2, ...named('^read_[a-m]') }),
      policyWith({ id: 'b', priority: 2, ...named('^read_[n-z]') }),
      policyWith({ id: 'c', ...named('^read_[a-z]+$') }),
    ],
    ['unreachable c a b'],
  ],
  [
    'all targets are more than those that have policies',
    [policyWith({ id: 'a', priority: 2, target_id: 't1', ...named('^x$') }), policyWith({ id: 'b', ...named('^x$') })],
    ['redundant a'],
    { targets: new Set(['t1']) },
  ],
  [
    'a deny takes away all that an allow grants, but for the target',
    [policyWith({ id: 'a', ...named('^read$') }), policyWith({ id: 'd', ...deny })],
    ['shadowed a d', 'contradiction a d'],
  ],
  [
    'a deny of everything takes the target away, too',
    [policyWith({ id: 'a', ...named('^read$') }), policyWith({ id: 'd', ...deny, resource_type: 'all' })],
    ['unreachable a d', 'contradiction a d'],
  ],
  [
    'a deny that comes too late',
    [
      policyWith({ id: 'a', priority: 20, ...named('^(read|write)$'), ...role('dev') }),
      policyWith({ id: 'd', ...deny, ...named('^write$'), ...role('dev') }),
    ],
    ['unreachable d a', 'contradiction d a'],
  ],
  [
    'of what a deny is too late for, another deny took a part before: no contradiction',
    [
      policyWith({ id: 'c', effect: 'deny', priority: 30, ...named('^write$'), ...group('g') }),
      policyWith({ id: 'a', priority: 20, ...named('^write$') }),
      policyWith({ id: 'd', ...deny, ...named('^write$'), ...role('dev') }),
    ],
    ['unreachable d a'],
  ],
  ['a deny of what nobody allows', [policyWith({ id: 'd', ...deny, ...named('^x$') })], ['redundant d']],
  [
    'an allow above a wider one matters to those whom a deny between them names',
    [
      policyWith({ id: 'a', priority: 20, ...named('^x$') }),
      policyWith({ id: 'd', ...deny, ...named('^x$'), ...group('g') }),
      policyWith({ id: 'z', ...named('^(x|y)$') }),
    ],
    ['unreachable d a', 'contradiction d a'],
  ],
  [
    'the same, the deny first',
    [
      policyWith({ id: 'a', priority: 20, ...named('^x$'), ...role('dev') }),
      policyWith({ id: 'd', ...deny, ...named('^x$'), ...group('g') }),
      policyWith({ id: 'z', ...named('^(x|y)$') }),
    ],
    [],
  ],
  [
    'but two groups',
    [
      policyWith({ id: 'a', priority: 20, ...named('^x$'), ...group('h') }),
      policyWith({ id: 'd', ...deny, ...named('^x$'), ...group('g') }),
      policyWith({ id: 'z', ...named('^(x|y)$') }),
    ],
    [],
  ],
  [
    'a role and a user are not alike, though the same policies name them',
    [
      policyWith({ id: 'a', priority: 20, ...named('^x$'), subjects: [subject('role', 'dev'), subject('user', 'u')] }),
      policyWith({ id: 'd', ...deny, ...named('^x$'), ...role('ops') }),
      policyWith({ id: 'z', ...named('^(x|y)$') }),
    ],
    [],
  ],
  [
    'names that policies read later fit are not taken away',
    [
      policyWith({ id: 'h', ...deny, priority: 30, ...named('^x(?:[^ab]|..|$)') }),
      policyWith({ id: 'i', ...deny, priority: 30, ...named('^xa$') }),
      policyWith({ id: 'a', priority: 20, ...named('^x'), ...role('dev') }),
      policyWith({ id: 'l', priority: 5, effect: 'deny', ...named('^xb$') }),
      policyWith({ id: 'z', priority: 4, ...named('^xa?$') }),
    ],
    ['shadowed z h i', 'contradiction z h i', 'redundant l'],
  ],
  [
    'nobody has two roles',
    [
      policyWith({ id: 'a', priority: 20, ...named('^x$'), ...role('dev') }),
      policyWith({ id: 'd', ...deny, ...named('^x$'), ...role('ops') }),
      policyWith({ id: 'z', ...named('^(x|y)$') }),
    ],
    ['redundant a'],
  ],
  [
    'a deny and an allow of one priority',
    [
      policyWith({ id: 'a', ...named('^(x|y)$'), ...role('dev') }),
      policyWith({ id: 'd', effect: 'deny', ...named('^(y|z)$'), ...group('g') }),
    ],
    ['tie a d'],
  ],
  [
    'a deny and an allow of one priority that a third decides before',
    [
      policyWith({ id: 'a', ...named('^(x|y)$'), ...role('dev') }),
      policyWith({ id: 'c', ...deny, ...named('^y$') }),
      policyWith({ id: 'd', effect: 'deny', ...named('^(y|z)$'), ...group('g') }),
    ],
    ['redundant d'],
  ],
  ['an unanchored allow', [policyWith({ id: 'a', ...named('read') })], ['unanchored_allow a']],
  ['an allow with an end but no beginning', [policyWith({ id: 'a', ...named('read$') })], ['unanchored_allow a']],
  ['an allow of which one branch is anchored', [policyWith({ id: 'a', ...named('^read|write$') })], ['unanchored_allow a']],
  ['an anchor that lets anything follow', [policyWith({ id: 'a', ...named('^.*read') })], ['unanchored_allow a']],
  ['an anchor beside what no name fits', [policyWith({ id: 'a', ...named('^x?read$|a$b') })], []],
  ['an anchored prefix', [policyWith({ id: 'a', ...named('^(read|list)_') })], []],
  ['some characters, then a text', [policyWith({ id: 'a', ...named('^[a-z_]*read$') })], []],
  [
    'an unanchored deny',
    [policyWith({ id: 'a', resource_type: 'all', ...role('r') }), policyWith({ id: 'd', ...deny, ...named('read') })],
    [],
  ],
  ['everyone may use every tool', [policyWith({ id: 'a' })], ['broad_allow a']],
  ['a role may use every tool', [policyWith({ id: 'a', ...role('dev') })], []],
  ['a pattern that fits every name', [policyWith({ id: 'a', ...named('^(a|[^a])*$'), ...role('dev') })], ['broad_allow a']],
  ['a pattern that fits no name', [policyWith({ id: 'a', ...named('x$y') })], ['shadowed a']],
  ['a deny that fits no name', [policyWith({ id: 'd', ...deny, ...named('^x{257}$') })], ['unreachable d']],
  ['nobody', [policyWith({ id: 'a', subjects: [] })], ['no_subjects a']],
  [
    'equal names',
    [policyWith({ id: 'a', name: 'n', priority: 1, ...named('^x$') }), policyWith({ id: 'b', name: 'n', ...named('^y$') })],
    ['equal_name a b'],
  ],
  [
    'what does not exist',
    [
      policyWith({
        id: 'a',
        target_id: 'gone',
        ...named('^x$'),
        subjects: [subject('role', 'r'), subject('group', 'g'), subject('user', 'u')],
      }),
    ],
    ['unknown_target a', 'unknown_role a', 'unknown_group a', 'unknown_user a'],
    { targets: new Set(['t']), roles: new Set(['R']), groups: new Set(), users: new Set() },
  ],
  [
    'what exists',
    [
      policyWith({
        id: 'a',
        target_id: 't',
        ...named('^x$'),
        subjects: [subject('role', 'r'), subject('group', 'g'), subject('user', 'u')],
      }),
    ],
    [],
    {
      targets: new Set(['t']),
      roles: new Set(['r']),
      groups: new Set(['g']),
      users: new Set(['u']),
    },
  ],
];

for (const [what, policies, findings, known] of CASES) {
  test(`the analysis finds: ${what}`, (t) => t.deepEqual(said(policies, known).sort(), [...findings].sort()));
}

test('a finding shows a request, and its answers with and without the policy', (t) => {
  const { findings } = analyse(
    [
      policyWith({ id: 'a', priority: 20, name: 'Write', ...named('^(read|write)$'), ...role('dev') }),
      policyWith({ id: 'd', ...deny, name: 'Do not', ...named('^write$'), ...role('dev') }),
    ],
    { targets: new Set(['t9']) },
  );
  t.deepEqual(only(findings, 'contradiction'), {
    code: 'contradiction',
    severity: 'error',
    policy_ids: ['d', 'a'],
    message: '"Do not" denies no object: policies evaluated before it allow everything that it matches: "Write".',
    witness: {
      principal: { sub: 'somebody', role: 'dev', groups: [] },
      target: 't9',
      resource_type: 'tool',
      resource_name: 'write',
      is_template: false,
      decision: { effect: 'allow', policy_id: 'a' },
      without: { effect: 'allow', policy_id: 'a' },
    },
  });
});

test('a finding about a role or group says that no user has it, and not that it does not exist', (t) => {
  const subjects = [subject('role', 'r'), subject('group', 'g'), subject('user', 'u')];
  const known = { roles: new Set(['R']), groups: new Set<string>(), users: new Set<string>() };
  const { findings } = analyse([policyWith({ id: 'a', name: 'Read', ...named('^x$'), subjects })], known);
  t.is(only(findings, 'unknown_role').message, '"Read" names a role that no user has: "r".');
  t.is(only(findings, 'unknown_group').message, '"Read" names a group that no user has: "g".');
  t.is(only(findings, 'unknown_user').message, '"Read" names a user that does not exist: "u".');
});

test('an example for an unanchored pattern begins with other characters', (t) => {
  const { findings } = analyse([policyWith({ id: 'a', ...named('^read|write$') })]);
  t.is(only(findings, 'unanchored_allow').witness?.resource_name, 'xwrite');
});

test('an example of a resource looks like a URI if possible', (t) => {
  const uriOf = (pattern: string | null): string | null | undefined =>
    compare([], [policyWith({ id: 'a', resource_type: 'resource', resource_pattern: pattern })]).looser?.resource_name;
  t.is(uriOf(null), 'xx://x');
  t.is(uriOf('^file:'), 'file:///');
  t.is(uriOf('^demo://r/'), 'demo://r/x');
  t.is(uriOf('^https://'), 'https://x/');
  t.is(uriOf('^https?://api[.]example-1[.]com/'), 'http://api.example-1.com/');
  t.is(uriOf('[.]csv$'), 'xx://x.csv');
  t.is(uriOf('/[A-Z]+/READ.ME$'), 'xx://x/A/READxME');
  t.is(uriOf('^[^:]*$'), '{');
});

test('an example of a resource is a URI with one reading', (t) => {
  fc.assert(
    fc.property(fc.stringMatching(new RegExp(URI_LIKE)), (uri) => {
      t.true(isCanonicalUri(uri), uri);
    }),
    { numRuns: 1_000 },
  );
});

test('the search covers every canonical URI, and few other texts', (t) => {
  const pieces = [
    ...[
      'file://',
      'https://',
      'http:',
      'ws://',
      'httpx://',
      'htt:',
      'f:',
      'a+b.c-1:',
      'urn:',
      'demo://',
      '//',
      '/',
      '?',
      ':',
      '.',
      '..',
    ],
    ...[
      'a',
      'B',
      '0',
      '%20',
      '%C3%A9',
      '%25',
      '%252F',
      '%2F',
      '-',
      '_',
      '~',
      "'",
      '(',
      '@',
      '&',
      '=',
      ',',
      ';',
      '[::1]',
      ':8080',
    ],
  ];
  const text = fc.array(fc.constantFrom(...pieces), { minLength: 1, maxLength: 8 }).map((parts) => parts.join(''));
  const uris = createLibrary()(URIS);
  const counts = { canonical: 0, taken: 0 };
  fc.assert(
    fc.property(text, (uri) => {
      if (isCanonicalUri(uri)) counts.canonical++;
      if (uris.has(uri)) counts.taken++;
      t.true(uris.has(uri) || !isCanonicalUri(uri), uri);
    }),
    { numRuns: 30_000 },
  );
  t.log(JSON.stringify(counts));
  t.true(counts.canonical > 1_000 && counts.taken < counts.canonical * 1.2);
});

test('a resource pattern that matches no URI is found', (t) => {
  const codes = (resource_pattern: string, over: object = {}): string[] =>
    analyse([policyWith({ id: 'a', resource_type: 'resource', resource_pattern, ...over })]).findings.map(({ code }) => code);
  for (const pattern of [
    '^README$',
    '^HTTPS://',
    '^https://Example[.]com/',
    '^file:///a/[.][.]/b$',
    '^https://x$',
    'a b',
    '^file://host/',
  ])
    t.true(codes(pattern).includes('matches_no_uri'), pattern);
  for (const pattern of [
    '^file:///',
    '^https://example[.]com/',
    '^urn:isbn:',
    '[.]csv$',
    '^file:///\\{path\\}$',
    '^demo://r/%C3%A9',
  ])
    t.false(codes(pattern).includes('matches_no_uri'), pattern);
  t.false(codes('^README$', { resource_type: 'tool' }).includes('matches_no_uri'));
  t.deepEqual(codes('^README$'), ['shadowed', 'matches_no_uri']);
});

test('a witness does not use roles, users or targets of narrower policies', (t) => {
  const { findings } = analyse([
    policyWith({ id: 'a' }),
    policyWith({ id: 'b', ...named('^zzz$'), ...role('some-role'), target_id: 'some-target' }),
    policyWith({ id: 'c', ...named('^zzz$'), subjects: [subject('user', 'somebody')] }),
  ]);
  const { witness } = only(findings, 'broad_allow');
  t.false(['some-role', 'somebody'].includes(witness?.principal.role ?? ''));
  t.false(['somebody'].includes(witness?.principal.sub ?? ''));
  t.not(witness?.target, 'some-target');
});

test('a question that takes too long stays open and is reported as open', (t) => {
  const policies = [
    policyWith({ id: 'a', priority: 1, ...named('(a|b).{9}a.{9}$') }),
    policyWith({ id: 'b', ...named('a.{12}$'), ...role('dev') }),
  ];
  const { findings } = analyse(policies, {}, { bounds: { steps: 50 } });
  t.true(findings.some(({ code }) => code === 'undecided'));
  t.false(findings.some(({ code, policy_ids }) => code === 'unreachable' && policy_ids[0] === 'b'));
  t.is(compare(policies, policies.slice(0, 1), { bounds: { steps: 50 } }).verdict, 'unknown');
});

test('progress is reported to the end, and other work runs in between', (t) => {
  const policies = Array.from({ length: 300 }, (_, i) => policyWith({ id: `p${i}`, ...named(`^read_${i}$`) }));
  const told: Progress[] = [];
  analyse(policies, {}, { onProgress: (progress) => told.push(progress) });
  t.deepEqual(told.at(-1), { done: 300, total: 300 });
  t.deepEqual(
    told.map(({ done }) => done),
    told.map((_, i) => i + 1),
  );
  let steps = 0;
  for (const _ of analyseInSteps(policies)) steps++;
  t.true(steps > 300);
  const compared: Progress[] = [];
  compare(policies, policies.slice(1), { onProgress: (progress) => compared.push(progress) });
  t.deepEqual(compared.at(-1), { done: 1, total: 1 });
});

test('an unreadable policy is analysed as the engine reads it', (t) => {
  const broken = policyWith({ id: 'd', ...deny, resource_type: 'all', ...named('(') });
  t.deepEqual(said([policyWith({ id: 'a', ...named('^read$') }), broken]), ['unreachable a d', 'contradiction a d']);
  const { analysed } = analyse([policyWith({ id: 'a', ...named('(') })]);
  t.is(analysed, 0);
});

test('the starter policies have no findings', (t) => {
  const folder = join(import.meta.dirname, '../../../policies');
  const files = readdirSync(folder).filter((name) => FILE_NAME.test(name));
  const policies = files.map((name) => {
    const result = parsePolicyFile(readFileSync(join(folder, name), 'utf8'), name);
    if ('errors' in result) throw new Error(JSON.stringify(result.errors));
    const { target, subjects, ...members } = result.policy;
    return policyWith({ id: name, ...members, target_id: target, subjects: subjects.map((one) => ({ id: 's', ...one })) });
  });
  t.true(policies.length >= 6);
  t.deepEqual(
    analyse(policies).findings.filter(({ severity }) => severity !== 'info'),
    [],
  );
});

test('two policy sets are compared as equal, stricter, looser or incomparable', (t) => {
  const read = policyWith({ id: 'a', ...named('^read$'), ...role('dev') });
  const write = policyWith({ id: 'b', ...named('^write$'), ...role('dev') });
  t.is(compare([read], [read]).verdict, 'equal');
  t.is(compare([read], [{ ...read, id: 'other', priority: 7, resource_pattern: '^r(ea)d$' }]).verdict, 'equal');
  t.is(compare([read], []).verdict, 'stricter');
  const { verdict, stricter, looser } = compare([read], [read, write]);
  t.is(verdict, 'looser');
  t.is(stricter, null);
  t.deepEqual(looser, {
    principal: { sub: 'somebody', role: 'dev', groups: [] },
    subjects: [{ subject_type: 'role', subject_value: 'dev' }],
    target: 'some-target',
    resource_type: 'tool',
    resource_name: 'write',
    is_template: false,
    before: { effect: 'deny', policy_id: null },
    after: { effect: 'allow', policy_id: 'b' },
  });
  t.is(compare([read], [write]).verdict, 'incomparable');
});

test('the comparison of sets includes whether a target may be used', (t) => {
  const nothing = policyWith({ id: 'a', ...named('x$y'), ...role('dev') });
  const { verdict, stricter } = compare([nothing], []);
  t.is(verdict, 'stricter');
  t.is(stricter?.resource_type, null);
});

test('each changed policy has the changed decisions that it makes', (t) => {
  const read = policyWith({ id: 'read', ...named('^(read|list)$'), ...role('dev') });
  const all = policyWith({ id: 'all', priority: -1, resource_type: 'all', ...role('dev') });
  const never = policyWith({ id: 'never', ...deny, ...named('^drop$') });
  const twice = policyWith({ id: 'twice', ...deny, priority: 11, ...named('^drop$') });
  const names = (before: readonly Policy[], after: readonly Policy[]) =>
    Object.fromEntries(
      [...compare(before, after).flips].map(([id, { stricter, looser, undecided }]) => {
        t.false(undecided);
        return [id, [stricter?.resource_name ?? null, looser?.resource_name ?? null]];
      }),
    );
  t.deepEqual(names([read], [{ ...read, ...named('^(list|write)$') }]), { read: ['read', 'write'] });
  t.deepEqual(names([read, all], [{ ...read, name: 'other', description: 'x' }, all]), {}, 'a name decides nothing');
  t.deepEqual(names([read, all], [all]), { read: [null, null] }, 'another policy allows the same');
  t.deepEqual(names([all, never], [all]), { never: [null, 'drop'] });
  t.deepEqual(names([all, never, twice], [all]), { never: [null, null], twice: [null, 'drop'] }, 'only the first decided');
  t.deepEqual(names([all], [all, never, twice]), { never: [null, null], twice: ['drop', null] });
  t.deepEqual(names([read], [{ ...read, enabled: false }]), { read: ['read', null] });
  // One request, and two policies that it is of.
  t.deepEqual(names([read], [{ ...read, id: 'deny', effect: 'deny' }]), { read: ['read', null], deny: ['read', null] });
});

test('differences name existing targets if possible', (t) => {
  const one = policyWith({ id: 'a', target_id: 't1', ...named('^x$') });
  const every = policyWith({ id: 'b', ...named('^x$') });
  const target = (policies: readonly Policy[], targets: readonly string[]) =>
    compare([one], policies, { targets }).looser?.target;
  t.is(target([one, every], ['t1', 't2']), 't2');
  t.is(target([one, every], ['t1']), 'some-target', 'at t1 it is allowed already');
  // There are two changes, so that policies name every target. The example then uses one of them.
  t.is(
    target(
      [
        { ...one, ...named('^y$') },
        { ...every, ...named('^z$') },
      ],
      ['t1'],
    ),
    't1',
  );
});

test('a question that is not searched stays open', (t) => {
  const allows = Array.from({ length: 5 }, (_, i) => policyWith({ id: `p${i}`, ...named(`^x${i}$`) }));
  const open = (before: readonly Policy[], after: readonly Policy[], bounds: object) => {
    const { verdict, flips } = compare(before, after, { bounds });
    return [verdict, [...flips.values()].map(({ undecided }) => undecided)];
  };
  t.deepEqual(open([], allows, { differences: 2 }), ['looser', [false, false, true, true, true]]);
  // The verdict asks for the other way, too.
  const [first, ...rest] = allows;
  t.deepEqual(open(rest, first === undefined ? [] : [first], { differences: 1 }), [
    'incomparable',
    [false, false, true, true, true],
  ]);
  t.deepEqual(open([], allows, { allSteps: 0 }), ['unknown', [true, true, true, true, true]]);
  t.deepEqual(open(allows, allows, { allSteps: 0, differences: 0 }), ['equal', []]);
});
