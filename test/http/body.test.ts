import { once } from 'node:events';
import { createServer, type IncomingMessage, request } from 'node:http';
import { connect } from 'node:net';
import test from 'ava';
import { createStock } from '../../src/base/budgets.ts';
import { deferred } from '../../src/base/promises.ts';
import { createReading, jsonBody } from '../../src/http/body.ts';
import { openContext } from '../../src/http/context.ts';
import { startRestOnSqlite as start } from '../support/rest.ts';
import { connected } from './connected.ts';

test.serial('bodies are JSON with one reading, and bounded', async (t) => {
  const rest = await start(t);
  const { token, id } = await rest.account('a@example.com');
  const put = (body: string | Buffer, headers: Record<string, string | string[]> = {}) =>
    rest.call('PUT', `/api/users/${id}`, { token, body, headers });
  const refusals: readonly (readonly [text: string | Buffer, reason: RegExp])[] = [
    ['{"role":"admin","role":"user"}', /^role: may appear only once$/],
    ['{"role":"admin","r\\u006fle":"user"}', /^role: may appear only once$/],
    ['{"groups":["a"],}', /JSON/],
    ['{"role":"admin"} {}', /after the end/],
    ['\ufeff{}', /byte order mark/],
    [Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]), /UTF-8/],
    [`{"groups":${'['.repeat(70)}${']'.repeat(70)}}`, /deeper/],
    ['{"__proto__":{"role":"admin"}}', /__proto__/],
    ['{"role":"\\ud800"}', /surrogate/],
    ['{role:"x"}', /JSON/],
    ["{'role':'x'}", /JSON/],
    ['NaN', /JSON/],
    ['', /^the body is required$/],
    ['[]', /^the body must be of type object$/],
    ['{"color":"red"}', /^color: is not a member of this object$/],
  ];
  for (const [text, reason] of refusals) {
    const answer = await put(text);
    t.is(answer.status, 400, String(text));
    t.regex(String(answer.body.detail), reason, String(text));
  }
  const twice = await put('{"role":"x","groups":[],"role":"y"}');
  t.deepEqual(twice.body.errors, [{ path: 'role', message: 'may appear only once' }]);
  for (const type of [
    ...['text/plain', 'application/x-www-form-urlencoded', 'application/json; charset=utf-16', 'application/json, text/plain'],
    ...['application/jsonp', 'application/json; charset=utf-8; x=y', 'application/vnd.api+json', ''],
  ]) {
    t.is((await put('{}', { 'content-type': type })).status, 415, type);
  }
  for (const type of ['application/json', 'APPLICATION/JSON; Charset="UTF-8"', 'application/json;charset=utf-8']) {
    t.is((await put('{}', { 'content-type': type })).status, 200, type);
  }
  t.is((await put('{}', { 'content-encoding': 'gzip' })).status, 415);
  t.is((await put('{}', { 'content-type': ['application/json', 'application/json'] })).status, 415);
  t.is((await rest.call('GET', '/api/users', { token, body: {} })).status, 400);

  const tooLarge = `{"role":"${'x'.repeat(4 * 1024 * 1024)}"}`;
  t.is((await put(tooLarge)).status, 413);
  const chunked = await new Promise<number>((resolve, reject) => {
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'transfer-encoding': 'chunked' };
    const req = request({ host: '127.0.0.1', port: rest.port, method: 'PUT', path: `/api/users/${id}`, headers }, (res) => {
      res.resume();
      resolve(res.statusCode ?? 0);
    });
    req.on('error', reject);
    for (let i = 0; i < 80; i++) req.write('x'.repeat(64 * 1024));
    req.end();
  });
  t.is(chunked, 413);
  t.is((await rest.call('POST', '/api/auth/login', { body: `{"email":"${'x'.repeat(20_000)}"}` })).status, 413);
  const unverified = await rest.call('PUT', `/api/users/${id}`, { body: tooLarge });
  t.is(unverified.status, 401, 'the body of an unknown caller is not read');
  // The sender breaks off in the middle of its body.
  const cut = connect(rest.port, '127.0.0.1');
  let answer = '';
  cut.setEncoding('utf8').on('data', (text: string) => (answer += text));
  const head = 'POST /api/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100';
  cut.end(`${head}\r\n\r\n{"email":`);
  await once(cut, 'close');
  t.false(answer.includes(' 200 '));
  t.is((await rest.call('GET', '/health/live')).status, 200);
});

