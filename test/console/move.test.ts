/** The page that moves a policy in the order of evaluation. */
import test from 'ava';
import type { OrderedPolicyJson } from '../../src/policies/schema.ts';
import { file, policySets } from '../policies/sets.ts';
import { browserTest } from '../support/chromium.ts';
import { person } from '../support/gateway.ts';
import { HOSTILE, scene, testFile } from './scene.ts';
import { keyboard, start } from './start.ts';

test.serial('a policy moves as its page showed, and policies of files only if somebody insists', async (t) => {
  const { gateway, admin, browser } = await scene(t);
  const { token } = admin;
  const console_ = await browser(admin);
  const order = async () => (await gateway.rest<OrderedPolicyJson[]>(200, 'GET', '/api/policies/order', { token })).body;
  const [first, old] = (await order()).map(({ policy }) => policy);
  const at = `/console/policies/${first?.id}/move`;
  const list = await console_.get('/console/policies');
  t.true(list.text.includes(`href="/console/policies/${old?.id}/move?position=1"`), 'up');
  t.true(list.text.includes(`href="${at}?position=2"`), 'down');
  t.false(list.text.includes(`href="${at}?position=0"`));
  for (const { position, policy } of await order()) {
    const { text } = await console_.get(`/console/policies?text=${policy.id}`);
    const down = text.includes(`href="/console/policies/${policy.id}/move?position=${position + 1}"`);
    t.is(down, position < (await order()).length, `number ${position}, in a filtered list`);
  }

  t.regex((await console_.get(at)).text, /It is number 1/);
  t.regex((await console_.get(`${at}?position=1`)).text, /has this position already/);
  const page = await console_.get(`${at}?position=2`);
  t.regex(page.text, /No decision changes/);
  t.regex(page.text, /decisions of the last 7 days were made again: none would be different/);
  const [, expected = ''] = /name="expected" value="([^"]*)"/.exec(page.text) ?? [];
  const form = { position: '2', expected, reason: 'order' };
  t.is((await console_.post(at, form)).status, 409);
  t.is((await console_.post(at, { ...form, expected: '0', override: 'yes' })).status, 412);
  for (const wrong of [{ expected: '' }, { position: '0' }, { position: '9' }, { position: HOSTILE }, { position: '' }]) {
    const refused = await console_.post(at, { ...form, override: 'yes', ...wrong });
    t.is(refused.status, 400, JSON.stringify(wrong));
    t.notRegex(refused.text, /<img|<script>/);
  }
  t.is((await order())[0]?.policy.id, first?.id);
  t.is((await console_.post(at, { ...form, override: 'yes' })).headers.location, '/console/policies?done=moved');
  t.is((await order())[1]?.policy.id, first?.id);
  // Behind a policy that allows the same, the deny decides no longer.
  const env = (await order()).find(({ policy }) => policy.name === 'No environment');
  const all = { name: 'All', resource_type: 'tool', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  await gateway.rest(201, 'POST', '/api/policies', { token, body: all });
  const back = `/console/policies/${env?.policy.id}/move`;
  const last = String((await order()).length);
  t.regex(
    (await console_.get(`${back}?position=${last}`)).text,
    /[1-9] would be allowed now, 0 would be denied now.*<code>get-env<\/code>/s,
  );
  const tried = async (effect: string) =>
    console_.post(back, { do: 'test', position: last, tests: testFile('get-env', effect), reason: HOSTILE });
  t.regex((await tried('allow')).text, /All 1 expectations hold with this change/);
  t.regex((await tried('deny')).text, /1 of 1 expectations do not hold/);
  const wrong = await tried('maybe');
  t.is(wrong.status, 400);
  t.regex(wrong.text, /href="#f-tests">Tests line \d+/);
  t.notRegex(wrong.text, /<img|<script>/);
  t.is((await console_.get(`/console/policies/0190163d-8694-739b-aea5-966c26f8ad90/move`)).status, 404);
  // A policy whose name holds the id of a different policy does not stand in for it.
  await gateway.rest(201, 'POST', '/api/policies', { token, body: { ...all, name: `Not ${env?.policy.id}`, priority: 999 } });
  t.is((await console_.get(back)).status, 200);
  const plain = await browser(await person(gateway, 'plain@example.com'));
  t.is((await plain.get(at)).status, 403);
  t.is((await plain.post(at, form)).status, 403);
  t.is((await console_.post(at, form, { origin: 'https://evil.example' })).status, 403);
});

