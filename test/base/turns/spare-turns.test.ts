import test from 'ava';
import { createSpareTurns } from '../../../src/base/turns/spare-turns.ts';

/** A thread whose time passes only here. */
function thread(mostAtOnce = 1) {
  let [time, active] = [0, 0];
  const timers: { at: number; then: () => void }[] = [];
  const limits = { mostUnderWay: 2, longestRestMs: 25, mostWaiting: 100, mostAtOnce };
  const turns = createSpareTurns(limits, {
    now: () => time,
    busy: () => active,
    later: (ms, then) => void timers.push({ at: time + ms, then }),
  });
  return {
    turns,
    /** Lets milliseconds pass one by one. `busy`: how much of each the thread works. */
    async pass(ms: number, busy: number): Promise<void> {
      for (let i = 0; i < ms; i++) {
        time++;
        active += busy;
        const all = timers.splice(0);
        timers.push(...all.filter(({ at }) => at > time));
        for (const { then } of all.filter(({ at }) => at <= time)) then();
        await new Promise(setImmediate);
      }
    },
  };
}

const begun = (turns: ReturnType<typeof createSpareTurns>, order: string[], key: string, isGivenUp = () => false, rank = 0) =>
  turns.come(key, isGivenUp, rank).then((end) => {
    order.push(end === null ? `${key} refused` : key);
    return end;
  });

test('callers take turns, and one that brings too much is refused', async (t) => {
  const { turns, pass } = thread();
  const order: string[] = [];
  const ends = Array.from({ length: 102 }, () => begun(turns, order, 'flood'));
  ends.push(begun(turns, order, 'other'));
  for (const end of ends) void end.then((over) => over?.());
  await pass(20, 0);
  t.deepEqual(order.slice(0, 4), ['flood', 'flood refused', 'flood', 'other']);
});

test('work begins more slowly while the thread is busy, and never stops', async (t) => {
  const { turns, pass } = thread();
  const order: string[] = [];
  for (let i = 0; i < 40; i++) void begun(turns, order, 'a').then((end) => end?.());
  await pass(100, 0.9);
  t.true(order.length >= 4 && order.length <= 6, `${order.length}`);
  await pass(10, 0);
  t.true(order.length >= 13, `${order.length}`);
});

test('more and more short work begins together while the thread has time to spare, and less when it has none', async (t) => {
  const { turns, pass } = thread(4);
  const order: string[] = [];
  for (let i = 0; i < 60; i++) void begun(turns, order, 'a').then((end) => end?.());
  await pass(1, 0);
  t.is(order.length, 1 + 3);
  await pass(2, 0);
  t.is(order.length, 1 + 3 + 4 + 4);
  await pass(75, 1);
  t.is(order.length, 12 + 2 + 1 + 1, 'after each rest half as much');
});

test('work that does not end lets other work begin, more slowly, and soon counts no longer', async (t) => {
  const { turns, pass } = thread();
  const order: string[] = [];
  for (let i = 0; i < 2; i++) void begun(turns, order, 'slow');
  for (let i = 0; i < 40; i++) void begun(turns, order, 'other').then((end) => end?.());
  await pass(20, 0);
  t.is(order.length, 2);
  await pass(20, 0);
  t.is(order.length, 3, 'after the longest rest');
  await pass(20, 0);
  t.true(order.length > 10, `${order.length}`);
});

test('every other turn is that of the lowest rank, and the others go in order', async (t) => {
  const { turns, pass } = thread();
  const order: string[] = [];
  for (const [key, rank] of [
    ['a', 0],
    ['many', 300],
    ['more', 900],
    ['many', 301],
    ['few', 2],
    ['fewer', 1],
    ['few', 3],
  ] as const)
    void begun(turns, order, key, () => false, rank).then((end) => end?.());
  await pass(20, 0);
  t.deepEqual(order, ['a', 'fewer', 'many', 'few', 'more', 'few', 'many']);
});

test('work that its callers have given up takes no turn', async (t) => {
  const { turns, pass } = thread();
  const order: string[] = [];
  let isGone = false;
  void begun(turns, order, 'first').then((end) => end?.());
  for (let i = 0; i < 500; i++) void begun(turns, order, `gone ${i % 50}`, () => isGone);
  void begun(turns, order, 'other');
  isGone = true;
  await pass(2, 0);
  t.deepEqual(
    order.filter((key) => !key.endsWith('refused')),
    ['first', 'other'],
  );
  t.is(order.length, 502);
});
