/** Requests in stateful mode: the first one opens the session, all others use the upstream session at the target. */
import { type Cancellable, createCancellation, onAbort } from '../../base/cancellation.ts';
import { isObject, type JsonObject } from '../../base/json/json.ts';
import { type Answer, finalOf, noSession, unavailable } from '../../protocol/answer.ts';
import { helloOf } from '../../protocol/hello.ts';
import { CODES, errorMessage, type RpcId } from '../../protocol/message.ts';
import { isSessionRevision } from '../../protocol/mode.ts';
import type { Access } from '../../targets/target.ts';
import type { Caller, RequestContext } from '../context/context.ts';
import { isLostSession, upstreamFault } from '../context/failure.ts';
import { type SessionTarget, sessionAt } from '../context/upstream-opening.ts';
import { isUpstreamSessionFailure, type UpstreamSessionFailure } from '../context/upstream-sessions.ts';
import {
  bindingOf,
  fingerprintOf,
  LIST_KINDS,
  type Session,
  type SessionPair,
  sealSession,
  type UpstreamSession,
  versionOf,
} from '../sessions/sessions.ts';
import { type OwnError, ownError } from '../upstream/own-error.ts';
import { isFault, type UpstreamAnswer, type UpstreamFault, type UpstreamRequest } from '../upstream/upstream.ts';

/** An answer of the target. */
export interface Reached {
  readonly answer: UpstreamAnswer;
  /** null in stateless mode (2026-07-28) and while a session is being opened. */
  readonly linked: SessionPair | null;
  /** The error in the answer, if it has already been read. */
  readonly error?: OwnError | null;
}

type ReachedInSession = Reached & { readonly linked: SessionPair };
/** `access`: that of the message, if it is about an object. Absent: that of the session. */
type Sent = Pick<UpstreamRequest, 'method' | 'body' | 'lastEventId' | 'signal'> & { readonly access?: Access };

export async function forwardStateful(
  context: RequestContext,
  { body, session }: { readonly body: string; readonly session: Session | null },
): Promise<Reached | Answer> {
  const { caller, target, access, awaited } = context;
  const sent: Sent = { method: 'POST', access, body, signal: lingering(caller, context.deps.limits.idleMs) };
  if (session === null) return forwardInitialize(context, sent);
  const at = sessionAt(session, target, caller);
  const reached = await sendInSession(caller, at, sent, awaited.id);
  if ('ended' in reached) return noSession(awaited.id);
  return 'fault' in reached ? upstreamFault(context, reached) : reached;
}

/**
 * In stateful mode, a closed connection does not cancel a request. The call continues, so that its outcome is recorded, but it
 * is aborted after `graceMs` because no client waits for it.
 */
function lingering({ gone, revoked }: Caller, graceMs: number): Cancellable {
  const call = createCancellation();
  const end = (): void => call.abort();
  // If the client is gone before the call begins, no further event comes.
  onAbort(revoked, end);
  onAbort(gone, () => setTimeout(end, graceMs).unref());
  return call;
}

/**
 * Sends a message of a session. If the target has lost the upstream session, it has not acted on the message: the gateway
 * replaces the upstream session and sends the message again. If a different replica has opened that upstream session, it may be lost, too:
 * with a process of that replica, for example. Then the gateway opens one, and sends the message for the last time.
 */
export async function sendInSession(
  caller: Caller,
  sessionTarget: SessionTarget,
  sent: Sent,
  id: RpcId | null,
): Promise<ReachedInSession | UpstreamSessionFailure> {
  const { session } = sessionTarget;
  const { links } = caller.deps;
  const current = links.current(sessionTarget);
  let link = current instanceof Promise ? await current : current;
  for (let sending = sent, isLast = false; ; ) {
    if (isUpstreamSessionFailure(link)) return link;
    const answer = await sendTo(caller, sessionTarget, link, sending);
    if (isFault(answer)) return answer;
    const reached: ReachedInSession = { answer, linked: { session, link } };
    if (isLast || link.upstreamId === null || (answer.status !== 404 && answer.status !== 400)) return reached;
    // A lost session is HTTP 404 by the specification; SDK servers answer 400 and say so in the message.
    const error = answer.status === 400 ? await ownError(answer, id ?? '') : null;
    if (!isLostSession(answer.status, error)) return { ...reached, error };
    answer.discard();
    isLast = sending !== sent;
    link = await links.replace(sessionTarget, link);
    isLast ||= links.hasOpened(session, sessionTarget.target.id);
    const { lastEventId: _, ...afresh } = sent;
    sending = afresh;
  }
}

