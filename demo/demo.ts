/**
 * The whole job on real parts: a gateway on SQLite, a published MCP server as target, the starter policies, and the
 * official MCP client. `--once` ends after the transcript; the exit code is not 0 if anything was not as announced.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { readConfig } from '../src/config/config.ts';
import { createGateway } from '../src/gateway.ts';
import { freePort, startEverything } from './everything.ts';

const { values: options } = parseArgs({ options: { once: { type: 'boolean', default: false } } });
const PASSWORD = 'correct horse battery staple';
const POLICIES = fileURLToPath(new URL('../policies', import.meta.url));

const say = (line = ''): void => {
  process.stdout.write(`${line}\n`);
};
const step = (title: string): void => say(`\n${title}`);
/** Prints what happened, and ends the demo where it is not what was announced. */
function announce(expected: boolean, line: string): void {
  say(`  ${expected ? '✓' : '✗'} ${line}`);
  if (!expected) throw new Error(`Not as announced: ${line}`);
}

const dataDir = mkdtempSync(join(tmpdir(), 'portcullis-demo-'));
const endings: (() => Promise<void> | void)[] = [() => rmSync(dataDir, { recursive: true, force: true })];
async function end(code: number): Promise<never> {
  for (const ending of endings.reverse()) await ending();
  process.exit(code);
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void end(0));

interface RequestOptions {
  readonly token?: string;
  readonly body?: unknown;
}

async function main(): Promise<void> {
  const target = await startEverything();
  endings.push(() => target.stop());

  // Of the caller's environment PORT alone counts: else the demo is the same everywhere.
  const port = options.once ? await freePort() : Number(process.env['PORT'] ?? 8080);
  const url = `http://127.0.0.1:${port}`;
  const gateway = await createGateway(readConfig({ PORT: String(port), DATA_DIR: dataDir, LOG_LEVEL: 'error' }));
  endings.push(() => gateway.close());
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
  say(`  gateway ${url}, database SQLite; target ${target.url} (@modelcontextprotocol/server-everything)`);
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

  const client = new Client({ name: 'portcullis-demo', version: '1.0.0' });
  const connect = () =>
    client.connect(
      new StreamableHTTPClientTransport(new URL(`${url}/mcp/everything`), {
        requestInit: { headers: { authorization: `Bearer ${apiToken}` } },
      }),
    );
  const refusal = (work: Promise<unknown>): Promise<string> =>
    work.then(
      () => '',
      (error: Error) => error.message,
    );

  step('2. Without a policy, every request is denied');
  const closed = await refusal(connect());
  announce(closed !== '', `connecting: ${closed}`);

  step('3. The starter policies of policies/');
  const files = readdirSync(POLICIES).filter((name) => name.endsWith('.yaml'));
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
  await connect();
  endings.push(() => client.close());
  const { tools } = await client.listTools();
  const names = tools.map((tool) => tool.name);
  announce(names.includes('echo') && !names.includes('get-env'), `tools/list: ${names.join(', ')}`);

  step('5. An allowed call, and a denied one');
  const echo = (message: string) => client.callTool({ name: 'echo', arguments: { message } });
  const echoed = await echo('hello through the gateway');
  announce(JSON.stringify(echoed).includes('hello through the gateway'), `tools/call echo: ${JSON.stringify(echoed.content)}`);
  const denied = await refusal(client.callTool({ name: 'get-env', arguments: {} }));
  announce(denied.includes('get-env'), `tools/call get-env: ${denied}`);

  step('6. A resource and a prompt');
  const { resources } = await client.listResources();
  const uri = resources[0]?.uri ?? '';
  const { contents } = await client.readResource({ uri });
  announce(contents.length > 0, `resources/read ${uri}: ${JSON.stringify(contents[0]).slice(0, 90)}…`);
  const prompt = await client.getPrompt({ name: 'simple-prompt' });
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

  if (options.once) return;
  step('The gateway stays up. Ctrl-C ends it and forgets everything.');
  say(`  address         ${url}`);
  say(`  administrator   admin@example.com   password: ${PASSWORD}`);
  say(`  developer       dev@example.com     password: ${PASSWORD}`);
  say(`\n  Client configuration (Claude, Cursor; VS Code calls "mcpServers" "servers"):\n`);
  const configuration = {
    mcpServers: { everything: { type: 'http', url: `${url}/mcp/everything`, headers: { Authorization: `Bearer ${apiToken}` } } },
  };
  say(JSON.stringify(configuration, null, 2));
  await new Promise(() => {});
}

await main().catch(async (error: unknown) => {
  process.stderr.write(`\ndemo: ${error instanceof Error ? error.message : String(error)}\n`);
  await end(1);
});
say('\nEverything was as announced.');
await end(0);
