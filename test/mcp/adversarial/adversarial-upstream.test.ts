/** Targets misbehave, or parts of the gateway are down; a caller learns nothing that it should not know. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { request } from 'node:http';
import test from 'ava';
import type { McpLimits } from '../../../src/mcp/limits/limits.ts';
import {
  answerJson,
  answerText,
  byMethod,
  type Message,
  type RecordingUpstream,
  type Script,
  startRecording,
} from '../../support/upstreams/recording.ts';
import { noCredentials, reachedWith, routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, MODERN, modern, open, send } from '../raw.ts';

interface Setup {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  readonly session: string;
  /** Answers the next calls with this, everything else as usual. */
  onCall(script: (message: Message, res: ServerResponse) => void): void;
}

async function setUp(
  t: { teardown(stop: () => Promise<void>): void },
  limits: Partial<McpLimits> = {},
  script: Script = byMethod({}),
): Promise<Setup> {
  const upstream = await startRecording(script);
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: ({ resource_name }) => resource_name.includes('ok') },
    limits,
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const session = await open(gateway);
  const onCall: Setup['onCall'] = (answer) => {
    upstream.script = (received, res) =>
      received.message?.method?.includes('/') && received.message.id !== undefined
        ? answer(received.message, res)
        : script(received, res);
  };
  return { gateway, upstream, session, onCall };
}

const OK = call('tools/call', { name: 'ok' });
/** The rows of calls, which are one each, and how the last ended. */
const calls = (gateway: TestGateway): string[] => gateway.audited().filter((row) => row.startsWith('tools/call'));
const lastOutcome = (gateway: TestGateway): string | undefined => gateway.outcomes.at(-1)?.outcome;
const result = (id: unknown, value: object): string => JSON.stringify({ jsonrpc: '2.0', id, result: value });

for (const [what, answer] of [
  ['another id', (res) => answerText(res, result(2, { content: [] }))],
  ['the id as a string', (res) => answerText(res, result('1', { content: [] }))],
  ['a repeated member', (res) => answerText(res, '{"jsonrpc":"2.0","id":1,"result":{"content":[],"content":[1]}}')],
  ['no JSON', (res) => answerText(res, '<html>')],
  ['a batch', (res) => answerText(res, `[${result(1, { content: [] })}]`)],
  ['a result that is no object', (res) => answerText(res, '{"jsonrpc":"2.0","id":1,"result":[]}')],
  ['result and error', (res) => answerText(res, '{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}')],
  ['a request', (res) => answerText(res, '{"jsonrpc":"2.0","id":1,"method":"elicitation/create"}')],
  ['text', (res) => answerText(res, 'hello', 'text/plain')],
  ['nothing', (res) => res.writeHead(202).end()],
  ['an event of another id', (res) => answerText(res, `data: ${result(2, { content: [] })}\n\n`, 'text/event-stream')],
  ['a stream without an answer', (res) => answerText(res, ': nothing\n\n', 'text/event-stream')],
  [
    'a stream that is no text',
    (res) => res.writeHead(200, { 'content-type': 'text/event-stream' }).end(Buffer.from([0xff, 0xfe])),
  ],
  ['a server error', (res) => answerText(res, '{"error":"internal stack trace"}', 'application/json', 500)],
  ['a broken connection', (res) => res.destroy()],
] as [string, (res: ServerResponse) => void][]) {
  test.serial(`the client gets -32603 in the gateway's words when the target answers with ${what}`, async (t) => {
    const { gateway, upstream, session, onCall } = await setUp(t);
    onCall((_, res) => answer(res));
    const before = upstream.received.length;
    const reply = await send(gateway, inSession(session, OK));
    t.is(reply.status, 200);
    const message = JSON.parse(/^(?:.*\n)?data: (.*)$/m.exec(reply.text)?.[1] ?? reply.text);
    t.deepEqual([message.id, message.error.code], [1, -32603]);
    t.notRegex(reply.text, /stack trace|html/);
    t.deepEqual([upstream.seen().slice(before), calls(gateway)], [['tools/call'], ['tools/call tool ok allow']]);
    t.is(lastOutcome(gateway), 'upstream_error');
  });
}

