/** Prepares an allowed request for its target: the checks that follow the decision, and the message that the target gets. */

import { isUnread } from '../../base/json/built.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { type Now, whenThere } from '../../base/promises.ts';
import { restInLane } from '../../base/turns/lane.ts';
import { type Answer, noSession, refuse, rpcError } from '../../protocol/answer.ts';
import { declaresTasks, reduceClientCapabilities } from '../../protocol/capabilities.ts';
import { nameHeader } from '../../protocol/headers.ts';
import { CODES, type RpcRequest } from '../../protocol/message.ts';
import { isSessionRevision, META_KEYS, SESSION_REVISIONS } from '../../protocol/mode.ts';
import { isRequestMethod, methodNotFound } from '../../protocol/operation.ts';
import { rebuildCall } from '../../protocol/rebuild.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { type ClientMode, type ClientRequest, type RequestContext, turnsOf } from '../context/context.ts';
import { upstreamFault } from '../context/failure.ts';
import { targetReplies } from '../context/own-account.ts';
import { taskScopeAt } from '../context/tasks-of-caller.ts';
import { sessionAt } from '../context/upstream-opening.ts';
import { AGGREGATE, fingerprintOf, isSessionAt, openState, type Session, stateBinding } from '../sessions/sessions.ts';
import { inwardMeta, isTaskMethod, TASK_NOT_FOUND, TASKS_REVISION, type TaskScope } from '../sessions/tasks.ts';
import { type Listened, listenFor, missingTasks } from './listening.ts';
import { fallBack } from './stateless-requests.ts';

/** A message for a target. */
export interface Prepared {
  readonly body: string;
  /** The value of the header `Mcp-Name` (2026-07-28). */
  readonly name: string | undefined;
  /** null: the request opens a session, or is stateless. */
  readonly session: Session | null;
  /** null: the request opens no listening stream. */
  readonly listened: Listened | null;
}

/** Returns an answer if the request, although it was allowed, is not forwarded. */
export function prepare(context: RequestContext, request: ClientRequest): Now<Prepared | Answer> {
  const { client, message } = request;
  const { id, method } = message;
  const { caller, target, awaited } = context;
  const session = client.mode === 'stateful' ? client.session : null;
  if (session === 'unknown' || (session !== null && !isSessionAt(session, target, caller.admission.snapshot.sessions))) {
    return noSession(id);
  }
  // The target became usable only after the method was resolved: the object that the request names was not decided.
  if (awaited.operation.kind === 'extension') return refuse(id, methodNotFound(client.mode));
  const suspended = (): Now<Answer | null> => (session === null ? null : refuseList(context, session));
  const refused = isTaskMethod(method) ? refuseTask(context, session).then((refusal) => refusal ?? suspended()) : suspended();
  return whenThere(refused, (refusal) => refusal ?? build(context, request, session));
}

function build(
  context: RequestContext,
  { client, message, located }: ClientRequest,
  session: Session | null,
): Now<Prepared | Answer> {
  const { id, method, params } = message;
  const { caller, target, awaited } = context;
  const { operation, task } = awaited;
  const scope = taskScopeAt(caller, target);
  return whenThere(readState(context, message, client), (state) => {
    if (state === null) return rpcError(id, CODES.invalidParams, 'Invalid params: params.requestState');
    return whenThere(operation.kind === 'listen' ? listenFor(context, operation.filter, scope) : null, (listened) => {
      if (listened !== null && 'kind' in listened) return listened;
      const replaced = replacedParams(message, client, target, scope);
      const replies = targetReplies(target, params);
      if (replies !== null) replaced.inputResponses = replies;
      if (task) replaced.taskId = task.upstreamId;
      if (state.requestState !== undefined) replaced.requestState = state.requestState;
      if (listened !== null) replaced.notifications = listened.listening;
      const name = client.mode === 'stateless' ? nameHeader(method, { ...params, ...replaced } as JsonObject) : undefined;
      return { body: rebuildCall(message, located, replaced), name, session, listened };
    });
  });
}

