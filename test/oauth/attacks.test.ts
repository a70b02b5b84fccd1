/** Attacks on the authorization server, one test for each. */
import { randomBytes } from 'node:crypto';
import { IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import { apiToken, type Person, person, startGatewayWithDatabase } from '../support/gateway.ts';
import { type World, world } from '../support/world.ts';
import {
  begin,
  CALLBACK,
  codeOf,
  connected,
  type Flow,
  form,
  initialize,
  openTab,
  payloadOf,
  redeem,
  refresh,
  register,
  type Tab,
  type Visit,
} from './support.ts';

/** How far the clocks of gateway and library are ahead, in milliseconds. Only serial tests change it. */
let ahead = 0;
const realNow = Date.now;

let shared: World;
let users = 0;
const ended: (() => unknown)[] = [];

test.before(async (t) => {
  // The gateway takes the clock when it starts.
  Date.now = () => realNow() + ahead;
  const until = { ...t, teardown: (end: () => unknown) => void ended.unshift(end) } as unknown as ExecutionContext;
  shared = await world(until, null, null, { CLIENT_REGISTRATION_RATE_LIMIT: '10000', OAUTH_RATE_LIMIT: '100000' });
  await shared.allow({ name: 'all' });
});

test.after.always(async () => {
  for (const end of ended) await end();
});

interface Scene extends World {
  readonly tab: Tab;
  readonly clientId: string;
  readonly flow: Flow;
}

/** A user of their own, with a registered client, and a browser at which the user is signed in. */
async function scene(_t: ExecutionContext, world: World = shared): Promise<Scene> {
  const user = await person(world.gateway, `user${users++}@example.com`);
  const { token } = await apiToken(world.gateway, user);
  const tab = openTab(world.gateway.url);
  await tab.signIn(user);
  const { body } = await register(world.gateway.url);
  return { ...world, user, token, tab, clientId: body.client_id, flow: begin(world.gateway.url, body.client_id) };
}

function later(t: ExecutionContext, ms: number): void {
  ahead = ms;
  t.teardown(() => {
    ahead = 0;
  });
}

const approve = async ({ tab }: Pick<Scene, 'tab'>, { authorizeUrl }: Flow): Promise<string> =>
  codeOf(await tab.answer(await tab.follow(authorizeUrl)));

async function grantsOf(
  { gateway }: Pick<Scene, 'gateway'>,
  who: Person,
): Promise<{ id: string; client: { client_id: string } }[]> {
  return (
    await gateway.rest<{ id: string; client: { client_id: string } }[]>(200, 'GET', '/api/auth/grants', { token: who.token })
  ).body;
}

test('a code that is redeemed again ends the access of the first redemption', async (t) => {
  const s = await scene(t);
  const code = await approve(s, s.flow);
  const { body: tokens } = await redeem(s.gateway.url, s.flow, code);
  t.is((await initialize(s.mcp, tokens.access_token)).status, 200);
  const again = await redeem(s.gateway.url, s.flow, code);
  t.is(again.status, 400);
  t.is(again.body.error, 'invalid_grant');
  t.is((await initialize(s.mcp, tokens.access_token)).status, 401);
  t.is((await refresh(s.gateway.url, s.clientId, tokens.refresh_token ?? '')).status, 400);
  t.deepEqual(await grantsOf(s, s.user), []);
});

test('a code that is redeemed four times at once gives no access in the end', async (t) => {
  const s = await scene(t);
  const code = await approve(s, s.flow);
  const redeemed = await Promise.all([1, 2, 3, 4].map(() => redeem(s.gateway.url, s.flow, code)));
  t.true(redeemed.filter(({ status }) => status === 200).length <= 1);
  for (const { body } of redeemed) {
    if (body.access_token !== undefined) t.is((await initialize(s.mcp, body.access_token)).status, 401);
    if (body.refresh_token !== undefined) t.is((await refresh(s.gateway.url, s.clientId, body.refresh_token)).status, 400);
  }
  t.deepEqual(await grantsOf(s, s.user), []);
});

test('an answer that the browser brings back four times at once gives one code', async (t) => {
  const s = await scene(t);
  const page = await s.tab.follow(s.flow.authorizeUrl);
  const answered = await s.tab.post(page.url, { user: s.user.id, answer: 'allow' });
  const back = await Promise.all([1, 2, 3, 4].map(() => s.tab.get(answered.to ?? '')));
  const codes = back.filter(({ to }) => to !== null && new URL(to).searchParams.has('code'));
  t.is(codes.length, 1);
  t.true(back.every((visit) => codes.includes(visit) || (visit.status === 400 && visit.to === null)));
});

test.serial('prompt=login needs a new sign-in, and max_age one that was young when the application asked', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const open = (more: Record<string, string>) =>
    s.tab.follow(begin(url, s.clientId, { more: { scope: 'openid mcp', ...more } }).authorizeUrl);
  const asks = (visit: Visit): boolean => {
    t.is(visit.status, 200);
    return new URL(visit.url).pathname === '/signin';
  };
  const young = await open({ max_age: '60' });
  t.false(asks(young));
  later(t, 120_000);
  t.false(asks(await s.tab.get(young.url)), 'the time that the person needs does not count');
  t.true(asks(await open({ max_age: '60' })));
  t.false(asks(await open({ max_age: '600' })));
  const login = await open({ prompt: 'login' });
  t.true(asks(login));
  t.true(asks(await open({ max_age: '0' })));
  await s.tab.signIn(s.user);
  const next = new URL(login.url).searchParams.get('return') ?? '';
  t.is((await s.tab.get(next)).status, 200, 'the new sign-in is enough');
});

