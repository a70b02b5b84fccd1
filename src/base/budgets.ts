/**
 * Budgets that keep one principal or one target from using up what all share. An amount of a stock is taken before use and given back
 * afterwards; a flow is charged after use. Each process counts on its own.
 */
import { deferred } from './promises.ts';

/** Why a budget refuses. `key`: the key has reached its own limit. `all`: little is left, and the key already has its share. */
export interface Overdrawn {
  readonly overdrawn: 'key' | 'all';
  readonly budget: string;
  /** The limit of the key, or of all keys together. */
  readonly limit: number;
}

export interface Taken {
  /** Takes `amount` more for the same key. null: taken. */
  grow(amount: number): Overdrawn | null;
  /** Takes more or gives some back, so that exactly `amount` is held. null: done. */
  set(amount: number): Overdrawn | null;
  /** May be called more than once. */
  giveBack(): void;
}

export interface Turn {
  /** Overdrawn: there can never be room for this amount, or `leave` was called first. */
  readonly come: Promise<Taken | Overdrawn>;
  /** Stops waiting. What was taken before stays taken. */
  leave(): void;
}

export function isOverdrawn(taken: object): taken is Overdrawn {
  return 'overdrawn' in taken;
}

export type Stock = ReturnType<typeof createStock>;

/** After this time, an amount that waits for room among all keys goes before later amounts. `now` in milliseconds. */
export interface Precedence {
  readonly afterMs: number;
  readonly now: () => number;
}
const NO_PRECEDENCE: Precedence = { afterMs: Infinity, now: () => 0 };

/**
 * A key may hold at most `perKey`, and never more than what would then remain free. So a few greedy keys always leave
 * something: one holds at most half of the stock, two hold at most two thirds. Give a `precedence` only if all amounts are soon given back:
 * without it, small amounts of other keys can hold up a large one for ever; with it, a large amount holds them up.
 */
