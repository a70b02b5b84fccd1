/** `portcullis connect`: the files of clients are extended, and never damaged. */
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { withServer } from '../../../src/cli/clients/client-text.ts';
import { runGroup } from '../../../src/cli/command.ts';
import { firstHourGroup } from '../../../src/cli/first-hour/commands.ts';
import { CLIENTS } from '../../../src/clients/client-files.ts';
import { readMachine } from '../../../src/config/config.ts';
import { startGateway } from '../../support/gateway.ts';
import { folder, inProcess, type Ran } from '../cli.ts';

/** Nothing listens there. */
const GATEWAY = 'https://127.0.0.1:9';
const URL_OF_ALL = `${GATEWAY}/mcp`;

/** Runs the command in a project, as a user with this home. */
function place(t: ExecutionContext) {
  const root = folder(t);
  const [home, project] = [join(root, 'home'), join(root, 'project')];
  mkdirSync(home);
  mkdirSync(project);
  const environment = {
    ...{ PORTCULLIS_URL: GATEWAY, PORTCULLIS_TOKEN: '', HOME: home },
    ...{ XDG_CONFIG_HOME: join(home, '.config'), APPDATA: join(home, 'AppData') },
  };
  const run = async (...args: string[]): Promise<Ran> => {
    const before = process.cwd();
    process.chdir(project);
    try {
      return await inProcess(environment, (terminal) => runGroup(firstHourGroup, ['connect', ...args], terminal));
    } finally {
      process.chdir(before);
    }
  };
  return { root, home, project, run };
}

test.serial('each client gets the address alone, in each file that it has', async (t) => {
  const { home, project, run } = place(t);
  const machine = readMachine({ HOME: home, XDG_CONFIG_HOME: join(home, '.config') });
  for (const { id, files } of CLIENTS) {
    for (const scope of ['project', 'user'] as const) {
      const path = files[scope]?.(machine, process.platform);
      if (path === undefined) continue;
      const whole = join(scope === 'project' ? project : '/', path);
      const printed = await run(id, '--scope', scope);
      t.is(printed.code, 0, printed.err);
      t.false(existsSync(whole));
      const wrote = await run(id, '--scope', scope, '--write', '--json');
      t.is(wrote.code, 0, wrote.err);
      t.like(JSON.parse(wrote.out), { path: scope === 'project' ? path : whole, written: true, backup: null });
      const text = readFileSync(whole, 'utf8');
      t.true(text.includes(URL_OF_ALL), `${id}: ${text}`);
      t.notRegex(text, /token|authorization/i);
      t.is(statSync(whole).mode & 0o777, 0o600);
      const again = await run(id, '--scope', scope, '--write');
      t.regex(again.out, /has this server already/, id);
      t.is(readFileSync(whole, 'utf8'), text);
      const other = await run(id, '--scope', scope, '--write', '--target', 'files', '--name', 'gateway');
      t.is(other.code, 1);
      t.regex(other.err, /was not changed: it has a different server gateway already/);
    }
  }
});

test.serial('with --token a client names the variable, and no file holds a token', async (t) => {
  const { run } = place(t);
  for (const { id, noToken } of CLIENTS) {
    const { code, out, err } = await run(id, '--token');
    t.is(code, noToken === undefined ? 0 : 2, err);
    if (noToken === undefined) t.regex(out, /PORTCULLIS_TOKEN/, id);
  }
});

test.serial('the rest of a file stays, with its mode, and a copy of the file as it was', async (t) => {
  const { project, run } = place(t);
  const path = join(project, '.mcp.json');
  const before = '{\n\t"other": {"a": [1, 2]},\n\t"mcpServers": {"mine": {"command": "x", "env": {"KEY": "secret"}}}\n}';
  writeFileSync(path, before);
  chmodSync(path, 0o640);
  const { code, out, err } = await run('claude-code', '--write');
  t.is(code, 0, err);
  t.false(out.includes('secret'));
  const text = readFileSync(path, 'utf8');
  t.deepEqual(JSON.parse(text), {
    ...{ other: { a: [1, 2] } },
    mcpServers: { mine: { command: 'x', env: { KEY: 'secret' } }, gateway: { type: 'http', url: URL_OF_ALL } },
  });
  t.true(text.includes('\n\t"other"'), 'with its indentation');
  t.is(statSync(path).mode & 0o777, 0o640);
  const [copy = ''] = readdirSync(project).filter((name) => name.endsWith('.bak'));
  t.is(readFileSync(join(project, copy), 'utf8'), before);
  t.is(statSync(join(project, copy)).mode & 0o777, 0o640);
  t.is(readdirSync(project).length, 2);
});

