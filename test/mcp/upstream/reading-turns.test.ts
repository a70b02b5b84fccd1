/** A target that takes much processor time is read in small parts, and nothing of it is lost. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import { createLog } from '../../../src/base/log.ts';
import { createAddressRule } from '../../../src/base/network/network-address.ts';
import { deferred } from '../../../src/base/promises.ts';
import { read } from '../../../src/mcp/upstream/bridge/messages.ts';
import { createAgents, sourceOf } from '../../../src/mcp/upstream/connect.ts';
import { createEventQueue } from '../../../src/mcp/upstream/events.ts';
import { charge, chargeEvents, PART_BYTES, pipeInTurns, takeInTurns, turnOf } from '../../../src/mcp/upstream/reading-turns.ts';
import { startProcess } from '../../../src/mcp/upstream/stdio/process.ts';
import type { ProcessFault } from '../../../src/mcp/upstream/upstream.ts';

type Agents = ReturnType<typeof createAgents>;

function bodyOf(agents: Agents, [target, user]: readonly [string, string], origin: string): Promise<readonly Buffer[]> {
  const chunks: Buffer[] = [];
  return new Promise((resolve, reject) => {
    agents.dispatch(
      target,
      user,
      { origin, path: '/', method: 'GET' },
      {
        onRequestStart: () => undefined,
        onResponseData: (_, chunk) => void chunks.push(chunk),
        onResponseEnd: () => resolve(chunks),
        onResponseError: (_, cause) => reject(cause),
      },
    );
  });
}

/** Charges the source with more than it may use in a minute. */
const exhaust = (source: string): void => charge(source, 30_000);

const specOf = (name: string, script: string) => ({
  ...{ name, source: name, command: process.execPath, args: ['-e', script], cwd: null, env: {}, secrets: [] },
});

test.serial('a source above its limit waits for its turn, and others do not', async (t) => {
  t.is(turnOf('busy'), null);
  exhaust('busy');
  t.is(turnOf('idle'), null);
  await turnOf('busy');
  t.not(turnOf('busy'), null, 'the next part waits, too');
});

test.serial('a source that has used much in one turn of the event loop waits for the next one', async (t) => {
  charge('eager', 3);
  t.is(turnOf('idle'), null);
  let isNext = false;
  setImmediate(() => {
    isNext = true;
  });
  await turnOf('eager');
  t.true(isNext);
  t.is(turnOf('eager'), null, 'it is within its limit');
});

test.serial('delivering long events counts by their length', async (t) => {
  const next = () => new Promise((resolve) => setImmediate(resolve));
  for (const [source, length, waits] of [
    ['short events', 100, false],
    ['long events', 64 * 1024, true],
  ] as const) {
    for (let i = 0; i < 200; i++) chargeEvents(source, 1, length);
    await next();
    t.is(turnOf(source) !== null, waits, source);
  }
});

test.serial('the event loop serves others between the parts of a source above its limit', async (t) => {
  const text = `{"jsonrpc":"2.0","id":"unknown","result":[${'0,'.repeat(1_000)}0]}`;
  const queue = createEventQueue('dense', { moved: () => undefined, closed: () => undefined });
  for (let i = 0; i < 500; i++) queue.push(text);
  queue.end();
  exhaust('dense');
  let [parts, served] = [0, 0];
  const serve = setInterval(() => served++, 0);
  for await (const events of queue.events) {
    parts++;
    for (const { data } of events) await read(data, 'dense');
  }
  clearInterval(serve);
  t.true(parts >= 500 / 32, 'a part is small');
  t.true(served >= parts / 2, `${served} times for ${parts} parts`);
});