test.serial('challenges, cookies and redirects of the target do not reach the client', async (t) => {
  const { gateway, upstream, session, onCall } = await setUp(t);
  for (const [status, headers] of [
    [401, { 'www-authenticate': 'Bearer resource_metadata="http://evil"', 'set-cookie': 'a=b' }],
    [403, { 'www-authenticate': 'Bearer error="insufficient_scope"' }],
    [302, { location: 'http://127.0.0.1:1/internal' }],
    [307, { location: '/elsewhere' }],
  ] as const) {
    onCall((_, res) => void res.writeHead(status, headers as never).end('secret of the target'));
    const before = upstream.received.length;
    const reply = await send(gateway, inSession(session, OK));
    t.deepEqual([reply.status, reply.code], [200, -32603]);
    for (const name of ['www-authenticate', 'set-cookie', 'location']) t.is(reply.headers[name], undefined);
    t.notRegex(reply.text, /secret of the target/);
    t.is(upstream.received.length, before + 1);
    t.is(lastOutcome(gateway), 'upstream_error');
  }
  t.deepEqual(calls(gateway), Array(4).fill('tools/call tool ok allow'));
  onCall((_, res) => void res.writeHead(429, { 'retry-after': '9' }).end());
  t.is((await send(gateway, inSession(session, OK))).headers['retry-after'], '9');
  onCall(({ id }, res) =>
    answerJson(
      res,
      { jsonrpc: '2.0', id, result: { content: [] } },
      { 'set-cookie': 'a=b', 'mcp-session-id': 'x', 'x-powered-by': 'y' },
    ),
  );
  const reply = await send(gateway, inSession(session, OK));
  t.is(reply.code, undefined);
  for (const name of ['set-cookie', 'mcp-session-id', 'x-powered-by']) t.is(reply.headers[name], undefined);
});

test.serial('an error of the target is passed on as its answer', async (t) => {
  const { gateway, session, onCall } = await setUp(t);
  onCall(({ id }, res) =>
    answerJson(res, { jsonrpc: '2.0', id, error: { code: -32602, message: 'bad arguments', data: { n: 1 } } }),
  );
  const reply = await send(gateway, inSession(session, OK));
  t.deepEqual(JSON.parse(reply.text), {
    jsonrpc: '2.0',
    id: 1,
    error: { code: -32602, message: 'bad arguments', data: { n: 1 } },
  });
  t.deepEqual(calls(gateway), ['tools/call tool ok allow']);
  t.is(lastOutcome(gateway), 'error');
});

test.serial('the size of answers and events, and the silence of a target, are limited', async (t) => {
  // Long enough for the session to be opened while everything else here begins.
  const limits = { answerBytes: 10_000, idleMs: 2_000, headersMs: 2_000, silenceMs: 2_000 };
  const { gateway, session, onCall } = await setUp(t, limits);
  const pour = (res: ServerResponse, type: string): void => {
    res.writeHead(200, { 'content-type': type });
    const more = (): void => {
      while (!res.destroyed && res.write('x'.repeat(5000)));
      if (!res.destroyed) res.once('drain', more);
    };
    more();
  };
  for (const answer of [
    (res: ServerResponse) => pour(res, 'application/json'),
    (res: ServerResponse) => pour(res, 'text/event-stream'),
    (res: ServerResponse) => void res.writeHead(200, { 'content-type': 'application/json' }).write('{'),
    (res: ServerResponse) => void res.writeHead(200, { 'content-type': 'text/event-stream' }).write(':\n\n'),
    () => undefined,
  ]) {
    onCall((_, res) => answer(res));
    const reply = await send(gateway, inSession(session, OK));
    t.regex(reply.text, /"code":-32603/);
    t.true(reply.text.length < 1_000);
    t.is(lastOutcome(gateway), 'upstream_error');
  }
  t.deepEqual(calls(gateway), Array(5).fill('tools/call tool ok allow'));
});

