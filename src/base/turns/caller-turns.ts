/**
 * Begins work in turns: in one turn of the event loop, only a few pieces of work of each caller begin. Otherwise a hundred requests
 * of one caller that arrive together would all begin before the next step of any other request.
 *
 * A request to several targets is divided into parts, and a few such requests can be a thousand parts. So the few parts that begin in a
 * turn are shared by all callers.
 *
 * While only one caller brings work, far more may begin at once, because larger batches cost less: fewer commits, and fewer processes to
 * wake.
 */
import type { Now } from '../promises.ts';

/**
 * `most`: how many pieces of work of one caller, and how many parts, begin in one turn of the event loop. `longMs`: none begins after this time
 * in one go, and fewer begin after a longer turn.
 */
const BESIDE_OTHERS = { most: 4, longMs: 2 };
const ALONE = { most: 64, longMs: 20 };
/** No part begins for at most this many turns. */
const MOST_RESTED = 6;
/** A caller is alone if no other has brought work for this time. */
const ALONE_AFTER_MS = 1_000;
/** A part that takes longer waits for a target, which costs this thread nothing: it no longer counts. */
const PART_COUNTED_MS = 500;

export interface StartsClock {
  readonly now: () => number;
  /** Runs the function after the event loop has served what is ready. */
  readonly later: (then: () => void) => void;
}

const CLOCK: StartsClock = { now: () => performance.now(), later: (then) => void setImmediate(then) };

interface Limit {
  /** How much work with the same key may be under way. */
  readonly most: number;
  /** The same, while there are other callers, if it is less. */
  readonly besideOthers?: number;
  /** The caller whose request is divided into parts; null: the work is no part. */
  readonly partOf: string | null;
}

const NO_LIMIT: Limit = { most: Number.POSITIVE_INFINITY, partOf: null };

interface Waiting {
  readonly work: (end: () => void) => void;
  readonly limit: Limit;
  readonly caller: string | null;
}

export function createStarts({ now, later }: StartsClock = CLOCK) {
  /** The waiting work by caller; the first entry has the next turn. */
  const waiting = new Map<string, Waiting[]>();
  /** How much limited work of each caller has begun and not ended. */
  const running = new Map<string, number>();
  /** How much work of each caller has begun in this turn. */
  const begun = new Map<string, number>();
  /** How many parts have begun in this turn. */
  let parts = 0;
  /** For how many turns no part has begun, including this one. 0: parts may begin in this turn. */
  let rested = 0;
  /** How many pieces of work of each caller, and how many parts, may begin in one turn. */
  let quota = BESIDE_OTHERS.most;
  let isAlone = false;
  let isArmed = false;
  let beganAt = 0;
  let lastCaller = '';
  /** When the last work came from a different caller than the work before, or still waited for its turn beside that of a different caller. */
  let changedAt = Number.NEGATIVE_INFINITY;

  function arm(): void {
    if (isArmed) return;
    isArmed = true;
    beganAt = now();
    later(turn);
  }

  function begin(key: string, { work, limit }: Waiting): void {
    begun.set(key, (begun.get(key) ?? 0) + 1);
    if (limit.partOf !== null) parts++;
    // Work without a limit is not counted, and need not tell when it is over.
    if (limit === NO_LIMIT) {
      work(() => undefined);
      return;
    }
    running.set(key, (running.get(key) ?? 0) + 1);
    let hasEnded = false;
    work(() => {
      if (hasEnded) return;
      hasEnded = true;
      const others = (running.get(key) ?? 1) - 1;
      if (others > 0) running.set(key, others);
      else running.delete(key);
      if (waiting.has(key)) arm();
    });
  }

  function note(caller: string): void {
    arm();
    if (caller === lastCaller) return;
    lastCaller = caller;
    changedAt = beganAt;
    quota = Math.min(quota, BESIDE_OTHERS.most);
  }

  const isBelowLimit = (key: string, { most, besideOthers = most }: Limit): boolean =>
    (running.get(key) ?? 0) < (isAlone ? most : besideOthers);

  function mayBegin(key: string, limit: Limit): boolean {
    const isTurn = limit.partOf === null ? (begun.get(key) ?? 0) < quota : rested === 0 && parts < quota;
    return isTurn && isBelowLimit(key, limit);
  }

  function turn(): void {
    isArmed = false;
    const at = now();
    for (const [next] of waiting.values()) if ((next?.caller ?? lastCaller) !== lastCaller) changedAt = at;
    isAlone = at - changedAt > ALONE_AFTER_MS;
    const { most, longMs } = isAlone ? ALONE : BESIDE_OTHERS;
    const isLong = at - beganAt > longMs;
    quota = Math.min(most, isLong ? Math.ceil(quota / 2) : quota + 1);
    begun.clear();
    // After a long turn in which parts began, none begins until a turn is short: what a part causes takes several turns.
    rested = isLong && (parts > 0 || rested > 0) && rested < MOST_RESTED ? rested + 1 : 0;
    parts = 0;
    for (const [key, line] of waiting) {
      const [next] = line;
      if (next === undefined || !mayBegin(key, next.limit)) continue;
      line.shift();
      waiting.delete(key);
      if (line.length > 0) waiting.set(key, line);
      begin(key, next);
      if (now() - at > longMs) break;
    }
    // All other waiting work has reached its limit. It begins when earlier work of its caller ends.
    for (const [key, [next]] of waiting) {
      if (next === undefined || !isBelowLimit(key, next.limit)) continue;
      arm();
      break;
    }
  }

  return {
    /** How many callers are remembered. */
    get size(): number {
      return new Set([...waiting.keys(), ...running.keys()]).size;
    },
    /** Whether only one caller has brought work for a while. */
    get isAlone(): boolean {
      return now() - changedAt > ALONE_AFTER_MS;
    },
    /** Notes that this caller is there, whose work does not begin here. */
    note,
    /**
     * Begins the work: at once, or when it is the turn of the caller (`key`), and less than `most` work with the same key is under way. The
     * work must not throw. If there is a limit, it calls `end` when it is over. `caller`: who brings the work. null: the
     * work does not show that a caller is there.
     */
    run(key: string, work: (end: () => void) => void, limit = NO_LIMIT, caller = limit === NO_LIMIT ? key : limit.partOf): void {
      if (caller !== null) note(caller);
      else arm();
      if (!waiting.has(key) && mayBegin(key, limit)) {
        begin(key, { work, limit, caller });
        return;
      }
      const line = waiting.get(key);
      if (line === undefined) waiting.set(key, [{ work, limit, caller }]);
      else line.push({ work, limit, caller });
    },
  };
}

