import test from 'ava';
import { isObject, type JsonObject, readJsonText } from '../../../src/base/json/json.ts';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { filterInSteps, filterResult, isLongList, RESULT_SPAN_DEPTH } from '../../../src/mcp/filter/filter.ts';
import { type ResultContext, taskIdsIn } from '../../../src/mcp/filter/filter-parts.ts';
import type { Task } from '../../../src/mcp/sessions/tasks.ts';
import { ASKABLE, type Askable } from '../../../src/protocol/capabilities.ts';
import { readOperation } from '../../../src/protocol/operation.ts';

interface Case extends Partial<Pick<ResultContext, 'mode' | 'params' | 'mayAsk' | 'sealTask' | 'tasks'>> {
  readonly method: string;
  readonly allowed?: readonly string[];
}

/** Returns the filtered result as text, or the fault, and the names that it shows. */
function filter(
  result: string | object,
  { mode = 'stateful', method, params, allowed = [], mayAsk = ASKABLE, sealTask = null, tasks = new Map() }: Case,
) {
  const text = `{"jsonrpc": "2.0", "id": 1, "result": ${typeof result === 'string' ? result : JSON.stringify(result)} }`;
  const reading = readJsonText(text, { exact: false, spanDepth: RESULT_SPAN_DEPTH });
  if (!reading.ok || !isObject(reading.value) || !isObject(reading.value.result)) throw new Error(`not a result: ${text}`);
  const operation = readOperation(mode, method, params ?? {});
  const filtered = filterResult(reading, reading.value.result, {
    mode,
    method,
    params,
    operation: 'kind' in operation ? operation : { kind: 'target' },
    decide: (objects) => objects.map(({ resource_name }) => allowed.includes(resource_name)),
    *sealState(state) {
      yield;
      return `sealed ${state}`;
    },
    mayAsk,
    sealTask,
    tasks,
  });
  if (!filtered.ok) return { fault: filtered.fault };
  return { text: filtered.text, value: JSON.parse(filtered.text) as JsonObject, shown: filtered.shown };
}

test('a list keeps the allowed items with their text unchanged', (t) => {
  const result =
    '{"tools":[ {"name":"a","inputSchema":{"maximum":12345678901234567890,"x":1.0}},{"name":"b"},{"name":"c"}] , "nextCursor":"n"}';
  const { text, shown } = filter(result, { method: 'tools/list', allowed: ['a', 'c'] });
  t.is(text, '{"tools":[{"name":"a","inputSchema":{"maximum":12345678901234567890,"x":1.0}},{"name":"c"}] , "nextCursor":"n"}');
  t.deepEqual(shown, { resource_type: 'tool', names: ['a', 'c'], hidden: 1 });
});

test('a page without visible items keeps its cursor', (t) => {
  const { value, shown } = filter({ nextCursor: 'n', tools: [{ name: 'a' }] }, { method: 'tools/list' });
  t.deepEqual(value, { nextCursor: 'n', tools: [] });
  t.deepEqual(shown, { resource_type: 'tool', names: [], hidden: 1 });
});

test('every kind of list is filtered by the type of its items', (t) => {
  const only = (method: string, member: string, items: object[], allowed: string[]) =>
    filter({ [member]: items }, { method, allowed }).value?.[member];
  const uris = [{ uri: 'file:///a' }, { uri: 'file:///b' }, { uri: 'file:///x/../a' }];
  t.deepEqual(only('resources/list', 'resources', uris, ['file:///a', 'file:///x/../a']), [{ uri: 'file:///a' }]);
  t.deepEqual(only('prompts/list', 'prompts', [{ name: 'a' }, { name: 'b' }], ['b']), [{ name: 'b' }]);
  const templates = [{ uriTemplate: 'file:///{a}' }, { uriTemplate: 'file:///{b}' }];
  t.deepEqual(only('resources/templates/list', 'resourceTemplates', templates, ['file:///{b}']), [
    { uriTemplate: 'file:///{b}' },
  ]);
});