test.serial('each event to the client holds exactly one message, whatever the target writes into its stream', async (t) => {
  const { gateway, session, onCall } = await setUp(t);
  const content = [{ type: 'text', text: '\n\ndata: {"jsonrpc":"2.0"}\n\n\r\u2028 é' }];
  onCall(({ id }, res) => {
    const pretty = JSON.stringify({ jsonrpc: '2.0', id, result: { content } }, null, 2).replaceAll('\n', '\rdata: ');
    const log = '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}';
    const bytes = Buffer.from(
      `event: message\rid: 1\rfoo: bar\rdata: ${log}\r\r: comment\revent: evil\rdata: ping\r\rdata: ${pretty}\r\r`,
    );
    const cut = bytes.indexOf(0xc3) + 1;
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.write(bytes.subarray(0, cut));
    setTimeout(() => res.end(bytes.subarray(cut)), 20);
  });
  const reply = await send(gateway, inSession(session, OK));
  const lines = reply.text.split('\n').filter((line) => line !== '' && !line.startsWith('id: '));
  t.deepEqual(
    lines.map((line) => line.slice(0, 14)),
    ['event: message', 'data: {"jsonrp', 'event: message', 'data: {"jsonrp'],
  );
  t.deepEqual(JSON.parse(lines[3]?.slice(6) ?? '').result.content, content);
  t.notRegex(reply.text, /evil|^id: 1$|comment/m);
  t.deepEqual(calls(gateway), ['tools/call tool ok allow']);
  t.is(lastOutcome(gateway), 'ok');
});

test.serial('the first of two answers counts, and notifications of other requests are dropped', async (t) => {
  const { gateway, session, onCall } = await setUp(t);
  onCall((_, res) => {
    const progress = (progressToken: string) =>
      `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"${progressToken}","progress":1}}\n\n`;
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.end(
      `${progress('mine')}${progress('other')}data: ${result(1, { content: [1] })}\n\ndata: ${result(1, { content: [2] })}\n\n`,
    );
  });
  const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok', _meta: { progressToken: 'mine' } })));
  t.deepEqual(reply.text.match(/"progressToken":"\w+"|"content":\[\d\]/g), ['"progressToken":"mine"', '"content":[1]']);
  t.deepEqual(calls(gateway), ['tools/call tool ok allow']);
});

test.serial('2026-07-28: log messages without a level are dropped, and a request of the target fails the call', async (t) => {
  const { gateway, upstream } = await setUp(t);
  upstream.script = byMethod({ 'tools/call': {} }, { modern: true });
  await send(gateway, modern('server/discover'));
  upstream.script = ({ message }, res) => {
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.write('data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}\n\n');
    res.end(
      `data: {"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}\n\ndata: ${result(message?.id, { content: [] })}\n\n`,
    );
  };
  const reply = await send(gateway, modern('tools/call', { name: 'ok' }));
  t.notRegex(reply.text, /notifications\/message|elicitation/);
  t.regex(reply.text, /-32603/);
});

test.serial('nothing is forwarded if the credential is unusable', async (t) => {
  const { gateway, upstream, session } = await setUp(t);
  gateway.targets.set('t', routed('t', upstream.url, { accessOf: reachedWith('unusable') }));
  const before = upstream.received.length;
  const reply = await send(gateway, inSession(session, OK));
  t.deepEqual([reply.status, reply.code], [200, -32603]);
  t.regex(reply.text, /credential/);
  t.is(upstream.received.length, before);
});

test.serial('a target without a credential gets no credential header', async (t) => {
  const { gateway, upstream, session } = await setUp(t);
  gateway.targets.set('t', routed('t', upstream.url, { accessOf: reachedWith(noCredentials) }));
  await send(gateway, inSession(session, OK));
  t.is(upstream.received.at(-1)?.headers['x-upstream-key'], undefined);
  t.is(upstream.received.at(-1)?.headers.authorization, undefined);
});

test.serial('a call to a target that is unreachable or link-local gets a JSON-RPC error', async (t) => {
  const { gateway } = await setUp(t);
  for (const url of ['http://127.0.0.1:1/mcp', 'http://169.254.169.254/latest/meta-data']) {
    gateway.targets.set('t', routed('t', url));
    const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } };
    const reply = await send(gateway, { body: call('initialize', params) });
    t.deepEqual([reply.status, reply.code], [200, -32603]);
    t.regex(reply.text, /cannot be reached|has an address that the gateway does not connect to/);
    t.notRegex(reply.text, /169\.254|127\.0\.0\.1/);
  }
});

