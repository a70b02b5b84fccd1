import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import fc from 'fast-check';
import { readPattern } from '../../../src/engine/compile/pattern.ts';
import { FILE_NAME } from '../../../src/policies/files/file.ts';
import { describePolicyFileError, formatPolicyFile, type PolicyFile, parsePolicyFile } from '../../../src/policies/files/yaml.ts';
import { subjectKey } from '../../../src/policies/schema.ts';

const starters = join(import.meta.dirname, '../../../policies');

const minimal = `name: Everyone may echo
resource_type: tool
effect: allow
priority: 10
subjects: [everyone]
`;

const parsed = (text: string): PolicyFile => {
  const result = parsePolicyFile(text, 'a.yaml');
  if ('errors' in result) throw new Error(result.errors.map(describePolicyFileError).join('\n'));
  return result.policy;
};
const mistakes = (text: string): string[] => {
  const result = parsePolicyFile(text, 'a.yaml');
  return 'errors' in result ? result.errors.map(describePolicyFileError) : [];
};

test('a file needs only the required members, and the others have defaults', (t) => {
  t.deepEqual(parsed(minimal), {
    name: 'Everyone may echo',
    description: null,
    target: null,
    resource_type: 'tool',
    resource_pattern: null,
    effect: 'allow',
    priority: 10,
    enabled: true,
    subjects: [{ subject_type: 'everyone', subject_value: null }],
  });
});

test('subjects have a short form, and each is read once', (t) => {
  const text = minimal.replace(
    '[everyone]',
    '[role: admin, {group: "a b"}, role: admin, user: 0190163d-8694-739b-aea5-966c26f8ad90, role: everyone]',
  );
  t.deepEqual(parsed(text).subjects, [
    { subject_type: 'role', subject_value: 'admin' },
    { subject_type: 'group', subject_value: 'a b' },
    { subject_type: 'user', subject_value: '0190163d-8694-739b-aea5-966c26f8ad90' },
    { subject_type: 'role', subject_value: 'everyone' },
  ]);
});

test('a pattern may be written without quotes and keeps its backslashes', (t) => {
  t.is(parsed(`${minimal}resource_pattern: ^get-\\w+$\n`).resource_pattern, '^get-\\w+$');
});

test('every mistake is named with its place', (t) => {
  const text = `name: ""
target: Not a slug
resource_type: tools
effect: Allow
priority: "10"
enabled: yes
colour: red
subjects:
  - nobody
  - role: a
    group: b
  - user: a@example.com
  - everyone: true
  - role: 5
`;
  const found = mistakes(text);
  t.deepEqual(
    found.map((line) => line.replace(/^a\.yaml:(\d+):(\d+): (\S+) .*/, '$1:$2 $3')),
    [
      '1:1 name',
      '2:1 target',
      '3:1 resource_type',
      '4:1 effect',
      '5:1 priority',
      '6:1 enabled',
      '7:1 colour',
      '9:5 subjects.0',
      '10:5 subjects.1',
      '12:5 subjects.2.user',
      '13:5 subjects.3.everyone',
      '14:5 subjects.4.role',
    ],
  );
  t.regex(found[6] ?? '', /colour is not a key of a policy/);
});

for (const [title, text, place] of [
  ['an empty file', '', '1:1'],
  ['comments alone', '# nothing\n', '1:1'],
  ['a list', '- a\n', '1:1'],
  ['a text', 'hello\n', '1:1'],
  ['a duplicate key', `${minimal}priority: 11\n`, '6:1'],
  ['a second document', `${minimal}---\n${minimal}`, '6:1'],
  ['an anchor', minimal.replace('Everyone may echo', '&a Everyone'), '1:10'],
  ['an alias', `${minimal.replace('name: ', 'name: &a ')}description: *a\n`, '1:10'],
  ['a tag', minimal.replace('10', '!!int "10"'), '4:17'],
  ['an unknown tag', minimal.replace('10', '!x 10'), '4:11'],
  ['another version of YAML', `%YAML 1.1\n---\n${minimal}`, '1:1'],
  ['a broken flow', minimal.replace(']', ''), '6:1'],
  ['a tab as indentation', minimal.replace('[everyone]', '\n\t- everyone'), '6:1'],
  ['a line that ends for other readers of YAML alone', minimal.replace('10', '10 # not\reffect: deny'), '4:19'],
  ...['010', '0o10', '0x10', '1e1', '+10', '10.0'].map(
    (number) => [`the number ${number}`, minimal.replace('10', number), '4:11'] as const,
  ),
  ['a missing key', minimal.replace('effect: allow\n', ''), '1:1'],
] as const) {
  test(`refused: ${title}`, (t) => {
    const [first = 'nothing'] = mistakes(text);
    t.true(first.startsWith(`a.yaml:${place}: `), first);
  });
}