test('a code of one client, redirect address or proof is worth nothing with another', async (t) => {
  const s = await scene(t);
  const { body: other } = await register(s.gateway.url);
  const attempts: Record<string, Record<string, string>> = {
    'another client': { client_id: other.client_id },
    'another redirect address': { redirect_uri: `${CALLBACK}/x` },
    'another verifier': { code_verifier: randomBytes(32).toString('base64url') },
    'no verifier': { code_verifier: '' },
    'another resource': { resource: `${s.gateway.url}/mcp` },
  };
  for (const [what, more] of Object.entries(attempts)) {
    const code = await approve(s, s.flow);
    const { status, body } = await redeem(s.gateway.url, s.flow, code, more);
    t.is(status, 400, what);
    t.false('access_token' in body, what);
  }
});

test('a code of a victim that an attacker injects into an own sign-in is refused', async (t) => {
  const s = await scene(t);
  const stolen = await approve(s, s.flow);
  const own = begin(s.gateway.url, s.clientId);
  const { status, body } = await redeem(s.gateway.url, own, stolen);
  t.is(status, 400);
  t.is(body.error, 'invalid_grant');
});

test.serial('a refresh token that is used again after its grace ends the grant of thief and owner', async (t) => {
  const s = await scene(t);
  const { tokens, clientId } = await connected(s.gateway, s.user);
  const { url } = s.gateway;
  const { body: next } = await refresh(url, clientId, tokens.refresh_token ?? '');
  // Within the grace, the client may have lost the answer.
  const { status, body: second } = await refresh(url, clientId, tokens.refresh_token ?? '');
  t.is(status, 200);
  t.is((await initialize(s.mcp, next.access_token)).status, 200);
  later(t, 61_000);
  const late = await refresh(url, clientId, tokens.refresh_token ?? '');
  t.is(late.status, 400);
  t.is(late.body.error, 'invalid_grant');
  for (const { access_token, refresh_token } of [next, second]) {
    t.is((await initialize(s.mcp, access_token)).status, 401);
    t.is((await refresh(url, clientId, refresh_token ?? '')).status, 400);
  }
});

test.serial('of two successors of one refresh token, the one that is not used ends with the use of the other', async (t) => {
  const s = await scene(t);
  const { tokens, clientId } = await connected(s.gateway, s.user);
  const { url } = s.gateway;
  const { body: ofOwner } = await refresh(url, clientId, tokens.refresh_token ?? '');
  const { body: ofThief } = await refresh(url, clientId, tokens.refresh_token ?? '');
  later(t, 600_000);
  const { body: newest } = await refresh(url, clientId, ofOwner.refresh_token ?? '');
  t.is((await initialize(s.mcp, newest.access_token)).status, 200);
  later(t, 700_000);
  t.is((await refresh(url, clientId, ofThief.refresh_token ?? '')).status, 400);
  // The thief has shown that somebody else has tokens of this grant.
  t.is((await initialize(s.mcp, newest.access_token)).status, 401);
});

test('a refresh token is worth nothing to another client, for another endpoint, or for more scope', async (t) => {
  const s = await scene(t);
  const { tokens, clientId } = await connected(s.gateway, s.user);
  const { body: other } = await register(s.gateway.url);
  const { url } = s.gateway;
  const token = tokens.refresh_token ?? '';
  t.is((await refresh(url, other.client_id, token)).status, 400);
  t.is((await refresh(url, clientId, token, { resource: `${url}/mcp/other` })).status, 400);
  t.is((await refresh(url, clientId, token, { resource: `${url}/mcp` })).status, 400);
  t.is((await refresh(url, clientId, token, { scope: 'mcp api' })).status, 400);
  t.is((await refresh(url, clientId, token)).status, 200);
});

test('the browser is never sent to an address that the client has not registered', async (t) => {
  const s = await scene(t);
  const wrong = [
    `${CALLBACK}/more`,
    `${CALLBACK}?more=1`,
    `${CALLBACK}#more`,
    'https://client.example.evil.example/callback',
    'https://client.example@evil.example/callback',
    'https://CLIENT.example/Callback',
    'http://client.example/callback',
    'https://evil.example/',
    '//evil.example',
    'javascript:alert(1)',
    '',
  ];
  for (const redirectUri of wrong) {
    const visit = await s.tab.follow(begin(s.gateway.url, s.clientId, { redirectUri }).authorizeUrl);
    t.is(visit.status, 400, redirectUri);
    t.is(visit.to, null, redirectUri);
    t.regex(visit.headers.get('content-type') ?? '', /^text\/html/);
    t.regex(visit.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  }
});

test('the gateway shows the error of a client that no user has approved as a page, without a redirect', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const wrong: Record<string, Record<string, string>> = {
    'a wrong type': { response_type: 'token' },
    'a wrong resource': { resource: 'https://evil.example/mcp' },
    'no question': { prompt: 'none' },
    'a wrong prompt': { prompt: 'whatever' },
    'the plain method': { code_challenge_method: 'plain' },
    'an age without openid': { max_age: '60' },
    'a wrong age': { scope: 'openid', max_age: '-1' },
  };
  const visit = (more: Record<string, string>): Promise<Visit> => s.tab.follow(begin(url, s.clientId, { more }).authorizeUrl);
  const refused = await s.tab.answer(await visit({}), 'deny');
  const kept = async (what: string, page: Visit): Promise<void> => {
    t.is(page.status, 400, what);
    t.is(page.to, null, what);
    t.regex(page.headers.get('content-type') ?? '', /^text\/html/, what);
    t.true(page.text.includes('not sent on to <strong>client.example</strong>'), what);
    t.false(page.text.includes('http-equiv="refresh"'), what);
  };
  await kept('a refusal', refused);
  for (const [what, more] of Object.entries(wrong)) await kept(what, await visit(more));
  await approve(s, s.flow);
  // Somebody could have approved the own client for this.
  const elsewhere = openTab(url);
  const wrongType = (): Promise<Visit> =>
    elsewhere.follow(begin(url, s.clientId, { more: { response_type: 'token' } }).authorizeUrl);
  await kept('a stranger', await wrongType());
  await elsewhere.signIn(await person(s.gateway, `user${users++}@example.com`));
  await kept('another user', await wrongType());
  for (const [what, more] of Object.entries(wrong)) {
    const { status, to } = await visit(more);
    t.is(status, 303, what);
    t.true(to?.startsWith(CALLBACK), what);
  }
  // An administrator does not trust it any more.
  const { body: clients } = await s.gateway.rest<{ id: string; client_id: string }[]>(200, 'GET', '/api/clients?limit=1000', {
    token: s.admin.token,
  });
  const client = clients.find(({ client_id }) => client_id === s.clientId);
  await s.gateway.rest(200, 'PUT', `/api/clients/${client?.id}`, { token: s.admin.token, body: { enabled: false } });
  const disabled = await visit({ response_type: 'token' });
  t.deepEqual([disabled.status, disabled.to], [400, null]);
});

