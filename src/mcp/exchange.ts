/** From an admitted message to its answer: decide, record, forward, relay. Nothing is forwarded before it is recorded. */

import type { Outcome } from '../audit/event.ts';
import { isObject, type JsonObject, type JsonValue } from '../http/json.ts';
import type { RoutedTarget } from '../targets/target.ts';
import { type Answer, noSession, noTarget, refuse, rpcError, tooManyCalls, unavailable } from './answer.ts';
import { authorize, decideShown, type Verdict } from './authorize.ts';
import { reduceClientCapabilities } from './capabilities.ts';
import { type Awaited, type Caller, type ExchangeDeps, REVOKED, type RelayContext } from './context.ts';
import {
  isSessionRevision,
  META_KEYS,
  MODERN_REVISION,
  nameHeader,
  SESSION_REVISIONS,
  type SessionRevision,
  unsupportedVersion,
} from './era.ts';
import { relayFailure, upstreamFault } from './failure.ts';
import { type ForwardedRequest, isFault, type ModernHeaders, readAll, type UpstreamAnswer } from './forward.ts';
import { honoured, type ListenFilter } from './listen.ts';
import { CODES, errorMessage, type RpcId, type RpcRequest } from './message.ts';
import type { Operation } from './operation.ts';
import { ownError, servedVersions } from './own-error.ts';
import { type Located, rebuildCall } from './rebuild.ts';
import { relayMessage, relayStream, stateBinding } from './relay.ts';
import { openState, placeOf, type Session, sealSession } from './sessions.ts';
import { discoversModern, isWrongEra } from './upstream-era.ts';

/** How the client speaks: within a session, opening one, or statelessly. */
export type Manner =
  /** null: it opens one. `unknown`: it names one that is none of this caller's on this target. */
  | { readonly era: 'session'; readonly session: Session | null | 'unknown' }
  | { readonly era: 'modern'; readonly revision: string; readonly paramHeaders: ModernHeaders['params'] };

export async function performRequest(
  deps: ExchangeDeps,
  caller: Caller,
  manner: Manner,
  message: RpcRequest,
  operation: Operation,
  located: Located,
): Promise<Answer> {
  const { id, method, params } = message;
  const leave = deps.calls.take(caller.claims);
  if (leave === null) return tooManyCalls(id);
  let verdict: Verdict;
  try {
    verdict = await authorize(deps, { admission: caller.admission, targetName: caller.targetName, method, operation });
  } catch (err) {
    leave();
    deps.log.error({ err }, 'a decision could not be recorded; the request is refused');
    return unavailable(id);
  }
  const end = endOnce(deps, caller, verdict.decisionId, leave);
  if (!verdict.allowed) {
    end('denied');
    return verdict.answer === 'no_target' ? noTarget(id, caller.targetName) : denied(id, caller.targetName, operation, verdict);
  }
  const { target, decisionId } = verdict;
  const session = manner.era === 'session' ? manner.session : null;
  // The name may have been given to another target, or the target have moved, since the session was opened.
  if (session === 'unknown' || (session !== null && session.place !== placeOf(target))) {
    end('error');
    return noSession(id);
  }
  const awaited: Awaited = { id, method, params, operation, decisionId, end };
  const context: RelayContext = { caller, target, era: manner.era, session, awaited, standing: false, asked: new Map() };
  const state = readState(deps, caller, target, message, manner);
  if (state === null) {
    end('error');
    return rpcError(id, CODES.invalidParams, 'Invalid params: params.requestState');
  }
  const body = rebuildCall(message, located, { ...replacedParams(message, manner), ...state });
  if (manner.era === 'session') {
    const signal = lingering(caller.gone, deps.limits.idleMs);
    const sent = {
      method: 'POST',
      target,
      body,
      signal,
      version: caller.version,
      ...(session === null ? {} : { session }),
    } as const;
    return performInSession(deps, context, awaited, sent);
  }
  const listening = operation.kind === 'listen' ? await listenFor(deps, caller, target, decisionId, operation.filter) : undefined;
  if (listening === null) {
    end('error');
    return unavailable(id);
  }
  const modern = { version: manner.revision, method, name: nameHeader(method, params), params: manner.paramHeaders };
  // In 2026-07-28 a client that closes the connection cancels its request.
  const sent = { method: 'POST', target, modern, signal: caller.gone } as const;
  if (listening === undefined) return performModern(deps, context, awaited, { ...sent, body });
  const listen = rebuildCall(message, located, { ...replacedParams(message, manner), notifications: listening });
  return performModern(deps, { ...context, standing: true, listening }, awaited, { ...sent, body: listen });
}

