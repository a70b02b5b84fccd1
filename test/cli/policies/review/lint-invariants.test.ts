/** `portcullis policies lint --invariants`: what the security team forbids, checked in the repository of a team. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { contextOf, formatContext } from '../../../../src/policies/review/context.ts';
import { policy } from '../../../policies/policies.ts';
import { type Files, file } from '../../../policies/sets.ts';
import { folder, inProcess, policies } from '../../cli.ts';

const CONTRACTORS = [{ subject_type: 'group', subject_value: 'contractors' }] as const;
const RUN = file({ name: 'Run', target: 'prod', resource_pattern: '^exec$', subjects: CONTRACTORS });
const INVARIANT = `name: Contractors run nothing
reason: Their machines are not managed
never:
  subjects:
    - group: contractors
  except:
    targets:
      - sandbox
  resource_type: tool
  resource_pattern: exec
`;
const excepting = (policy: string, expires_at: string): string =>
  `${INVARIANT}exceptions:\n  - policy: ${policy}\n    reason: Soon\n    expires_at: ${expires_at}\n`;
const inDays = (days: number): string => new Date(Date.now() + days * 24 * 60 * 60 * 1000).toISOString();

/** Returns a function that lints the folder of the owner payments. */
function start(t: ExecutionContext, files: Files = { 'run.yaml': RUN }) {
  const home = folder(t);
  const [dir, invariants] = [join(home, 'policies'), join(home, 'invariants')];
  for (const made of [dir, invariants]) mkdirSync(made);
  writeFileSync(join(dir, 'portcullis.yaml'), 'owner: payments\n');
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
  const forbid = (text: string): void => writeFileSync(join(invariants, 'contractors.yaml'), text);
  forbid(INVARIANT);
  const run = (...words: string[]) => inProcess({ PORTCULLIS_TOKEN: 'a.b.c' }, (end) => policies(words, end));
  const lint = (...words: string[]) => run('lint', '--dir', dir, '--invariants', invariants, ...words);
  const found = async (...words: string[]): Promise<Finding[]> => JSON.parse((await lint('--json', ...words)).out).findings;
  return { home, dir, invariants, forbid, run, lint, found };
}

interface Finding {
  readonly code: string;
  readonly severity: string;
  readonly policies: readonly { readonly file: string; readonly owner: string; readonly line: number }[];
  readonly invariant: { readonly name: string; readonly file: string; readonly line: number } | null;
}
const codes = (findings: readonly { readonly code: string }[]): string[] => findings.map(({ code }) => code);

test.serial('a policy that breaks an invariant is an error at its file, with a request', async (t) => {
  const { dir, invariants, lint, found, forbid } = start(t);
  const { code, out } = await lint();
  t.is(code, 1);
  t.is(
    out,
    `${join(dir, 'run.yaml')}:1:1: error invariant_broken (owner payments): The policies break the invariant "Contractors run nothing" (Their machines are not managed). For example, the policy "Run" would allow group "contractors" to use tool "exec" at prod.
1 finding in 1 policy.
`,
  );
  const [broken] = await found();
  t.like(broken, { policies: [{ file: 'run.yaml', line: 1 }] });
  t.deepEqual(broken?.invariant, {
    name: 'Contractors run nothing',
    file: join(invariants, 'contractors.yaml'),
    line: 1,
    column: 1,
  } as object);
  t.is((await lint('--invariants', join(invariants, 'contractors.yaml'))).code, 1, 'a file instead of a folder');

  // The name of a target matters, although no policy names it.
  forbid(INVARIANT.replace('- sandbox', '- prod'));
  t.deepEqual(codes(await found()), []);
  forbid(INVARIANT.replace('never:', 'enabled: false\nnever:'));
  t.deepEqual(codes(await found()), []);
});

test.serial(
  'an exception counts until it expires, and is a finding before, after, and if its policy does not exist',
  async (t) => {
    const { invariants, lint, found, forbid } = start(t);
    forbid(excepting('payments/run', inDays(15)));
    t.deepEqual(codes(await found()), []);
    forbid(excepting('payments/run', inDays(13)));
    t.is((await lint('--severity', 'warning')).code, 0);
    t.like(await found(), [
      { code: 'expiring_exception', severity: 'info', policies: [{ file: 'run.yaml', owner: 'payments' }] },
    ]);
    const { code, out } = await lint('--severity', 'info');
    t.is(code, 1);
    t.true(out.startsWith(`${join(invariants, 'contractors.yaml')}:12:5: info expiring_exception (owner payments): `), out);
    forbid(excepting('payments/run', '2020-01-01T00:00:00Z'));
    t.deepEqual(codes(await found()), ['invariant_broken', 'expired_exception']);
    forbid(excepting('payments/other', inDays(15)));
    t.deepEqual(codes(await found()), ['invariant_broken', 'lost_exception']);
    // These are for the owners of the policies to see. The folder does not know them.
    for (const other of ['identity/run', 'pay/ments', '019aa5cf-3d1c-7b0e-9a44-6f2f0f6f8a11']) {
      forbid(excepting(other, '2020-01-01T00:00:00Z'));
      t.deepEqual(codes(await found()), ['invariant_broken'], other);
    }
  },
);

