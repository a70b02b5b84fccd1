/** Session messages besides requests: notifications, answers to the target's requests, the standalone stream, and DELETE. */

import { signalOf } from '../../base/cancellation.ts';
import { AppError } from '../../base/errors.ts';
import { isObject, type JsonValue } from '../../base/json/json.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import { authorizeUse, ifRecorded, recordEnd, type Verdict } from '../context/authorize.ts';
import {
  type AwaitedRequest,
  type Caller,
  type ClaimedSession,
  contextOf,
  type RequestDeps,
  type SessionMessage,
} from '../context/context.ts';
import { taskScopeAt } from '../context/tasks-of-caller.ts';
import { sessionAt } from '../context/upstream-opening.ts';
import { ENDED, isUpstreamSessionFailure, type UpstreamSessionFailure } from '../context/upstream-sessions.ts';
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
} from '../protocol/answer.ts';
import { CODES, type RpcNotification, type RpcResponse } from '../protocol/message.ts';
import { readOperation } from '../protocol/operation.ts';
import { type Located, type MemberTexts, rebuildCall, rebuildResponse } from '../protocol/rebuild.ts';
import {
  fingerprintOf,
  isSessionAt,
  openAskedId,
  openEventId,
  type Session,
  type StreamOrigin,
  type UpstreamSession,
  versionOf,
} from '../sessions/sessions.ts';
import { inwardMeta, type TaskScope } from '../sessions/tasks.ts';
import { isFault, type UpstreamAnswer } from '../upstream/upstream.ts';
import { sendInSession } from './session-requests.ts';
import { standaloneStream } from './standalone-stream.ts';

/** Forwarded only to targets that may ask for the roots; other targets know of none. */
const ROOTS_CHANGED = 'notifications/roots/list_changed';

/** Forwards a notification. Its sender gets no answer, so a denied one is recorded and dropped. */
export async function handleNotification(
  deps: RequestDeps,
  caller: Caller,
  { session, message, located }: SessionMessage<RpcNotification>,
): Promise<Answer> {
  const target = caller.admission.snapshot.targets.get(caller.targetName);
  if (message.method === ROOTS_CHANGED && target?.may_ask.includes('roots') === false) return ACCEPTED;
  const meta = message.params?._meta;
  const replaced = isObject(meta) && target !== undefined ? { _meta: inwardMeta(meta, taskScopeAt(deps, caller, target)) } : {};
  const body = rebuildCall(message, located, replaced);
  return inSlot(deps, caller, () => post(deps, caller, session, message.method, body, null));
}

