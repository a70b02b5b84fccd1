/** `portcullis import` against a real gateway, with files of clients and of attackers. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { readServers, slugOf } from '../../../src/cli/first-hour/servers-file.ts';
import { startRecording } from '../../support/upstreams/recording.ts';
import { folder } from '../cli.ts';
import { firstHourAt, program } from './support.ts';

function file(t: ExecutionContext, content: unknown): string {
  const path = join(folder(t), 'mcp.json');
  writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content));
  return path;
}

/** As the file names them. */
const NAMED = ['HOME', 'input:key'].map((name) => `\${${name}}`);

interface Made {
  readonly id: string;
  readonly name: string;
  readonly url?: string;
  readonly args?: string[];
  readonly env?: Record<string, string>;
}

const ECHO = program([{ name: 'echo', inputSchema: { type: 'object' } }]);
const SECRETS = ['ghp_0123456789abcdefghij', 'a header of mine', 'bearer-token-of-mine'];

test.serial('import makes targets, and keeps what looks like a secret as sealed credentials', async (t) => {
  const remote = await startRecording(({ message, headers }, res) => {
    const isOurs = headers.authorization === `Bearer ${SECRETS[2]}` && headers['x-team'] === SECRETS[1];
    if (!isOurs) return void res.writeHead(401).end();
    if (message?.id === undefined) return void res.writeHead(202).end();
    const hello = { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'r', version: '1' } };
    const result = message.method === 'initialize' ? hello : { tools: [] };
    res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ jsonrpc: '2.0', id: message.id, result }));
  });
  t.teardown(() => remote.stop());
  const { run, read } = await firstHourAt(t, { STDIO_ALLOWED: process.execPath });
  const path = file(t, {
    mcpServers: {
      'GitHub Tools': { command: process.execPath, args: ['-e', ECHO], env: { GITHUB_TOKEN: SECRETS[0], LOG_LEVEL: 'debug' } },
      remote: { type: 'http', url: remote.url, headers: { Authorization: `Bearer ${SECRETS[2]}`, 'X-Team': SECRETS[1] } },
      off: { command: 'x', disabled: true },
    },
  });
  const dry = await run('import', path, '--dry-run');
  t.is(dry.code, 1, 'one would be skipped');
  t.regex(dry.out, /would make "GitHub Tools" as github-tools at .*, with the credentials GITHUB_TOKEN/);
  t.regex(dry.out, /skipped +"off" as off\n +it is disabled in the file/);
  t.deepEqual(await read('/api/targets'), []);

  const asked = await run('import', path);
  t.is(asked.code, 2);
  t.regex(asked.err, /--yes is missing/);
  const made = await run('import', path, '--yes');
  t.is(made.code, 1, 'one is skipped');
  t.regex(made.out, /made +"GitHub Tools" as github-tools.*, 1 tool\n/);
  t.regex(made.out, /made +"remote" as remote .*credentials authorization, X-Team, 0 tools/);
  t.regex(made.out, /2 targets ready, 1 not\. No policy was made/);
  const targets = await read<Made[]>('/api/targets');
  t.deepEqual(
    targets.map(({ name }) => name),
    ['github-tools', 'remote'],
  );
  t.is(targets[0]?.env?.['LOG_LEVEL'], 'debug');
  const credentials = await read<{ type: string; name: string }[]>(`/api/targets/${targets[0]?.id}/credentials`);
  t.like(credentials[0], { type: 'env', name: 'GITHUB_TOKEN' });
  const everything = JSON.stringify([dry, asked, made, targets, await read('/api/changes')]);
  for (const secret of SECRETS) t.false(everything.includes(secret), secret);
  t.deepEqual(await read('/api/policies'), []);

  // Again: nothing is made twice.
  const again = await run('import', path, '--yes', '--json');
  const states = (JSON.parse(again.out) as { servers: { state: string }[] }).servers.map(({ state }) => state);
  t.deepEqual(states, ['there', 'there', 'skipped']);
  t.is((await read<Made[]>('/api/targets')).length, 2);
});