/** The part of the filter that the caller may have, recorded before anything is heard; null if it cannot be recorded. */
async function listenFor(
  deps: ExchangeDeps,
  caller: Caller,
  target: RoutedTarget,
  decision_id: string,
  filter: ListenFilter,
): Promise<JsonObject | null> {
  const allowed = decideShown(caller.admission, target.id)(filter.resources);
  const names = filter.resources.filter((_, index) => allowed[index] === true).map(({ resource_name }) => resource_name);
  try {
    if (filter.resources.length > 0) {
      await deps.audit.shown({ decision_id, resource_type: 'resource', names, hidden: filter.resources.length - names.length });
    }
    return honoured(filter, allowed);
  } catch (err) {
    deps.log.error({ err }, 'what is listened to could not be recorded; the request is refused');
    return null;
  }
}

/**
 * In the session revisions a client that closes the connection cancels nothing: the call runs on, so that its end is
 * recorded, but not for ever, because nobody waits for it.
 */
function lingering(gone: AbortSignal, graceMs: number): AbortSignal {
  const controller = new AbortController();
  const leave = (): void => {
    if (gone.reason === REVOKED) controller.abort();
    else setTimeout(() => controller.abort(), graceMs).unref();
  };
  // Who is gone before the call begins is not told of again.
  if (gone.aborted) leave();
  else gone.addEventListener('abort', leave, { once: true });
  return controller.signal;
}

function endOnce(deps: ExchangeDeps, caller: Caller, decision_id: string, leave: () => void): (outcome: Outcome) => void {
  let ended = false;
  return (outcome) => {
    if (ended) return;
    ended = true;
    leave();
    deps.audit.outcome({ decision_id, outcome, duration_ms: deps.now() - caller.arrivedAt });
  };
}

function denied(id: RpcId, targetName: string, operation: Operation, verdict: Verdict & { allowed: false }): Answer {
  const { decisionId: decision_id, reason } = verdict;
  const object = operation.kind === 'object' ? operation.object : null;
  const what =
    object === null
      ? `target \`${targetName}\``
      : `${object.resource_type} \`${object.resource_name}\` of target \`${targetName}\``;
  const why = reason === 'not_canonical' ? 'its URI is not in canonical form' : 'policy does not allow it';
  return rpcError(id, CODES.denied, `${what} is denied: ${why}`, { decision_id, reason });
}

/** What replaces `requestState`: nothing, or the target's own; null where it belongs to another request, principal or time. */
function readState(
  deps: ExchangeDeps,
  caller: Caller,
  target: RoutedTarget,
  { method, params }: RpcRequest,
  manner: Manner,
): { requestState?: string } | null {
  const sealed = params?.requestState;
  if (manner.era === 'session' || sealed === undefined) return {};
  if (typeof sealed !== 'string') return null;
  const binding = stateBinding(placeOf(target), method, params);
  const requestState = openState(deps.seal, caller.admission.principal, caller.targetName, binding, sealed, deps.now());
  return requestState === null ? null : { requestState };
}

/** Nothing is announced to the target, or asked of it, that the gateway would not carry. */
function replacedParams({ method, params }: RpcRequest, manner: Manner): { [name: string]: JsonValue | undefined } {
  const replaced: { [name: string]: JsonValue | undefined } = {};
  if (method === 'tools/call') replaced.task = undefined;
  if (method === 'initialize') {
    const { protocolVersion, capabilities } = params ?? {};
    if (!isSessionRevision(protocolVersion)) replaced.protocolVersion = SESSION_REVISIONS[0];
    if (isObject(capabilities)) replaced.capabilities = reduceClientCapabilities(capabilities);
  }
  const meta = params?._meta;
  const declared = isObject(meta) ? meta[META_KEYS.capabilities] : undefined;
  if (manner.era === 'modern' && isObject(meta) && isObject(declared)) {
    replaced._meta = { ...meta, [META_KEYS.capabilities]: reduceClientCapabilities(declared) };
  }
  return replaced;
}

async function performInSession(
  deps: ExchangeDeps,
  context: RelayContext,
  awaited: Awaited,
  sent: ForwardedRequest,
): Promise<Answer> {
  const answer = await deps.forwarder.send(sent);
  if (isFault(answer)) return upstreamFault(deps, context, awaited, answer);
  if (answer.status !== 200) return relayFailure(deps, context, awaited, answer);
  return awaited.method === 'initialize'
    ? openSession(deps, context, awaited, answer)
    : relayAnswer(deps, context, awaited, answer);
}

