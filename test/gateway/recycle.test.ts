/** When a caller's rights, credentials or target change, the client's session continues (laws 4 and 7). */
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { deferred } from '../../src/base/promises.ts';
import { eachEngine, eachServer } from '../support/databases/each-engine.ts';
import { startGateway } from '../support/gateway.ts';
import { listen, named, until } from '../support/listener.ts';
import { call, MODERN_META, openSession, post, sessionClient } from '../support/mcp.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { type Stateful, startStateful, type TargetSession } from '../support/upstreams/stateful.ts';
import { type World, world } from '../support/world.ts';

/** Longer than a message is sent by its decision without a second look (`HOLDS_MS` in `src/mcp/context/readmission.ts`). */
const LONG_MS = 150;

interface Recycling {
  readonly w: World;
  readonly target: Stateful;
  asAdmin<T = unknown>(expected: number, method: string, path: string, body?: unknown): Promise<{ body: T }>;
  /** The session of the target that answers a call in this session, and the credential that opened it. */
  callIn(session: string, mcp?: string): Promise<string>;
}

async function recycling(t: ExecutionContext, databaseUrl: string | null = null): Promise<Recycling> {
  const target = await startStateful();
  t.teardown(() => target.stop());
  const w = await world(t, databaseUrl, target.url);
  return {
    w,
    target,
    asAdmin: (expected, method, path, body) =>
      w.gateway.rest(expected, method, path, { token: w.admin.token, ...(body === undefined ? {} : { body }) }),
    async callIn(session, mcp = w.mcp) {
      const { message } = await post(mcp, w.token, call('echo'), { 'mcp-session-id': session });
      if (message?.result === undefined) throw new Error(JSON.stringify(message));
      return (message.result['content'] as { text: string }[])[0]?.text ?? '';
    },
  };
}

const credentialFor = ({ w, asAdmin }: Recycling, subject: string, value: string): Promise<unknown> =>
  asAdmin(201, 'PUT', `/api/targets/${w.target.id}/credentials/${subject}`, { type: 'bearer', value });

const newest = (target: Stateful): TargetSession => {
  const session = [...target.sessions.values()].at(-1);
  if (session === undefined) throw new Error('no session');
  return session;
};

const calls = async ({ asAdmin }: Recycling): Promise<number> =>
  (await asAdmin<{ method: string }[]>(200, 'GET', '/api/logs?limit=1000')).body.filter(({ method }) => method === 'tools/call')
    .length;

eachEngine(
  test.serial,
  'a changed group brings another credential and a new upstream session, and the client keeps its session',
  async (t, at) => {
    const r = await recycling(t, at.url);
    const { w, target, asAdmin } = r;
    await w.allow({ name: 'all' });
    await credentialFor(r, 'default', 'of-everybody');
    await credentialFor(r, 'group/staff', 'of-staff');
    const client = await sessionClient(t, w.mcp, w.token);
    const text = async (): Promise<string> => {
      const { content } = await client.callTool({ name: 'echo', arguments: {} });
      return (content as { text: string }[])[0]?.text ?? '';
    };
    t.is(await text(), 'up-1 Bearer of-everybody');
    const before = await calls(r);
    const seen = target.seen().length;

    await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { groups: ['staff'] });
    t.is(await text(), 'up-2 Bearer of-staff');
    t.is(await calls(r), before + 1, 'one row for the call, none for what the gateway does by itself');
    const { params, initialized } = newest(target);
    t.deepEqual(params['clientInfo'], { name: 'test-1.x', version: '1.0.0' });
    t.deepEqual(params['capabilities'], {});
    t.true(initialized);
    const afterwards = target
      .seen()
      .slice(seen)
      .filter((method) => method !== 'GET');
    t.deepEqual(afterwards, ['initialize', 'notifications/initialized', 'tools/call']);

    await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { groups: [] });
    t.is(await text(), 'up-1 Bearer of-everybody', 'the session that was opened for these rights');
  },
);

