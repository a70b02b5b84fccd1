/** Heavy work of administrators over REST is refused if it takes too much, and ends if its client disconnects. */
import type { AddressInfo } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import express, { type ErrorRequestHandler, Router } from 'express';
import type { Caller } from '../../src/auth/caller.ts';
import type { TokenLimits } from '../../src/auth/principal.ts';
import { type GivenRight, type Held, rightsOf } from '../../src/auth/rights.ts';
import { AppError } from '../../src/base/errors.ts';
import { knownReading, knownWork } from '../../src/engine/compile/pattern.ts';
import { openContext } from '../../src/http/context.ts';
import { type AskedBy, createHeavyWork, type HeavyParts, type HeavyWork } from '../../src/policies/heavy/heavy.ts';
import type { HeavyAnswer } from '../../src/policies/heavy/jobs.ts';
import { ACCEPTED } from '../../src/policies/sets/set-check.ts';
import { answerWork } from '../../src/rest/policies/heavy-answer.ts';
import { createPolicySetRoutes } from '../../src/rest/policy-sets/routes.ts';
import type { Admission } from '../../src/state/admission.ts';
import { ADMIN, ALL_RIGHTS } from '../support/authority.ts';
import { person, rest, startGateway } from '../support/gateway.ts';
import { dataDir, runGateway } from '../support/process.ts';
import { policy, policyBody } from './policies.ts';
import { file, type ProblemAnswer, policySets } from './sets.ts';

const many = (count: number): Record<string, string> =>
  Object.fromEntries(
    Array.from({ length: count }, (_, i) => [
      `p${i}.yaml`,
      file({
        name: `P${i}`,
        resource_pattern: `^tool_${i}_(read|write)$`,
        subjects: [{ subject_type: 'group', subject_value: `g${i % 300}` }],
      }),
    ]),
  );

test.serial('a plan that does not fit into memory is refused, and the gateway keeps running', async (t) => {
  t.timeout(300_000);
  // Made first: while it is made, the gateway could close the idle connection that the next request takes.
  // Far more than fits: at the edge of the limit, the thread would collect garbage for minutes.
  const groups = Array.from({ length: 30 }, (_, i) => `group:${i}`).join();
  const files = Object.fromEntries(
    Array.from({ length: 9_800 }, (_, i) => [
      `${i}.yaml`,
      `name: ${i}\nresource_type: tool\neffect: allow\npriority: 1\nsubjects: [${groups}]\n`,
    ]),
  );
  const gateway = await runGateway(t, {
    DATA_DIR: dataDir(t),
    LOG_LEVEL: 'silent',
    NODE_OPTIONS: '--max-old-space-size=64',
  });
  const password = 'correct horse battery staple';
  const account = { email: 'admin@example.com', password };
  await rest(gateway.url, 'POST', '/api/auth/register', { body: account });
  const { body } = await rest<{ token: string }>(gateway.url, 'POST', '/api/auth/login', { body: account });
  const { token } = body;
  const planned = await rest<{ code: string; detail: string }>(gateway.url, 'POST', '/api/policies/plan', {
    token,
    body: { files },
  });
  t.is(planned.status, 413);
  t.like(planned.body, { code: 'too_large' });
  t.regex(planned.body.detail, /exceeds the memory limit for .* MiB\).* --max-old-space-size/);
  t.is((await rest(gateway.url, 'POST', '/api/policies', { token, body: policyBody() })).status, 201);
  t.is((await rest(gateway.url, 'POST', '/api/policies/plan', { token, body: { files: { 'a.yaml': file() } } })).status, 200);
  t.is(gateway.child.exitCode, null);
});

test.serial('a worker thread reads the body of an apply, after the role of the caller is known', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const apply = async ({ token }: { token: string }, body: string) => {
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
    const answer = await fetch(`${gateway.url}/api/policies/apply`, { method: 'POST', headers, body });
    return { status: answer.status, text: await answer.text() };
  };
  t.is((await apply(user, '{"files":')).status, 403);
  const broken = await apply(admin, '{"files":');
  t.is(broken.status, 400);
  t.regex(broken.text, /the body is not acceptable JSON: the text ends too early at offset 9/);
  t.regex((await apply(admin, '{"files":{"a.yaml":1,"b.yaml":2}}')).text, /"files.a.yaml".*"files.b.yaml"/);
  t.regex((await apply(admin, '{"files":{},"tests":{}}')).text, /"tests"/);
  t.regex((await apply(admin, '')).text, /the body is required|"path":""/);
  const applied = await apply(admin, JSON.stringify({ files: many(150), owner: 'me', reason: 'why not' }));
  t.is(applied.status, 200, applied.text);
  t.is((JSON.parse(applied.text) as { changes: object[] }).changes.length, 150);
  const history = await rest<{ reason: string }[]>(gateway.url, 'GET', '/api/policies/history', { token: admin.token });
  t.is(history.body[0]?.reason, 'why not');
});

