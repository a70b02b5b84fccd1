/** `POST /api/targets/{id}/check`: an administrator tries a target, whatever the target does. */
import type { ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import { person, startGateway } from '../support/gateway.ts';
import { type Received, startRecording } from '../support/upstreams/recording.ts';

interface Check {
  readonly fault: { readonly kind: string; readonly message: string; readonly stderr: string | null } | null;
  readonly tools: { readonly name: string; readonly description: string | null; readonly read_only: boolean }[];
  readonly more: boolean;
}

async function setUp(t: ExecutionContext, target: object, environment: Record<string, string> = {}) {
  const gateway = await startGateway(t, null, { STDIO_ALLOWED: process.execPath, ...environment });
  const { token } = await person(gateway, 'admin@example.com');
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', { token, body: { name: 't', ...target } });
  const path = `/api/targets/${body.id}`;
  return {
    ...{ gateway, token, path },
    check: async (expected = 200) => (await gateway.rest<Check>(expected, 'POST', `${path}/check`, { token })).body,
  };
}

/** A server whose answer to `tools/list` is `list`. */
async function server(t: ExecutionContext, list: (received: Received) => object) {
  const upstream = await startRecording((received, res) => {
    const { message, httpMethod } = received;
    if (httpMethod !== 'POST' || message?.id === undefined) return void res.writeHead(202).end();
    const hello = { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 's', version: '1' } };
    const result = message.method === 'initialize' ? hello : list(received);
    const headers = { 'content-type': 'application/json', 'mcp-session-id': 'a-session' };
    res.writeHead(200, headers).end(JSON.stringify({ jsonrpc: '2.0', id: message.id, result }));
  });
  t.teardown(() => upstream.stop());
  return upstream;
}

test.serial('a check lists the tools, calls none, and ends its session', async (t) => {
  const upstream = await server(t, () => ({
    tools: [{ name: 'a', annotations: { readOnlyHint: true } }, { name: 'b' }, 'no tool'],
  }));
  const { check, gateway, token } = await setUp(t, { url: upstream.url });
  const { fault, tools } = await check();
  t.is(fault, null);
  t.deepEqual(
    tools.map(({ name, read_only }) => [name, read_only]),
    [
      ['a', true],
      ['b', false],
    ],
  );
  t.deepEqual(upstream.seen(), ['initialize', 'notifications/initialized', 'tools/list', 'DELETE']);
  t.deepEqual((await gateway.rest(200, 'GET', '/api/logs', { token })).body, [], 'it is no decision');
});

test.serial('a server without an end to its tools, or with long texts, gets a short answer', async (t) => {
  const tool = { name: 'n', description: 'x'.repeat(5_000) };
  const upstream = await server(t, () => ({ tools: [tool, { name: 'y'.repeat(5_000) }], nextCursor: 'again' }));
  const { check } = await setUp(t, { url: upstream.url });
  const { tools, more } = await check();
  t.true(more);
  t.is(tools.length, 50);
  t.true(tools.every(({ description }) => description?.length === 1_000));
});

test.serial('a long list of tools is cut, and the answer says so', async (t) => {
  const upstream = await server(t, () => ({ tools: Array.from({ length: 60_000 }, () => ({ name: 'n' })) }));
  const { check } = await setUp(t, { url: upstream.url });
  const { fault, tools, more } = await check();
  t.is(fault, null);
  t.true(more);
  t.is(tools.length, 1_000);
});

test.serial('what a process prints is shown without its credentials', async (t) => {
  const { check, gateway, token, path } = await setUp(t, {
    ...{ transport: 'stdio', command: process.execPath },
    args: ['-e', "console.error('the key is ' + process.env.API_KEY); process.exit(1)"],
  });
  const body = { type: 'env', name: 'API_KEY', value: 'a-secret-of-mine' };
  await gateway.rest(201, 'PUT', `${path}/credentials/default`, { token, body });
  const { fault } = await check();
  t.like(fault, { kind: 'crashed', stderr: 'the key is [redacted]\n' });
});

