/** Session messages besides requests: notifications, answers to the target's requests, the standalone stream, and DELETE. */

import { signalOf } from '../../base/cancellation.ts';
import { AppError } from '../../base/errors.ts';
import { isObject, type JsonValue } from '../../base/json/json.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import {
  ACCEPTED,
  type Answer,
  noSession,
  noTargetText,
  problem,
  problemUnavailable,
  refuse,
  tooManyCalls,
  unavailable,
} from '../../protocol/answer.ts';
import { CODES, type RpcNotification, type RpcResponse } from '../../protocol/message.ts';
import { type Operation, readOperation } from '../../protocol/operation.ts';
import { type Located, type MemberTexts, rebuildCall, rebuildResponse } from '../../protocol/rebuild.ts';
import { authorize, authorizeUse, ifRecorded, recordEnd, type Verdict } from '../context/authorize.ts';
import { type AwaitedRequest, type Caller, type ClaimedSession, contextOf, type SessionMessage } from '../context/context.ts';
import { callerOfStream } from '../context/readmission.ts';
import { taskScopeAt } from '../context/tasks-of-caller.ts';
import { sessionAt } from '../context/upstream-opening.ts';
import { ENDED, isUpstreamSessionFailure, type UpstreamSessionFailure } from '../context/upstream-sessions.ts';
import {
  fingerprintOf,
  isSessionAt,
  openAskedId,
  openEventId,
  type ResumePoint,
  type Session,
  type StreamOrigin,
  type UpstreamSession,
} from '../sessions/sessions.ts';
import { inwardMeta, type TaskScope } from '../sessions/tasks.ts';
import { isFault, type UpstreamAnswer } from '../upstream/upstream.ts';
import { sendInSession, sendTo } from './session-requests.ts';
import { standaloneStream } from './standalone-stream.ts';

/** Sent only to targets that may ask for the roots; other targets know of none. */
const ROOTS_CHANGED = 'notifications/roots/list_changed';

/** Forwards a notification. Its sender gets no answer, so a denied one is recorded and dropped. */
export async function handleNotification(
  caller: Caller,
  { session, message, located }: SessionMessage<RpcNotification>,
): Promise<Answer> {
  const target = caller.admission.snapshot.targets.get(caller.targetName);
  const meta = message.params?._meta;
  const replaced = isObject(meta) && target !== undefined ? { _meta: inwardMeta(meta, taskScopeAt(caller, target)) } : {};
  const body = rebuildCall(message, located, replaced);
  return inSlot(caller, () => post(caller, session, message.method, body, null));
}

/** Forwards the client's answer to a request that the target sent on this very session. Any other answer is refused. */
export async function handleResponse(
  caller: Caller,
  { session, message, located }: SessionMessage<RpcResponse>,
): Promise<Answer> {
  // In a session that does not exist, the target cannot have sent a request.
  if (session === null) return noSession(null);
  const { principal, snapshot } = caller.admission;
  const target = snapshot.targets.get(caller.targetName);
  if (message.id === null || target === undefined) return answersNothing();
  const asked = openAskedId(caller.deps.seal, principal, fingerprintOf(target), session, message.id);
  if (asked === null) return answersNothing();
  // The target may no longer learn it, although it was allowed to ask.
  if (asked.permission !== null && !target.may_ask.includes(asked.permission)) return ACCEPTED;
  // The answer goes only to the upstream session that asked.
  const link: UpstreamSession = { upstreamId: asked.upstreamId, revision: session.revision };
  const body = rebuildResponse(asked.id, message.outcome, located, ownTaskOf(taskScopeAt(caller, target), located));
  return inSlot(caller, () => post(caller, session, asked.method, body, link));
}

export function answersNothing(): Answer {
  return refuse(null, { status: 400, code: CODES.invalidRequest, message: 'The response answers no request of this session' });
}

/** The client names the task of its answer (2025-11-25, related task metadata). The target gets its own id of that task. */
function ownTaskOf(scope: TaskScope, located: Located): MemberTexts {
  const text = located.span.members?.get('result')?.members?.get('_meta');
  // A `_meta` of this size is not parsed just to find a task; it is removed.
  if (text !== undefined && text.end - text.start > LARGE_TEXT) return { _meta: null };
  const meta: JsonValue = text === undefined ? null : (JSON.parse(located.text.slice(text.start, text.end)) as JsonValue);
  return isObject(meta) ? { _meta: JSON.stringify(inwardMeta(meta, scope)) } : {};
}

/** Does the work in one of the caller's slots: a target that hangs must not collect any number of messages. */
function inSlot(caller: Caller, work: () => Promise<Answer>): Promise<Answer> | Answer {
  const leave = caller.deps.messages.take(caller.claims);
  return leave === null ? tooManyCalls(null) : work().finally(leave);
}

