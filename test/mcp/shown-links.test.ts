/** What a client gets for each member of a target's message that holds the URI of a resource or the name of an object. */
import type { ServerResponse } from 'node:http';
import { setTimeout } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { AppError } from '../../src/base/errors.ts';
import type { JsonObject } from '../../src/base/json/json.ts';
import type { RoutedTarget } from '../../src/targets/target.ts';
import { answerJson, byMethod, type RecordingUpstream, startRecording } from '../support/upstreams/recording.ts';
import { admissionOf, routed, startGateway, type TestGateway } from './gateway.ts';
import { call, inSession, modern, open, send } from './raw.ts';

const OPEN = 'file:///open/a';
const SECRET = 'file:///secret/s';

const link = (uri: string) => ({ type: 'resource_link', uri, name: 'a' });
const ui = (uri: string) => ({ _meta: { ui: { resourceUri: uri } } });
const flatUi = (uri: string) => ({ _meta: { 'ui/resourceUri': uri } });
const template = (uri: string) => ({ _meta: { 'openai/outputTemplate': uri } });
const text = { type: 'text', text: 'x' };
const embedded = (more: object) => ({ type: 'resource', resource: { uri: OPEN, text: 'x', ...more } });
const toolResult = (...content: object[]) => ({ type: 'tool_result', toolUseId: '1', content });
const sampling = (content: unknown, more: object = {}) => ({
  messages: [{ role: 'user', content }],
  maxTokens: 1,
  ...more,
});

interface Place {
  readonly where: string;
  readonly method: string;
  readonly params?: JsonObject;
  /** The result that holds the URI, or the name. */
  readonly result: (uri: string) => object;
  /** The name of an object, if the member holds a name instead of a URI. */
  readonly named?: readonly [open: string, secret: string];
}

const READ = { uri: OPEN };
const COMPLETE: JsonObject = { ref: { type: 'ref/resource', uri: '{+uri}' }, argument: { name: 'uri', value: '' } };

