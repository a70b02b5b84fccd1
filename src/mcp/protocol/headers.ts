/** Reads request headers as they were sent. Repeated headers, which Node would join or drop silently, are refused. Pure. */
import type { ProtocolHeaders } from './mode.ts';

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
