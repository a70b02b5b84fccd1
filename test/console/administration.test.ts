/** What administrators and reviewers do most seldom, in a real browser, by keyboard alone and without JavaScript. */
import type { Page } from 'playwright-core';
import { browserTest } from '../support/chromium.ts';
import { person } from '../support/gateway.ts';
import { scene } from './scene.ts';
import { keyboard, start } from './start.ts';

const wait = (page: Page, text: string | RegExp): Promise<void> => page.getByText(text).first().waitFor();

browserTest('an administrator changes a target, its credential, a user, a right and the key', async (t, open) => {
  const { gateway, admin, target } = await scene(t);
  const other = await person(gateway, 'other@example.com');
  const page = await start(t, await open({ javaScriptEnabled: false }), gateway.url, admin);
  const { press, enter } = keyboard(page);

  await press('link', 'Targets');
  await press('link', 'everything');
  await page.waitForURL(new RegExp(`/console/targets/${target.id}$`));
  await press('link', 'Edit');
  await enter('Description', 'Tries everything');
  await press('button', 'Save');
  await wait(page, 'Tries everything');
  await press('button', 'Disable');
  await page.waitForURL(/done=disabled$/);
  await press('button', 'Enable');
  await page.waitForURL(/done=enabled$/);
  await press('link', 'Change credentials');
  await enter('Value', 'the secret of the target');
  await press('button', 'Set the credential');
  await wait(page, 'usable');
  t.notRegex(await page.content(), /the secret of the target/);

  await press('link', 'Users');
  await press('link', other.email);
  await press('link', 'Edit role and groups');
  await enter('Role', 'analyst');
  await enter('Groups', 'team');
  await press('button', 'Save');
  await page.waitForURL(/done=/);
  await wait(page, 'analyst');
  await press('button', 'Disable');
  await wait(page, /\?$/);
  await press('button', /^Disable/);
  await page.waitForURL(/done=/);
  await gateway.rest(401, 'GET', '/api/auth/me', { token: other.token });

  await press('link', 'Rights');
  await enter('Who', other.email);
  await press('button', 'Give the right');
  await page.waitForURL(/done=given$/);
  await press('button', /^Take away/);
  await wait(page, /\?$/);
  await press('button', /^Take away/);
  await page.waitForURL(/done=/);
  t.deepEqual((await gateway.rest(200, 'GET', '/api/rights', { token: admin.token })).body, []);

  await press('link', 'Keys');
  await press('button', 'Make a new key');
  await wait(page, 'Make a new signing key?');
  await press('button', /^Make/);
  await wait(page, 'The new key signs');
});

browserTest(
  'a reviewer goes from the matrix to a reason, has a decision made again, and sees how to connect',
  async (t, open) => {
    const { gateway, admin, user } = await scene(t);
    const page = await start(t, await open({ javaScriptEnabled: false }), gateway.url, admin);
    const { press, enter } = keyboard(page);

    await press('link', 'Access');
    await wait(page, 'Each cell leads to its reason.');
    await press('link', 'Deny');
    await page.waitForURL(/access\/why\?/);
    await wait(page, 'No environment');
    await press('link', 'Access');
    await enter('Compare with revision', '0');
    await press('button', 'Show');
    await wait(page, /compared with the policies of revision 0/);
    await enter('user:<e-mail>, role:<name>, group:<name> or everyone', `user:${user.email}`);
    await page.keyboard.press('Enter');
    await page.waitForURL(/who=user/);
    await wait(page, 'Everyone may echo');

    await press('link', 'Audit log');
    await press('link', /^\d{4}-/);
    await press('link', 'Decide it again here');
    await wait(page, /the engine made the same decision/);
    const commands = page.locator('summary', { hasText: 'Decide it again on your machine' });
    await commands.focus();
    await page.keyboard.press('Enter');
    await wait(page, /opa eval -b/);

    await press('link', 'Connect a client');
    await page.locator('summary', { hasText: 'Claude Code' }).focus();
    await page.keyboard.press('Enter');
    await page.getByLabel('For Claude Code').waitFor();
    t.regex(await page.getByLabel('For Claude Code').innerText(), /\/mcp/);
    await press('link', 'Overview');
    await wait(page, 'Needs attention');
  },
);
