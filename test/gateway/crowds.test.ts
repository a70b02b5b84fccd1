/** Callers with very many requests at once, and what others notice of them. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, request } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { Pool } from 'undici';
import { starts } from '../../src/base/turns/caller-turns.ts';
import { apiToken, person, startGateway } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { world } from '../support/world.ts';

test('a request is answered before most of those that another user has sent earlier', async (t) => {
  const gateway = await startGateway(t);
  const [greedy, other] = [await person(gateway, 'greedy@example.com'), await person(gateway, 'other@example.com')];
  const pool = new Pool(gateway.url, { connections: 400 });
  t.teardown(() => pool.destroy());
  let answered = 0;
  const ask = async (token: string): Promise<number> => {
    const { body } = await pool.request({ path: '/api/auth/me', method: 'GET', headers: { authorization: `Bearer ${token}` } });
    await body.dump();
    return ++answered;
  };
  // All connections are open, and the gateway knows both tokens.
  await Promise.all(Array.from({ length: 301 }, (_, i) => ask(i === 0 ? other.token : greedy.token)));
  answered = 0;
  const all = Array.from({ length: 300 }, () => ask(greedy.token));
  const place = await ask(other.token);
  await Promise.all(all);
  t.true(place < 150, `${place - 1} of 300 were answered before`);
});

test('requests whose clients have left while they waited keep no later request waiting', async (t) => {
  const gateway = await startGateway(t);
  const { token } = await person(gateway, 'impatient@example.com');
  const options = { path: '/api/auth/me', method: 'GET', headers: { authorization: `Bearer ${token}` } } as const;
  for (let round = 0; round < 3; round++) {
    const pool = new Pool(gateway.url, { connections: 100 });
    const left = Array.from({ length: 100 }, () => pool.request(options).then(({ body }) => body.dump()));
    await left[0];
    await pool.destroy();
    await Promise.allSettled(left);
  }
  const { status } = await gateway.rest(200, 'GET', '/api/auth/me', { token });
  t.is(status, 200);
});

for (const isRevoked of [false, true]) {
  const what = isRevoked ? 'a revoked token' : 'a token of the same user';
  test(`requests with ${what} whose bodies never arrive keep no other request of the user waiting`, async (t) => {
    const gateway = await startGateway(t);
    const admin = await person(gateway, 'admin@example.com');
    const stolen = await apiToken(gateway, admin);
    await gateway.rest(200, 'GET', '/api/auth/me', { token: stolen.token });
    if (isRevoked) await gateway.rest(204, 'DELETE', `/api/auth/tokens/${stolen.id}`, { token: admin.token });
    for (let i = 0; i < 20; i++) {
      const stalled = request(`${gateway.url}/api/policies`, {
        method: 'POST',
        headers: {
          ...{ authorization: `Bearer ${stolen.token}`, 'content-type': 'application/json' },
          ...{ 'content-length': '100', expect: '100-continue' },
        },
      }).on('error', () => undefined);
      t.teardown(() => stalled.destroy());
      stalled.flushHeaders();
      await once(stalled, 'continue');
    }
    const answer = await fetch(`${gateway.url}/api/auth/tokens/${stolen.id}`, {
      method: 'DELETE',
      headers: { authorization: `Bearer ${admin.token}` },
      // The gateway would end the stalled requests after a minute.
      signal: AbortSignal.timeout(20_000),
    });
    t.is(answer.status, isRevoked ? 404 : 204);
  });
}

test('answers that are not read keep no later request with the same token waiting', async (t) => {
  const gateway = await startGateway(t);
  const { token } = await person(gateway, 'admin@example.com');
  const groups = Array.from({ length: 100 }, (_, i) => `  - group: ${'g'.repeat(200)}${i}\n`).join('');
  const file = (i: number): string => `name: wide ${i}\nresource_type: tool\neffect: deny\npriority: 1\nsubjects:\n${groups}`;
  for (const from of [0, 150]) {
    const files = Object.fromEntries(Array.from({ length: 150 }, (_, i) => [`wide-${from + i}.yaml`, file(from + i)]));
    await gateway.rest(200, 'POST', '/api/policies/apply', { token, body: { files } });
  }
  const { hostname, port } = new URL(gateway.url);
  const unread = Array.from({ length: 6 }, () => connect(Number(port), hostname).on('error', () => undefined));
  t.teardown(() => unread.forEach((socket) => void socket.destroy()));
  const ask = `GET /api/policies HTTP/1.1\r\nHost: ${hostname}:${port}\r\nAuthorization: Bearer ${token}\r\n\r\n`;
  // Without a listener for data, a socket is not read.
  const begun = unread.map((socket) => once(socket, 'readable'));
  for (const socket of unread) socket.write(ask);
  await Promise.all(begun);
  const { status } = await gateway.rest(200, 'GET', '/api/auth/me', { token });
  t.is(status, 200);
});

test('a request to all targets asks only some of them at once', async (t) => {
  let underWay = 0;
  let most = 0;
  const asked = new Set<string>();
  const server = createServer(async (req, res) => {
    const { id, method } = await messageIn(req);
    if (id === undefined) return void res.writeHead(202).end();
    const isList = method === 'tools/list';
    if (isList) {
      asked.add(req.url ?? '');
      most = Math.max(most, ++underWay);
      await sleep(20);
      underWay--;
    }
    const result = isList
      ? { tools: [] }
      : { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'one of many', version: '1' } };
    res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ jsonrpc: '2.0', id, result }));
  }).listen(0, '127.0.0.1');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const count = 24;
  for (let i = 0; i < count; i++) {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/${i}`;
    await gateway.rest(201, 'POST', '/api/targets', { token: admin.token, body: { name: `target-${i}`, url } });
  }
  const policy = {
    ...{ name: 'administrators list everything', resource_type: 'all', effect: 'allow', priority: 1 },
    subjects: [{ subject_type: 'role', subject_value: 'admin' }],
  };
  await gateway.rest(201, 'POST', '/api/policies', { token: admin.token, body: policy });
  const { token } = await apiToken(gateway, admin);
  const session = await openSession(`${gateway.url}/mcp`, token);
  const answer = await fetch(`${gateway.url}/mcp`, {
    method: 'POST',
    headers: {
      ...{ authorization: `Bearer ${token}`, 'content-type': 'application/json', 'mcp-session-id': session },
      ...{ accept: 'application/json, text/event-stream', 'mcp-protocol-version': '2025-11-25' },
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }),
  });
  t.is(answer.status, 200);
  await answer.text();
  t.is(asked.size, count);
  t.true(most <= 16, `${most} targets were asked at once`);
});

test('a call that waits for its turn is decided with the policies that are in force when the turn comes', async (t) => {
  const { gateway, admin, user, token, mcp, allow, target } = await world(t);
  const { id } = await allow({ name: 'everything' });
  const session = await openSession(mcp, token);
  const echo = () => post(mcp, token, call('echo', { message: 'hi' }), { 'mcp-session-id': session });
  t.true('result' in ((await echo()).message ?? {}));
  const forwarded = () => target.recorder.objects().length;
  const before = forwarded();

  const ends: (() => void)[] = [];
  starts.run('somebody else', () => undefined);
  for (let i = 0; i < 4; i++) starts.run(`calls of ${user.id}`, (end) => ends.push(end), { most: 4, partOf: null }, user.id);
  const waiting = echo();
  await gateway.rest(204, 'DELETE', `/api/policies/${id}`, { token: admin.token });
  t.is(await Promise.race([waiting, sleep(100)]), undefined);
  for (const end of ends) end();
  t.regex((await waiting).message?.error?.message ?? '', /no policy lets you use it/);
  t.is(forwarded(), before);
});

test('a call whose client leaves before its turn is not forwarded', async (t) => {
  const { gateway, user, token, mcp, allow, target } = await world(t);
  await allow({ name: 'everything' });
  const session = await openSession(mcp, token);
  const ends: (() => void)[] = [];
  starts.run('somebody else', () => undefined);
  for (let i = 0; i < 4; i++) starts.run(`calls of ${user.id}`, (end) => ends.push(end), { most: 4, partOf: null }, user.id);
  const leaving = new AbortController();
  const headers = { 'mcp-session-id': session };
  const left = post(mcp, token, call('echo', { message: 'left' }), headers, leaving.signal);
  await gateway.rest(200, 'GET', '/api/auth/me', { token: user.token });
  leaving.abort();
  await t.throwsAsync(left, { any: true });
  // The gateway has noticed it when a later connection has been answered.
  await gateway.rest(200, 'GET', '/api/auth/me', { token: user.token });
  for (const end of ends) end();
  t.true('result' in ((await post(mcp, token, call('echo', { message: 'stays' }), headers)).message ?? {}));
  t.deepEqual(target.recorder.objects(), ['tools/call echo']);
});

for (const [what, key, most] of [
  ['a list', 'all targets of', 4],
  ['a part of a list', 'parts of', 8],
] as const) {
  test(`${what} of all targets that waits for its turn is decided with what is in force when the turn comes`, async (t) => {
    const { gateway, admin, user, token, allow, target } = await world(t);
    const { id } = await allow({ name: 'everything' });
    const session = await openSession(`${gateway.url}/mcp`, token);
    const list = () =>
      post(`${gateway.url}/mcp`, token, { jsonrpc: '2.0', id: 1, method: 'tools/list' }, { 'mcp-session-id': session });
    t.notDeepEqual((await list()).message?.result?.['tools'], []);
    const forwarded = () => target.recorder.received.filter(({ message }) => message?.method === 'tools/list').length;
    const before = forwarded();

    const ends: (() => void)[] = [];
    starts.run('somebody else', () => undefined);
    for (let i = 0; i < most; i++) {
      const limit = { most, partOf: key === 'parts of' ? user.id : null };
      starts.run(`${key} ${user.id}`, (end) => ends.push(end), limit);
    }
    while (ends.length < most) await sleep(1);
    const waiting = list();
    await gateway.rest(204, 'DELETE', `/api/policies/${id}`, { token: admin.token });
    t.is(await Promise.race([waiting, sleep(100)]), undefined);
    for (const end of ends) end();
    t.deepEqual((await waiting).message?.result?.['tools'], []);
    t.is(forwarded(), before);
  });
}

for (const method of ['GET', 'DELETE', 'initialized'] as const) {
  test(`${method} at /mcp that waits for its turn reaches no target that became denied meanwhile`, async (t) => {
    const { gateway, admin, user, token, allow, target } = await world(t);
    const { id } = await allow({ name: 'everything' });
    const url = `${gateway.url}/mcp`;
    const initialize = {
      ...{ jsonrpc: '2.0', id: 0, method: 'initialize' },
      params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
    };
    const opened = await post(url, token, initialize);
    const headers = { 'mcp-session-id': opened.headers.get('mcp-session-id') ?? '', 'mcp-protocol-version': '2025-11-25' };
    const initialized = () => post(url, token, { jsonrpc: '2.0', method: 'notifications/initialized' }, headers);
    if (method !== 'initialized') await initialized();
    const before = target.recorder.received.length;

    const ends: (() => void)[] = [];
    starts.run('somebody else', () => undefined);
    for (let i = 0; i < 8; i++) starts.run(`parts of ${user.id}`, (end) => ends.push(end), { most: 8, partOf: user.id });
    while (ends.length < 8) await sleep(1);
    const leaving = new AbortController();
    const options = { method, headers: { ...headers, accept: 'text/event-stream', authorization: `Bearer ${token}` } };
    const waiting =
      method === 'initialized' ? initialized() : fetch(url, { ...options, signal: leaving.signal }).catch(() => undefined);
    await sleep(50);
    await gateway.rest(204, 'DELETE', `/api/policies/${id}`, { token: admin.token });
    for (const end of ends) end();
    await waiting;
    // A stream would be opened now.
    await sleep(200);
    leaving.abort();
    t.deepEqual(target.recorder.received.slice(before), []);
  });
}

test('the elements of many batches are decided with what is in force when their turns come', async (t) => {
  const { gateway, admin, token, mcp, allow } = await world(t, null, null, {
    MCP_RATE_LIMIT: '100000',
    DENIAL_RATE_LIMIT: '100000',
  });
  const { id } = await allow({ name: 'everything' });
  const session = await openSession(mcp, token, '2025-03-26');
  const headers = { 'mcp-session-id': session, 'mcp-protocol-version': '2025-03-26' };
  const batch = JSON.stringify(Array.from({ length: 50 }, (_, i) => call('echo', { message: 'hi' }, i)));
  const all = Array.from({ length: 20 }, () => post(mcp, token, batch, headers));
  await Promise.race(all);
  await gateway.rest(204, 'DELETE', `/api/policies/${id}`, { token: admin.token });
  const answered = Date.now();
  await Promise.all(all);
  const late: string[] = [];
  let denied = 0;
  for (let path = '/api/logs?limit=1000&method=tools/call'; path !== ''; ) {
    const page = await gateway.rest<{ effect: string; created_at: string }[]>(200, 'GET', path, { token: admin.token });
    for (const { effect, created_at } of page.body) {
      if (effect === 'deny') denied++;
      // The gate may have been passed before.
      else if (Date.parse(created_at) > answered + 50) late.push(created_at);
    }
    path = /^<([^>]+)>; rel="next"$/.exec(page.headers.get('link') ?? '')?.[1] ?? '';
  }
  t.deepEqual(late, []);
  t.not(denied, 0);
});

async function messageIn(req: IncomingMessage): Promise<{ readonly id?: unknown; readonly method?: string }> {
  const chunks: Buffer[] = [];
  for await (const chunk of req) chunks.push(chunk as Buffer);
  return chunks.length === 0 ? {} : (JSON.parse(Buffer.concat(chunks).toString()) as { id?: unknown; method?: string });
}
