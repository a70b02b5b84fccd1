/** `LOCAL_SIGN_IN`: one administrator alone signs in with a password, and all others come from the company's providers. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import test, { type ExecutionContext } from 'ava';
import { begin, connected, initialize, openTab, refresh } from '../../oauth/support.ts';
import { eachServer } from '../../support/databases/each-engine.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { apiToken, type Person, person, rest, startGateway, type TestGateway } from '../../support/gateway.ts';
import { program } from '../../support/process.ts';
import { type Claims, registration, startProvider } from '../../support/provider.ts';

interface World {
  readonly gateway: TestGateway;
  readonly admin: Person;
  readonly bob: Person;
  /** The tokens of Bob's account. */
  readonly api: string;
  readonly client: { readonly clientId: string; readonly access: string; readonly refresh: string };
  /** The cookie of Bob's browser session. */
  readonly cookie: string;
}

const me = async ({ url }: TestGateway, token: string): Promise<number> =>
  (await rest(url, 'GET', '/api/auth/me', { token })).status;
const logIn = ({ url }: TestGateway, { email, password }: Pick<Person, 'email' | 'password'>) =>
  rest<{ token: string; code: string }>(url, 'POST', '/api/auth/login', { body: { email, password } });
const connect = async ({ url }: TestGateway, token: string): Promise<number> => (await initialize(`${url}/mcp`, token)).status;

/** An administrator and Bob, who both sign in with passwords in every way. */
async function people(gateway: TestGateway): Promise<World> {
  const admin = await person(gateway, 'admin@example.com');
  const bob = await person(gateway, 'bob@example.com');
  const { clientId, tokens, tab } = await connected(gateway, bob, `${gateway.url}/mcp`);
  const cookie = tab.jar.get('__Host-portcullis|/')?.value ?? '';
  const client = { clientId, access: tokens.access_token, refresh: tokens.refresh_token ?? '' };
  return { gateway, admin, bob, api: (await apiToken(gateway, bob)).token, client, cookie };
}

/** Starts the gateway again on its database, at the same address. */
async function restarted(t: ExecutionContext, before: TestGateway, url: string, environment: Record<string, string>) {
  await before.gateway.close();
  return startGateway(t, url, { PORT: new URL(before.url).port, ...environment });
}

async function withSqlite(t: ExecutionContext): Promise<World & { readonly database: string }> {
  const sqlite = await createSqlite();
  t.teardown(() => sqlite.drop());
  return { ...(await people(await startGateway(t, sqlite.url))), database: sqlite.url };
}

