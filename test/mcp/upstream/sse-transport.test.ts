/** Targets of HTTP with SSE, used through the interface `Upstream`. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { ElicitRequestSchema, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import test, { type ExecutionContext } from 'ava';
import { createSseUpstream } from '../../../src/mcp/upstream/sse/sse.ts';
import { isFault, type UpstreamAnswer, type UpstreamFault, type UpstreamLimits } from '../../../src/mcp/upstream/upstream.ts';
import { modernClient } from '../../support/mcp.ts';
import { freePort } from '../../support/port.ts';
import {
  ACCESS,
  collect,
  type Driver,
  drive,
  httpTarget,
  LIMITS,
  messagesOf,
  reader,
  statusOf,
  succeeded,
} from '../../support/upstreams/drive.ts';
import {
  ENDPOINT,
  message,
  type ScriptedSse,
  type SseScript,
  startScriptedSse,
  startSdkSse,
} from '../../support/upstreams/legacy-sse.ts';
import { routed, startGateway } from '../gateway.ts';

let next = 0;

function driverOf(t: ExecutionContext, url: string, limits: Partial<UpstreamLimits> = {}): Driver {
  const upstream = createSseUpstream({ ...LIMITS, ...limits }, () => `session-${++next}`);
  t.teardown(() => upstream.close());
  return drive(upstream, httpTarget('sse', url));
}

async function scripted(
  t: ExecutionContext,
  script: SseScript = {},
  limits: Partial<UpstreamLimits> = {},
): Promise<[ScriptedSse, Driver]> {
  const target = await startScriptedSse(script);
  t.teardown(() => target.stop());
  return [target, driverOf(t, target.url, limits)];
}

async function sdk(t: ExecutionContext): Promise<Driver> {
  const target = await startSdkSse();
  t.teardown(() => target.stop());
  return driverOf(t, target.url);
}

const causeOf = (answer: UpstreamAnswer | UpstreamFault): string => (isFault(answer) ? String(answer.cause) : `${answer.status}`);
test.serial('a message that is no longer allowed when the connection is open is not posted', async (t) => {
  let isAllowed = true;
  const [target, driver] = await scripted(t, {
    greeting() {
      isAllowed = false;
      return ENDPOINT;
    },
  });
  const initialize = { id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25' } };
  const access = { ...ACCESS, stillAllowed: () => isAllowed };
  t.is(statusOf(await driver.post(initialize, { access })), 'changed');
  t.deepEqual(target.posted, []);
});

test.serial('pings are answered also after the access that opened the session has ended', async (t) => {
  let isAllowed = true;
  const [target, driver] = await scripted(t);
  const initialize = { id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25' } };
  const access = { ...ACCESS, stillAllowed: () => isAllowed };
  t.is(statusOf(await driver.post(initialize, { access })), 200);
  isAllowed = false;
  target.write(message({ id: 'ping', method: 'ping' }));
  while (!target.posted.some(({ id }) => id === 'ping')) await new Promise((resolve) => setTimeout(resolve, 5));
  t.pass();
});

const callOf = (name: string, more: object = {}) => ({ method: 'tools/call', params: { name, ...more } });

test.serial('a server of the SDK serves a session, a list, a call and progress, and ends', async (t) => {
  const driver = await sdk(t);
  t.like((await driver.open()).result, { protocolVersion: '2025-11-25', serverInfo: { name: 'sdk-sse' } });
  t.truthy(driver.upstreamId);
  t.is((await driver.ask('tools/list')).result?.['tools'] !== undefined, true);
  t.deepEqual((await driver.ask('tools/call', { name: 'echo', arguments: { a: 1 } })).result?.['content'], [
    { type: 'text', text: '{"a":1}' },
  ]);
  const called = succeeded(await driver.post({ id: 'p', ...callOf('progress', { _meta: { progressToken: 'tok' } }) }));
  const messages = await collect(called);
  t.deepEqual(
    messages.map(({ method, id }) => method ?? id),
    ['notifications/progress', 'notifications/progress', 'p'],
  );
  t.is(statusOf(await driver.send({ method: 'DELETE' })), 200);
  t.is(statusOf(await driver.post({ id: 9, method: 'tools/list' })), 404);
  t.is(statusOf(await driver.send({ method: 'GET' })), 404);
});

test.serial('a request of the server during a call arrives on the stream of the call, or on the standalone stream', async (t) => {
  const driver = await sdk(t);
  await driver.open({ elicitation: {} });
  const call = reader(succeeded(await driver.post({ id: 1, ...callOf('ask') })));
  const asked = await call.next();
  t.is(asked.method, 'elicitation/create');
  t.is(statusOf(await driver.post({ id: asked.id, result: { action: 'accept', content: { word: 'yes' } } })), 202);
  t.like(await call.next(), { id: 1, result: { content: [{ text: 'accept {"word":"yes"}' }] } });

  const standing = reader(succeeded(await driver.send({ method: 'GET' })));
  const second = reader(succeeded(await driver.post({ id: 2, ...callOf('ask') })));
  const again = await standing.next();
  t.is(again.method, 'elicitation/create');
  succeeded(await driver.post({ id: again.id, result: { action: 'decline' } }));
  t.like(await second.next(), { id: 2, result: { content: [{ text: 'decline undefined' }] } });
  t.is(statusOf(await driver.send({ method: 'GET' })), 409);
});

test.serial('messages without a reader wait for the standalone stream, and their room is free when it is closed', async (t) => {
  const [target, driver] = await scripted(t);
  await driver.open();
  target.write(message({ method: 'notifications/tools/list_changed' }));
  target.write(message({ id: 'alive', method: 'ping' }));
  while (!target.posted.some(({ id }) => id === 'alive')) await new Promise((resolve) => setImmediate(resolve));
  t.deepEqual(target.posted.at(-1)?.result, {});
  const first = succeeded(await driver.send({ method: 'GET' }));
  t.is((await reader(first).next()).method, 'notifications/tools/list_changed');
  first.discard();
  const second = succeeded(await driver.send({ method: 'GET' }));
  target.write(message({ method: 'notifications/prompts/list_changed' }));
  t.is((await reader(second).next()).method, 'notifications/prompts/list_changed');
});

/** Waits for the answer to a ping: everything that was written before it has then arrived. */
async function settled(target: ScriptedSse, id: string): Promise<void> {
  target.write(message({ id, method: 'ping' }));
  while (!target.posted.some((posted) => posted.id === id)) await new Promise((resolve) => setImmediate(resolve));
}

