/** Clients that do not read their answers and streams, and clients that disconnect before the end. */
import { EventEmitter, once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { createLog } from '../../../src/base/log.ts';
import { createOutbox, type Recipient } from '../../../src/http/limits/outbox.ts';
import type { McpLimits } from '../../../src/mcp/limits/limits.ts';
import { answerText, byMethod, type Script, startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, open, send } from '../raw.ts';

const LARGE = 'x'.repeat(14 * 1024 * 1024);
/** One character makes each take two bytes. */
const WIDE = `${LARGE}\u4e2d`;

interface World {
  readonly gateway: TestGateway;
  /** Emits `closed` for each response of the target that was closed. */
  readonly target: EventEmitter;
  readonly session: string;
  /** Emits `ended` for each request that has ended at the gateway. */
  readonly requests: EventEmitter;
}

/** The tools `large` and `wide` answer with much text; `endless` sends progress without end, at a connection that it closes. */
async function start(t: ExecutionContext, limits: Partial<McpLimits>, shown = async () => {}, how = 'JSON'): Promise<World> {
  const target = new EventEmitter();
  const requests = new EventEmitter();
  const modern = how === 'the bridge';
  const results = {
    'tools/call': { content: [] },
    'tools/list': { tools: [{ name: 'small', inputSchema: { type: 'object' } }] },
  };
  const usual = byMethod(results, { modern });
  const answer = (res: ServerResponse, text: string): void =>
    how === 'an event' ? answerText(res, `data: ${text}\n\n`, 'text/event-stream') : answerText(res, text);
  const script: Script = (received, res) => {
    const { method, params, id } = received.message ?? {};
    if (modern && method === 'initialize') return answerText(res, '', 'text/plain', 404);
    const large = () => JSON.stringify({ jsonrpc: '2.0', id, result: { content: [{ type: 'text', text: LARGE }] } });
    if (method === 'tools/call' && params?.['name'] === 'late') {
      res.on('close', () => target.emit('closed'));
      target.once('go', () =>
        res.writeHead(200, { 'content-type': 'application/json', 'content-length': large().length }).end(large()),
      );
      return void target.emit('late');
    }
    if (method === 'tools/call' && params?.['name'] === 'large') return answer(res, large());
    if (method === 'tools/call' && params?.['name'] === 'wide') return answer(res, large().replace(LARGE, WIDE));
    if (method !== 'tools/call' || params?.['name'] !== 'endless') return usual(received, res);
    res.on('close', () => target.emit('closed'));
    res.writeHead(200, { 'content-type': 'text/event-stream', connection: 'close' });
    const progress = {
      jsonrpc: '2.0',
      method: 'notifications/progress',
      params: { progressToken: 'p', progress: 1, message: 'x'.repeat(1_000) },
    };
    const more = (): void => {
      while (!res.destroyed && res.write(`data: ${JSON.stringify(progress)}\n\n`));
      if (!res.destroyed) res.once('drain', () => setImmediate(more));
    };
    more();
  };
  const upstream = await startRecording(script);
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: () => true, bob: () => true },
    limits: { deliveries: FAST, ...limits },
    deps: { ended: (request) => void requests.emit('ended', request) },
    shown,
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, target, requests, session: await open(gateway) };
}

const plenty = { perSecond: 1e9, burst: 1e9 };
const many = { pair: plenty, target: plenty, all: plenty };
const FAST: McpLimits['deliveries'] = { messages: many, rush: many, decided: many, lists: many };

