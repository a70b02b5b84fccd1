/** Drafts are evaluated against recorded decisions: by replays, and by shadows that follow the log. */
import test from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { world } from '../support/world.ts';
import { policyBody } from './policies.ts';
import { file, type ProblemAnswer, policySets } from './sets.ts';

interface Ref {
  readonly id: string | null;
  readonly name: string;
  readonly file: string | null;
}
interface Report {
  readonly revision: number;
  readonly decisions: number;
  readonly replayed: number;
  readonly coverage: number | null;
  readonly not_replayed: Readonly<Record<string, number>>;
  readonly grants: number;
  readonly refuses: number;
  readonly already: number;
  readonly lists: { readonly lists: number; readonly names: number; readonly hides: number; readonly hidden: number };
  readonly unlisted: number;
  readonly changes: number;
  readonly unexercised: readonly Ref[];
  readonly flips: readonly {
    readonly kind: string;
    readonly principal: { readonly sub: string; readonly email: string | null; readonly groups: readonly string[] | null };
    readonly target: { readonly name: string };
    readonly resource_name: string | null;
    readonly recorded: { readonly effect: string; readonly policy: { readonly name: string } | null };
    readonly now: string | null;
    readonly would_be: { readonly effect: string; readonly policy: Ref | null };
    readonly count: number;
    readonly first: { readonly id: string };
    readonly last: { readonly id: string };
  }[];
}

const LONG_AGO = '2020-01-01T00:00:00Z';
const from = LONG_AGO;

const flipsOf = ({ flips }: Report): string[] =>
  flips
    .map(({ kind, principal, resource_name, recorded, would_be, count }) => {
      const by = would_be.policy === null ? '' : ` by ${would_be.policy.name}`;
      return `${principal.email} ${kind} ${resource_name}: ${recorded.effect} -> ${would_be.effect}${by}, ${count}x`;
    })
    .sort();

eachEngine(test.serial, 'a replay shows changed decisions, the users concerned and what it cannot tell', async (t, at) => {
  const w = await world(t, at.url);
  const { gateway, admin, user } = w;
  const { call, apply } = policySets(gateway, admin.token);
  const echo = file({ name: 'Echo', resource_pattern: '^(echo|get-sum)$' });
  await apply({ 'echo.yaml': echo });
  const client = await modernClient(t, w.mcp, w.token);
  await client.listTools();
  for (let n = 0; n < 3; n++) await client.callTool({ name: 'echo', arguments: { message: 'x' } });
  for (let n = 0; n < 2; n++) await t.throwsAsync(client.callTool({ name: 'get-env', arguments: {} }));
  await t.throwsAsync(client.readResource({ uri: 'demo://a/../b' }));

  const { body: logs } = await gateway.rest<{ id: string; reason: string }[]>(200, 'GET', '/api/logs', { token: admin.token });
  const replay = async (body: object): Promise<Report> => (await call<Report>(200, 'POST', '/replay', { from, ...body })).body;

  const same = await replay({});
  t.like(same, {
    decisions: logs.length,
    grants: 0,
    refuses: 0,
    already: 0,
    changes: 0,
    unlisted: 0,
    flips: [],
    unexercised: [],
  });
  t.is(same.not_replayed['not_canonical'], logs.filter(({ reason }) => reason === 'not_canonical').length);
  t.is(same.replayed, same.decisions - 1);
  t.true((same.coverage ?? 0) < 100 && (same.coverage ?? 0) > 50);
  t.like(same.lists, { lists: 1, names: 2, hides: 0 });
  t.true(same.lists.hidden > 0);

  const files = {
    'echo.yaml': file({ name: 'Echo', resource_pattern: '^get-sum$' }),
    'env.yaml': file({ name: 'Environment', resource_pattern: '^get-env$' }),
    'never.yaml': file({ name: 'Never', resource_pattern: '^nobody asked$' }),
  };
  const would = await replay({ files });
  t.deepEqual(flipsOf(would), [
    'user@example.com listed echo: allow -> deny, 1x',
    'user@example.com request echo: allow -> deny, 3x',
    'user@example.com request get-env: deny -> allow by Environment, 2x',
  ]);
  t.like(would, { grants: 2, refuses: 3, already: 0, changes: 3, unlisted: 0 });
  t.is(would.lists.hides, 1);
  t.deepEqual(would.unexercised, [{ id: null, name: 'Never', priority: 10, file: 'never.yaml' }] as unknown as Ref[]);
  const [most] = would.flips;
  t.like(most, {
    count: 3,
    now: 'allow',
    recorded: { effect: 'allow', policy: { name: 'Echo' } },
    target: { name: 'everything' },
  });
  t.true((most?.first.id ?? '') < (most?.last.id ?? ''));
  t.is(most?.principal.sub, user.id);

  // Once it is so, the same flips are flips of the set as it is.
  await apply(files);
  const after = await replay({});
  t.deepEqual(flipsOf(after), flipsOf(would));
  t.is(after.already, 6);
  t.deepEqual([after.grants, after.refuses], [2, 3]);

  // Decisions outside of the range do not count, and erased ones are not decided on the remaining data.
  t.like(await replay({ to: '2020-01-02T00:00:00Z' }), { decisions: 0, coverage: null, flips: [] });
  await gateway.rest(200, 'POST', '/api/logs/erase', { token: admin.token, body: { user_id: user.id } });
  const erased = await replay({ files: { 'echo.yaml': echo } });
  t.is(erased.replayed, 0);
  t.is(erased.not_replayed['erased'], same.replayed);
  t.deepEqual(erased.flips, []);
});

