/** The manifest of a folder of policies, and `portcullis owner`. */
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { runGroup } from '../../../src/cli/command.ts';
import { ownerGroup } from '../../../src/cli/owner.ts';
import { addTarget, file, policySets } from '../../policies/sets.ts';
import { apiToken, person, startGateway } from '../../support/gateway.ts';
import { folder, inProcess, policies, policyFolder, type Ran } from '../cli.ts';

async function start(t: ExecutionContext) {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { token } = await apiToken(gateway, admin);
  const environment = { PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token };
  const expecting = async (code: number, args: readonly string[], work: () => Promise<Ran>): Promise<Ran> => {
    const ran = await work();
    t.is(ran.code, code, `${args.join(' ')}: ${ran.out}${ran.err}`);
    return ran;
  };
  return {
    rest: policySets(gateway, admin.token),
    target: (name: string) => addTarget(gateway, admin.token, name),
    run: (code: number, ...args: string[]) =>
      expecting(code, args, () => inProcess(environment, (terminal) => policies(args, terminal))),
    owner: (code: number, ...args: string[]) =>
      expecting(code, args, () => inProcess(environment, (terminal) => runGroup(ownerGroup, args, terminal))),
  };
}

const manifest = (dir: string, text: string): void => writeFileSync(join(dir, 'portcullis.yaml'), text);

test.serial('the manifest or --owner names the owner, and both name the same', async (t) => {
  const { run, rest } = await start(t);
  const dir = policyFolder(t);
  writeFileSync(join(dir, 'a.yaml'), file({ name: 'A' }));
  rmSync(join(dir, 'portcullis.yaml'));
  for (const command of ['plan', 'apply', 'export']) {
    const { err } = await run(2, command, '--dir', dir);
    t.regex(err, /the owner of the files is not named: write "owner: NAME" into .*portcullis\.yaml, or pass --owner/);
  }
  await run(0, 'apply', '--dir', dir, '--owner', 'team-a');
  manifest(dir, 'owner: team-a\n');
  await run(0, 'apply', '--dir', dir, '--owner', 'team-a');
  const { err } = await run(2, 'apply', '--dir', dir, '--owner', 'team-b');
  t.regex(err, /portcullis\.yaml names the owner team-a, and --owner names team-b/);
  t.regex((await run(0, 'apply', '--dir', dir)).out, /^No changes: 1 file matches/);
  t.deepEqual(
    (await rest.policies()).map(({ managed_as }) => managed_as),
    ['team-a/a'],
  );
  // Offline commands need no owner.
  rmSync(join(dir, 'portcullis.yaml'));
  await run(0, 'lint', '--dir', dir);
});

test.serial('an earlier folder without a manifest is compared as one of the same owner', async (t) => {
  const { run } = await start(t);
  const [from, to] = [policyFolder(t), policyFolder(t)];
  for (const dir of [from, to]) writeFileSync(join(dir, 'a.yaml'), file());
  rmSync(join(from, 'portcullis.yaml'));
  manifest(to, 'owner: team-a\n');
  const changes = async (...more: string[]): Promise<unknown[]> =>
    JSON.parse((await run(0, 'compare', '--with', from, '--dir', to, '--json', ...more)).out).changes;
  t.deepEqual(await changes(), []);
  t.deepEqual(await changes('--owner', 'team-a'), []);
  await run(2, 'compare', '--with', from, '--dir', to, '--owner', 'team-b');
  manifest(from, 'owner: team-b\n');
  t.is((await changes()).length, 1);
});

test.serial('a wrong manifest is refused with file and line, and is no policy', async (t) => {
  const { run, rest } = await start(t);
  const dir = policyFolder(t);
  writeFileSync(join(dir, 'a.yaml'), file());
  for (const [text, expected] of [
    ['', /portcullis\.yaml:1:1: the file is empty/],
    ['prune: true\n', /portcullis\.yaml:1:1: owner is required/],
    ['# x\nowner: Team A\n', /portcullis\.yaml:2:1: owner must consist of/],
    ['owner: a\nowner: b\n', /portcullis\.yaml:2:1: Map keys must be unique/],
    ['owner: a\nprune: "yes"\n', /portcullis\.yaml:2:1: prune must be a boolean/],
    ['owner: a\ntests: ../elsewhere\n', /portcullis\.yaml:2:1: tests must be the name of a subfolder/],
    ['owner: a\n\nmore: 1\n', /portcullis\.yaml:3:1: more is not a key of a manifest/],
    ['owner: &a a\n', /portcullis\.yaml:1:11: anchors, aliases and tags are not allowed/],
    [file(), /portcullis\.yaml:1:1: .*is not a key of a manifest/],
  ] as const) {
    manifest(dir, text);
    t.regex((await run(1, 'apply', '--dir', dir)).err, expected);
  }
  t.deepEqual(await rest.policies(), []);
  // A policy cannot have the name of the manifest.
  const { detail } = await rest.refused(400, { 'portcullis.yaml': file() });
  t.regex(detail, /not be portcullis\.yaml/);
});

