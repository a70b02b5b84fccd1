/** All targets at once: lists, names, rows and sessions, in front of targets that are not all well. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { DEFAULT_LIMITS } from '../../../src/mcp/limits/limits.ts';
import {
  answerJson,
  answerText,
  byMethod,
  type Message as Posted,
  type RecordingUpstream,
} from '../../support/upstreams/recording.ts';
import { routed, type TestGateway } from '../gateway.ts';
import { call, inSession, modern, open, send } from '../raw.ts';
import { memorySessions } from '../stores.ts';
import { type Everywhere, event, everywhere, listen, openEverywhere, startStream, target, until } from './aggregate.ts';

const UNAVAILABLE = 'portcullis/unavailable';
const tool = (name: string) => ({ name, inputSchema: { type: 'object' } });
const namesOf = (items: { name: string }[]): string[] => items.map(({ name }) => name);

/** `tools/list` in pages: each cursor is the index of the next page, in the target's own words. */
const paged = (...pages: readonly (readonly string[])[]) => ({
  'tools/list': ({ cursor }: Record<string, unknown>) => {
    const page = cursor === undefined ? 0 : Number(/^page (\d+)$/.exec(String(cursor))?.[1] ?? Number.NaN);
    const next = page + 1 < pages.length ? { nextCursor: `page ${page + 1}` } : {};
    return { tools: (pages[page] ?? []).map(tool), ...next };
  },
});

async function walk(at: Everywhere<string>, session: string, user = 'alice'): Promise<string[][]> {
  const pages: string[][] = [];
  for (let cursor: string | undefined; ; ) {
    const { result } = await at.ask(session, 'tools/list', cursor === undefined ? {} : { cursor }, { user });
    pages.push(namesOf(result.tools));
    cursor = result.nextCursor;
    if (cursor === undefined) return pages;
    if (pages.length > 20) throw new Error('without end');
  }
}

const cursorsOf = ({ received }: RecordingUpstream): unknown[] =>
  received.filter(({ message }) => message?.method === 'tools/list').map(({ message }) => message?.params?.['cursor']);

test.serial('pages of several targets are read side by side, each target with its own cursor', async (t) => {
  const at = await everywhere(t, {
    a: paged(['1', '2'], ['3']),
    b: paged(['1']),
    c: paged([], [], ['x__y', 'z']),
  });
  const session = await openEverywhere(at);
  t.deepEqual(await walk(at, session), [['a__1', 'a__2', 'b__1'], ['a__3'], ['c__x__y', 'c__z']]);
  t.deepEqual(cursorsOf(at.upstreams.a), [undefined, 'page 1']);
  t.deepEqual(cursorsOf(at.upstreams.b), [undefined], 'what is at its end is not asked again');
  t.deepEqual(cursorsOf(at.upstreams.c), [undefined, 'page 1', 'page 2']);
});

test.serial('an empty cursor counts as none, and a target whose cursor is too long is left out', async (t) => {
  const at = await everywhere(t, {
    a: { 'tools/list': { tools: [tool('1')], nextCursor: '' } },
    b: { 'tools/list': { tools: [tool('1')], nextCursor: 'x'.repeat(100_000) } },
    c: { 'tools/list': { tools: [tool('1')], nextCursor: 7 } },
  });
  const { result } = await at.ask(await openEverywhere(at), 'tools/list');
  t.deepEqual(namesOf(result.tools), ['a__1', 'c__1']);
  t.false('nextCursor' in result);
  t.deepEqual(result._meta, { [UNAVAILABLE]: ['b'] });
});

test.serial('the joint cursor of many long cursors stays short, and every tool is listed', async (t) => {
  // Each character takes six bytes as JSON.
  const long = '\u0001'.repeat(16_000);
  const scripts = Object.fromEntries(
    Array.from({ length: 12 }, (_, index) => [
      `t${index}`,
      {
        'tools/list': ({ cursor }: Record<string, unknown>) =>
          cursor === long ? { tools: [tool('2')] } : { tools: [tool('1')], nextCursor: long },
      },
    ]),
  );
  const at = await everywhere(t, scripts);
  const session = await openEverywhere(at);
  const names: string[] = [];
  for (let cursor: string | undefined; ; ) {
    const { result } = await at.ask(session, 'tools/list', cursor === undefined ? {} : { cursor });
    t.is(result._meta, undefined);
    names.push(...namesOf(result.tools));
    cursor = result.nextCursor;
    if (cursor === undefined) break;
    t.true(cursor.length < 400_000, `the cursor has ${cursor.length} characters`);
  }
  t.deepEqual(
    names.toSorted(),
    Object.keys(scripts)
      .flatMap((name) => [`${name}__1`, `${name}__2`])
      .toSorted(),
  );
});

test.serial('a cursor is valid only for its caller, its session and its method', async (t) => {
  const at = await everywhere(t, { a: { ...paged(['1'], ['2']), 'prompts/list': { prompts: [] } } });
  const [session, other, bobs] = [await openEverywhere(at), await openEverywhere(at), await openEverywhere(at, { user: 'bob' })];
  const { nextCursor } = (await at.ask(session, 'tools/list')).result;
  const seen = at.upstreams.a.received.length;
  const rows = at.gateway.decisions.length;
  const edited = `${nextCursor.slice(0, 30)}${nextCursor[30] === 'A' ? 'B' : 'A'}${nextCursor.slice(31)}`;
  const codes = await Promise.all([
    ...[edited, nextCursor.slice(0, -1), `${nextCursor}=`, '', 'page 1', 'a__page 1', 7, null, {}].map((cursor) =>
      at.ask(session, 'tools/list', { cursor }),
    ),
    at.ask(session, 'prompts/list', { cursor: nextCursor }),
    at.ask(other, 'tools/list', { cursor: nextCursor }),
    at.ask(bobs, 'tools/list', { cursor: nextCursor }, { user: 'bob' }),
    // A session id is not a cursor either.
    at.ask(session, 'tools/list', { cursor: session }),
  ]);
  for (const { error } of codes) t.is(error.code, -32602);
  t.deepEqual([at.upstreams.a.received.length, at.gateway.decisions.length], [seen, rows]);
  t.deepEqual(namesOf((await at.ask(session, 'tools/list', { cursor: nextCursor })).result.tools), ['a__2']);
});

