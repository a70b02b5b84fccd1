/** Requests that targets may send to their clients: which are announced, and which reach the client. */
import type { ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import type { JsonObject } from '../../src/base/json/json.ts';
import { ASKABLE, type Askable, isWithheldError, mayBeAsked, reduceClientCapabilities } from '../../src/protocol/capabilities.ts';
import type { RoutedTarget } from '../../src/targets/target.ts';
import { answerJson, byMethod, type Script, startRecording } from '../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from './gateway.ts';
import { call, inSession, MODERN, modern, open, send } from './raw.ts';

const without = (...missing: Askable[]): Askable[] => ASKABLE.filter((askable) => !missing.includes(askable));
const EVERYTHING: JsonObject = {
  sampling: { tools: {} },
  elicitation: { form: {}, url: {} },
  roots: { listChanged: true },
  experimental: { x: {} },
};

async function setUp(t: ExecutionContext, may_ask: readonly Askable[], options: { modern?: boolean } = {}) {
  const plain = byMethod({ 'tools/call': { content: [] } }, options);
  const upstream = await startRecording(plain);
  const gateway = await startGateway({
    targets: [routed('t', upstream.url, { may_ask })],
    rights: { alice: () => true },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const onCall = (script: Script): void => {
    upstream.script = (received, res) =>
      received.message?.method === 'tools/call' ? script(received, res) : plain(received, res);
  };
  return { gateway, upstream, onCall };
}

test.serial('a target does not learn of client capabilities that it may not use', (t) => {
  const told = (capabilities: JsonObject, mayAsk: readonly Askable[]) =>
    reduceClientCapabilities(capabilities, 'stateful', mayAsk);
  t.deepEqual(told(EVERYTHING, ASKABLE), EVERYTHING);
  t.deepEqual(told(EVERYTHING, []), { experimental: { x: {} } });
  t.deepEqual(Object.keys(told(EVERYTHING, without('sampling'))), ['elicitation', 'roots', 'experimental']);
  t.deepEqual(told(EVERYTHING, without('elicitation_url')).elicitation, { form: {} });
  t.deepEqual(told(EVERYTHING, without('elicitation')).elicitation, { url: {} });
  // A capability without a mode means forms. If a client offers only URLs and these are forbidden, the capability is removed.
  t.deepEqual(told({ elicitation: { url: {} } }, without('elicitation_url')), {});
  t.deepEqual(told({ elicitation: {} }, without('elicitation_url')), { elicitation: {} });
  t.deepEqual(told({ elicitation: {} }, without('elicitation')), {});
  t.deepEqual(told({ elicitation: 1 }, ASKABLE), {});
  t.deepEqual(told({ tasks: {}, extensions: { 'io.modelcontextprotocol/tasks': {}, 'acme/x': {} } }, ASKABLE), {
    extensions: { 'acme/x': {} },
  });
});

test.serial('a request for the client is recognised by its method and mode', (t) => {
  t.true(mayBeAsked([], 'ping', undefined));
  t.true(mayBeAsked(['roots'], 'roots/list', undefined));
  t.false(mayBeAsked(without('roots'), 'roots/list', undefined));
  t.false(mayBeAsked(without('sampling'), 'sampling/createMessage', {}));
  t.false(mayBeAsked(ASKABLE, 'sampling/create', {}));
  t.false(mayBeAsked(ASKABLE, 'tasks/get', {}));
  t.true(mayBeAsked(['elicitation'], 'elicitation/create', { mode: 'form' }));
  t.false(mayBeAsked(['elicitation'], 'elicitation/create', { mode: 'url' }));
  t.true(mayBeAsked(['elicitation_url'], 'elicitation/create', { mode: 'url' }));
  t.false(mayBeAsked(['elicitation_url'], 'elicitation/create', {}));
  t.false(mayBeAsked(ASKABLE, 'elicitation/create', { mode: 'URL' }));
  t.false(mayBeAsked(['elicitation'], 'elicitation/create', { mode: 'form', Mode: 'url' }));
});

test.serial('an error about a capability that the gateway withheld does not reach the client', (t) => {
  const declaring = (capabilities: JsonObject): JsonObject => ({
    _meta: { 'io.modelcontextprotocol/clientCapabilities': capabilities },
  });
  const withheld = (required: JsonObject | undefined, declared: JsonObject, mayAsk: readonly Askable[]) => {
    const error: JsonObject = { code: -32021, message: 'x', ...(required && { data: { requiredCapabilities: required } }) };
    return isWithheldError(error, 'stateless', mayAsk, declaring(declared));
  };
  t.true(withheld({ sampling: {} }, EVERYTHING, without('sampling')));
  t.false(withheld({ sampling: {} }, {}, without('sampling')), 'the client does not offer it either');
  t.true(withheld({ elicitation: { url: {} } }, EVERYTHING, without('elicitation_url')));
  t.false(withheld({ elicitation: { url: {} } }, { elicitation: {} }, without('elicitation_url')));
  t.true(withheld({ elicitation: { form: {} } }, { elicitation: {} }, without('elicitation')));
  t.false(withheld({ extensions: { 'io.modelcontextprotocol/tasks': {} } }, {}, ASKABLE));
  t.true(withheld(undefined, EVERYTHING, without('sampling')));
  t.false(withheld(undefined, EVERYTHING, ASKABLE));
  t.false(isWithheldError({ code: -32021, message: 'x' }, 'stateful', [], undefined));
});

test.serial('client capabilities are announced when a session opens, or with each request of 2026-07-28', async (t) => {
  const { gateway, upstream } = await setUp(t, without('sampling', 'elicitation_url'));
  const params = { protocolVersion: '2025-11-25', capabilities: EVERYTHING, clientInfo: { name: 'a', version: '1' } };
  await send(gateway, { body: call('initialize', params) });
  t.deepEqual(upstream.received.at(-1)?.message?.params?.['capabilities'], {
    elicitation: { form: {} },
    roots: { listChanged: true },
    experimental: { x: {} },
  });
  const stateless = await setUp(t, without('roots', 'elicitation'), { modern: true });
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': EVERYTHING,
    other: 1,
  };
  await send(stateless.gateway, modern('tools/call', { name: 'ok', _meta }));
  t.deepEqual(stateless.upstream.received.at(-1)?.message?.params?.['_meta'], {
    ..._meta,
    'io.modelcontextprotocol/clientCapabilities': { sampling: { tools: {} }, elicitation: { url: {} }, experimental: { x: {} } },
  });
});

const event = (message: object) => `data: ${JSON.stringify(message)}\n\n`;

function startStream(res: ServerResponse): void {
  res.writeHead(200, { 'content-type': 'text/event-stream' });
}

for (const [what, may_ask, asked] of [
  ['sampling', without('sampling'), { method: 'sampling/createMessage', params: { messages: [], maxTokens: 1 } }],
  ['roots', without('roots'), { method: 'roots/list' }],
  ['a form', without('elicitation'), { method: 'elicitation/create', params: { message: 'SECRET', requestedSchema: {} } }],
  ['an address', without('elicitation_url'), { method: 'elicitation/create', params: { mode: 'url', url: 'https://x.test' } }],
  ['a mode that is none', ASKABLE, { method: 'elicitation/create', params: { mode: 'Url', url: 'https://x.test' } }],
] as const) {
  test.serial(
    `a target that asks for ${what} without permission is refused, and the client does not see the request`,
    async (t) => {
      const { gateway, upstream, onCall } = await setUp(t, may_ask);
      const session = await open(gateway);
      const refusal = new Promise<object>((resolve) => {
        onCall(async (_, res) => {
          startStream(res);
          res.write(event({ jsonrpc: '2.0', id: 'q', ...asked }));
          const refused = await answerTo(upstream, 'q');
          res.end(event({ jsonrpc: '2.0', id: 1, result: { content: [] } }));
          resolve(refused);
        });
      });
      const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
      t.like(await refusal, { id: 'q', error: { code: -32601 } });
      t.notRegex(reply.text, new RegExp(asked.method));
      t.regex(reply.text, /"result":\{"content":\[\]\}/);
    },
  );
}

for (const [what, change] of [
  ['it may no longer ask', ({ targets }, t) => targets.set('t', { ...t, may_ask: without('elicitation') })],
  ['it is disabled', ({ targets }) => targets.delete('t')],
  ['it has moved', ({ targets }, t) => targets.set('t', { ...t, url: 'http://127.0.0.1:1/mcp' } as RoutedTarget)],
  ['another one has its name', ({ targets }, t) => targets.set('t', { ...t, id: 'other' })],
  ['the caller may no longer use it', ({ rights }) => rights.delete('alice')],
  ['the state is unavailable', (gateway) => (gateway.stateDown = true)],
] satisfies readonly (readonly [string, (gateway: TestGateway, target: RoutedTarget) => unknown])[]) {
  test.serial(`a call in flight asks the client nothing more once ${what}`, async (t) => {
    const { gateway, upstream, onCall } = await setUp(t, ASKABLE);
    const session = await open(gateway);
    onCall(async (_, res) => {
      startStream(res);
      change(gateway, gateway.targets.get('t') as RoutedTarget);
      const params = { message: 'Your password, please', requestedSchema: {} };
      res.write(event({ jsonrpc: '2.0', id: 'q', method: 'elicitation/create', params }));
      t.like(await answerTo(upstream, 'q'), { id: 'q', error: { code: -32601 } });
      res.end(event({ jsonrpc: '2.0', id: 1, result: { content: [] } }));
    });
    const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
    t.notRegex(reply.text, /password/);
    t.regex(reply.text, /"result":\{"content":\[\]\}/);
  });
}

test.serial('a target gets no answer to what it may no longer ask', async (t) => {
  const { gateway, upstream, onCall } = await setUp(t, ASKABLE);
  const session = await open(gateway);
  onCall((_, res) => {
    startStream(res);
    res.write(event({ jsonrpc: '2.0', id: 'q', method: 'elicitation/create', params: { message: 'x', requestedSchema: {} } }));
    res.end(event({ jsonrpc: '2.0', id: 1, result: { content: [] } }));
  });
  const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
  const [, id] = /"id":"([^"]+)","method":"elicitation\/create"/.exec(reply.text) ?? [];
  const answer = inSession(session, { jsonrpc: '2.0', id, result: { action: 'accept', content: { password: 'hunter2' } } });
  const learned = (): boolean => upstream.received.some(({ message }) => message?.id === 'q' && 'result' in message);
  const target = gateway.targets.get('t') as RoutedTarget;
  for (const [may_ask, learns] of [
    [[], false],
    [['elicitation_url'], false],
    [['elicitation'], true],
  ] as const) {
    gateway.targets.set('t', { ...target, may_ask });
    t.is((await send(gateway, answer)).status, 202);
    t.is(learned(), learns, String(may_ask));
  }
});

