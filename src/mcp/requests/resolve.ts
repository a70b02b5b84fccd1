/** Resolves requests that the method alone does not explain: methods that the target lists, and tasks, whose ids are sealed. */

import { mayUseTarget } from '../../state/admission.ts';
import type { Rejection } from '../protocol/message.ts';
import { methodNotFound, type Operation, readExtension } from '../protocol/operation.ts';
import { openTask, type Task, toolOf } from '../sessions/tasks.ts';
import type { Caller, ClientRequest, RequestDeps } from './context.ts';
import { taskPlaceAt } from './tasks-of-caller.ts';

export interface Resolved {
  readonly operation: Operation;
  /** The caller's task that the request names; null: none. */
  readonly task: Task | null;
}

/**
 * Resolves nothing if the caller may not use the target: the request is then decided as a use of the target and refused, so
 * the answer reveals nothing about the methods that the target lists.
 */
export function resolve(
  deps: Pick<RequestDeps, 'seal' | 'now'>,
  caller: Caller,
  { client: { mode }, message: { method, params }, operation }: ClientRequest,
): Resolved | Rejection {
  const target = caller.admission.snapshot.targets.get(caller.targetName);
  if (operation.kind === 'task') {
    const task = target === undefined ? null : openTask(taskPlaceAt(deps, caller, target), operation.taskId);
    return task === null ? { operation, task } : { operation: toolOf(task), task };
  }
  if (operation.kind !== 'extension' || target === undefined || !mayUseTarget(caller.admission, target))
    return { operation, task: null };
  const listed = target.extension_methods.find((extension) => extension.method === method);
  if (listed === undefined) return methodNotFound(mode);
  const read = readExtension(listed, params);
  return 'code' in read ? read : { operation: read, task: null };
}
