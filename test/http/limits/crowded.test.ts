/** Packets with very many requests or chunks of a body, and bodies that look like such packets. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type RequestListener } from 'node:http';
import type { Socket } from 'node:net';
import { buffer, text } from 'node:stream/consumers';
import { setImmediate } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { deferred } from '../../../src/base/promises.ts';
import { holdBody, readInTurns } from '../../../src/http/limits/crowded.ts';
import { limitPipelining } from '../../../src/http/limits/pipelining.ts';
import { connected } from '../connected.ts';

const listening = (t: ExecutionContext, handle: RequestListener): Promise<Socket> =>
  connected(t, createServer(handle).on('connection', readInTurns));

test('node parses no more of a packet after the connection is closed because of its requests', async (t) => {
  let parsed = 0;
  const take = limitPipelining((_req, res) => setImmediate(() => res.end()));
  const socket = await listening(t, (req, res) => {
    parsed++;
    take(req, res);
  });
  socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(2_000));
  socket.resume();
  await once(socket, 'close');
  t.true(parsed > 32 && parsed < 150, `${parsed} requests were parsed`);
});

for (const [what, character] of [
  ['line feeds', '\n'],
  ['carriage returns', '\r'],
] as const) {
  test(`${what} between requests are handed over in parts, and the next request is answered`, async (t) => {
    let largest = 0;
    const server = createServer((_, res) => res.end('<done>'));
    server.on('connection', readInTurns);
    server.on('connection', (socket: Socket) => socket.on('data', ({ length }: Buffer) => (largest = Math.max(largest, length))));
    const socket = await connected(t, server);
    socket.end(`${character.repeat(1_000_000)}GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
    t.regex(await text(socket), /<done>/);
    t.true(largest > 0 && largest <= 4 * 1_024, `a part had ${largest} bytes`);
  });
}

const CHUNKED = 'POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n';

test('node parses no more of a body in small chunks after the connection is closed', async (t) => {
  let parsed = 0;
  const socket = await listening(t, (req) => {
    const push = req.push.bind(req);
    req.push = (chunk) => {
      parsed++;
      return push(chunk);
    };
    req.socket.destroy();
  });
  socket.write(CHUNKED + '1\r\nx\r\n'.repeat(10_000));
  socket.resume();
  await once(socket, 'close');
  t.true(parsed > 0 && parsed < 200, `${parsed} chunks were parsed`);
});

for (const [when, inTurn] of [
  ['at once', undefined],
  ['later', (_packet: Buffer, handOver: () => void) => void setImmediate().then(handOver)],
] as const)
  test(`nothing more is read while the body of a request is held, which was handed over ${when}`, async (t) => {
    const waits = deferred<IncomingMessage>();
    const goOn = deferred();
    const server = createServer(async (req, res) => {
      const release = holdBody(req);
      waits.resolve(req);
      await goOn.promise;
      release();
      res.end(String((await buffer(req)).length));
    }).on('connection', (accepted: Socket) => readInTurns(accepted, inTurn));
    const socket = await connected(t, server);
    socket.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n');
    const req = await waits.promise;
    const { bytesRead } = req.socket;
    socket.write(Buffer.alloc(1_000_000));
    for (let i = 0; i < 100; i++) await setImmediate();
    t.is(req.socket.bytesRead, bytesRead);
    goOn.resolve();
    const [answer] = (await once(socket, 'data')) as [Buffer];
    t.regex(answer.toString(), /1000000$/, 'all of it arrives afterwards');
  });

test('node gets no chunks of a body while its request waits, and all of them afterwards', async (t) => {
  const waits = deferred<IncomingMessage>();
  const goOn = deferred();
  const socket = await listening(t, async (req, res) => {
    const release = holdBody(req);
    waits.resolve(req);
    await goOn.promise;
    release();
    res.end(`<${(await text(req)).length}>`);
  });
  socket.write(CHUNKED);
  const req = await waits.promise;
  socket.write(`${'1\r\nx\r\n'.repeat(5_000)}0\r\n\r\n`);
  for (let turn = 0; turn < 50; turn++) await setImmediate();
  t.true(req.readableLength < 200, `${req.readableLength} chunks wait`);
  goOn.resolve();
  const [answer] = (await once(socket, 'data')) as [Buffer];
  t.regex(answer.toString(), /<5000>/);
});

test('node gets nothing that follows a pipelined request while that one waits', async (t) => {
  const begun: string[] = [];
  const goOn = deferred();
  let parsed = 0;
  const take = limitPipelining(async (req, res) => {
    begun.push(req.url ?? '');
    if (req.url === '/first') await goOn.promise;
    res.end(`<${req.url} ${(await text(req)).length}>`);
  });
  const socket = await listening(t, (req, res) => {
    const push = req.push.bind(req);
    req.push = (chunk) => {
      parsed++;
      return push(chunk);
    };
    take(req, res);
  });
  const [body, last] = [`${'1\r\nx\r\n'.repeat(5_000)}0\r\n\r\n`, 'GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'];
  socket.write(`GET /first HTTP/1.1\r\nHost: x\r\n\r\n${CHUNKED.replace('/', '/second')}${body}${last}`);
  while (begun.length === 0) await setImmediate();
  for (let turn = 0; turn < 50; turn++) await setImmediate();
  t.true(parsed < 400, `${parsed} chunks were parsed`);
  goOn.resolve();
  t.deepEqual((await text(socket)).match(/<[^>]*>/g), ['</first 0>', '</second 5000>', '</last 0>']);
});

test('a connection is held again after requests of it have waited', async (t) => {
  const begun: string[] = [];
  const goOn = deferred();
  const take = limitPipelining(async (req, res) => {
    begun.push(req.url ?? '');
    if (req.url === '/third') await goOn.promise;
    res.end(`<${req.url}>`);
  });
  let parsed = 0;
  const socket = await listening(t, (req, res) => {
    parsed++;
    take(req, res);
  });
  const get = (path: string): string => `GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`;
  socket.write(get('/first') + get('/second'));
  while (begun.length < 2) await setImmediate();
  socket.write(get('/third'));
  while (begun.length < 3) await setImmediate();
  socket.write(get('/fourth'));
  while (parsed < 4) await setImmediate();
  socket.write(get('/fifth'));
  for (let turn = 0; turn < 50; turn++) await setImmediate();
  t.is(parsed, 4, 'what follows a request that waits');
  goOn.resolve();
  while (begun.length < 5) await setImmediate();
  t.deepEqual(begun, ['/first', '/second', '/third', '/fourth', '/fifth']);
});

test('a client that leaves while its request waits is noticed', async (t) => {
  const left = deferred();
  const socket = await listening(t, (req, res) => {
    holdBody(req);
    res.once('close', left.resolve);
  });
  socket.end('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
  await left.promise;
  t.pass();
});

test('a body with very many empty lines arrives unchanged, and so does the next request', async (t) => {
  const bodies: Buffer[] = [];
  const socket = await listening(t, async (req: IncomingMessage, res) => {
    bodies.push(await buffer(req));
    res.end(`<${bodies.length}>`);
  });
  const lines = Buffer.from(Array.from({ length: 60_000 }, (_, i) => `${i}${i % 3 === 0 ? '\r\n\r\n' : '\n\n'}`).join(''));
  const plain = Buffer.alloc(300_000, 'plain ');
  for (const [body, more] of [
    [lines, ''],
    [plain, ''],
    [lines, 'Connection: close\r\n'],
  ] as const) {
    socket.write(`POST / HTTP/1.1\r\nHost: x\r\n${more}Content-Length: ${body.length}\r\n\r\n`);
    socket.write(body);
  }
  t.deepEqual((await text(socket)).match(/<\d>/g), ['<1>', '<2>', '<3>']);
  t.deepEqual(
    bodies.map((body, i) => body.equals(i === 1 ? plain : lines)),
    [true, true, true],
  );
});

test('a client that ends its side after a crowded body gets its answer', async (t) => {
  const socket = await listening(t, async (req, res) => res.end(`<${(await buffer(req)).length}>`));
  const body = '\n\n'.repeat(20_000);
  socket.end(`POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
  t.regex(await text(socket), /<40000>/);
});

test('what a connection sends is handed over in turn and in its order, and nothing more is read meanwhile', async (t) => {
  const turns: (() => void)[] = [];
  let isInTurn = false;
  const begun = deferred<IncomingMessage>();
  const server = createServer(async (req, res) => {
    isInTurn = true;
    begun.resolve(req);
    res.end(`<${await text(req)}>`);
  }).on('connection', (socket: Socket) =>
    readInTurns(socket, (_packet, handOver) => void (isInTurn ? turns.push(handOver) : handOver())),
  );
  const socket = await connected(t, server);
  const turn = async (): Promise<void> => {
    while (turns.length === 0) await setImmediate();
    turns.shift()?.();
  };
  socket.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n');
  const req = await begun.promise;
  for (const part of ['ab', 'cd']) {
    socket.write(part);
    while (turns.length === 0) await setImmediate();
    for (let i = 0; i < 20; i++) await setImmediate();
    t.is(turns.length, 1);
    t.false(req.complete);
    await turn();
  }
  socket.write('ef');
  await turn();
  const [answer] = (await once(socket, 'data')) as [Buffer];
  t.regex(answer.toString(), /<abcdef>/);
});
