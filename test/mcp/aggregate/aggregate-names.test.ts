/** Names at the aggregate endpoint: each name is joined in one way and split in one way. */
import test from 'ava';
import fc from 'fast-check';
import { type JsonObject, readJsonText } from '../../../src/base/json/json.ts';
import { readLargeJson } from '../../../src/base/json/large.ts';
import { TARGET_RULES } from '../../../src/base/json/selection.ts';
import { lane } from '../../../src/base/turns/lane.ts';
import {
  bareMeta,
  bareResponse,
  forTarget,
  itemRenaming,
  joinName,
  joinUri,
  readList,
  renameLarge,
  renameMessage,
  splitName,
  splitToken,
  splitUri,
} from '../../../src/mcp/aggregate/names.ts';
import { planRequest } from '../../../src/mcp/aggregate/route.ts';
import { filterResult, RESULT_SPAN_DEPTH } from '../../../src/mcp/filter/filter.ts';
import type { ResultContext } from '../../../src/mcp/filter/filter-parts.ts';
import type { RpcRequest } from '../../../src/protocol/message.ts';
import { readOperation } from '../../../src/protocol/operation.ts';

const targetName = fc.stringMatching(/^[a-z][a-z0-9-]{0,62}$/);
const anyText = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.stringMatching(/^[_+a-z:]{0,12}$/),
  fc.constantFrom('', '_', '__', '+', '__x', 'b__c', '___', '{+path}', 'file:///a+b__c', 'constructor', 'é', 'e\u0301', '\ud800'),
);
const request = (method: string, params?: JsonObject): RpcRequest => ({ kind: 'request', id: 1, method, params });
const RELATED = 'io.modelcontextprotocol/related-task';

test('a joined name splits into the same target and name, whatever the target calls it', (t) => {
  fc.assert(
    fc.property(targetName, anyText, (target, name) => {
      t.deepEqual(splitName(joinName(target, name)), { targetName: target, name });
      t.deepEqual(splitUri(joinUri(target, name)), { targetName: target, name });
    }),
  );
});

test('names of two targets never become the same joined name', (t) => {
  fc.assert(
    fc.property(targetName, anyText, targetName, anyText, (a, x, b, y) => {
      const same = a === b && x === y;
      t.is(joinName(a, x) === joinName(b, y), same);
      t.is(joinUri(a, x) === joinUri(b, y), same);
    }),
  );
  // mcp.md case 31.
  t.deepEqual(splitName('a__b__c'), { targetName: 'a', name: 'b__c' });
  t.deepEqual(splitName('a___b'), { targetName: 'a', name: '_b' });
  t.deepEqual(splitName('a__'), { targetName: 'a', name: '' });
  t.deepEqual(splitUri('a+b+c:x'), { targetName: 'a', name: 'b+c:x' });
});

test('a name without a target is not a joined name', (t) => {
  const bad = [
    '',
    '__',
    '__x',
    '_a__x',
    'A__x',
    'a b__x',
    '1a__x',
    'a_b__x',
    'a',
    'a_x',
    ' a__x',
    'a\n__x',
    'á__x',
    `${'a'.repeat(64)}__x`,
  ];
  for (const name of bad) t.is(splitName(name), null, JSON.stringify(name));
  for (const uri of ['', '+', '+a', 'A+file:///x', 'file:///a+b', 'a_b+x', 'a']) t.is(splitUri(uri), null, uri);
  for (const value of [undefined, null, 1, {}, ['a__x'], { toString: 'a__x' }]) {
    t.is(splitName(value as never), null);
    t.is(splitUri(value as never), null);
  }
});

