/** Whether targets speak 2026-07-28. A client that does must be told to open a session where the target does not. */
import { isObject, type JsonObject, readJson } from '../http/json.ts';
import type { RoutedTarget } from '../targets/target.ts';
import { META_KEYS, MODERN_REVISION } from './era.ts';
import { type ForwardedRequest, type Forwarder, isFault, readAll, type UpstreamAnswer, type UpstreamFault } from './forward.ts';
import { ownError, servedVersions } from './own-error.ts';

const PROBE_ANSWER_BYTES = 1024 * 1024;
const MODERN_TTL_MS = 24 * 60 * 60 * 1000;
/** Short, because a target that has been upgraded meanwhile would go on being used the old way without a sign. */
const SESSIONS_TTL_MS = 10 * 60 * 1000;

export interface UpstreamEras {
  /** Asks the target if it is not known. */
  speaksModern(target: RoutedTarget, signal: AbortSignal): Promise<boolean | UpstreamFault>;
  learn(target: RoutedTarget, modern: boolean): void;
  /** After a failure that a change of the target may explain. */
  forget(target: RoutedTarget): void;
}

export function createUpstreamEras(forwarder: Forwarder, now: () => number): UpstreamEras {
  const known = new Map<string, { readonly modern: boolean; readonly until: number }>();
  const keyOf = (target: RoutedTarget): string => `${target.id} ${target.url}`;
  const learn = (target: RoutedTarget, modern: boolean): void => {
    known.set(keyOf(target), { modern, until: now() + (modern ? MODERN_TTL_MS : SESSIONS_TTL_MS) });
  };
  return {
    learn,
    forget: (target) => void known.delete(keyOf(target)),
    async speaksModern(target, signal) {
      const entry = known.get(keyOf(target));
      if (entry !== undefined && now() < entry.until) return entry.modern;
      const answer = await forwarder.send({ ...probe(target), signal });
      if (isFault(answer)) return answer;
      const modern = await readProbe(answer);
      if (typeof modern === 'boolean') learn(target, modern);
      return modern;
    },
  };
}

const PROBE_ID = 'portcullis';
const PROBE_META: JsonObject = {
  [META_KEYS.version]: MODERN_REVISION,
  [META_KEYS.clientInfo]: { name: 'portcullis', version: '0' },
  [META_KEYS.capabilities]: {},
};

function probe(target: RoutedTarget): ForwardedRequest {
  const method = 'server/discover';
  return {
    method: 'POST',
    target,
    body: JSON.stringify({ jsonrpc: '2.0', id: PROBE_ID, method, params: { _meta: PROBE_META } }),
    modern: { version: MODERN_REVISION, method, name: undefined, params: [] },
  };
}

async function readProbe(answer: UpstreamAnswer): Promise<boolean | UpstreamFault> {
  if (answer.status === 200 && answer.type === 'json') {
    const bytes = await readAll(answer, PROBE_ANSWER_BYTES);
    if (isFault(bytes)) return bytes;
    const reading = readJson(bytes, { exact: false });
    return reading.ok && isObject(reading.value) && discoversModern(reading.value.result);
  }
  const supported = servedVersions(await ownError(answer, PROBE_ID));
  answer.discard();
  if (supported !== null) return supported.includes(MODERN_REVISION);
  return isWrongEra(answer.status) ? false : { fault: 'unreachable' };
}

/** How targets of the session revisions answer a request of 2026-07-28: without a session, method or path for it. */
export function isWrongEra(status: number): boolean {
  return status === 200 || status === 400 || status === 404 || status === 405 || status === 406;
}

export function discoversModern(result: JsonObject[string] | undefined): boolean {
  return isObject(result) && Array.isArray(result.supportedVersions) && result.supportedVersions.includes(MODERN_REVISION);
}
