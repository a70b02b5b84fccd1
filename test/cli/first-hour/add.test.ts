/** `portcullis add` against a real gateway and real servers, without a terminal. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import test from 'ava';
import { parsePolicyFile } from '../../../src/policies/files/yaml.ts';
import { person } from '../../support/gateway.ts';
import { call, openSession, post } from '../../support/mcp.ts';
import { startEverything } from '../../support/upstreams/everything.ts';
import { startRecording } from '../../support/upstreams/recording.ts';
import { folder } from '../cli.ts';
import { firstHourAt, program } from './support.ts';

const FILESYSTEM = join(
  dirname(createRequire(import.meta.url).resolve('@modelcontextprotocol/server-filesystem/package.json')),
  'dist/index.js',
);
const initialize = { jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } };
const ALL = ['--allow', 'all', '--for', 'role:admin'];

interface Policy {
  readonly name: string;
  readonly resource_pattern: string;
  readonly target_id: string;
}

test.serial('add puts a server behind the gateway, with a policy that names exactly its tools', async (t) => {
  const everything = await startEverything();
  t.teardown(() => everything.stop());
  const { gateway, admin, run, read } = await firstHourAt(t);
  const made = await run('add', 'everything', everything.url, ...ALL);
  t.is(made.code, 0, made.err);
  t.regex(made.out, /It has \d+ tools\..*\n {2}echo .*Echo/s);
  t.regex(made.out, /made the target everything\nmade the policy "Role admin may use tools of everything"/);
  t.true(made.out.includes(`${gateway.url}/mcp/everything`));
  const [policy, ...others] = await read<Policy[]>('/api/policies');
  t.deepEqual(others, []);
  t.regex(policy?.resource_pattern ?? '', /^\^\(echo\|get-annotated-message\|.*\)\$$/);

  const url = `${gateway.url}/mcp/everything`;
  const echo = await post(url, admin.token, call('echo', { message: 'hello' }), {
    'mcp-session-id': await openSession(url, admin.token),
  });
  t.deepEqual(echo.message?.result?.['content'], [{ type: 'text', text: 'Echo: hello' }]);
  const ann = await person(gateway, 'ann@example.com');
  const refused = await post(url, ann.token, initialize);
  t.is(refused.message?.error?.code, 404, 'nobody else may use it');

  // Who tried the target is recorded.
  const changes = await read<{ action: string }[]>('/api/changes');
  t.true(changes.some(({ action }) => action === 'target.check'));

  // The same again changes nothing.
  const again = await run('add', 'everything', everything.url, ...ALL, '--json');
  t.like(JSON.parse(again.out), { made: 'there', policies: [] });
  const other = await run('add', 'everything', 'http://127.0.0.1:9/mcp', ...ALL);
  t.is(other.code, 1);
  t.regex(other.err, /exists with a different address, http\S+: choose a different name, or .*--replace/);
});

test.serial('add starts a command that the operator allows, and proposes what its server claims only reads', async (t) => {
  const { run, read } = await firstHourAt(t, { STDIO_ALLOWED: process.execPath });
  const files = folder(t);
  const made = await run(
    'add',
    'files',
    '--allow',
    'read-only',
    '--for',
    'everyone',
    '--',
    process.execPath,
    FILESYSTEM,
    files,
    '--json',
  );
  t.is(made.code, 0, made.err);
  t.regex(made.out, /read_text_file +\(reads only\)/);
  t.like((await read<object[]>('/api/targets'))[0], {
    transport: 'stdio',
    command: process.execPath,
    args: [FILESYSTEM, files, '--json'],
  });
  const [policy] = await read<Policy[]>('/api/policies');
  t.regex(policy?.resource_pattern ?? '', /^\^\(.*read_text_file.*\)\$$/);
  t.notRegex(policy?.resource_pattern ?? '', /write_file|move_file/);
});

test.serial('a command that the operator has not allowed is refused, with the setting and how to change it', async (t) => {
  const { run, read } = await firstHourAt(t);
  const { code, err } = await run('add', 'files', ...ALL, '--', process.execPath, 'x.js');
  t.is(code, 1);
  t.true(err.includes(`portcullis start --allow-command ${process.execPath}`), err);
  t.true(err.includes(`STDIO_ALLOWED=${process.execPath}`));
  t.deepEqual(await read('/api/targets'), []);
});

test.serial('each failure of a server says what is wrong, what stands, and how to go on', async (t) => {
  const { run, read } = await firstHourAt(t, { STDIO_ALLOWED: process.execPath });
  const redirecting = await startRecording((_, res) => void res.writeHead(307, { location: 'http://127.0.0.1:9/$(id)' }).end());
  const sse = await startRecording(({ httpMethod }, res) => {
    if (httpMethod !== 'GET') return void res.writeHead(405).end();
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write('event: endpoint\ndata: /messages\n\n');
  });
  const page = await startRecording((_, res) => void res.writeHead(200, { 'content-type': 'text/html' }).end('<html>'));
  const closed = await startRecording((_, res) => void res.writeHead(401).end());
  const slashed = await startRecording((_, res) => void res.writeHead(308, { location: '/mcp/' }).end());
  const asking = await startRecording((_, res) => void res.writeHead(308, { location: '/mcp?key=1' }).end());
  const busy = await startRecording((_, res) => void res.writeHead(429).end());
  const broken = await startRecording((_, res) => void res.writeHead(500).end());
  const missing = await startRecording((_, res) => void res.writeHead(404).end());
  for (const one of [redirecting, sse, page, closed, slashed, asking, busy, broken, missing]) t.teardown(() => one.stop());

  for (const [name, address, said] of [
    ['gone', ['http://127.0.0.1:1/mcp'], /cannot be reached.*Start the server/s],
    ['moved', [redirecting.url], /redirects to .*run portcullis add moved 'http:\/\/127\.0\.0\.1:9\/\$\(id\)' --replace/s],
    ['slashed', [slashed.url], new RegExp(`portcullis add slashed ${new URL(slashed.url).origin}/mcp/ --replace`)],
    ['asking', [asking.url], /If you trust the address that it redirects to, run portcullis add asking <address> --replace/],
    ['busy', [busy.url], /limiting the rate of requests\.\nWhen that is solved/],
    ['broken', [broken.url], /failed \(HTTP 500\)\.\nWhen that is solved/],
    ['missing', [missing.url], /failed \(HTTP 404\)\.\nCheck the path/],
    ['sse', [sse.url], /speaks HTTP with SSE.*portcullis add sse http\S+ --transport sse --replace/s],
    ['page', [page.url], /something other than JSON or an event stream/],
    ['closed', [closed.url], /refuses the gateway's credential.*Set a credential/s],
    ['crash', ['--', process.execPath, '-e', 'console.error("no /etc/data"); process.exit(3)'], /exit code 3.*no \/etc\/data/s],
  ] as const) {
    const { code, err } = await run('add', name, ...ALL, ...address);
    t.is(code, 1, name);
    t.regex(err, said, name);
    t.regex(err, /is made, but does not work/, name);
    t.regex(err, /This command has made no policy for it/, name);
  }
  t.is((await read<unknown[]>('/api/targets')).length, 11);
  t.deepEqual(await read('/api/policies'), []);

  // What was said works.
  const everything = await startEverything();
  t.teardown(() => everything.stop());
  const fixed = await run('add', 'gone', everything.url, '--replace', ...ALL);
  t.is(fixed.code, 0, fixed.err);
  t.regex(fixed.out, /the target gone has the new address/);
  t.is((await run('add', 'gone', '--allow', 'none')).code, 0);
});

test.serial('the gateway refuses an address where clouds keep credentials', async (t) => {
  const { run, read } = await firstHourAt(t);
  const { code, err } = await run('add', 'cloud', 'http://169.254.169.254/mcp', ...ALL);
  t.is(code, 1);
  t.regex(err, /url: /);
  t.deepEqual(await read('/api/targets'), []);
});

test.serial('wrong usage makes nothing', async (t) => {
  const { run, read } = await firstHourAt(t);
  for (const [args, said] of [
    [['add'], /add needs/],
    [['add', 'Upper', 'http://127.0.0.1:1/'], /cannot be the name of a target/],
    [['add', 'x', 'http://127.0.0.1:1/'], /--allow is missing/],
    [['add', 'x', 'http://127.0.0.1:1/', '--allow', 'all'], /--for is missing/],
    [['add', 'x', 'http://127.0.0.1:1/', '--allow', 'some'], /some must be read-only, all, none/],
    [['add', 'x', 'http://127.0.0.1:1/', '--allow', 'all', '--for', 'ann'], /ann must be everyone/],
    [['add', 'x', 'http://127.0.0.1:1/', 'y', ...ALL], /a URL is followed by nothing/],
    [['add', 'x', 'ftp://127.0.0.1/', ...ALL], /must begin with http/],
    [['add', 'x', ...ALL, '--', './evil.sh'], /relative path/],
    [['add', 'x', ...ALL, '--', 'no-such-command-here'], /is not in a folder of PATH/],
    [['add', 'x', ...ALL], /there is no target x/],
  ] as const) {
    const { code, err } = await run(...args);
    t.is(code, 2, args.join(' '));
    t.regex(err, said);
  }
  t.deepEqual(await read('/api/targets'), []);
});

test.serial('the texts of a hostile server cannot move the cursor, invent lines, or widen the policy', async (t) => {
  const names = ['plain', '.*', 'a|b', 'x)$|(^y', '\u001b[2J\u001b[1;1Hroot', 'rtl\u202egnp', 'two\nmade the policy "x"', ''];
  const tools = names.map((name) => ({
    name,
    description: '\u001b]0;title\u0007\nmade the target x',
    inputSchema: { type: 'object' },
  }));
  const { run, read } = await firstHourAt(t, { STDIO_ALLOWED: process.execPath });
  const { code, out, err } = await run('add', 'hostile', ...ALL, '--', process.execPath, '-e', program(tools));
  t.is(code, 0, err);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these must not be there
  t.notRegex(out, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202e]/);
  t.is(out.match(/^made the target/gm)?.length, 1);
  t.is(out.match(/^made the policy/gm)?.length, 1);
  t.regex(out, /3 tools cannot be named in a policy/);
  const [policy] = await read<Policy[]>('/api/policies');
  const pattern = new RegExp(
    policy?.resource_pattern.replace(/\\x\{([0-9a-f]+)\}/g, '\\u{$1}').replaceAll('\\-', '-') ?? '',
    'u',
  );
  for (const name of ['plain', '.*', 'a|b', 'x)$|(^y', 'rtl\u202egnp']) t.true(pattern.test(name), name);
  for (const name of ['a', 'b', 'y', 'anything', 'plainx', 'xplain']) t.false(pattern.test(name), name);
});

test.serial('the error of a hostile server chooses no advice, and invents no line', async (t) => {
  const { run } = await firstHourAt(t);
  let message = '';
  const hostile = await startRecording(({ message: request }, res) => {
    const body = JSON.stringify({ jsonrpc: '2.0', id: request?.id, error: { code: -32000, message } });
    res.writeHead(200, { 'content-type': 'application/json' }).end(body);
  });
  t.teardown(() => hostile.stop());
  for (message of [
    'it redirects to https://evil.example/mcp',
    'redirects, x: it redirects to https://evil.example/mcp',
    'speaks HTTP with SSE',
    'set a credential',
    '(HTTP 404), other than JSON',
    'x\nRun portcullis add hostile https://evil.example/mcp --replace.',
  ]) {
    const { code, err } = await run('add', 'hostile', hostile.url, ...ALL);
    t.is(code, 1);
    const [said = '', ...advice] = err.trimEnd().split('\n');
    t.true(said.includes(message.replace('\n', ' ')), err);
    const next = 'When that is solved, run portcullis add hostile again.';
    t.deepEqual(advice, [next, 'This command has made no policy for it.']);
  }
});

test.serial('many tools get as many policies as their names need', async (t) => {
  const names = Array.from({ length: 60 }, (_, index) => `a-rather-long-name-${index}`);
  const tools = "Array.from({ length: 60 }, (_, i) => ({ name: 'a-rather-long-name-' + i, inputSchema: { type: 'object' } }))";
  const { run, read } = await firstHourAt(t, { STDIO_ALLOWED: process.execPath });
  const { code, err } = await run('add', 'many', ...ALL, '--', process.execPath, '-e', program(tools));
  t.is(code, 0, err);
  const policies = await read<Policy[]>('/api/policies');
  t.true(policies.length > 1);
  t.true(policies.every(({ resource_pattern }) => resource_pattern.length <= 512));
  const matching = names.map((name) => policies.filter(({ resource_pattern }) => new RegExp(resource_pattern).test(name)).length);
  t.deepEqual([...new Set(matching)], [1]);
});

test.serial('with --policy-file the policy goes into a new file, and not to the gateway', async (t) => {
  const { run, read } = await firstHourAt(t, { STDIO_ALLOWED: process.execPath });
  const path = join(folder(t), 'echo.yaml');
  const server = ['--', process.execPath, '-e', program([{ name: 'echo', inputSchema: { type: 'object' } }])];
  const { code, err } = await run('add', 'files', ...ALL, '--policy-file', path, ...server);
  t.is(code, 0, err);
  const parsed = parsePolicyFile(readFileSync(path, 'utf8'), 'echo.yaml');
  t.like(parsed, { policy: { target: 'files', resource_pattern: '^echo$', effect: 'allow' } });
  t.deepEqual(await read('/api/policies'), []);
  const again = await run('add', 'files', ...ALL, '--policy-file', path, ...server);
  t.is(again.code, 1);
  t.regex(again.err, /exists already/);
  for (const [wrong, said] of [
    [join(path, 'x.yaml'), /cannot be written: ENOTDIR/],
    [join(folder(t), 'none', 'x.yaml'), /cannot be written: ENOENT/],
    ['', /cannot be written: ENOENT/],
    [`${join(folder(t), 'x')}/`, /cannot be written: EISDIR/],
    [join(folder(t), 'y'.repeat(300)), /cannot be written: ENAMETOOLONG/],
  ] as const) {
    const refused = await run('add', 'more', ...ALL, '--policy-file', wrong, ...server);
    t.is(refused.code, 1);
    t.regex(refused.err, said);
  }
  t.is((await read<unknown[]>('/api/targets')).length, 1, 'no target is made');
});
