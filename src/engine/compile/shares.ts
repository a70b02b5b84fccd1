/** Limits that all owners of policies share: what one owner has must not keep the others from changes. */
import type { Policy, StoredPolicy } from './policy.ts';

/** A policy, with its owner if it has one (`StoredPolicy`). */
export type OwnedPolicy = Policy & Partial<Pick<StoredPolicy, 'managed_as'>>;

export interface SetProblem {
  readonly message: string;
  /** The policies that bring what exceeds the limit, in the order of ids. */
  readonly policyIds: readonly string[];
  /** The member of these policies that brings most of it. */
  readonly member: 'resource_pattern' | 'subjects' | 'description';
  /** Names the limit, and whose policies exceed it. */
  readonly limit: string;
  /** What these policies have of it, and what all together have. */
  readonly amount: number;
  readonly total: number;
}

/** How much policies have of something that is limited. `member`: what brings most of it, if that is not the member of the limit. */
export interface Amount {
  readonly amount: number;
  readonly policyIds: Iterable<string>;
  readonly member?: SetProblem['member'];
}

/** `ofAll`: the most of the policies of all owners, and of no owner. */
export interface Limit {
  readonly name: string;
  readonly member: SetProblem['member'];
  readonly ofOwner: number;
  readonly ofAll: number;
  /** `whose`: `of owner a`, or an empty text for policies of no owner. `over`: what of, in words. */
  readonly say: (whose: string, amount: number, over: string) => string;
}

/** How far the policies of all together may exceed the limit: by those of owners with less than their share, and then by those of no owner. */
export const ABOVE = { ofOwners: 1.5, ofNobody: 2 };

/** Plans need an owner. Policies of this one count as policies of no owner, so that a plan of it is judged like an edit of such policies. */
export const NO_OWNER = 'console.preview';

export function ownerOf({ managed_as }: OwnedPolicy): string | null {
  const [owner = NO_OWNER] = managed_as?.split('/') ?? [];
  return owner === NO_OWNER ? null : owner;
}

/**
 * If all together have too much, owners with more than a fair share may add nothing, and the others may add up to a second limit. Above that limit,
 * only policies of no owner may be added, up to a third one, so that an administrator can always deny something. `total`: of all.
 */
export function overShares(
  owners: ReadonlyMap<string | null, Amount>,
  total: number,
  { name, member: usual, ofOwner, ofAll, say }: Limit,
): SetProblem[] {
  const share = fairShare(
    [...owners.values()].map(({ amount }) => amount),
    ofAll,
  );
  return [...owners].flatMap(([owner, { amount, policyIds, member = usual }]) => {
    const isOver = amount > ofOwner;
    const most = owner === null ? ABOVE.ofNobody * ofAll : amount > share ? ofAll : ABOVE.ofOwners * ofAll;
    if (!isOver && total <= most) return [];
    const over = isOver
      ? `more than the limit of ${ofOwner}`
      : `and all together ${total}, more than the limit of ${most}. The share of an owner is ${Math.floor(share)}`;
    const message = say(owner === null ? '' : `of owner ${owner}`, amount, over);
    return [{ message, policyIds: [...policyIds].sort(), member, limit: `${name} ${owner ?? ''}`, amount, total }];
  });
}

/** The most that each may have, so that all together have `most`, and who has less leaves the rest to the others. */
function fairShare(amounts: readonly number[], most: number): number {
  let left = most;
  const sorted = [...amounts].sort((a, b) => a - b);
  for (const [i, amount] of sorted.entries()) {
    const share = left / (sorted.length - i);
    if (amount > share) return share;
    left -= amount;
  }
  return Number.POSITIVE_INFINITY;
}

/** Measures something by place. Returns places where the policies of all owners could exceed a limit, also if there is less. */
export type Measure = (policies: readonly OwnedPolicy[]) => Generator<undefined, ReadonlyMap<string, Amount>>;

/** `lowest`: no place has a lower limit of all. Few places have more, and the others need no look at their limits. */
export interface LimitByPlace {
  readonly lowest: number;
  readonly at: (place: string) => Limit;
}

/** Checks a limit of each place. What the owners have is measured only where all together exceed it. */
export function* problemsByPlace(
  policies: readonly OwnedPolicy[],
  measure: Measure,
  { lowest, at: limitAt }: LimitByPlace,
): Generator<undefined, SetProblem[]> {
  const many = [...(yield* measure(policies))].filter(([, { amount }]) => amount > lowest);
  const over = many.filter(([place, { amount }]) => amount > limitAt(place).ofAll);
  if (over.length === 0) return [];
  const owners = new Map<string | null, ReadonlyMap<string, Amount>>();
  for (const [owner, own] of byOwner(policies)) owners.set(owner, yield* measure(own));
  return over.flatMap(([place, { amount: total }]) => {
    const amounts = [...owners].flatMap(([owner, places]) => {
      const amount = places.get(place);
      return amount === undefined ? [] : [[owner, amount] as const];
    });
    return overShares(new Map(amounts), total, limitAt(place));
  });
}

function byOwner(policies: readonly OwnedPolicy[]): Map<string | null, OwnedPolicy[]> {
  const owners = new Map<string | null, OwnedPolicy[]>();
  for (const policy of policies) {
    const owner = ownerOf(policy);
    const own = owners.get(owner) ?? [];
    owners.set(owner, own);
    own.push(policy);
  }
  return owners;
}

/** The problems that a change brings. What the stored set has above the limits must not keep anybody from a change that adds nothing to it. */
export function addedProblems(problems: readonly SetProblem[], stored: readonly SetProblem[]): SetProblem[] {
  const before = new Map(stored.map((problem) => [problem.limit, problem]));
  return problems.filter(({ limit, amount, total }) => {
    const known = before.get(limit);
    // What two owners, or two roles, have alike counts once in the total. So the total can grow although each has as much as before.
    return known === undefined || amount > known.amount || total > known.total;
  });
}
