/** One caller takes as much of a target as it can get, and other callers are still served. */
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { createFlow, createStock } from '../../../src/base/budgets.ts';
import { createCancellation } from '../../../src/base/cancellation.ts';
import type { McpLimits } from '../../../src/mcp/limits/limits.ts';
import { createTargetReader } from '../../../src/mcp/limits/reading.ts';
import { createBridgedSessions } from '../../../src/mcp/upstream/bridge/sessions.ts';
import { createUnread } from '../../../src/mcp/upstream/unread.ts';
import type { Upstream } from '../../../src/mcp/upstream/upstream.ts';
import { ACCESS, httpTarget, LIMITS } from '../../support/upstreams/drive.ts';
import { startScriptedSse } from '../../support/upstreams/legacy-sse.ts';
import { answerText, byMethod, type Script, startRecording } from '../../support/upstreams/recording.ts';
import { until } from '../aggregate/aggregate.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, open, send } from '../raw.ts';

const rights = { alice: () => true, bob: () => true };

async function start(t: ExecutionContext, script: Script, limits: Partial<McpLimits> = {}): Promise<TestGateway> {
  const upstream = await startRecording(script);
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights, limits });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return gateway;
}

test('a call that ends with a fault of the gateway gives its slot back, and has an outcome', async (t) => {
  const upstream = await startRecording(byMethod({ 'tools/call': { content: [] } }));
  let isBroken = false;
  const usual = routed('t', upstream.url);
  const accessOf: typeof usual.accessOf = (principal) => {
    if (isBroken) throw new Error('a fault');
    return usual.accessOf(principal);
  };
  const target = routed('t', upstream.url, { accessOf });
  const gateway = await startGateway({ targets: [target], rights, limits: { callsPerPrincipal: 3 } });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const session = await open(gateway);
  const calling = async (): Promise<number> =>
    (await send(gateway, inSession(session, call('tools/call', { name: 'x' })))).status;
  isBroken = true;
  for (let i = 0; i < 5; i++) t.is(await calling(), 500);
  isBroken = false;
  t.is(await calling(), 200);
  const last = gateway.decisions
    .slice(-6)
    .map(({ id }) => gateway.outcomes.find((outcome) => outcome.decision_id === id)?.outcome);
  t.deepEqual(last, [...Array(5).fill('error'), 'ok']);
});

test('calls that a caller sends together are not all forwarded together', async (t) => {
  let underWay = 0;
  let most = 0;
  const usual = byMethod({ 'tools/call': { content: [] } });
  const gateway = await start(
    t,
    async (received, res) => {
      if (received.message?.method === 'tools/call') {
        most = Math.max(most, ++underWay);
        await sleep(100);
        underWay--;
      }
      return usual(received, res);
    },
    { callsPerPrincipal: 200 },
  );
  const session = await open(gateway);
  const calls = Array.from({ length: 160 }, (_, id) => call('tools/call', { name: 'x' }, id));
  await Promise.all(calls.map((body) => send(gateway, inSession(session, body))));
  t.true(most < 60, `${most} of 160`);
});

