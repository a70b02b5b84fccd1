/**
 * Targets that speak Streamable HTTP. They get the gateway's own headers and credential, and nothing of the caller except the
 * rebuilt message.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { type Dispatcher, errors } from 'undici';
import { type Cancellable, onAbort } from '../../base/cancellation.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import { perObject } from '../../base/kept.ts';
import { DeniedAddress } from '../../base/network/guarded-connect.ts';
import { type AddressRule, createAddressRule } from '../../base/network/network-address.ts';
import type { Now } from '../../base/promises.ts';
import { laneSteps } from '../../base/turns/lane.ts';
import { createSseReader, type SseEvent, SseFault, type SseReader, TooLarge } from '../../protocol/sse.ts';
import type { Credentials, HttpTarget, RoutedTarget } from '../../targets/target.ts';
import { createAgents, sourceOf } from './connect.ts';
import { createEventQueue, type EventQueue } from './events.ts';
import { PART_BYTES, takeInTurns } from './reading-turns.ts';
import { BacklogFault, createUnread, FREE, type Unread, type UnreadAccount } from './unread.ts';
import {
  ifStillAllowed,
  isFault,
  openingOf,
  ProcessFault,
  silenceOf,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamLimits,
  type UpstreamRequest,
} from './upstream.ts';

export function createHttpUpstream(
  limits: UpstreamLimits,
  denied: AddressRule = createAddressRule([]),
  unread: Unread = createUnread(),
): Upstream {
  const agents = createAgents(limits.connectMs, denied);

  function dispatch(
    request: UpstreamRequest,
    target: RoutedTarget & HttpTarget,
    credentials: Credentials,
  ): Promise<UpstreamAnswer | UpstreamFault> {
    const { user } = request.access;
    const source = sourceOf(target.id, user);
    const exchange = new Exchange(
      request.signal,
      limits.answerBytes,
      unread.open(target.id, user, request.toRead !== undefined),
      source,
    );
    try {
      const { origin, path } = addressOf(target);
      // undici does not follow redirects by default, and must not.
      agents.dispatch(
        target.id,
        user,
        {
          origin,
          path,
          method: request.method,
          headers: headersFor(request, credentials),
          body: request.body ?? null,
          headersTimeout: opens(request) ? openingOf(target, limits) : silenceOf(target, limits),
          bodyTimeout: request.method === 'GET' ? 0 : silenceOf(target, limits),
        },
        exchange,
      );
    } catch (cause) {
      exchange.onResponseError(null, cause);
    }
    return exchange.answer;
  }

  return {
    send(request) {
      const { target, access } = request;
      const { credentials } = access;
      if (credentials === 'unusable') return Promise.resolve({ fault: 'credential' });
      if (target.transport !== 'streamable-http') return Promise.resolve({ fault: 'transport' });
      return ifStillAllowed(request, () => dispatch(request, target, credentials));
    },
    close: () => agents.destroy(),
  };
}

const addressOf = perObject(({ url }: RoutedTarget & HttpTarget) => {
  const { origin, pathname, search } = new URL(url);
  return { origin, path: pathname + search };
});

const CHUNKS_AT_ONCE = 1024;

/** The target is paused while more characters of events than this are unread. */
const PAUSE_LENGTH = 64 * 1024;

/**
 * One request and its answer. A body is collected as it arrives, in bounded memory. Events arrive at the pace of their reader.
 * undici's own `request` uses a promise, streams and listeners per body, which cost more than the rest of the request.
 */