test.serial('a new upstream session gets the log level and the subscriptions that policy still allows', async (t) => {
  const r = await recycling(t);
  const { w, target, asAdmin, callIn } = r;
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  const say = (method: string, params: object) =>
    post(w.mcp, w.token, { jsonrpc: '2.0', id: 9, method, params }, { 'mcp-session-id': session });
  for (const uri of ['file:///a', 'file:///b', 'file:///secret', 'file:///dropped']) await say('resources/subscribe', { uri });
  await say('resources/unsubscribe', { uri: 'file:///dropped' });
  await say('logging/setLevel', { level: 'debug' });
  await until('the settings are kept', async () => {
    await callIn(session);
    return newest(target).level === 'debug';
  });
  await w.allow({ name: 'no secrets', resource_type: 'resource', resource_pattern: 'secret', effect: 'deny', priority: 99 });
  await asAdmin(200, 'POST', '/api/sessions/recycle', { all: true });
  t.regex(await callIn(session), /^up-2 /);
  t.deepEqual([...newest(target).subscribed].sort(), ['file:///a', 'file:///b']);
  t.is(newest(target).level, 'debug');
});

test.serial('an upstream session that is used again gets subscriptions made in the meantime', async (t) => {
  const r = await recycling(t);
  const { w, target, asAdmin, callIn } = r;
  await w.allow({ name: 'all' });
  await credentialFor(r, 'group/staff', 'of-staff');
  const session = await openSession(w.mcp, w.token);
  t.regex(await callIn(session), /^up-1 /);
  await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { groups: ['staff'] });
  const uri = 'file:///a';
  await post(
    w.mcp,
    w.token,
    { jsonrpc: '2.0', id: 1, method: 'resources/subscribe', params: { uri } },
    { 'mcp-session-id': session },
  );
  t.true(target.sessions.get('up-2')?.subscribed.has(uri));
  await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { groups: [] });
  t.regex(await callIn(session), /^up-1 /);
  t.true(target.sessions.get('up-1')?.subscribed.has(uri));
});

test.serial('the open stream gets list_changed and continues with the new upstream session', async (t) => {
  const r = await recycling(t);
  const { w, target, asAdmin, callIn } = r;
  await w.allow({ name: 'all' });
  await credentialFor(r, 'group/staff', 'of-staff');
  const session = await openSession(w.mcp, w.token);
  const stream = await listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': session } });
  target.say('notifications/message', { level: 'info', data: 'before' });
  t.is((await stream.next()).params?.['data'], 'before');
  await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { groups: ['staff'] });
  for (const kind of ['tools', 'prompts', 'resources']) t.is((await stream.next()).method, `notifications/${kind}/list_changed`);
  await until('the stream is with the new session', () => target.sessions.get('up-2')?.stream != null);
  await until('the former is left', () => target.sessions.get('up-1')?.stream === null);
  target.say('notifications/message', { level: 'info', data: 'after' });
  t.is((await stream.next(named('notifications/message'))).params?.['data'], 'after');
  t.regex(await callIn(session), /^up-2 /, 'the stream and the calls share one');
});

test.serial('a change during the opening of a stream is not missed', async (t) => {
  const r = await recycling(t);
  const { w, target, asAdmin } = r;
  await w.allow({ name: 'all' });
  await credentialFor(r, 'group/staff', 'of-staff');
  const session = await openSession(w.mcp, w.token);
  const beside = await listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': await openSession(w.mcp, w.token) } });
  const { script } = target;
  let asked = (): void => undefined;
  let go = (): void => undefined;
  const arrived = new Promise<void>((resolve) => {
    asked = resolve;
  });
  const gate = new Promise<void>((resolve) => {
    go = resolve;
  });
  target.script = async (received, res) => {
    if (received.httpMethod === 'GET' && received.headers['mcp-session-id'] === 'up-1') {
      asked();
      await gate;
    }
    return script(received, res);
  };
  const opening = listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': session } });
  await arrived;
  await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { groups: ['staff'] });
  // All streams of the user are re-validated at the same time: the change was seen before the new stream is there.
  t.is((await beside.next()).method, 'notifications/tools/list_changed');
  go();
  const stream = await opening;
  t.is((await stream.next()).method, 'notifications/tools/list_changed');
  const moved = () => [...target.sessions].filter(([id, { stream }]) => id !== 'up-1' && id !== 'up-2' && stream !== null);
  await until('both streams are with new sessions', () => moved().length === 2);
});

