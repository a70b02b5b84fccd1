/** Messages that the target could read differently from the gateway. */
import test from 'ava';
import { answerJson, byMethod, type RecordingUpstream, startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, MODERN, modern, open, send } from '../raw.ts';

interface Setup {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  readonly session: string;
  /** Messages that the target got, and audit rows, since the session was opened. */
  since(): { readonly seen: string[]; readonly audited: string[] };
}

const CONTENT = { content: [{ type: 'text', text: 'done' }] };

/** alice may use the tool, prompt and resources called ok or public. */
async function setUp(
  t: { teardown(stop: () => Promise<void>): void },
  mode: 'stateful' | 'stateless' = 'stateful',
  revision?: string,
): Promise<Setup> {
  const upstream = await startRecording(
    byMethod(
      { 'tools/call': CONTENT, 'prompts/get': { messages: [] }, 'resources/subscribe': {} },
      { modern: mode === 'stateless' },
    ),
  );
  const allowed = /^(ok|cafe\u0301|__proto__|file:\/\/\/public\/.*)$/;
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: ({ resource_name }) => allowed.test(resource_name) },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const session = mode === 'stateful' ? await open(gateway, revision === undefined ? {} : { revision }) : '';
  if (mode === 'stateless') await send(gateway, modern('server/discover'));
  const [seen, audited] = [upstream.received.length, gateway.decisions.length];
  return {
    gateway,
    upstream,
    session,
    since: () => ({ seen: upstream.seen().slice(seen), audited: gateway.audited().slice(audited) }),
  };
}

const NOTHING = { seen: [], audited: [] };