browserTest('an administrator moves a policy up, by keyboard alone and without JavaScript', async (t, open) => {
  const { gateway, admin } = await scene(t);
  const page = await start(t, await open({ javaScriptEnabled: false }), gateway.url, admin);
  const { press, enter } = keyboard(page);
  await press('link', 'Policies');
  await page.waitForURL(/\/console\/policies$/);
  await press('link', 'Move Old up');
  await page.getByText('No decision changes').waitFor();
  await page.getByLabel(/^Also change policies/).focus();
  await page.keyboard.press('Space');
  await enter('Reason', 'comes first');
  await press('button', 'Move to number 1');
  await page.waitForURL(/\?done=moved$/);
  const [first] = (await gateway.rest<OrderedPolicyJson[]>(200, 'GET', '/api/policies/order', { token: admin.token })).body;
  t.is(first?.policy.name, 'Old');
});

browserTest(
  'a row is dragged to the place of another, which shows what the move would change and changes nothing',
  async (t, open) => {
    const { gateway, admin } = await scene(t);
    const page = await start(t, await open(), gateway.url, admin);
    await page.goto(`${gateway.url}/console/policies`);
    const order = async () =>
      (await gateway.rest<OrderedPolicyJson[]>(200, 'GET', '/api/policies/order', { token: admin.token })).body;
    const before = await order();
    const [first, last] = [before[0], before.at(-1)];
    const handle = (at: number) => page.locator(`tr[data-position="${at}"] td.pos`);
    await handle(last?.position ?? 0).dragTo(handle(1));
    await page.waitForURL(`${gateway.url}/console/policies/${last?.policy.id}/move?position=1`);
    await page.getByRole('button', { name: 'Move to number 1' }).waitFor();
    t.deepEqual(await order(), before);
    await page.goto(`${gateway.url}/console/policies`);
    await handle(1).dragTo(handle(2));
    await page.waitForURL(`${gateway.url}/console/policies/${first?.policy.id}/move?position=2`);
    // A drop on itself leads nowhere. Without a way to go there would be no drag, but a click on the links of the handle.
    await page.goto(`${gateway.url}/console/policies`);
    const outcome = page.evaluate(`new Promise((done) => {
      navigation.addEventListener('navigate', ({ destination }) => done(destination.url));
      addEventListener('drop', () => setTimeout(() => done('stays')));
    })`);
    await handle(1).dragTo(page.locator('tr[data-position="1"] td').last());
    t.is(await outcome, 'stays');
    t.is(await page.locator('tr.drop-above,tr.drop-below').count(), 0);
  },
);

test.serial('a page finds the position of its policy, however many others have its id in their names', async (t) => {
  const { gateway, admin, browser } = await scene(t);
  const console_ = await browser(admin);
  const { body } = await gateway.rest<OrderedPolicyJson[]>(200, 'GET', '/api/policies/order', { token: admin.token });
  const [, , third] = body;
  const id = third?.policy.id ?? '';
  const named = (n: number) => file({ name: `${id} ${n}`, resource_pattern: `^z${n}$`, priority: 1_000, subjects: [] });
  const files = Object.fromEntries(Array.from({ length: 1_001 }, (_, n) => [`f${n}.yaml`, named(n)]));
  await policySets(gateway, admin.token).apply(files, { owner: 'other' });
  t.regex((await console_.get(`/console/policies/${id}/move`)).text, /It is number 1004 in the order/);
  t.regex((await console_.get(`/console/policies/${id}`)).text, /number 1,004 in the order of evaluation/);
});
