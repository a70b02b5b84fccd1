/** How answers are written, and what becomes of a fault while one is written: no caller catches the errors of `serve`. */
import { once } from 'node:events';
import { createServer, get, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { createCancellation } from '../../src/base/cancellation.ts';
import { createLog } from '../../src/base/log.ts';
import { writeAnswer, writeProblem } from '../../src/mcp/reply.ts';
import type { OutEvent } from '../../src/protocol/answer.ts';

async function* breaking(): AsyncGenerator<OutEvent> {
  yield { data: '{}' };
  throw new Error('broken');
}

const context = {
  requestId: 'r',
  publicUrl: 'http://x',
  log: createLog('silent'),
  keepAliveMs: 60_000,
  recipient: { principal: 'ann', taken: async () => undefined },
  revoked: createCancellation(),
};

test.serial(
  'the answers of one turn are written together at its end, and one whose client has left hurts no other',
  async (t) => {
    const waiting: ServerResponse[] = [];
    const server = createServer((_, res) => {
      res.on('error', () => undefined);
      waiting.push(res);
      if (waiting.length === 3) server.emit('all');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.teardown(() => void server.close());
    const all = once(server, 'all');
    const ask = () => once(get({ port: (server.address() as AddressInfo).port, agent: false }), 'response');
    const asked = [ask(), ask(), ask()];
    await all;
    const answers = ['first', 'second', 'third'].map((word, at) => {
      const res = waiting[at];
      if (res === undefined) throw new Error('no request');
      return { res, written: writeAnswer(res, { kind: 'message', status: 200, text: `"${word}"` }, context) };
    });
    answers[1]?.res.destroy();
    t.deepEqual(
      answers.map(({ res }) => res.headersSent),
      [false, false, false],
    );
    await answers[0]?.written;
    t.deepEqual(
      answers.map(({ res }) => res.headersSent || res.destroyed),
      [true, true, true],
    );
    const got = await Promise.allSettled(asked);
    const texts: string[] = [];
    for (const its of got)
      if (its.status === 'fulfilled') texts.push(`${its.value[0].headers['content-length']} ${await text(its.value[0])}`);
    t.deepEqual(texts.sort(), ['7 "first"', '7 "third"']);
  },
);

test.serial('a stream that breaks in the gateway is cut off', async (t) => {
  const server = createServer(async (_, res) => {
    try {
      await writeAnswer(res, { kind: 'stream', events: breaking(), drain: false }, context);
    } catch (error) {
      t.notThrows(() => writeProblem(res, error, context));
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => void server.close());
  const [res] = await once(get({ port: (server.address() as AddressInfo).port, agent: false }), 'response');
  res.on('error', () => undefined).resume();
  await once(res, 'close');
});

async function* large(data: string): AsyncGenerator<OutEvent> {
  yield { data };
}

test.serial('no sign of life lands within a large event', async (t) => {
  const data = `"${'x'.repeat(2_000_000)}"`;
  const slow = { principal: 'ann', taken: () => sleep(5) };
  const server = createServer((_, res) =>
    writeAnswer(res, { kind: 'stream', events: large(data), drain: false }, { ...context, keepAliveMs: 1, recipient: slow }),
  );
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => void server.close());
  const [res] = await once(get({ port: (server.address() as AddressInfo).port, agent: false }), 'response');
  t.true((await text(res)).includes(`data: ${data}\n`));
});
