/**
 * Relays upstream messages (what a target sends back) to the client. Each is read strictly, checked, and bound to its principal.
 */

import type { Outcome } from '../../audit/event.ts';
import { isOverdrawn } from '../../base/budgets.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import { UnreadFault } from '../../base/json/steps.ts';
import { laneSteps } from '../../base/lane.ts';
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import { principalKey } from '../limits/slots.ts';
import type { Answer, OutEvent } from '../protocol/answer.ts';
import { declaresTasks, isWithheldError, mayBeAsked } from '../protocol/capabilities.ts';
import { ACKNOWLEDGED, acknowledge, farewell, isHeard, TASK_NOTIFICATION } from '../protocol/listen.ts';
import {
  CODES,
  errorMessage,
  type RpcId,
  type RpcNotification,
  type RpcRequest,
  readMessage,
  resultMessage,
} from '../protocol/message.ts';
import { META_KEYS } from '../protocol/mode.ts';
import { type Operation, readOperation } from '../protocol/operation.ts';
import { type Located, type MemberTexts, rebuildAsked, rebuildNotification, rebuildResponse } from '../protocol/rebuild.ts';
import { lookAt, type Sight, survey, visibleAsked } from '../protocol/visible.ts';
import {
  fingerprintOf,
  type SessionPair,
  type StreamOrigin,
  sealAskedId,
  sealEventId,
  sealState,
  versionOf,
} from '../sessions/sessions.ts';
import {
  openTask,
  RELATED_TASK,
  relatedTask,
  sealTask,
  TASK_STATUS,
  TASKS_REVISION,
  type Task,
  type TaskPlace,
  taskKey,
  toolOf,
  upstreamTaskId,
} from '../sessions/tasks.ts';
import { faultOf } from '../upstream/http.ts';
import { BacklogFault } from '../upstream/unread.ts';
import { isFault, type UpstreamAnswer, type UpstreamFault, type UpstreamStream } from '../upstream/upstream.ts';
import { authorize, decideListed } from './authorize.ts';
import type { AwaitedRequest, Caller, RequestDeps, UpstreamContext } from './context.ts';
import { forwardFailure, NOT_ITS_TO_ASK, noteFault, upstreamFault } from './failure.ts';
import {
  filterError,
  filterInSteps,
  filterResult,
  filterTaskParams,
  isLongList,
  RESULT_SPAN_DEPTH,
  type ResultContext,
  taskIdsIn,
} from './filter.ts';
import { settingOf } from './upstream-sessions.ts';

type Seen =
  | { readonly kind: 'pass'; readonly text: string }
  | { readonly kind: 'drop' }
  | { readonly kind: 'final'; readonly text: string; readonly outcome: Outcome }
  /** The caller may no longer use the stream. */
  | { readonly kind: 'close' };

const DROP: Seen = { kind: 'drop' };
/** How many requests of the target the gateway remembers per stream, for their cancellation. */
const MAX_ASKED = 1_000;
const RULES = { spanDepth: RESULT_SPAN_DEPTH };
/** How many characters of a stream are read after its client has gone, in addition to the answer. */
const MAX_UNHEARD = 1024 * 1024;
const EVENT_COST = 128;

/** Relays an answer with HTTP 200. */
export async function forwardAnswer(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  answer: UpstreamAnswer,
): Promise<Answer> {
  if (answer.type === 'stream')
    return { kind: 'stream', events: forwardStream(deps, context, answer), drain: context.mode === 'stateful' };
  if (answer.type === 'other') return forwardFailure(deps, context, awaited, answer);
  try {
    // What the caller owes is paid before its answer takes room that others could use.
    await deps.reader.rest(chargedTo(context));
    const body = await answer.read(() => unreadByClients(deps, context));
    if (isFault(body)) return upstreamFault(deps, context, awaited, body);
    // The body keeps its room in memory until it is discarded, so it is not refused after it has been read.
    const seen = await inspectHeld(deps, context, body);
    // The only message must be the answer.
    const { text, outcome } = seen.kind === 'final' ? seen : broken(context, 'The target sent no valid answer');
    awaited.end(outcome);
    return { kind: 'message', status: 200, text };
  } finally {
    answer.discard();
  }
}

/** A large answer is not read while the clients of its caller leave too many bytes unread. */
function unreadByClients({ outbox }: RequestDeps, { caller }: UpstreamContext): UpstreamFault | null {
  const refused = outbox.refusal(principalKey(caller.claims));
  return refused && { fault: 'busy', cause: new Error(`the clients of this caller have left too many bytes of answers unread`) };
}

