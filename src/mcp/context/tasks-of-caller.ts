/** The tasks of a caller: what they are bound to, and which of them a message of the target names. */
import type { JsonObject } from '../../base/json/json.ts';
import type { Now } from '../../base/promises.ts';
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

const NO_TASKS: ReadonlyMap<string, Task> = new Map();

/** The caller's tasks among these tasks of the target. */
export function ownTasks(context: UpstreamContext, upstreamIds: readonly string[]): Now<ReadonlyMap<string, Task>> {
  const isNamed = upstreamIds.length > 0 || context.awaited?.task || context.tasks !== undefined;
  return isNamed ? lookUpTasks(context, upstreamIds) : NO_TASKS;
}

async function lookUpTasks(context: UpstreamContext, upstreamIds: readonly string[]): Promise<ReadonlyMap<string, Task>> {
  const task = context.awaited?.task;
  const found = new Map(context.tasks);
  if (task) found.set(task.upstreamId, task);
  const scope = taskScopeAt(context.caller, context.target);
  const keys = upstreamIds.filter((id) => !found.has(id)).map((id) => taskKey(scope.owner, scope.fingerprint, id));
  if (keys.length === 0) return found;
  for (const handle of (await context.deps.tasks.handles(keys)).values()) {
    const own = openTask(scope, handle);
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