/** Members of results in every revision. */
const RESULTS: readonly Place[] = [
  { where: 'tools[].name', method: 'tools/list', named: ['ok', 'hidden'], result: (name) => ({ tools: [{ name }] }) },
  { where: 'prompts[].name', method: 'prompts/list', named: ['ok', 'hidden'], result: (name) => ({ prompts: [{ name }] }) },
  { where: 'resources[].uri', method: 'resources/list', result: (uri) => ({ resources: [{ uri, name: 'a' }] }) },
  {
    where: 'resourceTemplates[].uriTemplate',
    method: 'resources/templates/list',
    named: [`${OPEN}/{x}`, `${SECRET}/{x}`],
    result: (uriTemplate) => ({ resourceTemplates: [{ uriTemplate, name: 'a' }] }),
  },
  ...[ui, flatUi, template].flatMap((pointer): Place[] => {
    const where = Object.keys(pointer('')._meta)[0];
    return [
      { where: `tools[]._meta.${where}`, method: 'tools/list', result: (uri) => ({ tools: [{ name: 'ok', ...pointer(uri) }] }) },
      {
        where: `prompts[]._meta.${where}`,
        method: 'prompts/list',
        result: (uri) => ({ prompts: [{ name: 'ok', ...pointer(uri) }] }),
      },
      {
        where: `resources[]._meta.${where}`,
        method: 'resources/list',
        result: (uri) => ({ resources: [{ uri: OPEN, ...pointer(uri) }] }),
      },
      {
        where: `resourceTemplates[]._meta.${where}`,
        method: 'resources/templates/list',
        result: (uri) => ({ resourceTemplates: [{ uriTemplate: OPEN, ...pointer(uri) }] }),
      },
      {
        where: `contents[]._meta.${where}`,
        method: 'resources/read',
        params: READ,
        result: (uri) => ({ contents: [{ ...READ, text: 'x', ...pointer(uri) }] }),
      },
      { where: `content[]._meta.${where}`, method: 'tools/call', result: (uri) => ({ content: [{ ...text, ...pointer(uri) }] }) },
      {
        where: `content[].resource._meta.${where}`,
        method: 'tools/call',
        result: (uri) => ({ content: [embedded(pointer(uri))] }),
      },
      {
        where: `messages[].content._meta.${where}`,
        method: 'prompts/get',
        result: (uri) => ({ messages: [{ role: 'user', content: { ...text, ...pointer(uri) } }] }),
      },
      {
        where: `messages[]._meta.${where}`,
        method: 'prompts/get',
        result: (uri) => ({ messages: [{ role: 'user', content: text, ...pointer(uri) }] }),
      },
    ];
  }),
  ...['tools/list', 'tools/call', 'prompts/get', 'resources/read'].map(
    (method): Place => ({
      where: 'result._meta',
      method,
      ...(method === 'resources/read' ? { params: READ } : {}),
      result: (uri) => ({ tools: [], content: [], messages: [], contents: [], ...ui(uri) }),
    }),
  ),
  {
    where: 'contents[].uri',
    method: 'resources/read',
    params: { uri: 'file:///open/' },
    result: (uri) => ({ contents: [{ uri, text: 'x' }] }),
  },
  { where: 'content[].uri', method: 'tools/call', result: (uri) => ({ content: [text, link(uri)] }) },
  { where: 'content.uri, which is no list', method: 'tools/call', result: (uri) => ({ content: link(uri) }) },
  { where: 'content[].content[].uri', method: 'tools/call', result: (uri) => ({ content: [toolResult(text, link(uri))] }) },
  {
    where: 'messages[].content.uri',
    method: 'prompts/get',
    result: (uri) => ({ messages: [{ role: 'user', content: link(uri) }] }),
  },
  {
    where: 'messages.content.uri, which are no list',
    method: 'prompts/get',
    result: (uri) => ({ messages: { role: 'user', content: link(uri) } }),
  },
  {
    where: 'messages[].content[].uri',
    method: 'prompts/get',
    result: (uri) => ({ messages: [{ role: 'user', content: [text, link(uri)] }] }),
  },
  {
    where: 'messages[].content[].content[].uri',
    method: 'prompts/get',
    result: (uri) => ({ messages: [{ role: 'user', content: [toolResult(toolResult(link(uri)))] }] }),
  },
  {
    where: 'messages[].content[].content[]._meta',
    method: 'prompts/get',
    result: (uri) => ({ messages: [{ role: 'user', content: [toolResult({ ...link(OPEN), ...ui(uri) })] }] }),
  },
  {
    where: 'completion.values[]',
    method: 'completion/complete',
    params: COMPLETE,
    result: (uri) => ({ completion: { values: [uri] } }),
  },
];

/** Input that 2026-07-28 asks for in results, and the session revisions in separate requests. */
const ASKED: readonly { readonly where: string; readonly method: string; readonly params: (uri: string) => object }[] = [
  { where: 'messages[].content.uri', method: 'sampling/createMessage', params: (uri) => sampling(link(uri)) },
  { where: 'messages[].content[].uri', method: 'sampling/createMessage', params: (uri) => sampling([text, link(uri)]) },
  {
    where: 'messages[].content.content[].uri',
    method: 'sampling/createMessage',
    params: (uri) => sampling(toolResult(text, link(uri))),
  },
  {
    where: 'messages[].content[].content[].uri',
    method: 'sampling/createMessage',
    params: (uri) => sampling([toolResult(text, link(uri))]),
  },
  {
    where: 'messages[].content[].content[]._meta',
    method: 'sampling/createMessage',
    params: (uri) => sampling([toolResult({ ...text, ...ui(uri) })]),
  },
  {
    where: 'messages[]._meta',
    method: 'sampling/createMessage',
    params: (uri) => ({ ...sampling(text), messages: [{ role: 'user', content: text, ...ui(uri) }] }),
  },
  {
    where: 'tools[]._meta',
    method: 'sampling/createMessage',
    params: (uri) => sampling(text, { tools: [{ name: 'x', ...ui(uri) }] }),
  },
  { where: 'params._meta', method: 'sampling/createMessage', params: (uri) => sampling(text, ui(uri)) },
  { where: 'params._meta', method: 'elicitation/create', params: (uri) => ({ message: 'x', requestedSchema: {}, ...ui(uri) }) },
  { where: 'params._meta', method: 'roots/list', params: ui },
];