async function openSession(deps: ExchangeDeps, context: RelayContext, awaited: Awaited, answer: UpstreamAnswer): Promise<Answer> {
  const { caller, target } = context;
  const text = await initializeResult(deps, context, awaited, answer);
  const revision = openedRevision(text);
  if (revision === null) return { kind: 'message', status: 200, text };
  const session: Session = {
    id: deps.newId(),
    place: placeOf(target),
    upstreamId: answer.sessionId,
    revision,
    issuedAt: deps.now(),
  };
  const sealed = sealSession(deps.seal, caller.admission.principal, caller.targetName, session);
  return { kind: 'message', status: 200, text, headers: { 'mcp-session-id': sealed } };
}

/** Read to its end even if it streams: the session id goes out in a header and depends on the negotiated revision. */
async function initializeResult(
  deps: ExchangeDeps,
  context: RelayContext,
  awaited: Awaited,
  answer: UpstreamAnswer,
): Promise<string> {
  if (answer.type === 'stream') {
    for await (const event of relayStream(deps, context, answer)) if (event.final) return event.data;
  }
  const relayed = await relayAnswer(deps, context, awaited, answer);
  if (relayed.kind === 'message') return relayed.text;
  return errorMessage(awaited.id, { code: CODES.internal, message: 'The target sent no valid answer' });
}

function openedRevision(text: string): SessionRevision | null {
  const message = JSON.parse(text) as { result?: { protocolVersion?: JsonValue } };
  const version = message.result?.protocolVersion;
  return isSessionRevision(version) ? version : null;
}

async function performModern(
  deps: ExchangeDeps,
  context: RelayContext,
  awaited: Awaited,
  sent: ForwardedRequest,
): Promise<Answer> {
  const { target, caller } = context;
  if (awaited.method === 'server/discover') return discover(deps, context, awaited, sent);
  const modern = await deps.eras.speaksModern(target, caller.gone);
  if (typeof modern !== 'boolean') return upstreamFault(deps, context, awaited, modern);
  if (!modern) return fallBack(awaited, SESSION_REVISIONS);
  const answer = await deps.forwarder.send(sent);
  if (isFault(answer)) return upstreamFault(deps, context, awaited, answer);
  return answer.status === 200 ? relayAnswer(deps, context, awaited, answer) : relayFailure(deps, context, awaited, answer);
}

/** The client's own question tells the gateway, too, which era the target is of. */
async function discover(deps: ExchangeDeps, context: RelayContext, awaited: Awaited, sent: ForwardedRequest): Promise<Answer> {
  const answer = await deps.forwarder.send(sent);
  if (isFault(answer)) return upstreamFault(deps, context, awaited, answer);
  if (answer.status !== 200)
    return isWrongEra(answer.status) ? otherEra(deps, context, awaited, answer) : relayFailure(deps, context, awaited, answer);
  const relayed = await relayAnswer(deps, context, awaited, answer);
  if (relayed.kind !== 'message') return relayed;
  const message = JSON.parse(relayed.text) as JsonObject;
  const modern = isObject(message.result) && discoversModern(message.result);
  deps.eras.learn(context.target, modern);
  return modern ? relayed : fallBack(awaited, SESSION_REVISIONS);
}

/** A refusal may name versions; without one, the target knows nothing of 2026-07-28. */
async function otherEra(deps: ExchangeDeps, context: RelayContext, awaited: Awaited, answer: UpstreamAnswer): Promise<Answer> {
  const supported = servedVersions(await ownError(answer, awaited.id)) ?? SESSION_REVISIONS;
  answer.discard();
  deps.eras.learn(context.target, supported.includes(MODERN_REVISION));
  return fallBack(awaited, supported);
}

/** Clients that know both eras open a session then (2026-07-28, protocol version errors). */
function fallBack(awaited: Awaited, supported: readonly string[]): Answer {
  awaited.end('error');
  return refuse(awaited.id, unsupportedVersion(MODERN_REVISION, supported));
}

async function relayAnswer(deps: ExchangeDeps, context: RelayContext, awaited: Awaited, answer: UpstreamAnswer): Promise<Answer> {
  if (answer.type === 'stream')
    return { kind: 'stream', events: relayStream(deps, context, answer), drain: context.era === 'session' };
  if (answer.type === 'other') return relayFailure(deps, context, awaited, answer);
  const bytes = await readAll(answer, deps.limits.answerBytes);
  if (isFault(bytes)) return upstreamFault(deps, context, awaited, bytes);
  const relayed = await relayMessage(deps, context, bytes.toString('utf8'));
  awaited.end(relayed.outcome);
  return { kind: 'message', status: 200, text: relayed.text };
}
