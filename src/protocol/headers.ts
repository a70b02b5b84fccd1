/**
 * Reads request headers as they were sent. Repeated headers, which Node would join or drop silently, are refused. Checks and
 * writes the headers that repeat members of a message (2026-07-28). Pure.
 */
import type { JsonObject } from '../base/json/json.ts';
import type { Rejection } from './message.ts';
import { mismatch, type ProtocolHeaders } from './mode.ts';

export interface McpHeaders {
  readonly authorization: string | undefined;
  readonly contentType: string | undefined;
  readonly contentEncoding: string | undefined;
  readonly accept: string | undefined;
  readonly sessionId: string | undefined;
  readonly lastEventId: string | undefined;
  readonly protocol: ProtocolHeaders;
  /** `Mcp-Param-*` with lower-case names. */
  readonly params: readonly (readonly [string, string])[];
}

const MAX_PARAM_HEADERS = 64;
/** Headers that may appear only once. Node keeps the first, or joins all with a comma: two readers could read two values. */
const SINGLE = ['authorization', 'host', 'origin', 'content-type', 'content-length', 'content-encoding', 'last-event-id'];

/** `raw` as in IncomingMessage.rawHeaders. */
export function readHeaders(raw: readonly string[]): McpHeaders | { readonly problem: string } {
  const headers = new Map<string, string>();
  const params: [string, string][] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const name = (raw[at] ?? '').toLowerCase();
    // Node has already trimmed the value; a regular expression for that would take quadratic time on inner blanks.
    const value = raw[at + 1] ?? '';
    const isProtocol = name.startsWith('mcp-');
    if (headers.has(name) && (isProtocol || SINGLE.includes(name)))
      return { problem: `The header ${name} is sent more than once.` };
    if (isProtocol && !/^[\x20-\x7e\t]*$/.test(value)) return { problem: `The header ${name} has characters outside ASCII.` };
    if (name.startsWith('mcp-param-')) params.push([name, value]);
    const before = headers.get(name);
    headers.set(name, before === undefined ? value : `${before}, ${value}`);
  }
  if (params.length > MAX_PARAM_HEADERS) return { problem: `There are more than ${MAX_PARAM_HEADERS} Mcp-Param headers.` };
  return {
    authorization: headers.get('authorization'),
    contentType: headers.get('content-type'),
    contentEncoding: headers.get('content-encoding'),
    accept: headers.get('accept'),
    sessionId: headers.get('mcp-session-id'),
    lastEventId: headers.get('last-event-id'),
    protocol: { version: headers.get('mcp-protocol-version'), method: headers.get('mcp-method'), name: headers.get('mcp-name') },
    params,
  };
}

/** Only UTF-8 is accepted: in a different charset, the same bytes would have a different meaning. */
export function isJsonContent(contentType: string | undefined): boolean {
  return contentType !== undefined && /^application\/json[ \t]*(?:;[ \t]*charset="?utf-8"?[ \t]*)?$/i.test(contentType);
}

/** The Accept header that the SDKs send with POST. It covers every kind of answer. */
const OF_SDKS = 'application/json, text/event-stream';

/** An absent Accept accepts everything (RFC 9110 section 12.5.1). */
export function accepts(accept: string | undefined, types: readonly string[]): boolean {
  if (accept === undefined || accept === '' || accept === OF_SDKS) return true;
  const ranges = accept.split(',').map((range) => (range.split(';')[0] ?? '').trim().toLowerCase());
  return types.every((type) => ranges.some((range) => range === '*/*' || range === type || range === `${type.split('/')[0]}/*`));
}

/**
 * The member of `params` that the header `Mcp-Name` repeats, by method (2026-07-28, Streamable HTTP, standard request headers).
 */
const NAMED_BY: ReadonlyMap<string, 'name' | 'uri' | 'taskId'> = new Map([
  ['tools/call', 'name'],
  ['prompts/get', 'name'],
  ['resources/read', 'uri'],
  // SEP-2663, routing headers.
  ['tasks/get', 'taskId'],
  ['tasks/update', 'taskId'],
  ['tasks/cancel', 'taskId'],
]);

/** Checks the headers that 2026-07-28 requires on every request. null: all are present and agree with the body. */
export function checkStatelessHeaders(
  method: string,
  params: JsonObject | undefined,
  headers: ProtocolHeaders,
): Rejection | null {
  if (headers.version === undefined) return mismatch('the MCP-Protocol-Version header is missing');
  if (headers.method === undefined) return mismatch('the Mcp-Method header is missing');
  const member = NAMED_BY.get(method);
  const named = member === undefined ? undefined : params?.[member];
  if (typeof named !== 'string') return null;
  if (headers.name === undefined) return mismatch('the Mcp-Name header is missing');
  const decoded = decodeHeaderValue(headers.name);
  if (decoded === null) return mismatch('the Mcp-Name header is not valid Base64');
  return decoded === named ? null : mismatch(`Mcp-Name differs from params.${member}`);
}

/** The value of `Mcp-Name` for a request that the gateway sends. */
export function nameHeader(method: string, params: JsonObject | undefined): string | undefined {
  const member = NAMED_BY.get(method);
  const named = member === undefined ? undefined : params?.[member];
  return typeof named === 'string' ? encodeHeaderValue(named) : undefined;
}

const SENTINEL = /^=\?base64\?(.*)\?=$/s;
const PLAIN = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/;
const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export function encodeHeaderValue(value: string): string {
  return PLAIN.test(value) && !SENTINEL.test(value) ? value : `=?base64?${Buffer.from(value, 'utf8').toString('base64')}?=`;
}

/** null: the Base64 in the sentinel is not canonical, so it has more than one reading. */
function decodeHeaderValue(value: string): string | null {
  const encoded = SENTINEL.exec(value)?.[1];
  if (encoded === undefined) return value;
  const bytes = Buffer.from(encoded, 'base64');
  if (bytes.toString('base64') !== encoded) return null;
  try {
    return strictUtf8.decode(bytes);
  } catch {
    return null;
  }
}