test.serial('a file that editing could damage stays, and the command says what to add', async (t) => {
  const { project, run } = place(t);
  const path = join(project, '.vscode', 'mcp.json');
  mkdirSync(dirname(path));
  for (const text of [
    '{ "servers": {} // mine\n}',
    '{ "servers": {}, "servers": {} }',
    '{ "servers": {}, "big": 12345678901234567890 }',
    '{ "servers": [] }',
    '[]',
    '{ "servers": ',
  ]) {
    writeFileSync(path, text);
    const { code, err } = await run('vscode', '--write');
    t.is(code, 1, text);
    t.regex(err, /was not changed: .*\nAdd this to it yourself:\n\{\n {2}"servers"/s, text);
    t.is(readFileSync(path, 'utf8'), text);
  }
  writeFileSync(path, Buffer.from([0x7b, 0xff, 0x7d]));
  t.regex((await run('vscode', '--write')).err, /cannot be read as text/);
  t.deepEqual(readdirSync(dirname(path)), ['mcp.json']);
});

test.serial('nothing is written through a link, out of the project, or over what is no file', async (t) => {
  const { root, project, run } = place(t);
  const outside = join(root, 'outside.json');
  writeFileSync(outside, '{}');
  symlinkSync(outside, join(project, '.mcp.json'));
  const linked = await run('claude-code', '--write');
  t.is(linked.code, 1);
  t.regex(linked.err, /is a link, so nothing was written/);
  t.is(readFileSync(outside, 'utf8'), '{}');
  t.true(lstatSync(join(project, '.mcp.json')).isSymbolicLink());

  symlinkSync(join(root, 'nowhere.json'), join(project, 'opencode.json'));
  t.regex((await run('opencode', '--write')).err, /is a link/);
  t.false(existsSync(join(root, 'nowhere.json')));

  mkdirSync(join(root, 'elsewhere'));
  symlinkSync(join(root, 'elsewhere'), join(project, '.cursor'));
  t.regex((await run('cursor', '--write')).err, /leads out of this folder/);
  t.deepEqual(readdirSync(join(root, 'elsewhere')), []);

  const vscode = join(project, '.vscode');
  symlinkSync(join(root, 'nowhere'), vscode);
  t.regex((await run('vscode', '--write')).err, /leads out of this folder/);
  t.false(existsSync(join(root, 'nowhere')));
  rmSync(vscode);
  writeFileSync(vscode, 'no folder');
  t.regex((await run('vscode', '--write')).err, /was not changed: .*ENOTDIR/);

  mkdirSync(join(project, '.gemini', 'settings.json'), { recursive: true });
  t.regex((await run('gemini', '--write')).err, /is not a settings file/);
});

test.serial('wrong usage is refused', async (t) => {
  const { run } = place(t);
  for (const [args, said] of [
    [['emacs'], /emacs is not a client that this command knows: claude-code, /],
    [['codex', '--scope', 'project'], /--scope must be user for Codex/],
    [['codex', '--name', 'a]\n[x'], /--name must have/],
    [['codex', '--target', '../x'], /cannot be the name of a target/],
  ] as const) {
    const { code, err } = await run(...args);
    t.is(code, 2);
    t.regex(err, said);
  }
});

test('a TOML file keeps every byte, and is refused where a table cannot be added', (t) => {
  const content = { format: 'toml', table: 'mcp_servers.gateway', text: '[mcp_servers.gateway]\nurl = "u"\n' } as const;
  const before = '# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "y"';
  t.is(withServer(before, content), `${before}\n\n${content.text}`);
  t.is(withServer(`${before}\n\n${content.text}`, content), null);
  for (const text of [
    '[mcp_servers."gateway"]\nurl = "v"\n',
    '[ mcp_servers . gateway ]\n',
    '["mcp_servers".gateway]\nurl = "v"\n',
    '[mcp_servers]\ngateway.url = "v"\n',
    '[mcp_servers.gateway.env]\nA = "b"\n',
    'mcp_servers = { gateway = { url = "v" } }\n',
    'mcp_servers.gateway.url = "v"\n',
    'text = """\n[mcp_servers.other]\n',
  ])
    t.throws(() => withServer(text, content), undefined, text);
});

test('a YAML file keeps its comments and its other keys', (t) => {
  const value = { enabled: true, uri: 'u' };
  const content = { format: 'yaml', entry: { path: ['extensions', 'gateway'], value } } as const;
  const text = withServer('# mine\nGOOSE_MODEL: x # why\nextensions:\n  developer:\n    enabled: true\n', content) ?? '';
  t.regex(text, /^# mine\nGOOSE_MODEL: x # why\n/);
  t.deepEqual(parse(text), { GOOSE_MODEL: 'x', extensions: { developer: { enabled: true }, gateway: value } });
  t.is(withServer(text, content), null);
  t.deepEqual(parse(withServer('extensions:\n', content) ?? ''), { extensions: { gateway: value } });
  for (const wrong of ['- a\n', 'extensions: [a]\n', 'a: b: c\n', 'extensions:\n  gateway: {uri: v}\n'])
    t.throws(() => withServer(wrong, content), undefined, wrong);
});

test.serial('a client that signs in gets no address that differs from the one that the gateway gives itself', async (t) => {
  const { project, run } = place(t);
  const gateway = await startGateway(t, null, { PUBLIC_URL: 'https://gateway.example.com' });
  const refused = await run('claude-code', '--write', '--server', gateway.url);
  t.is(refused.code, 1);
  t.true(
    refused.err.includes(`the gateway at ${gateway.url} calls itself https://gateway.example.com: name that address`),
    refused.err,
  );
  t.deepEqual(readdirSync(project), []);
  t.is((await run('claude-code', '--write', '--token', '--server', gateway.url)).code, 0);

  const same = await startGateway(t);
  const printed = await run('claude-code', '--server', same.url);
  t.is(printed.code, 0, printed.err);
  t.is(printed.err, '');
  t.true(printed.out.includes(`${same.url}/mcp`));
  t.regex((await run('claude-code')).err, /the address of the gateway was not checked: no answer from https:\/\/127\.0\.0\.1:9/);
});
