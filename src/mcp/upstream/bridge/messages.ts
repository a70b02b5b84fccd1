/** Translates messages between the stateful revisions and 2026-07-28, in both directions. Pure. */

import { isUnread, unlessUnread } from '../../../base/json/built.ts';
import { isObject, type JsonObject, type JsonReading, type JsonSpan, type JsonValue } from '../../../base/json/json.ts';
import { LARGE_TEXT, readLargeJson } from '../../../base/json/large.ts';
import { BRIDGE_RULES } from '../../../base/json/selection.ts';
import { copyOf } from '../../../base/kept.ts';
import { laneSteps } from '../../../base/turns/lane.ts';
import { atOnce } from '../../../base/turns/slices.ts';
import { isOffered, reduceServerCapabilities } from '../../../protocol/capabilities.ts';
import {
  CODES,
  errorMessage,
  isLongState,
  type RpcId,
  type RpcMessage,
  type RpcRequest,
  readMessage,
  resultMessage,
} from '../../../protocol/message.ts';
import { isSessionRevision, META_KEYS, SESSION_REVISIONS, STATELESS_REVISION } from '../../../protocol/mode.ts';
import { type Located, memberText, rebuildResponse } from '../../../protocol/rebuild.ts';
import type { SseEvent } from '../../../protocol/sse.ts';
import { declaredHeaders, type ParamHeader } from '../param-headers.ts';
import { chargedTo } from '../reading-turns.ts';

export type Reading = JsonReading & { readonly ok: true };

export interface Read {
  readonly message: RpcMessage;
  readonly reading: Reading;
}

/** Returns null if the text is not a valid message. Large texts of different sources are read in turns. */
export async function read(text: string, source: string): Promise<Read | null> {
  const reading = await chargedTo(source, text.length, () => readLargeJson(text, BRIDGE_RULES, source));
  if (!reading.ok) return null;
  const message = unlessUnread(() => readMessage(reading.value));
  return message === null || message.kind === 'invalid' ? null : { message, reading };
}

/** What the client declared when it opened the session. Each request of 2026-07-28 repeats it. */
export interface ClientTraits {
  readonly info: JsonValue | undefined;
  readonly capabilities: JsonObject;
}

export function envelope({ info, capabilities }: ClientTraits, logLevel: string | null): JsonObject {
  return {
    [META_KEYS.version]: STATELESS_REVISION,
    [META_KEYS.capabilities]: capabilities,
    ...(info === undefined ? {} : { [META_KEYS.clientInfo]: info }),
    ...(logLevel === null ? {} : { [META_KEYS.logLevel]: logLevel }),
  };
}

/** What a repeated request adds, as JSON text: the client's answers and the target's own state. null: it has none. */
export interface Answered {
  readonly responses: string | null;
  readonly state: string | null;
}

const REPLACED = ['_meta', 'inputResponses', 'requestState'];

export function statelessRequest(id: string, { message, reading }: Sourced, meta: JsonObject, answered: Answered | null): string {
  const { method, params = {} } = message;
  const spans = reading.span.members?.get('params')?.members;
  const members = Object.keys(params).flatMap((name) => {
    const span = spans?.get(name);
    if (span === undefined || REPLACED.includes(name)) return [];
    return [`${JSON.stringify(name)}:${reading.text.slice(span.start, span.end)}`];
  });
  members.push(`"_meta":{${metaMembers(reading.text, params._meta, spans?.get('_meta'), meta).join()}}`);
  const { responses = null, state = null } = answered ?? {};
  if (responses !== null) members.push(`"inputResponses":${responses}`);
  if (state !== null) members.push(`"requestState":${state}`);
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"method":${JSON.stringify(method)},"params":{${members.join()}}}`;
}

/** The members of `_meta`: those of the client, as it wrote them, and those of the gateway. */
function metaMembers(text: string, own: JsonValue | undefined, span: JsonSpan | undefined, meta: JsonObject): string[] {
  const kept = Object.keys(isObject(own) ? own : {}).flatMap((name) => {
    const value = span?.members?.get(name);
    if (value === undefined || name === META_KEYS.logLevel || Object.hasOwn(meta, name)) return [];
    return [`${JSON.stringify(name)}:${text.slice(value.start, value.end)}`];
  });
  return [...kept, ...Object.entries(meta).map(([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`)];
}

/** A request and its source text. */
export interface Sourced {
  readonly message: RpcRequest;
  readonly reading: Reading;
}

