/** Open connections of one sender. */
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { setImmediate as turnOver } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { deferred } from '../../../src/base/promises.ts';
import { addressOf } from '../../../src/http/limits/client-address.ts';
import { limitConnections } from '../../../src/http/limits/connections.ts';
import { type InTurn, readInTurns } from '../../../src/http/limits/crowded.ts';

const LIMITS = { ofPrincipal: 3, ofAddress: 4, ofStrangers: 6, few: 2 };
const HEAD = 'GET / HTTP/1.1\r\nHost: x\r\n';
const asked = (token: string): string => `${HEAD}Authorization: ${token}\r\n\r\n`;

interface Options {
  /** The tokens that are admitted. */
  readonly admitted?: Set<string>;
  readonly trustProxy?: boolean;
  readonly handle?: RequestListener;
  /** How many connections are kept for a while before they are closed. */
  readonly leaving?: number;
  readonly inTurn?: InTurn;
}

async function listening(
  t: ExecutionContext,
  { admitted = new Set(), trustProxy = false, handle, leaving = 0, inTurn }: Options = {},
) {
  const senders = {
    principalOf: ({ headers: { authorization = '' } }: { headers: { authorization?: string } }) =>
      admitted.has(authorization) ? authorization : null,
    addressOf: (req: Parameters<RequestListener>[0]) => addressOf(req, trustProxy),
  };
  const limits = limitConnections(senders, trustProxy, { warn: () => undefined }, { ...LIMITS, mostLeaving: leaving });
  const server = createServer(limits.noting(handle ?? ((_req, res) => res.end('done'))));
  server.on('connection', limits.note).on('connection', (socket) => readInTurns(socket, inTurn));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const sockets: Socket[] = [];
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    server.closeAllConnections();
    server.close();
  });
  return {
    server,
    senderOf: limits.senderOf,
    refuse: limits.refuse,
    /** Opens a connection from an address, and sends the text. */
    async open(text = HEAD, localAddress = '127.0.0.1'): Promise<Socket> {
      const isComplete = text.endsWith('\r\n\r\n');
      const noted = once(server, isComplete ? 'request' : 'connection');
      const socket = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', localAddress }).on(
        'error',
        () => undefined,
      );
      sockets.push(socket.resume());
      socket.write(text);
      await noted;
      return socket;
    },
    /** The numbers of the connections that are open, in the order in which they were opened. */
    async openOnes(): Promise<number[]> {
      for (let i = 0; i < 20; i++) await turnOver();
      const count = await new Promise<number>((resolve) => server.getConnections((_error, n) => resolve(n)));
      const found = sockets.flatMap((socket, n) => (socket.closed || socket.readableEnded ? [] : [n]));
      return found.length === count ? found : this.openOnes();
    },
  };
}

const answer = async (socket: Socket, text: string): Promise<string> => {
  socket.write(text);
  const [data] = (await once(socket, 'data')) as [Buffer];
  return data.toString('latin1').slice(9, 12);
};

test('a stranger has at most so many connections: the oldest one is closed, also with an incomplete body', async (t) => {
  const server = await listening(t);
  await server.open('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1234');
  for (let i = 0; i < 5; i++) await server.open();
  t.deepEqual(await server.openOnes(), [2, 3, 4, 5]);
});

test('a connection that is closed because there are too many is kept for a while, and not read, so that its client does not open the next one at once', async (t) => {
  let requests = 0;
  const server = await listening(t, { leaving: 1, handle: () => void requests++ });
  const first = await server.open();
  const second = await server.open();
  for (let i = 0; i < 3; i++) await server.open();
  first.write('\r\n');
  t.deepEqual(await server.openOnes(), [0, 1, 2, 3, 4]);
  t.is(requests, 0);
  second.write('\r\n');
  await once(server.server, 'request');
  await server.open();
  t.deepEqual(await server.openOnes(), [0, 1, 3, 4, 5], 'no more than so many are kept');
  await once(first, 'close');
  t.is(requests, 1);
});

test('a connection whose request waits for its turn is not lost before those that send nothing', async (t) => {
  const arrived = deferred();
  const server = await listening(t, { inTurn: () => arrived.resolve() });
  (await server.open('')).write(`${HEAD}\r\n`);
  await arrived.promise;
  await turnOver();
  for (let i = 0; i < 4; i++) await server.open('');
  t.deepEqual(await server.openOnes(), [0, 2, 3, 4]);
});

test('a stranger with more connections without a request than with one loses the oldest of the former', async (t) => {
  const server = await listening(t, { handle: () => undefined });
  await server.open(`${HEAD}\r\n`);
  for (let i = 0; i < 4; i++) await server.open();
  t.deepEqual(await server.openOnes(), [0, 2, 3, 4]);
});

