import test from 'ava';
import fc from 'fast-check';
import { createEngine, loadPolicyModule } from '../../../src/engine/engine.ts';
import { junitOf } from '../../../src/policies/files/junit.ts';
import { CASES_PER_FILE, parseTestFile, type TestCase } from '../../../src/policies/files/test-file.ts';
import { runTests, type TestReport } from '../../../src/policies/files/test-run.ts';
import { offlineSet, readFiles } from '../../../src/policies/sets/offline.ts';
import { file } from '../sets.ts';

const MATRIX = `target: files
principals:
  developer: { role: developer }
  contractor: { role: developer, groups: [contractors], user: someone }
requests:
  read: { tool: read }
  print: { prompt: hello, target: other }
  open: { target: other }
tests:
  - name: all
    expect:
      - principals: [developer]
        requests: [read]
        effect: allow
        policy: read-files
      - requests: [print]
        effect: deny
        policy: null
`;

function casesOf(text: string): readonly TestCase[] {
  const parsed = parseTestFile(text, 'a.yaml');
  if ('errors' in parsed) throw new Error(JSON.stringify(parsed.errors));
  return parsed.cases;
}

const refused = (text: string): string[] => {
  const parsed = parseTestFile(text, 'a.yaml');
  return 'errors' in parsed ? parsed.errors.map(({ line, column, message }) => `${line}:${column}: ${message}`) : [];
};

test('every principal makes every request, and a request that is not listed must be denied', (t) => {
  const cases = casesOf(MATRIX);
  t.deepEqual(
    cases.map(({ principal, request, target, expected, line }) => ({ principal, request, target, expected, line })),
    [
      { principal: 'developer', request: 'read', target: 'files', expected: { effect: 'allow', policy: 'read-files' }, line: 12 },
      { principal: 'developer', request: 'print', target: 'other', expected: { effect: 'deny', policy: null }, line: 16 },
      { principal: 'developer', request: 'open', target: 'other', expected: { effect: 'deny' }, line: 10 },
      { principal: 'contractor', request: 'read', target: 'files', expected: { effect: 'deny' }, line: 10 },
      { principal: 'contractor', request: 'print', target: 'other', expected: { effect: 'deny', policy: null }, line: 16 },
      { principal: 'contractor', request: 'open', target: 'other', expected: { effect: 'deny' }, line: 10 },
    ],
  );
  t.deepEqual(cases[0]?.facts, { sub: '', role: 'developer', groups: [] });
  t.deepEqual(cases[3]?.facts, { sub: 'someone', role: 'developer', groups: ['contractors'] });
  t.deepEqual(cases[1]?.object, { resource_type: 'prompt', resource_name: 'hello' });
  t.is(cases[2]?.object, null);
});

test('a request that no test uses needs no target', (t) => {
  const text = `principals:
  a: { role: user }
requests:
  unused: { tool: read }
  used: { tool: read, target: files }
tests:
  - name: all
    requests: [used]
`;
  t.is(casesOf(text).length, 1);
});

