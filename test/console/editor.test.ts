/** The editor of a policy as YAML, and drafts that it saves. */
import test from 'ava';
import { request } from 'undici';
import type { DraftJson } from '../../src/rest/policy-drafts/routes.ts';
import { browserTest } from '../support/chromium.ts';
import { assertAccessible } from './axe.ts';
import { HOSTILE, scene, testFile } from './scene.ts';
import { keyboard, start } from './start.ts';

const NEW = '/console/policies/new';
const SUMS =
  'name: Sums for all\nresource_type: tool\nresource_pattern: ^get-sum$\neffect: allow\npriority: 7\nsubjects:\n  - everyone\n';

/** The name of the draft to whose page the browser was sent. */
const draftIn = (location: unknown): string =>
  /^\/console\/drafts\/([a-z0-9._-]+)\?done=saved$/.exec(String(location))?.[1] ?? '';

test.serial('a change is saved as a draft with its tests, decides nothing, and becomes effective', async (t) => {
  const { gateway, admin, browser } = await scene(t);
  const { token } = admin;
  const console_ = await browser(admin);
  const policies = async () =>
    (
      await gateway.rest<{ id: string; name: string; managed_as: string | null; priority: number }[]>(
        200,
        'GET',
        '/api/policies',
        { token },
      )
    ).body;
  const before = await policies();
  const draftOf = async (name: string) =>
    (await gateway.rest<DraftJson>(200, 'GET', `/api/policies/drafts/${name}`, { token })).body;
  const activate = (name: string) => gateway.rest(200, 'POST', `/api/policies/drafts/${name}/activate`, { token });

  const form = { yaml: SUMS, tests: testFile('get-sum', 'allow'), do: 'draft' };
  const made = draftIn((await console_.post(NEW, form)).headers.location);
  t.regex(made, /^sums-for-all-[0-9a-f]{8}$/);
  const again = draftIn((await console_.post(NEW, form)).headers.location);
  t.not(made, again, 'no draft takes the place of a different one');
  const { files, owner, adopt, prune, tests } = await draftOf(made);
  t.deepEqual(
    { files, owner, adopt, prune },
    { files: { [`${made}.yaml`]: SUMS }, owner: 'default', adopt: false, prune: false },
  );
  t.deepEqual(tests, { 'tests.yaml': testFile('get-sum', 'allow') });
  t.deepEqual(await policies(), before, 'a draft changes no policy');
  t.regex((await console_.get(`/console/drafts/${made}?done=saved`)).text, /The draft is saved.*All 1 expectations hold/s);
  await activate(made);
  const [sums] = (await policies()).filter(({ name }) => name === 'Sums for all');
  t.is(sums?.managed_as, `default/${made}`);

  // A policy of a file stays the policy of this file.
  const edited = draftIn(
    (await console_.post(`/console/policies/${sums?.id}/edit`, { ...form, yaml: SUMS.replace('7', '8') })).headers.location,
  );
  await activate(edited);
  t.deepEqual(
    (await policies())
      .filter(({ name }) => name === 'Sums for all')
      .map(({ id, managed_as, priority }) => ({ id, managed_as, priority })),
    [{ id: sums?.id ?? '', managed_as: `default/${made}`, priority: 8 }],
  );

  // A policy without a file keeps its id, too.
  const body = { name: 'Loose', resource_type: 'tool', effect: 'allow', priority: 3, subjects: [] };
  const loose = (await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', { token, body })).body;
  const yaml = 'name: Loose\nresource_type: tool\neffect: allow\npriority: 4\nsubjects: []\n';
  const adopting = draftIn((await console_.post(`/console/policies/${loose.id}/edit`, { yaml, do: 'draft' })).headers.location);
  await activate(adopting);
  t.like(
    (await policies()).find(({ id }) => id === loose.id),
    { priority: 4 },
  );
});

test.serial('a draft that cannot be one is refused, and what was entered stays', async (t) => {
  const { admin, user, browser, gateway } = await scene(t);
  const console_ = await browser(admin);
  const refused = async (form: Record<string, string>, said: RegExp) => {
    const { status, text } = await console_.post(NEW, { yaml: SUMS, do: 'draft', ...form });
    t.is(status, 400, text);
    t.regex(text, said);
    return text;
  };
  t.regex(
    await refused({ yaml: `name: ${HOSTILE}\neffect: maybe\n` }, /line 2, column 1: effect must be one of/),
    /&#60;img src=x/,
  );
  await refused({ yaml: SUMS.replace('^get-sum$', '(') }, /href="#f-yaml"/);
  await refused({ tests: 'tests: [' }, /href="#f-tests">Tests line 1/);
  await refused({ tests: testFile('get-sum', 'perhaps') }, /href="#f-tests">Tests line/);
  await refused({ do: 'publish' }, /is not a button of this page/);
  const drafts = await gateway.rest<unknown[]>(200, 'GET', '/api/policies/drafts', { token: admin.token });
  t.deepEqual(drafts.body, []);
  t.is((await (await browser(user)).post(NEW, { yaml: SUMS, do: 'draft' })).status, 403);
  const problems = /data-problems="([^"]*)"/.exec((await console_.post(NEW, { yaml: `${HOSTILE}: 1`, do: 'preview' })).text)?.[1];
  t.regex(problems ?? '', /&#60;img|line 1/);
});

