/** From an empty gateway to a guarded call of a real client, in a real browser and without `curl`. */
import test, { type ExecutionContext } from 'ava';
import type { Page } from 'playwright-core';
import { browse } from '../browser/browser.ts';
import { browserTest } from '../support/chromium.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { startEverything } from '../support/upstreams/everything.ts';
import { assertAccessible } from './axe.ts';

const ADMIN = { email: 'first@example.com', password: 'a long passphrase' };

/** `hasScript` false: as it works without JavaScript, so axe cannot run. */
async function newcomer(
  t: ExecutionContext,
  page: Page,
  gateway: TestGateway,
  setupCode: string | null,
  target: string,
  hasScript: boolean,
): Promise<void> {
  const look = () => (hasScript ? assertAccessible(t, page, page.url()) : Promise.resolve());
  const complaints: string[] = [];
  page.on('console', (message) => {
    if (message.type() === 'error') complaints.push(`${page.url()}: ${message.text()}`);
  });
  const enter = (label: string | RegExp, text: string) => page.getByLabel(label).fill(text);
  const press = async (role: 'button' | 'link', name: string | RegExp) => {
    await page.getByRole(role, { name }).first().focus();
    await page.keyboard.press('Enter');
  };
  await page.goto(`${gateway.url}/console`);
  await page.waitForURL(/\/signin\/register/);
  await look();
  if (setupCode !== null) await enter('Setup code', setupCode);
  await enter('E-mail', ADMIN.email);
  await enter('Password', ADMIN.password);
  await press('button', 'Make the administrator');
  await page.waitForURL(/\/console\/overview/);
  await look();
  await press('link', 'Add a target');
  await page.waitForURL(/\/targets\/new$/);
  await look();
  await enter(/^Name/, 'everything');
  await enter(/^URL/, target);
  await press('button', 'Add the target');
  await page.waitForURL(/\/allow\?done=added$/);
  await look();
  await press('button', 'Try the target');
  await page.getByText('The target works').waitFor();
  await look();
  await page.getByLabel('Allow').selectOption('all');
  await page.getByLabel('For').selectOption('role');
  await enter('Role or group', 'admin');
  await press('button', 'Make the policy');
  await page.waitForURL(/\?done=allowed$/);
  t.true(await page.getByText('The policy is made.').isVisible());
  await look();

  await page.getByRole('main').getByRole('link', { name: 'Connect a client' }).click();
  await page.waitForURL(/\/console\/connect/);
  await look();
  const endpoint = `${gateway.url}/mcp/everything`;
  t.true((await page.content()).includes(endpoint));
  // Programs send a token.
  await press('link', 'Make one');
  await page.waitForURL(/\/console\/tokens$/);
  await look();
  await page.getByLabel('Name').fill('my program');
  await press('button', 'Make the token');
  await page.getByText('is made').waitFor();
  const token = await page.locator('code.secret').innerText();

  const client = await modernClient(t, endpoint, token);
  const { content } = await client.callTool({ name: 'echo', arguments: { message: 'hello' } });
  t.regex(JSON.stringify(content), /hello/);
  await t.throwsAsync(client.callTool({ name: 'no-such-tool', arguments: {} }), { message: /denied/ });
  await page.goto(`${gateway.url}/console/log`);
  t.true(await page.getByText('no-such-tool').isVisible());
  // For example of the content security policy.
  t.deepEqual(complaints, []);
}

for (const [how, hasScript] of [
  ['with the setup code', true],
  ['without JavaScript', false],
] as const) {
  browserTest(`a newcomer gets from an empty gateway to a guarded call by keyboard alone, ${how}`, async (t, open) => {
    const everything = await startEverything();
    t.teardown(() => everything.stop());
    const gateway = await startGateway(t, null, hasScript ? { TRUST_PROXY: 'true', FIRST_ADMIN: 'code' } : {});
    const setupCode = await gateway.gateway.setupCode();
    t.is(setupCode === null, !hasScript);
    const context = await open({ javaScriptEnabled: hasScript });
    await newcomer(t, await context.newPage(), gateway, setupCode, everything.url, hasScript);
  });
}

test.serial('the first administrator needs the setup code, and only one person becomes it', async (t) => {
  const gateway = await startGateway(t, null, { TRUST_PROXY: 'true', REGISTRATION: 'closed' });
  const code = (await gateway.gateway.setupCode()) ?? '';
  const browser = browse(gateway);
  t.is((await browser.get('/signin')).headers.location, '/signin/register?return=%2Faccount');
  t.regex((await browser.get('/signin/register')).text, /Make the first administrator.*name="code"/s);
  for (const wrong of ['', 'x', `${code}0`]) {
    const refused = await browser.post('/signin/register', { ...ADMIN, code: wrong });
    t.is(refused.status, 403);
    t.regex(refused.text, /setup code is missing or wrong/);
    t.false(refused.text.includes(ADMIN.password));
  }
  const short = await browser.post('/signin/register', { email: '"><script>', password: 'short', code });
  t.is(short.status, 400);
  t.notRegex(short.text, /<script/);
  const foreign: readonly Record<string, string | string[]>[] = [
    { origin: 'https://evil.example' },
    { 'sec-fetch-site': 'cross-site' },
    { origin: [] },
  ];
  for (const headers of foreign) t.is((await browser.post('/signin/register', { ...ADMIN, code }, headers)).status, 403);
  t.is(browser.cookie(), null);

  const rivals = Array.from({ length: 4 }, () => browse(gateway));
  const answers = await Promise.all(
    rivals.map((rival, at) => rival.post('/signin/register', { email: `${at}@example.com`, password: ADMIN.password, code })),
  );
  t.is(answers.filter(({ status }) => status === 303).length, 1);
  t.is(answers.filter(({ status }) => status === 403).length, 3);
  // Registration is closed now: the page leads to the sign-in.
  t.is((await browser.get('/signin/register')).headers.location, '/signin?return=%2Faccount');
  t.regex((await browser.get('/signin')).text, /Ask an administrator of this gateway/);
  t.is((await browser.post('/signin/register', { ...ADMIN, code })).status, 403);
});

test.serial('where everybody may register, a person makes an ordinary account in the browser', async (t) => {
  const gateway = await startGateway(t);
  const [admin, other] = [browse(gateway), browse(gateway)];
  t.is((await admin.post('/signin/register', ADMIN)).headers.location, '/account');
  t.regex((await other.get('/signin')).text, /href="\/signin\/register\?return=%2Faccount"/);
  t.is((await other.post('/signin/register', { ...ADMIN, email: 'FIRST@example.com' })).status, 409);
  const old = other.cookie();
  t.is(
    (await other.post('/signin/register', { ...ADMIN, email: 'b@example.com', return: '/console' })).headers.location,
    '/console',
  );
  t.not(other.cookie(), old);
  t.is((await other.get('/console')).headers.location, '/console/mine');
  t.is((await other.get('/console/targets/new')).status, 403);
  const refused = await other.post('/console/targets/new', {
    name: 'x',
    transport: 'streamable-http',
    url: 'http://127.0.0.1:9/mcp',
  });
  t.is(refused.status, 403);
  t.is((await other.get('/signin/register')).headers.location, '/account');
});