test.serial('a value that the file only names is not taken from the environment of the command', async (t) => {
  const { run, read } = await firstHourAt(t);
  const path = file(t, {
    servers: { x: { url: 'http://127.0.0.1:1/', headers: { Authorization: `Bearer ${NAMED.join('')}` } } },
  });
  const { code, err } = await run('import', path, '--yes');
  t.is(code, 2);
  t.regex(err, /names values that it does not contain.*\$\{HOME\}, \$\{input:key\}/);
  t.deepEqual(await read('/api/targets'), []);
});

test.serial('a hostile file starts nothing that the operator has not allowed, and shows no secret', async (t) => {
  const { run, read } = await firstHourAt(t, { STDIO_ALLOWED: process.execPath });
  const secret = 'sk-0123456789abcdefghijkl';
  const servers: Record<string, object> = {
    shell: { command: '/bin/sh', args: ['-c', 'touch /tmp/owned'] },
    words: { command: 'sh -c id' },
    relative: { command: '../../bin/evil' },
    variable: { command: NAMED[0] },
    folder: { command: process.execPath, cwd: '../..' },
    argument: { command: process.execPath, args: ['--api-key', secret] },
    joined: { command: process.execPath, args: [`--token=${secret}`] },
    header: { command: process.execPath, args: ['--header', `Authorization: Bearer ${secret}`] },
    query: { url: `https://x.example/mcp?api_key=${secret}` },
    path: { url: `https://x.example/s/${secret}/mcp` },
    user: { url: `https://ann:${secret}@x.example/mcp` },
    file: { url: 'file:///etc/passwd' },
    both: { command: 'a', url: 'https://x.example/' },
    name: { command: process.execPath, env: { 'A=B': 'c' } },
    cloud: { url: 'http://169.254.169.254/mcp' },
    '\u001b[2J': { command: '\u001b]0;x\u0007' },
  };
  const { code, out, err } = await run('import', file(t, { mcpServers: servers }), '--yes');
  t.is(code, 1, err);
  t.regex(out, /0 targets ready, 16 not/);
  t.deepEqual(await read('/api/targets'), []);
  t.false(`${out}${err}`.includes(secret));
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these must not be there
  t.notRegex(`${out}${err}`, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/);
  t.regex(out, /"shell" .*\n +the gateway may not start \/bin\/sh/);
  t.regex(out, /"relative" .*\n +.*relative path/);
  t.regex(out, /"argument" .*\n +its argument 2 contains a secret/);
});

test.serial('import does not give an existing target the credentials of a file', async (t) => {
  const { run, read, gateway, admin } = await firstHourAt(t);
  const { token } = admin;
  const url = 'http://127.0.0.1:1/';
  const made = await gateway.rest<Made>(201, 'POST', '/api/targets', { token, body: { name: 'x', url } });
  const path = file(t, { servers: { x: { url, headers: { Authorization: 'Bearer of-a-stranger' } } } });
  const { err } = await run('import', path, '--yes');
  t.regex(err, /the target x was there already: its credentials stay as they are/);
  t.deepEqual(await read(`/api/targets/${made.body.id}/credentials`), []);
});

test.serial('the plan and the advice of a hostile file stay lines of the command, and words for a shell', async (t) => {
  const { run } = await firstHourAt(t);
  const line = '\n  made       "good" as good';
  const path = file(t, {
    servers: {
      args: { command: process.execPath, args: [`a${line}`] },
      url: { url: `http://127.0.0.1:1/${line}` },
      header: { url: 'http://127.0.0.1:1/', headers: { [`X-A${line}`]: 'v' } },
      command: { command: '/bin/$(id)' },
    },
  });
  const dry = await run('import', path, '--dry-run');
  t.is(dry.out.split('\n').filter((one) => one !== '').length, 4, dry.out);
  const { out } = await run('import', path, '--yes');
  t.notRegex(out, /^ *made +"good"/m);
  t.regex(out, /start --allow-command '\/bin\/\$\(id\)'\n +STDIO_ALLOWED='\/bin\/\$\(id\)' npm start/);
});

test.serial('the plan shows what could make a program run other code', async (t) => {
  const { run } = await firstHourAt(t);
  const env = { NODE_OPTIONS: '--import=data:text/javascript,evil()', GITHUB_TOKEN: SECRETS[0] };
  const path = file(t, { servers: { x: { command: process.execPath, args: ['a.js'], env } } });
  const { code, out } = await run('import', path, '--dry-run');
  t.is(code, 0, 'none would be skipped');
  t.regex(out, / with the variables NODE_OPTIONS=--import=data:text\/javascript,evil\(\), with the credentials GITHUB_TOKEN\n/);
  t.false(out.includes(SECRETS[0] ?? ''));
});

