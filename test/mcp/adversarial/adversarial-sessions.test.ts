/** Callers who use sessions, event ids, request ids and states of another principal or another target. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { request } from 'node:http';
import test from 'ava';
import type { McpLimits } from '../../../src/mcp/limits/limits.ts';
import { createSeal } from '../../../src/mcp/sessions/seal.ts';
import { answerJson, byMethod, type RecordingUpstream, startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, modern, open, send } from '../raw.ts';

interface Setup {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
}

async function setUp(t: { teardown(stop: () => Promise<void>): void }, limits: Partial<McpLimits> = {}): Promise<Setup> {
  const upstream = await startRecording(byMethod({ 'tools/call': { content: [] } }));
  const targets = [routed('t', upstream.url), routed('other', upstream.url)];
  const gateway = await startGateway({ targets, rights: { alice: () => true, bob: () => true }, limits });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, upstream };
}

const OK = call('tools/call', { name: 'ok' });
const forged = (id: string): string => `${id.slice(0, 40)}${id[40] === 'A' ? 'B' : 'A'}${id.slice(41)}`;

test.serial(
  'a foreign, edited, truncated or invented session id, or one of another target, gets the answer of an unknown session',
  async (t) => {
    const { gateway, upstream } = await setUp(t);
    const session = await open(gateway);
    const foreign = await startGateway({
      targets: [...gateway.targets.values()],
      rights: { alice: () => true },
      deps: { seal: createSeal([Buffer.alloc(32, 9)]) },
    });
    t.teardown(() => foreign.stop());
    const ofAnotherKey = await open(foreign);
    const [seen, decided] = [upstream.received.length, gateway.decisions.length];
    const replies = await Promise.all([
      send(gateway, inSession(session, OK, { user: 'bob' })),
      send(gateway, inSession(session, OK, { path: '/mcp/other' })),
      send(gateway, inSession(forged(session), OK)),
      send(gateway, inSession(session.slice(0, -1), OK)),
      send(gateway, inSession('upstream-session-1', OK)),
      send(gateway, inSession(ofAnotherKey, OK)),
    ]);
    for (const { status, text } of replies) t.deepEqual([status, text], [404, replies[0]?.text]);
    t.is(JSON.parse(replies[0]?.text ?? '').error.code, -32001);
    const nowhere = await send(gateway, inSession(session, OK, { path: '/mcp/nowhere' }));
    t.is(JSON.parse(nowhere.text).error.code, 404, 'whether there is such a target is asked first');
    t.is(upstream.received.length, seen);
    t.deepEqual(
      gateway.audited().slice(decided),
      [...Array(6).fill('tools/call tool ok allow'), 'tools/call tool ok deny no_target'],
      'each attempt is recorded, once',
    );
    t.deepEqual(
      gateway.outcomes.slice(-7).map(({ outcome }) => outcome),
      [...Array(6).fill('error'), 'denied'],
    );
    t.is((await send(gateway, inSession(session, OK))).status, 200);
  },
);

test.serial('a session ends after a day, or when its target is replaced', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const seen = upstream.received.length;
  gateway.now = Date.now() + 25 * 3_600_000;
  t.is((await send(gateway, inSession(session, OK))).status, 404);
  gateway.now = null;
  gateway.targets.set('t', routed('t', upstream.url, { id: 'another-target' }));
  t.is((await send(gateway, inSession(session, OK))).status, 404);
  t.is((await send(gateway, { method: 'DELETE', headers: ['mcp-session-id', session] })).status, 404);
  t.is((await send(gateway, { method: 'GET', headers: ['mcp-session-id', session] })).status, 404);
  t.is((await send(gateway, inSession(session, { jsonrpc: '2.0', method: 'notifications/initialized' }))).status, 404);
  t.is(upstream.received.length, seen);
});

test.serial('a caller can neither end nor listen to the session of another caller', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const [seen, decided] = [upstream.received.length, gateway.decisions.length];
  const headers = ['mcp-session-id', session];
  t.is((await send(gateway, { user: 'bob', method: 'DELETE', headers })).status, 404);
  t.is((await send(gateway, { user: 'bob', method: 'GET', headers })).status, 404);
  t.is((await send(gateway, { path: '/mcp/other', method: 'DELETE', headers })).status, 404);
  t.is(upstream.received.length, seen);
  t.deepEqual(gateway.audited().slice(decided), ['DELETE allow', 'GET allow', 'DELETE allow']);
  t.deepEqual(
    gateway.outcomes.slice(-3).map(({ outcome }) => outcome),
    ['error', 'error', 'error'],
  );
  t.is((await send(gateway, inSession(session, OK))).status, 200, 'its owner notices nothing');
  t.is((await send(gateway, { method: 'DELETE', headers })).status, 200);
  t.deepEqual(upstream.seen().slice(seen), ['tools/call', 'DELETE']);
  t.is(upstream.received.at(-1)?.headers['mcp-session-id'], 'upstream-session-1');
});

test.serial('a request without its session id, or with an unknown version, is refused', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const [seen, decided] = [upstream.received.length, gateway.decisions.length];
  t.deepEqual((await send(gateway, { body: OK })).status, 400);
  const odd = await send(gateway, inSession(session, OK, { headers: ['mcp-protocol-version', '2024-11-05'] }));
  t.deepEqual([odd.status, odd.code], [400, -32000]);
  t.is((await send(gateway, { method: 'GET' })).status, 400);
  t.is(
    (await send(gateway, { method: 'GET', headers: ['mcp-session-id', session, 'mcp-protocol-version', '2026-07-28'] })).status,
    405,
  );
  t.is(upstream.received.length, seen);
  // A GET without a session is first decided for its target, so that it reveals nothing about forbidden targets.
  t.deepEqual(gateway.audited().slice(decided), ['GET allow']);
});

test.serial('each principal has its own session with the target', async (t) => {
  const { gateway, upstream } = await setUp(t);
  let opened = 0;
  const plain = upstream.script;
  upstream.script = (received, res) => {
    if (received.message?.method !== 'initialize') return plain(received, res);
    opened++;
    const result = { protocolVersion: '2025-11-25', capabilities: {}, serverInfo: { name: 'r', version: '1' } };
    answerJson(res, { jsonrpc: '2.0', id: received.message.id, result }, { 'mcp-session-id': `upstream-of-${opened}` });
  };
  const [alice, bob] = [await open(gateway), await open(gateway, { user: 'bob' })];
  await send(gateway, inSession(alice, OK));
  await send(gateway, inSession(bob, OK, { user: 'bob' }));
  t.deepEqual(
    upstream.received.slice(-2).map(({ headers }) => headers['mcp-session-id']),
    ['upstream-of-1', 'upstream-of-2'],
  );
});

test.serial('a cancellation reaches only the session that it was sent in, and is dropped without a session', async (t) => {
  const { gateway, upstream } = await setUp(t);
  let opened = 0;
  const plain = upstream.script;
  let finish = (): void => undefined;
  upstream.script = (received, res) => {
    const { message } = received;
    if (message?.method === 'tools/call') {
      finish = () => answerJson(res, { jsonrpc: '2.0', id: message.id, result: { content: [] } });
      return;
    }
    if (message?.method !== 'initialize') return plain(received, res);
    opened++;
    const result = { protocolVersion: '2025-11-25', capabilities: {}, serverInfo: { name: 'r', version: '1' } };
    const answer = (): void =>
      answerJson(res, { jsonrpc: '2.0', id: message.id, result }, { 'mcp-session-id': `upstream-of-${opened}` });
    if (opened < 3) return answer();
    finish = answer;
  };
  const [alice, bob] = [await open(gateway), await open(gateway, { user: 'bob' })];
  const cancel = (requestId: number) => ({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } });
  const arrived = async (count: number): Promise<void> => {
    while (upstream.received.length < count) await new Promise(setImmediate);
  };
  const decided = gateway.decisions.length;
  const calling = send(gateway, inSession(alice, call('tools/call', { name: 'ok' }, 7)));
  await arrived(3);
  t.is((await send(gateway, inSession(bob, cancel(7), { user: 'bob' }))).status, 202);
  t.deepEqual(upstream.received.at(-1)?.message, cancel(7) as never);
  t.is(upstream.received.at(-1)?.headers['mcp-session-id'], 'upstream-of-2', 'where 7 is a request of bob, if any');
  t.is((await send(gateway, inSession(alice, cancel(7), { user: 'bob' }))).status, 404);
  t.is(upstream.received.length, 4);
  finish();
  t.is((await calling).code, undefined);
  t.deepEqual(gateway.audited().slice(decided), [
    'tools/call tool ok allow',
    'notifications/cancelled allow',
    'notifications/cancelled allow',
  ]);
  const opening = open(gateway);
  await arrived(5);
  t.is((await send(gateway, { body: cancel(0) })).status, 202);
  t.is(upstream.received.length, 5, 'an initialize cannot be cancelled');
  finish();
  t.is(typeof (await opening), 'string');
});

/** A stream that stays open, with the events that arrived. */
async function listen(gateway: TestGateway, user: string, headers: readonly string[], body?: object) {
  const events: string[] = [];
  const usual = [
    'authorization',
    `Bearer ${user}`,
    'accept',
    'application/json, text/event-stream',
    'content-type',
    'application/json',
  ];
  const text = body === undefined ? undefined : JSON.stringify(body);
  const length = text === undefined ? [] : ['content-length', String(text.length)];
  const method = body === undefined ? 'GET' : 'POST';
  const req = request(`${gateway.origin}/mcp/t`, { method, headers: ['host', 'x', ...usual, ...length, ...headers] as never });
  req.end(text);
  const [res] = await once(req, 'response');
  let ended = false;
  res.setEncoding('utf8');
  res.on('data', (chunk: string) => events.push(chunk));
  res.on('close', () => {
    ended = true;
  });
  res.on('error', () => undefined);
  const until = async (condition: () => boolean): Promise<void> => {
    for (let tries = 0; !condition(); tries++) {
      if (tries > 1_000) throw new Error(`never happened; so far: ${events.join('')}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  };
  return {
    status: res.statusCode as number,
    text: () => events.join(''),
    until,
    isEnded: () => ended,
    stop: () => req.destroy(),
  };
}

const startStream = (res: ServerResponse): void => {
  res.writeHead(200, { 'content-type': 'text/event-stream' });
  res.flushHeaders();
};
const event = (message: object, id?: string): string =>
  `${id === undefined ? '' : `id: ${id}\n`}data: ${JSON.stringify(message)}\n\n`;

test.serial('a request of the target can be answered only in its own session', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const plain = upstream.script;
  upstream.script = (received, res) => {
    if (received.message?.method !== 'tools/call') return plain(received, res);
    startStream(res);
    res.write(event({ jsonrpc: '2.0', id: 5, method: 'elicitation/create', params: { message: 'n', big: 1 } }));
  };
  const [alice, again, bob] = [await open(gateway), await open(gateway), await open(gateway, { user: 'bob' })];
  const stream = await listen(gateway, 'alice', ['mcp-session-id', alice], OK);
  await stream.until(() => stream.text().includes('elicitation/create'));
  const { id } = JSON.parse(/data: (.*)\n/.exec(stream.text())?.[1] ?? '') as { id: string };
  const answer = { jsonrpc: '2.0', id, result: { action: 'accept', content: { n: 1 } } };
  const [seen, decided] = [upstream.received.length, gateway.decisions.length];
  t.is((await send(gateway, inSession(bob, answer, { user: 'bob' }))).status, 400);
  t.is((await send(gateway, inSession(again, answer))).status, 400);
  t.is((await send(gateway, inSession(alice, { ...answer, id: forged(id) }))).status, 400);
  t.is((await send(gateway, inSession(alice, { ...answer, id: 5 }))).status, 400);
  t.is((await send(gateway, inSession(alice, answer, { user: 'bob' }))).status, 404, "bob in alice's session");
  t.is(upstream.received.length, seen);
  t.is(gateway.decisions.length, decided, 'nothing was asked of the target');
  t.is((await send(gateway, inSession(alice, answer))).status, 202);
  t.deepEqual(upstream.received.at(-1)?.message, { ...answer, id: 5 } as never);
  t.deepEqual(gateway.audited().slice(decided), ['elicitation/create allow']);
  stream.stop();
});

test.serial('the gateway refuses a request of the target that no client may be asked', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const plain = upstream.script;
  let refuse = (_: unknown): void => undefined;
  const refused = new Promise((resolve) => {
    refuse = resolve;
  });
  upstream.script = (received, res) => {
    if (received.message?.id === 'q') refuse(received);
    if (received.message?.method !== 'tools/call') return plain(received, res);
    startStream(res);
    res.write(event({ jsonrpc: '2.0', id: 'q', method: 'tasks/get', params: {} }));
    refused.then(() => res.end(event({ jsonrpc: '2.0', id: 1, result: { content: [] } })));
  };
  const session = await open(gateway);
  const decided = gateway.decisions.length;
  const reply = await send(gateway, inSession(session, OK));
  t.deepEqual(gateway.audited().slice(decided), ['tools/call tool ok allow']);
  t.notRegex(reply.text, /tasks\/get/);
  t.like(upstream.received.find(({ message }) => message?.id === 'q')?.message, { id: 'q', error: { code: -32601 } });
});

test.serial('only its own session can resume a stream from an event id', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const plain = upstream.script;
  upstream.script = (received, res) => {
    if (received.httpMethod === 'GET') {
      startStream(res);
      res.end(event({ jsonrpc: '2.0', id: 1, result: { tools: [{ name: 'ok' }, { name: 'hidden' }] } }, 'up~2'));
      return;
    }
    if (received.message?.method !== 'tools/list') return plain(received, res);
    startStream(res);
    res.end('id: up~1\nretry: 10\ndata:\n\n');
  };
  gateway.rights.set('alice', ({ resource_name }) => resource_name !== 'hidden');
  const [alice, again, bob] = [await open(gateway), await open(gateway), await open(gateway, { user: 'bob' })];
  const broken = await send(gateway, inSession(alice, call('tools/list')));
  const last = /^id: (.*)$/m.exec(broken.text)?.[1] ?? '';
  t.regex(broken.text, /^retry: 10$/m);
  t.notRegex(broken.text, /up~1/);
  const resume = (session: string, user = 'alice', id = last) =>
    send(gateway, { user, method: 'GET', headers: ['mcp-session-id', session, 'last-event-id', id] });
  const [seen, decided] = [upstream.received.length, gateway.decisions.length];
  t.is((await resume(bob, 'bob')).status, 404);
  t.is((await resume(alice, 'bob')).status, 404);
  t.is((await resume(again)).status, 404);
  t.is((await resume(alice, 'alice', 'up~1')).status, 404);
  t.is(upstream.received.length, seen);
  t.deepEqual(gateway.audited().slice(decided), Array(4).fill('GET allow'));
  const resumed = await resume(alice);
  t.is(upstream.received.at(-1)?.headers['last-event-id'], 'up~1');
  // The answer that comes late is filtered like one that comes at once.
  t.regex(resumed.text, /"tools":\[\{"name":"ok"\}\]/);
  t.deepEqual(gateway.shown.at(-1)?.names, ['ok']);

  // An id that is too long to be opened again is not sealed.
  upstream.script = (received, res) => {
    if (received.message?.method !== 'tools/list') return plain(received, res);
    startStream(res);
    res.end(event({ jsonrpc: '2.0', id: received.message.id ?? 0, result: { tools: [] } }, 'x'.repeat(3_000)));
  };
  const long = await send(gateway, inSession(alice, call('tools/list')));
  t.regex(long.text, /"tools":\[\]/);
  t.notRegex(long.text, /^id:/m);
});

test.serial('the answer of a call is resumed only if its tool is still allowed', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const plain = upstream.script;
  upstream.script = (received, res) => {
    const { httpMethod, message } = received;
    if (httpMethod !== 'GET' && message?.method !== 'tools/call') return plain(received, res);
    startStream(res);
    // The resumed stream breaks off, too.
    if (httpMethod === 'GET' && received.headers['last-event-id'] === 'up~2')
      res.end(event({ jsonrpc: '2.0', id: 1, result: { content: [{ type: 'text', text: 'the output' }] } }, 'up~3'));
    else res.end(`id: ${httpMethod === 'GET' ? 'up~2' : 'up~1'}\ndata:\n\n`);
  };
  gateway.rights.set('alice', () => true);
  const session = await open(gateway);
  const idIn = ({ text }: { readonly text: string }): string => /^id: (.*)$/m.exec(text)?.[1] ?? '';
  const resume = (id: string) => send(gateway, { method: 'GET', headers: ['mcp-session-id', session, 'last-event-id', id] });
  const first = idIn(await send(gateway, inSession(session, OK)));
  const decided = gateway.decisions.length;
  const second = idIn(await resume(first));
  t.regex((await resume(second)).text, /the output/);
  t.deepEqual(gateway.audited().slice(decided), ['GET tool ok allow', 'GET tool ok allow']);
  gateway.rights.set('alice', ({ resource_name }) => resource_name !== 'ok');
  const seen = upstream.received.length;
  for (const id of [first, second]) {
    const refused = await resume(id);
    t.is(refused.status, 404);
    t.notRegex(refused.text, /the output/);
    t.is(gateway.audited().at(-1), 'GET tool ok deny');
    t.like(gateway.outcomes.at(-1), { decision_id: gateway.decisions.at(-1)?.id, outcome: 'denied' });
  }
  t.is(upstream.received.length, seen);
});

test.serial(
  'a standalone stream ends when its caller may no longer use the target, and delivers nothing afterwards',
  async (t) => {
    for (const lose of [
      (gateway: TestGateway) => void gateway.rights.delete('alice'),
      (gateway: TestGateway) => void gateway.revoked.add('alice'),
      (gateway: TestGateway) => void gateway.targets.delete('t'),
      (gateway: TestGateway) => {
        gateway.stateDown = true;
      },
    ]) {
      const { gateway, upstream } = await setUp(t);
      let standing: ServerResponse | undefined;
      const plain = upstream.script;
      upstream.script = (received, res) => {
        if (received.httpMethod !== 'GET') return plain(received, res);
        startStream(res);
        standing = res;
      };
      const session = await open(gateway);
      const stream = await listen(gateway, 'alice', ['mcp-session-id', session]);
      standing?.write(event({ jsonrpc: '2.0', method: 'notifications/tools/list_changed' }));
      await stream.until(() => stream.text().includes('list_changed'));
      lose(gateway);
      standing?.write(event({ jsonrpc: '2.0', method: 'notifications/message', params: { data: 'late' } }));
      await stream.until(stream.isEnded);
      t.notRegex(stream.text(), /late/);
    }
  },
);

test.serial('each update of a resource is decided, and delivered only while the resource may be read', async (t) => {
  const { gateway, upstream } = await setUp(t);
  let standing: ServerResponse | undefined;
  const plain = upstream.script;
  upstream.script = (received, res) => {
    if (received.message?.method === 'resources/subscribe') {
      return answerJson(res, { jsonrpc: '2.0', id: received.message.id, result: {} });
    }
    if (received.httpMethod !== 'GET') return plain(received, res);
    startStream(res);
    standing = res;
  };
  gateway.rights.set('alice', ({ resource_name }) => resource_name.startsWith('file:///public/'));
  const session = await open(gateway);
  const subscribe = (uri: string) => send(gateway, inSession(session, call('resources/subscribe', { uri })));
  t.is((await subscribe('file:///secret')).code, 403);
  t.is((await subscribe('file:///public/d')).code, undefined);
  t.deepEqual(
    upstream.received.flatMap(({ message }) => (message?.method === 'resources/subscribe' ? [message.params?.uri] : [])),
    ['file:///public/d'],
  );
  const stream = await listen(gateway, 'alice', ['mcp-session-id', session]);
  const decided = gateway.decisions.length;
  const update = (uri: string) =>
    standing?.write(event({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } }));
  update('file:///public/d/child');
  await stream.until(() => stream.text().includes('file:///public/d/child'));
  for (const uri of ['file:///secret', 'file:///public/../secret']) update(uri);
  gateway.rights.set('alice', ({ resource_name }) => resource_name === 'ok');
  for (const uri of ['file:///public/d', 'file:///public/d/child2']) update(uri);
  standing?.write(event({ jsonrpc: '2.0', method: 'notifications/tools/list_changed' }));
  await stream.until(() => stream.text().includes('list_changed'));
  t.deepEqual(stream.text().match(/"uri":"[^"]*"/g), ['"uri":"file:///public/d/child"']);
  const row = 'notifications/resources/updated resource';
  t.deepEqual(gateway.audited().slice(decided), [
    `${row} file:///public/d/child allow`,
    `${row} file:///secret deny`,
    `${row} file:///public/../secret deny not_canonical`,
    `${row} file:///public/d deny`,
    `${row} file:///public/d/child2 deny`,
  ]);
  stream.stop();
});