test.serial('without a standalone stream, waiting messages arrive with the next request', async (t) => {
  const [target, driver] = await scripted(t, {
    onPost: ({ id, method }, sse) => method === 'tools/list' && sse.write(message({ id, result: {} })),
  });
  await driver.open();
  target.write(message({ method: 'notifications/tools/list_changed' }));
  await settled(target, 'alive');
  const messages = await collect(succeeded(await driver.post({ id: 1, method: 'tools/list' })));
  t.deepEqual(
    messages.map(({ method }) => method ?? 'answer'),
    ['notifications/tools/list_changed', 'answer'],
  );
});

test.serial('a request is withdrawn on the stream on which it was sent', async (t) => {
  const [target, driver] = await scripted(t);
  await driver.open();
  const call = reader(succeeded(await driver.post({ id: 1, method: 'tools/list' })));
  target.write(message({ id: 'q', method: 'roots/list' }));
  t.is((await call.next()).id, 'q');
  const standing = reader(succeeded(await driver.send({ method: 'GET' })));
  target.write(message({ method: 'notifications/cancelled', params: { requestId: 'other' } }));
  target.write(message({ method: 'notifications/cancelled', params: { requestId: 'q' } }));
  t.deepEqual((await call.next()).params, { requestId: 'q' });
  target.write(message({ method: 'notifications/tools/list_changed' }));
  t.is((await standing.next()).method, 'notifications/tools/list_changed');
});

test.serial('an answer that has arrived is not lost with the connection', async (t) => {
  const [target, driver] = await scripted(t, {
    onPost: ({ id, method }, sse) => method === 'tools/list' && sse.write(message({ id, result: { here: true } })),
  });
  await driver.open();
  const call = succeeded(await driver.post({ id: 1, method: 'tools/list' }));
  const standing = succeeded(await driver.send({ method: 'GET' }));
  target.write(message({ method: 'notifications/tools/list_changed' }));
  await reader(standing).next();
  for (const connection of target.open) connection.destroy();
  while (statusOf(await driver.post({ method: 'notifications/initialized' })) !== 404)
    await new Promise((resolve) => setImmediate(resolve));
  t.like((await collect(call))[0], { result: { here: true } });
});

