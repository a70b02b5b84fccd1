import test from 'ava';
import type { HeavyWork } from '../../src/policies/heavy/heavy.ts';
import { createPolicySetRoutes } from '../../src/rest/policy-sets/routes.ts';
import { PASSWORD, sendRaw as raw, startRestOnSqlite as start } from '../support/rest.ts';

test.serial('every answer has a request id and the security headers, and every refusal is a problem document', async (t) => {
  const rest = await start(t);
  const answers = [
    await rest.call('GET', '/health/live'),
    await rest.call('GET', '/api/nothing'),
    await rest.call('GET', '/api/users'),
    await rest.call('POST', '/api/auth/login', { body: '{' }),
    await rest.call('PATCH', '/api/users'),
    await rest.call('GET', '/', { headers: { host: 'evil.example' } }),
  ];
  t.deepEqual(
    answers.map(({ status }) => status),
    [200, 404, 401, 400, 405, 403],
  );
  for (const { headers } of answers) {
    t.regex(String(headers['x-request-id']), /^[0-9a-f-]{36}$/);
    t.is(headers['x-content-type-options'], 'nosniff');
    t.is(headers['cache-control'], 'no-store');
    t.is(headers['x-powered-by'], undefined);
    t.is(headers.etag, undefined);
  }
  for (const { headers, body, status } of answers.slice(1)) {
    t.is(headers['content-type'], 'application/problem+json');
    t.is(body['request_id'], headers['x-request-id'] as string);
    t.is(body['status'], status);
    t.is(body['type'], `urn:portcullis:problem:${body.code}`);
    t.is(typeof body['title'], 'string');
    t.is(typeof body.detail, 'string');
  }
  const own = await rest.call('GET', '/health/live', { headers: { 'x-request-id': 'chosen-by-the-caller' } });
  t.not(own.headers['x-request-id'], 'chosen-by-the-caller');
});

test.serial('each path has one spelling, and each route has only its own methods', async (t) => {
  const rest = await start(t);
  const { token } = await rest.account('a@example.com');
  for (const path of [
    ...[
      '/api',
      '/api/',
      '/API/users',
      '/api/Users',
      '/api/users/',
      '/api//users',
      '//api/users',
      '/api/%75sers',
      '/api/users%2f',
    ],
    ...[
      '/api/./users',
      '/api/users/../users',
      '/apiusers',
      '/api/users;x',
      '/health',
      '/health/live/',
      '/Health/live',
      '/%',
      '/api/%',
    ],
  ]) {
    t.is((await rest.call('GET', path, { token })).status, 404, path);
  }
  for (const [method, path, allow] of [
    ['DELETE', '/api/users', 'GET, POST'],
    ['POST', '/api/users/x', 'GET, PUT'],
    ['GET', '/api/auth/login', 'POST'],
    ['HEAD', '/api/users', 'GET, POST'],
    ['OPTIONS', '/api/users', 'GET, POST'],
    ['POST', '/health/live', 'GET, HEAD'],
    ['TRACE', '/api/users', 'GET, POST'],
    ['QUERY', '/api/users', 'GET, POST'],
  ] as const) {
    const answer = await rest.call(method, path, { token });
    t.is(answer.status, 405, `${method} ${path}`);
    t.is(answer.headers.allow, allow, `${method} ${path}`);
  }
  t.is((await rest.call('HEAD', '/health/live')).status, 200);
  t.is((await rest.call('HEAD', '/.well-known/jwks.json')).text, '');
});

