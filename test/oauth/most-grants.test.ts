/** A user who has as many grants as a user may have. */
import test, { type ExecutionContext } from 'ava';
import { uuidv7 } from '../../src/base/ids.ts';
import { MOST_GRANTS } from '../../src/oauth/grants.ts';
import { person, startGatewayWithDatabase } from '../support/gateway.ts';
import { registration, seconds, startProvider } from '../support/provider.ts';
import { begin, connected, form, openTab, payloadOf, register } from './support.ts';

const DEVICE = 'urn:ietf:params:oauth:grant-type:device_code';
const ASSERTION = 'urn:ietf:params:oauth:grant-type:jwt-bearer';

async function open(t: ExecutionContext) {
  const gateway = await startGatewayWithDatabase(t);
  const { knex } = gateway.database;
  return {
    gateway,
    knex,
    /** Copies the only grant until its user has MOST_GRANTS. */
    async fill(): Promise<void> {
      const [row] = await knex('grants');
      for (let made = 1; made < MOST_GRANTS; made += 37) {
        const count = Math.min(37, MOST_GRANTS - made);
        await knex('grants').insert(Array.from({ length: count }, () => ({ ...row, id: uuidv7() })));
      }
    },
  };
}

test('the pages say that there are too many grants, and what to do', async (t) => {
  const { gateway, knex, fill } = await open(t);
  const { url } = gateway;
  const user = await person(gateway, 'admin@example.com');
  await connected(gateway, user);
  await fill();

  const { body: client } = await register(url, { grant_types: ['authorization_code', 'refresh_token', DEVICE] });
  const tab = openTab(url);
  await tab.signIn(user);
  const refused = await tab.answer(await tab.follow(begin(url, client.client_id).authorizeUrl));
  t.is(refused.status, 403);
  t.true(refused.text.includes(`At most ${MOST_GRANTS} accesses of applications`));
  t.true(refused.text.includes('<a href="/account">'));

  const { body: device } = await form<{ user_code: string; device_code: string }>(url, '/oauth/device_authorization', {
    client_id: client.client_id,
  });
  const approve = () => tab.post('/oauth/device', { user: user.id, user_code: device.user_code, answer: 'allow' });
  const shown = await approve();
  t.is(shown.status, 403);
  t.true(shown.text.includes(`At most ${MOST_GRANTS} accesses of applications`));

  const statements: string[] = [];
  knex.on('query', ({ sql }: { sql: string }) => statements.push(sql));
  const { body: grants } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/auth/grants', { token: user.token });
  t.is(grants.length, MOST_GRANTS);
  const ofClients = statements.filter((sql) => sql.includes('oauth_clients'));
  t.true(ofClients.length > 0 && ofClients.every((sql) => !/metadata|\*/.test(sql)), 'metadata can be long, and are not shown');
  await knex('grants').where({ id: grants[0]?.id }).del();
  t.is((await approve()).status, 200, 'the code of the device still counts');
  t.is(
    (await form(url, '/oauth/token', { grant_type: DEVICE, client_id: client.client_id, device_code: device.device_code }))
      .status,
    200,
  );
});

test('an assertion that is refused because of too many grants still counts when some have ended', async (t) => {
  const { gateway, knex, fill } = await open(t);
  const { url } = gateway;
  const provider = await startProvider(t);
  const admin = await person(gateway, 'admin@example.com');
  await gateway.rest(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(provider, { id_jag: true, tokens: null }),
  });
  const { body: client } = await register(url, {
    ...{ grant_types: [ASSERTION], response_types: [], redirect_uris: [] },
    token_endpoint_auth_method: 'client_secret_post',
  });
  const { client_id, client_secret = '' } = client;
  const assert = (path: string) =>
    provider.token(
      { aud: url, client_id, resource: url + path, jti: uuidv7(), iat: seconds(), exp: seconds() + 300 },
      { header: { typ: 'oauth-id-jag+jwt' } },
    );
  const present = (assertion: string) =>
    form(url, '/oauth/token', { grant_type: ASSERTION, assertion, client_id, client_secret });
  const first = await present(await assert('/mcp/a'));
  t.is(first.status, 200, JSON.stringify(first.body));
  await fill();

  t.is((await present(await assert('/mcp/a'))).status, 200, 'a grant for the same endpoint is used again');
  const assertion = await assert('/mcp/b');
  t.like(await present(assertion), {
    status: 400,
    body: {
      error: 'invalid_grant',
      error_description: `The user has ${MOST_GRANTS} grants. End some of them on the account page of the gateway.`,
    },
  });
  const { grant } = payloadOf(first.body['access_token'] ?? '');
  await knex('grants').where({ id: grant }).del();
  t.is((await present(assertion)).status, 200);
  t.is((await present(assertion)).status, 400, 'now it is used up');
});
