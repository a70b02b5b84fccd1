/** Clients that present an identity assertion of the company's provider (ID-JAG), and attackers who present something similar. */
import { randomUUID } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { type Person, person, rest, startGateway, type TestGateway } from '../support/gateway.ts';
import { type Claims, registration, seconds, startProvider, type TestProvider, type TokenOptions } from '../support/provider.ts';
import { CALLBACK, form, initialize, payloadOf, register } from './support.ts';

const GRANT_TYPE = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
const PROFILE = 'urn:ietf:params:oauth:grant-profile:id-jag';
const TYPE = 'oauth-id-jag+jwt';

interface Answer {
  readonly access_token: string;
  readonly refresh_token?: string;
  readonly expires_in: number;
  readonly scope: string;
  readonly error?: string;
  readonly error_description?: string;
}
interface GrantDocument {
  readonly id: string;
  readonly user_id: string;
  readonly redirect_uri: string;
  readonly resources: readonly string[];
}

interface World {
  readonly gateway: TestGateway;
  readonly url: string;
  readonly provider: TestProvider;
  readonly admin: Person;
  readonly id: string;
  readonly client: { readonly id: string; readonly secret: string };
  set(body: Claims): Promise<unknown>;
  /** Signs an assertion for the client and the endpoint `/mcp/everything`. */
  assert(claims?: Claims, options?: TokenOptions): Promise<string>;
  /** Presents it. `more`: further or different parameters; `at`: the replica. */
  present(assertion: string, more?: Record<string, string>, at?: string): ReturnType<typeof form<Answer>>;
  newest(): Promise<string | undefined>;
}

const CONFIDENTIAL = {
  ...{ grant_types: [GRANT_TYPE], response_types: [], redirect_uris: [] },
  token_endpoint_auth_method: 'client_secret_post',
};

async function world(t: ExecutionContext, databaseUrl: string | null = null, more: Claims = {}): Promise<World> {
  const gateway = await startGateway(t, databaseUrl);
  const { url } = gateway;
  const provider = await startProvider(t);
  const admin = await person(gateway, 'admin@example.com');
  const made = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(provider, { id_jag: true, tokens: null, ...more }),
  });
  const { id } = made.body;
  const { status, body } = await register(url, CONFIDENTIAL);
  t.is(status, 201, JSON.stringify(body));
  const client = { id: body.client_id, secret: body.client_secret ?? '' };
  return {
    ...{ gateway, url, provider, admin, id, client },
    set: (change) => gateway.rest(200, 'PUT', `/api/providers/${id}`, { token: admin.token, body: change }),
    assert(claims = {}, options = {}) {
      const now = seconds();
      const own = { aud: url, client_id: client.id, resource: `${url}/mcp/everything`, jti: randomUUID() };
      return provider.token(
        { ...own, iat: now, exp: now + 300, ...claims },
        { ...options, header: { typ: TYPE, ...options.header } },
      );
    },
    present: (assertion, params = {}, at = url) =>
      form<Answer>(at, '/oauth/token', {
        ...{ grant_type: GRANT_TYPE, assertion, client_id: client.id, client_secret: client.secret },
        ...params,
      }),
    async newest() {
      const { body: health } = await gateway.rest<{ faults: { kind: string }[] }>(200, 'GET', `/api/providers/${id}/health`, {
        token: admin.token,
      });
      return health.faults[0]?.kind;
    },
  };
}

const grantsOf = async ({ gateway, admin }: World, userId: string): Promise<GrantDocument[]> =>
  (await gateway.rest<GrantDocument[]>(200, 'GET', `/api/auth/grants?user_id=${userId}`, { token: admin.token })).body;

