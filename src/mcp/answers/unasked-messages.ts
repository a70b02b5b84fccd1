/** Messages that a target sends by itself: requests to the client, and notifications. */

import { principalKey } from '../../auth/principal.ts';
import { isOverdrawn } from '../../base/budgets.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { jsonText } from '../../base/json/text.ts';
import { keep } from '../../base/kept.ts';
import { restInLane } from '../../base/turns/lane.ts';
import { askedFor, mayBeAsked } from '../../protocol/capabilities.ts';
import { ACKNOWLEDGED, acknowledge, isHeard, TASK_NOTIFICATION } from '../../protocol/listen.ts';
import {
  CODES,
  errorMessage,
  type RpcId,
  type RpcMessage,
  type RpcNotification,
  type RpcRequest,
} from '../../protocol/message.ts';
import { META_KEYS } from '../../protocol/mode.ts';
import { type Operation, readOperation } from '../../protocol/operation.ts';
import { type Located, rebuildAsked, rebuildNotification } from '../../protocol/rebuild.ts';
import { lookAt, survey, visibleAsked, type Walk } from '../../protocol/visible.ts';
import { decideListed } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { authorize } from '../context/authorize.ts';
import { turnsOf, type UpstreamContext } from '../context/context.ts';
import { accessFor, admissionNow, readmit, stillUsable } from '../context/readmission.ts';
import { ownTasks, taskNamedIn } from '../context/tasks-of-caller.ts';
import { changedTexts, filterTaskParams, taskIdsOf } from '../filter/filter-parts.ts';
import { fingerprintOf, LIST_KINDS, type SessionPair, sealAskedId, versionOf } from '../sessions/sessions.ts';
import { RELATED_TASK, TASK_STATUS, type Task, toolOf, upstreamTaskId } from '../sessions/tasks.ts';
import { isFault } from '../upstream/upstream.ts';
import { DROP, filteredBy, type Seen } from './results.ts';

/** How many requests of the target the gateway remembers per stream, for their cancellation, and how long their ids may be. */
const MAX_ASKED = 100;
const MAX_ASKED_ID = 128;
const LIST_CHANGES: readonly string[] = LIST_KINDS.map((kind) => `notifications/${kind}/list_changed`);

/** Relays a request of the target to the client, under a sealed id that only this client can use in its answer. */
export async function relayRequest(context: UpstreamContext, message: RpcRequest, located: Located): Promise<Seen> {
  const { caller, target, linked, asked } = context;
  const { method, params = {} } = message;
  // 2026-07-28 has no such requests, and until `initialize` is answered there is no client to ask.
  if (linked === null) {
    return { kind: 'malformed', reason: 'a request to the client without a session, or before it is open' };
  }
  // A call in flight may last for hours: by now, an administrator may have forbidden the target to ask.
  const current = await usableNow(context);
  const mayAsk = current !== null && caller.isInBatch === undefined && mayBeAsked(current.may_ask, method, params);
  const task = mayAsk ? await taskNamedIn(context, params) : null;
  const seen = task === null ? null : await visibleParams(context, params, task);
  if (seen === null) {
    refuseRequest(context, linked, message.id);
    return DROP;
  }
  const by = { id: message.id, method, permission: askedFor(method, params) };
  const id = sealAskedId(context.deps.seal, caller.admission.principal, fingerprintOf(target), linked, by);
  if (String(message.id).length <= MAX_ASKED_ID) keep(asked, message.id, id, MAX_ASKED);
  // The gateway does not carry tasks at the client. Without `task`, the client answers at once (2025-11-25, tasks).
  const changed = await restInLane(turnsOf(caller, target.id), changedTexts(params, seen));
  const text = rebuildAsked(id, method, located, params.task === undefined ? changed : { ...changed, task: null });
  return { kind: 'pass', text };
}

function refuseRequest({ deps, target, caller }: UpstreamContext, linked: SessionPair, id: RpcId): void {
  // A target that keeps asking and does not read the refusals gets no more of them.
  const taken = deps.deliveries.refusals.take(target.id, 1);
  if (isOverdrawn(taken)) return;
  const body = errorMessage(id, { code: CODES.methodNotFound, message: 'Method not found' });
  const sent = deps.upstream.send({
    method: 'POST',
    target,
    access: accessFor(caller, target),
    session: linked.link,
    version: versionOf(caller, linked),
    body,
  });
  sent.then((answer) => isFault(answer) || answer.discard()).finally(taken.giveBack);
}

