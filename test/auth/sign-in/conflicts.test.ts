/**
 * Members of a cluster do not see each other's locks, but of two transactions that overlap and write the same row, they commit one. So a
 * sign-in and what ends it write the same row. The race itself runs in test/cluster.
 */
import test, { type ExecutionContext } from 'ava';
import { uuidv7 } from '../../../src/base/ids.ts';
import { connected, form, openTab, register } from '../../oauth/support.ts';
import { person, startGatewayWithDatabase } from '../../support/gateway.ts';
import { registration, seconds, startProvider } from '../../support/provider.ts';

async function world(t: ExecutionContext) {
  const gateway = await startGatewayWithDatabase(t);
  const admin = await person(gateway, 'admin@example.com');
  return {
    ...{ gateway, admin },
    /** Whether `work` writes a row of the table. A statement that leaves all values as they are writes nothing. */
    async writes(table: 'users' | 'providers', id: string, work: () => Promise<unknown>): Promise<boolean> {
      const read = async () => JSON.stringify(await gateway.database.knex(table).where({ id }));
      const before = await read();
      await work();
      return before !== (await read());
    },
  };
}

test('whatever a user is signed in by, and its end, writes the record of the user', async (t) => {
  const { gateway, admin, writes } = await world(t);
  const user = await person(gateway, 'user@example.com');
  const { email, password, token } = user;
  const asAdmin = (status: number, method: string, path: string, body?: object) =>
    gateway.rest(status, method, path, { token: admin.token, body });
  const checks: readonly (readonly [what: string, work: () => Promise<unknown>])[] = [
    ['a login', () => gateway.rest(200, 'POST', '/api/auth/login', { body: { email, password } })],
    ['a browser session', () => openTab(gateway.url).signIn(user)],
    ['an API token', () => gateway.rest(201, 'POST', '/api/auth/tokens', { token, body: { name: 'a' } })],
    [
      'a changed password',
      () =>
        gateway.rest(204, 'PUT', '/api/auth/password', {
          ...{ token, body: { current_password: password, new_password: `${password}.` } },
        }),
    ],
    ['ended tokens', () => asAdmin(200, 'POST', `/api/users/${user.id}/end-tokens`)],
    ['a disabled user', () => asAdmin(200, 'PUT', `/api/users/${user.id}`, { enabled: false })],
  ];
  for (const [what, work] of checks) t.true(await writes('users', user.id, work), what);

  const other = await person(gateway, 'other@example.com');
  const tab = openTab(gateway.url);
  await tab.signIn(other);
  t.true(await writes('users', other.id, () => connected(gateway, other)), 'the access of an application');
  const { body: grants } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/auth/grants', { token: other.token });
  const end = () => gateway.rest(204, 'DELETE', `/api/auth/grants/${grants[0]?.id}`, { token: other.token });
  t.true(await writes('users', other.id, end), 'the end of such an access');
});

test('a grant by an assertion writes the record of the provider, as the change does that turns assertions off', async (t) => {
  const { gateway, admin, writes } = await world(t);
  const { url } = gateway;
  const provider = await startProvider(t);
  const made = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(provider, { id_jag: true, tokens: null }),
  });
  const { body: client } = await register(url, {
    ...{ grant_types: ['urn:ietf:params:oauth:grant-type:jwt-bearer'], response_types: [], redirect_uris: [] },
    token_endpoint_auth_method: 'client_secret_post',
  });
  const { client_id, client_secret = '' } = client;
  const present = async (): Promise<void> => {
    const assertion = await provider.token(
      { aud: url, client_id, resource: `${url}/mcp/a`, jti: uuidv7(), iat: seconds(), exp: seconds() + 300 },
      { header: { typ: 'oauth-id-jag+jwt' } },
    );
    const asked = { grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', assertion, client_id, client_secret };
    t.is((await form(url, '/oauth/token', asked)).status, 200);
  };
  t.true(await writes('providers', made.body.id, present));
  t.false(await writes('providers', made.body.id, present), 'an assertion for the same access makes no grant');
  const off = () => gateway.rest(200, 'PUT', `/api/providers/${made.body.id}`, { token: admin.token, body: { id_jag: false } });
  t.true(await writes('providers', made.body.id, off));
});