/** Returns the `initialize` result of a target that answered `server/discover` with `discovered`. */
export function openingResult(params: JsonObject | undefined, discovered: JsonObject, name: string): JsonObject {
  const { capabilities, instructions, _meta: meta } = discovered;
  const info = isObject(meta) ? meta['io.modelcontextprotocol/serverInfo'] : undefined;
  const asked = params?.protocolVersion;
  return {
    protocolVersion: isSessionRevision(asked) ? asked : SESSION_REVISIONS[0],
    capabilities: reduceServerCapabilities(isObject(capabilities) ? capabilities : {}, 'none'),
    serverInfo:
      isObject(info) && typeof info.name === 'string' && typeof info.version === 'string' ? info : { name, version: 'unknown' },
    ...(typeof instructions === 'string' ? { instructions } : {}),
  };
}

/** What an answer means for a session: the answer for the client, or the input that the target needs first. */
export type Outcome =
  | { readonly kind: 'answer'; readonly text: string }
  | { readonly kind: 'input'; readonly asked: Asked[]; readonly state: string | null }
  /** The target no longer speaks 2026-07-28. */
  | { readonly kind: 'lost' }
  /** The target wants different headers. */
  | { readonly kind: 'mismatch'; readonly text: string };

export interface Asked {
  readonly key: string;
  readonly method: string;
  /** JSON text; null if there are no params. It keeps the whole answer of the target in memory. */
  readonly params: string | null;
  /** Whether a URL is to be visited and has no id. 2025-11-25 requires one; 2026-07-28 has none. */
  readonly lacksId: boolean;
}

/** Result members that the stateful revisions do not know, or that would let a client cache a result that is only its own. */
const MODERN_MEMBERS = ['resultType', 'ttlMs', 'cacheScope'];
const MULTI_ROUND = ['tools/call', 'prompts/get', 'resources/read'];
const MESSAGE_LENGTH = 4 * 1024;
const RESOURCE_NOT_FOUND = -32002;
const FIRST_RESERVED = -32099;
const LAST_RESERVED = -32020;

/**
 * Returns what the response means for the request. `declared`: the declarations of the tools in the response. The ids may differ.
 */
export function outcomeOf(
  { message: { id, method } }: Sourced,
  { message: response, reading }: Read,
  { capabilities }: ClientTraits,
  declared: Declared,
): Outcome {
  const answer = (text: string): Outcome => ({ kind: 'answer', text });
  const failed = (message: string): Outcome => answer(errorMessage(id, { code: CODES.internal, message }));
  const { result, error } = isObject(reading.value) ? reading.value : {};
  if (response.kind === 'response' && response.outcome === 'error' && isObject(error)) {
    const { code, message, data } = error;
    if (code === CODES.unsupportedVersion) return { kind: 'lost' };
    if (code === CODES.headerMismatch) return { kind: 'mismatch', text: internalError(id, brief(message)) };
    // The other error codes that 2026-07-28 reserves mean nothing to a stateful client.
    if (typeof code === 'number' && code >= FIRST_RESERVED && code <= LAST_RESERVED) return failed(brief(message));
    if (code !== CODES.invalidParams || method !== 'resources/read' || !isObject(data) || typeof data.uri !== 'string') {
      return answer(rebuildResponse(id, 'error', reading));
    }
    return answer(rebuildResponse(id, 'error', reading, { code: String(RESOURCE_NOT_FOUND) }));
  }
  if (!isObject(result)) return failed('The target sent no valid answer');
  const kind = result.resultType ?? 'complete';
  if (kind === 'complete') return answer(resultMessage(id, plainResult(method, reading, result, declared)));
  if (kind !== 'input_required' || !MULTI_ROUND.includes(method))
    return failed('The target sent an answer with an unknown resultType');
  return inputOf(reading, result, capabilities) ?? failed('The target asks for something that the client does not offer');
}

/** A message that is written anew must not be long, because it is written in one step. */
const brief = (message: JsonValue | undefined): string => String(message).slice(0, MESSAGE_LENGTH);

export function internalError(id: RpcId, message: string): string {
  return errorMessage(id, { code: CODES.internal, message });
}

/** Returns a message as a stream event. */
export function eventOf(data: string): SseEvent {
  return { data, id: undefined, retry: undefined };
}

function plainResult(method: string, reading: Reading, result: JsonObject, declared: Declared): string {
  const span = reading.span.members?.get('result');
  const members = [...(span?.members ?? [])]
    .filter(([name]) => !MODERN_MEMBERS.includes(name))
    .map(([name, { start, end, items }]) => {
      const isTools = method === 'tools/list' && name === 'tools' && Array.isArray(result.tools);
      if (!isTools) return `${JSON.stringify(name)}:${reading.text.slice(start, end)}`;
      const runs = runsOf(items ?? [], (index) => (declared[index] ?? null) !== null);
      return `"tools":[${joined(runs.map((run) => reading.text.slice(run.start, run.end)))}]`;
    });
  return `{${joined(members)}}`;
}