for (const [how, status, body] of [
  ['404, as the specification has it', 404, null],
  ['400, as SDK servers have it', 400, 'Bad Request: No valid session ID provided'],
] as const) {
  test.serial(
    `an upstream session that the target has lost (${how}) is replaced once, and the client keeps its session`,
    async (t) => {
      const { gateway, upstream, session } = await setUp(t);
      const lose = (res: ServerResponse): void =>
        body === null
          ? answerText(res, '', 'text/plain', status)
          : answerJson(res, { jsonrpc: '2.0', id: null, error: { code: -32000, message: body } }, {}, status);
      const results = byMethod({ 'tools/call': { content: [] } });
      upstream.script = (received, res) => {
        if (received.message?.method === 'initialize') {
          return answerJson(
            res,
            {
              jsonrpc: '2.0',
              id: received.message.id,
              result: { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'u', version: '1' } },
            },
            { 'mcp-session-id': 'its successor' },
          );
        }
        return received.headers['mcp-session-id'] === 'its successor' ? results(received, res) : lose(res);
      };
      const before = upstream.received.length;
      const reply = await send(gateway, inSession(session, OK));
      t.deepEqual([reply.status, reply.code], [200, undefined]);
      t.deepEqual(upstream.seen().slice(before), ['tools/call', 'initialize', 'notifications/initialized', 'tools/call']);
      t.is(upstream.received.at(-1)?.headers['mcp-session-id'], 'its successor');
      // One decision for the call, whatever it took to make it.
      t.is(gateway.audited().filter((row) => row.startsWith('tools/call')).length, 1);
      t.is((await send(gateway, inSession(session, OK))).status, 200);
      t.deepEqual(upstream.seen().slice(before + 4), ['tools/call']);

      upstream.script = (_, res) => lose(res);
      const failed = await send(gateway, inSession(session, OK));
      t.deepEqual([failed.status, failed.code], [200, -32603]);
    },
  );
}

test.serial('the client gets 503 and nothing is forwarded if the audit log fails', async (t) => {
  const { gateway, upstream, session } = await setUp(t);
  const [before, decided] = [upstream.received.length, gateway.decisions.length];
  gateway.auditDown = true;
  for (const params of [{ name: 'ok' }, { name: 'secret' }]) {
    const reply = await send(gateway, inSession(session, call('tools/call', params)));
    t.deepEqual([reply.status, reply.code], [503, -32603]);
    t.truthy(reply.headers['retry-after']);
  }
  t.is((await send(gateway, inSession(session, { jsonrpc: '2.0', method: 'notifications/initialized' }))).status, 503);
  for (const method of ['GET', 'DELETE'])
    t.is((await send(gateway, { method, headers: ['mcp-session-id', session] })).status, 503);
  t.deepEqual([upstream.received.length, gateway.decisions.length], [before, decided]);
});

test.serial('a list is answered only after its names are recorded', async (t) => {
  const { gateway, session, onCall } = await setUp(t);
  onCall(({ id }, res) => {
    gateway.auditDown = true;
    answerJson(res, { jsonrpc: '2.0', id, result: { tools: [{ name: 'ok' }] } });
  });
  const reply = await send(gateway, inSession(session, call('tools/list')));
  t.is(reply.code, -32603);
  t.notRegex(reply.text, /"ok"/);
  t.deepEqual(gateway.shown, []);
});

test.serial('an unreadable state gives 503, and a broken engine denies calls, records an error and empties lists', async (t) => {
  const { gateway, upstream, session } = await setUp(t, {}, byMethod({ 'tools/list': { tools: [{ name: 'ok' }] } }));
  const before = upstream.received.length;
  gateway.stateDown = true;
  const down = await send(gateway, inSession(session, OK));
  t.deepEqual([down.status, down.code, down.headers['retry-after'], JSON.parse(down.text).id], [503, -32603, '3', 1]);
  t.is((await send(gateway, { method: 'GET', headers: ['mcp-session-id', session] })).status, 503);
  t.deepEqual(calls(gateway), [], 'there is nobody to write a row about');
  gateway.stateDown = false;
  gateway.engineDown = true;
  t.is((await send(gateway, inSession(session, OK))).code, 404);
  t.is(gateway.audited().at(-1), 'tools/call tool ok deny error');
  t.is(upstream.received.length, before);
});