test.serial('a cursor is not valid after its target has moved', async (t) => {
  const at = await everywhere(t, { a: paged(['1'], ['2']), b: paged(['1'], ['2']), elsewhere: paged(['9'], ['secret']) });
  at.gateway.targets.delete('elsewhere');
  const session = await openEverywhere(at);
  const { nextCursor } = (await at.ask(session, 'tools/list')).result;
  at.gateway.targets.set('a', routed('a', at.upstreams.elsewhere.url));
  t.deepEqual(namesOf((await at.ask(session, 'tools/list', { cursor: nextCursor })).result.tools), ['b__2']);
  t.deepEqual(at.upstreams.elsewhere.received, []);
  await at.ask(session, 'tools/list');
  const ids = at.upstreams.elsewhere.received.map(({ headers }) => headers['mcp-session-id']);
  t.deepEqual(ids.slice(0, 2), [undefined, 'upstream-1'], 'the new server gets a session of its own');
  t.deepEqual(cursorsOf(at.upstreams.elsewhere), [undefined]);
});

/** A list whose first target answers at once. Its second target answers after `change`, and after the time for which a decision holds. */
async function listWhile(t: ExecutionContext, change: (gateway: TestGateway) => void) {
  let answers: (() => void) | undefined;
  const lists = paged(['secret', 'plain'], ['last']);
  const script = target(paged(['1']));
  const at = await everywhere(t, {
    fast: lists,
    slow: (received, res) => {
      if (received.message?.method !== 'tools/list' || answers !== undefined) return script(received, res);
      answers = () => void script(received, res);
    },
  });
  const session = await openEverywhere(at);
  const answer = at.ask(session, 'tools/list');
  await until(() => answers !== undefined && at.gateway.shown.length === 1);
  change(at.gateway);
  await sleep(150);
  answers?.();
  return { at, session, first: await answer };
}

const SECRET = (object: { resource_name: string }): boolean => object.resource_name !== 'secret';

test.serial('a page that was denied while the list waited for a slower target is read again', async (t) => {
  const { at, session, first } = await listWhile(t, ({ rights }) => rights.set('alice', SECRET));
  t.deepEqual(namesOf(first.result.tools), ['slow__1']);
  t.is(first.result._meta, undefined);
  const { result } = await at.ask(session, 'tools/list', { cursor: first.result.nextCursor });
  t.deepEqual(namesOf(result.tools), ['fast__plain']);
  t.deepEqual(namesOf((await at.ask(session, 'tools/list', { cursor: result.nextCursor })).result.tools), ['fast__last']);
  t.deepEqual(cursorsOf(at.upstreams.fast), [undefined, undefined, 'page 1']);
  t.deepEqual(cursorsOf(at.upstreams.slow), [undefined]);
});

test.serial('a target that became forbidden while the list waited is left out', async (t) => {
  const { at, session, first } = await listWhile(t, ({ targets }) => void targets.delete('fast'));
  t.deepEqual(first.result, { tools: [tool('slow__1')] });
  t.deepEqual(namesOf((await at.ask(session, 'tools/list')).result.tools), ['slow__1']);
});

test.serial('a list that waited shows nothing if the state cannot be read', async (t) => {
  const { first } = await listWhile(t, (gateway) => {
    gateway.stateDown = true;
  });
  t.is(first.error.code, -32603);
});

test.serial('a list that waited shows everything if nothing has changed', async (t) => {
  const { first } = await listWhile(t, () => undefined);
  t.deepEqual(namesOf(first.result.tools), ['fast__secret', 'fast__plain', 'slow__1']);
});

test.serial('a page on which everything is denied is empty and has a next page', async (t) => {
  const rights = { alice: ({ resource_name }: { resource_name: string }) => resource_name === 'last' };
  const at = await everywhere(t, { a: paged(['1'], ['last']), b: paged(['1']) }, { rights });
  t.deepEqual(await walk(at, await openEverywhere(at)), [[], ['a__last']]);
  t.deepEqual(
    at.gateway.shown.map(({ names, hidden }) => [names, hidden]),
    [
      [[], 1],
      [[], 1],
      [['last'], 0],
    ],
  );
});

// This test runs alone, so that load of other tests does not make healthy targets slow.
test.serial(
  'targets that are down, slow or malformed are left out and named, and targets without such a list are not named',
  async (t) => {
    const down = createServer().listen(0, '127.0.0.1');
    await once(down, 'listening');
    const { port } = down.address() as { port: number };
    down.close();
    const madness = {
      garbage: '<html>',
      'no-list': '{"jsonrpc":"2.0","id":1,"result":{}}',
      'wrong-id': '{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}',
      'two-names': '{"jsonrpc":"2.0","id":1,"result":{"tools":[],"tools":[]}}',
      failing: '{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}',
      object: '{"jsonrpc":"2.0","id":1,"result":{"tools":{"name":"x"}}}',
    };
    const hello = target({});
    const mad = Object.fromEntries(
      Object.entries(madness).map(([name, text]) => [
        name,
        (received: Parameters<typeof hello>[0], res: Parameters<typeof hello>[1]) =>
          received.message?.method === 'tools/list' ? answerText(res, text) : hello(received, res),
      ]),
    );
    const silent = byMethod({});
    const at = await everywhere(
      t,
      {
        ...mad,
        fine: paged(['1']),
        'has-none': {},
        // Opens its upstream session and then does not answer.
        slow: (received, res) => (received.message?.method === 'tools/list' ? undefined : hello(received, res)),
        // Says nothing at all.
        stuck: (received, res) => (received.message?.method === 'initialize' ? undefined : silent(received, res)),
        // Begins a stream and does not end it.
        endless: (received, res) => {
          if (received.message?.method !== 'tools/list') return hello(received, res);
          startStream(res);
          res.write(event({ method: 'notifications/message', params: { level: 'info', data: 1 } }));
        },
      },
      { limits: { openMs: 4_000 }, targets: [routed('down', `http://127.0.0.1:${port}/mcp`)] },
    );
    const session = await openEverywhere(at);
    const began = performance.now();
    const { result } = await at.ask(session, 'tools/list');
    t.true(performance.now() - began < 15_000, 'the slow ones keep nobody waiting');
    t.deepEqual(namesOf(result.tools), ['fine__1']);
    t.deepEqual(result._meta[UNAVAILABLE], [
      ...['down', 'endless', 'failing', 'garbage', 'no-list', 'object', 'slow', 'stuck', 'two-names', 'wrong-id'],
    ]);
    t.deepEqual(Object.keys(result), ['tools', '_meta']);
  },
);

test.serial('an answer that would be too large continues on the next page', async (t) => {
  const many = (from: number) => Array.from({ length: 20 }, (_, index) => `tool-${from + index}`);
  const at = await everywhere(
    t,
    { a: paged(many(0), ['a-last']), b: paged(many(20)), c: paged(many(40)) },
    { limits: { lists: { ...DEFAULT_LIMITS.lists, answer: 2_000 } } },
  );
  const pages = await walk(at, await openEverywhere(at));
  t.deepEqual(
    pages.flat().sort(),
    [
      ...many(0).map((name) => `a__${name}`),
      'a__a-last',
      ...many(20).map((name) => `b__${name}`),
      ...many(40).map((name) => `c__${name}`),
    ].sort(),
  );
  t.true(pages.length >= 3);
});