test('a test file is refused with the places of its mistakes', (t) => {
  const change = (from: string, to: string): string[] => refused(MATRIX.replace(from, to));
  t.deepEqual(change('principals: [developer]', 'principals: [developr]'), ['12:22: "developr" is not one of the principals']);
  t.deepEqual(change('requests: [read]', 'requests: [nothing]'), ['13:20: "nothing" is not one of the requests']);
  t.deepEqual(change('requests: [print]', 'requests: [print, read]'), ['16:9: repeats the expectation for developer with read']);
  t.deepEqual(change('target: files\n', ''), ['5:3: names no target, and the file has no default target']);
  t.deepEqual(change('effect: allow', 'effect: permit'), ['14:9: tests.0.expect.0.effect must be one of [allow, deny]']);
  t.regex(change('{ tool: read }', '{ tool: read, prompt: x }')[0] ?? '', /^6:3: requests\.read must name a tool/);
  t.regex(change('{ tool: read }', '{}')[0] ?? '', /^6:3: requests\.read must name a tool/);
  t.regex(change('{ role: developer }', '{ groups: [a] }')[0] ?? '', /^3:3: principals\.developer\.role is required|^3:/);
  t.regex(change('  developer: {', '  __proto__: {')[0] ?? '', /^3:3: __proto__ is not an allowed key$/);
  t.regex(change('  developer: {', '  -x: {')[0] ?? '', /^3:3: .*is not an allowed name/);
  t.deepEqual(refused(''), ['1:1: the file is empty']);
  t.deepEqual(refused(`${MATRIX}---\na: 1`), ['19:1: only one set of tests per file is allowed: a second document begins here']);
  t.regex(change('{ tool: read }', '&a { tool: read }')[0] ?? '', /anchors, aliases and tags are not allowed/);
  t.regex(change('target: files', 'target: Files')[0] ?? '', /^1:1: target must be the name of a target/);
  t.regex(change('    expect:', '    expected:')[0] ?? '', /^11:5: tests\.0\.expected is not an allowed key/);
});

test('a wrong request is reported once, however many tests use it', (t) => {
  const requests = Array.from({ length: 50 }, (_, i) => `  r${i}: { tool: x }`).join('\n');
  const tests = Array.from({ length: 50 }, (_, i) => `  - name: t${i}`).join('\n');
  const errors = refused(`principals:\n  one: { role: x }\nrequests:\n${requests}\ntests:\n${tests}\n`);
  t.is(errors.length, 50);
});

test('a short file cannot make more than the allowed number of cases', (t) => {
  const many = (count: number, of: string): string => Array.from({ length: count }, (_, i) => `  n${i}: ${of}\n`).join('');
  const text = (tests: string): string =>
    `target: files\nprincipals:\n${many(200, '{ role: a }')}requests:\n${many(200, '{ tool: a }')}tests:\n${tests}`;
  t.regex(refused(text('  - name: all\n'))[0] ?? '', new RegExp(`makes more than ${CASES_PER_FILE} cases`));
  const part = '  - name: some\n    principals: [n1]\n';
  t.is(casesOf(text(part.repeat(50))).length, CASES_PER_FILE);
  t.is(refused(text(part.repeat(51))).length, 1);
  const wrong = '  - name: wrong\n    principals: [n1]\n    expect: [{ effect: deny }, { effect: deny }]\n';
  const errors = refused(text(wrong.repeat(51)));
  t.is(errors.length, 51);
  t.regex(errors.at(-1) ?? '', /makes more than/, 'wrong tests count, too');
  t.is(refused(text('  - name: all\n'.repeat(1_000))).length, 200);
});

test('every file is accepted or refused with places, and reading never throws', (t) => {
  const pieces = [
    'principals:',
    'requests:',
    'tests:',
    '- name: x',
    '  a: { role: b }',
    '\n',
    '{',
    '[',
    '*a',
    '!!x',
    '"',
    ': ',
    '\t',
    '\0',
    '<<',
  ];
  fc.assert(
    fc.property(fc.array(fc.oneof(fc.constantFrom(...pieces), fc.string({ maxLength: 6 })), { maxLength: 20 }), (parts) => {
      const parsed = parseTestFile(parts.join(''), 'a.yaml');
      return 'cases' in parsed || parsed.errors.every(({ line, column }) => line >= 1 && column >= 1);
    }),
    { numRuns: 2_000 },
  );
  t.pass();
});

async function run(cases: readonly TestCase[], files: Readonly<Record<string, string>>) {
  const module = await loadPolicyModule();
  const set = offlineSet(
    readFiles(new Map(Object.entries(files))),
    { owner: 'default', others: [], targets: cases.map(({ target }) => target) },
    module.checkPattern,
  );
  if ('errors' in set) throw new Error(JSON.stringify(set.errors));
  const engine = await createEngine({ module, policies: set.policies, revision: 0 });
  return runTests(cases, { engine, ...set, isStored: () => false });
}