test.serial('the patterns of an apply, a draft and a rollback do not hold the thread of the gateway', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call, apply } = policySets(gateway, admin.token);
  const files = (count: number, pattern: (n: number) => string) =>
    Object.fromEntries(Array.from({ length: count }, (_, n) => [`p${n}.yaml`, file({ resource_pattern: pattern(n) })]));
  const known = (pattern: string) => [knownReading(pattern), knownWork(knownReading(pattern))];
  const endless = files(2, (n) => `a[ab]{50}h${n}`);
  for (const request of [
    () => call<ProblemAnswer>(400, 'POST', '/apply', { files: endless }),
    () => call<ProblemAnswer>(400, 'PUT', '/drafts/d', { files: endless }),
  ]) {
    const { errors = [] } = (await request()).body;
    t.deepEqual(
      errors.map(({ path, line, message }) => [path, line, /\. The pattern a\[ab\]\{50\}h\d has too many states:/.test(message)]),
      ['p0', 'p1'].map((name) => [`files.${name}.yaml`, 3, true]),
    );
  }
  t.deepEqual(known('a[ab]{50}h0'), [undefined, undefined], 'it was read in a thread');
  await apply(files(1, () => 'a[ab]{3}h'));
  await apply(files(1, () => '^echo$'));
  await call(200, 'POST', '/rollback', { revision: 1 });
});

const none = async () => [];

test('the gateway need not read again the patterns of a set that the thread has accepted', async (t) => {
  const work = createHeavyWork({} as HeavyParts);
  t.teardown(work.close);
  const pattern = 'a[ab]+h[0-9]x';
  const policies = [policy('stored', { resource_pattern: 'a[ab]{50}i' }), policy('new', { resource_pattern: pattern })];
  t.deepEqual(await work.checkSet(policies, { ids: new Set(['new']), wereStored: false }, none, ADMIN), ACCEPTED);
  t.is(typeof knownWork(knownReading(pattern)), 'number');
  const { problems } = await work.checkSet(policies, { ids: new Set(['stored']), wereStored: false }, none, null);
  t.deepEqual(
    problems.map(({ policyId }) => policyId),
    ['stored'],
  );
});

/** Heavy work on a database that does not answer, so that checks of invariants do not end. `begun` resolves when so many have begun. */
function startEndless(t: ExecutionContext) {
  let [asked, count] = [0, Number.POSITIVE_INFINITY];
  let tell = (): void => {};
  const snapshot = () => {
    if (++asked >= count) tell();
    return new Promise<never>(() => {});
  };
  const work = createHeavyWork({ database: { snapshot } } as unknown as HeavyParts);
  t.teardown(work.close);
  const begun = (many: number) =>
    new Promise<void>((resolve) => {
      [tell, count] = [resolve, many];
      if (asked >= many) resolve();
    });
  const manager = (sub: string, signal = new AbortController().signal): Caller => ({
    ...{ ...ADMIN, principal: { ...ADMIN.principal, sub }, managesAll: false, signal },
  });
  const check = (caller: Caller) => work.checkInvariants({ invariants: [] }, caller);
  return { work, begun, manager, check };
}

test('managers whose jobs do not end do not keep an administrator from changing policies', async (t) => {
  const { work, begun, manager, check } = startEndless(t);
  const endless = Promise.allSettled(['ann', 'ben'].map((sub) => check(manager(sub))));
  await begun(2);
  const texts = new Map([['a.yaml', file()]]);
  const body = Buffer.from(JSON.stringify({ files: Object.fromEntries(texts) }));
  t.deepEqual((await work.applyBody(body, ADMIN)).files, texts);
  t.is((await work.readFiles(texts, ADMIN)).size, 1);
  t.deepEqual(await work.checkSet([], { ids: new Set(), wereStored: false }, none, ADMIN), ACCEPTED);
  await work.checkTests(new Map(), ADMIN);
  t.is((await work.test(new Map(), { policies: [], targets: [] }, ADMIN)).failed, 0);
  await work.close();
  t.deepEqual([...new Set((await endless).map(({ status }) => status))], ['rejected']);
});

test('the jobs of a change end when its client disconnects, and the next ones run', async (t) => {
  const { work, begun, manager, check } = startEndless(t);
  const [leaving, left] = [new AbortController(), new AppError('unavailable', 'left')];
  const endless = Promise.allSettled([check(manager('ann')), check(manager('ben', leaving.signal))]);
  await begun(2);
  const texts = new Map([['a.yaml', file()]]);
  const gone = manager('carl', leaving.signal);
  const waiting = [
    work.applyBody(Buffer.from('{"files":{}}'), gone),
    ...[work.readFiles(texts, gone), work.readInvariantFiles(texts, gone), work.checkTests(texts, gone)],
    work.checkSet([], { ids: new Set(), wereStored: false }, none, gone),
    ...[work.test(texts, { policies: [], targets: [] }, gone), check(gone)],
  ].map((job) => job.catch((error: unknown) => error));
  const next = work.readFiles(texts, manager('dora'));
  leaving.abort(left);
  t.deepEqual(new Set(await Promise.all(waiting)), new Set([left]));
  t.is((await next).size, 1);
  await work.close();
  t.is((await endless)[1]?.status, 'rejected');
});

