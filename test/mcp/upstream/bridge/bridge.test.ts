/** The bridge offers sessions for a target that has none, used through the interface `Upstream`. */
import type { ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import { readJson } from '../../../../src/base/json/json.ts';
import { createBridge } from '../../../../src/mcp/upstream/bridge/bridge.ts';
import { createQuestions } from '../../../../src/mcp/upstream/bridge/questions.ts';
import { createHttpUpstream } from '../../../../src/mcp/upstream/http.ts';
import { createUpstreamModes } from '../../../../src/mcp/upstream/modes.ts';
import { createUnread } from '../../../../src/mcp/upstream/unread.ts';
import type { Upstream, UpstreamLimits } from '../../../../src/mcp/upstream/upstream.ts';
import type { SseEvent } from '../../../../src/protocol/sse.ts';
import {
  ACCESS,
  collect,
  type Driver,
  drive,
  httpTarget,
  LIMITS,
  reader,
  statusOf,
  succeeded,
} from '../../../support/upstreams/drive.ts';
import { type ModernUpstream, startModernOnly } from '../../../support/upstreams/modern-only.ts';
import {
  answerJson,
  byMethod,
  type Received,
  type RecordingUpstream,
  type Script,
  startRecording,
} from '../../../support/upstreams/recording.ts';

let lastId = 0;

function bridgeOf(t: ExecutionContext, limits: Partial<UpstreamLimits> = {}, now: () => number = Date.now): Upstream {
  const all = { ...LIMITS, ...limits };
  const http = createHttpUpstream(all);
  const bridge = createBridge({
    http,
    modes: createUpstreamModes(http, now),
    limits: all,
    newId: () => `own-${++lastId}`,
    now,
    unread: createUnread(),
  });
  t.teardown(() => bridge.close());
  return bridge;
}

async function modern(
  t: ExecutionContext,
  limits: Partial<UpstreamLimits> = {},
): Promise<{ target: ModernUpstream; driver: Driver }> {
  const target = await startModernOnly();
  t.teardown(() => target.stop());
  return { target, driver: drive(bridgeOf(t, limits), httpTarget('streamable-http', target.url)) };
}

async function scripted(
  t: ExecutionContext,
  script: Script,
  now?: () => number,
): Promise<{ target: RecordingUpstream; driver: Driver; bridge: Upstream }> {
  const target = await startRecording(script);
  t.teardown(() => target.stop());
  const bridge = bridgeOf(t, {}, now);
  return { target, bridge, driver: drive(bridge, httpTarget('streamable-http', target.url)) };
}

/** Waits for a condition, and gives up before anything idle would time out. */
const until = async (what: () => boolean): Promise<void> => {
  const deadline = Date.now() + LIMITS.idleMs - 1_000;
  while (!what() && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 5));
  if (!what()) throw new Error(`never: ${what}`);
};
/** The first event of the answer to a `subscriptions/listen`. `agreed`: what the target agrees to; absent: all. */
function acknowledgement({ id, params }: NonNullable<Received['message']>, agreed: unknown = params?.['notifications']): string {
  const acknowledged = { notifications: agreed, _meta: { 'io.modelcontextprotocol/subscriptionId': id } };
  return `data: ${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/subscriptions/acknowledged', params: acknowledged })}\n\n`;
}
const WORD = { action: 'accept', content: { word: 'yes' } };
const call = (name: string, args: object = {}, more: object = {}) => ({
  method: 'tools/call',
  params: { name, arguments: args, ...more },
});

test.serial('initialize is answered from the answer to server/discover', async (t) => {
  const { target, driver } = await modern(t);
  const { result } = await driver.open();
  t.like(result, {
    protocolVersion: '2025-11-25',
    serverInfo: { name: 'modern-only', version: '1' },
    instructions: 'Be nice.',
    capabilities: { tools: { listChanged: true }, resources: { subscribe: true }, logging: {}, completions: {} },
  });
  t.true(driver.upstreamId?.startsWith('portcullis-bridge.'));
  t.deepEqual(target.seen(), ['initialize', 'server/discover']);
});

test.serial('a target known to refuse sessions is not asked for one until some time has passed', async (t) => {
  let now = 0;
  const target = await startModernOnly();
  t.teardown(() => target.stop());
  const bridge = bridgeOf(t, {}, () => now);
  for (const _ of [1, 2]) await drive(bridge, httpTarget('streamable-http', target.url)).open();
  t.deepEqual(target.seen(), ['initialize', 'server/discover', 'server/discover']);
  now += 11 * 60 * 1000;
  await drive(bridge, httpTarget('streamable-http', target.url)).open();
  t.deepEqual(target.seen().slice(3), ['initialize', 'server/discover']);
});

test.serial(
  'a user whose initialize is refused gets a session of the bridge, and others still get one of the target',
  async (t) => {
    const stateless = byMethod({}, { modern: true });
    const usual = byMethod({});
    const { bridge, target } = await scripted(t, (received, res) => {
      const { message } = received;
      if (message?.method !== 'initialize') return stateless(received, res);
      const info = message.params?.['clientInfo'] as { name?: string };
      if (info.name === 'driver') return usual(received, res);
      answerJson(res, { jsonrpc: '2.0', id: message.id, error: { code: -32602, message: 'odd' } }, {}, 400);
    });
    const odd = { jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', clientInfo: {} } };
    const own = drive(bridge, httpTarget('streamable-http', target.url), { ...ACCESS, user: 'bob' });
    t.regex(succeeded(await own.post(odd)).sessionId ?? '', /^portcullis-bridge/);
    const other = drive(bridge, httpTarget('streamable-http', target.url));
    await other.open();
    t.is(other.upstreamId, 'upstream-session-1');
  },
);

test.serial('requests carry the members that the revision requires, and the arguments unchanged', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open({ elicitation: {} });
  const body = '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"a":1.0,"b":"\\u0041"}}}';
  const answer = succeeded(await driver.send({ body }));
  const [message] = await collect(answer);
  t.is(message?.id, 7);
  t.deepEqual(Object.keys(message?.result ?? {}).sort(), ['_meta', 'content']);
  t.deepEqual(message?.result?.['content'], [{ type: 'text', text: '{"a":1,"b":"A"}' }]);
  const sent = target.received.at(-1);
  t.like(sent?.headers, { 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'tools/call', 'mcp-name': 'echo' });
  t.is(sent?.headers['mcp-session-id'], undefined);
  t.is(sent?.headers['x-upstream-key'], 'gateway-secret');
  t.like(sent?.message.params?.['_meta'], {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientInfo': { name: 'driver', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': { elicitation: {} },
  });
});