test.serial('if only the role changes, the upstream session stays, and the client gets list_changed', async (t) => {
  const r = await recycling(t);
  const { w, target, asAdmin, callIn } = r;
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  const stream = await listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': session } });
  await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { role: 'other' });
  for (const kind of ['tools', 'prompts', 'resources']) t.is((await stream.next()).method, `notifications/${kind}/list_changed`);
  t.regex(await callIn(session), /^up-1 /);
  t.is(target.opened(), 1);
  t.false(target.sessions.get('up-1')?.stream === null);
});

test.serial(
  'a role that is granted or removed decides the next request, and ends streams that it no longer allows (cases 44, 45)',
  async (t) => {
    const r = await recycling(t);
    const { w, target, asAdmin, callIn } = r;
    await w.allow({ name: 'tools', resource_type: 'tool', subjects: [{ subject_type: 'role', subject_value: 'caller' }] });
    await w.allow({ name: 'prompts', resource_type: 'prompt' });
    const session = await openSession(w.mcp, w.token);
    await t.throwsAsync(callIn(session), { message: /"code":403/ });
    await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { role: 'caller' });
    t.regex(await callIn(session), /^up-1 /);
    const stream = await listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': session } });
    await asAdmin(200, 'PUT', `/api/users/${w.user.id}`, { role: 'user' });
    await t.throwsAsync(callIn(session), { message: /"code":403/ });
    t.is((await stream.next()).method, 'notifications/tools/list_changed');
    await w.allow({ name: 'nothing', effect: 'deny', priority: 99 });
    await stream.ended;
    await until('it is left at the target, too', () => target.sessions.get('up-1')?.stream === null);
  },
);

test.serial('twenty simultaneous requests after a recycle open one upstream session', async (t) => {
  const r = await recycling(t);
  const { w, target, asAdmin, callIn } = r;
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  await asAdmin(200, 'POST', `/api/users/${w.user.id}/recycle`);
  const answers = await Promise.all(Array.from({ length: 20 }, () => callIn(session)));
  t.deepEqual([...new Set(answers)].length, 1);
  t.is(target.opened(), 2);
});

eachServer(test.serial, 'two replicas that recycle at the same time agree on one upstream session', async (t, at) => {
  const r = await recycling(t, at.url);
  const { w, target, asAdmin, callIn } = r;
  const other = await startGateway(t, at.url);
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  await asAdmin(200, 'POST', '/api/sessions/recycle', { all: true });
  let both = (): void => undefined;
  const meeting = new Promise<void>((resolve) => {
    both = resolve;
  });
  let waiting = 0;
  target.onOpen = () => {
    if (++waiting === 2) both();
    return meeting;
  };
  const there = `${other.url}/mcp/everything`;
  const answers = await Promise.all([callIn(session), callIn(session, there), callIn(session), callIn(session, there)]);
  t.is(new Set(answers).size, 1);
  t.is(target.opened(), 3);
  const [inUse = ''] = answers;
  await until('the one that nobody uses is ended', () => target.sessions.size === 2);
  t.true(target.sessions.has(inUse.split(' ')[0] ?? ''));
});

for (const status of [404, 400] as const) {
  test.serial(`an upstream session that the target has lost (${status}) is replaced, once for each request`, async (t) => {
    const r = await recycling(t);
    const { w, target, callIn } = r;
    await w.allow({ name: 'all' });
    const session = await openSession(w.mcp, w.token);
    target.lose(status);
    const before = await calls(r);
    t.regex(await callIn(session), /^up-2 /);
    t.is(await calls(r), before + 1);
    target.lose(status, 0);
    const opened = target.opened();
    const began = performance.now();
    const answer = await post(w.mcp, w.token, call('echo'), { 'mcp-session-id': session });
    t.is(answer.status, 200);
    t.is(answer.message?.error?.code, -32603);
    t.true(performance.now() - began < 15_000);
    t.is(target.opened(), opened + 1);
    target.lose(status);
    t.regex(await callIn(session), /^up-/, 'all is well again with the target');
  });
}