test.serial('all sign-ins of other local users end, and their API tokens stay', async (t) => {
  const { gateway: before, admin, bob, api, client, cookie, database } = await withSqlite(t);
  for (const name of ['t', 'u'])
    await before.rest(201, 'POST', '/api/targets', { token: admin.token, body: { name, url: 'http://127.0.0.1:9/mcp' } });
  const policy = { name: 'p', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  await before.rest(201, 'POST', '/api/policies', { token: admin.token, body: policy });
  const right = { subject_type: 'user', subject_value: bob.id, right: 'policies:plan' };
  await before.rest(201, 'POST', '/api/rights', { token: admin.token, body: right });
  for (const limits of [{ endpoints: ['u'] }, { rights: ['policies:plan'] }])
    await before.rest(201, 'POST', '/api/auth/tokens', { token: bob.token, body: { name: 'limited', limits } });
  const carl = await person(before, 'carl@example.com');
  const gateway = await restarted(t, before, database, { LOCAL_SIGN_IN: admin.id.toUpperCase() });
  const { url } = gateway;
  t.is(url, before.url);
  t.is(await me(gateway, bob.token), 401, 'a login token');
  t.is(await connect(gateway, client.access), 401, 'an access token');
  t.is((await refresh(url, client.clientId, client.refresh)).status, 400, 'a refresh token');
  const tab = openTab(url);
  tab.jar.set('__Host-portcullis|/', { value: cookie, path: '/' });
  t.is(new URL((await tab.follow('/account')).url).pathname, '/signin', 'a browser session');
  t.is(new URL((await tab.follow(begin(url, client.clientId).authorizeUrl)).url).pathname, '/signin', 'no consent');
  t.is(await me(gateway, api), 200);
  t.is(await connect(gateway, api), 200);
  t.is(await me(gateway, admin.token), 200);
  t.is((await logIn(gateway, admin)).status, 200);

  // One answer for all: it tells neither who may sign in, nor that a password is right.
  const answers = await Promise.all(
    [
      bob,
      { ...bob, password: 'a wrong passphrase' },
      { ...admin, password: 'a wrong passphrase' },
      { ...bob, email: 'x@y.z' },
    ].map(async (who) => {
      const { status, body } = await logIn(gateway, who);
      return JSON.stringify([status, body.code, (body as { detail?: string }).detail]);
    }),
  );
  t.is(new Set(answers).size, 1);
  t.regex(answers[0] ?? '', /^\[403,"local_sign_in_off"/);
  const body = { email: 'new@example.com', password: 'a long passphrase' };
  t.like(await gateway.rest(403, 'POST', '/api/auth/register', { body }), { status: 403, body: { code: 'registration_closed' } });
  const own = { current_password: bob.password, new_password: 'a new passphrase' };
  t.is((await rest(url, 'PUT', '/api/auth/password', { token: api, body: own })).status, 403);

  await gateway.rest(403, 'POST', '/api/auth/login', { body: { email: bob.email, password: bob.password } });

  // Reports about access say so, too: bob can use what his tokens reach.
  const { token } = admin;
  /** The targets that a user can use by each report. */
  const reported = async (id: string): Promise<readonly string[][]> => {
    const { body: rows } = await gateway.rest<{ target: string }[]>(200, 'GET', `/api/policies/access?who=user:${id}`, { token });
    const explained: string[] = [];
    const listed: string[] = [];
    for (const target of ['t', 'u']) {
      const asked = { token, body: { principal: { user: id }, target } };
      const { body: why } = await gateway.rest<{ principal: { enabled: boolean } }>(200, 'POST', '/api/policies/explain', asked);
      if (why.principal.enabled) explained.push(target);
      const path = `/api/policies/matrix?rows=users&target=${target}`;
      const { body: matrix } = await gateway.rest<{ rows: { subject_value: string }[] }>(200, 'GET', path, { token });
      if (matrix.rows.some(({ subject_value }) => subject_value === id)) listed.push(target);
    }
    return [rows.map(({ target }) => target), explained, listed];
  };
  const each = (targets: string[]) => [targets, targets, targets];
  t.deepEqual([await reported(admin.id), await reported(bob.id)], [each(['t', 'u']), each(['t', 'u'])]);
  const { body: held } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/auth/tokens', { token: api });
  await gateway.rest(204, 'DELETE', `/api/auth/tokens/${held[0]?.id}`, { token });
  t.is(await me(gateway, api), 401);
  t.deepEqual([await reported(admin.id), await reported(bob.id)], [each(['t', 'u']), each(['u'])]);
  t.deepEqual(await reported(carl.id), each([]), 'a user without an API token');

  // The setting takes nothing away for ever.
  const after = await restarted(t, gateway, database, {});
  t.is(await me(after, bob.token), 200);
  t.is((await logIn(after, bob)).status, 200);
  t.is(await connect(after, client.access), 200);
});

test.serial('the sign-in page offers providers, and a way in for the administrator', async (t) => {
  const { gateway: before, admin, bob, database } = await withSqlite(t);
  const gateway = await restarted(t, before, database, { LOCAL_SIGN_IN: admin.id });
  const tab = openTab(gateway.url);
  const empty = await tab.get('/signin?return=%2Faccount');
  t.notRegex(empty.text, /type="password"/);
  t.regex(empty.text, /No provider of your company/);
  await gateway.rest(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(await startProvider(t), { title: 'The Company' }),
  });
  const page = await tab.get('/signin?return=%2Faccount');
  t.regex(page.text, /Sign in with The Company/);
  t.notRegex(page.text, /type="password"/);
  const way = /href="(\/signin\?administrator=[^"]+)"/.exec(page.text)?.[1]?.replaceAll('&amp;', '&') ?? '';
  const form = await tab.get(way);
  t.regex(form.text, /type="password"/);
  t.regex(form.text, /name="return" value="\/account"/);
  const refused = await tab.post('/signin', { email: bob.email, password: bob.password, return: '/account' });
  t.is(refused.status, 403);
  t.regex(refused.text, /Only one administrator may sign in/);
  t.regex(refused.text, /type="password"/, 'the administrator can try again');
  await tab.signIn(admin);
  t.is((await tab.get('/account')).status, 200);
});