test('the one member that names an object decides which target gets a request', (t) => {
  const cases: [string, JsonObject, JsonObject][] = [
    ['tools/call', { name: 'a__x', arguments: { name: 'b__y' } }, { name: 'x', arguments: { name: 'b__y' } }],
    ['prompts/get', { name: 'a__x__y' }, { name: 'x__y' }],
    ['resources/read', { uri: 'a+file:///x', name: 'b__y' }, { uri: 'file:///x', name: 'b__y' }],
    ['resources/subscribe', { uri: 'a+note:x' }, { uri: 'note:x' }],
    ['resources/unsubscribe', { uri: 'a+note:x' }, { uri: 'note:x' }],
    ['tasks/get', { taskId: 'a__T' }, { taskId: 'T' }],
    ['tasks/result', { taskId: 'a__T' }, { taskId: 'T' }],
    ['tasks/cancel', { taskId: 'a__T' }, { taskId: 'T' }],
    [
      'completion/complete',
      { ref: { type: 'ref/prompt', name: 'a__p', x: 1 }, argument: { name: 'n', value: 'b__v' } },
      { ref: { type: 'ref/prompt', name: 'p', x: 1 }, argument: { name: 'n', value: 'b__v' } },
    ],
    [
      'completion/complete',
      { ref: { type: 'ref/resource', uri: 'a+x:{+path}' }, argument: { name: 'n', value: '' } },
      { ref: { type: 'ref/resource', uri: 'x:{+path}' }, argument: { name: 'n', value: '' } },
    ],
  ];
  for (const [method, params, own] of cases) {
    t.deepEqual(forTarget(request(method, params)), { targetName: 'a', message: request(method, own) }, method);
  }
  for (const method of ['tools/list', 'ping', 'acme/x', 'initialize', 'server/discover', 'tasks/update'])
    t.is(forTarget(request(method, { name: 'a__x', uri: 'a+x:y', taskId: 'a__T' })), null, method);
  for (const method of ['tools/call', 'prompts/get', 'resources/read', 'tasks/get', 'completion/complete'])
    for (const params of [undefined, {}, { name: 7, uri: ['a+x'], taskId: null, ref: 'a__x' }])
      t.is(forTarget(request(method, params as never)), null, method);
});

test('a plan refuses bad requests, explains the form of names, and does not know methods of single targets', (t) => {
  const codeOf = (method: string, params?: JsonObject) => {
    const plan = planRequest(request(method, params));
    return 'code' in plan ? plan.code : plan.kind;
  };
  t.is(codeOf('tools/call', { name: 'x' }), -32602);
  t.is(codeOf('tools/call', { name: 'a__' }), -32602, 'an empty name is none');
  t.is(codeOf('tools/call', { name: `a__${'x'.repeat(257)}` }), -32602);
  t.is(codeOf('tools/call', { name: `a__${'x'.repeat(256)}` }), 'one', 'the limit is that of the bare name');
  t.is(codeOf('tools/call', { name: 'a__x\u0000' }), -32602);
  t.is(codeOf('resources/read', { uri: 'file:///x' }), -32602);
  t.is(codeOf('resources/read', { uri: 'a+' }), -32602);
  t.is(codeOf('resources/unsubscribe', { uri: 'x:y' }), -32602);
  t.is(codeOf('completion/complete', { ref: { type: 'ref/tool', uri: 'a+x:y' }, argument: { name: 'a', value: '' } }), -32602);
  t.is(codeOf('acme/danger', { name: 'a__x' }), -32601);
  t.is(codeOf('server/discover'), -32601);
  t.is(codeOf('subscriptions/listen', { notifications: {} }), -32601);
  t.is(codeOf('tasks/update', { taskId: 'a__x' }), -32601);
  t.is(codeOf('Tools/Call', { name: 'a__x' }), -32601);
  for (const method of ['tools/list', 'prompts/list', 'resources/list', 'resources/templates/list', 'tasks/list'])
    t.is(codeOf(method), 'list');
  t.is(codeOf('logging/setLevel', { level: 'debug' }), 'level');
});