export async function* forwardStream(
  deps: RequestDeps,
  context: UpstreamContext,
  answer: UpstreamStream,
): AsyncGenerator<OutEvent> {
  const { awaited } = context;
  let outcome: Outcome | null = 'cancelled';
  let resumable = false;
  let unheard = 0;
  try {
    for await (const arrived of answer.events) {
      for (const event of arrived) {
        // The call goes on after its client has gone, so that its outcome is recorded. A target that sends on and on is cut off.
        if (unheard > MAX_UNHEARD) return;
        if (context.caller.gone.aborted) unheard += event.data.length + EVENT_COST;
        const id = event.id === undefined ? undefined : eventId(deps, context, event.id);
        const retry = context.mode === 'stateful' ? event.retry : undefined;
        resumable ||= id !== undefined;
        if (event.data === '') {
          if (id !== undefined || retry !== undefined) yield { data: '', id, retry };
          continue;
        }
        const seen = await inspect(deps, context, event.data);
        if (seen.kind === 'close') {
          const end = parting(context);
          if (end !== null) yield end;
          return;
        }
        if (seen.kind === 'pass') yield { data: seen.text, id, retry };
        if (seen.kind === 'final') {
          outcome = seen.outcome;
          yield { data: seen.text, id, retry, final: true };
          return;
        }
        const pause = deps.deliveries.pace(principalKey(context.caller.claims), context.target, event.data.length);
        if (pause !== null) await pause;
      }
    }
    // The stream of a session may break off before the answer. The client then resumes it, and that stream records the outcome.
    outcome = resumable ? null : 'upstream_error';
    if (!resumable && awaited !== null)
      yield { data: broken(context, 'The target ended its answer too early').text, final: true };
  } catch (cause) {
    const fault = faultOf(cause);
    if (fault === 'aborted') {
      // The client or the gateway has aborted it. If it was the gateway, the client may wait for the end of its subscription.
      const end = parting(context);
      if (end !== null) yield end;
      return;
    }
    outcome = resumable ? null : 'upstream_error';
    const text = noteFault(deps, context, { fault: fault === 'unreachable' ? 'broken_off' : fault, cause }, awaited?.method);
    if (!resumable && awaited !== null) yield { data: broken(context, text).text, final: true };
  } finally {
    answer.discard();
    if (outcome !== null) awaited?.end(outcome);
  }
}

/** The last event of a `subscriptions/listen`, for its client. null: all other streams just end. */
function parting({ listening, awaited }: UpstreamContext): OutEvent | null {
  if (listening === undefined || awaited === null) return null;
  return { data: resultMessage(awaited.id, JSON.stringify(farewell(awaited.id))), final: true };
}

/** undefined: the stream cannot be resumed, because it has no session, or its answer cannot be filtered without the request. */
function eventId(deps: RequestDeps, { caller, linked, awaited }: UpstreamContext, upstreamId: string): string | undefined {
  if (linked === null || (awaited !== null && needsRequest(awaited))) return undefined;
  const origin: StreamOrigin | null = awaited && { id: awaited.id, method: awaited.method, decisionId: awaited.decisionId };
  return sealEventId(deps.seal, caller.admission.principal, caller.targetName, linked, upstreamId, origin);
}

function needsRequest({ method, params, task }: AwaitedRequest): boolean {
  return method === 'completion/complete' || params?.task !== undefined || (task != null && method !== 'tasks/result');
}

async function inspect(deps: RequestDeps, context: UpstreamContext, text: string): Promise<Seen> {
  const { target, awaited } = context;
  const giveBack = deps.reader.hold(target.id, text.length);
  if (giveBack instanceof BacklogFault) {
    const text = noteFault(deps, context, { fault: 'busy', cause: giveBack }, awaited?.method);
    return awaited === null ? DROP : { kind: 'final', ...broken(context, text) };
  }
  try {
    return await inspectHeld(deps, context, text);
  } finally {
    giveBack();
  }
}

async function inspectHeld(deps: RequestDeps, context: UpstreamContext, message: Buffer | string): Promise<Seen> {
  try {
    const text = typeof message === 'string' ? message : await deps.reader.decode(chargedTo(context), message);
    return await inspectRead(deps, context, text);
  } catch (err) {
    if (!(err instanceof UnreadFault)) throw err;
    return malformed(deps, context, err.message);
  }
}