test('messages to a hanging target take the slots of their sender, also when the sender has left', async (t) => {
  const usual = byMethod({ 'tools/call': { content: [] } });
  let held = 0;
  let deletions = 0;
  const gateway = await start(
    t,
    (received, res) => {
      if (received.httpMethod === 'DELETE') return void deletions++;
      if (received.message?.method === 'notifications/progress') return void held++;
      return usual(received, res);
    },
    { callsPerPrincipal: 3 },
  );
  const session = await open(gateway);
  const progress = JSON.stringify({
    jsonrpc: '2.0',
    method: 'notifications/progress',
    params: { progressToken: 1, progress: 1 },
  });
  const head = ['POST /mcp/t HTTP/1.1', 'Host: x', 'Authorization: Bearer alice', `Mcp-Session-Id: ${session}`];
  const types = ['Content-Type: application/json', 'Accept: application/json, text/event-stream'];
  for (let sent = 1; sent <= 2; sent++) {
    const client = connect(Number(new URL(gateway.origin).port), '127.0.0.1');
    client.write([...head, ...types, `Content-Length: ${progress.length}`, '', progress].join('\r\n'));
    await until(() => held === sent);
    client.destroy();
  }
  void send(gateway, inSession(session, '', { method: 'DELETE' })).catch(() => undefined);
  await until(() => deletions === 1);
  const refused = await send(gateway, inSession(session, progress));
  t.is(refused.status, 429);
  t.is((await send(gateway, inSession(session, '', { method: 'DELETE' }))).status, 429);
  t.is(held, 2);
  const bob = await open(gateway, { user: 'bob' });
  t.is((await send(gateway, inSession(bob, call('tools/call', { name: 'x' }), { user: 'bob' }))).status, 200);
});

test('calls that take all slots of a user can still be cancelled', async (t) => {
  const usual = byMethod({});
  const arrived: string[] = [];
  const gateway = await start(
    t,
    (received, res) => {
      const method = received.message?.method ?? '';
      arrived.push(method);
      if (method === 'notifications/cancelled') return void res.writeHead(202).end();
      return method === 'tools/call' ? undefined : usual(received, res);
    },
    { callsPerPrincipal: 1 },
  );
  const session = await open(gateway);
  void send(gateway, inSession(session, call('tools/call', { name: 'work' }))).catch(() => undefined);
  await until(() => arrived.includes('tools/call'));
  t.is((await send(gateway, inSession(session, call('tools/call', { name: 'work' })))).status, 429);
  const cancel = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } });
  t.is((await send(gateway, inSession(session, cancel))).status, 202);
  await until(() => arrived.includes('notifications/cancelled'));
});

test('one user does not get all connections to a target of HTTP with SSE', async (t) => {
  const upstream = await startScriptedSse({});
  const gateway = await startGateway({ targets: [routed('t', upstream.url, { transport: 'sse' })], rights });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const port = Number(new URL(gateway.origin).port);
  const openStream = async (): Promise<void> => {
    const session = await open(gateway);
    const client = connect(port, '127.0.0.1').on('error', () => undefined);
    const head = ['GET /mcp/t HTTP/1.1', 'Host: x', 'Authorization: Bearer alice', 'Accept: text/event-stream'];
    client.write([...head, `Mcp-Session-Id: ${session}`, '', ''].join('\r\n'));
    await new Promise((resolve) => client.once('data', resolve));
  };
  const refused = await t.throwsAsync(async () => {
    for (let i = 0; i < 250; i++) await openStream();
  });
  t.regex(refused?.message ?? '', /reached a limit on what it keeps open for targets/);
  await t.notThrowsAsync(open(gateway, { user: 'bob' }));
});

test('neither one user nor several end sessions of others that are in use at a target that the bridge serves', (t) => {
  const http: Upstream = { send: async () => ({ fault: 'unreachable' }), close: async () => undefined };
  let ids = 0;
  const sessions = createBridgedSessions({ http, limits: LIMITS, newId: () => `${++ids}`, now: () => 0, unread: createUnread() });
  const target = httpTarget('streamable-http', 'http://127.0.0.1:1/mcp');
  const client = { info: undefined, capabilities: {} };
  const keep = (user: string) => sessions.keep({ target, access: { ...ACCESS, user } }, client, {});
  const { id } = keep('bob');
  for (let i = 0; i < 2_500; i++) keep('alice');
  t.is(sessions.use(id, { target, access: ACCESS })?.id, id);
  sessions.use(id, { target, access: ACCESS })?.running.set(1, new AbortController());
  for (const user of ['alice', '1', '2', '3', '4', '5'])
    for (let i = 0; i < 700; i++) keep(user).running.set(1, new AbortController());
  t.is(sessions.use(id, { target, access: ACCESS })?.id, id);
  sessions.endAll();
});

