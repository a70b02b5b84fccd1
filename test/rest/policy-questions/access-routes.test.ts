/** What answers about access take of the process. */
import { EventEmitter, once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import express, { type Response } from 'express';
import { deferred } from '../../../src/base/promises.ts';
import { readPosition } from '../../../src/db/changes.ts';
import { openContext } from '../../../src/http/context.ts';
import { sendList, streamTo } from '../../../src/http/page.ts';
import { createAccessRoutes } from '../../../src/rest/policy-questions/access-routes.ts';
import { createFoundUsers } from '../../../src/state/found-users.ts';
import { localUser, userStore } from '../../../src/users/user-store.ts';
import { countRows, openTestDatabase } from '../../support/database.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';

async function serve(t: ExecutionContext, listener: RequestListener): Promise<number> {
  const server = createServer(listener).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close().closeAllConnections());
  return (server.address() as AddressInfo).port;
}

test('a user who asks about access and leaves again gets two answers made at once', async (t) => {
  const released = deferred();
  const target = { id: 't', name: 't', enabled: true };
  const clients = new EventEmitter();
  let began = 0;
  const router = createAccessRoutes({
    database: { snapshot: (work: (db: null) => unknown) => work(null) } as never,
    moments: { now: async () => ({ position: { revision: 1, sequence: 1 }, policies: [], targets: [target] }) } as never,
    engineOf: (async () => {
      began++;
      await released.promise;
      return { decide: () => ({ effect: 'deny', reason: 'default', policy: null }) };
    }) as never,
    engineBefore: (() => undefined) as never,
    catalogue: { ofTarget: () => [] },
    foundUsers: createFoundUsers(),
  });
  const app = express();
  app.use((req, res, next) => {
    openContext(res, { requestId: 'r', admission: { principal: { sub: req.headers['user'] } } as never });
    res.once('close', () => clients.emit('left'));
    next();
    clients.emit('arrived');
  });
  app.use(router);
  const port = await serve(t, app);
  const path = '/access?who=everyone&target=t&resource_type=tool&resource_name=x';
  const askAndLeave = async (user: string): Promise<void> => {
    const client = connect(port, '127.0.0.1');
    const [arrived, left] = [once(clients, 'arrived'), once(clients, 'left')];
    client.write(`GET ${path} HTTP/1.1\r\nHost: x\r\nUser: ${user}\r\n\r\n`);
    await arrived;
    client.destroy();
    await left;
  };
  for (let asked = 0; asked < 8; asked++) await askAndLeave('alice');
  t.is(began, 2);
  await askAndLeave('bob');
  t.is(began, 3, 'others do not wait for it');
  released.resolve();
  const answered = await fetch(`http://127.0.0.1:${port}${path}`, { headers: { user: 'alice' } });
  t.deepEqual([answered.status, await answered.json()], [200, []]);
  t.is(began, 4, 'nothing is made for clients that have left');
});

