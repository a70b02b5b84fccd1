import test from 'ava';
import { createLane as create, type LaneClock } from '../../../src/base/turns/lane.ts';

/** A lane in which no work is light, but where a test says so. */
function createLane(clock: LaneClock) {
  const lane = create(clock);
  const run = (key: string, step: () => boolean, mayBegin = true): Promise<void> => lane.run(key, step, mayBegin, false);
  return Object.defineProperty({ run, rest: lane.rest, waiting: 0 }, 'waiting', { get: () => lane.waiting });
}

/** A clock that moves only by the steps of the work and by what waits on it. */
function manualClock() {
  let time = 0;
  const waiting: { at: number; then: () => void }[] = [];
  const clock: LaneClock = {
    now: () => time,
    later: (ms, then) => void waiting.push({ at: time + ms, then }),
    soon: (then) => void waiting.unshift({ at: time, then }),
  };
  return {
    clock,
    get time() {
      return time;
    },
    spend: (ms: number) => {
      time += ms;
    },
    settleOne(): void {
      const next = waiting.shift();
      time = Math.max(time, next?.at ?? time);
      next?.then();
    },
    /** Runs everything that waits, and returns how long the lane rested. */
    settle() {
      let rested = 0;
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
        rested += Math.max(0, next.at - time);
        time = Math.max(time, next.at);
        next.then();
      }
      return rested;
    },
  };
}

function work(steps: number, each: () => void): () => boolean {
  let done = 0;
  return () => {
    each();
    return ++done === steps;
  };
}

/** A lane that notes whose steps it runs. Each takes a whole slice. */
function ordered() {
  const time = manualClock();
  const lane = createLane(time.clock);
  const order: string[] = [];
  const run = (key: string, name: string, steps: number) =>
    lane.run(
      key,
      work(steps, () => {
        order.push(name);
        time.spend(2);
      }),
    );
  return { time, lane, order, run };
}

test('owners of long work take turns, slice by slice, however much work one of them has', async (t) => {
  const { time, lane, order, run } = ordered();
  const all = [run('greedy', 'g1', 3), run('greedy', 'g2', 3), run('greedy', 'g3', 3), run('ann', 'a', 2), run('bob', 'b', 1)];
  time.settle();
  await Promise.all(all);
  t.is(order.join(' '), 'g1 g1 a b g1 a g2 g2 g2 g3 g3 g3');
  t.is(lane.waiting, 0);
});

test('a user who reads from many targets has as many turns as the others', async (t) => {
  const { time, order, run } = ordered();
  const greedy = [1, 2, 3].map((target) => run(`greedy at ${target}`, `g${target}`, 2));
  await Promise.all([...greedy, run('ann at 1', 'a', 3), time.settle()]);
  t.is(order.join(' '), 'g1 g1 a g2 a g3 a g2 g3');
});

test('long work leaves two thirds of the time to others', async (t) => {
  const time = manualClock();
  const lane = createLane(time.clock);
  const all = ['a', 'b', 'c'].map((key) =>
    lane.run(
      key,
      work(1_000, () => time.spend(0.5)),
    ),
  );
  const rested = time.settle();
  await Promise.all(all);
  t.is(time.time - rested, 1_500);
  t.true(rested >= 2 * 1_500 - 4);
});

test('a slice takes at most its time and one more step', async (t) => {
  const time = manualClock();
  const slices: number[] = [];
  const lane = createLane({
    ...time.clock,
    later: (ms, then) =>
      time.clock.later(ms, () => {
        const before = time.time;
        then();
        slices.push(time.time - before);
      }),
  });
  const all = lane.run(
    'a',
    work(100, () => time.spend(0.75)),
  );
  time.settle();
  await all;
  t.true(slices.length > 10 && slices.every((took) => took < 2 + 0.75));
});

test('short work ends at once while the lane is free', async (t) => {
  const time = manualClock();
  const lane = createLane(time.clock);
  let over = false;
  const run = lane.run(
    'a',
    work(2, () => time.spend(0.5)),
  );
  over = lane.waiting === 0;
  await run;
  t.true(over);
});

test('work that throws rejects with its error, and other work continues', async (t) => {
  const time = manualClock();
  const lane = createLane(time.clock);
  const failing = lane.run('a', () => {
    throw new Error('broken');
  });
  const queued = lane.run(
    'b',
    work(3, () => time.spend(2)),
  );
  const later = lane.run('b', () => {
    throw new Error('broken later');
  });
  time.settle();
  await t.throwsAsync(failing, { message: 'broken' });
  await t.throwsAsync(later, { message: 'broken later' });
  await t.notThrowsAsync(queued);
});

test('work that may not begin at once waits for its turn, and the lane rests for what is done after a turn', (t) => {
  const manual = manualClock();
  const lane = createLane(manual.clock);
  let begun = 0;
  const begin = (): boolean => {
    begun++;
    return true;
  };
  void lane.run('a', begin, false);
  t.is(begun, 0);
  manual.settle();
  t.is(begun, 1);
  void lane.run('a', begin, false);
  manual.spend(9);
  lane.rest(9);
  t.true(manual.settle() >= 18);
  t.is(begun, 2);
});

