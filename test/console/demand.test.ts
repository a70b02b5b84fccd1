/** Denied requests, added up by what was asked for. */
import test from 'ava';
import type { DemandJson } from '../../src/rest/audit/contract.ts';
import { browserTest } from '../support/chromium.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person } from '../support/gateway.ts';
import { modernClient, openSession } from '../support/mcp.ts';
import { HOSTILE, scene } from './scene.ts';
import { keyboard, start } from './start.ts';

type Wish = DemandJson['demand'][number];

eachEngine(
  test.serial,
  'denials are added up by what was asked for, with those who asked most often first',
  async (t, { url }) => {
    const w = await scene(t, url);
    const { gateway, admin, user, mcp, target } = w;
    const other = await person(gateway, 'other@example.com');
    const ask = async (token: string, name: string, times: number): Promise<void> => {
      const client = await modernClient(t, mcp, token);
      for (let i = 0; i < times; i++) await t.throwsAsync(client.callTool({ name, arguments: {} }));
    };
    await ask((await apiToken(gateway, other)).token, 'get-env', 3);
    await ask(w.token, 'get-env', 1);
    const get = async (query = ''): Promise<DemandJson> =>
      (await gateway.rest<DemandJson>(200, 'GET', `/api/logs/demand${query}`, { token: admin.token })).body;
    const all = await get();
    t.is(all.denials, 6);
    t.is(all.read_to, null);
    const brief = ({ resource_name, denials, user_count }: Wish) => [resource_name, denials, user_count];
    t.deepEqual(all.demand.map(brief), [
      ['get-env', 5, 2],
      [HOSTILE, 1, 1],
    ]);
    const [env, odd] = all.demand;
    t.like(env, { target_id: target.id, target_name: 'everything', resource_type: 'tool' });
    t.deepEqual(
      env?.users.map(({ email, denials }) => [email, denials]),
      [
        ['other@example.com', 3],
        ['user@example.com', 2],
      ],
    );
    t.like(env?.last, { reason: 'matched', policy_name: 'No environment' });
    t.like(odd?.last, { reason: 'default', policy_id: null });
    t.deepEqual((await get('?reason=default')).demand.map(brief), [[HOSTILE, 1, 1]]);
    t.deepEqual((await get(`?user_id=${user.id}`)).demand.map(brief), [
      ['get-env', 2, 1],
      [HOSTILE, 1, 1],
    ]);
    t.deepEqual((await get(`?to=${new Date(Date.now() - 60_000).toISOString()}`)).demand, []);
    // The newest denials are added up, and the answer says how far it came.
    const part = await get('?most=4');
    t.deepEqual([part.denials, part.demand.map(brief)], [4, [['get-env', 4, 2]]]);
    t.true(part.read_to !== null && part.read_to >= part.from && part.read_to <= part.to);
    for (const query of ['?most=0', '?effect=allow', '?id=x', '?from=yesterday', '?unknown=1'])
      await gateway.rest(400, 'GET', `/api/logs/demand${query}`, { token: admin.token });
    await gateway.rest(403, 'GET', '/api/logs/demand', { token: user.token });
  },
);

test.serial('the page says who asked for what and how often, with the texts of strangers as texts', async (t) => {
  const w = await scene(t);
  const console_ = await w.browser(w.admin);
  const page = await console_.get('/console/demand');
  t.is(page.status, 200);
  t.notRegex(page.text, /<img|<script>/);
  t.regex(page.text, /2 denied requests since.*get-env.*user@example\.com.*No environment/s);
  t.regex((await console_.get('/console/demand?reason=default')).text, /1 denied request since/);
  t.regex((await console_.get('/console/demand?target_name=nowhere')).text, /Show all denied requests/);
  t.is((await console_.get('/console/demand?from=yesterday')).status, 400);
  t.regex((await console_.get('/console/policies')).text, /href="\/console\/demand\?reason=default"/);
  const [row] = (await w.gateway.rest<{ id: string }[]>(200, 'GET', '/api/logs?resource_name=get-env', { token: w.admin.token }))
    .body;
  t.regex((await console_.get(`/console/log/${row?.id}`)).text, /Denied <a [^>]*>1 time<\/a> in the last 7 days, to 1 user/);
  const plain = await w.browser(w.user);
  t.is((await plain.get('/console/demand')).status, 403);
});

test.serial('a row about the target itself says that its link shows all denials of the target', async (t) => {
  const { gateway, admin, token, target, mcp, browser } = await scene(t);
  const deny = { name: 'closed', target_id: target.id, resource_type: 'all', effect: 'deny', priority: 9_000 };
  const body = { ...deny, subjects: [{ subject_type: 'everyone' }] };
  await gateway.rest(201, 'POST', '/api/policies', { token: admin.token, body });
  await t.throwsAsync(openSession(mcp, token));
  const { text } = await (await browser(admin)).get('/console/demand');
  const all = `/console/log.effect=deny&#38;from=[^"]+&#38;target_id=${target.id}`;
  t.regex(
    text,
    new RegExp(`the target itself.*data-label="Times">1<span class="sub"><a href="${all}">all denials of the target</a>`, 's'),
  );
});

browserTest('what many asked for becomes a draft, by keyboard alone and without JavaScript', async (t, open) => {
  const w = await scene(t);
  const client = await modernClient(t, w.mcp, w.token);
  for (let i = 0; i < 2; i++) await t.throwsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }));
  const page = await start(t, await open({ javaScriptEnabled: false }), w.gateway.url, w.admin);
  const { press } = keyboard(page);
  await press('link', 'Denied requests');
  await page.waitForURL(/\/console\/demand$/);
  t.is(await page.locator('tbody tr').first().locator('th code').innerText(), 'get-sum');
  await press('button', /^Draft a policy/);
  await page.waitForURL(/drafts\/decision-.*done=saved/);
  await page.getByText('2 would be allowed now').waitFor();
});
