/** Targets that misbehave on the wire, and calls that end before their answers. */
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { createStock } from '../../../src/base/budgets.ts';
import { createCancellation } from '../../../src/base/cancellation.ts';
import { deferred } from '../../../src/base/promises.ts';
import { createHttpUpstream } from '../../../src/mcp/upstream/http.ts';
import { createUnread, type Unread } from '../../../src/mcp/upstream/unread.ts';
import { isFault, type UpstreamAnswer, type UpstreamFault, type UpstreamRequest } from '../../../src/mcp/upstream/upstream.ts';
import type { RoutedTarget } from '../../../src/targets/target.ts';

const LIMITS = { connectMs: 5_000, headersMs: 10_000, silenceMs: 10_000, idleMs: 10_000, answerBytes: 4 * 1024 * 1024 };
const EVENT = `data: ${'x'.repeat(1_000)}\n\n`;
const UNTIL_THE_END = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n';

interface Wire {
  readonly send: (signal?: UpstreamRequest['signal']) => Promise<UpstreamAnswer>;
  /** Resolves when the first connection has ended. */
  readonly closed: Promise<void>;
  /** Closes all connections, as the gateway does when it shuts down. */
  close(): Promise<void>;
  /** How many connections there were. */
  readonly connections: () => number;
}

