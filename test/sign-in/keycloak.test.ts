/**
 * A real Keycloak as the company's provider, as docs/providers.md sets it up. It comes from Maven, so this runs only with
 * `PORTCULLIS_TEST_KEYCLOAK=true`, as the step `keycloak` of `npm run test:long`.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import test, { type ExecutionContext } from 'ava';
import type { Page } from 'playwright-core';
import { sdkProvider } from '../oauth/support.ts';
import { browserTest } from '../support/chromium.ts';
import { person, rest, startGateway } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { type World, world } from '../support/world.ts';
import { ALICE, AUDIENCE, type Keycloak, SECRET, startKeycloak } from './keycloak.ts';
import { approve } from './scene.ts';

const isWanted = process.env['PORTCULLIS_TEST_KEYCLOAK'] === 'true';
/** The gateway reads the keys again at most every ten seconds. */
const KEYS_WITHIN_MS = 20_000;

interface User {
  readonly id: string;
  readonly issuer: string;
  readonly email: string | null;
  readonly role: string;
  readonly groups: readonly string[];
}

let w: World;
let keycloak: Keycloak;
let providerId: string;
const ended: (() => unknown)[] = [];

if (isWanted) {
  test.before(async (t) => {
    t.timeout(1_200_000);
    const ofFile = { teardown: (end: () => unknown) => void ended.unshift(end) };
    w = await world(ofFile as ExecutionContext);
    await w.allow({ name: 'operators', subjects: [{ subject_type: 'role', subject_value: 'operator' }] });
    keycloak = await startKeycloak(ofFile, `${w.gateway.url}/signin/with/company/callback`);
    const made = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
      token: w.admin.token,
      body: registration(),
    });
    providerId = made.body.id;
  });
  test.after.always(async () => {
    for (const end of ended) await end();
  });
} else {
  test.skip('a real Keycloak (npm run test:long -- --only=keycloak)', () => undefined);
}

const registration = (): object => ({
  ...{ name: 'company', title: 'The Company', preset: 'keycloak', issuer: keycloak.issuer },
  ...{ client_id: 'portcullis', client_secret: SECRET, tokens: { audiences: [AUDIENCE] } },
  ...{ rules: [{ if_group: '/platform', role: 'operator' }], default_role: null },
});
const keycloakTest: typeof browserTest = isWanted ? browserTest : () => undefined;
const asAdmin = <T>(expected: number, method: string, path: string, body?: object) =>
  w.gateway.rest<T>(expected, method, path, { token: w.admin.token, ...(body === undefined ? {} : { body }) });

async function signIn(page: Page): Promise<void> {
  await page.getByRole('link', { name: 'Sign in with The Company' }).click();
  await page.locator('#username').fill(ALICE.username);
  await page.locator('#password').fill(ALICE.password);
  await page.locator('#kc-login').click();
}

const ofRobot = async (): Promise<string> => (await keycloak.token('robot', { grant_type: 'client_credentials' })).access_token;
const ofAlice = (): ReturnType<Keycloak['token']> =>
  keycloak.token('robot', { grant_type: 'password', scope: 'openid', username: ALICE.username, password: ALICE.password });

async function mayCall(token: string): Promise<boolean> {
  try {
    const headers = { 'mcp-session-id': await openSession(w.mcp, token) };
    return (await post(w.mcp, token, call('echo', { message: 'x' }), headers)).message?.result !== undefined;
  } catch {
    return false;
  }
}

async function moveAlice(from: string | null, to: string | null): Promise<void> {
  const [user] = await keycloak.admin<{ id: string }[]>('GET', `/users?username=${ALICE.username}`);
  const groups = await keycloak.admin<{ id: string; name: string }[]>('GET', '/groups');
  const path = (name: string): string => `/users/${user?.id}/groups/${groups.find((group) => group.name === name)?.id}`;
  if (from !== null) await keycloak.admin('DELETE', path(from));
  if (to !== null) await keycloak.admin('PUT', path(to));
}

