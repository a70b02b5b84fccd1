/**
 * Callers who try to get more than their share of memory, time or streams, or to learn secrets from timing. Other callers are not affected.
 */
import http, { type ServerOptions, type ServerResponse } from 'node:http';
import { syncBuiltinESMExports } from 'node:module';
import { connect } from 'node:net';
import { gzipSync } from 'node:zlib';
import test, { type ExecutionContext } from 'ava';
import { openSession, post, call as toolCall } from '../../support/mcp.ts';
import { byMethod, type RecordingUpstream, startRecording } from '../../support/upstreams/recording.ts';
import { world } from '../../support/world.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, modern, open, type Raw, send } from '../raw.ts';

/** The gateway's clock for requests that do not end runs this much faster here. */
const HASTE = 15;
const listening: ServerOptions[] = [];
const { createServer } = http;
http.createServer = ((options: ServerOptions, ...rest: never[]) => {
  const { requestTimeout, headersTimeout } = options;
  if (requestTimeout === undefined || headersTimeout === undefined) return createServer(options, ...rest);
  listening.push(options);
  const hasty = { requestTimeout: requestTimeout / HASTE, headersTimeout: headersTimeout / HASTE };
  return createServer({ ...options, ...hasty, connectionsCheckingInterval: 50 }, ...rest);
}) as typeof createServer;
syncBuiltinESMExports();

interface Setup {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  readonly session: string;
  /** The numbers of requests at the target, audit rows, and states read since alice's session was opened. */
  traces(): readonly [number, number, number];
}

async function setUp(t: ExecutionContext, upstream: RecordingUpstream): Promise<Setup> {
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: ({ resource_name }) => resource_name === 'ok', bob: () => true },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const session = await open(gateway);
  const begin = [upstream.received.length, gateway.decisions.length, gateway.admissions] as const;
  return {
    gateway,
    upstream,
    session,
    traces: () => [upstream.received.length - begin[0], gateway.decisions.length - begin[1], gateway.admissions - begin[2]],
  };
}

const OK = call('tools/call', { name: 'ok' });

/** Calls of a user one after the other until stopped: how long the slowest of them took. */
async function servedMeanwhile(t: ExecutionContext, gateway: TestGateway): Promise<() => Promise<number>> {
  const session = await open(gateway, { user: 'bob' });
  let over = false;
  const calling = (async () => {
    let slowest = 0;
    for (let id = 1; !over; id++) {
      const began = performance.now();
      const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok' }, id), { user: 'bob' }));
      t.deepEqual([reply.status, reply.code], [200, undefined]);
      slowest = Math.max(slowest, performance.now() - began);
    }
    return slowest;
  })();
  return () => {
    over = true;
    return calling;
  };
}

/** A limit far above the time of these requests, and far below the time of a deep recursion or a quadratic scan. */
const PATIENCE_MS = 5_000;

/** The head of a POST of alice, written by hand. */
const head = (port: number, lines: readonly string[]): string =>
  [
    'POST /mcp/t HTTP/1.1',
    `Host: 127.0.0.1:${port}`,
    'Authorization: Bearer alice',
    'Content-Type: application/json',
    ...lines,
    '\r\n',
  ].join('\r\n');

/** Writes parts until the server has answered, and returns its answer from before it closed the connection. */
function pour(port: number, first: string, part: string, parts: number): Promise<{ text: string; poured: number }> {
  return new Promise((resolve) => {
    let text = '';
    let poured = 0;
    const socket = connect(port, '127.0.0.1', () => socket.write(first, more));
    const more = (): void => {
      while (text === '' && !socket.destroyed && poured < parts) {
        poured++;
        if (!socket.write(part)) return;
      }
      if (parts > 0 && poured === parts) socket.end();
    };
    socket.on('drain', more);
    socket.on('data', (chunk) => {
      text += chunk;
    });
    socket.on('error', () => undefined);
    socket.on('close', () => resolve({ text, poured }));
  });
}