test('a control character is refused: the lexer would take some of them for its own marks, and miss how deep the nesting is', (t) => {
  for (const mark of ['\x02', '\x18', '\x1f', '\0', '\x7f', '\u0085', '\u009b'])
    t.deepEqual(mistakes(`name: [${mark}`), ['a.yaml:1:8: a control character is not allowed'], JSON.stringify(mark));
  t.deepEqual(mistakes(`name: a\n\n  b\x18`), ['a.yaml:3:4: a control character is not allowed']);
  t.deepEqual(mistakes(`name: ${'[\x18,'.repeat(15_000)}`), ['a.yaml:1:8: a control character is not allowed']);
});

test('a character that misleads the reader of a file is refused, unless it is written visibly, as files that are written have it', (t) => {
  for (const mark of ['\u2028', '\u2029', '\u202e', '\u2066']) {
    const form = `\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`;
    const message = `a character that misleads readers is allowed only as ${form} in double quotes`;
    t.deepEqual(mistakes(minimal.replace('may echo', `may ${mark}echo`)), [`a.yaml:1:20: ${message}`]);
    t.deepEqual(mistakes(`# a comment${mark}effect: deny\n${minimal}`), [`a.yaml:1:12: ${message}`]);
    const description = parsed(`${minimal}description: "a${form}b"\n`).description;
    t.is(description, `a${mark}b`);
    const policy = { ...parsed(minimal), description };
    for (const previous of [null, minimal]) {
      const text = formatPolicyFile(policy, previous);
      t.false(text.includes(mark));
      t.deepEqual(parsed(text), policy);
    }
  }
});

test('deep or long files are refused quickly', (t) => {
  // CPU time of this process only, because other processes may use the machine.
  const before = process.cpuUsage();
  t.true(mistakes('['.repeat(60_000)).length > 0);
  t.true(mistakes('a: '.repeat(20_000)).length > 0);
  // If the stack is full, V8 ends the process when it compiles a regular expression.
  const deep = [
    ...['['.repeat(60_000), '['.repeat(32_000) + ']'.repeat(32_000), '{'.repeat(32_000) + '}'.repeat(32_000)],
    ...['- '.repeat(30_000), '? '.repeat(30_000), `${minimal}subjects: ${'['.repeat(33)}${']'.repeat(33)}`],
  ];
  for (const text of deep) t.regex(mistakes(text).join('\n'), /^a\.yaml:\d+:\d+: the nesting is too deep$/);
  const stairs = Array.from({ length: 126 }, (_, i) => `${' '.repeat(8 * i)}- - - - a`).join('\n');
  t.notRegex(mistakes(stairs.replaceAll(' a', '')).join('\n'), /call stack/);
  t.true(mistakes(`# ${'x'.repeat(70_000)}\n${minimal}`).length > 0);
  const { user, system } = process.cpuUsage(before);
  const ms = (user + system) / 1_000;
  t.true(ms < 10_000, `${ms} ms`);
});

const word = (max: number) =>
  fc.oneof(
    fc.string({ unit: 'grapheme', minLength: 1, maxLength: max }).filter((s) => !/\p{Cc}/u.test(s) && s.isWellFormed()),
    fc.constantFrom(
      'yes',
      'null',
      '~',
      '010',
      '1e3',
      '- a',
      'a: b',
      '#',
      ' a ',
      "'",
      '"',
      '*a',
      '&a',
      '!a',
      '%',
      '@',
      '\u{1f600}',
      '\u2028',
      '\ufeff',
      '<<',
      '---',
      '...',
    ),
  );
const subject = fc.oneof(
  fc.constant({ subject_type: 'everyone' as const, subject_value: null }),
  fc.record({ subject_type: fc.constantFrom('role' as const, 'group' as const), subject_value: word(20) }),
  fc.record({ subject_type: fc.constant('user' as const), subject_value: fc.constant('0190163d-8694-739b-aea5-966c26f8ad90') }),
);
const anyFile: fc.Arbitrary<PolicyFile> = fc.record({
  name: word(100),
  description: fc.option(word(300)),
  target: fc.option(fc.constantFrom('everything', 'a', 'no', 'y', 'null')),
  resource_type: fc.constantFrom('all', 'tool', 'resource', 'prompt'),
  resource_pattern: fc.option(word(60)),
  effect: fc.constantFrom('allow', 'deny'),
  priority: fc.integer(),
  enabled: fc.boolean(),
  subjects: fc.uniqueArray(subject, { maxLength: 5, selector: (s) => JSON.stringify(s) }),
});