test.serial('in 2026-07-28, a target gets only the replies to what it may still ask', async (t) => {
  const { gateway, upstream } = await setUp(t, ASKABLE, { modern: true });
  const target = gateway.targets.get('t') as RoutedTarget;
  const inputResponses = {
    model: { role: 'assistant', content: { type: 'text', text: 'x' }, model: 'm' },
    form: { action: 'accept', content: { password: 'hunter2' } },
    page: { action: 'accept' },
    roots: { roots: [{ uri: 'file:///home' }] },
    both: { roots: [], role: 'assistant', action: 'accept', content: {} },
    number: 1,
  };
  const got = async (may_ask: readonly Askable[]): Promise<unknown> => {
    gateway.targets.set('t', { ...target, may_ask });
    t.is((await send(gateway, modern('tools/call', { name: 'ok', inputResponses }))).code, undefined);
    const { params: had = {} } = upstream.received.at(-1)?.message ?? {};
    const responses = had.inputResponses as object | undefined;
    return responses && Object.keys(responses).join(' ');
  };
  t.is(await got(ASKABLE), 'model form page roots both number');
  t.is(await got([]), undefined);
  t.is(await got(['sampling']), 'model');
  t.is(await got(['elicitation']), 'form page');
  t.is(await got(['elicitation_url']), 'page');
  t.is(await got(['roots']), 'roots');
  t.is(await got(['roots', 'elicitation']), 'form page roots both');
});

