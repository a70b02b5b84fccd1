/** `subscriptions/listen` of 2026-07-28: what is asked for, what of it the caller may have, and what comes back. Pure. */
import type { NamedObject } from '../decision/decision.ts';
import { isObject, type JsonObject, type JsonValue } from '../http/json.ts';
import { CODES, type Rejection, type RpcId } from './message.ts';
import { isCanonicalUri, MAX_URI_BYTES } from './uri.ts';

export const LISTEN = 'subscriptions/listen';
/** Of the extension for tasks. */
export const TASK_NOTIFICATION = 'notifications/tasks';
export const ACKNOWLEDGED = 'notifications/subscriptions/acknowledged';
/** Where the stream's messages carry the id of the request that opened it. */
const SUBSCRIPTION_ID = 'io.modelcontextprotocol/subscriptionId';

const LIST_CHANGES: ReadonlyMap<string, string> = new Map([
  ['notifications/tools/list_changed', 'toolsListChanged'],
  ['notifications/prompts/list_changed', 'promptsListChanged'],
  ['notifications/resources/list_changed', 'resourcesListChanged'],
]);
const MAX_SUBSCRIPTIONS = 1_000;

/** What a client asks to hear of. Members that this gateway does not know ask for nothing. */
export interface ListenFilter {
  readonly listChanges: readonly string[];
  readonly resources: readonly NamedObject[];
  /** As the client knows them. */
  readonly taskIds: readonly string[];
}

export function readListenFilter(params: JsonObject): ListenFilter | Rejection {
  const { notifications } = params;
  const invalid = (member: string): Rejection => ({
    status: 400,
    code: CODES.invalidParams,
    message: `Invalid params: params.notifications${member}`,
  });
  if (!isObject(notifications)) return invalid('');
  const listChanges = [...LIST_CHANGES.values()].filter((member) => notifications[member] === true);
  const uris = notifications['resourceSubscriptions'] ?? [];
  if (!Array.isArray(uris) || uris.length > MAX_SUBSCRIPTIONS) return invalid('.resourceSubscriptions');
  if (!uris.every(isReadableUri)) return invalid('.resourceSubscriptions');
  // A URI with more than one reading cannot be decided, so nobody may have it.
  const resources = [...new Set(uris)]
    .filter(isCanonicalUri)
    .map((uri) => ({ resource_type: 'resource', resource_name: uri }) as const);
  const taskIds = notifications['taskIds'] ?? [];
  if (!Array.isArray(taskIds) || taskIds.length > MAX_SUBSCRIPTIONS || !taskIds.every(isText)) return invalid('.taskIds');
  return { listChanges, resources, taskIds: [...new Set(taskIds)] };
}

function isText(value: JsonValue): value is string {
  return typeof value === 'string';
}

function isReadableUri(uri: JsonValue): uri is string {
  return typeof uri === 'string' && uri !== '' && Buffer.byteLength(uri) <= MAX_URI_BYTES && !uri.includes('\0');
}

/**
 * The filter that goes to the target: never more than was asked for, of the resources those that the caller may read, and the
 * caller's own tasks, by the ids that the target gave them.
 */
export function honoured(
  { listChanges, resources }: Pick<ListenFilter, 'listChanges' | 'resources'>,
  allowed: readonly boolean[],
  upstreamTaskIds: readonly string[] = [],
): JsonObject {
  const uris = resources.filter((_, index) => allowed[index] === true).map(({ resource_name }) => resource_name);
  return {
    ...Object.fromEntries(listChanges.map((member) => [member, true])),
    ...(uris.length === 0 ? {} : { resourceSubscriptions: uris }),
    ...(upstreamTaskIds.length === 0 ? {} : { taskIds: [...upstreamTaskIds] }),
  };
}

/** Whether the message belongs to the stream that `id` opened, and is of a kind that was asked of the target. */
export function isHeard(method: string, params: JsonObject | undefined, id: RpcId, asked: JsonObject): boolean {
  const meta = params?._meta;
  if (!isObject(meta) || meta[SUBSCRIPTION_ID] !== id) return false;
  const member = LIST_CHANGES.get(method);
  if (member !== undefined) return asked[member] === true;
  if (method === TASK_NOTIFICATION) return Array.isArray(asked['taskIds']) && asked['taskIds'].includes(params?.taskId ?? null);
  return (
    method === ACKNOWLEDGED || (method === 'notifications/resources/updated' && asked['resourceSubscriptions'] !== undefined)
  );
}

/** What the target says that it honours, at most what it was asked for. `handles`: its task ids to those of the client. */
export function acknowledge(params: JsonObject, asked: JsonObject, handles: ReadonlyMap<string, string> = new Map()): JsonObject {
  const said = isObject(params.notifications) ? params.notifications : {};
  const uris = said['resourceSubscriptions'];
  const mine = asked['resourceSubscriptions'];
  const both = Array.isArray(uris) && Array.isArray(mine) ? uris.filter((uri) => mine.includes(uri)) : [];
  const taskIds = said['taskIds'];
  const tasks = Array.isArray(taskIds) ? taskIds.filter(isText).flatMap((id) => handles.get(id) ?? []) : [];
  const listChanges = [...LIST_CHANGES.values()].filter((member) => said[member] === true && asked[member] === true);
  return {
    ...params,
    notifications: {
      ...Object.fromEntries(listChanges.map((member) => [member, true])),
      ...(both.length === 0 ? {} : { resourceSubscriptions: both }),
      ...(tasks.length === 0 ? {} : { taskIds: tasks }),
    },
  };
}

/** Word from the gateway itself that the lists may have changed, of those that the client was promised to hear of. */
export function listChanges(id: RpcId, acknowledged: JsonObject): string[] {
  const _meta = { [SUBSCRIPTION_ID]: id };
  return [...LIST_CHANGES]
    .filter(([, member]) => acknowledged[member] === true)
    .map(([method]) => JSON.stringify({ jsonrpc: '2.0', method, params: { _meta } }));
}

/** The end of a subscription that the gateway ends: the client may listen again, with the rights that it then has. */
export function farewell(id: RpcId): JsonObject {
  return { resultType: 'complete', _meta: { [SUBSCRIPTION_ID]: id } };
}
