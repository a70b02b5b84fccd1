import test from 'ava';
import fc from 'fast-check';
import { isObject, type JsonObject, readJsonText } from '../../../src/base/json/json.ts';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { filterInSteps, filterResult, RESULT_SPAN_DEPTH } from '../../../src/mcp/filter/filter.ts';
import type { FilteredResult, ResultContext } from '../../../src/mcp/filter/filter-parts.ts';
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
      const text = JSON.stringify({ jsonrpc: '2.0', id: 1, result }, null, spaced ? 1 : 0);
      const reading = readJsonText(text, { spanDepth: RESULT_SPAN_DEPTH });
      if (!reading.ok || !isObject(reading.value)) throw new Error('not readable');
      const operation = readOperation('stateful', method, { name: 'ok', uri: 'x:ok' });
      if ('code' in operation) throw new Error('no operation');
      const context: ResultContext = {
        mode: mode as 'stateful',
        method,
        params: { uri: 'x:ok' },
        operation,
        decide: (objects) => objects.map(({ resource_name }) => resource_name !== 'denied' && resource_name !== 'x:denied'),
        sealState: () => '',
        mayAsk: [],
        sealTask: null,
        tasks: new Map(),
      };
      const value = reading.value.result as JsonObject;
      const whole: FilteredResult = filterResult(reading, value, context);
      const stepped = atOnce(filterInSteps(reading, value, context, atOnceCount));
      t.is(stepped.ok, whole.ok);
      if (!stepped.ok || !whole.ok) return t.deepEqual(stepped, whole) && undefined;
      t.deepEqual(JSON.parse(stepped.text), JSON.parse(whole.text));
      t.deepEqual(stepped.shown, whole.shown);
      if (stepped.text !== text.slice(reading.span.members?.get('result')?.start)) changed++;
      return undefined;
    }),
    { numRuns: 2_000 },
  );
  t.true(changed > 100);
});
