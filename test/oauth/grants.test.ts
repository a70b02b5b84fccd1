/** Grants and clients over REST, and what their end ends. */
import test from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, type TestGateway } from '../support/gateway.ts';
import { listen } from '../support/listener.ts';
import { call, openSession } from '../support/mcp.ts';
import { startStateful } from '../support/upstreams/stateful.ts';
import { world } from '../support/world.ts';
import { begin, CALLBACK, codeOf, connected, initialize, openTab, redeem, refresh } from './support.ts';

interface Grant {
  readonly id: string;
  readonly user_id: string;
  readonly client: { readonly id: string; readonly client_id: string; readonly name: string };
  readonly resources: readonly string[];
  readonly redirect_uri: string;
}
interface Client {
  readonly id: string;
  readonly client_id: string;
  readonly enabled: boolean;
}

const grantsOf = async (gateway: TestGateway, token: string, query = ''): Promise<readonly Grant[]> =>
  (await gateway.rest<Grant[]>(200, 'GET', `/api/auth/grants${query}`, { token })).body;

test('users see and end their own grants, and administrators those of all', async (t) => {
  const w = await world(t);
  const { gateway, admin, user } = w;
  await w.allow({ name: 'all' });
  const { tokens, clientId } = await connected(gateway, user);
  const other = await person(gateway, 'other@example.com');
  const [grant] = await grantsOf(gateway, user.token);
  t.like(grant, {
    user_id: user.id,
    client: { client_id: clientId, name: 'A client' },
    resources: [`${gateway.url}/mcp/everything`],
    redirect_uri: CALLBACK,
  });
  t.deepEqual(await grantsOf(gateway, other.token), []);
  await gateway.rest(403, 'GET', `/api/auth/grants?user_id=${user.id}`, { token: other.token });
  t.is((await grantsOf(gateway, admin.token, `?user_id=${user.id}`)).length, 1);
  const path = `/api/auth/grants/${grant?.id}`;
  await gateway.rest(404, 'DELETE', path, { token: other.token });
  await gateway.rest(403, 'DELETE', path, { token: w.token });
  t.is((await initialize(w.mcp, tokens.access_token)).status, 200);
  await gateway.rest(204, 'DELETE', path, { token: admin.token });
  t.is((await initialize(w.mcp, tokens.access_token)).status, 401);
  t.is((await refresh(gateway.url, clientId, tokens.refresh_token ?? '')).status, 400);
  await gateway.rest(404, 'DELETE', path, { token: user.token });
  t.deepEqual(await grantsOf(gateway, user.token), []);
  const { body: changes } = await gateway.rest<{ action: string; actor: { id: string }; before: object }[]>(
    200,
    'GET',
    '/api/changes',
    {
      token: admin.token,
    },
  );
  t.like(changes[0], {
    action: 'grant.end',
    actor: { id: admin.id },
    before: { user_id: user.id, client: { client_id: clientId } },
  });
});

test('the account page shows and ends the access of the applications of its user alone', async (t) => {
  const w = await world(t);
  const { gateway, admin, user } = w;
  await w.allow({ name: 'all' });
  const { tokens, tab } = await connected(gateway, user);
  const [grant] = await grantsOf(gateway, user.token);
  const path = `/account/applications/${grant?.id}/end`;
  const ofAdmin = openTab(gateway.url);
  await ofAdmin.signIn(admin);
  t.false((await ofAdmin.get('/account')).text.includes(path));
  // An administrator has the right, but this page is about the user's own applications.
  t.is((await ofAdmin.post(path, {})).status, 404);
  t.is((await openTab(gateway.url).post(path, {})).to, `${gateway.url}/signin?return=%2Faccount`);
  t.is((await initialize(w.mcp, tokens.access_token)).status, 200);
  t.true((await tab.get('/account')).text.includes(path));
  t.is((await tab.post(path, {})).to, `${gateway.url}/account?done=application`);
  t.is((await initialize(w.mcp, tokens.access_token)).status, 401);
  t.is((await tab.post(path, {})).status, 404);
});

