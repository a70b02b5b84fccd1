/** Plans a request at the aggregate endpoint: which targets get it, and under which names. Pure. */
import { CODES, type Rejection, type RpcRequest } from '../protocol/message.ts';
import { type Operation, readOperation } from '../protocol/operation.ts';
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

const LISTS: ReadonlyMap<string, string> = new Map([
  ['tools/list', 'tools'],
  ['prompts/list', 'prompts'],
  ['resources/list', 'resources'],
  ['resources/templates/list', 'resourceTemplates'],
  ['tasks/list', 'tasks'],
]);

export function planRequest(message: RpcRequest): Plan | Rejection {
  const { method, params } = message;
  if (method === 'initialize' || method === 'ping') return { kind: 'own' };
  const member = LISTS.get(method);
  if (member !== undefined || method === 'logging/setLevel') {
    const operation = readOperation('stateful', method, params);
    if ('code' in operation) return operation;
    return member === undefined ? { kind: 'level', operation } : { kind: 'list', member, operation };
  }
  const aimed = forTarget(message);
  if (aimed === null) {
    const operation = readOperation('stateful', method, params);
    return 'code' in operation || operation.kind === 'extension' ? notFound(operation) : NOBODY;
  }
  const operation = readOperation('stateful', method, aimed.message.params);
  return 'code' in operation ? operation : { kind: 'one', ...aimed, operation };
}

const NOBODY: Rejection = {
  status: 200,
  code: CODES.invalidParams,
  message: 'Invalid params: tools and prompts are named `<target>__<name>` here, resources `<target>+<uri>`',
};

function notFound(operation: Operation | Rejection): Rejection {
  return 'code' in operation ? operation : { status: 200, code: CODES.methodNotFound, message: 'Method not found' };
}