/** The answer to a request about tasks that must not be forwarded although it was allowed; null: forward it. */
async function refuseTask(context: RequestContext, session: Session | null): Promise<Answer | null> {
  const { mode, target, access, caller, awaited } = context;
  const { id, operation, params } = awaited;
  if (mode === 'stateless') {
    const stateless = await context.deps.modes.speaksStateless({ target, access }, caller.gone);
    if (typeof stateless !== 'boolean') return upstreamFault(context, stateless);
    if (!stateless) return fallBack(id, SESSION_REVISIONS);
  }
  const served = mode === 'stateless' ? context.deps.modes.hasTasks({ target, access }) : session?.revision === TASKS_REVISION;
  if (!served) return refuse(id, methodNotFound(mode));
  if (mode === 'stateless' && !declaresTasks(params)) return missingTasks(id);
  return operation.kind === 'task' ? rpcError(id, CODES.invalidParams, TASK_NOT_FOUND) : null;
}

/** A list of a target that the circuit breaker holds back. If no upstream session is open, opening it checks the same. */
function refuseList(context: RequestContext, session: Session): Now<Answer> | null {
  const { target, access, caller, awaited } = context;
  if (session.fingerprint !== AGGREGATE || !awaited.method.endsWith('/list')) return null;
  if (context.deps.links.open(sessionAt(session, target, caller)) === null) return null;
  const refusal = context.deps.health.refusal({
    target,
    access,
    principal: caller.admission.principal.sub,
    list: awaited.method,
  });
  return refusal && upstreamFault(context, refusal);
}

/** Replaces `requestState` by the target's own. null: the state has expired or belongs to a different request or principal. */
function readState(
  { deps: { seal, now }, caller, target }: RequestContext,
  { method, params }: RpcRequest,
  client: ClientMode,
): Now<{ requestState?: string } | null> {
  const sealed = params?.requestState;
  if (client.mode === 'stateful' || sealed === undefined) return {};
  // Arguments with too many values are not read, so they cannot be compared with those that the state belongs to.
  if (typeof sealed !== 'string' || isUnread(params?.arguments)) return null;
  const binding = stateBinding(fingerprintOf(target), method, params);
  const opening = openState(seal, caller.admission.principal, caller.targetName, binding, sealed, now());
  return whenThere(restInLane(turnsOf(caller, target.id), opening), (requestState) =>
    requestState === null ? null : { requestState },
  );
}

/** Replaces the parameters that would announce to the target, or ask it for, anything that the gateway does not carry. */
function replacedParams(
  { method, params }: RpcRequest,
  client: ClientMode,
  { may_ask }: RoutedTarget,
  scope: TaskScope,
): { [name: string]: JsonValue | undefined } {
  const replaced: { [name: string]: JsonValue | undefined } = {};
  // In the protocol, only calls of tools make tasks.
  if (isRequestMethod(method)) {
    replaced.task = method === 'tools/call' && mayMakeTasks(client) ? taskWish(params?.task) : undefined;
  }
  if (method === 'initialize') {
    const { protocolVersion, capabilities } = params ?? {};
    if (!isSessionRevision(protocolVersion)) replaced.protocolVersion = SESSION_REVISIONS[0];
    if (isObject(capabilities)) replaced.capabilities = reduceClientCapabilities(capabilities, 'stateful', may_ask);
  }
  if (!isObject(params?._meta)) return replaced;
  const meta = inwardMeta(params._meta, scope);
  const declared = meta[META_KEYS.capabilities];
  replaced._meta =
    client.mode === 'stateless' && isObject(declared)
      ? { ...meta, [META_KEYS.capabilities]: reduceClientCapabilities(declared, 'stateless', may_ask) }
      : meta;
  return replaced;
}

/** The client's wishes for a task, such as its lifetime, without an id: the target chooses the id. */
function taskWish(task: JsonValue | undefined): JsonObject | undefined {
  if (!isObject(task)) return undefined;
  const { taskId: _, ...wish } = task;
  return wish;
}

/** In 2026-07-28, only the target chooses whether to make a task: the member `task` of older clients has no effect (SEP-2663). */
function mayMakeTasks(client: ClientMode): boolean {
  return client.mode === 'stateful' && typeof client.session === 'object' && client.session?.revision === TASKS_REVISION;
}