/** Forwards the client's answer to a request that the target sent on this very session. Any other answer is refused. */
export async function handleResponse(
  deps: RequestDeps,
  caller: Caller,
  { session, message, located }: SessionMessage<RpcResponse>,
): Promise<Answer> {
  // In a session that does not exist, the target cannot have sent a request.
  if (session === null) return noSession(null);
  const { principal, snapshot } = caller.admission;
  const target = snapshot.targets.get(caller.targetName);
  if (message.id === null || target === undefined) return answersNothing();
  const asked = openAskedId(deps.seal, principal, fingerprintOf(target), session, message.id);
  if (asked === null) return answersNothing();
  // The answer goes only to the upstream session that asked.
  const link: UpstreamSession = { upstreamId: asked.upstreamId, revision: session.revision };
  const body = rebuildResponse(asked.id, message.outcome, located, ownTaskOf(taskScopeAt(deps, caller, target), located));
  return inSlot(deps, caller, () => post(deps, caller, session, asked.method, body, link));
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
function inSlot(deps: RequestDeps, caller: Caller, work: () => Promise<Answer>): Promise<Answer> | Answer {
  const leave = deps.messages.take(caller.claims);
  return leave === null ? tooManyCalls(null) : work().finally(leave);
}

/** Decides, records and forwards a message. `to` null: to the upstream session in use now. */
async function post(
  deps: RequestDeps,
  caller: Caller,
  session: Session | null,
  method: string,
  body: string,
  to: UpstreamSession | null,
): Promise<Answer> {
  const verdict = await ifRecorded(deps.log, authorizeUse(deps, caller, method));
  if (verdict === null) return unavailable(null);
  if (!verdict.allowed) {
    recordEnd(deps, caller, verdict, 'denied');
    return ACCEPTED;
  }
  const { target } = verdict;
  if (session === null || !isSessionAt(session, target, caller.admission.snapshot.sessions)) return lost(deps, caller, verdict);
  const sessionTarget = sessionAt(session, target, caller.admission);
  const link = to ?? (await deps.links.current(sessionTarget));
  if (link === ENDED) return lost(deps, caller, verdict);
  if (isUpstreamSessionFailure(link)) return missed(deps, caller, verdict, link);
  const version = versionOf(caller, { session, link });
  const answer = await deps.upstream.send({ method: 'POST', target, access: sessionTarget.access, session: link, version, body });
  if (isFault(answer)) return missed(deps, caller, verdict, answer);
  answer.discard();
  if (answer.status === 404 && link.upstreamId !== null && to === null) {
    // The message was meant for the lost upstream session and is not repeated. The next message finds the successor.
    const successor = await deps.links.replace(sessionTarget, link);
    if (successor === ENDED) return lost(deps, caller, verdict);
  }
  recordEnd(deps, caller, verdict, answer.status < 300 ? 'ok' : 'upstream_error');
  return ACCEPTED;
}

function missed(deps: RequestDeps, caller: Caller, verdict: Verdict, failure: UpstreamSessionFailure): Answer {
  if ('fault' in failure) {
    deps.log.warn({ target: caller.targetName, fault: failure.fault, err: failure.cause }, 'message did not reach its target');
  }
  recordEnd(deps, caller, verdict, 'upstream_error');
  return ACCEPTED;
}

function lost(deps: RequestDeps, caller: Caller, verdict: Verdict): Answer {
  recordEnd(deps, caller, verdict, 'upstream_error');
  return noSession(null);
}

export const SESSION_GONE = new AppError('not_found', 'Session not found');
export const SESSION_MISSING = new AppError('invalid_request', 'The Mcp-Session-Id header is missing.');

/** Opens the standalone stream of a session, or resumes a stream that broke off. */
export async function handleGet(
  deps: RequestDeps,
  caller: Caller,
  claimed: ClaimedSession,
  lastEventId: string | undefined,
): Promise<Answer> {
  const passed = await pass(deps, caller, claimed, 'GET');
  if ('kind' in passed) return passed;
  const { verdict, target, session } = passed;
  const { principal } = caller.admission;
  const sessionTarget = sessionAt(session, target, caller.admission);
  const link = await deps.links.current(sessionTarget);
  if (isUpstreamSessionFailure(link)) return refusal(deps, caller, verdict, link);
  const resume =
    lastEventId === undefined ? null : openEventId(deps.seal, principal, caller.targetName, { session, link }, lastEventId);
  if (lastEventId !== undefined && resume === null) {
    recordEnd(deps, caller, verdict, 'error');
    return problem(new AppError('not_found', 'The event id is not one of this session'));
  }
  const connection = new AbortController();
  const signal = AbortSignal.any([signalOf(caller.gone), connection.signal]);
  const from = resume?.eventId ?? null;
  const sent = { method: 'GET', target, access: sessionTarget.access, signal } as const;
  const reached = await sendInSession(deps, caller, sessionTarget, from === null ? sent : { ...sent, lastEventId: from }, null);
  if ('ended' in reached || 'fault' in reached) return refusal(deps, caller, verdict, reached);
  const { answer, linked } = reached;
  if (answer.status !== 200 || answer.type !== 'stream') return refusal(deps, caller, verdict, answer);
  recordEnd(deps, caller, verdict, 'ok');
  const origin = linked.link === link ? (resume?.origin ?? null) : null;
  const awaited = origin && resumedRequest(deps, caller, origin);
  const context = { ...contextOf(caller, target, 'stateful', awaited), linked, longLived: true };
  return { kind: 'stream', events: standaloneStream(deps, context, answer, connection), drain: false };
}

/** The request whose answer a resumed stream carries. */
export function resumedRequest(deps: RequestDeps, caller: Caller, origin: StreamOrigin): AwaitedRequest {
  // Only lists need more than the method's name.
  const read = readOperation('stateful', origin.method, undefined);
  const operation = 'kind' in read ? read : ({ kind: 'target' } as const);
  return {
    ...origin,
    params: undefined,
    operation,
    end(outcome) {
      if (outcome !== 'cancelled') recordEnd(deps, caller, origin, outcome);
    },
  };
}

export async function handleDelete(deps: RequestDeps, caller: Caller, claimed: ClaimedSession): Promise<Answer> {
  return inSlot(deps, caller, () => handleDeleteInSlot(deps, caller, claimed));
}

async function handleDeleteInSlot(deps: RequestDeps, caller: Caller, claimed: ClaimedSession): Promise<Answer> {
  const passed = await pass(deps, caller, claimed, 'DELETE');
  if ('kind' in passed) return passed;
  try {
    return await handleEnd(deps, caller, passed);
  } catch (err) {
    deps.log.error({ err }, 'recording the end of a session failed; the request is refused');
    recordEnd(deps, caller, passed.verdict, 'error');
    return problemUnavailable(err);
  }
}

async function handleEnd(deps: RequestDeps, caller: Caller, passed: Passed): Promise<Answer> {
  const { verdict, target, session } = passed;
  const sessionTarget = sessionAt(session, target, caller.admission);
  // If there is no upstream session for the caller's current access, the target has nothing to end.
  const link = await deps.links.newest(sessionTarget);
  if (link !== null) {
    const version = versionOf(caller, { session, link });
    const answer = await deps.upstream.send({ method: 'DELETE', target, access: sessionTarget.access, session: link, version });
    // If the target refuses to end its session, the client's session stays. If the target has lost its session, both end.
    const over = !isFault(answer) && ((answer.status >= 200 && answer.status <= 299) || answer.status === 404);
    if (!over) return refusal(deps, caller, verdict, answer);
    answer.discard();
  }
  const ended = await endSession(deps, session);
  recordEnd(deps, caller, verdict, ended ? 'ok' : 'error');
  return ended ? { kind: 'empty', status: 200 } : problem(SESSION_GONE);
}

/** Ends the session. False: it had already ended. */
export async function endSession(deps: RequestDeps, session: Session): Promise<boolean> {
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

/** Decides on the target first, for a method without a JSON-RPC message, and only then checks the session. */
async function pass(
  deps: RequestDeps,
  caller: Caller,
  session: ClaimedSession,
  method: 'GET' | 'DELETE',
): Promise<Passed | Answer> {
  let verdict: Verdict;
  try {
    verdict = await authorizeUse(deps, caller, method);
  } catch (cause) {
    deps.log.error({ err: cause }, 'recording a decision failed; the request is refused');
    return problemUnavailable(cause);
  }
  if (!verdict.allowed) {
    recordEnd(deps, caller, verdict, 'denied');
    return problem(new AppError('not_found', noTargetText(caller.targetName)));
  }
  const { target } = verdict;
  if (session !== null && session !== 'missing' && isSessionAt(session, target, caller.admission.snapshot.sessions)) {
    return { verdict, target, session };
  }
  recordEnd(deps, caller, verdict, 'error');
  return problem(session === 'missing' ? SESSION_MISSING : SESSION_GONE);
}

/** The answer for a failed GET or DELETE. HTTP 405 and 404 of the target are passed on; the rest is in the gateway's words. */
function refusal(deps: RequestDeps, caller: Caller, verdict: Verdict, answer: UpstreamAnswer | UpstreamSessionFailure): Answer {
  if ('ended' in answer) {
    recordEnd(deps, caller, verdict, 'error');
    return problem(SESSION_GONE);
  }
  recordEnd(deps, caller, verdict, isFault(answer) && answer.fault === 'aborted' ? 'cancelled' : 'upstream_error');
  if (isFault(answer)) {
    if (answer.fault !== 'aborted') {
      deps.log.warn({ target: caller.targetName, fault: answer.fault, err: answer.cause }, 'target could not be used');
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
