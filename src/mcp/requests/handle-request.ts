/** Handles an admitted request: decide, record, forward, relay the answer. Nothing is forwarded before it is recorded. */

import type { Outcome } from '../../audit/event.ts';
import { type Cancellable, createCancellation } from '../../base/cancellation.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { readLargeJson } from '../../base/json/large.ts';
import { TARGET_RULES } from '../../base/json/selection.ts';
import { isUnread } from '../../base/json/steps.ts';
import type { NamedObject } from '../../engine/decision.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { type Answer, noSession, noTarget, refuse, rpcError, tooManyCalls, unavailable } from '../protocol/answer.ts';
import { declaresTasks, MISSING_TASKS, reduceClientCapabilities } from '../protocol/capabilities.ts';
import { honoured, LISTEN, type ListenFilter } from '../protocol/listen.ts';
import { CODES, type RpcId, type RpcRequest } from '../protocol/message.ts';
import {
  isSessionRevision,
  META_KEYS,
  type Mode,
  nameHeader,
  SESSION_REVISIONS,
  STATELESS_REVISION,
  unsupportedVersion,
} from '../protocol/mode.ts';
import { methodNotFound, type Operation } from '../protocol/operation.ts';
import { type Located, rebuildCall } from '../protocol/rebuild.ts';
import { AGGREGATE, fingerprintOf, isSessionAt, openState, type Session } from '../sessions/sessions.ts';
import {
  inwardMeta,
  isTaskMethod,
  openTask,
  TASK_NOT_FOUND,
  TASKS_REVISION,
  type Task,
  type TaskPlace,
  toolOf,
} from '../sessions/tasks.ts';
import { discoversStateless, isWrongMode } from '../upstream/modes.ts';
import { ownError, servedVersions } from '../upstream/own-error.ts';
import { isFault, type StatelessHeaders, type UpstreamAnswer, type UpstreamRequest } from '../upstream/upstream.ts';
import { authorize, decideListed, type Verdict } from './authorize.ts';
import { type AwaitedRequest, type Caller, REVOKED, type RequestDeps, type UpstreamContext } from './context.ts';
import { forwardFailure, upstreamFault } from './failure.ts';
import { resolve } from './resolve.ts';
import { handleInSession, openSession } from './session-requests.ts';
import { listeningStream } from './standalone-stream.ts';
import { forwardAnswer, stateBinding } from './upstream-messages.ts';

/** The client's mode: within a session, opening a session, or stateless. */
export type ClientMode =
  /** null: the request opens a session. `unknown`: it names a session that this caller does not have on this target. */
  | { readonly mode: 'stateful'; readonly session: Session | null | 'unknown' }
  | { readonly mode: 'stateless'; readonly revision: string; readonly paramHeaders: StatelessHeaders['params'] };

