/** What happens to calls and streams when a right ends, and what disconnected clients leave behind. */
import { once } from 'node:events';
import { type ClientRequest, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test, { type ExecutionContext } from 'ava';
import type { Engine } from '../../src/engine/decision.ts';
import type { McpLimits } from '../../src/mcp/limits/limits.ts';
import type { Admission } from '../../src/state/admission.ts';
import { admissionOf, ISSUER, routed, startGateway, type TestGateway } from '../mcp/gateway.ts';
import { call, inSession, modern, open, send } from '../mcp/raw.ts';
import { until } from '../support/listener.ts';
import { byMethod, type Message, startRecording } from '../support/upstreams/recording.ts';

const HELLO = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } };

const silent = (res: ServerResponse): void => {
  res.writeHead(200, { 'content-type': 'text/event-stream' });
  res.flushHeaders();
};

/** Starts a gateway whose target `t` opens standalone streams and answers of calls, and sends nothing on them. */
async function setUp(t: { teardown(stop: () => Promise<void>): void }, limits: Partial<McpLimits> = {}, isModern = false) {
  const plain = byMethod({}, { modern: isModern });
  const calls: { message: Message; res: ServerResponse }[] = [];
  const upstream = await startRecording((received, res) => {
    if (received.httpMethod !== 'GET' && received.message?.method !== 'tools/call') return plain(received, res);
    silent(res);
    if (received.message) calls.push({ message: received.message, res });
  });
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights: { alice: () => true }, limits });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, upstream, calls };
}

const standing = (gateway: TestGateway, session: string): ClientRequest => {
  const headers = { authorization: 'Bearer alice', accept: 'text/event-stream', 'mcp-session-id': session };
  const req = request(gateway.url('t'), { headers }).end();
  req.on('error', () => undefined);
  return req;
};

for (const [what, lose] of [
  ['its token is revoked', (gateway: TestGateway) => void gateway.revoked.add('alice')],
  ['its target is gone', (gateway: TestGateway) => void gateway.targets.delete('t')],
  ['policy takes its target', (gateway: TestGateway) => void gateway.rights.delete('alice')],
] as const) {
  test.serial(`a standalone stream on which nothing is sent ends when ${what}`, async (t) => {
    const { gateway } = await setUp(t, { watchMs: 50 });
    const req = standing(gateway, await open(gateway));
    const [res] = await once(req, 'response');
    lose(gateway);
    await once(res.resume(), 'close', { signal: AbortSignal.timeout(10_000) });
    t.pass();
  });
}