test.serial('lists are empty and recorded if the caller may use no target', async (t) => {
  const at = await everywhere(t, {});
  const opened = await at.send({ body: call('initialize', { protocolVersion: '2025-06-18', capabilities: {} }) });
  t.deepEqual(JSON.parse(opened.text).result.capabilities, {
    tools: { listChanged: true },
    prompts: { listChanged: true },
    resources: { listChanged: true },
  });
  const session = String(opened.headers['mcp-session-id']);
  t.deepEqual((await at.ask(session, 'tools/list')).result, { tools: [] });
  t.deepEqual((await at.ask(session, 'resources/templates/list')).result, { resourceTemplates: [] });
  t.deepEqual((await at.ask(session, 'logging/setLevel', { level: 'debug' })).result, {});
  t.deepEqual(at.gateway.audited(), [
    'initialize deny no_target',
    'tools/list deny no_target',
    'resources/templates/list deny no_target',
    'logging/setLevel deny no_target',
  ]);
  t.deepEqual([...new Set(at.gateway.decisions.map((row) => row.target_name))], ['*']);
  t.is(at.gateway.outcomes.length, 4);
});

test.serial('the capabilities of a session are those of all its targets together', async (t) => {
  const initialize = (capabilities: object) => ({ initialize: { capabilities } });
  const at = await everywhere(t, {
    a: initialize({ tools: { listChanged: false }, completions: {}, experimental: { x: {} } }),
    b: initialize({ resources: { subscribe: true }, tasks: { list: {} } }),
  });
  const opening = (protocolVersion: string) =>
    at.send({ body: call('initialize', { protocolVersion, capabilities: {}, clientInfo: { name: 'x', version: '1' } }) });
  const { result } = JSON.parse((await opening('2025-11-25')).text);
  t.is(result.protocolVersion, '2025-11-25');
  t.false('instructions' in result);
  t.deepEqual(result.capabilities, {
    tools: { listChanged: true },
    prompts: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    completions: {},
    tasks: { list: {} },
  });
  const older = JSON.parse((await opening('2025-06-18')).text).result;
  t.is(older.protocolVersion, '2025-06-18');
  t.false('tasks' in older.capabilities);
  t.is(JSON.parse((await opening('1999-01-01')).text).result.protocolVersion, '2025-11-25');
});

test.serial('a client of 2026-07-28 falls back to a session', async (t) => {
  const at = await everywhere(t, { a: {} });
  const reply = await at.send(modern('server/discover'));
  t.deepEqual([reply.status, reply.code], [400, -32022]);
  t.deepEqual(JSON.parse(reply.text).error.data.supported, ['2025-11-25', '2025-06-18', '2025-03-26']);
  t.deepEqual(at.upstreams.a.received, []);
});

const CONTENT = { 'tools/call': { content: [] } };

test.serial("a call reaches the target as on the target's own endpoint, its arguments byte for byte", async (t) => {
  const at = await everywhere(t, { a: CONTENT, b: CONTENT });
  const session = await openEverywhere(at);
  const seen = at.upstreams.b.received.length;
  const sent = (name: string) =>
    `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":${JSON.stringify(name)},"arguments":{"n":1.0,"b__x":"a__y"},"_meta":{"progressToken":"a__1"}}}`;
  await at.send(inSession(session, sent('b__c__d')));
  t.is(at.upstreams.b.received[seen]?.text, sent('c__d'));
  t.deepEqual(at.gateway.audited().at(-1), 'tools/call tool c__d allow');
  t.is(at.gateway.decisions.at(-1)?.target_name, 'b');
  t.false(at.upstreams.a.seen().includes('tools/call'));
});

test.serial('a name without a target is refused before any target is asked', async (t) => {
  const at = await everywhere(t, { a: CONTENT });
  const session = await openEverywhere(at);
  const [seen, rows] = [at.upstreams.a.received.length, at.gateway.decisions.length];
  const answers = await Promise.all([
    at.ask(session, 'tools/call', { name: 'echo' }),
    at.ask(session, 'tools/call', { name: 'A__echo' }),
    at.ask(session, 'tools/call', { name: 'a_echo' }),
    at.ask(session, 'prompts/get', { name: '__p' }),
    at.ask(session, 'resources/read', { uri: 'file:///x' }),
    at.ask(session, 'resources/subscribe', { uri: 'A+file:///x' }),
    at.ask(session, 'completion/complete', { ref: { type: 'ref/prompt', name: 'p' }, argument: { name: 'a', value: '' } }),
    at.ask(session, 'tasks/get', { taskId: 'T' }),
  ]);
  for (const { error } of answers) t.is(error.code, -32602);
  t.is((await at.ask(session, 'acme/danger', { name: 'a__x' })).error.code, -32601);
  t.deepEqual([at.upstreams.a.received.length, at.gateway.decisions.length], [seen, rows]);
});

test.serial('URIs are decided without the prefix of their target', async (t) => {
  const at = await everywhere(t, { a: { 'resources/read': ({ uri }) => ({ contents: [{ uri, text: '' }] }) } });
  const session = await openEverywhere(at);
  t.is((await at.ask(session, 'resources/read', { uri: 'a+file:///x' })).result.contents[0].uri, 'a+file:///x');
  const seen = at.upstreams.a.received.length;
  for (const uri of ['a+file:///x/../y', 'a+FILE:///x', 'a+file:///%2e%2e/x', 'a+a+b', 'a+x', 'a+file:///x#y']) {
    t.is((await at.ask(session, 'resources/read', { uri })).error?.code, 403, uri);
  }
  t.is(at.upstreams.a.received.length, seen);
});

