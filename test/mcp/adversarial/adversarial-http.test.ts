/** The HTTP layer: headers, bodies and paths that two readers would read differently, and the walls around the endpoint. */
import { once } from 'node:events';
import { connect } from 'node:net';
import test from 'ava';
import { AppError } from '../../../src/base/errors.ts';
import type { McpDeps } from '../../../src/mcp/endpoint.ts';
import { byMethod, type RecordingUpstream, startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, modern, open, send } from '../raw.ts';

interface Setup {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  /** How many requests the target got, decisions were recorded, and states were read, from the beginning. */
  traces(): readonly [number, number, number];
}

async function setUp(
  t: { teardown(stop: () => Promise<void>): void },
  { deps = {}, limits = {} }: { deps?: Partial<McpDeps>; limits?: object } = {},
): Promise<Setup> {
  const upstream = await startRecording(byMethod({ 'tools/call': { content: [] } }));
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights: { alice: () => true }, deps, limits });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return {
    gateway,
    upstream,
    traces: () => [upstream.received.length, gateway.decisions.length, gateway.admissions],
  };
}

const OK = call('tools/call', { name: 'ok' });

test.serial('a header that may appear only once is refused when it appears twice', async (t) => {
  const { gateway, traces } = await setUp(t);
  const session = await open(gateway);
  const before = traces();
  for (const headers of [
    ['authorization', 'Bearer bob'],
    ['Authorization', 'Bearer alice'],
    ['content-type', 'text/plain'],
    ['host', 'evil.test'],
    ['mcp-session-id', session, 'mcp-session-id', session],
    ['mcp-name', 'ok', 'Mcp-Name', 'secret'],
    ['mcp-method', 'a', 'MCP-METHOD', 'b'],
    ['origin', 'http://a', 'origin', 'http://b'],
  ]) {
    const reply = await send(gateway, { headers, body: OK });
    t.is(reply.status, 400, headers.join());
    t.is(reply.headers['content-type'], 'application/problem+json');
  }
  t.deepEqual(traces(), before);
});

test.serial('headers that hold bytes outside ASCII, are too many or too long, are refused', async (t) => {
  const { gateway, traces } = await setUp(t);
  t.is((await send(gateway, { headers: ['mcp-name', 'caf\u00e9'], body: OK })).status, 400);
  const params = (count: number) => Array.from({ length: count }, (_, i) => [`mcp-param-${i}`, 'x']).flat();
  for (const count of [65, 200]) t.is((await send(gateway, { headers: params(count), body: OK })).status, 400);
  t.is((await send(gateway, { headers: ['x-long', 'x'.repeat(20_000)], body: OK })).status, 431);
  const others = (count: number) => Array.from({ length: count }, (_, i) => [`x-${i}`, 'x']).flat();
  t.regex((await send(gateway, { headers: others(200), body: OK })).text, /Mcp-Session-Id header is missing/);
  // Node reads only the first ones. Without a Host among them, it answers 400.
  for (const count of [256, 1_000])
    t.true([400, 431].includes((await send(gateway, { headers: others(count), body: OK })).status), `${count}`);
  t.deepEqual(traces(), [0, 0, 0]);
});

test.serial('the gateway reads only JSON in UTF-8 without a content encoding', async (t) => {
  const { gateway, traces } = await setUp(t);
  const typed = (type: string) => ({ without: ['content-type'], headers: ['content-type', type], body: OK });
  const types = [
    'application/json; charset=utf-16',
    'application/json; charset=latin1',
    'text/plain',
    'multipart/form-data',
    'application/jsonx',
  ];
  for (const type of types) t.is((await send(gateway, typed(type))).status, 415, type);
  t.is((await send(gateway, { without: ['content-type'], body: OK })).status, 415);
  t.is((await send(gateway, { headers: ['content-encoding', 'gzip'], body: OK })).status, 415);
  t.deepEqual(traces(), [0, 0, 0]);
  // Past the header checks: the session is missing.
  for (const type of ['application/json; charset=utf-8', 'Application/JSON;charset="UTF-8"'])
    t.is((await send(gateway, typed(type))).code, -32000, type);
});

test.serial('a request whose Accept header does not allow the answer is refused', async (t) => {
  const { gateway, traces } = await setUp(t);
  const accept = async (value: string) =>
    (await send(gateway, { without: ['accept'], headers: ['accept', value], body: OK })).status;
  t.is(await accept('application/json'), 406);
  t.is(await accept('text/event-stream'), 406);
  t.is(await accept('text/html, application/json'), 406);
  t.is(await accept('application/json, text/event-stream;q=0.5'), 400);
  t.is(await accept('*/*'), 400);
  t.is((await send(gateway, { without: ['accept'], body: OK })).status, 400);
  t.deepEqual(traces(), [0, 0, 0]);
});

