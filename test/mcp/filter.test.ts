import test from 'ava';
import { isObject, type JsonObject, readJsonText } from '../../src/http/json.ts';
import { filterResult, RESULT_SPAN_DEPTH, type ResultContext } from '../../src/mcp/filter.ts';
import { readOperation } from '../../src/mcp/operation.ts';

interface Case extends Partial<Pick<ResultContext, 'era' | 'params'>> {
  readonly method: string;
  readonly allowed?: readonly string[];
}

/** The filtered result as text, or the fault; and what was shown. */
function filter(result: string | object, { era = 'session', method, params, allowed = [] }: Case) {
  const text = `{"jsonrpc": "2.0", "id": 1, "result": ${typeof result === 'string' ? result : JSON.stringify(result)} }`;
  const reading = readJsonText(text, { exact: false, spanDepth: RESULT_SPAN_DEPTH });
  if (!reading.ok || !isObject(reading.value) || !isObject(reading.value.result)) throw new Error(`not a result: ${text}`);
  const operation = readOperation(era, method, params ?? {});
  const filtered = filterResult(reading, reading.value.result, {
    era,
    method,
    params,
    operation: 'kind' in operation ? operation : { kind: 'target' },
    decide: (objects) => objects.map(({ resource_name }) => allowed.includes(resource_name)),
    sealState: (state) => `sealed ${state}`,
  });
  if (!filtered.ok) return { fault: filtered.fault };
  return { text: filtered.text, value: JSON.parse(filtered.text) as JsonObject, shown: filtered.shown };
}

test('a list keeps what may be called, as the text it was', (t) => {
  const result =
    '{"tools":[ {"name":"a","inputSchema":{"maximum":12345678901234567890,"x":1.0}},{"name":"b"},{"name":"c"}] , "nextCursor":"n"}';
  const { text, shown } = filter(result, { method: 'tools/list', allowed: ['a', 'c'] });
  t.is(text, '{"tools":[{"name":"a","inputSchema":{"maximum":12345678901234567890,"x":1.0}},{"name":"c"}] , "nextCursor":"n"}');
  t.deepEqual(shown, { resource_type: 'tool', names: ['a', 'c'], hidden: 1 });
});

test('a page of which nothing may be seen keeps its cursor', (t) => {
  const { value, shown } = filter({ nextCursor: 'n', tools: [{ name: 'a' }] }, { method: 'tools/list' });
  t.deepEqual(value, { nextCursor: 'n', tools: [] });
  t.deepEqual(shown, { resource_type: 'tool', names: [], hidden: 1 });
});