test.serial('a forbidden target answers like one that does not exist', async (t) => {
  const { gateway, upstream } = await setUp(t);
  gateway.targets.set('u', routed('u', upstream.url));
  const before = upstream.received.length;
  const ask = async (user: string, path: string) => {
    const initialize = await send(gateway, {
      user,
      path,
      body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {} }),
    });
    const stateless = await send(gateway, { ...modern('tools/call', { name: 'ok' }), user, path });
    const own = await send(gateway, { ...modern('resources/read', { uri: 'file:///a/../b' }), user, path });
    const missing = await send(gateway, { user, path, method: 'GET', headers: ['mcp-session-id', 'x'] });
    return [initialize, stateless, own, missing].map(({ status, text }) => [status, text.replace(/"request_id":"[^"]*"/, '')]);
  };
  const forbidden = await ask('bob', '/mcp/u');
  const unknown = await ask('bob', '/mcp/v');
  t.deepEqual(unknown, JSON.parse(JSON.stringify(forbidden).replaceAll('`u`', '`v`')));
  const text = 'no target `u`, or no policy lets you use it';
  t.deepEqual(forbidden[0], [200, JSON.stringify({ jsonrpc: '2.0', id: 1, error: { code: 404, message: text } })]);
  t.is(upstream.received.length, before);
  t.deepEqual(gateway.audited().slice(-8), [
    'initialize deny',
    'tools/call tool ok deny',
    'resources/read resource file:///a/../b deny not_canonical',
    'GET deny',
    'initialize deny no_target',
    'tools/call tool ok deny no_target',
    'resources/read resource file:///a/../b deny no_target',
    'GET deny no_target',
  ]);
  t.is(gateway.decisions.at(-1)?.target_id, null);
});

test.serial('a page without visible items keeps its cursor, and the cursor is passed on unchanged', async (t) => {
  const { gateway, upstream, session, onCall } = await setUp(t);
  onCall(({ id }, res) => answerJson(res, { jsonrpc: '2.0', id, result: { tools: [{ name: 'secret' }], nextCursor: 'c2' } }));
  const reply = await send(gateway, inSession(session, call('tools/list', { cursor: 'c1' })));
  t.like(JSON.parse(reply.text).result, { tools: [], nextCursor: 'c2' });
  t.is(upstream.received.at(-1)?.message?.params?.cursor, 'c1');
  t.like(gateway.shown.at(-1), { names: [], hidden: 1 });
});

test.serial('a client of 2026-07-28 is told to open a session once the target is known to be stateful only', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const before = upstream.received.length;
  for (const method of ['tools/call', 'server/discover', 'tools/call']) {
    const reply = await send(gateway, modern(method, method === 'tools/call' ? { name: 'ok' } : {}));
    t.deepEqual([reply.status, reply.code], [400, -32022], method);
    t.deepEqual(JSON.parse(reply.text).error.data, { supported: ['2025-11-25', '2025-06-18', '2025-03-26'], requested: MODERN });
  }
  // The gateway's own question, the client's, and none for a target that is known.
  t.deepEqual(upstream.seen().slice(before), ['server/discover', 'server/discover']);
});

test.serial('a target of 2026-07-28 that answers with event streams is used without a session', async (t) => {
  const { gateway, upstream } = await setUp(t);
  upstream.script = ({ message }, res) => {
    const { id, method } = message ?? {};
    const result = method === 'server/discover' ? { supportedVersions: [MODERN], capabilities: {} } : { content: [] };
    const events = [
      { method: 'notifications/message', params: {} },
      { id, result },
    ].map((body) => `data: ${JSON.stringify({ jsonrpc: '2.0', ...body })}\n\n`);
    // The stream stays open.
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write(events.join(''));
  };
  const reply = await send(gateway, modern('tools/call', { name: 'ok' }));
  t.deepEqual([reply.status, reply.code], [200, undefined]);
  t.deepEqual(upstream.seen().slice(-2), ['server/discover', 'tools/call']);
});

