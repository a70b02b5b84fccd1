/** How many pages one session gets at once. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setImmediate as turnOver } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import express from 'express';
import { deferred } from '../../src/base/promises.ts';
import type { Ask } from '../../src/console/ask.ts';
import { consoleRoutes } from '../../src/console/routes.ts';
import { readInTurn } from '../../src/db/turns.ts';
import { openContext } from '../../src/http/context.ts';

const PAGES = 10;
const principal = {
  sub: 'reader',
  role: 'admin',
  granted: { role: 'admin', groups: [] },
  groups: [],
  limits: null,
  token_kind: 'browser',
};

/** Serves the console. Returns its address. */
async function serve(t: ExecutionContext, ask: Ask, sessions: Parameters<typeof consoleRoutes>[0]['sessions']): Promise<string> {
  const app = express();
  app.use((_req, res, next) => {
    openContext(res, { requestId: 'r' });
    next();
  });
  app.use('/console', consoleRoutes({ ask, pass: async () => undefined, publicUrl: 'http://127.0.0.1', sessions }));
  const server = createServer(app);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/console`;
}

test.serial('a session gets four pages at once, and others do not wait for it', async (t) => {
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
      const user = { email: 'a@example.com', role: 'admin' };
      return { user, session: { id: req.headers['session'] }, admission: { principal, snapshot: { rights: [] } } } as never;
    },
  };
  t.teardown(released.resolve);
  const url = `${await serve(t, ask, sessions)}/targets`;
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

test.serial('a long page waits for its turn among the long answers of REST, and a short page does not', async (t) => {
  const asked = deferred();
  const names = (count: number) => Array.from({ length: count }, (_, at) => ({ resource_type: 'tool', resource_name: `t${at}` }));
  const ask: Ask = async (_page, _method, path) => {
    const isLong = path.includes('/long?');
    if (isLong) asked.resolve();
    return {
      body: { target: 't', endpoint: '/', names: names(isLong ? 200 : 3), more: isLong } as never,
      next: null,
      etag: undefined,
    };
  };
  const sessions = {
    currentUser: async () =>
      ({ user: { id: 'reader' }, session: { id: 'one' }, admission: { principal, snapshot: { rights: [] } } }) as never,
  };
  const url = await serve(t, ask, sessions);
  const answer = deferred();
  const reading = readInTurn('somebody', () => answer.promise);
  let isShown = false;
  const long = fetch(`${url}/mine/long`).then(({ status }) => {
    isShown = true;
    return status;
  });
  await asked.promise;
  t.is((await fetch(`${url}/mine/short`)).status, 200);
  for (let turns = 0; turns < 100; turns++) await turnOver();
  t.false(isShown);
  answer.resolve();
  await reading;
  t.is(await long, 200);
});
