/** Turns in which the work of callers begins. */
import test from 'ava';
import { createStarts, inTurnOf, partInTurnOf, turnToCall } from '../../../src/base/turns/caller-turns.ts';

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

/** Brings work of two callers for some turns, and returns how much of one of them begins in ten further turns. */
function begunBeside(others: boolean, turnMs: number): number {
  const { clock, turn } = loop(() => turnMs);
  const starts = createStarts(clock);
  let begun = 0;
  for (let i = 0; i < 20_000; i++) starts.run('a caller', () => begun++);
  const go = (): void => {
    if (others) {
      starts.run('other', () => undefined);
      starts.run('a caller', () => begun++);
    }
    turn();
  };
  for (let i = 0; i < 200; i++) go();
  const before = begun;
  for (let i = 0; i < 10; i++) go();
  return begun - before;
}

test('if turns of the event loop take long, one piece of work of each caller begins in each', (t) => {
  t.is(begunBeside(true, 10), 10);
});

test('if turns of the event loop are short, several pieces of work of each caller begin in each', (t) => {
  t.is(begunBeside(true, 0.1), 40);
});

test('more work of a caller begins in each turn while no other caller brings work', (t) => {
  t.is(begunBeside(false, 10), 640);
});

test('from the first work of another caller on, few pieces of work of a caller begin in a turn', (t) => {
  const { clock, turn } = loop(() => 20);
  const starts = createStarts(clock);
  for (let i = 0; i < 200; i++) {
    starts.run('victim', () => undefined);
    turn();
  }
  let begun = 0;
  for (let i = 0; i < 100; i++) starts.run('greedy', () => begun++);
  t.is(begun, 4);
  const packets = { most: Number.POSITIVE_INFINITY, partOf: null };
  const others = createStarts(clock);
  for (let i = 0; i < 200; i++) {
    others.run('victim', () => undefined);
    turn();
  }
  begun = 0;
  for (let i = 0; i < 100; i++) others.run('packets of greedy', () => begun++, packets, 'greedy');
  t.is(begun, 4);
});

test('what is left after a long time in one turn waits for the next', (t) => {
  let at = 0;
  let next: (() => void)[] = [];
  const starts = createStarts({ now: () => at, later: (then) => void next.push(then) });
  const begun: string[] = [];
  const callers = Array.from({ length: 10 }, (_, i) => `caller ${i}`);
  for (let i = 0; i < 10; i++)
    for (const caller of callers)
      starts.run(caller, () => {
        begun.push(caller);
        at += 3;
      });
  const before = begun.length;
  const [turn] = next;
  next = [];
  turn?.();
  t.is(begun.length, before + 1);
});

test('work of a caller waits for no other caller', (t) => {
  const { clock } = loop(() => 1);
  const starts = createStarts(clock);
  let begun = 0;
  for (let i = 0; i < 100; i++) starts.run(`caller ${i}`, () => begun++);
  t.is(begun, 100);
});