eachEngine(test.serial, 'a draft is tested, replayed and shadowed without effect until it is activated', async (t, at) => {
  const w = await world(t, at.url);
  const { gateway, admin } = w;
  const { call, apply, revision, policies } = policySets(gateway, admin.token);
  await apply({ 'echo.yaml': file({ name: 'Echo' }) });
  const client = await modernClient(t, w.mcp, w.token);
  await client.callTool({ name: 'echo', arguments: { message: 'before the shadow' } });

  const files = { 'echo.yaml': file({ name: 'Echo', resource_pattern: '^get-sum$' }) };
  const expecting = (effect: string): string =>
    `target: everything\nprincipals:\n  u: { role: user }\nrequests:\n  sum: { tool: get-sum }\ntests:\n  - name: sums\n    expect:\n      - effect: ${effect}\n`;
  const saved = await call<{ hash: string; shadow: boolean; author: { email: string } }>(201, 'PUT', '/drafts/tighter', {
    files,
    tests: { 'sums.yaml': expecting('deny') },
  });
  t.like(saved.body, { shadow: false, author: { email: admin.email } });
  t.is(saved.headers.get('etag'), `"${saved.body.hash}"`);
  await call(200, 'PUT', '/drafts/tighter', { files, tests: { 'sums.yaml': expecting('deny') } });
  t.is(await revision(), 1);
  const byDraft = (await call<Report>(200, 'POST', '/replay', { from, draft: 'tighter' })).body;
  t.deepEqual(flipsOf(byDraft), ['user@example.com request echo: allow -> deny, 1x']);
  const requests = [{ principal: { role: 'user' }, target: 'everything', resource_type: 'tool', resource_name: 'echo' }];
  t.is((await call<{ changed: number }>(200, 'POST', '/simulate', { draft: 'tighter', requests })).body.changed, 1);

  await call(201, 'PUT', '/drafts/tighter/shadow');
  await call(200, 'PUT', '/drafts/tighter/shadow');
  for (let n = 0; n < 4; n++) await client.callTool({ name: 'echo', arguments: { message: 'beside' } });
  const shadow = async (): Promise<Report & { problem: string | null }> =>
    (await call<Report & { problem: string | null }>(200, 'GET', '/drafts/tighter/shadow')).body;
  let seen = await shadow();
  while (seen.refuses < 4) seen = await shadow();
  t.deepEqual(flipsOf(seen), ['user@example.com request echo: allow -> deny, 4x']);
  t.like(seen, { problem: null, grants: 0, refuses: 4, changes: 1, unexercised: [] });
  const metrics = await (await fetch(`${gateway.url}/metrics`)).text();
  t.regex(metrics, /portcullis_shadow_divergences_total\{draft="tighter",effect="deny"\} 4/);

  // Its tests fail: nothing is applied.
  const failed = (await call<ProblemAnswer>(409, 'POST', '/drafts/tighter/activate', {})).body;
  t.is(failed.code, 'tests_failed');
  t.like(failed.errors?.[0], { path: 'tests.sums.yaml', file: 'sums.yaml', line: 9 });
  t.is(await revision(), 1);
  await call(412, 'PUT', '/drafts/tighter', { files }, { 'If-Match': '"other"' });
  await call(
    200,
    'PUT',
    '/drafts/tighter',
    { files, tests: { 'sums.yaml': expecting('allow') } },
    { 'If-Match': `"${saved.body.hash}"` },
  );
  // Another content is another shadow.
  t.like(await shadow(), { decisions: 0, refuses: 0, flips: [] });
  await call(412, 'POST', '/drafts/tighter/activate', {}, { 'If-Match': `"${saved.body.hash}"` });
  await call(412, 'POST', '/drafts/tighter/activate', { expected_revision: 7 });
  await call(200, 'POST', '/drafts/tighter/activate', { expected_revision: 1, reason: 'as reviewed' });
  t.is(await revision(), 2);
  t.is((await policies())[0]?.resource_pattern, '^get-sum$');
  await call(404, 'GET', '/drafts/tighter');
  await call(404, 'POST', '/drafts/tighter/activate', {});
  const { body: history } = await call<{ reason: string }[]>(200, 'GET', '/history');
  t.is(history[0]?.reason, 'as reviewed');
  const { body: changes } = await gateway.rest<{ action: string }[]>(200, 'GET', '/api/changes', { token: admin.token });
  t.deepEqual(
    changes.map(({ action }) => action).filter((action) => action.startsWith('draft.')),
    ['draft.activate', 'draft.update', 'draft.shadow_begin', 'draft.create'],
  );
});