test('answers about access read few users at once, and all of them', async (t) => {
  const at = await createSqlite();
  t.teardown(() => at.drop());
  const database = await openTestDatabase(t, at);
  const id = (n: number): string => `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`;
  for (let n = 0; n < 450; n++)
    await userStore(database.knex).insert(localUser({ id: id(n), email: `${n}@x.org`, role: 'user', groups: [] }, 1), null);
  const position = await readPosition(database.knex);
  const moment = { position, policies: [], stored: [], targets: [{ id: 't', name: 't', enabled: true }] };
  const decide = () => ({ effect: 'allow', reason: 'policy', policy: { id: 'p', name: 'p' } });
  const router = createAccessRoutes({
    database,
    moments: { now: async () => moment } as never,
    engineOf: (async () => ({ decide, decideTarget: decide })) as never,
    engineBefore: (() => undefined) as never,
    catalogue: { ofTarget: () => [] },
    foundUsers: createFoundUsers(),
  });
  const app = express().use((_req, res, next) => {
    const admission = { principal: { sub: 'alice' } } as never;
    openContext(res, { requestId: 'r', admission, admit: async () => admission, authorize: () => ({}) as never });
    next();
  });
  const port = await serve(t, app.use(router));
  const rows = countRows(database);
  const ask = async (path: string) => {
    const answer = await fetch(`http://127.0.0.1:${port}${path}`);
    const text = await answer.text();
    t.is(answer.status, 200, text);
    return { text, next: /^<([^>]+)>/.exec(answer.headers.get('link') ?? '')?.[1] };
  };
  const ids = ({ text }: { text: string }): string[] => text.match(/00000000-0000-7000-8000-\d{12}/g) ?? [];
  const all = Array.from({ length: 450 }, (_, n) => id(n));
  const object = 'target=t&resource_type=tool&resource_name=x';
  t.deepEqual(ids(await ask(`/access?${object}&format=csv`)), all);
  const whole = await ask(`/access?${object}&limit=1000`);
  t.deepEqual([ids(whole), whole.next], [all, undefined]);
  const first = await ask(`/access?${object}&limit=449`);
  t.deepEqual(ids(first), all.slice(0, 449));
  t.deepEqual(ids(await ask(first.next ?? '')), all.slice(449));
  const some = await ask('/matrix?target=t&rows=users');
  t.deepEqual(ids(some), all.slice(0, 100));
  t.deepEqual(ids(await ask(some.next ?? '')), all.slice(100, 200));
  t.is(rows(), 200);
});

test('a long list is written as its client reads it', async (t) => {
  const items = Array.from({ length: 16 }, () => ({ name: 'x'.repeat(1024 * 1024) }));
  const began = deferred<Response>();
  const port = await serve(t, (_req, res) => {
    openContext(res as Response, { requestId: 'r' });
    void sendList(res as Response, '', items, (item) => item, '');
    began.resolve(res as Response);
  });
  const client = connect(port, '127.0.0.1').pause();
  client.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
  const res = await began.promise;
  while (res.writableLength === 0) await setImmediate();
  // What the operating system does not take waits here.
  for (let turn = 0; turn < 100; turn++) await setImmediate();
  t.true(res.writableLength < 4 * 1024 * 1024);
  client.destroy();
  const answer = await fetch(`http://127.0.0.1:${port}/`);
  t.deepEqual(await answer.json(), items);
});

test('when clients read too many long answers, the principal who has most loses the oldest one', async (t) => {
  async function* endless(): AsyncGenerator<string> {
    for (;;) yield 'x'.repeat(64 * 1024);
  }
  const port = await serve(t, (req, res) => {
    openContext(res as Response, { requestId: 'r', admission: { principal: { sub: req.headers['user'] } } as never });
    streamTo(res as Response, {}, endless()).catch(() => res.writeHead(429).end());
  });
  const ask = async (user: string) => {
    const client = connect(port, '127.0.0.1');
    t.teardown(() => client.destroy());
    const closed = once(client, 'close');
    client.on('error', () => undefined).write(`GET / HTTP/1.1\r\nHost: x\r\nUser: ${user}\r\n\r\n`);
    const [head] = (await once(client, 'data')) as [Buffer];
    client.pause();
    return { status: head.toString('latin1', 9, 12), client, closed };
  };
  const few = await ask('user 0');
  for (let n = 0; n < 7; n++) t.is((await ask('user 1')).status, '200');
  const oldest = await ask('user 2');
  for (let n = 1; n < 8; n++) t.is((await ask('user 2')).status, '200');
  for (let user = 3; user < 9; user++) for (let n = 0; n < 8; n++) t.is((await ask(`user ${user}`)).status, '200');
  t.is((await ask('user 8')).status, '429', 'one user reads only eight');
  t.is((await ask('administrator')).status, '200');
  oldest.client.resume();
  await oldest.closed;
  t.is((await ask('user 2')).status, '200');
  few.client.resume();
  await once(few.client, 'data');
  t.false(few.client.destroyed);
});