class Exchange implements Dispatcher.DispatchHandler {
  readonly answer: Promise<UpstreamAnswer | UpstreamFault>;
  private settle: (answer: UpstreamAnswer | UpstreamFault) => void = () => undefined;
  private readonly signal: Cancellable | undefined;
  private readonly maxBytes: number;
  /** Who pays for reading the answer. */
  private readonly source: string;
  private controller: Dispatcher.DispatchController | null = null;
  private stream: { readonly reader: SseReader; readonly queue: EventQueue } | null = null;
  private paused = false;
  /** The body is not a valid event stream: the rest is dropped, and the events before it are still delivered. */
  private over = false;
  private readonly unread: UnreadAccount;
  /** A large body of known length. Each chunk is copied into it, and is garbage at once. null: the body is collected in `chunks`. */
  private body: Buffer | null = null;
  private chunks: Buffer[] = [];
  /** How many of the first chunks are already joined ones. */
  private joined = 0;
  private size = 0;
  /** The Content-Length of the body, or 0. */
  private announced = 0;
  /** The body or its fault. null: it is still arriving. */
  private outcome: Buffer | UpstreamFault | null = null;
  private told: ((outcome: Buffer | UpstreamFault) => void) | null = null;

  constructor(signal: Cancellable | undefined, maxBytes: number, unread: UnreadAccount, source: string) {
    this.source = source;
    this.signal = signal;
    this.maxBytes = maxBytes;
    this.unread = unread;
    this.answer = new Promise((resolve) => {
      this.settle = resolve;
    });
    onAbort(signal, this.abort);
  }

  private readonly abort = (): void => this.fail({ fault: 'aborted' });

