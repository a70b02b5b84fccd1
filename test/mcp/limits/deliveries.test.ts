/** Limits for messages that targets send without being asked: how many are decided and read, and whose limit they use. */
import test, { type ExecutionContext } from 'ava';
import { createDeliveries } from '../../../src/mcp/limits/deliveries.ts';
import { DEFAULT_LIMITS, type McpLimits } from '../../../src/mcp/limits/limits.ts';
import { listen, until } from '../../support/listener.ts';
import { byMethod, startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, open, send } from '../raw.ts';

type Limits = McpLimits['deliveries'];

/** The budget hardly recovers while a test runs. */
const rate = (burst: number) => ({ perSecond: 0.001, burst });
const rates = (pair: number, target = 1_000, all = 10_000) => ({ pair: rate(pair), target: rate(target), all: rate(all) });
const UPDATES = 40;

/** A target that sends many updates before it answers a call. */
async function setUp(t: ExecutionContext, deliveries: Limits): Promise<{ gateway: TestGateway; dropped: () => number }> {
  const plain = byMethod({});
  let dropped = 0;
  const upstream = await startRecording((received, res) => {
    if (received.message?.method !== 'tools/call') return plain(received, res);
    const update = { method: 'notifications/resources/updated', params: { uri: received.message.params?.['name'] } };
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    for (let i = 0; i < UPDATES; i++) res.write(`data: ${JSON.stringify({ jsonrpc: '2.0', ...update })}\n\n`);
    res.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: received.message.id, result: { content: [] } })}\n\n`);
  });
  const gateway = await startGateway({
    targets: [routed('t', upstream.url), routed('u', upstream.url)],
    rights: { alice: ({ resource_type }) => resource_type === 'tool', bob: () => true },
    limits: { deliveries },
    deps: { undelivered: () => void dropped++ },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, dropped: () => dropped };
}

async function flood(gateway: TestGateway, user: string, target = 't'): Promise<string> {
  const session = await open(gateway, { user, target });
  const raw = inSession(session, call('tools/call', { name: 'file:///a' }), { user, path: `/mcp/${target}` });
  return (await send(gateway, raw)).text;
}

test.serial('a decision on a notification is recorded once, as a delivery', async (t) => {
  const { gateway } = await setUp(t, DEFAULT_LIMITS.deliveries);
  const text = await flood(gateway, 'alice');
  t.regex(text, /"result":\{"content":\[\]\}/);
  t.false(text.includes('resources/updated'));
  t.is(gateway.delivered.length, UPDATES);
  const updates = gateway.decisions.filter(({ method }) => method === 'notifications/resources/updated');
  t.deepEqual(gateway.delivered, updates);
});

test.serial('too many updates for one user are dropped undecided, and the answer still arrives', async (t) => {
  const { gateway, dropped } = await setUp(t, { ...DEFAULT_LIMITS.deliveries, decided: rates(9) });
  for (const user of ['alice', 'bob']) {
    const before = [gateway.delivered.length, dropped()] as const;
    t.regex(await flood(gateway, user), /"result":\{"content":\[\]\}/);
    t.deepEqual([gateway.delivered.length - before[0], dropped() - before[1]], [10, UPDATES - 10], user);
  }
  const told = gateway.logged.filter((line) => /dropped undecided/.test(JSON.stringify(line)));
  t.is(told.length, 1, 'one line per minute and target');
});

test.serial('the updates of one target do not use up the share of another', async (t) => {
  const { gateway } = await setUp(t, { ...DEFAULT_LIMITS.deliveries, decided: rates(29, 19, 1_000) });
  await flood(gateway, 'bob');
  t.is(gateway.delivered.length, 20, 'the target has used up its share');
  const updates = (text: string) => text.match(/resources\/updated/g)?.length ?? 0;
  t.is(updates(await flood(gateway, 'bob', 'u')), 20);
});

test.serial('a target that sends too many messages is read more slowly, and none is lost', async (t) => {
  const { gateway } = await setUp(t, { ...DEFAULT_LIMITS.deliveries, messages: rates(UPDATES - 2) });
  const text = await flood(gateway, 'bob');
  t.is(text.match(/resources\/updated/g)?.length, UPDATES);
  t.true(gateway.logged.some((line) => /read more slowly/.test(JSON.stringify(line))));
});

/** A target that sends all of these messages at once, on the stream of a call and on the standalone stream. The gateway reads them slowly. */
async function chatty(t: ExecutionContext, method: string, limits: Partial<McpLimits>) {
  const plain = byMethod({});
  const text = `data: ${JSON.stringify({ jsonrpc: '2.0', method, params: { level: 'info', data: 'x' } })}\n\n`;
  const upstream = await startRecording((received, res) => {
    if (received.httpMethod !== 'GET' && received.message?.method !== 'tools/call') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.write(text.repeat(10));
  });
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights: { alice: () => true }, limits });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const headers = { 'mcp-session-id': await open(gateway) };
  const isSlow = () => gateway.logged.some((line) => /read more slowly/.test(JSON.stringify(line)));
  return { gateway, headers, waits: () => until('a message waits', isSlow) };
}

test.serial('a call whose token is revoked delivers none of the messages that wait', async (t) => {
  const deliveries = { ...DEFAULT_LIMITS.deliveries, messages: rates(3) };
  const { gateway, headers, waits } = await chatty(t, 'notifications/message', { watchMs: 20, deliveries });
  const stream = await listen(t, gateway.url('t'), 'alice', { method: 'POST', headers, body: call('tools/call', { name: 'x' }) });
  await waits();
  gateway.revoked.add('alice');
  await stream.ended;
  // The fourth message waits a second before the fifth is read.
  t.true(stream.heard.length < 8, `${stream.heard.length} messages`);
});

test.serial('news of a changed list that waits is not delivered to a caller who may no longer use the target', async (t) => {
  const deliveries = { ...DEFAULT_LIMITS.deliveries, lists: rates(3) };
  const { gateway, headers, waits } = await chatty(t, 'notifications/tools/list_changed', { watchMs: 60_000, deliveries });
  const stream = await listen(t, gateway.url('t'), 'alice', { headers });
  await waits();
  gateway.rights.delete('alice');
  await stream.ended;
  t.is(stream.heard.length, 3);
});

test.serial('events without a message also count', async (t) => {
  const plain = byMethod({});
  const upstream = await startRecording((received, res) => {
    if (received.message?.method !== 'tools/call') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.write('id: 1\n\n'.repeat(UPDATES));
    res.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: received.message.id, result: { content: [] } })}\n\n`);
  });
  const deliveries = { ...DEFAULT_LIMITS.deliveries, messages: rates(UPDATES - 2) };
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { bob: () => true },
    limits: { deliveries },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const text = await flood(gateway, 'bob');
  t.is(text.match(/^id: /gm)?.length, UPDATES);
  t.regex(text, /"result":\{"content":\[\]\}/);
  t.true(gateway.logged.some((line) => /read more slowly/.test(JSON.stringify(line))));
});

