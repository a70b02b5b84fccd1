/**
 * How the rest of the gateway sees a target: as a server of Streamable HTTP, whatever transport it has. A POST carries one
 * message and is answered with JSON or a stream of events; `initialize` may open a session, GET is its standing stream,
 * DELETE its end. A session that is not there answers 404.
 */
import type { Access, RoutedTarget, Target } from '../../targets/target.ts';
import type { Cancellable } from '../cancellation.ts';
import type { SessionRevision } from '../era.ts';
import type { SseEvent } from '../sse.ts';

export interface Upstream {
  /** Never rejects. */
  send(request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault>;
  /** Ends every exchange and everything that was started for targets. */
  close(): Promise<void>;
}

export interface UpstreamRequest {
  readonly method: 'POST' | 'GET' | 'DELETE';
  readonly target: RoutedTarget;
  /** Of the principal on whose behalf it is sent. */
  readonly access: Access;
  /** Of POST: the text of one message that the gateway has built. */
  readonly body?: string;
  readonly session?: { readonly upstreamId: string | null };
  /** The version header of the session revisions; without it a target chooses the older behaviour. */
  readonly version?: SessionRevision | undefined;
  /** Headers of revision 2026-07-28, already checked against the body. */
  readonly modern?: ModernHeaders;
  readonly lastEventId?: string;
  /** Aborts the exchange, answer included. */
  readonly signal?: Cancellable;
}

export interface ModernHeaders {
  readonly version: string;
  readonly method: string;
  readonly name: string | undefined;
  /** `Mcp-Param-*`: the target compares them with the arguments. */
  readonly params: readonly (readonly [string, string])[];
}

interface AnswerHead {
  readonly status: number;
  /** Of the session that `initialize` has opened. */
  readonly sessionId: string | null;
  /** The session is in this process: another replica of the gateway cannot reach it. */
  readonly held: boolean;
  readonly retryAfter: string | null;
  /** Of a redirection. */
  readonly location?: string | null;
  /** Gives the connection up without reading on. */
  discard(): void;
}

export type UpstreamAnswer = AnswerHead &
  /** `read`: the whole body, as far as the transport takes one. */
  (
    | { readonly type: 'json' | 'other'; readonly read: () => Promise<Buffer | UpstreamFault> }
    /** Throws SseFault for what is no event stream, and what the connection throws when it breaks off. */
    | { readonly type: 'stream'; readonly events: AsyncIterable<readonly SseEvent[]> }
  );

export type UpstreamStream = UpstreamAnswer & { readonly type: 'stream' };

/** No answer. `unreachable`: no connection, or no process; what the caller asks for has no part in that. */
export interface UpstreamFault {
  readonly fault:
    | 'credential'
    | 'transport'
    | 'timeout'
    | 'aborted'
    | 'unreachable'
    | 'denied_address'
    | 'crashed'
    | 'broken_off'
    | 'malformed'
    | 'too_large'
    | 'busy'
    | 'suspended';
  /** For administrators: it may name addresses, and what a process has printed. */
  readonly cause?: unknown;
  /** Of `suspended`: when the target is asked again. Left out: it is being asked, and is late. */
  readonly until?: number;
  /** Of `timeout` where a session was to be opened: the time it had. */
  readonly withinMs?: number;
}

export function isFault(answer: object): answer is UpstreamFault {
  return 'fault' in answer;
}

export interface UpstreamLimits {
  readonly connectMs: number;
  /** Until the target has opened a session, or said which revisions it speaks. */
  readonly headersMs: number;
  /** How long a target may be silent while a request is under way, unless the target has a `timeout_ms` of its own. */
  readonly silenceMs: number;
  /** After the last use of a session of the gateway's own, or of a call that its client does not wait for. */
  readonly idleMs: number;
  /** Largest JSON answer and largest single event. */
  readonly answerBytes: number;
}

/** The same for every transport, in milliseconds. */
export function silenceOf({ timeout_ms }: Pick<Target, 'timeout_ms'>, limits: UpstreamLimits): number {
  return timeout_ms ?? limits.silenceMs;
}

/** Until the answer to what opens a session. */
export function openingOf(target: Pick<Target, 'timeout_ms'>, limits: UpstreamLimits): number {
  return Math.min(limits.headersMs, silenceOf(target, limits));
}