test.serial('each target that is asked has an audit row, and answers of the gateway itself have none', async (t) => {
  const at = await everywhere(t, { a: { ...CONTENT, ...paged(['1']) }, b: paged(['1']) });
  const rowsOf = async (act: () => Promise<unknown>): Promise<string[]> => {
    const from = at.gateway.decisions.length;
    await act();
    return at.gateway.decisions
      .slice(from)
      .map((row) => `${row.target_name} ${row.method} ${row.effect}`)
      .sort();
  };
  let session = '';
  const rows = await rowsOf(async () => {
    session = await openEverywhere(at);
  });
  t.deepEqual(rows, ['a initialize allow', 'b initialize allow']);
  t.deepEqual(await rowsOf(() => at.ask(session, 'ping')), []);
  t.deepEqual(await rowsOf(() => at.ask(session, 'tools/list')), ['a tools/list allow', 'b tools/list allow']);
  t.deepEqual(await rowsOf(() => at.ask(session, 'tools/call', { name: 'a__x' })), ['a tools/call allow']);
  t.deepEqual(await rowsOf(() => at.ask(session, 'tools/call', { name: 'zz__x' })), ['zz tools/call deny']);
  t.deepEqual(await rowsOf(() => at.ask(session, 'logging/setLevel', { level: 'debug' })), [
    'a logging/setLevel allow',
    'b logging/setLevel allow',
  ]);
  const notify = (method: string, params?: object) => at.send(inSession(session, { jsonrpc: '2.0', method, params }));
  t.deepEqual(await rowsOf(() => notify('notifications/initialized')), []);
  t.deepEqual(await rowsOf(() => notify('notifications/cancelled', { requestId: 99 })), []);
  t.deepEqual(await rowsOf(() => notify('notifications/progress', { progressToken: 'x', progress: 1 })), []);
  t.deepEqual(await rowsOf(() => notify('notifications/roots/list_changed')), [
    'a notifications/roots/list_changed allow',
    'b notifications/roots/list_changed allow',
  ]);
  t.deepEqual(await rowsOf(() => at.send({ method: 'DELETE', headers: ['mcp-session-id', session] })), [
    'a DELETE allow',
    'b DELETE allow',
  ]);
  // Every decision has its outcome.
  await until(() => at.gateway.outcomes.length === at.gateway.decisions.length);
  t.deepEqual(at.gateway.outcomes.map(({ decision_id }) => decision_id).sort(), at.gateway.decisions.map(({ id }) => id).sort());
});

test.serial('nothing is forwarded if the decision cannot be recorded', async (t) => {
  const at = await everywhere(t, { a: { ...CONTENT, ...paged(['1']) } });
  const session = await openEverywhere(at);
  const seen = at.upstreams.a.received.length;
  at.gateway.auditDown = true;
  t.is((await at.send(inSession(session, call('tools/list')))).status, 503);
  t.is((await at.send(inSession(session, call('logging/setLevel', { level: 'debug' })))).status, 503);
  t.is((await at.send(inSession(session, { jsonrpc: '2.0', method: 'notifications/roots/list_changed' }))).status, 503);
  t.is((await at.send(inSession(session, call('tools/call', { name: 'a__x' })))).status, 503);
  t.is((await at.send({ body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {} }) })).status, 503);
  t.is((await at.send({ method: 'GET', headers: ['mcp-session-id', session, 'accept', 'text/event-stream'] })).status, 503);
  t.is((await at.send({ method: 'DELETE', headers: ['mcp-session-id', session] })).status, 503);
  t.is(at.upstreams.a.received.length, seen);
  at.gateway.auditDown = false;
  t.is((await at.send(inSession(session, call('tools/call', { name: 'a__x' })))).status, 200, 'the session has not ended');
});

test.serial('a log level must be known to the protocol, and reaches every target, also those that join later', async (t) => {
  const at = await everywhere(t, {
    a: { 'logging/setLevel': {} },
    b: {},
    later: { 'logging/setLevel': {}, 'tools/list': { tools: [] } },
  });
  const later = at.gateway.targets.get('later');
  at.gateway.targets.delete('later');
  const session = await openEverywhere(at);
  for (const level of ['loud', 7, undefined, 'DEBUG'])
    t.is((await at.ask(session, 'logging/setLevel', { level })).error.code, -32602);
  t.false(at.upstreams.a.seen().includes('logging/setLevel'));
  t.deepEqual((await at.ask(session, 'logging/setLevel', { level: 'warning' })).result, {});
  t.is(at.upstreams.a.received.at(-1)?.message?.params?.['level'], 'warning');
  if (later) at.gateway.targets.set('later', later);
  await at.ask(session, 'tools/list');
  t.deepEqual(at.upstreams.later.seen(), ['initialize', 'notifications/initialized', 'logging/setLevel', 'tools/list']);
});

test.serial('each target learns what it may ask of the client, and that the session has begun', async (t) => {
  const at = await everywhere(t, { a: {}, b: {} });
  const a = at.gateway.targets.get('a');
  if (a) at.gateway.targets.set('a', { ...a, may_ask: ['roots'] });
  const capabilities = { sampling: {}, roots: { listChanged: true }, elicitation: {} };
  const session = await openEverywhere(at, { capabilities, ready: false });
  const told = (upstream: RecordingUpstream) => upstream.received[0]?.message?.params?.['capabilities'];
  t.deepEqual(told(at.upstreams.a), { roots: { listChanged: true } });
  t.deepEqual(told(at.upstreams.b), { sampling: {}, roots: { listChanged: true }, elicitation: {} });
  await at.ask(session, 'ping');
  for (const upstream of Object.values(at.upstreams)) t.deepEqual(upstream.seen(), ['initialize'], 'the client has not begun');
  for (let times = 0; times < 2; times++)
    t.is((await at.send(inSession(session, { jsonrpc: '2.0', method: 'notifications/initialized' }))).status, 202);
  for (const upstream of Object.values(at.upstreams)) t.deepEqual(upstream.seen(), ['initialize', 'notifications/initialized']);
  const hasty = await openEverywhere(at, { ready: false });
  await at.ask(hasty, 'tools/call', { name: 'a__x' });
  t.deepEqual(at.upstreams.a.seen().slice(2), ['initialize', 'notifications/initialized', 'tools/call']);
});

const INITIALIZED = { jsonrpc: '2.0', method: 'notifications/initialized' };
const otherKey = {
  credentials: { headers: [['x-upstream-key', 'new']], env: {}, identity: 'new' },
  scope: null,
  binding: 'new',
  user: 'alice',
} as const;

test.serial('notifications/initialized waits for the client, and reaches only targets that are still the same', async (t) => {
  const at = await everywhere(t, { moved: {}, rekeyed: {}, gone: {}, renamed: {}, same: {}, elsewhere: {} });
  const { targets } = at.gateway;
  const { renamed, rekeyed, elsewhere } = at.upstreams;
  targets.delete('elsewhere');
  const session = await openEverywhere(at, { ready: false });
  targets.set('moved', routed('moved', elsewhere.url));
  targets.set('rekeyed', routed('rekeyed', rekeyed.url, { accessOf: () => otherKey }));
  targets.delete('gone');
  targets.delete('renamed');
  targets.set('other-name', routed('other-name', renamed.url, { id: 'id-of-renamed' }));
  t.is((await at.send(inSession(session, INITIALIZED))).status, 202);
  const told = Object.entries(at.upstreams).filter(([, upstream]) => upstream.seen().includes(INITIALIZED.method));
  t.deepEqual(told.map(([name]) => name).sort(), ['renamed', 'same']);
  t.deepEqual(elsewhere.received, []);
});

