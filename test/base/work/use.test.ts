import test from 'ava';
import { createUse } from '../../../src/base/work/use.ts';

function start() {
  let now = 1_000;
  const use = createUse(() => now);
  const run = (by: string, ms: number): void => {
    use.arrive(by);
    const end = use.begin(by);
    now += ms;
    end();
  };
  return { use, run };
}

test('the caller who has used least time has the next turn, and equal callers keep their order', (t) => {
  const { use, run } = start();
  run('a', 30);
  run('b', 10);
  t.deepEqual(use.sorted(['a', 'b']), ['b', 'a']);
  run('b', 20);
  t.deepEqual(use.sorted(['b', 'a']), ['b', 'a']);
  t.deepEqual(use.sorted(['a', 'b']), ['a', 'b']);
});

test('time without jobs does not count in favour of a caller', (t) => {
  const { use, run } = start();
  run('a', 1);
  for (let i = 0; i < 10; i++) run('b', 100);
  use.arrive('a');
  // Not ten turns before b, but one.
  t.deepEqual(use.sorted(['b', 'a']), ['a', 'b']);
  run('a', 101);
  t.deepEqual(use.sorted(['b', 'a']), ['b', 'a']);
});

test('when there was nothing to do, nobody has used anything', (t) => {
  const { use, run } = start();
  run('a', 100);
  use.rest();
  t.deepEqual(use.sorted(['a', 'b']), ['a', 'b']);
});
