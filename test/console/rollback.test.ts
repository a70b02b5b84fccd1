/** History: comparing revisions, and going back to one. */
import test from 'ava';
import type { PolicyJson } from '../../src/policies/schema.ts';
import { browserTest } from '../support/chromium.ts';
import { person } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { HOSTILE, scene, testFile } from './scene.ts';
import { keyboard, start } from './start.ts';

test.serial('a rollback does what its page showed, and nothing if the policies have changed since', async (t) => {
  const { gateway, admin, browser, mcp, token: caller } = await scene(t);
  const { token } = admin;
  const console_ = await browser(admin);
  const policies = async () => (await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token })).body;
  const before = await policies();
  const echo = before.find(({ name }) => name === 'Everyone may echo');
  await gateway.rest(204, 'DELETE', `/api/policies/${echo?.id}?override=true`, { token });

  const at = '/console/history/1/rollback';
  // The client may still use the target, and this call of echo is denied.
  const sum = { name: 'Sum', resource_type: 'tool', resource_pattern: '^get-sum$', effect: 'allow', priority: 1 };
  const { id: added } = (
    await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', {
      token,
      body: { ...sum, subjects: [{ subject_type: 'everyone' }] },
    })
  ).body;
  const client = await modernClient(t, mcp, caller);
  await t.throwsAsync(client.callTool({ name: 'echo', arguments: { message: 'x' } }));
  await gateway.rest(204, 'DELETE', `/api/policies/${added}`, { token });

  const page = await console_.get(at);
  t.regex(page.text, /Looser: some requests will be allowed.*Everyone may echo/s);
  t.regex(page.text, /decisions of the last 7 days were made again: [1-9] would be allowed now, 0 would be denied now/);
  t.regex(page.text, /Recent decisions: decisions that would change.*<code>echo<\/code>/s);
  const tested = async (expected: string, form: Record<string, string> = {}) => {
    return console_.post(at, { do: 'test', owner: '', expected: 'x', tests: testFile('echo', expected), ...form });
  };
  const good = await tested('allow', { reason: HOSTILE });
  t.is(good.status, 200, good.text);
  t.regex(good.text, /All 1 expectations hold with this change/);
  t.regex(good.text, /effect: allow/, 'the page keeps what was entered');
  t.notRegex(good.text, /<img|<script>/);
  t.regex((await tested('deny')).text, /1 of 1 expectations do not hold with this change/);
  t.regex((await tested('allow', { owner: 'nobody' })).text, /1 of 1 expectations do not hold/);
  const wrong = await tested('maybe');
  t.is(wrong.status, 400);
  t.regex(wrong.text, /href="#f-tests">Tests line \d+/);
  t.regex(page.text, /name="expected" value="4"/);
  t.is((await policies()).length, before.length - 1, 'the page changes nothing');
  for (const expected of ['', 'x', '1e', '9'])
    t.true([400, 412].includes((await console_.post(at, { expected })).status), expected);
  const replayed = async (status: number, body: object) =>
    (await gateway.rest<{ grants: number }>(status, 'POST', '/api/policies/replay', { token, body })).body.grants;
  const from = '2026-01-01T00:00:00Z';
  t.true((await replayed(200, { from, rollback: { revision: 1 } })) > 0);
  t.is(await replayed(200, { from, rollback: { revision: 1, owner: 'nobody' } }), 0);
  await replayed(404, { from, rollback: { revision: 99 } });
  for (const both of [{ draft: 'x' }, { files: {} }, { move: { policy_id: added, position: 1 } }])
    await replayed(400, { from, rollback: { revision: 1 }, ...both });
  t.is((await console_.post(at, {})).status, 400);
  await gateway.rest(200, 'PUT', `/api/policies/${before[1]?.id}?override=true`, { token, body: { description: HOSTILE } });
  const late = await console_.post(at, { expected: '4', reason: HOSTILE });
  t.is(late.status, 412);
  t.regex(late.text, /at revision 5, not 4.*name="expected" value="5"/s);
  t.notRegex(late.text, /<img|<script>/);
  t.is((await policies()).length, before.length - 1);

  const done = await console_.post(at, { expected: '5', owner: '', reason: 'as it was' });
  t.is(done.headers.location, '/console/history?done=restored', done.text);
  t.deepEqual(
    (await policies()).map(({ name }) => name),
    before.map(({ name }) => name),
  );
  t.regex((await console_.get('/console/history')).text, /as it was/);
  t.regex((await console_.get(at)).text, /Nothing differs from the current policies/);
  t.notRegex((await console_.get(at)).text, /<button class="btn danger"/);
  t.regex((await console_.get(`${at}?owner=nobody`)).text, /of the owner nobody/);
  t.is((await console_.get('/console/history/99/rollback')).status, 404);

  t.regex((await console_.get('/console/history/compare?from=1&to=2')).text, /Stricter.*Everyone may echo/s);
  t.regex((await console_.get('/console/history/compare?from=2&to=1')).text, /Looser.*Everyone may echo/s);
  for (const query of ['', '?to=1', '?from=x', '?from=1&to=99', `?from=${encodeURIComponent(HOSTILE)}`]) {
    const refused = await console_.get(`/console/history/compare${query}`);
    t.true([400, 404].includes(refused.status), query);
    t.notRegex(refused.text, /<img|<script>/);
  }

  const plain = await browser(await person(gateway, 'plain@example.com'));
  t.is((await plain.get(at)).status, 403);
  t.is((await plain.post(at, { expected: '6' })).status, 403);
  t.is((await plain.post(at, { do: 'test', tests: 'x' })).status, 403);
  t.is((await console_.post(at, { expected: '4' }, { origin: 'https://evil.example' })).status, 403);
});

browserTest(
  'an administrator compares two revisions and rolls back, by keyboard alone and without JavaScript',
  async (t, open) => {
    const { gateway, admin } = await scene(t);
    const { token } = admin;
    const { body } = await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token });
    const echo = body.find(({ name }) => name === 'Everyone may echo');
    await gateway.rest(204, 'DELETE', `/api/policies/${echo?.id}?override=true`, { token });
    const page = await start(t, await open({ javaScriptEnabled: false }), gateway.url, admin);
    const { press, enter } = keyboard(page);
    await press('link', 'History');
    await page.waitForURL(/\/history$/);
    await enter('From revision', '1');
    await page.keyboard.press('Enter');
    await page.waitForURL(/compare\?from=1/);
    await page.getByRole('heading', { name: 'Revision 1 and revision 2' }).waitFor();
    await page.getByText('Stricter').waitFor();
    await page.goto(`${gateway.url}/console/history/1`);
    await press('link', 'Roll back to this revision');
    await page.getByText('Looser: some requests will be allowed').waitFor();
    await enter('Reason', 'a mistake');
    await press('button', 'Roll back to revision 1');
    await page.waitForURL(/\?done=restored$/);
    await page.getByText('a mistake').waitFor();
    t.is((await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token })).body.length, body.length);
  },
);
