import test from 'ava';
import { createRecent } from '../../src/base/kept.ts';

test('a map of recent entries holds no more than its weight, and keeps what is found again', (t) => {
  const kept = createRecent<string, string>(20, (key, value) => key.length + value.length);
  const held = (): string[] => ['a', 'b', 'c', 'd', 'e'].filter((key) => kept.get(key) !== undefined);
  for (const key of ['a', 'b']) kept.set(key, 'xxx');
  t.deepEqual(held(), ['a', 'b']);
  kept.set('c', 'xxx');
  kept.set('a', 'yyy');
  kept.set('d', 'xxx');
  t.is(kept.get('b'), undefined, 'neither set nor found for the longest time');
  t.is(kept.get('a'), 'yyy');
  for (let i = 0; i < 100; i++) kept.set('a', 'zzz');
  t.is(kept.get('d'), 'xxx', 'an entry that is set again takes no more room');
  kept.set('e', 'x'.repeat(1_000));
  t.is(kept.get('e')?.length, 1_000, 'one entry may weigh more');
  kept.set('c', 'xxx');
  kept.set('b', 'xxx');
  kept.set('d', 'xxx');
  t.is(kept.get('e'), undefined);
});
