/** People who sign in with the company's provider, and attackers who try to take part. */
import test, { type ExecutionContext } from 'ava';
import { deferred } from '../../src/base/promises.ts';
import { begin, codeOf, openTab, redeem, refresh, register } from '../oauth/support.ts';
import { directoryAt } from '../scim/support.ts';
import { browserTest } from '../support/chromium.ts';
import { CLIENT_ID, CLIENT_SECRET, type Company, startCompany, walker } from '../support/company.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { type Person, person, startGateway, type TestGateway } from '../support/gateway.ts';
import type { Claims } from '../support/provider.ts';

interface World {
  readonly gateway: TestGateway;
  readonly company: Company;
  readonly admin: Person;
  readonly id: string;
}

const body = (company: Company, more: Claims = {}): Claims => ({
  ...{ name: 'company', title: 'The Company', preset: 'openid', issuer: company.issuer },
  ...{ client_id: CLIENT_ID, client_secret: CLIENT_SECRET, groups_claim: ['groups'], groups_required: false },
  rules: [{ if_group: 'ops', role: 'operator' }],
  ...more,
});

async function world(t: ExecutionContext, databaseUrl: string | null = null, more: Claims = {}): Promise<World> {
  const gateway = await startGateway(t, databaseUrl);
  const company = await startCompany(t, () => ['company', 'other'].map((name) => `${gateway.url}/signin/with/${name}/callback`));
  company.people.set('alice', { email: 'alice@example.com', email_verified: true, groups: ['ops'] });
  company.people.set('mallory', { email: 'alice@example.com', groups: [] });
  const admin = await person(gateway, 'admin@example.com');
  const made = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: body(company, more),
  });
  return { gateway, company, admin, id: made.body.id };
}

const isCallback = ({ pathname }: URL): boolean => pathname.endsWith('/callback');
const START = '/signin/with/company?return=%2Faccount';

interface Health {
  readonly faults: readonly { readonly kind: string; readonly message: string }[];
}
const faultOf = async ({ gateway, admin, id }: World) =>
  (await gateway.rest<Health>(200, 'GET', `/api/providers/${id}/health`, { token: admin.token })).body.faults[0];

/** Whether the page that makes tokens asks for a new sign-in first; otherwise, it shows its form. */
async function mustRenew({ gateway }: World, browser: ReturnType<typeof walker>): Promise<boolean> {
  const { text } = await browser.go(`${gateway.url}/console/tokens`);
  const asks = /href="\/signin\?[^"]*again=yes/.test(text);
  if (asks === text.includes('Make the token')) throw new Error(`The page is neither: ${text}`);
  return asks;
}

test.serial('a person signs in with the provider, has the role of a rule, and loses everything when disabled', async (t) => {
  const w = await world(t);
  const { gateway, admin } = w;
  const alice = walker('alice');
  const page = await alice.go(`${gateway.url}/signin?return=%2Faccount`);
  t.regex(page.text, /href="\/signin\/with\/company\?return=%2Faccount"[^>]*>Sign in with The Company/);
  const account = await alice.go(gateway.url + START);
  t.is(account.url.pathname, '/account', account.text);
  t.regex(account.text, /alice@example\.com/);
  t.false(alice.cookies(gateway.url).has('__Host-portcullis-signin'), 'what was begun is forgotten');
  const users = await gateway.rest<{ id: string; issuer: string; subject: string; role: string }[]>(200, 'GET', '/api/users', {
    token: admin.token,
  });
  const user = users.body.find(({ subject }) => subject === 'alice');
  t.like(user, { issuer: w.company.issuer, role: 'operator' });
  const sessions = await gateway.rest<{ method: string }[]>(200, 'GET', `/api/auth/browser-sessions?user_id=${user?.id}`, {
    token: admin.token,
  });
  t.is(sessions.body[0]?.method, 'company');

  // The next sign-in changes role and groups.
  w.company.people.set('alice', { email: 'alice@example.com', groups: [] });
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  await alice.go(`${gateway.url}${START}&again=yes`);
  t.is((await gateway.rest<{ role: string }>(200, 'GET', `/api/users/${user?.id}`, { token: admin.token })).body.role, 'user');
  await gateway.rest(200, 'PUT', `/api/providers/${w.id}`, { token: admin.token, body: { enabled: false } });
  t.is((await alice.go(`${gateway.url}/account`)).url.pathname, '/signin', 'a disabled provider ends browser sessions');
  await gateway.rest(200, 'PUT', `/api/providers/${w.id}`, { token: admin.token, body: { enabled: true } });
  await gateway.rest(200, 'PUT', `/api/users/${user?.id}`, { token: admin.token, body: { enabled: false } });
  const refused = await alice.go(gateway.url + START);
  t.is(refused.status, 403);
  t.regex(refused.text, /disabled/);
});

