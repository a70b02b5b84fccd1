import test from 'ava';
import { inOrder } from '../../../src/audit/search/recorded-store.ts';
import { atOnce, joinInSlices, partsOf, sortedInSteps } from '../../../src/base/turns/slices.ts';
import { countTurns } from '../../support/turns.ts';

test('items are sorted as at once, whatever their number, and equal items keep their order', (t) => {
  for (const count of [0, 1, 2, 127, 128, 129, 300, 2_000]) {
    const items = Array.from({ length: count }, (_, at) => ({ key: (at * 7_919) % 97, at }));
    const sorted = atOnce(sortedInSteps(items, (a, b) => a.key < b.key));
    t.deepEqual(
      sorted,
      [...items].sort((a, b) => a.key - b.key),
      String(count),
    );
  }
});

test('other work runs while many long names of a caller are put in order', async (t) => {
  const long = 'v'.repeat(1_900);
  const object = (at: number) =>
    ({ target_id: 'a', resource_type: 'resource', resource_name: `file:///${long}${(at * 7_919) % 9_973}` }) as const;
  const objects = Array.from({ length: 10_000 }, (_, at) => object(at));
  const turns = countTurns();
  const ordered = await inOrder(objects);
  const taken = turns();
  t.is(ordered.length, 9_973, 'each once');
  t.true(taken > 5, String(taken));
});

test('pieces of work that follow each other share a slice', async (t) => {
  /** Keeps the thread busy for less than a slice. */
  function* busy(): Generator<string, undefined> {
    const until = performance.now() + 4;
    while (performance.now() < until);
    yield 'x';
  }
  await new Promise((resolve) => setTimeout(resolve, 10));
  await joinInSlices(busy());
  const turns = countTurns();
  for (let piece = 0; piece < 20; piece++) await joinInSlices(busy());
  const taken = turns();
  t.true(taken >= 8, `${taken} turns in 80 ms`);
});

test('a text is split into parts without cutting a character in two', (t) => {
  const text = 'a\u{1f600}'.repeat(50);
  for (let length = 2; length < 10; length++) {
    const parts = [...partsOf([text, '', text], length)];
    t.is(parts.join(''), text + text);
    t.true(parts.every((part) => part.length > 0 && part.length <= length && part.isWellFormed()));
  }
});