test.serial('a bad draft or replay is refused with its mistakes', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const { call, apply } = policySets(gateway, admin.token);
  const detail = async (status: number, method: string, path: string, body?: object): Promise<string> =>
    (await call<ProblemAnswer>(status, method, path, body)).body.detail;
  const files = { 'everyone-may-echo.yaml': file() };

  t.regex(await detail(400, 'PUT', '/drafts/a', { files: { 'a.yaml': 'name: x' } }), /^a\.yaml:1:1: /);
  t.regex(await detail(400, 'PUT', '/drafts/a', { files, tests: { 'a.yaml': 'tests: 1' } }), /^a\.yaml:1:1: /);
  t.regex(await detail(400, 'PUT', '/drafts/A', { files }), /A draft name must/);
  await call(412, 'PUT', '/drafts/a', { files }, { 'If-Match': '*' });
  const long = `${file()}# ${'x'.repeat(60_000)}\n`;
  const much = Object.fromEntries(Array.from({ length: 26 }, (_, n) => [`f${n}.yaml`, long]));
  t.is((await call<ProblemAnswer>(413, 'PUT', '/drafts/a', { files: much })).body.code, 'too_large');
  t.regex(await detail(400, 'PUT', '/drafts/a', {}), /files: is required/);
  t.regex(await detail(400, 'POST', '/replay', {}), /from: is required/);
  t.regex(await detail(400, 'POST', '/replay', { from: '2020-01-01' }), /from: must be a time such as/);
  t.regex(await detail(400, 'POST', '/replay', { from: '2999-01-01T00:00:00Z' }), /from: must be before `to`/);
  t.regex(
    await detail(400, 'POST', '/replay', { from, files, draft: 'a' }),
    /only one of `files`, `draft`, `rollback` and `move`/,
  );
  t.regex(await detail(400, 'POST', '/replay', { from, prune: true }), /is only allowed with `files`/);
  t.regex(
    await detail(400, 'POST', '/simulate', { requests: [{ principal: { role: 'a' }, target: 'x' }] }),
    /one of `files`, `draft`, `rollback` and `move`/,
  );
  t.is(await detail(404, 'POST', '/replay', { from, draft: 'none' }), 'No draft has the name none.');
  for (const [method, path] of [
    ['GET', '/drafts/none'],
    ['DELETE', '/drafts/none'],
    ['PUT', '/drafts/none/shadow'],
    ['GET', '/drafts/none/shadow'],
    ['DELETE', '/drafts/none/shadow'],
  ] as const)
    await call(404, method, path);

  await call(201, 'PUT', '/drafts/a', { files });
  t.is(await detail(404, 'GET', '/drafts/a/shadow'), 'The draft a has no shadow.');
  await call(201, 'PUT', '/drafts/a/shadow');
  // It fits the set no longer: two policies over the API could be the one that the file means.
  for (const priority of [1, 2]) await call(201, 'POST', '', policyBody({ priority }));
  const shadow = (await call<{ problem: string | null; flips: unknown[] }>(200, 'GET', '/drafts/a/shadow')).body;
  t.regex(shadow.problem ?? '', /matches 2 policies/);
  t.regex(await detail(400, 'POST', '/drafts/a/activate', {}), /matches 2 policies/);
  await call(204, 'DELETE', '/drafts/a/shadow');
  await call(204, 'DELETE', '/drafts/a');
  await apply({});

  for (let n = 0; n < 100; n++) await call(201, 'PUT', `/drafts/d${n}`, { files: {} });
  t.is((await call<ProblemAnswer>(409, 'PUT', '/drafts/one-more', { files: {} })).body.code, 'limit_reached');
  for (let n = 0; n < 10; n++) await call(201, 'PUT', `/drafts/d${n}/shadow`);
  t.is((await call<ProblemAnswer>(409, 'PUT', '/drafts/d10/shadow')).body.code, 'limit_reached');
  t.is((await call<{ shadow: boolean }[]>(200, 'GET', '/drafts')).body.filter(({ shadow }) => shadow).length, 10);

  for (const [method, path] of [
    ['GET', 'drafts'],
    ['GET', 'drafts/d1'],
    ['PUT', 'drafts/d1'],
    ['DELETE', 'drafts/d1'],
    ['POST', 'drafts/d1/activate'],
    ['PUT', 'drafts/d1/shadow'],
    ['POST', 'replay'],
  ] as const) {
    const body = method === 'GET' || method === 'DELETE' ? {} : { body: { files: {} } };
    await gateway.rest(403, method, `/api/policies/${path}`, { token: user.token, ...body });
  }
});