test('an apply has the threads of managers if its caller may change only policies of owners', async (t) => {
  const held = (role: string, given: readonly Pick<GivenRight, 'right' | 'owner'>[], limits: TokenLimits | null = null) =>
    rightsOf(
      { sub: 'ann', granted: { role, groups: [] }, limits },
      given.map((one) => ({ subject_type: 'user', subject_value: 'ann', ...one })),
    );
  const manage = { right: 'policies:manage', owner: 'web' } as const;
  const found: (boolean | undefined)[] = [];
  for (const rights of [
    held('user', [manage]),
    held('user', [manage, { right: 'policies:plan', owner: null }]),
    held('admin', [], { rights: ['policies:manage'], owner: 'web', endpoints: null }),
    held('user', [manage, { ...manage, owner: null }]),
    held('user', [manage, { right: 'boundaries:manage', owner: null }]),
    held('admin', []),
  ]) {
    const url = await serveApply(t, rights, async (_body, { managesAll }) => {
      found.push(managesAll);
      throw new AppError('not_found', 'enough');
    });
    await fetch(`${url}apply`, { method: 'POST' });
  }
  t.deepEqual(found, [false, false, false, true, true, true]);
});

function serve(t: ExecutionContext, work: (asked: AskedBy) => Promise<HeavyAnswer>): Promise<string> {
  return serveWith(
    t,
    ALL_RIGHTS.held,
    Router().get('/', (req, res) => answerWork(req, res, work)),
  );
}

function serveApply(t: ExecutionContext, held: Held, applyBody: HeavyWork['applyBody']): Promise<string> {
  const parts = { heavy: { applyBody } } as unknown as Parameters<typeof createPolicySetRoutes>[0];
  return serveWith(t, held, createPolicySetRoutes(parts));
}

async function serveWith(t: ExecutionContext, held: Held, routes: Router): Promise<string> {
  const app = express()
    .use((_req, res, next) => {
      openContext(res, { requestId: 'r', admission: { principal: { sub: 'admin' } } as Admission, held });
      next();
    })
    .use(routes, ((_error, _req, res, _next) => void res.sendStatus(500)) satisfies ErrorRequestHandler);
  const server = app.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
}

test('the work ends when its client disconnects', async (t) => {
  const leaving = new AbortController();
  let ended: unknown;
  const over = new Promise<void>((resolve) => {
    void serve(t, ({ by, signal }) => {
      t.is(by, 'admin');
      return new Promise((_, reject) => {
        signal?.addEventListener('abort', () => {
          ended = signal.reason;
          reject(signal.reason);
          resolve();
        });
        leaving.abort();
      });
    }).then((url) => fetch(url, { signal: leaving.signal }).catch(() => undefined));
  });
  await over;
  t.true(ended instanceof AppError);
});

test('a client that accepts NDJSON gets progress lines, and an error that follows them', async (t) => {
  const answer: HeavyAnswer = {
    json: new TextEncoder().encode('{"a":1}'),
    position: { sequence: 1, nonce: 'n', revision: 7 },
  };
  let fails = false;
  const url = await serve(t, async ({ onProgress }) => {
    onProgress?.({ done: 1, total: 2 });
    if (fails) throw new AppError('too_large', 'Too much.');
    return answer;
  });
  const lines = { headers: { accept: 'application/x-ndjson' } };
  const plain = await fetch(url);
  t.deepEqual([plain.headers.get('portcullis-revision'), await plain.text()], ['7', '{"a":1}']);
  t.is(await (await fetch(url, lines)).text(), '{"progress":{"done":1,"total":2}}\n{"result":{"a":1}}\n');
  fails = true;
  const failed = (await (await fetch(url, lines)).text()).split('\n');
  t.deepEqual(JSON.parse(failed[1] ?? ''), { error: { code: 'too_large', detail: 'Too much.' } });
});

