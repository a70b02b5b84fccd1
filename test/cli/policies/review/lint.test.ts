import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { file } from '../../../policies/sets.ts';
import { folder, inProcess, policies, type Ran } from '../../cli.ts';

const lint = (dir: string, ...args: string[]): Promise<Ran> =>
  inProcess({}, (terminal) => policies(['lint', '--dir', dir, ...args], terminal));

const WIDE = file({ name: 'Wide', resource_pattern: 'echo' });
const DENIED = file({ name: 'Denied', effect: 'deny', priority: 20 });

function folderOf(t: ExecutionContext, files: Readonly<Record<string, string>>): string {
  const dir = folder(t);
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
  return dir;
}

interface Json {
  readonly findings: readonly { code: string; fingerprint: string; policies: readonly object[] }[];
  readonly hidden: readonly { code: string; hidden_by: string; reason: string | null; until: string | null }[];
  readonly gone?: number;
}
const jsonOf = async (dir: string, ...args: string[]): Promise<Json> => JSON.parse((await lint(dir, '--json', ...args)).out);
const codes = (found: readonly { code: string }[]): string[] => found.map(({ code }) => code);

test.serial('a finding names file, line, column and owner', async (t) => {
  const dir = folderOf(t, { 'wide.yaml': `# Why\n${WIDE}` });
  const { code, out } = await lint(dir, '--owner', 'payments', '--severity', 'warning');
  t.is(code, 1);
  t.true(out.startsWith(`${join(dir, 'wide.yaml')}:4:1: warning unanchored_allow (owner payments): The pattern of "Wide" `), out);
  const [finding] = (await jsonOf(dir)).findings;
  const place = { name: 'Wide', file: 'wide.yaml', owner: 'default', line: 4, column: 1 };
  t.like(finding?.policies[0], place);
  for (const option of ['--baseline', '--sarif', '--owner'])
    t.is(
      (await inProcess({ PORTCULLIS_TOKEN: 'a.b.c' }, (end) => policies(['lint', '--live', option, 'x'], end))).code,
      2,
      option,
    );
});

test.serial('a comment with a reason hides a finding until its day, is counted, and is a finding afterwards', async (t) => {
  const dir = folderOf(t, { 'wide.yaml': `${WIDE}# portcullis-ignore unanchored_allow until 2999-01-31: names are ours\n` });
  const hidden = await lint(dir, '--severity', 'info');
  t.deepEqual([hidden.code, hidden.out], [0, '0 findings in 1 policy. Hidden: 1 by comments, 0 by the baseline.\n']);
  t.like((await jsonOf(dir)).hidden[0], {
    ...{ code: 'unanchored_allow', hidden_by: 'comment', reason: 'names are ours', until: '2999-01-31' },
  });
  const today = new Date().toISOString().slice(0, 10);
  writeFileSync(join(dir, 'wide.yaml'), `# portcullis-ignore unanchored_allow until ${today}: today is the last day\n${WIDE}`);
  t.is((await lint(dir, '--severity', 'info')).code, 0);
  writeFileSync(join(dir, 'wide.yaml'), `\n  # portcullis-ignore unanchored_allow until 2026-01-31: names are ours\n${WIDE}`);
  const expired = await lint(dir, '--severity', 'warning');
  t.is(expired.code, 1);
  t.regex(expired.out, /warning unanchored_allow /);
  t.true(expired.out.includes(`${join(dir, 'wide.yaml')}:2:3: warning expired_ignore (owner default): The comment that hid `));
});