for (const isModern of [false, true]) {
  test.serial(`a revoked token ends a call in flight, ${isModern ? '2026-07-28' : 'in a session'}`, async (t) => {
    const { gateway, calls } = await setUp(t, { watchMs: 50 }, isModern);
    const raw = isModern
      ? modern('tools/call', { name: 'ok' })
      : inSession(await open(gateway), call('tools/call', { name: 'ok' }));
    const reply = send(gateway, raw);
    while (calls.length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
    const ended = gateway.outcomes.length;
    gateway.revoked.add('alice');
    for (const deadline = performance.now() + 10_000; gateway.outcomes.length === ended && performance.now() < deadline; )
      await new Promise((resolve) => setTimeout(resolve, 10));
    for (const { message, res } of calls) {
      res.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: message.id, result: { content: ['late'] } })}\n\n`);
    }
    t.notRegex((await reply).text, /late/);
    t.is(gateway.outcomes.at(-1)?.outcome, 'cancelled');
  });
}

test.serial('a target that has moved gets nothing for sessions with its old address', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const elsewhere = await startRecording(byMethod({ 'tools/list': { tools: [] } }));
  t.teardown(() => elsewhere.stop());
  gateway.targets.set('t', routed('t', upstream.url, { url: elsewhere.url }));
  t.is((await send(gateway, inSession(session, call('tools/list')))).status, 404);
  t.is((await send(gateway, { method: 'DELETE', headers: ['mcp-session-id', session] })).status, 404);
  t.deepEqual(elsewhere.seen(), []);
});

test.serial('a list that is too long to be decided at once is refused', async (t) => {
  const tools = Array.from({ length: 10_001 }, (_, i) => ({ name: `t${i}` }));
  const upstream = await startRecording(byMethod({ 'tools/list': { tools } }));
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights: { alice: () => true } });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  t.is((await send(gateway, inSession(await open(gateway), call('tools/list')))).code, -32603);
});

const NO_RULES = { ended: new Set<string>(), epochOf: () => 0 };

test.serial('clients that disconnect during admission hold no slots', async (t) => {
  const admitting = async (sub: string): Promise<Admission> => {
    await new Promise((resolve) => setTimeout(resolve, 50));
    const allow = { effect: 'allow', reason: 'matched', policy: { id: 'p', name: 'p', priority: 1 } } as const;
    const engine = {
      ...{ revision: 1, dataHash: 'd', engineHash: 'e' },
      decide: () => allow,
      decideMany: () => [],
      estimate: () => 0,
      decideTarget: () => allow,
    };
    const principal = {
      issuer: ISSUER,
      sub,
      email: 'a@x.test',
      role: 'user',
      groups: [],
      granted: { role: 'user', groups: [] },
      token_id: 't',
      token_kind: 'api',
      issued_at: null,
      limits: null,
    } as const;
    return {
      principal,
      snapshot: {
        ...{ sequence: 1, engine, sessions: NO_RULES, rights: [], providers: new Map() },
        targets: new Map([['t', routed('t', upstream.url)]]),
      },
    };
  };
  const plain = byMethod({});
  const upstream = await startRecording((received, res) => (received.httpMethod === 'GET' ? silent(res) : plain(received, res)));
  const gateway = await startGateway({
    targets: [],
    rights: {},
    limits: { streamsPerPrincipal: 4 },
    deps: { admit: ({ sub }) => admitting(sub) },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const session = await open(gateway);
  for (let i = 0; i < 8; i++) {
    const req = standing(gateway, session);
    await new Promise((resolve) => setTimeout(resolve, 25));
    req.destroy();
  }
  // The gateway notices a disconnected client after a while. Without that, its slot would be held for ever.
  let status: number | undefined;
  for (const deadline = performance.now() + 10_000; status !== 200 && performance.now() < deadline; ) {
    const req = standing(gateway, session);
    const [res] = await once(req, 'response');
    status = res.statusCode;
    req.destroy();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  t.is(status, 200);
});

test.serial('a principal with too many calls in flight is refused, and a slot is free again however its call ends', async (t) => {
  const { gateway, calls } = await setUp(t, { callsPerPrincipal: 2 });
  const session = await open(gateway);
  const ok = (id: number) => inSession(session, call('tools/call', { name: 'ok' }, id));
  const answer = (at: number) => {
    const { message, res } = calls[at] as (typeof calls)[number];
    res.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: message.id, result: { content: [] } })}\n\n`);
  };
  for (let round = 0; round < 3; round++) {
    const at = calls.length;
    const waiting = [send(gateway, ok(at + 1)), send(gateway, ok(at + 2))];
    while (calls.length < at + 2) await new Promise(setImmediate);
    const third = await send(gateway, ok(at + 3));
    t.is(third.status, 429);
    t.truthy(third.headers['retry-after']);
    // One is answered, the target breaks the other off.
    answer(at);
    calls[at + 1]?.res.destroy();
    for (const { status } of await Promise.all(waiting)) t.is(status, 200);
    // Refused before they reach the target: a denied one, one of no session, a method that is none.
    gateway.rights.delete('alice');
    await send(gateway, ok(97));
    gateway.rights.set('alice', () => true);
    await send(gateway, inSession('no-session', call('tools/call', { name: 'ok' }, 98)));
    await send(gateway, inSession(session, call('no/method', {}, 99)));
  }
});

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