test('large answers for one user leave room for those of others', async (t) => {
  const unread = createUnread();
  const MIB = 1024 * 1024;
  const accounts = Array.from({ length: 400 }, () => unread.open('t', 'alice'));
  t.true(accounts.filter((account) => account.set(MIB) === null).length < 40);
  t.is(unread.open('t', 'bob').set(8 * MIB), null);
  t.is(unread.open('u', 'bob').set(8 * MIB), null);
  for (const account of accounts) account.close();
  const waiting = accounts.map(() => unread.open('t', 'alice'));
  const arrived = waiting.map((account) => account.reserve(MIB));
  t.is(await unread.open('t', 'bob').reserve(8 * MIB), null, 'it does not wait behind those of another user');
  for (const account of waiting) account.close();
  await Promise.all(arrived);
});

test('an answer that still comes after its account was closed leaves the room to others', (t) => {
  const unread = createUnread();
  const MIB = 1024 * 1024;
  for (let i = 0; i < 100; i++) {
    const account = unread.open('t', 'alice');
    account.set(MIB);
    account.close();
    t.is(account.set(MIB), null);
  }
  t.is(unread.open('t', 'bob').set(8 * MIB), null);
});

test('parts of lists have a share of what one user may have, and other answers have room beside them', async (t) => {
  const unread = createUnread();
  const MIB = 1024 * 1024;
  const parts = ['t', 'u', 'v'].flatMap((target) => Array.from({ length: 30 }, () => unread.open(target, 'alice', true)));
  const accepted = parts.filter((account) => {
    const fault = account.set(MIB);
    if (fault === null) return true;
    t.regex(fault.message, /of the lists of one user .* 16 MiB/);
    account.close();
    return false;
  }).length;
  t.true(accepted > 12 && accepted <= 18, String(accepted));
  t.is(unread.open('t', 'alice').set(8 * MIB), null);
  t.is(unread.open('t', 'bob', true).set(8 * MIB), null);
  const waiting = unread.open('t', 'alice', true);
  const arrives = waiting.reserve(4 * MIB);
  for (const account of parts) account.close();
  t.is(await arrives, null);
});

test('a user whose answers wait at several targets leaves room for others at each of them', (t) => {
  const unread = createUnread();
  const MIB = 1024 * 1024;
  const targets = ['t', 'u', 'v', 'w'];
  const accounts = targets.flatMap((target) => Array.from({ length: 64 }, () => unread.open(target, 'alice')));
  t.true(accounts.filter((account) => account.set(MIB) === null).length < 80);
  for (const target of targets) {
    const account = unread.open(target, 'bob');
    t.is(account.set(8 * MIB), null);
    account.close();
  }
});

test('the text of a large answer waits until earlier texts of its user leave it room, or nobody wants it', async (t) => {
  const MIB = 1024 * 1024;
  const flow = createFlow({ perKey: { perSecond: 1, burst: 1 }, all: { perSecond: 1, burst: 1 } }, () => 0);
  const reader = createTargetReader(flow, createUnread(), 16 * MIB);
  const wide = Buffer.from('\u4e2d'.repeat(5 * MIB));
  const [gone, never] = [createCancellation(), createCancellation()];
  let released = 0;
  const take = (user: string, ends = [never], answer: Parameters<typeof reader.roomForText>[1] = wide) =>
    reader.roomForText(user, answer, ends, () => released++);
  const [first, second] = await Promise.all([take('alice'), take('alice')]);
  t.is(released, 0);
  const order: string[] = [];
  const left = take('alice', [gone, never]).then((room) => order.push(`left ${room === null}`));
  const waiting = take('alice').then((room) => order.push(`waited ${room !== null}`));
  t.is(released, 2, 'what waits gives its own room back');
  t.is(await take('alice'), null, 'two answers of this length wait already');
  t.truthy(await take('bob'));
  gone.abort();
  await left;
  first?.();
  await waiting;
  t.deepEqual(order, ['left true', 'waited true']);
  t.is(await take('alice', [gone]), null, 'the client had left before');
  second?.();
  t.truthy(await take('carl', [gone], Buffer.alloc(40 * MIB, 'x')), 'ASCII takes one byte a character');
  t.is(await take('carl', [gone], 'x'.repeat(16 * MIB)), null, 'a string may take two');
});