test('an administrator disables a client: its grants end, and nobody can approve it until it is enabled', async (t) => {
  const w = await world(t);
  const { gateway, admin, user } = w;
  await w.allow({ name: 'all' });
  const { tokens, clientId, tab } = await connected(gateway, user);
  const { body: clients } = await gateway.rest<Client[]>(200, 'GET', '/api/clients', { token: admin.token });
  const [client] = clients;
  t.like(client, { client_id: clientId, enabled: true });
  t.is(clients.length, 1);
  const path = `/api/clients/${client?.id}`;
  await gateway.rest(403, 'GET', '/api/clients', { token: user.token });
  await gateway.rest(403, 'PUT', path, { token: user.token, body: { enabled: false } });
  await gateway.rest(403, 'DELETE', path, { token: user.token });
  await gateway.rest(400, 'PUT', path, { token: admin.token, body: { enabled: 'no' } });

  // A sign-in is under way.
  const open = await tab.follow(begin(gateway.url, clientId, { more: { prompt: 'consent' } }).authorizeUrl);
  t.is(open.status, 200);
  const disabled = await gateway.rest<Client>(200, 'PUT', path, { token: admin.token, body: { enabled: false } });
  t.false(disabled.body.enabled);
  t.is((await initialize(w.mcp, tokens.access_token)).status, 401);
  t.true((await refresh(gateway.url, clientId, tokens.refresh_token ?? '')).status >= 400);
  t.true((await tab.answer(open)).status >= 400);
  t.true((await tab.follow(begin(gateway.url, clientId).authorizeUrl)).status >= 400);
  t.deepEqual(await grantsOf(gateway, user.token), []);

  await gateway.rest(200, 'PUT', path, { token: admin.token, body: { enabled: true } });
  const flow = begin(gateway.url, clientId);
  const { body: again } = await redeem(gateway.url, flow, codeOf(await tab.answer(await tab.follow(flow.authorizeUrl))));
  t.is((await initialize(w.mcp, again.access_token)).status, 200);
  t.is((await initialize(w.mcp, tokens.access_token)).status, 401, 'what has ended stays ended');
  await gateway.rest(204, 'DELETE', path, { token: admin.token });
  t.is((await initialize(w.mcp, again.access_token)).status, 401);
  t.is((await tab.follow(begin(gateway.url, clientId).authorizeUrl)).status, 400);
  await gateway.rest(404, 'GET', path, { token: admin.token });
  await gateway.rest(404, 'DELETE', path, { token: admin.token });
});

test('role and groups of a call with an access token are those of the record at that moment', async (t) => {
  const w = await world(t);
  await w.allow({ name: 'operators', subjects: [{ subject_type: 'role', subject_value: 'operator' }] });
  const { tokens } = await connected(w.gateway, w.user);
  const isAllowed = async (): Promise<boolean> => 'result' in (await initialize(w.mcp, tokens.access_token)).body;
  t.false(await isAllowed());
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { role: 'operator' } });
  t.true(await isAllowed());
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { role: 'user' } });
  t.false(await isAllowed());
});

test('a session goes on when its client refreshes, and with an API token of the same user', async (t) => {
  const w = await world(t);
  await w.allow({ name: 'all' });
  const { tokens, clientId } = await connected(w.gateway, w.user);
  const session = await openSession(w.mcp, tokens.access_token);
  const { body: next } = await refresh(w.gateway.url, clientId, tokens.refresh_token ?? '');
  for (const token of [next.access_token, w.token]) {
    const answer = await fetch(w.mcp, {
      method: 'DELETE',
      headers: { authorization: `Bearer ${token}`, 'mcp-session-id': `${session}x` },
    });
    t.is(answer.status, 404, 'an edited session id');
  }
  const answer = await fetch(w.mcp, {
    method: 'DELETE',
    headers: { authorization: `Bearer ${w.token}`, 'mcp-session-id': session },
  });
  t.true(answer.ok, String(answer.status));
});

eachEngine(test.serial, 'the end of a grant ends open streams and calls in flight', async (t, at) => {
  const target = await startStateful();
  t.teardown(() => target.stop());
  const w = await world(t, at.url, target.url);
  await w.allow({ name: 'all' });
  const { tokens } = await connected(w.gateway, w.user);
  const token = tokens.access_token;
  const headers = { 'mcp-session-id': await openSession(w.mcp, token) };
  const standing = await listen(t, w.mcp, token, { headers });
  const answering = await listen(t, w.mcp, token, { method: 'POST', headers, body: call('slow') });
  const ofApiToken = await listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': await openSession(w.mcp, w.token) } });
  const [grant] = await grantsOf(w.gateway, w.user.token);
  await w.gateway.rest(204, 'DELETE', `/api/auth/grants/${grant?.id}`, { token: w.user.token });
  const began = performance.now();
  await Promise.all([standing, answering].map(({ ended }) => ended));
  t.true(performance.now() - began < 5_000);
  target.release();
  let isOpen = true;
  void ofApiToken.ended.then(() => {
    isOpen = false;
  });
  await new Promise((resolve) => setImmediate(resolve));
  t.true(isOpen, 'streams of other tokens of the user go on');
});
