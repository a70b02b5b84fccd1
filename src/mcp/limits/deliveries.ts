/**
 * Limits for messages that targets send without being asked. Each message takes processor time, and each one that names an
 * object is decided and recorded. The limits hold for each target and each principal, per process.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { createFlow, createStock, type Rate, type Stock } from '../../base/budgets.ts';
import type { Log } from '../../base/log.ts';

export interface DeliveryLimits {
  /** Messages from a target to one principal, from a target, and from all targets. Above them, the target is read more slowly. */
  readonly messages: Rates;
  /** How fast messages within those limits are read, so that many at once do not keep requests from the thread. */
  readonly rush: Rates;
  /** The same limits for messages that need a decision. Messages above them are dropped. */
  readonly decided: Rates;
}

interface Rates {
  readonly pair: Rate;
  readonly target: Rate;
  readonly all: Rate;
}

export interface Deliveries {
  /** Charges for a message of `length` characters that is not an answer. Resolves when the next may be read; null: at once. */
  pace(principal: string, target: DeliveringTarget, length: number): Promise<void> | null;
  /** Charges for a decision on a message. False: drop the message. */
  mayDecide(principal: string, target: DeliveringTarget): boolean;
  /** Refusals on their way to targets that sent a request which they may not send, by target. */
  readonly refusals: Stock;
}

export interface DeliveringTarget {
  readonly id: string;
  readonly name: string;
}

export interface DeliveriesParts {
  readonly limits: DeliveryLimits;
  readonly log: Pick<Log, 'warn'>;
  readonly now: () => number;
  /** Called for each message that is dropped. */
  readonly onDropped: () => void;
}

/** Shortest time between two log lines about a target above its limit. */
const LOG_EVERY_MS = 60_000;
const REFUSALS = { perKey: 32, all: 1_024 };
/** A message of this many characters counts as one, of twice as many as two, and so on. */
const MESSAGE_LENGTH = 4 * 1024;
/** The longest wait for one message, however large the debt of its target. */
const MAX_PAUSE_S = 1;

export function createDeliveries({ limits, log, now, onDropped }: DeliveriesParts): Deliveries {
  const messages = createPairFlow(limits.messages, now);
  const rush = createPairFlow(limits.rush, now);
  const decided = createPairFlow(limits.decided, now);
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
    refusals: createStock('refusals on their way to targets', REFUSALS),
    pace(principal, target, length) {
      const count = Math.max(1, Math.ceil(length / MESSAGE_LENGTH));
      const owed = messages.charge(principal, target.id, count);
      if (owed > 0) notice(target, principal, 'a target sends more than clients asked for; it is read more slowly');
      const wait = Math.max(owed, rush.charge(principal, target.id, count));
      return wait === 0 ? null : sleep(1_000 * Math.min(wait, MAX_PAUSE_S), undefined, { ref: false });
    },
    mayDecide(principal, target) {
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

interface PairFlow {
  wait(principal: string, targetId: string): number;
  /** Charges, and returns the seconds to wait afterwards. */
  charge(principal: string, targetId: string, count: number): number;
}

function createPairFlow({ pair, target, all }: Rates, now: () => number): PairFlow {
  const byPair = createFlow({ perKey: pair, all }, now);
  const byTarget = createFlow({ perKey: target, all }, now);
  const wait: PairFlow['wait'] = (principal, targetId) =>
    Math.max(byPair.wait(JSON.stringify([principal, targetId])), byTarget.wait(targetId));
  return {
    wait,
    charge(principal, targetId, count) {
      byPair.charge(JSON.stringify([principal, targetId]), count);
      byTarget.charge(targetId, count);
      return wait(principal, targetId);
    },
  };
}
