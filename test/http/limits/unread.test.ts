/** Clients of the REST API that do not read their answers. */
import { EventEmitter, once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { createLog } from '../../../src/base/log.ts';
import { createUnreadLimits, limitUnread } from '../../../src/http/limits/unread.ts';

/** More bytes than the buffers of the operating system hold. */
const LARGE = Buffer.alloc(16 * 1024 * 1024, 'x');
const MIB = 1024 * 1024;

/** Starts a server that answers each request with `answer`. `said`: the lines of its log. */
async function serve(t: ExecutionContext, answer: RequestListener, { stallMs = 60_000, perKey = 64 * MIB } = {}) {
  const limits = createUnreadLimits({ waitingBytesOfPrincipal: perKey, waitingBytesOfAll: 4 * perKey, stallMs });
  const closed = new EventEmitter();
  const said: string[] = [];
  const log = createLog('warn', { write: (line) => void said.push((JSON.parse(line) as { msg: string }).msg) });
  const server = createServer((req, res) => {
    limitUnread(res, () => req.headers['x-owner']?.toString() ?? '', limits, log);
    res.once('close', () => closed.emit('closed'));
    answer(req, res);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close().closeAllConnections());
  const { port } = server.address() as AddressInfo;
  return {
    ...{ closed, said, waiting: limits.waiting },
    ask(owner: string): Socket {
      const socket = connect(port, '127.0.0.1').on('error', () => undefined);
      socket.pause().write(`GET / HTTP/1.1\r\nHost: x\r\nX-Owner: ${owner}\r\n\r\n`);
      return socket;
    },
  };
}

async function read(socket: Socket, until: number): Promise<number> {
  let bytes = 0;
  for await (const chunk of socket) {
    bytes += (chunk as Buffer).length;
    if (bytes >= until) break;
  }
  return bytes;
}

test('a client that reads nothing of its answer for a while is disconnected, and the log says so', async (t) => {
  const streamed: RequestListener = (_, res) => {
    res.write(LARGE);
  };
  for (const answer of [(_: unknown, res: { end(all: Buffer): void }) => res.end(LARGE), streamed]) {
    const { ask, closed, said, waiting } = await serve(t, answer as RequestListener, { stallMs: 300 });
    const end = once(closed, 'closed');
    ask('a');
    await end;
    t.deepEqual(said, ['client closed: it took nothing of its answer for 0.3 s']);
    t.is(waiting.taken, 0);
  }
});

test('a client that reads its answer slowly, or waits for it, gets all of it', async (t) => {
  const { ask, said, waiting } = await serve(t, (_, res) => void setTimeout(() => res.end(LARGE), 1_000), { stallMs: 500 });
  const socket = ask('a');
  let bytes = 0;
  for await (const chunk of socket) {
    bytes += (chunk as Buffer).length;
    if (bytes >= LARGE.length) break;
    // All of it takes longer than the client may take nothing.
    if (bytes % 7 === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  }
  t.true(bytes >= LARGE.length);
  t.deepEqual(said, []);
  t.is(waiting.taken, 0);
});

test('the bytes that wait for one client are limited, a single large answer is sent, and others are served', async (t) => {
  const { ask, closed, said } = await serve(t, (_, res) => void res.end(LARGE), { perKey: 16 * MIB });
  const waits = [ask('a'), ask('a')];
  const end = once(closed, 'closed');
  ask('a');
  await end;
  t.deepEqual(said, ['client closed: too many bytes of answers wait for clients']);
  t.true((await read(ask('b'), LARGE.length)) >= LARGE.length);
  for (const socket of waits) t.true((await read(socket, LARGE.length)) >= LARGE.length);
});
