/**
 * Budgets that keep one principal or one target from taking what all share: a stock is taken and given back, a flow is paid
 * for after it was used. Counted in this process.
 */

/** Why a budget refuses: `key` has all that one may have, or so little is left for `all` that the key has its share. */
export interface Overdrawn {
  readonly overdrawn: 'key' | 'all';
  /** Name of the budget. */
  readonly budget: string;
  /** What the key, or all together, may have. */
  readonly limit: number;
}

export interface Taken {
  /** Takes so much more for the same key. null: taken. */
  grow(amount: number): Overdrawn | null;
  /** Takes more or gives some back, so that so much is held. null: it is. */
  set(amount: number): Overdrawn | null;
  /** Once or more often. */
  giveBack(): void;
}

export interface Stock {
  /** What is taken at present, by all keys. */
  readonly taken: number;
  take(key: string, amount: number): Taken | Overdrawn;
}

export function isOverdrawn(taken: object): taken is Overdrawn {
  return 'overdrawn' in taken;
}

/**
 * A key may take at most `perKey`, and at most what then stays free for the others. So a few greedy keys never leave nothing:
 * one takes at most half of the stock, two take at most two thirds.
 */
export function createStock(budget: string, { perKey, all }: { readonly perKey: number; readonly all: number }): Stock {
  const byKey = new Map<string, number>();
  let taken = 0;

  function add(key: string, amount: number): Overdrawn | null {
    const own = (byKey.get(key) ?? 0) + amount;
    if (own > perKey) return { overdrawn: 'key', budget, limit: perKey };
    if (own > all - taken - amount) return { overdrawn: 'all', budget, limit: all };
    byKey.set(key, own);
    taken += amount;
    return null;
  }

  return {
    get taken() {
      return taken;
    },
    take(key, amount) {
      const refused = add(key, amount);
      if (refused !== null) return refused;
      let held = amount;
      const release = (less: number): void => {
        const left = (byKey.get(key) ?? 0) - less;
        if (left > 0) byKey.set(key, left);
        else byKey.delete(key);
        taken -= less;
        held -= less;
      };
      const grow = (more: number): Overdrawn | null => {
        const refused = add(key, more);
        if (refused === null) held += more;
        return refused;
      };
      return {
        grow,
        set(wanted) {
          if (wanted > held) return grow(wanted - held);
          release(held - wanted);
          return null;
        },
        giveBack: () => release(held),
      };
    },
  };
}

export interface Rate {
  readonly perSecond: number;
  /** What may be used at once after a pause. */
  readonly burst: number;
}

export interface Flow {
  /** Keys that are remembered. */
  readonly size: number;
  /** What was used, which may be known only afterwards: it may exceed what is left, and is paid off with time. */
  charge(key: string, amount: number): void;
  /**
   * Seconds until the debt of the key is paid; 0: there is none. The debt of all together is waited for only by keys that have
   * used more than half of their burst, so that a key that used little is never refused for what others did.
   */
  wait(key: string): number;
}

/** Keys that have paid are forgotten once there are so many. */
const KEYS = 10_000;

interface Account {
  left: number;
  at: number;
}

/** `now` in milliseconds. */
export function createFlow({ perKey, all }: { readonly perKey: Rate; readonly all: Rate }, now: () => number): Flow {
  const byKey = new Map<string, Account>();
  const total: Account = { left: all.burst, at: now() };

  function settle(account: Account, { perSecond, burst }: Rate): Account {
    const at = now();
    account.left = Math.min(burst, account.left + ((at - account.at) / 1_000) * perSecond);
    account.at = at;
    return account;
  }

  function forget(): void {
    for (const [key, account] of byKey) if (settle(account, perKey).left === perKey.burst) byKey.delete(key);
  }

  const debt = ({ left }: Account, { perSecond }: Rate): number => Math.max(0, -left / perSecond);

  return {
    get size() {
      return byKey.size;
    },
    charge(key, amount) {
      if (byKey.size >= KEYS) forget();
      const own = byKey.get(key) ?? { left: perKey.burst, at: now() };
      byKey.set(key, own);
      settle(own, perKey).left -= amount;
      settle(total, all).left -= amount;
    },
    wait(key) {
      const own = byKey.get(key);
      if (own === undefined || settle(own, perKey).left > perKey.burst / 2) return 0;
      return Math.max(debt(own, perKey), debt(settle(total, all), all));
    },
  };
}