test.serial('a cancelled call ends at the server and at its client', async (t) => {
  const driver = await sdk(t);
  await driver.open();
  const controller = new AbortController();
  const called = succeeded(await driver.post({ id: 7, ...callOf('wait') }, { signal: controller.signal }));
  t.is(statusOf(await driver.post({ method: 'notifications/cancelled', params: { requestId: 7 } })), 202);
  controller.abort();
  await t.throwsAsync(collect(called), { code: 'UND_ERR_ABORTED' });
  t.is((await driver.ask('tools/call', { name: 'echo' })).error, undefined);
});

test.serial('the server gets only headers of the gateway', async (t) => {
  const [target, driver] = await scripted(t);
  await driver.open();
  t.is(target.headers.length, 3);
  for (const headers of target.headers) {
    t.is(headers['x-upstream-key'], 'gateway-secret');
    t.is(headers.cookie, undefined);
    t.deepEqual(
      Object.keys(headers).filter((name) => name.startsWith('mcp-')),
      [],
    );
  }
});

for (const [what, endpoint] of [
  ['a different origin', 'http://evil.test/messages'],
  ['a different host', '//evil.test/messages'],
  ['a different port', 'http://127.0.0.1:1/messages'],
  ['a user', 'http://me:secret@HOST/messages'],
  ['a different scheme', 'file:///etc/passwd'],
  ['no address', 'http://'],
  ['a very long address', `/${'x'.repeat(2_048)}`],
] as const) {
  test.serial(`an endpoint event that names ${what} is refused`, async (t) => {
    const greeting = (origin: string) => `event: endpoint\ndata: ${endpoint.replace('HOST', origin.slice(7))}\n\n`;
    const [target, driver] = await scripted(t, { greeting });
    const answer = await driver.post({ id: 1, method: 'initialize', params: {} });
    t.like(answer, { fault: 'unreachable' });
    t.regex(causeOf(answer), /same origin/);
    t.is(target.posted.length, 0);
  });
}

test.serial('an absolute endpoint of the same origin is accepted', async (t) => {
  const [, driver] = await scripted(t, { greeting: (origin) => `event: endpoint\ndata: ${origin}/elsewhere\n\n` });
  t.truthy((await driver.open()).result);
});

test.serial('the first of two endpoint events counts', async (t) => {
  const seen: string[] = [];
  const [target, driver] = await scripted(t, {
    greeting: () => `${ENDPOINT}event: endpoint\ndata: /second\n\n`,
    onPost: ({ id }, sse) => {
      seen.push('posted');
      if (id !== undefined) sse.write(message({ id, result: {} }));
    },
  });
  await driver.open();
  target.write('event: endpoint\ndata: http://evil.test/third\n\n');
  t.deepEqual((await driver.ask('ping')).result, {});
  t.deepEqual(seen, ['posted', 'posted']);
});

test.serial('the wait for an endpoint event is limited', async (t) => {
  const [target, driver] = await scripted(t, { greeting: () => ': nothing\n\ndata: {"jsonrpc":"2.0"}\n\n' }, { headersMs: 100 });
  t.like(await driver.post({ id: 1, method: 'initialize', params: {} }), { fault: 'timeout' });
  const controller = new AbortController();
  const answer = driver.post({ id: 1, method: 'initialize', params: {} }, { signal: controller.signal });
  controller.abort();
  t.like(await answer, { fault: 'aborted' });
  t.is(target.posted.length, 0);
});

test.serial('an answer to an unknown request is dropped, and the right one still arrives', async (t) => {
  const [, driver] = await scripted(t, {
    onPost: ({ id, method }, sse) => {
      if (method !== 'tools/list') return;
      sse.write(message({ id: 'other', result: { wrong: true } }));
      sse.write(message({ id: String(id), result: { wrong: true } }));
      sse.write('data: no json\n\n');
      sse.write(`event: other\ndata: {"jsonrpc":"2.0","id":${id},"result":{"wrong":true}}\n\n`);
      sse.write(message({ method: 'notifications/progress', params: { progressToken: 'foreign', progress: 1 } }));
      sse.write(message({ id, result: { right: true } }));
    },
  });
  await driver.open();
  const messages = await collect(succeeded(await driver.post({ id: 5, method: 'tools/list' })));
  t.deepEqual(messages, [{ jsonrpc: '2.0', id: 5, result: { right: true } }]);
});