test('work that a step brings is done, also if its owner has more work that waits', async (t) => {
  const time = manualClock();
  const lane = createLane(time.clock);
  const done: string[] = [];
  const run = (key: string, name: string, step = (): void => undefined) =>
    lane.run(key, () => {
      step();
      time.spend(2);
      done.push(name);
      return true;
    });
  const brought: Promise<void>[] = [];
  const bring = (): void => {
    for (const key of ['ann', 'bob']) brought.push(run(key, `brought for ${key}`));
  };
  const all = [run('bob', 'first'), run('ann', 'bringing', bring), run('ann', 'waiting')];
  time.settle();
  await Promise.all(all);
  t.deepEqual(done, ['first', 'bringing', 'brought for bob', 'waiting', 'brought for ann']);
  await Promise.all(brought);
});

test('short pieces share a slice, but nothing shares it with work that begins after it', async (t) => {
  const time = manualClock();
  let turns = 0;
  const lane = createLane({
    ...time.clock,
    later: (ms, then) =>
      time.clock.later(ms, () => {
        turns++;
        then();
      }),
  });
  const short = (): boolean => {
    time.spend(0.25);
    return true;
  };
  // The first takes the lane, so that the others wait.
  const all = Array.from({ length: 17 }, (_, at) => lane.run(`owner ${at % 4}`, short));
  const rested = time.settle();
  await Promise.all(all);
  t.is(turns, 2);
  t.true(rested >= 2 * (0.25 + 2));
  turns = 0;
  const leads = ['ann', 'bob', 'eve'].map((key) => lane.run(key, () => true, false));
  time.settle();
  await Promise.all(leads);
  t.is(turns, 3);
});

test('owners who have used little lately do not wait for the turns of others, until they have used more', async (t) => {
  const time = manualClock();
  const lane = create(time.clock);
  const ended: string[] = [];
  const run = (key: string, steps: number, each: number) => {
    const step = work(steps, () => time.spend(each));
    return lane.run(key, () => {
      const isOver = step();
      if (isOver) ended.push(`${key} ${time.time}`);
      return isOver;
    });
  };
  const greedy = Array.from({ length: 4 }, () => run('greedy', 500, 0.5));
  // It ends soon, and what is longer than a slice waits for its turns.
  const all = [run('ann', 2, 0.5), run('bob', 20, 0.5), run('ann', 1, 0.5)];
  const waiting = lane.waiting;
  time.settle();
  await Promise.all([...greedy, ...all]);
  t.is(waiting, 3);
  t.deepEqual(
    ended.map((name) => name.split(' ')[0]),
    ['ann', 'ann', 'bob', 'greedy', 'greedy', 'greedy', 'greedy'],
  );
  const [annAt, , bobAt] = ended.map((name) => Number(name.split(' ')[1]));
  t.true((annAt ?? 0) < 10, `${annAt}`);
  t.true((bobAt ?? 0) > 20, `${bobAt}`);
});

test('all light work together takes a limited part of the time', async (t) => {
  const time = manualClock();
  const lane = create(time.clock);
  let heavy = 0;
  void lane.run('greedy', () => {
    time.spend(0.5);
    heavy++;
    return heavy > 5_000;
  });
  let light = 0;
  const owners = Array.from({ length: 10 }, (_, at) => `owner ${at}`);
  const again = (key: string): Promise<void> =>
    lane
      .run(key, () => {
        time.spend(1);
        light++;
        return true;
      })
      .then(() => (heavy > 2_000 ? undefined : again(key)));
  const all = Promise.all(owners.map(again));
  for (let at = 0; at < 20_000 && heavy <= 2_000; at++) {
    time.settleOne();
    await Promise.resolve();
    await Promise.resolve();
  }
  t.true(heavy > 2_000, 'long work goes on');
  time.settle();
  t.true(light > 100);
  void all;
});

test('a user who has used much of the lane at one target has no light work at another', (t) => {
  const time = manualClock();
  const lane = create(time.clock);
  void lane.run(
    'ann at one',
    work(1e6, () => time.spend(0.5)),
  );
  while (time.time < 1_000) time.settleOne();
  const done: string[] = [];
  for (const key of ['ann at two', 'cy at two'])
    void lane.run(key, () => {
      done.push(key);
      return true;
    });
  time.settleOne();
  t.deepEqual(done, ['cy at two']);
});

test('owners of light work take turns, also if each turn has time for one of them only', (t) => {
  const time = manualClock();
  const lane = create(time.clock);
  void lane.run(
    'heavy',
    work(1e6, () => time.spend(0.5)),
  );
  time.settleOne();
  const done: string[] = [];
  for (const key of ['a', 'b', 'c', 'd', 'a', 'b', 'c', 'd'])
    void lane.run(key, () => {
      time.spend(2.5);
      done.push(key);
      return true;
    });
  while (done.length < 8) time.settleOne();
  t.is(done.join(''), 'abcdabcd');
});
