/** Requests in stateful mode: the first one opens the session, all others use the upstream session at the target. */
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { readLargeJson } from '../../base/json/large.ts';
import { TARGET_RULES } from '../../base/json/selection.ts';
import type { ClientHello } from '../../sessions/session-store.ts';
import { type Answer, noSession, unavailable } from '../protocol/answer.ts';
import { CODES, errorMessage, type RpcId } from '../protocol/message.ts';
import { isSessionRevision, type SessionRevision } from '../protocol/mode.ts';
import {
  bindingOf,
  fingerprintOf,
  LIST_KINDS,
  type Session,
  type SessionPair,
  sealSession,
  versionOf,
} from '../sessions/sessions.ts';
import { type OwnError, ownError } from '../upstream/own-error.ts';
import { isFault, type UpstreamAnswer, type UpstreamFault, type UpstreamRequest } from '../upstream/upstream.ts';
import type { AwaitedRequest, Caller, RequestDeps, UpstreamContext } from './context.ts';
import { forwardFailure, isLostSession, upstreamFault } from './failure.ts';
import { forwardAnswer, forwardStream } from './upstream-messages.ts';
import { isUpstreamSessionFailure, type SessionTarget, type UpstreamSessionFailure } from './upstream-sessions.ts';

const MAX_HELLO_LENGTH = 4 * 1024;
const MAX_NAME_LENGTH = 256;
const MAX_CAPABILITIES = 16;

export interface Reached {
  readonly answer: UpstreamAnswer;
  readonly linked: SessionPair;
  /** The error in the answer, if it had to be read to find out whether the session is lost. */
  readonly error?: OwnError | null;
}

type Sent = Omit<UpstreamRequest, 'session' | 'version' | 'stateless'>;

/**
 * Sends a message of a session. If the target has lost the upstream session, it has not acted on the message: the gateway
 * replaces the upstream session and sends the message again, once.
 */
export async function sendInSession(
  deps: RequestDeps,
  caller: Caller,
  place: SessionTarget,
  sent: Sent,
  id: RpcId | null,
): Promise<Reached | UpstreamSessionFailure> {
  const { session } = place;
  const first = await deps.links.current(place);
  if (isUpstreamSessionFailure(first)) return first;
  const answer = await attempt(deps, caller, { session, link: first }, sent);
  if (isFault(answer)) return answer;
  const reached: Reached = { answer, linked: { session, link: first } };
  if (first.upstreamId === null || (answer.status !== 404 && answer.status !== 400)) return reached;
  // A lost session is HTTP 404 by the specification; SDK servers answer 400 and say so in the message.
  const error = answer.status === 400 ? await ownError(answer, id ?? '') : null;
  if (!isLostSession(answer.status, error)) return { ...reached, error };
  answer.discard();
  const second = await deps.links.replace(place, first);
  if (isUpstreamSessionFailure(second)) return second;
  const { lastEventId: _, ...afresh } = sent;
  const again = await attempt(deps, caller, { session, link: second }, afresh);
  return isFault(again) ? again : { answer: again, linked: { session, link: second } };
}

function attempt(
  deps: RequestDeps,
  caller: Caller,
  linked: SessionPair,
  { method, target, access, body, lastEventId, signal }: Sent,
): Promise<UpstreamAnswer | UpstreamFault> {
  const [session, version] = [linked.link, versionOf(caller, linked)];
  return deps.upstream.send({ method, target, access, body, session, version, lastEventId, signal });
}

export async function handleInSession(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  session: Session,
  sent: Sent,
): Promise<Answer> {
  const { caller, target, access } = context;
  const place: SessionTarget = { session, target, access, admission: caller.admission };
  const reached = await sendInSession(deps, caller, place, sent, awaited.id);
  if ('ended' in reached) {
    awaited.end('error');
    return noSession(awaited.id);
  }
  if ('fault' in reached) return upstreamFault(deps, context, awaited, reached);
  const { answer, linked, error } = reached;
  const within = { ...context, linked };
  return answer.status === 200
    ? forwardAnswer(deps, within, awaited, answer)
    : forwardFailure(deps, within, awaited, answer, error);
}

