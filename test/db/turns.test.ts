import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { starts } from '../../src/base/turns/caller-turns.ts';
import { createRestingTurns, createTurns, eachInTurn } from '../../src/db/turns.ts';

/** Makes work that reports when it begins, and that the test ends. */
function manualWork(begun: string[]) {
  const ends = new Map<string, () => void>();
  return {
    of: (name: string) => () => {
      begun.push(name);
      return new Promise<string>((resolve) => ends.set(name, () => resolve(name)));
    },
    end: (name: string) => ends.get(name)?.(),
  };
}

test('one read runs at a time, and owners take turns', async (t) => {
  const inTurn = createTurns();
  const begun: string[] = [];
  const work = manualWork(begun);
  const reads = ['a1', 'a2', 'a3', 'b1'].map((name) => inTurn(name.charAt(0), work.of(name)));
  t.deepEqual(begun, ['a1']);
  const order = ['a1', 'a2', 'b1', 'a3'];
  for (const [index, name] of order.entries()) {
    t.deepEqual(begun, order.slice(0, index + 1));
    work.end(name);
    await reads[['a1', 'a2', 'a3', 'b1'].indexOf(name)];
    await Promise.resolve();
  }
  t.is(await inTurn('c', async () => 'free again'), 'free again');
});

test('a failed read passes its turn to the next', async (t) => {
  const inTurn = createTurns();
  const failing = inTurn('a', () => Promise.reject(new Error('lost')));
  const next = inTurn('b', async () => 'read');
  await t.throwsAsync(failing, { message: 'lost' });
  t.is(await next, 'read');
});

test('an owner with too many waiting reads is refused, and no other owner is', async (t) => {
  const inTurn = createTurns();
  const work = manualWork([]);
  const first = inTurn('a', work.of('first'));
  const waiting = Array.from({ length: 100 }, () => inTurn('a', async () => 'read'));
  await t.throwsAsync(
    inTurn('a', async () => 'read'),
    { code: 'too_many_requests' },
  );
  const other = inTurn('b', async () => 'read');
  work.end('first');
  t.deepEqual(await Promise.all([first, other, ...waiting]), ['first', ...Array.from({ length: 101 }, () => 'read')]);
});

test('an export lets others read between its items, and ends its source when its reader leaves', async (t) => {
  const inTurn = createTurns();
  const events: string[] = [];
  async function* source(): AsyncGenerator<number> {
    try {
      for (let item = 0; ; item++) yield item;
    } finally {
      events.push('ended');
    }
  }
  for await (const item of eachInTurn(inTurn, 'export', source())) {
    events.push(`item ${item}`);
    if (item === 2) break;
    await inTurn('other', async () => events.push('page'));
  }
  t.deepEqual(events, ['item 0', 'page', 'item 1', 'page', 'item 2', 'ended']);
});

test('between two items that are in memory, the event loop takes a turn', async (t) => {
  async function* source(): AsyncGenerator<number> {
    yield* [1, 2, 3];
  }
  const inTurn = createTurns();
  const events: string[] = [];
  const read = async (name: string): Promise<void> => {
    for await (const item of eachInTurn(inTurn, name, source())) {
      events.push(`${name}${item}`);
      setImmediate(() => events.push('request'));
    }
  };
  await Promise.all([read('a'), read('b')]);
  t.deepEqual(events.slice(0, 6), ['a1', 'request', 'b1', 'request', 'a2', 'request']);
});

test('beside others, the next long answer begins after a rest, also if the one before failed; its caller does not wait for the rest', async (t) => {
  const inTurn = createRestingTurns();
  const present = setInterval(() => {
    for (const caller of ['ann', 'ben']) starts.run(caller, () => undefined);
  }, 5);
  t.teardown(() => clearInterval(present));
  const times: number[] = [];
  const long = async (fails: boolean): Promise<number> => {
    times.push(performance.now());
    await sleep(40);
    times.push(performance.now());
    if (fails) throw new Error('lost');
    return performance.now();
  };
  const all = [inTurn('a', () => long(false)), inTurn('b', () => long(true)), inTurn('a', () => long(false))];
  const ended = await all[0];
  t.is(times.length, 2, `${ended}`);
  await t.throwsAsync(async () => all[1], { message: 'lost' });
  t.is(times.length, 4);
  await all[2];
  const [, end1 = 0, begin2 = 0, end2 = 0, begin3 = 0] = times;
  t.true(begin2 - end1 > 70 && begin3 - end2 > 70, times.join());
});

test.serial('who asks for long answers counts as a caller: pages are asked for without a token', async (t) => {
  // The rests do not keep the process alive.
  const alive = setInterval(() => undefined, 1_000);
  const inTurn = createRestingTurns();
  const times: number[] = [];
  const long = async (): Promise<void> => {
    times.push(performance.now());
    await sleep(40);
    times.push(performance.now());
  };
  await Promise.all(['ann', 'ben'].map((name) => inTurn(name, long)));
  clearInterval(alive);
  const [, end = 0, begin = 0] = times;
  t.true(begin - end > 70, times.join());
});