test('a stranger with more connections on which a request is being answered loses the oldest of these', async (t) => {
  const server = await listening(t, { handle: () => undefined });
  for (let i = 0; i < 4; i++) await server.open(`${HEAD}\r\n`);
  await server.open();
  t.deepEqual(await server.openOnes(), [1, 2, 3, 4]);
  await server.open(`${HEAD}\r\n`);
  t.deepEqual(await server.openOnes(), [2, 3, 4, 5], 'one that has sent no request yet is not lost');
});

test('strangers whose requests are always being answered do not keep out a user who opens a connection', async (t) => {
  const server = await listening(t, {
    admitted: new Set(['a']),
    handle: (req, res) => void (req.headers.authorization === 'a' && res.end('done')),
  });
  for (let i = 0; i < 2; i++) await server.open(`${HEAD}\r\n`, '127.0.1.2');
  for (let i = 0; i < 4; i++) await server.open(`${HEAD}\r\n`, '127.0.1.1');
  t.is(await answer(await server.open('', '127.0.1.3'), asked('a')), '200', 'at the limit of all strangers');
  t.deepEqual(await server.openOnes(), [0, 1, 3, 4, 5, 6], 'the address with most connections loses its oldest');
  await server.open(`${HEAD}\r\n`, '127.0.1.1');
  t.is(await answer(await server.open('', '127.0.1.1'), asked('a')), '200', 'at the limit of the address');
  t.deepEqual(await server.openOnes(), [0, 1, 4, 5, 6, 7, 8]);
});

test('a principal whose streams are all open keeps them, and gets no more', async (t) => {
  const server = await listening(t, {
    admitted: new Set(['a']),
    handle: (_req, res) => void res.writeHead(200).write('stream'),
  });
  for (let i = 0; i < 3; i++) t.is(await answer(await server.open(''), asked('a')), '200');
  await server.open(asked('a'));
  t.deepEqual(await server.openOnes(), [0, 1, 2]);
});

test('connections with an admitted token count for their principal, and no longer for their address', async (t) => {
  const server = await listening(t, { admitted: new Set(['a', 'b']) });
  for (const token of ['a', 'a', 'b', 'b']) t.is(await answer(await server.open(''), asked(token)), '200');
  for (let i = 0; i < 6; i++) await server.open();
  t.deepEqual(await server.openOnes(), [0, 1, 2, 3, 6, 7, 8, 9]);
});

test('a principal has at most so many connections', async (t) => {
  const server = await listening(t, { admitted: new Set(['a']) });
  for (let i = 0; i < 6; i++) {
    const socket = await server.open('');
    t.is(await answer(socket, asked('a')), '200');
    // The next head stays incomplete.
    socket.write(HEAD);
  }
  t.deepEqual(await server.openOnes(), [3, 4, 5]);
});

test('a connection whose token is admitted by its first request is not closed for strangers afterwards', async (t) => {
  const admitted = new Set<string>();
  const server = await listening(t, { admitted, handle: (_req, res) => void res.writeHead(200).write('stream') });
  const sockets = [await server.open(''), await server.open('')];
  for (const socket of sockets) t.is(await answer(socket, asked('a')), '200');
  admitted.add('a');
  for (let i = 0; i < 8; i++) await server.open();
  t.deepEqual(await server.openOnes(), [0, 1, 6, 7, 8, 9]);
});

const BEGUN = 'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n';

test('connections that were answered are closed at once, because browsers may send requests on them', async (t) => {
  const server = await listening(t, { leaving: 9 });
  for (let i = 0; i < 5; i++) await answer(await server.open(''), `${HEAD}\r\n`);
  t.deepEqual(await server.openOnes(), [1, 2, 3, 4]);
});

test('surplus connections of a principal are closed at once', async (t) => {
  const server = await listening(t, { admitted: new Set(['a']), leaving: 9, handle: () => undefined });
  for (let i = 0; i < 4; i++) await server.open(`${BEGUN}Authorization: a\r\n\r\n`);
  t.deepEqual(await server.openOnes(), [1, 2, 3]);
});

test('the rest of a body belongs to the sender of its request, also if that was answered early', async (t) => {
  const server = await listening(t);
  const accepted = once(server.server, 'connection');
  const socket = await server.open('');
  t.is(await answer(socket, `${BEGUN}\r\n1234`), '200');
  const [own] = (await accepted) as [Socket];
  t.like(server.senderOf(own), { sender: '127.0.0.1', isBody: true });
});

test('strangers of many addresses do not take the connections that a user opens together', async (t) => {
  const server = await listening(t, { leaving: 9 });
  for (let i = 1; i < 7; i++) await server.open('', `127.0.1.${i}`);
  for (let i = 0; i < 2; i++) await server.open('', '127.0.1.7');
  t.deepEqual(await server.openOnes(), [2, 3, 4, 5, 6, 7]);
});

const named = (n: number, begun = HEAD): string => `${begun}X-Forwarded-For: 192.0.2.${n}\r\n\r\n`;

/** Behind a proxy. It answers while `on` says so. */
async function answering(t: ExecutionContext) {
  const is = { on: true };
  const server = await listening(t, { trustProxy: true, handle: (_req, res) => void (is.on && res.end('done')) });
  server.server.keepAliveTimeout = 60_000;
  return { ...server, is };
}

