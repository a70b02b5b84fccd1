/** Runs docs/walkthrough.md from its first command to its last, and the workflow that it offers, as GitHub would. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import test from 'ava';
import { parse } from 'yaml';
import { apiToken, person, startGateway } from '../support/gateway.ts';
import { findOpa } from '../support/opa.ts';
import { startEverything } from '../support/upstreams/everything.ts';
import { blocksOf, CLI, hasTools, homeOf, placeholders, ROOT, startShell } from './page.ts';

const IMAGE = `registry.example.com/portcullis@sha256:${'0'.repeat(64)}`;

/** Returns why a block is not run here; null: it is run. */
function notRun(commands: string): string | null {
  if (commands === 'npm ci && npm run build\n') return 'npm has installed and built already';
  if (!commands.startsWith('opa ')) return null;
  const opa = findOpa();
  return 'missing' in opa ? opa.missing : null;
}

/** A replacement for `docker`. It runs the command of `docker run`, with only the variables that are passed on. */
const DOCKER = `#!${process.execPath}
const { spawnSync } = require('node:child_process');
const [verb, ...words] = process.argv.slice(2);
const fail = (why) => { console.error('docker of the test: ' + why); process.exit(125); };
if (verb !== 'run') fail(verb);
const given = [];
while (words[0]?.startsWith('--')) {
  const option = words.shift();
  given.push(['--rm', '--read-only'].includes(option) ? option : option + ' ' + words.shift());
}
for (const wanted of ['--rm', '--read-only', '--cap-drop ALL', '--volume .:/work', '--workdir /work'])
  if (!given.includes(wanted)) fail('without ' + wanted);
const [image, node, program, ...args] = words;
if (image !== ${JSON.stringify(IMAGE)} || node !== 'node' || program !== '/app/dist/cli/portcullis.js') fail(words.join(' '));
const names = given.flatMap((option) => /^--env (\\w+)$/.exec(option)?.[1] ?? []);
const env = Object.fromEntries(names.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]])));
process.exit(spawnSync(process.execPath, [...${JSON.stringify(CLI)}, ...args], { stdio: 'inherit', env }).status);
`;

interface Step {
  readonly name?: string;
  readonly id?: string;
  readonly if?: string;
  readonly uses?: string;
  readonly with?: Readonly<Record<string, unknown>>;
  readonly env?: Readonly<Record<string, string>>;
  readonly run?: string;
}

interface Job {
  readonly needs?: string;
  readonly if?: string;
  readonly environment?: string;
  readonly outputs?: Readonly<Record<string, string>>;
  readonly permissions?: unknown;
  readonly steps: readonly Step[];
}

interface Workflow {
  readonly on: unknown;
  readonly permissions: unknown;
  readonly defaults: { readonly run: { readonly shell: string } };
  readonly env: Readonly<Record<string, string>>;
  readonly jobs: Readonly<Record<string, Job>>;
}

const readWorkflow = (file: string): Workflow => parse(readFileSync(file, 'utf8')) as Workflow;

/** Throws for an expression that is not among `known`. */
const filled = (text: string, known: Readonly<Record<string, string>>): string =>
  text.replace(/\$\{\{ (.*?) \}\}/g, (_, expression: string) => {
    const value = known[expression];
    if (value === undefined) throw new Error(`the workflow asks for ${expression}`);
    return value;
  });

interface JobRun {
  readonly code: number | null;
  readonly log: string;
  readonly outputs: Readonly<Record<string, string>>;
}

/** Runs the commands of a job in a new checkout, until one fails. Actions are not run. */
async function runJob(
  { defaults, env: common }: Workflow,
  job: Job,
  cwd: string,
  known: Readonly<Record<string, string>>,
  path: string,
): Promise<JobRun> {
  const outputFile = join(dirname(cwd), 'github-output');
  const outputs: Record<string, string> = { ...known };
  const env = (of: Readonly<Record<string, string>> = {}): Record<string, string> =>
    Object.fromEntries(Object.entries(of).map(([name, value]) => [name, filled(value, known)]));
  let log = '';
  let code: number | null = 0;
  for (const step of job.steps) {
    if (step.run === undefined || code !== 0) continue;
    if (step.if !== undefined && step.if !== `github.event_name == '${known['github.event_name']}'`) continue;
    writeFileSync(outputFile, '');
    const child = spawn(defaults.run.shell, ['-e', '-c', step.run], {
      cwd,
      env: {
        PATH: path,
        GITHUB_OUTPUT: outputFile,
        GITHUB_STEP_SUMMARY: join(dirname(cwd), 'summary'),
        ...env(common),
        ...env(step.env),
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        log += text;
      });
    }
    [code = null] = (await once(child, 'close')) as (number | null)[];
    for (const [, name = '', value = ''] of readFileSync(outputFile, 'utf8').matchAll(/^(\w+)=(.*)$/gm))
      outputs[`steps.${step.id}.outputs.${name}`] = value;
  }
  const results = code === 0 ? Object.entries(job.outputs ?? {}) : [];
  return { code, log, outputs: Object.fromEntries(results.map(([name, value]) => [name, filled(value, outputs)])) };
}