test.serial('a user of a disabled provider gets no token and no consent', async (t) => {
  const { gateway, admin, id } = await world(t);
  const { url } = gateway;
  const alice = walker('alice');
  await alice.go(url + START);
  const tab = openTab(url);
  tab.jar.set('__Host-portcullis|/', { value: alice.cookies(url).get('__Host-portcullis') ?? '', path: '/' });
  const { body: client } = await register(url);
  const connect = async () => {
    const flow = begin(url, client.client_id);
    return { flow, code: codeOf(await tab.answer(await tab.follow(flow.authorizeUrl))) };
  };
  const [used, unused] = [await connect(), await connect()];
  const { body: tokens } = await redeem(url, used.flow, used.code);
  const set = (enabled: boolean) => gateway.rest(200, 'PUT', `/api/providers/${id}`, { token: admin.token, body: { enabled } });
  const renew = () => refresh(url, client.client_id, tokens.refresh_token ?? '');

  await set(false);
  t.like(await redeem(url, unused.flow, unused.code), { status: 400, body: { error: 'invalid_grant' } });
  t.like(await renew(), { status: 400, body: { error: 'invalid_grant' } });
  const visit = await tab.follow(begin(url, client.client_id).authorizeUrl);
  t.is(new URL(visit.url).pathname, '/signin', visit.text);
  await set(true);
  t.is((await renew()).status, 200, 'the grant is in force again');
});

test.serial(
  'a session at the provider gives no access to a client that the user has not approved (confused deputy)',
  async (t) => {
    const { gateway, admin } = await world(t);
    const { url } = gateway;
    const alice = walker('alice');
    await alice.go(url + START);
    const tab = openTab(url);
    tab.jar.set('__Host-portcullis|/', { value: alice.cookies(url).get('__Host-portcullis') ?? '', path: '/' });
    const { body: client } = await register(url);
    const isAsked = async (clientId: string): Promise<boolean> => {
      alice.cookies(url).delete('__Host-portcullis');
      const signIn = await alice.go(begin(url, clientId).authorizeUrl, ({ host }) => host === 'client.example');
      const consent = signIn.url.searchParams.get('return') ?? '';
      // The provider knows the person, and asks nothing.
      await alice.go(`${url}/signin/with/company?${new URLSearchParams({ return: consent })}`);
      const page = await alice.go(url + consent, ({ host }) => host === 'client.example');
      t.is(page.url.searchParams.has('code'), page.url.host === 'client.example');
      return page.status === 200 && page.text.includes('Allow A client to act for you?');
    };
    t.true(await isAsked(client.client_id));
    codeOf(await tab.answer(await tab.follow(begin(url, client.client_id).authorizeUrl)));
    t.false(await isAsked(client.client_id), 'the user has approved this client');
    // Name, redirect address and account at the provider are the same.
    const { body: other } = await register(url);
    t.true(await isAsked(other.client_id));
    const { body: users } = await gateway.rest<{ id: string; subject: string }[]>(200, 'GET', '/api/users', {
      token: admin.token,
    });
    const id = users.find(({ subject }) => subject === 'alice')?.id;
    const { body: grants } = await gateway.rest<{ client: { client_id: string } }[]>(
      200,
      'GET',
      `/api/auth/grants?user_id=${id}`,
      {
        token: admin.token,
      },
    );
    t.true(grants.length > 0 && grants.every((grant) => grant.client.client_id === client.client_id));
  },
);

