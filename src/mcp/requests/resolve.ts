/** Resolves requests that the method alone does not explain: methods that the target lists, and tasks, whose ids are sealed. */

import { mayUseTarget } from '../../state/admission.ts';
import type { Rejection, RpcRequest } from '../protocol/message.ts';
import type { Mode } from '../protocol/mode.ts';
import { methodNotFound, type Operation, readExtension } from '../protocol/operation.ts';
import type { Seal } from '../sessions/seal.ts';
import { fingerprintOf } from '../sessions/sessions.ts';
import { openTask, type Task, type TaskPlace, toolOf } from '../sessions/tasks.ts';
import type { Caller } from './context.ts';

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
  caller: Caller,
  mode: Mode,
  { method, params }: RpcRequest,
  operation: Operation,
  seal: Seal,
  now: number,
): Resolved | Rejection {
  if (operation.kind === 'task') {
    const place = taskPlace(caller, seal, now);
    const task = place && openTask(place, operation.taskId);
    return task === null ? { operation, task } : { operation: toolOf(task), task };
  }
  const target = caller.admission.snapshot.targets.get(caller.targetName);
  if (operation.kind !== 'extension' || target === undefined || !mayUseTarget(caller.admission, target))
    return { operation, task: null };
  const listed = target.extension_methods.find((extension) => extension.method === method);
  if (listed === undefined) return methodNotFound(mode);
  const read = readExtension(listed, params);
  return 'code' in read ? read : { operation: read, task: null };
}

/** null: the target does not exist. */
export function taskPlace(
  { admission: { principal, snapshot }, targetName }: Pick<Caller, 'admission' | 'targetName'>,
  seal: Seal,
  now: number,
): TaskPlace | null {
  const target = snapshot.targets.get(targetName);
  return target === undefined ? null : { seal, owner: principal, targetName, place: fingerprintOf(target), now };
}