test.serial('messages within the share do not wait', (t) => {
  let now = 0;
  const log = { warn: () => undefined };
  const deliveries = createDeliveries({
    limits: { ...DEFAULT_LIMITS.deliveries, messages: { ...rates(100), pair: { perSecond: 10, burst: 20 } } },
    log,
    now: () => now,
    onDropped: () => undefined,
  });
  const target = { id: 't', name: 't' };
  for (let i = 0; i < 20; i++) t.is(deliveries.pace('alice', target, 10), null);
  t.truthy(deliveries.pace('alice', target, 10));
  t.is(deliveries.pace('bob', target, 10), null);
  now = 3_000;
  t.is(deliveries.pace('alice', target, 10), null);
});

test.serial('a large message counts as many, and many at once are read one after the other', (t) => {
  let now = 0;
  const deliveries = createDeliveries({
    limits: { ...DEFAULT_LIMITS.deliveries, messages: rates(1_000), rush: { ...rates(100), pair: { perSecond: 10, burst: 20 } } },
    log: { warn: () => t.fail('a target within its limits is not logged') },
    now: () => now,
    onDropped: () => undefined,
  });
  const target = { id: 't', name: 't' };
  t.is(deliveries.pace('alice', target, 80 * 1024), null);
  t.truthy(deliveries.pace('alice', target, 0));
  t.is(deliveries.pace('bob', target, 0), null);
  now = 3_000;
  t.is(deliveries.pace('alice', target, 0), null);
});