test.serial('the workflow pins its actions, may only read the repository, and has the secret only on main', (t) => {
  const workflow = readWorkflow(join(ROOT, 'docs/policies-workflow.yml'));
  t.deepEqual(workflow.permissions, { contents: 'read' });
  t.deepEqual(workflow.on, { pull_request: null, push: { branches: ['main'] } });
  t.deepEqual(Object.keys(workflow.jobs), ['check', 'plan', 'apply']);
  for (const [name, job] of Object.entries(workflow.jobs)) {
    t.is(job.permissions, undefined, name);
    const secret = JSON.stringify(job).includes('secrets.');
    t.is(secret, name !== 'check');
    t.is(job.environment, secret ? `policies-${name}` : undefined);
    for (const { uses, with: given, run } of job.steps) {
      if (uses !== undefined) t.regex(uses, /^actions\/(checkout|upload-artifact)@[0-9a-f]{40}$/);
      if (uses?.startsWith('actions/checkout@')) t.false(given?.['persist-credentials']);
      // Texts of other people come as variables and are never part of the script.
      if (run !== undefined) t.notRegex(run, /\$\{\{/);
    }
  }
  t.is(workflow.jobs['plan']?.if, "github.event_name == 'push'");
  t.is(workflow.jobs['plan']?.needs, 'check');
  t.is(workflow.jobs['apply']?.needs, 'plan');
  t.is(workflow.jobs['apply']?.if, "needs.plan.outputs.changes != '0'");
});

test.serial('the commands of the walkthrough work in order, and print what the page shows', async (t) => {
  if (!hasTools) {
    t.log('NOT RUN: the walkthrough needs curl and git');
    return;
  }
  // It starts some 30 processes, one after the other.
  t.timeout(300_000);
  const [gateway, target] = await Promise.all([startGateway(t), startEverything()]);
  t.teardown(() => target.stop());
  const admin = await person(gateway, 'admin@example.com');
  const { token } = await apiToken(gateway, admin);
  await gateway.rest(201, 'POST', '/api/targets', { token: admin.token, body: { name: 'everything', url: target.url } });
  const first = /-d '(\{"name":"Administrators call harmless tools".*?\})'\n/s.exec(
    readFileSync(join(ROOT, 'docs/tour.md'), 'utf8'),
  );
  await gateway.rest(201, 'POST', '/api/policies', { token: admin.token, body: JSON.parse(first?.[1] ?? '') });

  const { home, path: tools, env } = homeOf(t, { docker: DOCKER });
  const [source, remote] = [join(home, 'source'), join(home, 'policies.git')];
  // The repository is made beside this folder, which takes the place of the source.
  mkdirSync(source);
  const opa = findOpa();
  const path = 'path' in opa ? [tools, dirname(opa.path)].join(delimiter) : tools;
  const git = (...args: string[]): string => {
    const { status, stdout, stderr } = spawnSync('git', args, { cwd: home, encoding: 'utf8' });
    if (status !== 0) throw new Error(`git ${args.join(' ')}: ${stderr}`);
    return stdout.trim();
  };
  git('init', '-q', '--bare', '-b', 'main', remote);
  const shell = startShell(t, source, { ...env, PATH: path, API_TOKEN: token });
  const here = (commands: string): string =>
    commands
      .replaceAll('http://127.0.0.1:8080', gateway.url)
      .replaceAll('git@github.com:example/policies.git', remote)
      .replace('SOURCE=$PWD', `SOURCE='${ROOT}'`)
      .replace('node "$SOURCE/dist/cli/portcullis.js"', `node ${CLI.map((word) => `'${word}'`).join(' ')}`);

  let pushes = 0;
  /** Does what GitHub would do after a push to a branch. */
  const pushed = (branch: string) => {
    const cwd = join(home, `runner-${++pushes}`, 'work');
    git('clone', '-q', '--branch', branch, remote, cwd);
    const workflow = readWorkflow(join(cwd, '.github/workflows/policies.yml'));
    return async (name: string, known: Readonly<Record<string, string>> = {}): Promise<JobRun> => {
      const job = workflow.jobs[name];
      if (job === undefined) throw new Error(`the workflow has no job ${name}`);
      const about = {
        'vars.PORTCULLIS_IMAGE': IMAGE,
        'vars.PORTCULLIS_URL': gateway.url,
        ...(job.environment === undefined ? {} : { 'secrets.PORTCULLIS_TOKEN': token }),
        'github.server_url': 'https://github.com',
        'github.repository': 'example/policies',
        'github.sha': '1f0c8ae4',
        ...known,
      };
      const ran = await runJob(workflow, job, cwd, about, path);
      t.false(ran.log.includes(token), 'the token is not printed');
      return ran;
    };
  };

  /** What GitHub does after a block, by a line of the block. */
  const elsewhere: Record<string, () => Promise<void>> = {
    'git push -q -u origin tiny-images': async () => {
      const base = git('-C', remote, 'rev-parse', 'main');
      const { code, log } = await pushed('tiny-images')('check', {
        'github.event_name': 'pull_request',
        'github.event.pull_request.base.sha': base,
      });
      t.is(code, 0, log);
      const summary = readFileSync(join(home, `runner-${pushes}`, 'summary'), 'utf8');
      t.regex(summary, /^## Policies: looser\n[\s\S]*role <code>admin<\/code> at /);
      t.regex(log, /finding in 2 policies\.\n10 passed, 0 failed/);
    },
    'git merge -q --no-ff -m "Merge tiny-images" tiny-images': async () => {
      const job = pushed('main');
      t.is((await job('check')).code, 0);
      const plan = await job('plan');
      t.is(plan.code, 0, plan.log);
      t.regex(plan.log, /^Revision 2 would become:\n[\s\S]*1 to create, 1 to update, 0 to adopt, 0 to delete/m);
      t.is(plan.outputs['changes'], '2');
      const { expected = '' } = plan.outputs;
      t.regex(expected, /^--expect-revision 2 --expect-targets [0-9a-f]{16}$/);
      // If the policies or targets are not those of the plan, nothing is applied, although the tests pass.
      for (const [old, why] of [
        [expected.replace('revision 2', 'revision 1'), /changed at revision 2/],
        [expected.replace(/\w+$/, '0123456789abcdef'), /no longer mean the same targets/],
      ] as const) {
        const stale = await job('apply', { 'needs.plan.outputs.expected': old });
        t.is(stale.code, 1, stale.log);
        t.regex(stale.log, why);
      }
      const apply = await job('apply', { 'needs.plan.outputs.expected': expected });
      t.is(apply.code, 0, apply.log);
      t.regex(apply.log, /^Applied, as revision 3:/);
    },
    'git revert --no-edit -m 1 HEAD > /dev/null': async () => {
      const job = pushed('main');
      t.is((await job('check')).code, 0);
      const plan = await job('plan');
      t.is(plan.outputs['changes'], '1');
      const { expected = '' } = plan.outputs;
      t.regex(expected, /^--expect-revision 4 /);
      t.regex(
        plan.log,
        /^Decisions: equal: [\s\S]* {4}changed outside of its file since revision 4\n\n0 to create, 1 to update/m,
      );
      t.is((await job('apply', { 'needs.plan.outputs.expected': expected })).code, 0);
      const { outputs } = await job('plan');
      t.is(outputs['changes'], '0');
      t.regex(outputs['expected'] ?? '', /^--expect-revision 5 /);
    },
  };

  const left: string[] = [];
  for (const { commands, shown } of blocksOf('docs/walkthrough.md')) {
    const why = notRun(commands);
    if (why !== null) {
      left.push(commands);
      t.log(`NOT RUN: ${commands.trim()} (${why})`);
      continue;
    }
    const printed = await shell.run(here(commands));
    t.false(printed.includes(token), 'the token is not printed');
    t.is(placeholders(printed), shown ?? '', commands);
    for (const [line, happens] of Object.entries(elsewhere)) {
      if (!commands.split('\n').includes(line)) continue;
      delete elsewhere[line];
      await happens();
    }
  }
  t.deepEqual(Object.keys(elsewhere), [], 'the page has these lines');
  t.true(left.length <= 2, left.join('\n'));
});