test.serial('an assertion gives a token for the endpoint that it names, recorded by a grant', async (t) => {
  const w = await world(t, null, { rules: [{ if_group: 'ops', role: 'operator' }] });
  const { url } = w;
  const { status, body, headers } = await w.present(await w.assert({ groups: ['ops'], scope: 'mcp other' }));
  t.is(status, 200, JSON.stringify(body));
  t.is(headers.get('cache-control'), 'no-store');
  t.like(body, { token_type: 'Bearer', expires_in: 900, scope: 'mcp' });
  t.is(body.refresh_token, undefined);
  const payload = payloadOf(body.access_token);
  t.like(payload, { iss: url, aud: `${url}/mcp/everything`, client_id: w.client.id, scope: 'mcp' });
  const user = await w.gateway.rest<{ subject: string; role: string }>(200, 'GET', `/api/users/${String(payload['sub'])}`, {
    token: w.admin.token,
  });
  t.like(user.body, { subject: 'alice', role: 'operator' });
  t.not((await initialize(`${url}/mcp/everything`, body.access_token)).status, 401);
  t.is((await initialize(`${url}/mcp`, body.access_token)).status, 401, 'not at a different endpoint');
  t.is((await rest(url, 'GET', '/api/auth/me', { token: body.access_token })).status, 401);

  const again = await w.present(await w.assert({ groups: ['ops'] }), {
    scope: 'mcp offline_access',
    resource: `${url}/mcp/everything/`,
  });
  t.is(again.status, 200);
  const [grant, second] = await grantsOf(w, String(payload['sub']));
  t.like(grant, { redirect_uri: PROFILE, resources: [`${url}/mcp/everything`] });
  t.is(second, undefined, 'assertions for the same share a grant');
  await w.gateway.rest(204, 'DELETE', `/api/auth/grants/${grant?.id}`, { token: w.admin.token });
  for (const token of [body.access_token, again.body.access_token])
    t.is((await initialize(`${url}/mcp/everything`, token)).status, 401, 'the grant is the record of both');
});

test.serial('what is not an assertion for this client and this server is refused', async (t) => {
  const w = await world(t);
  const { url } = w;
  const other = await startProvider(t);
  const now = seconds();
  const cases: readonly (readonly [name: string, assertion: string, kind: string | null])[] = [
    ['an ID token', await w.assert({ aud: 'the-gateway', nonce: 'n' }, { header: { typ: 'JWT' } }), 'assertion_type'],
    ['an access token', await w.assert({}, { header: { typ: 'at+jwt' } }), 'assertion_type'],
    ['no type', await w.assert({}, { header: { typ: undefined } }), 'assertion_type'],
    ['a different audience', await w.assert({ aud: 'https://other.example' }), 'assertion_audience'],
    ['two audiences', await w.assert({ aud: [url, 'https://other.example'] }), 'assertion_audience'],
    ['the token endpoint as audience', await w.assert({ aud: `${url}/oauth/token` }), 'assertion_audience'],
    ['the assertion of a different client', await w.assert({ client_id: 'someone-else' }), 'assertion_client'],
    ['no client', await w.assert({ client_id: undefined }), 'assertion_client'],
    ['a resource elsewhere', await w.assert({ resource: 'https://other.example/mcp/everything' }), 'assertion_resource'],
    ['the REST API', await w.assert({ resource: `${url}/api` }), 'assertion_resource'],
    ['two resources', await w.assert({ resource: [`${url}/mcp/a`, `${url}/mcp/b`] }), 'assertion_resource'],
    ['no resource', await w.assert({ resource: undefined }), 'assertion_resource'],
    ['other scopes', await w.assert({ scope: 'chat.read' }), 'assertion_scope'],
    ['no jti', await w.assert({ jti: undefined }), 'assertion_used'],
    ['an expired one', await w.assert({ iat: now - 400, exp: now - 100 }), 'token_expired'],
    ['one from the future', await w.assert({ iat: now + 100 }), 'token_early'],
    ['no expiry', await w.assert({ exp: undefined }), 'token_claim'],
    ['one for a day', await w.assert({ exp: now + 86_400 }), 'assertion_lifetime'],
    ['no subject', await w.assert({ sub: undefined }), 'subject_missing'],
    ['one that is bound to a key', await w.assert({ cnf: { jkt: 'x' } }), 'token_bound'],
    ['a forged one', await other.token({ iss: w.provider.issuer }, { header: { typ: TYPE } }), 'token_signature'],
    ['an unknown issuer', await w.assert({ iss: other.issuer }), null],
    ['the gateway as issuer', await w.assert({ iss: url }), null],
    ['no JWT', 'x', null],
  ];
  for (const [name, assertion, kind] of cases) {
    const { status, body } = await w.present(assertion);
    t.is(status, 400, name);
    t.is(body.error, 'invalid_grant', name);
    t.truthy(body.error_description, name);
    t.falsy(body.access_token, name);
    if (kind !== null) t.is(await w.newest(), kind, name);
  }
  const wrong = { resource: `${url}/mcp/other` };
  t.like(await w.present(await w.assert(), wrong), { status: 400, body: { error: 'invalid_target' } });
  t.like(await w.present(await w.assert(), { scope: 'openid' }), { status: 400, body: { error: 'invalid_scope' } });
  t.like(await w.present('', {}), { status: 400, body: { error: 'invalid_request' } });
  const users = await w.gateway.rest<unknown[]>(200, 'GET', '/api/users', { token: w.admin.token });
  t.is(users.body.length, 1, 'refused assertions leave no user');
});

