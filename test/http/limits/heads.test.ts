/** Requests with very many headers. */
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import test from 'ava';
import { HEAD_LIMITS, refuseLargeHeads } from '../../../src/http/limits/heads.ts';
import { connected } from '../connected.ts';

for (const [count, status] of [
  [200, 200],
  [254, 431],
  [1_000, 431],
] as const) {
  test(`a request with ${count} more headers is answered with ${status}`, async (t) => {
    const seen: (string | undefined)[] = [];
    const server = createServer(
      refuseLargeHeads(({ headers }, res) => {
        seen.push(headers['last']?.toString());
        res.end();
      }),
    );
    server.maxHeadersCount = HEAD_LIMITS.maxHeadersCount;
    const socket = await connected(t, server);
    const more = Array.from({ length: count }, (_, i) => `x-${i}: x\r\n`).join('');
    socket.write(`GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n${more}Last: yes\r\n\r\n`);
    t.regex(await text(socket), new RegExp(`^HTTP/1.1 ${status} `));
    t.deepEqual(seen, status === 200 ? ['yes'] : [], 'no request is handled without its last headers');
  });
}