test('every kind of list is filtered by what its items are', (t) => {
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

test('items that are no items, and lists that are no lists, are not shown', (t) => {
  t.deepEqual(filter({ tools: [null, 'a', {}, { name: 'a' }] }, { method: 'tools/list', allowed: ['a'] }).value?.tools, [
    { name: 'a' },
  ]);
  t.truthy(filter({ tools: {} }, { method: 'tools/list' }).fault);
  t.truthy(filter({}, { method: 'tools/list' }).fault);
});

test('equal items are each decided', (t) => {
  const { value } = filter({ tools: [{ name: 'a' }, { name: 'b' }, { name: 'a' }] }, { method: 'tools/list', allowed: ['a'] });
  t.deepEqual(value?.tools, [{ name: 'a' }, { name: 'a' }]);
});

test('caching hints of the target are replaced where a result depends on the caller', (t) => {
  const hints = { ttlMs: 60_000, cacheScope: 'public' };
  t.is(filter('{"tools":[]}', { method: 'tools/list', era: 'modern' }).text, '{"cacheScope":"private","ttlMs":0,"tools":[]}');
  t.like(filter({ tools: [], ...hints }, { method: 'tools/list' }).value, { ttlMs: 0, cacheScope: 'private' });
  t.like(filter({ contents: [], ...hints }, { method: 'resources/read', era: 'modern' }).value, {
    ttlMs: 0,
    cacheScope: 'private',
  });
  t.deepEqual(filter({ content: [] }, { method: 'tools/call', era: 'modern' }).value, { content: [] });
  t.is(filter('{}', { method: 'ping' }).text, '{}');
});

test('links to resources that may not be read are removed, everything else is untouched', (t) => {
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

test('a tool loses the pointer to a resource that may not be read', (t) => {
  const tool = { name: 'a', _meta: { ui: { resourceUri: 'ui://a', visibility: ['model'] }, other: 1 }, title: 'A' };
  const list = (allowed: string[]) => filter({ tools: [tool] }, { method: 'tools/list', allowed }).value?.tools;
  t.deepEqual(list(['a', 'ui://a']), [tool]);
  t.deepEqual(list(['a']), [{ name: 'a', _meta: { ui: { visibility: ['model'] }, other: 1 }, title: 'A' }]);
});

test('contents of other URIs than the one asked for are decided', (t) => {
  const contents = ['file:///d/', 'file:///d/a', 'file:///d/b', 'file:///d/../x'].map((uri) => ({ uri, text: 'x' }));
  const { value, shown } = filter(
    { contents },
    { method: 'resources/read', params: { uri: 'file:///d/' }, allowed: ['file:///d/a'] },
  );
  t.deepEqual(value, { contents: contents.slice(0, 2) } as never);
  t.deepEqual(shown, { resource_type: 'resource', names: ['file:///d/a'], hidden: 2 });
  t.truthy(filter({}, { method: 'resources/read' }).fault);
});

test('completions of a template are the resources that may be read', (t) => {
  const params = { ref: { type: 'ref/resource', uri: 'file:///{name}.txt' }, argument: { name: 'name', value: '' } };
  const completion = { values: ['a', 'b', '../c', 'a b'], total: 4, hasMore: false };
  const allowed = ['file:///a.txt', 'file:///a%20b.txt', 'file:///../c.txt', 'file:///..%2Fc.txt'];
  const { value, shown } = filter({ completion }, { method: 'completion/complete', params, allowed });
  t.deepEqual(value, { completion: { values: ['a', 'a b'], hasMore: false } });
  t.is(shown?.hidden, 2);
  const two = { ...params, ref: { type: 'ref/resource', uri: 'file:///{name}/{other}' } };
  t.deepEqual(filter({ completion }, { method: 'completion/complete', params: two }).value, { completion });
});

test('capabilities are reduced to what is served', (t) => {
  const capabilities = {
    tools: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    tasks: { list: {} },
    experimental: { x: {} },
    'acme/danger': {},
    extensions: { 'io.modelcontextprotocol/tasks': {}, 'io.modelcontextprotocol/ui': {} },
  };
  const session = filter({ protocolVersion: '2025-06-18', capabilities }, { method: 'initialize' });
  t.deepEqual(session.value?.capabilities, {
    tools: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    extensions: { 'io.modelcontextprotocol/ui': {} },
  });
  const supportedVersions = ['2027-01-01', '2026-07-28', '2025-11-25', '2024-11-05'];
  const modern = filter({ supportedVersions, capabilities }, { method: 'server/discover', era: 'modern' });
  t.like(modern.value, {
    supportedVersions: ['2026-07-28', '2025-11-25'],
    capabilities: { ...(session.value?.capabilities as object) },
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

test('input is asked only for what the client offers, where it may be asked, and the state is sealed', (t) => {
  const call = (asked: string, offered: JsonObject, method = 'tools/call') =>
    filter(asking(asked), { method, era: 'modern', params: declaring(offered) });
  t.deepEqual(call('elicitation/create', { elicitation: {} }).value, {
    ...asking('elicitation/create'),
    requestState: 'sealed s',
  } as never);
  t.truthy(call('elicitation/create', {}).fault);
  t.truthy(call('sampling/createMessage', { elicitation: {} }).fault);
  t.truthy(call('acme/x', { 'acme/x': {} }).fault);
  t.truthy(call('elicitation/create', { elicitation: {} }, 'tools/list').fault);
  t.truthy(
    filter(
      { ...asking('elicitation/create'), requestState: 1 },
      { method: 'tools/call', era: 'modern', params: declaring({ elicitation: {} }) },
    ).fault,
  );
});

test('results that were not asked for are faults', (t) => {
  t.truthy(filter({ task: { taskId: 'x' } }, { method: 'tools/call' }).fault);
  t.truthy(filter({ resultType: 'task', taskId: 'x' }, { method: 'tools/call', era: 'modern' }).fault);
});
