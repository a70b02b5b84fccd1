/** `subscriptions/listen` of 2026-07-28: the requested filter, the part that the caller may have, and the messages. Pure. */

import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';
import { CODES, type Rejection, type RpcId } from './message.ts';
import { MAX_URI_BYTES } from './uri.ts';

export const LISTEN = 'subscriptions/listen';
/** From the extension for tasks. */
export const TASK_NOTIFICATION = 'notifications/tasks';
export const ACKNOWLEDGED = 'notifications/subscriptions/acknowledged';
/** The member of `_meta` with which messages of the stream name the request that opened it. */
const SUBSCRIPTION_ID = 'io.modelcontextprotocol/subscriptionId';

const LIST_CHANGES: ReadonlyMap<string, string> = new Map([
  ['notifications/tools/list_changed', 'toolsListChanged'],
  ['notifications/prompts/list_changed', 'promptsListChanged'],
  ['notifications/resources/list_changed', 'resourcesListChanged'],
]);
const MAX_SUBSCRIPTIONS = 1_000;

/** The notifications that a client asks for. Members that the gateway does not know are ignored. */
export interface ListenFilter {
  readonly listChanges: readonly string[];
  /** Not all of them need be canonical. */
  readonly uris: readonly string[];
  /** The ids that the client knows. */
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
  const taskIds = notifications['taskIds'] ?? [];
  if (!Array.isArray(taskIds) || taskIds.length > MAX_SUBSCRIPTIONS || !taskIds.every(isText)) return invalid('.taskIds');
  return { listChanges, uris: [...new Set(uris)], taskIds: [...new Set(taskIds)] };
}

function isText(value: JsonValue): value is string {
  return typeof value === 'string';
}

function isReadableUri(uri: JsonValue): uri is string {
  return typeof uri === 'string' && uri !== '' && Buffer.byteLength(uri) <= MAX_URI_BYTES && !uri.includes('\0');
}

/**
 * The filter for the target. It never has more than the client asked for: only resources that the caller may read, and only
 * the caller's own tasks, by the ids that the target gave them.
 */
export function honoured(
  { listChanges }: Pick<ListenFilter, 'listChanges'>,
  uris: readonly string[],
  upstreamTaskIds: readonly string[],
): JsonObject {
  return {
    ...Object.fromEntries(listChanges.map((member) => [member, true])),
    ...(uris.length === 0 ? {} : { resourceSubscriptions: [...uris] }),
    ...(upstreamTaskIds.length === 0 ? {} : { taskIds: [...upstreamTaskIds] }),
  };
}

/** Whether the message belongs to the stream that `id` opened, and its kind was requested from the target. */
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

/** The target's acknowledgement, limited to what it was asked for. `handles`: the client's task ids by those of the target. */
export function acknowledge(params: JsonObject, asked: JsonObject, handles: ReadonlyMap<string, string>): JsonObject {
  const said = isObject(params.notifications) ? params.notifications : {};
  const uris = said['resourceSubscriptions'];
  const subscribed = asked['resourceSubscriptions'];
  const mine = new Set(Array.isArray(subscribed) ? subscribed : []);
  const both = Array.isArray(uris) ? uris.filter((uri) => mine.has(uri)) : [];
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

/** Notifications from the gateway itself that lists may have changed, for the lists that were acknowledged to the client. */
export function listChanges(id: RpcId, acknowledged: JsonObject): string[] {
  const _meta = { [SUBSCRIPTION_ID]: id };
  return [...LIST_CHANGES]
    .filter(([, member]) => acknowledged[member] === true)
    .map(([method]) => JSON.stringify({ jsonrpc: '2.0', method, params: { _meta } }));
}

/** The result with which the gateway ends a subscription. The client may listen again, with its current rights. */
export function farewell(id: RpcId): JsonObject {
  return { resultType: 'complete', _meta: { [SUBSCRIPTION_ID]: id } };
}