/** `answer` is called for each request, with how many there were before. */
async function wire(
  t: ExecutionContext,
  answer: (socket: Socket, before: number) => void,
  unread: Unread = createUnread(),
): Promise<Wire> {
  const sockets = new Set<Socket>();
  let requests = 0;
  let close: () => void = () => undefined;
  const closed = new Promise<void>((resolve) => {
    close = resolve;
  });
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => close());
    socket.on('data', () => answer(socket, requests++));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no port');
  const upstream = createHttpUpstream({ ...LIMITS }, undefined, unread);
  t.teardown(async () => {
    await upstream.close();
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const target = { name: 'wire', transport: 'streamable-http', url: `http://127.0.0.1:${address.port}/mcp` } as RoutedTarget;
  return {
    close: () => upstream.close(),
    async send(signal) {
      const request = { method: 'POST', target, access: { credentials: { headers: [], variables: [] } }, body: '{}', signal };
      const answer = await upstream.send(request as unknown as UpstreamRequest);
      if (isFault(answer)) throw new Error(answer.fault);
      return answer;
    },
    closed,
    connections: () => sockets.size,
  };
}

const eventsOf = (answer: UpstreamAnswer): AsyncIterable<readonly { readonly data: string }[]> => {
  if (answer.type !== 'stream') throw new Error('no stream');
  return answer.events;
};

const ACCEPTED = 'HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n';

// The first count fills one chunk, so that nothing but the end is left to come once the stream is paused.
for (const count of [64, 300, 10_000]) {
  test.serial(`a stream of ${count} events is read to its end if its connection ends while the reader is paused`, async (t) => {
    const { send } = await wire(t, (socket, before) => {
      if (before > 0) socket.write(ACCEPTED);
      else socket.write(UNTIL_THE_END, () => socket.end(EVENT.repeat(count)));
    });
    const answer = await send();
    // During these requests, the stream and its end have time to arrive.
    for (let round = 0; round < 20; round++) await (await send()).discard();
    let read = 0;
    for await (const events of eventsOf(answer)) read += events.length;
    t.is(read, count);
  });
}

test.serial('if a target breaks off a paused stream, only that stream fails', async (t) => {
  // HTTP/1.0 keeps no connection unless it says so: only the parser knows that this answer ends with its own.
  const head = 'HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000000\r\n\r\n';
  for (const end of ['end', 'resetAndDestroy'] as const) {
    const { send, closed } = await wire(t, (socket, before) => {
      if (before > 0) return void socket.end(ACCEPTED);
      socket.write(head + 'x'.repeat(65_536 - head.length), () => setTimeout(() => socket[end](), 100));
    });
    const answer = await send();
    await closed;
    await t.throwsAsync(async () => {
      for await (const _ of eventsOf(answer));
    });
    t.is((await send()).status, 202);
  }
});

test.serial('received events of a stream are not delivered after the call was aborted', async (t) => {
  const { send, closed } = await wire(t, (socket) => {
    socket.end(UNTIL_THE_END + EVENT.repeat(10));
  });
  const call = createCancellation();
  const answer = await send(call);
  await closed;
  call.abort();
  await t.throwsAsync(
    async () => {
      for await (const _ of eventsOf(answer));
    },
    { name: 'AbortError' },
  );
});

test.serial(
  'streams that end with their connections wait for their readers without exceeding the room of their target',
  async (t) => {
    const events = 2_000;
    const stock = createStock('unread', { perKey: 1024 * 1024, all: 64 * 1024 * 1024 });
    const { send } = await wire(
      t,
      (socket, before) => {
        if (before < 4) socket.end(UNTIL_THE_END + EVENT.repeat(events));
        else socket.write(ACCEPTED);
      },
      createUnread(0, stock),
    );
    const answers: UpstreamAnswer[] = [];
    while (answers.length < 4) answers.push(await send());
    for (let round = 0; round < 100; round++) await (await send()).discard();
    for (const answer of answers) {
      let read = 0;
      for await (const some of eventsOf(answer)) read += some.length;
      t.is(read, events);
    }
    t.is(stock.taken, 0);
  },
);

for (const [what, head] of [
  ['that end with their connections', UNTIL_THE_END],
  ['of connections that are kept', UNTIL_THE_END.replace('Connection: close', 'Transfer-Encoding: chunked')],
] as const) {
  const isChunked = head !== UNTIL_THE_END;
  const encode = (text: string): string => (isChunked ? `${text.length.toString(16)}\r\n${text}\r\n` : text);

  test.serial(`unread streams ${what} stay within the limit of their target`, async (t) => {
    // An event that never ends is read on.
    const part = encode(`data: ${'x'.repeat(60_000)}`);
    const stock = createStock('unread', { perKey: 1024 * 1024, all: 64 * 1024 * 1024 });
    const opened = await wire(
      t,
      (socket) => {
        const more = (): void => {
          while (!socket.destroyed && socket.write(part));
          socket.once('drain', more);
        };
        socket.write(head);
        more();
      },
      createUnread(0, stock),
    );
    const answers = await Promise.all(Array.from({ length: 8 }, () => opened.send()));
    for (const answer of answers) {
      const fault = await t.throwsAsync(async () => {
        for await (const _ of eventsOf(answer));
      });
      t.regex(fault?.message ?? '', /too much of this target waits/);
      t.true(stock.taken <= 1024 * 1024);
    }
    t.is(stock.taken, 0);
  });
}

test.serial('an answer in parts counts against the limit of its target until it is complete', async (t) => {
  const stock = createStock('unread', { perKey: 256 * 1024, all: 64 * 1024 * 1024 });
  const { send } = await wire(
    t,
    (socket, before) => {
      const length = before === 0 ? 1_000_000 : 100_000;
      socket.write(`HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n${'1'.repeat(length)}`);
    },
    createUnread(0, stock),
  );
  const read = async (): Promise<Buffer | string | UpstreamFault> => {
    const answer = await send();
    if (answer.type === 'stream') throw new Error('no body');
    const body = await answer.read();
    t.is(stock.taken, isFault(body) ? 0 : 100_000 - 64 * 1024);
    answer.discard();
    return body;
  };
  const [large, small] = [await read(), await read()];
  t.is(isFault(large) ? large.fault : '', 'busy');
  t.is(isFault(small) ? 0 : small.length, 100_000);
  t.is(stock.taken, 0);
});

const announced = (length: number): string =>
  `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n${'1'.repeat(length)}`;

test.serial('a large body waits for room, and is not read before it has its turn', async (t) => {
  const stock = createStock('unread', { perKey: 256 * 1024, all: 64 * 1024 * 1024 });
  const { send } = await wire(t, (socket) => void socket.write(announced(200_000)), createUnread(0, stock));
  const [first, second, third] = [await send(), await send(), await send()];
  if (first.type === 'stream' || second.type === 'stream' || third.type === 'stream') throw new Error('no body');
  const whole = await first.read();
  t.is(isFault(whole) ? 0 : whole.length, 200_000);
  const order: string[] = [];
  const waiting = Promise.resolve(second.read()).finally(() => order.push('read'));
  const gone = third.read();
  third.discard();
  t.deepEqual(await gone, { fault: 'aborted' });
  order.push('room');
  first.discard();
  const body = await waiting;
  t.is(isFault(body) ? 0 : body.length, 200_000);
  t.deepEqual(order, ['room', 'read']);
  second.discard();
  t.is(stock.taken, 0);
});

test.serial('a large body is not read if it is not wanted any more when its turn has come', async (t) => {
  const stock = createStock('unread', { perKey: 256 * 1024, all: 64 * 1024 * 1024 });
  const { send } = await wire(t, (socket) => void socket.write(announced(200_000)), createUnread(0, stock));
  const answer = await send();
  if (answer.type === 'stream') throw new Error('no body');
  t.deepEqual(await answer.read(() => false), { fault: 'aborted' });
  t.is(stock.taken, 0);
});

test.serial(
  'a stream on a kept connection waits for its reader and leaves the connection usable for the next call',
  async (t) => {
    const head = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n';
    const { send, connections } = await wire(t, (socket) => {
      socket.write(`${head}${`${EVENT.length.toString(16)}\r\n${EVENT}\r\n`.repeat(400)}0\r\n\r\n`);
    });
    for (let round = 0; round < 3; round++) {
      let count = 0;
      for await (const events of eventsOf(await send())) count += events.length;
      t.is(count, 400);
      await new Promise((resolve) => setImmediate(resolve));
    }
    t.is(connections(), 1);
  },
);

test.serial('a body that arrives in single bytes takes about as much memory as its length', async (t) => {
  const size = 512 * 1024;
  const { send } = await wire(t, (socket) => {
    const head = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n';
    socket.write(`${head}${'1\r\nx\r\n'.repeat(size)}0\r\n\r\n`);
  });
  const original = Buffer.concat;
  let most = 0;
  Buffer.concat = (list, length) => {
    most = Math.max(most, list.length);
    return original(list, length);
  };
  t.teardown(() => {
    Buffer.concat = original;
  });
  const answer = await send();
  if (answer.type === 'stream') throw new Error('no body');
  const body = await answer.read();
  if (isFault(body)) throw new Error(body.fault);
  t.is(body.length, size);
  t.is(String(body), 'x'.repeat(size));
  t.true(most <= 2_048);
});

test.serial('an aborted call leaves nothing on the connection for the next call', async (t) => {
  let first: Socket | null = null;
  const half = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"secret":';
  const { send, connections } = await wire(t, (socket, before) => {
    if (before === 0) first = socket;
    socket.write(before === 0 ? half : 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}');
  });
  const call = createCancellation();
  const answer = await send(call);
  if (answer.type === 'stream') throw new Error('no body');
  const body = answer.read();
  call.abort();
  t.deepEqual(await body, { fault: 'aborted' });
  (first as Socket | null)?.write('"of first"}');
  const next = await send();
  if (next.type === 'stream') throw new Error('no body');
  t.deepEqual(await next.read(), Buffer.from('{}'));
  t.true(connections() > 1);
});

test.serial('what the gateway cuts off when it shuts down is not the fault of the target', async (t) => {
  const asked = deferred();
  const { send, close } = await wire(t, () => asked.resolve());
  const unanswered = t.throwsAsync(send(), { message: 'aborted' });
  await asked.promise;
  await close();
  await unanswered;
});