test.serial('an unread event counts with its id and its name', async (t) => {
  const queue = createEventQueue('named', { moved: () => undefined, closed: () => undefined });
  for (let i = 0; i < 100; i++) queue.push('x', { id: 'i'.repeat(2_000), retry: undefined, event: 'n'.repeat(50) });
  t.true(queue.pending >= 100 * 2_050);
  queue.end();
  for await (const events of queue.events) t.true(events.length < 32, 'a part of them is small, too');
  t.is(queue.pending, 0);
});

test.serial('a chunk that takes long to read is read in turns, although its source is within its limit', async (t) => {
  let parts = 0;
  const slow = (): void => {
    parts++;
    for (const until = performance.now() + 3; performance.now() < until; );
  };
  const taking = takeInTurns('slow lines', Buffer.alloc(10), 1, slow);
  t.true(parts < 10, `${parts} parts at once`);
  await taking;
  t.is(parts, 10);
});

test.serial('bytes of a source above its limit are taken in parts and in order', async (t) => {
  const taken: string[] = [];
  let isFree = false;
  const parts = pipeInTurns(
    'parts',
    2,
    (bytes) => taken.push(bytes.toString()),
    () => {
      isFree = true;
    },
  );
  t.true(parts.push(Buffer.from('abc')));
  exhaust('parts');
  t.false(parts.push(Buffer.from('defgh')));
  t.false(parts.push(Buffer.from('i')));
  await parts.pending;
  t.deepEqual(taken, ['ab', 'c', 'de', 'fg', 'h', 'i']);
  t.true(isFree);
  t.is(parts.pending, null);
});

for (const [what, target, user] of [
  ['another target at the same address', 'good', 'eve'],
  ['what the same target sends to another user', 'bad', 'alice'],
] as const) {
  test.serial(`what a target sends to a user above the limit is read in parts, but not ${what}`, async (t) => {
    const sent = Buffer.alloc(4 * 1024 * 1024, 'abc');
    const server = createServer((_, res) => void res.end(sent)).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const agents = createAgents(5_000, createAddressRule([]));
    t.teardown(async () => {
      await agents.destroy();
      server.close();
    });
    const heavy = ['bad', 'eve'] as const;
    exhaust(sourceOf(heavy[0], heavy[1]));
    // One after the other, so that they take the same connection if the target is the same.
    for (const source of [[target, user], heavy, [target, user]] as const) {
      const chunks = await bodyOf(agents, source, `http://127.0.0.1:${port}`);
      t.true(Buffer.concat(chunks).equals(sent));
      t.is(
        chunks.every(({ length }) => length <= PART_BYTES),
        source === heavy,
      );
    }
  });
}

test.serial('a process above its limit is read in parts', async (t) => {
  const lines = 20_000;
  const script = `process.stdout.write(Array.from({ length: ${lines} }, (_, id) => JSON.stringify({ jsonrpc: '2.0', id, result: {} })).join('\\n') + '\\n')`;
  let turn = 0;
  const timer = setInterval(() => turn++, 0);
  t.teardown(() => clearInterval(timer));
  exhaust('a target');
  const ids: unknown[] = [];
  const ofTurn = new Map<number, number>();
  await new Promise<void>((resolve) => {
    const spec = specOf('a target', script);
    startProcess(
      spec,
      1_000_000,
      {
        line(line) {
          if (line.kind === 'message' && line.message.kind === 'response') ids.push(line.message.id);
          ofTurn.set(turn, (ofTurn.get(turn) ?? 0) + 1);
          if (ids.length === lines) resolve();
        },
        waiting: () => null,
        ended: () => resolve(),
      },
      createLog('silent'),
    );
  });
  t.deepEqual(
    ids,
    Array.from({ length: lines }, (_, id) => id),
  );
  const most = Math.max(...ofTurn.values());
  t.true(most * '{"jsonrpc":"2.0","id":1,"result":{}}'.length <= 3 * PART_BYTES, `${most} lines in one turn`);
});

