import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { FILE_NAME } from '../../src/policies/files/file.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { call, modernClient, openSession, post } from '../support/mcp.ts';
import { world } from '../support/world.ts';
import { policyBody } from './policies.ts';
import { addTarget, type Files, file, type ProblemAnswer, policySets } from './sets.ts';

const starters = join(import.meta.dirname, '../../policies');
const filesIn = (folder: string): Files =>
  Object.fromEntries(
    readdirSync(folder)
      .filter((name) => FILE_NAME.test(name))
      .map((name) => [name, readFileSync(join(folder, name), 'utf8')]),
  );

interface Answered {
  readonly effect: string;
  readonly reason: string;
  readonly policy: { readonly id: string | null; readonly name: string; readonly file: string | null } | null;
}
interface Explained extends Answered {
  readonly revision: number;
  readonly principal: { readonly sub: string; readonly email: string | null; readonly enabled: boolean };
  readonly passed_over: readonly { readonly name: string; readonly misfit: string; readonly wants: string | null }[];
  readonly passed_over_count: number;
}
interface Simulated {
  readonly changed: number;
  readonly results: readonly { readonly now: Answered; readonly would_be: Answered; readonly change: string }[];
}
interface Tested {
  readonly revision: number;
  readonly passed: number;
  readonly failed: number;
  readonly results: readonly { readonly passed: boolean; readonly actual: Answered }[];
  readonly coverage: { readonly policies: number; readonly percent: number };
}
interface Row {
  readonly subject_type: string;
  readonly subject_value: string | null;
  readonly email: string | null;
  readonly target: string;
  readonly resource_type: string | null;
  readonly resource_name: string | null;
  readonly policy_name: string;
}