/** Charges target and caller together, so that the messages for one caller do not delay other callers of the target. */
function chargedTo({ caller, target }: UpstreamContext): string {
  return JSON.stringify([principalKey(caller.claims), target.id]);
}

async function inspectRead(deps: RequestDeps, context: UpstreamContext, text: string): Promise<Seen> {
  const reading = await deps.reader.read(chargedTo(context), text, RULES);
  if (!reading.ok) return malformed(deps, context, reading.reason);
  const message = readMessage(reading.value);
  if (message.kind === 'invalid') return malformed(deps, context, message.reason);
  if (context.longLived && !(await stillMayUse(deps, context))) return { kind: 'close' };
  if (message.kind === 'request') return forwardRequest(deps, context, message, reading);
  if (message.kind === 'notification') return forwardNotification(deps, context, message, reading);
  const { awaited } = context;
  // An error without an id can only belong to the request that opened this stream.
  const answers = awaited !== null && (message.id === awaited.id || (message.id === null && message.outcome === 'error'));
  if (!answers) return malformed(deps, context, 'an answer to a different request');
  if (message.outcome === 'error') {
    const error = isObject(reading.value) ? reading.value.error : undefined;
    if (isObject(error) && isWithheldError(error, context.mode, context.target.may_ask, awaited.params)) {
      return { kind: 'final', ...broken(context, NOT_ITS_TO_ASK) };
    }
    const decide = decideListed(context.caller.admission, context.target.id);
    const text = rebuildResponse(awaited.id, 'error', reading, filterError(isObject(error) ? error : {}, awaited.params, decide));
    return { kind: 'final', text, outcome: 'error' };
  }
  const result = isObject(reading.value) ? reading.value.result : undefined;
  return isObject(result) ? forwardResult(deps, context, awaited, reading, result) : malformed(deps, context, 'no result');
}

async function forwardResult(
  deps: RequestDeps,
  context: UpstreamContext,
  awaited: AwaitedRequest,
  located: Located,
  result: JsonObject,
): Promise<Seen> {
  const { method, params } = awaited;
  let text: string;
  try {
    const named = taskIdsIn(result);
    const tasks = namesNoTask(context, named) ? NO_TASKS : await ownTasks(deps, context, named);
    const by = filteredBy(deps, context, awaited, context.caller.admission, tasks);
    const inSteps = located.text.length > LARGE_TEXT || isLongList(result, by);
    const filtered = inSteps
      ? await laneSteps(context.target.id, filterInSteps(located, result, by))
      : filterResult(located, result, by);
    if (!filtered.ok) return malformed(deps, context, filtered.fault);
    if (filtered.created !== null) await rememberTask(deps, context, filtered.created);
    if (filtered.shown !== null) await deps.audit.shown({ decision_id: awaited.decisionId, ...filtered.shown });
    text = filtered.text;
  } catch (err) {
    if (err instanceof UnreadFault) throw err;
    deps.log.error({ err }, 'recording the names in an answer, or its new task, failed; the answer is withheld');
    return { kind: 'final', ...broken(context, 'The gateway cannot record at the moment; try again') };
  }
  const said = context.linked === null ? null : settingOf(method, params);
  if (said !== null) await remember(deps, context, said);
  return { kind: 'final', text: resultMessage(awaited.id, text), outcome: 'ok' };
}

function filteredBy(
  deps: RequestDeps,
  context: UpstreamContext,
  { method, params, operation }: Pick<AwaitedRequest, 'method' | 'params' | 'operation'>,
  admission: Admission,
  tasks: ReadonlyMap<string, Task>,
): ResultContext {
  const { caller, target, mode, linked } = context;
  const { principal } = admission;
  const asked =
    mode === 'stateless' ? declaresTasks(params) : linked?.session.revision === TASKS_REVISION && isObject(params?.task);
  const tool = method === 'tools/call' && asked && operation.kind === 'object' ? operation.object.resource_name : null;
  return {
    mode,
    method,
    params,
    operation,
    decide: decideListed(admission, target.id),
    sealState: (state) =>
      sealState(deps.seal, principal, caller.targetName, stateBinding(fingerprintOf(target), method, params), state, deps.now()),
    mayAsk: target.may_ask,
    sealTask: tool === null ? null : (upstreamId) => sealTask(taskPlaceOf(deps, context), upstreamId, tool),
    tasks,
  };
}