export async function handleRequest(
  deps: RequestDeps,
  caller: Caller,
  manner: ClientMode,
  message: RpcRequest,
  asked: Operation,
  located: Located,
): Promise<Answer> {
  const { id, method, params } = message;
  const resolved = resolve(caller, manner.mode, message, asked, deps.seal, deps.now());
  if ('code' in resolved) return refuse(id, resolved);
  const { operation, task } = resolved;
  const leave = deps.calls.take(caller.claims);
  if (leave === null) return tooManyCalls(id);
  let verdict: Verdict;
  try {
    verdict = await authorize(deps, { admission: caller.admission, targetName: caller.targetName, method, operation, params });
  } catch (err) {
    leave();
    deps.log.error({ err }, 'recording a decision failed; the request is refused');
    return unavailable(id);
  }
  const ending = endOnce(deps, caller, method, verdict.decisionId, leave);
  const { end } = ending;
  if (!verdict.allowed) {
    end('denied');
    return verdict.answer === 'no_target'
      ? noTarget(id, caller.targetName)
      : denied(caller, manner.mode, message, operation, verdict);
  }
  const { target, decisionId } = verdict;
  const session = manner.mode === 'stateful' ? manner.session : null;
  if (session === 'unknown' || (session !== null && !isSessionAt(session, target, caller.admission.snapshot.sessions))) {
    end('error');
    return noSession(id);
  }
  // The target became usable only after the method was resolved: the object that the request names was not decided.
  if (operation.kind === 'extension') {
    end('error');
    return refuse(id, methodNotFound(manner.mode));
  }
  const awaited: AwaitedRequest = { id, method, params, operation, task, decisionId, end };
  const { principal } = caller.admission;
  const access = target.accessOf(principal);
  const context: UpstreamContext = {
    caller,
    target,
    access,
    mode: manner.mode,
    linked: null,
    awaited,
    longLived: false,
    asked: new Map(),
  };
  const refused = isTaskMethod(method) ? await refuseTask(deps, context, awaited, session) : null;
  if (refused !== null) return refused;
  // If the upstream session is not open yet, opening it checks the health of the target.
  const isList = session?.place === AGGREGATE && method.endsWith('/list');
  if (isList && deps.links.open({ session, target, access, admission: caller.admission }) !== null) {
    const refusal = deps.health.refusal({ target, access, principal: principal.sub, list: method });
    if (refusal !== null) return upstreamFault(deps, context, awaited, refusal);
  }
  const state = readState(deps, caller, target, message, manner);
  if (state === null) {
    end('error');
    return rpcError(id, CODES.invalidParams, 'Invalid params: params.requestState');
  }
  const place: TaskPlace = {
    seal: deps.seal,
    owner: caller.admission.principal,
    targetName: caller.targetName,
    place: fingerprintOf(target),
    now: deps.now(),
  };
  const replaced = { ...replacedParams(message, manner, target, place), ...(task && { taskId: task.upstreamId }), ...state };
  const body = rebuildCall(message, located, replaced);
  ending.forwarded();
  if (manner.mode === 'stateful') {
    const signal = lingering(caller.gone, deps.limits.idleMs);
    const sent = { method: 'POST', target, access, body, signal } as const;
    return session === null ? openSession(deps, context, awaited, sent) : handleInSession(deps, context, awaited, session, sent);
  }
  const listened = operation.kind === 'listen' ? await listenFor(deps, context, awaited, operation.filter, place) : undefined;
  if (listened !== undefined && 'kind' in listened) {
    end('error');
    return listened;
  }
  const stateless = {
    version: manner.revision,
    method,
    name: nameHeader(method, { ...params, ...replaced } as JsonObject),
    params: manner.paramHeaders,
  };
  // In 2026-07-28 a client that closes the connection cancels its request.
  const sent = { method: 'POST', target, access, stateless, signal: caller.gone } as const;
  if (listened === undefined) return handleStateless(deps, context, awaited, { ...sent, body });
  const listen = rebuildCall(message, located, { ...replaced, notifications: listened.listening });
  return handleStateless(deps, { ...context, longLived: true, ...listened }, awaited, { ...sent, body: listen });
}

/** The answer to a request about tasks that must not be forwarded although it was allowed; null: forward it. */
async function refuseTask(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  session: Session | null,
): Promise<Answer | null> {
  const { mode, target, access, caller } = context;
  const { id, operation, params } = awaited;
  if (mode === 'stateless') {
    const stateless = await deps.modes.speaksStateless({ target, access }, caller.gone);
    if (typeof stateless !== 'boolean') return upstreamFault(deps, context, awaited, stateless);
    if (!stateless) return fallBack(awaited, SESSION_REVISIONS);
  }
  const served = mode === 'stateless' ? deps.modes.hasTasks({ target, access }) : session?.revision === TASKS_REVISION;
  if (served && (mode === 'stateful' || declaresTasks(params)) && operation.kind !== 'task') return null;
  awaited.end('error');
  if (!served) return refuse(id, methodNotFound(mode));
  return mode === 'stateless' && !declaresTasks(params) ? missingTasks(id) : rpcError(id, CODES.invalidParams, TASK_NOT_FOUND);
}

function missingTasks(id: RpcId): Answer {
  const message = 'Missing required client capability';
  return refuse(id, { status: 400, code: CODES.missingCapability, message, data: MISSING_TASKS });
}

interface Listened {
  readonly listening: JsonObject;
  readonly tasks: ReadonlyMap<string, Task>;
}

/** Reduces the filter to the part that the caller may have, and records it before anything is delivered. Or refuses it. */
async function listenFor(
  deps: RequestDeps,
  context: UpstreamContext,
  { id, params, decisionId: decision_id }: AwaitedRequest,
  filter: ListenFilter,
  place: TaskPlace,
): Promise<Listened | Answer> {
  const { caller, target, access } = context;
  const wantsTasks =
    filter.taskIds.length > 0 &&
    (await deps.modes.speaksStateless({ target, access }, caller.gone)) === true &&
    deps.modes.hasTasks({ target, access });
  if (wantsTasks && !declaresTasks(params)) return missingTasks(id);
  const allowed = decideListed(caller.admission, target.id)(filter.resources);
  const names = filter.resources.filter((_, index) => allowed[index] === true).map(({ resource_name }) => resource_name);
  try {
    if (filter.resources.length > 0) {
      await deps.audit.shown({ decision_id, resource_type: 'resource', names, hidden: filter.resources.length - names.length });
    }
    const tasks = wantsTasks ? await listenedTasks(deps, caller, filter.taskIds, place) : new Map<string, Task>();
    return { listening: honoured(filter, allowed, [...tasks.keys()]), tasks };
  } catch (err) {
    deps.log.error({ err }, 'recording a subscription failed; the request is refused');
    return unavailable(id);
  }
}

