/** Large bodies of REST and of `/mcp` share one budget. */
import { type IncomingMessage, request } from 'node:http';
import test from 'ava';
import { world } from '../support/world.ts';

test.serial('large bodies on /mcp and on the REST API share one limit', async (t) => {
  const w = await world(t);
  const { hostname: host, port } = new URL(w.gateway.url);
  const headers = { authorization: `Bearer ${w.admin.token}`, 'content-type': 'application/json', 'content-length': '4000000' };
  const requests = ['/mcp/everything', '/mcp/everything', '/mcp', '/mcp', '/api/policies'].map((path) => {
    const req = request({ host, port, method: 'POST', path, headers });
    const answered = new Promise<IncomingMessage>((resolve) => req.on('response', (res) => resolve(res.resume())));
    req.on('error', () => undefined);
    // The last byte is missing.
    req.write(' '.repeat(3_999_999));
    return { req, answered };
  });
  t.teardown(() => {
    for (const { req } of requests) req.destroy();
  });
  // Four of them fit into 16 MiB.
  t.is((await Promise.race(requests.map(({ answered }) => answered))).statusCode, 429);
});