const me = (token: string) => rest<User & { readonly detail: string }>(w.gateway.url, 'GET', '/api/auth/me', { token });

interface Health {
  readonly status: string;
  readonly failure: { readonly message: string } | null;
  readonly faults: readonly { readonly kind: string; readonly message: string }[];
}
const health = async (): Promise<Health> => (await asAdmin<Health>(200, 'GET', `/api/providers/${providerId}/health`)).body;

keycloakTest('a person signs in at Keycloak, and the SDK calls with the role of their group', async (t, open) => {
  t.timeout(180_000);
  const program = createServer((_req, res) => res.end('Back at the program'));
  await new Promise<void>((resolve) => program.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    program.closeAllConnections();
    program.close();
  });
  const { provider, kept } = sdkProvider(`http://127.0.0.1:${(program.address() as AddressInfo).port}/callback`);
  const transport = () => new StreamableHTTPClientTransport(new URL(w.mcp), { authProvider: provider as never });
  const first = transport();
  await t.throwsAsync(new Client({ name: 'sdk', version: '1' }).connect(first), { instanceOf: UnauthorizedError });
  const returned = new Promise<string>((resolve) => program.once('request', ({ url = '' }) => resolve(url)));
  await approve(open, String(kept['url']), { signIn });
  const { searchParams } = new URL(await returned, 'http://127.0.0.1');
  await first.finishAuth(searchParams.get('code') ?? '');
  const client = new Client({ name: 'sdk', version: '1' });
  await client.connect(transport());
  t.teardown(() => client.close());
  t.like(await client.callTool({ name: 'echo', arguments: { message: 'x' } }), { content: [{ text: 'Echo: x' }] });
  const { body: users } = await asAdmin<User[]>(200, 'GET', '/api/users');
  const alice = users.find(({ email }) => email === ALICE.email);
  t.like(alice, { issuer: keycloak.issuer, role: 'operator' });
  t.deepEqual(alice?.groups, ['/platform']);

  // The password grant of a program leads to the same user.
  const { access_token } = await ofAlice();
  t.is((await me(access_token)).body.id, alice?.id ?? '');

  // No rule names the other group. The next newer token takes the role from all tokens of the user.
  await sleep(1_100);
  await moveAlice('platform', 'staff');
  const demoted = await me((await ofAlice()).access_token);
  t.is(demoted.status, 401);
  t.regex(demoted.body.detail, /no role here/);
  t.false(await mayCall(access_token), 'an older token, too');
  await t.throwsAsync(client.callTool({ name: 'echo', arguments: { message: 'x' } }), undefined, 'and tokens of the gateway');

  // Keycloak leaves the claim out for a user in no group.
  await moveAlice('staff', null);
  const outside = await me((await ofAlice()).access_token);
  t.is(outside.status, 401);
  t.regex(outside.body.detail, /does not contain your groups/);
  await asAdmin(200, 'PUT', `/api/providers/${providerId}`, { groups_required: false });
  t.regex((await me((await ofAlice()).access_token)).body.detail, /no role here/);
  await asAdmin(200, 'PUT', `/api/providers/${providerId}`, { groups_required: true });
  await sleep(1_100);
  await moveAlice(null, 'platform');
  t.is((await me((await ofAlice()).access_token)).status, 200);
});

keycloakTest('a program calls with its own token, and a token for a different service is refused with the reason', async (t) => {
  const token = await ofRobot();
  t.true(await mayCall(token));
  t.like((await me(token)).body, { issuer: keycloak.issuer, role: 'operator' });
  const { access_token } = await keycloak.token('elsewhere', { grant_type: 'client_credentials' });
  t.is((await post(w.mcp, access_token, call('echo'))).status, 401);
  const fault = (await health()).faults.find(({ kind }) => kind === 'token_audience');
  t.regex(fault?.message ?? '', new RegExp(AUDIENCE));
});

