import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import type { PolicyFile } from '../../../../src/policies/files/yaml.ts';
import { addTarget, type Files, file, policySets } from '../../../policies/sets.ts';
import { apiToken, person, startGateway } from '../../../support/gateway.ts';
import { folder, inProcess, policies, type Ran } from '../../cli.ts';

const compare = (environment: Record<string, string>, ...args: string[]): Promise<Ran> =>
  inProcess(environment, (terminal) => policies(['compare', ...args], terminal));

function folderOf(t: ExecutionContext, files: Files): string {
  const dir = folder(t);
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
  return dir;
}

interface ComparedJson {
  readonly verdict: string;
  readonly changes: readonly {
    readonly name: string;
    readonly file: string | null;
    readonly flips: readonly { readonly after: { readonly effect: string } }[] | null;
  }[];
}

const starters = join(import.meta.dirname, '../../../../policies');

test.serial(
  'two folders are compared without a gateway: verdict, witnesses, files, new findings and failing tests',
  async (t) => {
    const dir = folder(t);
    const [before, after, report] = [join(dir, 'before'), join(dir, 'after'), join(dir, 'review.md')];
    for (const to of [before, after]) {
      cpSync(starters, to, { recursive: true });
      // Its finding is not new.
      writeFileSync(join(to, 'known.yaml'), file({ name: 'Known', target: 'elsewhere', resource_pattern: 'known' }));
    }
    const same = await compare({}, '--dir', after, '--with', before, '--markdown', report, '--detailed-exitcode');
    t.deepEqual([same.code, same.err], [0, '']);
    t.true(same.out.endsWith('0 policies changed.\n\n0 new findings.\n\n53 tests passed, 0 failed.\n'), same.out);
    t.regex(readFileSync(report, 'utf8'), /^## Policies: equal\n/);

    writeFileSync(
      join(after, 'developers-call-harmless-tools.yaml'),
      file({ name: 'Wide', target: 'everything', resource_pattern: 'echo' }),
    );
    const wide = await compare({}, '--dir', after, '--with', before, '--markdown', report, '--detailed-exitcode');
    t.is(wide.code, 3);
    t.regex(wide.out, /Decisions: incomparable: /);
    t.regex(
      wide.out,
      /\n\+ anybody, everything, tool "echo"\n {4}before: deny: no policy matches\n {4}after: {2}allow by "Wide" /,
    );
    t.regex(wide.out, /\nupdate developers-call-harmless-tools\.yaml: name, /);
    t.true(
      wide.out.includes(`${join(after, 'developers-call-harmless-tools.yaml')}:4:1: warning unanchored_allow (owner default): `),
      wide.out,
    );
    t.true(wide.out.includes(`${join(after, 'tests', 'starter.yaml')}:28:5: Tools: stranger, `), wide.out);
    t.is((await compare({}, '--dir', after, '--with', before)).code, 0);
    const markdown = readFileSync(report, 'utf8');
    t.regex(
      markdown,
      /^## Policies: incomparable\n\nSome requests .*\n\nPolicies: 1 changed · new findings: 1 · tests: \d+ failed, \d+ passed\n/,
    );
    t.regex(markdown, /anybody at <code>everything<\/code>, tool <code>echo<\/code>/);
    const back = await compare({}, '--dir', before, '--with', after, '--json');
    const json = JSON.parse(back.out) as ComparedJson & { findings: unknown[]; tests: { failed: number } };
    t.deepEqual([json.verdict, json.findings.length, json.tests.failed], ['incomparable', 0, 0]);

    for (const args of [[], ['1', '--with', before], ['1', '--markdown', report], ['1', '--dir', before], ['a']])
      t.is((await compare({ PORTCULLIS_TOKEN: 'a.b.c' }, ...args)).code, 2, args.join(' '));
    writeFileSync(join(before, 'broken.yaml'), 'name: x\n');
    const broken = await compare({}, '--dir', after, '--with', before);
    t.is(broken.code, 1);
    t.true(broken.err.includes(`${join(before, 'broken.yaml')}:1:1: `), broken.err);
  },
);

test.serial('names of strangers are text in the Markdown report, and the report is bounded', async (t) => {
  const hostile = [
    '| a | b |',
    '<img src=x onerror=alert(1)>',
    '</code><script>',
    '[Approve](https://evil.example)',
    '`` ` ``',
    '@everyone #1 https://evil.example www.evil.example',
    '&lt;b&gt; \\| \\',
    '\u202e\u2066gnp.exe',
    '\u3164\ufe0f\u00ad',
    '# Head',
  ];
  const names = Array.from({ length: 120 }, (_, i) => `${hostile[i % hostile.length]}${i}${'𝓊'.repeat(150)}`);
  const files = names.map((name, i): [string, string] => [
    `p${i}.yaml`,
    file({
      ...{ name, resource_pattern: i % 2 === 0 ? `${'a|'.repeat(20)}<b>` : null, priority: i },
      ...{ target: `t${i}`, subjects: [{ subject_type: 'group' as const, subject_value: name }] },
    }),
  ]);
  const [before, after] = [folderOf(t, { 'a.yaml': file() }), folderOf(t, Object.fromEntries(files))];
  mkdirSync(join(after, 'tests'));
  const visibly = (text: string) => text.replaceAll('\u202e', '\\u202e').replaceAll('\u2066', '\\u2066');
  const labels = names
    .map((name) => `  - name: ${visibly(JSON.stringify(name))}\n    expect: [{ effect: allow, policy: null }]\n`)
    .join('');
  writeFileSync(
    join(after, 'tests', 'a.yaml'),
    `target: t1\nprincipals: { a: { role: user } }\nrequests: { r: { tool: echo } }\ntests:\n${labels}`,
  );
  const report = join(after, 'review.md');
  const { code, err } = await compare({}, '--dir', after, '--with', before, '--markdown', report);
  t.deepEqual([code, err], [0, '']);
  const markdown = readFileSync(report, 'utf8');
  t.true(markdown.length < 65_536, String(markdown.length));
  t.true(markdown.split('\n').length < 120);
  t.regex(markdown, /\n\nand \d+ more: `--json` has all of them\n/);
  // Without what the report itself writes, letters are left, and references, which Markdown never reads as markup.
  const shown = [...markdown.matchAll(/<code>(.*?)<\/code>/g)].map(([, text = '']) => text);
  t.true(shown.length > 100);
  for (const text of shown) t.regex(text, /^(?:[A-Za-z0-9 /-]|&#\d+;)*$/);
  const rest = markdown.replaceAll(/<code>.*?<\/code>/g, 'x');
  t.notRegex(markdown, /&#(?:12644|65039|173);/, 'characters that nobody sees are written as escapes');
  t.notRegex(rest, /evil|script|img|&|@|\\|\u202e/);
  for (const row of rest.split('\n').filter((line) => line.startsWith('|'))) t.is(row.split('|').length, 6, row);
});

const SUBJECTS = [
  { subject_type: 'everyone', subject_value: null },
  { subject_type: 'role', subject_value: 'user' },
  { subject_type: 'group', subject_value: 'dev' },
  { subject_type: 'user', subject_value: '0190163d-8694-739b-aea5-966c26f8ad90' },
] as const;
const policyFile = fc.record({
  target: fc.constantFrom(null, 'one', 'two'),
  resource_type: fc.constantFrom('tool', 'resource', 'prompt', 'all'),
  resource_pattern: fc.constantFrom(null, '^echo$', '^get_', 'a.c', '^file:///a'),
  effect: fc.constantFrom('allow', 'deny'),
  enabled: fc.boolean(),
  subjects: fc.subarray([...SUBJECTS]),
} satisfies Record<string, fc.Arbitrary<unknown>>) as fc.Arbitrary<Partial<PolicyFile>>;
/** Each slot has its own name and priority, so that ids, which differ at the gateway, break no tie. */
const slots = fc.array(fc.option(policyFile, { freq: 3 }), { minLength: 6, maxLength: 6 });
const filesOf = (made: readonly (Partial<PolicyFile> | null)[]): Files =>
  Object.fromEntries(
    made.flatMap((over, i) => (over === null ? [] : [[`p${i}.yaml`, file({ ...over, name: `P${i}`, priority: i })]])),
  );

test.serial('folders get the comparison that a gateway gives for their revisions', async (t) => {
  t.timeout(300_000);
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const environment = { PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: (await apiToken(gateway, admin)).token };
  for (const name of ['one', 'two']) await addTarget(gateway, admin.token, name);
  const rest = policySets(gateway, admin.token);
  const verdicts = new Set<string>();
  const facts = ({ verdict, changes }: ComparedJson): object => ({
    verdict,
    changes: changes
      .map(({ name, flips }) => [name, flips?.map(({ after }) => after.effect).sort()])
      .sort(([a], [b]) => (String(a) < String(b) ? -1 : 1)),
  });
  await fc.assert(
    fc.asyncProperty(slots, slots, fc.boolean(), async (one, other, isNear) => {
      const to = isNear ? one.map((policy, i) => (i === 0 ? (other[0] ?? null) : policy)) : other;
      const [before, after] = [filesOf(one), filesOf(to)];
      if (Object.keys(before).length === 0 || Object.keys(after).length === 0) return;
      const { revision: from } = await rest.apply(before, { prune: true });
      await rest.apply(after, { prune: true });
      const there = await compare(environment, String(from), '--json');
      const here = await compare({}, '--dir', folderOf(t, after), '--with', folderOf(t, before), '--json');
      t.deepEqual([there.code, here.code], [0, 0], there.err + here.err);
      verdicts.add(JSON.parse(here.out).verdict);
      t.deepEqual(facts(JSON.parse(here.out)), facts(JSON.parse(there.out)));
    }),
    { numRuns: 60 },
  );
  t.deepEqual([...verdicts].sort(), ['equal', 'incomparable', 'looser', 'stricter']);
});