/** Numbers, strings and the order of members must stay as written. */
const RESULT = String.raw`{"jsonrpc":"2.0","id":1,"result":{"n":1.0,"content":[{"type":"text","text":"a__b","uri":"x:1"}, {"x":1e2,"type":"resource_link","uri":"x:\u002f2","name":"n"},
 {"type":"resource","resource":{"uri":"x:3","text":"\ud83d\ude00","big":12345678901234567890}},{"type":"resource","uri":"x:4"},{"type":"resource_link"},{"type":"resource_link","uri":7},null,[],"x"],"structuredContent":{"uri":"x:5","content":[{"type":"resource_link","uri":"x:6"}]},"_meta":{"a":-0.0}}}`;

test('a result is renamed only where it names an object, and its other text is unchanged', (t) => {
  const renamed = renameMessage('t', 'tools/call', RESULT);
  t.is(renamed, RESULT.replace(String.raw`"x:\u002f2"`, '"t+x:/2"').replace('"x:3"', '"t+x:3"'));
  t.is(renameMessage('t', 'resources/list', RESULT), RESULT, 'members of other methods mean nothing');
  t.is(renameMessage('t', '', RESULT), RESULT);
});

const renamed = (method: string, message: object): JsonObject =>
  JSON.parse(renameMessage('t', method, JSON.stringify({ jsonrpc: '2.0', ...message }))) as JsonObject;