interface Run {
  readonly start: number;
  end: number;
}

/** Returns where the kept items are in the text. Items that follow each other are one run: a text of many parts takes long to copy. */
function runsOf(items: readonly JsonSpan[], isKept: (index: number) => boolean): readonly Readonly<Run>[] {
  const runs: Run[] = [];
  let run: Run | undefined;
  for (const [index, { start, end }] of items.entries()) {
    if (!isKept(index)) run = undefined;
    else if (run !== undefined) run.end = end;
    else {
      run = { start, end };
      runs.push(run);
    }
  }
  return runs;
}

/** Like `join`, but without copying up to 16 MiB in one step: concatenation copies only when the text is read. */
function joined(parts: readonly string[]): string {
  let text = parts[0] ?? '';
  for (const part of parts.slice(1)) text += `,${part}`;
  return text;
}

function inputOf(reading: Reading, result: JsonObject, capabilities: JsonObject): Outcome | null {
  const { inputRequests = {}, requestState } = result;
  if (!isObject(inputRequests) || (requestState !== undefined && typeof requestState !== 'string')) return null;
  if (requestState !== undefined && isLongState(requestState)) return null;
  const members = reading.span.members?.get('result')?.members;
  const spans = members?.get('inputRequests')?.members;
  const asked: Asked[] = [];
  for (const [key, request] of Object.entries(inputRequests)) {
    if (!isObject(request) || !isOffered(capabilities, request)) return null;
    const span = spans?.get(key)?.members?.get('params');
    const params = span === undefined ? null : reading.text.slice(span.start, span.end);
    const { mode, elicitationId } = isObject(request.params) ? request.params : {};
    const lacksId = request.method === 'elicitation/create' && mode === 'url' && elicitationId === undefined;
    asked.push({ key, method: String(request.method), params, lacksId });
  }
  if (asked.length === 0 && requestState === undefined) return null;
  const span = members?.get('requestState');
  return { kind: 'input', asked, state: span === undefined ? null : copyOf(reading.text.slice(span.start, span.end)) };
}

/** Returns the request for a session's client. */
export function askedRequest(id: string, { method, params, lacksId }: Asked): string {
  const own = JSON.stringify(id);
  const whole = params !== null && lacksId ? `${params.slice(0, -1)},"elicitationId":${own}}` : params;
  const text = whole === null ? '' : `,"params":${whole}`;
  return `{"jsonrpc":"2.0","id":${own},"method":${JSON.stringify(method)}${text}}`;
}

/** The client's answer to a question. */
export interface Replied {
  readonly outcome: 'result' | 'error';
  readonly located: Located;
}

/** Returns the input response as JSON text. null: an error of the client has no equivalent. */
export function inputResponse(method: string, { outcome, located }: Replied): string | null {
  if (outcome === 'result') return memberText(located, 'result');
  // 2026-07-28, elicitation, response actions: a failure before the user could choose counts as cancelled.
  return method === 'elicitation/create' ? '{"action":"cancel"}' : null;
}

/** A listed tool and the headers that it declares. */
interface DeclaredTool {
  /** null: the tool has no name. */
  readonly name: string | null;
  readonly headers: readonly ParamHeader[];
}

/** The tools by their position in the list. null: the declarations are invalid, and the tool is left out. */
export type Declared = readonly (DeclaredTool | null)[];

/** Reads the declarations of the listed tools. Long lists are read in short steps. */
export async function declaredIn({ reading }: Read, source: string): Promise<Declared> {
  const result = isObject(reading.value) ? reading.value.result : undefined;
  const tools = isObject(result) && !isUnread(result) && Array.isArray(result.tools) ? result.tools : [];
  if (isUnread(tools)) return [];
  const steps = declarations(tools);
  return reading.text.length > LARGE_TEXT ? laneSteps(source, steps) : atOnce(steps);
}

function* declarations(tools: readonly JsonValue[]): Generator<undefined, Declared> {
  const declared: (DeclaredTool | null)[] = [];
  for (const tool of tools) {
    declared.push(unlessUnread(() => declarationOf(tool)));
    yield;
  }
  return declared;
}

function declarationOf(tool: JsonValue): DeclaredTool | null {
  const { name, inputSchema } = isObject(tool) ? tool : {};
  const headers = declaredHeaders(inputSchema);
  return headers === null ? null : { name: typeof name === 'string' ? name : null, headers };
}
