/** What holds for every page of the console. */
import { gzipSync } from 'node:zlib';
import test from 'ava';
import { STYLE_PATH } from '../../src/browser/style.ts';
import { consoleRoutes } from '../../src/console/routes.ts';
import { CONSOLE_SCRIPT_PATH, CONSOLE_STYLE_PATH } from '../../src/console/style.ts';
import { browserTest } from '../support/chromium.ts';
import { person } from '../support/gateway.ts';
import { assertAccessible } from './axe.ts';
import { pagesOf } from './pages.ts';
import { scene } from './scene.ts';
import { start } from './start.ts';

/** Pieces of pages and files, which scripts and links of other pages ask for. */
const NO_PAGES = ['/', '/log/export', '/log/rows', '/search/found', '/policy-pattern'];
const KILOBYTE = 1_000;

/** The paths that a browser may open, as the routes have them. */
function routes(): readonly string[] {
  const unused = async (): Promise<never> => Promise.reject(new Error('not called'));
  const { stack } = consoleRoutes({
    ...{ ask: unused, pass: unused, publicUrl: 'http://gateway.example' },
    sessions: { currentUser: unused },
  });
  return stack.flatMap(({ route }) => (route !== undefined && 'get' in routeMethods(route) ? [route.path] : []));
}

const routeMethods = (route: object): object => ('methods' in route ? (route.methods as object) : {});

test.serial('each route is one of these pages, and each page has at most 60 KB and no markup of strangers', async (t) => {
  const w = await scene(t);
  const paths = await pagesOf(w);
  const patterns = routes().filter((path) => !NO_PAGES.includes(path));
  for (const pattern of patterns) {
    const form = new RegExp(`^${pattern.replaceAll(/:\w+/g, '[^/?]+')}$`);
    t.true(
      paths.some((path) => form.test(`/${path.replace(/\?.*/, '')}`)),
      `no test looks at ${pattern}`,
    );
  }
  t.true(patterns.length > 40, String(patterns.length));
  const browser = await w.browser(w.admin);
  const sizeOf = (text: string): number => gzipSync(text).length;
  let shared = 0;
  for (const path of [STYLE_PATH, CONSOLE_STYLE_PATH, CONSOLE_SCRIPT_PATH]) shared += sizeOf((await browser.get(path)).text);
  for (const path of paths) {
    const { status, text } = await browser.get(`/console/${path}`);
    t.is(status, path === 'policies/no-id' ? 404 : 200, `${path}: ${text}`);
    t.notRegex(text, /<img|<script>/, path);
    t.true(shared + sizeOf(text) <= 60 * KILOBYTE, `${path}: ${shared + sizeOf(text)}`);
  }
});

test.serial('no page shows its content to a user without rights, and none at all to a stranger', async (t) => {
  const w = await scene(t);
  const paths = await pagesOf(w);
  const plain = await w.browser(await person(w.gateway, 'plain@example.com'));
  const open = /^(proved|search|access(\?|$)|mine$|connect|tokens|denied|overview|policies\/no-id)/;
  for (const path of paths) {
    const { status, text } = await plain.get(`/console/${path}`);
    if (path === 'mine/everything') t.is(status, 200);
    else if (!open.test(path)) t.true([403, 404].includes(status), `${path}: ${status}`);
    t.notRegex(text, /user@example\.com|somebody\.with/, path);
  }
  await plain.post('/account/sign-out');
  for (const path of paths) t.is((await plain.get(`/console/${path}`)).status, 303, path);
});

// Parts, because ava ends a run in which no test ends for two minutes.
const PARTS = 4;
for (let part = 0; part < PARTS; part++) {
  browserTest(
    `axe-core finds nothing on any page, part ${part + 1}, light and dark, at 1440, 768 and 320 px, and no page is wider`,
    async (t, open) => {
      const w = await scene(t);
      const page = await start(t, await open(), w.gateway.url, w.admin);
      const paths = await pagesOf(w);
      for (const path of paths.filter((_, at) => at % PARTS === part)) {
        await page.goto(`${w.gateway.url}/console/${path}`);
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