function taskPlaceOf(deps: RequestDeps, { caller, target }: UpstreamContext): TaskPlace {
  const { admission, targetName } = caller;
  return { seal: deps.seal, owner: admission.principal, targetName, place: fingerprintOf(target), now: deps.now() };
}

/** Stores the task before the client learns about it, so that later messages of the target about it reach the client. */
async function rememberTask(deps: RequestDeps, context: UpstreamContext, { handle, upstreamId }: Task): Promise<void> {
  const { owner, place, now } = taskPlaceOf(deps, context);
  await deps.tasks.remember(taskKey(owner, place, upstreamId), handle, now);
}

const NO_TASKS: ReadonlyMap<string, Task> = new Map();

const namesNoTask = ({ awaited, tasks }: UpstreamContext, upstreamIds: readonly string[]): boolean =>
  upstreamIds.length === 0 && !awaited?.task && tasks === undefined;

/** The caller's tasks among these tasks of the target. */
async function ownTasks(
  deps: RequestDeps,
  context: UpstreamContext,
  upstreamIds: readonly string[],
): Promise<ReadonlyMap<string, Task>> {
  const found = new Map(context.tasks);
  const task = context.awaited?.task;
  if (task) found.set(task.upstreamId, task);
  const place = taskPlaceOf(deps, context);
  const keys = upstreamIds.filter((id) => !found.has(id)).map((id) => taskKey(place.owner, place.place, id));
  if (keys.length === 0) return found;
  for (const handle of (await deps.tasks.handles(keys)).values()) {
    const own = openTask(place, handle);
    if (own !== null) found.set(own.upstreamId, own);
  }
  return found;
}

/** The task to which a message of the target belongs. undefined: the message names none; null: it is not the caller's. */
async function taskNamedIn(
  deps: RequestDeps,
  context: UpstreamContext,
  params: JsonObject | undefined,
): Promise<Task | null | undefined> {
  const related = relatedTask(params);
  if (related === undefined || related === null) return related;
  try {
    return (await ownTasks(deps, context, [related])).get(related) ?? null;
  } catch (err) {
    deps.log.error({ err }, 'looking up the task of a message failed; the message is dropped');
    return null;
  }
}

/**
 * The parameters of a message that the target sends by itself, with the client's id of its task, and without links to
 * resources that the caller may not read now. null: they have more than one reading, or name too many resources.
 */
async function visibleParams(
  deps: RequestDeps,
  context: UpstreamContext,
  params: JsonObject,
  task: Task | undefined,
): Promise<JsonObject | null> {
  const walk = (sight: Sight): JsonObject | undefined => visibleAsked(params, sight);
  const { looked, uris } = survey(walk);
  let seen = looked.result;
  if (uris.size > 0) {
    const admission = context.longLived ? await readmit(deps, context.caller) : context.caller.admission;
    seen = admission === null ? undefined : lookAt(walk, uris, decideListed(admission, context.target.id))?.result;
  }
  if (seen === undefined) return null;
  const { _meta } = seen;
  return task === undefined || !isObject(_meta)
    ? seen
    : { ...seen, _meta: { ..._meta, [RELATED_TASK]: { taskId: task.handle } } };
}

function changes(seen: JsonObject, params: JsonObject): MemberTexts {
  const changed = Object.entries(seen).filter(([name, value]) => value !== params[name]);
  return Object.fromEntries(changed.map(([name, value]) => [name, JSON.stringify(value)]));
}

/** Stores a setting that would be lost with the upstream session, because the client would not repeat it. */
async function remember(
  deps: RequestDeps,
  { linked, target }: UpstreamContext,
  said: NonNullable<ReturnType<typeof settingOf>>,
): Promise<void> {
  if (linked === null) return;
  const { id } = linked.session;
  try {
    await (said.on
      ? deps.sessions.set(id, target.id, said.setting, deps.now())
      : deps.sessions.unset(id, target.id, said.setting.key));
  } catch (err) {
    deps.log.warn({ err }, 'storing a setting of a session failed');
  }
}

export function stateBinding(place: string, method: string, params: JsonObject | undefined) {
  const name = params?.name ?? params?.uri;
  return { place, method, name: typeof name === 'string' ? name : null, arguments: params?.arguments };
}

