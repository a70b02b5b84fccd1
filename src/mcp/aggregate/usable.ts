/** The targets of a session at the aggregate endpoint at this moment, and whether the session is still live. */

import { principalKey } from '../../auth/principal.ts';
import { AppError } from '../../base/errors.ts';
import { perObject } from '../../base/kept.ts';
import { inTurnOf } from '../../base/turns/caller-turns.ts';
import { type Answer, problem, problemUnavailable, tooManyCalls, unavailable } from '../../protocol/answer.ts';
import type { RpcId, RpcRequest } from '../../protocol/message.ts';
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { authorizeUse, ifRecorded, recordEnd } from '../context/authorize.ts';
import type { Caller, SessionMessage } from '../context/context.ts';
import { readmit, readmitted } from '../context/readmission.ts';
import { ASKED_AT_ONCE, sessionAt, turnToAsk } from '../context/upstream-opening.ts';
import { AGGREGATE, type Session, type UpstreamSession } from '../sessions/sessions.ts';

/** A request of a session that has not ended. */
export type LivePosted = SessionMessage<RpcRequest> & { readonly session: Session };

/** The targets that the caller may use, ordered by name. */
export const usableTargets = perObject((admission: Admission): readonly RoutedTarget[] =>
  [...admission.snapshot.targets.values()]
    .filter((target) => mayUseTarget(admission, target))
    .sort((a, b) => (a.name < b.name ? -1 : 1)),
);

/**
 * Returns the session; null: it has ended. At a target's own endpoint, the target refuses a session that the client has ended. Here
 * the gateway itself answers some requests, so it must read the row of the session.
 */
export async function live(
  { deps, admission: { snapshot } }: Caller,
  session: Session | null,
): Promise<Session | null | 'unreadable'> {
  if (session?.fingerprint !== AGGREGATE || snapshot.sessions.ended.has(session.id)) return null;
  try {
    return (await deps.sessions.find(session.id)) === null ? null : session;
  } catch (err) {
    deps.log.error({ err }, 'looking up a session failed; the message is refused');
    return 'unreadable';
  }
}

/** The targets with an upstream session for this session, opened by this replica or another one. */
export async function upstreamSessionsOf(
  caller: Caller,
  session: Session,
): Promise<(readonly [RoutedTarget, UpstreamSession])[]> {
  const { deps, admission } = caller;
  const found = forEach(caller, usableTargets(admission), async (target) => {
    const sessionTarget = sessionAt(session, target, caller);
    const link = deps.links.open(sessionTarget) ?? (await deps.links.newest(sessionTarget));
    return link === null ? [] : [[target, link] as const];
  });
  return (await Promise.all(found)).flat();
}

/** How many messages of one principal ask all targets at once. */
const WIDE_AT_ONCE = 4;

/**
 * Does the work that a message to all targets causes. The others of the same principal wait, and above a limit they are refused: each of
 * them makes hundreds of requests, and a batch has fifty messages. A request whose client has left while it waited is not begun.
 */
export async function amongAll(caller: Caller, id: RpcId | null, work: (now: Caller) => Promise<Answer>): Promise<Answer> {
  const answer = await inWideTurn(caller, id !== null, work);
  return answer === 'too many' ? tooManyCalls(id) : (answer ?? unavailable(id));
}

/** The same for the work of a GET, which is not begun if its client has left, or of a DELETE. */
export async function amongAllBodiless(
  caller: Caller,
  method: 'GET' | 'DELETE',
  work: (now: Caller) => Promise<Answer>,
): Promise<Answer> {
  const answer = await inWideTurn(caller, method === 'GET', work);
  if (answer !== 'too many') return answer ?? problemUnavailable(null);
  const text = 'Too many of your requests to all targets are under way; wait for one to end.';
  return problem(new AppError('too_many_requests', text, { retryAfter: 1 }));
}

