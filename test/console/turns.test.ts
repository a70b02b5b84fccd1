/** How many pages one session gets at once. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import express from 'express';
import { deferred } from '../../src/base/promises.ts';
import type { Ask } from '../../src/console/ask.ts';
import { consoleRoutes } from '../../src/console/routes.ts';
import { openContext } from '../../src/http/context.ts';

const PAGES = 10;

test('a session gets four pages at once, and others do not wait for it', async (t) => {
  const released = deferred();
  const came = deferred();
  const four = deferred();
  let arrived = 0;
  let running = 0;
  const ask: Ask = async (page) => {
    if (page.req.get('session') === 'other') return { body: [] as never, next: null, etag: undefined };
    if (++running === 4) four.resolve();
    await released.promise;
    return { body: [] as never, next: null, etag: undefined };
  };
  const sessions = {
    currentUser: async (req: { readonly headers: Readonly<Record<string, unknown>> }) => {
      if (++arrived === PAGES) came.resolve();
      const principal = {
        role: 'admin',
        granted: { role: 'admin', groups: [] },
        groups: [],
        limits: null,
        token_kind: 'browser',
      };
      const user = { email: 'a@example.com', role: 'admin' };
      return { user, session: { id: req.headers['session'] }, admission: { principal, snapshot: { rights: [] } } } as never;
    },
  };
  const app = express();
  app.use((_req, res, next) => {
    openContext(res, { requestId: 'r' });
    next();
  });
  app.use('/console', consoleRoutes({ ask, pass: async () => undefined, publicUrl: 'http://127.0.0.1', sessions }));
  const server = createServer(app);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    released.resolve();
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/console/targets`;
  const get = async (session: string): Promise<number> => (await fetch(url, { headers: { session } })).status;

  const pages = Promise.all(Array.from({ length: PAGES }, () => get('one')));
  await Promise.all([came.promise, four.promise]);
  t.is(await get('other'), 200);
  t.is(running, 4);
  released.resolve();
  t.deepEqual(
    await pages,
    Array.from({ length: PAGES }, () => 200),
  );
  t.is(running, PAGES);
});