eachEngine(test.serial, 'explain, simulate and test answer as the gateway decides, and store nothing', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const { call, apply, revision, policies } = policySets(gateway, admin.token);
  await addTarget(gateway, admin.token, 'everything');
  await gateway.rest(200, 'PUT', `/api/users/${user.id}`, {
    token: admin.token,
    body: { groups: ['developers', 'contractors'] },
  });
  const files = filesIn(starters);
  const tests = filesIn(join(starters, 'tests'));

  // Before there is any policy: as the files would make it.
  const early = (await call<Tested>(200, 'POST', '/test', { tests, files })).body;
  t.is(early.failed, 0);
  t.like(early.coverage, { policies: 6, percent: 100 });
  t.is(early.results.find(({ actual }) => actual.policy !== null)?.actual.policy?.id, null);
  t.is(await revision(), 0);
  const without = (await call<ProblemAnswer>(400, 'POST', '/test', { tests })).body;
  t.regex(without.detail, /^starter\.yaml:\d+:\d+: no policy and no policy file has the name /);

  await apply(files);
  const live = (await call<Tested>(200, 'POST', '/test', { tests })).body;
  t.deepEqual([live.passed, live.failed, live.revision], [early.passed, 0, 1]);

  const blob = { resource_type: 'resource', resource_name: 'demo://resource/dynamic/blob/1' };
  const asked = { principal: { user: 'USER@example.com' }, target: 'everything', ...blob };
  const why = (await call<Explained>(200, 'POST', '/explain', asked)).body;
  t.like(why, { effect: 'deny', reason: 'matched', principal: { sub: user.id, email: user.email, enabled: true } });
  t.is(why.policy?.file, 'contractors-stay-out-of-blobs.yaml');
  t.deepEqual(
    why.passed_over.map(({ name, misfit, wants }) => ({ name, misfit, wants })),
    [{ name: 'Nobody prints the environment', misfit: 'resource_type', wants: 'tool' }],
  );
  const byId = (await call<Explained>(200, 'POST', '/explain', { ...asked, principal: { user: user.id } })).body;
  t.deepEqual(byId, why);
  const stranger = (await call<Explained>(200, 'POST', '/explain', { ...asked, principal: { role: 'user' } })).body;
  t.like(stranger, { effect: 'deny', reason: 'default', policy: null, passed_over_count: 6 });
  t.true(stranger.passed_over.some(({ misfit, wants }) => misfit === 'subject' && wants === 'group:contractors'));
  const target = (await call<Explained>(200, 'POST', '/explain', { principal: { role: 'developer' }, target: 'everything' }))
    .body;
  t.like(target, { effect: 'allow', reason: 'matched' });
  const twice = { ...asked, resource_name: 'demo://resource/a/../b' };
  t.like((await call<Explained>(200, 'POST', '/explain', twice)).body, { reason: 'not_canonical', passed_over_count: 0 });
  // No request can have these names, so there is no answer about them.
  for (const [resource_type, resource_name] of [
    ['tool', '\u{1f511}'.repeat(257)],
    ['prompt', 'p'.repeat(257)],
    ['resource', `demo://{+${'\u20ac'.repeat(700)}}`],
  ]) {
    const unsent = { ...asked, resource_type, resource_name };
    t.regex(
      JSON.stringify((await call(400, 'POST', '/explain', unsent)).body),
      /"resource_name","message":"no request can have it/,
    );
    const query = new URLSearchParams({
      target: 'everything',
      resource_type: `${resource_type}`,
      resource_name: `${resource_name}`,
    });
    await call(400, 'GET', `/access?${query}`);
  }
  const longest = { ...asked, resource_type: 'tool', resource_name: '\u{1f511}'.repeat(256) };
  t.like((await call<Explained>(200, 'POST', '/explain', longest)).body, { reason: 'default' });

  // A file less, one more, and one changed.
  const { 'contractors-stay-out-of-blobs.yaml': _, ...fewer } = files;
  const would = { ...fewer, 'new.yaml': file({ name: 'New', target: 'everything', resource_pattern: '^added$', priority: 1 }) };
  const requests = [
    asked,
    { principal: { role: 'user' }, target: 'everything', resource_type: 'tool', resource_name: 'added' },
    { principal: { role: 'user' }, target: 'everything', resource_type: 'tool', resource_name: 'echo' },
  ];
  const simulated = (await call<Simulated>(200, 'POST', '/simulate', { files: would, prune: true, requests })).body;
  t.deepEqual(
    simulated.results.map(({ change, now, would_be }) => [change, now.effect, would_be.effect, would_be.policy?.id ?? null]),
    [
      ['grants', 'deny', 'allow', (await policies()).find(({ name }) => name.startsWith('Developers read'))?.id ?? ''],
      ['grants', 'deny', 'allow', null],
      ['none', 'deny', 'deny', null],
    ],
  );
  t.is(simulated.changed, 2);
  const kept = (await call<Simulated>(200, 'POST', '/simulate', { files: would, requests })).body;
  t.is(kept.results[0]?.change, 'none');
  t.is(await revision(), 1);

  // After a change the set of before is not asked again.
  const denying = (await policies()).find(({ managed_as }) => managed_as === 'default/contractors-stay-out-of-blobs');
  await call(200, 'PUT', `/${denying?.id}?override=true`, { enabled: false });
  t.like((await call<Explained>(200, 'POST', '/explain', asked)).body, { effect: 'allow', revision: 2 });
  t.true((await call<Tested>(200, 'POST', '/test', { tests })).body.failed > 0);
});

