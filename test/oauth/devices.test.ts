/** Devices without a browser: the person enters a code on a page of the gateway. */
import test, { type ExecutionContext } from 'ava';
import { person } from '../support/gateway.ts';
import { type World, world } from '../support/world.ts';
import { form, initialize, openTab, payloadOf, register, type Tab, type Tokens, type Visit } from './support.ts';

const DEVICE = 'urn:ietf:params:oauth:grant-type:device_code';

interface Started {
  readonly device_code: string;
  readonly user_code: string;
  readonly verification_uri: string;
  readonly verification_uri_complete: string;
  readonly interval: number;
  readonly expires_in: number;
}

let ahead = 0;
const realNow = Date.now;
test.before(() => {
  // The gateway takes the clock when it starts.
  Date.now = () => realNow() + ahead;
});

async function scene(t: ExecutionContext) {
  const w = await world(t);
  await w.allow({ name: 'all' });
  const tab = openTab(w.gateway.url);
  await tab.signIn(w.user);
  const { body: client } = await register(w.gateway.url, { grant_types: ['authorization_code', 'refresh_token', DEVICE] });
  return { w, tab, clientId: client.client_id };
}

async function start({ gateway }: World, clientId: string, more: Record<string, string> = {}): Promise<Started> {
  const { status, body } = await form<Started>(gateway.url, '/oauth/device_authorization', { client_id: clientId, ...more });
  if (status !== 200) throw new Error(JSON.stringify(body));
  return body;
}

const poll = ({ gateway }: World, clientId: string, { device_code }: Started) =>
  form<Tokens & { error?: string }>(gateway.url, '/oauth/token', { grant_type: DEVICE, client_id: clientId, device_code });

async function answer(tab: Tab, who: { readonly id: string }, user_code: string, given: 'allow' | 'deny'): Promise<Visit> {
  const shown = await tab.post('/oauth/device', { user_code, answer: 'look' });
  if (shown.status !== 200) return shown;
  return tab.post('/oauth/device', { user: who.id, user_code, answer: given });
}

test.serial('a device gets tokens when its user has entered the code, and not before', async (t) => {
  const { w, tab, clientId } = await scene(t);
  const started = await start(w, clientId, { resource: `${w.gateway.url}/mcp/everything` });
  t.like(started, { interval: 5, expires_in: 600, verification_uri: `${w.gateway.url}/oauth/device` });
  t.regex(started.user_code, /^[B-DF-HJ-NP-TV-XZ]{4}-[B-DF-HJ-NP-TV-XZ]{4}$/);
  t.is((await poll(w, clientId, started)).body.error, 'authorization_pending');
  t.is((await poll(w, clientId, started)).body.error, 'slow_down');

  const form = await tab.get(started.verification_uri_complete.slice(w.gateway.url.length));
  t.true(form.text.includes(started.user_code));
  const shown = await tab.post('/oauth/device', { user_code: ` ${started.user_code.toLowerCase()} `, answer: 'look' });
  t.true(shown.text.includes(started.user_code));
  t.true(shown.text.includes('A client'));
  t.true(shown.text.includes('127.0.0.1'), 'where the device is');
  ahead += 5_000;
  t.is((await poll(w, clientId, started)).body.error, 'authorization_pending', 'looking allows nothing');
  t.is((await tab.post('/oauth/device', { user: w.user.id, user_code: started.user_code, answer: 'allow' })).status, 200);
  ahead += 5_000;
  const { status, body } = await poll(w, clientId, started);
  t.is(status, 200);
  t.like(payloadOf(body.access_token), { sub: w.user.id, aud: `${w.gateway.url}/mcp/everything`, scope: 'mcp' });
  t.is((await initialize(w.mcp, body.access_token)).status, 200);
  ahead += 5_000;
  const again = await poll(w, clientId, started);
  t.is(again.body.error, 'invalid_grant');
  t.is((await initialize(w.mcp, body.access_token)).status, 401, 'a device code that is used twice was stolen');
});

test.serial('the command line signs in with a device code, without naming resource or scope', async (t) => {
  const { w, tab } = await scene(t);
  const started = await start(w, 'portcullis-cli');
  t.is((await answer(tab, w.user, started.user_code, 'allow')).status, 200);
  const { body } = await poll(w, 'portcullis-cli', started);
  t.like(payloadOf(body.access_token), { aud: `${w.gateway.url}/api`, scope: 'api' });
  t.truthy(body.refresh_token);
  const { body: me } = await w.gateway.rest<{ id: string }>(200, 'GET', '/api/auth/me', { token: body.access_token });
  t.is(me.id, w.user.id);
});

