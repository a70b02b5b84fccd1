/**
 * Targets of the transport before Streamable HTTP (2024-11-05, HTTP with SSE). A GET opens the connection that carries all
 * messages of the target. Its first event names the address for posting messages. Each session has one such connection.
 */
import { type Dispatcher, errors } from 'undici';
import { createStock, isOverdrawn } from '../../../base/budgets.ts';
import { createCancellation, onAbort, signalOf } from '../../../base/cancellation.ts';
import { type AddressRule, createAddressRule } from '../../../base/network/network-address.ts';
import { CODES, errorMessage, resultMessage } from '../../../protocol/message.ts';
import { type SseEvent, SseFault } from '../../../protocol/sse.ts';
import type { Credentials } from '../../../targets/target.ts';
import { jsonAnswer, statusAnswer, streamAnswer } from '../answers.ts';
import { createAgents, sourceAt } from '../connect.ts';
import { type DemultiplexedStream, type Envelope, readLargeEnvelope, type Unasked } from '../demultiplexer.ts';
import { bindingKey } from '../health.ts';
import { eventsOf, faultOf } from '../http.ts';
import { chargedTo, chargeEvents, turnOf } from '../reading-turns.ts';
import { createUnread, type Unread } from '../unread.ts';
import {
  ifStillAllowed,
  isFault,
  openingOf,
  silenceOf,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamLimits,
  type UpstreamRequest,
} from '../upstream.ts';
import { createSseSessions, type SseSession } from './sse-sessions.ts';

const UNREADABLE: Partial<Envelope> = {};
/** How many answers of the gateway itself may be on their way: of one session, to one target, and to all. */
const REPLIES = { ofSession: 64, perKey: 256, all: 1_024 };
/** How long the gateway reads the rest of an answer to a POST, and waits for one that no client waits for. */
const LEFT_MS = 2_000;

interface Sent {
  readonly request: UpstreamRequest;
  readonly url: URL;
  readonly credentials: Credentials;
}