test('every member in which a target names an object is renamed', (t) => {
  const result = (method: string, value: object) => renamed(method, { id: 1, result: value }).result;
  const links = { ui: { resourceUri: 'ui://w', csp: 1 }, 'ui/resourceUri': 'ui://old', other: 'ui://x' };
  t.deepEqual(result('tools/list', { tools: [{ name: 'x__y', title: 'x', _meta: links }, {}, 7] }), {
    tools: [
      {
        name: 't__x__y',
        title: 'x',
        _meta: { ui: { resourceUri: 't+ui://w', csp: 1 }, 'ui/resourceUri': 't+ui://old', other: 'ui://x' },
      },
      {},
      7,
    ],
  });
  t.deepEqual(result('tools/call', { content: [], _meta: links }), {
    content: [],
    _meta: { ui: { resourceUri: 't+ui://w', csp: 1 }, 'ui/resourceUri': 't+ui://old', other: 'ui://x' },
  });
  t.deepEqual(result('prompts/list', { prompts: [{ name: 'p', arguments: [{ name: 'a' }] }] }), {
    prompts: [{ name: 't__p', arguments: [{ name: 'a' }] }],
  });
  t.deepEqual(result('resources/list', { resources: [{ uri: 'x:1', name: 'n' }] }), { resources: [{ uri: 't+x:1', name: 'n' }] });
  t.deepEqual(result('resources/templates/list', { resourceTemplates: [{ uriTemplate: '{+p}', name: 'n' }] }), {
    resourceTemplates: [{ uriTemplate: 't+{+p}', name: 'n' }],
  });
  t.deepEqual(result('resources/read', { contents: [{ uri: 'x:1', text: 'x:1' }, {}] }), {
    contents: [{ uri: 't+x:1', text: 'x:1' }, {}],
  });
  const block = { type: 'resource', resource: { uri: 'x:1' } };
  const link = { type: 'resource_link', uri: 'x:2' };
  t.deepEqual(result('prompts/get', { messages: [{ role: 'user', content: block }, { content: link }, { content: 'x' }] }), {
    messages: [
      { role: 'user', content: { type: 'resource', resource: { uri: 't+x:1' } } },
      { content: { type: 'resource_link', uri: 't+x:2' } },
      { content: 'x' },
    ],
  });
  const pointing = (prefix: string) => ({
    _meta: { ui: { resourceUri: `${prefix}ui://w` }, 'openai/outputTemplate': `${prefix}ui://o` },
  });
  const nested = (prefix: string) => [
    { type: 'text', text: 'x:1', ...pointing(prefix) },
    {
      type: 'tool_result',
      content: [{ type: 'resource_link', uri: `${prefix}x:2`, ...pointing(prefix) }],
      structuredContent: { uri: 'x:3' },
    },
    { type: 'resource', resource: { uri: `${prefix}x:4`, ...pointing(prefix) } },
    wrapped(50, { type: 'resource_link', uri: `${prefix}x:5` }),
  ];
  const wrapped = (depth: number, block: object): object =>
    depth === 0 ? block : wrapped(depth - 1, { type: 'tool_result', content: [block] });
  for (const [method, make] of [
    ['tools/call', (prefix: string) => ({ content: nested(prefix) })],
    ['tasks/result', (prefix: string) => ({ content: nested(prefix) })],
    ['prompts/get', (prefix: string) => ({ messages: [{ role: 'user', content: nested(prefix), ...pointing(prefix) }] })],
    ['resources/read', (prefix: string) => ({ contents: [{ uri: `${prefix}x:1`, ...pointing(prefix) }] })],
    ['resources/list', (prefix: string) => ({ resources: [{ uri: `${prefix}x:1`, ...pointing(prefix) }] })],
    ['completion/complete', pointing],
  ] as const) {
    t.deepEqual(result(method, make('')), make('t+') as never, method);
  }
  const sampling = (prefix: string) => ({
    messages: [
      { role: 'user', content: nested(prefix) },
      { role: 'user', content: nested(prefix)[1] },
    ],
    tools: [{ name: 'x', ...pointing(prefix) }],
  });
  t.deepEqual(
    renamed('tools/call', { id: 1, method: 'sampling/createMessage', params: sampling('') }).params,
    sampling('t+') as never,
  );
  t.deepEqual(result('tools/call', { task: { taskId: 'T', status: 'working', ...pointing('') } }), {
    task: { taskId: 't__T', status: 'working', ...pointing('t+') },
  });
  for (const method of ['tasks/get', 'tasks/cancel']) t.deepEqual(result(method, { taskId: 'T' }), { taskId: 't__T' });
  t.deepEqual(result('tasks/list', { tasks: [{ taskId: 'T', ...pointing('') }] }), {
    tasks: [{ taskId: 't__T', ...pointing('t+') }],
  });
  t.deepEqual(result('tasks/result', { content: [link], _meta: { [RELATED]: { taskId: 'T' } } }), {
    content: [{ type: 'resource_link', uri: 't+x:2' }],
    _meta: { [RELATED]: { taskId: 't__T' } },
  });
  t.deepEqual(renamed('resources/read', { id: 1, error: { code: -32002, message: 'x:1', data: { uri: 'x:1' } } }).error, {
    code: -32002,
    message: 'x:1',
    data: { uri: 't+x:1' },
  });
  const elicitations = [{ mode: 'url', elicitationId: 'E', url: 'https://x' }];
  t.deepEqual(renamed('tools/call', { id: 1, error: { code: -32042, message: 'm', data: { elicitations } } }).error, {
    code: -32042,
    message: 'm',
    data: { elicitations: [{ mode: 'url', elicitationId: 't__E', url: 'https://x' }] },
  });
  const told = (method: string, params: object) => renamed('', { method: `notifications/${method}`, params }).params;
  t.deepEqual(told('resources/updated', { uri: 'x:1', title: 'x' }), { uri: 't+x:1', title: 'x' });
  t.deepEqual(told('cancelled', { requestId: 'S' }), { requestId: 't__S' });
  t.deepEqual(told('elicitation/complete', { elicitationId: 'E' }), { elicitationId: 't__E' });
  t.deepEqual(told('tasks/status', { taskId: 'T', status: 'working' }), { taskId: 't__T', status: 'working' });
  t.deepEqual(told('message', { data: { uri: 'x:1' }, _meta: { [RELATED]: { taskId: 'T' } } }), {
    data: { uri: 'x:1' },
    _meta: { [RELATED]: { taskId: 't__T' } },
  });
  t.deepEqual(
    told('progress', { progressToken: 7, progress: 1 }),
    { progressToken: 7, progress: 1 },
    "the token is the client's",
  );
});

