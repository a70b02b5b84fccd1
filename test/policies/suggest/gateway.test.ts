/** Suggestions of a gateway from decisions that it has recorded. */
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { policies as command, folder, inProcess, type Ran } from '../../cli/cli.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { apiToken, person } from '../../support/gateway.ts';
import { modernClient } from '../../support/mcp.ts';
import { world } from '../../support/world.ts';
import { file, type ProblemAnswer, policySets } from '../sets.ts';

const from = '2020-01-01T00:00:00Z';

interface Suggested {
  readonly file: string;
  readonly subject_type: string;
  readonly subject_value: string;
  readonly names: readonly { readonly resource_name: string | null; readonly count: number; readonly users: number }[];
  readonly priority: number;
  readonly outranks: readonly { readonly name: string }[];
  readonly holders: number;
  readonly other_holders: readonly string[];
}
interface Answer {
  readonly files: Readonly<Record<string, string>>;
  readonly prune: boolean;
  readonly adopt: boolean;
  readonly verdict: string;
  readonly skipped: Readonly<Record<string, number>>;
  readonly suggested: readonly Suggested[];
  readonly left_out: readonly {
    readonly reason: string;
    readonly resource_name: string;
    readonly policy: { readonly name: string } | null;
  }[];
  readonly replay: {
    readonly flips: readonly { readonly principal: { readonly email: string }; readonly resource_name: string }[];
  } | null;
  readonly beyond: readonly number[];
  readonly role: {
    readonly replayed: number;
    readonly lost: number;
    readonly kept: readonly { readonly policy: { readonly name: string }; readonly reason: string; readonly count: number }[];
    readonly unused: readonly { readonly resource_name: string }[];
    readonly unused_count: number;
  } | null;
}
interface Row {
  readonly id: string;
  readonly resource_name: string | null;
  readonly effect: string;
}

const brief = ({ suggested }: Answer) =>
  suggested.map(({ subject_type, names, priority }) => [
    subject_type,
    names.map(({ resource_name, count }) => `${resource_name} ${count}`).join(),
    priority,
  ]);

