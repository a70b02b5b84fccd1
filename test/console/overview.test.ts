/** The overview: counts as the API has them, what needs attention, and the next steps on an empty gateway. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { sendPage } from '../../src/browser/page.ts';
import { findingsPage } from '../../src/console/findings.ts';
import { policiesPage } from '../../src/console/policies.ts';
import { foundBeside } from '../../src/console/search.ts';
import type { View } from '../../src/console/view.ts';
import type { CountsJson } from '../../src/rest/audit/contract.ts';
import { browse, signIn } from '../browser/browser.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway, type TestGateway } from '../support/gateway.ts';
import { HOSTILE, scene } from './scene.ts';

const textOf = (page: string): string =>
  page
    .replaceAll(/<[^>]*>/g, ' ')
    .replaceAll(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)))
    .replaceAll(/\s+/g, ' ');

/** Waits until the gateway has counted all decisions. */
async function counted(gateway: TestGateway, token: string, decisions: number): Promise<CountsJson> {
  for (;;) {
    const { body } = await gateway.rest<CountsJson>(200, 'GET', '/api/logs/counts?by=hour', { token });
    const sum = body.counts.reduce((total, { allowed, denied, unmatched }) => total + allowed + denied + unmatched, 0);
    if (sum === decisions) return body;
    await sleep(100);
  }
}

eachEngine(test.serial, 'the overview shows the counts of the API, and what needs attention', async (t, at) => {
  const { gateway, admin, target, browser } = await scene(t, at.url);
  const { token } = admin;
  const { body: rows } = await gateway.rest<{ effect: string; policy_id: string | null }[]>(200, 'GET', '/api/logs', { token });
  await counted(gateway, token, rows.length);
  const console_ = await browser(admin);
  const count = (effect: string, isDefault: boolean): number =>
    rows.filter((row) => row.effect === effect && (row.policy_id === null) === isDefault).length;
  const page = (await console_.get('/console/overview')).text;
  t.regex(
    textOf(page),
    new RegExp(`Allow ${count('allow', false)} .*Deny ${count('deny', false)} .*Default deny ${count('deny', true)} `),
  );
  t.notRegex(textOf(page), /What to do next/);
  t.notRegex(page, /<img|<script>/);

  // A credential that a change of the address has disabled, and a target that does not answer.
  await gateway.rest(201, 'PUT', `/api/targets/${target.id}/credentials/default`, {
    token,
    body: { type: 'header', name: 'authorization', value: 'Bearer x' },
  });
  await gateway.rest(200, 'PUT', `/api/targets/${target.id}`, { token, body: { url: 'http://127.0.0.1:9/mcp' } });
  await gateway.rest(200, 'POST', `/api/targets/${target.id}/check`, { token });
  const later = textOf((await console_.get('/console/overview?range=week')).text);
  t.regex(later, /Credential to set again everything has a credential/);
  t.regex(later, /Target fails everything/);
  // An administrator sees the findings about policies, also with the texts of strangers.
  await gateway.rest(200, 'GET', '/api/policies/lint?kept=yes', { token });
  const findings = await console_.get('/console/findings');
  t.is(findings.status, 200);
  t.notRegex(findings.text, /<img|<script>/);
  t.true(textOf(findings.text).includes(HOSTILE));
  // A range that the page does not have is the shortest.
  t.is((await console_.get(`/console/overview?range=${encodeURIComponent(HOSTILE)}`)).status, 200);
});