/** Names that a reader without regard to case takes for this one. */
const lookalikes = (name: string): string[] =>
  [name.toUpperCase(), name.replace(/^./, (c) => c.toUpperCase()), name.replace('s', '\u017f'), name.toLowerCase()].filter(
    (other) => other !== name,
  );

/** The value with one member renamed, in each way and at each place. */
function* imitations(value: unknown): Generator<unknown> {
  if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) for (const changed of imitations(item)) yield value.with(index, changed);
  } else if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value);
    for (const [index, [name, member]] of entries.entries()) {
      for (const other of lookalikes(name)) yield Object.fromEntries(entries.with(index, [other, member]));
      for (const changed of imitations(member)) yield Object.fromEntries(entries.with(index, [name, changed]));
    }
  }
}

interface Setup {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  /** The answer to each method. */
  results: Record<string, object>;
}

const CAPABILITIES = { sampling: { tools: {} }, elicitation: {}, roots: {} };

async function setUp(t: ExecutionContext, options: { modern?: boolean } = {}): Promise<Setup> {
  const upstream = await startRecording((received, res) => byMethod(setup.results, options)(received, res));
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: ({ resource_name }) => /^(ok$|\{\+uri\}$|file:\/\/\/open\/)/.test(resource_name) },
  });
  const setup: Setup = { gateway, upstream, results: {} };
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return setup;
}

const _meta = (more: object = {}) => ({
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientCapabilities': CAPABILITIES,
  ...more,
});

for (const revision of ['2025-03-26', '2025-06-18', '2025-11-25', '2026-07-28']) {
  const isModern = revision === '2026-07-28';

  test.serial(`${revision}: a result shows only objects that the caller may use, in every place`, async (t) => {
    const setup = await setUp(t, { modern: isModern });
    const { gateway } = setup;
    const session = isModern ? '' : await open(gateway, { revision });
    const shows = async ({ method, params }: Place, result: object, name: string): Promise<boolean> => {
      setup.results = { [method]: isModern ? { resultType: 'complete', ...result } : result };
      const full = { name: 'ok', ...params };
      const raw = isModern
        ? modern(method, { ...full, _meta: _meta() }, { headers: { 'mcp-name': namedBy(method, full) } })
        : inSession(session, call(method, full));
      const reply = await send(gateway, raw);
      t.is(reply.status, 200, `${method}: ${reply.text}`);
      return reply.text.includes(name);
    };
    for (const place of RESULTS) {
      const [mine, secret] = place.named ?? [OPEN, SECRET];
      t.true(await shows(place, place.result(mine), mine), `${place.method} ${place.where} is left`);
      t.false(await shows(place, place.result(secret), secret), `${place.method} ${place.where} is shown`);
      for (const imitation of imitations(place.result(secret))) {
        t.false(await shows(place, imitation as object, secret), `${place.method} ${JSON.stringify(imitation)}`);
      }
    }
  });
}

function namedBy(method: string, params: JsonObject): string | undefined {
  if (method === 'resources/read') return String(params.uri);
  return ['tools/call', 'prompts/get'].includes(method) ? 'ok' : undefined;
}

test.serial('2026-07-28: input that a result asks for shows no link to a denied resource', async (t) => {
  const setup = await setUp(t, { modern: true });
  const shows = async (asked: object, name: string): Promise<boolean> => {
    setup.results = { 'tools/call': { resultType: 'input_required', inputRequests: { q: asked, r: { method: 'roots/list' } } } };
    const reply = await send(setup.gateway, modern('tools/call', { name: 'ok', _meta: _meta() }));
    return reply.text.includes(name);
  };
  for (const { where, method, params } of ASKED) {
    t.true(await shows({ method, params: params(OPEN) }, OPEN), `${method} ${where} is left`);
    t.false(await shows({ method, params: params(SECRET) }, SECRET), `${method} ${where} is shown`);
    for (const imitation of imitations({ method, params: params(SECRET) })) {
      t.false(await shows(imitation as object, SECRET), `${method} ${JSON.stringify(imitation)}`);
    }
  }
});