test.serial(
  'bodies that are too large, too deep, too many or compressed are refused while other requests are served',
  async (t) => {
    const upstream = await startRecording(byMethod({ 'tools/call': { content: [] } }));
    const { gateway, session } = await setUp(t, upstream);
    const stop = await servedMeanwhile(t, gateway);
    const port = Number(new URL(gateway.origin).port);
    const decided = () => gateway.decisions.filter(({ user_id }) => user_id === 'alice').length;
    const before = decided();
    const keys = (count: number): string => `{${Array.from({ length: count }, (_, i) => `"${i.toString(36)}":0`).join()}}`;

    for (const [what, lines] of [
      ['5 MiB', [`Content-Length: ${5 * 1024 * 1024}`]],
      ['a million keys', [`Content-Length: ${keys(1_000_000).length}`]],
      ['a string of 10 MB', ['Content-Length: 10000000']],
      ['more than can be', ['Content-Length: 9007199254740991']],
    ] as const) {
      const { text } = await pour(port, head(port, lines), '', 0);
      t.regex(text, /^HTTP\/1\.1 413 /, what);
    }
    const chunk = `10000\r\n${'x'.repeat(0x10000)}\r\n`;
    const endless = await pour(port, head(port, ['Transfer-Encoding: chunked']), chunk, 1_000);
    t.regex(endless.text, /^HTTP\/1\.1 413 /, 'unannounced');
    t.true(endless.poured < 1_000, 'it was not waited for');

    const packed = gzipSync(Buffer.alloc(10_000_000, 0x20));
    for (const coding of ['gzip', 'x-gzip', 'deflate', 'br', 'identity, gzip']) {
      const reply = await send(gateway, inSession(session, packed as never, { headers: ['content-encoding', coding] }));
      t.is(reply.status, 415, coding);
    }
    for (const [what, body] of [
      ['200,000 nested arrays', '['.repeat(200_000)],
      ['200,000 nested arrays, closed', '['.repeat(200_000) + ']'.repeat(200_000)],
      ['200,000 nested objects', '{"a":'.repeat(200_000)],
      [
        'nested arguments',
        `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","arguments":{"a":${'['.repeat(100_000)}`,
      ],
      ['400,000 keys', keys(400_000)],
      ['a million values', `[${'0,'.repeat(1_000_000)}0]`],
      ['a number of a million digits', `{"jsonrpc":"2.0","id":${'9'.repeat(1_000_000)}}`],
    ] as const) {
      t.true(body.length < 4 * 1024 * 1024, 'within the limit of the body');
      const reply = await send(gateway, inSession(session, body));
      t.deepEqual([reply.status, reply.code], [400, -32700], what);
      t.true(reply.text.length < 1_000, what);
    }
    t.is(decided(), before, 'none of them was decided');
    const seen = upstream.received.filter(({ message }) => message?.params?.['arguments'] !== undefined).length;
    t.is(seen, 0, 'or forwarded');

    const large = { name: 'ok', arguments: { text: 'x'.repeat(4_000_000) } };
    t.is(
      (await send(gateway, inSession(session, call('tools/call', large)))).code,
      undefined,
      'what is within the limits passes',
    );
    t.is(decided(), before + 1);
    t.true((await stop()) < PATIENCE_MS);
  },
);

test.serial('a client that does not finish its request is disconnected in time while others are served', async (t) => {
  const upstream = await startRecording(byMethod({ 'tools/call': { content: [] } }));
  t.teardown(() => upstream.stop());
  const w = await world(t, null, upstream.url);
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  const answer = () => post(w.mcp, w.token, toolCall('ok'), { 'mcp-session-id': session });
  const { requestTimeout = 0, headersTimeout = 0 } = listening.at(-1) ?? {};
  for (const timeout of [requestTimeout, headersTimeout]) t.true(timeout > 0 && timeout <= 60_000);

  const { port } = new URL(w.gateway.url);
  const slowly = (first: string): Promise<string> =>
    new Promise((resolve) => {
      const socket = connect(Number(port), '127.0.0.1', () => socket.write(first));
      const drip = setInterval(() => socket.write('x'), 1_000 / HASTE);
      let text = '';
      socket.on('data', (part) => {
        text += part;
      });
      socket.on('error', () => undefined);
      socket.on('close', () => {
        clearInterval(drip);
        resolve(text);
      });
    });
  const whole = `POST /mcp/everything HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ${w.token}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n`;
  const began = performance.now();
  const slow = Promise.all(
    [whole, `${whole.slice(0, -2)}X: `, 'POST /mcp/everything HTTP/1.1\r\nX: '].flatMap((first) =>
      Array.from({ length: 10 }, () => slowly(first)),
    ),
  );
  let over = false;
  void slow.then(() => {
    over = true;
  });
  let served = 0;
  for (; !over; served++) t.truthy((await answer()).message?.result);
  t.true(performance.now() - began < (60_000 / HASTE) * 5);
  t.true(served > 0);
  for (const text of await slow) t.regex(text, /^(HTTP\/1\.1 408 |$)/);
  t.truthy((await answer()).message?.result);
  t.is(upstream.seen().filter((method) => method === 'tools/call').length, served + 1);
  // A fast machine serves more calls than one page of the log holds.
  const log = await fetch(`${w.gateway.url}/api/logs/export?format=ndjson&method=tools/call`, {
    headers: { authorization: `Bearer ${w.admin.token}` },
  });
  t.is((await log.text()).trim().split('\n').length, served + 1, 'what did not arrive is no request');
});

/** A target whose standalone streams stay open. */
async function startStreaming(t: ExecutionContext) {
  const streams = new Set<ServerResponse>();
  const plain = byMethod({ 'tools/call': { content: [] } });
  const upstream = await startRecording((received, res) => {
    if (received.httpMethod !== 'GET') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.flushHeaders();
    streams.add(res);
    res.on('close', () => streams.delete(res));
  });
  return { streams, ...(await setUp(t, upstream)) };
}