test.serial('a target that does not read refusals gets only a few', async (t) => {
  const plain = byMethod({});
  const upstream = await startRecording((received, res) => {
    const { message } = received;
    // The target does not answer this refusal.
    if (message?.error !== undefined) return;
    if (message?.method !== 'tools/call') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    for (let id = 0; id < 100; id++) res.write(`data: ${JSON.stringify({ jsonrpc: '2.0', id, method: 'roots/list' })}\n\n`);
    res.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: message.id, result: { content: [] } })}\n\n`);
  });
  const gateway = await startGateway({
    targets: [routed('t', upstream.url, { may_ask: [] })],
    rights: { alice: () => true },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  await flood(gateway, 'alice');
  t.true(await flood(gateway, 'alice').then((text) => /"result"/.test(text)));
  const refused = () => upstream.received.filter(({ message }) => message?.error !== undefined).length;
  await until('the refusals have arrived', () => refused() >= 32);
  t.is(refused(), 32);
});

test.serial('messages of a target to one principal do not delay messages of any target to others', (t) => {
  let now = 0;
  const limits = DEFAULT_LIMITS.deliveries;
  const parts = { limits, log: { warn: () => undefined }, now: () => now, onDropped: () => undefined };
  const deliveries = createDeliveries(parts);
  const [shared, other] = [
    { id: 't', name: 't' },
    { id: 'u', name: 'u' },
  ];
  for (; now < 60_000; now += 100) {
    deliveries.pace('alice', shared, 8 * 1024 * 1024);
    t.is(deliveries.pace('bob', shared, 100), null);
    t.is(deliveries.pace('bob', other, 100), null);
    for (let i = 0; i < 10; i++) deliveries.mayDecide('alice', shared);
    t.true(now % 1_000 !== 0 || deliveries.mayDecide('bob', shared));
  }
});

test.serial('a target that sends to many principals does not exceed its own rate by much', (t) => {
  let now = 0;
  const deliveries = createDeliveries({
    limits: DEFAULT_LIMITS.deliveries,
    log: { warn: () => undefined },
    now: () => now,
    onDropped: () => undefined,
  });
  const target = { id: 't', name: 't' };
  const principals = Array.from({ length: 50 }, (_, i) => `user${i}`);
  // The target always has one more message for each principal, which is read as soon as the limits allow.
  const free = new Map(principals.map((name) => [name, 0]));
  let read = 0;
  let decided = 0;
  for (; now < 10_000; now += 10) {
    for (const name of principals) {
      if (now < (free.get(name) ?? 0)) continue;
      read++;
      if (deliveries.mayDecide(name, target)) decided++;
      if (deliveries.pace(name, target, 10) !== null) free.set(name, now + 500);
    }
  }
  const { messages, decided: limit } = DEFAULT_LIMITS.deliveries;
  t.true(read <= messages.target.burst + 10 * messages.target.perSecond, `${read} messages`);
  t.true(decided <= limit.target.burst + 4 * 10 * limit.target.perSecond, `${decided} decisions`);
});

test('news of changed lists is read slowly beyond a number, for each principal and target', (t) => {
  const deliveries = createDeliveries({
    ...{ limits: { ...DEFAULT_LIMITS.deliveries, lists: rates(3) }, log: { warn: () => undefined } },
    ...{ now: () => 0, onDropped: () => undefined },
  });
  const [target, other] = [routed('t', 'http://127.0.0.1:1/'), routed('u', 'http://127.0.0.1:1/')];
  for (let i = 0; i < 3; i++) t.is(deliveries.paceList('alice', target), null);
  t.not(deliveries.paceList('alice', target), null);
  t.is(deliveries.paceList('alice', other), null);
  t.is(deliveries.paceList('bob', target), null);
});

test.serial('a target that says again and again that its lists have changed is read slowly', async (t) => {
  const plain = byMethod({});
  const upstream = await startRecording((received, res) => {
    if (received.message?.method !== 'tools/call') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.write('data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'.repeat(5));
    res.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: received.message.id, result: { content: [] } })}\n\n`);
  });
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: () => true },
    limits: { deliveries: { ...DEFAULT_LIMITS.deliveries, lists: rates(3) } },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const began = performance.now();
  const text = await flood(gateway, 'alice');
  t.is(text.match(/list_changed/g)?.length, 5);
  t.regex(text, /"result":\{"content":\[\]\}/);
  t.true(performance.now() - began >= 1_900, 'two of five come a second late each');
});