test('results come from the engine, and coverage counts the deciding policies', async (t) => {
  const developers = { subjects: [{ subject_type: 'role', subject_value: 'developer' }] } as const;
  const files = {
    'read-files.yaml': file({ name: 'Reading', target: 'files', resource_pattern: '^read$', ...developers }),
    'never.yaml': file({ name: 'Never', resource_pattern: '^never$' }),
    'off.yaml': file({ name: 'Off', enabled: false }),
  };
  const report = (await run(casesOf(MATRIX), files)) as TestReport;
  t.deepEqual(
    report.results.filter(({ passed }) => !passed).map(({ principal, request, actual }) => [principal, request, actual.effect]),
    // The policy for every target lets anybody in at `other`; the contractor is a developer.
    [
      ['developer', 'open', 'allow'],
      ['contractor', 'read', 'allow'],
      ['contractor', 'open', 'allow'],
    ],
  );
  t.is(report.failed, 3);
  // Only the target question was decided by it.
  t.deepEqual(report.coverage, { policies: 2, decided: 2, percent: 100, undecided: [] });

  const onlyRead = casesOf(MATRIX).filter(({ request }) => request === 'read');
  const less = (await run(onlyRead, files)) as TestReport;
  t.like(less.coverage, { policies: 2, decided: 1, percent: 50 });
  t.deepEqual(
    less.coverage.undecided.map(({ file }) => file),
    ['never.yaml'],
  );

  // The right effect by another policy fails.
  const other = { ...files, 'other.yaml': file({ name: 'Other', priority: 99, resource_pattern: '^read$', ...developers }) };
  const [first] = ((await run(onlyRead, other)) as TestReport).results;
  t.false(first?.passed);
  t.is(first?.actual.policy?.name, 'Other');

  // So does the name of the policy in place of that of its file, where nothing is called so.
  const unknown = await run(casesOf(MATRIX), { 'never.yaml': files['never.yaml'] });
  t.deepEqual('errors' in unknown && unknown.errors.map(({ line, message }) => `${line}: ${message}`), [
    '12: no policy and no policy file has the name "read-files"',
  ]);
});

test('the offline run refuses everything that a gateway would refuse', (t) => {
  const set = offlineSet(
    readFiles(
      new Map([
        ['a.yaml', file({ resource_pattern: '(' })],
        ['B.yaml', file()],
      ]),
    ),
    { owner: 'default', others: [], targets: [] },
    (pattern) => (pattern === '(' ? 'It is open.' : null),
  );
  t.deepEqual('errors' in set && set.errors.map((error) => error.file), ['a.yaml', 'B.yaml']);
});

test('JUnit output shows names as text, whatever they hold', (t) => {
  const bad = '"<&>\' \ufffe';
  const report: TestReport = {
    passed: 0,
    failed: 1,
    results: [
      {
        ...{ file: 'a.yaml', line: 1, column: 2, test: bad, principal: bad, request: ']]>', target: 'x', passed: false },
        expected: { effect: 'allow', policy: bad },
        actual: { effect: 'deny', reason: 'default', policy: null },
      },
    ],
    coverage: { policies: 3, decided: 1, percent: 33.3, undecided: [{ id: null, name: bad, priority: 1, file: null }] },
  };
  const xml = junitOf(report, 50);
  t.true(xml.includes('tests="2" failures="2"'));
  t.true(xml.includes('&quot;&lt;&amp;&gt;&apos; \ufffd'));
  t.notRegex(xml, /\ufffe|\]\]>/);
  // Every attribute ends where it should: without attributes, only bare tags and texts are left.
  t.notRegex(xml.replace(/="[^"<>]*"/g, '').replace(/^<\?.*$/m, ''), /["']/);
  t.false(junitOf(report, 33.3).includes('classname="coverage" name="policies"><failure'));
});
