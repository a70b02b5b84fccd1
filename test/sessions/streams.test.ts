/** Calls and streams while tokens, rights and policies change: cases 43, 46 and 47, and `subscriptions/listen`. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person } from '../support/gateway.ts';
import { type Listener, listen, named, until } from '../support/listener.ts';
import { call, modernClient, openSession, post } from '../support/mcp.ts';
import { startDualEra } from '../support/upstreams/dual-mode.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { startStateful } from '../support/upstreams/stateful.ts';
import { type World, world } from '../support/world.ts';

const ID = 'io.modelcontextprotocol/subscriptionId';
const MODERN = '2026-07-28';

/** A target of 2026-07-28 that acknowledges each `subscriptions/listen` and keeps its stream. */
async function startListened(t: ExecutionContext) {
  const streams: ServerResponse[] = [];
  const plain = byMethod({}, { modern: true });
  let subscription: unknown;
  const say = (method: string, params: object = {}): void => {
    const message = { jsonrpc: '2.0', method, params: { _meta: { [ID]: subscription }, ...params } };
    streams.at(-1)?.write(`data: ${JSON.stringify(message)}\n\n`);
  };
  const upstream = await startRecording((received, res) => {
    if (received.message?.method !== 'subscriptions/listen') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    streams.push(res);
    subscription = received.message.id;
    say('notifications/subscriptions/acknowledged', { notifications: received.message.params?.['notifications'] });
  });
  t.teardown(() => upstream.stop());
  return { upstream, streams, say };
}

async function addTarget(w: World, name: string, url: string): Promise<string> {
  const body = { name, transport: 'streamable-http', url };
  await w.gateway.rest(201, 'POST', '/api/targets', { token: w.admin.token, body });
  return `${w.gateway.url}/mcp/${name}`;
}

function subscribe(t: ExecutionContext, url: string, token: string, notifications: object): Promise<Listener> {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  return listen(t, url, token, {
    method: 'POST',
    headers: { 'mcp-protocol-version': MODERN, 'mcp-method': 'subscriptions/listen' },
    body: { jsonrpc: '2.0', id: 'sub', method: 'subscriptions/listen', params: { _meta, notifications } },
  });
}

eachEngine(
  test.serial,
  'a revoked token ends everything that is open within five seconds, and nothing comes after (case 43)',
  async (t, at) => {
    const target = await startStateful();
    t.teardown(() => target.stop());
    const listened = await startListened(t);
    const w = await world(t, at.url, target.url);
    const modern = await addTarget(w, 'modern', listened.upstream.url);
    await w.allow({ name: 'all' });
    const made = await apiToken(w.gateway, w.user, 'to be revoked');
    const headers = { 'mcp-session-id': await openSession(w.mcp, made.token) };
    const standing = await listen(t, w.mcp, made.token, { headers });
    const answering = await listen(t, w.mcp, made.token, { method: 'POST', headers, body: call('slow') });
    const subscribed = await subscribe(t, modern, made.token, { toolsListChanged: true });
    t.is((await subscribed.next()).method, 'notifications/subscriptions/acknowledged');
    const everywhere = `${w.gateway.url}/mcp`;
    const all = await listen(t, everywhere, made.token, {
      headers: { 'mcp-session-id': await openSession(everywhere, made.token) },
    });

    await w.gateway.rest(204, 'DELETE', `/api/auth/tokens/${made.id}`, { token: w.user.token });
    const began = performance.now();
    const heard = [standing, answering, all].map((stream) => stream.heard.length);
    target.say('notifications/message', { level: 'info', data: 'too late' });
    listened.say('notifications/tools/list_changed');
    await Promise.all([standing, answering, subscribed, all].map(({ ended }) => ended));
    t.true(performance.now() - began < 5_000);
    target.release();
    t.deepEqual(
      [standing, answering, all].map((stream) => stream.heard.filter(({ error }) => error === undefined).length),
      heard,
    );
    t.deepEqual(
      subscribed.heard.map(({ method, result }) => method ?? result?.['resultType']),
      ['notifications/subscriptions/acknowledged', 'complete'],
    );
    await until(
      'nothing is left open at the targets',
      () =>
        [...target.sessions.values()].every(({ stream }) => stream === null) &&
        listened.streams.every(({ destroyed, closed }) => destroyed || closed),
    );
  },
);