/** Sends a message on this upstream session. */
export function sendTo(
  caller: Caller,
  sessionTarget: SessionTarget,
  link: UpstreamSession,
  { method, access = sessionTarget.access, body, lastEventId, signal }: Sent,
): Promise<UpstreamAnswer | UpstreamFault> {
  const { session, target } = sessionTarget;
  const version = versionOf(caller, { session, link });
  return caller.deps.upstream.send({ method, target, access, body, session: link, version, lastEventId, signal });
}

async function forwardInitialize(context: RequestContext, sent: Sent): Promise<Reached | Answer> {
  const { deps, caller, target, access } = context;
  const asked = { target, access, principal: caller.admission.principal.sub };
  const refusal = deps.health.refusal(asked);
  if (refusal !== null) return upstreamFault(context, refusal);
  const answer = await deps.upstream.send({ ...sent, target, access, version: caller.version });
  if (isFault(answer)) {
    deps.health.failed(asked, answer.fault);
    return upstreamFault(context, answer);
  }
  if (answer.status >= 500) deps.health.failed(asked, 'broken_off');
  else deps.health.answered(asked);
  return { answer, linked: null };
}

/**
 * Seals the upstream session into the session that the client gets, after `initialize` was answered. The client gets the whole
 * answer as one message, because the id of the session is in a header.
 */
export async function openedSession(
  { deps, caller, target, access, awaited }: RequestContext,
  { sessionId, held }: UpstreamAnswer,
  answered: Answer,
): Promise<Answer> {
  const { principal, snapshot } = caller.admission;
  const { text, result } = (await finalOf(answered)) ?? {
    text: errorMessage(awaited.id, { code: CODES.internal, message: 'The target sent no valid answer' }),
  };
  const { protocolVersion, capabilities } = result ?? {};
  if (!isSessionRevision(protocolVersion) || !isObject(capabilities)) return { kind: 'message', status: 200, text };
  const session: Session = {
    id: deps.newId(),
    fingerprint: fingerprintOf(target),
    binding: bindingOf(access, snapshot.sessions.epochOf(principal.sub, target.id)),
    upstreamId: sessionId,
    revision: protocolVersion,
    lists: LIST_KINDS.filter((kind) => isObject(capabilities[kind])),
    replica: held ? deps.replicaId : null,
    issuedAt: deps.now(),
  };
  const sealed = await keepSession(caller, session, target.id, awaited.params);
  if (sealed === null) {
    const ended = deps.upstream.send({ method: 'DELETE', target, access, session, version: session.revision });
    ended.then((answer) => isFault(answer) || answer.discard());
    return unavailable(awaited.id);
  }
  return { kind: 'message', status: 200, text, headers: { 'mcp-session-id': sealed } };
}

/** Records the session, and returns its id for the client. null: it cannot be recorded. `targetId` null: the aggregate endpoint. */
export async function keepSession(
  { deps, admission: { principal }, targetName }: Caller,
  session: Session,
  targetId: string | null,
  params: JsonObject | undefined,
): Promise<string | null> {
  const { id, revision, replica, issuedAt } = session;
  try {
    await deps.sessions.insert({
      id,
      issuer: principal.issuer,
      user_id: principal.sub,
      target_id: targetId,
      revision,
      client: helloOf(params ?? {}),
      holder: replica,
      created_at: issuedAt,
      seen_at: issuedAt,
    });
  } catch (err) {
    deps.log.error({ err }, 'recording a session failed; it is not opened');
    return null;
  }
  return sealSession(deps.seal, principal, targetName, session);
}
