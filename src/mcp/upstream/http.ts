/** Targets that speak Streamable HTTP: the gateway's own headers and credential, nothing of the caller's but the rebuilt message. */
import type { IncomingHttpHeaders } from 'node:http';
import { type Dispatcher, errors } from 'undici';
import { type AddressRule, createAddressRule } from '../../targets/address.ts';
import type { Credentials, HttpTarget, RoutedTarget } from '../../targets/target.ts';
import type { Cancellable } from '../cancellation.ts';
import { createSseReader, type SseEvent, SseFault, type SseReader, TooLarge } from '../sse.ts';
import { createAgent, DeniedAddress } from './connect.ts';
import { createEventQueue, type EventQueue } from './events.ts';
import { ProcessFault } from './process.ts';
import { BacklogFault, createUnread, type Unread, type UnreadAccount } from './unread.ts';
import {
  isFault,
  openingOf,
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
  const agent = createAgent(limits.connectMs, denied);
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
    send(request) {
      const { target, access } = request;
      if (access.credentials === 'unusable') return Promise.resolve({ fault: 'credential' });
      if (target.transport !== 'streamable-http') return Promise.resolve({ fault: 'transport' });
      const exchange = new Exchange(request.signal, limits.answerBytes, unread.open(target.id));
      try {
        const { origin, path } = addressOf(target);
        // Redirects are not followed: undici follows none unless told to.
        agent.dispatch(
          {
            origin,
            path,
            method: request.method,
            headers: headersFor(request, access.credentials),
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
    },
    close: () => agent.destroy(),
  };
}

const CHUNKS_AT_ONCE = 1024;

/** Characters of events that wait for their reader, from which on the target has to wait. */
const PAUSE_LENGTH = 64 * 1024;

/**
 * One request and its answer. A body is collected as it comes, in bounded memory; events come at the pace of whoever reads them.
 * A promise, streams and listeners for each body, as undici's own `request` has them, cost more than the rest of the exchange.
 */
class Exchange implements Dispatcher.DispatchHandler {
  readonly answer: Promise<UpstreamAnswer | UpstreamFault>;
  private settle: (answer: UpstreamAnswer | UpstreamFault) => void = () => undefined;
  private readonly signal: Cancellable | undefined;
  private readonly maxBytes: number;
  private controller: Dispatcher.DispatchController | null = null;
  private stream: { readonly reader: SseReader; readonly queue: EventQueue } | null = null;
  private paused = false;
  /** What came was no event stream: nothing more is taken of it, and what was there before is still read. */
  private over = false;
  private readonly unread: UnreadAccount;
  private chunks: Buffer[] = [];
  /** How many of the chunks, the first ones, are many that were joined. */
  private joined = 0;
  private size = 0;
  /** Bytes that the body will have, if its head says so. */
  private announced = 0;
  /** What has become of the body; null: it is still coming. */
  private outcome: Buffer | UpstreamFault | null = null;
  private told: ((outcome: Buffer | UpstreamFault) => void) | null = null;

  constructor(signal: Cancellable | undefined, maxBytes: number, unread: UnreadAccount) {
    this.signal = signal;
    this.maxBytes = maxBytes;
    this.unread = unread;
    this.answer = new Promise((resolve) => {
      this.settle = resolve;
    });
    if (signal?.aborted) this.abort();
    else signal?.addEventListener('abort', this.abort, { once: true });
  }

  private readonly abort = (): void => this.fail({ fault: 'aborted' });

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
    const { abort: discard, read } = this;
    // Named one by one, as in all that every call makes: a copy with members added is slow to make, and to read.
    if (type !== 'text/event-stream') {
      this.settle({
        status,
        sessionId,
        held: false,
        retryAfter,
        location,
        discard,
        type: type === 'application/json' ? 'json' : 'other',
        read,
      });
      this.reserve(headers);
      return;
    }
    const reader = createSseReader(this.maxBytes);
    // Whoever reads learns of its end; that nobody does is no error.
    const queue = createEventQueue({ moved: () => this.count(), closed: this.abort });
    this.stream = { reader, queue };
    this.settle({ status, sessionId, held: false, retryAfter, discard, type: 'stream', events: queue.events });
  }

  /** A body says how long it is: one for which there is no room is not read up to where the room ends. */
  private reserve(headers: IncomingHttpHeaders): void {
    this.announced = Number(one(headers['content-length']) ?? 0) || 0;
    if (this.announced > this.maxBytes) this.fail({ fault: 'too_large' });
    else this.hold(this.announced);
  }

  /** False: there is no room for so many bytes of the body, and the exchange has failed. */
  private hold(bytes: number): boolean {
    const fault = this.unread.set(bytes);
    if (fault !== null) this.fail({ fault: 'busy', cause: fault });
    return fault === null;
  }

  /** What waits of the stream, for its reader or for the end of an event. */
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
    this.size += chunk.length;
    if (this.size > this.maxBytes) {
      this.fail({ fault: 'too_large' });
      return;
    }
    if (this.size > this.announced && !this.hold(this.size)) return;
    this.chunks.push(chunk);
    // A Buffer takes a hundred bytes beside its own: a body of single ones would fill the memory.
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
    for (const { data, ...rest } of events) queue.push(data, rest);
    this.count();
  }

  onResponseEnd(): void {
    if (this.stream !== null) {
      // What has come may still wait for its reader: until then it can be aborted.
      this.stream.queue.end();
      return;
    }
    const [first] = this.chunks;
    this.end(this.chunks.length === 1 && first !== undefined ? first : Buffer.concat(this.chunks, this.size));
  }

  onResponseError(_controller: Dispatcher.DispatchController | null, cause: unknown): void {
    if (!this.over) this.fail({ fault: faultOf(cause), cause });
  }

  private readonly read = (): Promise<Buffer | UpstreamFault> =>
    this.outcome === null ? new Promise((resolve) => (this.told = resolve)) : Promise.resolve(this.outcome);

  /** Nothing more comes of the exchange; what has ended already stays as it is. */
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
    this.chunks = [];
    this.unread.close();
    this.signal?.removeEventListener('abort', this.abort);
    this.told?.(this.outcome);
  }
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

