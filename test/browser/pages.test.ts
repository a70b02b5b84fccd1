/** How many requests for pages are handled at once. */
import { once } from 'node:events';
import { createServer, request } from 'node:http';
import test from 'ava';
import express, { type Response, Router } from 'express';
import { createPages } from '../../src/browser/pages.ts';

test('four requests of one address for pages are handled at once, besides those with a body', async (t) => {
  const app = express();
  const server = createServer(app).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as { port: number };
  const begun: Response[] = [];
  let whenBegun = (_count: number): void => undefined;
  const router = Router().use((_req, res) => whenBegun(begun.push(res)));
  const pages = createPages({ publicUrl: `http://127.0.0.1:${port}`, trustProxy: false }, [
    { path: '/signin', router },
    { path: '/console', router, takesTurns: true },
  ]);
  app.use(pages.handler);
  const reached = (count: number): Promise<void> =>
    new Promise((resolve) => {
      whenBegun = (now) => now === count && resolve();
      if (begun.length >= count) resolve();
    });
  const send = (method: string, path: string, body?: string): void =>
    void request({ port, host: '127.0.0.1', method, path })
      .on('error', () => undefined)
      .end(body);

  for (let i = 0; i < 6; i++) send('GET', '/signin');
  await reached(4);
  send('POST', '/signin', 'a=b');
  await reached(5);
  t.deepEqual(
    begun.map(({ req }) => req.method),
    ['GET', 'GET', 'GET', 'GET', 'POST'],
    'two requests wait',
  );
  begun[0]?.end();
  await reached(6);
  t.is(begun[5]?.req.method, 'GET');
  for (let i = 0; i < 6; i++) send('GET', '/console');
  await reached(12);
  t.is(begun.filter(({ req }) => req.baseUrl === '/console').length, 6, 'the console lets requests take turns by session');
});
