/**
 * Finds out which targets are stateless (speak 2026-07-28). If a target is not, a stateless client must be told to open a
 * session.
 */

import type { Cancellable } from '../../base/cancellation.ts';
import { isUnread } from '../../base/json/built.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { decodeLarge, readLargeJson } from '../../base/json/large.ts';
import { TARGET_RULES } from '../../base/json/selection.ts';
import { keep } from '../../base/kept.ts';
import type { Now } from '../../base/promises.ts';
import { TASKS_EXTENSION } from '../../protocol/capabilities.ts';
import { META_KEYS, STATELESS_REVISION } from '../../protocol/mode.ts';
import { bindingKey } from './health.ts';
import { faultOf, readAll } from './http.ts';
import { ownError, servedVersions } from './own-error.ts';
import { chargedTo } from './reading-turns.ts';
import {
  isFault,
  type Reach,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamRequest,
  type UpstreamStream,
} from './upstream.ts';

export const PROBE_ANSWER_BYTES = 1024 * 1024;
/** How long the target may take to end an answer that is an event stream. */
const ANSWER_MS = 20_000;
const MODERN_TTL_MS = 24 * 60 * 60 * 1000;
/** Short: until it expires, the gateway keeps using an upgraded target in stateful mode without a sign. */
const SESSIONS_TTL_MS = 10 * 60 * 1000;

const KEPT = 10_000;

export type UpstreamModes = ReturnType<typeof createUpstreamModes>;

export function createUpstreamModes(upstream: Upstream, now: () => number) {
  /** A target may answer differently for different credentials, so what one caller learns is not used for others. */
  const known = new Map<string, { readonly stateless: boolean; readonly tasks: boolean; readonly until: number }>();
  /** Records the mode of a target. `discovered` is the result of `server/discover`, if there was one. */
  const learn = (at: Reach, stateless: boolean, discovered?: JsonValue): void => {
    const tasks = discovered === undefined || discoversTasks(discovered);
    const until = now() + (stateless ? MODERN_TTL_MS : SESSIONS_TTL_MS);
    keep(known, bindingKey(at), { stateless, tasks, until }, KEPT);
  };
  const entryOf = (at: Reach) => {
    const entry = known.get(bindingKey(at));
    return entry !== undefined && now() < entry.until ? entry : null;
  };
  /** Asks the target. */
  async function ask(at: Reach, signal: Cancellable): Promise<boolean | UpstreamFault> {
    const answer = await upstream.send({ ...probe(at), signal });
    if (isFault(answer)) return answer;
    const probed = await readProbe(answer, at.target.id);
    if ('fault' in probed) return probed;
    learn(at, probed.stateless, probed.discovered);
    return probed.stateless;
  }
  return {
    learn,
    /** Whether `speaksStateless` can answer without asking the target. */
    isKnown: (at: Reach): boolean => entryOf(at) !== null,
    /** Whether the target supports tasks (SEP-2663). True if unknown: the target then answers for itself. */
    hasTasks: (at: Reach): boolean => known.get(bindingKey(at))?.tasks ?? true,
    /** Forgets the mode, after a failure that a change of the target may explain. */
    forget: (at: Reach): void => void known.delete(bindingKey(at)),
    /** Whether the target is stateless. Asks the target if this is not known yet. */
    speaksStateless: (at: Reach, signal: Cancellable): Now<boolean | UpstreamFault> => entryOf(at)?.stateless ?? ask(at, signal),
    /**
     * Whether the client must open a session at a target that has refused its `server/discover`. Asks the target itself: the fault may be in what
     * the client has sent, and others use what is learned.
     */
    needsSession: async (at: Reach, signal: Cancellable): Promise<boolean> =>
      entryOf(at)?.stateless === false || (await ask(at, signal)) !== true,
  };
}

const PROBE_ID = 'portcullis';
const PROBE_META: JsonObject = {
  [META_KEYS.version]: STATELESS_REVISION,
  [META_KEYS.clientInfo]: { name: 'portcullis', version: '0' },
  [META_KEYS.capabilities]: {},
};

function probe({ target, access }: Reach): UpstreamRequest {
  const method = 'server/discover';
  return {
    method: 'POST',
    target,
    access,
    body: JSON.stringify({ jsonrpc: '2.0', id: PROBE_ID, method, params: { _meta: PROBE_META } }),
    stateless: { version: STATELESS_REVISION, method, name: undefined, params: [] },
  };
}

type Responded = { readonly response: JsonObject } | UpstreamFault;

async function readProbe(
  answer: UpstreamAnswer,
  targetId: string,
): Promise<{ readonly stateless: boolean; readonly discovered?: JsonValue } | UpstreamFault> {
  if (answer.status === 200 && answer.type !== 'other') {
    const read = answer.type === 'stream' ? await responseIn(answer, targetId) : await bodyOf(answer, targetId);
    if ('fault' in read) return read;
    const discovered = read.response.result ?? null;
    return { stateless: discoversStateless(discovered), discovered };
  }
  const supported = servedVersions(await ownError(answer, PROBE_ID));
  answer.discard();
  if (supported !== null) return { stateless: supported.includes(STATELESS_REVISION) };
  if (isWrongMode(answer.status)) return { stateless: false };
  return { fault: 'malformed', cause: new Error(`server/discover was answered with HTTP ${answer.status}`) };
}

async function bodyOf(answer: UpstreamAnswer, targetId: string): Promise<Responded> {
  const bytes = await readAll(answer, PROBE_ANSWER_BYTES);
  if (isFault(bytes)) return bytes;
  const text = await decodeLarge(bytes, targetId);
  return { response: text === null ? {} : await messageOf(text, targetId) };
}

/**
 * Reads the events up to the response. A stream could go on for ever, so its length and time are limited. Without a response in that time, the
 * target counts as stateful.
 */
async function responseIn(answer: UpstreamStream, targetId: string): Promise<Responded> {
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    answer.discard();
  }, ANSWER_MS);
  let left = PROBE_ANSWER_BYTES;
  try {
    for await (const events of answer.events) {
      for (const { data } of events) {
        left -= data.length;
        if (left < 0) return { fault: 'too_large' };
        const response = await chargedTo(targetId, data.length, () => messageOf(data, targetId));
        if (response.result !== undefined || response.error !== undefined) return { response };
      }
    }
    return { response: {} };
  } catch (cause) {
    return isLate ? { response: {} } : { fault: faultOf(cause), cause };
  } finally {
    clearTimeout(timer);
    answer.discard();
  }
}

/** Returns an empty object for a text that cannot be read. */
async function messageOf(text: string, targetId: string): Promise<JsonObject> {
  const reading = await readLargeJson(text, TARGET_RULES, targetId);
  return reading.ok && isObject(reading.value) && !isUnread(reading.value) ? reading.value : {};
}

/** Whether a stateful target answers a 2026-07-28 request with this status, because it lacks a session, method or path for it. */
export function isWrongMode(status: number): boolean {
  return [200, 400, 404, 405, 406, 415, 422].includes(status);
}

function discoversTasks(result: JsonValue): boolean {
  const capabilities = isObject(result) ? result.capabilities : undefined;
  const extensions = isObject(capabilities) ? capabilities.extensions : undefined;
  return isObject(extensions) && isObject(extensions[TASKS_EXTENSION]);
}

export function discoversStateless(result: JsonObject[string] | undefined): boolean {
  return isObject(result) && Array.isArray(result.supportedVersions) && result.supportedVersions.includes(STATELESS_REVISION);
}