export function createSseUpstream(
  limits: UpstreamLimits,
  newId: () => string,
  addresses: AddressRule = createAddressRule([]),
  unread: Unread = createUnread(),
): Upstream {
  const agents = createAgents(limits.connectMs, addresses);
  const sessions = createSseSessions(limits, newId, unread);
  const replies = createStock('replies on their way to targets', REPLIES);

  async function open(sent: Sent): Promise<SseSession | UpstreamAnswer | UpstreamFault> {
    const { access, signal, target } = sent.request;
    const release = sessions.reserve(sent.request);
    if (release === null) return { fault: 'busy' };
    const connection = new AbortController();
    const late = setTimeout(
      () => connection.abort(new errors.HeadersTimeoutError('no endpoint event in time')),
      openingOf(target, limits),
    );
    const leave = (): void => connection.abort(new errors.RequestAbortedError());
    onAbort(signal, leave);
    try {
      const answer = await agents.request(target.id, access.user, {
        origin: sent.url.origin,
        path: sent.url.pathname + sent.url.search,
        method: 'GET',
        headers: headersFor(sent, { accept: 'text/event-stream' }),
        signal: connection.signal,
        headersTimeout: openingOf(target, limits),
        bodyTimeout: 0,
      });
      if (answer.statusCode !== 200) return refusalOf(answer);
      return await new Promise((resolve, reject) => void read(sent, answer.body, connection, resolve, reject));
    } catch (cause) {
      connection.abort();
      return { fault: faultOf(cause), cause };
    } finally {
      release();
      clearTimeout(late);
      signal?.removeEventListener('abort', leave);
    }
  }

  /** Reads a connection to its end. Events before the endpoint event are ignored. */
  async function read(
    sent: Sent,
    body: Dispatcher.ResponseData['body'],
    connection: AbortController,
    opened: (session: SseSession) => void,
    failed: (cause: unknown) => void,
  ): Promise<void> {
    let session: SseSession | null = null;
    try {
      for await (const events of eventsOf(
        body,
        sourceAt(sent.request),
        limits.answerBytes,
        unread.open(sent.request.target.id, sent.request.access.user),
      )) {
        for (const event of events) {
          if (session !== null && event.data !== '') {
            await take(session, sent, event);
            event.data = '';
          } else if (event.event === 'endpoint') {
            session = sessions.keep(sent.request, endpointOf(event, sent.url), connection);
            opened(session);
          }
        }
      }
      throw new Error('the connection has ended');
    } catch (cause) {
      session?.end(cause instanceof Error ? cause : new Error(String(cause)));
      failed(connection.signal.reason ?? cause);
    }
  }

  /** Delivers an event, then waits until the streams have room: a client that reads slowly slows its target down. */
  async function take(session: SseSession, sent: Sent, event: SseEvent): Promise<void> {
    const { mailbox } = session;
    const source = sourceAt(sent.request);
    await turnOf(source);
    chargeEvents(source, 1, event.data.length);
    if (event.event !== undefined) return;
    const envelope = await chargedTo(source, event.data.length, () => readLargeEnvelope(event.data, source));
    if (envelope === null) throw new SseFault('a large message of the target cannot be read');
    const unasked = mailbox.push(event.data, envelope);
    if (unasked !== null) void reply(session, sent, unasked);
    await mailbox.room();
  }

  /**
   * Sends an answer of the gateway itself. The session lives on, also when the token that opened it has ended. A target that does not take
   * the answers gets no more of them.
   */
  async function reply(session: SseSession, { request, ...rest }: Sent, unasked: Unasked): Promise<void> {
    const { target, access, version } = request;
    if (session.replies === REPLIES.ofSession) return;
    const taken = replies.take(target.id, 1);
    if (isOverdrawn(taken)) return;
    session.replies++;
    const own: UpstreamRequest = { method: 'POST', target, access, version, body: replyTo(unasked), signal: session.ended };
    try {
      await emptied((await postNow({ ...rest, request: own }, session.endpoint)).body);
    } catch {
      // The target waits for it in vain, as if the message were lost.
    }
    session.replies--;
    taken.giveBack();
  }

  /** Posts a message. Only the status of the answer matters: the response itself arrives on the SSE connection. */
  const post = (sent: Sent, endpoint: URL): Promise<UpstreamAnswer | UpstreamFault> =>
    ifStillAllowed(sent.request, async () => {
      try {
        return refusalOf(await postNow(sent, endpoint));
      } catch (cause) {
        return { fault: faultOf(cause), cause };
      }
    });

  function postNow(sent: Sent, endpoint: URL): Promise<Dispatcher.ResponseData> {
    const { target, access, body, signal } = sent.request;
    return agents.request(target.id, access.user, {
      origin: endpoint.origin,
      path: endpoint.pathname + endpoint.search,
      method: 'POST',
      headers: headersFor(sent, { 'content-type': 'application/json' }),
      body: body ?? null,
      signal: signal === undefined ? null : signalOf(signal),
      headersTimeout: silenceOf(target, limits),
      bodyTimeout: silenceOf(target, limits),
    });
  }

  async function ask(session: SseSession, sent: Sent, isFirst: boolean): Promise<UpstreamAnswer | UpstreamFault> {
    const { body = '', signal } = sent.request;
    const { id, progressToken } = (await readLargeEnvelope(body, sourceAt(sent.request))) ?? UNREADABLE;
    if (id === undefined) return statusAnswer(400);
    const stream = session.mailbox.request({ id, progressToken, takesOthers: !isFirst });
    if (stream === null) {
      const message = 'Invalid Request: another request with this id is under way';
      return jsonAnswer(400, errorMessage(id, { code: CODES.invalidRequest, message }));
    }
    const over = createCancellation();
    onAbort(signal, () => over.abort(signal?.reason));
    const posting = post({ ...sent, request: { ...sent.request, signal: over } }, session.endpoint);
    // Some targets answer the POST only after they have sent the response as an event, so the first event ends the wait for the
    // POST. But `arrived` also resolves if the session ends. Then the answer to the POST decides: the target may have refused it.
    const arrived = stream.arrived.then(() => (sessions.find(session.id) !== undefined ? undefined : posting));
    const posted = await Promise.race([posting, arrived]);
    if (posted !== undefined && (isFault(posted) || posted.status < 200 || posted.status > 299)) {
      stream.close();
      return posted;
    }
    onAbort(signal, () => stream.abort(new errors.RequestAbortedError()));
    const leave = (): void => {
      stream.close();
      setTimeout(() => over.abort(), LEFT_MS).unref();
    };
    if (!isFirst) return streamAnswer(stream.events, leave);
    return streamAnswer(firstEvents(session, stream), leave, session.id);
  }

  async function start(sent: Sent): Promise<UpstreamAnswer | UpstreamFault> {
    const session = await open(sent);
    if (isFault(session) || 'status' in session) return session;
    const answer = await ask(session, sent, true);
    if (isFault(answer) || answer.status !== 200) session.end(new Error('the session could not be opened'));
    return answer;
  }

  async function proceed(session: SseSession, sent: Sent): Promise<UpstreamAnswer | UpstreamFault> {
    const { method, body = '', signal } = sent.request;
    session.touch();
    switch (method) {
      case 'GET': {
        const stream = session.mailbox.stand();
        if (stream === null) return statusAnswer(409);
        onAbort(signal, () => stream.abort(new errors.RequestAbortedError()));
        return streamAnswer(stream.events, stream.close);
      }
      case 'DELETE':
        session.end(new errors.RequestAbortedError('the session was ended'));
        return statusAnswer(200);
      case 'POST': {
        const message = (await readLargeEnvelope(body, sourceAt(sent.request))) ?? UNREADABLE;
        const isRequest = message.id !== undefined && message.method !== undefined;
        const answer = isRequest ? await ask(session, sent, false) : await post(sent, session.endpoint);
        if (!isFault(answer) && answer.status === 404) session.end(new Error('the target does not know the session'));
        return answer;
      }
    }
  }

  return {
    async send(request) {
      const { target, access, session: named } = request;
      const { credentials } = access;
      if (credentials === 'unusable') return { fault: 'credential' };
      if (target.transport !== 'sse') return { fault: 'transport' };
      // Revision 2026-07-28 does not have this transport.
      if (request.stateless) return statusAnswer(400);
      const sent: Sent = { request, url: new URL(target.url), credentials };
      if (named === undefined) {
        const opening = request.method === 'POST' ? await readLargeEnvelope(request.body ?? '', sourceAt(request)) : null;
        const isOpening = opening?.method === 'initialize';
        return isOpening ? ifStillAllowed(request, () => start(sent)) : statusAnswer(400);
      }
      const session = sessions.find(named.upstreamId ?? '');
      return session?.bindingKey === bindingKey(request) ? proceed(session, sent) : statusAnswer(404);
    },
    async close() {
      sessions.endAll(new errors.RequestAbortedError('the gateway is closing'));
      await agents.destroy();
    },
  };
}