test.serial('a comment that would hide nothing, or an error, is refused with its place', async (t) => {
  const dir = folderOf(t, { 'wide.yaml': WIDE, 'denied.yaml': DENIED });
  for (const [comment, problem] of [
    ['# portcullis-ignore contradiction until 2999-01-31: we know', 'a comment cannot hide contradiction'],
    ['# portcullis-ignore all until 2999-01-31: we know', 'no finding has the name all'],
    ['# portcullis-ignore constructor until 2999-01-31: we know', 'no finding has the name constructor'],
    ['# portcullis-ignore expired_ignore until 2999-01-31: we know', 'no finding has the name expired_ignore'],
    ['# portcullis-ignore tie until 2999-02-30: we know', '2999-02-30 is not a day'],
    ['# portcullis-ignore tie until tomorrow: we know', 'tomorrow is not a day'],
    ['# portcullis-ignore tie until +12999-01-01: we know', '+12999-01-01 is not a day'],
    ['# portcullis-ignore tie until 2999-01-31:', 'must have the form'],
    ['# portcullis-ignore tie until 2999-01-31: ', 'must have the form'],
    ['# portcullis-ignore tie: we know', 'must have the form'],
    ['#portcullis-ignore tie until 2999-01-31: we know', 'must have the form'],
    ['##  portcullis-ignore', 'must have the form'],
  ] as const) {
    writeFileSync(join(dir, 'wide.yaml'), `${WIDE.trimEnd()} ${comment}\n`);
    const { code, err } = await lint(dir, '--severity', 'error');
    t.is(code, 1, comment);
    const last = WIDE.trimEnd().split('\n');
    t.true(err.includes(`${join(dir, 'wide.yaml')}:${last.length}:${(last.at(-1)?.length ?? 0) + 2}: `), err);
    t.true(err.includes(problem), err);
  }
  const twice = '# portcullis-ignore unanchored_allow until 2999-01-31: a\n';
  writeFileSync(join(dir, 'wide.yaml'), twice + twice + WIDE);
  t.regex((await lint(dir)).err, /wide\.yaml:2:1: a comment above already hides unanchored_allow/);
});

test.serial('text of a value is no comment, and a comment about one finding hides no other', async (t) => {
  const ignore = '# portcullis-ignore unanchored_allow until 2999-01-31: no comment';
  for (const description of [`|\n  ${ignore}`, `|\n  text\n  ${ignore}`, `'${ignore}'`, `"a\n  ${ignore}"`]) {
    const dir = folderOf(t, { 'wide.yaml': `description: ${description}\n${WIDE}` });
    t.deepEqual(codes((await jsonOf(dir)).findings), ['unanchored_allow'], description);
  }
  const other = folderOf(t, { 'wide.yaml': `# portcullis-ignore broad_allow until 2999-01-31: another\n${WIDE}` });
  t.deepEqual(codes((await jsonOf(other)).findings), ['unanchored_allow']);
});

test.serial('a baseline hides known findings until a policy means something else, and never an error', async (t) => {
  const dir = folderOf(t, { 'wide.yaml': WIDE });
  const baseline = join(dir, 'baseline.json');
  const run = (...args: string[]) => lint(dir, '--baseline', baseline, ...args);
  t.is((await run()).code, 1, 'it does not exist yet');
  t.is((await lint(dir, '--write-baseline')).code, 2);
  const written = await run('--write-baseline');
  t.deepEqual([written.code, written.out], [0, '0 findings in 1 policy. Hidden: 0 by comments, 1 by the baseline.\n']);
  const bytes = readFileSync(baseline, 'utf8');

  // An unrelated edit of the policy, and of other policies.
  const edited = file({ name: 'Wide', description: 'new', resource_pattern: 'echo', priority: 11 });
  writeFileSync(join(dir, 'wide.yaml'), `# A comment\n${edited}`);
  writeFileSync(join(dir, 'another.yaml'), file({ name: 'Another', resource_pattern: '^get$' }));
  t.is((await run()).code, 0);
  await run('--write-baseline');
  t.is(readFileSync(baseline, 'utf8'), bytes);

  writeFileSync(join(dir, 'another.yaml'), file({ name: 'Another', resource_pattern: 'get' }));
  const more = await run();
  t.is(more.code, 1);
  t.regex(more.out, /another\.yaml:\d+:1: warning unanchored_allow/);
  t.is((await run('--severity', 'error')).code, 0);
  rmSync(join(dir, 'another.yaml'));
  writeFileSync(join(dir, 'wide.yaml'), file({ name: 'Wide', resource_pattern: 'e' }));
  const changed = await jsonOf(dir, '--baseline', baseline);
  t.deepEqual([codes(changed.findings), changed.gone], [['unanchored_allow'], 1], 'a different pattern is a different finding');

  writeFileSync(join(dir, 'denied.yaml'), DENIED);
  writeFileSync(join(dir, 'wide.yaml'), file({ name: 'Wide' }));
  const still = await run('--write-baseline');
  t.is(still.code, 1);
  t.regex(still.out, /error contradiction /);
  t.false(readFileSync(baseline, 'utf8').includes('contradiction'));
  // Somebody writes the error into the baseline by hand.
  const [error] = (await jsonOf(dir)).findings.filter(({ code }) => code === 'contradiction');
  for (const code of ['contradiction', 'redundant']) {
    const forged = { portcullis_baseline: 1, findings: [{ code, file: 'wide.yaml', fingerprint: error?.fingerprint }] };
    writeFileSync(baseline, JSON.stringify(forged));
    t.is((await run()).code, 1, code);
  }
  t.regex((await run()).out, /error contradiction /);
});

