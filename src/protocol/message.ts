/** JSON-RPC 2.0 messages as MCP restricts them: reads their shapes, and writes the gateway's own answers. Pure. */
import { isUnread } from '../base/json/built.ts';
import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';
import { imitationIn, type Names, namesOf } from './imitation.ts';

export type RpcId = string | number;

export interface RpcRequest {
  readonly kind: 'request';
  readonly id: RpcId;
  readonly method: string;
  readonly params: JsonObject | undefined;
}
export interface RpcNotification {
  readonly kind: 'notification';
  readonly method: string;
  readonly params: JsonObject | undefined;
}
export interface RpcResponse {
  readonly kind: 'response';
  /** null: the sender could not read the id of the request that it answers. */
  readonly id: RpcId | null;
  readonly outcome: 'result' | 'error';
}
export interface RpcInvalid {
  readonly kind: 'invalid';
  readonly reason: string;
  /** The id, if it can be read, so that the refusal reaches the request that waits. */
  readonly id: RpcId | null;
}
export type RpcMessage = RpcRequest | RpcNotification | RpcResponse;

/** A refusal in JSON-RPC form together with its HTTP status. */
export interface Rejection {
  readonly status: number;
  readonly code: number;
  readonly message: string;
  readonly data?: JsonValue;
}

/** The longest `requestState` of a target, as JSON in bytes. It is sealed in one piece, and clients send it back in a body. */
const MAX_STATE = 1024 * 1024;

/** JSON has at most six bytes for a character. */
export const isLongState = (state: string): boolean =>
  6 * state.length > MAX_STATE && (state.length > MAX_STATE || Buffer.byteLength(JSON.stringify(state)) > MAX_STATE);

export const CODES = {
  parse: -32700,
  invalidRequest: -32600,
  methodNotFound: -32601,
  invalidParams: -32602,
  internal: -32603,
  /** SDK servers send it with HTTP 404 for an unknown session. */
  sessionNotFound: -32001,
  /** SDK servers send it with HTTP 400 for a request without its session. */
  badSession: -32000,
  /** Up to 2025-11-25; 2026-07-28 uses invalidParams. */
  resourceNotFound: -32002,
  headerMismatch: -32020,
  missingCapability: -32021,
  unsupportedVersion: -32022,
  urlElicitationRequired: -32042,
  denied: 403,
  noTarget: 404,
} as const;

const MAX_ID_LENGTH = 1024;
/** What a response answers can be a request of a target. The gateway has sealed its id, together with the id of the target's session. */
const MAX_SEALED_ID_LENGTH = 16 * 1024;

export function isId(value: JsonValue | undefined, maxLength = MAX_ID_LENGTH): value is RpcId {
  if (typeof value === 'string') return value.length <= maxLength;
  return Number.isSafeInteger(value);
}

/**
 * Reads a message in the only way that the gateway accepts. Unknown members are refused rather than dropped: two receivers
 * that disagree about them would disagree about the message.
 */
export function readMessage(value: JsonValue): RpcMessage | RpcInvalid {
  if (!isObject(value)) return { kind: 'invalid', reason: 'the message is not an object', id: null };
  const id = isId(value.id) ? value.id : null;
  const invalid = (reason: string): RpcInvalid => ({ kind: 'invalid', reason, id });
  const folded = imitationIn(value, ENVELOPE);
  if (folded !== null) return invalid(`the member ${JSON.stringify(folded)} imitates a protocol member`);
  if (value.jsonrpc !== '2.0') return invalid('jsonrpc must be 2.0');
  if (typeof value.method === 'string') return readCall(value, value.method, invalid);
  if ('method' in value) return invalid('method must be a string');
  return readResponse(value, invalid);
}

function readCall(value: JsonObject, method: string, invalid: (reason: string) => RpcInvalid): RpcMessage | RpcInvalid {
  for (const name of Object.keys(value)) {
    if (name !== 'jsonrpc' && name !== 'id' && name !== 'method' && name !== 'params') return invalid('unknown member');
  }
  const { params } = value;
  if (params !== undefined && !isObject(params)) return invalid('params must be an object');
  if (params !== undefined) {
    const imitation = imitatedParam(params);
    if (imitation !== null) return invalid(`the member ${JSON.stringify(imitation)} imitates a protocol member`);
    if ('_meta' in params && !isObject(params._meta)) return invalid('params._meta must be an object');
    if (hasOddToken(params._meta))
      return invalid(`params._meta.progressToken must be an integer within 2^53, or have at most ${MAX_ID_LENGTH} characters`);
  }
  if (!('id' in value)) return { kind: 'notification', method, params };
  if (!isId(value.id)) return invalid('id must be a string or an integer within 2^53');
  return { kind: 'request', id: value.id, method, params };
}

/**
 * The gateway keeps the token of each call that is under way, and compares it with that of each progress notification. A target may read any
 * other number as an integer, and that may be the token of a different call.
 */
function hasOddToken(meta: JsonValue | undefined): boolean {
  const token = isObject(meta) && !isUnread(meta) ? meta.progressToken : undefined;
  return token !== undefined && token !== null && !isId(token);
}