test('a file of open strings and comments is refused at once', (t) => {
  for (const part of ['"\\', '/*', '"\\"'])
    t.throws(() => readServers(`{"servers":{} ${part.repeat(1_000_000)}`), { message: /not JSON/ }, part);
  t.throws(() => readServers('{"servers":{}} /* open'), { message: /not JSON/ });
});

test.serial('what is no file with servers is refused', async (t) => {
  const { run } = await firstHourAt(t);
  for (const [path, said] of [
    [join(folder(t), 'missing.json'), /ENOENT/],
    [folder(t), /is not a file/],
    ['/dev/zero', /is not a file/],
    [file(t, 'no json'), /not JSON/],
    [file(t, '[]'), /no object mcpServers or servers/],
    [file(t, '{"mcpServers":{"a":{},"a":{}}}'), /not JSON/],
  ] as const) {
    const { code, err } = await run('import', path, '--yes');
    t.is(code, 1);
    t.regex(err, said);
  }
});

test('titles become names of targets, each once', (t) => {
  for (const [title, name] of [
    ['GitHub', 'github'],
    ['My Server (prod)', 'my-server-prod'],
    ['Café_1', 'cafe-1'],
    ['3d', 'server-3d'],
    ['!!!', 'server'],
    ['a'.repeat(80), 'a'.repeat(63)],
  ] as const)
    t.is(slugOf(title), name);
  const found = readServers('{"mcpServers":{"A b":{},"a-b":{},"a_b":{}}}');
  t.deepEqual(
    found.map(({ name }) => name),
    ['a-b', 'a-b-2', 'a-b-3'],
  );
});

test('comments and commas of VS Code are read, but not inside texts', (t) => {
  const text = `{
    // a comment, with "quotes"
    "servers": { /* one */ "x": { "url": "https://x.example/a//b,]", "headers": { "X-A": "/* kept */ ,}" }, }, },
  }`;
  const [found] = readServers(text);
  t.like(found?.server, { url: 'https://x.example/a//b,]', secrets: [{ type: 'header', name: 'X-A', value: '/* kept */ ,}' }] });
});