test('a program on the computer of the user that poses as an allowed client gets no access without a question', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const loopback = 'http://127.0.0.1:4711/callback';
  const own = 'com.example.app:/callback';
  const cases: readonly (readonly [uris: readonly string[], redirectUri: string])[] = [
    [['http://127.0.0.1/callback'], loopback],
    [[own], own],
    // A client that also has an address on the computer cannot prove who it is.
    [[CALLBACK, 'http://127.0.0.1/callback'], CALLBACK],
  ];
  for (const [redirect_uris, redirectUri] of cases) {
    const { body: client } = await register(url, { redirect_uris });
    const flow = begin(url, client.client_id, { redirectUri });
    await approve(s, flow);
    const again = await s.tab.follow(flow.authorizeUrl);
    t.deepEqual([again.status, again.to], [200, null], redirectUri);
    t.regex(again.text, /You allowed the same on/);
  }
  const api = begin(url, 'portcullis-cli', { redirectUri: loopback, resource: `${url}/api`, more: { scope: 'api' } });
  await approve(s, api);
  t.is((await s.tab.follow(api.authorizeUrl)).status, 200, 'the command line');

  // A web application gets its code at its own address, and so is not asked about again, until the user ends the access.
  const first = await redeem(url, s.flow, await approve(s, s.flow));
  const silent = await s.tab.follow(s.flow.authorizeUrl);
  const second = await redeem(url, s.flow, codeOf(silent));
  const asked = await s.tab.follow(begin(url, s.clientId, { more: { prompt: 'consent' } }).authorizeUrl);
  t.deepEqual([asked.status, asked.to], [200, null]);
  const [grant, copy] = (await grantsOf(s, s.user)).filter(({ client }) => client.client_id === s.clientId);
  t.truthy(copy);
  await s.gateway.rest(204, 'DELETE', `/api/auth/grants/${grant?.id}`, { token: s.user.token });
  for (const { body } of [first, second]) t.is((await initialize(s.mcp, body.access_token)).status, 401);
  t.is((await s.tab.follow(s.flow.authorizeUrl)).status, 200);
});

test.serial('the thief of an older session cannot give the command line access, which would outlive the session', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const api = { resource: `${url}/api`, more: { scope: 'api' } };
  const { authorizeUrl } = begin(url, 'portcullis-cli', { redirectUri: 'http://127.0.0.1:4711/callback', ...api });
  const page = await s.tab.follow(authorizeUrl);
  t.is(page.status, 200);
  later(t, 11 * 60_000);
  const answered = await s.tab.post(page.url, { user: s.user.id, answer: 'allow' });
  t.regex(answered.to ?? '', /\/signin\?.*again=yes/);
  t.is(new URL((await s.tab.follow(authorizeUrl)).url).pathname, '/signin');
  t.deepEqual(await grantsOf(s, s.user), []);
  t.regex(
    new URL((await s.tab.follow(s.flow.authorizeUrl)).url).pathname,
    /^\/oauth\/consent\//,
    'an application needs no proof',
  );
  await s.tab.signIn(s.user);
  t.is((await s.tab.post(page.url, { user: s.user.id, answer: 'allow' })).status, 303);
  t.is((await grantsOf(s, s.user)).length, 1);
});

test('an answer in a page with a script or in a fragment is refused, and so is a state that fills the database', async (t) => {
  const s = await scene(t);
  await approve(s, s.flow);
  const open = (more: Record<string, string>) => s.tab.get(begin(s.gateway.url, s.clientId, { more }).authorizeUrl);
  for (const response_mode of ['fragment', 'form_post', 'web_message', 'jwt', 'query.jwt', '']) {
    const { status, to } = await open({ response_mode });
    t.deepEqual([status, to], [400, null], response_mode);
  }
  t.is((await open({ response_mode: 'query', state: 'x'.repeat(2_048) })).status, 303);
  const long = await open({ state: 'x'.repeat(2_049) });
  t.deepEqual([long.status, long.to], [400, null]);
});

