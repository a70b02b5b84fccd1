/** Administrators list, end and recycle sessions. */
import test from 'ava';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { apiToken, person, rest, startGatewayWithDatabase } from '../../support/gateway.ts';
import { listen } from '../../support/listener.ts';
import { call, openSession, post } from '../../support/mcp.ts';
import { startStateful } from '../../support/upstreams/stateful.ts';
import { world } from '../../support/world.ts';

interface Session {
  readonly id: string;
  readonly user_id: string;
  readonly target_id: string | null;
  readonly revision: string;
  readonly client: { name: string; version: string };
}

eachEngine(
  test.serial,
  'sessions are listed in pages and with filters, without anything that would let a reader use them',
  async (t, at) => {
    const w = await world(t, at.url);
    await w.allow({ name: 'all' });
    const { token } = w.admin;
    const other = await person(w.gateway, 'other@example.com');
    const opened: string[] = [];
    for (let n = 0; n < 3; n++) opened.push(await openSession(w.mcp, w.token));
    opened.push(await openSession(w.mcp, (await apiToken(w.gateway, other)).token));
    opened.push(await openSession(`${w.gateway.url}/mcp`, w.token));
    const get = async (query: string) => w.gateway.rest<Session[]>(200, 'GET', `/api/sessions${query}`, { token });

    const all = await get('');
    t.is(all.body.length, 5);
    t.deepEqual(
      [...all.body.map(({ id }) => id)].sort(),
      all.body.map(({ id }) => id),
    );
    t.deepEqual(all.body[0]?.client, { name: 'raw', version: '1' });
    const text = JSON.stringify(all.body);
    for (const sealed of opened) t.false(text.includes(sealed));
    t.false(/upstream|holder|issuer/.test(text));
    t.is(all.body.filter(({ target_id }) => target_id === null).length, 1);

    const seen: string[] = [];
    let path: string | undefined = '?limit=2';
    while (path !== undefined) {
      const page: Awaited<ReturnType<typeof get>> = await get(path);
      t.true(page.body.length <= 2);
      seen.push(...page.body.map(({ id }) => id));
      path = /<\/api\/sessions([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1];
    }
    t.deepEqual(
      seen,
      all.body.map(({ id }) => id),
    );
    t.is((await get(`?user_id=${other.id}`)).body.length, 1);
    t.is((await get(`?target_id=${w.target.id}`)).body.length, 4);
    t.is((await get(`?target_id=${w.target.id}&user_id=${w.user.id}&limit=1`)).body.length, 1);
    for (const query of [
      '?user_id=x',
      '?user_id=',
      '?limit=0',
      '?limit=1001',
      '?user_id=a&user_id=b',
      '?holder=x',
      '?cursor=x',
    ]) {
      t.is((await rest(w.gateway.url, 'GET', `/api/sessions${query}`, { token })).status, 400, query);
    }
  },
);

eachEngine(
  test.serial,
  'if an administrator ends a session, its next request finds no session, its stream ends, and the change is recorded',
  async (t, at) => {
    const target = await startStateful();
    t.teardown(() => target.stop());
    const w = await world(t, at.url, target.url);
    await w.allow({ name: 'all' });
    const { token } = w.admin;
    const session = await openSession(w.mcp, w.token);
    const headers = { 'mcp-session-id': session };
    const stream = await listen(t, w.mcp, w.token, { headers });
    const { body: sessions } = await w.gateway.rest<Session[]>(200, 'GET', '/api/sessions', { token });
    const id = sessions[0]?.id ?? '';
    await w.gateway.rest(204, 'DELETE', `/api/sessions/${id}`, { token });
    const began = performance.now();
    const answer = await post(w.mcp, w.token, call('echo'), headers);
    t.is(answer.status, 404);
    t.is(answer.message?.error?.message, 'Session not found');
    await stream.ended;
    t.true(performance.now() - began < 5_000);
    t.is((await listen(t, w.mcp, w.token, { headers })).status, 404);
    t.is((await fetch(w.mcp, { method: 'DELETE', headers: { authorization: `Bearer ${w.token}`, ...headers } })).status, 404);
    await w.gateway.rest(404, 'DELETE', `/api/sessions/${id}`, { token });
    t.deepEqual((await w.gateway.rest<Session[]>(200, 'GET', '/api/sessions', { token })).body, []);
    interface Change {
      action: string;
      object_id: string;
      before: Session;
      actor_id?: string;
    }
    const { body: changes } = await w.gateway.rest<Change[]>(200, 'GET', '/api/changes', { token });
    const change = changes.find(({ action }) => action === 'session.end');
    t.is(change?.object_id, id);
    t.is(change?.before.user_id, w.user.id);
    t.true(JSON.stringify(change).includes(w.admin.id));
    t.false(JSON.stringify(change).includes(session));
  },
);

test.serial('a session with all targets ends like any other', async (t) => {
  const w = await world(t);
  await w.allow({ name: 'all' });
  const mcp = `${w.gateway.url}/mcp`;
  const session = await openSession(mcp, w.token);
  const headers = { 'mcp-session-id': session };
  const stream = await listen(t, mcp, w.token, { headers });
  const { body } = await w.gateway.rest<Session[]>(200, 'GET', '/api/sessions', { token: w.admin.token });
  await w.gateway.rest(204, 'DELETE', `/api/sessions/${body[0]?.id}`, { token: w.admin.token });
  t.is((await post(mcp, w.token, call('everything__echo', { message: 'x' }), headers)).status, 404);
  t.is((await post(mcp, w.token, { jsonrpc: '2.0', id: 1, method: 'tools/list' }, headers)).status, 404);
  await stream.ended;
});

test.serial('a session that its client has ended can be neither used nor ended again', async (t) => {
  const target = await startStateful();
  t.teardown(() => target.stop());
  const w = await world(t, null, target.url);
  await w.allow({ name: 'all' });
  for (const mcp of [w.mcp, `${w.gateway.url}/mcp`]) {
    const name = mcp === w.mcp ? 'echo' : 'everything__echo';
    const headers = { 'mcp-session-id': await openSession(mcp, w.token) };
    t.truthy((await post(mcp, w.token, call(name), headers)).message?.result);
    t.is((await fetch(mcp, { method: 'DELETE', headers: { authorization: `Bearer ${w.token}`, ...headers } })).status, 200);
    t.is((await post(mcp, w.token, call(name), headers)).status, 404, mcp);
    t.is((await fetch(mcp, { method: 'DELETE', headers: { authorization: `Bearer ${w.token}`, ...headers } })).status, 404);
  }
  t.is(target.sessions.size, 0);
});

test.serial('recycling answers the number of sessions, and refuses an unknown body', async (t) => {
  const w = await world(t);
  await w.allow({ name: 'all' });
  const { token } = w.admin;
  const other = await person(w.gateway, 'other@example.com');
  await openSession(w.mcp, w.token);
  await openSession(`${w.gateway.url}/mcp`, w.token);
  await openSession(w.mcp, (await apiToken(w.gateway, other)).token);
  const recycled = async (path: string, body?: unknown) =>
    (await w.gateway.rest<{ recycled: number }>(200, 'POST', path, { token, ...(body === undefined ? {} : { body }) })).body
      .recycled;
  t.is(await recycled('/api/sessions/recycle', { all: true }), 3);
  t.is(await recycled('/api/sessions/recycle', { user_id: w.user.id }), 2);
  t.is(await recycled('/api/sessions/recycle', { target_id: w.target.id }), 3);
  t.is(await recycled('/api/sessions/recycle', { user_id: other.id, target_id: w.target.id }), 1);
  t.is(await recycled(`/api/users/${w.user.id}/recycle`), 2);
  const { body: changes } = await w.gateway.rest<{ action: string; object_id: string; after: object }[]>(
    200,
    'GET',
    '/api/changes',
    {
      token,
    },
  );
  const rows = changes.filter(({ action }) => action === 'session.recycle');
  t.is(rows.length, 5);
  t.deepEqual(rows.at(-1)?.after, { recycled: 3 });

  const nobody = '00000000-0000-7000-8000-000000000000';
  for (const body of [
    'null',
    '[]',
    '"x"',
    '7',
    { user: w.user.id },
    {},
    { all: false },
    { all: 'true' },
    { all: true, user_id: w.user.id },
    { user_id: 'x' },
    { user_id: null },
    { target_id: 7 },
    '{"user_id":"a","user_id":"b"}',
  ]) {
    t.is((await rest(w.gateway.url, 'POST', '/api/sessions/recycle', { token, body })).status, 400, JSON.stringify(body));
  }
  await w.gateway.rest(404, 'POST', '/api/sessions/recycle', { token, body: { user_id: nobody } });
  await w.gateway.rest(404, 'POST', '/api/sessions/recycle', { token, body: { target_id: nobody } });
  await w.gateway.rest(404, 'POST', `/api/users/${nobody}/recycle`, { token });
  t.is((await rest(w.gateway.url, 'POST', '/api/users/x/recycle', { token })).status, 404);
  t.is((await rest(w.gateway.url, 'DELETE', '/api/sessions/x', { token })).status, 404);
  t.is((await rest(w.gateway.url, 'DELETE', `/api/sessions/${nobody}`, { token })).status, 404);
});

test.serial('the sessions of a recycle are counted before its transaction, and one recycle after the other', async (t) => {
  const gateway = await startGatewayWithDatabase(t);
  const admin = await person(gateway, 'admin@example.com');
  const events: string[] = [];
  type Query = { readonly sql: string; readonly __knexTxId?: string };
  gateway.database.knex.on('query', ({ sql, __knexTxId }: Query) => {
    if (/count\(\*\).* from `sessions`/.test(sql)) events.push(__knexTxId === undefined ? 'counted' : 'counted in a transaction');
    if (sql.startsWith('update `counter`')) events.push('changed');
  });
  const recycle = () => gateway.rest(200, 'POST', '/api/sessions/recycle', { token: admin.token, body: { all: true } });
  await Promise.all([recycle(), recycle(), recycle()]);
  t.deepEqual(events, ['counted', 'changed', 'counted', 'changed', 'counted', 'changed']);
});

test.serial('a recycle without a body does not mean every session', async (t) => {
  const { gateway, admin } = await world(t);
  const refused = await rest<{ errors: unknown }>(gateway.url, 'POST', '/api/sessions/recycle', { token: admin.token });
  t.is(refused.status, 400);
  const message = 'the body must have user_id, target_id or both; for every session send "all": true';
  t.deepEqual(refused.body.errors, [{ path: '', message }]);
});

test.serial('an auditor reads sessions, and neither ends nor recycles one', async (t) => {
  const w = await world(t);
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { role: 'auditor' } });
  await w.gateway.rest(200, 'GET', '/api/sessions', { token: w.user.token });
  for (const [method, path] of [
    ['DELETE', '/api/sessions/00000000-0000-7000-8000-000000000000'],
    ['POST', '/api/sessions/recycle'],
    ['POST', `/api/users/${w.user.id}/recycle`],
  ] as const) {
    await w.gateway.rest(403, method, path, { token: w.user.token });
    t.is((await rest(w.gateway.url, method, path)).status, 401);
  }
});