test.serial(
  'a provider that says when it asked for the password gives a proof, also without being told to ask again',
  async (t) => {
    const w = await world(t);
    const alice = walker('alice');
    // With max_age, the provider says it (auth_time).
    const { url } = await alice.go(w.gateway.url + START, ({ pathname }) => pathname === '/auth');
    url.searchParams.set('max_age', '3600');
    await alice.go(url.href);
    t.false(await mustRenew(w, alice));
  },
);

test.serial('a living session at the provider is no proof of a recent sign-in', async (t) => {
  const w = await world(t);
  const alice = walker('alice');
  await alice.go(w.gateway.url + START);
  t.true(await mustRenew(w, alice));
  // An ID token that is sound, but from a sign-in without `again`: it has no auth_time.
  const { url } = await alice.go(`${w.gateway.url}${START}&again=yes`, ({ pathname }) => pathname === '/auth');
  url.searchParams.delete('max_age');
  url.searchParams.delete('prompt');
  t.is((await alice.go(url.href)).status, 403);
  t.regex((await faultOf(w))?.message ?? '', /auth_time/);
  await alice.go(`${w.gateway.url}${START}&again=yes`);
  t.false(await mustRenew(w, alice));
});

test.serial('only the browser that began a sign-in finishes it, once', async (t) => {
  const w = await world(t);
  const { gateway } = w;
  const mallory = walker('mallory');
  const own = await mallory.go(gateway.url + START, isCallback);

  // Login CSRF: the victim opens the address at which the attacker's sign-in ends.
  const victim = walker('alice');
  const without = await victim.go(own.url.href, undefined, 'cross-site');
  t.is(without.status, 403);
  t.false(victim.cookies(gateway.url).has('__Host-portcullis'));
  // The same with a sign-in of their own under way.
  await victim.go(gateway.url + START, isCallback);
  const mixed = await victim.go(own.url.href, undefined, 'cross-site');
  t.is(mixed.status, 403);
  t.regex((await faultOf(w))?.message ?? '', /state/);

  // Code injection: the attacker's own state with a stolen code.
  const stolen = await walker('alice').go(gateway.url + START, isCallback);
  const thief = walker('mallory');
  const begun = await thief.go(gateway.url + START, isCallback);
  const injected = new URL(begun.url);
  injected.searchParams.set('code', stolen.url.searchParams.get('code') ?? '');
  t.is((await thief.go(injected.href)).status, 403, 'the verifier does not fit the code');

  const again = walker('alice');
  const good = await again.go(gateway.url + START, isCallback);
  const planted = [...again.cookies(gateway.url)];
  t.is((await again.go(good.url.href)).url.pathname, '/account');
  for (const [name, value] of planted) again.cookies(gateway.url).set(name, value);
  t.is((await again.go(good.url.href)).status, 403, 'a code is used once');
});