interface Stream {
  readonly status: number;
  readonly retryAfter: string | undefined;
  stop(): void;
}

function standing(gateway: TestGateway, user: string, session: string): Promise<Stream> {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${user}`, accept: 'text/event-stream', 'mcp-session-id': session };
    const req = http.request(gateway.url('t'), { headers, agent: false }, (res) => {
      res.on('error', () => undefined).resume();
      resolve({ status: res.statusCode ?? 0, retryAfter: res.headers['retry-after'], stop: () => void req.destroy() });
    });
    req.on('error', reject);
    req.end();
  });
}

const MOST = 256;

test.serial('a user who opens a thousand idle streams keeps only the allowed number, and other users keep theirs', async (t) => {
  const { gateway, streams, session, traces } = await startStreaming(t);
  const many = await Promise.all(Array.from({ length: 1_000 }, () => standing(gateway, 'alice', session)));
  const opened = many.filter(({ status }) => status === 200);
  const refused = many.filter(({ status }) => status === 429);
  t.deepEqual([opened.length, refused.length], [MOST, 1_000 - MOST]);
  t.true(refused.every(({ retryAfter }) => Number(retryAfter) > 0));
  t.is(streams.size, MOST);
  t.deepEqual(traces().slice(0, 2), [MOST, MOST], 'a row for each that was opened, none for the others');
  const began = performance.now();
  t.is((await send(gateway, inSession(session, OK))).status, 200, 'calls are not streams');
  const theirs = await standing(gateway, 'bob', await open(gateway, { user: 'bob' }));
  t.is(theirs.status, 200);
  t.true(performance.now() - began < PATIENCE_MS);
  for (const { stop } of [...opened, theirs]) stop();
});

test.serial('a storm of reconnecting clients gets the free slots, and holds none of them when it is over', async (t) => {
  const { gateway, streams, session } = await startStreaming(t);
  const bob = await open(gateway, { user: 'bob' });
  const first = await Promise.all(Array.from({ length: MOST }, () => standing(gateway, 'alice', session)));
  t.true(first.every(({ status }) => status === 200));
  for (let wave = 0; wave < 3; wave++) {
    for (const { stop } of first.splice(0)) stop();
    const storm = Array.from({ length: 400 }, () => standing(gateway, 'alice', session));
    const meanwhile = await send(gateway, inSession(bob, OK, { user: 'bob' }));
    t.deepEqual([meanwhile.status, meanwhile.code], [200, undefined]);
    for (const stream of await Promise.all(storm)) {
      t.true(stream.status === 200 || (stream.status === 429 && Number(stream.retryAfter) > 0), String(stream.status));
      if (stream.status === 200) first.push(stream);
    }
    t.true(first.length > 0 && first.length <= MOST);
  }
  for (const { stop } of first) stop();
  while (streams.size > 0) await new Promise(setImmediate);
  const again = await Promise.all(Array.from({ length: MOST }, () => standing(gateway, 'alice', session)));
  t.true(again.every(({ status }) => status === 200));
  for (const { stop } of again) stop();
});

test.serial('a denied request takes as long as one for an unknown target, so that timing does not tell them apart', async (t) => {
  const upstream = await startRecording(byMethod({ 'tools/list': { tools: [{ name: 'secret' }] } }));
  const { gateway, session, traces } = await setUp(t, upstream);
  gateway.targets.set('private', routed('private', upstream.url));
  gateway.rights.delete('carol');
  const named = (name: string): Raw => inSession(session, call('tools/call', { name }));
  const target = (name: string): Raw => ({ ...modern('tools/call', { name: 'ok' }), path: `/mcp/${name}`, user: 'carol' });
  const hello = (name: string): Raw => ({
    body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {} }),
    path: `/mcp/${name}`,
    user: 'carol',
  });
  const stream = (name: string): Raw => ({
    method: 'GET',
    headers: ['mcp-session-id', session],
    path: `/mcp/${name}`,
    user: 'carol',
  });
  for (const [what, exists, none] of [
    ['a tool', named('secret'), named('nobody')],
    ['a target, 2026-07-28', target('private'), target('nothing')],
    ['a target, a session', hello('private'), hello('nothing')],
    ['a target, a stream', stream('private'), stream('nothing')],
  ] as const) {
    const took: [number[], number[]] = [[], []];
    for (let n = 0; n < 100; n++) {
      for (const [index, raw] of [exists, none].entries()) {
        const before = traces();
        const began = performance.now();
        await send(gateway, raw);
        took[index]?.push(performance.now() - began);
        const after = traces();
        t.deepEqual([after[0] - before[0], after[1] - before[1], after[2] - before[2]], [0, 1, 1], what);
      }
    }
    // Each request reads one state, writes one row and asks no target. The clock shows differences that these counts miss.
    const [a = 0, b = 0] = took.map((times) => times.sort((x, y) => x - y)[times.length / 2]);
    t.true(Math.abs(a - b) < Math.min(a, b) + 2, `${what}: ${a} and ${b} ms`);
  }
});