test.serial('only clients that prove who they are may present assertions', async (t) => {
  const w = await world(t);
  t.like(await w.present(await w.assert(), { client_secret: 'wrong' }), { status: 401, body: { error: 'invalid_client' } });
  const grant_types = ['authorization_code', GRANT_TYPE];
  const open = await register(w.url, { grant_types, redirect_uris: [CALLBACK], token_endpoint_auth_method: 'none' });
  const asOpen = (assertion: string) =>
    form<Answer>(w.url, '/oauth/token', { grant_type: GRANT_TYPE, assertion, client_id: open.body.client_id });
  t.like(await asOpen(await w.assert({ client_id: open.body.client_id })), {
    status: 400,
    body: { error: 'unauthorized_client' },
  });
  // A client that did not register for the grant.
  const plain = await register(w.url, { token_endpoint_auth_method: 'client_secret_post' });
  const { client_id, client_secret = '' } = plain.body;
  const refused = await w.present(await w.assert({ client_id }), { client_id, client_secret });
  t.is(refused.status, 400);
  const granted = await w.present(await w.assert());
  t.is(granted.status, 200);
  const { body: clients } = await w.gateway.rest<{ id: string; client_id: string }[]>(200, 'GET', '/api/clients', {
    token: w.admin.token,
  });
  const record = clients.find((one) => one.client_id === w.client.id);
  await w.gateway.rest(200, 'PUT', `/api/clients/${record?.id}`, { token: w.admin.token, body: { enabled: false } });
  t.true((await w.present(await w.assert())).status >= 400, 'a disabled client');
  t.is((await initialize(`${w.url}/mcp/everything`, granted.body.access_token)).status, 401);
});

test.serial('the user and the provider must be enabled, and what ends them ends the tokens', async (t) => {
  const w = await world(t);
  const endpoint = `${w.url}/mcp/everything`;
  const connect = async () => (await w.present(await w.assert())).body.access_token;
  const token = await connect();
  const user = String(payloadOf(token)['sub']);
  const put = (body: Claims) => w.gateway.rest(200, 'PUT', `/api/users/${user}`, { token: w.admin.token, body });
  await put({ enabled: false });
  t.is((await initialize(endpoint, token)).status, 401);
  t.like(await w.present(await w.assert()), { status: 400, body: { error: 'invalid_grant' } });
  await put({ enabled: true });

  const second = await connect();
  await w.set({ id_jag: false });
  t.is((await initialize(endpoint, second)).status, 401, 'the grants of assertions end with the setting');
  t.like(await w.present(await w.assert()), { status: 400, body: { error: 'invalid_grant' } });
  t.is(await w.newest(), 'assertions_not_accepted');
  await w.set({ id_jag: true });
  t.is((await initialize(endpoint, second)).status, 401, 'they do not come back');

  const third = await connect();
  await w.set({ enabled: false });
  t.is((await initialize(endpoint, third)).status, 401);
  t.like(await w.present(await w.assert()), { status: 400, body: { error: 'invalid_grant' } });
  await w.set({ enabled: true });

  await w.gateway.rest(200, 'POST', `/api/users/${user}/end-tokens`, { token: w.admin.token });
  t.like(await w.present(await w.assert()), { status: 400, body: { error: 'invalid_grant' } });
  t.is(await w.newest(), 'tokens_ended');
  t.is((await w.present(await w.assert({ sub: 'bob' }))).status, 200, 'others go on');
});