/** A client that calls the tool and reads nothing of the answer. */
function unread({ gateway, session }: World, tool: string, meta = ''): Socket {
  const socket = connect(Number(new URL(gateway.origin).port), '127.0.0.1').pause();
  socket.on('error', () => undefined);
  const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"${tool}","arguments":{}${meta}}}`;
  const head = ['POST /mcp/t HTTP/1.1', 'Host: 127.0.0.1', 'Authorization: Bearer alice', `Mcp-Session-Id: ${session}`];
  const types = [
    'Content-Type: application/json',
    'Accept: application/json, text/event-stream',
    `Content-Length: ${body.length}`,
  ];
  socket.write([...head, ...types, '', body].join('\r\n'));
  return socket;
}

const PROGRESS = ',"_meta":{"progressToken":"p"}';
const toldOf = ({ gateway }: World, what: RegExp): number =>
  gateway.logged.filter((line) => what.test((line as { msg: string }).msg)).length;

for (const [what, tool] of [
  ['a large answer', 'large'],
  ['a stream', 'endless'],
] as const) {
  test.serial(`a client that reads nothing of ${what} for a while is disconnected, and the log says so`, async (t) => {
    const world = await start(t, { stallMs: 500 });
    const ended = once(world.requests, 'ended');
    const client = unread(world, tool, PROGRESS);
    await ended;
    t.is(toldOf(world, /^client closed: it read nothing of its answer for 0\.5 s$/), 1);
    client.destroy();
  });
}

test.serial('a client for which too much data waits is disconnected while others are served', async (t) => {
  const world = await start(t, { waitingBytesOfPrincipal: 1024 * 1024 });
  const ended = once(world.requests, 'ended');
  const client = unread(world, 'large');
  await ended;
  t.is(toldOf(world, /^client closed: too many bytes of answers wait for the clients of one principal$/), 1);
  client.destroy();
  const bob = await open(world.gateway, { user: 'bob' });
  const reply = await send(world.gateway, inSession(bob, call('tools/call', { name: 'small', arguments: {} }), { user: 'bob' }));
  t.is(reply.status, 200);
});

test.serial('a large answer is given up if its clients read none of the others, and the target is not blamed', async (t) => {
  // Texts of the answers have room here, so that more of them are left unread.
  const world = await start(t, { answerBytes: 64 * 1024 * 1024 });
  const { gateway, session } = world;
  const small = () => send(gateway, inSession(session, call('tools/call', { name: 'small', arguments: {} })));
  const late = send(gateway, inSession(session, call('tools/call', { name: 'late', arguments: {} })));
  await once(world.target, 'late');
  const clients: Socket[] = [];
  while ((await small()).status !== 429) {
    const client = unread(world, 'large');
    clients.push(client);
    // Its answer has begun, so the rest of it waits. Nothing more is read.
    await once(client, 'readable');
  }
  world.target.emit('go');
  t.regex((await late).text, /Your clients have left too many bytes of their answers unread/);
  t.is(gateway.outcomes.at(-1)?.outcome, 'cancelled');
  t.is(toldOf(world, /target could not be used/), 0);
  for (const client of clients) client.destroy();
});

for (const how of ['JSON', 'an event', 'the bridge']) {
  test.serial(`the text of a large answer by ${how} waits until the clients of its user have read earlier ones`, async (t) => {
    const world = await start(t, {}, undefined, how);
    const { gateway, session } = world;
    const bob = await open(gateway, { user: 'bob' });
    const clients: Socket[] = [];
    for (let i = 0; i < 2; i++) {
      const client = unread(world, 'wide');
      clients.push(client);
      // The head of a stream comes before its answer has room.
      for (let seen = ''; !seen.includes('content"'); seen += client.read() ?? '') await once(client, 'readable');
    }
    const order: string[] = [];
    const large = call('tools/call', { name: 'large', arguments: {} });
    const waiting = send(gateway, inSession(session, large)).then(({ text }) =>
      order.push(`alice ${text.length > LARGE.length}`),
    );
    // Without the wait, several answers to someone else take far longer than the one that waits.
    for (let i = 0; i < 4; i++) await send(gateway, inSession(bob, large, { user: 'bob' }));
    order.push('bob');
    clients[0]?.destroy();
    await waiting;
    t.deepEqual(order, ['bob', 'alice true']);
    clients[1]?.destroy();
  });
}

test.serial('a token that is revoked after its answer has arrived gets no answer', async (t) => {
  let revoke = async (): Promise<void> => undefined;
  const world = await start(t, { watchMs: 20 }, () => revoke());
  const { gateway, session, target } = world;
  const late = send(gateway, inSession(session, call('tools/call', { name: 'late', arguments: {} })));
  await once(target, 'late');
  revoke = async () => {
    gateway.revoked.add('alice');
    await late;
  };
  const list = { jsonrpc: '2.0', id: 2, method: 'tools/list' };
  t.regex((await send(gateway, inSession(session, list))).text, /did not answer before the request was cancelled/);
  t.deepEqual(
    gateway.outcomes.slice(-2).map(({ outcome }) => outcome),
    ['cancelled', 'cancelled'],
  );
});

for (const how of ['JSON', 'an event']) {
  test.serial(`an answer that is being written breaks off when the token is revoked: ${how}`, async (t) => {
    const world = await start(t, { watchMs: 20 }, undefined, how);
    const client = unread(world, 'large');
    let length = 0;
    const reading = (async () => {
      for await (const part of client) {
        world.gateway.revoked.add('alice');
        length += part.length;
        // A slow client.
        await sleep(10);
      }
    })();
    await Promise.allSettled([reading]);
    t.true(length > 0 && length < LARGE.length, `${length} bytes`);
  });
}

test.serial('a client that reads gets a large answer completely', async (t) => {
  const world = await start(t, {});
  const reply = await send(world.gateway, inSession(world.session, call('tools/call', { name: 'large', arguments: {} })));
  t.is(reply.status, 200);
  t.true(reply.text.length > LARGE.length);
});

for (const [what, meta] of [
  ['sends', PROGRESS],
  ['would not have been sent', ''],
] as const) {
  test.serial(`the gateway gives up a target that sends endlessly after the client has gone: what it ${what}`, async (t) => {
    const world = await start(t, {});
    const closed = once(world.target, 'closed');
    const client = unread(world, 'endless', meta);
    await once(client.resume(), 'data');
    client.destroy();
    await closed;
    t.is(world.gateway.outcomes.at(-1)?.outcome, 'cancelled');
  });
}

test.serial('a call that goes on after its client has gone ends when the token is revoked', async (t) => {
  const world = await start(t, { watchMs: 20 });
  const called = once(world.target, 'late');
  const client = unread(world, 'late');
  await called;
  const left = once(world.requests, 'ended');
  client.destroy();
  await left;
  const closed = once(world.target, 'closed');
  world.gateway.revoked.add('alice');
  await closed;
  t.is(world.gateway.outcomes.at(-1)?.outcome, 'cancelled');
});

/** A response for which `waits` bytes wait until the test says that they were read. */
function response(waits: number): ServerResponse {
  const socket = Object.assign(new EventEmitter(), {
    destroyed: false,
    destroy() {
      socket.destroyed = true;
      socket.emit('close');
    },
  });
  return Object.assign(new EventEmitter(), { writableLength: waits, req: { socket } }) as unknown as ServerResponse;
}

test('waiting bytes are limited by principal and process, and a principal above the limit gets no further answers', async (t) => {
  const outbox = createOutbox({ waitingBytesOfPrincipal: 100, waitingBytesOfAll: 180, stallMs: 60_000 });
  const log = createLog('silent');
  const [first, second, third] = [response(50), response(40), response(20)];
  const wait = (res: ServerResponse, principal: string, rest = 0): ReturnType<Recipient['taken']> =>
    outbox.open(res, principal, log).taken(rest);
  const waiting = wait(first, 'a', 20);
  t.is(outbox.waiting, 70);
  t.is(outbox.refusal('a'), null);
  const more = wait(second, 'b', 14);
  t.is(outbox.waiting, 124);
  // More than is left for the others.
  await wait(third, 'c', 20);
  t.true(third.req.socket.destroyed);
  t.is(outbox.refusal('c'), null);
  await wait(response(31), 'a');
  t.is(outbox.waiting, 124);
  first.emit('drain');
  await waiting;
  second.req.socket.destroy();
  await more;
  t.is(outbox.waiting, 0);
  const again = wait(first, 'a', 30);
  t.is(outbox.refusal('a')?.overdrawn, 'key');
  t.is(outbox.refusal('b'), null);
  first.emit('close');
  await again;
  t.is(outbox.refusal('a'), null);
  t.deepEqual(
    [first, second, third].map((res) => [...res.eventNames(), ...res.req.socket.eventNames()]),
    [[], [], []],
  );
});
