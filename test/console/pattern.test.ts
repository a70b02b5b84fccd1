/** A pattern tried against the names that targets really have. */
import test, { type ExecutionContext } from 'ava';
import { browse, signIn } from '../browser/browser.ts';
import { browserTest } from '../support/chromium.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { world } from '../support/world.ts';
import { assertAccessible } from './axe.ts';
import { HOSTILE } from './scene.ts';
import { start } from './start.ts';

const SERVER = { protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: HOSTILE, version: HOSTILE } };
const TOOLS = ['get-sum', 'get-env', 'Echo', HOSTILE];
const FORM = { name: '', effect: 'allow', resource_type: 'tool', priority: '', subjects: '', do: 'try' };

interface Catalogue {
  readonly names: readonly { readonly resource_name: string; readonly matches: boolean | null }[];
  readonly names_count: number;
}

/** A target whose tools have hostile names and descriptions. */
async function hostile(t: ExecutionContext) {
  const inputSchema = { type: 'object' };
  const tools = TOOLS.map((name) => ({ name, title: HOSTILE, description: HOSTILE, inputSchema }));
  const upstream = await startRecording(byMethod({ initialize: () => SERVER, 'tools/list': () => ({ tools }) }));
  t.teardown(() => upstream.stop());
  const w = await world(t, null, upstream.url);
  const check = () => w.gateway.rest(200, 'POST', `/api/targets/${w.target.id}/check`, { token: w.admin.token });
  return { ...w, check };
}

test.serial('the catalogue of a target says which names a pattern matches, as the engine reads it', async (t) => {
  const { gateway, admin, target, check } = await hostile(t);
  await check();
  const { token } = admin;
  const ask = async (query: Record<string, string>, status = 200) =>
    (await gateway.rest<Catalogue>(status, 'GET', `/api/targets/${target.id}/catalogue?${new URLSearchParams(query)}`, { token }))
      .body;
  const matching = async (resource_pattern: string) =>
    (await ask({ resource_pattern })).names.flatMap(({ resource_name, matches }) => (matches ? [resource_name] : []));

  t.deepEqual([...new Set((await ask({})).names.map(({ matches }) => matches))], [null]);
  t.deepEqual(await matching('^get-'), ['get-env', 'get-sum']);
  t.deepEqual(await matching('^get-(sum|x)$'), ['get-sum']);
  t.deepEqual(await matching('(?i)^echo$'), ['Echo']);
  // JavaScript would refuse this group.
  t.deepEqual(await matching('^(?P<verb>get)-e'), ['get-env']);
  t.deepEqual(await matching('<script>'), [HOSTILE]);
  t.deepEqual(await matching('^none$'), []);
  const { names, names_count } = await ask({ text: 'ECHO' });
  t.deepEqual(
    names.map(({ resource_name }) => resource_name),
    ['Echo'],
  );
  t.is(names_count, 1);
  const first = await ask({ limit: '2' });
  t.deepEqual(first.names, (await ask({})).names.slice(0, 2));
  t.is(first.names_count, (await ask({})).names.length);
  for (const limit of ['0', '-1', 'x', '10000']) await ask({ limit }, 400);
  t.deepEqual(await ask({ resource_type: 'prompt', resource_pattern: 'x' }).then(({ names }) => names), []);
  for (const resource_pattern of ['(', '', 'x'.repeat(513), '\\pL', '(?=a)', 'a[ab]{50}c'])
    t.regex(JSON.stringify(await ask({ resource_pattern }, 400)), /"path":"resource_pattern"/, resource_pattern);
  await ask({ resource_type: 'all' }, 400);
  await ask({ pattern: 'x' }, 400);
});