test('every answer names its issuer, so that a client that uses several servers notices a mix-up', async (t) => {
  const s = await scene(t);
  const allowed = await s.tab.answer(await s.tab.follow(s.flow.authorizeUrl));
  t.is(new URL(allowed.to ?? '').searchParams.get('iss'), s.gateway.url);
  const again = begin(s.gateway.url, s.clientId, { more: { prompt: 'consent' } });
  const denied = await s.tab.answer(await s.tab.follow(again.authorizeUrl), 'deny');
  const answer = new URL(denied.to ?? '').searchParams;
  t.deepEqual([answer.get('error'), answer.get('iss'), answer.get('code')], ['access_denied', s.gateway.url, null]);
  const wrong = await s.tab.follow(begin(s.gateway.url, s.clientId, { more: { response_type: 'token' } }).authorizeUrl);
  // What the gateway does not support is answered in the fragment, where this type is answered.
  t.is(new URLSearchParams(new URL(wrong.to ?? '').hash.slice(1)).get('iss'), s.gateway.url);
});

test('a sign-in without PKCE, or with the plain method, is refused', async (t) => {
  const s = await scene(t);
  await approve(s, s.flow);
  const url = new URL(s.flow.authorizeUrl);
  url.searchParams.delete('code_challenge');
  url.searchParams.delete('code_challenge_method');
  const without = await s.tab.follow(url.href);
  t.is(new URL(without.to ?? '').searchParams.get('error'), 'invalid_request');
  const plain = await s.tab.follow(
    begin(s.gateway.url, s.clientId, { more: { code_challenge: 'x'.repeat(43), code_challenge_method: 'plain' } }).authorizeUrl,
  );
  t.is(new URL(plain.to ?? '').searchParams.get('error'), 'invalid_request');
});

test('an access token works at its own endpoint alone', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const one = await connected(s.gateway, s.user);
  const all = await connected(s.gateway, s.user, `${url}/mcp`);
  t.is((await initialize(s.mcp, one.tokens.access_token)).status, 200);
  t.is((await initialize(`${url}/mcp`, all.tokens.access_token)).status, 200);
  const elsewhere = await initialize(`${url}/mcp`, one.tokens.access_token);
  t.is(elsewhere.status, 401);
  t.is(
    elsewhere.headers.get('www-authenticate'),
    `Bearer resource_metadata="${url}/.well-known/oauth-protected-resource/mcp", scope="mcp", error="invalid_token"`,
  );
  t.is((await initialize(s.mcp, all.tokens.access_token)).status, 401);
  t.is((await initialize(`${url}/mcp/other`, one.tokens.access_token)).status, 401);
  for (const { tokens } of [one, all]) {
    await s.gateway.rest(401, 'GET', '/api/auth/me', { token: tokens.access_token });
    await s.gateway.rest(401, 'POST', '/api/auth/tokens', { token: tokens.access_token, body: { name: 'mine' } });
  }
});

test('an ID token, a refresh token and a code are no access tokens', async (t) => {
  const s = await scene(t);
  const flow = begin(s.gateway.url, s.clientId, { more: { scope: 'openid mcp', nonce: 'n' } });
  const code = await approve(s, flow);
  t.is((await initialize(s.mcp, code)).status, 401);
  const { body: tokens } = await redeem(s.gateway.url, flow, code);
  t.is(payloadOf(tokens.id_token ?? '')['aud'], s.clientId);
  for (const token of [tokens.id_token ?? '', tokens.refresh_token ?? '']) {
    t.is((await initialize(s.mcp, token)).status, 401);
    await s.gateway.rest(401, 'GET', '/api/auth/me', { token });
  }
  t.is((await initialize(s.mcp, tokens.access_token)).status, 200);
});

test('a user with a login or API token gets no code from it: only the session of a browser counts', async (t) => {
  const s = await scene(t);
  const stranger = openTab(s.gateway.url);
  for (const authorization of [`Bearer ${s.user.token}`, `Bearer ${s.token}`]) {
    const visit = await stranger.get(s.flow.authorizeUrl, { authorization });
    const consent = await stranger.get(visit.to ?? '', { authorization });
    t.regex(consent.to ?? '', /\/signin\?/);
  }
});

test('a page elsewhere cannot answer the consent page, frame it, or read it', async (t) => {
  const s = await scene(t);
  const page = await s.tab.follow(s.flow.authorizeUrl);
  t.is(page.status, 200);
  t.is(page.headers.get('x-frame-options'), 'DENY');
  t.regex(page.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  t.regex(page.headers.get('content-security-policy') ?? '', /form-action 'self' https:\/\/client\.example$/);
  t.is(page.headers.get('access-control-allow-origin'), null);
  const user = /name="user" value="([^"]+)"/.exec(page.text)?.[1] ?? '';
  const forged: Record<string, Record<string, string>> = {
    'another origin': { origin: 'https://evil.example' },
    'another port': { origin: 'http://127.0.0.1:1' },
    'no origin': { origin: '' },
    'an opaque origin': { origin: 'null' },
    'another site': { 'sec-fetch-site': 'cross-site' },
    'another origin of the site': { 'sec-fetch-site': 'same-site' },
    'a navigation of the user': { 'sec-fetch-site': 'none' },
    'no word of the site': { 'sec-fetch-site': '' },
  };
  for (const [what, headers] of Object.entries(forged)) {
    const visit = await s.tab.post(page.url, { user, answer: 'allow' }, headers);
    t.is(visit.status, 403, what);
    t.is(visit.to, null, what);
  }
  // The browser of the victim did not begin the sign-in of the attacker.
  const attacker = openTab(s.gateway.url);
  const begun = await attacker.get(begin(s.gateway.url, s.clientId).authorizeUrl);
  const planted = await s.tab.get(begun.to ?? '');
  t.is(planted.status, 400);
  t.notRegex(planted.text, /<form class/);
  t.is((await s.tab.post(begun.to ?? '', { user, answer: 'allow' })).status, 400);
  t.deepEqual(await grantsOf(s, s.user), []);
});