/** The caller's own tasks of tools that the caller may call. Each tool is decided and recorded. */
async function listenedTasks(
  deps: RequestDeps,
  { admission, targetName }: Caller,
  taskIds: readonly string[],
  place: TaskPlace,
): Promise<ReadonlyMap<string, Task>> {
  const own = taskIds.map((handle) => openTask(place, handle)).filter((task) => task !== null);
  const tools = new Map(own.map((task) => [task.tool, toolOf(task)] as const));
  const decided = [...tools].map(async ([tool, operation]) => {
    const { allowed, decisionId } = await authorize(deps, { admission, targetName, method: LISTEN, operation });
    deps.audit.outcome({ decision_id: decisionId, outcome: allowed ? 'ok' : 'denied', duration_ms: 0 });
    return [tool, allowed] as const;
  });
  const allowed = new Map(await Promise.all(decided));
  return new Map(own.filter(({ tool }) => allowed.get(tool) === true).map((task) => [task.upstreamId, task]));
}

/**
 * In stateful mode, a closed connection does not cancel a request. The call goes on, so that its outcome is recorded, but it
 * is aborted after `graceMs` because no client waits for it.
 */
function lingering(gone: Cancellable, graceMs: number): Cancellable {
  const call = createCancellation();
  const leave = (): void => {
    if (gone.reason === REVOKED) call.abort();
    else setTimeout(() => call.abort(), graceMs).unref();
  };
  // If the client is gone before the call begins, no further event comes.
  if (gone.aborted) leave();
  else gone.addEventListener('abort', leave, { once: true });
  return call;
}

interface Ending {
  /** Called when the request is sent to its target. */
  forwarded(): void;
  readonly end: (outcome: Outcome) => void;
}

function endOnce(deps: RequestDeps, caller: Caller, method: string, decision_id: string, leave: () => void): Ending {
  const { targetName, wholeAt } = caller;
  let ended = false;
  let addedMs: number | null = null;
  return {
    forwarded() {
      addedMs = performance.now() - wholeAt;
    },
    end(outcome) {
      if (ended) return;
      ended = true;
      leave();
      deps.audit.outcome({ decision_id, outcome, duration_ms: deps.now() - caller.arrivedAt });
      // The client decides how long such a stream lasts, so its duration measures nothing.
      if (method === LISTEN) return;
      deps.observe.ended({ method, targetName, outcome, tookMs: performance.now() - wholeAt, addedMs });
    },
  };
}

function denied(
  { admission, targetName }: Caller,
  mode: Mode,
  { id, method }: RpcRequest,
  operation: Operation,
  { decisionId: decision_id, reason }: Verdict & { allowed: false },
): Answer {
  const object = operation.kind === 'object' ? operation.object : null;
  if (object !== null && admission.snapshot.targets.get(targetName)?.denials === 'hidden') {
    return isTaskMethod(method) ? rpcError(id, CODES.invalidParams, TASK_NOT_FOUND) : unknownObject(id, mode, object);
  }
  const what =
    object === null
      ? `target \`${targetName}\``
      : `${object.resource_type} \`${object.resource_name}\` of target \`${targetName}\``;
  // Most clients show their user only the message.
  const why =
    reason === 'not_canonical'
      ? `its URI is not in canonical form (decision ${decision_id})`
      : `policy does not allow it. To get access, ask an administrator about decision ${decision_id}`;
  return rpcError(id, CODES.denied, `${what} is denied: ${why}`, { decision_id, reason });
}

/** The answer to a name that does not exist. The target is not asked, so the answer does not tell whether the name exists. */
function unknownObject(id: RpcId, mode: Mode, { resource_type, resource_name }: NamedObject): Answer {
  if (resource_type !== 'resource') return rpcError(id, CODES.invalidParams, `Unknown ${resource_type}: ${resource_name}`);
  const code = mode === 'stateless' ? CODES.invalidParams : CODES.resourceNotFound;
  return rpcError(id, code, 'Resource not found', { uri: resource_name });
}

/** Replaces `requestState` by the target's own. null: the state has expired or belongs to a different request or principal. */
function readState(
  deps: RequestDeps,
  caller: Caller,
  target: RoutedTarget,
  { method, params }: RpcRequest,
  manner: ClientMode,
): { requestState?: string } | null {
  const sealed = params?.requestState;
  if (manner.mode === 'stateful' || sealed === undefined) return {};
  // Arguments with too many values are not read, so they cannot be compared with those that the state belongs to.
  if (typeof sealed !== 'string' || isUnread(params?.arguments)) return null;
  const binding = stateBinding(fingerprintOf(target), method, params);
  const requestState = openState(deps.seal, caller.admission.principal, caller.targetName, binding, sealed, deps.now());
  return requestState === null ? null : { requestState };
}