test.serial('Host and Origin are checked on every route, and each comes at most once', async (t) => {
  const rest = await start(t, { ALLOWED_ORIGINS: 'https://app.example.com', ALLOWED_HOSTS: 'Gateway.example.com' });
  const status = async (headers: Record<string, string | string[]>, path = '/health/live') =>
    (await rest.call('GET', path, { headers })).status;
  for (const host of ['127.0.0.1', `localhost:${rest.port}`, '[::1]', '[::1]:80', 'LOCALHOST', 'gateway.example.com:8443']) {
    t.is(await status({ host }), 200, host);
  }
  for (const host of [
    'evil.example',
    '127.0.0.1.evil.example',
    'localhost.',
    '127.0.0.1@evil.example',
    'localhost:80:80',
    '127.0.0.2',
  ]) {
    for (const path of ['/health/live', '/.well-known/jwks.json', '/metrics', '/api/users', '/nothing']) {
      t.is(await status({ host }, path), 403, `${host} ${path}`);
    }
  }
  t.is(await status({ host: 'localhost', origin: 'https://app.example.com' }), 200);
  for (const origin of [
    'null',
    'https://evil.example',
    'http://app.example.com',
    'https://app.example.com:444',
    'https://app.example.com/',
  ]) {
    t.is(await status({ origin }), 403, origin);
  }
  t.is(await status({ origin: ['https://app.example.com', 'https://app.example.com'] }), 403);
  const twice = await raw(
    rest.port,
    'GET /health/live HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n',
  );
  t.regex(twice, /^HTTP\/1.1 40[03] /);
  const empty = await raw(rest.port, 'GET /health/live HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n');
  t.regex(empty, /^HTTP\/1.1 403 /);
  const none = await raw(rest.port, 'GET /health/live HTTP/1.0\r\n\r\n');
  t.regex(none, /^HTTP\/1.1 400 /);
  const absolute = await raw(
    rest.port,
    'GET http://evil.example/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n',
  );
  t.regex(absolute, /^HTTP\/1.1 400 /);
});

test.serial('a preflight is answered only for allowed origins, and reaches no handler', async (t) => {
  const rest = await start(t, { ALLOWED_ORIGINS: 'https://app.example.com' });
  const preflight = (origin: string) =>
    rest.call('OPTIONS', '/api/users', {
      headers: {
        origin,
        'access-control-request-method': 'GET',
        'access-control-request-headers': 'authorization',
      },
    });
  const allowed = await preflight('https://app.example.com');
  t.is(allowed.status, 204);
  t.is(allowed.headers['access-control-allow-origin'], 'https://app.example.com');
  t.regex(String(allowed.headers['access-control-allow-headers']), /Authorization/);
  t.is(allowed.headers.vary, 'Origin');
  const refused = await preflight('https://evil.example');
  t.is(refused.status, 403);
  t.is(refused.headers['access-control-allow-origin'], undefined);
  // express-jwt lets OPTIONS with this header pass without a token.
  const bare = await rest.call('OPTIONS', '/api/users', { headers: { 'access-control-request-headers': 'authorization' } });
  t.is(bare.status, 405);
  const read = await rest.call('GET', '/api/users', { headers: { origin: 'https://app.example.com' } });
  t.is(read.status, 401);
  t.is(read.headers['access-control-allow-origin'], 'https://app.example.com');
});

test.serial('documents and preflights take no body, so that nothing discards an endless one', async (t) => {
  const rest = await start(t, { ALLOWED_ORIGINS: 'https://app.example.com' });
  const preflight = { origin: 'https://app.example.com', 'access-control-request-method': 'GET' };
  for (const [method, path, status, headers] of [
    ['GET', '/', 400, {}],
    ['GET', '/health/live', 400, {}],
    ['HEAD', '/health/live', 400, {}],
    ['GET', '/metrics', 400, {}],
    ['OPTIONS', '/api/users', 405, preflight],
  ] as const) {
    const answer = await rest.call(method, path, { headers: { ...headers, 'content-type': 'application/json' }, body: '{}' });
    t.is(answer.status, status, `${method} ${path}`);
  }
  t.is((await rest.call('OPTIONS', '/api/users', { headers: preflight })).status, 204);
});

