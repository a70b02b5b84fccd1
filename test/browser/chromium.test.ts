/** The pages in a real browser. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';
import type { Page } from 'playwright-core';
import { COOKIE } from '../../src/browser/sessions.ts';
import { browserTest } from '../support/chromium.ts';
import { type Person, person, startGateway } from '../support/gateway.ts';

/** Fails the test at the end if the browser has complained, for example about a blocked style sheet. */
function watch(t: ExecutionContext, page: Page): void {
  page.on('console', (message) => {
    // A refused sign-in has an error status, which Chromium reports.
    if (message.type() === 'error' && !/status of 40[03]/.test(message.text())) t.fail(message.text());
  });
  page.on('pageerror', (error) => t.fail(String(error)));
}

async function fillIn(page: Page, { email, password }: Pick<Person, 'email' | 'password'>): Promise<void> {
  await page.getByLabel('E-mail').fill(email);
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

/** A page of a different origin, such as that of a local MCP server. `body` may name the origin of the gateway. */
async function hostile(t: ExecutionContext, body: string): Promise<string> {
  const server = createServer((_req, res) => res.setHeader('Content-Type', 'text/html').end(body));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}

for (const javaScriptEnabled of [true, false]) {
  browserTest(
    `a user signs in, makes a token, ends a session and signs out ${javaScriptEnabled ? 'with' : 'without'} JavaScript`,
    async (t, open) => {
      const gateway = await startGateway(t);
      const ann = await person(gateway, 'ann@example.com');
      const context = await open({ javaScriptEnabled });
      const page = await context.newPage();
      watch(t, page);

      // The address of the gateway has one name: the cookie and the forms belong to it.
      await page.goto(`${gateway.url.replace('127.0.0.1', 'localhost')}/account`);
      t.is(page.url(), `${gateway.url}/signin?return=%2Faccount`);
      await fillIn(page, { email: ann.email, password: 'not the password' });
      t.true(await page.getByRole('alert').getByText('The e-mail or the password is wrong.').isVisible());
      t.is(await page.getByLabel('E-mail').inputValue(), ann.email);
      await fillIn(page, ann);
      t.is(page.url(), `${gateway.url}/account`);
      const [cookie] = await context.cookies();
      t.like(cookie, { name: COOKIE, httpOnly: true, secure: true, sameSite: 'Lax', path: '/', domain: '127.0.0.1' });
      // The style sheet has loaded: the policy allows it.
      const corner = "getComputedStyle(document.querySelector('.table')).borderRadius";
      t.is(await page.evaluate(corner), '6px');

      await page.getByRole('link', { name: 'Your API tokens' }).click();
      await page.waitForURL(/\/console\/tokens$/);
      await page.getByLabel('Name').fill('laptop');
      await page.getByRole('button', { name: 'Make the token' }).click();
      const token = await page.locator('code.secret').innerText();
      await gateway.rest(200, 'GET', '/api/auth/me', { token });
      await page.goto(`${gateway.url}/console/tokens`);
      await page.getByRole('button', { name: 'Revoke token laptop' }).click();
      await page.getByText('It cannot be brought back').waitFor();
      await page.getByRole('button', { name: 'Revoke token laptop' }).click();
      await page.getByRole('status').getByText('The token is revoked.').waitFor();
      await page.goto(`${gateway.url}/account`);

      const second = await (await open({ javaScriptEnabled })).newPage();
      await second.goto(`${gateway.url}/signin`);
      await fillIn(second, ann);
      await page.reload();
      await page.getByRole('button', { name: 'End the session of' }).click();
      t.true(await page.getByText('The session is ended.').isVisible());
      await second.reload();
      t.regex(second.url(), /\/signin\?/);

      await page.getByRole('button', { name: 'Sign out' }).click();
      t.true(await page.getByText('You are signed out.').isVisible());
      // The console keeps the time zone.
      t.false((await context.cookies()).some(({ name }) => name === COOKIE));
      await page.goBack();
      t.regex(page.url(), /\/signin/);
    },
  );
}

browserTest(
  'a page of a different port can neither send forms as the user, nor sign anybody in, nor frame a page',
  async (t, open) => {
    const gateway = await startGateway(t);
    const ann = await person(gateway, 'ann@example.com');
    const mallory = await person(gateway, 'mallory@example.com');
    const page = await (await open()).newPage();
    await page.goto(`${gateway.url}/signin`);
    await fillIn(page, ann);

    const form = (action: string, fields: string) =>
      `<form method="post" action="${gateway.url}${action}">${fields}<button>Go</button></form>`;
    const login = `<input name="email" value="${mallory.email}"><input name="password" value="${mallory.password}">`;
    const attacks = [
      form('/account/sign-out', ''),
      form('/console/tokens', '<input name="do" value="make"><input name="name" value="stolen">'),
      form('/signin', login),
    ];
    for (const attack of attacks) {
      // A browser sends the cookie along: SameSite does not separate ports.
      const sent = page.waitForRequest((request) => request.method() === 'POST');
      await page.goto(await hostile(t, attack));
      await page.getByRole('button').click();
      t.true((await (await sent).allHeaders())['cookie']?.includes(COOKIE), attack);
      t.true(await page.getByText('The Origin header is not allowed').isVisible(), attack);
    }
    await page.goto(`${gateway.url}/account`);
    t.true(await page.getByText('ann@example.com').first().isVisible());
    t.is(await page.getByText('stolen').count(), 0);

    await page.goto(await hostile(t, `<iframe src="${gateway.url}/account"></iframe>`));
    const [, frame] = page.frames();
    await frame?.waitForLoadState();
    t.is(await frame?.getByText('ann@example.com').count(), 0);
  },
);
