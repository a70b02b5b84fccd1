/** Drafts: from a denied decision to a policy, and shadows. */
import test from 'ava';
import type { PolicyJson } from '../../src/policies/schema.ts';
import { browserTest } from '../support/chromium.ts';
import { person } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { HOSTILE, scene, testFile } from './scene.ts';
import { keyboard, start } from './start.ts';

interface Row {
  readonly id: string;
  readonly resource_name: string;
}

test.serial('a denied decision becomes a draft that allows exactly this request, and the draft becomes effective', async (t) => {
  const { gateway, admin, browser, mcp, token: callerToken } = await scene(t);
  const { token } = admin;
  const console_ = await browser(admin);
  const denied = async (name: string): Promise<Row> => {
    const { body } = await gateway.rest<Row[]>(200, 'GET', '/api/logs?effect=deny', { token });
    const found = body.find(({ resource_name }) => resource_name === name);
    if (found === undefined) throw new Error(`no denied decision about ${name}`);
    return found;
  };
  const client = await modernClient(t, mcp, callerToken);
  await t.throwsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }));
  const { id } = await denied('get-sum');

  t.regex((await console_.get('/console/drafts')).text, /There is no draft/);
  t.regex((await console_.get('/console/log?effect=deny')).text, new RegExp(`action="/console/log/${id}"><button`));
  const made = await console_.post(`/console/log/${id}`, { do: 'draft' });
  const at = `/console/drafts/decision-${id}`;
  t.is(made.headers.location, `${at}?done=saved`, made.text);
  const page = await console_.get(at);
  t.regex(page.text, /Looser: some requests will be allowed.*For example .*<code>get-sum<\/code>/s);
  t.regex(page.text, /1 would be allowed now/);
  t.regex((await console_.get('/console/drafts')).text, new RegExp(`href="${at}"`));
  await t.throwsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }), undefined, 'a draft decides nothing');

  t.is((await console_.post(at, { do: 'begin' })).headers.location, `${at}?done=begun`);
  t.regex((await console_.get(at)).text, /<h2 id="shadow">.*End the shadow|End the shadow.*<h2 id="shadow">/s);
  t.is((await console_.post(at, { do: 'end' })).headers.location, `${at}?done=ended`);
  t.is((await console_.post(at, { do: 'end' })).status, 404);

  const [, etag = ''] = /name="etag" value="([^"]*)"/.exec(page.text) ?? [];
  const [expected = '', targets = ''] = ['expected', 'targets'].map(
    (field) => new RegExp(`name="${field}" value="([^"]*)"`).exec(page.text)?.[1] ?? '',
  );
  const form = { do: 'activate', etag: etag.replaceAll('&#34;', '"'), expected, targets, reason: 'asked for' };
  t.is((await console_.post(at, { ...form, etag: '"old"' })).status, 412);
  t.is((await console_.post(at, { ...form, expected: '' })).status, 412);
  t.is((await console_.post(at, { ...form, expected: 'x' })).status, 400);
  t.is((await console_.post(at, { ...form, targets: '' })).status, 400);
  const other = await console_.post(at, { ...form, targets: '0123456789abcdef' });
  t.is(other.status, 412);
  t.regex(other.text, /no longer mean the same targets/);
  t.is((await console_.post(at, { ...form, do: 'explode' })).status, 400);
  t.is((await console_.post(at, form)).headers.location, '/console/drafts?done=effective');
  await t.notThrowsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }));
  t.is((await console_.get(at)).status, 404);
  const now = await console_.post(`/console/log/${id}`, { do: 'draft' });
  t.is(now.status, 400);
  t.regex(now.text, /current policies allow the request already/);

  // A policy denies this one.
  const env = await denied('get-env');
  const refused = await console_.post(`/console/log/${env.id}`, { do: 'draft' });
  t.is(refused.status, 400);
  t.regex(refused.text, /A policy denies it.*No environment/);
  t.is((await console_.post(`/console/log/${env.id}`, { do: 'draft', over: 'yes', for: 'role' })).status, 303);
  const over = `/console/drafts/decision-${env.id}`;
  t.regex((await console_.post(over, { do: 'delete' })).text, /Delete the draft/);
  t.is((await console_.post(over, { do: 'delete', sure: 'yes' })).headers.location, '/console/drafts?done=deleted');
});

test.serial('pages of drafts show hostile texts and drafts that fit no longer, and refuse strangers', async (t) => {
  const { gateway, admin, browser } = await scene(t);
  const { token } = admin;
  const console_ = await browser(admin);
  const text = JSON.stringify({
    name: HOSTILE,
    target: 'everything',
    resource_type: 'tool',
    resource_pattern: '^x$',
    effect: 'allow',
    priority: 1,
    subjects: ['everyone'],
  });
  const files = { 'a.yaml': text };
  await gateway.rest(201, 'PUT', '/api/policies/drafts/odd', { token, body: { files } });
  const at = '/console/drafts/odd';
  const page = await console_.get(at);
  t.is(page.status, 200, page.text);
  t.notRegex(page.text, /<img|<script>/);
  t.notRegex(page.text, /expectations/);
  for (const [effect, said] of [
    ['allow', /All 1 expectations hold with this change/],
    ['deny', /1 of 1 expectations do not hold with this change.*expected deny/s],
  ] as const) {
    await gateway.rest(200, 'PUT', '/api/policies/drafts/odd', {
      token,
      body: { files, tests: { 't.yaml': testFile('x', effect) } },
    });
    t.regex((await console_.get(at)).text, said);
  }
  const { body: targets } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/targets', { token });
  await gateway.rest(200, 'PUT', `/api/targets/${targets[0]?.id}`, { token, body: { name: 'renamed' } });
  const broken = await console_.get(at);
  t.is(broken.status, 200);
  t.regex(broken.text, /cannot be applied to the current policies.*no target has this name/s);
  t.notRegex(broken.text, /Make it effective/);
  for (const name of ['none', '..%2f', HOSTILE, 'A'])
    t.is((await console_.get(`/console/drafts/${encodeURIComponent(name)}`)).status, 404);
  const plain = await browser(await person(gateway, 'plain@example.com'));
  t.is((await plain.get('/console/drafts')).status, 403);
  t.is((await plain.post(at, { do: 'delete', sure: 'yes' })).status, 403);
  t.is((await console_.post(at, { do: 'delete', sure: 'yes' }, { origin: 'https://evil.example' })).status, 403);
  await gateway.rest(200, 'GET', '/api/policies/drafts/odd', { token });
});

browserTest(
  'a denied row of the audit log becomes an effective policy, by keyboard alone and without JavaScript',
  async (t, open) => {
    const { gateway, admin, mcp, token: callerToken } = await scene(t);
    const client = await modernClient(t, mcp, callerToken);
    await t.throwsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }));
    const page = await start(t, await open({ javaScriptEnabled: false }), gateway.url, admin);
    const { press } = keyboard(page);
    await press('link', 'Audit log');
    await page.waitForURL(/\/log$/);
    await press('button', /^Draft a policy/);
    await page.waitForURL(/drafts\/decision-.*done=saved/);
    await page.getByText('Looser: some requests will be allowed').waitFor();
    await press('button', 'Start a shadow');
    await page.waitForURL(/done=begun/);
    await press('button', 'Make it effective');
    await page.waitForURL(/drafts\?done=effective/);
    await t.notThrowsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }));
    const { body } = await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token: admin.token });
    t.is(body.length, 5);
  },
);