test.serial('notifications/initialized is not sent for a caller that may no longer use the target', async (t) => {
  const at = await everywhere(t, { a: {} });
  const [denied, undecided] = [await openEverywhere(at, { ready: false }), await openEverywhere(at, { ready: false })];
  at.gateway.rights.delete('alice');
  t.is((await at.send(inSession(denied, INITIALIZED))).status, 202);
  at.gateway.rights.set('alice', () => true);
  at.gateway.engineDown = true;
  t.is((await at.send(inSession(undecided, INITIALIZED))).status, 202);
  t.deepEqual(at.upstreams.a.seen(), ['initialize', 'initialize']);
});

test.serial('DELETE reaches neither a server that has replaced the target nor one with other credentials', async (t) => {
  const at = await everywhere(t, { moved: {}, rekeyed: {}, same: {}, elsewhere: {} });
  const { targets } = at.gateway;
  targets.delete('elsewhere');
  const session = await openEverywhere(at);
  targets.set('moved', routed('moved', at.upstreams.elsewhere.url));
  targets.set('rekeyed', routed('rekeyed', at.upstreams.rekeyed.url, { accessOf: () => otherKey }));
  t.is((await at.send({ method: 'DELETE', headers: ['mcp-session-id', session] })).status, 200);
  const told = Object.entries(at.upstreams).filter(([, { received }]) => received.some((one) => one.httpMethod === 'DELETE'));
  t.deepEqual(
    told.map(([name]) => name),
    ['same'],
  );
  t.deepEqual(at.upstreams.elsewhere.received, []);
});

/** Answers calls with a stream that the test continues. */
function streaming(results: Parameters<typeof target>[0] = {}) {
  const calls: { readonly id: Posted['id']; readonly res: Parameters<ReturnType<typeof target>>[1] }[] = [];
  const plain = target(results);
  const script: ReturnType<typeof target> = (received, res) => {
    if (received.message?.method !== 'tools/call') return plain(received, res);
    startStream(res);
    calls.push({ id: received.message.id, res });
  };
  return { calls, script };
}

const toolCall = (name: string, id: unknown, _meta: object = {}) => call('tools/call', { name, _meta }, id);

test.serial('two targets that use the same request id each get their own answer', async (t) => {
  const [a, b] = [streaming(), streaming()];
  const at = await everywhere(t, { a: a.script, b: b.script });
  const session = await openEverywhere(at, { capabilities: { elicitation: {}, sampling: {} } });
  const streams = [
    await listen(at.gateway, session, { body: toolCall('a__x', 1) }),
    await listen(at.gateway, session, { body: toolCall('b__x', 2) }),
  ] as const;
  const asked = { id: 0, method: 'elicitation/create', params: { message: 'n', _meta: { progressToken: 5 } } };
  for (const { calls } of [a, b]) calls[0]?.res.write(event(asked));
  const ids = await Promise.all(
    streams.map(async (stream) => {
      await stream.until(() => stream.messages().length > 0);
      return stream.messages()[0]?.id as string;
    }),
  );
  t.deepEqual(
    ids.map((id) => id.slice(0, 3)),
    ['a__', 'b__'],
  );
  const answer = (id: unknown, who: string) =>
    at.send(inSession(session, { jsonrpc: '2.0', id, result: { action: 'accept', content: { who } } }));
  const seen = [at.upstreams.a.received.length, at.upstreams.b.received.length];
  // Ids with the name of the other target, without a name, with the name of a missing target, and as the target sent them.
  for (const id of [ids[0]?.replace('a__', 'b__'), ids[0]?.slice(3), ids[0]?.replace('a__', 'zz__'), 'a__0', 0]) {
    t.is((await answer(id, 'mallory')).status, 400, String(id));
  }
  const bobs = await openEverywhere(at, { user: 'bob' });
  const other = await openEverywhere(at);
  t.is((await at.send(inSession(bobs, { jsonrpc: '2.0', id: ids[0], result: {} }, { user: 'bob' }))).status, 400);
  t.is((await at.send(inSession(other, { jsonrpc: '2.0', id: ids[0], result: {} }))).status, 400);
  t.false([at.upstreams.a, at.upstreams.b].some((upstream) => upstream.seen().includes('response')));
  // Progress of the request, with the progress token that the client got.
  const token = streams[1].messages()[0]?.params._meta.progressToken;
  await at.send(
    inSession(session, { jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: token, progress: 1 } }),
  );
  t.deepEqual(at.upstreams.b.received.at(-1)?.message?.params, { progressToken: 5, progress: 1 });
  t.is((await answer(ids[1], 'b')).status, 202);
  t.is((await answer(ids[0], 'a')).status, 202);
  for (const name of ['a', 'b'] as const) {
    const upstream = at.upstreams[name];
    const { message, headers } = upstream.received.filter((one) => one.message?.result !== undefined)[0] ?? {};
    t.deepEqual(message, { jsonrpc: '2.0', id: 0, result: { action: 'accept', content: { who: name } } });
    t.is(headers?.['mcp-session-id'], 'upstream-1');
    t.true(upstream.received.length > (seen[0] ?? 0));
  }
  for (const { calls } of [a, b]) calls[0]?.res.end(event({ id: calls[0]?.id, result: { content: [] } }));
  for (const stream of streams) await stream.until(stream.isEnded);
  t.deepEqual(
    streams.map((stream) => stream.messages().at(-1)?.id),
    [1, 2],
  );
});

test.serial('an answer reaches the server that asked, not the one that has replaced it', async (t) => {
  const a = streaming();
  const at = await everywhere(t, { a: a.script, elsewhere: CONTENT });
  at.gateway.targets.delete('elsewhere');
  const session = await openEverywhere(at, { capabilities: { elicitation: {} } });
  const stream = await listen(at.gateway, session, { body: toolCall('a__x', 1) });
  a.calls[0]?.res.write(event({ id: 0, method: 'elicitation/create', params: { message: 'n' } }));
  await stream.until(() => stream.messages().length === 1);
  at.gateway.targets.set('a', routed('a', at.upstreams.elsewhere.url));
  const answer = { jsonrpc: '2.0', id: stream.messages()[0]?.id, result: { action: 'accept', content: {} } };
  t.is((await at.send(inSession(session, answer))).status, 400);
  t.deepEqual(at.upstreams.elsewhere.received, []);
  stream.stop();
});

