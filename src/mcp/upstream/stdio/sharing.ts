/** What sharing changes in messages: the gateway initializes a shared process itself, and no session sees what cannot be shared. */
import { isUnread } from '../../../base/json/built.ts';
import { isObject, type JsonObject } from '../../../base/json/json.ts';
import { readLargeJson } from '../../../base/json/large.ts';
import { TARGET_RULES } from '../../../base/json/selection.ts';
import type { RpcRequest } from '../../../protocol/message.ts';
import { isSessionRevision, SESSION_REVISIONS } from '../../../protocol/mode.ts';
import type { Located } from '../../../protocol/rebuild.ts';

export const INTRODUCTION: RpcRequest = {
  kind: 'request',
  id: 'portcullis',
  method: 'initialize',
  params: { protocolVersion: SESSION_REVISIONS[0], capabilities: {}, clientInfo: { name: 'portcullis', version: '0' } },
};
export const PING: RpcRequest = { kind: 'request', id: 'portcullis', method: 'ping', params: {} };
/** The source text of a message that the gateway built itself. */
export const NOWHERE: Located = { text: '', span: { start: 0, end: 0, members: null, items: null } };

/**
 * Returns the `initialize` result for a session of a shared process: without the capabilities that sharing rules out, in the
 * session's revision.
 */
export function sharedResult(result: JsonObject, requested: JsonObject[string] | undefined): JsonObject {
  const capabilities = isObject(result.capabilities) ? result.capabilities : {};
  const { logging: _logging, tasks: _tasks, resources, ...kept } = capabilities;
  if (isObject(resources)) {
    const { subscribe: _subscribe, ...rest } = resources;
    kept.resources = rest;
  }
  const { protocolVersion } = result;
  // Revisions are dates. Later revisions only add what an earlier client ignores.
  const older = isSessionRevision(requested) && typeof protocolVersion === 'string' && requested < protocolVersion;
  return { ...result, capabilities: kept, ...(older ? { protocolVersion: requested } : {}) };
}

/**
 * Removes the task request. A shared process offers no tasks, because only their ids would keep the tasks of different sessions
 * apart.
 */
export function withoutTask(message: RpcRequest): RpcRequest {
  if (message.params?.task === undefined) return message;
  const { task: _task, ...params } = message.params;
  return { ...message, params };
}

/** Returns the result in the answer `text`, which the gateway has already parsed once. */
export async function readResult(text: string): Promise<JsonObject | null> {
  const reading = await readLargeJson(text, TARGET_RULES, 'initialize');
  const result = reading.ok && isObject(reading.value) ? reading.value.result : undefined;
  return isObject(result) && !Object.values(result).some(isUnread) ? result : null;
}
