/**
 * Limits for messages that targets send without being asked. Each message takes processor time, and each one that names an
 * object is decided and recorded. The limits hold for each target and each principal, per process.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { createStock, type Rate } from '../../base/budgets.ts';
import type { Log } from '../../base/log.ts';

export interface DeliveryLimits {
  /** Messages from a target to one principal, from a target, and from all targets. Above them, the target is read more slowly. */
  readonly messages: Rates;
  /** How fast messages within those limits are read, so that many at once do not keep requests from the thread. */
  readonly rush: Rates;
  /** The same limits for messages that need a decision. Messages above them are dropped. */
  readonly decided: Rates;
  /**
   * The same for changes of lists, because clients answer each of them with requests. Above these limits, the target is read more slowly.
   */
  readonly lists: Rates;
}

interface Rates {
  readonly pair: Rate;
  readonly target: Rate;
  readonly all: Rate;
}

export interface DeliveringTarget {
  readonly id: string;
  readonly name: string;
}

export interface DeliveriesParts {
  readonly limits: DeliveryLimits;
  readonly log: Pick<Log, 'warn'>;
  readonly now: () => number;
  readonly onDropped: () => void;
}

/** Shortest time between two log lines about a target above its limit. */
const LOG_EVERY_MS = 60_000;
const REFUSALS = { perKey: 32, all: 1_024 };
/** A message of this many characters counts as one, of twice as many as two, and so on. */
const MESSAGE_LENGTH = 4 * 1024;
/** The longest wait for one message, however large the debt. */
const MAX_PAUSE_S = 1;

const pause = (seconds: number): Promise<void> | null =>
  seconds === 0 ? null : sleep(1_000 * Math.min(seconds, MAX_PAUSE_S), undefined, { ref: false });

export type Deliveries = ReturnType<typeof createDeliveries>;

export function createDeliveries({ limits, log, now, onDropped }: DeliveriesParts) {
  const messages = createPairFlow(limits.messages, now);
  const rush = createPairFlow(limits.rush, now);
  const decided = createPairFlow(limits.decided, now);
  const lists = createPairFlow(limits.lists, now);
  const noticed = new Map<string, number>();

  function notice(target: DeliveringTarget, principal: string, what: string): void {
    const at = now();
    for (const [id, since] of noticed) if (at - since >= LOG_EVERY_MS) noticed.delete(id);
    const key = `${what} ${target.id}`;
    if (noticed.has(key)) return;
    noticed.set(key, at);
    log.warn({ target: target.name, principal }, what);
  }

  return {
    /** Refusals on their way to targets that sent a request which they may not send, by target. */
    refusals: createStock('refusals on their way to targets', REFUSALS),
    /** Charges for a message of `length` characters that is not an answer. Resolves when the next may be read; null: at once. */
    pace(principal: string, target: DeliveringTarget, length: number): Promise<void> | null {
      const count = Math.max(1, Math.ceil(length / MESSAGE_LENGTH));
      const owed = messages.charge(principal, target.id, count);
      if (owed > 0) notice(target, principal, 'a target sends more than clients asked for; it is read more slowly');
      return pause(Math.max(owed, rush.charge(principal, target.id, count)));
    },
    /** Charges for news of a changed list. Resolves when it may be passed on; null: at once. */
    paceList(principal: string, target: DeliveringTarget): Promise<void> | null {
      const owed = lists.charge(principal, target.id, 1);
      if (owed > 0) notice(target, principal, 'a target says too often that its lists have changed; it is read more slowly');
      return pause(owed);
    },
    /** Charges for a decision on a message. False: drop the message. */
    mayDecide(principal: string, target: DeliveringTarget): boolean {
      if (decided.wait(principal, target.id) > 0) {
        notice(target, principal, 'a target sends too many notifications; they are dropped undecided');
        onDropped();
        return false;
      }
      decided.charge(principal, target.id, 1);
      return true;
    },
  };
}

/** The debt of a pair or a total: the amount that was used, less what the time since then has paid off. */
interface Account {
  used: number;
  at: number;
}

interface Target {
  readonly total: Account;
  readonly pairs: Map<string, Account>;
}

/** How often unused accounts are forgotten. */
const FORGET_EVERY_MS = 1_000;

/**
 * Each pair has its own account. While a target, or all targets, send more than their rate, that rate is divided equally among
 * the pairs that use it. So a principal for whom a target sends very much does not delay what it sends to others.
 */
function createPairFlow(rates: Rates, now: () => number) {
  const targets = new Map<string, Target>();
  const fresh = (): Account => ({ used: 0, at: now() });
  const all = fresh();
  let pairs = 0;
  let forgotAt = now();

  function settle(account: Account, { perSecond }: Rate): Account {
    const at = now();
    account.used = Math.max(0, account.used - ((at - account.at) / 1_000) * perSecond);
    account.at = at;
    return account;
  }

  const isOver = (total: Account, rate: Rate): boolean => settle(total, rate).used > rate.burst;

  /** A total has a maximum, so that its debt does not last much longer than the flood that caused it. */
  function chargeTotal(total: Account, rate: Rate, count: number): void {
    total.used = Math.min(2 * rate.burst, settle(total, rate).used + count);
  }

  function rateIn(target: Target): Rate {
    if (!isOver(target.total, rates.target) && !isOver(all, rates.all)) return rates.pair;
    const least = (of: keyof Rate): number =>
      Math.min(rates.pair[of], rates.target[of] / target.pairs.size, rates.all[of] / pairs);
    return { perSecond: least('perSecond'), burst: least('burst') };
  }

  function forget(): void {
    if (now() - forgotAt < FORGET_EVERY_MS) return;
    forgotAt = now();
    for (const [targetId, target] of targets) {
      const rate = rateIn(target);
      for (const [principal, own] of target.pairs) {
        if (settle(own, rate).used > 0) continue;
        target.pairs.delete(principal);
        pairs--;
      }
      if (target.pairs.size === 0 && settle(target.total, rates.target).used === 0) targets.delete(targetId);
    }
  }

  /** Seconds until the debt of the pair is paid. */
  const wait = (principal: string, targetId: string): number => {
    const target = targets.get(targetId);
    const own = target?.pairs.get(principal);
    if (target === undefined || own === undefined) return 0;
    const rate = rateIn(target);
    return Math.max(0, settle(own, rate).used - rate.burst) / rate.perSecond;
  };
  return {
    wait,
    /** Charges, and returns the seconds to wait afterwards. */
    charge(principal: string, targetId: string, count: number): number {
      forget();
      const target = targets.get(targetId) ?? { total: fresh(), pairs: new Map<string, Account>() };
      targets.set(targetId, target);
      const known = target.pairs.get(principal);
      if (known === undefined) pairs++;
      const own = known ?? fresh();
      target.pairs.set(principal, own);
      settle(own, rateIn(target)).used += count;
      chargeTotal(target.total, rates.target, count);
      chargeTotal(all, rates.all, count);
      return wait(principal, targetId);
    },
  };
}