test.serial('a cancellation reaches only the target of its request, and only while that request is in flight', async (t) => {
  const [a, b] = [streaming(), streaming()];
  const at = await everywhere(t, { a: a.script, b: b.script });
  const session = await openEverywhere(at);
  const other = await openEverywhere(at);
  const [first, second] = [
    await listen(at.gateway, session, { body: toolCall('a__x', 1) }),
    await listen(at.gateway, session, { body: toolCall('b__x', '1') }),
  ];
  const cancel = (requestId: unknown, within = session) =>
    at.send(inSession(within, { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId, reason: 'r' } }));
  const cancelled = (upstream: RecordingUpstream) =>
    upstream.received
      .filter(({ message }) => message?.method === 'notifications/cancelled')
      .map(({ message }) => message?.params);
  for (const id of [2, '2', null, {}, 'a__1']) t.is((await cancel(id)).status, 202);
  t.is((await cancel(1, other)).status, 202, 'of another session');
  t.deepEqual([cancelled(at.upstreams.a), cancelled(at.upstreams.b)], [[], []]);
  await cancel('1');
  t.deepEqual([cancelled(at.upstreams.a), cancelled(at.upstreams.b)], [[], [{ requestId: '1', reason: 'r' }]]);
  await cancel(1);
  t.deepEqual(cancelled(at.upstreams.a), [{ requestId: 1, reason: 'r' }]);
  a.calls[0]?.res.end(event({ id: 1, result: { content: [] } }));
  await first.until(first.isEnded);
  await cancel(1);
  t.is(cancelled(at.upstreams.a).length, 1, 'it is over');
  second.stop();
});

test.serial('progress and log messages of a call arrive on its stream', async (t) => {
  const a = streaming();
  const at = await everywhere(t, { a: a.script });
  const session = await openEverywhere(at);
  const stream = await listen(at.gateway, session, { body: toolCall('a__x', 1, { progressToken: 'tok' }) });
  const res = a.calls[0]?.res;
  res?.write(event({ method: 'notifications/progress', params: { progressToken: 'other', progress: 1 } }));
  res?.write(event({ method: 'notifications/progress', params: { progressToken: 'tok', progress: 1 } }));
  res?.write(event({ method: 'notifications/message', params: { level: 'info', data: 'a__x' } }));
  const link = { type: 'resource_link', uri: 'x:1', name: 'n' };
  res?.end(event({ id: 1, result: { content: [link] } }, 'e1'));
  await stream.until(stream.isEnded);
  t.deepEqual(stream.messages(), [
    { jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: 'tok', progress: 1 } },
    { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'a__x' } },
    { jsonrpc: '2.0', id: 1, result: { content: [{ ...link, uri: 'a+x:1' }] } },
  ] as never);
  t.regex(stream.ids()[0] ?? '', /^a__[A-Za-z0-9_-]+$/);
});

test.serial('a stream that is resumed opens no upstream session before it is recorded', async (t) => {
  const at = await everywhere(t, { a: {} });
  at.gateway.rights.delete('alice');
  const session = await openEverywhere(at);
  at.gateway.rights.set('alice', () => true);
  const decided = at.gateway.decisions.length;
  const headers: [string, string] = ['mcp-session-id', session];
  t.is((await at.send({ method: 'GET', headers: [...headers, 'last-event-id', 'a__x'] })).status, 404);
  t.is(at.gateway.decisions.length, decided);
  t.deepEqual(at.upstreams.a.seen(), []);
});

test.serial('DELETE is not sent to a target that is denied after the decision about it', async (t) => {
  const sessions = memorySessions();
  const end: typeof sessions.end = (...ending) => {
    at.gateway.rights.delete('alice');
    return sessions.end(...ending);
  };
  const at = await everywhere(t, { a: {} }, { deps: { sessions: { ...sessions, end } } });
  const session = await openEverywhere(at);
  t.is((await at.send({ method: 'DELETE', headers: ['mcp-session-id', session] })).status, 200);
  t.true(at.gateway.audited().includes('DELETE allow'));
  t.like(at.gateway.outcomes.at(-1), { outcome: 'denied' });
  t.false(at.upstreams.a.seen().includes('DELETE'));
});

test.serial('after DELETE the session is gone for every request, and no target has an upstream session of it', async (t) => {
  // One keeps no sessions, one does not end them.
  const stateless = byMethod({ ...CONTENT, ...paged(['1']) });
  const at = await everywhere(t, {
    a: { ...CONTENT, ...paged(['1']) },
    stateless: (received, res) =>
      received.message?.method === 'initialize'
        ? answerText(
            res,
            `{"jsonrpc":"2.0","id":${JSON.stringify(received.message.id)},"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`,
          )
        : received.httpMethod === 'DELETE'
          ? void res.writeHead(405).end()
          : stateless(received, res),
  });
  const session = await openEverywhere(at);
  const kept = await openEverywhere(at);
  t.is((await at.send({ method: 'DELETE', headers: ['mcp-session-id', session] })).status, 200);
  const ends = at.upstreams.a.received.filter(({ httpMethod }) => httpMethod === 'DELETE');
  t.deepEqual(
    ends.map(({ headers }) => headers['mcp-session-id']),
    ['upstream-1'],
  );
  const seen = [at.upstreams.a.received.length, at.upstreams.stateless.received.length];
  const gone = await Promise.all([
    at.send({ method: 'DELETE', headers: ['mcp-session-id', session] }),
    at.send({ method: 'GET', headers: ['mcp-session-id', session, 'accept', 'text/event-stream'] }),
    ...['ping', 'tools/list', 'resources/list', 'tasks/list'].map((method) => at.send(inSession(session, call(method)))),
    at.send(inSession(session, call('logging/setLevel', { level: 'debug' }))),
    at.send(inSession(session, call('tools/call', { name: 'a__x' }))),
    at.send(inSession(session, call('tools/call', { name: 'stateless__x' }))),
    at.send(inSession(session, call('resources/read', { uri: 'stateless+x:1' }))),
    at.send(inSession(session, { jsonrpc: '2.0', id: 'a__x', result: {} })),
    ...['initialized', 'cancelled', 'progress', 'roots/list_changed'].map((method) =>
      at.send(inSession(session, { jsonrpc: '2.0', method: `notifications/${method}`, params: {} })),
    ),
  ]);
  for (const [index, { status }] of gone.entries()) t.is(status, 404, String(index));
  t.deepEqual([at.upstreams.a.received.length, at.upstreams.stateless.received.length], seen);
  t.deepEqual((await at.ask(kept, 'ping')).result, {}, 'the other one goes on');
});