/** Waits for the answer of the gateway to the target. */
async function answerTo(upstream: Awaited<ReturnType<typeof startRecording>>, id: string): Promise<object> {
  for (;;) {
    const found = upstream.received.find(({ message }) => message?.id === id && message.method === undefined);
    if (found?.message !== undefined) return found.message;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

test.serial('an allowed request reaches the client without the wish for a task at the client', async (t) => {
  const { gateway, onCall } = await setUp(t, ['elicitation']);
  const session = await open(gateway);
  const params = { message: 'x', requestedSchema: { maximum: 1 }, task: { ttl: 1 } };
  onCall((_, res) => {
    startStream(res);
    res.write(event({ jsonrpc: '2.0', id: 'q', method: 'elicitation/create', params }));
    res.end(event({ jsonrpc: '2.0', id: 1, result: { content: [] } }));
  });
  const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
  const asked = JSON.parse(
    reply.text
      .split('\n')
      .find((line) => line.includes('elicitation/create'))
      ?.slice('data: '.length) ?? '{}',
  );
  t.deepEqual(asked.params, { message: 'x', requestedSchema: { maximum: 1 } });
  t.not(asked.id, 'q');
});

test.serial('a target can cancel the last 100 of its requests on a stream, if their ids are not long', async (t) => {
  const { gateway, onCall } = await setUp(t, ['elicitation']);
  const session = await open(gateway);
  const long = 'x'.repeat(129);
  const ids = [...Array.from({ length: 101 }, (_, i) => `q${i}`), long];
  onCall((_, res) => {
    startStream(res);
    const params = { message: 'x', requestedSchema: {} };
    for (const id of ids) res.write(event({ jsonrpc: '2.0', id, method: 'elicitation/create', params }));
    for (const requestId of [long, 'q0', 'q1', 'q100'])
      res.write(event({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } }));
    res.end(event({ jsonrpc: '2.0', id: 1, result: { content: [] } }));
  });
  const { text } = await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
  const asked = [...text.matchAll(/"id":"([^"]+)","method":"elicitation/g)].map(([, id]) => id);
  const cancelled = [...text.matchAll(/"requestId":"([^"]+)"/g)].map(([, id]) => id);
  t.is(asked.length, 102);
  t.deepEqual(cancelled, [asked[1], asked[100]]);
});