test('the answer to a request of a target carries its own id and its own progress token', (t) => {
  for (const progressToken of [0, 7, '7', '', 'a__b', 'x"y']) {
    const asked = renamed('tools/call', {
      id: 'sealed',
      method: 'sampling/createMessage',
      params: { uri: 'x:1', _meta: { progressToken } },
    });
    t.is(asked.id, 't__sealed');
    const { uri, _meta } = asked.params as { uri: string; _meta: JsonObject };
    t.is(uri, 'x:1');
    t.deepEqual(splitToken(_meta.progressToken), { targetName: 't', token: progressToken });
  }
  for (const token of [undefined, 7, 'x', 't__', 't__x', 't__null', 't__{}', 't__[1]', 't__true', 't__"x'])
    t.is(splitToken(token), null);
  t.deepEqual(renamed('', { id: 'sealed', method: 'elicitation/create', params: { mode: 'url', elicitationId: 'E' } }).params, {
    mode: 'url',
    elicitationId: 't__E',
  });
});

test('only its own target sees a task that the client names', async (t) => {
  const message = request('tools/call', { name: 'x', _meta: { progressToken: 1, [RELATED]: { taskId: 't__T' } } });
  t.deepEqual(bareMeta(message, 't').params, { name: 'x', _meta: { progressToken: 1, [RELATED]: { taskId: 'T' } } });
  t.deepEqual(bareMeta(message, 'other').params, { name: 'x', _meta: { progressToken: 1 } });
  t.is(bareMeta(request('ping'), 't').params, undefined);
  for (const related of [null, 'T', { taskId: 7 }, { taskId: 'T' }])
    t.deepEqual(bareMeta(request('x', { _meta: { [RELATED]: related } as JsonObject }), 't').params, { _meta: {} });

  const text = `[7, {"jsonrpc":"2.0","id":"t__S","result":{"n":1.0,"_meta":{"${RELATED}":{"taskId":"t__T"}}}}]`;
  const reading = readJsonText(text, { spanDepth: 4 });
  const span = reading.ok ? reading.span.items?.[1] : undefined;
  if (span === undefined) return t.fail();
  const { text: own, span: all } = await bareResponse('t', { text, span }, 'ann');
  t.is(own.slice(all.start, all.end), text.slice(4, -1).replace('"t__T"', '"T"'));
  const others = await bareResponse('other', { text, span }, 'ann');
  t.is(others.text.slice(others.span.start, others.span.end), text.slice(4, -1));
});

const METHODS = [
  ...['tools/list', 'prompts/list', 'resources/list', 'resources/templates/list', 'tasks/list', 'resources/read', 'tools/call'],
  ...['tasks/result', 'tasks/get', 'tasks/cancel', 'prompts/get', 'completion/complete', ''],
];
const MEMBERS = [
  ...[
    'tools',
    'prompts',
    'resources',
    'resourceTemplates',
    'tasks',
    'contents',
    'content',
    'messages',
    'task',
    'taskId',
    'name',
    'uri',
  ],
  ...[
    'uriTemplate',
    'resource',
    'type',
    '_meta',
    'ui',
    'resourceUri',
    RELATED,
    'constructor',
    'toString',
    'hasOwnProperty',
    'data',
  ],
];
const { value: hostile } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 8, depthSize: 'large' },
    fc.constantFrom('resource_link', 'resource', 'x:1', '', null, true, 7),
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(fc.constantFrom(...MEMBERS), tie('value'), { maxKeys: 6 }),
  ),
}));

/** The message after the target was removed from each joined text. */
function unjoined(value: unknown): unknown {
  if (typeof value === 'string') return value.replace(/^t(?:__|\+)/, '');
  if (Array.isArray(value)) return value.map(unjoined);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, unjoined(one)]));
}

test('a renamed message is valid JSON that differs only in joined names, whatever the target sends', (t) => {
  fc.assert(
    fc.property(fc.constantFrom(...METHODS), fc.constantFrom('result', 'error', 'params'), hostile, (method, member, value) => {
      const message = { jsonrpc: '2.0', id: 1, ...(member === 'params' && { method: 'notifications/x' }), [member]: value };
      const out = renameMessage('t', method, JSON.stringify(message));
      const { id, ...rest } = JSON.parse(out) as JsonObject;
      const { id: _, ...sent } = message;
      t.deepEqual(unjoined(rest), unjoined(sent));
      t.true(id === 1 || id === 't__1');
    }),
    { numRuns: 1_000 },
  );
});