test.serial('the administrator cannot be disabled, demoted or linked, and others can', async (t) => {
  const { gateway: before, admin, bob, database } = await withSqlite(t);
  const provider = await startProvider(t);
  await before.rest(200, 'PUT', `/api/users/${bob.id}`, { token: admin.token, body: { role: 'admin' } });
  await before.rest(201, 'POST', '/api/providers', { token: admin.token, body: registration(provider) });
  const gateway = await restarted(t, before, database, { LOCAL_SIGN_IN: admin.id });
  const { token } = (await logIn(gateway, admin)).body;
  const put = (id: string, body: Claims) =>
    rest<{ code: string; detail: string }>(gateway.url, 'PUT', `/api/users/${id}`, { token, body });
  const link = (id: string) =>
    rest<{ code: string }>(gateway.url, 'POST', `/api/users/${id}/link`, {
      token,
      body: { issuer: provider.issuer, subject: id },
    });
  for (const answer of [await put(admin.id, { enabled: false }), await put(admin.id, { role: 'user' }), await link(admin.id)]) {
    t.is(answer.status, 409);
    t.is(answer.body.code, 'last_administrator');
    t.regex(JSON.stringify(answer.body), /LOCAL_SIGN_IN names this user/);
  }
  t.is((await put(admin.id, { groups: ['ops'] })).status, 200, 'what does not matter may change');
  t.is((await put(bob.id, { role: 'user' })).status, 200);
  t.is((await link(bob.id)).status, 200);
  t.is(await me(gateway, await provider.token({ sub: bob.id })), 200, 'the linked user comes from the provider');
});

test.serial('a setting that would lock everybody out stops the start, with the reason', async (t) => {
  const { gateway: before, admin, bob, database } = await withSqlite(t);
  await before.rest(200, 'PUT', `/api/users/${bob.id}`, { token: admin.token, body: { role: 'admin', enabled: false } });
  await before.gateway.close();
  const start = (id: string) => startGateway(t, database, { LOCAL_SIGN_IN: id });
  const unknown = '00000000-0000-7000-8000-000000000000';
  await t.throwsAsync(start(unknown), { message: /LOCAL_SIGN_IN is 0{8}.*no user has this id.*GET \/api\/users/ });
  await t.throwsAsync(start(bob.id), { message: /this user is disabled/ });
  await t.throwsAsync(start('admin@example.com'), { message: /LOCAL_SIGN_IN must be on, or the id of the only user/ });
  const again = await startGateway(t, database);
  await again.rest(200, 'PUT', `/api/users/${bob.id}`, { token: admin.token, body: { role: 'user', enabled: true } });
  await again.gateway.close();
  await t.throwsAsync(start(bob.id), { message: /the role of this user is user/ });
});

test.serial('reset-password gives a password only to the user who can use it', async (t) => {
  const { gateway: before, admin, bob, database } = await withSqlite(t);
  await before.gateway.close();
  const command = (email: string) =>
    promisify(execFile)(process.execPath, [...program('cli/portcullis'), 'user', 'reset-password', email], {
      env: {
        ...process.env,
        DATABASE_URL: database,
        LOCAL_SIGN_IN: admin.id,
        MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
      },
    });
  const refused = await t.throwsAsync<Error & { stderr: string }>(command(bob.email));
  t.regex(refused?.stderr ?? '', /LOCAL_SIGN_IN is .* so bob@example\.com cannot sign in with a password/);
  const { stdout } = await command(admin.email);
  const gateway = await startGateway(t, database, { LOCAL_SIGN_IN: admin.id });
  t.is((await logIn(gateway, { email: admin.email, password: stdout.trim() })).status, 200);
});

eachServer(test.serial, 'replicas with different settings each apply their own', async (t, at) => {
  const open = await startGateway(t, at.url);
  const { admin, bob, api } = await people(open);
  const closed = await startGateway(t, at.url, { LOCAL_SIGN_IN: admin.id });
  const { token } = (await logIn(open, bob)).body;
  t.deepEqual([await me(open, token), await me(closed, token)], [200, 401]);
  t.deepEqual([await me(open, api), await me(closed, api)], [200, 200]);
  t.is((await logIn(closed, bob)).status, 403);
  // The other replica does not protect the administrator. This one then refuses that user at once, like every disabled user.
  await open.rest(200, 'PUT', `/api/users/${bob.id}`, { token: admin.token, body: { role: 'admin' } });
  await open.rest(200, 'PUT', `/api/users/${admin.id}`, { token, body: { enabled: false } });
  t.deepEqual([await me(open, admin.token), await me(closed, admin.token)], [401, 401]);
  t.is((await logIn(closed, admin)).status, 403);
  await t.throwsAsync(startGateway(t, at.url, { LOCAL_SIGN_IN: admin.id }), { message: /this user is disabled/ });
});
