/** The pages that change users, rights, tokens and sign-ins. */
import test from 'ava';
import { browse, signIn } from '../browser/browser.ts';
import { browserTest } from '../support/chromium.ts';
import { apiToken, person } from '../support/gateway.ts';
import { assertAccessible } from './axe.ts';
import { HOSTILE, scene } from './scene.ts';

const PASSWORD = 'a long passphrase';

test.serial(
  'an administrator adds a user, changes role and groups, and disables the user after seeing what is lost',
  async (t) => {
    const { gateway, admin, browser } = await scene(t);
    const { token } = admin;
    const console_ = await browser(admin);
    const wrong = await console_.post('/console/users/new', { email: HOSTILE, password: 'short', role: '', groups: '' });
    t.is(wrong.status, 400);
    t.notRegex(wrong.text, /<img|<script>|value="short"/);
    t.regex(wrong.text, /href="#f-email".*href="#f-password".*href="#f-role"/s);
    const made = await console_.post('/console/users/new', {
      email: 'new@example.com',
      password: PASSWORD,
      role: 'dev',
      groups: 'one\r\ntwo\r\n',
    });
    const [, id = ''] = /^\/console\/users\/([0-9a-f-]{36})\?done=added$/.exec(made.headers.location ?? '') ?? [];
    const at = `/console/users/${id}`;
    const user = async () => (await gateway.rest<Record<string, unknown>>(200, 'GET', `/api/users/${id}`, { token })).body;
    t.like(await user(), { email: 'new@example.com', role: 'dev', groups: ['one', 'two'], enabled: true });

    const theirs = browse(gateway);
    await signIn(theirs, { email: 'new@example.com', password: PASSWORD });
    const etag = async (): Promise<string> =>
      /name="etag" value="([^"]*)"/.exec((await console_.get(`${at}/edit`)).text)?.[1]?.replaceAll('&#34;', '"') ?? '';
    const old = await etag();
    t.is((await console_.post(`${at}/edit`, { role: 'ops', groups: HOSTILE, etag: old })).headers.location, `${at}?done=saved`);
    t.like(await user(), { role: 'ops', groups: [HOSTILE] });
    t.is((await console_.post(`${at}/edit`, { role: 'x', groups: '', etag: old })).status, 412);
    t.is((await console_.post(`${at}/edit`, { role: '', groups: '', etag: await etag() })).status, 400);
    t.notRegex((await console_.get(`${at}/edit`)).text, /<img|<script>/);

    const asked = await console_.post(at, { do: 'disable' });
    t.is(asked.status, 200);
    t.regex(asked.text, /Disable new@example\.com\?.*can no longer use everything.*Disable user new@example\.com/s);
    t.is((await user())['enabled'], true);
    t.is((await theirs.get('/account')).status, 200);
    t.is((await console_.post(at, { do: 'disable', sure: 'yes', reason: 'left' })).headers.location, `${at}?done=disabled`);
    t.is((await user())['enabled'], false);
    t.is((await theirs.get('/account')).status, 303);
    t.is((await console_.post(at, { do: 'enable' })).headers.location, `${at}?done=enabled`);
    // The last administrator cannot be lost by accident.
    t.is((await console_.post(`/console/users/${admin.id}`, { do: 'disable', sure: 'yes' })).status, 409);
  },
);

