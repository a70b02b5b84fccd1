/** Turns in which the work of callers begins. */
import test from 'ava';
import { createStarts, inTurnOf } from '../../src/base/starts.ts';

/** Turns of an event loop; each takes `ms`. */
function loop(ms: () => number) {
  let at = 0;
  let next: (() => void)[] = [];
  return {
    clock: { now: () => at, later: (then: () => void) => void next.push(then) },
    /** False: nothing waits for a further turn. */
    turn(): boolean {
      const now = next;
      next = [];
      at += ms();
      for (const then of now) then();
      return now.length > 0;
    },
  };
}

test('the work of a caller begins before most of the work that another caller has brought earlier', (t) => {
  const { clock, turn } = loop(() => 1);
  const starts = createStarts(clock);
  const begun: string[] = [];
  for (let i = 0; i < 200; i++) starts.run('greedy', () => begun.push('greedy'));
  const before = begun.length;
  starts.run('other', () => begun.push('other'));
  while (turn());
  t.is(begun.length, 201);
  t.true(begun.indexOf('other') <= before + 1, `${begun.indexOf('other')} of 200 began before`);
});

test('if turns of the event loop take long, one piece of work begins in each', (t) => {
  const { clock, turn } = loop(() => 10);
  const starts = createStarts(clock);
  let begun = 0;
  for (let i = 0; i < 100; i++) starts.run('a caller', () => begun++);
  for (let i = 0; i < 5; i++) turn();
  const before = begun;
  for (let i = 0; i < 10; i++) turn();
  t.is(begun - before, 10);
});

test('if turns of the event loop are short, several pieces of work begin in each', (t) => {
  const { clock, turn } = loop(() => 0.1);
  const starts = createStarts(clock);
  let begun = 0;
  for (let i = 0; i < 1_000; i++) starts.run('a caller', () => begun++);
  for (let i = 0; i < 20; i++) turn();
  const before = begun;
  for (let i = 0; i < 10; i++) turn();
  t.is(begun - before, 80);
});

test('no more work of a caller is under way than its limit, and others do not wait for it', (t) => {
  const { clock, turn } = loop(() => 0.1);
  const starts = createStarts(clock);
  const ends: (() => void)[] = [];
  for (let i = 0; i < 10; i++) starts.run('a caller', (end) => ends.push(end), 3);
  while (turn());
  t.is(ends.length, 3);
  let other = 0;
  starts.run('other', () => other++, 3);
  t.is(other, 1);
  ends[0]?.();
  ends[0]?.();
  while (turn());
  t.is(ends.length, 4, 'an end counts once');
  for (let i = 1; i < 10; i++) {
    ends[i]?.();
    while (turn());
  }
  t.is(ends.length, 10);
});

test('callers whose work has begun or ended are forgotten', (t) => {
  const { clock, turn } = loop(() => 0.1);
  const starts = createStarts(clock);
  for (let i = 0; i < 1_000; i++) {
    starts.run(`address ${i}`, () => undefined);
    starts.run(`token ${i}`, (end) => end(), 4);
  }
  while (turn());
  t.is(starts.size, 0);
});

test('work that fails ends', async (t) => {
  await t.throwsAsync(
    inTurnOf('failing', 1, () => Promise.reject(new Error('failed'))),
    { message: 'failed' },
  );
  t.is(await inTurnOf('failing', 1, () => Promise.resolve(1)), 1);
});
