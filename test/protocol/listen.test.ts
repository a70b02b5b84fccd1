/** `subscriptions/listen`: what of it reaches the target, what comes back, and how it ends. */
import type { ServerResponse } from 'node:http';
import { request } from 'node:http';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import type { McpDeps } from '../../src/mcp/endpoint.ts';
import type { McpLimits } from '../../src/mcp/limits/limits.ts';
import { createSseReader } from '../../src/protocol/sse.ts';
import type { RoutedTarget } from '../../src/targets/target.ts';
import { admissionOf, routed, startGateway, type TestGateway } from '../mcp/gateway.ts';
import { modern, type Raw, send } from '../mcp/raw.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';

const ID = 'io.modelcontextprotocol/subscriptionId';
const PUBLIC = ['file:///public/a', 'file:///public/b'];

interface Listening {
  readonly gateway: TestGateway;
  /** The filter that reached the target. */
  forwarded(): unknown;
  /** Sends a notification down the target's stream. */
  say(method: string, params?: object): void;
  /** The next message that the client hears. */
  hear(): Promise<{ method?: string; params?: Record<string, unknown>; result?: object }>;
}

function listenRequest(notifications: unknown, id: unknown = 'sub-1'): Raw {
  return modern('subscriptions/listen', { notifications } as object, { id });
}

type DepsAt = (targets: ReadonlyMap<string, RoutedTarget>) => Partial<McpDeps>;