test('an answer counts once, and only for the user who saw the page', async (t) => {
  const s = await scene(t);
  const page = await s.tab.follow(s.flow.authorizeUrl);
  const user = /name="user" value="([^"]+)"/.exec(page.text)?.[1] ?? '';
  t.is(user, s.user.id);
  const other = await person(s.gateway, 'other@example.com');
  await s.tab.signIn(other);
  const swapped = await s.tab.post(page.url, { user, answer: 'allow' });
  t.is(swapped.to, page.url, 'the page is shown again');
  t.deepEqual(await grantsOf(s, other), []);
  const both = await Promise.all([1, 2, 3].map(() => s.tab.post(page.url, { user: other.id, answer: 'allow' })));
  t.is(both.filter(({ status }) => status === 303).length, 1);
  t.is((await grantsOf(s, other)).length, 1);
  t.deepEqual(await grantsOf(s, s.user), []);
});

test('a different user who signs in after the answer does not get the code', async (t) => {
  const s = await scene(t);
  const page = await s.tab.follow(s.flow.authorizeUrl);
  const answered = await s.tab.post(page.url, { user: s.user.id, answer: 'allow' });
  const other = await person(s.gateway, 'third@example.com');
  await s.tab.signIn(other);
  const visit = await s.tab.get(answered.to ?? '');
  t.is(new URL(visit.to ?? '').searchParams.get('error'), 'access_denied');
  t.is(new URL(visit.to ?? '').searchParams.get('code'), null);
});

test('an address at the gateway cannot be used to send the browser elsewhere', async (t) => {
  const s = await scene(t);
  for (const path of [
    '/oauth/consent//evil.example',
    '/oauth/authorize//evil.example',
    '/oauth/authorize/..%2f..%2fevil.example',
    `/oauth/authorize?client_id=${s.clientId}&redirect_uri=https://evil.example`,
    '/oauth/authorize?client_id=https://evil.example&redirect_uri=https://evil.example',
    '/oauth/end_session?post_logout_redirect_uri=https://evil.example',
    '/oauth/device?user_code=//evil.example',
  ]) {
    const visit = await s.tab.get(path);
    t.true(visit.to === null || visit.to.startsWith(`${s.gateway.url}/`), `${path}: ${visit.to}`);
  }
});

test('only the endpoints that are documented exist', async (t) => {
  const s = await scene(t);
  for (const [method, path] of [
    ['GET', '/oauth/jwks'],
    ['POST', '/oauth/end_session/confirm'],
    ['GET', '/oauth/end_session'],
    ['GET', '/oauth/userinfo'],
    ['POST', '/oauth/introspect'],
    ['POST', '/oauth/par'],
    ['GET', '/oauth'],
    ['GET', '/oauth/register/some-id'],
    ['GET', '/oauth/device/some-id'],
    ['GET', '/interaction/some-id'],
    ['GET', '/auth'],
    ['GET', '/OAuth/Authorize'],
    ['GET', '/oauth/authorize/'],
  ] as const) {
    const answer = await fetch(s.gateway.url + path, { method, redirect: 'manual' });
    t.is(answer.status, 404, path);
    t.regex(answer.headers.get('content-type') ?? '', /problem\+json|text\/html/, path);
  }
  t.is((await fetch(`${s.gateway.url}/oauth/token`)).status, 405);
});