test.serial('only a whole baseline of this version is read', async (t) => {
  const dir = folderOf(t, { 'a.yaml': file() });
  const baseline = join(dir, 'baseline.json');
  const finding = { code: 'tie', file: 'a.yaml', fingerprint: '0'.repeat(64) };
  for (const [text, problem] of [
    ['', 'is not a baseline'],
    ['[]', 'must be a baseline of version 1'],
    ['null', 'must be a baseline of version 1'],
    ['{"portcullis_baseline":2,"findings":[]}', 'must be a baseline of version 1'],
    ['{"portcullis_baseline":1}', 'must have the list findings'],
    ['{"portcullis_baseline":1,"findings":[],"more":1}', 'no other members'],
    ['{"portcullis_baseline":1,"portcullis_baseline":1,"findings":[]}', 'is not a baseline'],
    [JSON.stringify({ portcullis_baseline: 1, findings: [null] }), 'findings.0 must have exactly'],
    [JSON.stringify({ portcullis_baseline: 1, findings: [{ ...finding, fingerprint: '.*' }] }), 'findings.0 must have exactly'],
    [JSON.stringify({ portcullis_baseline: 1, findings: [finding, { ...finding, all: true }] }), 'findings.1 must have exactly'],
    [
      JSON.stringify({ portcullis_baseline: 1, findings: [{ ...finding, code: 'constructor' }] }),
      'cannot be hidden|can be hidden',
    ],
  ] as const) {
    writeFileSync(baseline, text);
    const { code, err } = await lint(dir, '--baseline', baseline);
    t.is(code, 1, text);
    t.regex(err, new RegExp(problem), text);
  }
});

test.serial('SARIF has each finding with rule, level, region and fingerprint, and what is hidden as suppressed', async (t) => {
  const hostile = '[Click](https://evil.example) {0} \u202e<img src=x>';
  const dir = folderOf(t, {
    'denied.yaml': DENIED,
    'never.yaml': file({ name: hostile }),
    'wide.yaml': `# portcullis-ignore unanchored_allow until 2999-01-31: [ours](https://evil.example)\n${WIDE}`,
  });
  const out = join(dir, 'lint.sarif');
  t.is((await lint(dir, '--sarif', out)).code, 1);
  const text = readFileSync(out, 'utf8');
  t.false(text.includes('\u202e'));
  const { $schema, version, runs } = JSON.parse(text);
  t.deepEqual([$schema, version, runs.length], ['https://json.schemastore.org/sarif-2.1.0.json', '2.1.0', 1]);
  const { tool, results, columnKind } = runs[0];
  t.is(columnKind, 'utf16CodeUnits');
  t.is(tool.driver.name, 'Portcullis');
  for (const rule of tool.driver.rules) {
    for (const member of ['shortDescription', 'fullDescription', 'help']) t.true(rule[member].text.length > 10, rule.id);
    t.true(['error', 'warning', 'note'].includes(rule.defaultConfiguration.level));
  }
  for (const result of results) {
    t.is(tool.driver.rules[result.ruleIndex].id, result.ruleId);
    t.regex(result.partialFingerprints.primaryLocationLineHash, /^[0-9a-f]{64}$/);
    t.notRegex(result.message.text, /\]\(|(?<!\{)\{(?!\{)/);
    t.is(result.properties.owner, 'default');
  }
  const of = (rule: string) => results.find(({ ruleId }: { ruleId: string }) => ruleId === rule);
  const never = of('contradiction');
  t.is(never.level, 'error');
  t.true(never.message.text.includes('[Click] (https://evil.example) {{0}}'), never.message.text);
  const { artifactLocation, region } = never.locations[0].physicalLocation;
  t.true(artifactLocation.uri.endsWith('/never.yaml'));
  t.deepEqual(region, { startLine: 1, startColumn: 1 });
  t.true(never.relatedLocations[0].physicalLocation.artifactLocation.uri.endsWith('/denied.yaml'));
  t.deepEqual(never.suppressions, []);
  t.deepEqual(of('unanchored_allow').suppressions, [
    { kind: 'inSource', status: 'accepted', justification: '[ours] (https://evil.example) (until 2999-01-31)' },
  ]);
});