test.serial('a stream holds no message that it has passed on', async (t) => {
  const [length, streams] = [5_000_000, 6];
  const plain = byMethod({});
  const upstream = await startRecording((received, res) => {
    if (received.httpMethod !== 'GET' && received.message?.method !== 'tools/call') return plain(received, res);
    silent(res);
    const params = `{"level":"info","data":"${'x'.repeat(length)}"}`;
    res.write(`data: {"jsonrpc":"2.0","method":"notifications/message","params":${params}}\n\n`);
  });
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights: { alice: () => true } });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  /** Resolves when the client has the message. The stream goes on. */
  const begin = async (path: string, method: 'GET' | 'POST'): Promise<ClientRequest> => {
    const opened = await send(gateway, { path, body: call('initialize', HELLO) });
    const session = opened.headers['mcp-session-id'] as string;
    await send(gateway, inSession(session, { jsonrpc: '2.0', method: 'notifications/initialized' }, { path }));
    const accept = 'application/json, text/event-stream';
    const headers = { authorization: 'Bearer alice', accept, 'mcp-session-id': session, 'content-type': 'application/json' };
    const req = request(`${gateway.origin}${path}`, { method, headers });
    req.on('error', () => undefined);
    req.end(method === 'GET' ? undefined : JSON.stringify(call('tools/call', { name: path === '/mcp' ? 't__ok' : 'ok' })));
    const [res] = (await once(req, 'response')) as [IncomingMessage];
    let got = 0;
    for await (const chunk of res.iterator({ destroyOnReturn: false })) {
      got += (chunk as Buffer).length;
      if (got > length) break;
    }
    t.true(got > length, `${method} ${path}`);
    res.resume();
    return req;
  };
  for (const path of ['/mcp/t', '/mcp']) {
    for (const method of ['POST', 'GET'] as const) {
      collectGarbage();
      const before = process.memoryUsage().heapUsed;
      const open = await Promise.all(Array.from({ length: streams }, () => begin(path, method)));
      const held = (): number => {
        collectGarbage();
        return process.memoryUsage().heapUsed - before;
      };
      for (const deadline = performance.now() + 10_000; held() > 2 * length && performance.now() < deadline; )
        await new Promise((resolve) => setTimeout(resolve, 50));
      t.true(held() <= 2 * length, `${method} ${path}: ${held()} bytes`);
      for (const req of open) req.destroy();
    }
  }
});

/** A gateway whose state a test replaces: a native target `t`, and `m` of 2026-07-28, which stateful clients reach by the bridge. */
async function changing(t: ExecutionContext) {
  const opened: string[] = [];
  const stream = (res: ServerResponse, what: string): void => {
    silent(res);
    opened.push(what);
  };
  const capabilities = { tools: { listChanged: true } };
  const discovered = { supportedVersions: ['2026-07-28'], capabilities, resultType: 'complete' };
  const [plain, modernOnly] = [byMethod({}), byMethod({ 'server/discover': discovered }, { modern: true })];
  const upstreams = [
    await startRecording((received, res) => (received.httpMethod === 'GET' ? stream(res, 't') : plain(received, res))),
    await startRecording((received, res) => {
      const { method, id, params } = received.message ?? {};
      if (method === 'initialize') return void res.writeHead(400).end();
      if (method !== 'subscriptions/listen') return modernOnly(received, res);
      stream(res, 'm');
      const _meta = { 'io.modelcontextprotocol/subscriptionId': id };
      const told = {
        method: 'notifications/subscriptions/acknowledged',
        params: { _meta, notifications: params?.['notifications'] },
      };
      res.write(`data: ${JSON.stringify({ jsonrpc: '2.0', ...told })}\n\n`);
    }),
  ];
  const targets = new Map(['t', 'm'].map((name, index) => [name, routed(name, upstreams[index]?.url ?? '')]));
  let revision = 0;
  const admissionWith = (epoch: number) => admissionOf('alice', targets, () => true, { revision: ++revision, epoch });
  let admission = admissionWith(0);
  const gateway = await startGateway({
    targets: [...targets.values()],
    rights: { alice: () => true },
    limits: { watchMs: 20 },
    deps: { admit: async () => admission },
  });
  t.teardown(async () => {
    await gateway.stop();
    await Promise.all(upstreams.map((upstream) => upstream.stop()));
  });
  return {
    gateway,
    opened,
    engine: () => new WeakRef(admission.snapshot.engine),
    /** With a different epoch, upstream sessions are opened anew. */
    change(epoch: number): void {
      admission = admissionWith(epoch);
    },
  };
}