test('a registration is refused that would lead a browser astray', async (t) => {
  const { gateway } = await scene(t);
  const refused: Record<string, Record<string, unknown>> = {
    ...Object.fromEntries(
      [
        ...['javascript:alert(1)//', 'data:text/html,x', 'file:///etc/passwd', 'view-source:https://client.example/'],
        ...['mailto:a@client.example', 'tel:+1', 'sms:+1', 'chrome://settings', 'edge://settings', 'search-ms:query=x'],
        ...['ms-settings:privacy', 'MS-Word:ofe|u|https://evil.example/x.docx', 'ms-msdt:/id', 'intent://x#Intent;end'],
        // The page of a stranger, in a particular browser.
        ...[
          'microsoft-edge:https://evil.example/cb',
          'microsoft-edge:evil.example/cb',
          'googlechromes://evil.example/cb',
          'x-safari-https://evil.example/cb',
        ],
        ...['firefox://open-url?url=https%3A%2F%2Fevil.example', 'steam://openurl/https://evil.example/cb', 'web+evil://x/cb'],
        ...[
          'com-apple-mobilesafari-tab:https://evil.example/cb',
          'unknown://open?url=HTTPS%3A//evil.example',
          'opera-https://x/',
        ],
        // Hosts with more than one reading.
        ...['https://client.example./cb', 'https://cliént.example/cb', 'https://client%2eexample/cb', 'https://0x7f.1/cb'],
        ...['https:\\\\client.example\\cb', 'https:client.example/cb', 'https://client.ex\tample/cb', 'https://a;b.example/cb'],
        ...['https://[2001:db8::1]/cb', 'https://client.example/c b', ' https://client.example/cb', 'https://client。example/cb'],
        ...['http://127.1/cb', 'http://2130706433/cb', 'cursor://evil@client.example/cb', 'cursor://a%00b/cb'],
      ].map((uri) => [uri, { redirect_uris: [uri] }]),
    ),
    'plain http elsewhere': { redirect_uris: ['http://client.example/callback'] },
    'a name in front': { redirect_uris: ['https://user:secret@client.example/callback'] },
    'a fragment': { redirect_uris: ['https://client.example/callback#x'] },
    'no address': { redirect_uris: [] },
    'eleven addresses': { redirect_uris: Array.from({ length: 11 }, (_, i) => `https://client.example/${i}`) },
    'a long address': { redirect_uris: [`https://client.example/${'x'.repeat(2_000)}`] },
    'long metadata': { contacts: Array.from({ length: 200 }, (_, i) => `${i}${'x'.repeat(50)}@client.example`) },
    'a long name': { client_name: 'x'.repeat(201) },
    'a name with line breaks': { client_name: 'Claude\n\nverified by your administrator' },
    'a name with a line separator': { client_name: 'Claude\u2028verified by your administrator' },
    'a name with a paragraph separator': { client_name: 'Claude\u2029verified by your administrator' },
    'a name that is shown backwards': { client_name: '\u202eedualC' },
    'a name with an isolate': { client_name: 'Claude\u2066' },
    'a keyless method': { token_endpoint_auth_method: 'private_key_jwt' },
    'an implicit grant': { grant_types: ['implicit'], response_types: ['token'] },
    'a password grant': { grant_types: ['password'] },
  };
  for (const [what, metadata] of Object.entries(refused)) {
    const { status, body } = await register(gateway.url, metadata);
    t.is(status, 400, what);
    t.truthy(body.error, what);
  }
  for (const uri of [
    ...[
      'https://client.example:443/cb',
      'https://client.example:8443/cb?x=1',
      'https://Client.Example/cb',
      'https://xn--9ca.example/',
    ],
    ...['http://127.0.0.1/cb', 'http://[::1]:4711/cb', 'http://localhost:80/cb', 'https://192.0.2.1/cb'],
    ...['cursor://anysphere.cursor-retrieval/oauth/cb', 'com.example.app:/cb', 'vscode://vscode.github-authentication/did'],
  ]) {
    t.is((await register(gateway.url, { redirect_uris: [uri] })).status, 201, uri);
  }
});

test('markup in the name of a client is shown as text', async (t) => {
  const s = await scene(t);
  const { body } = await register(s.gateway.url, { client_name: '<img src=x onerror=alert(1)>"\'' });
  const page = await s.tab.follow(begin(s.gateway.url, body.client_id).authorizeUrl);
  t.false(page.text.includes('<img'));
  t.true(page.text.includes('&#60;img'));
});

test('a flood of registrations is limited, and does not keep others from registering', async (t) => {
  const own = await world(t, null, null, { CLIENT_REGISTRATION_RATE_LIMIT: '5' });
  const s = await scene(t, own);
  const answers = [];
  for (let at = 0; at < 6; at++) answers.push(await register(s.gateway.url));
  t.deepEqual(
    answers.map(({ status }) => status),
    [201, 201, 201, 201, 429, 429],
  );
  t.truthy(answers.at(-1)?.headers.get('retry-after'));
});

test('registration can be switched off', async (t) => {
  const w = await world(t, null, null, { CLIENT_REGISTRATION: 'closed' });
  const answer = await fetch(`${w.gateway.url}/oauth/register`, { method: 'POST', body: '{}' });
  t.is(answer.status, 404);
  for (const path of ['/.well-known/oauth-authorization-server', '/.well-known/openid-configuration']) {
    const { body } = await w.gateway.rest<{ registration_endpoint?: string }>(200, 'GET', path);
    t.is(body.registration_endpoint, undefined);
  }
});

test('a client cannot get the scope of the REST API, nor the command line that of MCP', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const flow = begin(url, s.clientId, { more: { scope: 'mcp api' } });
  const { body } = await redeem(url, flow, await approve(s, flow));
  t.is(body.scope, 'mcp');
  t.is(payloadOf(body.access_token)['scope'], 'mcp');
  const api = await s.tab.follow(begin(url, s.clientId, { resource: `${url}/api` }).authorizeUrl);
  t.is(new URL(api.to ?? '').searchParams.get('error'), 'invalid_target');
  const cli = begin(url, 'portcullis-cli', { redirectUri: 'http://127.0.0.1:4711/callback' });
  t.is(new URL((await s.tab.follow(cli.authorizeUrl)).to ?? '').searchParams.get('error'), 'invalid_target');
});

test('the command line acts with the rights of its user at the REST API alone, and makes no tokens', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const redirectUri = 'http://127.0.0.1:4711/callback';
  const flow = begin(url, 'portcullis-cli', { redirectUri, resource: `${url}/api`, more: { scope: 'api' } });
  const { body } = await redeem(url, flow, await approve(s, flow));
  const token = body.access_token;
  await s.gateway.rest(200, 'GET', '/api/auth/me', { token });
  await s.gateway.rest(403, 'GET', '/api/users', { token });
  await s.gateway.rest(403, 'POST', '/api/auth/tokens', { token, body: { name: 'mine' } });
  t.is((await initialize(s.mcp, token)).status, 401);
  t.is((await initialize(`${url}/mcp`, token)).status, 401);
  const ofAdmin = openTab(url);
  await ofAdmin.signIn(s.admin);
  const adminFlow = begin(url, 'portcullis-cli', { redirectUri, resource: `${url}/api`, more: { scope: 'api' } });
  const { body: admins } = await redeem(url, adminFlow, await approve({ tab: ofAdmin }, adminFlow));
  const policy = { name: 'by the command line', resource_type: 'tool', effect: 'deny', priority: 1, subjects: [] };
  await s.gateway.rest(201, 'POST', '/api/policies', { token: admins.access_token, body: policy });
  const [grant] = await grantsOf(s, s.admin);
  await s.gateway.rest(204, 'DELETE', `/api/auth/grants/${grant?.id}`, { token: s.admin.token });
  await s.gateway.rest(401, 'POST', '/api/policies', { token: admins.access_token, body: policy });
});

