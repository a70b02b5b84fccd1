import test from 'ava';
import fc from 'fast-check';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { mostTextsInSteps } from '../../../src/engine/compile/texts.ts';

const mostTexts = (texts: readonly string[], length: number): number => atOnce(mostTextsInSteps(texts, length));

test('the number of texts in a name depends on how close to each other they can be', (t) => {
  const many = (text: (n: number) => string): string[] => Array.from({ length: 500 }, (_, n) => text(1_000 + n));
  t.is(
    mostTexts(
      many((n) => `_${n}_`),
      256,
    ),
    52,
    'the last character of one is the first of the next',
  );
  t.is(
    mostTexts(
      many((n) => `x${'y'.repeat(40)}${n}`),
      256,
    ),
    500,
    'only the beginnings of long texts are compared',
  );
  t.is(mostTexts(['a', 'ab', 'abc'], 2), 3);
  t.is(mostTexts(['', 'abcd', 'efgh', 'ijkl'], 8), 3);
  t.is(mostTexts([], 8), 0);
});

test('no name contains more of the texts', (t) => {
  const text = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 0, maxLength: 5 });
  const name = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(fc.uniqueArray(text, { maxLength: 12 }), name, (texts, within) => {
      return texts.filter((one) => within.includes(one)).length <= mostTexts(texts, within.length);
    }),
    { numRuns: 20_000 },
  );
  t.pass();
});