/** The turns of this thread. */
export const starts = createStarts();

function inTurn<T>(key: string, limit: Limit | undefined, work: (end: () => void) => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    starts.run(
      key,
      (end) => {
        work(end).finally(end).then(resolve, reject);
      },
      limit,
    );
  });
}

/**
 * How many calls of a caller are under way while others send requests, too. The last bytes of hundreds can arrive together, and all of them would
 * otherwise wait for the target, in front of everybody's next call.
 */
const CALLS: Limit = { most: Number.POSITIVE_INFINITY, besideOthers: 4, partOf: null };
/** A call that takes longer waits for a slow tool: it no longer counts. */
const CALL_COUNTED_MS = 25;

/** When it is the turn of the caller: the function to call when its call is over. Most calls begin at once. */
export function turnToCall(caller: string): Now<() => void> {
  let atOnce: (() => void) | null = null;
  let come = (end: () => void): void => {
    atOnce = end;
  };
  const work = (end: () => void): void => {
    setTimeout(end, CALL_COUNTED_MS).unref();
    come(end);
  };
  starts.run(`calls of ${caller}`, work, CALLS, caller);
  return (
    atOnce ??
    new Promise((resolve) => {
      come = resolve;
    })
  );
}

/** Does the work when it is the turn of the caller. `most`: how much of the caller's work may be under way; null: any number. */
export function inTurnOf<T>(key: string, most: number | null, work: () => Promise<T>): Promise<T> {
  return inTurn(key, most === null ? undefined : { most, partOf: null }, work);
}

/** Does one part of a request of the caller. Parts of all callers share the turns. `most`: how many parts may be under way. */
export function partInTurnOf<T>(caller: string, most: number, work: () => Promise<T>): Promise<T> {
  return inTurn(`parts of ${caller}`, { most, besideOthers: Math.max(1, most / 2), partOf: caller }, (end) => {
    const counted = setTimeout(end, PART_COUNTED_MS);
    return work().finally(() => clearTimeout(counted));
  });
}