eachEngine(test.serial, 'a denied request gets the narrowest policy, and applying it allows exactly this', async (t, at) => {
  const w = await world(t, at.url);
  const { gateway, admin, user } = w;
  const { call, apply } = policySets(gateway, admin.token);
  const suggest = async (body: object): Promise<Answer> => (await call<Answer>(200, 'POST', '/suggest', { from, ...body })).body;
  const setUser = (id: string, body: object) => gateway.rest(200, 'PUT', `/api/users/${id}`, { token: admin.token, body });
  const call_ = async (client: Awaited<ReturnType<typeof modernClient>>, name: string): Promise<string> =>
    client.callTool({ name, arguments: { message: 'x' } }).then(
      () => 'allowed',
      () => 'denied',
    );
  await setUser(user.id, { groups: ['team', 'guests'] });
  const other = await person(gateway, 'other@example.com');
  await apply({
    'sum.yaml': file({ name: 'Sums', resource_pattern: '^get-sum$' }),
    'guests.yaml': file({
      name: 'No environment for guests',
      resource_pattern: '^get-env$',
      effect: 'deny',
      priority: 500,
      subjects: [{ subject_type: 'group', subject_value: 'guests' }],
    }),
  });
  const client = await modernClient(t, w.mcp, w.token);
  t.deepEqual(
    [await call_(client, 'echo'), await call_(client, 'echo'), await call_(client, 'get-env')],
    ['denied', 'denied', 'denied'],
  );
  await t.throwsAsync(client.readResource({ uri: 'demo://a/../b' }));
  const otherClient = await modernClient(t, w.mcp, (await apiToken(gateway, other)).token);
  t.is(await call_(otherClient, 'echo'), 'denied');

  const rows = async (query: string): Promise<Row[]> =>
    (await gateway.rest<Row[]>(200, 'GET', `/api/logs?${query}`, { token: admin.token })).body;
  const [echo] = await rows(`resource_name=echo&user_id=${user.id}`);
  const [env] = await rows('resource_name=get-env');
  const [odd] = await rows('reason=not_canonical');
  const decision_id = echo?.id;

  const one = await suggest({ decision_id });
  t.deepEqual(brief(one), [['user', 'echo 1', 0]]);
  t.like(one, { verdict: 'looser', prune: false, adopt: false, beyond: [], left_out: [] });
  t.regex(Object.values(one.files).join(), /resource_pattern: \^echo\$\n/);
  t.deepEqual(
    one.replay?.flips.map(({ principal, resource_name }) => `${principal.email} ${resource_name}`),
    ['user@example.com echo'],
  );
  const byRole = await suggest({ decision_id, for: 'role' });
  t.deepEqual(brief(byRole), [['role', 'echo 1', 0]]);
  t.deepEqual(byRole.suggested[0]?.other_holders, ['other@example.com']);
  t.is(byRole.suggested[0]?.holders, 2);
  t.deepEqual(
    byRole.beyond.map((i) => byRole.replay?.flips[i]?.principal.email),
    ['other@example.com'],
  );
  t.deepEqual(brief(await suggest({ decision_id, for: 'group:team' })), [['group', 'echo 1', 0]]);
  const notIn = await suggest({ decision_id, for: 'group:elsewhere' });
  t.like(notIn, { suggested: [], verdict: 'equal', replay: null });
  t.is(notIn.skipped['not_in_group'], 1);
  t.is((await suggest({ decision_id: odd?.id })).skipped['not_canonical'], 1);

  // A deny is never outranked silently.
  const denied = await suggest({ decision_id: env?.id });
  t.like(denied, { suggested: [], files: {} });
  t.like(denied.left_out[0], { reason: 'denied', resource_name: 'get-env', policy: { name: 'No environment for guests' } });
  const over = await suggest({ decision_id: env?.id, over_denies: true });
  t.deepEqual(brief(over), [['user', 'get-env 1', 501]]);
  t.deepEqual(
    over.suggested[0]?.outranks.map(({ name }) => name),
    ['No environment for guests'],
  );

  const all = await suggest({ denied: {}, for: 'role' });
  t.deepEqual(brief(all), [['role', 'echo 3', 0]]);
  t.is(all.suggested[0]?.names[0]?.users, 2);
  t.deepEqual(all.beyond, []);
  t.deepEqual(brief(await suggest({ denied: { user: 'other@example.com', target: 'everything', role: 'user' } })), [
    ['user', 'echo 1', 0],
  ]);
  t.deepEqual((await suggest({ denied: {}, for: 'role', min_count: 4 })).left_out.map(({ reason }) => reason).sort(), [
    'rare',
    'rare',
  ]);

  // What it says is what happens.
  await call(200, 'POST', '/apply', { files: one.files, expected_revision: 1 });
  t.deepEqual(
    [await call_(client, 'echo'), await call_(client, 'get-env'), await call_(otherClient, 'echo')],
    ['allowed', 'denied', 'denied'],
  );
  t.is((await suggest({ decision_id })).skipped['allowed_now'], 1);

  // The groups of erased users are unknown, so nothing can be said.
  await gateway.rest(200, 'POST', '/api/logs/erase', { token: admin.token, body: { user_id: other.id } });
  const erased = await suggest({ denied: { user: other.id } });
  t.deepEqual(erased.suggested, []);
  t.true((erased.skipped['erased'] ?? 0) > 0);
});

eachEngine(
  test.serial,
  'a caller without access gets the use of the target, and a target that is gone is said to be',
  async (t, at) => {
    const w = await world(t, at.url);
    const { gateway, admin, user } = w;
    const { call } = policySets(gateway, admin.token);
    const suggest = async (body: object): Promise<Answer> =>
      (await call<Answer>(200, 'POST', '/suggest', { from, ...body })).body;
    await t.throwsAsync(modernClient(t, w.mcp, w.token, 'legacy'));
    await t.throwsAsync(modernClient(t, `${gateway.url}/mcp/nowhere`, w.token, 'legacy'));
    const found = await suggest({ denied: {} });
    t.deepEqual(brief(found), [['user', 'null 1', 0]]);
    t.is(found.skipped['no_target'], 1);
    t.regex(Object.values(found.files).join(), /resource_pattern: \^\$\n/);
    await call(200, 'POST', '/apply', { files: found.files });
    const client = await modernClient(t, w.mcp, w.token, 'legacy');
    t.deepEqual((await client.listTools()).tools, []);
    await t.throwsAsync(client.callTool({ name: 'echo', arguments: { message: 'x' } }));
    t.deepEqual(brief(await suggest({ denied: { user: user.id } })), [['user', 'echo 1', 0]]);
  },
);