browserTest('a policy is written as YAML in the code editor and saved as a draft, by keyboard alone', async (t, open) => {
  const { gateway, admin } = await scene(t);
  const page = await start(t, await open(), gateway.url, admin);
  await page.goto(`${gateway.url}${NEW}?as=yaml`);
  const editor = page.getByRole('textbox', { name: 'Policy as YAML' });
  t.is(await page.locator('code-editor .cm-content').count(), 1, 'the build makes the editor: npm run build');
  await editor.focus();
  await page.keyboard.press('ControlOrMeta+a');
  // It completes members and the words of each, and goes on with what is typed.
  const complete = async (name: string) => {
    const option = page.getByRole('option', { name });
    await option.waitFor();
    // For 75 ms, CodeMirror takes no word of a list that has just appeared: Enter begins a line. Nothing tells when they are over.
    await page.evaluate('new Promise((done) => setTimeout(done, 150))');
    await page.keyboard.press('Enter');
    await option.waitFor({ state: 'detached' });
  };
  await page.keyboard.type('name: Sums for all\nresource_type: to');
  await complete('tool');
  await page.keyboard.type('\nresource_pattern: ^get-sum$\neff');
  await complete('effect:');
  await page.keyboard.type(' maybe');
  await page.keyboard.press('Escape');
  await page.keyboard.type('\npriority: 7\nsubjects: [everyone]\n');
  // Tab leads out of the editor.
  await page.keyboard.press('Tab');
  t.is(await page.evaluate('document.activeElement.id'), 'f-tests');
  const { press } = keyboard(page);
  await press('button', 'Show what this changes');
  await page.getByText('Nothing was saved').waitFor();
  await page.locator('code-editor .cm-lintRange-error', { hasText: 'maybe' }).waitFor();
  await assertAccessible(t, page, 'the editor with an error');
  await page.getByRole('link', { name: /^Policy as YAML line 4/ }).focus();
  await page.keyboard.press('Enter');
  t.is(await page.evaluate('document.activeElement.shadowRoot?.activeElement?.role'), 'textbox', 'the link leads to the editor');
  await page.keyboard.press('ControlOrMeta+Home');
  for (let line = 1; line < 4; line++) await page.keyboard.press('ArrowDown');
  await page.keyboard.press('End');
  await page.keyboard.press('ControlOrMeta+Backspace');
  await page.keyboard.type('allow');
  await press('button', 'Show what this changes');
  await page.getByText('Looser: some requests will be allowed').waitFor();
  await press('button', 'Save as a draft');
  await page.waitForURL(/\/console\/drafts\/sums-for-all-[0-9a-f]{8}\?done=saved$/);
  await press('button', 'Start a shadow');
  await page.getByText('The shadow has begun').waitFor();
});

test.serial('browsers keep the scripts and style sheets of a page for good, and get them compressed', async (t) => {
  const { gateway, admin, browser } = await scene(t);
  const { text } = await (await browser(admin)).get(`${NEW}?as=yaml`);
  const paths = [...text.matchAll(/(?:src|href)="(\/console\/assets\/[^"]+\.(?:js|css))"/g)].map(([, path]) => String(path));
  t.true(paths.length >= 3, paths.join());
  for (const path of paths) {
    const plain = await request(`${gateway.url}${path}`);
    const zipped = await request(`${gateway.url}${path}`, { headers: { 'accept-encoding': 'br, gzip' } });
    t.is(plain.headers['content-encoding'], undefined);
    t.is(zipped.headers['content-encoding'], 'gzip');
    t.is(zipped.headers['vary'], 'Accept-Encoding');
    t.regex(String(zipped.headers['cache-control']), /immutable/);
    const [whole, small] = [await plain.body.arrayBuffer(), await zipped.body.arrayBuffer()];
    t.true(small.byteLength < whole.byteLength / 2, `${path}: ${small.byteLength} of ${whole.byteLength} bytes`);
  }
});