test.serial('a foreign session, one of another endpoint and an invented one are unknown sessions', async (t) => {
  const at = await everywhere(t, { a: { ...CONTENT, ...paged(['1']) } });
  const [session, single] = [await openEverywhere(at), await open(at.gateway, { target: 'a' })];
  const seen = at.upstreams.a.received.length;
  const forged = `${session.slice(0, 40)}${session[40] === 'A' ? 'B' : 'A'}${session.slice(41)}`;
  const attempts: [string, string, string][] = [
    [session, 'bob', '/mcp'],
    [single, 'alice', '/mcp'],
    [forged, 'alice', '/mcp'],
    ['upstream-1', 'alice', '/mcp'],
    [session, 'alice', '/mcp/a'],
  ];
  for (const [id, user, path] of attempts) {
    const name = path === '/mcp' ? 'a__x' : 'x';
    const replies = await Promise.all([
      at.send(inSession(id, call('tools/call', { name }), { user, path })),
      at.send(inSession(id, call('tools/list'), { user, path })),
      at.send(inSession(id, call('ping'), { user, path })),
      at.send(inSession(id, { jsonrpc: '2.0', method: 'notifications/roots/list_changed' }, { user, path })),
      at.send(inSession(id, { jsonrpc: '2.0', id: 'a__x', result: {} }, { user, path })),
      at.send({ method: 'GET', user, path, headers: ['mcp-session-id', id, 'accept', 'text/event-stream'] }),
      at.send({ method: 'DELETE', user, path, headers: ['mcp-session-id', id] }),
    ]);
    t.deepEqual(
      replies.map(({ status }) => status),
      replies.map(() => 404),
      `${user} ${path}`,
    );
  }
  t.is((await at.send({ body: call('tools/list') })).status, 400, 'without a session');
  t.is((await at.send({ method: 'GET', headers: ['accept', 'text/event-stream'] })).status, 400);
  t.is(at.upstreams.a.received.length, seen);
  t.is((await at.ask(session, 'tools/list')).result.tools.length, 1);
});

test.serial('a replica that takes a session over knows its upstream sessions', async (t) => {
  const sessions = memorySessions();
  const results = { ...CONTENT, 'logging/setLevel': {} };
  const first = await everywhere(t, { a: results, b: results }, { deps: { sessions } });
  const targets = [routed('a', first.upstreams.a.url), routed('b', first.upstreams.b.url)];
  const second = await everywhere(t, {}, { deps: { sessions }, targets });
  const [session, other] = [await openEverywhere(first), await openEverywhere(first)];
  const { a } = first.upstreams;
  const sinceOpen = () =>
    a.received
      .slice(4)
      .map(({ httpMethod, message, headers }) => `${message?.method ?? httpMethod} ${headers['mcp-session-id']}`);
  await second.send(inSession(session, { jsonrpc: '2.0', method: 'notifications/roots/list_changed' }));
  t.deepEqual((await second.ask(other, 'logging/setLevel', { level: 'error' })).result, {});
  t.is((await second.send({ method: 'DELETE', headers: ['mcp-session-id', session] })).status, 200);
  t.deepEqual(sinceOpen(), ['notifications/roots/list_changed upstream-1', 'logging/setLevel upstream-2', 'DELETE upstream-1']);
  t.is((await first.send(inSession(session, call('ping')))).status, 404, 'and the one before knows that it has ended');
});

test.serial(
  'a session goes on when one target has lost its upstream session, and the other upstream sessions stay',
  async (t) => {
    let lost = false;
    const plain = target(CONTENT);
    const at = await everywhere(t, {
      a: (received, res) =>
        lost && received.headers['mcp-session-id'] === 'upstream-1' ? void res.writeHead(404).end() : plain(received, res),
      b: CONTENT,
    });
    const session = await openEverywhere(at);
    lost = true;
    t.deepEqual((await at.ask(session, 'tools/call', { name: 'a__x' })).result, { content: [] });
    t.is(at.upstreams.a.received.at(-1)?.headers['mcp-session-id'], 'upstream-2');
    t.deepEqual((await at.ask(session, 'tools/call', { name: 'b__x' })).result, { content: [] });
    t.is(at.upstreams.b.received.at(-1)?.headers['mcp-session-id'], 'upstream-1');
  },
);

test.serial('each element of a batch of 2025-03-26 reaches its own target', async (t) => {
  const at = await everywhere(
    t,
    { a: { ...CONTENT, ...paged(['1']) }, b: { ...CONTENT, ...paged(['1']) } },
    { rights: { alice: ({ resource_name }) => resource_name !== 'secret' } },
  );
  const session = await openEverywhere(at, { revision: '2025-03-26' });
  const batch = [
    call('tools/call', { name: 'a__x' }, 1),
    call('tools/call', { name: 'b__x' }, '1'),
    call('tools/call', { name: 'b__secret' }, 2),
    call('tools/call', { name: 'zz__x' }, 3),
    call('tools/call', { name: 'x' }, 4),
    call('tools/list', {}, 5),
    call('ping', {}, 6),
    { jsonrpc: '2.0', method: 'notifications/roots/list_changed' },
    { jsonrpc: '2.0', id: 'a__nobody', result: {} },
  ];
  const reply = await at.send(inSession(session, batch, { headers: ['mcp-protocol-version', '2025-03-26'] }));
  const answers = JSON.parse(reply.text) as { id: unknown; result?: object; error?: { code: number } }[];
  t.deepEqual(
    answers.map(({ id, result, error }) => [id, result ?? error?.code]),
    [
      [1, { content: [] }],
      ['1', { content: [] }],
      [2, 403],
      [3, 404],
      [4, -32602],
      [5, { tools: [tool('a__1'), tool('b__1')] }],
      [6, {}],
      [null, -32600],
    ],
  );
  const seen = (upstream: RecordingUpstream) => upstream.seen().slice(2).sort();
  t.deepEqual(seen(at.upstreams.a), ['notifications/roots/list_changed', 'tools/call', 'tools/list']);
  t.deepEqual(seen(at.upstreams.b), ['notifications/roots/list_changed', 'tools/call', 'tools/list']);
  const newer = await openEverywhere(at);
  t.is((await at.send(inSession(newer, batch))).status, 400);
});

for (const path of ['/mcp', '/mcp/a']) {
  test.serial(`${path}: a batch does not show what was denied while it waited for its last answer`, async (t) => {
    const plain = target({ ...CONTENT, ...paged(['1', '2']) });
    const slow: ServerResponse[] = [];
    const at = await everywhere(t, {
      a: (received, res) => (received.message?.params?.['name'] === 'slow' ? void slow.push(res) : plain(received, res)),
    });
    const revision = '2025-03-26';
    const isAll = path === '/mcp';
    const session = isAll ? await openEverywhere(at, { revision }) : await open(at.gateway, { target: 'a', revision });
    const nameOf = (name: string) => (isAll ? `a__${name}` : name);
    const batch = [
      call('tools/list', {}, 1),
      call('tools/call', { name: nameOf('x') }, 2),
      call('tools/call', { name: nameOf('slow') }, 3),
    ];
    const inBatch = async (change: () => void) => {
      const [listed, ended] = [at.gateway.shown.length, at.gateway.outcomes.length];
      const reply = send(at.gateway, inSession(session, batch, { path, headers: ['mcp-protocol-version', revision] }));
      await until(() => slow.length === 1 && at.gateway.shown.length > listed && at.gateway.outcomes.length === ended + 2);
      change();
      const res = slow.pop();
      if (res !== undefined) answerJson(res, { jsonrpc: '2.0', id: 3, result: { content: [] } });
      return JSON.parse((await reply).text) as { id: number; result?: object; error?: { code: number } }[];
    };
    const answered = { content: [] };
    const all = [1, 2].map((name) => tool(nameOf(`${name}`)));
    const seen = (answers: Awaited<ReturnType<typeof inBatch>>) => answers.map(({ result, error }) => result ?? error?.code);
    t.deepEqual(seen(await inBatch(() => undefined)), [{ tools: all }, answered, answered]);
    const deny = () => at.gateway.rights.set('alice', ({ resource_name }) => resource_name !== '2');
    t.deepEqual(seen(await inBatch(deny)), [-32603, answered, answered]);
  });
}