test.serial('answers of a different provider, altered answers and altered ID tokens are refused', async (t) => {
  const w = await world(t);
  const { gateway, company, admin } = w;
  const other = await startCompany(t, () => [`${gateway.url}/signin/with/other/callback`]);
  other.people.set('alice', {});
  await gateway.rest(201, 'POST', '/api/providers', { token: admin.token, body: body(other, { name: 'other' }) });

  const finish = async (change: (url: URL) => void) => {
    const alice = walker('alice');
    const { url } = await alice.go(gateway.url + START, isCallback);
    change(url);
    const page = await alice.go(url.href);
    t.false(alice.cookies(gateway.url).has('__Host-portcullis'), url.href);
    return page.status;
  };
  t.is(await finish((url) => url.searchParams.set('iss', other.issuer)), 403, 'mix-up: the issuer of a different provider');
  t.is(await finish((url) => url.searchParams.delete('iss')), 403, 'no issuer, though the provider announces it');
  t.is(await finish((url) => url.searchParams.set('state', 'x')), 403);
  t.is(await finish((url) => url.searchParams.delete('state')), 403);
  t.is(await finish((url) => url.searchParams.append('code', 'y')), 403, 'two codes');
  t.is(
    await finish((url) => Object.assign(url, { pathname: '/signin/with/other/callback' })),
    403,
    'the path of a different provider',
  );
  t.is(await finish((url) => Object.assign(url, { pathname: '/signin/with/nobody/callback' })), 404);
  t.is(
    await finish((url) =>
      Object.assign(url, { search: `?error=access_denied&state=${url.searchParams.get('state')}&iss=${company.issuer}` }),
    ),
    403,
  );

  const tampered = async (tamper: Company['tamper']) => {
    company.tamper = tamper;
    const status = await finish(() => undefined);
    company.tamper = null;
    return status;
  };
  const alter = (change: (payload: Claims) => Claims) => (answer: Claims) => {
    const [header = '', payload = '', signature = ''] = String(answer['id_token']).split('.');
    const read = JSON.parse(Buffer.from(payload, 'base64url').toString()) as Claims;
    return {
      ...answer,
      id_token: [header, Buffer.from(JSON.stringify(change(read))).toString('base64url'), signature].join('.'),
    };
  };
  t.is(await tampered((answer) => ({ ...answer, id_token: undefined })), 403, 'no ID token');
  t.is(await tampered(alter((claims) => ({ ...claims, groups: ['admins'] }))), 403, 'the signature is checked, also behind TLS');
  t.is((await faultOf(w))?.kind, 'token_signature');
  t.is(await tampered(alter((claims) => ({ ...claims, nonce: 'x' }))), 403);
  t.is(await tampered(alter((claims) => ({ ...claims, aud: 'someone-else' }))), 403);
  t.is(await tampered(alter((claims) => ({ ...claims, iss: other.issuer }))), 403);

  // A person who refuses reads that nothing happened.
  const refuser = await walker('refuser').go(gateway.url + START);
  t.is(refuser.status, 403);
  t.regex(refuser.text, /You are not signed in/);
  t.regex((await faultOf(w))?.message ?? '', /access_denied/);
});

test.serial('a sign-in begins from the gateway alone, and leads back to its own pages alone', async (t) => {
  const { gateway } = await world(t);
  const alice = walker('alice');
  t.is((await alice.go(gateway.url + START, undefined, 'cross-site')).url.pathname, '/signin', 'a different site begins nothing');
  const away = await alice.go(`${gateway.url}/signin/with/company?return=${encodeURIComponent('https://evil.example/')}`);
  t.is(away.url.origin + away.url.pathname, `${gateway.url}/account`);
  t.is((await walker('alice').go(`${gateway.url}/signin/with/nobody`)).status, 404);
});

test.serial('people whom the provider does not admit get no session and no record', async (t) => {
  const w = await world(t, null, { default_role: null });
  const mallory = walker('mallory');
  const page = await mallory.go(w.gateway.url + START);
  t.is(page.status, 403);
  t.regex(page.text, /no role here/);
  t.false(mallory.cookies(w.gateway.url).has('__Host-portcullis'));
  t.is((await w.gateway.rest<unknown[]>(200, 'GET', '/api/users', { token: w.admin.token })).body.length, 1);
});

/** A sign-in of alice that waits for the tokens of the provider, which it has issued, until `goOn`. */
async function inFlight({ gateway, company }: World) {
  const issued = deferred();
  const gate = deferred();
  company.tamper = async (answer) => {
    issued.resolve();
    await gate.promise;
    return answer;
  };
  const arriving = walker('alice').go(gateway.url + START);
  await issued.promise;
  return {
    goOn: () => {
      gate.resolve();
      return arriving;
    },
  };
}

