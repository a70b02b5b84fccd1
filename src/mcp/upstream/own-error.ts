/** Reads the JSON-RPC error with which a target answers a request. A failure of a proxy in between is not such an error. */
import { isObject, type JsonObject, readJson } from '../../base/json/json.ts';
import { CODES, type RpcId, readMessage } from '../../protocol/message.ts';
import { SESSION_REVISIONS, STATELESS_REVISION } from '../../protocol/mode.ts';
import type { Located } from '../../protocol/rebuild.ts';
import { readAll } from './http.ts';
import { isFault, type UpstreamAnswer } from './upstream.ts';

const FAILURE_BYTES = 64 * 1024;

export interface OwnError {
  readonly located: Located;
  readonly error: JsonObject;
}

/** The target's error for this request; null: the answer is not one. */
export async function ownError(answer: UpstreamAnswer, id: RpcId): Promise<OwnError | null> {
  if ((answer.status !== 400 && answer.status !== 404) || answer.type !== 'json') return null;
  const bytes = await readAll(answer, FAILURE_BYTES);
  const reading = isFault(bytes) ? null : readJson(bytes, { exact: false, spanDepth: 2 });
  if (!reading?.ok || !isObject(reading.value) || !isObject(reading.value.error)) return null;
  const message = readMessage(reading.value);
  const isOwn = message.kind === 'response' && (message.id === id || message.id === null);
  return isOwn ? { located: reading, error: reading.value.error } : null;
}

/** The versions in a version error that the gateway also serves; null for any other error. */
export function servedVersions(own: OwnError | null): readonly string[] | null {
  const { code, data } = own?.error ?? {};
  if (code !== CODES.unsupportedVersion || !isObject(data) || !Array.isArray(data.supported)) return null;
  const { supported } = data;
  return [STATELESS_REVISION, ...SESSION_REVISIONS].filter((version) => supported.includes(version));
}