  private readonly discard = (): void => {
    this.abort();
    this.unread.close();
  };

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.controller = controller;
    if (this.outcome !== null) controller.abort(new errors.RequestAbortedError());
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: IncomingHttpHeaders): void {
    if (status < 200) return;
    const type = one(headers['content-type'])?.split(';')[0]?.trim().toLowerCase();
    const sessionId = one(headers['mcp-session-id']) ?? null;
    const retryAfter = one(headers['retry-after']) ?? null;
    const location = one(headers.location) ?? null;
    const challenge = status === 401 || status === 403 ? (one(headers['www-authenticate']) ?? null) : null;
    const { discard, read } = this;
    // The members are listed one by one because every call comes here: spreading an object is slow to make and to read.
    if (type !== 'text/event-stream') {
      this.settle({
        status,
        sessionId,
        held: false,
        retryAfter,
        location,
        challenge,
        discard,
        type: type === 'application/json' ? 'json' : 'other',
        read,
      });
      this.announced = Number(one(headers['content-length']) ?? 0) || 0;
      if (this.announced > this.maxBytes) this.fail({ fault: 'too_large' });
      // A large body is read when it is asked for and there is room for it.
      else if (this.announced > FREE) this.controller?.pause();
      return;
    }
    const reader = createSseReader(this.maxBytes);
    // The reader learns how the stream ends. A stream without a reader is not an error.
    const queue = createEventQueue(this.source, { moved: () => this.count(), closed: this.abort });
    this.stream = { reader, queue };
    this.settle({ status, sessionId, held: false, retryAfter, challenge, discard, type: 'stream', events: queue.events });
  }

  /** Reserves room for this many bytes of the body. False: there is no room, and the request has failed. */
  private hold(bytes: number): boolean {
    const fault = this.unread.set(bytes);
    if (fault !== null) this.fail({ fault: 'busy', cause: fault });
    return fault === null;
  }

  /** Counts the unread data of the stream, including an unfinished event. */
  private count(): void {
    const { stream } = this;
    if (stream === null || this.outcome !== null) return;
    const { pending } = stream.queue;
    const fault = this.unread.set(pending + stream.reader.pending);
    if (fault !== null) this.fail({ fault: 'busy', cause: fault });
    else if (pending > PAUSE_LENGTH) {
      this.paused = true;
      this.controller?.pause();
    } else if (this.paused) {
      this.paused = false;
      this.controller?.resume();
    }
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.stream !== null) {
      this.take(this.stream, chunk);
      return;
    }
    const at = this.size;
    this.size += chunk.length;
    if (this.size > this.maxBytes) {
      this.fail({ fault: 'too_large' });
      return;
    }
    if (this.size > this.announced && !this.hold(this.size)) return;
    if (this.body !== null) {
      chunk.copy(this.body, at);
      return;
    }
    this.chunks.push(chunk);
    // A Buffer costs about a hundred extra bytes, so a body in single-byte chunks would fill the memory.
    if (this.chunks.length - this.joined === CHUNKS_AT_ONCE) {
      this.chunks.push(Buffer.concat(this.chunks.splice(this.joined)));
      this.joined++;
    }
  }

  private take({ reader, queue }: NonNullable<Exchange['stream']>, chunk: Buffer): void {
    let events: SseEvent[];
    try {
      events = reader.push(chunk);
    } catch (cause) {
      this.over = true;
      queue.end(cause instanceof Error ? cause : new Error(String(cause)));
      this.controller?.abort(new errors.RequestAbortedError());
      return;
    }
    // Clients read only events without a name of their own as messages. Others can be signs of life, with any text.
    for (const { data, ...rest } of events) queue.push(rest.event === undefined ? data : '', rest);
    this.count();
  }

  onResponseEnd(): void {
    if (this.stream !== null) {
      // Events may still wait for their reader. Until they are read, the stream can be aborted.
      this.stream.queue.end();
      return;
    }
    const { body, chunks, size } = this;
    const [first] = chunks;
    if (body !== null) this.end(body.subarray(0, size));
    else if (chunks.length === 1 && first !== undefined) this.end(first);
    else if (size <= LARGE_TEXT) this.end(Buffer.concat(chunks, size));
    else void this.join(chunks, size);
  }

  /** Ends with a large body. It is joined in short steps, because it needs much new memory. */
  private async join(chunks: readonly Buffer[], size: number): Promise<void> {
    const body = await laneSteps(this.source, joinInSteps(chunks, size));
    if (this.outcome === null) this.end(body);
  }

  onResponseError(_controller: Dispatcher.DispatchController | null, cause: unknown): void {
    if (!this.over) this.fail({ fault: faultOf(cause), cause });
  }

  private readonly read = (isWanted: () => boolean = () => true): Now<Buffer | UpstreamFault> => {
    if (this.outcome !== null) return this.outcome;
    if (this.announced > FREE) void this.begin(isWanted);
    return new Promise((resolve) => (this.told = resolve));
  };

  /** Lets a large body arrive as soon as there is room for it. */
  private async begin(isWanted: () => boolean): Promise<void> {
    const cause = await this.unread.reserve(this.announced);
    if (this.outcome !== null) return;
    if (cause !== null) this.fail({ fault: 'busy', cause });
    else if (isWanted()) {
      this.body = Buffer.allocUnsafeSlow(this.announced);
      this.controller?.resume();
    } else this.abort();
  }

  /** Ends the request with a fault, unless it has already ended. */
  private fail(fault: UpstreamFault): void {
    if (this.outcome !== null) return;
    this.end(fault);
    const error = fault.cause instanceof Error ? fault.cause : new errors.RequestAbortedError();
    this.controller?.abort(error);
    this.stream?.queue.fail(error);
    this.settle(fault);
  }

  private end(outcome: Buffer | UpstreamFault): void {
    this.outcome ??= outcome;
    this.body = null;
    this.chunks = [];
    // A whole body takes its room until its reader discards it.
    if (isFault(this.outcome)) this.unread.close();
    this.signal?.removeEventListener('abort', this.abort);
    this.told?.(this.outcome);
  }
}

function* joinInSteps(chunks: readonly Buffer[], size: number): Generator<undefined, Buffer> {
  const body = Buffer.allocUnsafeSlow(size);
  let at = 0;
  for (const chunk of chunks) {
    at += chunk.copy(body, at);
    yield;
  }
  return body;
}