eachEngine(test.serial, 'a role keeps what it used, and the proposal says what goes and what stays', async (t, at) => {
  const w = await world(t, at.url);
  const { gateway, admin } = w;
  const { call, apply } = policySets(gateway, admin.token);
  const users = [{ subject_type: 'role', subject_value: 'user' }] as const;
  await apply({
    'users.yaml': file({
      name: 'Users may do everything',
      resource_type: 'all',
      resource_pattern: null,
      subjects: users,
      priority: 5,
    }),
    'echo.yaml': file({ name: 'Everyone may echo', priority: 50 }),
    'both.yaml': file({
      name: 'Users and operators',
      resource_pattern: '^get-env$',
      subjects: [...users, { subject_type: 'role', subject_value: 'operator' }],
    }),
  });
  await apply(
    { 'theirs.yaml': file({ name: 'Of a different owner', resource_pattern: '^get-tiny-image$', subjects: users }) },
    { owner: 'theirs' },
  );
  await w.allow({ name: 'Over the API', resource_type: 'prompt', subjects: [...users] });
  const client = await modernClient(t, w.mcp, w.token, 'legacy');
  const { tools } = await client.listTools();
  for (const name of ['echo', 'get-sum', 'get-sum', 'get-tiny-image'])
    await client.callTool({ name, arguments: { message: 'x', a: 1, b: 2 } });

  const { body: found } = await call<Answer>(200, 'POST', '/suggest', { from, least_privilege: 'user' });
  t.deepEqual(brief(found), [['role', 'get-sum 2', 5]]);
  t.like(found, { verdict: 'stricter', prune: true, adopt: true, replay: null });
  t.is(found.role?.lost, 0);
  t.true((found.role?.replayed ?? 0) >= 6);
  t.deepEqual(found.role?.kept.map(({ policy, reason }) => `${policy.name}: ${reason}`).sort(), [
    'Everyone may echo: other_subjects',
    'Of a different owner: other_owner',
    'Users and operators: other_subjects',
  ]);
  const unused = found.role?.unused.map(({ resource_name }) => resource_name) ?? [];
  t.true(unused.includes('get-env') && !unused.includes('echo') && !unused.includes('get-sum'));
  t.is(unused.length, tools.length - 3);

  const applied = await apply(found.files, { prune: true, adopt: true });
  t.deepEqual(applied.changes.map(({ action, name }) => `${action} ${name}`).sort(), [
    'adopt Over the API',
    'create everything: tools for role user',
    'delete Users may do everything',
    'update Users and operators',
  ]);
  t.deepEqual((await client.listTools()).tools.map(({ name }) => name).sort(), ['echo', 'get-sum', 'get-tiny-image']);
  await client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } });
  await t.throwsAsync(client.callTool({ name: 'get-env', arguments: {} }));
  const again = (await call<Answer>(200, 'POST', '/suggest', { from, least_privilege: 'user', min_count: 3 })).body;
  t.is(again.role?.lost, 0, 'get-sum was called three times');
  const rare = (await call<Answer>(200, 'POST', '/suggest', { from, least_privilege: 'user', min_count: 4 })).body;
  t.is(rare.role?.lost, 3);
  t.deepEqual(
    rare.left_out.map(({ reason, resource_name }) => `${reason} ${resource_name}`),
    ['rare get-sum'],
  );
});

test.serial('a question that makes no sense is refused with its mistakes', async (t) => {
  const w = await world(t);
  const { gateway, admin, token } = w;
  const { call } = policySets(gateway, admin.token);
  const detail = async (status: number, body: object): Promise<string> =>
    (await call<ProblemAnswer>(status, 'POST', '/suggest', body)).body.detail;
  const decision_id = '00000000-0000-7000-8000-000000000000';
  t.regex(await detail(400, { from }), /one of `decision_id`, `denied` and `least_privilege`/);
  t.regex(await detail(400, { from, denied: {}, least_privilege: 'user' }), /only one of/);
  t.regex(await detail(400, { denied: {} }), /from: is required/);
  t.regex(await detail(400, { from: '2999-01-01T00:00:00Z', denied: {} }), /must be before `to`/);
  t.regex(await detail(400, { from, least_privilege: 'user', for: 'role' }), /together with `least_privilege`/);
  t.regex(await detail(400, { from, denied: {}, for: 'everyone' }), /for: must be `user`, `role` or/);
  t.regex(await detail(400, { from, denied: { target: 'nowhere' } }), /denied.target: no target has this name/);
  t.regex(await detail(400, { from, denied: { user: 'nobody@example.com' } }), /denied.user: no user has/);
  t.is(await detail(404, { from, decision_id }), 'No decision has this id.');
  await gateway.rest(403, 'POST', '/api/policies/suggest', { token, body: { from, denied: {} } });
});