test('a list is filtered by its operation, even if the method is not known to the filter', (t) => {
  const text = '{"result":{"tools":[{"name":"a"},{"name":"b"}]}}';
  const reading = readJsonText(text, { exact: false, spanDepth: RESULT_SPAN_DEPTH });
  const operation = readOperation('stateful', 'tools/list', {});
  if (!reading.ok || !isObject(reading.value) || !isObject(reading.value.result) || !('kind' in operation)) return t.fail();
  const filtered = filterResult(reading, reading.value.result, {
    ...{ mode: 'stateful', method: 'tools/later', params: {}, operation, mayAsk: ASKABLE, sealTask: null, tasks: new Map() },
    decide: (objects) => objects.map(({ resource_name }) => resource_name === 'a'),
    *sealState(state) {
      yield;
      return state;
    },
  });
  t.like(filtered, { ok: true, shown: { resource_type: 'tool', names: ['a'], hidden: 1 } });
});

test('malformed items and malformed lists are not shown', (t) => {
  t.deepEqual(filter({ tools: [null, 'a', {}, { name: 'a' }] }, { method: 'tools/list', allowed: ['a'] }).value?.tools, [
    { name: 'a' },
  ]);
  t.truthy(filter({ tools: {} }, { method: 'tools/list' }).fault);
  t.truthy(filter({}, { method: 'tools/list' }).fault);
});

test('each of several equal items is decided', (t) => {
  const { value } = filter({ tools: [{ name: 'a' }, { name: 'b' }, { name: 'a' }] }, { method: 'tools/list', allowed: ['a'] });
  t.deepEqual(value?.tools, [{ name: 'a' }, { name: 'a' }]);
});

test('caching hints of the target are replaced if a result depends on the caller', (t) => {
  const hints = { ttlMs: 60_000, cacheScope: 'public' };
  t.is(filter('{"tools":[]}', { method: 'tools/list', mode: 'stateless' }).text, '{"cacheScope":"private","ttlMs":0,"tools":[]}');
  t.like(filter({ tools: [], ...hints }, { method: 'tools/list' }).value, { ttlMs: 0, cacheScope: 'private' });
  t.like(filter({ contents: [], ...hints }, { method: 'resources/read', mode: 'stateless' }).value, {
    ttlMs: 0,
    cacheScope: 'private',
  });
  t.deepEqual(filter({ content: [] }, { method: 'tools/call', mode: 'stateless' }).value, { content: [] });
  t.is(filter('{}', { method: 'ping' }).text, '{}');
});

test('links to denied resources are removed, and nothing else is changed', (t) => {
  const link = (uri: string) => ({ type: 'resource_link', uri, name: uri });
  const embedded = { type: 'resource', resource: { uri: 'file:///b', text: 'x' } };
  const content = [{ type: 'text', text: 'file:///b' }, link('file:///a'), link('file:///b'), link('file:///a/../b'), embedded];
  const { value, shown } = filter(
    { content, structuredContent: { x: 1 } },
    { method: 'tools/call', allowed: ['file:///a', 'file:///a/../b'] },
  );
  t.deepEqual(value, { content: [content[0], content[1], embedded], structuredContent: { x: 1 } } as never);
  t.deepEqual(shown, { resource_type: 'resource', names: ['file:///a'], hidden: 2 });
  const messages = [
    { role: 'user', content: link('file:///b') },
    { role: 'user', content: { type: 'text', text: 'x' } },
  ];
  t.deepEqual(filter({ messages }, { method: 'prompts/get' }).value, { messages: [messages[1]] } as never);
});

test('one part of an answer may name only as many resources as one step decides', (t) => {
  const links = (count: number) => Array.from({ length: count }, (_, n) => ({ type: 'resource_link', uri: `file:///${n}` }));
  const get = (count: number) => filter({ messages: [{ role: 'user', content: links(count) }] }, { method: 'prompts/get' });
  const wrong = (count: number) =>
    filter(
      { messages: [{ role: 'user', content: links(count).map((link) => ({ ...link, uri: `${link.uri}/..` })) }] },
      { method: 'prompts/get' },
    );
  t.is(get(500).shown?.hidden, 500);
  t.is(wrong(500).shown?.hidden, 500);
  t.truthy(wrong(501).fault, 'links that are no URIs cost as much');
  t.regex(get(501).fault ?? '', /one part of it names more than 500/);
});

