/** GET and DELETE at the aggregate endpoint: the standalone stream and the end of a session. */

import { setTimeout as sleep } from 'node:timers/promises';
import { signalOf } from '../../base/cancellation.ts';
import { AppError } from '../../base/errors.ts';
import { type Answer, type OutEvent, problem, problemUnavailable } from '../../protocol/answer.ts';
import type { Operation } from '../../protocol/operation.ts';
import type { Admission } from '../../state/admission.ts';
import type { Access, RoutedTarget } from '../../targets/target.ts';
import { createMerge } from '../answers/merge.ts';
import { forwardStream } from '../answers/upstream-messages.ts';
import { authorize, authorizeUse, ifRecorded, recordEnd, type Verdict } from '../context/authorize.ts';
import { type Caller, type ClaimedSession, contextOf } from '../context/context.ts';
import { callerOfStream, readmitted, stillUsable } from '../context/readmission.ts';
import { askedAt, sessionAt } from '../context/upstream-opening.ts';
import {
  EVENT_GONE,
  endSession,
  operationOf,
  resumedRequest,
  SESSION_GONE,
  SESSION_MISSING,
} from '../requests/session-messages.ts';
import { sendTo } from '../requests/session-requests.ts';
import { bindingNow, type Connected, connectAt, listChanged, rightsOf } from '../requests/standalone-stream.ts';
import {
  fingerprintOf,
  LIST_KINDS,
  openEventId,
  type ResumePoint,
  type Session,
  type SessionPair,
} from '../sessions/sessions.ts';
import { isFault } from '../upstream/upstream.ts';
import { renamedEvents } from './aggregate.ts';
import { splitName } from './names.ts';
import {
  amongAllBodiless,
  beginSession,
  forEach,
  forEachWhile,
  live,
  recordEmptyAggregate,
  turnToConnect,
  upstreamSessionsOf,
  usableTargets,
} from './usable.ts';

/** The first pause before the gateway reconnects to a target's stream, and the longest. */
const RETRY_MS = 1_000;
const MAX_RETRY_MS = 60_000;
/** How often a stream tells its client at most that targets answer again. */
const RECOVERED_EVERY_MS = 1_000;

async function liveSession(caller: Caller, claimed: ClaimedSession): Promise<Session | Answer> {
  if (claimed === 'missing') return problem(SESSION_MISSING);
  const session = await live(caller, claimed);
  return session === 'unreadable' ? problemUnavailable(null) : (session ?? problem(SESSION_GONE));
}

/** The point at which the client resumes a stream. */
interface Resumed {
  readonly target: RoutedTarget;
  readonly eventId: string;
  readonly point: ResumePoint;
}

/** Merges the standalone streams of all usable targets into one. Targets join and leave as the caller's access changes. */
export async function getAggregate(caller: Caller, claimed: ClaimedSession, lastEventId: string | undefined): Promise<Answer> {
  const session = await liveSession(caller, claimed);
  if ('kind' in session) return session;
  const resumed = lastEventId === undefined ? null : await resume(caller, session, lastEventId);
  if (lastEventId !== undefined && resumed === null) return problem(EVENT_GONE);
  // An answer is resumed at one target, so it does not wait for the requests to all targets.
  if (resumed !== null && resumed.point.origin !== null) return resumeAnswer(caller, session, resumed);
  return amongAllBodiless(caller, 'GET', (now) => openStream(now, session, resumed));
}

async function openStream(caller: Caller, session: Session, resumed: Resumed | null): Promise<Answer> {
  const targets = usableTargets(caller.admission);
  if (targets.length === 0 && !(await recordEmptyAggregate(caller, 'GET'))) return problemUnavailable(null);
  const recorded = new Set<string>();
  let isUnrecorded = false;
  const record = async ({ id, name }: RoutedTarget, now: Caller): Promise<void> => {
    const allowed = await ifRecorded(now, recordGet({ ...now, targetName: name }));
    if (allowed === null) isUnrecorded = true;
    if (allowed === true) recorded.add(id);
  };
  // A client that leaves at once must not leave a hundred decisions behind.
  await forEachWhile(caller, targets, async () => !isUnrecorded && !caller.gone.aborted, record);
  if (isUnrecorded || caller.gone.aborted) return problemUnavailable(null);
  void beginSession(caller, session);
  const now = await readmitted(caller);
  if (now === null) return problemUnavailable(null);
  return { kind: 'stream', events: streams(callerOfStream(now), session, resumed, recorded), drain: false };
}