function readResponse(value: JsonObject, invalid: (reason: string) => RpcInvalid): RpcResponse | RpcInvalid {
  for (const name of Object.keys(value)) {
    if (name !== 'jsonrpc' && name !== 'id' && name !== 'result' && name !== 'error') return invalid('unknown member');
  }
  if ('result' in value === 'error' in value) return invalid('neither request, notification nor response');
  if ('result' in value) {
    if (!isId(value.id, MAX_SEALED_ID_LENGTH)) return invalid('id must be a string or an integer within 2^53');
    return isObject(value.result) ? { kind: 'response', id: value.id, outcome: 'result' } : invalid('result must be an object');
  }
  if (value.id !== undefined && value.id !== null && !isId(value.id, MAX_SEALED_ID_LENGTH))
    return invalid('id must be a string or an integer');
  const { error } = value;
  if (!isObject(error) || !Number.isInteger(error.code) || typeof error.message !== 'string') {
    return invalid('error needs an integer code and a message');
  }
  return { kind: 'response', id: value.id ?? null, outcome: 'error' };
}

const ENVELOPE = namesOf('jsonrpc', 'id', 'method', 'params', 'result', 'error');
const PARAMS = [
  'name arguments uri cursor _meta ref argument context task taskId requestState inputResponses protocolVersion capabilities',
  'clientInfo level requestId reason progressToken progress total message notifications mode',
].join(' ');
const PARAM_NAMES = namesOf(PARAMS);
const META = namesOf(
  'progressToken io.modelcontextprotocol/protocolVersion io.modelcontextprotocol/clientCapabilities',
  'io.modelcontextprotocol/clientInfo io.modelcontextprotocol/logLevel io.modelcontextprotocol/related-task',
  'io.modelcontextprotocol/subscriptionId',
);
const NESTED: readonly (readonly [member: string, names: string])[] = [
  ['ref', 'type name uri'],
  ['argument', 'name value'],
  ['context', 'arguments'],
  ['task', 'ttl taskId'],
  ['notifications', 'toolsListChanged promptsListChanged resourcesListChanged resourceSubscriptions taskIds'],
];
const NESTED_NAMES: ReadonlyMap<string, Names> = new Map([
  ['_meta', META],
  ...NESTED.map(([member, names]) => [member, namesOf(names)] as const),
]);

/** The members of `params` that the protocol has, and of the objects in it. `_meta`, `arguments` and others can have any. */
export const MEMBERS: { readonly params: readonly string[]; readonly nested: ReadonlyMap<string, readonly string[]> } = {
  params: PARAMS.split(' '),
  nested: new Map(NESTED.map(([member, names]) => [member, names.split(' ')])),
};

function imitatedParam(params: JsonObject): string | null {
  const direct = imitationIn(params, PARAM_NAMES);
  if (direct !== null) return direct;
  for (const [member, known] of NESTED_NAMES) {
    const nested = Object.hasOwn(params, member) ? params[member] : undefined;
    const found = isObject(nested) ? imitationIn(nested, known) : null;
    if (found !== null) return found;
  }
  return null;
}

/** Whether a member is one of these names only for a reader that matches names case-insensitively. */
export function isImitated(value: JsonObject, members: readonly string[]): boolean {
  return imitationIn(value, namesOf(...members)) !== null;
}

/** `id` undefined: leaves the member out, as revision 2026-07-28 requires if the request's id could not be read. */
export function errorMessage(id: RpcId | null | undefined, error: { code: number; message: string; data?: JsonValue }): string {
  const { code, message, data } = error;
  return JSON.stringify({ jsonrpc: '2.0', id, error: { code, message, data } });
}

/** `result` is JSON text that has been verified. */
export function resultMessage(id: RpcId, result: string): string {
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"result":${result}}`;
}

/** A long text stays in the parts of which it consists: joining them would copy it at once, which takes milliseconds. */
export type MessageText = string | readonly string[];

/** A text with more characters is long. */
export const LONG_TEXT = 256 * 1024;

/** The same as `resultMessage`, for a result that may be long. */
export function resultText(id: RpcId, result: string): MessageText {
  return result.length > LONG_TEXT ? [resultMessage(id, '').slice(0, -1), result, '}'] : resultMessage(id, result);
}

export const partsOfText = (text: MessageText): readonly string[] => (typeof text === 'string' ? [text] : text);

export const lengthOfText = (text: MessageText): number => partsOfText(text).reduce((sum, { length }) => sum + length, 0);

export const wholeText = (text: MessageText): string => (typeof text === 'string' ? text : text.join(''));

/** The texts as one JSON array. Long texts stay as they are; short ones are joined, because each part is written by itself. */
export function arrayText(texts: readonly MessageText[]): MessageText {
  const parts = [''];
  for (const part of ['[', ...texts.flatMap((text, index) => [...(index > 0 ? [','] : []), ...partsOfText(text)]), ']']) {
    const last = parts.pop() ?? '';
    if (last.length + part.length <= LONG_TEXT) parts.push(last + part);
    else parts.push(last, part);
  }
  return parts.length === 1 ? wholeText(parts) : parts;
}