async function setUp(t: ExecutionContext, limits: Partial<McpLimits> = {}, depsAt: DepsAt = () => ({})) {
  const streams: ServerResponse[] = [];
  const plain = byMethod({}, { modern: true });
  const upstream = await startRecording((received, res) => {
    if (received.message?.method !== 'subscriptions/listen') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.flushHeaders();
    streams.push(res);
  });
  const target = routed('t', upstream.url);
  const gateway = await startGateway({
    targets: [target],
    rights: { alice: ({ resource_name }) => resource_name.startsWith('file:///public/') },
    limits: { watchMs: 50, ...limits },
    deps: depsAt(new Map([['t', target]])),
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, upstream, streams };
}

async function listen(t: ExecutionContext, notifications: object, depsAt?: DepsAt): Promise<Listening> {
  const { gateway, upstream, streams } = await setUp(t, {}, depsAt);
  const raw = listenRequest(notifications);
  const heard: object[] = [];
  let wake = (): void => {};
  const reader = createSseReader(1_000_000);
  const headers = [
    'host',
    new URL(gateway.origin).host,
    'authorization',
    'Bearer alice',
    'content-type',
    'application/json',
    'accept',
    'application/json, text/event-stream',
  ];
  const req = request(gateway.url('t'), { method: 'POST', headers: [...headers, ...(raw.headers ?? [])] as never });
  req.on('error', () => undefined);
  req.on('response', (res) => {
    res.on('data', (chunk: Buffer) => {
      for (const event of reader.push(chunk)) if (event.data !== '') heard.push(JSON.parse(event.data));
      wake();
    });
    res.on('error', () => undefined);
  });
  req.end(JSON.stringify(raw.body));
  t.teardown(() => void req.destroy());
  while (streams.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  return {
    gateway,
    forwarded: () =>
      upstream.received.find(({ message }) => message?.method === 'subscriptions/listen')?.message?.params?.['notifications'],
    say: (method, params = {}) => {
      const message = { jsonrpc: '2.0', method, params: { _meta: { [ID]: 'sub-1' }, ...params } };
      streams[0]?.write(`data: ${JSON.stringify(message)}\n\n`);
    },
    async hear() {
      while (heard.length === 0) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
      return heard.shift() as never;
    },
  };
}

test.serial('the target gets only the allowed part of a listening filter, and that part is recorded', async (t) => {
  const uris = [...PUBLIC, 'file:///secret/s', 'file:///public/../secret/s', 'FILE:///public/a', PUBLIC[0]];
  const { gateway, forwarded } = await listen(t, {
    toolsListChanged: true,
    promptsListChanged: 'yes',
    taskIds: ['x'],
    resourceSubscriptions: uris,
  });
  t.deepEqual(forwarded(), { toolsListChanged: true, resourceSubscriptions: PUBLIC });
  t.deepEqual(gateway.audited(), ['subscriptions/listen allow']);
  t.like(gateway.shown[0], { resource_type: 'resource', names: PUBLIC, hidden: 1 });
});

test.serial('the acknowledgement names only what the gateway asked of the target', async (t) => {
  const { say, hear } = await listen(t, { toolsListChanged: true, resourceSubscriptions: PUBLIC });
  say('notifications/subscriptions/acknowledged', {
    notifications: {
      toolsListChanged: true,
      promptsListChanged: true,
      resourceSubscriptions: [PUBLIC[0], 'file:///secret/s'],
      taskIds: ['x'],
    },
  });
  const { method, params } = await hear();
  t.is(method, 'notifications/subscriptions/acknowledged');
  t.deepEqual(params?.['notifications'], { toolsListChanged: true, resourceSubscriptions: [PUBLIC[0]] });
});

test.serial(
  'a listening stream carries only its own requested notifications, about resources that the caller may read now',
  async (t) => {
    const { gateway, say, hear } = await listen(t, { toolsListChanged: true, resourceSubscriptions: PUBLIC });
    say('notifications/prompts/list_changed');
    say('notifications/tools/list_changed', { _meta: { [ID]: 'another' } });
    say('notifications/tools/list_changed', { _meta: {} });
    say('notifications/message', { level: 'info', data: 'x' });
    say('notifications/resources/updated', { uri: 'file:///secret/s' });
    say('notifications/resources/updated', { uri: 'file:///public/../secret/s' });
    say('notifications/resources/updated', { uri: 'file:///public/a/child' });
    t.like((await hear()).params, { uri: 'file:///public/a/child' }, 'everything before it was dropped');
    say('notifications/tools/list_changed');
    t.is((await hear()).method, 'notifications/tools/list_changed');
    gateway.rights.set('alice', () => false);
    say('notifications/resources/updated', { uri: PUBLIC[0] });
    say('notifications/tools/list_changed');
    t.is((await hear()).method, 'notifications/tools/list_changed');
  },
);

test.serial('a change of policies while a subscription is opened is told after its acknowledgement', async (t) => {
  let revision = 1;
  let looks = 0;
  const { say, hear } = await listen(t, { toolsListChanged: true }, (targets) => ({
    admit: async () => {
      looks++;
      return admissionOf('alice', targets, () => true, { revision });
    },
  }));
  revision = 2;
  const before = looks;
  // The re-validation has heard of the change when it looks again.
  while (looks < before + 4) await new Promise((resolve) => setTimeout(resolve, 5));
  say('notifications/subscriptions/acknowledged', { notifications: { toolsListChanged: true } });
  t.is((await hear()).method, 'notifications/subscriptions/acknowledged');
  t.is((await hear()).method, 'notifications/tools/list_changed');
  revision = 3;
  t.is((await hear()).method, 'notifications/tools/list_changed');
});

for (const [what, lose] of [
  ['the token is revoked', (gateway: TestGateway) => void gateway.revoked.add('alice')],
  ['the target may no longer be used', (gateway: TestGateway) => void gateway.rights.delete('alice')],
  ['the gateway shuts down', (gateway: TestGateway) => gateway.endStreams()],
] as const) {
  test.serial(`a silent subscription gets its final result when ${what}`, async (t) => {
    const { gateway, say, hear } = await listen(t, { toolsListChanged: true });
    say('notifications/subscriptions/acknowledged', { notifications: { toolsListChanged: true } });
    await hear();
    lose(gateway);
    const { result } = await hear();
    t.deepEqual(result, { resultType: 'complete', _meta: { [ID]: 'sub-1' } });
  });
}

test.serial('a malformed listening filter is refused, and nothing is forwarded or recorded', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const many = Array.from({ length: 1001 }, (_, i) => `file:///public/${i}`);
  for (const notifications of [
    undefined,
    [],
    'all',
    { resourceSubscriptions: 'file:///a' },
    { resourceSubscriptions: [1] },
    { resourceSubscriptions: [''] },
    { resourceSubscriptions: many },
  ]) {
    const reply = await send(gateway, listenRequest(notifications));
    t.deepEqual([reply.status, reply.code], [400, -32602], JSON.stringify(notifications)?.slice(0, 60));
  }
  t.is(upstream.received.length, 0);
  t.deepEqual(gateway.audited(), []);
});

test.serial('a subscription that cannot be recorded is refused', async (t) => {
  const { gateway, upstream } = await setUp(t);
  gateway.auditDown = true;
  t.is((await send(gateway, listenRequest({ resourceSubscriptions: PUBLIC }))).status, 503);
  t.is(upstream.received.length, 0);
});

test.serial('a client that disconnects before its subscription is read holds no slot for a stream', async (t) => {
  const { gateway, streams } = await setUp(t, { streamsPerPrincipal: 1 });
  const padded = (notifications: unknown): Raw => {
    const raw = listenRequest(notifications);
    return { ...raw, body: JSON.stringify(raw.body) + ' '.repeat(2_000_000) };
  };
  const { headers = [], body } = padded({ toolsListChanged: true });
  const lines = headers.flatMap((name, at) => (at % 2 === 0 ? [`${name}: ${headers[at + 1]}`] : []));
  const usual = [
    'Host: x',
    'Authorization: Bearer alice',
    'Content-Type: application/json',
    'Accept: application/json, text/event-stream',
  ];
  const socket = connect(Number(new URL(gateway.origin).port), '127.0.0.1');
  socket.end(
    ['POST /mcp/t HTTP/1.1', ...usual, ...lines, `Content-Length: ${String(body).length}`, '', String(body)].join('\r\n'),
  );
  await text(socket);
  // It is read after the first one.
  t.is((await send(gateway, padded('no filter'))).status, 400);
  const next = listenRequest({ toolsListChanged: true });
  const reply = send(gateway, next).catch(() => null);
  while (streams.length === 0 && (await Promise.race([reply, new Promise((resolve) => setTimeout(resolve, 10))])) == null);
  t.is(streams.length, 1);
});
