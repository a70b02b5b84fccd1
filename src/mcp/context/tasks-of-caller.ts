/** The tasks of a caller: what they are bound to, and which of them a message of the target names. */
import { principalKey } from '../../auth/principal.ts';
import type { JsonObject } from '../../base/json/json.ts';
import type { Now } from '../../base/promises.ts';
import { inTurnOf } from '../../base/turns/caller-turns.ts';
import { mapInLane } from '../../base/turns/lane.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { fingerprintOf } from '../sessions/sessions.ts';
import { openTask, relatedTask, type Task, type TaskScope, taskKey } from '../sessions/tasks.ts';
import type { Caller, UpstreamContext } from './context.ts';

export function taskScopeAt({ deps: { seal, now }, admission, targetName }: Caller, target: RoutedTarget): TaskScope {
  return { seal, owner: admission.principal, targetName, fingerprint: fingerprintOf(target), now: now() };
}

/** Stores the task before the client learns about it, so that later messages of the target about it reach the client. */
export async function rememberTask(context: UpstreamContext, { handle, upstreamId }: Task): Promise<void> {
  const { owner, fingerprint, now } = taskScopeAt(context.caller, context.target);
  await context.deps.tasks.remember(taskKey(owner, fingerprint, upstreamId), handle, now);
}

/** A message can name thousands of tasks, each of which takes some microseconds. So many messages of one principal are looked at one by one. */
const MADE_AT_ONCE = 100;
const NO_TASKS: ReadonlyMap<string, Task> = new Map();

/** The caller's tasks among these tasks of the target. */
export function ownTasks(context: UpstreamContext, upstreamIds: readonly string[]): Now<ReadonlyMap<string, Task>> {
  const isNamed = upstreamIds.length > 0 || context.awaited?.task || context.tasks !== undefined;
  if (!isNamed) return NO_TASKS;
  const look = () => lookUpTasks(context, upstreamIds);
  return upstreamIds.length <= MADE_AT_ONCE ? look() : inTurnOf(`tasks of ${principalKey(context.caller.claims)}`, 1, look);
}

async function lookUpTasks(context: UpstreamContext, upstreamIds: readonly string[]): Promise<ReadonlyMap<string, Task>> {
  const task = context.awaited?.task;
  const found = new Map(context.tasks);
  if (task) found.set(task.upstreamId, task);
  const scope = taskScopeAt(context.caller, context.target);
  const unknown = upstreamIds.filter((id) => !found.has(id));
  if (unknown.length === 0) return found;
  const principal = principalKey(context.caller.claims);
  const keys = await mapInLane(principal, unknown, MADE_AT_ONCE, (id) => taskKey(scope.owner, scope.fingerprint, id));
  const handles = [...(await context.deps.tasks.handles(keys)).values()];
  for (const own of await mapInLane(principal, handles, MADE_AT_ONCE, (handle) => openTask(scope, handle))) {
    if (own !== null) found.set(own.upstreamId, own);
  }
  return found;
}

/** The task to which a message of the target belongs. undefined: the message names none; null: it is not the caller's. */
export async function taskNamedIn(context: UpstreamContext, params: JsonObject | undefined): Promise<Task | null | undefined> {
  const related = relatedTask(params);
  if (related === undefined || related === null) return related;
  try {
    return (await ownTasks(context, [related])).get(related) ?? null;
  } catch (err) {
    context.deps.log.error({ err }, 'looking up the task of a message failed; the message is dropped');
    return null;
  }
}
