/** Moves a policy to a different place in the order of evaluation, with few changed priorities. Pure. */
import { inReadingOrder } from '../../engine/compile/compile.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';

type Placed = Pick<StoredPolicy, 'id' | 'effect' | 'priority'>;

const [LEAST, GREATEST] = [-(2 ** 31), 2 ** 31 - 1];

/** 1: before, with a higher priority. -1: after. */
type Side = 1 | -1;

/** Returns the priority nearest to that of `other` with which the policy is evaluated on this side of `other`. */
function beside(policy: Placed, other: Placed, side: Side): number {
  const atTheSame = inReadingOrder({ ...policy, priority: other.priority }, other);
  return other.priority + (Math.sign(atTheSame) === -side ? 0 : side);
}

/** Gives the policy its place beside `neighbour`, and moves the policies on the other side away as far as they are in the way. */
function pushed(
  policy: Placed,
  neighbour: Placed | undefined,
  others: readonly Placed[],
  side: Side,
): Map<string, number> | null {
  const least = side === 1 ? LEAST : GREATEST;
  let last = { ...policy, priority: neighbour === undefined ? least : beside(policy, neighbour, side) };
  const changed = new Map([[policy.id, last.priority]]);
  for (const other of others) {
    if (Math.sign(inReadingOrder(other, last)) === -side) break;
    last = { ...other, priority: beside(other, last, side) };
    changed.set(other.id, last.priority);
  }
  return [...changed.values()].every((priority) => priority >= LEAST && priority <= GREATEST) ? changed : null;
}

/**
 * Returns the new priorities by id that move the policy to the position, which counts from 1. Empty: it is there already. `order`: all
 * policies in the order of evaluation.
 */
export function prioritiesFor(order: readonly Placed[], policy: Placed, position: number): ReadonlyMap<string, number> {
  if (order[position - 1]?.id === policy.id) return new Map();
  const others = order.filter(({ id }) => id !== policy.id);
  const before = others.slice(0, position - 1).reverse();
  const after = others.slice(position - 1);
  const [above, below] = [before[0], after[0]];
  const least = below === undefined ? LEAST : beside(policy, below, 1);
  const greatest = above === undefined ? GREATEST : beside(policy, above, -1);
  if (least <= greatest) {
    const between = above === undefined ? least : below === undefined ? greatest : Math.floor((least + greatest) / 2);
    return new Map([[policy.id, between]]);
  }
  const possible = [pushed(policy, below, before, 1), pushed(policy, above, after, -1)].filter((one) => one !== null);
  const [fewest] = possible.sort((a, b) => a.size - b.size);
  // Only a chain of policies over the whole range would fail in both directions.
  if (fewest === undefined) throw new Error('No priority is free.');
  return fewest;
}