keycloakTest('keys are rotated: new tokens count, old ones until their key is withdrawn', async (t) => {
  t.timeout(120_000);
  const old = await ofRobot();
  t.true(await mayCall(old));
  const { id: parentId } = await keycloak.admin<{ id: string }>('GET', '');
  const type = 'org.keycloak.keys.KeyProvider';
  const before = await keycloak.admin<{ id: string; providerId: string }[]>('GET', `/components?type=${type}`);
  await keycloak.admin('POST', '/components', {
    ...{ name: 'newer', providerId: 'rsa-generated', providerType: type, parentId },
    config: { priority: ['500'], enabled: ['true'], active: ['true'], algorithm: ['RS256'], keySize: ['2048'] },
  });
  const renewed = await ofRobot();
  const kidOf = (token: string): string =>
    (JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString()) as { kid: string }).kid;
  t.not(kidOf(renewed), kidOf(old));
  const began = performance.now();
  while (!(await mayCall(renewed)) && performance.now() - began < KEYS_WITHIN_MS) await sleep(500);
  t.log(`the new key counts after ${((performance.now() - began) / 1_000).toFixed(1)} s`);
  t.true(await mayCall(renewed));
  t.true(await mayCall(old), 'both keys count');
  for (const { id, providerId: kind } of before) {
    if (kind === 'rsa-generated') await keycloak.admin('DELETE', `/components/${id}`);
  }
  await asAdmin(200, 'POST', `/api/providers/${providerId}/probe`);
  t.false(await mayCall(old), 'a withdrawn key counts no more');
  t.true(await mayCall(renewed));
});

keycloakTest('who is disabled at Keycloak gets no new token, and an administrator ends the others', async (t, open) => {
  t.timeout(120_000);
  const { access_token: token } = await ofAlice();
  t.true(await mayCall(token));
  const [user] = await keycloak.admin<{ id: string }[]>('GET', `/users?username=${ALICE.username}`);
  await keycloak.admin('PUT', `/users/${user?.id}`, { enabled: false });
  t.is((await ofAlice()).status, 400);
  const page = await (await open()).newPage();
  await page.goto(`${w.gateway.url}/account`);
  await signIn(page);
  await page.getByText('Account is disabled').waitFor();
  // What Keycloak has signed counts until it expires: the gateway cannot know. An administrator ends it at once.
  t.true(await mayCall(token));
  const { id } = (await me(token)).body;
  await asAdmin(200, 'POST', `/api/users/${id}/end-tokens`);
  t.false(await mayCall(token));
  await keycloak.admin('PUT', `/users/${user?.id}`, { enabled: true });
});

keycloakTest('while Keycloak is stopped, known keys count, and pages and health say what to do', async (t, open) => {
  t.timeout(120_000);
  const token = await ofRobot();
  t.true(await mayCall(token));
  await keycloak.stop();
  t.true(await mayCall(token), 'for outage_minutes');
  // A gateway that has read the metadata sends the browser on. One that has not says so itself.
  const fresh = await startGateway(t);
  const { token: admin } = await person(fresh, 'admin@example.com');
  await fresh.rest(201, 'POST', '/api/providers', { token: admin, body: registration() });
  const page = await (await open()).newPage();
  await page.goto(`${fresh.url}/account`);
  await page.getByRole('link', { name: 'Sign in with The Company' }).click();
  const text = ((await page.textContent('body')) ?? '').replaceAll(/\s+/g, ' ');
  t.regex(text, /The provider cannot be reached at the moment. Try again later. You came from The Company./);
  const probe = await asAdmin<Health>(200, 'POST', `/api/providers/${providerId}/probe`);
  t.is(probe.body.status, 'failing');
  t.regex(probe.body.failure?.message ?? '', /openid-configuration cannot be reached: connect ECONNREFUSED/);
  t.like((await health()).failure, { message: probe.body.failure?.message });
});
