import test from 'ava';
import { createUse } from '../../../src/base/work/use.ts';

function start() {
  let now = 1_000;
  const use = createUse(() => now);
  const pass = (ms: number): void => {
    now += ms;
  };
  const run = (by: string, ms: number): void => {
    use.arrive(by);
    const end = use.begin(by);
    pass(ms);
    end();
  };
  return { use, run, pass };
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

test('the longest job of a caller counts for a minute', (t) => {
  const { use, run, pass } = start();
  t.false(use.areLong('a', 'b'));
  run('b', 300);
  run('a', 250);
  t.false(use.areLong('a', 'b'));
  run('a', 251);
  t.true(use.areLong('a', 'b'));
  // Short jobs in between change nothing.
  run('b', 1);
  use.rest();
  pass(59_000);
  t.true(use.areLong('a', 'b'));
  pass(1_000);
  t.false(use.areLong('a', 'b'));
});

test('after the longest job no longer counts, the longest of the last minute does', (t) => {
  const { use, run, pass } = start();
  run('a', 9_000);
  for (let i = 0; i < 7; i++) {
    pass(7_000);
    run('a', 1_000);
  }
  pass(5_000);
  run('b', 1_000);
  t.true(use.areLong('a', 'b'));
});

test('the start of a thread does not make a job long', (t) => {
  const { use, run, pass } = start();
  run('a', 1_000);
  const end = use.begin('b', true);
  pass(1_000);
  end();
  t.false(use.areLong('a', 'b'));
});

test('a caller whose job is expected to be long has long jobs', (t) => {
  const { use, run } = start();
  run('a', 1_000);
  use.expect('b', 900);
  use.expect('c', 250);
  t.true(use.areLong('a', 'b'));
  t.false(use.areLong('a', 'c'));
});

test('jobs that take at most half as long as those of the other caller are not long', (t) => {
  const { use, run } = start();
  run('a', 1_000);
  run('b', 2_000);
  run('c', 1_999);
  for (const [one, other] of [
    ['a', 'b'],
    ['b', 'a'],
  ] as const)
    t.false(use.areLong(one, other));
  t.true(use.areLong('a', 'c'));
  t.true(use.areLong('c', 'a'));
});