test.serial("arguments are forwarded as text, and the client's information as a value", async (t) => {
  const { target, driver } = await scripted(t, modernScript({ 'tools/list': { tools: [] }, 'tools/call': { content: [] } }));
  await driver.open();
  const meta = '"_meta":{"progressToken":"x","io.modelcontextprotocol/logLevel":"debug","own":1}';
  const params = `{"name":"n","arguments":{"a":1.0,"big":12345678901234567890},${meta},"requestState":"forged","inputResponses":{"a":1}}`;
  await collect(succeeded(await driver.send({ body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":${params}}` })));
  const { text = '', message } = target.received.at(-1) ?? {};
  t.true(text.includes('"arguments":{"a":1.0,"big":12345678901234567890}'), text);
  t.deepEqual(Object.keys(message?.params ?? {}), ['name', 'arguments', '_meta']);
  const sent = message?.params?.['_meta'] as Record<string, unknown>;
  t.like(sent, { progressToken: 'x', own: 1 });
  t.false('io.modelcontextprotocol/logLevel' in sent);
});

/** So many properties, each for a header of its own. */
const headers = (count: number): Record<string, object> =>
  Object.fromEntries(
    Array.from({ length: count }, (_, n) => [`property-${n}`, { type: 'string', 'x-mcp-header': `H${n}` }] as const),
  );

test.serial('lists are passed on without the hints of the revision and without tools that have invalid headers', async (t) => {
  const tools = [
    { name: 'a', inputSchema: { type: 'object', x: 1.5 } },
    { name: 'bad', inputSchema: { type: 'object', properties: { n: { type: 'number', 'x-mcp-header': 'N' } } } },
    { name: 'c' },
    { name: 'many', inputSchema: { type: 'object', properties: headers(300) } },
    { name: 'deep', inputSchema: { type: 'object', properties: { ['p'.repeat(5_000)]: { properties: headers(1) } } } },
    { name: 'some', inputSchema: { type: 'object', properties: headers(100), allOf: [{}, {}] } },
    { name: 'elsewhere', inputSchema: { type: 'object', allOf: [{ properties: headers(1) }] } },
  ];
  const { driver } = await scripted(
    t,
    modernScript({ 'tools/list': { tools, ttlMs: 5000, cacheScope: 'public', nextCursor: 'n', resultType: 'complete' } }),
  );
  await driver.open();
  const { result } = await driver.ask('tools/list');
  t.deepEqual(result, { tools: [tools[0], tools[2], tools[5]], nextCursor: 'n' });
});

test.serial('progress and the answer arrive on the stream of the request', async (t) => {
  const { driver } = await modern(t);
  await driver.open();
  const answer = succeeded(await driver.post({ id: 'p', ...call('progress', {}, { _meta: { progressToken: 'tok' } }) }));
  const messages = await collect(answer);
  t.deepEqual(
    messages.map(({ method, id }) => method ?? id),
    ['notifications/progress', 'notifications/progress', 'p'],
  );
  t.is(messages[0]?.params?.['progressToken'], 'tok');
});

test.serial('log messages arrive from the level that the client has set, and not at all without a level', async (t) => {
  const { driver } = await modern(t);
  await driver.open();
  const logged = async () =>
    (await collect(succeeded(await driver.post({ id: 'l', ...call('log') })))).map(({ params }) => params?.['data']);
  t.deepEqual(await logged(), [undefined]);
  t.deepEqual((await driver.ask('logging/setLevel', { level: 'info' })).result, {});
  t.deepEqual(await logged(), ['careful', undefined]);
  t.like(await driver.ask('logging/setLevel', { level: 'loud' }), { error: { code: -32602 } });
});

test.serial('arguments that a tool wants in headers are sent in headers, whether the tool was listed or not', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open();
  t.is((await driver.ask('tools/call', { name: 'regional', arguments: { region: 'Zürich', count: 3 } })).error, undefined);
  t.like(target.received.at(-1)?.headers, { 'mcp-param-region': '=?base64?WsO8cmljaA==?=', 'mcp-param-count': '3' });
  t.deepEqual(target.seen().slice(2), ['tools/list', 'tools/call']);
  t.is((await driver.ask('tools/call', { name: 'regional', arguments: { region: 'a\r\nx-evil: 1' } })).error, undefined);
  t.is(target.received.at(-1)?.headers['x-evil'], undefined);
  t.is((await driver.ask('tools/call', { name: 'regional', arguments: { region: null } })).error, undefined);
  t.false('mcp-param-region' in (target.received.at(-1)?.headers ?? {}));
  t.like(await driver.ask('tools/call', { name: 'nobody' }), { error: { code: -32602 } });
  t.is(target.seen().filter((method) => method === 'tools/list').length, 1);
});

const inHeader = (name: string) => ({
  name,
  inputSchema: { type: 'object', properties: { a: { type: 'string', 'x-mcp-header': 'A' } } },
});
const listings = (target: RecordingUpstream) => target.seen().filter((method) => method === 'tools/list').length;

test.serial('a list of too many tools is not stored, and not requested again with each call', async (t) => {
  const tools = [inHeader('n'), ...Array.from({ length: 10_000 }, (_, index) => ({ name: `${index}` }))];
  const results = { 'tools/list': { tools }, 'tools/call': { content: [] } };
  const { target, driver } = await scripted(t, modernScript(results));
  await driver.open();
  for (const _ of [1, 2]) t.is((await driver.ask('tools/call', { name: 'n', arguments: { a: 'x' } })).error, undefined);
  t.is(target.received.at(-1)?.headers['mcp-param-a'], undefined);
  t.is(listings(target), 1);
  tools.pop();
  await driver.ask('tools/list');
  await driver.ask('tools/call', { name: 'n', arguments: { a: 'x' } });
  t.is(target.received.at(-1)?.headers['mcp-param-a'], 'x');
});

test.serial('a session stores a limited number of tools, and only those that want headers', async (t) => {
  const pages: Record<string, object[]> = {
    first: Array.from({ length: 6_000 }, (_, index) => ({ name: `plain-${index}` })),
    second: Array.from({ length: 6_000 }, (_, index) => inHeader(`a-${index}`)),
    third: Array.from({ length: 6_000 }, (_, index) => inHeader(`b-${index}`)),
  };
  const following: Record<string, string> = { first: 'second', second: 'third' };
  const { target, driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'tools/list') return modernScript({ 'tools/call': { content: [] } })(received, res);
    const page = String(message.params?.['cursor'] ?? 'first');
    const nextCursor = following[page];
    const result = { tools: pages[page] ?? [], ...(nextCursor === undefined ? {} : { nextCursor }) };
    answerJson(res, { jsonrpc: '2.0', id: message.id, result });
  });
  await driver.open();
  for (const params of [{}, { cursor: 'second' }, { cursor: 'third' }]) await driver.ask('tools/list', params);
  const headerOf = async (name: string) => {
    await driver.ask('tools/call', { name, arguments: { a: 'x' } });
    return target.received.at(-1)?.headers['mcp-param-a'];
  };
  t.is(await headerOf('a-5999'), 'x');
  t.is(await headerOf('b-3999'), 'x');
  t.is(await headerOf('b-4000'), undefined);
  t.is(await headerOf('plain-1'), undefined);
  // The client has seen every page itself.
  t.is(listings(target), 3);
});

test.serial('sessions that reach a target in the same way share what is known of its tools', async (t) => {
  const { target, bridge, driver } = await scripted(
    t,
    modernScript({ 'tools/list': { tools: [inHeader('n')] }, 'tools/call': { content: [] } }),
  );
  const at = httpTarget('streamable-http', target.url);
  for (const [session, lists] of [
    [driver, 1],
    [drive(bridge, at), 1],
    [drive(bridge, at, { ...ACCESS, binding: 'other' }), 2],
  ] as const) {
    await session.open();
    await session.ask('tools/call', { name: 'n', arguments: { a: 'x' } });
    t.is(target.received.at(-1)?.headers['mcp-param-a'], 'x');
    t.is(listings(target), lists);
  }
});

test.serial('a limited number of characters of tools is remembered for a target', async (t) => {
  const name = (index: number) => `${index}`.padEnd(2_000, 'x');
  const tools = Array.from({ length: 300 }, (_, index) => inHeader(name(index)));
  const { target, driver } = await scripted(t, modernScript({ 'tools/list': { tools }, 'tools/call': { content: [] } }));
  await driver.open();
  const headerOf = async (index: number) => {
    await driver.ask('tools/call', { name: name(index), arguments: { a: 'x' } });
    return target.received.at(-1)?.headers['mcp-param-a'];
  };
  t.is(await headerOf(0), 'x');
  t.is(await headerOf(299), undefined);
  t.is(listings(target), 1);
});

test.serial('what a client says of itself is kept in short, and sent in short with each request', async (t) => {
  const { target, driver } = await scripted(t, modernScript({ 'tools/list': { tools: [] } }));
  const params = {
    ...{ protocolVersion: '2025-11-25', clientInfo: { name: 'n'.repeat(100_000), version: '1', icons: ['i'.repeat(100_000)] } },
    capabilities: { elicitation: { url: {} }, experimental: { x: 'x'.repeat(100_000) } },
  };
  driver.upstreamId = succeeded(await driver.post({ id: 1, method: 'initialize', params })).sessionId;
  await driver.ask('tools/list');
  const sent = target.received.at(-1)?.message?.params?.['_meta'] as Record<string, unknown>;
  t.deepEqual(sent['io.modelcontextprotocol/clientInfo'], { name: 'n'.repeat(256), version: '1' });
  t.deepEqual(sent['io.modelcontextprotocol/clientCapabilities'], { elicitation: { url: {} } });
});

test.serial('an endless list of pages is read once', async (t) => {
  const { target, driver } = await scripted(
    t,
    modernScript({ 'tools/list': { tools: [], nextCursor: 'on' }, 'tools/call': { content: [] } }),
  );
  await driver.open();
  for (const _ of [1, 2]) await driver.ask('tools/call', { name: 'n' });
  t.is(listings(target), 50);
});

test.serial('too many sessions of one target do not end the sessions of another', async (t) => {
  const { target, bridge } = await scripted(t, modernScript({}));
  const of = (id: string, user = 'alice') =>
    drive(bridge, { ...httpTarget('streamable-http', target.url), id }, { ...ACCESS, user });
  const other = of('other');
  await other.open();
  const drivers: Driver[] = [];
  for (let at = 0; at < 2_501; at += 41) {
    const some = Array.from({ length: 41 }, () => of('busy', `user ${at}`));
    if (at === 0) await some[0]?.open();
    await Promise.all(some.slice(at === 0 ? 1 : 0).map((driver) => driver.open()));
    drivers.push(...some);
  }
  t.is(drivers.length, 2_501);
  const [first, second] = drivers;
  t.is(statusOf((await first?.post({ id: 1, method: 'ping' })) ?? { fault: 'busy' }), 404);
  t.is(statusOf((await second?.post({ id: 1, method: 'ping' })) ?? { fault: 'busy' }), 200);
  t.is(statusOf(await other.post({ id: 1, method: 'ping' })), 200);
});

test.serial('a tool whose headers have changed is looked up once more', async (t) => {
  let annotated = false;
  const { target, driver } = await scripted(t, (received, res) => {
    const { message, headers } = received;
    if (message?.method === 'tools/list') {
      const properties = annotated ? { a: { type: 'string', 'x-mcp-header': 'A' } } : {};
      const result = { tools: [{ name: 'n', inputSchema: { type: 'object', properties } }] };
      return answerJson(res, { jsonrpc: '2.0', id: message.id, result });
    }
    if (message?.method === 'tools/call' && (headers['mcp-param-a'] !== 'x' || message.params?.['name'] === 'never')) {
      annotated = true;
      return answerJson(res, { jsonrpc: '2.0', id: message.id, error: { code: -32020, message: 'Header mismatch' } }, {}, 400);
    }
    return modernScript({ 'tools/call': { content: [] } })(received, res);
  });
  await driver.open();
  await driver.ask('tools/list');
  t.is((await driver.ask('tools/call', { name: 'n', arguments: { a: 'x' } })).error, undefined);
  t.deepEqual(target.seen().slice(-4), ['tools/list', 'tools/call', 'tools/list', 'tools/call']);
  t.like(await driver.ask('tools/call', { name: 'never', arguments: { a: 'x' } }), { error: { code: -32603 } });
});

test.serial('a request of the target arrives on the stream, and the answer is sent with the repeated call', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open({ elicitation: {} });
  const stream = reader(succeeded(await driver.post({ id: 4, ...call('ask') })));
  const asked = await stream.next();
  t.like(asked, { method: 'elicitation/create', params: { message: 'Which word?' } });
  t.is(statusOf(await driver.post({ id: asked.id, result: WORD })), 202);
  t.like(await stream.next(), { id: 4, result: { content: [{ text: 'accept yes' }] } });
  const [first, second] = target.received.slice(-2);
  t.not(first?.message.id, second?.message.id);
  t.is(statusOf(await driver.post({ id: asked.id, result: WORD })), 400);
  t.is(statusOf(await driver.post({ id: 'own-1', result: WORD })), 400);
  t.is(statusOf(await driver.post({ id: 1, result: WORD })), 400);
});

