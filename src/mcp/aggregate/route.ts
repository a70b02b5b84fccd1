/** Plans a request at the aggregate endpoint: which targets get it, and under which names. Pure. */
import { CODES, type Rejection, type RpcRequest } from '../../protocol/message.ts';
import { methodNotFound, type Operation, readOperation } from '../../protocol/operation.ts';
import { forTarget } from './names.ts';

export type Plan =
  /** The gateway answers. */
  | { readonly kind: 'own' }
  /** One target gets `message`, with the names that the target knows. */
  | { readonly kind: 'one'; readonly targetName: string; readonly message: RpcRequest; readonly operation: Operation }
  /** Every target that the caller may use gets it. Their answers are merged; `member` holds the items. */
  | { readonly kind: 'list'; readonly member: string; readonly operation: Operation }
  /** Every target that the caller may use gets the log level. */
  | { readonly kind: 'level'; readonly operation: Operation };

export function planRequest(message: RpcRequest): Plan | Rejection {
  const { method, params } = message;
  if (method === 'initialize' || method === 'ping') return { kind: 'own' };
  const aimed = forTarget(message);
  if (aimed !== null) {
    const operation = readOperation('stateful', method, aimed.message.params);
    return 'code' in operation ? operation : { kind: 'one', ...aimed, operation };
  }
  const operation = readOperation('stateful', method, params);
  if ('code' in operation) return operation;
  if (operation.kind === 'list') return { kind: 'list', member: operation.list.member, operation };
  if (method === 'tasks/list') return { kind: 'list', member: 'tasks', operation };
  if (method === 'logging/setLevel') return { kind: 'level', operation };
  return operation.kind === 'extension' ? methodNotFound('stateful') : NOBODY;
}

const NOBODY: Rejection = {
  status: 200,
  code: CODES.invalidParams,
  message: 'Invalid params: tools and prompts are named `<target>__<name>` here, resources `<target>+<uri>`',
};
