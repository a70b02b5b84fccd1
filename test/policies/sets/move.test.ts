/** The priorities that move a policy to a place in the order of evaluation. */
import test from 'ava';
import { inReadingOrder } from '../../../src/engine/compile/compile.ts';
import { prioritiesFor } from '../../../src/policies/sets/move.ts';

interface Placed {
  readonly id: string;
  readonly effect: 'allow' | 'deny';
  readonly priority: number;
}

const MAX = 2 ** 31 - 1;
const idsOf = (policies: readonly Placed[]): string[] => [...policies].sort(inReadingOrder).map(({ id }) => id);

function moved(policies: readonly Placed[], id: string, position: number) {
  const order = [...policies].sort(inReadingOrder);
  const policy = order.find((one) => one.id === id);
  if (policy === undefined) throw new Error(`no ${id}`);
  const priorities = prioritiesFor(order, policy, position);
  const after = order.map((one) => ({ ...one, priority: priorities.get(one.id) ?? one.priority }));
  return { priorities, after };
}

test('every policy can be moved to every place, and the others keep their order', (t) => {
  let seed = 7;
  const below = (n: number): number => {
    seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31;
    return Math.floor((seed / 2 ** 31) * n);
  };
  for (let round = 0; round < 2_000; round++) {
    // Few different priorities, so that many are equal or have no room between them, also at the ends of the range.
    const base = [0, -MAX - 1, MAX - 3][below(3)] ?? 0;
    const policies = Array.from(
      { length: 1 + below(7) },
      (_, at): Placed => ({
        ...{ id: String.fromCharCode(97 + at), effect: below(2) === 0 ? 'allow' : 'deny', priority: base + below(4) },
      }),
    );
    const order = idsOf(policies);
    const id = order[below(order.length)] ?? '';
    const position = 1 + below(order.length);
    const { priorities, after } = moved(policies, id, position);
    const wanted = order.filter((one) => one !== id);
    wanted.splice(position - 1, 0, id);
    t.deepEqual(idsOf(after), wanted, JSON.stringify({ policies, id, position }));
    for (const { priority } of after) t.true(Number.isInteger(priority) && priority >= -MAX - 1 && priority <= MAX);
    if (order[position - 1] === id) t.is(priorities.size, 0);
  }
});

test('a move changes only the priority of the policy if there is room', (t) => {
  const policies: Placed[] = [
    { id: 'a', effect: 'allow', priority: 300 },
    { id: 'b', effect: 'allow', priority: 200 },
    { id: 'c', effect: 'allow', priority: 100 },
  ];
  t.deepEqual([...moved(policies, 'c', 2).priorities], [['c', 250]]);
  t.deepEqual([...moved(policies, 'c', 1).priorities], [['c', 301]]);
  t.deepEqual([...moved(policies, 'a', 3).priorities], [['a', 100 - 1]]);
});

test('a move that has no room changes the fewest other policies', (t) => {
  const policies: Placed[] = [
    { id: 'a', effect: 'allow', priority: 5 },
    { id: 'b', effect: 'allow', priority: 5 },
    { id: 'c', effect: 'allow', priority: 5 },
    { id: 'd', effect: 'deny', priority: 1 },
  ];
  const { priorities } = moved(policies, 'd', 2);
  t.deepEqual([...priorities].sort(), [
    ['a', 6],
    ['d', 5],
  ]);
});

test('a move at the end of the range of priorities moves the others away from it', (t) => {
  const full: Placed[] = [
    { id: 'a', effect: 'allow', priority: MAX },
    { id: 'b', effect: 'allow', priority: MAX },
  ];
  t.deepEqual(
    [...moved(full, 'b', 1).priorities],
    [
      ['b', MAX],
      ['a', MAX - 1],
    ],
  );
});