test.serial('a call that is no longer allowed when its question is answered is not sent again', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open({ elicitation: {} });
  let isAllowed = true;
  const access = { ...ACCESS, stillAllowed: () => isAllowed };
  const stream = reader(succeeded(await driver.post({ id: 4, ...call('ask') }, { access })));
  const asked = await stream.next();
  const sent = target.received.length;
  isAllowed = false;
  t.is(statusOf(await driver.post({ id: asked.id, result: WORD })), 202);
  t.regex((await stream.next()).error?.message ?? '', /your access has changed/);
  t.is(target.received.length, sent);
});

test.serial('a call that is no longer allowed when the headers of its tool are known is not sent', async (t) => {
  let isAllowed = true;
  const { target, driver } = await scripted(t, (received, res) => {
    if (received.message?.method === 'tools/list') isAllowed = false;
    return modernScript({ 'tools/list': { tools: [], resultType: 'complete' } })(received, res);
  });
  await driver.open();
  const access = { ...ACCESS, stillAllowed: () => isAllowed };
  t.is(statusOf(await driver.post({ id: 4, ...call('x') }, { access })), 'changed');
  t.is(target.seen().at(-1), 'tools/list');
});

test.serial('access that ends while a session is opened is the reason that the client gets', async (t) => {
  let isAllowed = true;
  const { target, driver } = await scripted(t, (received, res) => {
    isAllowed = false;
    return modernScript({})(received, res);
  });
  const access = { ...ACCESS, stillAllowed: () => isAllowed };
  const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'driver', version: '1' } };
  t.is(statusOf(await driver.post({ id: 1, method: 'initialize', params }, { access })), 'changed');
  t.is(target.received.length, 1);
});