test.serial('an id that is in use is refused', async (t) => {
  const [, driver] = await scripted(t);
  await driver.open();
  succeeded(await driver.post({ id: 5, method: 'tools/list' }));
  const second = succeeded(await driver.post({ id: 5, method: 'tools/list' }));
  t.is(second.status, 400);
  t.like((await collect(second))[0], { id: 5, error: { code: -32600 } });
  t.is(succeeded(await driver.post({ id: '5', method: 'tools/list' })).status, 200);
});

test.serial('an endless event ends the session', async (t) => {
  const [target, driver] = await scripted(
    t,
    { onPost: ({ method }, sse) => method === 'tools/list' && sse.write(`data: ${'x'.repeat(200_000)}`) },
    { answerBytes: 100_000 },
  );
  await driver.open();
  const call = succeeded(await driver.post({ id: 5, method: 'tools/list' }));
  await t.throwsAsync(collect(call), { message: /exceeds the limit/ });
  t.is(statusOf(await driver.post({ id: 6, method: 'tools/list' })), 404);
  while (target.open.size > 0) await new Promise((resolve) => setImmediate(resolve));
  t.pass();
});

test.serial('a broken connection breaks off the calls in flight, and later calls find no session', async (t) => {
  const [target, driver] = await scripted(t);
  await driver.open();
  const call = succeeded(await driver.post({ id: 5, method: 'tools/list' }));
  const standing = succeeded(await driver.send({ method: 'GET' }));
  for (const connection of target.open) connection.destroy();
  await t.throwsAsync(collect(call));
  await t.throwsAsync(collect(standing));
  t.is(statusOf(await driver.post({ id: 6, method: 'tools/list' })), 404);
});

for (const status of [302, 307, 400, 401, 404, 429, 500]) {
  test.serial(`a POST that is answered with ${status} is reported, and the redirect is not followed`, async (t) => {
    const elsewhere = createServer((_, res) => void res.writeHead(202).end());
    let visits = 0;
    elsewhere.on('request', () => visits++);
    elsewhere.listen(0, '127.0.0.1');
    await once(elsewhere, 'listening');
    t.teardown(() => void elsewhere.close());
    const location = `http://127.0.0.1:${(elsewhere.address() as AddressInfo).port}/`;
    const [, driver] = await scripted(t, {
      onPost: ({ method }, _, res) =>
        method === 'tools/list' && res.writeHead(status, { location, 'retry-after': '7' }).end('no'),
    });
    await driver.open();
    const answer = succeeded(await driver.post({ id: 5, method: 'tools/list' }));
    t.like(answer, { status, type: 'other', retryAfter: '7' });
    t.is(visits, 0);
    t.is(statusOf(await driver.send({ method: 'GET' })), status === 404 ? 404 : 200);
  });
}

test.serial('a GET with an unexpected answer is reported', async (t) => {
  for (const status of [302, 401, 405]) {
    const server = createServer((_, res) => void res.writeHead(status, { location: '/other' }).end());
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const driver = driverOf(t, `http://127.0.0.1:${(server.address() as AddressInfo).port}/sse`);
    t.is(statusOf(await driver.post({ id: 1, method: 'initialize', params: {} })), status);
    server.close();
  }
});

test.serial('a session of another target or other credentials does not exist', async (t) => {
  const target = await startScriptedSse();
  t.teardown(() => target.stop());
  const upstream = createSseUpstream(LIMITS, () => 'the-session');
  t.teardown(() => upstream.close());
  const driver = drive(upstream, httpTarget('sse', target.url));
  await driver.open();
  const session = { session: { upstreamId: 'the-session' } };
  const others = [
    drive(upstream, httpTarget('sse', `${target.url}?elsewhere`)),
    drive(upstream, httpTarget('sse', target.url), { ...ACCESS, binding: 'two' }),
  ];
  for (const other of others) t.is(statusOf(await other.post({ id: 1, method: 'ping' }, session)), 404);
  for (const upstreamId of ['another', null])
    t.is(statusOf(await driver.post({ id: 1, method: 'ping' }, { session: { upstreamId } })), 404);
  t.is(statusOf(await driver.send({ method: 'GET' })), 200);
});