test.serial('listeners learn of a change of policy for the kinds that were acknowledged, under their subscription', async (t) => {
  const listened = await startListened(t);
  const w = await world(t);
  const modern = await addTarget(w, 'modern', listened.upstream.url);
  await w.allow({ name: 'all' });
  const subscription = await subscribe(t, modern, w.token, {
    toolsListChanged: true,
    resourcesListChanged: true,
    resourceSubscriptions: ['file:///a'],
  });
  t.is((await subscription.next()).method, 'notifications/subscriptions/acknowledged');
  await w.allow({ name: 'one more', resource_type: 'prompt' });
  const told = [await subscription.next(), await subscription.next()];
  t.deepEqual(told.map(({ method }) => method).sort(), [
    'notifications/resources/list_changed',
    'notifications/tools/list_changed',
  ]);
  for (const { params } of told) t.deepEqual(params, { _meta: { [ID]: 'sub' } });

  const other = await subscribe(t, modern, w.token, { toolsListChanged: true });
  await other.next();
  await w.allow({ name: 'not this', resource_type: 'resource', resource_pattern: '^file:///a$', effect: 'deny', priority: 99 });
  t.deepEqual(await subscription.next(), {
    jsonrpc: '2.0',
    id: 'sub',
    result: { resultType: 'complete', _meta: { [ID]: 'sub' } },
  } as object);
  await subscription.ended;
  t.is((await other.next()).method, 'notifications/tools/list_changed', 'it had nothing to lose');
  await until('the target is left', () => listened.streams[0]?.closed === true);
  t.false(listened.streams[1]?.closed);
  t.is(subscription.heard.length, 4);
});

test.serial(
  'a subscription ends when the credentials of its caller change, and the next one uses the new credentials',
  async (t) => {
    const listened = await startListened(t);
    const w = await world(t);
    const modern = await addTarget(w, 'modern', listened.upstream.url);
    await w.allow({ name: 'all' });
    const { body: targets } = await w.gateway.rest<{ id: string; name: string }[]>(200, 'GET', '/api/targets', {
      token: w.admin.token,
    });
    const id = targets.find(({ name }) => name === 'modern')?.id;
    const first = await subscribe(t, modern, w.token, { toolsListChanged: true });
    await first.next();
    const credential = { type: 'bearer', value: 'new' };
    await w.gateway.rest(201, 'PUT', `/api/targets/${id}/credentials/default`, { token: w.admin.token, body: credential });
    t.is((await first.next()).result?.['resultType'], 'complete');
    const second = await subscribe(t, modern, w.token, { toolsListChanged: true });
    await second.next();
    t.is(listened.upstream.received.at(-1)?.headers.authorization, 'Bearer new');
  },
);

test.serial('the official client continues to listen when its rights change', async (t) => {
  const listened = await startListened(t);
  const w = await world(t, null, listened.upstream.url);
  await w.allow({ name: 'all' });
  const client = await modernClient(t, w.mcp, w.token);
  const changed = new Promise<void>((resolve) =>
    client.setNotificationHandler('notifications/tools/list_changed', () => resolve()),
  );
  const subscription = await client.listen({ toolsListChanged: true });
  t.true(subscription.honoredFilter.toolsListChanged === true);
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { role: 'other' } });
  await changed;
  t.pass();
});