test.serial('an empty gateway says what to do next, one step after the other', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const console_ = browse(gateway);
  await signIn(console_, admin);
  const { token } = admin;
  const next = async () => (await console_.get('/console/overview')).text;
  t.regex(await next(), /What to do next.*class="btn cta" href="\/console\/targets\/new"/s);
  const body = { name: 'one', transport: 'streamable-http', url: 'http://127.0.0.1:9/mcp' };
  const { id } = (await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', { token, body })).body;
  t.regex(await next(), new RegExp(`class="btn cta" href="/console/targets/${id}/allow"`));
  const policy = { name: 'x', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  await gateway.rest(201, 'POST', '/api/policies', { token, body: policy });
  t.notRegex(await next(), /What to do next/);
});

eachEngine(
  test.serial,
  'the list of policies has the counts and the findings, and the log all filters and its counts',
  async (t, at) => {
    const { gateway, admin, browser } = await scene(t, at.url);
    const { token } = admin;
    const { body: rows } = await gateway.rest<
      { id: string; policy_id: string | null; policy_name: string | null; created_at: string }[]
    >(200, 'GET', '/api/logs', { token });
    await counted(gateway, token, rows.length);
    const console_ = await browser(admin);
    const { body: policies } = await gateway.rest<{ id: string; name: string }[]>(200, 'GET', '/api/policies', { token });
    const list = (await console_.get('/console/policies')).text;
    for (const { id } of policies) {
      const made = rows.filter(({ policy_id }) => policy_id === id).length;
      t.true(list.includes(`<a href="/console/log?policy_id=${id}">${made}</a>`), `${id}: ${made}`);
    }
    // The first analysis of a process may take longer than the list waits.
    while (!/class="tag find"><b>/.test((await console_.get('/console/policies')).text)) await sleep(100);

    const log = async (query: Record<string, string>) => {
      const page = await console_.get(`/console/log?${new URLSearchParams(query)}`);
      t.is(page.status, 200, JSON.stringify(query));
      t.notRegex(page.text, /<img|<script>/);
      return page.text;
    };
    const [row] = rows;
    t.regex(textOf(await log({})), /one bar for each hour/);
    t.regex(textOf(await log({ policy_id: policies[0]?.id ?? '', effect: 'deny' })), /one bar for each hour/);
    t.notRegex(textOf(await log({ method: 'tools/call' })), /one bar for each hour/);
    for (const [name, value] of Object.entries({
      ...{ from: '2026-01-31T12:00Z', to: '2126-01-31T12:00Z', id: row?.id ?? '', method: 'tools/list' },
      ...{ resource_type: 'tool', resource_name_prefix: 'get', reason: 'default' },
    }))
      t.regex(await log({ [name]: value }), /<details class="wide" open>/, name);
    t.regex(await log({ target_name: "it's" }), /target_name=it%27s/);
    await log({ user_id: HOSTILE });
    t.is((await console_.get('/console/log?from=yesterday')).status, 400);
    for (const { id } of rows) {
      const page = await console_.get(`/console/log/${id}`);
      t.is(page.status, 200);
      t.notRegex(page.text, /<img|<script>/);
    }
    const decided = rows.find(({ policy_name }) => policy_name === 'No environment');
    const why = textOf((await console_.get(`/console/log/${decided?.id}`)).text);
    t.regex(
      why,
      new RegExp(`portcullis audit reproduce ${decided?.id}.*"name":"get-env"\\}' > input.json.*opa eval -b portcullis.tar.gz`),
    );
  },
);

test.serial('the search finds policies, targets and ids, and only what the user may see', async (t) => {
  const { gateway, admin, user, target, browser } = await scene(t);
  const { token } = admin;
  const [decision] = (await gateway.rest<{ id: string }[]>(200, 'GET', '/api/logs', { token })).body;
  const { body: policies } = await gateway.rest<{ id: string; name: string }[]>(200, 'GET', '/api/policies', { token });
  const policy = policies.find(({ name }) => name === 'No environment');
  const [all, none] = [await browser(admin), await browser(user)];
  const cases: readonly (readonly [q: string, path: string])[] = [
    ['ENVIRON', `policies/${policy?.id}`],
    [policy?.id ?? '', `policies/${policy?.id}`],
    ['Every', `targets/${target.id}`],
    [target.id, `targets/${target.id}`],
    [user.id, `users/${user.id}`],
    [decision?.id ?? '', `log/${decision?.id}`],
    ['user@example.com', 'access?who=user%3Auser%40example.com'],
    ['get-env', 'log?resource_name=get-env'],
  ];
  for (const [q, path] of cases) {
    const href = `href="/console/${path}"`;
    const search = `/console/search?${new URLSearchParams({ q })}`;
    t.true((await all.get(search)).text.includes(href), q);
    t.false((await none.get(search)).text.includes(href), q);
  }
  for (const q of ['', ' ', HOSTILE, 'x'.repeat(5_000), '\u0000', '%', '../users'])
    t.notRegex((await all.get(`/console/search?${new URLSearchParams({ q })}`)).text, /<img|<script>|This does not work/, q);
  t.regex((await all.get(`/console/search?${new URLSearchParams({ q: HOSTILE })}`)).text, /Sums &#60;img/);
});

test('while the analysis is under way, the page of findings loads again by itself', async (t) => {
  const shown = await findingsPage({ get: () => new Promise(() => {}) } as unknown as View);
  const server = createServer((_req, res) => sendPage(res, 200, shown)).listen(0, '127.0.0.1');
  t.teardown(() => server.close());
  await once(server, 'listening');
  const page = await (await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)).text();
  t.true(page.includes('<meta http-equiv="refresh" content="3">'));
  t.regex(page, /The analysis of all policies is under way/);
});

test('while the analysis is under way, the list of policies says that it shows no findings', async (t) => {
  const policy = { id: 'one', name: 'One', priority: 1, effect: 'allow', enabled: true, resource_type: 'tool' };
  const whole = { ...policy, resource_pattern: '^a$', target_id: null, subjects: [{ type: 'everyone' }], managed_as: null };
  const listOf = async (lint: Promise<object>, may: (operation: string) => boolean): Promise<string> => {
    const get = async (path: string) => {
      if (path.startsWith('/policies/lint')) return lint;
      return { body: path === '/targets' ? [] : [{ position: 1, policy: { ...whole, drift_since: null } }], next: null };
    };
    return String((await policiesPage({ get, query: {}, may, done: '' } as unknown as View)).body);
  };
  const lints = (operation: string): boolean => operation === 'lintPolicies';
  const endless = new Promise<never>(() => {});
  t.regex(await listOf(endless, lints), /The analysis of the policies is not ready/);
  t.notRegex(await listOf(Promise.resolve({ body: { findings: [] } }), lints), /not ready/);
  t.notRegex(await listOf(endless, () => false), /not ready/, 'who may not see findings is not told of them');
});

test('the search asks targets only for names with the text, and only until it has enough', async (t) => {
  const asked: string[] = [];
  const listed = Array.from({ length: 7 }, (_, at) => ({ resource_type: 'tool', resource_name: `sum-${at}` }));
  const get = async (path: string) => {
    asked.push(path);
    const body =
      path === '/targets'
        ? ['a', 'b', 'c'].map((id) => ({ id, name: id }))
        : path.includes('/catalogue')
          ? { names: listed }
          : [];
    return { body, next: null, etag: undefined };
  };
  const found = await foundBeside({ get, query: { q: 'sum' }, pages: [], may: () => false } as unknown as View);
  t.is(String(found).match(/<code>sum-/g)?.length, 10);
  t.deepEqual(
    asked.filter((path) => path.includes('/catalogue')),
    ['/targets/a/catalogue?text=sum&limit=10', '/targets/b/catalogue?text=sum&limit=10'],
  );
});
