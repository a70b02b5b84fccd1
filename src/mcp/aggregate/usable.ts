/** The targets of a session at the aggregate endpoint at this moment, and whether the session is still live. */

import { principalKey } from '../../auth/principal.ts';
import { inTurnOf } from '../../base/caller-turns.ts';
import { signalOf } from '../../base/cancellation.ts';
import { deferred } from '../../base/promises.ts';
import type { RpcRequest } from '../../protocol/message.ts';
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { authorizeUse, ifRecorded, recordEnd } from '../context/authorize.ts';
import { type Caller, REVOKED, type SessionMessage } from '../context/context.ts';
import { askedAt, type SessionTarget, sessionAt } from '../context/upstream-opening.ts';
import { AGGREGATE, type Session, type UpstreamSession } from '../sessions/sessions.ts';
import type { Attempt } from '../upstream/pace.ts';
import { isFault, type Upstream } from '../upstream/upstream.ts';

/** A request of a session that has not ended. */
export type LivePosted = SessionMessage<RpcRequest> & { readonly session: Session };

/** The targets that the caller may use, ordered by name. */
export function usableTargets(admission: Admission): RoutedTarget[] {
  return [...admission.snapshot.targets.values()]
    .filter((target) => mayUseTarget(admission, target))
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}

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
    const sessionTarget = sessionAt(session, target, admission);
    const link = deps.links.open(sessionTarget) ?? (await deps.links.newest(sessionTarget));
    return link === null ? [] : [[target, link] as const];
  });
  return (await Promise.all(found)).flat();
}

/** The requests to targets that are under way at once for requests of one principal to all targets. */
const ASKED_AT_ONCE = 16;

/** Does the work for each target. A request to a hundred targets takes turns with the requests of others. */
export function forEach<T, R>({ claims }: Caller, targets: readonly T[], work: (target: T) => Promise<R>): Promise<R>[] {
  const key = `targets of ${principalKey(claims)}`;
  return targets.map((target) => inTurnOf(key, ASKED_AT_ONCE, () => work(target)));
}

/** Resolves when the stream of one more target may be opened. The number of streams has a limit of its own. */
export const turnToConnect = ({ claims }: Caller): Promise<void> =>
  inTurnOf(`streams of ${principalKey(claims)}`, Number.POSITIVE_INFINITY, async () => undefined);

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

/**
 * Returns what `ask` returns for one of several targets, or null if the target answers too late for the others to wait. A late
 * target is asked in the background. The request is recorded before null is returned, unless the database itself is late.
 */
export async function askAmong<T>(
  caller: Caller,
  sessionTarget: SessionTarget,
  method: string,
  ask: (aimed: Caller) => Promise<T>,
): Promise<T | null> {
  const { deps } = caller;
  const asked = askedAt(sessionTarget);
  let attempt: Attempt | null = null;
  let hasAnswered = false;
  const sent = deferred();
  const upstream: Upstream = {
    ...deps.upstream,
    async send(request) {
      if (deps.pace.isAsking(asked, method)) return { fault: 'suspended' };
      attempt?.ended(true);
      attempt = deps.pace.begin(asked, method);
      sent.resolve();
      const answer = await deps.upstream.send(request);
      hasAnswered = !isFault(answer) && answer.status < 500;
      return answer;
    },
  };
  // When the gateway records the names in an answer, the target has answered.
  const shown: typeof deps.audit.shown = (record) => {
    attempt?.ended(true);
    return deps.audit.shown(record);
  };
  const among = { ...deps, upstream, links: { ...deps.links, current: deps.links.joined }, audit: { ...deps.audit, shown } };
  const late = new AbortController();
  const waited = deferred<null>();
  const timer = setTimeout(() => {
    if (attempt?.overdue()) deps.health.failed({ ...asked, list: method }, 'timeout');
    late.abort(REVOKED);
    waited.resolve(null);
  }, deps.limits.joinMs);
  const gone = AbortSignal.any([signalOf(caller.gone), late.signal]);
  const work = ask({ ...caller, deps: among, targetName: sessionTarget.target.name, gone })
    .catch(() => null)
    .finally(() => {
      clearTimeout(timer);
      attempt?.ended(hasAnswered && !late.signal.aborted);
    });
  return Promise.race([work, waited.promise, sent.promise.then(() => deps.pace.wait(asked, method, work))]);
}