test.serial('messages that the transport cannot carry are refused', async (t) => {
  const [target, driver] = await scripted(t);
  const stateless = { version: '2026-07-28', method: 'server/discover', name: undefined, params: [] };
  t.is(statusOf(await driver.post({ id: 1, method: 'server/discover' }, { stateless })), 400);
  t.is(statusOf(await driver.post({ id: 1, method: 'tools/list' })), 400);
  t.is(statusOf(await driver.send({ method: 'GET' })), 400);
  t.is(statusOf(await driver.send({ access: { ...ACCESS, credentials: 'unusable' } })), 'credential');
  t.is(statusOf(await driver.send({ target: httpTarget('streamable-http', target.url) })), 'transport');
  t.is(target.headers.length, 0);
  const linkLocal = driverOf(t, 'http://169.254.169.254/sse');
  const answer = await linkLocal.post({ id: 1, method: 'initialize', params: {} });
  t.regex(causeOf(answer), /link-local/);
});

test.serial('an unused session is closed, and a session with an open stream is kept', async (t) => {
  const [target, driver] = await scripted(t, {}, { idleMs: 3_000 });
  await driver.open();
  const standing = succeeded(await driver.send({ method: 'GET' }));
  // This session is opened later, so it is closed later.
  const unused = driverOf(t, target.url, { idleMs: 3_000 });
  await unused.open();
  t.is(target.open.size, 2);
  while (target.open.size > 1) await new Promise((resolve) => setImmediate(resolve));
  t.is(statusOf(await unused.post({ id: 5, method: 'tools/list' })), 404);
  standing.discard();
  while (target.open.size > 0) await new Promise((resolve) => setImmediate(resolve));
  t.is(statusOf(await driver.post({ id: 6, method: 'tools/list' })), 404);
});

test.serial('the wait for an answer is limited', async (t) => {
  const [, driver] = await scripted(t, {}, { idleMs: 3_000 });
  await driver.open();
  const call = succeeded(await driver.post({ id: 5, method: 'tools/list' }));
  await t.throwsAsync(collect(call), { code: 'UND_ERR_BODY_TIMEOUT' });
});

test.serial('one target has at most its share of the connections, and its own unused ones are closed first', async (t) => {
  const target = await startSdkSse();
  t.teardown(() => target.stop());
  const upstream = createSseUpstream(
    { ...LIMITS, connectMs: 30_000, headersMs: 30_000, idleMs: 120_000 },
    () => `session-${++next}`,
  );
  t.teardown(() => upstream.close());
  // Each session has a different user, so that no user has too many.
  const of = (id: string) => drive(upstream, { ...httpTarget('sse', target.url), id }, { ...ACCESS, user: `user ${++next}` });
  const opening = (id: string) => of(id).post({ id: 1, method: 'initialize', params: {} });
  const other = of('other');
  await other.open();
  const idle = of('busy');
  await idle.open();
  const drivers = Array.from({ length: 249 }, () => of('busy'));
  await Promise.all(drivers.map((driver) => driver.open()));
  for (const driver of drivers) t.is(succeeded(await driver.send({ method: 'GET' })).status, 200);
  // The unused session of the same target is closed, although that of the other target is older.
  const last = of('busy');
  await last.open();
  t.is(statusOf(await idle.post({ id: 2, method: 'ping' })), 404);
  t.is(succeeded(await last.send({ method: 'GET' })).status, 200);
  t.like(await opening('busy'), { fault: 'busy' });
  t.is(statusOf(await other.post({ method: 'notifications/initialized' })), 202);
  t.is(statusOf(await opening('third')), 200);
  // Sessions that are being opened count, too.
  const answers = await Promise.all(Array.from({ length: 251 }, () => opening('fourth')));
  t.deepEqual(
    answers.filter((answer) => isFault(answer)),
    [{ fault: 'busy' }],
  );
});

test.serial('a session that the target refuses to open is not stored', async (t) => {
  const target = await startScriptedSse();
  t.teardown(() => target.stop());
  const driver = driverOf(t, target.url, { idleMs: 600_000 });
  const write = target.write.bind(target);
  Object.assign(target, {
    write: (text: string) => write(text.replace(/"result":.*/, '"error":{"code":-32600,"message":"no"}}')),
  });
  const answer = succeeded(await driver.post({ id: 1, method: 'initialize', params: {} }));
  t.like((await collect(answer))[0], { error: { code: -32600 } });
  while (target.open.size > 0) await new Promise((resolve) => setImmediate(resolve));
  t.is(statusOf(await driver.post({ id: 2, method: 'ping' }, { session: { upstreamId: answer.sessionId } })), 404);
});