eachServer(test.serial, 'a replica that missed two replacements of an upstream session finds the newest', async (t, at) => {
  const { w, target, callIn } = await recycling(t, at.url);
  const other = await startGateway(t, at.url);
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  for (const nth of [2, 3]) {
    target.lose();
    t.regex(await callIn(session), new RegExp(`^up-${nth} `));
  }
  const there = `${other.url}/mcp/everything`;
  t.regex(await callIn(session, there), /^up-3 /);
  const ended = await fetch(there, {
    method: 'DELETE',
    headers: { authorization: `Bearer ${w.token}`, 'mcp-session-id': session },
  });
  t.is(ended.status, 200);
  t.is(target.sessions.size, 0, 'and ends it');
  await t.throwsAsync(callIn(session), { message: /Session not found/ });
});

eachServer(
  test.serial,
  'a request survives that the successor that a different replica has opened is lost, too',
  async (t, at) => {
    const { w, target, callIn } = await recycling(t, at.url);
    const other = await startGateway(t, at.url);
    await w.allow({ name: 'all' });
    const session = await openSession(w.mcp, w.token);
    target.lose();
    t.regex(await callIn(session, `${other.url}/mcp/everything`), /^up-2 /);
    target.lose();
    t.regex(await callIn(session), /^up-3 /);
  },
);

test.serial('a failed reconnection gives a clear error, and the next request tries again', async (t) => {
  const { w, target, asAdmin, callIn } = await recycling(t);
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  await asAdmin(200, 'POST', '/api/sessions/recycle', { user_id: w.user.id, target_id: w.target.id });
  const { script } = target;
  target.script = (_, res) => void res.writeHead(500).end();
  const { status, message } = await post(w.mcp, w.token, call('echo'), { 'mcp-session-id': session });
  t.deepEqual([status, message?.error?.code], [200, -32603]);
  target.script = script;
  t.regex(await callIn(session), /^up-2 /);
});

test.serial('a stream ends if its target offers no new one, so that the client opens it again', async (t) => {
  const { w, target, asAdmin } = await recycling(t);
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  const stream = await listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': session } });
  target.onOpen = () => Promise.reject(new Error('down'));
  const { script } = target;
  target.script = (received, res) =>
    received.message?.method === 'initialize' ? void res.writeHead(503).end() : script(received, res);
  await asAdmin(200, 'POST', '/api/sessions/recycle', { all: true });
  await stream.ended;
  t.pass();
});

for (const [what, denied, message] of [
  ['a call', { resource_type: 'tool', resource_pattern: '^echo$' }, call('echo')],
  [
    'a subscription',
    { resource_type: 'resource', resource_pattern: '^file:///secret$' },
    {
      ...{ jsonrpc: '2.0', id: 1, method: 'subscriptions/listen' },
      params: { notifications: { resourceSubscriptions: ['file:///secret'] } },
    },
  ],
] as const) {
  test.serial(`${what} without a session is not sent if it is denied while its target is asked for its mode`, async (t) => {
    const asked = deferred();
    const mayAnswer = deferred();
    const answers = byMethod({ 'tools/call': { content: [], resultType: 'complete' } }, { modern: true });
    const target = await startRecording(async (received, res) => {
      if (received.message?.method === 'server/discover') {
        asked.resolve();
        await mayAnswer.promise;
      }
      await answers(received, res);
    });
    t.teardown(() => target.stop());
    const w = await world(t, null, target.url);
    await w.allow({ name: 'all' });
    const { method } = message;
    const body = { ...message, params: { ...message.params, _meta: MODERN_META } };
    const headers = { 'mcp-protocol-version': '2026-07-28', 'mcp-method': method, 'mcp-name': 'echo' };
    const waiting = post(w.mcp, w.token, body, headers);
    await asked.promise;
    await w.allow({ name: 'denied', effect: 'deny', priority: 100, ...denied });
    await sleep(LONG_MS);
    mayAnswer.resolve();
    t.regex((await waiting).message?.error?.message ?? '', /was not asked, because it or your access has changed/);
    t.false(target.seen().includes(method));
  });
}

