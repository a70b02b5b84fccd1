/** When a target fails, the caller learns the kind, the limit and its setting, and the administrator also the details. */
import type { ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import type { McpLimits } from '../../src/mcp/limits/limits.ts';
import { createHealth } from '../../src/mcp/upstream/health.ts';
import type { RoutedTarget, StdioTarget } from '../../src/targets/target.ts';
import { answerJson, byMethod, type Script, startRecording } from '../support/upstreams/recording.ts';
import { noCredentials, reachedWith, routed, startGateway } from './gateway.ts';
import { call, inSession, open, send } from './raw.ts';

const initialize = call('initialize', {
  protocolVersion: '2025-11-25',
  capabilities: {},
  clientInfo: { name: 'raw', version: '1' },
});

async function setUp(t: ExecutionContext, target: RoutedTarget, limits: Partial<McpLimits> = {}) {
  const health = createHealth(Date.now);
  const stdio = { allowed: [process.execPath], maxProcesses: 4, idleMs: 60_000, lifetimeMs: 600_000 };
  const gateway = await startGateway({ targets: [target], rights: { alice: () => true }, limits, deps: { health, stdio } });
  t.teardown(gateway.stop);
  const told = (text: string): string =>
    (JSON.parse(text.replace(/^(?:event: message\n)?data: /, '')) as { error: { message: string } }).error.message;
  return {
    gateway,
    opening: async () => told((await send(gateway, { body: initialize })).text),
    calling: async (session: string, name = 'x') =>
      told(
        (await send(gateway, inSession(session, call('tools/call', { name })))).text
          .trim()
          .split('\n')
          .filter((line) => line.startsWith('data: ') || line.startsWith('{'))
          .at(-1) ?? '',
      ),
    fault: () => health.report(target).last_fault,
  };
}

async function upstreamOf(t: ExecutionContext, script: Script): Promise<string> {
  const upstream = await startRecording(script);
  t.teardown(upstream.stop);
  return upstream.url;
}

const onCall = (answer: (res: ServerResponse) => void): Script => {
  const well = byMethod({});
  return (received, res) => (received.message?.method === 'tools/call' ? answer(res) : well(received, res));
};

const program = (script: string, over: Partial<StdioTarget> = {}): RoutedTarget =>
  ({
    ...routed('t', 'http://unused.example/'),
    ...{ transport: 'stdio', command: process.execPath, args: ['-e', script], cwd: null, env: {}, isolation: 'per_user' },
    ...over,
  }) as RoutedTarget;

/** Answers `initialize`; then `calls` decides, with `id`, `say` and `process` at hand. */
const server = (calls: string): string => `
  const say = (message) => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', ...message }) + '\\n');
  require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
    const { id, method, params } = JSON.parse(line);
    if (method === 'initialize') say({ id, result: { protocolVersion: '2025-11-25', capabilities: {}, serverInfo: { name: 's', version: '1' } } });
    else if (method === 'tools/call') { ${calls} }
  });`;

test.serial('the caller learns that a target redirects, and the administrator also where to', async (t) => {
  const url = await upstreamOf(t, (_, res) => void res.writeHead(307, { location: 'http://10.9.8.7/mcp/' }).end());
  const { opening, fault } = await setUp(t, routed('t', url));
  const text = await opening();
  t.regex(text, /`t` redirects, which the gateway does not follow/);
  t.notRegex(text, /10\.9\.8\.7/);
  t.like(fault(), { kind: 'http' });
  t.regex(fault()?.message ?? '', /redirects to http:\/\/10\.9\.8\.7\/mcp\//);
});

for (const scheme of ['', 'Bearer ', 'Basic ', 'token ']) {
  test.serial(`parts of a redirection that may be secret are not shown to the administrator: ${scheme}`, async (t) => {
    const url = await upstreamOf(t, ({ headers }, res) => {
      const token = String(headers['x-upstream-key']).slice(scheme.length);
      res.writeHead(307, { location: `https://me:${token}@b.example/${token}/mcp?key=${token}#x` }).end();
    });
    const headers: [string, string][] = [['x-upstream-key', `${scheme}gateway-secret`]];
    const { opening, fault } = await setUp(t, routed('t', url, { accessOf: reachedWith({ ...noCredentials, headers }) }));
    await opening();
    t.regex(fault()?.message ?? '', /redirects to https:\/\/\[redacted\]@b\.example\/\[redacted\]\/mcp\?\[redacted\]$/);
  });
}

for (const [what, text] of [
  ['nothing', ''],
  ['a page', '<html></html>'],
  ['an answer to a different request', '{"jsonrpc":"2.0","id":99,"result":{}}'],
] as const) {
  test.serial(`a target that answers with ${what} is named, and the administrator learns why`, async (t) => {
    const url = await upstreamOf(
      t,
      onCall((res) => void res.writeHead(200, { 'content-type': 'application/json' }).end(text)),
    );
    const { gateway, calling, fault } = await setUp(t, routed('t', url));
    const session = await open(gateway);
    t.is(fault(), null);
    t.is(await calling(session), 'The target `t` sent no valid answer');
    t.like(fault(), { kind: 'malformed' });
    t.regex(fault()?.message ?? '', /sent no valid answer: \S/);
  });
}

test.serial('answers with too long headers do not suspend the target for everybody', async (t) => {
  const url = await upstreamOf(
    t,
    onCall((res) => void res.writeHead(200, { 'x-long': 'x'.repeat(20_000) }).end()),
  );
  const { gateway, calling, fault } = await setUp(t, routed('t', url));
  const session = await open(gateway);
  for (let i = 0; i < 10; i++) t.is(await calling(session), 'The target `t` sent no valid answer');
  t.regex(fault()?.message ?? '', /Headers Overflow/);
});

test.serial('a server of HTTP+SSE behind the transport streamable-http is recognised', async (t) => {
  const url = await upstreamOf(t, ({ httpMethod }, res) => {
    if (httpMethod !== 'GET') return void res.writeHead(405).end();
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write('event: endpoint\ndata: /messages\n\n');
  });
  const { opening, fault } = await setUp(t, routed('t', url));
  t.regex(await opening(), /speaks HTTP with SSE.*set its transport to `sse`/);
  t.regex(fault()?.message ?? '', /speaks HTTP with SSE/);
});

test.serial('a server without that path is not mistaken for one of HTTP+SSE', async (t) => {
  const url = await upstreamOf(t, (_, res) => void res.writeHead(405).end());
  const { opening } = await setUp(t, routed('t', url));
  t.regex(await opening(), /failed \(HTTP 405\)/);
});

test.serial('a denied address differs from an unreachable one, and is not shown to callers', async (t) => {
  const { opening, fault } = await setUp(t, routed('t', 'http://169.254.169.254/mcp'));
  const text = await opening();
  t.regex(text, /has an address that the gateway does not connect to/);
  t.notRegex(text, /169\.254/);
  t.like(fault(), { kind: 'denied_address' });
  t.regex(fault()?.message ?? '', /169\.254\.169\.254 .*UPSTREAM_ALLOWED_ADDRESSES/);
});

test.serial('only the administrator sees the address of a port without a listener', async (t) => {
  const { opening, fault } = await setUp(t, routed('t', 'http://127.0.0.1:1/mcp'));
  t.is(await opening(), 'The target `t` cannot be reached');
  t.regex(fault()?.message ?? '', /ECONNREFUSED 127\.0\.0\.1:1/);
});

test.serial('the caller learns that a process has crashed, and only the administrator sees its output', async (t) => {
  const { gateway, calling, fault } = await setUp(
    t,
    program(server(`process.stderr.write('cannot read /etc/secret\\n'); process.exit(3);`)),
  );
  const session = await open(gateway);
  t.is(await calling(session), 'The target `t` ended before it answered');
  t.like(fault(), { kind: 'crashed', stderr: 'cannot read /etc/secret\n' });
  t.regex(fault()?.message ?? '', /exit code 3/);
});

test.serial('the caller learns that a process crashes at once', async (t) => {
  const { opening, fault } = await setUp(t, program(`process.stderr.write('no config'); process.exit(2);`));
  t.is(await opening(), 'The target `t` ended before it answered');
  t.like(fault(), { kind: 'crashed', stderr: 'no config\n' });
});

const tooLarge = /`t` sent an answer that is too large: at most 70000 bytes are read \(UPSTREAM_ANSWER_BYTES\)/;
const LARGE = 'x'.repeat(90_000);

test.serial('the error for a too large answer names the limit and its setting, over every transport', async (t) => {
  const limits = { answerBytes: 70_000 };
  const text = JSON.stringify({ jsonrpc: '2.0', id: 1, result: { content: [{ type: 'text', text: LARGE }] } });
  for (const [what, answer] of [
    ['JSON', (res: ServerResponse) => void res.writeHead(200, { 'content-type': 'application/json' }).end(text)],
    [
      'one event',
      (res: ServerResponse) => void res.writeHead(200, { 'content-type': 'text/event-stream' }).end(`data: ${text}\n\n`),
    ],
  ] as const) {
    const { gateway, calling, fault } = await setUp(t, routed('t', await upstreamOf(t, onCall(answer))), limits);
    t.regex(await calling(await open(gateway)), tooLarge, what);
    t.like(fault(), { kind: 'too_large' }, what);
  }
  const local = await setUp(
    t,
    program(
      server(`say({ id, result: { content: [{ type: 'text', text: 'x'.repeat(params.name === 'large' ? 90000 : 1) }] } });`),
    ),
    limits,
  );
  const session = await open(local.gateway);
  t.regex(await local.calling(session, 'large'), tooLarge);
  const next = await send(local.gateway, inSession(session, call('tools/call', { name: 'small' })));
  t.regex(next.text, /"text":"x"/, 'the process goes on');
});

test.serial('every transport has the same limit for silence, which a target may set and the error names', async (t) => {
  const silence = /`t` did not answer in time: it may be silent for 1 s \(`timeout_ms` of the target, or UPSTREAM_TIMEOUT_MS\)/;
  const begun = (res: ServerResponse) => void res.writeHead(200, { 'content-type': 'text/event-stream' }).write(':\n\n');
  const urls = await Promise.all([() => undefined, begun].map((answer) => upstreamOf(t, onCall(answer))));
  const targets = [...urls.map((url) => routed('t', url)), program(server('')), program(server(''), { isolation: 'shared' })];
  for (const target of targets) {
    const { gateway, calling, fault } = await setUp(t, { ...target, timeout_ms: 1_000 });
    const session = await open(gateway);
    t.regex(await calling(session), silence);
    t.like(fault(), { kind: 'timeout' });
  }
});

test.serial('the limit for silence may be longer than the limit for opening a session', async (t) => {
  const slow = program(server(`setTimeout(() => say({ id, result: { content: [] } }), 6000);`));
  const { gateway } = await setUp(t, slow, { headersMs: 5_000 });
  const session = await open(gateway);
  const reply = await send(gateway, inSession(session, call('tools/call', { name: 'x' })));
  t.regex(reply.text, /"content":\[\]/);
});

test.serial('a connection that breaks off is reported neither as a timeout nor as a crash', async (t) => {
  const url = await upstreamOf(
    t,
    onCall((res) => void res.destroy()),
  );
  const { gateway, calling, fault } = await setUp(t, routed('t', url));
  t.is(await calling(await open(gateway)), 'The target `t` closed the connection before its answer was complete');
  t.like(fault(), { kind: 'broken_off' });
});

test.serial('successful answers are also recorded', async (t) => {
  const health = createHealth(Date.now);
  const url = await upstreamOf(t, (received, res) =>
    received.message?.method === 'tools/call'
      ? answerJson(res, { jsonrpc: '2.0', id: received.message.id, result: { content: [] } })
      : byMethod({})(received, res),
  );
  const target = routed('t', url);
  const gateway = await startGateway({ targets: [target], rights: { alice: () => true }, deps: { health } });
  t.teardown(gateway.stop);
  t.like(health.report(target), { status: 'unknown', last_fault: null });
  await open(gateway);
  t.like(health.report(target), { status: 'ok', last_fault: null, retry_at: null });
});

test.serial('the log has no member name of a malformed answer, because a target may repeat a secret there', async (t) => {
  const url = await upstreamOf(
    t,
    onCall((res) => {
      res.writeHead(200, { 'content-type': 'application/json' });
      res.end('{"jsonrpc":"2.0","id":1,"Bearer s3cret \\" more":1,"Bearer s3cret \\" more":2}');
    }),
  );
  const { gateway, calling } = await setUp(t, routed('t', url));
  await calling(await open(gateway));
  const logged = JSON.stringify(gateway.logged);
  t.regex(logged, /a second member/);
  t.notRegex(logged, /s3cret|more/);
});