test.serial('many sessions, and many requests of one session, work at the same time', async (t) => {
  const at = await everywhere(t, { a: { ...CONTENT, ...paged(['1']) }, b: paged(['1']) });
  const sessions = await Promise.all(Array.from({ length: 20 }, () => openEverywhere(at)));
  t.is(new Set(sessions).size, 20);
  const initialized = at.upstreams.a.seen().filter((method) => method === 'initialize').length;
  t.is(initialized, 20);
  const lists = await Promise.all(
    sessions.flatMap((session) => [at.ask(session, 'tools/list'), at.ask(session, 'tools/call', { name: 'a__x' })]),
  );
  t.true(lists.every(({ result }) => result !== undefined));
  t.is(at.upstreams.a.seen().filter((method) => method === 'initialize').length, 20, 'none was opened twice');
});

test.serial('a target under its own path is not affected by the aggregate endpoint', async (t) => {
  const at = await everywhere(t, { a: paged(['1', 'x__y']) });
  const session = await open(at.gateway, { target: 'a' });
  const reply = await send(at.gateway, inSession(session, call('tools/list'), { path: '/mcp/a' }));
  t.deepEqual(namesOf(JSON.parse(reply.text).result.tools), ['1', 'x__y']);
});

const RELATED = 'io.modelcontextprotocol/related-task';
/** Every target gives its tasks the same ids. */
const task = (more: object = {}) => ({ taskId: 'T', status: 'working', ttl: null, createdAt: 'x', lastUpdatedAt: 'x', ...more });
const withTasks = {
  'tools/call': { task: task() },
  'tasks/get': task({ status: 'completed' }),
  'tasks/cancel': task({ status: 'cancelled' }),
  'tasks/result': { content: [{ type: 'resource_link', uri: 'x:1', name: 'n' }], _meta: { [RELATED]: { taskId: 'T' } } },
  'tasks/list': { tasks: [task(), task({ taskId: 'of another' })] },
};

test.serial('tasks of several targets are kept apart, and other callers cannot use them', async (t) => {
  const at = await everywhere(t, { a: withTasks, b: withTasks, none: {} });
  const [session, bobs] = [await openEverywhere(at), await openEverywhere(at, { user: 'bob' })];
  const make = async (name: string): Promise<string> =>
    (await at.ask(session, 'tools/call', { name, task: { ttl: 1000 } })).result.task.taskId;
  const [ofA, ofB] = [await make('a__x'), await make('b__x')];
  t.regex(ofA, /^a__[^_]/);
  t.regex(ofB, /^b__[^_]/);
  for (const taskId of [ofA, ofB]) {
    t.like((await at.ask(session, 'tasks/get', { taskId })).result, { taskId, status: 'completed' });
    const { result } = await at.ask(session, 'tasks/result', { taskId });
    t.deepEqual(result, {
      content: [{ type: 'resource_link', uri: `${taskId[0]}+x:1`, name: 'n' }],
      _meta: { [RELATED]: { taskId } },
    });
  }
  t.is(at.upstreams.a.received.at(-1)?.message?.params?.['taskId'], 'T');
  const { tasks } = (await at.ask(session, 'tasks/list')).result;
  t.deepEqual(
    tasks.map(({ taskId }: { taskId: string }) => taskId),
    [ofA, ofB],
  );
  t.deepEqual((await at.ask(bobs, 'tasks/list', {}, { user: 'bob' })).result, { tasks: [] });
  const seen = at.upstreams.b.received.length;
  for (const [taskId, within, user] of [
    [ofA, bobs, 'bob'],
    [ofA.replace('a__', 'b__'), session, 'alice'],
    [ofA.slice(3), session, 'alice'],
    ['b__T', session, 'alice'],
  ] as const) {
    for (const method of ['tasks/get', 'tasks/result', 'tasks/cancel'])
      t.is((await at.ask(within, method, { taskId }, { user })).error.code, -32602);
  }
  t.is(at.upstreams.b.received.length, seen);
  // A task that the client names reaches its own target, under the target's id.
  const about = (taskId: string) => ({ name: 'b__x', _meta: { [RELATED]: { taskId } } });
  await at.ask(session, 'tools/call', about(ofB));
  t.deepEqual(at.upstreams.b.received.at(-1)?.message?.params?.['_meta'], { [RELATED]: { taskId: 'T' } });
  await at.ask(session, 'tools/call', about(ofA));
  t.deepEqual(at.upstreams.b.received.at(-1)?.message?.params?.['_meta'], {});
  const older = await openEverywhere(at, { revision: '2025-06-18' });
  t.is((await at.ask(older, 'tasks/list')).error.code, -32601);
});

test.serial("the answer of the client names its task by the target's own task id", async (t) => {
  const plain = target(withTasks);
  const at = await everywhere(t, {
    a: (received, res) => {
      if (received.message?.method !== 'tasks/result') return plain(received, res);
      startStream(res);
      const params = { message: 'n', _meta: { [RELATED]: { taskId: 'T' } } };
      res.write(event({ id: 9, method: 'elicitation/create', params }));
    },
  });
  const session = await openEverywhere(at, { capabilities: { elicitation: {} } });
  const { taskId } = (await at.ask(session, 'tools/call', { name: 'a__x', task: {} })).result.task;
  const stream = await listen(at.gateway, session, { body: call('tasks/result', { taskId }, 3) });
  await stream.until(() => stream.messages().length === 1);
  const [asked] = stream.messages();
  t.deepEqual(asked?.params._meta[RELATED], { taskId });
  const result = { action: 'decline', _meta: { [RELATED]: { taskId }, n: 1 } };
  t.is((await at.send(inSession(session, { jsonrpc: '2.0', id: asked?.id, result }))).status, 202);
  t.deepEqual(at.upstreams.a.received.at(-1)?.message, {
    jsonrpc: '2.0',
    id: 9,
    result: { action: 'decline', _meta: { [RELATED]: { taskId: 'T' }, n: 1 } },
  } as never);
  stream.stop();
});