test.serial('the command writes files that apply as the report says', async (t) => {
  const w = await world(t);
  const { gateway, admin } = w;
  const { apply, policies } = policySets(gateway, admin.token);
  const { token } = await apiToken(gateway, admin);
  const run = (...args: string[]): Promise<Ran> =>
    inProcess({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, (terminal) => command(args, terminal));
  await apply({ 'sum.yaml': file({ name: 'Sums', resource_pattern: '^get-sum$' }) });
  const client = await modernClient(t, w.mcp, w.token);
  const odd = '# x: &a \u202e\u2028"\\E';
  for (const name of ['echo', odd]) await t.throwsAsync(client.callTool({ name, arguments: {} }));

  const shown = await run('suggest', '--denied', '--for', 'role');
  t.is(shown.code, 0, shown.err);
  t.regex(shown.out, /^# Decisions from /);
  t.regex(shown.out, /# {3}tool "echo": 1 request of 1 user\n/);
  t.regex(shown.out, /# {3}Users with role "user": 1\. Denies may still keep some of them out\.\n/);
  t.regex(shown.out, /# Decisions: looser/);
  t.regex(shown.out, /# Recorded requests that would be allowed: 2\. You asked about all of them\.\n/);
  t.notRegex(shown.out, /[\u202e\u2028]/);
  const dir = join(folder(t), 'made');
  const written = await run('suggest', '--denied', '--for', 'role', '--out', dir);
  t.is(written.code, 0, written.err);
  const [name = ''] = readdirSync(dir);
  t.is((await run('apply', '--dir', dir, '--owner', 'default')).code, 0);
  const made = (await policies()).find(({ managed_as }) => managed_as === `default/${name.replace('.yaml', '')}`);
  t.is(made?.resource_pattern, '^(# x: &a \\x{202e}\\x{2028}"\\\\E|echo)$');
  await client.callTool({ name: 'echo', arguments: { message: 'x' } });

  // The text of the terminal is itself a policy file.
  const redirected = join(folder(t), 'redirected');
  mkdirSync(redirected);
  writeFileSync(join(redirected, name), shown.out);
  const { out } = await run('plan', '--dir', redirected, '--owner', 'default');
  t.regex(out, /^Decisions: equal/);
  t.regex(out, /0 to create, 1 to update, /);

  const none = await run('suggest', '--denied');
  t.is(none.code, 1);
  t.regex(none.out, /No policy is suggested/);
  const least = join(folder(t), 'least');
  const narrowed = await run('suggest', '--least-privilege', 'user', '--out', least);
  t.is(narrowed.code, 0, narrowed.err);
  t.regex(narrowed.out, /None gets a different effect\./);
  for (const out of [least, join(least, 'missing'), join(dir, name)]) {
    const early = await inProcess({ PORTCULLIS_URL: 'http://127.0.0.1:1', PORTCULLIS_TOKEN: token }, (terminal) =>
      command(['suggest', '--least-privilege', 'user', '--out', out], terminal),
    );
    t.is(early.code, 1);
    t.is(/is not an empty folder/.test(early.err), existsSync(out), early.err);
  }
  const drafted = await run('suggest', '--least-privilege', 'user', '--draft', 'narrow');
  t.regex(drafted.out, /Saved the draft narrow\.\n$/);
  t.is((await run('replay', '--draft', 'narrow')).code, 0);
  t.true(JSON.parse((await run('suggest', '--least-privilege', 'user', '--json')).out).role.replayed > 0);

  for (const args of [
    ['suggest'],
    ['suggest', '--denied', '--least-privilege', 'user'],
    ['suggest', '--least-privilege', 'user', '--for', 'role'],
    ['suggest', '--least-privilege', 'user', '--target', 'everything'],
    ['suggest', '--denied', '--min-count', '0'],
    ['suggest', '--denied', '--draft', 'A'],
    ['suggest', '--denied', '--since', '7'],
  ])
    t.is((await run(...args)).code, 2, args.join(' '));
});

test.serial('the command does not say what a replay that lists only a part cannot know', async (t) => {
  const w = await world(t);
  const { token } = await apiToken(w.gateway, w.admin);
  await w.allow({ name: 'Sums', resource_pattern: '^get-sum$' });
  const client = await modernClient(t, w.mcp, w.token);
  for (let n = 0; n < 101; n++) await t.throwsAsync(client.callTool({ name: `t${n}`, arguments: {} }));
  const { out } = await inProcess({ PORTCULLIS_URL: w.gateway.url, PORTCULLIS_TOKEN: token }, (terminal) =>
    command(['suggest', '--denied'], terminal),
  );
  t.regex(out, /\n# Recorded requests that would be allowed: 100\. You asked about all of them\.\n/);
  t.regex(out, /\n# .*It left out 1 decision: you may not have asked about some of them\.\n/);
});
