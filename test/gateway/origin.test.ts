import test from 'ava';
import { rest, startGateway } from '../support/gateway.ts';

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