test.serial('a response on a standalone stream that answers no request is dropped', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const plain = upstream.script;
  upstream.script = (received, res) => {
    if (received.httpMethod !== 'GET') return plain(received, res);
    startStream(res);
    res.write(event({ jsonrpc: '2.0', id: 1, result: { content: ['of another'] } }));
    res.write(event({ jsonrpc: '2.0', method: 'notifications/acme' }));
    res.end(event({ jsonrpc: '2.0', method: 'notifications/tools/list_changed' }));
  };
  const session = await open(gateway);
  const reply = await send(gateway, { method: 'GET', headers: ['mcp-session-id', session] });
  t.deepEqual(reply.text.match(/^data: .*$/gm), ['data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}']);
});

test.serial('standalone streams are kept alive, and their number is limited by principal', async (t) => {
  const { gateway, upstream } = await setUp(t, { streamsPerPrincipal: 1, keepAliveMs: 20 });
  const plain = upstream.script;
  upstream.script = (received, res) => (received.httpMethod === 'GET' ? startStream(res) : plain(received, res));
  const [alice, bob] = [await open(gateway), await open(gateway, { user: 'bob' })];
  const first = await listen(gateway, 'alice', ['mcp-session-id', alice]);
  await first.until(() => first.text().length > 6);
  t.regex(first.text(), /^(:\n\n)+$/);
  const second = await send(gateway, { method: 'GET', headers: ['mcp-session-id', alice] });
  t.is(second.status, 429);
  t.truthy(second.headers['retry-after']);
  const others = await listen(gateway, 'bob', ['mcp-session-id', bob]);
  t.is(others.status, 200);
  first.stop();
  others.stop();
  await first.until(first.isEnded);
  // Its place is free as soon as the gateway has noticed.
  let third = await listen(gateway, 'alice', ['mcp-session-id', alice]);
  for (let tries = 0; third.status === 429 && tries < 500; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    third = await listen(gateway, 'alice', ['mcp-session-id', alice]);
  }
  t.is(third.status, 200);
  third.stop();
});

