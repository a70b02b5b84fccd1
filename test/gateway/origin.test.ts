import test from 'ava';
import { person, rest, startGateway } from '../support/gateway.ts';

test.serial('only pages of an allowed origin may call /mcp, and a preflight needs no token', async (t) => {
  const { url } = await startGateway(t, null, { ALLOWED_ORIGINS: 'https://app.example' });
  const ask = (method: string, origin: string, headers: Record<string, string> = {}) =>
    fetch(`${url}/mcp/x`, { method, headers: { origin, ...headers } });
  const preflight = { 'access-control-request-method': 'POST', 'access-control-request-headers': 'authorization' };

  const allowed = await ask('OPTIONS', 'https://app.example', preflight);
  t.is(allowed.status, 204);
  t.is(allowed.headers.get('access-control-allow-origin'), 'https://app.example');
  t.regex(allowed.headers.get('access-control-allow-headers') ?? '', /Mcp-Session-Id/);

  const answer = await ask('POST', 'https://app.example');
  t.is(answer.status, 401);
  t.is(answer.headers.get('access-control-allow-origin'), 'https://app.example');
  t.regex(answer.headers.get('access-control-expose-headers') ?? '', /WWW-Authenticate/);

  for (const origin of ['https://evil.example', 'https://app.example:444', 'null']) {
    const refused = await ask('OPTIONS', origin, preflight);
    t.is(refused.status, 403, origin);
    t.is(refused.headers.get('access-control-allow-origin'), null);
  }
});

test.serial('requests to REST are counted by principal, and others by address; health is always answered', async (t) => {
  const gateway = await startGateway(t, null, { API_RATE_LIMIT: '6', ALLOWED_ORIGINS: 'https://app.example' });
  const ask = async (path: string, token?: string): Promise<number> =>
    (await fetch(gateway.url + path, { redirect: 'manual', ...(token && { headers: { authorization: `Bearer ${token}` } }) }))
      .status;
  const [ann, ben] = [await person(gateway, 'ann@example.com'), await person(gateway, 'ben@example.com')];
  const statuses = async (count: number, path: string, token?: string): Promise<number[]> => {
    const all: number[] = [];
    for (let n = 0; n < count; n++) all.push(await ask(path, token));
    return all;
  };
  // The registrations and logins, and the first request of each token, count for the address.
  t.deepEqual(await statuses(1, '/api/auth/me', ann.token), [200]);
  t.deepEqual(await statuses(1, '/api/auth/me', ben.token), [200]);
  t.deepEqual(await statuses(1, '/signin'), [429]);
  t.deepEqual(await statuses(3, '/api/auth/me', ann.token), [200, 200, 200]);
  t.deepEqual(await statuses(4, '/nothing', ann.token), [404, 404, 404, 429], 'all paths count, whatever the answer');
  t.deepEqual(await statuses(1, '/api/auth/me', ann.token), [429]);
  t.deepEqual(await statuses(1, '/api/auth/me', ben.token), [200], 'one user does not use up the limit of another');
  t.deepEqual(await statuses(1, '/api/auth/me', 'a.b.c'), [429], 'a token that is not known counts for the address');
  const counted = ['/', '/console', '/nothing', '/.well-known/oauth-authorization-server', '/scim/x', '/oauth/x', '/oauth/token'];
  for (const path of counted) t.is(await ask(path), 429, path);
  const { status } = await rest(gateway.url, 'GET', '/', { headers: { origin: 'https://evil.example' } });
  t.is(status, 429, 'refusals of pages of other origins count, too');
  const readable = await fetch(`${gateway.url}/api/openapi.json`, { headers: { origin: 'https://app.example' } });
  t.is(readable.status, 429);
  t.is(readable.headers.get('access-control-allow-origin'), 'https://app.example', 'a page of an allowed origin can read it');
  t.deepEqual(await statuses(3, '/health/ready'), [200, 200, 200]);
  t.is(await ask('/scim/v2/x/Users'), 401, 'the routes of SCIM have limits of their own');
});

test.serial('clients are counted by the address that a trusted proxy gives, otherwise by that of the socket', async (t) => {
  const tries = async (environment: Record<string, string>) => {
    const { url } = await startGateway(t, null, { MCP_RATE_LIMIT: '3', ...environment });
    const statuses: number[] = [];
    for (let i = 0; i < 5; i++) {
      const { status } = await rest(url, 'POST', '/mcp/x', { headers: { 'x-forwarded-for': `198.51.100.${i}` } });
      statuses.push(status);
    }
    return statuses;
  };
  t.deepEqual(await tries({}), [401, 401, 401, 429, 429]);
  t.deepEqual(await tries({ TRUST_PROXY: 'true' }), [401, 401, 401, 401, 401]);
});

test.serial('whatever is refused at an endpoint counts once for the address', async (t) => {
  const preflight = { 'access-control-request-method': 'POST' };
  const evil = { origin: 'https://evil.example' };
  const kinds: readonly [string, string, Record<string, string>, number][] = [
    ['GET', '/mcp/NO', {}, 404],
    ['PUT', '/mcp', {}, 405],
    ['GET', '/mcp', evil, 403],
    ['OPTIONS', '/mcp', { ...preflight, ...evil }, 403],
    ['OPTIONS', '/mcp', { ...preflight, origin: 'https://app.example' }, 204],
  ];
  for (const [method, path, headers, status] of kinds) {
    const gateway = await startGateway(t, null, { MCP_RATE_LIMIT: '2', ALLOWED_ORIGINS: 'https://app.example' });
    const answers: number[] = [];
    for (let n = 0; n < 3; n++) answers.push((await fetch(gateway.url + path, { method, headers })).status);
    t.deepEqual(answers, [status, status, 429], `${method} ${path} ${JSON.stringify(headers)}`);
  }
});