/** null: the client is needed and has left, or the caller is refused by now. */
async function inWideTurn<T>(
  caller: Caller,
  needsClient: boolean,
  work: (now: Caller) => Promise<T>,
): Promise<T | 'too many' | null> {
  const { claims, deps, gone } = caller;
  const leave = deps.wide.take(claims);
  if (leave === null) return 'too many';
  const begun = async (): Promise<T | null> => {
    const isLeft = needsClient && gone.aborted;
    const now = isLeft ? null : await readmitted(caller);
    return now && work(now);
  };
  return inTurnOf(`all targets of ${principalKey(claims)}`, WIDE_AT_ONCE, begun).finally(leave);
}

/** Tells the targets of a new session that its client is ready. Returns whether it has waited for any. */
export const beginSession = (caller: Caller, session: Session): Promise<boolean> =>
  caller.deps.links.begin(session, caller.admission.principal, () => readmit(caller));

/**
 * Does the work for each target. A request to a hundred targets takes turns with the requests of others. The work is done with the caller as of its
 * turn. Rejects with AppError `unavailable` if the caller is refused by then.
 */
export function forEach<T, R>(caller: Caller, targets: readonly T[], work: (target: T, now: Caller) => Promise<R>): Promise<R>[] {
  return targets.map((target) =>
    turnToAsk(caller.claims, async () => {
      const now = await readmitted(caller);
      if (now === null) throw new AppError('unavailable', 'Your access has changed while the request waited.', { retryAfter: 1 });
      return work(target, now);
    }),
  );
}

/**
 * The same, but the work for a target begins only if `mayBegin` resolves with true, and the caller is not refused by then. Otherwise the result
 * for the target is null. `mayBegin` is called for the targets in their order, for ASKED_AT_ONCE of them at a time. No turn is taken until it has resolved.
 */
export async function forEachWhile<T, R>(
  caller: Caller,
  targets: readonly T[],
  mayBegin: () => Promise<boolean>,
  work: (target: T, now: Caller) => Promise<R>,
): Promise<(R | null)[]> {
  const results: (R | null)[] = targets.map(() => null);
  const rest = targets.entries();
  // All loops take their targets from one iterator, so the work begins in the order of the targets.
  const loop = async (): Promise<void> => {
    for (const [index, target] of rest) {
      if (!(await mayBegin())) continue;
      results[index] = await turnToAsk(caller.claims, async () => {
        const now = await readmitted(caller);
        return now && work(target, now);
      });
    }
  };
  await Promise.all(Array.from({ length: Math.min(ASKED_AT_ONCE, targets.length) }, loop));
  return results;
}

/** Resolves when the stream of one more target may be opened. The number of streams has a limit of its own. */
export const turnToConnect = ({ claims }: Caller): Promise<void> =>
  inTurnOf(`streams of ${principalKey(claims)}`, null, async () => undefined);

/** Records a request to all targets when the caller may use none. False: it could not be recorded. */
export async function recordEmptyAggregate(caller: Caller, method: string): Promise<boolean> {
  const verdict = await ifRecorded(caller, authorizeUse({ ...caller, targetName: AGGREGATE }, method));
  if (verdict !== null) recordEnd(caller, verdict, 'denied');
  return verdict !== null;
}

/**
 * Notes recording failures of a request to several targets: if it cannot be recorded for one target, it is refused as a whole.
 */
export function noting(caller: Caller): { readonly noted: Caller; readonly isUnrecorded: () => boolean } {
  const { deps } = caller;
  let unrecorded = false;
  const watched = (recording: Promise<void>): Promise<void> =>
    recording.catch((cause: unknown) => {
      unrecorded = true;
      throw cause;
    });
  const audit: typeof deps.audit = {
    decision: (record, cause) => watched(deps.audit.decision(record, cause)),
    shown: (record) => watched(deps.audit.shown(record)),
    outcome: (record) => deps.audit.outcome(record),
  };
  return { noted: { ...caller, deps: { ...deps, audit } }, isUnrecorded: () => unrecorded };
}