/** Passes on the answer to `initialize`, and ends the session if the answer holds no result. */
async function* firstEvents(session: SseSession, stream: DemultiplexedStream): AsyncGenerator<readonly SseEvent[]> {
  let isOpen = false;
  try {
    for await (const events of stream.events) {
      for (const event of events) isOpen ||= (await readLargeEnvelope(event.data, session.targetId))?.hasResult === true;
      yield events;
    }
  } finally {
    if (!isOpen) session.end(new Error('the session was not opened'));
  }
}

/** The longest address for messages. Each session keeps its own. */
const MAX_ENDPOINT = 2_048;

/**
 * Returns the address for messages. It must have the origin of the connection, so that messages cannot be redirected elsewhere.
 */
function endpointOf({ data }: SseEvent, url: URL): URL {
  const endpoint = data.length <= MAX_ENDPOINT && URL.canParse(data, url.href) ? new URL(data, url) : null;
  if (endpoint === null || endpoint.origin !== url.origin || endpoint.username !== '' || endpoint.password !== '') {
    throw new Error(`the endpoint event must name an address of the same origin, of at most ${MAX_ENDPOINT} characters`);
  }
  return endpoint;
}

/** The complete allow-list of headers, as for Streamable HTTP. The credential is set last. */
function headersFor({ request, credentials }: Sent, own: Record<string, string>): Record<string, string> {
  const headers: Record<string, string> = { 'user-agent': 'portcullis', ...own };
  if (request.version !== undefined) headers['mcp-protocol-version'] = request.version;
  for (const [name, value] of credentials.headers) headers[name] = value;
  return headers;
}

/** Reads and discards the body, so that the connection can be reused. More than this is not worth reading, and not worth the wait. */
function emptied(body: Dispatcher.ResponseData['body']): Promise<unknown> {
  body.on('error', () => undefined);
  return body.dump({ limit: 64 * 1024, signal: AbortSignal.timeout(LEFT_MS) });
}

function refusalOf({ statusCode, headers, body }: Dispatcher.ResponseData): UpstreamAnswer {
  void emptied(body).catch(() => undefined);
  const retryAfter = headers['retry-after'];
  const challenge = headers['www-authenticate'];
  return {
    ...statusAnswer(statusCode, typeof retryAfter === 'string' ? retryAfter : null),
    challenge: typeof challenge === 'string' ? challenge : null,
  };
}

/** Answers a request of the target that no client can see. Without an answer the target would wait for ever. */
function replyTo({ id, method }: Unasked): string {
  if (method === 'ping') return resultMessage(id, '{}');
  return errorMessage(id, { code: CODES.internal, message: 'No client is connected that could answer' });
}