test('secrets are told by their names, their beginnings and what is inside them', (t) => {
  const secret = {
    SMTP_PASS: 'geheim',
    DB_PASSPHRASE: 'a b',
    MFA_PASSCODE: '123456',
    API_PIN: '1234',
    OTP: '000000',
    SLACK_WEBHOOK_URL: 'https://hooks.slack.com/services/T0/B0/x',
    AZURE_STORAGE_CONNECTION_STRING: 'DefaultEndpointsProtocol=https;AccountName=a;AccountKey=b',
    CONN: 'Server=db;User=sa;Password=geheim',
    DB_PASSWORD: '1234',
    CONFIG: '{"apiKey":"abc"}',
    HEADERS: 'Authorization: Bearer abc',
    TLS: '-----BEGIN EC PRIVATE KEY-----\nabc',
    URL: 'https://x.example/?access_token=abc',
    HELLO: 'ghp_0123456789abcdefghij',
    DB_PW: 'geheim',
    WIFI_PSK: 'geheim',
    SESSION_JWT: 'a.b',
    DB_CREDS: 'a b',
    WALLET_MNEMONIC: 'a b c',
    TOKEN: '123456',
    RPC_URL: 'https://eth.example/v2/0123456789abcdefghijkl',
    ALERTS_URL: 'https://hooks.slack.com/services/TAAA/BAAA/aaaa',
    CHAT_URL: 'https://discord.com/api/webhooks/1/aaaa',
    OPTIONS: '--verbose --token abc',
    DESIGN: 'figd_abc',
    SHOP: 'shpat_abc',
    BOT: '1234567:abcdefghijklmnopqrstuvwxyz-_0123',
    AWS: 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKE1',
  };
  const plain = {
    LOG_LEVEL: 'debug',
    MAX_TOKENS: '4096',
    PINNED: 'yes',
    REGION: 'eu-west-1',
    DATA_DIR: '/var/data',
    MODE: 'true',
    SITE: 'https://x.example/a?page=2',
    NOTE: 'a: b',
    ENDPOINT: 'https://api.example.com/v1/mcp#top',
    FLAGS: '--verbose --no-color',
    KEEPALIVE: '30',
    MODULE: '/usr/lib/node_modules/a-long-name/dist/server.js',
  };
  const command = { command: 'node', args: ['server.js'] };
  const [found] = readServers(JSON.stringify({ servers: { x: { ...command, env: { ...secret, ...plain } } } }));
  const { env, secrets } = (found as unknown as { server: { env: object; secrets: { name: string }[] } }).server;
  t.deepEqual(env, plain);
  t.deepEqual(secrets.map(({ name }) => name).sort(), Object.keys(secret).sort());
  for (const args of [
    ['--pass', 'geheim'],
    ['--passphrase=geheim'],
    ['--dsn', 'postgres://x'],
    ['--password', 'a:b'],
    ['-e', 'DB_PASS=geheim'],
    ['--env=DB_PASSWORD=geheim'],
    ['--config', '{"apiKey":"abc"}'],
    ['--db.password', 'geheim'],
    ['Password=geheim;Server=db'],
    ['mcp-remote', 'https://mcp.example.com/api/s/0123456789abcdefghijkl/mcp'],
    ['mcp-remote', 'https://x.example/?key=abc'],
    ['--password', '-x'],
    ['--header', 'bearer abc'],
    ['-c', 'npx server --token abc'],
    ['-u', 'admin:geheim'],
    ['--token', '123456'],
    ['--jwt', 'abc'],
    ['@twilio-alpha/mcp', `AC${'0'.repeat(32)}/SK${'1'.repeat(32)}:geheim`],
    ['airtable-mcp-server', `patAbCdEfGhIjKlMn.${'0'.repeat(64)}`],
    ['--config', '"{\\"braveApiKey\\":\\"abc\\"}"'],
    ['--config', '{"notionKey":"abc"}'],
    ['-H', 'X-API-Key', 'abc'],
  ]) {
    const [skipped] = readServers(JSON.stringify({ servers: { x: { command: 'node', args } } }));
    t.regex(JSON.stringify(skipped), /contains a secret/, args.join(' '));
  }
  for (const args of [
    ['-y', '@scope/server', '/home/ann/notes'],
    ['mcp-remote', 'https://mcp.example.com/mcp', '--verbose'],
    ['--no-auth', '--port', '3000'],
    ['--user', 'ann'],
    ['-c', 'server --verbose | tee log'],
    ['mcp-remote', 'https://mcp.example.com/observability-mcp-server-v2/sse'],
    ['--no-password', '-h', 'localhost'],
    ['--bypass', '-v'],
    ['docker', 'run', '-u', '1000:1000', '--user', 'node:node'],
    ['file:///home/ann/a-long-project-name-2024/notes'],
  ]) {
    const [command = 'npx', ...rest] = args[0] === 'docker' ? args : ['npx', ...args];
    const [read] = readServers(JSON.stringify({ servers: { x: { command, args: rest } } }));
    t.is(read?.problem, null, args.join(' '));
  }
});

test('a server is skipped if the gateway would not give it what the file gives it', (t) => {
  const url = 'https://x.example/mcp';
  const skipped = [
    [{ url, type: 'ws' }, /type is neither/],
    [{ url, type: 'stdio' }, /type is neither/],
    [{ url, headersHelper: 'helper' }, /headersHelper is not read/],
    [{ command: 'node', envFile: '.env' }, /envFile is not read/],
  ] as const;
  for (const [server, why] of skipped) {
    const [read] = readServers(JSON.stringify({ servers: { x: server } }));
    t.regex(read?.problem ?? '', why);
  }
  for (const type of ['http', 'streamable-http', 'streamableHttp', 'sse', 'SSE', undefined]) {
    const [read] = readServers(JSON.stringify({ servers: { x: { url, type } } }));
    t.like(read?.server, { transport: type?.toLowerCase() === 'sse' ? 'sse' : 'streamable-http' }, type);
  }
});