test.serial('a large body is read only if its sender is an admitted administrator', async (t) => {
  const rest = await start(t);
  const admin = await rest.account('a@example.com');
  const user = await rest.account('b@example.com');
  const body = JSON.stringify({ role: 'x'.repeat(100_000) });
  const put = (token: string) => rest.call('PUT', `/api/users/${user.id}`, { token, body });
  t.is((await put(admin.token)).status, 400, 'it is read, and the role is too long');
  t.is((await put(user.token)).status, 413);
  t.is((await rest.call('PUT', `/api/users/${user.id}`, { token: admin.token, body: { enabled: false } })).status, 200);
  // Not a byte of the body is ever sent.
  const status = await new Promise<number>((resolve, reject) => {
    const headers = { authorization: `Bearer ${user.token}`, 'content-type': 'application/json', 'content-length': '4000000' };
    const req = request({ host: '127.0.0.1', port: rest.port, method: 'PUT', path: `/api/users/${user.id}`, headers }, (res) => {
      res.resume();
      resolve(res.statusCode ?? 0);
      req.destroy();
    });
    req.on('error', reject);
    req.flushHeaders();
  });
  t.is(status, 401);
});

test.serial('bytes of large bodies under way are bounded for one administrator', async (t) => {
  const rest = await start(t);
  const { token, id } = await rest.account('a@example.com');
  const body = JSON.stringify({ role: 'x'.repeat(4_000_000) });
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'content-length': String(body.length) };
  const begin = () => {
    const req = request({ host: '127.0.0.1', port: rest.port, method: 'PUT', path: `/api/users/${id}`, headers });
    const answered = new Promise<IncomingMessage>((resolve) => req.on('response', (res) => resolve(res.resume())));
    req.on('error', () => undefined);
    req.write(body.slice(0, -1));
    return { req, answered };
  };
  // Four of them fit into 16 MiB.
  const requests = Array.from({ length: 5 }, begin);
  const first = await Promise.race(requests.map(({ answered }) => answered));
  t.is(first.statusCode, 429);
  t.is(first.headers['retry-after'], '1');
  for (const { req } of requests) req.end(body.slice(-1));
  const statuses = await Promise.all(requests.map(async ({ answered }) => (await answered).statusCode));
  t.deepEqual(statuses.sort(), [400, 400, 400, 400, 429], 'the role is too long for the others');
  t.is((await rest.call('PUT', `/api/users/${id}`, { token, body })).status, 400, 'what was taken is given back');
});

test.serial('a client that leaves before its body is read takes no bytes', async (t) => {
  const stock = createStock('bodies', { perKey: 1_000, all: 4_000 });
  const read = jsonBody({ limitOf: () => 1_000, reading: createReading(() => 0), trustProxy: false, underWay: stock });
  const finished = deferred<unknown>();
  const server = createServer(async (req, res) => {
    const principal = { issuer: 'us', sub: 'a' };
    openContext(res as never, { requestId: '', admission: { principal } as never });
    await once(res, 'close');
    await Promise.resolve(read(req as never, res as never, finished.resolve)).catch(finished.resolve);
  });
  const socket = await connected(t, server);
  const body = JSON.stringify({ name: 'x'.repeat(100) });
  socket.write(`POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
  await once(server, 'request');
  socket.destroy();
  await finished.promise;
  t.is(stock.taken, 0);
});

test.serial('a caller who sends many values waits, while small bodies and other callers do not', async (t) => {
  const rest = await start(t);
  await rest.account('a@example.com');
  const [user, other] = [await rest.account('b@example.com'), await rest.account('c@example.com')];
  const body = JSON.stringify(Object.fromEntries(Array.from({ length: 5_400 }, (_, at) => [`m${100_000 + at}`, 0])));
  const send = (path: string, token: string | undefined, sent: unknown) => rest.call('POST', path, { token, body: sent });
  let refused = await send('/api/auth/logout', user.token, body);
  t.is(refused.status, 400);
  for (let sent = 1; refused.status === 400; sent++) {
    if (sent > 100) return t.fail('it is never refused');
    refused = await send('/api/auth/logout', user.token, body);
  }
  t.is(refused.status, 429);
  t.true(Number(refused.headers['retry-after']) >= 1);
  t.is((await send('/api/auth/logout', user.token, { a: 0 })).status, 400, 'a small body is read');
  t.is((await send('/api/auth/logout', other.token, body)).status, 400);
  // Refusals that come at once would take the thread from others.
  const order: string[] = [];
  const again = send('/api/auth/logout', user.token, body).then(() => order.push('refused'));
  await send('/api/auth/logout', user.token, { a: 0 });
  order.push('small');
  await again;
  t.deepEqual(order, ['small', 'refused']);
});
