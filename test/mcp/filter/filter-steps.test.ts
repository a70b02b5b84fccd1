import test from 'ava';
import fc from 'fast-check';
import { isObject, type JsonObject, readJsonText } from '../../../src/base/json/json.ts';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { filterInSteps, filterResult, RESULT_SPAN_DEPTH } from '../../../src/mcp/filter/filter.ts';
import { changedTexts, type FilteredResult, type ResultContext } from '../../../src/mcp/filter/filter-parts.ts';
import { readOperation } from '../../../src/protocol/operation.ts';

const uri = fc.constantFrom('x:ok', 'x:denied', 'x:other', 'X:not canonical', 'file:///a');
const meta = fc.record({ ui: fc.record({ resourceUri: uri }) }, { requiredKeys: [] });
const item = fc.oneof(
  fc.record({ name: fc.constantFrom('ok', 'denied', 'a'), _meta: meta }, { requiredKeys: ['name'] }),
  fc.record({ uri, name: fc.constant('r'), _meta: meta }, { requiredKeys: ['uri'] }),
  fc.record({ type: fc.constant('resource_link'), uri, name: fc.constant('l') }),
  fc.record({ type: fc.constant('text'), text: fc.constantFrom('a', ']', ',') }),
  fc.record({ role: fc.constant('user'), content: fc.record({ type: fc.constant('resource_link'), uri }) }),
  fc.constantFrom(null, 7, 'x', [], [[1]]),
);
const MEMBERS = {
  'tools/list': 'tools',
  'resources/list': 'resources',
  'tools/call': 'content',
  'prompts/get': 'messages',
  'resources/read': 'contents',
  'tasks/list': 'tasks',
} as const;

function prepare(method: string, result: object, isSpaced = false, mode: ResultContext['mode'] = 'stateful') {
  const text = JSON.stringify({ jsonrpc: '2.0', id: 1, result }, null, isSpaced ? 1 : 0);
  const reading = readJsonText(text, { spanDepth: RESULT_SPAN_DEPTH });
  if (!reading.ok || !isObject(reading.value)) throw new Error('not readable');
  const completed = { ref: { type: 'ref/resource', uri: 'x:{name}' }, argument: { name: 'name', value: '' } };
  const operation = readOperation('stateful', method, { name: 'ok', uri: 'x:ok', ...completed });
  if ('code' in operation) throw new Error('no operation');
  const context: ResultContext = {
    mode,
    method,
    params: { uri: 'x:ok', ...completed },
    operation,
    decide: (objects) => objects.map(({ resource_name }) => resource_name !== 'denied' && resource_name !== 'x:denied'),
    *sealState(state) {
      yield;
      return state;
    },
    mayAsk: [],
    sealTask: null,
    tasks: new Map(),
  };
  return { reading, value: reading.value.result as JsonObject, context };
}

test('filtering a long list in steps gives the same result as filtering it at once', (t) => {
  const cases = fc.record({
    method: fc.constantFrom(...(Object.keys(MEMBERS) as (keyof typeof MEMBERS)[])),
    items: fc.array(item, { maxLength: 12 }),
    mode: fc.constantFrom('session', 'modern'),
    more: fc.record({ _meta: meta, ttlMs: fc.constant(5), nextCursor: fc.constant('c') }, { requiredKeys: [] }),
    atOnceCount: fc.integer({ min: 1, max: 4 }),
    spaced: fc.boolean(),
  });
  let changed = 0;
  fc.assert(
    fc.property(cases, ({ method, items, mode, more, atOnceCount, spaced }) => {
      const result = { ...more, [MEMBERS[method]]: items };
      const { reading, value, context } = prepare(method, result, spaced, mode as 'stateful');
      const whole: FilteredResult = filterResult(reading, value, context);
      const stepped = atOnce(filterInSteps(reading, value, context, atOnceCount));
      t.is(stepped.ok, whole.ok);
      if (!stepped.ok || !whole.ok) return t.deepEqual(stepped, whole) && undefined;
      t.deepEqual(JSON.parse(stepped.text), JSON.parse(whole.text));
      t.deepEqual(stepped.shown, whole.shown);
      if (stepped.text !== reading.text.slice(reading.span.members?.get('result')?.start)) changed++;
      return undefined;
    }),
    { numRuns: 2_000 },
  );
  t.true(changed > 100);
});

const LONG = '"'.repeat(500_000);
const HIDDEN = { 'ui/resourceUri': 'x:denied' };
const UI = { ui: { resourceUri: 'x:denied', more: LONG } };

for (const [what, method, result] of [
  ['an item', 'tools/call', { content: [{ type: 'text', text: LONG, _meta: HIDDEN }] }],
  ['a message', 'prompts/get', { messages: [{ role: 'user', content: { type: 'text', text: LONG, _meta: HIDDEN } }] }],
  ['the `_meta` of an item', 'tools/call', { content: [{ type: 'text', text: 'a', _meta: { ...HIDDEN, more: LONG } }] }],
  ['the `_meta` of a result', 'tools/call', { content: [], _meta: UI }],
  ['the `_meta` of a tool', 'tools/list', { tools: [{ name: 'ok', inputSchema: {}, _meta: UI }] }],
  ['completions', 'completion/complete', { completion: { values: ['denied', 'ok'], more: LONG } }],
] as const) {
  test(`${what} with a long text and a hidden name is written in steps`, (t) => {
    const { reading, value, context } = prepare(method, result);
    const steps = filterInSteps(reading, value, context);
    for (let pauses = 0; ; pauses++) {
      const step = steps.next();
      if (!step.done) continue;
      if (!step.value.ok) throw new Error(step.value.fault);
      t.true(pauses > 10);
      t.false(step.value.text.includes('denied'));
      t.true(step.value.text.includes(JSON.stringify(LONG)));
      return;
    }
  });
}

test('the changed parameters of a message that a target sends by itself are written in steps', (t) => {
  const steps = changedTexts({ messages: [], maxTokens: 1 }, { messages: [{ text: LONG }], maxTokens: 1 });
  let pauses = 0;
  for (let step = steps.next(); ; step = steps.next(), pauses++) {
    if (!step.done) continue;
    t.deepEqual(step.value, { messages: JSON.stringify([{ text: LONG }]) });
    break;
  }
  t.true(pauses > 10);
});

test('a template is expanded with many long completions in steps', (t) => {
  const values = Array.from({ length: 400 }, (_, index) => `${'é'.repeat(200)}${index}`);
  const { reading, value, context } = prepare('completion/complete', { completion: { values } });
  const steps = filterInSteps(reading, value, context);
  let pauses = 0;
  for (let step = steps.next(); ; step = steps.next(), pauses++) {
    if (!step.done) continue;
    t.true(step.value.ok);
    break;
  }
  t.true(pauses > 10);
});
