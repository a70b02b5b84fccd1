import test from 'ava';
import type { JsonValue } from '../../src/base/json/json.ts';
import { atOnce } from '../../src/base/turns/slices.ts';
import { look, type Sight, survey, visibleAsked, visibleBlock, visibleMessage } from '../../src/protocol/visible.ts';

const LINK = { type: 'resource_link', uri: 'file:///secret', name: 'a' };
const POINTER = { type: 'text', text: 'x', _meta: { ui: { resourceUri: 'file:///secret' } } };

test('an array where MCP has an object is hidden, because a client might look into it', (t) => {
  const seen = (walk: (sight: Sight) => unknown): string =>
    JSON.stringify(atOnce(look(walk, (objects) => objects.map(() => true)))?.result) ?? '';
  for (const hidden of [LINK, POINTER]) {
    const nested: readonly JsonValue[] = [[hidden], [[hidden]], [[], [hidden, 'text']]];
    for (const value of nested) {
      const walks: Readonly<Record<string, (sight: Sight) => unknown>> = {
        block: (sight) => visibleBlock(value, sight),
        content: (sight) => visibleBlock({ type: 'tool_result', content: [value, 'kept'] }, sight),
        resource: (sight) => visibleBlock({ type: 'resource', resource: value }, sight),
        message: (sight) => visibleMessage(value, sight),
        'content of a message': (sight) => visibleMessage({ role: 'user', content: [value] }, sight),
        messages: (sight) => atOnce(visibleAsked({ messages: [value] }, sight)),
        tools: (sight) => atOnce(visibleAsked({ tools: [value] }, sight)),
      };
      for (const [where, walk] of Object.entries(walks))
        t.false(seen(walk).includes('secret'), `${where} ${JSON.stringify(value)}`);
      t.true(seen((sight) => visibleBlock({ type: 'tool_result', content: [value, 'kept'] }, sight)).includes('kept'));
    }
  }
});

test('a type that is a link up to a NUL is a link, because a client in C reads it so', (t) => {
  const of = (type: string) =>
    atOnce(
      look(
        (sight) => visibleBlock({ ...LINK, type }, sight),
        (objects) => objects.map(() => false),
      ),
    );
  for (const type of ['resource_link', 'resource_link\0', 'resource_link\0x']) t.is(of(type)?.result, undefined, type);
  t.truthy(of('text')?.result);
});

test('what a target asks is walked with a pause between messages and between tools', (t) => {
  const params = { messages: Array.from({ length: 20 }, () => POINTER), tools: Array.from({ length: 20 }, () => POINTER) };
  const steps = survey((sight) => visibleAsked(params, sight));
  let pauses = 0;
  for (let step = steps.next(); ; step = steps.next(), pauses++) {
    if (!step.done) continue;
    t.deepEqual(step.value?.looked.result, params);
    break;
  }
  t.is(pauses, 38);
});