test.serial('2026-07-28: a result of two kinds is refused, because clients differ in which one they read', async (t) => {
  const setup = await setUp(t, { modern: true });
  const asks = { q: { method: 'sampling/createMessage', params: sampling(link(SECRET)) } };
  const requestState = 'x';
  const answers: readonly [method: string, result: object][] = [
    ['tools/call', { resultType: 'input_required', requestState, content: [link(SECRET)] }],
    ['tools/call', { resultType: 'input_required', requestState, content: [{ type: 'resource_link' }, link(SECRET)] }],
    ['resources/read', { resultType: 'input_required', requestState, contents: [{ uri: SECRET, text: 'x' }] }],
    ['prompts/get', { resultType: 'input_required', requestState, messages: [{ role: 'user', content: link(SECRET) }] }],
    ['tools/call', { resultType: 'complete', content: [text], inputRequests: asks }],
    ['tools/call', { content: [text], inputRequests: asks }],
    ['tools/list', { resultType: 'complete', tools: [], inputRequests: asks }],
  ];
  for (const [method, result] of answers) {
    for (const padding of ['', 'x'.repeat(70_000)]) {
      setup.results = { [method]: { ...result, padding } };
      const params = { name: 'ok', ...(method === 'resources/read' ? READ : {}), _meta: _meta() };
      const headers = { 'mcp-name': namedBy(method, params) };
      const reply = await send(setup.gateway, modern(method, params, { headers }));
      t.is(reply.code, -32603, `${method} ${JSON.stringify(result)}: ${reply.text.slice(0, 300)}`);
      t.false(reply.text.includes(SECRET));
    }
  }
});

test.serial('in a session, a result with requests is refused: the filter does not look into them', async (t) => {
  const setup = await setUp(t);
  const session = await open(setup.gateway);
  const inputRequests = { q: { method: 'sampling/createMessage', params: sampling(link(SECRET)) } };
  for (const [method, result] of [
    ['tools/call', { content: [text] }],
    ['tools/list', { tools: [] }],
    ['prompts/get', { messages: [] }],
  ] as const) {
    setup.results = { [method]: { ...result, inputRequests } };
    const reply = await send(setup.gateway, inSession(session, call(method, { name: 'ok' })));
    t.is(reply.code, -32603, `${method}: ${reply.text}`);
  }
});

/** The messages that a target puts before its answer to a call, and what of them reaches the client. */
function streamed(setup: Setup, session: string, messages: readonly object[]): Promise<string> {
  const plain = byMethod({});
  setup.upstream.script = (received, res) => {
    if (received.message?.method !== 'tools/call') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const message of messages) write(res, message);
    write(res, { id: received.message.id, result: { content: [] } });
    res.end();
  };
  const params = { name: 'ok', _meta: { progressToken: 1 } };
  return send(setup.gateway, inSession(session, call('tools/call', params))).then(({ text }) => text);
}

const write = (res: ServerResponse, message: object): void =>
  void res.write(`data: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`);

test.serial('a request of the target shows no link to a denied resource', async (t) => {
  const setup = await setUp(t);
  const session = await open(setup.gateway);
  for (const { where, method, params } of ASKED) {
    const kept = await streamed(setup, session, [{ id: 'q', method, params: params(OPEN) }]);
    t.true(kept.includes(OPEN), `${method} ${where} is left`);
    const forbidden = [params(SECRET), ...imitations(params(SECRET))].map((given, id) => ({
      id,
      method,
      params: given as object,
    }));
    const passed = await streamed(setup, session, [...forbidden]);
    t.false(passed.includes(SECRET), `${method} ${where}: ${passed}`);
  }
});

