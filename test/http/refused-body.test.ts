import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { readInTurns } from '../../src/http/limits/crowded.ts';
import { endAnswer } from '../../src/http/refused-body.ts';
import { countTurns } from '../support/turns.ts';
import { connected } from './connected.ts';

async function serve(t: ExecutionContext, handle: RequestListener): Promise<number> {
  const server = createServer(handle).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close().closeAllConnections());
  return (server.address() as AddressInfo).port;
}

/** A client of node would leave when it has the answer. This one stays until the gateway closes the connection. */
function send(port: number, bytes: number, body = Buffer.alloc(bytes)) {
  const client = connect(port, '127.0.0.1').on('error', () => undefined);
  client.write(`POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ${bytes}\r\n\r\n`);
  client.write(body);
  let text = '';
  client.on('data', (chunk) => {
    text += String(chunk);
  });
  return new Promise<string>((resolve) => client.on('close', () => resolve(text)));
}

test.serial('a long answer arrives unchanged, and other work runs while it is encoded', async (t) => {
  const text = 'a\u{1f600}'.repeat(700_000);
  let taken = 0;
  let isEncoded = true;
  const port = await serve(t, (_req, res) => {
    const turns = countTurns();
    res.once('finish', () => {
      taken = turns();
    });
    endAnswer(res, text);
    isEncoded = res.writableEnded;
  });
  const answer = await fetch(`http://127.0.0.1:${port}/`);
  t.true((await answer.text()) === text);
  t.false(isEncoded, 'at once');
  t.true(taken > 1, String(taken));
});

test.serial('the rest of a refused body is discarded slowly, and its sender gets the answer', async (t) => {
  let began = 0;
  let took = 0;
  const port = await serve(t, (req, res) => {
    began = performance.now();
    req.on('end', () => {
      took = performance.now() - began;
    });
    endAnswer(res, 'refused');
  });
  t.true((await send(port, 8 * 1024 * 1024)).endsWith('refused'));
  // Without pauses this would take a few milliseconds. Zero means that the gateway gave up after two seconds.
  t.true(took === 0 || took > 200, `${took} ms`);
  t.true(took > 0 || performance.now() - began > 1_900, 'the body was read, or given up in time');
});

test.serial('bodies that are refused at the same time share one pace', async (t) => {
  let discarded = 0;
  const port = await serve(t, (req, res) => {
    endAnswer(res, 'refused');
    req.on('data', ({ length }: Buffer) => {
      discarded += length;
    });
  });
  const bytes = 8 * 1024 * 1024;
  const began = performance.now();
  const texts = await Promise.all(Array.from({ length: 8 }, () => send(port, bytes)));
  const seconds = (performance.now() - began) / 1_000;
  t.true(texts.every((text) => text.endsWith('refused')));
  t.true(discarded < seconds * 20 * 1024 * 1024 + 8 * 128 * 1024, `${discarded} bytes in ${seconds} s`);
});

test.serial('when too many refused bodies are waiting, the first is given up', async (t) => {
  const answers: number[] = [];
  const port = await serve(t, (_req, res) => endAnswer(res, 'refused'));
  const clients = Array.from({ length: 65 }, async (_, i) => {
    const text = await send(port, 1024 * 1024, Buffer.alloc(1));
    answers.push(i);
    return text;
  });
  const began = performance.now();
  const text = await Promise.race(clients);
  t.true(text.endsWith('refused'));
  t.true(performance.now() - began < 1_900, 'before its time is over');
  t.is(answers.length, 1);
  await Promise.all(clients);
});

for (const [when, wait] of [
  ['before the answer', false],
  ['after the answer', true],
] as const) {
  test.serial(`a refused body in chunks of one byte that arrives ${when} is not kept`, async (t) => {
    let kept = 0;
    const server = createServer((req, res) => {
      const push = req.push.bind(req);
      req.push = (chunk) => {
        kept++;
        return push(chunk);
      };
      endAnswer(res, '<refused>');
    });
    const socket = await connected(t, server.on('connection', readInTurns));
    socket.write('POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n');
    if (wait) await once(socket, 'data');
    socket.resume().write('1\r\nx\r\n'.repeat(100_000));
    await once(socket, 'close');
    t.true(kept < 5_000, `${kept} chunks were parsed`);
  });
}