test.serial('a plan warns of exactly the roles and groups that no user has', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call } = policySets(gateway, admin.token);
  const subjects = [
    { subject_type: 'role' as const, subject_value: 'admin' },
    { subject_type: 'role' as const, subject_value: 'ghost' },
    { subject_type: 'group' as const, subject_value: 'nowhere' },
  ];
  const files = { 'a.yaml': file({ name: 'A', subjects }), 'off.yaml': file({ name: 'Off', enabled: false, subjects }) };
  const { body } = await call<{ warnings: { code: string }[] }>(200, 'POST', '/plan', { files });
  t.deepEqual(
    body.warnings.toSorted((a, b) => (a.code < b.code ? -1 : 1)),
    [
      { code: 'unknown_group', file: 'a.yaml', policy: 'A', message: '"A" names a group that no user has: "nowhere".' },
      { code: 'unknown_role', file: 'a.yaml', policy: 'A', message: '"A" names a role that no user has: "ghost".' },
    ],
  );
});

test.serial('a rollback of one owner does not give a policy to another owner', async (t) => {
  const gateway = await startGateway(t);
  const { token } = await person(gateway, 'admin@example.com');
  const { call, apply } = policySets(gateway, token);
  const made = { ...policyBody(), name: 'Shared' };
  await gateway.rest(201, 'POST', '/api/policies', { token, body: made });
  const shared = (await call<{ files: Record<string, string> }>(200, 'GET', '/export')).body.files;
  await apply(shared, { owner: 'one', adopt: true });
  await call(200, 'POST', '/rollback', { revision: 1 });
  await apply(shared, { owner: 'two', adopt: true });
  await apply({ 'shared.yaml': file({ name: 'Another' }) }, { owner: 'one' });
  for (const path of ['/rollback/plan', '/rollback']) {
    const { body } = await call<{ detail: string }>(400, 'POST', path, { revision: 2, owner: 'two' });
    t.regex(body.detail, /"Shared" .* belonged to owner one at that revision/);
  }
  await call(200, 'POST', '/rollback', { revision: 3, owner: 'two' });
});

test.serial('a rollback of one owner keeps the policies of others, and its plan changes nothing', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call, apply, policies, revision } = policySets(gateway, admin.token);
  const set = async (): Promise<string[]> => (await policies()).map(({ name, priority }) => `${name} ${priority}`).sort();
  await apply({ 'a.yaml': file({ name: 'A', priority: 1 }) }, { owner: 'one' });
  await apply({ 'a.yaml': file({ name: 'B', priority: 1 }) }, { owner: 'two' });
  await apply({ 'a.yaml': file({ name: 'A', priority: 2 }), 'new.yaml': file({ name: 'New', priority: 2 }) }, { owner: 'one' });
  await apply({ 'a.yaml': file({ name: 'B', priority: 2 }) }, { owner: 'two' });
  await call(201, 'POST', '', policyBody({ name: 'By hand' }));
  const before = await set();

  const { body } = await call<{ verdict: string; changes: { action: string; name: string }[] }>(200, 'POST', '/rollback/plan', {
    ...{ revision: 2, owner: 'one' },
  });
  t.deepEqual(body.changes.map(({ action, name }) => `${action} ${name}`).sort(), ['delete New', 'update A']);
  t.deepEqual(await set(), before);
  t.is(await revision(), 5);
  await call(200, 'POST', '/rollback', { revision: 2, owner: 'one', expected_revision: 5 });
  t.deepEqual(await set(), ['A 1', 'B 2', 'By hand 10']);
  await call(412, 'POST', '/rollback/plan', { revision: 2, expected_revision: 5 });
  await call(404, 'POST', '/rollback/plan', { revision: 99 });
});

test.serial('a member name of the file format is refused with a hint at the right one', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call } = policySets(gateway, admin.token);
  const wrong = policyBody({ target: 'everything', subjects: [{ role: 'dev' }, 'everyone'] });
  const { errors } = (await call<{ errors: { path: string; message: string }[] }>(400, 'POST', '', wrong)).body;
  const messageAt = (path: string): string | undefined => errors.find((error) => error.path === path)?.message;
  t.regex(messageAt('target') ?? '', /^is not a member of this object: .*`target_id`/);
  t.regex(messageAt('subjects.0.role') ?? '', /\{"subject_type": "role", "subject_value": "\.\.\."\}/);
  t.regex(messageAt('subjects.1') ?? '', /`subject_type`.*`everyone` has no value/);
});

test.serial('a description may have several lines', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call } = policySets(gateway, admin.token);
  const description = 'Why:\n\t- a reason\r\n\n  - another \n';
  const made = await call<{ id: string; description: string }>(201, 'POST', '', policyBody({ description }));
  t.is(made.body.description, description);
  const files = (await call<{ files: Record<string, string> }>(200, 'GET', '/export')).body.files;
  t.like((await call<{ changes: unknown[] }>(200, 'POST', '/plan', { files })).body, { changes: [], unchanged: 1 });
  for (const bad of ['a\u0000', 'a\rb', '\u001b[0m']) await call(400, 'POST', '', policyBody({ description: bad }));
  await call(400, 'POST', '', policyBody({ name: 'a\nb' }));
});
