/** Answers that name other objects than the requested one, and templates that promise more than a policy grants. */
import test, { type ExecutionContext } from 'ava';
import { byMethod, type RecordingUpstream, startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, modern, open, type Reply, send } from '../raw.ts';

type Results = Parameters<typeof byMethod>[0];

interface Setup {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  ask(method: string, params: object): Promise<Reply>;
  /** What the target received and what was recorded since the session was opened. */
  since(): { readonly seen: string[]; readonly audited: string[]; readonly shown: object[] };
}

/** alice may use objects that are called ok, and read public resources. */
async function setUp(t: ExecutionContext, results: Results, allowed = /^(ok|(file|ui):\/\/\/?public\/.*)$/): Promise<Setup> {
  const upstream = await startRecording(byMethod(results));
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: ({ resource_name }) => allowed.test(resource_name) },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const session = await open(gateway);
  const [seen, decided, shown] = [upstream.received.length, gateway.decisions.length, gateway.shown.length];
  return {
    gateway,
    upstream,
    ask: (method, params) => send(gateway, inSession(session, call(method, params))),
    since: () => ({
      seen: upstream.seen().slice(seen),
      audited: gateway.audited().slice(decided),
      shown: gateway.shown.slice(shown).map(({ resource_type, names, hidden }) => ({ resource_type, names, hidden })),
    }),
  };
}

const resultOf = (reply: Reply) => JSON.parse(reply.text).result;

test.serial('reading an allowed directory returns no contents of a denied resource', async (t) => {
  const uris = [
    'file:///public/d/',
    'file:///public/d/a',
    'file:///secret/s',
    'file:///public/d/../../secret/s',
    'FILE:///public/d/b',
    'file:///public/d/c',
  ];
  const contents = [...uris.map((uri) => ({ uri, text: `content of ${uri}` })), { text: 'of nothing' }];
  const { ask, since } = await setUp(t, { 'resources/read': { contents, other: 1 } });
  const reply = await ask('resources/read', { uri: 'file:///public/d/' });
  t.deepEqual(resultOf(reply), { contents: [contents[0], contents[1], contents[5]], other: 1 });
  t.notRegex(reply.text, /secret|FILE|of nothing/);
  t.deepEqual(since(), {
    seen: ['resources/read'],
    audited: ['resources/read resource file:///public/d/ allow'],
    shown: [{ resource_type: 'resource', names: ['file:///public/d/a', 'file:///public/d/c'], hidden: 4 }],
  });
});

test.serial('a tool result loses its links to denied resources, and nothing else', async (t) => {
  const link = (uri: string) => ({ type: 'resource_link', uri, name: uri });
  const embedded = { type: 'resource', resource: { uri: 'file:///secret/s', text: 'the answer itself' } };
  const content = [
    { type: 'text', text: 'see file:///secret/s' },
    link('file:///secret/s'),
    link('file:///public/a'),
    link('file:///public/../secret/s'),
    embedded,
  ];
  const _meta = { ui: { resourceUri: 'ui://secret/card', prefersBorder: true }, 'ui/resourceUri': 'ui://secret/card', n: 1 };
  const rest = { structuredContent: { uri: 'file:///secret/s' }, isError: false };
  const { ask, since } = await setUp(t, { 'tools/call': { content, _meta, ...rest } });
  const reply = await ask('tools/call', { name: 'ok' });
  t.deepEqual(resultOf(reply), {
    content: [content[0], content[2], embedded],
    _meta: { ui: { prefersBorder: true }, n: 1 },
    ...rest,
  });
  t.deepEqual(since(), {
    seen: ['tools/call'],
    audited: ['tools/call tool ok allow'],
    shown: [{ resource_type: 'resource', names: ['file:///public/a'], hidden: 2 }],
  });
});

test.serial('a pointer to an allowed resource is kept under both of its names', async (t) => {
  const _meta = { ui: { resourceUri: 'ui://public/card' }, 'ui/resourceUri': 'ui://public/card' };
  const { ask } = await setUp(t, { 'tools/call': { content: [], _meta } });
  t.deepEqual(resultOf(await ask('tools/call', { name: 'ok' })), { content: [], _meta });
});

test.serial('a tool in a list does not point to a denied resource', async (t) => {
  const tool = (name: string, resourceUri: string) => ({
    name,
    _meta: { ui: { resourceUri, visibility: ['model'] }, 'ui/resourceUri': resourceUri, n: 1 },
    inputSchema: { type: 'object' },
  });
  const tools = [tool('ok', 'ui://secret/card'), tool('hidden', 'ui://public/card')];
  const { ask, since, upstream } = await setUp(t, { 'tools/list': { tools } });
  const stripped = { ...tools[0], _meta: { ui: { visibility: ['model'] }, n: 1 } };
  t.deepEqual(resultOf(await ask('tools/list', {})), { tools: [stripped] });
  upstream.script = byMethod({ 'tools/list': { tools: [tool('ok', 'ui://public/card')] } });
  t.deepEqual(resultOf(await ask('tools/list', {})), { tools: [tool('ok', 'ui://public/card')] });
  t.deepEqual(since(), {
    seen: ['tools/list', 'tools/list'],
    audited: ['tools/list allow', 'tools/list allow'],
    shown: [
      { resource_type: 'tool', names: ['ok'], hidden: 1 },
      { resource_type: 'tool', names: ['ok'], hidden: 0 },
    ],
  });
});