test.serial('a body above the limit is refused, with or without Content-Length, while other requests are served', async (t) => {
  const { gateway, traces } = await setUp(t, { limits: { bodyBytes: 1000 } });
  const session = await open(gateway);
  const large = JSON.stringify(call('tools/call', { name: 'ok', arguments: { x: 'x'.repeat(2000) } }));
  const before = traces();
  t.is((await send(gateway, inSession(session, large))).status, 413);
  const chunked = await send(
    gateway,
    inSession(session, large, { without: ['content-length'], headers: ['transfer-encoding', 'chunked'] }),
  );
  t.is(chunked.status, 413);
  // A body of unknown length is read only if its caller is admitted.
  t.deepEqual(traces(), [before[0], before[1], before[2] + 1]);
  t.is((await send(gateway, inSession(session, OK))).status, 200);
});

test.serial('a request without a valid token gets 401 with a challenge, whatever else is wrong with it', async (t) => {
  const { gateway, traces } = await setUp(t);
  const challenge = 'Bearer resource_metadata="https://gateway.test/.well-known/oauth-protected-resource/mcp/t", scope="mcp"';
  const none = await send(gateway, { user: null, body: '{' });
  t.deepEqual([none.status, none.headers['www-authenticate']], [401, challenge]);
  t.is(JSON.parse(none.text).code, 'unauthenticated');
  for (const authorization of ['Basic YTpi', 'Bearer wrong', 'Bearer alice, Bearer bob', 'alice', 'Bearer']) {
    const reply = await send(gateway, { user: null, headers: ['authorization', authorization], body: OK });
    t.deepEqual([reply.status, reply.headers['www-authenticate']], [401, `${challenge}, error="invalid_token"`], authorization);
  }
  const query = '/mcp/t?access_token=alice';
  const elsewhere = await send(gateway, { user: null, path: query, headers: ['cookie', 'access_token=alice'], body: OK });
  t.deepEqual([elsewhere.status, elsewhere.headers['www-authenticate']], [401, challenge]);
  t.notRegex(elsewhere.text, /access_token/);
  t.notRegex(JSON.stringify(gateway.logged), /access_token/);
  for (const method of ['GET', 'DELETE']) t.is((await send(gateway, { user: null, method })).status, 401);
  t.deepEqual(traces(), [0, 0, 0]);
  // The scheme is not case-sensitive: past authentication, the session is missing.
  t.is((await send(gateway, { user: null, headers: ['authorization', 'bearer alice'], body: OK })).code, -32000);
});

test.serial('a revoked token gets 401 although its signature is valid', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const before = [upstream.received.length, gateway.decisions.length];
  gateway.revoked.add('alice');
  const reply = await send(gateway, inSession(session, OK));
  t.is(reply.status, 401);
  t.regex(String(reply.headers['www-authenticate']), /error="invalid_token"/);
  t.deepEqual([upstream.received.length, gateway.decisions.length], before);
});

test.serial('the target gets nothing from the client except the message', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const decided = gateway.decisions.length;
  const headers = [
    'x-forwarded-user',
    'root',
    'x-user',
    'root',
    'forwarded',
    'for=1.2.3.4',
    'cookie',
    'a=b',
    'proxy-authorization',
    'x',
  ];
  const reply = await send(
    gateway,
    inSession(session, OK, { headers: [...headers, 'x-upstream-key', 'forged', 'traceparent', 'x', 'mcp-param-a', 'x'] }),
  );
  t.deepEqual([reply.status, reply.code], [200, undefined]);
  t.deepEqual(gateway.audited().slice(decided), ['tools/call tool ok allow']);
  const sent = upstream.received.at(-1)?.headers ?? {};
  const usual = [
    'accept',
    'connection',
    'content-length',
    'content-type',
    'host',
    'mcp-session-id',
    'user-agent',
    'x-upstream-key',
  ];
  t.deepEqual(Object.keys(sent).sort(), usual);
  t.is(sent['x-upstream-key'], 'gateway-secret');
  t.is(sent['mcp-session-id'], 'upstream-session-1');
  t.notRegex(JSON.stringify(upstream.received), /Bearer|alice/);
});

test.serial('2026-07-28: Mcp-Param headers are forwarded, and a session id is ignored', async (t) => {
  const { gateway, upstream } = await setUp(t);
  upstream.script = byMethod({ 'tools/call': { content: [] } }, { modern: true });
  const raw = modern('tools/call', { name: 'ok' }, { headers: { 'mcp-param-region': 'eu', 'mcp-session-id': 'anything' } });
  const reply = await send(gateway, raw);
  t.is(reply.status, 200);
  t.is(reply.headers['mcp-session-id'], undefined);
  const sent = upstream.received.at(-1)?.headers ?? {};
  t.is(sent['mcp-param-region'], 'eu');
  t.is(sent['mcp-name'], 'ok');
  t.is(sent['mcp-session-id'], undefined);
});