test('deep and long results are renamed', (t) => {
  const deep = `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"resource_link","uri":"x:1","d":${'['.repeat(200)}${']'.repeat(200)}}]}}`;
  t.is(renameMessage('t', 'tools/call', deep), deep.replace('"x:1"', '"t+x:1"'));
  const items = Array.from({ length: 10_000 }, (_, index) => `{"name":"tool-${index}"}`).join();
  const long = renameMessage('t', 'tools/list', `{"jsonrpc":"2.0","id":1,"result":{"tools":[${items}]}}`);
  t.is(long.split('"t__tool-').length - 1, 10_000);
});

test('an item of a list gets the same names as in the whole list', async (t) => {
  const meta = { ui: { resourceUri: 'ui://a/b' }, 'ui/resourceUri': 'ui://c/d', other: { name: 'n', uri: 'file:///x' } };
  const items: readonly [string, string, object][] = [
    ['tools/list', 'tools', { title: 'name', name: 'a "quoted" \\ name', inputSchema: { name: 'n' } }],
    ['tools/list', 'tools', { _meta: meta, name: 'after', description: '"name":"x"' }],
    ['tools/list', 'tools', { name: 'before', _meta: meta }],
    ['prompts/list', 'prompts', { name: 'p', arguments: [{ name: 'n' }] }],
    ['prompts/list', 'prompts', { _meta: meta, name: 'p' }],
    ['resources/list', 'resources', { uri: 'file:///a', name: 'a', _meta: {} }],
    ['resources/list', 'resources', { name: 'a', uri: 'file:///a' }],
    ['resources/templates/list', 'resourceTemplates', { name: 'a', uriTemplate: 'file:///{b}', _meta: meta }],
  ];
  const decide = (objects: readonly object[]): boolean[] => objects.map(() => true);
  for (const [method, member, item] of items) {
    for (const text of [JSON.stringify(item), JSON.stringify(item, null, 2)]) {
      const message = `{"jsonrpc":"2.0","id":1,"result":{"${member}": [ ${text} ]}}`;
      const reading = readJsonText(message, { spanDepth: RESULT_SPAN_DEPTH });
      const operation = readOperation('stateful', method, {});
      if (!reading.ok || 'code' in operation) return t.fail();
      const context: ResultContext = {
        mode: 'stateful',
        method,
        params: {},
        operation,
        decide,
        *sealState(state) {
          yield;
          return state;
        },
        mayAsk: [],
        sealTask: null,
        tasks: new Map(),
        changeItem: itemRenaming('t', method),
      };
      const filtered = filterResult(reading, (reading.value as { result: JsonObject }).result, context);
      if (!filtered.ok) return t.fail(filtered.fault);
      t.is(filtered.changed?.join() ?? null, (await readList('t', method, member, message, 'ann')).items);
      t.deepEqual(JSON.parse(filtered.text), { [member]: [] }, 'a large list is not kept twice');
    }
  }
});

test.serial('a long answer is renamed in many short steps', async (t) => {
  const { run } = lane;
  t.teardown(() => {
    lane.run = run;
  });
  let steps = 0;
  lane.run = (key, step, ...how) => run(key, () => ++steps > 0 && step(), ...how);
  const uri = `x:${'a'.repeat(20)}`;
  const message = (one: string): string =>
    JSON.stringify({ jsonrpc: '2.0', id: 1, result: { contents: Array.from({ length: 5_000 }, () => ({ uri: one })) } });
  const text = message(uri);
  t.is(await renameLarge('t', 'resources/read', text, 'ann'), message(`t+${uri}`));
  const renaming = steps;
  steps = 0;
  await readLargeJson(text, TARGET_RULES, 'ann');
  t.true(renaming - steps > 50, `${renaming} steps, of which reading takes ${steps}`);
});