async function resumeAnswer(caller: Caller, session: Session, resumed: Resumed): Promise<Answer> {
  const { target, point } = resumed;
  const allowed = await ifRecorded(caller, recordGet({ ...caller, targetName: target.name }, operationOf(point.origin)));
  if (allowed === null) return problemUnavailable(null);
  void beginSession(caller, session);
  const now = await readmitted(caller);
  if (now === null) return problemUnavailable(null);
  const isAllowed = allowed && stillUsable(now.admission, target.name, target) !== null;
  return isAllowed ? restOfAnswer(now, session, resumed) : problem(EVENT_GONE);
}

/**
 * null: not an event of this session. An event of a replaced upstream session is accepted, but the stream cannot resume from it.
 */
async function resume(caller: Caller, session: Session, lastEventId: string): Promise<Resumed | null> {
  const { admission, deps } = caller;
  const aimed = splitName(lastEventId);
  const target = usableTargets(admission).find(({ name }) => name === aimed?.targetName);
  if (aimed === null || target === undefined) return null;
  // Nothing is recorded yet, so nothing may be opened.
  const sessionTarget = sessionAt(session, target, caller);
  const link = deps.links.open(sessionTarget) ?? (await deps.links.newest(sessionTarget));
  const half = link ?? { upstreamId: null, revision: session.revision };
  const point = openEventId(deps.seal, admission.principal, target.name, { session, link: half }, aimed.name);
  return point && { target, eventId: aimed.name, point };
}

async function recordGet(caller: Caller, operation: Operation = { kind: 'target' }): Promise<boolean> {
  const verdict = await authorize(caller, { method: 'GET', operation });
  recordEnd(caller, verdict, verdict.allowed ? 'ok' : 'denied');
  return verdict.allowed;
}

/** Resumes the stream of one answer that broke off. Only its target sends on it, because each message goes to one stream. */
async function restOfAnswer(caller: Caller, session: Session, resumed: Resumed): Promise<Answer> {
  const { target, point } = resumed;
  const { origin } = point;
  const own = callerOfStream(caller, target.name);
  const sessionTarget = sessionAt(session, target, caller);
  const reached = await connectAt(own, sessionTarget, caller.gone, () => point.eventId);
  if (reached === null || reached === 'none' || origin === null) {
    return problem(new AppError('unavailable', `The target \`${target.name}\` cannot be used`, { retryAfter: 5 }));
  }
  const awaited = resumedRequest(caller, origin);
  // Without a listener, the first admission would stay in memory (`callerOfStream`).
  caller.changes.listen(() => undefined);
  const events = forwardStream(
    { ...contextOf(own, target, 'stateful', awaited), linked: reached.linked, longLived: true },
    reached.stream,
  );
  const honest = ownProgress(own, session, events);
  return {
    kind: 'stream',
    events: renamedEvents({ caller: own, targetName: target.name, method: origin.method }, honest),
    drain: false,
  };
}

interface Connection {
  /** The name, fingerprint and binding with which it was opened (`wayTo`). */
  readonly way: string;
  readonly controller: AbortController;
  /** The target offers no stream. It is asked again when its upstream session is opened anew, and not after each change of policies. */
  isRefused: boolean;
  /** Ends the pause before the next try. */
  wake: () => void;
}

/** Everything on which a connection depends: name, fingerprint, and binding. If the text changes, the connection is replaced. */
function wayTo(admission: Admission, target: RoutedTarget): string {
  return JSON.stringify([target.name, fingerprintOf(target), bindingNow(admission, target)]);
}