test('the share of a user has room for one answer of the size that an administrator allows', async (t) => {
  const MIB = 1024 * 1024;
  const text = 'x'.repeat(40 * MIB);
  const usual = byMethod({});
  const gateway = await start(
    t,
    (received, res) => {
      const { id, method, params } = received.message ?? {};
      if (method !== 'tools/call') return usual(received, res);
      const whole = JSON.stringify({ jsonrpc: '2.0', id, result: { content: [{ type: 'text', text }] } });
      if (params?.name === 'announced') res.setHeader('content-length', whole.length);
      if (params?.name === 'event') answerText(res, `data: ${whole}\n\n`, 'text/event-stream');
      else answerText(res, whole);
    },
    { answerBytes: 64 * MIB },
  );
  const session = await open(gateway);
  for (const name of ['announced', 'in parts', 'event']) {
    const reply = await send(gateway, inSession(session, call('tools/call', { name })));
    t.true(reply.text.length > 40 * MIB, `${name}: ${reply.text.slice(0, 200)}`);
  }
});

test('an event id that cannot be sent back does not make its target unreachable for others', async (t) => {
  const usual = byMethod({ 'tools/call': { content: [] } });
  const resumed: (string | undefined)[] = [];
  const gateway = await start(t, (received, res) => {
    if (received.httpMethod !== 'GET') return usual(received, res);
    resumed.push(received.headers['last-event-id']?.toString());
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    const changed = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}';
    res.end(`id: \u00e9\u65e5\ndata: ${changed}\n\nid: \u0001\ndata: ${changed}\n\n`);
  });
  const session = await open(gateway);
  const listen = (...headers: string[]) =>
    send(gateway, inSession(session, '', { method: 'GET', headers: ['accept', 'text/event-stream', ...headers] }));
  const [sound = '', unsound = ''] = [...(await listen()).text.matchAll(/^id: (.+)$/gm)].map(([, id]) => id);
  t.is((await listen('last-event-id', sound)).status, 200);
  t.is(Buffer.from(resumed[1] ?? '', 'latin1').toString(), '\u00e9\u65e5');
  for (let i = 0; i < 3; i++) t.is((await listen('last-event-id', unsound)).status, 503);
  const bob = await open(gateway, { user: 'bob' });
  t.is((await send(gateway, inSession(bob, call('tools/call', { name: 'x' }), { user: 'bob' }))).code, undefined);
});

test('the streams of one user at the aggregate endpoint open only a limited number of streams at targets', async (t) => {
  const upstream = await startRecording(byMethod({}));
  const gateway = await startGateway({
    targets: ['a', 'b', 'c'].map((name) => routed(name, upstream.url)),
    rights,
    limits: { targetStreamsPerPrincipal: 7 },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const port = Number(new URL(gateway.origin).port);
  const openStream = async (user: string): Promise<string> => {
    const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } };
    const opened = await send(gateway, { path: '/mcp', user, body: call('initialize', params) });
    const client = connect(port, '127.0.0.1').on('error', () => undefined);
    const head = ['GET /mcp HTTP/1.1', 'Host: x', `Authorization: Bearer ${user}`, 'Accept: text/event-stream'];
    client.write([...head, `Mcp-Session-Id: ${opened.headers['mcp-session-id']}`, '', ''].join('\r\n'));
    return new Promise((resolve) => client.once('data', (data) => resolve(data.toString().slice(9, 12))));
  };
  t.deepEqual([await openStream('alice'), await openStream('alice'), await openStream('alice')], ['200', '200', '429']);
  t.is(await openStream('bob'), '200');
});