test.serial('the manifest says whether apply prunes, and where the tests are', async (t) => {
  const { run, rest, target } = await start(t);
  await target('none');
  const dir = policyFolder(t);
  writeFileSync(join(dir, 'a.yaml'), file({ name: 'A' }));
  writeFileSync(join(dir, 'b.yaml'), file({ name: 'B', resource_pattern: '^b$' }));
  await run(0, 'apply', '--dir', dir);
  rmSync(join(dir, 'b.yaml'));
  manifest(dir, 'owner: default\nprune: true\ntests: checks\n');
  mkdirSync(join(dir, 'checks'));
  const testFile = (effect: string): string =>
    `principals: {p: {role: x}}\nrequests: {r: {tool: echo, target: none}}\ntests: [{name: n, expect: [{effect: ${effect}}]}]\n`;
  writeFileSync(join(dir, 'checks', 'a.yaml'), testFile('deny'));
  t.regex((await run(1, 'apply', '--dir', dir)).err, /checks\/a\.yaml:\d+:\d+: .*expected deny/);
  writeFileSync(join(dir, 'checks', 'a.yaml'), testFile('allow'));
  t.regex((await run(0, 'apply', '--dir', dir)).out, /- delete "B"/);
  t.is((await rest.policies()).length, 1);
  t.regex((await run(0, 'test', '--dir', dir)).out, /^1 passed/);
});

test.serial('export writes a manifest if there is none, and leaves one that there is', async (t) => {
  const { run, rest } = await start(t);
  await rest.apply({ 'a.yaml': file() }, { owner: 'team-a' });
  const dir = join(folder(t), 'new');
  t.regex((await run(0, 'export', '--dir', dir, '--owner', 'team-a')).out, /wrote .*portcullis\.yaml\n/);
  t.is(readFileSync(join(dir, 'portcullis.yaml'), 'utf8'), 'owner: team-a\n');
  manifest(dir, '# ours\nowner: team-a\n');
  await run(0, 'export', '--dir', dir, '--prune');
  t.is(readFileSync(join(dir, 'portcullis.yaml'), 'utf8'), '# ours\nowner: team-a\n');
  t.regex((await run(0, 'plan', '--dir', dir, '--detailed-exitcode')).out, /^No changes/);
  t.true(existsSync(join(dir, 'a.yaml')));
});

test.serial('portcullis owner sets, shows, lists and deletes limits', async (t) => {
  const { owner, target, run } = await start(t);
  const id = await target('ours');
  const path = join(folder(t), 'limits.yaml');
  t.is((await owner(0, 'list')).out, 'No owner has a record.\n');
  writeFileSync(path, 'targets: [ours, null]\neffects: [allow]\npriority: { max: 9 }\nsubjects:\n  - subject_type: group\n');
  const shown = `team-a
    targets: [ours, null]
    effects: [allow]
    priority: {max: 9}
    subjects: [{subject_type: group}]
`;
  t.is((await owner(0, 'set', 'team-a', path)).out, shown);
  t.is((await owner(0, 'show', 'team-a')).out, shown);
  t.like(JSON.parse((await owner(0, 'show', 'team-a', '--json')).out), { name: 'team-a', limits: { targets: [id, null] } });
  t.regex((await owner(0, 'list')).out, /^team-a {2}\S+ {2}targets, effects, priority, subjects\n$/);
  const dir = policyFolder(t);
  manifest(dir, 'owner: team-a\n');
  writeFileSync(join(dir, 'a.yaml'), file({ effect: 'deny', priority: 1, subjects: [] }));
  t.regex((await run(1, 'plan', '--dir', dir)).err, /a\.yaml:4:1: effect is outside the limits of the owner: /);
  for (const [text, expected] of [
    ['targets: [elsewhere]\n', /no target has the name elsewhere/],
    ['effects: [allow]\nmore: 1\n', /limits\.yaml:2:1: /],
    ['{', /limits\.yaml:1:/],
  ] as const) {
    writeFileSync(path, text);
    t.regex((await owner(1, 'set', 'team-a', path)).err, expected);
  }
  writeFileSync(path, '{}');
  t.is((await owner(0, 'set', 'team-a', path)).out, 'team-a: no limits\n');
  await owner(2, 'show', '../users');
  await owner(1, 'set', 'team-a', join(dir, 'nothing.yaml'));
  await owner(0, 'delete', 'team-a');
  await owner(1, 'show', 'team-a');
});

test.serial('plan can fail if policies belong to no file', async (t) => {
  const { run, rest } = await start(t);
  const dir = policyFolder(t);
  writeFileSync(join(dir, 'a.yaml'), file());
  await run(0, 'plan', '--dir', dir, '--fail-on-unmanaged');
  await run(0, 'apply', '--dir', dir);
  await rest.call(201, 'POST', '', { name: 'Free', resource_type: 'tool', effect: 'deny', priority: 1, subjects: [] });
  await run(0, 'plan', '--dir', dir, '--detailed-exitcode');
  await run(3, 'plan', '--dir', dir, '--fail-on-unmanaged');
});

test.serial('tests that are named, or that a link should lead to, are not left out silently', async (t) => {
  const { run, rest } = await start(t);
  const dir = policyFolder(t);
  writeFileSync(join(dir, 'a.yaml'), file({ name: 'A' }));
  const outside = folder(t);
  writeFileSync(join(outside, 't.yaml'), 'tests: []\n');
  manifest(dir, 'owner: default\ntests: tets\n');
  t.regex((await run(1, 'apply', '--dir', dir)).err, /tets contains no tests/);
  mkdirSync(join(dir, 'tets'));
  t.regex((await run(1, 'apply', '--dir', dir)).err, /tets contains no tests/);
  manifest(dir, 'owner: default\n');
  symlinkSync('nowhere', join(dir, 'tests'));
  t.regex((await run(1, 'apply', '--dir', dir)).err, /tests contains no tests/);
  rmSync(join(dir, 'tests'));
  symlinkSync(outside, join(dir, 'tests'));
  for (const command of [['apply'], ['test']])
    t.regex((await run(1, ...command, '--dir', dir)).err, /tests is a link that leads out of .*: move the tests into the folder/);
  t.deepEqual(await rest.policies(), []);
  rmSync(join(dir, 'tests'));
  mkdirSync(join(dir, 'tests'));
  await run(0, 'apply', '--dir', dir);
});