test.serial('neither an error nor a notification carries a URL elicitation that the target may not make', async (t) => {
  const elicitations = [{ mode: 'url', elicitationId: 'e', url: 'https://evil.test', message: 'go' }];
  const error = { code: -32042, message: 'go to https://evil.test', data: { elicitations } };
  for (const [may_ask, through] of [
    [ASKABLE, true],
    [without('elicitation_url'), false],
  ] as const) {
    const { gateway, onCall } = await setUp(t, may_ask);
    const session = await open(gateway);
    const ask = () => send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
    for (const status of [200, 400]) {
      onCall(({ message }, res) => answerJson(res, { jsonrpc: '2.0', id: message?.id, error }, {}, status));
      const reply = await ask();
      t.is(reply.code, through ? -32042 : -32603, `${status}`);
      t.is(reply.text.includes('evil'), through);
    }
    const complete = { jsonrpc: '2.0', method: 'notifications/elicitation/complete', params: { elicitationId: 'e' } };
    onCall((_, res) => {
      startStream(res);
      res.end(event(complete) + event({ jsonrpc: '2.0', id: 1, result: { content: [] } }));
    });
    t.is((await ask()).text.includes('elicitation/complete'), through);
  }
});

test.serial("2026-07-28: an error about a withheld capability is replaced by the gateway's own words", async (t) => {
  const declared = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': { sampling: {} },
  };
  for (const [may_ask, status, code] of [
    [ASKABLE, 400, -32021],
    [without('sampling'), 200, -32603],
  ] as const) {
    const { gateway, onCall } = await setUp(t, may_ask, { modern: true });
    const missing = may_ask === ASKABLE ? { roots: {} } : { sampling: {} };
    const error = { code: -32021, message: 'MISSING', data: { requiredCapabilities: missing } };
    onCall(({ message }, res) => answerJson(res, { jsonrpc: '2.0', id: message?.id, error }, {}, 400));
    const reply = await send(gateway, modern('tools/call', { name: 'ok', _meta: declared }));
    t.deepEqual([reply.status, reply.code], [status, code]);
    t.is(reply.text.includes('MISSING'), code === -32021);
  }
});

test.serial('2026-07-28: a request for input that the target may not ask for counts as a fault of the target', async (t) => {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': { elicitation: { form: {}, url: {} } },
  };
  const { gateway, onCall } = await setUp(t, without('elicitation_url'), { modern: true });
  const ask = async (params: object) => {
    const inputRequests = { q: { method: 'elicitation/create', params } };
    onCall(({ message }, res) =>
      answerJson(res, { jsonrpc: '2.0', id: message?.id, result: { resultType: 'input_required', inputRequests } }),
    );
    return send(gateway, modern('tools/call', { name: 'ok', _meta }));
  };
  t.is((await ask({ message: 'x', requestedSchema: {} })).code, undefined);
  const refused = await ask({ mode: 'url', url: 'https://evil.test', message: 'x' });
  t.is(refused.code, -32603);
  t.notRegex(refused.text, /evil/);
});

test.serial('a change of roots is sent only to targets that may ask for roots', async (t) => {
  const { gateway, upstream } = await setUp(t, without('roots'));
  const session = await open(gateway);
  const seen = upstream.received.length;
  const notification = { jsonrpc: '2.0', method: 'notifications/roots/list_changed' };
  t.is((await send(gateway, inSession(session, notification))).status, 202);
  t.is(upstream.received.length, seen);
  t.is(gateway.audited().at(-1), 'notifications/roots/list_changed allow');
  t.like(gateway.outcomes.at(-1), { decision_id: gateway.decisions.at(-1)?.id, outcome: 'ok' });
  // Callers that may not use the target get the same answer as for one that does not exist, and the same row.
  for (const path of ['/mcp/t', '/mcp/missing']) {
    const decided = gateway.decisions.length;
    t.is((await send(gateway, inSession('x', notification, { user: 'mallory', path }))).status, 202);
    t.deepEqual(
      gateway.decisions.slice(decided).map(({ method, effect }) => [method, effect]),
      [[notification.method, 'deny']],
    );
  }
  t.is((await send(gateway, inSession('x', notification))).status, 404, 'the session is checked as for other messages');
  const all = await setUp(t, ASKABLE);
  const other = await open(all.gateway);
  t.is((await send(all.gateway, inSession(other, notification))).status, 202);
  t.is(all.upstream.seen().at(-1), 'notifications/roots/list_changed');
});