for (const [what, length, text] of [
  ['ASCII', 100_000, 'a'.repeat(40_000)],
  ['two bytes a character', 200_000, `${'a'.repeat(40_000)}\u4e2d`],
  ['many parts', 1_000_000, 'a'.repeat(400_000)],
] as const) {
  test(`the answers of a batch wait for each other only as far as the caller has room for them: ${what}`, async (t) => {
    const script = byMethod({ 'tools/call': { content: [{ type: 'text', text }] } });
    const gateway = await start(t, script, { waitingBytesOfPrincipal: length });
    const session = await open(gateway, { revision: '2025-03-26' });
    const batch = [1, 2, 3].map((id) => call('tools/call', { name: 'x' }, id));
    for (const round of ['first', 'after the first has given its room back']) {
      const { status, text: answer } = await send(gateway, inSession(session, batch));
      const answers = JSON.parse(answer) as {
        id: number;
        result?: { content: { text: string }[] };
        error?: { message: string };
      }[];
      const kinds = answers.map(({ result, error }) => error?.message.slice(0, 28) ?? result?.content[0]?.text === text);
      t.is(status, 200, round);
      t.deepEqual(kinds.sort(), ['The answers to this batch, o', true, true], round);
      t.deepEqual(
        answers.map(({ id }) => id),
        [1, 2, 3],
      );
    }
  });
}

test('the pages of a list at the aggregate endpoint wait for each other only as far as the caller has room for them', async (t) => {
  const tools = [{ name: 'x', description: 'a'.repeat(60_000), inputSchema: { type: 'object' } }];
  const upstream = await startRecording(byMethod({ 'tools/list': { tools } }));
  const gateway = await startGateway({
    targets: [routed('t', upstream.url), routed('u', upstream.url)],
    rights,
    limits: { waitingBytesOfPrincipal: 100_000 },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const path = '/mcp';
  const opened = await send(gateway, {
    path,
    body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } }),
  });
  const session = String(opened.headers['mcp-session-id']);
  for (const round of ['first', 'after the first has given its room back']) {
    const { text } = await send(gateway, inSession(session, call('tools/list'), { path }));
    const { result } = JSON.parse(text) as { result: { tools: object[]; _meta?: Record<string, string[]> } };
    t.is(result.tools.length, 1, round);
    t.is(result._meta?.['portcullis/unavailable']?.length, 1, round);
  }
});

test('a call whose stream broke off and can be resumed takes no slot', async (t) => {
  const usual = byMethod({});
  const gateway = await start(
    t,
    (received, res) => {
      if (received.message?.method !== 'tools/call') return usual(received, res);
      res.writeHead(200, { 'content-type': 'text/event-stream' }).end('id: 1\ndata: \n\n');
    },
    { callsPerPrincipal: 2 },
  );
  const session = await open(gateway);
  for (let sent = 1; sent <= 4; sent++) {
    t.is((await send(gateway, inSession(session, call('tools/call', { name: 'work' })))).status, 200, `call ${sent}`);
  }
});

test('an account that was refused once still counts for every budget', (t) => {
  const MIB = 1024 * 1024;
  const stock = createStock('unread answers', { perKey: 64 * MIB, all: 128 * MIB });
  const unread = createUnread(0, stock);
  const targets = Array.from({ length: 8 }, (_, i) => `t${i}`);
  const full = [...targets.map((target) => [target, 13] as const), ['u', 11.8] as const].map(([target, size]) => {
    const account = unread.open(target, null);
    t.is(account.set(size * MIB), null);
    return account;
  });
  const refused = targets.map((target) => unread.open(target, null));
  for (const account of refused) t.not(account.set(MIB), null);
  for (const account of refused) t.not(account.set(8 * MIB), null, 'there is still no room');
  for (const account of full) account.close();
  t.true(stock.taken < 1);
  t.is(refused[0]?.set(8 * MIB), null);
  t.true(stock.taken > 7 * MIB);
});