test.serial('the reader of a flood of events gets few at once', async (t) => {
  const queue = createEventQueue('flood', { moved: () => undefined, closed: () => undefined });
  for (let i = 0; i < 100; i++) queue.push(String(i));
  queue.end();
  exhaust('flood');
  const sizes: number[] = [];
  const read: string[] = [];
  for await (const events of queue.events) {
    sizes.push(events.length);
    read.push(...events.map(({ data }) => data));
  }
  t.deepEqual(sizes, [32, 32, 32, 4]);
  t.deepEqual(
    read,
    Array.from({ length: 100 }, (_, i) => String(i)),
  );
  t.is(queue.pending, 0);
});

test.serial('the reader of large events gets few at once, and what waits is counted', async (t) => {
  let counted = 0;
  const moved = (delta: number): void => {
    counted += delta;
  };
  const queue = createEventQueue('large', { moved, closed: () => undefined });
  for (const length of [10_000, 10_000, 10_000, 10_000, 1_000, 20_000, 1_000]) queue.push('x'.repeat(length));
  t.true(counted > 62_000);
  queue.end();
  const sizes: number[] = [];
  for await (const events of queue.events) {
    sizes.push(events.length);
    t.is(queue.pending, counted);
  }
  t.deepEqual(sizes, [2, 2, 1, 1, 1]);
  t.is(counted, 0);
});

test.serial('what a process above its limit has written before its end is read to the end', async (t) => {
  const script = `process.stderr.write('a line\\n'.repeat(30_000) + 'the end\\n', () => process.exit(1))`;
  exhaust('a talker');
  const fault = await new Promise<ProcessFault>((ended) => {
    const spec = specOf('a talker', script);
    startProcess(spec, 1_000_000, { line: () => undefined, waiting: () => null, ended }, createLog('silent'));
  });
  t.true(fault.stderr.endsWith('a line\nthe end\n'), fault.stderr.slice(-20));
});

test.serial('senders to one process take turns, so that one does not wait for all large messages of another', async (t) => {
  const script = `require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
    const { id } = JSON.parse(line);
    console.log(JSON.stringify({ jsonrpc: '2.0', id, result: {} }));
  })`;
  const ids: unknown[] = [];
  const { promise: all, resolve } = deferred();
  const spec = specOf('a reader', script);
  const handlers = {
    line(line: { readonly kind: string; readonly message?: unknown }) {
      ids.push((line.message as { id?: unknown }).id);
      if (ids.length === 5) resolve();
    },
    waiting: () => null,
    ended: () => resolve(),
  };
  const { send, kill } = startProcess(spec, 1_000_000, handlers, createLog('silent'));
  const message = (id: string, length: number) =>
    JSON.stringify({ jsonrpc: '2.0', id, method: 'm', params: { x: 'x'.repeat(length) } });
  for (const id of ['a1', 'a2', 'a3']) t.is(send(message(id, 2_000_000), 'a'), 'sent');
  for (const id of ['b1', 'b2']) t.is(send(message(id, 10), 'b'), 'sent');
  await all;
  kill('the test is over');
  t.deepEqual(ids, ['a1', 'b1', 'a2', 'b2', 'a3']);
});

test.serial('a sender who has filled the input of a process leaves room for others', async (t) => {
  const { promise: over, resolve: ended } = deferred();
  const spec = specOf('a deaf one', 'setInterval(() => undefined, 1_000)');
  const handlers = { line: () => undefined, waiting: () => null, ended: () => ended() };
  const { send, kill } = startProcess(spec, 1_000_000, handlers, createLog('silent'));
  const message = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'm', params: { x: 'x'.repeat(40_000) } });
  let sent = 0;
  while (send(message, 'greedy') === 'sent') sent++;
  t.true(sent > 150 && sent < 250, String(sent));
  for (let other = 0; other < 3; other++) t.is(send(message, `other ${other}`), 'sent');
  for (let n = 0; n < 50; n++) t.is(send('{}', 'modest'), 'sent');
  kill('the test is over');
  await over;
});
