/** Requests to targets: the gateway's own headers and credential, nothing of the caller's but the rebuilt message. */
import { type Dispatcher, errors } from 'undici';
import type { RoutedTarget } from '../targets/target.ts';
import { createAgent } from './connect.ts';
import type { SessionRevision } from './era.ts';

export interface ForwardLimits {
  readonly connectMs: number;
  /** Until the target starts its answer: a call that answers in JSON takes all its time here. */
  readonly headersMs: number;
  /** Between two chunks of an answer, standing streams excepted. */
  readonly idleMs: number;
  /** Largest JSON answer and largest single event. */
  readonly answerBytes: number;
}

export interface ForwardedRequest {
  readonly method: 'POST' | 'GET' | 'DELETE';
  readonly target: RoutedTarget;
  readonly body?: string;
  readonly session?: { readonly upstreamId: string | null };
  /** The version header of the session revisions, as the client sent it: without it a target chooses the older behaviour. */
  readonly version?: SessionRevision | undefined;
  /** Headers of revision 2026-07-28, already checked against the body. */
  readonly modern?: ModernHeaders;
  readonly lastEventId?: string;
  /** Aborts the exchange, answer included. */
  readonly signal?: AbortSignal;
}

export interface ModernHeaders {
  readonly version: string;
  readonly method: string;
  readonly name: string | undefined;
  /** `Mcp-Param-*`: the target compares them with the arguments. */
  readonly params: readonly (readonly [string, string])[];
}

export interface UpstreamAnswer {
  readonly status: number;
  readonly type: 'json' | 'stream' | 'other';
  readonly sessionId: string | null;
  readonly retryAfter: string | null;
  readonly body: AsyncIterable<Uint8Array>;
  /** Gives the connection up without reading on. */
  discard(): void;
}

/** No answer: what happened, for the log; the client learns only that the target could not be used. */
export interface UpstreamFault {
  readonly fault: 'credential' | 'transport' | 'timeout' | 'aborted' | 'unreachable' | 'too_large';
  readonly cause?: unknown;
}

export interface Forwarder {
  send(request: ForwardedRequest): Promise<UpstreamAnswer | UpstreamFault>;
  close(): Promise<void>;
}

export function isFault(answer: object): answer is UpstreamFault {
  return 'fault' in answer;
}

export function createForwarder(limits: ForwardLimits): Forwarder {
  const agent = createAgent(limits.connectMs);
  return {
    async send(request) {
      if (request.target.credential === 'unusable') return { fault: 'credential' };
      if (request.target.transport !== 'streamable-http') return { fault: 'transport' };
      try {
        const url = new URL(request.target.url);
        // Redirects are not followed: undici follows none unless told to.
        const answer = await agent.request({
          origin: url.origin,
          path: url.pathname + url.search,
          method: request.method,
          headers: headersFor(request),
          body: request.body ?? null,
          signal: request.signal ?? null,
          headersTimeout: limits.headersMs,
          bodyTimeout: request.method === 'GET' ? 0 : limits.idleMs,
        });
        return readAnswer(answer);
      } catch (cause) {
        return { fault: faultOf(cause), cause };
      }
    },
    close: () => agent.destroy(),
  };
}

/** The whole allow-list: nothing else that the client sent goes to the target, and the credential is set last. */
function headersFor(request: ForwardedRequest): Record<string, string> {
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
  const { credential } = request.target;
  if (typeof credential === 'object') headers[credential.header.toLowerCase()] = credential.value;
  return headers;
}

function readAnswer({ statusCode, headers, body }: Dispatcher.ResponseData): UpstreamAnswer {
  // Destroying a body that is still arriving makes it emit an error that nobody waits for.
  body.on('error', () => undefined);
  const type = one(headers['content-type'])?.split(';')[0]?.trim().toLowerCase();
  return {
    status: statusCode,
    type: type === 'application/json' ? 'json' : type === 'text/event-stream' ? 'stream' : 'other',
    sessionId: one(headers['mcp-session-id']) ?? null,
    retryAfter: one(headers['retry-after']) ?? null,
    body,
    discard: () => body.destroy(),
  };
}

function one(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

export async function readAll(answer: UpstreamAnswer, maxBytes: number): Promise<Buffer | UpstreamFault> {
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