test.serial('a session that opens slowly gets no subscription that is denied meanwhile', async (t) => {
  const r = await recycling(t);
  const { w, target, asAdmin } = r;
  await w.allow({ name: 'all' });
  const session = await openSession(w.mcp, w.token);
  for (const uri of ['file:///a', 'file:///secret']) {
    await post(
      w.mcp,
      w.token,
      { jsonrpc: '2.0', id: 1, method: 'resources/subscribe', params: { uri } },
      { 'mcp-session-id': session },
    );
  }
  await asAdmin(200, 'POST', '/api/sessions/recycle', { all: true });
  const opening = deferred();
  const mayOpen = deferred();
  target.onOpen = () => {
    opening.resolve();
    return mayOpen.promise;
  };
  const called = r.callIn(session);
  await opening.promise;
  await w.allow({
    ...{ name: 'denied', effect: 'deny', priority: 100 },
    ...{ resource_type: 'resource', resource_pattern: '^file:///secret$' },
  });
  await sleep(LONG_MS);
  mayOpen.resolve();
  await called;
  t.deepEqual([...newest(target).subscribed], ['file:///a']);
});

for (const [what, change] of [
  ['its policy is deleted', ({ asAdmin }: Recycling, id: string) => asAdmin(204, 'DELETE', `/api/policies/${id}`)],
  [
    'its policy is narrowed to other tools',
    ({ asAdmin }: Recycling, id: string) =>
      asAdmin(200, 'PUT', `/api/policies/${id}`, { resource_type: 'tool', resource_pattern: '^other$' }),
  ],
  [
    'the target is disabled',
    ({ asAdmin, w }: Recycling) => asAdmin(200, 'PUT', `/api/targets/${w.target.id}`, { enabled: false }),
  ],
  ['its credential changes', (r: Recycling) => credentialFor(r, `user/${r.w.user.id}`, 'another')],
] as const) {
  for (const everywhere of [false, true]) {
    test.serial(
      `a call${everywhere ? ' at /mcp' : ''} whose session is being opened is not sent if ${what} meanwhile`,
      async (t) => {
        const r = await recycling(t);
        const { w, target, asAdmin } = r;
        const { id } = await w.allow({ name: 'all' });
        await w.allow({ name: 'prompts', resource_type: 'prompt' });
        await credentialFor(r, 'default', 'one');
        const mcp = everywhere ? `${w.gateway.url}/mcp` : w.mcp;
        const session = await openSession(mcp, w.token);
        const echo = () => post(mcp, w.token, call(everywhere ? 'everything__echo' : 'echo'), { 'mcp-session-id': session });
        t.true('result' in ((await echo()).message ?? {}));
        const sent = () => target.received.filter(({ message }) => message?.method === 'tools/call').length;
        const before = sent();

        await asAdmin(200, 'POST', '/api/sessions/recycle', { all: true });
        let release = (): void => undefined;
        let opens = (): void => undefined;
        const opening = new Promise<void>((resolve) => {
          opens = resolve;
        });
        target.onOpen = () => {
          opens();
          return new Promise((resolve) => {
            release = resolve;
          });
        };
        const waiting = echo();
        await opening;
        await change(r, id);
        await sleep(LONG_MS);
        release();
        t.regex((await waiting).message?.error?.message ?? '', /was not asked, because it or your access has changed/);
        t.is(sent(), before);
        // The policy for prompts still allows the use of the target.
        t.is(newest(target).initialized, what.includes('policy'));
        if (what !== 'the target is disabled') return;
        await asAdmin(200, 'PUT', `/api/targets/${w.target.id}`, { enabled: true });
        target.onOpen = async () => undefined;
        t.true('result' in ((await echo()).message ?? {}));
        t.true(newest(target).initialized, 'what was opened in vain is not used later');
      },
    );
  }
}