/** `caller`: a `callerOfStream`. */
async function* streams(
  caller: Caller,
  session: Session,
  resumed: Resumed | null,
  recorded: Set<string>,
): AsyncGenerator<OutEvent> {
  const { deps } = caller;
  const merged = createMerge<OutEvent>();
  const connections = new Map<string, Connection>();
  /** The id of the last event on each connection, by `way`. */
  const lastIds = new Map(resumed === null ? [] : [[wayTo(caller.admission, resumed.target), resumed.eventId]]);

  /** Reconnects to the target's stream while the caller may use the target: targets restart, and some end their streams. */
  async function follow(target: RoutedTarget, connection: Connection): Promise<void> {
    const signal = AbortSignal.any([signalOf(caller.gone), connection.controller.signal]);
    const own = callerOfStream(caller, target.name);
    let pause = RETRY_MS;
    await turnToConnect(caller);
    while (!signal.aborted) {
      const reached = await reach(own, target, connection, signal);
      if (reached === 'denied') return;
      if (reached === 'none') {
        connection.isRefused = true;
        return;
      }
      if (reached !== null) {
        const { stream, linked, access } = reached;
        const began = deps.now();
        const context = { ...contextOf(own, target, 'stateful', null), access, linked, longLived: true };
        const events = forwardStream(context, stream);
        const noted = noting(events, (id) => {
          lastIds.set(connection.way, id);
        });
        await merged.add(renamedEvents({ caller: own, targetName: target.name, method: '' }, ownProgress(own, session, noted)));
        if (deps.now() - began > pause) pause = RETRY_MS;
      }
      const woken = new AbortController();
      connection.wake = () => woken.abort();
      await sleep(pause, undefined, { ref: false, signal: AbortSignal.any([signal, woken.signal]) }).catch(() => undefined);
      pause = Math.min(2 * pause, MAX_RETRY_MS);
    }
  }

  /** Opens the target's stream with the caller's access of this moment. null: it cannot be opened now. */
  async function reach(
    own: Caller,
    target: RoutedTarget,
    { way }: Connection,
    signal: AbortSignal,
  ): Promise<(Connected & { readonly access: Access }) | 'none' | 'denied' | null> {
    const now = await readmitted(own);
    // The re-validation ends the connection soon, unless the target becomes usable again before.
    if (now === null || stillUsable(now.admission, target.name, target) === null) return null;
    if (!recorded.has(target.id)) {
      const allowed = await recordGet(now).catch(() => null);
      if (allowed === false) return 'denied';
      // If the decision cannot be recorded, it is retried like an unreachable target.
      if (allowed === null) return null;
      recorded.add(target.id);
    }
    const sessionTarget = sessionAt(session, target, now);
    const last = lastIds.get(way);
    const { principal } = now.admission;
    const after = (linked: SessionPair): string | null =>
      last === undefined ? null : (openEventId(deps.seal, principal, target.name, linked, last)?.eventId ?? null);
    const reached = await connectAt(now, sessionTarget, signal, after);
    return reached === null || reached === 'none' ? reached : { ...reached, access: sessionTarget.access };
  }

  function connect(): void {
    const { admission } = caller;
    const targets = new Map(usableTargets(admission).map((target) => [target.id, target]));
    for (const [id, { way, controller }] of connections) {
      const target = targets.get(id);
      if (target !== undefined && way === wayTo(admission, target)) continue;
      controller.abort();
      connections.delete(id);
      recorded.delete(id);
    }
    for (const target of targets.values()) start(target);
  }

  function start(target: RoutedTarget): void {
    if (connections.has(target.id)) return;
    const connection: Connection = {
      way: wayTo(caller.admission, target),
      controller: new AbortController(),
      isRefused: false,
      wake: () => undefined,
    };
    connections.set(target.id, connection);
    follow(target, connection)
      .catch((err: unknown) => deps.log.error({ err, target: target.name }, 'opening the stream of a target failed'))
      .finally(() => {
        if (connections.get(target.id) === connection && !connection.isRefused) connections.delete(target.id);
      });
  }

  const seen = (admission: Admission): string =>
    JSON.stringify(usableTargets(admission).map((target) => [wayTo(admission, target), rightsOf(admission, target)]));
  let rights = seen(caller.admission);
  const leave = caller.changes.listen((admission) => {
    const rightsNow = seen(admission);
    if (rightsNow === rights) return;
    rights = rightsNow;
    for (const kind of LIST_KINDS) merged.push({ data: listChanged(kind) }, kind);
    connect();
  });
  const stop = (): void => merged.end();
  caller.gone.addEventListener('abort', stop, { once: true });
  const leaveEnd = deps.inFlight.onEnd(session.id, stop);
  // If an upstream session is opened later, because its target was down, its stream is opened, too.
  const leaveLinks = deps.links.onOpened(session, (targetId) => {
    const connection = connections.get(targetId);
    const target = usableTargets(caller.admission).find(({ id }) => id === targetId);
    if (connection?.isRefused) connections.delete(targetId);
    else connection?.wake();
    if (target !== undefined) start(target);
  });
  // Targets that were missing from the client's lists answer again. A target that fails every other time must not keep all clients busy.
  const recoveredIds = new Set<string>();
  let toldAt = Number.NEGATIVE_INFINITY;
  let telling: NodeJS.Timeout | undefined;
  const tellRecovered = (): void => {
    telling = undefined;
    toldAt = performance.now();
    for (const kind of LIST_KINDS) merged.push({ data: listChanged(kind) }, kind);
    for (const id of recoveredIds) connections.get(id)?.wake();
    recoveredIds.clear();
  };
  const recovered = (targetId: string, missed: ReadonlySet<string> | null = null): void => {
    if (missed?.has(caller.claims.sub) === false) return;
    if (!usableTargets(caller.admission).some(({ id }) => id === targetId)) return;
    recoveredIds.add(targetId);
    telling ??= setTimeout(tellRecovered, Math.max(0, toldAt + RECOVERED_EVERY_MS - performance.now())).unref();
  };
  const leaveHealth = deps.health.onRecovered(recovered);
  const leavePace = deps.pace.onRecovered(recovered);
  if (caller.gone.aborted) stop();
  else connect();
  try {
    yield* merged.items;
  } finally {
    leave();
    clearTimeout(telling);
    leaveHealth();
    leavePace();
    leaveEnd();
    leaveLinks();
    caller.gone.removeEventListener('abort', stop);
    for (const { controller } of connections.values()) controller.abort();
  }
}

