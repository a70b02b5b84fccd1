/** What scripts add to the pages: the log that follows, the search while typing; and how a reader wants pages to look. */
import test, { type ExecutionContext } from 'ava';
import type { Page } from 'playwright-core';
import { browserTest, type Open } from '../support/chromium.ts';
import { modernClient } from '../support/mcp.ts';
import { HOSTILE, scene } from './scene.ts';

type Scene = Awaited<ReturnType<typeof scene>>;

async function signedIn(
  t: ExecutionContext,
  open: Open,
  { gateway, admin }: Scene,
  options: Parameters<Open>[0] = {},
): Promise<Page> {
  const page = await (await open(options)).newPage();
  page.on('console', (message) => {
    if (message.type() === 'error') t.fail(`${page.url()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => t.fail(String(error)));
  await page.goto(`${gateway.url}/console`);
  await page.getByLabel('E-mail').fill(admin.email);
  await page.getByLabel('Password').fill(admin.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.waitForURL(`${gateway.url}/console/overview`);
  return page;
}

browserTest('the log follows new decisions, with the texts of strangers as texts, and stops', async (t, open) => {
  const w = await scene(t);
  const page = await signedIn(t, open, w);
  await page.goto(`${w.gateway.url}/console/log?resource_type=tool`);
  const rows = page.locator('#decisions tbody tr');
  const before = await rows.count();
  const live = page.getByRole('button', { name: 'Live' });
  await live.focus();
  await page.keyboard.press('Enter');
  t.is(await live.getAttribute('aria-pressed'), 'true');
  const client = await modernClient(t, w.mcp, w.token);
  const name = `new ${HOSTILE}`;
  await t.throwsAsync(client.callTool({ name, arguments: {} }));
  await page.locator('#decisions tbody code', { hasText: name }).waitFor();
  t.is(await rows.count(), before + 1);
  t.is(await rows.first().locator('code').innerText(), name, 'the newest is at the top');
  await page.getByText('1 new decision.').waitFor();
  await page.keyboard.press('Enter');
  t.is(await live.getAttribute('aria-pressed'), 'false');
  // A page of the past does not follow.
  await page.goto(`${w.gateway.url}/console/log?to=2126-01-31T12:00Z`);
  t.is(await page.getByRole('button', { name: 'Live' }).count(), 0);
});

browserTest('a log that follows ends with the session', async (t, open) => {
  const w = await scene(t);
  const page = await signedIn(t, open, w);
  await page.goto(`${w.gateway.url}/console/log`);
  await page.getByRole('button', { name: 'Live' }).click();
  const [session] = (await w.gateway.rest<{ id: string }[]>(200, 'GET', '/api/auth/browser-sessions', { token: w.admin.token }))
    .body;
  await w.gateway.rest(204, 'DELETE', `/api/auth/browser-sessions/${session?.id}`, { token: w.admin.token });
  await page.getByText('You are signed out.').waitFor();
});

browserTest(
  'a slash leads to the search, which finds pages, users and tools while typing, by keyboard alone',
  async (t, open) => {
    const w = await scene(t);
    const client = await modernClient(t, w.mcp, w.token);
    await client.listTools();
    const page = await signedIn(t, open, w);
    await page.keyboard.press('/');
    const found = page.locator('search-box .found');
    const type = async (text: string): Promise<void> => {
      await page.keyboard.press('ControlOrMeta+a');
      await page.keyboard.type(text);
    };
    await type('get-sum');
    await found.getByText('tool of everything').waitFor();
    await type(HOSTILE);
    await found.getByText('Sums ').waitFor();
    await type('user@ex');
    await found.getByRole('link', { name: 'user@example.com' }).waitFor();
    await page.keyboard.press('Escape');
    t.false(await found.isVisible());
    await page.keyboard.press('ControlOrMeta+k');
    await type('replic');
    await found.getByRole('link', { name: 'Replicas' }).waitFor();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Enter');
    await page.waitForURL(/console\/replicas$/);
  },
);

browserTest('without JavaScript the search is a page, and nothing that needs a script is shown', async (t, open) => {
  const w = await scene(t);
  const page = await signedIn(t, open, w, { javaScriptEnabled: false });
  await page.getByLabel('Search').fill('replicas');
  await page.keyboard.press('Enter');
  await page.getByRole('main').getByRole('link', { name: 'Replicas' }).click();
  await page.goto(`${w.gateway.url}/console/log`);
  t.false(await page.getByText('Live', { exact: true }).isVisible());
});

browserTest('times are in the zone of the reader, and light or dark stays as it was chosen', async (t, open) => {
  const w = await scene(t);
  const page = await signedIn(t, open, w, { timezoneId: 'Asia/Kolkata', colorScheme: 'light' });
  await page.goto(`${w.gateway.url}/console/log`);
  const time = page.locator('#decisions tbody time').first();
  const iso = (await time.getAttribute('datetime')) ?? '';
  const there = new Date(Date.parse(iso) + 5.5 * 60 * 60_000).toISOString();
  t.is(await time.innerText(), `${there.slice(0, 10)} ${there.slice(11, 23)} GMT+5:30`);
  const paper = () => page.evaluate<string>('getComputedStyle(document.body).backgroundColor');
  const light = await paper();
  await page.getByRole('button', { name: 'Dark' }).click();
  await page.waitForURL(/console\/log$/);
  const dark = await paper();
  t.not(dark, light);
  await page.goto(`${w.gateway.url}/account`);
  t.is(await paper(), dark);
  await page.goto(`${w.gateway.url}/console/log`);
  await page.getByRole('button', { name: 'System' }).click();
  await page.waitForURL(/console\/log$/);
  t.is(await paper(), light);
});

browserTest('decisions keep their outlines in forced colours, and nothing moves', async (t, open) => {
  const w = await scene(t);
  const page = await signedIn(t, open, w, { forcedColors: 'active' });
  await page.goto(`${w.gateway.url}/console/log`);
  const widths = await page.evaluate<string[]>(
    `[...document.querySelectorAll('.fx, .btn:not(.plain)')].map((each) => getComputedStyle(each).borderTopWidth)`,
  );
  t.true(widths.length > 3 && widths.every((width) => Number.parseFloat(width) >= 1));
  const moving = await page.evaluate<number>(
    `[...document.querySelectorAll('*')].filter((each) => { const { transitionDuration, animationName } = getComputedStyle(each); return animationName !== 'none' || transitionDuration !== '0s'; }).length`,
  );
  t.is(moving, 0);
});

test.serial('a cookie with a wrong zone or theme changes nothing, and a theme is taken from the own pages only', async (t) => {
  const w = await scene(t);
  const reader = await w.browser(w.admin);
  const own = `__Host-portcullis=${reader.cookie()}`;
  for (const cookie of [
    'portcullis-zone=No/Where',
    'portcullis-zone="><script>',
    'portcullis-theme="><script>',
    'portcullis-zone=',
  ]) {
    const page = await reader.get('/console/log', { cookie: `${own}; ${cookie}` });
    t.is(page.status, 200, cookie);
    t.regex(page.text, / UTC<\/time>/);
    t.regex(page.text, /data-theme=""/);
    t.notRegex(page.text, /"><script>/);
  }
  t.is((await reader.post('/console/theme', { theme: 'dark' }, { origin: 'http://127.0.0.1:9' })).status, 403);
  const set = await reader.post('/console/theme', { theme: 'dark', return: '//evil.example' });
  t.is(set.headers['location'], '/account');
  t.regex(String(set.headers['set-cookie']), /portcullis-theme=dark;.*Secure; HttpOnly/);
  t.regex(
    String((await reader.post('/console/theme', { theme: HOSTILE })).headers['set-cookie']),
    /portcullis-theme=; Max-Age=0/,
  );
});

test.serial('pieces of pages need the rights of their pages', async (t) => {
  const w = await scene(t);
  const [all, none] = [await w.browser(w.admin), await w.browser(w.user)];
  t.is((await none.get('/console/log/rows')).status, 403);
  t.is((await all.get('/console/log/rows?from=yesterday')).status, 400);
  const rows = await all.get('/console/log/rows');
  t.is(rows.status, 200);
  t.notRegex(rows.text, /<img|<script>|<html/);
  t.notRegex((await none.get('/console/search/found?q=example.com')).text, /console\/users/);
  t.regex((await all.get('/console/search/found?q=USER%40example')).text, new RegExp(`users/${w.user.id}`));
});
