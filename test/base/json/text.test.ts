import test from 'ava';
import fc from 'fast-check';
import type { JsonValue } from '../../../src/base/json/json.ts';
import { jsonText } from '../../../src/base/json/text.ts';

/** Returns the text and how often the writer paused. */
function write(value: JsonValue): readonly [string, number] {
  const steps = jsonText(value);
  for (let pauses = 0; ; pauses++) {
    const step = steps.next();
    if (step.done === true) return [step.value, pauses];
  }
}

test('a value is written in steps as JSON.stringify writes it', (t) => {
  const strange = fc.string({ unit: fc.constantFrom('a', '"', '\\', '\n', '\u4e2d', '\ud83d\ude00', '\ud83d', '\ude00') });
  const long = fc.tuple(strange, fc.integer({ min: 1, max: 20_000 })).map(([unit, count]) => unit.repeat(count));
  const value = fc.oneof(fc.jsonValue(), long, fc.dictionary(strange, long), fc.array(long, { maxLength: 3 }));
  fc.assert(
    fc.property(value, (some) => write(some as JsonValue)[0] === JSON.stringify(some)),
    { numRuns: 200 },
  );
  t.pass();
});

test('the writer pauses after each part of a long string, and after many values or texts', (t) => {
  t.true(write({ a: ['x'.repeat(1_000), 1, null, true, {}, []] })[1] <= 1);
  t.true(Array.from({ length: 1_000 }, () => write('x'.repeat(1_000))[1]).reduce((sum, some) => sum + some) >= 30);
  const [text, pauses] = write([{ a: '"'.repeat(1_000_000) }]);
  t.is(text.length, 2_000_000 + '[{"a":""}]'.length);
  t.true(pauses >= 30);
  t.true(write(Array.from({ length: 100_000 }, () => [1]))[1] >= 150);
});
