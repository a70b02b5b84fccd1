/** Targets that speak Streamable HTTP: the gateway's own headers and credential, nothing of the caller's but the rebuilt message. */
import { type Dispatcher, errors } from 'undici';
import type { Credentials, HttpTarget, RoutedTarget } from '../../targets/target.ts';
import { createSseReader, type SseEvent } from '../sse.ts';
import { createAgent } from './connect.ts';
import type { Upstream, UpstreamAnswer, UpstreamFault, UpstreamLimits, UpstreamRequest } from './upstream.ts';

export function createHttpUpstream(limits: UpstreamLimits): Upstream {
  const agent = createAgent(limits.connectMs);
  const addresses = new WeakMap<RoutedTarget, { readonly origin: string; readonly path: string }>();
  function addressOf(target: RoutedTarget & HttpTarget): { readonly origin: string; readonly path: string } {
    const known = addresses.get(target);
    if (known !== undefined) return known;
    const { origin, pathname, search } = new URL(target.url);
    const address = { origin, path: pathname + search };
    addresses.set(target, address);
    return address;
  }
  return {
    async send(request) {
      const { target, access } = request;
      if (access.credentials === 'unusable') return { fault: 'credential' };
      if (target.transport !== 'streamable-http') return { fault: 'transport' };
      try {
        const { origin, path } = addressOf(target);
        // Redirects are not followed: undici follows none unless told to.
        const answer = await agent.request({
          origin,
          path,
          method: request.method,
          headers: headersFor(request, access.credentials),
          body: request.body ?? null,
          signal: request.signal ?? null,
          headersTimeout: limits.headersMs,
          bodyTimeout: request.method === 'GET' ? 0 : limits.idleMs,
        });
        return readAnswer(answer, limits.answerBytes);
      } catch (cause) {
        return { fault: faultOf(cause), cause };
      }
    },
    close: () => agent.destroy(),
  };
}

/** The whole allow-list: nothing else that the client sent goes to the target, and the credential is set last. */
function headersFor(request: UpstreamRequest, credentials: Credentials): Record<string, string> {
  const headers: Record<string, string> = { 'user-agent': 'portcullis' };
  if (request.method === 'POST') headers['content-type'] = 'application/json';
  if (request.method !== 'DELETE') {
    // SDK servers refuse `*/*` and want both types by name.
    headers.accept = request.method === 'GET' ? 'text/event-stream' : 'application/json, text/event-stream';
  }
  const upstreamId = request.session?.upstreamId ?? null;
  if (upstreamId !== null) headers['mcp-session-id'] = upstreamId;
  if (request.version !== undefined) headers['mcp-protocol-version'] = request.version;
  if (request.modern) {
    for (const [name, value] of request.modern.params) headers[name] = value;
    headers['mcp-protocol-version'] = request.modern.version;
    headers['mcp-method'] = request.modern.method;
    if (request.modern.name !== undefined) headers['mcp-name'] = request.modern.name;
  }
  if (request.lastEventId !== undefined) headers['last-event-id'] = request.lastEventId;
  for (const [name, value] of credentials.headers) headers[name] = value;
  return headers;
}

function readAnswer({ statusCode, headers, body }: Dispatcher.ResponseData, maxEventLength: number): UpstreamAnswer {
  // Destroying a body that is still arriving makes it emit an error that nobody waits for.
  body.on('error', () => undefined);
  const type = one(headers['content-type'])?.split(';')[0]?.trim().toLowerCase();
  const head = {
    status: statusCode,
    sessionId: one(headers['mcp-session-id']) ?? null,
    held: false,
    retryAfter: one(headers['retry-after']) ?? null,
    discard: () => void body.destroy(),
  };
  if (type === 'text/event-stream') return { ...head, type: 'stream', events: eventsOf(body, maxEventLength) };
  return { ...head, type: type === 'application/json' ? 'json' : 'other', body };
}

export async function* eventsOf(body: AsyncIterable<Uint8Array>, maxEventLength: number): AsyncGenerator<readonly SseEvent[]> {
  const reader = createSseReader(maxEventLength);
  for await (const chunk of body) {
    const events = reader.push(chunk);
    if (events.length > 0) yield events;
  }
}

function one(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

/** Of a stream, nothing: what is answered as events is no body. */
export async function readAll(answer: UpstreamAnswer, maxBytes: number): Promise<Buffer | UpstreamFault> {
  if (answer.type === 'stream') return Buffer.alloc(0);
  const chunks: Uint8Array[] = [];
  let size = 0;
  try {
    for await (const chunk of answer.body) {
      size += chunk.length;
      if (size > maxBytes) {
        answer.discard();
        return { fault: 'too_large' };
      }
      chunks.push(chunk);
    }
  } catch (cause) {
    return { fault: faultOf(cause), cause };
  }
  return Buffer.concat(chunks, size);
}

export function faultOf(cause: unknown): UpstreamFault['fault'] {
  if (cause instanceof errors.HeadersTimeoutError || cause instanceof errors.BodyTimeoutError) return 'timeout';
  if (cause instanceof errors.ConnectTimeoutError) return 'timeout';
  if (cause instanceof Error && (cause.name === 'AbortError' || cause instanceof errors.RequestAbortedError)) return 'aborted';
  return 'unreachable';
}