test.serial('with a context, only policies of the folder break invariants', async (t) => {
  const denies = {
    effect: 'deny',
    priority: 50,
    resource_pattern: '^exec$',
    subjects: CONTRACTORS.map((subject) => ({ ...subject, id: 's' })),
  } as const;
  const allows = { ...denies, effect: 'allow', priority: 5, resource_pattern: 'exec' } as const;
  const id = (last: string): string => `019aa5cf-3d1c-7b0e-9a44-6f2f0f6f8a${last}`;
  const { home, dir, found } = start(t);
  const context = join(home, 'context.json');
  const around = async (...others: Parameters<typeof policy>[1][]): Promise<string[]> => {
    const stored = others.map((other, i) => policy(id(`1${i}`), { managed_as: 'identity/other', ...other }));
    const parts = { owner: 'payments', revision: 1, today: new Date().toISOString().slice(0, 10), targets: [] };
    writeFileSync(context, formatContext(contextOf(stored, parts)));
    return codes((await found('--context', context)).filter(({ code }) => code === 'invariant_broken'));
  };
  t.deepEqual(await around(allows), ['invariant_broken']);
  t.deepEqual(await around({ ...allows, priority: 50, resource_pattern: '^exec_all$' }), ['invariant_broken'], 'both break it');
  t.deepEqual(await around(allows, denies), [], 'the deny of the other owner decides');
  writeFileSync(join(dir, 'run.yaml'), file({ name: 'Run', resource_pattern: '^list$', subjects: CONTRACTORS }));
  t.deepEqual(await around(allows), [], 'the other owner breaks it');
});

test.serial('a baseline and a comment hide findings about exceptions, and never a broken invariant', async (t) => {
  const { home, dir, lint, forbid } = start(t);
  const baseline = join(home, 'baseline.json');
  forbid(excepting('payments/run', '2020-01-01T00:00:00Z'));
  const written = await lint('--baseline', baseline, '--write-baseline');
  t.is(written.code, 1);
  t.regex(written.out, /error invariant_broken .*\n1 finding in 1 policy\. Hidden: 0 by comments, 1 by the baseline\.\n$/);
  writeFileSync(join(dir, 'run.yaml'), `${RUN}# portcullis-ignore expired_exception until 2999-01-31: we know\n`);
  t.regex((await lint()).out, /^.*error invariant_broken .*\n1 finding in 1 policy\. Hidden: 1 by comments/);
  writeFileSync(join(dir, 'run.yaml'), `${RUN}# portcullis-ignore invariant_broken until 2999-01-31: we know\n`);
  t.regex((await lint()).err, /a comment cannot hide invariant_broken/);
});

test.serial('SARIF and the report for a pull request have the broken invariant', async (t) => {
  const { home, dir, invariants, lint, run, forbid } = start(t);
  const [sarif, markdown, before] = [join(home, 'lint.sarif'), join(home, 'review.md'), join(home, 'before')];
  forbid(excepting('payments/gone', '2020-01-01T00:00:00Z'));
  await lint('--sarif', sarif);
  const [{ results, tool }] = JSON.parse(readFileSync(sarif, 'utf8')).runs;
  const uri = (place: { physicalLocation: { artifactLocation: { uri: string } } }) => place.physicalLocation.artifactLocation.uri;
  t.deepEqual(
    results.map((each: { ruleIndex: number }) => tool.driver.rules[each.ruleIndex].id),
    ['invariant_broken', 'lost_exception'],
  );
  t.true(uri(results[0].locations[0]).endsWith('/run.yaml'));
  t.true(uri(results[0].relatedLocations[0]).endsWith('/invariants/contractors.yaml'));
  t.true(uri(results[1].locations[0]).endsWith('/invariants/contractors.yaml'));
  t.is(results[1].locations[0].physicalLocation.region.startLine, 12);

  mkdirSync(before);
  writeFileSync(join(before, 'list.yaml'), file({ name: 'List', resource_pattern: '^list$' }));
  const words = ['compare', '--dir', dir, '--with', before, '--invariants', invariants];
  const { out } = await run(...words, '--markdown', markdown);
  t.regex(out, /^1 new finding\.\n.*run\.yaml:1:1: error invariant_broken/m);
  t.regex(readFileSync(markdown, 'utf8'), /\| error \| invariant_broken \| <code>run&#46;yaml&#58;1<\/code> \|/);
});

test.serial('what is no invariant is refused with its place', async (t) => {
  const { home, invariants, lint, forbid, run } = start(t);
  const path = join(invariants, 'contractors.yaml');
  for (const [text, problem] of [
    [`${INVARIANT}more: 1\n`, `${path}:11:1: more is not a key of an invariant`],
    [INVARIANT.replace('resource_pattern: exec', 'resource_pattern: "("'), `${path}:10:3: never.resource_pattern `],
    [INVARIANT.replace('resource_pattern: exec', 'resource_pattern: "a[ab]{50}c"'), `${path}:10:3: never.resource_pattern `],
  ] as const) {
    forbid(text);
    const { code, err } = await lint();
    t.is(code, 1);
    t.true(err.includes(problem), err);
  }
  t.regex((await lint('--invariants', join(home, 'missing'))).err, /missing cannot be read \(ENOENT\)/);
  mkdirSync(join(home, 'empty'));
  t.regex((await lint('--invariants', join(home, 'empty'))).err, /contains no invariant files/);
  t.is((await run('lint', '--live', '--invariants', invariants)).code, 2);
});