/**
 * Decides, records and forwards a message. `to` null: to the upstream session in use now. A message that is not forwarded is decided,
 * too: otherwise its answer would tell that the target exists (law 10).
 */
async function post(
  caller: Caller,
  session: Session | null,
  method: string,
  body: string,
  to: UpstreamSession | null,
): Promise<Answer> {
  const { deps } = caller;
  const verdict = await ifRecorded(caller, authorizeUse(caller, method));
  if (verdict === null) return unavailable(null);
  if (!verdict.allowed) {
    recordEnd(caller, verdict, 'denied');
    return ACCEPTED;
  }
  const { target } = verdict;
  if (session === null || !isSessionAt(session, target, caller.admission.snapshot.sessions)) return lost(caller, verdict);
  if (method === ROOTS_CHANGED && !target.may_ask.includes('roots')) {
    recordEnd(caller, verdict, 'ok');
    return ACCEPTED;
  }
  const sessionTarget = sessionAt(session, target, caller);
  const link = to ?? (await deps.links.current(sessionTarget));
  if (link === ENDED) return lost(caller, verdict);
  if (isUpstreamSessionFailure(link)) return missed(caller, verdict, link);
  const answer = await sendTo(caller, sessionTarget, link, { method: 'POST', body });
  if (isFault(answer)) return missed(caller, verdict, answer);
  answer.discard();
  if (answer.status === 404 && link.upstreamId !== null && to === null) {
    // The message was meant for the lost upstream session and is not repeated. The next message finds the successor.
    const successor = await deps.links.replace(sessionTarget, link);
    if (successor === ENDED) return lost(caller, verdict);
  }
  recordEnd(caller, verdict, answer.status < 300 ? 'ok' : 'upstream_error');
  return ACCEPTED;
}

function missed(caller: Caller, verdict: Verdict, failure: UpstreamSessionFailure): Answer {
  if ('fault' in failure) {
    caller.deps.log.warn(
      { target: caller.targetName, fault: failure.fault, err: failure.cause },
      'message did not reach its target',
    );
  }
  recordEnd(caller, verdict, 'upstream_error');
  return ACCEPTED;
}

function lost(caller: Caller, verdict: Verdict): Answer {
  recordEnd(caller, verdict, 'upstream_error');
  return noSession(null);
}

export const SESSION_GONE = new AppError('not_found', 'Session not found');
export const EVENT_GONE = new AppError('not_found', 'The event id is not one of this session');
export const SESSION_MISSING = new AppError('invalid_request', 'The Mcp-Session-Id header is missing.');

/** Opens the standalone stream of a session, or resumes a stream that broke off. */
export async function handleGet(caller: Caller, claimed: ClaimedSession, lastEventId: string | undefined): Promise<Answer> {
  const { deps } = caller;
  const { principal } = caller.admission;
  const pointAt = (link: UpstreamSession | null): ResumePoint | null => {
    if (lastEventId === undefined || claimed === null || claimed === 'missing') return null;
    return openEventId(deps.seal, principal, caller.targetName, { session: claimed, link }, lastEventId);
  };
  const passed = await pass(caller, claimed, 'GET', operationOf(pointAt(null)?.origin));
  if ('kind' in passed) return passed;
  const { verdict, target, session } = passed;
  const sessionTarget = sessionAt(session, target, caller);
  const link = await deps.links.current(sessionTarget);
  if (isUpstreamSessionFailure(link)) return refusal(caller, verdict, link);
  const resume = pointAt(link);
  if (lastEventId !== undefined && resume === null) {
    recordEnd(caller, verdict, 'error');
    return problem(EVENT_GONE);
  }
  const connection = new AbortController();
  const signal = AbortSignal.any([signalOf(caller.gone), connection.signal]);
  const sent = { method: 'GET', signal, lastEventId: resume?.eventId ?? undefined } as const;
  const reached = await sendInSession(caller, sessionTarget, sent, null);
  if ('ended' in reached || 'fault' in reached) return refusal(caller, verdict, reached);
  const { answer, linked } = reached;
  if (answer.status !== 200 || answer.type !== 'stream') return refusal(caller, verdict, answer);
  recordEnd(caller, verdict, 'ok');
  const origin = linked.link === link ? (resume?.origin ?? null) : null;
  const awaited = origin && resumedRequest(caller, origin);
  const context = { ...contextOf(callerOfStream(caller), target, 'stateful', awaited), linked, longLived: true };
  return { kind: 'stream', events: standaloneStream(context, answer, connection), drain: false };
}

/** What a stream, and the request to open it, is decided on. `origin` absent: the stream carries no answer. */
export function operationOf(origin: StreamOrigin | null | undefined): Operation {
  if (origin == null) return { kind: 'target' };
  if (origin.object !== null) return { kind: 'object', object: origin.object, canonical: true };
  // Only lists need more than the method's name.
  const read = readOperation('stateful', origin.method, undefined);
  return 'kind' in read ? read : { kind: 'target' };
}

