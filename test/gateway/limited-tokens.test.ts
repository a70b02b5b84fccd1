/** API tokens with limits and with an expiry. */
import test, { type ExecutionContext } from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { type Person, person, rest, startGateway } from '../support/gateway.ts';
import { call, openSession, post, sessionClient } from '../support/mcp.ts';
import { startRestOnSqlite } from '../support/rest.ts';
import { type World, world } from '../support/world.ts';

interface MadeToken {
  readonly token: string;
  readonly api_token: { readonly id: string; readonly expires_at: string | null; readonly limits: object | null };
}

async function make({ gateway }: Pick<World, 'gateway'>, who: Person, more: object): Promise<MadeToken> {
  const body = { name: 'limited', ...more };
  return (await gateway.rest<MadeToken>(201, 'POST', '/api/auth/tokens', { token: who.token, body })).body;
}

/** A world in which everybody may use two targets. */
async function twoTargets(t: ExecutionContext): Promise<World & { readonly second: string }> {
  const w = await world(t);
  await w.allow({ name: 'everything for everybody' });
  const { body } = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    token: w.admin.token,
    body: { name: 'second', transport: 'streamable-http', url: w.target.recorder.url, user_credentials: [{ type: 'bearer' }] },
  });
  return { ...w, second: body.id };
}

const initialize = {
  ...{ jsonrpc: '2.0', id: 0, method: 'initialize' },
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
};
const list = { jsonrpc: '2.0', id: 1, method: 'tools/list' };

