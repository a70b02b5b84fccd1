import test from 'ava';
import { gathered, turnEnd } from '../../src/base/promises.ts';

/** Counts one more in each of this many turns of the event loop, from now on. */
function arrivals(turns: number): () => number {
  let count = 1;
  const arrive = (left: number): void => {
    if (left === 0) return;
    setImmediate(() => {
      count++;
      arrive(left - 1);
    });
  };
  arrive(turns);
  return () => count;
}

test('what arrives alone waits for one turn of the event loop', async (t) => {
  const turns = arrivals(10);
  await gathered(() => 1);
  t.is(turns(), 2);
});

test('what arrives in each of the next turns comes along', async (t) => {
  const count = arrivals(2);
  await gathered(count);
  t.is(count(), 3);
});

test('an endless stream of arrivals delays nobody for more than four turns', async (t) => {
  const count = arrivals(100);
  await gathered(count);
  t.is(count(), 5);
});

test('the ends of one turn are one promise, which no later turn gets', async (t) => {
  const first = turnEnd();
  await Promise.resolve();
  t.is(turnEnd(), first);
  await first;
  t.not(turnEnd(), first);
});