test.serial('a notification of the target shows no link to a denied resource', async (t) => {
  const setup = await setUp(t);
  const session = await open(setup.gateway);
  const notifications = (uri: string) => [
    { method: 'notifications/progress', params: { progressToken: 1, progress: 1, ...ui(uri) } },
    { method: 'notifications/message', params: { level: 'info', data: 'x', ...template(uri) } },
    { method: 'notifications/tools/list_changed', params: flatUi(uri) },
    { method: 'notifications/resources/updated', params: { uri } },
    { method: 'notifications/resources/updated', params: { uri: OPEN, ...ui(uri) } },
  ];
  for (const [index, kept] of notifications(OPEN).entries()) {
    t.true((await streamed(setup, session, [kept])).includes(OPEN), kept.method);
    const forbidden = notifications(SECRET)[index] as object;
    const passed = await streamed(setup, session, [forbidden, ...imitations(forbidden)] as object[]);
    t.false(passed.includes(SECRET), passed);
  }
});

test.serial('an error names no denied resource except the requested one', async (t) => {
  const setup = await setUp(t);
  const session = await open(setup.gateway);
  const shows = async (status: number, data: object): Promise<string> => {
    const plain = byMethod({});
    setup.upstream.script = (received, res) => {
      if (received.message?.method !== 'resources/read') return plain(received, res);
      const error = { code: -32002, message: 'Resource not found', data };
      answerJson(res, { jsonrpc: '2.0', id: received.message.id, error }, {}, status);
    };
    const reply = await send(setup.gateway, inSession(session, call('resources/read', { uri: 'file:///open/x' })));
    return reply.text;
  };
  for (const status of [200, 400]) {
    t.true((await shows(status, { uri: 'file:///open/x' })).includes('file:///open/x'));
    t.true((await shows(status, { uri: OPEN })).includes(OPEN));
    for (const name of ['uri', 'Uri', 'URI']) {
      const text = await shows(status, { [name]: SECRET, retry: 1 });
      t.false(text.includes(SECRET));
      t.true(text.includes('"retry":1'));
    }
  }
});

test.serial('members that only the target gives a meaning are passed on unchanged', async (t) => {
  const setup = await setUp(t);
  const session = await open(setup.gateway);
  setup.results = {
    'tools/call': {
      content: [
        { type: 'text', text: SECRET },
        { ...embedded({}), resource: { uri: SECRET, text: 'x' } },
      ],
      structuredContent: { Uri: SECRET, content: [link(SECRET)] },
    },
  };
  const reply = await send(setup.gateway, inSession(session, call('tools/call', { name: 'ok' })));
  t.deepEqual((JSON.parse(reply.text) as { result: object }).result, setup.results['tools/call']);
});

/** Longer than an admission is good for. */
const LONG_MS = 200;

/** A gateway whose policies a test replaces while its target takes this long for the answer. */
async function whileAnswering(t: ExecutionContext, tookMs: number) {
  const targets = new Map<string, RoutedTarget>();
  const now = { denied: '', isDown: false, looks: 0, meanwhile: (): void => undefined };
  const deps = {
    admit: async () => {
      now.looks++;
      if (now.isDown) throw new AppError('unavailable', 'down', { retryAfter: 1 });
      const { denied } = now;
      return admissionOf('alice', targets, ({ resource_name }) => resource_name !== denied);
    },
  };
  const answers = { body: {} as object, status: 200 };
  const plain = byMethod({});
  const upstream = await startRecording(async (received, res) => {
    const { id, method } = received.message ?? {};
    if (id === undefined || method === 'initialize') return plain(received, res);
    now.meanwhile();
    await setTimeout(tookMs);
    if ('method' in answers.body) {
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      write(res, answers.body);
      write(res, { id, result: { content: [text] } });
      res.end();
    } else answerJson(res, { jsonrpc: '2.0', id, ...answers.body }, {}, answers.status);
  });
  targets.set('t', routed('t', upstream.url));
  // Only what a test does counts as a look.
  const limits = { watchMs: 60_000 };
  const gateway = await startGateway({ targets: [...targets.values()], rights: { alice: () => true }, limits, deps });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, now, answers, session: await open(gateway) };
}