/** Notes the ids of events, and removes `retry`: a single target must not set when the client reconnects. */
async function* noting(events: AsyncIterable<OutEvent>, note: (id: string) => void): AsyncGenerator<OutEvent> {
  for await (const event of events) {
    const { retry: _, ...kept } = event;
    event.data = '';
    if (kept.id !== undefined) note(kept.id);
    if (kept.data !== '' || kept.id !== undefined) yield kept;
  }
}

/** Drops progress that a target reports for a request to a different target. Clients number their requests across targets. */
async function* ownProgress(
  { deps, targetName }: Caller,
  session: Session,
  events: AsyncIterable<OutEvent>,
): AsyncGenerator<OutEvent> {
  for await (const event of events) {
    const { progressToken: token } = event;
    const at = token === undefined ? null : deps.inFlight.of(session.id, 'token', token);
    if (at === null || at === targetName) yield event;
  }
}

/**
 * Ends the session first, so that no new upstream session is opened meanwhile. Then it ends the upstream sessions at targets
 * that the caller may still use. Other upstream sessions end when their targets time them out.
 */
export const deleteAggregate = (caller: Caller, claimed: ClaimedSession): Promise<Answer> =>
  amongAllBodiless(caller, 'DELETE', (now) => endEverywhere(now, claimed));

async function endEverywhere(caller: Caller, claimed: ClaimedSession): Promise<Answer> {
  const session = await liveSession(caller, claimed);
  if ('kind' in session) return session;
  try {
    const halves = await upstreamSessionsOf(caller, session);
    const verdicts = await Promise.all(
      forEach(caller, halves, ([{ name }], now) => authorizeUse({ ...now, targetName: name }, 'DELETE')),
    );
    const ended = await endSession(caller, session);
    caller.deps.inFlight.end(session.id);
    const ending = halves.map(([target, link], index) => ({ target, link, verdict: verdicts[index] }));
    await Promise.all(
      forEach(caller, ending, ({ target, link, verdict }, now) => endAt(now, { session, link }, target, verdict)),
    );
    return ended ? { kind: 'empty', status: 200 } : problem(SESSION_GONE);
  } catch (err) {
    caller.deps.log.error({ err }, 'recording the end of a session failed; the request is refused');
    return problemUnavailable(err);
  }
}

async function endAt(caller: Caller, linked: SessionPair, target: RoutedTarget, verdict: Verdict | undefined): Promise<void> {
  const { deps } = caller;
  if (verdict?.allowed !== true) return;
  if (stillUsable(caller.admission, target.name, target) === null) return recordEnd(caller, verdict, 'denied');
  const sessionTarget = sessionAt(linked.session, target, caller);
  const signal = AbortSignal.timeout(deps.limits.openMs);
  const attempt = deps.pace.begin(askedAt(sessionTarget), 'DELETE');
  const ending = sendTo(caller, sessionTarget, linked.link, { method: 'DELETE', signal }).then((answer) => {
    attempt.ended(!isFault(answer));
    if (!isFault(answer)) answer.discard();
    recordEnd(caller, verdict, isFault(answer) || answer.status > 299 ? 'upstream_error' : 'ok');
  });
  await deps.pace.wait(askedAt(sessionTarget), 'DELETE', ending);
}