test.serial('the gateway can end standalone streams while calls in flight go on', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const plain = upstream.script;
  let finish = (): void => undefined;
  upstream.script = (received, res) => {
    if (received.httpMethod === 'GET') return startStream(res);
    if (received.message?.method !== 'tools/call') return plain(received, res);
    finish = () => answerJson(res, { jsonrpc: '2.0', id: 1, result: { content: [] } });
  };
  const session = await open(gateway);
  const stream = await listen(gateway, 'alice', ['mcp-session-id', session]);
  const reply = send(gateway, inSession(session, OK));
  await stream.until(() => upstream.seen().includes('tools/call'));
  gateway.endStreams();
  await stream.until(stream.isEnded);
  finish();
  t.is((await reply).code, undefined);
});

test.serial('a request state is accepted only for the request that it belongs to', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const asking = {
    resultType: 'input_required',
    inputRequests: { q: { method: 'elicitation/create', params: {} } },
    requestState: 'of the target',
  };
  const call = (params: Record<string, unknown>): object =>
    params.requestState === undefined ? asking : { resultType: 'complete', content: [] };
  upstream.script = byMethod({ 'tools/call': call }, { modern: true });
  const meta = {
    _meta: {
      'io.modelcontextprotocol/protocolVersion': '2026-07-28',
      'io.modelcontextprotocol/clientCapabilities': { elicitation: {} },
    },
  };
  const first = { ...meta, name: 'ok', arguments: { a: 1 } };
  const asked = await send(gateway, modern('tools/call', first));
  const { requestState } = JSON.parse(asked.text).result;
  t.not(requestState, 'of the target');
  const retry = { ...first, requestState, inputResponses: { q: { action: 'accept' } } };
  const [seen, decided] = [upstream.received.length, gateway.decisions.length];
  for (const raw of [
    { ...modern('tools/call', retry), user: 'bob' },
    { ...modern('tools/call', retry), path: '/mcp/other' },
    modern('tools/call', { ...retry, name: 'other' }),
    modern('tools/call', { ...retry, arguments: { a: 2 } }),
    modern('tools/call', { ...retry, requestState: forged(requestState) }),
    modern('tools/call', { ...retry, requestState: 'of the target' }),
    modern('tools/call', { ...retry, requestState: 1 }),
  ]) {
    t.is((await send(gateway, raw)).code, -32602);
  }
  gateway.now = Date.now() + 11 * 60_000;
  t.is((await send(gateway, modern('tools/call', retry))).code, -32602);
  gateway.now = null;
  gateway.rights.set('alice', () => false);
  t.is((await send(gateway, modern('tools/call', retry))).code, 403);
  gateway.rights.set('alice', () => true);
  t.is(upstream.received.length, seen);
  const ok = 'tools/call tool ok allow';
  t.deepEqual(gateway.audited().slice(decided), [
    ...[ok, ok, 'tools/call tool other allow', ok, ok, ok, ok, ok],
    'tools/call tool ok deny',
  ]);
  t.is((await send(gateway, modern('tools/call', retry))).code, undefined);
  t.is(upstream.received.at(-1)?.message?.params?.requestState, 'of the target');
  // A call without a request state is an ordinary call.
  const { requestState: _, ...fresh } = retry;
  await send(gateway, modern('tools/call', fresh));
  t.deepEqual(upstream.received.at(-1)?.message?.params?.inputResponses, retry.inputResponses);
  t.deepEqual(gateway.audited().slice(decided + 9), [ok, ok]);
});