test.serial('what a process says in an error is shown without its credentials', async (t) => {
  const answer = `{ jsonrpc: '2.0', id: JSON.parse(line).id, error: { code: -32000, message: 'wrong key ' + process.env.API_KEY } }`;
  const { check, gateway, token, path } = await setUp(t, {
    ...{ transport: 'stdio', command: process.execPath },
    args: [
      '-e',
      `require('readline').createInterface(process.stdin).on('line', (line) => console.log(JSON.stringify(${answer})))`,
    ],
  });
  const body = { type: 'env', name: 'API_KEY', value: 'a-secret-of-mine' };
  await gateway.rest(201, 'PUT', `${path}/credentials/default`, { token, body });
  const { fault } = await check();
  t.regex(fault?.message ?? '', /wrong key \[redacted\] \(code -32000\)$/);
});

test.serial('a check says why initialize or tools/list got no result', async (t) => {
  const SECRET = 'a-secret-of-mine';
  type Reply = (res: ServerResponse, id: unknown) => unknown;
  const json = { 'content-type': 'application/json', 'mcp-session-id': 'a-session' };
  const body =
    (more: object, status = 200): Reply =>
    (res, id) =>
      res.writeHead(status, json).end(JSON.stringify({ jsonrpc: '2.0', id, ...more }));
  const error = { code: -32001, message: `the key ${SECRET} is unknown` };
  const replies: readonly (readonly [kind: string, message: RegExp, Reply])[] = [
    ['http', /^refused `METHOD` with a JSON-RPC error: the key \[redacted\] is unknown \(code -32001\)$/, body({ error })],
    ['http', /^refused `METHOD` with a JSON-RPC error: the key \[redacted\]/, body({ error }, 400)],
    ['http', /^refused `METHOD` with a JSON-RPC error: x \(code null\)$/, body({ error: { code: SECRET, message: 'x' } })],
    ['http', /^refuses the gateway's credential \(HTTP 401\)/, (res) => res.writeHead(401).end()],
    [
      'broken_off',
      /closed the connection/,
      (res) => res.writeHead(200, { ...json, 'content-length': 9 }).write('{', () => res.destroy()),
    ],
    ['timeout', /did not (open a session within|answer in time)/, (res) => res.writeHead(200, json).flushHeaders()],
    ['too_large', /too large: at most 65536 bytes/, body({ result: { tools: [], instructions: 'x'.repeat(70_000) } })],
    [
      'malformed',
      /no JSON-RPC response to the request/,
      (res) => res.writeHead(200, { 'content-type': 'text/event-stream' }).end(':\n\n'),
    ],
    ['malformed', /METHOD was answered without a (list|protocol version)/, body({ result: {} })],
  ];
  const hello = { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 's', version: '1' } };
  let [reply, failing] = [body({}), ''];
  const upstream = await startRecording(({ message, httpMethod }, res) => {
    if (httpMethod !== 'POST' || message?.id === undefined) return void res.writeHead(202).end();
    (message.method === failing ? reply : body({ result: hello }))(res, message.id);
  });
  t.teardown(() => upstream.stop());
  const limits = { UPSTREAM_ANSWER_BYTES: '65536', UPSTREAM_TIMEOUT_MS: '1000' };
  const { check, gateway, token, path } = await setUp(t, { url: upstream.url }, limits);
  const credential = { type: 'bearer', value: SECRET };
  await gateway.rest(201, 'PUT', `${path}/credentials/default`, { token, body: credential });
  for (const method of ['initialize', 'tools/list'])
    for (const [kind, message, next] of replies) {
      [reply, failing] = [next, method];
      const { fault } = await check();
      t.is(fault?.kind, kind, `${method} ${message}: ${fault?.message}`);
      t.regex(fault?.message ?? '', new RegExp(message.source.replace('METHOD', method)));
    }
});

test.serial('a disabled target is not tried, and checks are limited', async (t) => {
  const upstream = await server(t, () => ({ tools: [] }));
  const { check, gateway, token, path } = await setUp(t, { url: upstream.url }, { CHANGE_RATE_LIMIT: '2' });
  await gateway.rest(200, 'PUT', path, { token, body: { enabled: false } });
  await check(400);
  t.deepEqual(upstream.seen(), []);
  await gateway.rest(200, 'PUT', path, { token, body: { enabled: true } });
  await check();
  await check(429);
});