test('a long list of a short answer is decided in steps', async (t) => {
  const tools = Array.from({ length: 1_200 }, (_, n) => ({ name: `${n}` }));
  const text = JSON.stringify({ jsonrpc: '2.0', id: 1, result: { tools } });
  const reading = readJsonText(text, { exact: false, spanDepth: RESULT_SPAN_DEPTH });
  if (!reading.ok) throw new Error(reading.reason);
  const operation = readOperation('stateful', 'tools/list', {});
  if (!('kind' in operation)) throw new Error('no list');
  let most = 0;
  const context: ResultContext = {
    ...{
      mode: 'stateful',
      method: 'tools/list',
      params: undefined,
      operation,
      mayAsk: ASKABLE,
      sealTask: null,
      tasks: new Map(),
    },
    decide(objects) {
      most = Math.max(most, objects.length);
      return objects.map(() => true);
    },
    *sealState(state) {
      yield;
      return state;
    },
  };
  t.true(isLongList({ tools }, context));
  t.false(isLongList({ tools: tools.slice(0, 500) }, context));
  const filtered = atOnce(filterInSteps(reading, { tools }, context));
  t.is(filtered.ok && filtered.shown?.names.length, 1_200);
  t.is(most, 50);
});

test('a tool loses its pointer to a denied resource', (t) => {
  const tool = { name: 'a', _meta: { ui: { resourceUri: 'ui://a', visibility: ['model'] }, other: 1 }, title: 'A' };
  const list = (allowed: string[]) => filter({ tools: [tool] }, { method: 'tools/list', allowed }).value?.tools;
  t.deepEqual(list(['a', 'ui://a']), [tool]);
  t.deepEqual(list(['a']), [{ name: 'a', _meta: { ui: { visibility: ['model'] }, other: 1 }, title: 'A' }]);
  const flat = { name: 'a', _meta: { 'ui/resourceUri': 'ui://b', ui: { resourceUri: 'ui://a' } } };
  const older = (allowed: string[]) => filter({ tools: [flat] }, { method: 'tools/list', allowed }).value?.tools;
  t.deepEqual(older(['a', 'ui://a', 'ui://b']), [flat]);
  t.deepEqual(older(['a', 'ui://a']), [{ name: 'a', _meta: { ui: { resourceUri: 'ui://a' } } }]);
  t.deepEqual(older(['a']), [{ name: 'a', _meta: { ui: {} } }]);
});

test('contents of URIs other than the requested one are decided', (t) => {
  const contents = ['file:///d/', 'file:///d/a', 'file:///d/b', 'file:///d/../x'].map((uri) => ({ uri, text: 'x' }));
  const { value, shown } = filter(
    { contents },
    { method: 'resources/read', params: { uri: 'file:///d/' }, allowed: ['file:///d/a'] },
  );
  t.deepEqual(value, { contents: contents.slice(0, 2) } as never);
  t.deepEqual(shown, { resource_type: 'resource', names: ['file:///d/a'], hidden: 2 });
  t.truthy(filter({}, { method: 'resources/read' }).fault);
});

test('completions of a template are filtered to the allowed resources', (t) => {
  const params = { ref: { type: 'ref/resource', uri: 'file:///{name}.txt' }, argument: { name: 'name', value: '' } };
  const completion = { values: ['a', 'b', '../c', 'a b'], total: 4, hasMore: false };
  const allowed = ['file:///a.txt', 'file:///a%20b.txt', 'file:///../c.txt', 'file:///..%2Fc.txt'];
  const { value, shown } = filter({ completion }, { method: 'completion/complete', params, allowed });
  t.deepEqual(value, { completion: { values: ['a', 'a b'], hasMore: false } });
  t.is(shown?.hidden, 2);
  t.deepEqual(filter({ completion: { values: ['a'], total: 1 } }, { method: 'completion/complete', params, allowed }).value, {
    completion: { values: ['a'], total: 1 },
  });
});

