/** The console in a real browser: the way through its pages, accessibility, and the content security policy. */
import { file } from '../policies/sets.ts';
import { browserTest } from '../support/chromium.ts';
import { person } from '../support/gateway.ts';
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

// Two halves, because ava ends a run in which no test ends for two minutes.
for (const half of [0, 1]) {
  browserTest(
    `axe-core finds nothing on any page, half ${half + 1}, light and dark, at 1440, 768 and 320 px, and no page is wider`,
    async (t, open) => {
      const { gateway, admin, user, target } = await scene(t);
      const { token } = admin;
      const [policy] = (await gateway.rest<{ id: string }[]>(200, 'GET', '/api/policies', { token })).body;
      const [decision] = (await gateway.rest<{ id: string }[]>(200, 'GET', '/api/logs', { token })).body;
      await person(gateway, 'somebody.with.a.very.long.address.that.has.no.spaces.at.all@example.com');
      const files = { 'sums.yaml': file({ name: 'All sums', resource_pattern: '^get-sum$' }) };
      await gateway.rest(201, 'PUT', '/api/policies/drafts/sums', { token, body: { files } });
      await gateway.rest(201, 'PUT', '/api/policies/drafts/sums/shadow', { token });
      // Pages show the analysis once it is made.
      await gateway.rest(200, 'GET', '/api/policies/lint?kept=yes', { token });
      const page = await start(t, await open(), gateway.url, admin);
      const paths = [
        ...[
          'policies',
          `policies/${policy?.id}`,
          'policies?text=nothing',
          'policies/no-id',
          'policies/new',
          'policies/new?as=yaml',
          'targets',
          `targets/${target.id}`,
          `targets/${target.id}/settings`,
          'sessions',
        ],
        ...[
          'users',
          `users/${user.id}`,
          'access',
          'access?compare=0',
          'access?who=everyone',
          'access/why?who=everyone&target=everything',
          'mine',
          'mine/everything',
          'connect',
        ],
        ...[`policies/${policy?.id}/edit`, `policies/${policy?.id}/delete`, `policies/${policy?.id}/move?position=2`],
        ...[
          'overview',
          'overview?range=month',
          'search?q=e',
          'findings',
          'log',
          `log/${decision?.id}`,
          'changes',
          'replicas',
          'history',
          'history/1',
          'history/1/rollback',
          'history/compare?from=0&to=1',
          'proved',
          'drafts',
          'drafts/sums',
        ],
      ];
      for (const path of paths.filter((_, at) => at % 2 === half)) {
        await page.goto(`${gateway.url}/console/${path}`);
        // The fonts have loaded: the content security policy allows them.
        t.true(
          await page.evaluate<boolean>(`document.fonts.ready.then(() => document.fonts.check('12px "IBM Plex Sans"'))`),
          path,
        );
        await assertAccessible(t, page, path);
      }
    },
  );
}