test('behind a proxy, a connection without a request belongs to nobody, and is not closed', async (t) => {
  const server = await answering(t);
  const sockets: Socket[] = [];
  for (let i = 0; i < 10; i++) sockets.push(await server.open(''));
  for (const socket of sockets) t.is(await answer(socket, named(1)), '200');
  for (let i = 0; i < 8; i++) await server.open('');
  t.is((await server.openOnes()).length, 18);
  server.is.on = false;
  const begun = once(server.server, 'request');
  for (const socket of sockets.slice(0, 6)) socket.write(named(1));
  await begun;
  t.is((await server.openOnes()).length, 16, 'it counts again with the next request');
});

test('behind a proxy, a connection whose request was answered before its body arrived is not closed for a surplus one', async (t) => {
  const server = await answering(t);
  const early: Socket[] = [];
  for (let i = 0; i < 6; i++) early.push(await server.open(''));
  for (const socket of early) t.is(await answer(socket, `${named(1, BEGUN)}1234`), '200');
  server.is.on = false;
  for (let i = 0; i < 5; i++) await server.open(named(1));
  t.deepEqual(await server.openOnes(), [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]);
  server.is.on = true;
  const [slow, ...others] = early;
  for (const socket of others) t.is(await answer(socket, `56789${named(2)}`), '200');
  await once(slow as Socket, 'close');
  t.is((await server.openOnes()).length, 9, 'a body that does not arrive is not awaited for ever');
});

test('behind a proxy, only so many connections wait for bodies of requests that were answered', async (t) => {
  const server = await answering(t);
  const closed: number[] = [];
  for (let i = 0; i < 515; i++) {
    const socket = await server.open('');
    socket.once('close', () => closed.push(i));
    t.is(await answer(socket, `${named(i % 3, BEGUN)}1234`), '200');
  }
  t.is((await server.openOnes()).length, 512);
  t.deepEqual(closed, [0, 1, 2]);
});

test('behind a proxy, a surplus request is refused, so that the proxy does not take the gateway for broken', async (t) => {
  const begun: unknown[] = [];
  const server = await listening(t, {
    ...{ trustProxy: true, leaving: 1, admitted: new Set(['a']) },
    handle: ({ headers }) => void begun.push(headers['x-forwarded-for']),
  });
  const answers: string[] = [];
  const send = async (text: string): Promise<void> => {
    const socket = await server.open(text);
    const nth = answers.push('') - 1;
    socket.on('data', (data) => (answers[nth] += `${data}`));
    await server.openOnes();
  };
  for (let i = 1; i < 6; i++) await send(named(1));
  const refused = answers.map((text) => text.slice(9, 12));
  t.deepEqual(refused, ['429', '', '', '', ''], 'the oldest of the address');
  t.regex(answers[0] ?? '', /Connection: close\r\n\r\n\{.*"detail":"Too many requests/s);
  for (let i = 2; i < 6; i++) await send(named(7, `${HEAD}Authorization: a\r\n`));
  t.deepEqual(
    answers.map((text) => text.slice(9, 12)),
    [...refused, '', '', '', '429'],
    'the newest of the principal',
  );
  t.is(begun.length, 8, 'it was not begun');
  t.deepEqual(await server.openOnes(), [1, 2, 3, 4, 5, 6, 7]);
});

test('behind a proxy, a surplus request that was sent ahead gets no refusal, which would be taken for the answer to the one before', async (t) => {
  const server = await listening(t, { trustProxy: true, leaving: 9, handle: () => undefined });
  const ahead = await server.open(`${named(2)}${named(1)}`);
  const answers: unknown[] = [];
  ahead.on('data', (data) => answers.push(data));
  for (let i = 0; i < 4; i++) await server.open(named(1));
  t.deepEqual(await server.openOnes(), [1, 2, 3, 4]);
  t.deepEqual(answers, []);
});

test('behind a proxy, a connection whose first request waits too long in line is refused', async (t) => {
  const server = await listening(t, { trustProxy: true });
  const accepted = once(server.server, 'connection');
  const socket = await server.open('');
  const [own] = (await accepted) as [Socket];
  server.refuse(own);
  const [data] = (await once(socket, 'data')) as [Buffer];
  t.regex(data.toString(), /^HTTP\/1.1 429 /);
});

test('behind a proxy, requests count for the address that it names, and all strangers have a limit together', async (t) => {
  const server = await listening(t, { trustProxy: true, handle: () => undefined });
  for (let i = 0; i < 6; i++) await server.open(named(1));
  t.deepEqual(await server.openOnes(), [2, 3, 4, 5], 'those of one address');
  for (let i = 2; i < 6; i++) await server.open(named(i));
  t.deepEqual(await server.openOnes(), [4, 5, 6, 7, 8, 9], 'all');
  for (let i = 0; i < 8; i++) await server.open('');
  t.is((await server.openOnes()).length, 14, 'without a request, nothing says whose they are');
});
