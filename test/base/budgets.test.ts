import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { createFlow, createStock, isOverdrawn, type Taken } from '../../src/base/budgets.ts';

function taken(t: ExecutionContext, from: object): Taken {
  t.false(isOverdrawn(from));
  return from as Taken;
}

test('a refusal names its budget and limit, and a stock can be taken again after it was given back', (t) => {
  const stock = createStock('bytes', { perKey: 10, all: 100 });
  const held = taken(t, stock.take('ann', 6));
  t.deepEqual(stock.take('ann', 5), { overdrawn: 'key', budget: 'bytes', limit: 10 });
  t.deepEqual(held.grow(5), { overdrawn: 'key', budget: 'bytes', limit: 10 });
  t.is(held.grow(4), null);
  held.giveBack();
  held.giveBack();
  t.is(stock.taken, 0);
  taken(t, stock.take('ann', 10));
});

test('a greedy key leaves room for the others in a stock', (t) => {
  const stock = createStock('bytes', { perKey: 100, all: 100 });
  taken(t, stock.take('greedy', 50));
  t.deepEqual(stock.take('greedy', 1), { overdrawn: 'all', budget: 'bytes', limit: 100 });
  taken(t, stock.take('ann', 25));
  taken(t, stock.take('bob', 12));
});

test('a stock never exceeds its limits, whatever is taken and given back', (t) => {
  const step = fc.record({ key: fc.constantFrom('a', 'b', 'c'), amount: fc.nat(60), back: fc.boolean() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 50 }), (steps) => {
      const stock = createStock('bytes', { perKey: 50, all: 100 });
      const held: { readonly key: string; readonly amount: number; readonly taken: Taken }[] = [];
      for (const { key, amount, back } of steps) {
        if (back) held.shift()?.taken.giveBack();
        const got = stock.take(key, amount);
        if (!isOverdrawn(got)) held.push({ key, amount, taken: got });
        const sum = (of: string | null) => held.reduce((all, one) => all + (of === null || one.key === of ? one.amount : 0), 0);
        t.is(stock.taken, sum(null));
        t.true(sum(null) <= 100 && ['a', 'b', 'c'].every((one) => sum(one) <= 50));
      }
    }),
  );
});

test('waiters of one key are served in order, keys do not wait for each other, and nothing is lost', async (t) => {
  const step = fc.record({ key: fc.constantFrom('a', 'b'), amount: fc.integer({ min: 1, max: 60 }), leaves: fc.boolean() });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 30 }), async (steps) => {
      const stock = createStock('bytes', { perKey: 50, all: 110 });
      const held: Taken[] = [];
      const came: Record<string, number[]> = { a: [], b: [] };
      const all = steps.map(({ key, amount, leaves }, i) => {
        const turn = stock.queue(key, amount);
        const done = turn.come.then((room) => {
          if (isOverdrawn(room)) t.true(amount > 50 || leaves);
          else {
            came[key]?.push(i);
            held.push(room);
          }
        });
        if (leaves) turn.leave();
        return done;
      });
      for (let rest = steps.length; rest > 0; rest--) {
        await new Promise((resolve) => setImmediate(resolve));
        t.true(stock.taken <= 100);
        held.shift()?.giveBack();
      }
      await Promise.all(all);
      for (const room of held) room.giveBack();
      t.is(stock.taken, 0);
      for (const order of Object.values(came))
        t.deepEqual(
          order,
          order.toSorted((x, y) => x - y),
        );
    }),
    { numRuns: 50 },
  );
});

test('an amount that fits is taken as soon as a larger one before it leaves', async (t) => {
  const stock = createStock('bytes', { perKey: 10, all: 100 });
  stock.take('a', 8);
  const large = stock.queue('a', 5);
  const small = stock.queue('a', 2);
  large.leave();
  t.true(isOverdrawn(await large.come));
  t.false(isOverdrawn(await small.come));
});

test('the debt of a flow shrinks with time, and `wait` returns it in seconds', (t) => {
  let now = 0;
  const flow = createFlow({ perKey: { perSecond: 10, burst: 20 }, all: { perSecond: 1_000, burst: 1_000 } }, () => now);
  t.is(flow.wait('ann'), 0);
  flow.charge('ann', 50);
  t.is(flow.wait('ann'), 3);
  t.is(flow.wait('bob'), 0);
  now += 1_000;
  t.is(flow.wait('ann'), 2);
  now += 2_000;
  t.is(flow.wait('ann'), 0);
});

test('only keys that used more than their share wait until the shared debt is paid', (t) => {
  const flow = createFlow({ perKey: { perSecond: 10, burst: 200 }, all: { perSecond: 100, burst: 100 } }, () => 0);
  flow.charge('ann', 110);
  flow.charge('bob', 20);
  t.is(flow.wait('ann'), 0.3);
  t.is(flow.wait('bob'), 0);
  t.is(flow.wait('cid'), 0);
});

test('many keys within their own limits keep to the shared limit, and one that uses little does not wait', (t) => {
  let now = 0;
  const flow = createFlow({ perKey: { perSecond: 250, burst: 50 }, all: { perSecond: 500, burst: 100 } }, () => now);
  const greedy = Array.from({ length: 12 }, (_, i) => `greedy ${i}`);
  let used = 0;
  let waited = 0;
  for (; now < 20_000; now += 10) {
    for (const key of greedy) {
      if (flow.wait(key) > 0) continue;
      flow.charge(key, 8);
      used += 8;
    }
    if (flow.wait('ann') > 0) waited++;
    flow.charge('ann', 0.1);
  }
  t.true(used < 20 * 500 * 1.2, `${used} of ${20 * 500}`);
  t.is(waited, 0);
});

test('owners have equal shares, however many keys one of them has', (t) => {
  const flow = createFlow(
    { perKey: { perSecond: 10, burst: 200 }, all: { perSecond: 100, burst: 100 } },
    () => 0,
    (key) => key.slice(0, 3),
  );
  for (let i = 0; i < 50; i++) flow.charge(`ann ${i}`, 3);
  flow.charge('bob 1', 20);
  t.is(flow.wait('ann 1'), 0.7);
  t.is(flow.wait('bob 1'), 0);
});

test('a flow forgets keys without debt', (t) => {
  let now = 0;
  const flow = createFlow({ perKey: { perSecond: 1, burst: 1 }, all: { perSecond: 1e9, burst: 1e9 } }, () => now);
  flow.charge('debtor', 1e6);
  for (let i = 0; i < 9_999; i++) flow.charge(`key ${i}`, 1);
  now += 2_000;
  flow.charge('another', 1);
  t.true(flow.wait('debtor') > 0);
  t.is(flow.size, 2);
});

test('the held amount can be set, and a refused amount changes nothing', (t) => {
  const stock = createStock('x', { perKey: 10, all: 100 });
  const taken = stock.take('a', 0);
  if (isOverdrawn(taken)) return t.fail();
  t.is(taken.set(8), null);
  t.is(stock.taken, 8);
  t.like(taken.set(11), { overdrawn: 'key', limit: 10 });
  t.is(stock.taken, 8);
  t.is(taken.set(3), null);
  t.is(stock.taken, 3);
  taken.giveBack();
  t.is(stock.taken, 0);
});