test.serial('a bad question is refused with its mistakes, and only administrators may ask', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const { call } = policySets(gateway, admin.token);
  await addTarget(gateway, admin.token, 'everything');
  const good = { principal: { role: 'a' }, target: 'everything' };
  const refused = async (path: string, body: object): Promise<string> =>
    (await call<ProblemAnswer>(400, 'POST', path, body)).body.detail;

  t.is(await refused('/explain', { ...good, target: 'nothing' }), 'target: no target has this name');
  t.is(await refused('/explain', { ...good, principal: { user: 'x@y' } }), 'principal.user: no user has this id or e-mail');
  t.regex(await refused('/explain', { ...good, principal: {} }), /principal: must have either `user` or `role`/);
  t.regex(
    await refused('/explain', { ...good, principal: { user: 'a', groups: [] } }),
    /principal: must not have `sub` or `groups` together with `user`/,
  );
  t.regex(await refused('/explain', { ...good, resource_type: 'tool' }), /or neither/);
  t.regex(await refused('/explain', { ...good, resource_type: 'tool', resource_name: 'a\u0000' }), /control characters/);
  t.regex(await refused('/explain', { ...good, more: 1 }), /more: is not a member/);
  const requests = Array.from({ length: 1001 }, () => good);
  t.regex(await refused('/simulate', { files: {}, requests }), /less than or equal to 1000/);
  t.regex(await refused('/simulate', { files: { 'a.yaml': 'name: x' }, requests: [good] }), /a\.yaml:1:1/);
  t.is(
    await refused('/simulate', { files: {}, requests: [good, { ...good, target: 'b' }] }),
    'requests.1.target: no target has this name',
  );
  t.regex(await refused('/test', { tests: { 'a.yaml': 'tests: 1' } }), /^a\.yaml:1:1: /);
  t.regex(await refused('/test', { tests: { 'A.yaml': '' } }), /the name of a policy file/);
  t.regex(await refused('/test', { tests: { 'a.yaml': '' }, prune: true }), /is only allowed with `files`/);
  const many = (count: number, of: string): string => Array.from({ length: count }, (_, i) => `  n${i}: ${of}\n`).join('');
  const big = `target: everything\nprincipals:\n${many(100, '{ role: a }')}requests:\n${many(100, '{ tool: a }')}tests:\n  - name: a\n`;
  t.regex(await refused('/test', { tests: { 'a.yaml': big, 'b.yaml': big } }), /at most 10000 cases in all files together/);
  for (const query of [
    '?target=none',
    '?who=nobody',
    '?who=user:x',
    '?format=xml',
    '?resource_type=tool',
    '?a=1',
    '?who=a&who=b',
  ]) {
    await call(400, 'GET', `/access${query}`);
  }
  await call(400, 'GET', '/access?format=csv&limit=1');
  await call(400, 'GET', '/lint?x=1');
  for (const [method, path] of [
    ['POST', 'explain'],
    ['POST', 'simulate'],
    ['POST', 'test'],
    ['GET', 'access'],
    ['GET', 'lint'],
  ] as const) {
    await gateway.rest(403, method, `/api/policies/${path}`, { token: user.token, ...(method === 'POST' ? { body: good } : {}) });
  }
});

eachEngine(test.serial, 'the access report lists exactly what each user can call', async (t, at) => {
  const w = await world(t, at.url);
  const { gateway, admin, user } = w;
  const gone = await person(gateway, 'gone@example.com');
  await gateway.rest(200, 'PUT', `/api/users/${gone.id}`, { token: admin.token, body: { enabled: false } });
  const { call } = policySets(gateway, admin.token);
  await addTarget(gateway, admin.token, 'other');
  await w.allow({
    name: '=Users echo',
    resource_type: 'tool',
    resource_pattern: '^echo$',
    subjects: [{ subject_type: 'role', subject_value: 'user' }],
  });
  await call(
    201,
    'POST',
    '',
    policyBody({ name: 'Group', resource_pattern: '^x$', subjects: [{ subject_type: 'group', subject_value: 'g' }] }),
  );
  await w.allow({ name: 'No', effect: 'deny', resource_type: 'tool', resource_pattern: '^get-env$', priority: 99 });
  const client = await modernClient(t, w.mcp, w.token);
  await client.callTool({ name: 'echo', arguments: { message: 'hello' } });
  await t.throwsAsync(client.callTool({ name: 'get-env', arguments: {} }));

  const rows = async (query: string): Promise<string[]> =>
    (await call<Row[]>(200, 'GET', `/access${query}`)).body.map(
      ({ subject_type, subject_value, email, target, resource_name }) =>
        `${email ?? `${subject_type} ${subject_value}`}: ${target}${resource_name === null ? '' : ` ${resource_name}`}`,
    );
  t.deepEqual(await rows('?target=everything&resource_type=tool&resource_name=echo'), [
    'role user: everything echo',
    'user@example.com: everything echo',
  ]);
  t.deepEqual(await rows('?target=everything&resource_type=tool&resource_name=get-env'), []);
  t.deepEqual((await rows('?target=everything')).sort(), [
    'group g: everything',
    'role user: everything',
    'role user: everything echo',
    'user@example.com: everything',
    'user@example.com: everything echo',
  ]);
  const own = ['user@example.com: everything', 'user@example.com: everything echo', 'user@example.com: other'];
  t.deepEqual((await rows('?who=user:user@example.com')).sort(), own);
  t.deepEqual((await rows(`?who=user:${user.id}`)).sort(), own);
  t.deepEqual(await rows(`?who=user:${gone.id}`), []);
  t.deepEqual((await rows('?who=group:g')).sort(), ['group g: everything', 'group g: other']);
  t.deepEqual(await rows('?who=everyone'), []);

  // Pages with one user each have the same rows as a single page.
  const all = await rows('');
  const paged: string[] = [];
  let pages = 0;
  for (let query: string | null = '?limit=1'; query !== null; pages++) {
    const answer: { headers: Headers } = await call<Row[]>(200, 'GET', `/access${query}`);
    paged.push(...(await rows(query)));
    query = /<[^?]*(\?[^>]*)>; rel="next"/.exec(answer.headers.get('link') ?? '')?.[1] ?? null;
  }
  t.deepEqual(paged, all);
  t.is(pages, 3);

  const csv = await fetch(`${gateway.url}/api/policies/access?format=csv`, {
    headers: { authorization: `Bearer ${admin.token}` },
  });
  t.is(csv.headers.get('content-type'), 'text/csv; charset=utf-8');
  const lines = (await csv.text()).split('\r\n');
  t.is(lines.length, all.length + 2);
  t.true(lines.some((line) => line.includes(`"'=Users echo"`)));
});