const complete = (uri: string, values: unknown[], allowed: readonly string[], given?: object) => {
  const params = {
    ref: { type: 'ref/resource', uri },
    argument: { name: 'x', value: '' },
    ...(given === undefined ? {} : { context: { arguments: given } }),
  } as unknown as JsonObject;
  return filter({ completion: { values, total: 9 } }, { method: 'completion/complete', params, allowed }).value?.completion;
};

for (const [expression, open] of [
  ['a:/{x}', 'a:/open'],
  ['a:/{+x}', 'a:/open'],
  ['a:/{x*}', 'a:/open'],
  ['a:/b{.x}', 'a:/b.open'],
  ['a:/b{/x}', 'a:/b/open'],
  ['a:/b{/x*}', 'a:/b/open'],
  ['a:/b{;x}', 'a:/b;x=open'],
  ['a:/b{?x}', 'a:/b?x=open'],
  ['a:/b{?x*}', 'a:/b?x=open'],
  ['a:/b?c=1{&x}', 'a:/b?c=1&x=open'],
  ['a:/{x:3}', 'a:/ope'],
  ['a:/{x}/{x:1}', 'a:/open/o'],
] as const) {
  test(`completions: ${expression} is expanded and decided`, (t) => {
    t.deepEqual(complete(expression, ['open', 'secret', 7], [open]), { values: ['open'] });
    t.deepEqual(complete(expression, ['open'], [open]), { values: ['open'], total: 9 });
  });
}

test('completions keep reserved characters only if the template says so', (t) => {
  t.deepEqual(complete('a:/{+x}', ['b/c d', 'e%20f', '../g'], ['a:/b/c%20d', 'a:/e%20f', 'a:/../g']), {
    values: ['b/c d', 'e%20f'],
  });
  t.deepEqual(complete('a:/{x}', ['b c', 'b/c', 'b?c'], ['a:/b%20c', 'a:/b/c', 'a:/b?c']), { values: ['b c'] });
  t.deepEqual(complete('a:/b{;x}c{?x}', [''], ['a:/b;xc?x=']), { values: [''], total: 9 });
});

test('completions use as many characters of a value as the template says, also if these have two code units', (t) => {
  const anything = { includes: () => true } as unknown as readonly string[];
  const shownFor = (uri: string, value: string) =>
    filter(
      { completion: { values: [value, 7], total: 2 } },
      {
        method: 'completion/complete',
        params: { ref: { type: 'ref/resource', uri }, argument: { name: 'x', value: '' } },
        allowed: anything,
      },
    ).shown?.names;
  t.deepEqual(shownFor('a:/{x:1}', '\u{1f600}b'), ['a:/%F0%9F%98%80']);
  t.deepEqual(shownFor('a:/{x:2}', 'b\u{1f600}c'), ['a:/b%F0%9F%98%80']);
  t.deepEqual(shownFor('a:/{x:2}', 'bc\ud83d'), ['a:/bc']);
  t.deepEqual(shownFor(`a:/{${Array.from({ length: 50 }, () => 'x:1').join()}}`, 'o'.repeat(2_000)), [`a:/${'o,'.repeat(49)}o`]);
});

test('completions expand the other variables with the values of the request', (t) => {
  for (const [uri, allowed] of [
    ['a:/{dir}/{x}', 'a:/d/open'],
    ['a:/b{?dir,x}', 'a:/b?dir=d&x=open'],
    ['a:/{x,dir}', 'a:/open,d'],
  ] as const) {
    const given = { dir: 'd', x: 'forged', unused: 'u' };
    t.deepEqual(complete(uri, ['open', 'secret'], [allowed], given), { values: ['open'] }, uri);
    for (const missing of [undefined, {}, { dir: 1 }, { dirs: 'd' }]) {
      t.deepEqual(
        complete(uri, ['open'], [allowed, 'a:/b?x=open', 'a:/b?dir=&x=open', 'a:/open,'], missing),
        { values: [] },
        uri,
      );
    }
  }
});