test('whether a target exists shows in no answer of the authorization server', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const seen = async (name: string) => {
    const resource = `${url}/mcp/${name}`;
    const flow = begin(url, s.clientId, { resource });
    const page = await s.tab.follow(flow.authorizeUrl);
    const visit = await s.tab.answer(page);
    const { status, body } = await redeem(url, flow, codeOf(visit));
    const strip = (text: string) => text.replaceAll(name, 'NAME').replaceAll(/[A-Za-z0-9_-]{36,}/g, 'ID');
    const metadata = await fetch(`${url}/.well-known/oauth-protected-resource/mcp/${name}`);
    return {
      page: strip(page.text),
      status,
      keys: Object.keys(body).sort(),
      scope: body.scope,
      aud: strip(String(payloadOf(body.access_token)['aud'])),
      metadata: [metadata.status, strip(await metadata.text())],
    };
  };
  t.deepEqual(await seen('everything'), await seen('nothing-there'));
});

test('resources that are not endpoints of this gateway are refused', async (t) => {
  const s = await scene(t);
  await approve(s, s.flow);
  const { url } = s.gateway;
  for (const resource of [
    'https://evil.example/mcp',
    `${url}.evil.example/mcp`,
    `${url}/mcp/Everything`,
    `${url}/mcp/a/b`,
    `${url}/mcp/..%2fapi`,
    `${url}/mcp?x=1`,
    `${url}/mcp#x`,
    `${url}/api`,
    `${url}/other`,
    'mcp',
    `${url.replace('http:', 'https:')}/mcp`,
    `${url}/mcp/${'a'.repeat(600)}`,
  ]) {
    const visit = await s.tab.follow(begin(url, s.clientId, { resource }).authorizeUrl);
    t.is(new URL(visit.to ?? 'x:').searchParams.get('error'), 'invalid_target', resource);
  }
  // Other ways of writing an endpoint are the endpoint.
  for (const resource of [`${url}/mcp/everything/`, `${url.replace('http', 'HTTP')}/mcp/everything`]) {
    const flow = begin(url, s.clientId, { resource });
    const { body } = await redeem(url, flow, await approve(s, flow));
    t.is(payloadOf(body.access_token)['aud'], `${url}/mcp/everything`);
  }
});

test('an application that names more than 20 resources is refused, in a browser and at a device', async (t) => {
  const s = await scene(t);
  await approve(s, s.flow);
  const { url } = s.gateway;
  const grant_types = ['authorization_code', 'urn:ietf:params:oauth:grant-type:device_code'];
  const { body: device } = await register(url, { grant_types });
  const answers = async (count: number) => {
    const resources = Array.from({ length: count }, (_, index) => ['resource', `${url}/mcp/t${index}`] as [string, string]);
    const authorize = new URL(begin(url, s.clientId).authorizeUrl);
    authorize.searchParams.delete('resource');
    for (const [name, value] of resources) authorize.searchParams.append(name, value);
    const visit = await s.tab.follow(authorize.href);
    const body = new URLSearchParams([['client_id', device.client_id], ...resources]);
    const answer = await fetch(`${url}/oauth/device_authorization`, { method: 'POST', body });
    const { error = null } = (await answer.json()) as { readonly error?: string };
    return [new URL(visit.to ?? visit.url).searchParams.get('error'), error];
  };
  t.deepEqual(await answers(20), [null, null]);
  t.deepEqual(await answers(21), ['invalid_target', 'invalid_target']);
});

test('forged headers do not change the addresses that clients are told', async (t) => {
  const s = await scene(t);
  const headers = { 'x-forwarded-host': 'evil.example', 'x-forwarded-proto': 'https', forwarded: 'host=evil.example' };
  for (const path of [
    '/.well-known/oauth-authorization-server',
    '/.well-known/openid-configuration',
    '/.well-known/oauth-protected-resource/mcp/everything',
  ]) {
    t.false((await (await fetch(s.gateway.url + path, { headers })).text()).includes('evil.example'), path);
  }
  const begun = await s.tab.get(s.flow.authorizeUrl, headers);
  t.true(begun.to?.startsWith(`${s.gateway.url}/oauth/consent/`));
  const { body } = await form(s.gateway.url, '/oauth/device_authorization', { client_id: 'portcullis-cli' }, headers);
  t.is(body['verification_uri'], `${s.gateway.url}/oauth/device`);
});

test('confidential clients need their secret, and the database does not have it', async (t) => {
  const s = await scene(t);
  const { url } = s.gateway;
  const { body: client } = await register(url, { token_endpoint_auth_method: 'client_secret_post' });
  const secret = client.client_secret ?? '';
  t.true(secret.length > 40);
  const flow = begin(url, client.client_id);
  const code = await approve(s, flow);
  t.is((await redeem(url, flow, code)).status, 401);
  t.is((await redeem(url, flow, code, { client_secret: 'wrong' })).status, 401);
  const { status, body } = await redeem(url, flow, code, { client_secret: secret });
  t.is(status, 200);
  t.is((await refresh(url, client.client_id, body.refresh_token ?? '')).status, 401);
  t.is((await refresh(url, client.client_id, body.refresh_token ?? '', { client_secret: secret })).status, 200);
});