test.serial('a target may ask several times and keep its state', async (t) => {
  const { driver } = await modern(t);
  await driver.open({ elicitation: {} });
  const stream = reader(succeeded(await driver.post({ id: 4, ...call('ask-twice') })));
  for (const word of ['one', 'two']) {
    const asked = await stream.next();
    succeeded(await driver.post({ id: asked.id, result: { action: 'accept', content: { word } } }));
  }
  t.like(await stream.next(), { id: 4, result: { content: [{ text: 'then one, two' }] } });
});

test.serial('a target may ask only a limited number of times', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open({ elicitation: {} });
  const stream = reader(succeeded(await driver.post({ id: 4, ...call('insatiable') })));
  let rounds = 0;
  for (;;) {
    const message = await stream.next();
    if (message.method === undefined) {
      t.like(message, { id: 4, error: { code: -32603 } });
      break;
    }
    rounds++;
    succeeded(await driver.post({ id: message.id, result: WORD }));
  }
  t.is(rounds, 10);
  t.is(target.seen().filter((method) => method === 'tools/call').length, 11);
});

test.serial('an error of the client cancels an elicitation, and fails calls that need another answer', async (t) => {
  const { driver } = await modern(t);
  await driver.open({ elicitation: {}, sampling: {} });
  const error = { code: -32603, message: 'no' };
  const elicited = reader(succeeded(await driver.post({ id: 4, ...call('ask') })));
  succeeded(await driver.post({ id: (await elicited.next()).id, error }));
  t.like(await elicited.next(), { id: 4, result: { content: [{ text: 'no word' }] } });
  const sampled = reader(succeeded(await driver.post({ id: 5, ...call('sample') })));
  succeeded(await driver.post({ id: (await sampled.next()).id, error }));
  const { id, error: told } = await sampled.next();
  t.like({ id, ...told }, { id: 5, code: -32603 });
  t.regex(told?.message ?? '', /refused sampling/);
});

test.serial("the target's request fails if the client does not offer the capability", async (t) => {
  const inputRequests = { a: { method: 'elicitation/create', params: {} } };
  for (const asked of [
    inputRequests,
    { a: { method: 'tools/call', params: {} } },
    { a: { method: 'ping' } },
    { a: null },
    [],
    { ok: { method: 'roots/list' }, a: { method: 'sampling/createMessage', params: {} } },
  ]) {
    const result = { resultType: 'input_required', inputRequests: asked };
    const { driver } = await scripted(
      t,
      modernScript({ 'tools/list': { tools: [] }, 'tools/call': result, 'prompts/list': result }),
    );
    await driver.open({ roots: {} });
    t.like(await driver.ask('tools/call', { name: 'n' }), { error: { code: -32603 } }, JSON.stringify(asked));
    t.like(await driver.ask('prompts/list'), { error: { code: -32603 } });
  }
});

test.serial('one refusal withdraws the other requests that the client has not answered yet', async (t) => {
  const inputRequests = { a: { method: 'sampling/createMessage', params: {} }, b: { method: 'roots/list' } };
  const { driver } = await scripted(
    t,
    modernScript({ 'tools/list': { tools: [] }, 'tools/call': { resultType: 'input_required', inputRequests } }),
  );
  await driver.open({ roots: {}, sampling: {} });
  const stream = reader(succeeded(await driver.post({ id: 4, ...call('n') })));
  const [a, b] = [await stream.next(), await stream.next()];
  succeeded(await driver.post({ id: a.id, error: { code: 1, message: 'no' } }));
  t.like(await stream.next(), { method: 'notifications/cancelled', params: { requestId: b.id } });
  t.like(await stream.next(), { id: 4, error: { code: -32603 } });
  t.is(statusOf(await driver.post({ id: b.id, result: { roots: [] } })), 400);
});

test.serial('the request state is returned unchanged, also without a request for the client', async (t) => {
  const state = 'a"\\\u2028 é';
  const { target, driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'tools/call') return modernScript({ 'tools/list': { tools: [] } })(received, res);
    const isFirst = message.params?.['requestState'] === undefined;
    const result = isFirst ? { resultType: 'input_required', requestState: state } : { resultType: 'complete', content: [] };
    answerJson(res, { jsonrpc: '2.0', id: message.id, result });
  });
  await driver.open();
  t.deepEqual((await driver.ask('tools/call', { name: 'n' })).result, { content: [] });
  t.is(target.received.at(-1)?.message?.params?.['requestState'], state);
  t.false('inputResponses' in (target.received.at(-1)?.message?.params ?? {}));
});

test.serial('a state that is too long fails the call, and so does one beside too many that wait', async (t) => {
  const target = await startRecording((received, res) => {
    const { message } = received;
    if (message?.method !== 'tools/call') return modernScript({ 'tools/list': { tools: [] } })(received, res);
    const { size: length = 0 } = (message.params?.['arguments'] ?? {}) as { size?: number };
    const inputRequests = { a: { method: 'elicitation/create', params: { message: 'm', requestedSchema: {} } } };
    const result = { resultType: 'input_required', inputRequests, requestState: 'x'.repeat(length) };
    answerJson(res, { jsonrpc: '2.0', id: message.id, result });
  });
  t.teardown(() => target.stop());
  const driver = drive(bridgeOf(t, { answerBytes: 4 * 1024 * 1024 }), httpTarget('streamable-http', target.url));
  await driver.open({ elicitation: {} });
  const begin = async (id: number, size: number) => {
    const stream = reader(succeeded(await driver.post({ id, ...call('n', { size }) })));
    return { id, stream, first: await stream.next() };
  };
  t.like(await driver.ask('tools/call', { name: 'n', arguments: { size: 1024 * 1024 + 1 } }), { error: { code: -32603 } });
  // 32 MiB for one user at one target, and two bytes for each character.
  const calls: Awaited<ReturnType<typeof begin>>[] = [];
  for (let id = 1; id <= 20; id++) calls.push(await begin(id, 1_000_000));
  const refused = calls.filter(({ first }) => first.error !== undefined);
  t.true(refused.length >= 3 && refused.length <= 5, `${refused.length} of 20`);
  t.regex(String(refused[0]?.first.error?.message), /too much of this target for one user/);
  await driver.post({ method: 'notifications/cancelled', params: { requestId: 1 } });
  await t.throwsAsync(async () => (await calls[0]?.stream.next()) ?? {});
  t.is((await begin(21, 1_000_000)).first.error, undefined);
});