/** Forwards the client's own `initialize` to the target, and seals the upstream session into the session that the client gets. */
export async function openSession(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  sent: Sent,
): Promise<Answer> {
  const { caller, target, access } = context;
  const { principal, snapshot } = caller.admission;
  const asked = { target, access, principal: principal.sub };
  const refusal = deps.health.refusal(asked);
  if (refusal !== null) return upstreamFault(deps, context, awaited, refusal);
  const answer = await deps.upstream.send({ ...sent, version: caller.version });
  if (isFault(answer)) {
    deps.health.failed(asked, answer.fault);
    return upstreamFault(deps, context, awaited, answer);
  }
  if (answer.status >= 500) deps.health.failed(asked, 'broken_off');
  else deps.health.answered(asked);
  if (answer.status !== 200) return forwardFailure(deps, context, awaited, answer);
  const text = await initializeResult(deps, context, awaited, answer);
  const opened = await readOpened(text, target.id);
  if (opened === null) return { kind: 'message', status: 200, text };
  const session: Session = {
    id: deps.newId(),
    place: fingerprintOf(target),
    binding: bindingOf(access, snapshot.sessions.epochOf(principal.sub, target.id)),
    upstreamId: answer.sessionId,
    revision: opened.revision,
    lists: LIST_KINDS.filter((kind) => isObject(opened.capabilities[kind])),
    holder: answer.held ? deps.replicaId : null,
    issuedAt: deps.now(),
  };
  try {
    await recordSession(deps, caller, session, target.id, awaited.params);
  } catch (err) {
    deps.log.error({ err }, 'recording a session failed; it is not opened');
    const ended = deps.upstream.send({ method: 'DELETE', target, access, session, version: session.revision });
    ended.then((answer) => isFault(answer) || answer.discard());
    return unavailable(awaited.id);
  }
  const sealed = sealSession(deps.seal, principal, caller.targetName, session);
  return { kind: 'message', status: 200, text, headers: { 'mcp-session-id': sealed } };
}

/** `targetId` null: a session at the aggregate endpoint. */
export async function recordSession(
  deps: RequestDeps,
  { admission: { principal } }: Caller,
  { id, revision, holder, issuedAt }: Session,
  targetId: string | null,
  params: JsonObject | undefined,
): Promise<void> {
  await deps.sessions.insert({
    id,
    issuer: principal.issuer,
    user_id: principal.sub,
    target_id: targetId,
    revision,
    client: clientHello(params ?? {}),
    holder,
    created_at: issuedAt,
    seen_at: issuedAt,
  });
}

/** The part of `initialize` that is stored. Icons may be large, and a target does not need them. */
function clientHello({ capabilities, clientInfo }: JsonObject): ClientHello {
  const told = { capabilities: isObject(capabilities) ? capabilities : {}, clientInfo: isObject(clientInfo) ? clientInfo : {} };
  if (JSON.stringify(told).length <= MAX_HELLO_LENGTH) return told;
  const short = (value: JsonValue | undefined): string => (typeof value === 'string' ? value.slice(0, MAX_NAME_LENGTH) : '');
  const { name, version } = told.clientInfo;
  const offered = Object.entries(told.capabilities).filter(
    ([member, value]) => member.length <= MAX_NAME_LENGTH && isObject(value) && JSON.stringify(value).length <= MAX_NAME_LENGTH,
  );
  return {
    capabilities: Object.fromEntries(offered.slice(0, MAX_CAPABILITIES)),
    clientInfo: { name: short(name), version: short(version) },
  };
}

/** Reads the whole result even if it is streamed: the session id is sent in a header and contains the negotiated revision. */
async function initializeResult(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  answer: UpstreamAnswer,
): Promise<string> {
  if (answer.type === 'stream') {
    for await (const event of forwardStream(deps, context, answer)) if (event.final) return event.data;
  }
  const relayed = await forwardAnswer(deps, context, awaited, answer);
  if (relayed.kind === 'message') return relayed.text;
  return errorMessage(awaited.id, { code: CODES.internal, message: 'The target sent no valid answer' });
}

async function readOpened(
  text: string,
  targetId: string,
): Promise<{ readonly revision: SessionRevision; readonly capabilities: JsonObject } | null> {
  const reading = await readLargeJson(text, TARGET_RULES, targetId);
  const result = reading.ok && isObject(reading.value) ? reading.value.result : undefined;
  const { protocolVersion, capabilities } = isObject(result) ? result : {};
  return isSessionRevision(protocolVersion) && isObject(capabilities) ? { revision: protocolVersion, capabilities } : null;
}