export function createStock(
  budget: string,
  { perKey, all }: { readonly perKey: number; readonly all: number },
  { afterMs, now }: Precedence = NO_PRECEDENCE,
) {
  const byKey = new Map<string, number>();
  let taken = 0;
  const line = new Set<{ readonly key: string; readonly since: number; readonly attempt: () => Overdrawn | null }>();

  /** Serves waiting amounts, as far as there is room. If the first amount of a key does not fit, the key's later amounts wait, too. */
  function serve(): void {
    const blocked = new Set<string>();
    for (const waiting of line) {
      if (blocked.has(waiting.key)) continue;
      const refused = waiting.attempt();
      if (refused === null) line.delete(waiting);
      else if (refused.overdrawn === 'all' && now() - waiting.since >= afterMs) return;
      else blocked.add(waiting.key);
    }
  }

  function add(key: string, amount: number): Overdrawn | null {
    const own = (byKey.get(key) ?? 0) + amount;
    if (own > perKey) return { overdrawn: 'key', budget, limit: perKey };
    if (own > all - taken - amount) return { overdrawn: 'all', budget, limit: all };
    byKey.set(key, own);
    taken += amount;
    return null;
  }

  function take(key: string, amount: number): Taken | Overdrawn {
    const refused = add(key, amount);
    if (refused !== null) return refused;
    let held = amount;
    const release = (less: number): void => {
      const left = (byKey.get(key) ?? 0) - less;
      if (left > 0) byKey.set(key, left);
      else byKey.delete(key);
      taken -= less;
      held -= less;
      if (less > 0 && line.size > 0) serve();
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
  }

  function queue(key: string, amount: number): Turn {
    const { promise: come, resolve } = deferred<Taken | Overdrawn>();
    const attempt = (): Overdrawn | null => {
      const room = take(key, amount);
      if (isOverdrawn(room)) return room;
      resolve(room);
      return null;
    };
    const refused: Overdrawn = { overdrawn: 'key', budget, limit: perKey };
    const waiting = { key, since: now(), attempt };
    const leave = (): void => {
      if (!line.delete(waiting)) return;
      resolve(refused);
      serve();
    };
    if (amount > perKey || amount > all / 2) resolve(refused);
    else {
      line.add(waiting);
      serve();
    }
    return { come, leave };
  }

  return {
    /** The amount that all keys hold now. */
    get taken(): number {
      return taken;
    },
    take,
    /** Takes the amount as soon as there is room for it. Amounts of the same key are served first come, first served. */
    queue,
  };
}

export interface Rate {
  readonly perSecond: number;
  /** The amount that may be used at once after a pause. */
  readonly burst: number;
}

/** How often keys are forgotten that used little lately. */
const FORGET_EVERY_MS = 1_000;

interface Account {
  left: number;
  /** What was used lately: each use fades in about the time in which the burst of all keys comes back. */
  recent: number;
  at: number;
}

export type Flow = ReturnType<typeof createFlow>;

/** `now` in milliseconds. */
export function createFlow(
  { perKey, all }: { readonly perKey: Rate; readonly all: Rate },
  now: () => number,
  ownerOf: (key: string) => string = (key) => key,
) {
  const byKey = new Map<string, Account>();
  /** The number of keys of each owner. */
  const owners = new Map<string, number>();
  const total: Account = { left: all.burst, recent: 0, at: now() };
  const fadesInMs = (all.burst / all.perSecond) * 1_000;
  let forgotAt = now();

  function settle(account: Account, { perSecond, burst }: Rate, at: number): Account {
    const ms = at - account.at;
    account.left = Math.min(burst, account.left + (ms / 1_000) * perSecond);
    account.recent *= Math.exp(-ms / fadesInMs);
    account.at = at;
    return account;
  }

  function use(account: Account, amount: number): void {
    account.left -= amount;
    account.recent += amount;
  }

  function forget(): void {
    const at = now();
    forgotAt = at;
    for (const [key, account] of byKey) {
      const { left, recent } = settle(account, perKey, at);
      if (left !== perKey.burst || recent >= perKey.burst / 2) continue;
      byKey.delete(key);
      count(ownerOf(key), -1);
    }
  }

  function count(owner: string, more: number): void {
    const keys = (owners.get(owner) ?? 0) + more;
    if (keys === 0) owners.delete(owner);
    else owners.set(owner, keys);
  }

  /** How many keys of this owner there would be if all owners had as many. */
  const sharesOf = (owner: string): number => owners.size * (owners.get(owner) ?? 1);

  const debt = ({ left }: Account, { perSecond }: Rate): number => Math.max(0, -left / perSecond);

  return {
    /** How many keys are remembered. */
    get size(): number {
      return byKey.size;
    },
    /** Charges the key for what it used, which may be known only afterwards. A charge above what is left becomes a debt. */
    charge(key: string, amount: number): void {
      const at = now();
      if (at - forgotAt >= FORGET_EVERY_MS) forget();
      let own = byKey.get(key);
      if (own === undefined) {
        own = { left: perKey.burst, recent: 0, at };
        byKey.set(key, own);
        count(ownerOf(key), 1);
      }
      use(settle(own, perKey, at), amount);
      use(settle(total, all, at), amount);
    },
    /**
     * Seconds until the debt of the key is paid; 0: it has no debt. A key also waits for the shared debt, unless it has
     * lately used less than half of an equal share of what all keys may use at once. So a key that uses little never waits for what others
     * did, and all keys together keep to the shared limit, however many they are. Owners have equal shares, and so have the keys of each owner.
     */
    wait(key: string): number {
      const own = byKey.get(key);
      // Time only pays debts, so it need not be counted if there are none. Every message comes here.
      if (own === undefined || (own.left >= 0 && total.left >= 0)) return 0;
      const at = now();
      const ownDebt = debt(settle(own, perKey, at), perKey);
      return own.recent <= all.burst / sharesOf(ownerOf(key)) / 2
        ? ownDebt
        : Math.max(ownDebt, debt(settle(total, all, at), all));
    },
  };
}