test.serial('while the client thinks, nothing keeps what the target asked', async (t) => {
  const questions = createQuestions(() => `own-${++lastId}`);
  const params = '{"message":"m"}';
  const asked = ['a', 'b', 'c'].map((key) => ({ key, method: 'elicitation/create', params, lacksId: false }));
  const charged: number[] = [];
  const charge = (characters: number) => {
    charged.push(characters);
    return charged.length > 2 ? new Error('too much waits') : null;
  };
  const asking = questions.ask(asked, charge, new AbortController().signal);
  const ids = ((await asking.next()).value as readonly SseEvent[]).map(({ data }) => (JSON.parse(data) as { id: string }).id);
  t.is(asked.length, 0);
  const text = JSON.stringify({ result: WORD });
  for (const id of ids) {
    const reading = readJson(Buffer.from(text), { spanDepth: 2 });
    t.true(reading.ok && questions.reply(id, { outcome: 'result', located: { text, span: reading.span } }));
  }
  t.deepEqual(
    charged,
    ids.map(() => JSON.stringify(WORD).length),
  );
  t.deepEqual(await asking.next(), { done: true, value: { failure: 'too much waits' } });
});

test.serial('the replies of a client to the questions of one answer have a limit', async (t) => {
  const questions = createQuestions(() => `own-${++lastId}`);
  const asked = ['a', 'b'].map((key) => ({ key, method: 'elicitation/create', params: null, lacksId: false }));
  const asking = questions.ask(asked, () => null, new AbortController().signal);
  const text = `{"result":"${'x'.repeat(2.5 * 1024 * 1024)}"}`;
  const reading = readJson(Buffer.from(text), { spanDepth: 2 });
  for (const { data } of (await asking.next()).value as readonly SseEvent[]) {
    const { id } = JSON.parse(data) as { id: string };
    t.true(reading.ok && questions.reply(id, { outcome: 'result', located: { text, span: reading.span } }));
  }
  const { value } = await asking.next();
  t.regex((value as { failure: string }).failure, /too long/);
});

test.serial('a URL elicitation gets an id in the form of the session revisions', async (t) => {
  const inputRequests = { a: { method: 'elicitation/create', params: { mode: 'url', url: 'https://x.test/', message: 'm' } } };
  const { driver } = await scripted(
    t,
    modernScript({ 'tools/list': { tools: [] }, 'tools/call': { resultType: 'input_required', inputRequests } }),
  );
  await driver.open({ elicitation: { url: {} } });
  const asked = await reader(succeeded(await driver.post({ id: 4, ...call('n') }))).next();
  t.is(typeof asked.params?.['elicitationId'], 'string');
});

test.serial('a cancelled request is cancelled at the target', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open({ elicitation: {} });
  const waiting = driver.post({ id: 4, ...call('wait') });
  await until(() => target.seen().at(-1) === 'tools/call');
  succeeded(await driver.post({ method: 'notifications/cancelled', params: { requestId: '4' } }));
  succeeded(await driver.post({ method: 'notifications/cancelled', params: { requestId: 4 } }));
  t.like(await waiting, { fault: 'aborted' });
  await until(() => target.cancelled.length === 1);
  const asking = succeeded(await driver.post({ id: 5, ...call('ask') }));
  const stream = reader(asking);
  const asked = await stream.next();
  succeeded(await driver.post({ method: 'notifications/cancelled', params: { requestId: 5 } }));
  await t.throwsAsync(stream.next(), { code: 'UND_ERR_ABORTED' });
  t.is(statusOf(await driver.post({ id: asked.id, result: WORD })), 400);
  t.is((await driver.ask('tools/call', { name: 'echo' })).error, undefined);
});

test.serial('a client that disconnects cancels its call, and the request id is free again', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open();
  const controller = new AbortController();
  const waiting = driver.post({ id: 4, ...call('wait') }, { signal: controller.signal });
  await until(() => target.seen().at(-1) === 'tools/call');
  t.like((await collect(succeeded(await driver.post({ id: 4, ...call('echo') }))))[0], { error: { code: -32600 } });
  controller.abort();
  t.like(await waiting, { fault: 'aborted' });
  await until(() => target.cancelled.length === 1);
  t.is((await collect(succeeded(await driver.post({ id: 4, ...call('echo') }))))[0]?.error, undefined);
});

test.serial('updates and changed lists arrive on the standalone stream without their subscription id', async (t) => {
  const { target, driver } = await modern(t);
  await driver.open();
  t.deepEqual((await driver.ask('resources/subscribe', { uri: 'note:///a' })).result, {});
  target.updated('note:///a');
  target.updated('note:///b');
  const answer = succeeded(await driver.send({ method: 'GET' }));
  const stream = reader(answer);
  t.deepEqual(await stream.next(), { jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri: 'note:///a' } });
  t.is(statusOf(await driver.send({ method: 'GET' })), 409);
  t.deepEqual((await driver.ask('resources/subscribe', { uri: 'note:///b' })).result, {});
  await until(() => target.listening() === 1);
  target.updated('note:///b');
  t.like(await stream.next(), { params: { uri: 'note:///b' } });
  t.deepEqual((await driver.ask('resources/unsubscribe', { uri: 'note:///a' })).result, {});
  target.updated('note:///a');
  target.toolsChanged();
  t.is((await stream.next()).method, 'notifications/tools/list_changed');
  await until(() => target.listening() === 1);
  t.is(statusOf(await driver.send({ method: 'DELETE' })), 200);
  await until(() => target.listening() === 0);
  await t.throwsAsync(stream.next());
  t.is(statusOf(await driver.post({ id: 1, method: 'ping' })), 404);
});

test.serial(
  'the gateway listens at the target only for a subscription or a stream, and stops for an unused session',
  async (t) => {
    const { target, driver } = await modern(t, { idleMs: 2_000 });
    await driver.open();
    await driver.ask('resources/subscribe', { uri: 'note:///a' });
    await driver.ask('resources/unsubscribe', { uri: 'note:///a' });
    await until(() => target.listening() === 0);
    t.is((await driver.ask('resources/subscribe', { uri: 'note:///a' })).error, undefined);
    await until(() => target.listening() === 0);
    await driver.ask('ping');
    await until(() => target.listening() === 1);
    t.pass();
  },
);

test.serial('a session that has ended opens no stream at the target for subscriptions that waited', async (t) => {
  const listens: ServerResponse[] = [];
  const { driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
    listens.push(res);
    if (listens.length === 1) return;
    res.write(acknowledgement(message));
  });
  await driver.open();
  const subscribed = ['x:1', 'x:2'].map((uri) => driver.ask('resources/subscribe', { uri }));
  await until(() => listens.length === 1);
  t.is(statusOf(await driver.send({ method: 'DELETE' })), 200);
  for (const { error } of await Promise.all(subscribed)) t.truthy(error);
  t.is(listens.length, 1);
});

