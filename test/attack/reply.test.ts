/** A fault in the middle of a stream ends the stream and not the process, although no caller catches the errors of `serve`. */
import { once } from 'node:events';
import { createServer, get } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import { createLog } from '../../src/base/log.ts';
import { writeAnswer, writeProblem } from '../../src/mcp/reply.ts';
import type { OutEvent } from '../../src/protocol/answer.ts';

async function* breaking(): AsyncGenerator<OutEvent> {
  yield { data: '{}' };
  throw new Error('broken');
}

test.serial('a stream that breaks in the gateway is cut off', async (t) => {
  const context = {
    requestId: 'r',
    publicUrl: 'http://x',
    log: createLog('silent'),
    keepAliveMs: 60_000,
    recipient: { principal: 'ann', taken: async () => undefined },
  };
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