test.serial('a sign-in that is under way while the provider is changed is refused, and leaves the record', async (t) => {
  const w = await world(t, null, { groups_from: 'directory', clock_skew_seconds: 0 });
  const { gateway, admin, id } = w;
  const { body: scim } = await gateway.rest<{ base_url: string; token: string }>(201, 'POST', `/api/providers/${id}/scim/token`, {
    token: admin.token,
  });
  const directory = directoryAt(t, scim.base_url, scim.token);
  const alice = await directory.user('alice', { externalId: 'alice' });
  await directory.group('blocked', [alice]);
  const signIn = await inFlight(w);
  await gateway.rest(200, 'PUT', `/api/providers/${id}`, { token: admin.token, body: { groups_from: 'token' } });
  const read = async () => (await gateway.rest<object>(200, 'GET', `/api/users/${alice.id}`, { token: admin.token })).body;
  const before = await read();
  const refused = await signIn.goOn();
  t.is(refused.status, 503, refused.text);
  t.regex(refused.text, /just changed the settings/);
  t.is((await faultOf(w))?.kind, 'provider_changed');
  t.deepEqual(await read(), before);
});

test.serial('a sign-in that is under way while the tokens of its user are ended gives no session', async (t) => {
  const w = await world(t);
  const { gateway, admin } = w;
  await walker('alice').go(gateway.url + START);
  const { body } = await gateway.rest<{ id: string; subject: string }[]>(200, 'GET', '/api/users', { token: admin.token });
  const user = body.find(({ subject }) => subject === 'alice')?.id;
  const signIn = await inFlight(w);
  await gateway.rest(200, 'POST', `/api/users/${user}/end-tokens`, { token: admin.token });
  const refused = await signIn.goOn();
  t.is(refused.status, 403, refused.text);
  t.regex(refused.text, /just been ended/);
  const sessions = await gateway.rest<object[]>(200, 'GET', `/api/auth/browser-sessions?user_id=${user}`, { token: admin.token });
  t.deepEqual(sessions.body, []);
});

test.serial('a provider that is down gives a page that says so', async (t) => {
  const w = await world(t);
  await w.gateway.rest(201, 'POST', '/api/providers', {
    token: w.admin.token,
    body: { ...body(w.company), name: 'gone', issuer: 'http://127.0.0.1:9' },
  });
  const page = await walker('alice').go(`${w.gateway.url}/signin/with/gone`);
  t.is(page.status, 503);
  t.regex(page.text, /cannot be reached/);
});

eachServer(test.serial, 'a sign-in that began at one replica ends at another one', async (t, at) => {
  const { gateway } = await world(t, at.url);
  const other = await startGateway(t, at.url, { PUBLIC_URL: gateway.url });
  const alice = walker('alice');
  const { url } = await alice.go(gateway.url + START, isCallback);
  const cookie = [...alice.cookies(gateway.url)].map(([name, value]) => `${name}=${value}`).join('; ');
  const there = new URL(url.pathname + url.search, other.url);
  const { send } = await import('../support/rest.ts');
  const host = new URL(gateway.url).host;
  const answer = await send(Number(there.port), 'GET', there.pathname + there.search, { headers: { host, cookie } });
  t.is(answer.status, 303, answer.text);
  t.is(answer.headers.location, '/account');
});

browserTest('a person signs in with the provider in a real browser', async (t, open) => {
  const { gateway } = await world(t);
  const context = await open();
  const page = await context.newPage();
  page.on('console', (message) => {
    if (message.type() === 'error' && !/favicon|status of 404/.test(message.text())) t.fail(message.text());
  });
  await page.goto(`${gateway.url}/account`);
  await page.getByRole('link', { name: 'Sign in with The Company' }).click();
  await page.getByLabel('Name').fill('alice');
  await page.getByRole('button', { name: 'Log in at the company' }).click();
  await page.waitForURL(`${gateway.url}/account`);
  t.true(await page.getByText('alice@example.com').first().isVisible());
  const cookies = await context.cookies();
  t.like(
    cookies.find(({ name }) => name === '__Host-portcullis'),
    { httpOnly: true, secure: true, sameSite: 'Lax' },
  );
  t.false(cookies.some(({ name }) => name === '__Host-portcullis-signin'));
});