test.serial('a failure makes the gateway ask for the mode of a target again only if it may be in the wrong mode', async (t) => {
  const { gateway, upstream } = await setUp(t);
  let status = 200;
  const usual = byMethod({ 'tools/call': { content: [] } }, { modern: true });
  upstream.script = (received, res) => {
    if (received.message?.method !== 'tools/call' || status === 200) usual(received, res);
    else res.writeHead(status).end('<html>');
  };
  const asked = async (): Promise<number> => {
    const before = upstream.seen().length;
    for (const next of [status, 200]) {
      status = next;
      await send(gateway, modern('tools/call', { name: 'ok' }));
    }
    return upstream
      .seen()
      .slice(before)
      .filter((method) => method === 'server/discover').length;
  };
  t.is(await asked(), 1, 'the mode is not known yet');
  for (const [failure, times] of [
    ...[400, 404, 405, 406].map((wrong) => [wrong, 1] as const),
    ...[401, 403, 413, 429, 500, 502].map((other) => [other, 0] as const),
  ]) {
    status = failure;
    t.is(await asked(), times, `${failure}`);
  }
});

test.serial('an endless stream as the answer to server/discover is not read to its end', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const event = `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"x":"${'x'.repeat(100_000)}"}}\n\n`;
  upstream.script = (_, res) => {
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    const more = (): void => {
      while (!res.destroyed && res.write(event));
      if (!res.destroyed) res.once('drain', more);
    };
    more();
  };
  t.is((await send(gateway, modern('tools/call', { name: 'ok' }))).code, -32603);
});

for (const [how, refuse] of [
  ['with HTTP 400', ({ id }, res) => answerJson(res, { jsonrpc: '2.0', id, error: { code: -32602, message: 'odd' } }, {}, 400)],
  ['with an error', ({ id }, res) => answerJson(res, { jsonrpc: '2.0', id, error: { code: -32602, message: 'odd' } })],
  ['by breaking off', (_, res) => void res.writeHead(200, { 'content-type': 'application/json' }).end('{')],
] as readonly (readonly [string, (message: Message, res: ServerResponse) => void])[]) {
  test.serial(`a client whose server/discover is refused ${how} does not change the mode of the target for others`, async (t) => {
    const stateless = byMethod({ 'tools/call': { content: [] } }, { modern: true });
    const { gateway, upstream } = await setUp(t);
    upstream.script = (received, res) => {
      const { message } = received;
      if (message?.params?.['odd'] === true) refuse(message, res);
      else stateless(received, res);
    };
    gateway.rights.set('bob', () => true);
    const refused = await send(gateway, modern('server/discover', { odd: true }));
    t.not(refused.code, -32022);
    t.is((await send(gateway, { ...modern('tools/call', { name: 'ok' }), user: 'bob' })).code, undefined);
    t.is((await send(gateway, modern('server/discover'))).code, undefined);
  });
}

test.serial('a version error names the revisions that both the target and the gateway serve', async (t) => {
  const { gateway, onCall } = await setUp(t);
  onCall(({ id }, res) => {
    const data = { supported: ['2027-01-01', MODERN, '2024-11-05'], requested: 'x' };
    answerJson(res, { jsonrpc: '2.0', id, error: { code: -32022, message: 'no', data } }, {}, 400);
  });
  const reply = await send(gateway, modern('server/discover'));
  t.deepEqual([reply.status, JSON.parse(reply.text).error.data.supported], [400, [MODERN]]);
});

test.serial('a client that opens a session with a target of 2026-07-28 only gets a version error', async (t) => {
  const { gateway, upstream } = await setUp(t);
  upstream.script = ({ message }, res) =>
    answerJson(
      res,
      { jsonrpc: '2.0', id: message?.id, error: { code: -32022, message: 'no', data: { supported: [MODERN] } } },
      {},
      400,
    );
  const reply = await send(gateway, { body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {} }) });
  t.deepEqual([reply.status, reply.code, reply.headers['mcp-session-id']], [400, -32022, undefined]);
});

test.serial('initialize reaches the target with supported capabilities and a supported revision only', async (t) => {
  const { gateway, upstream, session } = await setUp(t);
  const capabilities = {
    elicitation: {},
    tasks: { list: {} },
    extensions: { 'io.modelcontextprotocol/tasks': {}, 'acme/x': {} },
  };
  await send(gateway, {
    body: call('initialize', { protocolVersion: '2031-01-01', capabilities, clientInfo: { name: 'a', version: '1' } }),
  });
  t.deepEqual(upstream.received.at(-1)?.message?.params, {
    protocolVersion: '2025-11-25',
    capabilities: { elicitation: {}, extensions: { 'acme/x': {} } },
    clientInfo: { name: 'a', version: '1' },
  });
  const taskOf = async (id: string) => {
    await send(gateway, inSession(id, call('tools/call', { name: 'ok', task: { ttl: 1 } })));
    return upstream.received.at(-1)?.message?.params?.task;
  };
  t.deepEqual(await taskOf(session), { ttl: 1 });
  t.is(await taskOf(await open(gateway, { revision: '2025-06-18' })), undefined, 'that revision has no tasks');
});