test.serial('a target beyond the limits of a token answers like one that does not exist', async (t) => {
  const w = await twoTargets(t);
  const { token, api_token } = await make(w, w.user, { limits: { endpoints: ['everything'] } });
  t.deepEqual(api_token.limits, { rights: [], owner: null, endpoints: ['everything'] });
  const at = (name: string) => `${w.gateway.url}/mcp/${name}`;
  const session = await openSession(at('second'), w.token);

  async function seen(name: string, headers: Record<string, string>, method: string, body?: object) {
    const answer = await fetch(at(name), {
      method,
      headers: {
        authorization: `Bearer ${token}`,
        accept: 'application/json, text/event-stream',
        'content-type': 'application/json',
        'mcp-protocol-version': '2025-11-25',
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = (await answer.text()).replaceAll(name, 'NAME').replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, 'ID');
    const kept = [...answer.headers].filter(([header]) => !['date', 'x-request-id', 'content-length'].includes(header));
    return JSON.stringify([answer.status, kept, text]);
  }
  const own = { 'mcp-session-id': session };
  const sent = w.target.recorder.received.length;
  for (const [headers, method, body] of [
    [{}, 'POST', initialize],
    [{}, 'POST', list],
    [{}, 'POST', call('echo', { message: 'x' })],
    [own, 'POST', list],
    [own, 'POST', call('echo', { message: 'x' })],
    [own, 'GET', undefined],
    [own, 'DELETE', undefined],
    [{}, 'GET', undefined],
  ] as const) {
    const what = `${method} ${JSON.stringify(body)}`;
    t.is(await seen('second', headers, method, body), await seen('nowhere', headers, method, body), what);
  }
  t.is(w.target.recorder.received.length, sent);
  // The session of the other token has outlived all of this.
  t.truthy((await post(at('second'), w.token, list, own)).message?.result);
  // What was refused is recorded as a request for an unknown target.
  const { body: log } = await w.gateway.rest<{ target_name: string; reason: string; target_id: string | null }[]>(
    200,
    'GET',
    '/api/logs',
    {
      token: w.admin.token,
    },
  );
  t.true(
    log.some(({ target_name, reason, target_id }) => target_name === 'second' && reason === 'no_target' && target_id === null),
  );
});

test.serial('lists and calls at the aggregate endpoint know only the endpoints of the token', async (t) => {
  const w = await twoTargets(t);
  const all = `${w.gateway.url}/mcp`;
  const { token } = await make(w, w.user, { limits: { endpoints: ['everything'] } });
  const names = async (client: Awaited<ReturnType<typeof sessionClient>>): Promise<string[]> => [
    ...new Set((await client.listTools()).tools.map(({ name }) => name.split('__')[0] ?? '')),
  ];
  t.deepEqual((await names(await sessionClient(t, all, w.token))).sort(), ['everything', 'second']);
  const limited = await sessionClient(t, all, token);
  t.deepEqual(await names(limited), ['everything']);
  t.truthy(await limited.callTool({ name: 'everything__echo', arguments: { message: 'x' } }));
  const refusal = async (name: string): Promise<string> =>
    ((await t.throwsAsync(limited.callTool({ name, arguments: {} })))?.message ?? '')
      .replaceAll(/second|nowhere/g, 'NAME')
      .replaceAll(/[0-9a-f-]{36}/g, '');
  t.is(await refusal('second__echo'), await refusal('nowhere__echo'));

  // A session that a token without limits has opened gives the limited one no more.
  const session = { 'mcp-session-id': await openSession(all, w.token) };
  const listed = (answer: Awaited<ReturnType<typeof post>>) => JSON.stringify(answer.message?.result ?? null);
  t.regex(listed(await post(all, w.token, list, session)), /second__echo/);
  const mine = listed(await post(all, token, list, session));
  t.regex(mine, /everything__echo/);
  t.notRegex(mine, /second__/);

  const every = await make(w, w.user, { limits: { endpoints: ['*'] } });
  t.deepEqual((await names(await sessionClient(t, all, every.token))).sort(), ['everything', 'second']);
  const none = await make(w, w.admin, { limits: { rights: ['read'] } });
  t.deepEqual(await names(await sessionClient(t, all, none.token)), []);

  // Values that the user supplies.
  const own = async (of: string): Promise<number> =>
    (await w.gateway.rest<object[]>(200, 'GET', '/api/credentials', { token: of })).body.length;
  t.deepEqual([await own(w.token), await own(every.token), await own(token)], [1, 1, 0]);
  await w.gateway.rest(403, 'PUT', '/api/credentials/second/Authorization', { token: every.token, body: { value: 'x' } });
});

test.serial('a limit stays with its target: a different target under the same name is not covered', async (t) => {
  const w = await twoTargets(t);
  const { token } = await make(w, w.user, { limits: { endpoints: ['second'] } });
  const use = async (name: string) => (await post(`${w.gateway.url}/mcp/${name}`, token, initialize)).message?.error?.code;
  const change = (id: string, body: object) => w.gateway.rest(200, 'PUT', `/api/targets/${id}`, { token: w.admin.token, body });
  t.not(await use('second'), 404);
  await change(w.second, { name: 'third' });
  await change(w.target.id, { name: 'second' });
  t.is(await use('second'), 404);
  t.not(await use('third'), 404);
});

eachEngine(test.serial, 'an expired token is refused, and its streams and calls end', async (t, { url }) => {
  const w = await world(t, url);
  await w.allow({ name: 'everything for everybody' });
  const ends = Date.now() + 4_000;
  const { token, api_token } = await make(w, w.user, { expires_at: new Date(ends).toISOString() });
  t.is(api_token.expires_at, new Date(ends).toISOString());
  const session = { 'mcp-session-id': await openSession(w.mcp, token), 'mcp-protocol-version': '2025-11-25' };
  const stream = await fetch(w.mcp, { headers: { ...session, authorization: `Bearer ${token}`, accept: 'text/event-stream' } });
  t.is(stream.status, 200);
  const long = { duration: 60, steps: 60 };
  const running = post(w.mcp, token, call('trigger-long-running-operation', long), session).catch(() => 'ended');
  const ended = stream.text().catch(() => 'ended');
  await w.gateway.rest(200, 'GET', '/api/auth/me', { token });
  await Promise.all([ended, running]);
  t.true(Date.now() >= ends);
  t.is((await post(w.mcp, token, list, session)).status, 401);
  await w.gateway.rest(401, 'GET', '/api/auth/me', { token });
  // The user, who is not affected, sees that the token has ended, and can remove it.
  const { body: tokens } = await w.gateway.rest<{ id: string }[]>(200, 'GET', '/api/auth/tokens', { token: w.user.token });
  t.true(tokens.some(({ id }) => id === api_token.id));
  await w.gateway.rest(204, 'DELETE', `/api/auth/tokens/${api_token.id}`, { token: w.user.token });
});

test.serial('a token with an expiry outlives a rotation of the keys, and not its expiry', async (t) => {
  const api = await startRestOnSqlite(t);
  const { token } = await api.account('admin@example.com');
  const hour = 3_600_000;
  const body = { name: 'n', expires_at: new Date(Date.now() + 48 * hour).toISOString() };
  const made = await api.call('POST', '/api/auth/tokens', { token, body });
  t.is(made.status, 201);
  const mine = made.body.token;
  const status = async () => (await api.call('GET', '/api/auth/me', { token: mine })).status;
  t.is((await api.call('POST', '/api/keys/rotate', { token })).status, 201);
  api.pass(47 * hour);
  t.is(await status(), 200);
  api.pass(hour);
  t.is(await status(), 401);
});

test.serial('a token never has more than its user, and cannot be made for more', async (t) => {
  const gateway = await startGateway(t);
  const w = { gateway };
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const wrong = async (who: Person, body: object): Promise<string[]> => {
    const answer = await gateway.rest<{ errors: { path: string }[] }>(400, 'POST', '/api/auth/tokens', {
      token: who.token,
      body: { name: 'n', ...body },
    });
    return answer.body.errors.map(({ path }) => path);
  };
  t.deepEqual(await wrong(user, { limits: { rights: ['read', 'users:manage'] } }), ['limits.rights.0', 'limits.rights.1']);
  t.deepEqual(await wrong(admin, { limits: {} }), ['limits']);
  t.deepEqual(await wrong(admin, { limits: { rights: ['admin'] } }), ['limits.rights.0']);
  t.deepEqual(await wrong(admin, { limits: { rights: ['read', 'read'] } }), ['limits.rights.1']);
  t.deepEqual(await wrong(admin, { limits: { rights: ['read'], owner: 'team-a' } }), ['limits.owner']);
  t.deepEqual(await wrong(admin, { limits: { endpoints: ['nowhere'] } }), ['limits.endpoints.0']);
  t.deepEqual(await wrong(admin, { limits: { endpoints: ['*', 'nowhere'] } }), ['limits.endpoints']);
  t.deepEqual(await wrong(admin, { limits: { endpoints: ['No Name'] } }), ['limits.endpoints.0']);
  t.deepEqual(await wrong(admin, { limits: { rights: [], more: 1 } }), ['limits.more']);
  t.deepEqual(await wrong(admin, { expires_at: new Date(Date.now() - 1_000).toISOString() }), ['expires_at']);
  t.deepEqual(await wrong(admin, { expires_at: 'tomorrow' }), ['expires_at']);

  const same = (await make(w, admin, { limits: null, expires_at: null })).token;
  await gateway.rest(200, 'GET', '/api/users', { token: same });
  const given = { subject_type: 'user', subject_value: user.id, right: 'policies:manage', owner: 'team-a' };
  const { body: right } = await gateway.rest<{ id: string }>(201, 'POST', '/api/rights', { token: admin.token, body: given });
  const { token } = await make(w, user, { limits: { rights: ['policies:plan'] } });
  const rights = async (of: string): Promise<object> =>
    (await gateway.rest<object>(200, 'GET', '/api/auth/rights', { token: of })).body;
  t.deepEqual(await rights(token), { admin: false, rights: [{ right: 'policies:plan', owner: 'team-a' }], endpoints: [] });
  await gateway.rest(200, 'GET', '/api/policies', { token });
  await gateway.rest(403, 'POST', '/api/policies/apply', { token, body: { files: {}, owner: 'team-a' } });
  // It makes, lists and revokes no tokens of others, whatever its user may.
  await gateway.rest(403, 'POST', '/api/auth/tokens', { token, body: { name: 'more' } });
  await gateway.rest(403, 'DELETE', `/api/auth/tokens/${right.id}`, { token });
  await gateway.rest(403, 'GET', `/api/auth/tokens?user_id=${admin.id}`, { token });
  await gateway.rest(204, 'DELETE', `/api/rights/${right.id}`, { token: admin.token });
  await gateway.rest(403, 'GET', '/api/policies', { token });
  t.deepEqual(await rights(token), { admin: false, rights: [], endpoints: [] });
  t.is((await rest(gateway.url, 'GET', '/api/policies', { token: same })).status, 200);
});

test.serial('a token for some targets operates only these', async (t) => {
  const w = await twoTargets(t);
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { role: 'admin' } });
  const { token } = await make(w, w.user, { limits: { rights: ['targets:operate'], endpoints: ['second'] } });
  const api = <T = unknown>(expected: number, method: string, path: string, body?: object) =>
    w.gateway.rest<T>(expected, method, path, { token, ...(body === undefined ? {} : { body }) });
  t.deepEqual(
    (await api<{ name: string }[]>(200, 'GET', '/api/targets')).body.map(({ name }) => name),
    ['second'],
  );
  await api(404, 'GET', `/api/targets/${w.target.id}`);
  await api(404, 'GET', `/api/targets/${w.target.id}/health`);
  await api(404, 'PUT', `/api/targets/${w.target.id}`, { enabled: false });
  await api(403, 'GET', '/api/sessions');
  await api(403, 'GET', `/api/sessions?target_id=${w.target.id}`);
  await api(200, 'GET', `/api/sessions?target_id=${w.second}`);
  await api(403, 'POST', '/api/sessions/recycle', { all: true });
  await api(403, 'POST', '/api/sessions/recycle', { user_id: w.user.id });
  await api(403, 'POST', '/api/sessions/recycle', { target_id: w.target.id });
  await api(403, 'POST', `/api/users/${w.user.id}/recycle`);
  await api(200, 'POST', '/api/sessions/recycle', { target_id: w.second });
  await api(200, 'PUT', `/api/targets/${w.second}`, { enabled: false });
  // A target that it has disabled is still one of its own.
  await api(200, 'PUT', `/api/targets/${w.second}`, { enabled: true });
});
