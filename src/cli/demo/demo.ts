/**
 * `portcullis demo`: the whole job on real parts: a gateway on SQLite, an MCP server as target, the starter policies, and an MCP client. The
 * exit code is not 0 if a step did not have the announced result.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readConfig } from '../../config/config.ts';
import { createGateway } from '../../gateway.ts';
import { MANIFEST_NAME } from '../../policies/files/file.ts';
import { type Command, CommandError, type CommandGroup, UsageError } from '../command.ts';
import { connectClient } from './client.ts';
import { startTarget } from './target.ts';

const PASSWORD = 'correct horse battery staple';
const POLICIES = fileURLToPath(new URL('../../../policies', import.meta.url));

type Print = (line?: string) => void;

interface RequestOptions {
  readonly token?: string;
  readonly body?: unknown;
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  return typeof address === 'object' && address !== null ? address.port : 0;
}

/** `wanted`: the port; null: a free one. Calls `ending` with what must be ended afterwards. */
async function play(
  once: boolean,
  wanted: number | null,
  say: Print,
  ending: (end: () => Promise<void> | void) => void,
): Promise<void> {
  const step = (title: string): void => say(`\n${title}`);
  /** Prints what happened. Ends the demo if it is not what was announced. */
  function announce(expected: boolean, line: string): void {
    say(`  ${expected ? '✓' : '✗'} ${line}`);
    if (!expected) throw new Error(`Not as announced: ${line}`);
  }
  const ended = new Promise<void>((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => resolve());
  });

  const dataDir = mkdtempSync(join(tmpdir(), 'portcullis-demo-'));
  ending(() => rmSync(dataDir, { recursive: true, force: true }));
  const target = await startTarget();
  ending(() => target.stop());

  const port = wanted ?? (await freePort());
  const url = `http://127.0.0.1:${port}`;
  const gateway = await createGateway(readConfig({ PORT: String(port), DATA_DIR: dataDir, LOG_LEVEL: 'error' }));
  ending(() => gateway.close());
  await gateway.listen();

  async function api<T>(method: string, path: string, { token, body }: RequestOptions = {}): Promise<T> {
    const answer = await fetch(url + path, {
      method,
      headers: {
        'content-type': 'application/json',
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path} answered ${answer.status}: ${text}`);
    return (text === '' ? undefined : JSON.parse(text)) as T;
  }

  step('1. A gateway, a target, two users');
  say(`  gateway ${url}, database SQLite; target ${target.url} (a small MCP server of its own)`);
  const register = async (email: string): Promise<{ id: string; role: string; token: string }> => {
    await api('POST', '/api/auth/register', { body: { email, password: PASSWORD } });
    const { user, token } = await api<{ user: { id: string; role: string }; token: string }>('POST', '/api/auth/login', {
      body: { email, password: PASSWORD },
    });
    return { ...user, token };
  };
  const admin = await register('admin@example.com');
  announce(admin.role === 'admin', 'admin@example.com registered first and is the administrator');
  const developer = await register('dev@example.com');
  announce(developer.role === 'user', 'dev@example.com registered second and has the role "user"');
  await api('POST', '/api/targets', {
    token: admin.token,
    body: { name: 'everything', transport: 'streamable-http', url: target.url },
  });
  const { token: apiToken } = await api<{ token: string }>('POST', '/api/auth/tokens', {
    token: developer.token,
    body: { name: 'demo client' },
  });
  say('  dev@example.com made an API token; the client below uses it');

  const connect = () => connectClient(`${url}/mcp/everything`, apiToken);
  const refusal = (work: Promise<unknown>): Promise<string> =>
    work.then(
      () => '',
      (error: Error) => error.message,
    );

  step('2. Without a policy, every request is denied');
  const closed = await refusal(connect());
  announce(closed !== '', `connecting: ${closed}`);

  step('3. The starter policies of policies/');
  const files = readdirSync(POLICIES).filter((name) => name.endsWith('.yaml') && name !== MANIFEST_NAME);
  const applied = await api<{ changes: { file: string; name: string; after: { effect: string } }[] }>(
    'POST',
    '/api/policies/apply',
    {
      token: admin.token,
      body: { files: Object.fromEntries(files.map((file) => [file, readFileSync(join(POLICIES, file), 'utf8')])) },
    },
  );
  for (const { file, name, after } of applied.changes) say(`  ${file}: ${after.effect} ${name}`);
  await api('PUT', `/api/users/${developer.id}`, { token: admin.token, body: { role: 'developer' } });
  say('  and dev@example.com now has the role "developer"');

  step('4. The client sees what it may use');
  const client = await connect();
  const { tools } = await client.ask<{ tools: { name: string }[] }>('tools/list');
  const names = tools.map((tool) => tool.name);
  announce(names.includes('echo') && !names.includes('get-env'), `tools/list: ${names.join(', ')}`);

  step('5. An allowed call, and a denied one');
  const echo = (message: string) => client.ask<{ content: unknown }>('tools/call', { name: 'echo', arguments: { message } });
  const echoed = await echo('hello through the gateway');
  announce(JSON.stringify(echoed).includes('hello through the gateway'), `tools/call echo: ${JSON.stringify(echoed.content)}`);
  const denied = await refusal(client.ask('tools/call', { name: 'get-env', arguments: {} }));
  announce(denied.includes('get-env'), `tools/call get-env: ${denied}`);

  step('6. A resource and a prompt');
  const { resources } = await client.ask<{ resources: { uri: string }[] }>('resources/list');
  const uri = resources[0]?.uri ?? '';
  const { contents } = await client.ask<{ contents: unknown[] }>('resources/read', { uri });
  announce(contents.length > 0, `resources/read ${uri}: ${JSON.stringify(contents[0]).slice(0, 90)}…`);
  const prompt = await client.ask<{ messages: { content: unknown }[] }>('prompts/get', { name: 'simple-prompt' });
  announce(prompt.messages.length > 0, `prompts/get simple-prompt: ${JSON.stringify(prompt.messages[0]?.content)}`);

  step('7. The role changes, and the next call on the same connection is decided with it');
  await api('PUT', `/api/users/${developer.id}`, { token: admin.token, body: { role: 'user' } });
  const after = await refusal(echo('still there?'));
  announce(after !== '', `role "user": tools/call echo: ${after}`);
  await api('PUT', `/api/users/${developer.id}`, { token: admin.token, body: { role: 'developer' } });
  announce(JSON.stringify(await echo('back')).includes('back'), 'role "developer" again: tools/call echo works');

  step('8. What the audit log says, newest first (GET /api/logs)');
  interface LogRow {
    created_at: string;
    user_role: string;
    method: string;
    resource_name: string | null;
    effect: string;
    policy_name: string | null;
    reason: string;
  }
  const logs = await api<LogRow[]>('GET', '/api/logs?limit=20', { token: admin.token });
  for (const row of logs) {
    const why = row.policy_name === null ? `no policy (${row.reason})` : `"${row.policy_name}"`;
    const columns = [row.created_at.slice(11, 23), row.effect.padEnd(5), row.user_role.padEnd(9), row.method.padEnd(25)];
    say(`  ${columns.join('  ')}  ${row.resource_name ?? ''}  [${why}]`);
  }
  announce(
    logs.some((row) => row.resource_name === 'get-env' && row.effect === 'deny') &&
      logs.some((row) => row.resource_name === 'echo' && row.effect === 'allow'),
    'the allowed and the denied calls are there',
  );

  if (once) return;
  step('The gateway stays up. Ctrl-C ends it and forgets everything.');
  say(`  address         ${url}`);
  say(`  administrator   admin@example.com   password: ${PASSWORD}`);
  say(`  developer       dev@example.com     password: ${PASSWORD}`);
  say(`\n  Client configuration (Claude, Cursor; VS Code calls "mcpServers" "servers"):\n`);
  const configuration = {
    mcpServers: { everything: { type: 'http', url: `${url}/mcp/everything`, headers: { Authorization: `Bearer ${apiToken}` } } },
  };
  say(JSON.stringify(configuration, null, 2));
  await ended;
}

const demo: Command = {
  name: 'demo',
  summary: 'shows the product: a gateway, a target, policies, a client, and the log',
  options: {
    once: { help: 'ends after the transcript' },
    port: { value: 'N', help: 'the port of the gateway (default: 8080; with --once, a free one)' },
  },
  notes: `Everything is on this machine and in a new folder, which is removed at the end.
Exit code: 0 everything was as announced, 1 it was not, 2 wrong usage.`,
  async run(given, _say, write) {
    const port = Number(given.text('port') ?? 8080);
    if (!Number.isInteger(port) || port < 1 || port > 65_535)
      throw new UsageError(`--port must be a number from 1 to 65535, not ${given.text('port')}`);
    const print: Print = (line = '') => write({ text: `${line}\n`, json: line });
    const endings: (() => Promise<void> | void)[] = [];
    try {
      const once = given.flag('once');
      await play(once, once && given.text('port') === undefined ? null : port, print, (end) => void endings.push(end));
    } catch (error) {
      throw new CommandError(`demo: ${error instanceof Error ? error.message : String(error)}`, 'not_as_announced');
    } finally {
      for (const end of endings.reverse()) await end();
    }
    const line = 'Everything was as announced.';
    return { text: `\n${line}\n`, json: line };
  },
};

export const demoGroup: CommandGroup = {
  path: 'portcullis',
  about: 'Shows the product.',
  notes: '',
  options: {},
  commands: [demo],
};