test.serial('an administrator ends the tokens and sign-ins of a user, and gives and takes a right', async (t) => {
  const { gateway, admin, user, browser } = await scene(t);
  const console_ = await browser(admin);
  const theirs = await browser(user);
  const { id, token } = await apiToken(gateway, user, HOSTILE);
  const at = `/console/users/${user.id}/tokens`;
  const page = await console_.get(at);
  t.notRegex(page.text, /<img|<script>/);
  t.true(page.text.includes(id));
  t.false(page.text.includes(token));
  t.regex((await console_.post(at, { do: 'token', id })).text, /End the API token\?.*name="sure"/s);
  await gateway.rest(200, 'GET', '/api/auth/me', { token });
  t.is((await console_.post(at, { do: 'token', id, sure: 'yes' })).headers.location, `${at}?done=ended`);
  await gateway.rest(401, 'GET', '/api/auth/me', { token });
  t.is((await console_.post(at, { do: 'token', id: '../users', sure: 'yes' })).status, 400);
  const { body: sessions } = await gateway.rest<{ id: string }[]>(200, 'GET', `/api/auth/browser-sessions?user_id=${user.id}`, {
    token: admin.token,
  });
  t.is((await console_.post(at, { do: 'session', id: sessions[0]?.id ?? '', sure: 'yes' })).status, 303);
  t.is((await theirs.get('/account')).status, 303);

  const right = { do: 'give', right: 'targets:operate', subject_type: 'user', subject_value: user.id, owner: '' };
  t.is((await console_.post('/console/rights', { ...right, subject_value: '' })).status, 400);
  t.is((await console_.post('/console/rights', right)).headers.location, '/console/rights?done=given');
  const operator = await browser(user);
  t.is((await operator.get('/console')).headers.location, '/console/targets');
  const { body: rights } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/rights', { token: admin.token });
  t.regex((await console_.post('/console/rights', { do: 'take', id: rights[0]?.id ?? '' })).text, /name="sure"/);
  t.is((await console_.post('/console/rights', { do: 'take', id: rights[0]?.id ?? '', sure: 'yes' })).status, 303);
  t.is((await operator.get('/console/targets')).status, 403);
});

test.serial('nobody changes a person without the right or from a different page', async (t) => {
  const { gateway, admin, user, browser } = await scene(t);
  const plain = await person(gateway, 'plain@example.com');
  const { id } = await apiToken(gateway, user);
  const forms: readonly (readonly [string, Record<string, string>])[] = [
    ['/console/users/new', { email: 'x@example.com', password: PASSWORD, role: 'admin', groups: '' }],
    [`/console/users/${user.id}`, { do: 'disable', sure: 'yes' }],
    [`/console/users/${plain.id}/edit`, { role: 'admin', groups: '' }],
    [`/console/users/${user.id}/tokens`, { do: 'token', id, sure: 'yes' }],
    ['/console/rights', { do: 'give', right: 'read', subject_type: 'user', subject_value: plain.id }],
    ['/console/clients', { do: 'delete', id, sure: 'yes' }],
  ];
  const [theirs, own] = [await browser(plain), await browser(admin)];
  const count = async () => (await gateway.rest<unknown[]>(200, 'GET', '/api/changes', { token: admin.token })).body.length;
  const before = await count();
  for (const [path, form] of forms) {
    const status = (await theirs.post(path, form)).status;
    t.true([403, 404].includes(status), `${path}: ${status}`);
    t.is((await own.post(path, form, { origin: gateway.url.replace(/\d+$/, '9791') })).status, 403, path);
    t.is((await own.post(path, form, { 'sec-fetch-site': [] })).status, 403, path);
  }
  t.is(await count(), before);
  for (const path of ['users/new', `users/${user.id}/edit`, `users/${user.id}/tokens`, 'rights', 'clients'])
    t.is((await theirs.get(`/console/${path}`)).status, 403, path);
});

browserTest('axe-core finds nothing on a refused form and on the page before something is lost', async (t, open) => {
  const { gateway, admin, user } = await scene(t);
  const page = await (await open()).newPage();
  const complaints: string[] = [];
  page.on('console', (message) => {
    if (message.type() === 'error') complaints.push(`${page.url()}: ${message.text()}`);
  });
  await page.goto(`${gateway.url}/console/users/new`);
  await page.getByLabel('E-mail').fill(admin.email);
  await page.getByLabel('Password').fill(admin.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.waitForURL(/users\/new$/);
  const look = (name: string): Promise<void> => assertAccessible(t, page, name);
  // A refusal, and the page before something is destroyed.
  await page.goto(`${gateway.url}/console/users/${user.id}/edit`);
  await page.getByLabel('Role').fill('');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('alert').waitFor();
  await look('a refused form');
  await page.goto(`${gateway.url}/console/users/${user.id}`);
  await page.getByRole('button', { name: 'Disable' }).click();
  await page.getByRole('heading', { name: /^Disable/ }).waitFor();
  await look('a confirmation');
  t.deepEqual(
    complaints.filter((text) => !/status of 400/.test(text)),
    [],
  );
});