export async function* eventsOf(
  body: AsyncIterable<Uint8Array>,
  maxEventLength: number,
  unread: UnreadAccount,
): AsyncGenerator<readonly SseEvent[]> {
  const reader = createSseReader(maxEventLength);
  try {
    for await (const chunk of body) {
      const events = reader.push(chunk);
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

/** Of a stream, nothing: what is answered as events is no body. */
export async function readAll(answer: UpstreamAnswer, maxBytes: number): Promise<Buffer | UpstreamFault> {
  if (answer.type === 'stream') return Buffer.alloc(0);
  const body = await answer.read();
  return !isFault(body) && body.length > maxBytes ? { fault: 'too_large' } : body;
}

/** The connection was there, and ended before the answer did. */
const BROKEN_OFF = /^(UND_ERR_SOCKET|UND_ERR_(RES|REQ)_.*|ECONNRESET|EPIPE|HPE_.*|ERR_STREAM_.*)$/;

export function faultOf(cause: unknown): UpstreamFault['fault'] {
  if (cause instanceof ProcessFault) return cause.fault;
  if (cause instanceof TooLarge) return 'too_large';
  if (cause instanceof SseFault) return 'malformed';
  if (cause instanceof DeniedAddress) return 'denied_address';
  if (cause instanceof errors.HeadersTimeoutError || cause instanceof errors.BodyTimeoutError) return 'timeout';
  if (cause instanceof BacklogFault) return 'busy';
  if (!(cause instanceof Error)) return 'unreachable';
  if (cause.name === 'AbortError' || cause instanceof errors.RequestAbortedError) return 'aborted';
  const { code } = cause as NodeJS.ErrnoException;
  return code !== undefined && BROKEN_OFF.test(code) ? 'broken_off' : 'unreachable';
}

/** Whether it opens a session, or asks what the target speaks. */
function opens({ method, session, modern }: UpstreamRequest): boolean {
  return method === 'POST' && session === undefined && (modern === undefined || modern.method === 'server/discover');
}
