/** History: comparing revisions, and going back to one. */
import test from 'ava';
import type { PolicyJson } from '../../src/policies/schema.ts';
import { browserTest } from '../support/chromium.ts';
import { person } from '../support/gateway.ts';
import { HOSTILE, scene } from './scene.ts';
import { keyboard, start } from './start.ts';

test.serial('a rollback does what its page showed, and nothing if the policies have changed since', async (t) => {
  const { gateway, admin, browser } = await scene(t);
  const { token } = admin;
  const console_ = await browser(admin);
  const policies = async () => (await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token })).body;
  const before = await policies();
  const echo = before.find(({ name }) => name === 'Everyone may echo');
  await gateway.rest(204, 'DELETE', `/api/policies/${echo?.id}?override=true`, { token });

  const at = '/console/history/1/rollback';
  const page = await console_.get(at);
  t.regex(page.text, /Looser: some requests will be allowed.*Everyone may echo/s);
  t.regex(page.text, /name="expected" value="2"/);
  t.is((await policies()).length, before.length - 1, 'the page changes nothing');
  for (const expected of ['', 'x', '1e', '9'])
    t.true([400, 412].includes((await console_.post(at, { expected })).status), expected);
  t.is((await console_.post(at, {})).status, 400);
  await gateway.rest(200, 'PUT', `/api/policies/${before[1]?.id}?override=true`, { token, body: { description: HOSTILE } });
  const late = await console_.post(at, { expected: '2', reason: HOSTILE });
  t.is(late.status, 412);
  t.regex(late.text, /at revision 3, not 2.*name="expected" value="3"/s);
  t.notRegex(late.text, /<img|<script>/);
  t.is((await policies()).length, before.length - 1);

  const done = await console_.post(at, { expected: '3', owner: '', reason: 'as it was' });
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
  t.is((await plain.post(at, { expected: '4' })).status, 403);
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