test.serial('passwords are limited by address, whatever the e-mail', async (t) => {
  const rest = await start(t, { LOGIN_RATE_LIMIT: '5' });
  const login = (email: string) => rest.call('POST', '/api/auth/login', { body: { email, password: PASSWORD } });
  for (let i = 0; i < 5; i++) t.is((await login(`user${i}@example.com`)).status, 401);
  const refused = await login('another@example.com');
  t.is(refused.status, 429);
  t.is(refused.body.code, 'too_many_requests');
  t.true(Number(refused.headers['retry-after']) > 0 && Number(refused.headers['retry-after']) <= 60);
  const register = await rest.call('POST', '/api/auth/register', { body: { email: 'a@b', password: PASSWORD } });
  t.is(register.status, 429);
  // A header that any client can write does not change the address of the caller.
  const forwarded = await rest.call('POST', '/api/auth/login', {
    body: { email: 'a@b', password: PASSWORD },
    headers: { 'x-forwarded-for': '192.0.2.1' },
  });
  t.is(forwarded.status, 429);
});

test.serial('wrong bodies count as attempts', async (t) => {
  const rest = await start(t, { LOGIN_RATE_LIMIT: '5' });
  const statuses: number[] = [];
  for (const body of [{}, { email: 5 }, { email: 'x'.repeat(5_000) }, [], { more: 0 }, { email: 'a@b', password: PASSWORD }]) {
    const path = statuses.length % 2 === 0 ? '/api/auth/login' : '/api/auth/register';
    statuses.push((await rest.call('POST', path, { body })).status);
  }
  t.deepEqual(statuses, [400, 400, 400, 400, 400, 429]);
});

test.serial('attempts with one e-mail are stopped before others at the same address are', async (t) => {
  const rest = await start(t, { LOGIN_RATE_LIMIT: '12' });
  const login = async (email: string) =>
    (await rest.call('POST', '/api/auth/login', { body: { email, password: PASSWORD } })).status;
  t.deepEqual([await login('a@b'), await login('A@b'), await login('a@b')], [401, 401, 429]);
  t.is(await login('c@d'), 401);
});

test.serial('behind a trusted proxy, only the address that it wrote counts', async (t) => {
  const rest = await start(t, { LOGIN_RATE_LIMIT: '2', TRUST_PROXY: 'true' });
  let people = 0;
  const login = async (address: string) =>
    (
      await rest.call('POST', '/api/auth/login', {
        body: { email: `a${people++}@b`, password: PASSWORD },
        headers: { 'x-forwarded-for': address },
      })
    ).status;
  t.deepEqual(
    [await login('192.0.2.1'), await login('198.51.100.9, 192.0.2.1'), await login('203.0.113.1, 192.0.2.1')],
    [401, 401, 429],
  );
  t.is(await login('192.0.2.2'), 401);
  t.deepEqual([await login('2001:db8::1'), await login('2001:db8:0:0:ffff::2'), await login('2001:db8::3')], [401, 401, 429]);
  t.is(await login('2001:db8:0:1::3'), 401);
});

test.serial('the health routes tell whether to send requests', async (t) => {
  const rest = await start(t);
  t.deepEqual((await rest.call('GET', '/health/ready')).body as unknown, {
    ready: true,
    checks: { database: true, engine: true },
  });
  rest.ready = false;
  const answer = await rest.call('GET', '/health/ready');
  t.is(answer.status, 503);
  t.deepEqual(answer.body as unknown, { ready: false, checks: { database: false, engine: true } });
  t.is((await rest.call('GET', '/health/live')).status, 200);
});

test.serial('well-known documents are the same for every target name', async (t) => {
  const rest = await start(t, { PUBLIC_URL: 'https://gateway.example.com' });
  const read = (path: string) => rest.call('GET', `/.well-known/oauth-protected-resource${path}`);
  for (const path of ['', '/mcp', '/mcp/github', '/mcp/no-such-target']) {
    const { status, body } = await read(path);
    t.is(status, 200);
    t.deepEqual(body as unknown, {
      resource: `https://gateway.example.com${path}`,
      authorization_servers: ['https://gateway.example.com'],
      bearer_methods_supported: ['header'],
      scopes_supported: ['mcp'],
      resource_name: 'Portcullis',
    });
  }
  for (const path of ['/mcp/', '/mcp/Upper', '/mcp/a/b', '/mcp/-x', `/mcp/${'a'.repeat(64)}`, '/api'])
    t.is((await read(path)).status, 404, path);
});

