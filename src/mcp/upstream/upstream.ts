/**
 * How the rest of the gateway sees a target: as a Streamable HTTP server, whatever transport the target has. A POST carries one
 * message and is answered with JSON or an event stream. `initialize` may open a session, GET opens its standalone stream, DELETE
 * ends it. An unknown session answers 404.
 */

import type { Cancellable } from '../../base/cancellation.ts';
import type { Now } from '../../base/promises.ts';
import type { NamedObject } from '../../engine/decision.ts';
import type { SessionRevision } from '../../protocol/mode.ts';
import type { SseEvent } from '../../protocol/sse.ts';
import type { Access, RoutedTarget, Target } from '../../targets/target.ts';

export interface Upstream {
  /** Sends a request. Never rejects. */
  send(request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault>;
  /** Ends every request in flight and every process that was started for targets. */
  close(): Promise<void>;
}

export interface UpstreamRequest {
  readonly method: 'POST' | 'GET' | 'DELETE';
  readonly target: RoutedTarget;
  /** The access of the principal on whose behalf the request is sent. */
  readonly access: Access;
  /** For POST: the text of one message that the gateway has built. */
  readonly body?: string;
  readonly session?: { readonly upstreamId: string | null };
  /** The version header of the stateful revisions. Without it, a target assumes an older revision. */
  readonly version?: SessionRevision | undefined;
  /** The headers of revision 2026-07-28. They have already been checked against the body. */
  readonly stateless?: StatelessHeaders;
  readonly lastEventId?: string;
  /** Aborts the request, including an answer that is still arriving. */
  readonly signal?: Cancellable;
  /** Says when the answer may be read. Present if the answer is a part of a list at the aggregate endpoint. */
  readonly toRead?: ToRead;
}

export interface ToRead {
  /** Waits until a body or events of this length may be read before they are passed on; false: nobody wants them any more. */
  take(bytes: number): Promise<boolean>;
  /** What was taken has been read. Further events take again. */
  giveBack(): void;
}

/** A target, and the access with which it is asked. */
export type Reach = Pick<UpstreamRequest, 'target' | 'access'>;

export interface StatelessHeaders {
  readonly version: string;
  readonly method: string;
  readonly name: string | undefined;
  /** The `Mcp-Param-*` headers. The target compares them with the arguments. */
  readonly params: readonly (readonly [string, string])[];
}

interface AnswerHead {
  readonly status: number;
  /** The id of the session that `initialize` opened. */
  readonly sessionId: string | null;
  /** Whether the session lives in this process. Other replicas of the gateway cannot reach it then. */
  readonly held: boolean;
  readonly retryAfter: string | null;
  readonly location?: string | null;
  /** The header `WWW-Authenticate` of a refusal. It concerns only the gateway. */
  readonly challenge?: string | null;
  /** Abandons what is left of the answer, and gives back the room of a body that was read. Call it for every answer in the end. */
  discard(): void;
}

export type UpstreamAnswer = AnswerHead &
  (
    | { readonly type: 'json' | 'other'; readonly read: ReadBody }
    /** Iterating throws SseFault if the body is not an event stream, and the connection's error if it breaks off. */
    | { readonly type: 'stream'; readonly events: AsyncIterable<readonly SseEvent[]> }
  );

/**
 * Returns the whole body, or a fault if the transport cannot deliver it. A body that the gateway has built is text. A large body waits until
 * there is room for it; `isWanted` is asked then, before the body is read. If it is no longer wanted, the fault is `aborted`.
 */
export type ReadBody = (isWanted?: () => boolean) => Now<Buffer | string | UpstreamFault>;

export type UpstreamStream = UpstreamAnswer & { readonly type: 'stream' };

/**
 * Why a target gave no answer. `unreachable`: there is no connection or no process, whatever the caller asked for. `changed`: it was not asked,
 * because the caller's access has changed while the message waited.
 */
export const FAULTS = [
  ...(['credential', 'transport', 'timeout', 'aborted', 'unreachable', 'denied_address', 'crashed'] as const),
  ...(['broken_off', 'malformed', 'too_large', 'busy', 'suspended', 'account', 'changed'] as const),
] as const;

/** If it has a `cause`, the state of the gateway could not be read. */
export const CHANGED: UpstreamFault = { fault: 'changed' };

/** Whether the gateway may send something for the caller by itself. False also if the state cannot be read. */
export async function isStillAllowed({ stillAllowed }: Access, objects?: readonly NamedObject[]): Promise<boolean> {
  if (stillAllowed === undefined) return true;
  try {
    return await stillAllowed(objects);
  } catch {
    return false;
  }
}

/** Sends a message if its sender may still send it. Every transport asks this right before it sends a message of a caller. */
export function ifStillAllowed(
  { access }: Pick<UpstreamRequest, 'access'>,
  send: () => Promise<UpstreamAnswer | UpstreamFault>,
): Promise<UpstreamAnswer | UpstreamFault> {
  const may = access.stillAllowed?.() ?? true;
  // Most calls come here at once, and need no further promise.
  if (typeof may === 'boolean') return may ? send() : Promise.resolve(CHANGED);
  return may.then(
    (isAllowed) => (isAllowed ? send() : CHANGED),
    (cause: unknown) => ({ ...CHANGED, cause }),
  );
}

/** What a user must do before their own account at the target can be used. */
export interface AccountNeed {
  /** `scope`: the account lacks rights that the target asks for. `unavailable`: nothing; its authorization server cannot be asked. */
  readonly need: 'connect' | 'reconnect' | 'scope' | 'unavailable';
  /** Where the user does it. */
  readonly url: string;
}

/** The target gave no answer. */
export interface UpstreamFault {
  readonly fault: (typeof FAULTS)[number];
  /** For administrators only: it may contain addresses and what a process printed. */
  readonly cause?: unknown;
  /** For `suspended`: when the target may be asked again. It is left out if a request to it is already in flight and is late. */
  readonly until?: number;
  /** For `account`. */
  readonly account?: AccountNeed;
  /** For a `timeout` while a session was being opened: how long the target had. */
  readonly withinMs?: number;
}

export function isFault(answer: object | string): answer is UpstreamFault {
  return typeof answer === 'object' && 'fault' in answer;
}

export interface UpstreamLimits {
  readonly connectMs: number;
  /** How long the target may take to open a session, or to say which revisions it speaks. */
  readonly headersMs: number;
  /** How long a target may be silent during a request, unless the target has its own `timeout_ms`. */
  readonly silenceMs: number;
  /** How long the gateway keeps a session of its own after its last use, and a call that its client no longer waits for. */
  readonly idleMs: number;
  /** The largest JSON answer and the largest event, in bytes. */
  readonly answerBytes: number;
}

/** Returns how long this target may be silent, in milliseconds. All transports use the same limit. */
export function silenceOf({ timeout_ms }: Pick<Target, 'timeout_ms'>, limits: UpstreamLimits): number {
  return timeout_ms ?? limits.silenceMs;
}

/** Returns how long this target may take to answer a request that opens a session, in milliseconds. */
export function openingOf(target: Pick<Target, 'timeout_ms'>, limits: UpstreamLimits): number {
  return Math.min(limits.headersMs, silenceOf(target, limits));
}

export class ProcessFault extends Error {
  readonly fault: UpstreamFault['fault'];
  readonly stderr: string;

  constructor(
    fault: UpstreamFault['fault'],
    message: string,
    { stderr = '', ...options }: ErrorOptions & { stderr?: string } = {},
  ) {
    super(message, options);
    this.fault = fault;
    this.stderr = stderr;
  }
}