/** Relays a request of the target to the client, under a sealed id that only this client can use in its answer. */
async function forwardRequest(deps: RequestDeps, context: UpstreamContext, message: RpcRequest, located: Located): Promise<Seen> {
  const { caller, target, linked, asked } = context;
  const { method, params = {} } = message;
  // 2026-07-28 has no such requests, and until `initialize` is answered there is no client to ask.
  if (linked === null) return malformed(deps, context, 'a request to the client without a session, or before it is open');
  const task = mayBeAsked(target.may_ask, method, params) ? await taskNamedIn(deps, context, params) : null;
  const seen = task === null ? null : await visibleParams(deps, context, params, task);
  if (seen === null) {
    refuseRequest(deps, context, linked, message.id);
    return DROP;
  }
  const id = sealAskedId(deps.seal, caller.admission.principal, fingerprintOf(target), linked, message);
  const [oldest] = asked.keys();
  if (asked.size >= MAX_ASKED && oldest !== undefined) asked.delete(oldest);
  asked.set(message.id, id);
  // The gateway does not carry tasks at the client. Without `task`, the client answers at once (2025-11-25, tasks).
  const changed = params.task === undefined ? changes(seen, params) : { ...changes(seen, params), task: null };
  return { kind: 'pass', text: rebuildAsked(id, method, located, changed) };
}

function refuseRequest(deps: RequestDeps, { target, access, caller }: UpstreamContext, linked: SessionPair, id: RpcId): void {
  // A target that keeps asking and does not read the refusals gets no more of them.
  const taken = deps.deliveries.refusals.take(target.id, 1);
  if (isOverdrawn(taken)) return;
  const body = errorMessage(id, { code: CODES.methodNotFound, message: 'Method not found' });
  const sent = deps.upstream.send({
    method: 'POST',
    target,
    access,
    session: linked.link,
    version: versionOf(caller, linked),
    body,
  });
  sent.then((answer) => isFault(answer) || answer.discard()).finally(taken.giveBack);
}

async function forwardNotification(
  deps: RequestDeps,
  context: UpstreamContext,
  message: RpcNotification,
  located: Located,
): Promise<Seen> {
  const { params = {} } = message;
  const { listening, awaited } = context;
  if (message.method === TASK_STATUS || message.method === TASK_NOTIFICATION) {
    return isTaskNews(context, message) ? relayTaskState(deps, context, message, located) : DROP;
  }
  const task = await taskNamedIn(deps, context, params);
  const seen = task === null ? null : await visibleParams(deps, context, params, task);
  if (seen === null) return DROP;
  const changed = changes(seen, params);
  const pass: Seen = { kind: 'pass', text: rebuildNotification(message.method, located, changed) };
  if (listening !== undefined && awaited !== null) {
    if (!isHeard(message.method, params, awaited.id, listening)) return DROP;
    if (message.method === 'notifications/resources/updated') return (await mayLearnOf(deps, context, params)) ? pass : DROP;
    if (message.method !== ACKNOWLEDGED) return pass;
    const handles = new Map([...(context.tasks ?? [])].map(([upstreamId, { handle }]) => [upstreamId, handle] as const));
    const honest = acknowledge(seen, listening, handles);
    if (isObject(honest.notifications)) context.acknowledged?.(honest.notifications);
    return { kind: 'pass', text: JSON.stringify({ jsonrpc: '2.0', method: message.method, params: honest }) };
  }
  const meta = context.awaited?.params?._meta;
  switch (message.method) {
    case 'notifications/progress':
      // A task reports progress with the token of the call that made it (2025-11-25, task progress).
      if (context.longLived || task !== undefined) return pass;
      return isObject(meta) && meta.progressToken !== undefined && params?.progressToken === meta.progressToken ? pass : DROP;
    case 'notifications/message':
      if (context.mode === 'stateful') return pass;
      return isObject(meta) && meta[META_KEYS.logLevel] !== undefined ? pass : DROP;
    case 'notifications/tools/list_changed':
    case 'notifications/prompts/list_changed':
    case 'notifications/resources/list_changed':
      return context.mode === 'stateful' ? pass : DROP;
    case 'notifications/elicitation/complete':
      return context.mode === 'stateful' && context.target.may_ask.includes('elicitation_url') ? pass : DROP;
    case 'notifications/cancelled': {
      const known = isAskedId(params?.requestId) ? context.asked.get(params.requestId) : undefined;
      if (known === undefined) return DROP;
      const text = rebuildNotification(message.method, located, { ...changed, requestId: JSON.stringify(known) });
      return { kind: 'pass', text };
    }
    case 'notifications/resources/updated':
      return context.mode === 'stateful' && (await mayLearnOf(deps, context, params)) ? pass : DROP;
    default:
      return DROP;
  }
}