async function until(condition: () => boolean): Promise<void> {
  for (let waited = 0; !condition() && waited < 10_000; waited += 20) await new Promise((resolve) => setTimeout(resolve, 20));
}

/** Sends a request, disconnects when the target has it, and returns whether the target's connection was closed. */
async function leave(
  setup: Setup,
  headers: readonly string[],
  body: object,
): Promise<{ closed: () => boolean; finish: () => void }> {
  let closed = false;
  let finish = (): void => undefined;
  const arrived = new Promise<void>((resolve) => {
    setup.onCall(({ id }, res) => {
      res.on('close', () => {
        closed = !res.writableFinished;
      });
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.flushHeaders();
      finish = () => void res.end(`data: ${result(id, { content: [] })}\n\n`);
      resolve();
    });
  });
  const text = JSON.stringify(body);
  const usual = [
    'host',
    'x',
    'authorization',
    'Bearer alice',
    'content-type',
    'application/json',
    'content-length',
    String(text.length),
  ];
  const req = request(`${setup.gateway.origin}/mcp/t`, { method: 'POST', headers: [...usual, ...headers] as never });
  req.end(text);
  await Promise.all([arrived, once(req, 'response')]);
  req.on('error', () => undefined);
  req.destroy();
  await new Promise((resolve) => setTimeout(resolve, 100));
  return { closed: () => closed, finish };
}

test.serial('a client of 2026-07-28 that disconnects cancels its call', async (t) => {
  const setup = await setUp(t);
  setup.upstream.script = byMethod({}, { modern: true });
  await send(setup.gateway, modern('server/discover'));
  const { headers = [], body } = modern('tools/call', { name: 'ok' });
  const { closed } = await leave(setup, headers, body as object);
  await until(() => closed() && lastOutcome(setup.gateway) === 'cancelled');
  t.true(closed());
  t.is(lastOutcome(setup.gateway), 'cancelled');
});

test.serial('a call in a session goes on after its client disconnects, and its outcome is recorded', async (t) => {
  const setup = await setUp(t);
  const { closed, finish } = await leave(setup, ['mcp-session-id', setup.session], OK);
  t.false(closed());
  const ended = setup.gateway.outcomes.length;
  finish();
  await until(() => setup.gateway.outcomes.length > ended);
  t.is(lastOutcome(setup.gateway), 'ok');
});

test.serial('no secret of the client or of the target reaches the log', async (t) => {
  const { gateway, session, onCall } = await setUp(t);
  onCall((_, res) => res.destroy());
  await send(gateway, inSession(session, call('tools/call', { name: 'ok', arguments: { password: 'hunter2' } })));
  const log = JSON.stringify(gateway.logged, (_, value) =>
    value instanceof Error ? { ...value, message: value.message } : value,
  );
  t.true(gateway.logged.length > 0);
  t.notRegex(log, /hunter2|gateway-secret|Bearer/);
});

test.serial('a target that asks the client of a batch is refused, because such a client gets only answers', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway, { revision: '2025-03-26' });
  upstream.script = ({ message }, res) => {
    const { id, method, error } = (message ?? {}) as Message & { readonly error?: { readonly code: number } };
    if (error !== undefined) {
      res.writeHead(202).end();
      waiting[0]?.end(`data: ${result(1, { content: [{ type: 'text', text: `refused: ${id} ${error.code}` }] })}\n\n`);
      return;
    }
    if (method === undefined) return void res.writeHead(202).end();
    waiting.push(res.writeHead(200, { 'content-type': 'text/event-stream' }));
    res.write('data: {"jsonrpc":"2.0","id":"r","method":"roots/list"}\n\n');
  };
  const waiting: ServerResponse[] = [];
  const { text } = await send(gateway, inSession(session, [OK]));
  t.is(JSON.parse(text)[0].result.content[0].text, 'refused: r -32601');
});
