/** Sends requests of 2026-07-28 to a target, and reads the messages that answer them. */

import { isObject, type JsonObject } from '../../../base/json/json.ts';
import { decodeInLane, LARGE_TEXT } from '../../../base/json/large.ts';
import { nameHeader } from '../../../protocol/headers.ts';
import type { RpcRequest } from '../../../protocol/message.ts';
import { STATELESS_REVISION } from '../../../protocol/mode.ts';
import type { SseEvent } from '../../../protocol/sse.ts';
import { sourceAt } from '../connect.ts';
import { faultOf } from '../http.ts';
import type { Unread } from '../unread.ts';
import {
  isFault,
  type Reach,
  type ReadBody,
  type StatelessHeaders,
  type ToRead,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamLimits,
  type UpstreamRequest,
} from '../upstream.ts';
import { type Read, read } from './messages.ts';

/** What every part of the bridge is built with. */
export interface BridgeParts {
  readonly http: Upstream;
  readonly limits: UpstreamLimits;
  readonly newId: () => string;
  readonly now: () => number;
  readonly unread: Unread;
}

/** The target, the access to it, the signal that aborts the request, and when its answer may be read. */
export type BoundReach = Reach & Pick<UpstreamRequest, 'signal' | 'toRead'>;

export function sendStateless(
  http: Upstream,
  { target, access, signal, toRead }: BoundReach,
  { method, params }: Pick<RpcRequest, 'method' | 'params'>,
  body: string,
  headers: StatelessHeaders['params'],
): Promise<UpstreamAnswer | UpstreamFault> {
  const stateless = { version: STATELESS_REVISION, method, name: nameHeader(method, params), params: headers };
  return http.send({ method: 'POST', target, access, body, stateless, ...(signal && { signal }), ...(toRead && { toRead }) });
}

/**
 * Sends a request of the gateway's own. Returns the message that answers it; null: no message can be read, or it has more than `maxBytes`.
 * `learn` is awaited while the answer still counts as unread.
 */
export async function askTarget(
  { http, limits, newId }: BridgeParts,
  at: BoundReach,
  method: string,
  params: JsonObject,
  maxBytes: number = limits.answerBytes,
  learn: (found: Read) => Promise<void> = async () => {},
): Promise<Read | UpstreamFault | null> {
  const id = newId();
  const body = JSON.stringify({ jsonrpc: '2.0', id, method, params });
  const answer = await sendStateless(http, at, { method, params: undefined }, body, []);
  if (isFault(answer)) return answer;
  try {
    const found = answer.status === 200 ? await responseFrom(answer, id, maxBytes, at) : null;
    if (found === null || isFault(found)) return null;
    await learn(found);
    return found;
  } finally {
    answer.discard();
  }
}

/** Returns the answer, of which nothing is read before `toRead` allows it. */
export function heldBack(answer: UpstreamAnswer, toRead: ToRead): UpstreamAnswer {
  if (answer.type === 'stream') {
    async function* events(all: AsyncIterable<readonly SseEvent[]>): AsyncGenerator<readonly SseEvent[]> {
      for await (const some of all) {
        if (!(await toRead.take(some.reduce((sum, { data }) => sum + data.length, 0)))) throw UNWANTED;
        yield some;
        toRead.giveBack();
      }
    }
    return { ...answer, events: events(answer.events) };
  }
  const readBody: ReadBody = async (isWanted) => {
    const body = await answer.read(isWanted);
    return isFault(body) || (await toRead.take(body.length)) ? body : { fault: 'aborted' };
  };
  return { ...answer, read: readBody };
}

const UNWANTED = new DOMException('Nobody wants this answer any more', 'AbortError');

/**
 * Returns the message that answers `id`. null: there is none. Discard the answer only when the message is no longer needed: until then it counts
 * as unread, so that clients who leave cannot fill the memory.
 */
export async function responseFrom(
  answer: UpstreamAnswer,
  id: string,
  maxBytes: number,
  at: BoundReach,
): Promise<Read | UpstreamFault | null> {
  const source = sourceAt(at);
  if (answer.type !== 'stream') {
    if (answer.type === 'other') return null;
    const body = await answer.read();
    if (isFault(body)) return body;
    if (body.length > maxBytes) return { fault: 'too_large' };
    const text = typeof body === 'string' ? body : await decoded(body, source);
    return at.signal?.aborted ? { fault: 'aborted' } : answering(id, await read(text, source));
  }
  try {
    for await (const events of answer.events) {
      for (const event of events) {
        const found = answering(id, await read(event.data, source));
        if (found !== null) return found;
        event.data = '';
      }
    }
    return null;
  } catch (cause) {
    return { fault: faultOf(cause), cause };
  }
}

async function decoded(bytes: Buffer, source: string): Promise<string> {
  return bytes.length <= LARGE_TEXT ? bytes.toString('utf8') : ((await decodeInLane(bytes, source, true)) ?? '');
}

/** Returns the message if it answers `id`. An error without an id in this answer belongs to the same request. */
export function answering(id: string, found: Read | null): Read | null {
  if (found?.message.kind !== 'response') return null;
  const { message } = found;
  return message.id === id || (message.id === null && message.outcome === 'error') ? found : null;
}

/** Returns the result of a response. null: it has none. */
export function resultOf({ reading }: Read): JsonObject | null {
  const result = isObject(reading.value) ? reading.value.result : undefined;
  return isObject(result) ? result : null;
}