eachEngine(
  test.serial,
  'each page of a list and each batch is decided with the policies of its time (case 46)',
  async (t, at) => {
    const target = await startStateful();
    t.teardown(() => target.stop());
    const w = await world(t, at.url, target.url);
    const { id: policy } = await w.allow({ name: 'all' });
    const headers = { 'mcp-session-id': await openSession(w.mcp, w.token) };
    const list = async (params: object) =>
      (await post(w.mcp, w.token, { jsonrpc: '2.0', id: 1, method: 'tools/list', params }, headers)).message?.result ?? {};
    const names = (page: Record<string, unknown>) => (page['tools'] as { name: string }[]).map(({ name }) => name);
    const first = await list({});
    t.deepEqual(names(first), ['first-echo', 'first-ask', 'first-slow']);
    await w.allow({ name: 'no', resource_type: 'tool', resource_pattern: 'slow', effect: 'deny', priority: 99 });
    t.deepEqual(names(await list({ cursor: first['nextCursor'] })), ['second-echo', 'second-ask']);

    const opened = await post(
      w.mcp,
      w.token,
      {
        jsonrpc: '2.0',
        id: 0,
        method: 'initialize',
        params: { protocolVersion: '2025-03-26', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
      },
      { 'mcp-protocol-version': '2025-03-26' },
    );
    const old = { 'mcp-session-id': opened.headers.get('mcp-session-id') ?? '', 'mcp-protocol-version': '2025-03-26' };
    const batch = async () => {
      const { message } = await post(w.mcp, w.token, JSON.stringify([call('echo', {}, 1), call('slow', {}, 2)]), old);
      return (message as unknown as { id: number; error?: { code: number } }[])
        .sort((a, b) => a.id - b.id)
        .map(({ error }) => error?.code ?? 'ok');
    };
    t.deepEqual(await batch(), ['ok', 403]);
    await w.gateway.rest(204, 'DELETE', `/api/policies/${policy}`, { token: w.admin.token });
    await w.allow({ name: 'lists', resource_type: 'prompt' });
    t.deepEqual(await batch(), [403, 403]);
    interface Row {
      method: string;
      revision: number;
    }
    const { body: rows } = await w.gateway.rest<Row[]>(200, 'GET', '/api/logs', { token: w.admin.token });
    const revisions = (method: string) => rows.filter((row) => row.method === method).map(({ revision }) => revision);
    t.is(new Set(revisions('tools/list')).size, 2, 'the log tells which policies each page was decided with');
    t.is(revisions('tools/call').length, 4);
    t.is(new Set(revisions('tools/call')).size, 2);
  },
);

test.serial('each round of an exchange gets its own decision (case 46)', async (t) => {
  const target = await startDualEra();
  t.teardown(() => target.stop());
  const w = await world(t, null, target.url);
  await w.allow({ name: 'all' });
  const client = await modernClient(t, w.mcp, w.token);
  t.is(client.getNegotiatedProtocolVersion(), MODERN);
  const ask = (more: object) =>
    post(
      w.mcp,
      w.token,
      {
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: {
          name: 'ask',
          arguments: {},
          _meta: {
            'io.modelcontextprotocol/protocolVersion': MODERN,
            'io.modelcontextprotocol/clientCapabilities': { elicitation: {} },
          },
          ...more,
        },
      },
      { 'mcp-protocol-version': MODERN, 'mcp-method': 'tools/call', 'mcp-name': 'ask' },
    );
  const first = (await ask({})).message?.result ?? {};
  t.is(first['resultType'], 'input_required');
  const ran = target.ran.length;
  await w.allow({ name: 'no', resource_type: 'tool', resource_pattern: '^ask$', effect: 'deny', priority: 99 });
  const responses = {
    inputResponses: { word: { action: 'accept', content: { word: 'x' } } },
    ...(first['requestState'] ? { requestState: first['requestState'] } : {}),
  };
  t.is((await ask(responses)).message?.error?.code, 403);
  t.is(target.ran.length, ran);
});

test.serial('a message of a target to one user reaches no other user (case 47)', async (t) => {
  const target = await startStateful();
  t.teardown(() => target.stop());
  const w = await world(t, null, target.url);
  await w.allow({ name: 'all' });
  const other = await person(w.gateway, 'other@example.com');
  const { token } = await apiToken(w.gateway, other);
  const mine = await listen(t, w.mcp, w.token, { headers: { 'mcp-session-id': await openSession(w.mcp, w.token) } });
  const theirs = await listen(t, w.mcp, token, { headers: { 'mcp-session-id': await openSession(w.mcp, token) } });
  const [first, second] = [...target.sessions.values()];
  const say = (session: typeof first, method: string, params: object): void =>
    void session?.stream?.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method, params })}\n\n`);
  for (const [session, whose] of [
    [first, 'mine'],
    [second, 'theirs'],
  ] as const) {
    say(session, 'notifications/resources/updated', { uri: `file:///${whose}` });
    say(session, 'notifications/message', { level: 'info', data: whose });
  }
  for (const [stream, whose] of [
    [mine, 'mine'],
    [theirs, 'theirs'],
  ] as const) {
    t.is((await stream.next()).params?.['uri'], `file:///${whose}`);
    t.is((await stream.next(named('notifications/message'))).params?.['data'], whose);
    t.is(stream.heard.length, 2);
  }
});

test.serial('a client that disconnects leaves nothing open at the target', async (t) => {
  const target = await startStateful();
  t.teardown(() => target.stop());
  const w = await world(t, null, target.url);
  await w.allow({ name: 'all' });
  const headers = { 'mcp-session-id': await openSession(w.mcp, w.token) };
  for (let n = 0; n < 5; n++) {
    const stream = await listen(t, w.mcp, w.token, { headers });
    const theirs = target.sessions.get('up-1')?.stream;
    if (theirs == null) throw new Error('no stream at the target');
    const left = once(theirs, 'close');
    await w.gateway.rest(200, 'POST', '/api/sessions/recycle', {
      token: w.admin.token,
      body: n === 4 ? { all: true } : { user_id: w.admin.id },
    });
    stream.leave();
    await left;
  }
  await until('every stream is closed', () => [...target.sessions.values()].every(({ stream }) => stream === null));
  t.pass();
});