for (const [what, body, codes] of [
  ['a second name', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","name":"secret"}}', [-32700]],
  [
    'a second name by an escape',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","\\u006eame":"secret"}}',
    [-32700],
  ],
  ['a second method', '{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"secret"}}', [-32700]],
  ['second params', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok"},"params":{"name":"secret"}}', [-32700]],
  [
    'a second uri',
    '{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///public/a","uri":"file:///b"}}',
    [-32700],
  ],
  ['Name beside name', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","Name":"secret"}}', [-32600]],
  [
    'dotted capital I',
    '{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///public","ur\u0130":"file:///secret"}}',
    [-32600],
  ],
  ['paramſ', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok"},"paramſ":{"name":"secret"}}', [-32600]],
  ['a Kelvin sign', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","tas\u212a":{}}}', [-32600]],
  ['Method', '{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{"name":"secret"}}', [-32600]],
  ['__proto__', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","__proto__":{"name":"secret"}}}', [-32700]],
  ['no id', '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"ok"}}', [-32600]],
  ['no id on a subscription', '{"jsonrpc":"2.0","method":"resources/subscribe","params":{"uri":"file:///public/a"}}', [-32600]],
  ['id null', '{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"ok"}}', [-32600]],
  ['id 1.5', '{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"ok"}}', [-32600]],
  ['id 1e400', '{"jsonrpc":"2.0","id":1e400,"method":"tools/call","params":{"name":"ok"}}', [-32700]],
  ['id 2^60', '{"jsonrpc":"2.0","id":1152921504606846976,"method":"tools/call","params":{"name":"ok"}}', [-32700]],
  ['id {}', '{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"ok"}}', [-32600]],
  ['params as an array', '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["ok"]}', [-32600]],
  ['an invented response', '{"jsonrpc":"2.0","id":"invented","result":{}}', [-32600]],
  ['a response to an id of the target', '{"jsonrpc":"2.0","id":5,"result":{}}', [-32600]],
  ['a batch', '[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok"}}]', [-32600]],
  ['a nested batch', '[[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok"}}]]', [-32600]],
  ['a batch of responses', '[{"jsonrpc":"2.0","id":1,"result":{}}]', [-32600]],
  ['a byte order mark', '\ufeff{"jsonrpc":"2.0","id":1,"method":"ping"}', [-32700]],
  ['an id that is an array', '{"jsonrpc":"2.0","id":[1],"method":"tools/call","params":{"name":"ok"}}', [-32600]],
] as const) {
  test.serial(`400 and nothing forwarded: ${what}`, async (t) => {
    const { gateway, session, since } = await setUp(t);
    const reply = await send(gateway, inSession(session, body));
    t.is(reply.status, 400);
    t.deepEqual([reply.code], [...codes]);
    t.deepEqual(since(), NOTHING);
  });
}

test.serial('methods are compared byte for byte, and unknown methods are not forwarded', async (t) => {
  const { gateway, session, since } = await setUp(t);
  for (const method of [
    'Tools/Call',
    ' tools/call',
    'tools/call\0',
    'tools//call',
    'acme/danger',
    'tasks/update',
    'skills/get',
    '__proto__',
  ]) {
    const reply = await send(gateway, inSession(session, call(method, { name: 'ok' })));
    t.deepEqual([reply.status, reply.code], [200, -32601], method);
  }
  t.deepEqual(since(), NOTHING);
});

test.serial('unknown methods of 2026-07-28 are not forwarded and get HTTP 404', async (t) => {
  const { gateway, since } = await setUp(t, 'stateless');
  for (const method of ['Tools/Call', 'acme/danger', 'tasks/list', 'skills/get', 'initialize', 'ping']) {
    const reply = await send(gateway, modern(method, { name: 'ok' }));
    t.deepEqual([reply.status, reply.code], [404, -32601], method);
  }
  t.deepEqual(since(), NOTHING);
});

test.serial('names are compared byte for byte', async (t) => {
  const { gateway, session, since } = await setUp(t);
  const others = ['OK', 'ok ', ' ok', 'ok\u200b', 'caf\u00e9', 'constructor', 'toString', 'hasOwnProperty', 'оk'];
  for (const name of others) {
    const reply = await send(gateway, inSession(session, call('tools/call', { name })));
    t.deepEqual([reply.status, reply.code], [200, 403], name);
  }
  t.deepEqual(since(), { seen: [], audited: others.map((name) => `tools/call tool ${name} deny`) });
  const allowed = await send(gateway, inSession(session, call('tools/call', { name: 'cafe\u0301' })));
  t.is(allowed.code, undefined);
  t.deepEqual(since().seen, ['tools/call']);
});

test.serial('a name that is not a valid name is refused before any decision', async (t) => {
  const { gateway, session, since } = await setUp(t);
  for (const name of [1, ['ok'], { toString: 'ok' }, null, '', 'o\nk', 'x'.repeat(257)]) {
    const reply = await send(gateway, inSession(session, call('tools/call', { name })));
    t.deepEqual([reply.status, reply.code], [200, -32602], JSON.stringify(name));
  }
  t.deepEqual(since(), NOTHING);
});

test.serial('only params.name names the tool', async (t) => {
  const { gateway, upstream, session, since } = await setUp(t);
  // fastjson takes the second for `name`; json-iterator and fastjson2 compare hashes, so there are such names for them, too.
  const others = { tool: 'secret', _name: 'secret', 'na-me': 'secret', 'params.name': 'secret' };
  const params = { _meta: { name: 'secret', method: 'x' }, arguments: { name: 'secret' }, name: 'ok' };
  const reply = await send(gateway, inSession(session, call('tools/call', { ...others, ...params })));
  t.is(reply.code, undefined);
  t.deepEqual(since(), { seen: ['tools/call'], audited: ['tools/call tool ok allow'] });
  t.deepEqual(upstream.received.at(-1)?.message?.params, params);
});

test.serial('a denied call gets a JSON-RPC error and is not forwarded', async (t) => {
  const { gateway, session, since } = await setUp(t);
  const reply = await send(gateway, inSession(session, call('tools/call', { name: 'secret' })));
  t.deepEqual([reply.status, reply.code], [200, 403]);
  const { error } = JSON.parse(reply.text);
  t.deepEqual(error.data, { decision_id: gateway.decisions.at(-1)?.id, reason: 'default' });
  t.is(gateway.outcomes.at(-1)?.outcome, 'denied');
  t.deepEqual(since(), { seen: [], audited: ['tools/call tool secret deny'] });
});

test.serial('arguments reach the target as they were written', async (t) => {
  const { gateway, upstream, session } = await setUp(t);
  const args = '{"float": 1.0, "e":1E2, "text":"\\u00e9\\/", "deep":[[{"name":"x"}]]}';
  await send(
    gateway,
    inSession(session, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","arguments":${args}}}`),
  );
  t.true(upstream.received.at(-1)?.text.includes(`"arguments":${args}`));
});

test.serial('the ids 1 and "1" are different', async (t) => {
  const { gateway, upstream, session, since } = await setUp(t);
  const seen = upstream.received.length;
  const replies = await Promise.all(
    [1, '1'].map((id) => send(gateway, inSession(session, call('tools/call', { name: 'ok' }, id)))),
  );
  t.deepEqual(
    replies.map(({ text }) => JSON.parse(text).id),
    [1, '1'],
  );
  const sent = upstream.received.slice(seen).map(({ message }) => message?.id);
  t.deepEqual(new Set(sent), new Set([1, '1']));
  t.deepEqual(since().audited, Array(2).fill('tools/call tool ok allow'));
});

test.serial('a notification that is unknown, or has no session, is accepted and dropped', async (t) => {
  const { gateway, session, since } = await setUp(t);
  const notify = (method: string) => ({ jsonrpc: '2.0', method, params: {} });
  t.is((await send(gateway, inSession(session, notify('notifications/acme')))).status, 202);
  t.is((await send(gateway, inSession(session, notify('notifications/tasks/status')))).status, 202);
  t.is((await send(gateway, { body: notify('notifications/cancelled') })).status, 202);
  t.deepEqual(since(), NOTHING);
  t.is((await send(gateway, inSession(session, notify('notifications/cancelled')))).status, 202);
  t.deepEqual(since(), { seen: ['notifications/cancelled'], audited: ['notifications/cancelled allow'] });
});

const headers = (changes: Record<string, string | undefined>) => modern('tools/call', { name: 'ok' }, { headers: changes });

test.serial('2026-07-28: a request is refused if a header is missing or differs from the body', async (t) => {
  const { gateway, since } = await setUp(t, 'stateless');
  for (const raw of [
    headers({ 'mcp-name': 'secret' }),
    modern('tools/call', { name: 'secret' }, { headers: { 'mcp-name': 'ok' } }),
    headers({ 'mcp-method': 'tools/list' }),
    headers({ 'mcp-method': 'Tools/Call' }),
    headers({ 'mcp-method': undefined }),
    headers({ 'mcp-name': undefined }),
    headers({ 'mcp-name': '=?base64?b2s?=' }),
    headers({ 'mcp-name': '=?base64?b2s==?=' }),
    headers({ 'mcp-name': '=?base64?b-s=?=' }),
    headers({ 'mcp-name': '=?BASE64?b2s=?=' }),
    headers({ 'mcp-name': '=?base64?b2s=\t?=' }),
    headers({ 'mcp-name': '=?base64?c2VjcmV0?=' }),
    headers({ 'mcp-name': '=?base64?PT9iYXNlNjQ/YjJzPT89?=' }),
    headers({ 'mcp-protocol-version': undefined }),
    headers({ 'mcp-protocol-version': '2025-11-25' }),
  ]) {
    const reply = await send(gateway, raw);
    t.deepEqual([reply.status, reply.code], [400, -32020], JSON.stringify(raw.headers));
  }
  t.deepEqual(since(), NOTHING);
  t.is((await send(gateway, headers({ 'mcp-name': '=?base64?b2s=?=' }))).code, undefined);
  t.deepEqual(since(), { seen: ['tools/call'], audited: ['tools/call tool ok allow'] });
});

test.serial(
  'a request is refused if header and body name different versions, and the error names unknown versions',
  async (t) => {
    const { gateway, since } = await setUp(t, 'stateless');
    const version = ['mcp-protocol-version', MODERN];
    const bare = await send(gateway, { headers: version, body: call('tools/call', { name: 'ok' }) });
    t.deepEqual([bare.status, bare.code], [400, -32602]);
    const discover = await send(gateway, { body: call('server/discover') });
    t.deepEqual([discover.status, discover.code], [200, -32601]);
    const unsaid = await send(gateway, { body: call('subscriptions/listen', { notifications: {} }) });
    t.deepEqual([unsaid.status, unsaid.code], [200, -32601]);
    const legacy = { headers: ['mcp-protocol-version', '2025-11-25'] };
    const claimed = await send(gateway, { ...legacy, body: modern('tools/call', { name: 'ok' }).body ?? {} });
    t.deepEqual([claimed.status, claimed.code], [400, -32020]);
    const initialize = await send(gateway, {
      headers: version,
      body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {} }),
    });
    t.deepEqual([initialize.status, initialize.code], [400, -32020]);
    const response = await send(gateway, { headers: version, body: { jsonrpc: '2.0', id: 1, result: {} } });
    t.deepEqual([response.status, response.code], [400, -32600]);
    const ok = modern('tools/call', { name: 'ok' }).body ?? {};
    for (const body of [[ok], [ok, modern('tools/call', { name: 'secret' }, { id: 2 }).body], [[ok]], []]) {
      const batch = await send(gateway, { headers: version, body });
      t.deepEqual([batch.status, batch.code], [400, -32600]);
    }
    const idless = { jsonrpc: '2.0', method: 'tools/call', params: { name: 'ok' } };
    const unanswered = await send(gateway, { headers: version, body: idless });
    t.deepEqual([unanswered.status, unanswered.code, 'id' in JSON.parse(unanswered.text)], [400, -32600, false]);
    const future = modern('tools/call', { name: 'ok' }, { headers: { 'mcp-protocol-version': '2027-01-01' } });
    const text = JSON.stringify(future.body).replace(MODERN, '2027-01-01');
    const unsupported = await send(gateway, { ...future, body: text });
    t.deepEqual([unsupported.status, unsupported.code], [400, -32022]);
    t.deepEqual(JSON.parse(unsupported.text).error.data, { supported: [MODERN], requested: '2027-01-01' });
    t.deepEqual(since(), NOTHING);
  },
);

test.serial('an error for an unreadable id has the id null in a session and no id in 2026-07-28', async (t) => {
  const { gateway } = await setUp(t, 'stateless');
  t.is(JSON.parse((await send(gateway, { body: '{' })).text).id, null);
  t.false('id' in JSON.parse((await send(gateway, { headers: ['mcp-protocol-version', MODERN], body: '{' })).text));
});

test.serial('each element of a batch of 2025-03-26 is decided and forwarded by itself', async (t) => {
  const { gateway, upstream, session, since } = await setUp(t, 'stateful', '2025-03-26');
  const batch = [call('tools/call', { name: 'ok' }, 1), call('tools/call', { name: 'secret' }, 2), call('acme/x', {}, 3)];
  const reply = await send(
    gateway,
    inSession(session, [...batch, { jsonrpc: '2.0', method: 'notifications/cancelled', params: {} }]),
  );
  const answers = JSON.parse(reply.text) as { id: number; error?: { code: number } }[];
  t.deepEqual(
    answers.map(({ id, error }) => [id, error?.code]),
    [
      [1, undefined],
      [2, 403],
      [3, -32601],
    ],
  );
  t.deepEqual(since().seen.toSorted(), ['notifications/cancelled', 'tools/call']);
  t.true(upstream.received.every(({ text }) => !text.startsWith('[')));
  t.deepEqual(since().audited.toSorted(), [
    'notifications/cancelled allow',
    'tools/call tool ok allow',
    'tools/call tool secret deny',
  ]);
});

test.serial('a batch that no revision allows is refused as a whole', async (t) => {
  const { gateway, session, since } = await setUp(t, 'stateful', '2025-03-26');
  const ok = (id: unknown) => call('tools/call', { name: 'ok' }, id);
  for (const batch of [
    [],
    [ok(1), ok(1)],
    [ok(1), call('initialize', { protocolVersion: '2025-03-26', capabilities: {} }, 2)],
    Array.from({ length: 51 }, (_, id) => ok(id)),
    Array.from({ length: 10_000 }, (_, id) => ok(id)),
    [ok(1), [ok(2)]],
    [ok(1), 1],
    [ok(1), modern('tools/call', { name: 'ok' }, { id: 2 }).body],
    [ok(1), { jsonrpc: '2.0', method: 'tools/call', params: { name: 'ok' } }],
  ]) {
    const reply = await send(gateway, inSession(session, batch));
    t.deepEqual([reply.status, reply.code], [400, -32600], JSON.stringify(batch).slice(0, 80));
  }
  t.deepEqual(since(), NOTHING);
});

test.serial('a batch in a session of a later revision is refused', async (t) => {
  for (const revision of ['2025-06-18', '2025-11-25']) {
    const { gateway, session, since } = await setUp(t, 'stateful', revision);
    const ok = call('tools/call', { name: 'ok' });
    for (const more of [{}, { headers: ['mcp-protocol-version', '2025-03-26'] }]) {
      for (const batch of [[ok], [ok, call('tools/call', { name: 'secret' }, 2)], [[ok]]]) {
        const reply = await send(gateway, inSession(session, batch, more));
        t.deepEqual([reply.status, reply.code], [400, -32600]);
      }
    }
    t.deepEqual(since(), NOTHING);
  }
});

const URIS = [
  'file:///public/../secret',
  'file:///public/%2e%2e/secret',
  'file:///public/%2E%2E/secret',
  'file:///public/..%2fsecret',
  'file:///public/%252e%252e/secret',
  'file:///public/\\..\\secret',
  'file:///public//secret',
  'file:///public/./a',
  'file:///public/%00',
  'file:///public/a\tb',
  'FILE:///public/a',
  'file:/public/a',
  'file://localhost/public/a',
  'file:///public/a?x',
  'file:///public/a#x',
  'file:///public/{id}/data',
  'file:///public/а',
];

for (const method of ['resources/read', 'resources/subscribe']) {
  test.serial(`${method}: a URI with more than one reading is denied and audited as such`, async (t) => {
    const { gateway, session, since } = await setUp(t);
    for (const uri of URIS) {
      const reply = await send(gateway, inSession(session, call(method, { uri })));
      t.deepEqual([reply.status, reply.code], [200, 403], uri);
      t.is(JSON.parse(reply.text).error.data.reason, 'not_canonical');
    }
    t.deepEqual(since(), { seen: [], audited: URIS.map((uri) => `${method} resource ${uri} deny not_canonical`) });
  });
}

test.serial('completions for denied, unknown and non-canonical references get the same answer', async (t) => {
  const { gateway, session, since } = await setUp(t);
  const complete = (ref: object) =>
    send(gateway, inSession(session, call('completion/complete', { ref, argument: { name: 'a', value: '' } })));
  const answers = async (...refs: readonly { type: string; name?: string; uri?: string }[]) => {
    const replies: string[] = [];
    for (const ref of refs) {
      const { status, text } = await complete(ref);
      t.is(status, 200);
      t.is(JSON.parse(text).error.code, 403, JSON.stringify(ref));
      const id = gateway.decisions.at(-1)?.id ?? '';
      replies.push(text.replaceAll(id, 'ID').replaceAll(JSON.stringify(ref.name ?? ref.uri).slice(1, -1), 'NAME'));
    }
    return replies;
  };
  const [secret, none] = await answers({ type: 'ref/prompt', name: 'secret' }, { type: 'ref/prompt', name: 'no-such' });
  t.is(secret, none);
  const [hidden, other] = await answers(
    { type: 'ref/resource', uri: 'file:///secret/{a}' },
    { type: 'ref/resource', uri: 'file:///none/{a}' },
  );
  t.is(hidden, other);
  const odd = URIS.filter((uri) => !/[{\t]/.test(uri));
  for (const text of await answers(...odd.map((uri) => ({ type: 'ref/resource', uri })))) t.regex(text, /not_canonical/);
  t.is((await complete({ type: 'ref/other', name: 'ok' })).code, -32602);
  t.is((await complete({ type: 'ref/resource', uri: 'file:///public/a\tb' })).code, -32602);
  t.deepEqual(since(), {
    seen: [],
    audited: [
      'completion/complete prompt secret deny',
      'completion/complete prompt no-such deny',
      'completion/complete resource file:///secret/{a} deny',
      'completion/complete resource file:///none/{a} deny',
      ...odd.map((uri) => `completion/complete resource ${uri} deny not_canonical`),
    ],
  });
});

test.serial('an argument of a prompt is treated as data, even if it looks like a URI', async (t) => {
  const { gateway, upstream, session, since } = await setUp(t);
  for (const uri of URIS) {
    const params = { name: 'ok', arguments: { uri } };
    t.is((await send(gateway, inSession(session, call('prompts/get', params)))).code, undefined);
    t.deepEqual(upstream.received.at(-1)?.message?.params, params);
  }
  t.deepEqual(since(), {
    seen: URIS.map(() => 'prompts/get'),
    audited: URIS.map(() => 'prompts/get prompt ok allow'),
  });
});

test.serial('hosts and paths written in lookalike letters are different hosts and paths', async (t) => {
  const { gateway, session, since } = await setUp(t);
  gateway.rights.set('alice', ({ resource_name }) =>
    /^https:\/\/(example\.com|xn--exmple-4nf\.com)\/public\/a$/.test(resource_name),
  );
  const uris = [
    ...['https://ex\u0430mple.com/public/a', 'https://example.com/publi\u0441/a'],
    ...['https://EXAMPLE.com/public/a', 'https://example.com./public/a'],
  ];
  for (const uri of uris) {
    t.is((await send(gateway, inSession(session, call('resources/read', { uri })))).code, 403, uri);
  }
  t.deepEqual(since(), {
    seen: [],
    audited: uris.map((uri) => `resources/read resource ${uri} deny not_canonical`),
  });
});

test.serial('a URI with more than one reading is removed from a listening filter before the target is asked', async (t) => {
  const { gateway, upstream, since } = await setUp(t, 'stateless');
  const answering = upstream.script;
  upstream.script = (received, res) =>
    received.message?.method === 'subscriptions/listen'
      ? answerJson(res, { jsonrpc: '2.0', id: received.message.id, result: { resultType: 'complete' } })
      : answering(received, res);
  const resourceSubscriptions = [...URIS, 'file:///public/a', 'file:///secret'];
  const reply = await send(gateway, modern('subscriptions/listen', { notifications: { resourceSubscriptions } }));
  t.deepEqual([reply.status, reply.code], [200, undefined]);
  const listen = upstream.received.at(-1)?.message?.params;
  t.deepEqual(listen?.notifications, { resourceSubscriptions: ['file:///public/a'] });
  t.deepEqual(since(), { seen: ['subscriptions/listen'], audited: ['subscriptions/listen allow'] });
  t.like(gateway.shown.at(-1), { names: ['file:///public/a'] });
});