const NOT_FOUND = { code: -32002, message: 'Resource not found' };

/** Answers that name an object besides the requested one: `secret`, which is denied while the target works. */
const LATE: readonly {
  readonly what: string;
  readonly method: string;
  readonly secret: string;
  readonly body: object;
  readonly status?: number;
}[] = [
  { what: 'a link in a result', method: 'tools/call', secret: SECRET, body: { result: { content: [text, link(SECRET)] } } },
  {
    what: 'a large result',
    method: 'tools/call',
    secret: SECRET,
    body: { result: { content: [link(SECRET)], x: 'x'.repeat(70_000) } },
  },
  { what: 'a list', method: 'tools/list', secret: 'hidden', body: { result: { tools: [{ name: 'ok' }, { name: 'hidden' }] } } },
  { what: 'an error', method: 'resources/read', secret: SECRET, body: { error: { ...NOT_FOUND, data: { uri: SECRET } } } },
  {
    what: 'an error with HTTP 400',
    method: 'resources/read',
    secret: SECRET,
    body: { error: { ...NOT_FOUND, data: { uri: SECRET } } },
    status: 400,
  },
  {
    what: 'a request of the target',
    method: 'tools/call',
    secret: SECRET,
    body: { id: 'q', method: 'sampling/createMessage', params: sampling(link(SECRET)) },
  },
];

for (const { what, method, secret, body, status = 200 } of LATE) {
  test.serial(`what was denied while the target worked is not shown: ${what}`, async (t) => {
    const { gateway, now, answers, session } = await whileAnswering(t, LONG_MS);
    Object.assign(answers, { body, status });
    const asked = async () => (await send(gateway, inSession(session, call(method, { name: 'ok', uri: OPEN })))).text;
    t.true((await asked()).includes(secret));
    gateway.shown.length = 0;
    now.meanwhile = () => {
      now.denied = secret;
    };
    const shown = await asked();
    t.false(shown.includes(secret), shown.slice(0, 300));
    if (method === 'tools/list')
      t.deepEqual(
        gateway.shown.map(({ names, hidden }) => [names, hidden]),
        [[['ok'], 1]],
      );
  });

  test.serial(`if nothing can decide about it when the answer comes, the request fails: ${what}`, async (t) => {
    const { gateway, now, answers, session } = await whileAnswering(t, LONG_MS);
    Object.assign(answers, { body, status });
    now.meanwhile = () => {
      now.isDown = true;
    };
    const { text: shown } = await send(gateway, inSession(session, call(method, { name: 'ok', uri: OPEN })));
    t.false(shown.includes(secret), shown.slice(0, 300));
    // A request of the target is dropped. The call itself names nothing.
    t.is(shown.includes('cannot decide'), !('method' in body), shown);
  });
}

test.serial('a late answer that names nothing is passed on, even if the state cannot be read', async (t) => {
  const { gateway, now, answers, session } = await whileAnswering(t, LONG_MS);
  answers.body = { result: { content: [text] } };
  now.meanwhile = () => {
    now.isDown = true;
  };
  now.looks = 0;
  const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
  t.deepEqual((JSON.parse(reply.text) as { result: object }).result, { content: [text] });
  t.is(now.looks, 1, 'it needs no look at the state');
});

test.serial('an answer that comes soon is filtered by the admission of its request', async (t) => {
  const { gateway, now, answers, session } = await whileAnswering(t, 0);
  answers.body = { result: { content: [link(OPEN)] } };
  await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
  now.looks = 0;
  const began = performance.now();
  await send(gateway, inSession(session, call('tools/call', { name: 'ok' })));
  if (performance.now() - began < LONG_MS / 2) t.is(now.looks, 1);
  else t.pass('the machine is too slow');
});