/** The complete allow-list of headers: nothing else that the client sent reaches the target. The credential is set last. */
function headersFor(request: UpstreamRequest, credentials: Credentials): Record<string, string> {
  const headers: Record<string, string> = { 'user-agent': 'portcullis' };
  if (request.method === 'POST') headers['content-type'] = 'application/json';
  if (request.method !== 'DELETE') {
    // SDK servers refuse `*/*`; they want both types by name.
    headers.accept = request.method === 'GET' ? 'text/event-stream' : 'application/json, text/event-stream';
  }
  const upstreamId = request.session?.upstreamId ?? null;
  if (upstreamId !== null) headers['mcp-session-id'] = upstreamId;
  if (request.version !== undefined) headers['mcp-protocol-version'] = request.version;
  if (request.stateless) {
    for (const [name, value] of request.stateless.params) headers[name] = value;
    headers['mcp-protocol-version'] = request.stateless.version;
    headers['mcp-method'] = request.stateless.method;
    if (request.stateless.name !== undefined) headers['mcp-name'] = request.stateless.name;
  }
  // It is UTF-8 on the wire (HTML, server-sent events); undici writes each character as one byte.
  if (request.lastEventId !== undefined) headers['last-event-id'] = Buffer.from(request.lastEventId).toString('latin1');
  for (const [name, value] of credentials.headers) headers[name] = value;
  return headers;
}

export async function* eventsOf(
  body: AsyncIterable<Buffer>,
  source: string,
  maxEventLength: number,
  unread: UnreadAccount,
): AsyncGenerator<readonly SseEvent[]> {
  const reader = createSseReader(maxEventLength);
  try {
    for await (const chunk of body) {
      const events: SseEvent[] = [];
      await takeInTurns(source, chunk, PART_BYTES, (part) => events.push(...reader.push(part)));
      const fault = unread.set(reader.pending);
      if (fault !== null) throw fault;
      if (events.length > 0) yield events;
    }
  } finally {
    unread.close();
  }
}

function one(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

/** Returns the whole body. An event stream has no body, so its result is empty. */
export async function readAll(answer: UpstreamAnswer, maxBytes: number): Promise<Buffer | UpstreamFault> {
  if (answer.type === 'stream') return Buffer.alloc(0);
  const body = await answer.read();
  answer.discard();
  if (isFault(body)) return body;
  const bytes = typeof body === 'string' ? Buffer.from(body) : body;
  return bytes.length > maxBytes ? { fault: 'too_large' } : bytes;
}

/** Error codes of connections that were open and ended before the answer did. */
const BROKEN_OFF = /^(UND_ERR_SOCKET|UND_ERR_(RES|REQ)_.*|ECONNRESET|EPIPE|HPE_.*|ERR_STREAM_.*)$/;

export function faultOf(cause: unknown): UpstreamFault['fault'] {
  if (cause instanceof ProcessFault) return cause.fault;
  if (cause instanceof TooLarge) return 'too_large';
  if (cause instanceof SseFault) return 'malformed';
  if (cause instanceof DeniedAddress) return 'denied_address';
  if (cause instanceof errors.HeadersTimeoutError || cause instanceof errors.BodyTimeoutError) return 'timeout';
  if (cause instanceof BacklogFault) return 'busy';
  if (!(cause instanceof Error)) return 'unreachable';
  // The gateway itself destroys its connections, when it shuts down.
  if (cause.name === 'AbortError' || cause instanceof errors.RequestAbortedError || cause instanceof errors.ClientDestroyedError)
    return 'aborted';
  const { code } = cause as NodeJS.ErrnoException;
  // Something that the target chose cannot be a header, so the request was not sent; or its answer has more than 16 KiB of headers. Others can
  // still reach the target.
  if (code === 'UND_ERR_INVALID_ARG' || code === 'UND_ERR_HEADERS_OVERFLOW') return 'malformed';
  return code !== undefined && BROKEN_OFF.test(code) ? 'broken_off' : 'unreachable';
}

/** Whether the request opens a session or asks which revisions the target speaks. */
function opens({ method, session, stateless }: UpstreamRequest): boolean {
  return method === 'POST' && session === undefined && (stateless === undefined || stateless.method === 'server/discover');
}