export async function relayNotification(context: UpstreamContext, message: RpcNotification, located: Located): Promise<Seen> {
  const { params = {} } = message;
  const { listening, awaited } = context;
  if (message.method === TASK_STATUS || message.method === TASK_NOTIFICATION) {
    return isTaskNews(context, message) ? relayTaskState(context, message, located) : DROP;
  }
  const task = await taskNamedIn(context, params);
  const seen = task === null ? null : await visibleParams(context, params, task);
  if (seen === null) return DROP;
  const changed = await restInLane(turnsOf(context.caller, context.target.id), changedTexts(params, seen));
  const pass = { kind: 'pass', text: rebuildNotification(message.method, located, changed) } as const;
  if (listening !== undefined && awaited !== null) {
    if (!isHeard(message.method, params, awaited.id, listening)) return DROP;
    if (message.method === 'notifications/resources/updated') return (await mayLearnOf(context, params)) ? pass : DROP;
    if (message.method !== ACKNOWLEDGED) return pass;
    const handles = new Map([...(context.tasks ?? [])].map(([upstreamId, { handle }]) => [upstreamId, handle] as const));
    const honest = acknowledge(seen, listening, handles);
    if (isObject(honest.notifications)) context.acknowledged?.(honest.notifications);
    const text = await restInLane(turnsOf(context.caller, context.target.id), jsonText(honest));
    return { kind: 'pass', text: `{"jsonrpc":"2.0","method":${JSON.stringify(message.method)},"params":${text}}` };
  }
  const meta = context.awaited?.params?._meta;
  switch (message.method) {
    case 'notifications/progress': {
      const { progressToken } = params;
      const told: Seen = isRpcId(progressToken) ? { ...pass, progressToken } : pass;
      // A task reports progress with the token of the call that made it (2025-11-25, task progress).
      if (context.longLived || task !== undefined) return told;
      return isObject(meta) && meta.progressToken !== undefined && progressToken === meta.progressToken ? told : DROP;
    }
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
      const known = isRpcId(params?.requestId) ? context.asked.get(params.requestId) : undefined;
      if (known === undefined) return DROP;
      const text = rebuildNotification(message.method, located, { ...changed, requestId: JSON.stringify(known) });
      return { kind: 'pass', text };
    }
    case 'notifications/resources/updated':
      return context.mode === 'stateful' && (await mayLearnOf(context, params)) ? pass : DROP;
    default:
      return DROP;
  }
}

/** Charges for news of a changed list. Resolves when it may be passed on; null: at once. */
export function paceNews({ mode, deps, caller, target }: UpstreamContext, message: RpcMessage): Promise<void> | null {
  if (mode !== 'stateful' || message.kind !== 'notification' || !LIST_CHANGES.includes(message.method)) return null;
  return deps.deliveries.paceList(principalKey(caller.claims), target);
}

function isRpcId(id: JsonValue | undefined): id is RpcId {
  return typeof id === 'string' || typeof id === 'number';
}

/** An update names a resource, so it is decided at delivery, by the state of that moment, and recorded. */
async function mayLearnOf(context: UpstreamContext, params: JsonObject | undefined): Promise<boolean> {
  // Revision 2026-07-28 names the resource in the same member.
  const operation = readOperation('stateful', 'resources/subscribe', params);
  return 'kind' in operation && (await decideNews(context, 'notifications/resources/updated', operation)) !== null;
}

/** Decides whether the caller gets a notification, and records the decision. null: it does not. */
async function decideNews({ deps, caller, target }: UpstreamContext, method: string, operation: Operation) {
  if (!deps.deliveries.mayDecide(principalKey(caller.claims), target)) return null;
  const admission = await readmit(caller);
  if (admission === null) return null;
  try {
    const { allowed, decisionId } = await authorize({ ...caller, admission }, { method, operation, cause: 'delivery' });
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
async function relayTaskState(context: UpstreamContext, { method, params }: RpcNotification, located: Located): Promise<Seen> {
  const upstreamId = upstreamTaskId(params?.taskId);
  if (params === undefined || upstreamId === null) return DROP;
  try {
    const tasks = await ownTasks(context, taskIdsOf(params));
    const task = tasks.get(upstreamId);
    if (task === undefined) return DROP;
    const operation = toolOf(task);
    const news = await decideNews(context, method, operation);
    if (news === null) return DROP;
    const asked = { method, params: context.awaited?.params, operation };
    const by = filteredBy(context, asked, decideListed(news.admission, context.target.id), tasks);
    const filtered = await restInLane(turnsOf(context.caller, context.target.id), filterTaskParams(located, params, by));
    if (!filtered.ok) {
      context.deps.log.warn(
        { target: context.target.name, reason: filtered.fault },
        'state of a task cannot be relayed; it is dropped',
      );
      return DROP;
    }
    if (filtered.shown !== null) await context.deps.audit.shown({ decision_id: news.decisionId, ...filtered.shown });
    return { kind: 'pass', text: `{"jsonrpc":"2.0","method":${JSON.stringify(method)},"params":${filtered.text}}` };
  } catch (err) {
    context.deps.log.error({ err }, 'recording the state of a task failed; it is dropped');
    return DROP;
  }
}

/**
 * The parameters of a message that the target sends by itself, with the client's id of its task, and without links to
 * resources that the caller may not read now. null: they have more than one reading, or name too many resources.
 */
async function visibleParams(context: UpstreamContext, params: JsonObject, task: Task | undefined): Promise<JsonObject | null> {
  const turns = turnsOf(context.caller, context.target.id);
  const walk: Walk<JsonObject | undefined> = (sight) => visibleAsked(params, sight);
  const surveyed = await restInLane(turns, survey(walk));
  if (surveyed === null) return null;
  const { looked, uris } = surveyed;
  let seen = looked.result;
  if (uris.size > 0) {
    const admission = await admissionNow(context.caller);
    if (admission === null) return null;
    seen = (await restInLane(turns, lookAt(walk, uris, decideListed(admission, context.target.id)))).result;
  }
  if (seen === undefined) return null;
  const { _meta } = seen;
  return task === undefined || !isObject(_meta)
    ? seen
    : { ...seen, _meta: { ..._meta, [RELATED_TASK]: { taskId: task.handle } } };
}

export const stillMayUse = async (context: UpstreamContext): Promise<boolean> => (await usableNow(context)) !== null;

/** The target of the stream as it is now. null: the caller may no longer use it, it no longer exists, or it has moved. */
async function usableNow({ caller, target }: UpstreamContext): Promise<RoutedTarget | null> {
  const admission = await readmit(caller);
  return admission && stillUsable(admission, caller.targetName, target);
}