test.serial('a target may answer the POST after the answer of the call', async (t) => {
  let held: (() => void) | undefined;
  const [target, driver] = await scripted(t, {
    onPost: ({ id, method, result }, sse, res) => {
      if (method === 'tools/list') {
        res.flushHeaders = () => undefined;
        const end = res.end.bind(res);
        Object.assign(res, { writeHead: () => ({ end: () => undefined }) });
        held = () => {
          sse.write(message({ id, result: { asked: true } }));
          end();
        };
        sse.write(message({ id: 'q', method: 'roots/list' }));
      }
      if (result !== undefined) held?.();
    },
  });
  await driver.open();
  const call = reader(succeeded(await driver.post({ id: 5, method: 'tools/list' })));
  t.is((await call.next()).method, 'roots/list');
  succeeded(await driver.post({ id: 'q', result: { roots: [] } }));
  t.like(await call.next(), { id: 5, result: { asked: true } });
  t.is(target.posted.length, 4);
});

for (const [name, refuse] of [
  ['does not answer', () => undefined],
  ['answers without an end', (res: ServerResponse) => res.writeHead(202).write(' ')],
] as const) {
  test.serial(`a target that pings and ${name} gets few replies at a time, and they end with the session`, async (t) => {
    const held: ServerResponse[] = [];
    let isHeld = true;
    const [target, driver] = await scripted(t, {
      onPost: ({ id, method, result }, sse, res) => {
        if (method === 'tools/list') sse.write(message({ id, result: {} }));
        if (result === undefined || !isHeld) return;
        held.push(res);
        refuse(res);
        // The script answers all that has no headers yet.
        Object.defineProperty(res, 'headersSent', { value: true });
      },
    });
    const ping = (): void => target.write(message({ id: 'again', method: 'ping' }));
    await driver.open();
    for (let count = 0; count < 100; count++) ping();
    while (held.length < 64) await new Promise((resolve) => setImmediate(resolve));
    for (let turn = 0; turn < 5; turn++) await driver.ask('tools/list');
    t.is(held.length, 64);
    isHeld = false;
    held[0]?.destroy();
    const before = target.posted.length;
    while (target.posted.length === before) {
      ping();
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const ended = Promise.all(held.map((res) => res.closed || once(res, 'close')));
    t.is(statusOf(await driver.send({ method: 'DELETE' })), 200);
    await ended;
  });
}

test.serial('a POST that the target does not end is ended soon after its request is answered', async (t) => {
  let closed: Promise<unknown> = Promise.resolve();
  const onPost: SseScript['onPost'] = ({ id }, sse, res) => {
    if (id === undefined) return;
    closed = once(res, 'close');
    Object.defineProperty(res, 'headersSent', { value: true });
    sse.write(message({ id, result: { asked: true } }));
  };
  const [, driver] = await scripted(t, { onPost }, { silenceMs: 600_000 });
  await driver.open();
  const answer = succeeded(await driver.post({ id: 5, method: 'tools/list' }));
  t.like((await collect(answer))[0], { id: 5, result: { asked: true } });
  answer.discard();
  await closed;
});

test.serial('a slow client slows down the target', async (t) => {
  const text = 'x'.repeat(64 * 1024);
  const [target, driver] = await scripted(t);
  await driver.open();
  const standing = succeeded(await driver.send({ method: 'GET' }));
  const [connection] = target.open;
  if (connection === undefined) return t.fail();
  let sent = 0;
  // This is far more than sockets and the session hold, so at some point the gateway stops reading.
  for (let taken = true; taken && sent < 2_000; sent++) {
    if (connection.write(message({ method: 'notifications/message', params: { text, sent } }))) continue;
    const patience = new Promise<boolean>((resolve) => setTimeout(() => resolve(false), 300));
    taken = await Promise.race([once(connection, 'drain').then(() => true), patience]);
  }
  t.true(sent < 1_000, `${sent} messages of 64 KiB were taken without being read`);
  let seen = 0;
  for await (const { params } of messagesOf(standing)) {
    t.is(params?.['sent'], seen);
    if (++seen === sent) break;
  }
  t.is(seen, sent);
});

test.serial('waiting messages without a reader are limited', async (t) => {
  const [target, driver] = await scripted(t);
  await driver.open();
  for (let index = 0; index < 300; index++) target.write(message({ method: 'notifications/message', params: { index } }));
  for (let index = 0; index < 150; index++) target.write(message({ id: `q${index}`, method: 'roots/list' }));
  while (target.posted.filter(({ error }) => error !== undefined).length < 50)
    await new Promise((resolve) => setImmediate(resolve));
  const standing = reader(succeeded(await driver.send({ method: 'GET' })));
  const kept = [];
  for (let index = 0; index < 100; index++) kept.push(await standing.next());
  t.true(kept.every(({ method }) => method === 'roots/list'));
});

test.serial('the published server works over SSE', async (t) => {
  const manifest = createRequire(import.meta.url).resolve('@modelcontextprotocol/server-everything/package.json');
  const preload = new URL('../../support/upstreams/loopback-only.js', import.meta.url).href;
  const port = await freePort();
  const child = spawn(process.execPath, ['--import', preload, join(dirname(manifest), 'dist', 'index.js'), 'sse'], {
    env: { PATH: process.env['PATH'], PORT: String(port) },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  t.teardown(async () => {
    child.kill('SIGKILL');
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  });
  await new Promise<void>((resolve) => {
    child.stderr.on('data', (chunk: Buffer) => /listening on port/.test(chunk.toString()) && resolve());
  });
  const driver = driverOf(t, `http://127.0.0.1:${port}/sse`, { headersMs: 20_000, idleMs: 20_000 });
  await driver.open();
  const standing = succeeded(await driver.send({ method: 'GET' }));
  t.like(await driver.ask('tools/call', { name: 'echo', arguments: { message: 'hi' } }), {
    result: { content: [{ text: 'Echo: hi' }] },
  });
  const slow = { name: 'trigger-long-running-operation', arguments: { duration: 1, steps: 2 }, _meta: { progressToken: 1 } };
  const messages = await collect(succeeded(await driver.post({ id: 'slow', method: 'tools/call', params: slow })));
  t.deepEqual(
    messages.map(({ method }) => method ?? 'answer'),
    ['notifications/progress', 'notifications/progress', 'answer'],
  );
  standing.discard();
  t.is(statusOf(await driver.send({ method: 'DELETE' })), 200);
});

test.serial(
  'through the gateway a current client uses an old server, also after its connection breaks between two calls',
  async (t) => {
    const target = await startSdkSse();
    t.teardown(() => target.stop());
    const gateway = await startGateway({
      targets: [routed('then', target.url, { transport: 'sse' })],
      rights: { alice: ({ resource_name }) => resource_name !== 'wait' },
    });
    t.teardown(() => gateway.stop());
    const client = new Client({ name: 'today', version: '1' }, { capabilities: { elicitation: {} } });
    client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: { word: 'yes' } }));
    const options = { requestInit: { headers: { authorization: 'Bearer alice' } } };
    await client.connect(new StreamableHTTPClientTransport(new URL(gateway.url('then')), options) as Transport);
    t.teardown(() => client.close());
    const textOf = async (name: string) => ((await client.callTool({ name })).content as { text: string }[])[0]?.text;
    t.false((await client.listTools()).tools.some(({ name }) => name === 'wait'));
    t.is(await textOf('ask'), 'accept {"word":"yes"}');
    await t.throwsAsync(textOf('wait'), { message: /denied/ });
    const changed = new Promise<void>((resolve) =>
      client.setNotificationHandler(ToolListChangedNotificationSchema, () => resolve()),
    );
    t.is(await textOf('announce'), 'announced');
    await changed;
    for (const connection of target.open) connection.destroy();
    t.is(await textOf('echo'), '{}');
    for (const { authorization } of target.headers) t.is(authorization, undefined);
  },
);

test.serial('through the gateway a client of 2026-07-28 falls back to a session', async (t) => {
  const target = await startSdkSse();
  t.teardown(() => target.stop());
  const gateway = await startGateway({
    targets: [routed('then', target.url, { transport: 'sse' })],
    rights: { alice: () => true },
  });
  t.teardown(() => gateway.stop());
  const client = await modernClient(t, gateway.url('then'), 'alice');
  t.like(await client.callTool({ name: 'echo', arguments: { a: 1 } }), { content: [{ text: '{"a":1}' }] });
});