test.serial('a target has one form of path, and any other path is not found', async (t) => {
  const { gateway, traces } = await setUp(t);
  for (const path of ['/mcp/', '/mcp/t/', '/mcp/T', '/mcp/../admin', '/mcp/%74', '/mcp/t%00', '/mcp//t', '/mcp/t;x', '/mcp/1t']) {
    t.is((await send(gateway, { path, body: OK })).status, 404, path);
  }
  for (const path of ['/MCP/t', '/mcp%2ft', '/mcpx', '/', '/api/mcp/t', 'http://evil.test/mcp/t']) {
    t.is((await send(gateway, { path, body: OK })).status, 418, path);
  }
  for (const method of ['PUT', 'OPTIONS', 'PATCH', 'HEAD']) {
    const reply = await send(gateway, { method });
    t.deepEqual([reply.status, reply.headers.allow], [405, 'POST, GET, DELETE'], method);
  }
  for (const method of ['GET', 'DELETE']) {
    t.is((await send(gateway, { method, body: OK, headers: ['mcp-session-id', 'x'] })).status, 400);
  }
  t.deepEqual(traces(), [0, 0, 0]);
});

test.serial('Host and Origin are checked before anything else', async (t) => {
  const { gateway, traces } = await setUp(t, { deps: { checkOrigin: () => new AppError('origin_not_allowed', 'no') } });
  for (const user of [null, 'wrong', 'alice']) {
    const reply = await send(gateway, { user, body: OK });
    t.deepEqual([reply.status, JSON.parse(reply.text).code], [403, 'origin_not_allowed']);
  }
  t.deepEqual(traces(), [0, 0, 0]);
});

test.serial(
  'too many requests get 429 with the time to wait, counted by principal, or by address without a valid token',
  async (t) => {
    const keys: object[] = [];
    const rateLimit: McpDeps['rateLimit'] = (key) => {
      keys.push(key);
      return 7;
    };
    const { gateway, traces } = await setUp(t, { deps: { rateLimit } });
    for (const user of ['alice', 'wrong']) {
      const reply = await send(gateway, { user, body: OK });
      t.deepEqual([reply.status, reply.headers['retry-after']], [429, '7']);
    }
    const address = '127.0.0.1';
    t.deepEqual(keys, [
      { address, principal: 'alice' },
      { address, principal: null },
    ]);
    t.deepEqual(traces(), [0, 0, 0]);
  },
);

test.serial('every answer has a request id, and a problem document repeats it', async (t) => {
  const { gateway } = await setUp(t);
  const [problem, message] = [await send(gateway, { path: '/mcp/', body: OK }), await send(gateway, { body: OK })];
  t.regex(String(problem.headers['x-request-id']), /^[0-9a-f-]{36}$/);
  t.is(JSON.parse(problem.text).request_id, problem.headers['x-request-id']);
  t.truthy(message.headers['x-request-id']);
});

for (const [what, head] of [
  ['length and chunks', 'Content-Length: 5\r\nTransfer-Encoding: chunked'],
  ['two lengths', 'Content-Length: 5\r\nContent-Length: 6'],
  ['the same length twice', 'Content-Length: 5\r\nContent-Length: 5'],
  ['a signed length', 'Content-Length: +5'],
  ['an unknown coding', 'Transfer-Encoding: chunked, identity'],
  ['a coding that is not quite chunked', 'Transfer-Encoding: xchunked'],
  ['a blank before a colon', 'Transfer-Encoding : chunked'],
  ['a line that ends in LF alone', 'X-A: b\nTransfer-Encoding: chunked'],
  ['a NUL', 'X-A: b\0c\r\nContent-Length: 5'],
  ['a folded header', 'X-A: b\r\n c\r\nContent-Length: 5'],
] as const) {
  test.serial(`the listener refuses request smuggling through ${what}`, async (t) => {
    const { gateway, traces } = await setUp(t);
    const socket = connect(Number(new URL(gateway.origin).port), '127.0.0.1');
    let text = '';
    socket.on('data', (chunk) => {
      text += chunk;
    });
    socket.write(
      `POST /mcp/t HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\n${head}\r\n\r\n0\r\n\r\n`,
    );
    await once(socket, 'close');
    t.regex(text, /^HTTP\/1\.1 400 /);
    t.is(text.match(/^HTTP/gm)?.length, 1, 'and nothing behind it is read');
    t.deepEqual(traces().slice(0, 2), [0, 0]);
  });
}

test.serial('a request passes the gate after the last byte of its body, not before', async (t) => {
  const { gateway } = await setUp(t);
  const session = await open(gateway);
  const before = gateway.admissions;
  const body = JSON.stringify(OK);
  const socket = connect(Number(new URL(gateway.origin).port), '127.0.0.1');
  const head = `POST /mcp/t HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\nMcp-Session-Id: ${session}`;
  socket.write(`${head}\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body.slice(0, -1)}`);
  // The gateway answers a later request while the first one still lacks a byte.
  t.is((await send(gateway, inSession(session, OK))).status, 200);
  t.is(gateway.admissions, before + 1);
  socket.write(body.slice(-1));
  socket.resume();
  await once(socket, 'close');
  t.is(gateway.admissions, before + 2);
});