test.serial('the address of the gateway is a page for browsers and JSON for programs, under the check of Host', async (t) => {
  const rest = await start(t, { PUBLIC_URL: 'https://gateway.example.com' });
  const page = await rest.call('GET', '/', { headers: { accept: 'text/html,application/xhtml+xml,*/*;q=0.8' } });
  t.is(page.status, 200);
  t.is(page.headers['content-type'], 'text/html; charset=utf-8');
  t.regex(String(page.headers['content-security-policy']), /^default-src 'none';.* frame-ancestors 'none'/);
  t.regex(page.text, /<html lang="en"/);
  t.regex(page.text, /https:&#47;|https:\/\/gateway\.example\.com\/mcp/);
  t.notRegex(page.text, /<script|<style|style=|onload/);
  for (const [, path = ''] of page.text.matchAll(/href="([^"]+)"/g)) t.not((await rest.call('HEAD', path)).status, 405, path);
  const program = await rest.call('GET', '/');
  t.is(program.body['mcp'], 'https://gateway.example.com/mcp');
  t.is((await rest.call('GET', '/', { headers: { host: 'evil.example' } })).status, 403);
  t.is((await rest.call('POST', '/')).headers.allow, 'GET, HEAD');
});

test.serial('only this host and administrators may read metrics', async (t) => {
  const rest = await start(t);
  const { token } = await rest.account('admin@example.com');
  const user = await rest.account('user@example.com');
  await rest.call('GET', '/api/users/00000000-0000-0000-0000-000000000000', { token });
  await rest.call('GET', '/api/no-such-path');
  const local = await rest.call('GET', '/metrics');
  t.is(local.status, 200);
  t.regex(local.text, /portcullis_http_requests_total\{method="GET",route="\/api\/users\/:id",status="404"\} 1/);
  t.regex(local.text, /portcullis_http_requests_total\{method="GET",route="none",status="404"\} 1/);
  for (const method of ['GET', 'HEAD']) {
    const remote = (bearer?: string) =>
      rest.call(method, '/metrics', { token: bearer, headers: { 'x-forwarded-for': '192.0.2.1' } });
    t.is((await remote()).status, 401);
    t.is((await remote(user.token)).status, 403);
    t.is((await remote(token)).status, 200);
  }
});

test.serial('only a scraper with METRICS_TOKEN or the token of an administrator may use any Host', async (t) => {
  const scrape = 'the-token-of-prometheus';
  const rest = await start(t, { METRICS_TOKEN: scrape });
  const { token } = await rest.account('admin@example.com');
  const user = await rest.account('user@example.com');
  const ask = (bearer?: string, path = '/metrics', headers: Record<string, string> = {}) =>
    rest.call('GET', path, { token: bearer, headers: { host: '10.0.0.7:8080', ...headers } });
  const elsewhere = { 'x-forwarded-for': '192.0.2.1' };
  t.is((await ask(scrape)).status, 200);
  t.is((await ask(scrape, '/metrics', elsewhere)).status, 200);
  t.is((await ask(token, '/metrics', elsewhere)).status, 200);
  t.is((await ask(user.token)).status, 403);
  t.is((await ask()).status, 403, 'without a token the Host is checked, on loopback too');
  // A web page that reaches loopback under its own host name could send this.
  t.is((await ask('made-up-by-a-page')).status, 401);
  t.is((await ask(`${scrape}x`)).status, 401);
  t.is((await ask(scrape, '/health/ready')).status, 403, 'other routes keep the check');
  t.is((await ask(scrape, '/metrics', { origin: 'https://evil.example' })).status, 403);
  const other = await rest.call('GET', '/api/users', { token: scrape });
  t.is(other.status, 401, 'the token opens nothing else');
  t.false(rest.logged().includes(scrape));
});

test.serial('a proxy on this host that does not say so does not open the metrics to its clients', async (t) => {
  const rest = await start(t, { PUBLIC_URL: 'https://gateway.example.com' });
  const ask = async (host: string) => (await rest.call('GET', '/metrics', { headers: { host } })).status;
  t.is(await ask('gateway.example.com'), 401);
  for (const host of ['localhost:8080', '127.0.0.1', '[::1]:8080']) t.is(await ask(host), 200, host);
});

test.serial('if METRICS_TOKEN is not set, no bearer token is a scrape token', async (t) => {
  const rest = await start(t);
  for (const bearer of ['null', 'undefined', '']) {
    const { status } = await rest.call('GET', '/metrics', { headers: { authorization: `Bearer ${bearer}` } });
    t.is(status, 401, bearer);
  }
});

test.serial('the answer to a fault contains no details, and its log line contains no secret', async (t) => {
  const rest = await start(t);
  const password = 'a very secret passphrase';
  const { token } = await rest.account('a@example.com', password);
  const api = (await rest.call('POST', '/api/auth/tokens', { token, body: { name: 'x' } })).body.token;
  await rest.call('POST', '/api/auth/login', { body: { email: 'a@example.com', password: 'a wrong passphrase' } });
  await rest.call('PUT', '/api/auth/password', {
    token,
    body: { current_password: 'not my passphrase', new_password: 'my next passphrase' },
  });
  await rest.call('GET', '/api/auth/me?token=in-the-query', { token: `${token}x` });
  const { password_hash: hash } = await rest.database.knex('users').first();
  await rest.call('GET', '/api/auth/me', { token });
  await rest.database.knex.schema.renameTable('users', 'users_away');
  const broken = await rest.call('GET', '/api/auth/me', { token });
  t.is(broken.status, 500);
  t.is(broken.body.code, 'internal');
  t.false(/sqlite|select|users/i.test(broken.text), broken.text);
  t.is((await rest.call('POST', '/api/auth/register', { body: { email: 'b@example.com', password } })).status, 500);
  const logged = rest.logged();
  for (const secret of [
    password,
    'a wrong passphrase',
    'not my passphrase',
    'my next passphrase',
    'in-the-query',
    hash,
    'argon2id',
    token,
    String(api),
    token.split('.')[2] ?? '',
  ]) {
    t.false(logged.includes(secret), secret);
  }
  t.regex(logged, /"level":50/);
  t.is(logged.match(new RegExp(String(broken.body['request_id']), 'g'))?.length, 2, 'the failure and the request, once each');
});

test.serial('the work of an apply ends when its client disconnects, and is not logged as refused', async (t) => {
  const leaving = new AbortController();
  let learned = (_reason: unknown): void => {};
  const reason = new Promise((resolve) => {
    learned = resolve;
  });
  const applyBody: HeavyWork['applyBody'] = (_body, { signal }) =>
    new Promise((_, reject) => {
      signal?.addEventListener('abort', () => {
        reject(signal.reason);
        learned(signal.reason);
      });
      leaving.abort();
    });
  const parts = { heavy: { applyBody } } as unknown as Parameters<typeof createPolicySetRoutes>[0];
  const rest = await start(t, {}, [{ path: '/policies', router: createPolicySetRoutes(parts) }]);
  const { token } = await rest.account('a@example.com');
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
  const request = { method: 'POST', headers, body: '{"files":{}}', signal: leaving.signal };
  await fetch(`${rest.url}/api/policies/apply`, request).catch(() => undefined);
  t.like(await reason, { code: 'unavailable', message: 'The client has disconnected.' });
  await rest.call('GET', '/health/live');
  t.regex(rest.logged(), /closed by the client/);
  t.notRegex(rest.logged(), /request refused/);
});

test.serial('an unreachable database is a 503, never a 500 and never an allow', async (t) => {
  const rest = await start(t);
  const { token } = await rest.account('a@example.com');
  await rest.database.close();
  for (const [method, path, body] of [
    ['GET', '/api/users', undefined],
    ['POST', '/api/auth/login', { email: 'a@example.com', password: PASSWORD }],
    ['POST', '/api/auth/register', { email: 'b@example.com', password: PASSWORD }],
  ] as const) {
    const answer = await rest.call(method, path, { token, body });
    t.is(answer.status, 503, `${method} ${path} ${answer.text}`);
    t.is(answer.body.code, 'unavailable');
    t.true(Number(answer.headers['retry-after']) > 0);
  }
  t.is((await rest.call('GET', '/health/live')).status, 200);
});