test.serial('a provider that is registered again without id_jag ends the grants by assertion of its issuer', async (t) => {
  const w = await world(t);
  const { gateway, provider, admin } = w;
  const endpoint = `${w.url}/mcp/everything`;
  const token = (await w.present(await w.assert())).body.access_token;
  const user = String(payloadOf(token)['sub']);
  const [grant] = await grantsOf(w, user);
  let { id } = w;
  const registerAgain = async (id_jag: boolean): Promise<void> => {
    await gateway.rest(204, 'DELETE', `/api/providers/${id}`, { token: admin.token });
    t.is((await initialize(endpoint, token)).status, 401, 'the provider is deleted');
    const body = registration(provider, { id_jag, tokens: null });
    id = (await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', { token: admin.token, body })).body.id;
  };

  await registerAgain(true);
  t.not((await initialize(endpoint, token)).status, 401, 'a provider with id_jag gets the grants back');
  await registerAgain(false);
  t.is((await initialize(endpoint, token)).status, 401);
  t.deepEqual(await grantsOf(w, user), []);
  const { body: changes } = await gateway.rest<{ action: string; object_id: string }[]>(200, 'GET', '/api/changes', {
    token: admin.token,
  });
  t.true(changes.some(({ action, object_id }) => action === 'grant.end' && object_id === grant?.id));
  await gateway.rest(200, 'PUT', `/api/providers/${id}`, { token: admin.token, body: { id_jag: true } });
  t.is((await initialize(endpoint, token)).status, 401, 'they do not come back');
});

test.serial('linking an account ends the grants of the user who had it, also after that user is enabled again', async (t) => {
  const w = await world(t);
  const { gateway, provider, admin } = w;
  const endpoint = `${w.url}/mcp/everything`;
  const token = (await w.present(await w.assert())).body.access_token;
  const earlier = String(payloadOf(token)['sub']);
  const [grant] = await grantsOf(w, earlier);
  const linked = await person(gateway, 'linked@example.com');
  const body = { issuer: provider.issuer, subject: 'alice' };
  await gateway.rest(200, 'POST', `/api/users/${linked.id}/link`, { token: admin.token, body });
  t.is((await initialize(endpoint, token)).status, 401);
  const { body: changes } = await gateway.rest<{ action: string; object_id: string }[]>(200, 'GET', '/api/changes', {
    token: admin.token,
  });
  t.true(changes.some(({ action, object_id }) => action === 'grant.end' && object_id === grant?.id));
  await gateway.rest(200, 'PUT', `/api/users/${earlier}`, { token: admin.token, body: { enabled: true } });
  t.is((await initialize(endpoint, token)).status, 401, 'they do not come back');
});

test.serial('an assertion without groups takes none away, and makes no user whose groups are required', async (t) => {
  const w = await world(t, null, { groups_required: true });
  const now = seconds();
  t.like(await w.present(await w.assert()), { status: 400, body: { error: 'invalid_grant' } });
  t.is(await w.newest(), 'groups_missing');
  const first = await w.present(await w.assert({ iat: now - 20, groups: ['staff'] }));
  t.is(first.status, 200);
  const second = await w.present(await w.assert({ iat: now - 10 }));
  t.is(second.status, 200);
  const path = `/api/users/${String(payloadOf(second.body.access_token)['sub'])}`;
  const groups = async () => (await w.gateway.rest<{ groups: string[] }>(200, 'GET', path, { token: w.admin.token })).body.groups;
  t.deepEqual(await groups(), ['staff']);
  t.is((await w.present(await w.assert({ iat: now - 5, groups: [] }))).status, 200);
  t.deepEqual(await groups(), [], 'an empty list says that there are none');
});

test.serial('a provider that is down gets the client a 503, and the assertion still counts afterwards', async (t) => {
  const w = await world(t);
  const assertion = await w.assert();
  await w.provider.stop();
  const { status, headers } = await w.present(assertion);
  t.is(status, 503);
  t.is(headers.get('retry-after'), '10');
  await w.provider.start();
  await w.gateway.rest(200, 'POST', `/api/providers/${w.id}/probe`, { token: w.admin.token });
  t.is((await w.present(assertion)).status, 200);
});

test.serial('the metadata advertise the profile while a provider has it', async (t) => {
  const w = await world(t);
  const metadata = async () =>
    (
      await w.gateway.rest<{ grant_types_supported: string[]; authorization_grant_profiles_supported?: string[] }>(
        200,
        'GET',
        '/.well-known/oauth-authorization-server',
      )
    ).body;
  const on = await metadata();
  t.deepEqual(on.authorization_grant_profiles_supported, [PROFILE]);
  t.true(on.grant_types_supported.includes(GRANT_TYPE));
  await w.set({ id_jag: false });
  const off = await metadata();
  t.is(off.authorization_grant_profiles_supported, undefined);
  t.false(off.grant_types_supported.includes(GRANT_TYPE));
});

test.serial('an assertion counts once, also for requests at the same time', async (t) => {
  const w = await world(t);
  const assertion = await w.assert();
  const statuses = (await Promise.all(Array.from({ length: 8 }, () => w.present(assertion)))).map(({ status }) => status);
  t.deepEqual(statuses.sort(), [200, ...Array.from({ length: 7 }, () => 400)]);
  t.is(await w.newest(), 'assertion_used');
});

eachServer(test.serial, 'an assertion counts once at two replicas', async (t, at) => {
  const w = await world(t, at.url);
  const other = await startGateway(t, at.url, { PUBLIC_URL: w.url });
  for (let round = 0; round < 10; round++) {
    const assertion = await w.assert({ sub: `user-${round % 3}` });
    const both = await Promise.all([w.present(assertion), w.present(assertion, {}, other.url)]);
    t.deepEqual(both.map(({ status }) => status).sort(), [200, 400], JSON.stringify(both.map(({ body }) => body)));
  }
});
