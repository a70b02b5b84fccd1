/** Changes that are checked before their transaction, and checked again if what was checked has changed in the meantime. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Caller } from '../auth/caller.ts';
import { createFlow } from '../base/budgets.ts';
import { AppError } from '../base/errors.ts';
import type { InTurn } from '../base/turns/line.ts';
import { createTurns, restAfter } from '../db/turns.ts';
import type { StoredPolicy } from '../engine/compile/policy.ts';
import { ADMIN } from '../users/user-store.ts';
import type { StoredChange } from './policy-store.ts';

/** What was checked outside of the transaction has changed in the meantime. */
export class Moved extends Error {}

const TRIES = 3;
/** How long other changes wait for repeated work, and further changes of the same caller for work that has not ended. */
const TURN_MS = 10_000;

/**
 * After a change of a caller who is no administrator, the caller's next one waits for this many times as long as the change took, and no longer than
 * this. All requests wait while a changed set is compiled, so a loop of changes would keep the others waiting.
 */
const REST = 3;
const LONGEST_REST_MS = 10_000;

/**
 * How much callers without `managesAll` may store with changes larger than `small`, as `sizeOf` counts: two of 10,000 policies, so that the second
 * can undo the first, and then little. All requests wait about 0.1 ms for each policy of a large change (docs/performance.md), so a loop of such
 * changes takes 0.5 to 1 % of the time of others, by calculation.
 */
const LARGE = { small: 100, rate: { perSecond: 40, burst: 10_000 } };
/** All callers together may store this many times as much. Otherwise one could keep another from undoing a change. */
const CALLERS = 10;
/** Storing and loading so many bytes of subjects and descriptions takes about as long as a policy. A subject counts for at least a part of them. */
const BYTES_OF_SIZE = 1_024;
const BYTES_OF_SUBJECT = 64;

const bytesOf = (policy: StoredPolicy | null): number =>
  policy === null
    ? 0
    : policy.subjects.reduce(
        (sum, { subject_value }) => sum + Math.max(BYTES_OF_SUBJECT, Buffer.byteLength(subject_value ?? '')),
        Buffer.byteLength(policy.description ?? ''),
      );

/** How much is stored and loaded for these changes, in policies. */
export function sizeOf(changes: readonly StoredChange[]): number {
  let bytes = 0;
  for (const { before, after } of changes) bytes += Math.max(bytesOf(before), bytesOf(after));
  return changes.length + Math.floor(bytes / BYTES_OF_SIZE);
}

/**
 * Runs the work, and repeats it while it throws `Moved`. Throws AppError `retry` if it does so too often. Repeated work takes turns by user,
 * and other work waits in `calm`, before its transaction, until the turn is over. Otherwise a user who always makes changes that are checked
 * fast could keep all others from making one. Administrators have turns of their own, and do not wait for the turns of others, whose checks may
 * wait long for a thread. They wait for others only where changes are stored (edit.ts).
 */
export type Settle = <T>(caller: Changer, work: SettledWork<T>) => Promise<T>;

type Changer = Pick<Caller, 'principal' | 'managesAll'>;

const isAdmin = ({ principal, managesAll }: Changer): boolean => managesAll === true && principal.granted.role === ADMIN;

/** `isLast`: the work is not repeated any more. */
type SettledWork<T> = (calm: Calm, isLast: boolean) => Promise<T>;

/** `size`: what `sizeOf` returns for the change that the work is about to store. Throws AppError `too_many_requests`. */
type Calm = (size?: number) => Promise<void>;

/** `compiled` resolves when the gateway decides by the stored policies. */
export function createSettle(compiled: () => Promise<unknown>, turnMs = TURN_MS, { small, rate } = LARGE): Settle {
  const rested = createRests(compiled, turnMs);
  const all = { perSecond: CALLERS * rate.perSecond, burst: CALLERS * rate.burst };
  const stored = createFlow({ perKey: rate, all }, () => performance.now());
  const newLine = () => ({ inTurn: createTurns(), turn: Promise.resolve() });
  const [ofAdmins, ofOthers] = [newLine(), newLine()];

  async function repeated<T>(work: (isLast: boolean) => Promise<T>): Promise<T> {
    for (let tried = 2; tried <= TRIES; tried++) {
      try {
        return await work(tried === TRIES);
      } catch (error) {
        if (!(error instanceof Moved)) throw error;
      }
    }
    const detail = `The change was not stored: policies or invariants changed ${TRIES} times while the gateway checked it. Repeat the request.`;
    throw new AppError('retry', detail, { retryAfter: 1 });
  }

  return (caller, work) =>
    isAdmin(caller)
      ? settled(caller, work)
      : rested(caller.principal.sub, () => (caller.managesAll === true ? settled(caller, work) : limited(caller, work)));

  async function limited<T>(caller: Changer, work: SettledWork<T>): Promise<T> {
    const { sub } = caller.principal;
    let stores = 0;
    const counted: SettledWork<T> = (calm, isLast) =>
      work(async (size = 0) => {
        stores = size > small ? size : 0;
        const wait = stores === 0 ? 0 : Math.ceil(stored.wait(sub));
        if (wait > 0) throw tooLarge(small, wait);
        await calm();
      }, isLast);
    const result = await settled(caller, counted);
    if (stores > 0) stored.charge(sub, stores);
    return result;
  }

  async function settled<T>(caller: Changer, work: SettledWork<T>): Promise<T> {
    const { principal } = caller;
    const line = isAdmin(caller) ? ofAdmins : ofOthers;
    try {
      return await work(async () => void (await Promise.all([ofAdmins.turn, line.turn])), false);
    } catch (error) {
      if (!(error instanceof Moved)) throw error;
    }
    const { result } = await line.inTurn(principal.sub, async () => {
      const result = repeated((isLast) => work(async () => (line === ofAdmins ? undefined : ofAdmins.turn), isLast));
      line.turn = Promise.race([result.then(ignore, ignore), delay(turnMs, undefined, { ref: false })]);
      await line.turn;
      return { result };
    });
    return result;
  }
}

function tooLarge(small: number, retryAfter: number): AppError {
  const detail = `The change was not stored: all requests wait while a change of more than ${small} policies is stored, and there were many lately. Try again in ${retryAfter} s, or change at most ${small} policies at once (${BYTES_OF_SIZE / BYTES_OF_SUBJECT} subjects, or ${BYTES_OF_SIZE} bytes of them, count as one more). An administrator can make the change now.`;
  return new AppError('too_many_requests', detail, { retryAfter });
}

/** Runs one piece of work of a caller at a time, with rests between them while other callers send requests. */
function createRests(compiled: () => Promise<unknown>, turnMs: number): InTurn {
  const lines = new Map<string, { readonly inTurn: InTurn; left: number }>();
  return (caller, work) => {
    const line = lines.get(caller) ?? { inTurn: createTurns(), left: 0 };
    lines.set(caller, line);
    line.left++;
    return new Promise((resolve, reject) => {
      const withRest = async (): Promise<void> => {
        const rest = restAfter(REST, LONGEST_REST_MS);
        const ended = work().then(resolve, reject);
        await Promise.race([ended, delay(turnMs, undefined, { ref: false })]);
        await compiled().catch(ignore);
        await rest();
      };
      const over = (): void => {
        line.left--;
        if (line.left === 0) lines.delete(caller);
      };
      line.inTurn(caller, withRest).catch(reject).finally(over);
    });
  };
}

const ignore = (): void => {};