test('a disabled user gets no tokens, and the tokens in use end at once', async (t) => {
  const s = await scene(t);
  const { tokens, clientId } = await connected(s.gateway, s.user);
  const flow = begin(s.gateway.url, clientId);
  const code = await approve(s, flow);
  await s.gateway.rest(200, 'PUT', `/api/users/${s.user.id}`, { token: s.admin.token, body: { enabled: false } });
  t.is((await initialize(s.mcp, tokens.access_token)).status, 401);
  t.is((await redeem(s.gateway.url, flow, code)).status, 400);
  t.is((await refresh(s.gateway.url, clientId, tokens.refresh_token ?? '')).status, 400);
});

test('a client that revokes its refresh token ends its grant, and no other client can do that', async (t) => {
  const s = await scene(t);
  const { tokens, clientId } = await connected(s.gateway, s.user);
  const { url } = s.gateway;
  await form(url, '/oauth/revoke', { token: tokens.refresh_token ?? '', client_id: s.clientId });
  t.is((await initialize(s.mcp, tokens.access_token)).status, 200);
  t.is((await form(url, '/oauth/revoke', { token: tokens.refresh_token ?? '', client_id: clientId })).status, 200);
  t.is((await initialize(s.mcp, tokens.access_token)).status, 401);
  const { body: changes } = await s.gateway.rest<{ action: string; actor: { id: string } }[]>(200, 'GET', '/api/changes', {
    token: s.admin.token,
  });
  t.true(changes.some(({ action, actor }) => action === 'grant.end' && actor.id === s.user.id));
});

test('a revocation that fails can be repeated, and nobody blames the application for an outage', async (t) => {
  const gateway = await startGatewayWithDatabase(t);
  const { url, database } = gateway;
  const admin = await person(gateway, 'admin@example.com');
  const body = { name: 'everything', transport: 'streamable-http', url: 'http://127.0.0.1:9/mcp' };
  await gateway.rest(201, 'POST', '/api/targets', { token: admin.token, body });
  const { tokens, clientId, tab, flow } = await connected(gateway, admin);
  const revoke = () => form(url, '/oauth/revoke', { token: tokens.refresh_token ?? '', client_id: clientId });
  const grants = async () => (await gateway.rest<object[]>(200, 'GET', '/api/auth/grants', { token: admin.token })).body.length;

  await database.knex.schema.renameTable('grants', 'lost_grants');
  const failed = await revoke();
  t.is(failed.status, 500);
  t.deepEqual(failed.body, {
    error: 'server_error',
    error_description: 'The gateway failed. Its log has the details under this request_id.',
  });
  await database.knex.schema.renameTable('oauth_clients', 'lost_clients');
  const page = await tab.follow(flow.authorizeUrl);
  t.regex(page.text, /The gateway cannot answer at the moment/);
  t.notRegex(page.text, /tell its maker/);

  await database.knex.schema.renameTable('lost_clients', 'oauth_clients');
  await database.knex.schema.renameTable('lost_grants', 'grants');
  t.is(await grants(), 1);
  t.is((await revoke()).status, 200);
  t.is(await grants(), 0);
});

test('the library reads bodies in one chunk, so that chunks of one byte do not fill the memory', async (t) => {
  const { iterator } = IncomingMessage.prototype;
  let read = 0;
  IncomingMessage.prototype.iterator = function counted(options) {
    if (this.url?.startsWith('/oauth/') === true) read++;
    return iterator.call(this, options);
  };
  t.teardown(() => {
    IncomingMessage.prototype.iterator = iterator;
  });
  const answer = await fetch(`${shared.gateway.url}/oauth/token`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: ReadableStream.from([...'grant_type=authorization_code&code=x&client_id=nobody'].map((one) => Buffer.from(one))),
    duplex: 'half',
  } as RequestInit);
  t.like(await answer.json(), { error: 'invalid_client' });
  t.is(read, 0);
  const long = await fetch(`${shared.gateway.url}/oauth/token`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: 'x'.repeat(100_000),
  });
  t.like(await long.json(), { error: 'invalid_request' });
});

for (const [what, head, chunk] of [
  ['announced', 'content-length: 40000000', 'x'.repeat(100_000)],
  ['not announced', 'transfer-encoding: chunked', `186a0\r\n${'x'.repeat(100_000)}\r\n`],
] as const)
  test(`a body that is too large, ${what}, is refused late, and its connection ends`, async (t) => {
    const { host, hostname, port } = new URL(shared.gateway.url);
    const socket = connect(Number(port), hostname);
    t.teardown(() => void socket.destroy());
    socket.write(
      `POST /oauth/token HTTP/1.1\r\nhost: ${host}\r\ncontent-type: application/x-www-form-urlencoded\r\n${head}\r\n\r\n`,
    );
    socket.write(chunk);
    const began = performance.now();
    t.regex(await text(socket), /^HTTP\/1\.1 4\d\d .*invalid_request/s);
    t.true(performance.now() - began > 450);
  });

test('an address with very many parameters is refused before they are read', async (t) => {
  for (const path of ['authorize', 'authorize/x']) {
    const many = await fetch(`${shared.gateway.url}/oauth/${path}?${'a=&'.repeat(4_000)}`, { redirect: 'manual' });
    t.is(many.status, 400);
    t.regex(await many.text(), /at most 50 parameters/);
  }
});
