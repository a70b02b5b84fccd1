/** Pipelined requests on one connection. */
import { EventEmitter, once } from 'node:events';
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http';
import { connect, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import { limitPipelining } from '../../../src/http/limits/pipelining.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { openSession } from '../../support/mcp.ts';
import { startStateful } from '../../support/upstreams/stateful.ts';
import { connected } from '../connected.ts';

const listening = (t: ExecutionContext, handle: RequestListener): Promise<Socket> =>
  connected(t, createServer(limitPipelining(handle)));

const get = (path: string, more = ''): string => `GET ${path} HTTP/1.1\r\nHost: x\r\n${more}\r\n`;
const post = (path: string, body: string): string =>
  `POST ${path} HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n${body}`;

test('a pipelined request starts when the one before it is answered', async (t) => {
  const begun: string[] = [];
  let underWay = 0;
  const socket = await listening(t, async (req, res) => {
    begun.push(`${req.url} ${++underWay}`);
    const body = await text(req);
    setImmediate(() => {
      underWay--;
      res.end(`<${req.url} ${body}>`);
    });
  });
  socket.write(get('/1') + post('/2', 'two') + get('/3') + post('/4', 'four') + get('/5', 'Connection: close\r\n'));
  const answers = await text(socket);
  t.deepEqual(begun, ['/1 1', '/2 1', '/3 1', '/4 1', '/5 1']);
  t.deepEqual(answers.match(/<[^>]*>/g), ['</1 >', '</2 two>', '</3 >', '</4 four>', '</5 >']);
});

test('a client whose waiting requests have large heads is disconnected', async (t) => {
  const heads = async (count: number, characters: number, more = ''): Promise<number> => {
    let begun = 0;
    const socket = await listening(t, (_req, res) => {
      begun++;
      setImmediate(() => res.end());
    });
    const large = `X-A: ${'a'.repeat(characters)}\r\n${more}`;
    socket.on('error', () => undefined).write(get('/', large).repeat(count) + get('/', 'Connection: close\r\n'));
    await new Promise((resolve) => socket.resume().once('close', resolve));
    return begun;
  };
  t.is(await heads(8, 500), 9);
  t.is(await heads(3, 10_000), 4);
  t.true((await heads(8, 10_000)) < 5);
  t.true((await heads(8, 0, 'a:\r\n'.repeat(1_900))) < 5, 'short headers take far more than their characters');
});

test('requests that wait behind an answer do not start after the client has disconnected', async (t) => {
  const begun: string[] = [];
  let leave: () => void = () => undefined;
  const left = new Promise<void>((resolve) => {
    leave = resolve;
  });
  const socket = await listening(t, (req, res) => {
    begun.push(req.url ?? '');
    res.on('close', () => setImmediate(() => setImmediate(leave)));
    socket.destroy();
  });
  socket.write(get('/1') + get('/2'));
  await left;
  t.deepEqual(begun, ['/1']);
});

test('requests that wait behind an answer that ends the connection do not start', async (t) => {
  const begun: string[] = [];
  const socket = await listening(t, (req, res) => {
    begun.push(req.url ?? '');
    res.setHeader('Connection', 'close').end();
  });
  socket.write(get('/1') + get('/2'));
  await text(socket);
  t.deepEqual(begun, ['/1']);
});

for (const [what, head, answer] of [
  ['no Host', '', /^HTTP\/1\.1 400 [\s\S]*"invalid_request"[\s\S]*HTTP\/1\.1 200 /],
  ['very many headers', `Host: {host}\r\n${'a:b\r\n'.repeat(260)}`, /^HTTP\/1\.1 431 /],
] as const) {
  test(`a request behind one with ${what} starts only if it can be answered`, async (t) => {
    const target = await startStateful();
    t.teardown(() => target.stop());
    const gateway = await startGateway(t);
    const { token } = await person(gateway, 'admin@example.com');
    const registered = { name: 'everything', transport: 'streamable-http', url: target.url };
    await gateway.rest(201, 'POST', '/api/targets', { token, body: registered });
    const all = { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
    await gateway.rest(201, 'POST', '/api/policies', { token, body: all });
    const session = await openSession(`${gateway.url}/mcp/everything`, token);

    const { host, port, hostname } = new URL(gateway.url);
    const socket = connect(Number(port), hostname);
    const stream = `Authorization: Bearer ${token}\r\nMcp-Session-Id: ${session}\r\nAccept: text/event-stream\r\n`;
    socket.write(
      `GET / HTTP/1.1\r\n${head.replace('{host}', host)}\r\nGET /mcp/everything HTTP/1.1\r\nHost: ${host}\r\n${stream}\r\n`,
    );
    let answers = '';
    for await (const chunk of socket) {
      answers += String(chunk);
      if (answers.includes(' 200 OK')) break;
    }
    t.regex(answers, answer);
    const streams = async (): Promise<string | undefined> =>
      /^portcullis_streams(\{[^}]*\})? (\d+)$/m.exec(await (await fetch(`${gateway.url}/metrics`)).text())?.[2];
    for (let asked = 0; asked < 20 && (await streams()) !== '0'; asked++) await gateway.rest(200, 'GET', '/health/live');
    t.is(await streams(), '0', 'a stream without a connection would never end');
  });
}

test('a request on a broken connection does not start', (t) => {
  const begun: unknown[] = [];
  const take = limitPipelining((req) => begun.push(req));
  take({ socket: { writable: false } } as IncomingMessage, new EventEmitter() as ServerResponse);
  t.deepEqual(begun, []);
});

test('the gateway handles only a few of a thousand requests in one packet', async (t) => {
  const { url, rest } = await startGateway(t);
  const { host, port, hostname } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => undefined);
  const ask = (more: string): string => `GET / HTTP/1.1\r\nHost: ${host}\r\n${more}\r\n`;
  socket.write(ask('').repeat(1_000) + ask('Connection: close\r\n'));
  socket.resume();
  await once(socket, 'close');
  await rest(200, 'GET', '/health/live');
  const metrics = await (await fetch(`${url}/metrics`)).text();
  const answered = /route="\/"[^}]*\} (\d+)/.exec(metrics)?.[1];
  t.true(Number(answered ?? 0) <= 33, `${answered} requests were handled`);
});

test('requests with an unknown expectation are handled as others, and not answered by node, as many as arrive', async (t) => {
  const { url } = await startGateway(t);
  const { host, port, hostname } = new URL(url);
  const ask = async (count: number, more: string): Promise<string> => {
    const socket = connect(Number(port), hostname);
    let answers = '';
    socket
      .on('error', () => undefined)
      .on('data', (chunk) => {
        answers += String(chunk);
      });
    const request = `GET /health/live HTTP/1.1\r\nHost: ${host}\r\nExpect: something\r\n`;
    socket.write([...Array<string>(count).fill(request), request + more].map((head) => `${head}\r\n`).join(''));
    // A reset is an error first, which `once` would throw.
    await new Promise((resolve) => socket.once('close', resolve));
    return answers;
  };
  t.regex(await ask(0, 'Connection: close\r\n'), /^HTTP\/1.1 200 /);
  const answered = (await ask(1_000, 'Connection: close\r\n')).match(/HTTP\/1.1 /g) ?? [];
  t.true(answered.length <= 33, `${answered.length} requests were answered`);
});