/** The request whose answer a resumed stream carries. */
export function resumedRequest({ deps, arrivedAt }: Caller, origin: StreamOrigin): AwaitedRequest {
  return {
    ...origin,
    params: undefined,
    operation: operationOf(origin),
    end(outcome) {
      if (outcome !== null && outcome !== 'cancelled') recordEnd({ deps, arrivedAt }, origin, outcome);
    },
  };
}

export async function handleDelete(caller: Caller, claimed: ClaimedSession): Promise<Answer> {
  return inSlot(caller, async () => {
    const passed = await pass(caller, claimed, 'DELETE');
    if ('kind' in passed) return passed;
    try {
      return await handleEnd(caller, passed);
    } catch (err) {
      caller.deps.log.error({ err }, 'recording the end of a session failed; the request is refused');
      recordEnd(caller, passed.verdict, 'error');
      return problemUnavailable(err);
    }
  });
}

async function handleEnd(caller: Caller, { verdict, target, session }: Passed): Promise<Answer> {
  const sessionTarget = sessionAt(session, target, caller);
  // If there is no upstream session for the caller's current access, the target has nothing to end.
  const link = await caller.deps.links.newest(sessionTarget);
  if (link !== null) {
    const answer = await sendTo(caller, sessionTarget, link, { method: 'DELETE' });
    // If the target refuses to end its session, the client's session stays. If the target has lost its session, both end.
    const over = !isFault(answer) && ((answer.status >= 200 && answer.status <= 299) || answer.status === 404);
    if (!over) return refusal(caller, verdict, answer);
    answer.discard();
  }
  const ended = await endSession(caller, session);
  recordEnd(caller, verdict, ended ? 'ok' : 'error');
  return ended ? { kind: 'empty', status: 200 } : problem(SESSION_GONE);
}

/** Ends the session. False: it had already ended. */
export async function endSession({ deps }: Caller, session: Session): Promise<boolean> {
  deps.links.forget(session);
  const ended = await deps.sessions.end(session.id, 'client', deps.now());
  if (ended) deps.observe.sessionEnded(deps.now() - session.issuedAt);
  return ended;
}

interface Passed {
  readonly verdict: Verdict & { allowed: true };
  readonly target: (Verdict & { allowed: true })['target'];
  readonly session: Session;
}

/** Decides first, for a method without a JSON-RPC message, and only then checks the session. */
async function pass(
  caller: Caller,
  session: ClaimedSession,
  method: 'GET' | 'DELETE',
  operation: Operation = { kind: 'target' },
): Promise<Passed | Answer> {
  let verdict: Verdict;
  try {
    verdict = await authorize(caller, { method, operation });
  } catch (cause) {
    caller.deps.log.error({ err: cause }, 'recording a decision failed; the request is refused');
    return problemUnavailable(cause);
  }
  if (!verdict.allowed) {
    recordEnd(caller, verdict, 'denied');
    return problem(verdict.answer === 'denied' ? EVENT_GONE : new AppError('not_found', noTargetText(caller.targetName)));
  }
  const { target } = verdict;
  if (session !== null && session !== 'missing' && isSessionAt(session, target, caller.admission.snapshot.sessions)) {
    return { verdict, target, session };
  }
  recordEnd(caller, verdict, 'error');
  return problem(session === 'missing' ? SESSION_MISSING : SESSION_GONE);
}

/** The answer for a failed GET or DELETE. HTTP 405 and 404 of the target are passed on; the rest is in the gateway's words. */
function refusal(caller: Caller, verdict: Verdict, answer: UpstreamAnswer | UpstreamSessionFailure): Answer {
  if ('ended' in answer) {
    recordEnd(caller, verdict, 'error');
    return problem(SESSION_GONE);
  }
  recordEnd(caller, verdict, isFault(answer) && answer.fault === 'aborted' ? 'cancelled' : 'upstream_error');
  if (isFault(answer)) {
    if (answer.fault !== 'aborted') {
      caller.deps.log.warn({ target: caller.targetName, fault: answer.fault, err: answer.cause }, 'target could not be used');
    }
    return problem(new AppError('unavailable', `The target \`${caller.targetName}\` cannot be used`, { retryAfter: 5 }));
  }
  answer.discard();
  if (answer.status === 405) {
    return problem(new AppError('method_not_allowed', 'The target does not offer this'), { allow: 'POST' });
  }
  if (answer.status === 404) return problem(SESSION_GONE);
  return problem(
    new AppError('unavailable', `The target \`${caller.targetName}\` failed (HTTP ${answer.status})`, { retryAfter: 5 }),
  );
}
