/** The answer to a request that is denied. It depends on policies and on the name alone, so it tells nothing of the target. */
import type { NamedObject } from '../../engine/decision.ts';
import { type Answer, noTarget, rpcError } from '../protocol/answer.ts';
import { CODES, type RpcId, type RpcRequest } from '../protocol/message.ts';
import type { Mode } from '../protocol/mode.ts';
import type { Operation } from '../protocol/operation.ts';
import { isTaskMethod, TASK_NOT_FOUND } from '../sessions/tasks.ts';
import type { Verdict } from './authorize.ts';
import type { Caller } from './context.ts';

export function denied(
  { admission, targetName }: Caller,
  mode: Mode,
  { id, method }: RpcRequest,
  operation: Operation,
  { answer, decisionId: decision_id, reason }: Verdict & { allowed: false },
): Answer {
  if (answer === 'no_target') return noTarget(id, targetName);
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