test('completions offer neither values nor totals if no URI can be formed', (t) => {
  const anything = { includes: () => true } as unknown as readonly string[];
  for (const uri of ['a:/{=x}', 'a:/{|x}', 'a:/{#x}', 'a:/{x:0}', 'a:/{x', 'a:/{x}}', 'a:/{}{x}', 'a:/{x,}', 'a:/{y}', 'a:/b']) {
    t.deepEqual(complete(uri, ['open'], anything), { values: [] }, uri);
  }
  t.deepEqual(complete('a:/{y}', [], anything), { values: [] });
  t.deepEqual(complete('a:/{x:1}', ['o'.repeat(3_000)], anything), { values: [] });
  t.deepEqual(complete(`a:/${'{x}'.repeat(51)}`, ['o'], anything), { values: [] });
});

test('capabilities are reduced to those that the gateway serves', (t) => {
  const capabilities = {
    tools: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    tasks: { list: {} },
    experimental: { x: {} },
    'acme/danger': {},
    extensions: { 'io.modelcontextprotocol/tasks': {}, 'io.modelcontextprotocol/ui': {} },
  };
  const session = filter({ protocolVersion: '2025-06-18', capabilities }, { method: 'initialize' });
  const reduced = {
    tools: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    extensions: { 'io.modelcontextprotocol/ui': {} },
  };
  t.deepEqual(session.value?.capabilities, reduced);
  const newest = filter({ protocolVersion: '2025-11-25', capabilities }, { method: 'initialize' });
  t.deepEqual(newest.value?.capabilities, { ...reduced, tasks: { list: {} } });
  const supportedVersions = ['2027-01-01', '2026-07-28', '2025-11-25', '2024-11-05'];
  const modern = filter({ supportedVersions, capabilities }, { method: 'server/discover', mode: 'stateless' });
  t.like(modern.value, {
    supportedVersions: ['2026-07-28', '2025-11-25'],
    capabilities: { ...reduced, extensions: capabilities.extensions },
    ttlMs: 0,
    cacheScope: 'private',
  });
  t.truthy(filter({ protocolVersion: '2024-11-05', capabilities }, { method: 'initialize' }).fault);
});

const asking = (method: string) => ({
  resultType: 'input_required',
  inputRequests: { q: { method, params: {} } },
  requestState: 's',
});
const declaring = (capabilities: JsonObject): JsonObject => ({
  _meta: { 'io.modelcontextprotocol/clientCapabilities': capabilities },
});

test('a target may ask for input that the client offers and the target may ask for, and its state is sealed', (t) => {
  const call = (asked: string, offered: JsonObject, method = 'tools/call') =>
    filter(asking(asked), { method, mode: 'stateless', params: declaring(offered) });
  t.deepEqual(call('elicitation/create', { elicitation: {} }).value, {
    ...asking('elicitation/create'),
    requestState: 'sealed s',
  } as never);
  t.truthy(call('elicitation/create', {}).fault);
  t.truthy(call('sampling/createMessage', { elicitation: {} }).fault);
  t.truthy(call('acme/x', { 'acme/x': {} }).fault);
  t.truthy(call('elicitation/create', { elicitation: {} }, 'tools/list').fault);
  for (const requestState of [1, 's'.repeat(1024 * 1024 + 1), '\u0001'.repeat(200_000)]) {
    const asked = { ...asking('elicitation/create'), requestState };
    t.truthy(filter(asked, { method: 'tools/call', mode: 'stateless', params: declaring({ elicitation: {} }) }).fault);
  }
});

test('a result of a kind that was not requested is a fault', (t) => {
  t.truthy(filter({ task: { taskId: 'x' } }, { method: 'tools/call' }).fault);
  t.truthy(filter({ resultType: 'task', taskId: 'x' }, { method: 'tools/call', mode: 'stateless' }).fault);
  t.truthy(filter({ resultType: 'task', taskId: 'x' }, { method: 'prompts/get', mode: 'stateless' }).fault);
});