test('no more work of a caller is under way than its limit, and others do not wait for it', (t) => {
  const { clock, turn } = loop(() => 0.1);
  const starts = createStarts(clock);
  const ends: (() => void)[] = [];
  for (let i = 0; i < 10; i++) starts.run('a caller', (end) => ends.push(end), { most: 3, partOf: null });
  while (turn());
  t.is(ends.length, 3);
  let other = 0;
  starts.run('other', () => other++, { most: 3, partOf: null });
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

test('beside others, less of the work of a caller is under way', (t) => {
  const { clock, turn } = loop(() => 10);
  const starts = createStarts(clock);
  const limit = { most: 100, besideOthers: 4, partOf: null };
  const ends: (() => void)[] = [];
  const bring = (count: number): void => {
    for (let i = 0; i < count; i++) starts.run('calls of a caller', (end) => ends.push(end), limit, 'a caller');
  };
  starts.run('other', () => undefined);
  bring(200);
  while (turn());
  t.is(ends.length, 4);
  for (const end of ends.splice(0)) end();
  while (turn());
  t.is(ends.length, 4);
  // After one second without others.
  for (let i = 0; i < 101; i++) {
    for (const end of ends.splice(0)) end();
    bring(1);
    turn();
  }
  while (turn());
  t.is(ends.length, 100);
});

test('a caller whose work waits is not alone, and neither is one beside it', (t) => {
  const { clock, turn } = loop(() => 10);
  const starts = createStarts(clock);
  const limit = { most: 100, besideOthers: 4, partOf: null };
  const ends: (() => void)[] = [];
  starts.run('other', () => undefined);
  for (let i = 0; i < 2_000; i++) starts.run('calls of a caller', (end) => ends.push(end), limit, 'a caller');
  for (let i = 0; i < 300; i++) {
    starts.run('other', () => undefined);
    turn();
    t.true(ends.length <= 4);
    for (const end of ends.splice(0)) end();
  }
});

test('a call that takes long no longer counts', async (t) => {
  const turns = Array.from({ length: 20 }, () => turnToCall('a patient caller'));
  t.is(turns.filter((turn) => !(turn instanceof Promise)).length, 4);
  for (const end of await Promise.all(turns)) end();
});

test('callers whose work has begun or ended are forgotten', (t) => {
  const { clock, turn } = loop(() => 0.1);
  const starts = createStarts(clock);
  for (let i = 0; i < 1_000; i++) {
    starts.run(`address ${i}`, () => undefined);
    starts.run(`token ${i}`, (end) => end(), { most: 4, partOf: null });
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

/** Brings a thousand parts, and returns how many begin in each turn. */
function partsBegun({ callers, turnMs, turns = 20 }: { callers: number; turnMs: number; turns?: number }): {
  inTurns: number[];
  underWay: number;
} {
  const { clock, turn } = loop(() => turnMs);
  const starts = createStarts(clock);
  const ends: (() => void)[] = [];
  let begun = 0;
  for (let i = 0; i < 1_000; i++) {
    const part = (end: () => void): void => {
      begun++;
      ends.push(end);
    };
    starts.run(`parts of ${i % callers}`, part, { most: 16, besideOthers: 8, partOf: `${i % callers}` });
  }
  const inTurns: number[] = [];
  for (let i = 0; i < turns; i++) {
    const before = begun;
    turn();
    inTurns.push(begun - before);
  }
  const underWay = ends.length;
  for (const end of ends) end();
  return { inTurns, underWay };
}

test('beside others, parts begin for all callers together, after a long turn none in the next turns, but one after six', (t) => {
  const { inTurns } = partsBegun({ callers: 10, turnMs: 10 });
  t.deepEqual(
    inTurns,
    Array.from({ length: 20 }, (_, i) => ((i + 1) % 7 === 0 ? 1 : 0)),
  );
  t.true(Math.max(...partsBegun({ callers: 10, turnMs: 0.1 }).inTurns) <= 8);
});

test('while there are other callers, half as many parts of a caller are under way', (t) => {
  t.is(partsBegun({ callers: 10, turnMs: 0.1 }).underWay, 80);
  const { clock, turn } = loop(() => 100);
  const starts = createStarts(clock);
  starts.run('caller', () => undefined);
  for (let i = 0; i < 11; i++) {
    starts.run('caller', () => undefined);
    turn();
  }
  let underWay = 0;
  for (let i = 0; i < 100; i++) starts.run('parts of caller', () => underWay++, { most: 16, partOf: 'caller' });
  while (turn());
  t.is(underWay, 16);
});

test('parts that wait for a slow target do not keep the others waiting', async (t) => {
  const endless = new Promise<never>(() => undefined);
  for (let i = 0; i < 20; i++) void partInTurnOf('a caller of slow targets', 8, () => endless);
  t.is(await partInTurnOf('a caller of slow targets', 8, async () => 'done'), 'done');
});