function isAskedId(id: JsonValue | undefined): id is RpcId {
  return typeof id === 'string' || typeof id === 'number';
}

/** An update names a resource, so it is decided at delivery, by the state of that moment, and recorded. */
async function mayLearnOf(deps: RequestDeps, context: UpstreamContext, params: JsonObject | undefined): Promise<boolean> {
  // Revision 2026-07-28 names the resource in the same member.
  const operation = readOperation('stateful', 'resources/subscribe', params);
  return 'kind' in operation && (await decideNews(deps, context, 'notifications/resources/updated', operation)) !== null;
}

interface News {
  readonly admission: Admission;
  readonly decisionId: string;
}

/** Decides whether the caller gets a notification, and records the decision. null: it does not. */
async function decideNews(
  deps: RequestDeps,
  { caller, target }: UpstreamContext,
  method: string,
  operation: Operation,
): Promise<News | null> {
  if (!deps.deliveries.mayDecide(principalKey(caller.claims), target)) return null;
  const admission = await readmit(deps, caller);
  if (admission === null) return null;
  try {
    const { allowed, decisionId } = await authorize(deps, {
      ...{ admission, targetName: caller.targetName, method, operation },
      cause: 'delivery',
    });
    deps.audit.outcome({ decision_id: decisionId, outcome: allowed ? 'ok' : 'denied', duration_ms: 0 });
    return allowed ? { admission, decisionId } : null;
  } catch {
    return null;
  }
}

/** Each revision has its own notification, and 2026-07-28 sends it only to clients that listen. */
function isTaskNews({ mode, listening, awaited }: UpstreamContext, { method, params }: RpcNotification): boolean {
  if (mode === 'stateful') return method === TASK_STATUS;
  return listening !== undefined && awaited !== null && isHeard(method, params, awaited.id, listening);
}

/** The state of a task is decided as the tool that made it, and filtered as the answer to `tasks/get` would be. */
async function relayTaskState(
  deps: RequestDeps,
  context: UpstreamContext,
  { method, params }: RpcNotification,
  located: Located,
): Promise<Seen> {
  const upstreamId = upstreamTaskId(params?.taskId);
  if (params === undefined || upstreamId === null) return DROP;
  try {
    const tasks = await ownTasks(deps, context, taskIdsIn(params));
    const task = tasks.get(upstreamId);
    if (task === undefined) return DROP;
    const operation = toolOf(task);
    const news = await decideNews(deps, context, method, operation);
    if (news === null) return DROP;
    const asked = { method, params: context.awaited?.params, operation };
    const filtered = filterTaskParams(located, params, filteredBy(deps, context, asked, news.admission, tasks));
    if (!filtered.ok) {
      deps.log.warn({ target: context.target.name, reason: filtered.fault }, 'state of a task cannot be relayed; it is dropped');
      return DROP;
    }
    if (filtered.shown !== null) await deps.audit.shown({ decision_id: news.decisionId, ...filtered.shown });
    return { kind: 'pass', text: `{"jsonrpc":"2.0","method":${JSON.stringify(method)},"params":${filtered.text}}` };
  } catch (err) {
    deps.log.error({ err }, 'recording the state of a task failed; it is dropped');
    return DROP;
  }
}

async function stillMayUse(deps: RequestDeps, { caller, target }: UpstreamContext): Promise<boolean> {
  const admission = await readmit(deps, caller);
  const current = admission?.snapshot.targets.get(caller.targetName);
  if (admission === null || current?.id !== target.id) return false;
  return mayUseTarget(admission, target);
}

async function readmit(deps: RequestDeps, caller: Caller): Promise<Admission | null> {
  try {
    const admission = await deps.admit(caller.claims);
    return 'refused' in admission ? null : admission;
  } catch {
    return null;
  }
}

function malformed(deps: RequestDeps, context: UpstreamContext, reason: string): Seen {
  // A name in the reason comes from the target, and it may be a secret that the target repeats.
  const unnamed = reason.replace(/"(?:[^"\\]|\\.)*"/g, '"..."');
  deps.log.warn({ target: context.target.name, reason: unnamed }, 'target sent a message that cannot be relayed');
  if (context.awaited === null) return DROP;
  return { kind: 'final', ...broken(context, 'The target sent no valid answer') };
}

function broken({ awaited }: UpstreamContext, what: string): { text: string; outcome: Outcome } {
  return { text: errorMessage(awaited?.id ?? null, { code: CODES.internal, message: what }), outcome: 'upstream_error' };
}