test('of thousands of mistakes, the first hundred are named', (t) => {
  const keys = (name: (at: number) => string): string => Array.from({ length: 8_000 }, (_, at) => `${name(at)}: `).join('\n');
  for (const text of [keys((at) => `k${at}`), keys((at) => `k${at % 2}`), '- *a\n'.repeat(12_000)]) {
    const read = parsePolicyFile(text, 'many.yaml');
    t.is('errors' in read && read.errors.length, 100);
  }
});

test('a formatted policy is read back unchanged', (t) => {
  fc.assert(
    fc.property(anyFile, (policy) => {
      const text = formatPolicyFile(policy);
      t.deepEqual(parsed(text), policy);
      t.is(formatPolicyFile(parsed(text)), text);
    }),
    { numRuns: 300 },
  );
});

const COMMENTED = `# What this is about.

# above the name
name: One # beside the name
# above the effect, which is out of order
effect: allow # beside the effect
target: "everything" # beside the target
# above the type
resource_type: tool
priority: 16 # beside the priority
enabled: false # beside the switch

# above the subjects
subjects:
  # above the first
  - role: a # beside the first
  # above the second
  - everyone

# at the end
`;
const FLOW = '{ name: a, resource_type: tool, effect: deny, priority: 1, subjects: [everyone, role: x] } # in one line\n';

test('a handwritten file stays unchanged if it describes the same policy', (t) => {
  for (const text of [COMMENTED, FLOW, `\r\n${minimal.replaceAll('\n', '\r\n')}`, `---\n${minimal}...\n`]) {
    t.is(formatPolicyFile(parsed(text), text), text);
    t.is(formatPolicyFile({ ...parsed(text), subjects: parsed(text).subjects.toReversed() }, text), text);
  }
});

test('a handwritten file keeps its comments and order if the policy changes', (t) => {
  const was = parsed(COMMENTED);
  const text = formatPolicyFile({ ...was, priority: 17, resource_pattern: '^x$', enabled: true }, COMMENTED);
  t.is(
    text,
    COMMENTED.replace('16', '17').replace('enabled: false', 'enabled: true').replace('tool\n', 'tool\nresource_pattern: ^x$\n'),
  );
  const without = formatPolicyFile({ ...was, subjects: [{ subject_type: 'group', subject_value: 'new' }] }, COMMENTED);
  t.true(without.includes('  # above the first\n  # above the second\n  - group: new\n'), without);
  // A key with a comment stays, even at its default, because its comment would be lost.
  t.true(formatPolicyFile({ ...was, target: null }, COMMENTED).includes('target: null # beside the target\n'));

  const comments = [...COMMENTED.matchAll(/# (?:[^\n]*)/g)]
    .map(([comment]) => comment)
    .filter((line) => !/beside the first/.test(line));
  fc.assert(
    fc.property(anyFile, anyFile, (policy, other) => {
      for (const start of [COMMENTED, FLOW, formatPolicyFile(other)]) {
        const text = formatPolicyFile(policy, start);
        t.deepEqual(sortedSubjects(parsed(text)), sortedSubjects(policy));
        t.is(formatPolicyFile(policy, text), text);
        if (start === COMMENTED) for (const comment of comments) t.true(text.includes(comment), `${comment} in\n${text}`);
      }
    }),
    { numRuns: 150 },
  );
});

const sortedSubjects = (policy: PolicyFile): PolicyFile => ({
  ...policy,
  subjects: policy.subjects.toSorted((a, b) => (subjectKey(a) < subjectKey(b) ? -1 : 1)),
});

test('the starter policies are readable, with admitted patterns and different names', (t) => {
  const files = readdirSync(starters).filter((name) => FILE_NAME.test(name));
  t.true(files.length >= 4);
  const policies = files.map((name) => {
    const text = readFileSync(join(starters, name), 'utf8');
    t.true(text.startsWith('# '), `${name} explains itself`);
    return parsed(text);
  });
  for (const { resource_pattern, name } of policies) {
    if (resource_pattern !== null) t.not(typeof readPattern(resource_pattern), 'string', name);
  }
  t.is(new Set(policies.map(({ name }) => name)).size, files.length);
});