/** Replaces the parameters that would announce to the target, or ask it for, anything that the gateway does not carry. */
function replacedParams(
  { method, params }: RpcRequest,
  manner: ClientMode,
  { may_ask }: RoutedTarget,
  place: TaskPlace,
): { [name: string]: JsonValue | undefined } {
  const replaced: { [name: string]: JsonValue | undefined } = {};
  if (method === 'tools/call') replaced.task = mayMakeTasks(manner) ? taskWish(params?.task) : undefined;
  if (method === 'initialize') {
    const { protocolVersion, capabilities } = params ?? {};
    if (!isSessionRevision(protocolVersion)) replaced.protocolVersion = SESSION_REVISIONS[0];
    if (isObject(capabilities)) replaced.capabilities = reduceClientCapabilities(capabilities, 'stateful', may_ask);
  }
  if (!isObject(params?._meta)) return replaced;
  const meta = inwardMeta(params._meta, place);
  const declared = meta[META_KEYS.capabilities];
  replaced._meta =
    manner.mode === 'stateless' && isObject(declared)
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
function mayMakeTasks(manner: ClientMode): boolean {
  return manner.mode === 'stateful' && typeof manner.session === 'object' && manner.session?.revision === TASKS_REVISION;
}

async function handleStateless(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  sent: UpstreamRequest,
): Promise<Answer> {
  const { target, access, caller } = context;
  if (awaited.method === 'server/discover') return discover(deps, context, awaited, sent);
  const asked = { target, access, principal: caller.admission.principal.sub };
  // If the target's mode is known, it is not asked here, so it neither fails nor answers.
  const isKnown = deps.modes.isKnown(asked);
  const refusal = isKnown ? null : deps.health.refusal(asked);
  if (refusal !== null) return upstreamFault(deps, context, awaited, refusal);
  const stateless = await deps.modes.speaksStateless({ target, access }, caller.gone);
  if (typeof stateless !== 'boolean') {
    deps.health.failed(asked, stateless.fault);
    return upstreamFault(deps, context, awaited, stateless);
  }
  if (!isKnown) deps.health.answered(asked);
  if (!stateless) return fallBack(awaited, SESSION_REVISIONS);
  const answer = await deps.upstream.send(sent);
  if (isFault(answer)) return upstreamFault(deps, context, awaited, answer);
  if (answer.status !== 200) return forwardFailure(deps, context, awaited, answer);
  const { listening } = context;
  if (listening === undefined || answer.type !== 'stream') return forwardAnswer(deps, context, awaited, answer);
  return { kind: 'stream', events: listeningStream(deps, { ...context, listening, awaited }, answer), drain: false };
}

/** Forwards `server/discover`. Its answer also tells the gateway the mode of the target. */
async function discover(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  sent: UpstreamRequest,
): Promise<Answer> {
  const answer = await deps.upstream.send(sent);
  if (isFault(answer)) return upstreamFault(deps, context, awaited, answer);
  if (answer.status !== 200)
    return isWrongMode(answer.status)
      ? otherMode(deps, context, awaited, answer)
      : forwardFailure(deps, context, awaited, answer);
  const relayed = await forwardAnswer(deps, context, awaited, answer);
  if (relayed.kind !== 'message') return relayed;
  const reading = await readLargeJson(relayed.text, TARGET_RULES, context.target.id);
  const result = reading.ok && isObject(reading.value) ? reading.value.result : undefined;
  const stateless = isObject(result) && discoversStateless(result);
  deps.modes.learn(context, stateless, result);
  return stateless ? relayed : fallBack(awaited, SESSION_REVISIONS);
}

/** The refusal may name versions. If it names none, the target does not know 2026-07-28. */
async function otherMode(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  answer: UpstreamAnswer,
): Promise<Answer> {
  const supported = servedVersions(await ownError(answer, awaited.id)) ?? SESSION_REVISIONS;
  answer.discard();
  deps.modes.learn(context, supported.includes(STATELESS_REVISION));
  return fallBack(awaited, supported);
}

/** Tells the client to use a session: clients that know both modes then open one (2026-07-28, protocol version errors). */
function fallBack(awaited: AwaitedRequest, supported: readonly string[]): Answer {
  awaited.end('error');
  return refuse(awaited.id, unsupportedVersion(STATELESS_REVISION, supported));
}