test.serial('lint names policies and targets by name, and only existing users', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call, apply } = policySets(gateway, admin.token);
  await addTarget(gateway, admin.token, 'everything');
  await apply({
    'deny.yaml': file({ name: 'Deny', effect: 'deny', priority: 20 }),
    'allow.yaml': file({ name: 'Allow', target: 'everything', subjects: [{ subject_type: 'role', subject_value: 'ghost' }] }),
  });
  const { body } = await call<{
    analysed: number;
    findings: { code: string; policies: { file: string }[]; witness: { target: string } | null }[];
  }>(200, 'GET', '/lint');
  t.is(body.analysed, 2);
  const found = body.findings.find(({ code }) => code === 'contradiction');
  t.deepEqual(
    found?.policies.map((policy) => policy.file),
    ['allow.yaml', 'deny.yaml'],
  );
  t.is(found?.witness?.target, 'everything');
  t.true(body.findings.some(({ code, policies: [about] }) => code === 'unknown_role' && about?.file === 'allow.yaml'));
});

test.serial('a page of the access report has few more than 10,000 rows, however many groups the policies name', async (t) => {
  const w = await world(t);
  const groups = Array.from({ length: 130 }, (_, i) => `g${String(i).padStart(3, '0')}`);
  // The first page ends here.
  groups[98] += '\u{1f600}'.repeat(252);
  const subjects = groups.map((subject_value) => ({ subject_type: 'group', subject_value }));
  await w.allow({ name: 'Groups', resource_type: 'tool', subjects: [...subjects, { subject_type: 'role', subject_value: 'r' }] });
  await w.allow({ name: 'User', resource_type: 'prompt', subjects: [{ subject_type: 'user', subject_value: w.user.id }] });
  const session = await openSession(w.mcp, w.token);
  const headers = { 'mcp-session-id': session };
  await Promise.all(Array.from({ length: 100 }, (_, i) => post(w.mcp, w.token, call(`t${i}`), headers)));
  const { call: ask } = policySets(w.gateway, w.admin.token);
  const pages: string[][] = [];
  for (let query: string | null = '?limit=1'; query !== null; ) {
    const answer: { headers: Headers; body: Row[] } = await ask<Row[]>(200, 'GET', `/access${query}`);
    pages.push(answer.body.map(({ subject_value, resource_name }) => `${subject_value} ${resource_name}`));
    query = /<[^?]*(\?[^>]*)>; rel="next"/.exec(answer.headers.get('link') ?? '')?.[1] ?? null;
  }
  const names = [null, ...Array.from({ length: 100 }, (_, i) => `t${i}`).sort()];
  const expected = ['r', ...groups].flatMap((subject) => names.map((name) => `${subject} ${name}`));
  t.deepEqual(pages.flat(), [...expected, `${w.user.id} null`]);
  t.is(pages[0]?.length, 100 * names.length);
  t.is(pages.length, 3);
});