test('a target cannot ask for input that it may not ask for', (t) => {
  const both: JsonObject = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
  const request = (method: string, params: JsonObject): JsonObject => ({
    resultType: 'input_required',
    inputRequests: { q: { method, params } },
  });
  const passes = (method: string, params: JsonObject, mayAsk: readonly Askable[], offered = both) =>
    filter(request(method, params), { method: 'tools/call', mode: 'stateless', params: declaring(offered), mayAsk }).fault ===
    undefined;
  const url = { mode: 'url', url: 'https://elsewhere.test', message: 'x' };
  t.true(passes('elicitation/create', url, ['elicitation_url']));
  t.false(passes('elicitation/create', url, ['elicitation']));
  t.false(passes('elicitation/create', url, ASKABLE, { elicitation: {} }), 'the client offers forms alone');
  t.false(passes('elicitation/create', { ...url, mode: 'form', Mode: 'url' }, ['elicitation']));
  t.false(passes('elicitation/create', { mode: 'other' }, ASKABLE));
  t.true(passes('elicitation/create', { message: 'x' }, ['elicitation']));
  t.false(passes('elicitation/create', { message: 'x' }, ['elicitation_url']));
  for (const [method, askable] of [
    ['sampling/createMessage', 'sampling'],
    ['roots/list', 'roots'],
  ] as const) {
    t.true(passes(method, {}, [askable]));
    t.false(
      passes(
        method,
        {},
        ASKABLE.filter((other) => other !== askable),
      ),
    );
  }
});

const named = (upstreamId: string): Task => ({ handle: `sealed ${upstreamId}`, upstreamId, tool: `tool of ${upstreamId}` });
const own = (...ids: string[]) => new Map(ids.map((id) => [id, named(id)]));

test("a new task gets the client's id in both forms, and no unchecked state", (t) => {
  const make = (result: string, mode: 'stateful' | 'stateless') =>
    filter(result, { method: 'tools/call', mode, sealTask: named });
  t.is(
    make('{"task":{"ttl":1.0,"taskId":"u","status":"working"}}', 'stateful').text,
    '{"task":{"ttl":1.0,"taskId":"sealed u","status":"working"}}',
  );
  t.is(
    make('{"resultType":"task","taskId":"u","ttlMs":null}', 'stateless').text,
    '{"resultType":"task","taskId":"sealed u","ttlMs":null}',
  );
  for (const state of ['"result":{"content":[]}', '"error":{}', '"inputRequests":{}']) {
    t.truthy(make(`{"resultType":"task","taskId":"u",${state}}`, 'stateless').fault);
    t.truthy(make(`{"task":{"taskId":"u",${state}}}`, 'stateful').fault);
    const list = filter(`{"tasks":[{"taskId":"u",${state}},{"taskId":"v"}]}`, {
      ...{ method: 'tasks/list', tasks: own('u', 'v'), allowed: ['tool of u', 'tool of v'] },
    });
    t.is(list.text, '{"tasks":[{"taskId":"sealed v"}]}');
  }
  for (const member of ['_Meta', 'TaskId', 'Result']) t.truthy(make(`{"task":{"taskId":"u","${member}":{}}}`, 'stateful').fault);
  for (const taskId of ['1', '""', 'null', `"${'x'.repeat(513)}"`]) {
    t.truthy(make(`{"resultType":"task","taskId":${taskId}}`, 'stateless').fault);
    t.truthy(make(`{"task":{"taskId":${taskId}}}`, 'stateful').fault);
  }
  t.truthy(make('{"task":null}', 'stateful').fault);
});

test('the state of a task names its own id, asks only allowed input and links only to allowed resources', (t) => {
  const state = (result: object, more: Partial<Case> = {}) =>
    filter(result, { method: 'tasks/get', mode: 'stateless', tasks: own('u'), allowed: ['file:///a'], ...more });
  t.is(state({ resultType: 'complete', taskId: 'u', ttlMs: 5 }).text, '{"resultType":"complete","taskId":"sealed u","ttlMs":5}');
  t.truthy(state({ taskId: 'another' }).fault);
  t.truthy(state({ taskId: 'u', inputRequests: { q: { method: 'elicitation/create', params: {} } } }).fault);
  const offered = { params: declaring({ elicitation: {} }) };
  t.falsy(state({ taskId: 'u', inputRequests: { q: { method: 'elicitation/create', params: {} } } }, offered).fault);
  const content = ['file:///a', 'file:///b'].map((uri) => ({ type: 'resource_link', uri, name: uri }));
  const done = state({ taskId: 'u', status: 'completed', result: { content, x: 1 } });
  t.deepEqual(done.value?.result, { content: [content[0]], x: 1 } as never);
  t.deepEqual(done.shown, { resource_type: 'resource', names: ['file:///a'], hidden: 1 });
  t.truthy(state({ taskId: 'u', result: { content, inputRequests: {} } }).fault);
  const failed = (uri: string) => state({ taskId: 'u', error: { code: -32002, message: 'x', data: { uri, x: 1 } } }).value?.error;
  t.like(failed('file:///a'), { code: -32002, data: { uri: 'file:///a', x: 1 } });
  t.deepEqual(failed('file:///b'), { code: -32002, message: 'x', data: { x: 1 } });
  const visit = { taskId: 'u', status: 'failed', error: { code: -32042, message: 'x', data: { elicitations: [] } } };
  t.like(state(visit).value?.error, { code: -32042 });
  const error = { code: -32603, message: 'The target asks for something that it may not ask its clients for' };
  t.like(state(visit, { mayAsk: ['elicitation'] }).value, { status: 'failed', error });
  t.truthy(state({ taskId: 'u', Error: { data: { uri: 'file:///b' } } }).fault);
});