test.serial('a link never fills in the code of the command line, so its user has to type it', async (t) => {
  const { w, tab, clientId } = await scene(t);
  const started = await start(w, 'portcullis-cli');
  t.false('verification_uri_complete' in started);
  // A link that the attacker has made.
  const form = await tab.get(`/oauth/device?user_code=${started.user_code}`);
  t.is(form.status, 200);
  t.false(form.text.includes(started.user_code));
  const stranger = openTab(w.gateway.url);
  const signIn = await stranger.follow(`/oauth/device?user_code=${started.user_code}`);
  const back = new URL(signIn.url).searchParams.get('return') ?? '';
  await stranger.signIn(w.user);
  t.false((await stranger.get(back)).text.includes(started.user_code));
  t.false((await tab.get('/oauth/device?user_code=BBBB-BBBB')).text.includes('BBBB-BBBB'));
  const ofApplication = await start(w, clientId);
  t.true((await tab.get(`/oauth/device?user_code=${ofApplication.user_code}`)).text.includes(ofApplication.user_code));

  // Without a recent sign-in, the code is typed again.
  ahead += 11 * 60_000;
  const later = await start(w, 'portcullis-cli');
  const again = await tab.post('/oauth/device', { user_code: later.user_code, answer: 'look' });
  t.is(new URL(again.to ?? '').searchParams.get('return'), '/oauth/device');
});

test.serial('links that other websites open do not use up the codes that a user may try', async (t) => {
  const { w, tab, clientId } = await scene(t);
  for (let i = 0; i < 12; i++) t.is((await tab.get('/oauth/device?user_code=BBBB-BBBB')).status, 200);
  const started = await start(w, clientId);
  t.false(
    (await tab.get(`/oauth/device?user_code=${started.user_code}`)).text.includes(started.user_code),
    'links have a limit, too',
  );
  t.is((await answer(tab, w.user, started.user_code, 'allow')).status, 200);
});

test.serial('registrations of strangers do not keep the command line from signing in', async (t) => {
  const w = await world(t, null, null, { CLIENT_REGISTRATION_RATE_LIMIT: '3' });
  for (const status of [201, 201, 201, 429]) t.is((await register(w.gateway.url)).status, status);
  await start(w, 'portcullis-cli');
});

test.serial('a refused code gives the device no access', async (t) => {
  const { w, tab, clientId } = await scene(t);
  const started = await start(w, clientId);
  t.is((await answer(tab, w.user, started.user_code, 'deny')).status, 200);
  t.is((await poll(w, clientId, started)).body.error, 'access_denied');
  t.is((await answer(tab, w.user, started.user_code, 'allow')).status, 400);
});

test.serial('codes cannot be guessed, forged from elsewhere, or answered twice', async (t) => {
  const { w, tab, clientId } = await scene(t);
  const started = await start(w, clientId);
  const other = await person(w.gateway, 'other@example.com');
  const thief = openTab(w.gateway.url);
  t.regex((await thief.post('/oauth/device', { user_code: started.user_code, answer: 'allow' })).to ?? '', /\/signin\?/);
  t.is(
    (await tab.post('/oauth/device', { user_code: started.user_code, answer: 'allow' }, { origin: 'https://evil.example' }))
      .status,
    403,
  );
  // The page that a different user saw does not answer for this one.
  const swapped = await tab.post('/oauth/device', { user: other.id, user_code: started.user_code, answer: 'allow' });
  t.true(swapped.text.includes('Allow this only'));
  t.is((await poll(w, clientId, started)).body.error, 'authorization_pending');

  await thief.signIn(other);
  const both = await Promise.all([
    tab.post('/oauth/device', { user: w.user.id, user_code: started.user_code, answer: 'allow' }),
    thief.post('/oauth/device', { user: other.id, user_code: started.user_code, answer: 'allow' }),
  ]);
  t.deepEqual(both.map(({ status }) => status).sort(), [200, 400]);

  const statuses = [];
  for (let at = 0; at < 12; at++)
    statuses.push((await thief.post('/oauth/device', { user_code: 'BBBB-BBBB', answer: 'look' })).status);
  t.deepEqual([statuses[0], statuses.at(-1)], [400, 429]);
  const late = await start(w, clientId);
  ahead += 601_000;
  await tab.signIn(w.user);
  t.is((await answer(tab, w.user, late.user_code, 'allow')).status, 400);
  t.is((await poll(w, clientId, late)).body.error, 'expired_token');
});

test.serial('a client that did not register for devices cannot use them', async (t) => {
  const { w } = await scene(t);
  const { body: client } = await register(w.gateway.url);
  const { status } = await form(w.gateway.url, '/oauth/device_authorization', { client_id: client.client_id });
  t.is(status, 400);
  const { status: other } = await form(w.gateway.url, '/oauth/device_authorization', {
    client_id: 'portcullis-cli',
    resource: `${w.gateway.url}/mcp`,
  });
  t.is(other, 400);
});