test.serial('the editor tries a pattern as a form and as YAML, says what is wrong, and saves nothing', async (t) => {
  const { gateway, admin, user, target, check } = await hostile(t);
  const console_ = browse(gateway);
  await signIn(console_, admin);
  const tried = (more: Record<string, string>) =>
    console_.post('/console/policies/new', { ...FORM, target_id: target.id, ...more });
  const none = await tried({ resource_pattern: '^get-' });
  t.is(none.status, 200);
  t.regex(none.text, /has listed no such name/);

  await check();
  const some = await tried({ resource_pattern: '^get-' });
  t.regex(some.text, /everything: 2 of 4 match.*<code>get-env<\/code>.*2 that it does not match.*<code>Echo<\/code>/s);
  t.regex(some.text, /id="f-resource_pattern"[^>]*value="\^get-"/);
  t.notRegex(some.text, /<img|<script>/);
  t.regex((await tried({ target_id: '', resource_pattern: '' })).text, /everything: 4 of 4 match/);
  t.regex((await tried({ resource_pattern: '^none$' })).text, /It matches no name.*<details open>/s);
  t.regex((await tried({ resource_type: 'prompt' })).text, /has listed no such name/);

  const wrong = await tried({ resource_pattern: '(' });
  t.is(wrong.status, 400);
  t.regex(wrong.text, /href="#f-resource_pattern"/);
  for (const target_id of ['../keys', '00000000-0000-4000-8000-000000000000'])
    t.regex((await tried({ target_id })).text, /href="#f-target_id"/);
  t.is((await tried({ resource_type: 'x' })).status, 400);

  const yaml = (pattern: string) =>
    `name: y\ntarget: everything\nresource_type: all\nresource_pattern: ${pattern}\neffect: deny\npriority: 1\nsubjects: []\n`;
  t.regex((await tried({ yaml: yaml('sum') })).text, /everything: 1 of 4 match/);
  t.regex((await tried({ yaml: yaml('"("') })).text, /Nothing was saved|resource_pattern/);

  const body = { name: 'mine', resource_type: 'tool', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  const { body: policy } = await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', { token: admin.token, body });
  const edited = await console_.post(`/console/policies/${policy.id}/edit`, { ...FORM, target_id: '', resource_pattern: 'Echo' });
  t.regex(edited.text, /everything: 1 of 4 match/);
  const { body: policies } = await gateway.rest<{ resource_pattern: string | null }[]>(200, 'GET', '/api/policies', {
    token: admin.token,
  });
  t.deepEqual(
    policies.map(({ resource_pattern }) => resource_pattern),
    [null],
  );
  const plain = browse(gateway);
  await signIn(plain, user);
  t.is((await plain.post('/console/policies/new', { ...FORM, target_id: target.id })).status, 403);
});

browserTest('a pattern is tried by keyboard alone and without JavaScript', async (t, open) => {
  const { gateway, admin, check } = await hostile(t);
  await check();
  const page = await (await open({ javaScriptEnabled: false })).newPage();
  await page.goto(`${gateway.url}/console/policies/new`);
  await page.getByLabel('E-mail').fill(admin.email);
  await page.getByLabel('Password').fill(admin.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.waitForURL(/\/policies\/new$/);
  await page.getByLabel('Pattern', { exact: true }).focus();
  await page.keyboard.type('^get-sum$');
  await page.getByRole('button', { name: 'Try the pattern' }).focus();
  await page.keyboard.press('Enter');
  await page.getByText('everything: 1 of 4 match').waitFor();
  t.is(await page.getByLabel('Pattern', { exact: true }).inputValue(), '^get-sum$');
});

browserTest('the form shows what its pattern matches while the user types', async (t, open) => {
  const { gateway, admin, check } = await hostile(t);
  await check();
  const page = await start(t, await open(), gateway.url, admin);
  await page.goto(`${gateway.url}/console/policies/new`);
  await page.getByLabel('Pattern', { exact: true }).focus();
  await page.keyboard.type('^get-');
  await page.getByRole('heading', { name: 'everything: 2 of 4 match' }).waitFor();
  t.is(await page.locator('pattern-try [role=status]').innerText(), 'everything: 2 of 4 match');
  await page.keyboard.type('(');
  await page
    .locator('pattern-try div')
    .getByText(/^The pattern .*\.$/)
    .waitFor();
  t.is(await page.getByRole('heading', { name: 'everything: 2 of 4 match' }).count(), 0);
  await page.keyboard.press('Backspace');
  await page.getByRole('heading', { name: 'everything: 2 of 4 match' }).waitFor();
  await page.getByLabel('Covers').selectOption('prompt');
  await page.getByText('has listed no such name').first().waitFor();
  await page.getByLabel('Covers').selectOption('tool');
  await page.getByRole('heading', { name: 'everything: 2 of 4 match' }).waitFor();
  t.true((await page.locator('pattern-try').textContent())?.includes(HOSTILE));
  await assertAccessible(t, page, 'the form with a tried pattern');
  // What the button shows takes its place.
  await page.getByRole('button', { name: 'Try the pattern' }).click();
  await page.getByLabel('Pattern', { exact: true }).focus();
  await page.keyboard.press('End');
  await page.keyboard.type('s');
  await page.getByRole('heading', { name: 'everything: 1 of 4 match' }).waitFor();
  t.is(await page.locator('section[aria-labelledby=matches]').count(), 1);
});
