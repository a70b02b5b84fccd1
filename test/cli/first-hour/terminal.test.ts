/** The three commands of the README on a real terminal: from an empty folder to the call of a real client through the gateway. */
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { ExecutionContext } from 'ava';
import { codeOf, openTab, sdkProvider } from '../../oauth/support.ts';
import { freePort } from '../../support/port.ts';
import { program } from '../../support/process.ts';
import { type Terminal, terminalTest } from '../../support/terminal.ts';
import { folder } from '../cli.ts';

const ROOT = join(import.meta.dirname, '../../..');
const EVERYTHING = join(
  dirname(createRequire(import.meta.url).resolve('@modelcontextprotocol/server-everything/package.json')),
  'dist/index.js',
);
const [EMAIL, PASSWORD] = ['admin@example.com', 'a long passphrase'];

/** The commands under the heading of the README. */
function commandsOfReadme(): string[] {
  const [, section = ''] = readFileSync(join(ROOT, 'README.md'), 'utf8').split('\n## The first hour\n');
  const [, block = ''] = /```sh\n(.*?)```/s.exec(section.split('\n## ')[0] ?? '') ?? [];
  return block
    .trim()
    .split('\n')
    .map((line) => line.replace(/ +#.*/, ''));
}

function script(path: string, command: readonly string[]): void {
  writeFileSync(path, `#!/bin/sh\nexec ${command.map((word) => `'${word}'`).join(' ')} "$@"\n`);
  chmodSync(path, 0o755);
}

/** An empty folder, and a PATH with the command and a stand-in for npx that starts the installed package instead of a download. */
async function emptyFolder(t: ExecutionContext) {
  const root = folder(t);
  const [home, work, bin] = ['home', 'work', 'bin'].map((name) => join(root, name)) as [string, string, string];
  for (const path of [home, work, bin]) mkdirSync(path);
  // The words of a command that runs anywhere.
  const words = program('cli/portcullis').map((word) => {
    const [, module = ''] = /^--import=(.*)$/.exec(word) ?? [];
    if (module !== '') return `--import=${module.startsWith('.') ? join(ROOT, module) : import.meta.resolve(module)}`;
    return join(ROOT, word);
  });
  script(join(bin, 'portcullis'), [process.execPath, ...words]);
  writeFileSync(
    join(bin, 'npx'),
    `#!/bin/sh\n[ "$*" = '-y @modelcontextprotocol/server-everything' ] && exec '${process.execPath}' '${EVERYTHING}'\nexit 9\n`,
  );
  chmodSync(join(bin, 'npx'), 0o755);
  const port = String(await freePort());
  const url = `http://127.0.0.1:${port}`;
  const environment = {
    ...{ HOME: home, PATH: `${bin}:${dirname(process.execPath)}:/usr/bin:/bin`, PORT: port, PORTCULLIS_URL: url },
    ...{ LOG_LEVEL: 'warn', DRAIN_MS: '500' },
  };
  return { home, work, url, environment };
}

/** Answers the questions of an empty gateway. */
async function begin(terminal: Terminal): Promise<void> {
  await terminal.shows(/E-mail of the administrator: $/m);
  terminal.type(EMAIL);
  await terminal.shows(/Password \(at least 8 characters\): $/m);
  terminal.type(PASSWORD);
  await terminal.shows(/The same password again: $/m);
  terminal.type(PASSWORD);
}

/** Connects an official client to the address, as the administrator, who signs in with a browser. */
async function sdkClient(t: ExecutionContext, url: string, address: string): Promise<Client> {
  const { provider, kept } = sdkProvider('http://localhost:4711/oauth/callback');
  const transport = () => new StreamableHTTPClientTransport(new URL(address), { authProvider: provider as never });
  const first = transport();
  await t.throwsAsync(new Client({ name: 'sdk', version: '1' }).connect(first as never), { instanceOf: UnauthorizedError });
  const tab = openTab(url);
  await tab.signIn({ email: EMAIL, password: PASSWORD });
  await first.finishAuth(codeOf(await tab.answer(await tab.follow(String(kept['url'])))));
  const client = new Client({ name: 'sdk', version: '1' });
  await client.connect(transport() as never);
  t.teardown(() => client.close());
  return client;
}

terminalTest('three commands lead from an empty folder to the call of a real client', async (t, open) => {
  const { home, work, url, environment } = await emptyFolder(t);
  const [start = '', add = '', connect = '', ...more] = commandsOfReadme();
  t.deepEqual(more, []);
  const first = open(work, environment);
  first.type(start);
  await begin(first);
  const begun = await first.shows(/is the administrator of http\S+, and signed in/);
  t.false(begun.includes(PASSWORD), 'the terminal does not show the password');
  const [login = ''] = readdirSync(join(home, '.config/portcullis/logins'));
  t.is(statSync(join(home, '.config/portcullis/logins', login)).mode & 0o777, 0o600);

  const second = open(work, environment);
  second.type(add);
  await second.shows(/It has \d+ tools/);
  await second.shows(/Allow which tools\? .*: $/m);
  second.type('everything');
  await second.shows(/everything must be read-only, all, none/);
  second.type('all');
  await second.shows(/Allow whom\? .*\[role:admin\]: $/m);
  second.type('');
  await second.shows(/made the policy "Role admin may use tools of everything"/);

  second.type(connect);
  await second.shows(/wrote .mcp.json/);
  const { mcpServers } = JSON.parse(readFileSync(join(work, '.mcp.json'), 'utf8')) as {
    mcpServers: { gateway: { type: string; url: string } };
  };
  t.deepEqual(mcpServers, { gateway: { type: 'http', url: `${url}/mcp` } });

  const client = await sdkClient(t, url, mcpServers.gateway.url);
  const answer = await client.callTool({ name: 'everything__echo', arguments: { message: 'hello' } });
  t.deepEqual(answer.content, [{ type: 'text', text: 'Echo: hello' }]);
  await client.close();

  first.press('C-c');
  await first.shows(/ready> $/m);
  t.true(existsSync(join(work, 'data/portcullis.db')), 'the state is in the folder');
});

terminalTest('a person who makes mistakes is asked again, and Ctrl-C stops the gateway', async (t, open) => {
  const { work, url, environment } = await emptyFolder(t);
  const terminal = open(work, environment);
  terminal.type('portcullis start');
  await terminal.shows(/E-mail of the administrator: $/m);
  terminal.type('no e-mail');
  await terminal.shows(/Password \(at least 8 characters\): $/m);
  terminal.type('one password');
  await terminal.shows(/The same password again: $/m);
  terminal.type('another password');
  await terminal.shows(/the two passwords differ/);
  await terminal.shows(/differ[\s\S]*Password \(at least 8 characters\): $/m);
  terminal.type('a password');
  await terminal.shows(/differ[\s\S]*The same password again: $/m);
  terminal.type('a password');
  await terminal.shows(/email: [\s\S]*E-mail of the administrator: $/m);
  terminal.press('C-c');
  await terminal.shows(/ready> $/m);
  await t.throwsAsync(fetch(`${url}/health/live`));
});

terminalTest('if only the sign-in fails, start says so, and does not ask for a second administrator', async (t, open) => {
  const { home, work, environment } = await emptyFolder(t);
  // The login cannot be stored.
  writeFileSync(join(home, '.config'), 'no folder');
  const terminal = open(work, environment);
  terminal.type('portcullis start');
  await begin(terminal);
  await terminal.shows(/is made, but not signed in: run portcullis login --server http/);
  terminal.press('C-c');
  t.notRegex(await terminal.shows(/signed in:[\s\S]*ready> $/m), /register the first one/);
});

terminalTest(
  'init on a terminal asks for what is missing, and points to login when there is an administrator',
  async (t, open) => {
    const { work, environment } = await emptyFolder(t);
    const gateway = open(work, { ...environment, PUBLIC_URL: environment.PORTCULLIS_URL, TRUST_PROXY: 'true' });
    gateway.type('portcullis start < /dev/null');
    const told = await gateway.shows(/portcullis init --server http\S+ --setup-code [0-9a-f-]+/);
    const [, code = ''] = /--setup-code ([0-9a-f-]+)/.exec(told) ?? [];
    const terminal = open(work, environment);
    terminal.type('portcullis init');
    await begin(terminal);
    await terminal.shows(/Setup code.*: $/m);
    terminal.type(code);
    await terminal.shows(/is the administrator of http\S+, and signed in/);
    terminal.type('clear; portcullis init');
    await terminal.shows(/^(?![\s\S]*signed in)[\s\S]*E-mail of the administrator: $/m);
    await begin(terminal);
    t.regex(await terminal.shows(/has an administrator already/), /sign in with portcullis login/);
  },
);
