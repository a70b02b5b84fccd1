/** The console in a real browser: the way through its pages. */
import { browserTest } from '../support/chromium.ts';
import { assertAccessible } from './axe.ts';
import { scene } from './scene.ts';
import { keyboard, start } from './start.ts';

browserTest(
  'a reviewer goes from a policy to its decisions and to the reason of one, by keyboard alone and without JavaScript',
  async (t, open) => {
    const { gateway, admin } = await scene(t);
    const page = await start(t, await open({ javaScriptEnabled: false }), gateway.url, admin);
    const press = async (name: string | RegExp): Promise<void> => {
      const link = page.getByRole('link', { name }).first();
      await link.focus();
      const href = await link.getAttribute('href');
      await page.keyboard.press('Enter');
      await page.waitForURL(gateway.url + href);
    };
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    t.true(page.url().endsWith('#main'), 'the first key leads past the menu');
    await press('Policies');
    await page.getByLabel('Effect').focus();
    await page.getByLabel('Effect').selectOption('deny');
    await page.getByLabel('Name, pattern or id').focus();
    await page.keyboard.type('environment');
    await page.keyboard.press('Enter');
    await page.waitForURL(/effect=deny/);
    await press(/^No environment$/);
    t.is(await page.getByRole('heading', { level: 1 }).innerText(), 'No environment');
    await press('Its decisions');
    await press(/^\d{4}-/);
    t.is(await page.getByRole('heading', { level: 1 }).innerText(), 'Why was this denied?');
    t.true(await page.getByText('It matches, so it decides.').isVisible());
    await press('Audit log');
    t.is(await page.title(), 'Audit log · Portcullis');
  },
);

browserTest(
  'an administrator sees what a policy changes, makes it, and deletes it, by keyboard alone and without JavaScript',
  async (t, open) => {
    const { gateway, admin } = await scene(t);
    const page = await start(t, await open({ javaScriptEnabled: false }), gateway.url, admin);
    const { press, enter } = keyboard(page);
    await press('link', 'Policies');
    await page.waitForURL(/\/console\/policies$/);
    await press('link', 'New policy');
    await page.waitForURL(/policies\/new$/);
    await enter('Name', 'Sums for all');
    await enter('Pattern', '(');
    await enter('Applies to', 'everyone');
    await press('button', 'Show what this changes');
    await page.getByText('Nothing was saved').waitFor();
    await page.getByRole('link', { name: /^Pattern/ }).click();
    t.true(page.url().endsWith('#f-resource_pattern'));
    await enter('Pattern', '^get-sum$');
    await press('button', 'Show what this changes');
    await page.getByText('Looser: some requests will be allowed').waitFor();
    await press('button', 'Save');
    await page.waitForURL(/\?done=made$/);
    t.is(await page.getByRole('heading', { level: 1 }).innerText(), 'Sums for all');
    await press('link', 'Delete');
    await page.getByText('Stricter: some requests will be denied').waitFor();
    await enter('Reason', 'no longer needed');
    await press('button', 'Delete policy Sums for all');
    await page.waitForURL(/\?done=deleted$/);
    t.is(await page.getByText('Sums for all').count(), 0);
  },
);

for (const javaScriptEnabled of [true, false]) {
  browserTest(
    `on a phone, the menu is closed until its button opens it, ${javaScriptEnabled ? 'with' : 'without'} JavaScript`,
    async (t, open) => {
      const { gateway, admin } = await scene(t);
      const context = await open({ javaScriptEnabled, viewport: { width: 320, height: 640 } });
      const page = await start(t, context, gateway.url, admin);
      const { press } = keyboard(page);
      const audit = page.getByRole('navigation').getByRole('link', { name: 'Audit log' });
      t.true(((await page.getByRole('heading', { level: 1 }).boundingBox())?.y ?? 640) < 160, 'the page begins at its top');
      t.is(await audit.count(), 0);
      await press('button', 'Menu');
      await audit.waitFor();
      if (javaScriptEnabled) await assertAccessible(t, page, 'the open menu');
      await page.keyboard.press('Escape');
      await audit.waitFor({ state: 'hidden' });
      await press('button', 'Menu');
      await page.keyboard.press('Tab');
      t.is(await page.locator(':focus').innerText(), 'Overview');
      await audit.focus();
      await page.keyboard.press('Enter');
      await page.waitForURL(/\/console\/log$/);
      await press('button', 'Menu');
      t.true(await page.getByRole('button', { name: 'Sign out' }).isVisible());
    },
  );
}