/** Opens the stream and returns a function that tells how many messages with this word in them have come. */
async function opensStream(t: ExecutionContext, gateway: TestGateway, path: string, isListen: boolean) {
  const headers: Record<string, string> = { authorization: 'Bearer alice', accept: 'application/json, text/event-stream' };
  let body: object | undefined;
  if (isListen) {
    const raw = modern('subscriptions/listen', { notifications: { toolsListChanged: true } });
    body = raw.body as object;
    headers['content-type'] = 'application/json';
    for (const [at, name] of raw.headers?.entries() ?? []) if (at % 2 === 0) headers[name] = raw.headers?.[at + 1] ?? '';
  } else {
    const initialized = await send(gateway, { path, body: call('initialize', HELLO) });
    headers['mcp-session-id'] = initialized.headers['mcp-session-id'] as string;
    const told = { jsonrpc: '2.0', method: 'notifications/initialized' };
    await send(gateway, inSession(headers['mcp-session-id'], told, { path }));
  }
  const req = request(`${gateway.origin}${path}`, { method: isListen ? 'POST' : 'GET', headers });
  req.on('error', () => undefined).end(body === undefined ? undefined : JSON.stringify(body));
  t.teardown(() => req.destroy());
  const [res] = (await once(req, 'response')) as [IncomingMessage];
  t.is(res.statusCode, 200);
  let heard = '';
  let isOpen = true;
  res.setEncoding('utf8').on('data', (text: string) => {
    heard += text;
  });
  res.on('close', () => {
    isOpen = false;
  });
  return { count: (word: string) => heard.split(word).length - 1, isOpen: () => isOpen };
}

for (const [what, path, streams, isListen] of [
  ['GET at a target', '/mcp/t', ['t'], false],
  ['GET at a target behind the bridge', '/mcp/m', ['m'], false],
  ['GET at the aggregate endpoint', '/mcp', ['m', 't'], false],
  ['`subscriptions/listen`', '/mcp/m', ['m'], true],
] as const) {
  test.serial(`an open stream keeps no policies of an earlier time in memory: ${what}`, async (t) => {
    const { gateway, opened, engine, change } = await changing(t);
    const stream = await opensStream(t, gateway, path, isListen);
    await until(`the streams of ${streams} are open`, () => opened.length === streams.length);
    const isFreed = async (before: WeakRef<Engine>, epoch: number): Promise<void> => {
      const told = stream.count('tools/list_changed');
      change(epoch);
      await until('the client was told', () => stream.count('tools/list_changed') > told);
      await until(
        'the engine of before is freed',
        () => {
          collectGarbage();
          return before.deref() === undefined;
        },
        10_000,
      );
    };
    await isFreed(engine(), 0);
    // A stream that has moved to a new upstream session keeps nothing of the time at which it moved.
    if (!isListen) {
      await isFreed(engine(), 1);
      await until('the stream has moved', () => opened.length === 2 * streams.length);
    }
    await isFreed(engine(), isListen ? 0 : 1);
    t.true(stream.isOpen());
  });
}