test("a list of tasks shows the caller's tasks of tools that it may call", (t) => {
  const tasks = ['u', 'v', 'another'].map((taskId) => ({ taskId, status: 'working' }));
  const listed = filter(
    { tasks: [...tasks, null, { taskId: 1 }], nextCursor: 'n' },
    { method: 'tasks/list', tasks: own('u', 'v'), allowed: ['tool of v'] },
  );
  t.deepEqual(listed.value, { tasks: [{ taskId: 'sealed v', status: 'working' }], nextCursor: 'n' });
  t.deepEqual(listed.shown, { resource_type: 'tool', names: ['tool of v'], hidden: 4 });
  t.truthy(filter({}, { method: 'tasks/list' }).fault);
});

test('the `_meta` of a task in a list, and of a new task, shows what the caller may read', (t) => {
  const task = (uri: string) => ({
    ...{ taskId: 'u', status: 'working' },
    _meta: { ui: { resourceUri: uri }, 'io.modelcontextprotocol/related-task': { taskId: 'another' }, x: 1 },
  });
  const allowed = ['tool of u', 'file:///a'];
  const listed = (uri: string) => filter({ tasks: [task(uri)] }, { method: 'tasks/list', tasks: own('u'), allowed }).value;
  const shown = { taskId: 'sealed u', status: 'working' };
  t.deepEqual(listed('file:///a'), { tasks: [{ ...shown, _meta: { ui: { resourceUri: 'file:///a' }, x: 1 } }] });
  t.deepEqual(listed('file:///b'), { tasks: [{ ...shown, _meta: { ui: {}, x: 1 } }] });
  const many = Array.from({ length: 1_001 }, (_, at) => task(`file:///${at}`));
  const named = filter({ tasks: many }, { method: 'tasks/list', tasks: own('u'), allowed });
  t.regex(named.fault ?? '', /names more than/, 'the pointers of a list are decided together');
  const sealTask = (): Task => ({ ...(own('u').get('u') as Task), handle: 'sealed u' });
  const made = (uri: string) =>
    filter({ task: task(uri) }, { method: 'tools/call', params: { task: {} }, sealTask, allowed }).value;
  t.deepEqual(made('file:///a'), { task: { ...shown, _meta: { ui: { resourceUri: 'file:///a' }, x: 1 } } });
  t.deepEqual(made('file:///b'), { task: { ...shown, _meta: { ui: {}, x: 1 } } });
});

test("a result names its task by the client's id, or not at all", (t) => {
  const related = (taskId: string) => ({ _meta: { 'io.modelcontextprotocol/related-task': { taskId }, x: 1 }, content: [] });
  const result = (taskId: string) => filter(related(taskId), { method: 'tasks/result', tasks: own('u') }).value;
  t.deepEqual(result('u'), related('sealed u') as never);
  t.deepEqual(result('another'), { _meta: { x: 1 }, content: [] });
  t.deepEqual(taskIdsIn({ ...related('r'), taskId: 't', tasks: [{ taskId: 'l' }], result: related('n') }).sort(), [
    'l',
    'n',
    'r',
    't',
  ]);
});