test.serial('prompt messages lose their links to denied resources', async (t) => {
  const message = (uri: string) => ({ role: 'user', content: { type: 'resource_link', uri, name: uri } });
  const messages = [message('file:///secret/s'), message('file:///public/a')];
  const { ask, since } = await setUp(t, { 'prompts/get': { messages, description: 'x' } });
  t.deepEqual(resultOf(await ask('prompts/get', { name: 'ok' })), { messages: messages.slice(1), description: 'x' });
  t.deepEqual(since(), {
    seen: ['prompts/get'],
    audited: ['prompts/get prompt ok allow'],
    shown: [{ resource_type: 'resource', names: ['file:///public/a'], hidden: 1 }],
  });
});

test.serial('a visible template gives access to none of its resources, and its text is not a resource', async (t) => {
  const templates = [{ uriTemplate: 'test://template/{id}/data', name: 'a' }];
  const results = { 'resources/templates/list': { resourceTemplates: templates }, 'resources/read': { contents: [] } };
  const { gateway, ask, since } = await setUp(t, results, /^test:\/\/template\/(\{id\}|7)\/data$/);
  t.deepEqual(resultOf(await ask('resources/templates/list', {})), { resourceTemplates: templates });
  t.is((await ask('resources/read', { uri: 'test://template/7/data' })).code, undefined);
  t.is((await ask('resources/read', { uri: 'test://template/8/data' })).code, 403, 'a resource of its own');
  // A policy that allows whatever the template's own matcher would take.
  gateway.rights.set('alice', ({ resource_name }) => /^test:\/\/template\/.*\/data$/.test(resource_name));
  const odd = ['..', '.', '', '%2e%2e', 'a%2Fb', 'a%5Cb', '{x}', '{id}', '{+id}', '%7Bid%7D%00'];
  for (const id of odd) {
    const reply = await ask('resources/read', { uri: `test://template/${id}/data` });
    t.is(reply.code, 403, id);
    t.is(JSON.parse(reply.text).error.data.reason, 'not_canonical', id);
  }
  t.deepEqual(since(), {
    seen: ['resources/templates/list', 'resources/read'],
    audited: [
      'resources/templates/list allow',
      'resources/read resource test://template/7/data allow',
      'resources/read resource test://template/8/data deny',
      ...odd.map((id) => `resources/read resource test://template/${id}/data deny not_canonical`),
    ],
    shown: [{ resource_type: 'resource', names: ['test://template/{id}/data'], hidden: 0 }],
  });
});

test.serial('completions offer no denied resource', async (t) => {
  const completion = { values: ['a', 'b', '../secret/s', 'a/b', '%2e%2e'], total: 5, hasMore: false };
  const { ask, since } = await setUp(
    t,
    { 'completion/complete': { completion } },
    /^file:\/\/\/public\/(\{name\}|a|\.\..*|%.*)$/,
  );
  const uri = 'file:///public/{name}';
  const reply = await ask('completion/complete', { ref: { type: 'ref/resource', uri }, argument: { name: 'name', value: '' } });
  t.deepEqual(resultOf(reply).completion.values, ['a']);
  t.notRegex(reply.text, /"b"|secret|total/);
  t.deepEqual(since(), {
    seen: ['completion/complete'],
    audited: [`completion/complete resource ${uri} allow`],
    shown: [{ resource_type: 'resource', names: ['file:///public/a'], hidden: 4 }],
  });
});

for (const [template, given, shown] of [
  ['file:///public/{+name}', undefined, ['a']],
  ['file:///public/{name*}', undefined, ['a']],
  ['file:///{dir}/{name}', { dir: 'public' }, ['a']],
  ['file:///{dir}/{name}', { dir: 'secret' }, []],
  ['file:///{dir}/{name}', undefined, []],
] as const) {
  test.serial(`completions of ${template} with ${JSON.stringify(given)} offer no denied resource`, async (t) => {
    const completion = { values: ['a', '../secret/s', 'b'], total: 3 };
    const { ask } = await setUp(t, { 'completion/complete': { completion } }, /^file:\/\/\/(public\/a|.*\{.*)$/);
    const params = { ref: { type: 'ref/resource', uri: template }, argument: { name: 'name', value: '' } };
    const reply = await ask('completion/complete', given === undefined ? params : { ...params, context: { arguments: given } });
    t.deepEqual(resultOf(reply).completion, { values: shown } as never);
    t.notRegex(reply.text, /secret|total/);
  });
}

test.serial('an extension that the gateway does not support is neither announced nor served', async (t) => {
  const capabilities = { tools: {}, tasks: {}, 'acme/danger': {}, experimental: { 'acme/danger': {} } };
  const upstream = await startRecording(
    byMethod(
      { 'server/discover': { supportedVersions: ['2026-07-28'], capabilities, resultType: 'complete' } },
      { modern: true },
    ),
  );
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights: { alice: () => true } });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const discovered = await send(gateway, modern('server/discover'));
  t.deepEqual(resultOf(discovered).capabilities, { tools: {} });
  t.like(resultOf(discovered), { ttlMs: 0, cacheScope: 'private' });
  const seen = upstream.received.length;
  for (const method of ['acme/danger', 'skills/get', 'tasks/list', 'resources/directory/read']) {
    const reply = await send(gateway, modern(method, { name: 'ok', uri: 'file:///public/a' }));
    t.deepEqual([reply.status, reply.code], [404, -32601], method);
  }
  t.is(upstream.received.length, seen);
  t.deepEqual(gateway.audited(), ['server/discover allow']);
});
