import test from 'ava';
import { uuidv7 } from '../../src/base/ids.ts';

const VERSION_7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

test('an id is a UUID of version 7 with the time at which it was made', (t) => {
  const before = Date.now();
  const id = uuidv7();
  t.regex(id, VERSION_7);
  const ms = Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
  t.true(before <= ms && ms <= Date.now() + 1, id);
});

test('each id is greater than the one before, also within a millisecond, and after the clock was set back', (t) => {
  const at = Date.now() + 60_000;
  const ids = Array.from({ length: 5_000 }, (_, i) => uuidv7(i < 4_000 ? at : at - i));
  t.deepEqual(ids, [...ids].sort());
  t.is(new Set(ids).size, ids.length);
  t.true(ids.every((id) => VERSION_7.test(id)));
});

test('if the clock was ahead and is set right, ids have the right time, and none comes twice', (t) => {
  const timeOf = (id: string) => Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
  const now = Date.now() + 3_600_000;
  const made = (at: number) => Array.from({ length: 1_000 }, () => uuidv7(at));
  const ids = [now, now + 8 * 3_600_000, now, now + 8 * 3_600_000, now].map(made);
  t.deepEqual(
    ids.map(([first = '']) => timeOf(first) - now),
    [0, 8 * 3_600_000, 0, 8 * 3_600_000, 0],
  );
  t.is(new Set(ids.flat()).size, 5_000);
  for (const some of ids) t.deepEqual(some, [...some].sort());
  t.is(timeOf(uuidv7(now - 59_000)), now, 'a small step back keeps the order');
});

test('nobody can guess the next id from the last', (t) => {
  const tails = Array.from({ length: 2_000 }, () => uuidv7().slice(-10));
  t.is(new Set(tails).size, tails.length);
  for (let digit = 0; digit < 10; digit++) t.is(new Set(tails.map((tail) => tail[digit])).size, 16);
});