test.serial('requests that would listen again wait for one turn together', async (t) => {
  const listens: ServerResponse[] = [];
  const { driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
    listens.push(res);
    // The second one waits for the test, and all others end at once.
    if (listens.length > 2) return void res.end();
    if (listens.length === 2) return;
    res.end(acknowledgement(message));
  });
  await driver.open();
  t.deepEqual((await driver.ask('resources/subscribe', { uri: 'x:1' })).result, {});
  await until(() => listens[0]?.writableFinished === true);
  await until(() => {
    for (let i = 0; i < 20; i++) void driver.ask('ping');
    return listens.length === 2;
  });
  listens[1]?.end();
  await driver.ask('resources/unsubscribe', { uri: 'x:1' });
  t.true(listens.length <= 3, `${listens.length} streams`);
});

test.serial('the gateway listens again when the target ends the stream', async (t) => {
  let listens = 0;
  const { driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    listens++;
    const meta = { _meta: { 'io.modelcontextprotocol/subscriptionId': message.id } };
    const event = (method: string, params: object) =>
      res.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method, params })}\n\n`);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    event('notifications/subscriptions/acknowledged', { notifications: message.params?.['notifications'] as object, ...meta });
    event('notifications/resources/updated', { uri: 'x:foreign', _meta: { 'io.modelcontextprotocol/subscriptionId': 'other' } });
    event('notifications/message', { level: 'info', data: 'x', ...meta });
    event('notifications/resources/updated', { uri: `x:${listens}`, ...meta });
    if (listens === 1) res.end();
  });
  await driver.open();
  t.deepEqual((await driver.ask('resources/subscribe', { uri: 'x:1' })).result, {});
  const stream = reader(succeeded(await driver.send({ method: 'GET' })));
  t.is((await stream.next()).params?.['uri'], 'x:1');
  t.is((await stream.next()).params?.['uri'], 'x:2');
});

test.serial(
  'the gateway listens again only for resources that are still allowed, whatever the request was that began it',
  async (t) => {
    const filters: unknown[] = [];
    const { driver } = await scripted(t, (received, res) => {
      const { message } = received;
      if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
      const notifications = message.params?.['notifications'] as { resourceSubscriptions: string[] };
      filters.push(notifications.resourceSubscriptions);
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.write(acknowledgement(message));
      if (filters.length === 2) res.end();
    });
    const denied = new Set<string>();
    const stillAllowed = (objects: readonly { resource_name: string }[] = [{ resource_name: 'of the request' }]): boolean =>
      objects.every((object) => !denied.has(object.resource_name));
    const more = { access: { ...ACCESS, stillAllowed } };
    await driver.open();
    succeeded(await driver.send({ method: 'GET' }));
    for (const uri of ['x:1', 'x:2']) t.deepEqual((await driver.ask('resources/subscribe', { uri }, more)).result, {});
    denied.add('x:1').add('of the request');
    await until(() => filters.length === 3);
    t.deepEqual((await driver.ask('resources/subscribe', { uri: 'x:3' }, more)).result, {});
    denied.clear();
    t.deepEqual((await driver.ask('resources/subscribe', { uri: 'x:4' }, more)).result, {});
    t.deepEqual(filters, [['x:1'], ['x:1', 'x:2'], ['x:2'], ['x:2', 'x:3'], ['x:1', 'x:2', 'x:3', 'x:4']]);
  },
);

test.serial(
  'for a client that is away, the gateway does not listen again until the next request, which is decided',
  async (t) => {
    const open: ServerResponse[] = [];
    const { target, driver } = await scripted(t, (received, res) => {
      const { message } = received;
      // A call that is not answered is in flight all the time.
      if (message?.method === 'tools/call') return;
      if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
      open.push(res);
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.write(acknowledgement(message));
    });
    const listens = () => target.received.filter(({ message }) => message?.method === 'subscriptions/listen').length;
    await driver.open();
    t.deepEqual((await driver.ask('resources/subscribe', { uri: 'x:1' })).result, {});
    const answer = succeeded(await driver.send({ method: 'GET' }));
    answer.discard();
    void driver.ask('tools/call', { name: 'x' }).catch(() => undefined);
    await until(() => target.received.at(-1)?.message?.method === 'tools/call');
    open.at(-1)?.end();
    // The first retry would come after a second.
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    t.is(listens(), 1);
    await driver.ask('ping');
    await until(() => listens() === 2);
    t.pass();
  },
);

for (const [what, tools] of [
  ['lists and a resource', { listChanged: true }],
  ['only a resource', {}],
] as const) {
  test.serial(
    `a stream ends when the access that listened for it has ended, and opens again with its own (${what})`,
    async (t) => {
      const open: ServerResponse[] = [];
      const capabilities = { tools, resources: { subscribe: true } };
      const plain = modernScript({
        'server/discover': { supportedVersions: ['2026-07-28'], capabilities, resultType: 'complete' },
      });
      const { driver } = await scripted(t, (received, res) => {
        const { message } = received;
        if (message?.method !== 'subscriptions/listen') return plain(received, res);
        open.push(res);
        res.writeHead(200, { 'content-type': 'text/event-stream' });
        res.write(acknowledgement(message));
      });
      let isAllowed = true;
      const other = { access: { ...ACCESS, stillAllowed: () => isAllowed } };
      await driver.open();
      const stream = reader(succeeded(await driver.send({ method: 'GET' })));
      t.deepEqual((await driver.ask('resources/subscribe', { uri: 'x:1' }, other)).result, {});
      const listens = open.length;
      isAllowed = false;
      open.at(-1)?.end();
      // The first retry comes after a second.
      await t.throwsAsync(stream.next(), { message: 'the stream has ended' });
      t.is(open.length, listens);
      succeeded(await driver.send({ method: 'GET' }));
      await until(() => open.length === listens + 1);
    },
  );
}

test.serial('a subscription that the target does not accept is refused, and the others go on', async (t) => {
  const { target, driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    const filter = message.params?.['notifications'] as { resourceSubscriptions: string[] } | undefined;
    const uris = filter?.resourceSubscriptions ?? [];
    if (uris.includes('x:broken')) return void res.writeHead(500).end();
    const notifications = { resourceSubscriptions: uris.filter((uri) => uri !== 'x:no') };
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write(acknowledgement(message, notifications));
  });
  await driver.open();
  t.is((await driver.ask('resources/subscribe', { uri: 'x:yes' })).error, undefined);
  t.like(await driver.ask('resources/subscribe', { uri: 'x:no' }), { error: { code: -32602 } });
  t.like(await driver.ask('resources/subscribe', { uri: 'x:broken' }), { error: { code: -32603 } });
  t.is((await driver.ask('resources/subscribe', { uri: 'x:also' })).error, undefined);
  const last = target.received.at(-1)?.message?.params?.['notifications'];
  t.deepEqual(last, { resourceSubscriptions: ['x:yes', 'x:also'] });
});

test.serial('the subscriptions of one user take a limited number of characters', async (t) => {
  const { driver, bridge, target } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write(acknowledgement(message));
  });
  const uri = (at: number) => `x:${at}${'x'.repeat(25_000)}`;
  const other = drive(bridge, httpTarget('streamable-http', target.url));
  for (const session of [driver, other]) await session.open();
  const subscribe = async (at: number, session = driver) => (await session.ask('resources/subscribe', { uri: uri(at) })).error;
  for (let at = 0; at < 10; at++) for (const session of [driver, other]) t.is(await subscribe(at, session), undefined);
  t.like(await subscribe(10), { code: -32602, message: 'Too many subscriptions' });
  t.is(await subscribe(9), undefined, 'it has this one');
  await driver.ask('resources/unsubscribe', { uri: uri(0) });
  t.is(await subscribe(10), undefined);
  t.like(await subscribe(11), { message: 'Too many subscriptions' });
  succeeded(await other.send({ method: 'DELETE' }));
  t.is(await subscribe(11), undefined);
});

test.serial('a stream opens again with the newest access that wanted it', async (t) => {
  const open: ServerResponse[] = [];
  const { driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    open.push(res);
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write(acknowledgement(message));
  });
  let isAllowed = true;
  const former = { access: { ...ACCESS, stillAllowed: () => isAllowed } };
  await driver.open();
  t.is((await driver.ask('resources/subscribe', { uri: 'x:1' }, former)).error, undefined);
  const stream = reader(succeeded(await driver.send({ method: 'GET' })));
  // Changes are made one after the other.
  await driver.ask('resources/unsubscribe', { uri: 'x:none' });
  isAllowed = false;
  const next = stream.next();
  open.at(-1)?.end();
  const outcome = await Promise.race([
    next.then(
      () => 'message',
      () => 'ended',
    ),
    until(() => open.length === 2).then(() => 'again'),
  ]);
  t.is(outcome, 'again');
  next.catch(() => undefined);
});

test.serial('a resource that the target did not agree to is asked for again', async (t) => {
  let exists = false;
  const { driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    const { notifications } = message.params as { notifications: { resourceSubscriptions: string[] } };
    const uris = notifications.resourceSubscriptions.filter((uri) => exists || uri !== 'x:late');
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.write(acknowledgement(message, { resourceSubscriptions: uris }));
  });
  await driver.open();
  t.is((await driver.ask('resources/subscribe', { uri: 'x:1' })).error, undefined);
  t.like(await driver.ask('resources/subscribe', { uri: 'x:late' }), { error: { code: -32602 } });
  exists = true;
  t.is((await driver.ask('resources/subscribe', { uri: 'x:late' })).error, undefined);
});

test.serial('many subscriptions are sent in parts, and what is already heard is not sent again', async (t) => {
  const open = new Map<ServerResponse, readonly string[]>();
  const sent: (readonly string[])[] = [];
  const { driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'subscriptions/listen') return modernScript({})(received, res);
    const notifications = message.params?.['notifications'] as { resourceSubscriptions: string[] };
    const uris = notifications.resourceSubscriptions;
    sent.push(uris);
    open.set(res, uris);
    res.once('close', () => open.delete(res));
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write(acknowledgement(message));
  });
  const heard = () => [...open.values()].map((uris) => uris.length);
  const change = async (how: 'subscribe' | 'unsubscribe', at: number) =>
    t.deepEqual((await driver.ask(`resources/${how}`, { uri: `x:${at}` })).result, {});
  await driver.open();
  for (let at = 0; at < 120; at++) await change('subscribe', at);
  await until(() => open.size === 3);
  t.deepEqual(heard(), [50, 50, 20]);
  const before = sent.length;
  succeeded(await driver.send({ method: 'GET' }));
  await change('unsubscribe', 60);
  t.deepEqual(
    sent.slice(before).map((uris) => uris.length),
    [49],
  );
  await change('subscribe', 200);
  t.true(sent.at(-1)?.includes('x:200'));
  for (let at = 100; at < 120; at++) await change('unsubscribe', at);
  await until(() => open.size === 2);
  for (const res of open.keys()) res.end();
  await until(() => open.size === 0);
  // The retries come after a second.
  await until(() => open.size === 2);
  t.deepEqual(heard().sort(), [50, 50]);
});

test.serial('errors are translated into the form of the session revisions', async (t) => {
  const { driver } = await modern(t);
  await driver.open();
  t.like(await driver.ask('resources/read', { uri: 'note:///missing' }), {
    error: { code: -32002, data: { uri: 'note:///missing' } } as never,
  });
  t.like(await driver.ask('acme/unknown'), { error: { code: -32601 } });
  t.like(await driver.ask('initialize'), { error: { code: -32600 } });
  t.deepEqual((await driver.ask('ping')).result, {});
  const failures = new Map<string, [number, object]>([
    ['a', [400, { code: -32021, message: 'needs more', data: { requiredCapabilities: {} } }]],
    ['b', [400, { code: -32602, message: 'bad' }]],
    ['c', [200, { code: -32050, message: 'reserved' }]],
    ['d', [200, { code: 42, message: 'own', data: [1] }]],
  ]);
  const { driver: other } = await scripted(t, (received, res) => {
    const { message } = received;
    const [status, error] = failures.get(String(message?.params?.['uri'])) ?? [];
    if (error === undefined) return modernScript({})(received, res);
    answerJson(res, { jsonrpc: '2.0', id: message?.id, error }, {}, status);
  });
  await other.open();
  const codes = [];
  for (const uri of failures.keys()) codes.push((await other.ask('resources/read', { uri })).error?.code);
  t.deepEqual(codes, [-32603, -32602, -32603, 42]);
});

test.serial('failures without a JSON-RPC answer keep their HTTP status', async (t) => {
  for (const status of [302, 401, 429, 500]) {
    const { driver } = await scripted(t, (received, res) =>
      received.message?.method === 'prompts/list'
        ? void res.writeHead(status, { location: '/x', 'retry-after': '3' }).end()
        : modernScript({})(received, res),
    );
    await driver.open();
    t.like(succeeded(await driver.post({ id: 1, method: 'prompts/list' })), { status, retryAfter: '3' });
  }
});

test.serial('a message that does not answer the request is not mistaken for its answer', async (t) => {
  for (const body of ['{"jsonrpc":"2.0","id":1,"result":{}}', 'no json', '[]', '{}']) {
    const { driver } = await scripted(t, (received, res) =>
      received.message?.method === 'prompts/list'
        ? void res.writeHead(200, { 'content-type': 'application/json' }).end(body)
        : modernScript({})(received, res),
    );
    await driver.open();
    t.like(await driver.ask('prompts/list'), { error: { code: -32603 } }, body);
  }
  const { driver } = await scripted(t, (received, res) => {
    const { message } = received;
    if (message?.method !== 'prompts/list') return modernScript({})(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const sent of [
      { id: 1, result: { forged: true } },
      { id: 'q', method: 'elicitation/create', params: {} },
      { method: 'notifications/cancelled', params: { requestId: 1 } },
      { id: message.id, result: { prompts: [] } },
    ]) {
      res.write(`data: ${JSON.stringify({ jsonrpc: '2.0', ...sent })}\n\n`);
    }
    res.end();
  });
  await driver.open();
  t.deepEqual(await collect(succeeded(await driver.post({ id: 1, method: 'prompts/list' }))), [
    { jsonrpc: '2.0', id: 1, result: { prompts: [] } },
  ]);
});

test.serial('the stream breaks off when the target breaks off', async (t) => {
  const { driver } = await scripted(t, (received, res) => {
    if (received.message?.method !== 'prompts/list') return modernScript({})(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' }).end(': nothing\n\n');
  });
  await driver.open();
  await t.throwsAsync(collect(succeeded(await driver.post({ id: 1, method: 'prompts/list' }))), { message: /too early/ });
});

/** How servers with sessions refuse a request of 2026-07-28: the first as the revision says, the others as those of older SDKs do. */
const REFUSED_BY_SESSIONS = [
  [400, { code: -32022, message: 'no', data: { supported: ['2025-11-25'], requested: '2026-07-28' } }],
  [400, { code: -32000, message: 'Bad Request: Mcp-Session-Id header is required' }],
  [404, { code: -32001, message: 'Session not found' }],
] as const;

for (const [status, error] of REFUSED_BY_SESSIONS) {
  test.serial(
    `a target that has changed its mode ends the session, and the next session uses the new mode (${error.code})`,
    async (t) => {
      let sessions = false;
      const { driver, target } = await scripted(t, (received, res) => {
        if (!sessions) return modernScript({ 'prompts/list': { prompts: [] } })(received, res);
        if (received.message?.method === 'initialize') return byMethod({})(received, res);
        answerJson(res, { jsonrpc: '2.0', id: status === 400 ? null : received.message?.id, error }, {}, status);
      });
      await driver.open();
      sessions = true;
      t.is(statusOf(await driver.post({ id: 1, method: 'prompts/list' })), 404);
      sessions = false;
      t.is(statusOf(await driver.post({ id: 1, method: 'prompts/list' })), 404);
      sessions = true;
      driver.upstreamId = null;
      await driver.open();
      t.is(driver.upstreamId as unknown, 'upstream-session-1');
      t.is(target.received.filter(({ message }) => message?.method === 'initialize').length, 2);
    },
  );
}

test.serial('an error of the target that reads like a session error is passed on', async (t) => {
  const { driver } = await scripted(t, (received, res) => {
    if (received.message?.method !== 'prompts/list') return modernScript({})(received, res);
    answerJson(res, { jsonrpc: '2.0', id: received.message.id, error: { code: -32000, message: 'full' } }, {}, 200);
  });
  await driver.open();
  t.like(await driver.ask('prompts/list'), { error: { code: -32000, message: 'full' } });
});

test.serial('a stateful target gets every message unchanged and keeps its session ids', async (t) => {
  const { driver, target } = await scripted(t, byMethod({ 'tools/list': { tools: [], ttlMs: 5 } }));
  t.like((await driver.open()).result, { serverInfo: { name: 'r' } });
  t.is(driver.upstreamId, 'upstream-session-1');
  t.deepEqual((await driver.ask('tools/list')).result, { tools: [], ttlMs: 5 });
  t.is(target.received.at(-1)?.headers['mcp-session-id'], 'upstream-session-1');
  t.deepEqual(target.seen(), ['initialize', 'notifications/initialized', 'tools/list']);
});

test.serial('a refusal is passed on if it names a session revision or the target is not one of 2026-07-28', async (t) => {
  const error = (code: number, data?: object) => ({ code, message: 'no', ...(data ? { data } : {}) });
  for (const [status, body] of [
    [400, error(-32022, { supported: ['2025-03-26', '2026-07-28'], requested: 'x' })],
    [400, error(-32600)],
    [404, error(-32601)],
    [401, error(-32600)],
  ] as const) {
    const { driver } = await scripted(t, (received, res) => {
      const { message } = received;
      // The first speaks 2026-07-28, too, and could be bridged to.
      if (message?.method !== 'initialize' && body.code === -32022) return modernScript({})(received, res);
      answerJson(res, { jsonrpc: '2.0', id: message?.id, error: body }, {}, message?.method === 'initialize' ? status : 404);
    });
    const answer = succeeded(await driver.post({ id: 'i', method: 'initialize', params: {} }));
    t.is(answer.status, status);
    t.is(answer.sessionId, null);
    t.deepEqual((await collect(answer))[0]?.error, body);
  }
});

test.serial('a session id that the bridge did not make is not accepted', async (t) => {
  const { driver, bridge, target } = await scripted(t, modernScript({ 'prompts/list': { prompts: [] } }));
  await driver.open();
  const { upstreamId } = driver;
  const at = (upstream: string, access = ACCESS) => drive(bridge, httpTarget('streamable-http', upstream), access);
  const before = target.received.length;
  for (const other of [at(`${target.url}?x`), at(target.url, { ...ACCESS, binding: 'two' })]) {
    for (const method of ['POST', 'GET', 'DELETE'] as const) {
      other.upstreamId = upstreamId;
      t.is(statusOf(await other.post({ id: 1, method: 'prompts/list' }, { method })), 404);
    }
  }
  driver.upstreamId = 'portcullis-bridge.unknown';
  t.is(statusOf(await driver.post({ id: 1, method: 'prompts/list' })), 404);
  t.is(target.received.length, before);
  // A target that uses such an id harms only itself.
  const { driver: forger } = await scripted(t, (received, res) => {
    const { id, method } = received.message ?? {};
    const result = { protocolVersion: '2025-11-25', capabilities: {}, serverInfo: { name: 'f', version: '1' } };
    if (method === 'initialize') return answerJson(res, { jsonrpc: '2.0', id, result }, { 'mcp-session-id': upstreamId ?? '' });
    answerJson(res, { jsonrpc: '2.0', id, result: {} });
  });
  const opened = succeeded(await forger.post({ id: 1, method: 'initialize', params: {} }));
  t.is(opened.sessionId, upstreamId);
  forger.upstreamId = upstreamId;
  t.is(statusOf(await forger.post({ id: 1, method: 'ping' })), 404);
  driver.upstreamId = upstreamId;
  t.is(statusOf(await driver.post({ id: 1, method: 'prompts/list' })), 200);
});

test.serial('an unused session is forgotten after a day', async (t) => {
  let now = 0;
  const { driver } = await scripted(t, modernScript({}), () => now);
  await driver.open();
  now += 23 * 60 * 60 * 1000;
  t.is(statusOf(await driver.post({ id: 1, method: 'ping' })), 200);
  now += 25 * 60 * 60 * 1000;
  t.is(statusOf(await driver.post({ id: 1, method: 'ping' })), 404);
});

/** Returns the script of a target that speaks only 2026-07-28, with these results. */
function modernScript(results: Parameters<typeof byMethod>[0]): Script {
  const capabilities = { tools: {}, resources: { subscribe: true } };
  const answer = byMethod(
    { 'server/discover': { supportedVersions: ['2026-07-28'], capabilities, resultType: 'complete' }, ...results },
    { modern: true },
  );
  return (received, res) => {
    if (received.headers['mcp-protocol-version'] === '2026-07-28') return answer(received, res);
    const data = { supported: ['2026-07-28'], requested: 'x' };
    answerJson(res, { jsonrpc: '2.0', id: received.message?.id ?? null, error: { code: -32022, message: 'no', data } }, {}, 400);
  };
}
