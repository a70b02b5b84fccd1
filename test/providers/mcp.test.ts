/** Programs that call targets with an access token of a provider. */
import test, { type ExecutionContext } from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { rest, startGateway } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { type Claims, registration, seconds, startProvider } from '../support/provider.ts';
import { type World, world } from '../support/world.ts';

interface LogRow {
  readonly issuer: string;
  readonly user_id: string;
  readonly user_email: string;
  readonly user_role: string;
  readonly user_groups: readonly string[];
  readonly resource_name: string | null;
}

async function mayCall(mcp: string, token: string, session: string): Promise<boolean> {
  const answer = await post(mcp, token, call('echo', { message: 'x' }), { 'mcp-session-id': session });
  return answer.message?.result !== undefined;
}

/** A world in which operators may call, and the group `ops` of the provider makes operators. */
async function company(t: ExecutionContext, url: string | null = null) {
  const w = await world(t, url);
  await w.allow({ name: 'operators', subjects: [{ subject_type: 'role', subject_value: 'operator' }] });
  const provider = await startProvider(t);
  const rules = [{ if_group: 'ops', role: 'operator' }];
  const { body } = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: w.admin.token,
    body: registration(provider, { rules, clock_skew_seconds: 0 }),
  });
  return { w, provider, id: body.id };
}

const asAdmin = (w: World, method: string, path: string, body?: Claims) =>
  rest(w.gateway.url, method, path, { token: w.admin.token, ...(body === undefined ? {} : { body }) });

test.serial('a call with a token of the provider is decided by the record, and recorded under its user', async (t) => {
  const { w, provider } = await company(t);
  const now = seconds();
  const token = await provider.token({ iat: now - 20, groups: ['ops'] });
  const session = await openSession(w.mcp, token);
  t.true(await mayCall(w.mcp, token, session));
  const { body: log } = await w.gateway.rest<LogRow[]>(200, 'GET', '/api/logs', { token: w.admin.token });
  const row = log.find(({ resource_name }) => resource_name === 'echo');
  const me = await rest<{ id: string }>(w.gateway.url, 'GET', '/api/auth/me', { token });
  t.like(row, { issuer: provider.issuer, user_id: me.body.id, user_role: 'operator', user_email: 'subject alice' });
  t.deepEqual(row?.user_groups, ['ops']);
  t.false(JSON.stringify(w.target.recorder.received).includes(token), 'the target never sees the token');

  // The session belongs to the user, not to the bytes of one token.
  const renewed = await provider.token({ iat: now - 10, groups: ['ops'] });
  t.true(await mayCall(w.mcp, renewed, session));
  const other = await provider.token({ sub: 'bob', groups: ['ops'] });
  t.false(await mayCall(w.mcp, other, session), 'the session of a different user');
  // A newer token without the group ends the access of the older ones.
  const demoted = await provider.token({ iat: now, groups: [] });
  t.false(await mayCall(w.mcp, demoted, session));
  t.false(await mayCall(w.mcp, token, session));
});

test.serial('a refused token gets a 401 with the address of the metadata, and no row in the log', async (t) => {
  const { w, provider } = await company(t);
  const answer = await fetch(w.mcp, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${await provider.token({ aud: 'account' })}`,
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
    },
    body: JSON.stringify(call('echo', { message: 'x' })),
  });
  t.is(answer.status, 401);
  t.regex(answer.headers.get('www-authenticate') ?? '', /resource_metadata="[^"]+", scope="mcp", error="invalid_token"/);
  t.regex(((await answer.json()) as { detail: string }).detail, /different service/);
  t.deepEqual((await w.gateway.rest<LogRow[]>(200, 'GET', '/api/logs', { token: w.admin.token })).body, []);
});

type Revocation = readonly [
  what: string,
  revoke: (w: World, ids: { user: string; provider: string }) => Promise<{ status: number }>,
];

const REVOCATIONS: readonly Revocation[] = [
  ['a provider disabled', (w, { provider }) => asAdmin(w, 'PUT', `/api/providers/${provider}`, { enabled: false })],
  ['a provider deleted', (w, { provider }) => asAdmin(w, 'DELETE', `/api/providers/${provider}`)],
  ['a rule removed', (w, { provider }) => asAdmin(w, 'PUT', `/api/providers/${provider}`, { rules: [] })],
  [
    'an audience removed',
    (w, { provider }) => asAdmin(w, 'PUT', `/api/providers/${provider}`, { tokens: { audiences: ['x'], types: ['at+jwt'] } }),
  ],
  ['a user of a provider disabled', (w, { user }) => asAdmin(w, 'PUT', `/api/users/${user}`, { enabled: false })],
  ['tokens of a provider ended', (w, { user }) => asAdmin(w, 'POST', `/api/users/${user}/end-tokens`)],
];

for (const [what, revoke] of REVOCATIONS) {
  eachServer(test.serial, `${what}: the next call is refused on every replica`, async (t, at) => {
    const { w, provider, id } = await company(t, at.url);
    const other = await startGateway(t, at.url);
    const there = `${other.url}/mcp/everything`;
    const token = await provider.token({ iat: seconds() - 10, groups: ['ops'] });
    const session = await openSession(w.mcp, token);
    t.true(await mayCall(w.mcp, token, session));
    t.true(await mayCall(there, token, session), 'a session is good on every replica');
    const me = await rest<{ id: string }>(w.gateway.url, 'GET', '/api/auth/me', { token });
    const answered = await revoke(w, { user: me.body.id, provider: id });
    t.true(answered.status < 300, JSON.stringify(answered));
    t.deepEqual(await Promise.all([mayCall(w.mcp, token, session), mayCall(there, token, session)]), [false, false]);
  });
}
