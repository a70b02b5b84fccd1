/**
 * Clients with sessions in front of targets that speak only 2026-07-28, which has none. The session is the bridge's own, in
 * this process; each of its requests becomes one of 2026-07-28. To all other targets everything passes unchanged.
 */
import { errors } from 'undici';
import { isObject, type JsonObject, type JsonValue, readJson } from '../../http/json.ts';
import { addressOf } from '../../targets/target.ts';
import { signalOf } from '../cancellation.ts';
import { LOG_LEVELS, MODERN_REVISION, nameHeader, SESSION_REVISIONS } from '../era.ts';
import { CODES, errorMessage, isId, type RpcId, type RpcRequest, resultMessage } from '../message.ts';
import type { SseEvent } from '../sse.ts';
import { jsonAnswer, statusAnswer, streamAnswer } from './answers.ts';
import { createListener, type Listener } from './bridge-listen.ts';
import {
  type Answered,
  type Asked,
  askedRequest,
  type ClientTraits,
  envelope,
  inputResponse,
  internalError,
  listedTools,
  modernRequest,
  type Outcome,
  openingResult,
  outcomeOf,
  type Read,
  type Replied,
  read,
  type Sourced,
} from './bridge-messages.ts';
import { discoversModern, type UpstreamEras } from './eras.ts';
import { faultOf, readAll } from './http.ts';
import { createMailbox, type Mailbox } from './mailbox.ts';
import { type ParamHeader, paramHeaders } from './param-headers.ts';
import {
  isFault,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamLimits,
  type UpstreamRequest,
} from './upstream.ts';

export interface BridgeDeps {
  readonly http: Upstream;
  readonly eras: UpstreamEras;
  readonly limits: UpstreamLimits;
  readonly newId: () => string;
  readonly now: () => number;
}

/** Of a session that is not known any more, too: it must not be taken for one of the target. */
const PREFIX = 'portcullis-bridge.';
const MAX_SESSIONS = 10_000;
/** Of one target, so that its users cannot end the sessions of all others. */
const MAX_OF_TARGET = MAX_SESSIONS / 4;
const SESSION_MS = 24 * 60 * 60 * 1000;
/** For how long a target is not tried with a session again. */
const REFUSING_MS = 10 * 60 * 1000;
const REFUSAL_BYTES = 64 * 1024;
const MAX_SUBSCRIPTIONS = 1_000;
const MAX_TOOL_PAGES = 50;
/** Of one answer, and of those that a session remembers. */
const MAX_TOOLS = 10_000;
const MAX_ROUNDS = 10;
const ASK_MS = 10 * 60 * 1000;
/** Before a request is repeated that needed nothing from the client. */
const PAUSE_MS = 250;

interface BridgedSession {
  readonly id: string;
  readonly targetId: string;
  /** Where it was opened, and under which binding. */
  readonly address: string;
  readonly binding: string;
  readonly client: ClientTraits;
  readonly maySubscribe: boolean;
  /** Requests of the client under way, to cancel them. */
  readonly running: Map<RpcId, AbortController>;
  /** What the client is asked, until it replies. */
  readonly asked: Map<string, (reply: Replied) => void>;
  readonly mailbox: Mailbox;
  readonly listener: Listener;
  readonly subscriptions: Set<string>;
  /** Changes of them, one after the other. */
  changing: Promise<unknown>;
  /** Which arguments go into headers, of the tools that want any there. */
  readonly tools: Map<string, readonly ParamHeader[]>;
  /** Every page has been seen: what is not among `tools` wants no headers. */
  hasAllTools: boolean;
  /** Where the pages go on that have been seen from the first on. */
  nextTools: string | undefined;
  logLevel: string | null;
  usedAt: number;
  unused: NodeJS.Timeout | undefined;
}

/** A request of the client, on its way. */
interface Call extends Sourced {
  readonly session: BridgedSession;
  readonly request: UpstreamRequest;
  readonly signal: AbortSignal;
}

/** What one exchange with the target led to. */
type Step =
  | Outcome
  | UpstreamFault
  | { readonly kind: 'events'; readonly id: string; readonly answer: UpstreamAnswer & { readonly type: 'stream' } }
  | { readonly kind: 'status'; readonly answer: UpstreamAnswer };

export function createBridge(deps: BridgeDeps): Upstream {
  const { http, eras, limits, newId, now } = deps;
  /** The longest unused first. */
  const sessions = new Map<string, BridgedSession>();
  /** Addresses whose targets refuse sessions and speak 2026-07-28, and until when that is believed. */
  const refusing = new Map<string, number>();

  async function open(request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault> {
    const opening = read(request.body ?? '');
    if (opening?.message.kind !== 'request') return http.send(request);
    const address = addressOf(request.target);
    let refusal: UpstreamAnswer | null = null;
    if ((refusing.get(address) ?? 0) <= now()) {
      const answer = await http.send(request);
      if (isFault(answer) || ![400, 404, 405].includes(answer.status)) return answer;
      const kept = await keepBody(answer);
      if (isFault(kept)) return kept;
      if (kept.sessionsAreServed) return kept.answer;
      refusal = kept.answer;
    }
    const client = { info: opening.message.params?.clientInfo, capabilities: objectOf(opening.message.params?.capabilities) };
    const discovered = await discover(request, client);
    if (discovered === null || isFault(discovered)) {
      refusing.delete(address);
      return refusal ?? (discovered === null ? http.send(request) : discovered);
    }
    eras.learn(request, true, discovered.result);
    refusing.set(address, now() + REFUSING_MS);
    const result = openingResult(opening.message.params, discovered.result, request.target.name);
    const session = keep(request, client, objectOf(result['capabilities']));
    const text = resultMessage(opening.message.id, JSON.stringify(result));
    return jsonAnswer(200, text, { sessionId: session.id, held: true });
  }

  async function discover(
    { target, access, signal }: UpstreamRequest,
    client: ClientTraits,
  ): Promise<{ readonly result: JsonObject } | UpstreamFault | null> {
    const id = newId();
    const method = 'server/discover';
    const body = JSON.stringify({ jsonrpc: '2.0', id, method, params: { _meta: envelope(client, null) } });
    const modern = { version: MODERN_REVISION, method, name: undefined, params: [] };
    const answer = await http.send({ method: 'POST', target, access, body, modern, ...(signal ? { signal } : {}) });
    if (isFault(answer)) return answer;
    const result = answer.status === 200 ? await resultFrom(answer, id) : null;
    answer.discard();
    return result !== null && discoversModern(result) ? { result } : null;
  }

  function keep({ target, access }: UpstreamRequest, client: ClientTraits, capabilities: JsonObject): BridgedSession {
    for (const oldest of sessions.values()) {
      if (now() - oldest.usedAt <= SESSION_MS) break;
      end(oldest);
    }
    const own = [...sessions.values()].filter(({ targetId }) => targetId === target.id);
    const [oldest] = [...own, ...sessions.values()];
    if (oldest !== undefined && (own.length >= MAX_OF_TARGET || sessions.size >= MAX_SESSIONS)) end(oldest);
    const { tools, prompts, resources } = capabilities;
    const maySubscribe = isObject(resources) && resources['subscribe'] === true;
    const lists = Object.entries({ toolsListChanged: tools, promptsListChanged: prompts, resourcesListChanged: resources })
      .filter(([, capability]) => isObject(capability) && capability['listChanged'] === true)
      .map(([list]) => list);
    const mailbox = createMailbox(limits.idleMs, () => touch(session));
    const session: BridgedSession = {
      id: PREFIX + newId(),
      targetId: target.id,
      address: addressOf(target),
      binding: access.binding,
      client,
      maySubscribe,
      running: new Map(),
      asked: new Map(),
      mailbox,
      listener: createListener({
        http,
        newId,
        now,
        lists,
        envelope: () => envelope(client, null),
        deliver: (method, text) => {
          if (method === 'notifications/tools/list_changed') forgetTools(session);
          mailbox.push(text);
          return mailbox.room();
        },
      }),
      subscriptions: new Set(),
      changing: Promise.resolve(),
      tools: new Map(),
      hasAllTools: false,
      nextTools: undefined,
      logLevel: null,
      usedAt: now(),
      unused: undefined,
    };
    sessions.set(session.id, session);
    return session;
  }

  /** A client that has gone without a word leaves no stream open at the target. */
  function touch(session: BridgedSession): void {
    if (!sessions.delete(session.id)) return;
    sessions.set(session.id, session);
    session.usedAt = now();
    clearTimeout(session.unused);
    session.unused = setTimeout(() => {
      if (session.mailbox.isQuiet() && session.running.size === 0) session.listener.stop();
    }, limits.idleMs).unref();
  }

  function end(session: BridgedSession): void {
    sessions.delete(session.id);
    clearTimeout(session.unused);
    session.listener.stop();
    for (const running of session.running.values()) running.abort();
    session.mailbox.fail(new errors.RequestAbortedError('the session has ended'));
  }

  async function proceed(session: BridgedSession, request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault> {
    touch(session);
    switch (request.method) {
      case 'DELETE':
        end(session);
        return statusAnswer(200);
      case 'GET':
        return stand(session, request);
      case 'POST':
        return receive(session, request);
    }
  }

  function stand(session: BridgedSession, request: UpstreamRequest): UpstreamAnswer {
    const stream = session.mailbox.stand();
    if (stream === null) return statusAnswer(409);
    const { signal } = request;
    const abort = (): void => stream.abort(new errors.RequestAbortedError());
    if (signal?.aborted) abort();
    signal?.addEventListener('abort', abort, { once: true });
    void changeOf(session, () => session.listener.hear(request, session.subscriptions));
    return streamAnswer(stream.events, stream.close);
  }

  function changeOf<T>(session: BridgedSession, change: () => Promise<T>): Promise<T> {
    const changed = session.changing.then(change);
    session.changing = changed.catch(() => undefined);
    return changed;
  }

  async function receive(session: BridgedSession, request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault> {
    const received = read(request.body ?? '');
    if (received === null) return statusAnswer(400);
    const { message, reading } = received;
    if (message.kind === 'response') {
      const asked = typeof message.id === 'string' ? message.id : '';
      const reply = session.asked.get(asked);
      session.asked.delete(asked);
      reply?.({ outcome: message.outcome, located: reading });
      return statusAnswer(reply === undefined ? 400 : 202);
    }
    if (message.kind === 'notification') {
      const cancelled = message.method === 'notifications/cancelled' ? message.params?.requestId : undefined;
      if (isId(cancelled)) session.running.get(cancelled)?.abort();
      // The others tell of what a target of 2026-07-28 does not keep.
      return statusAnswer(202);
    }
    if (!session.listener.isOpen() && session.subscriptions.size > 0) {
      void changeOf(session, () => session.listener.hear(request, session.subscriptions));
    }
    const { id, params } = message;
    switch (message.method) {
      case 'ping':
        return done(id);
      case 'initialize':
        return failed(id, CODES.invalidRequest, 'Invalid Request: the session is open already');
      case 'logging/setLevel':
        if (typeof params?.level !== 'string' || !LOG_LEVELS.includes(params.level)) {
          return failed(id, CODES.invalidParams, 'Invalid params: params.level');
        }
        session.logLevel = params.level;
        return done(id);
      case 'resources/subscribe':
      case 'resources/unsubscribe': {
        const { uri } = params ?? {};
        if (typeof uri !== 'string') return failed(id, CODES.invalidParams, 'Invalid params: params.uri');
        const isOn = message.method === 'resources/subscribe';
        return changeOf(session, () => (isOn ? subscribe(session, request, id, uri) : unsubscribe(session, request, id, uri)));
      }
      default:
        return forward(session, request, { message, reading });
    }
  }

  async function subscribe(session: BridgedSession, request: UpstreamRequest, id: RpcId, uri: string): Promise<UpstreamAnswer> {
    const { subscriptions, listener } = session;
    if (!session.maySubscribe) return failed(id, CODES.methodNotFound, 'Method not found');
    if (subscriptions.size >= MAX_SUBSCRIPTIONS) return failed(id, CODES.invalidParams, 'Too many subscriptions');
    const agreed = await listener.hear(request, new Set([...subscriptions, uri]));
    if (agreed === null) return failed(id, CODES.internal, 'The target takes no subscriptions now');
    if (!agreed.has(uri)) return failed(id, CODES.invalidParams, 'The target does not tell of changes of this resource');
    subscriptions.add(uri);
    return done(id);
  }

  async function unsubscribe(session: BridgedSession, request: UpstreamRequest, id: RpcId, uri: string): Promise<UpstreamAnswer> {
    const { subscriptions, listener, mailbox } = session;
    if (!subscriptions.delete(uri)) return done(id);
    if (subscriptions.size === 0 && mailbox.isQuiet()) listener.stop();
    else await listener.hear(request, subscriptions);
    return done(id);
  }

  async function forward(
    session: BridgedSession,
    request: UpstreamRequest,
    source: Sourced,
  ): Promise<UpstreamAnswer | UpstreamFault> {
    const { id } = source.message;
    const { running } = session;
    if (running.has(id)) return failed(id, CODES.invalidRequest, 'Invalid Request: another request with this id is under way');
    const cancelled = new AbortController();
    running.set(id, cancelled);
    const leave = (): void => void (running.get(id) === cancelled && running.delete(id));
    const signal =
      request.signal === undefined ? cancelled.signal : AbortSignal.any([signalOf(request.signal), cancelled.signal]);
    const call: Call = { ...source, session, request, signal };
    const step = await exchange(call, null);
    if (!isFault(step) && (step.kind === 'events' || step.kind === 'input')) {
      return streamAnswer(follow(call, step, leave), () => {
        cancelled.abort();
        leave();
      });
    }
    leave();
    if (isFault(step)) return step;
    if (step.kind === 'status') return step.answer;
    if (step.kind !== 'lost') return jsonAnswer(200, step.text);
    forgetEra(session, request);
    return statusAnswer(404);
  }

  /** The target has changed: the next client of a session finds out to what. */
  function forgetEra(session: BridgedSession, request: UpstreamRequest): void {
    eras.forget(request);
    refusing.delete(session.address);
    end(session);
  }

  /** One request to the target, repeated if only its headers were wrong. */
  async function exchange(call: Call, answered: Answered | null): Promise<Step> {
    const step = await exchangeOnce(call, answered);
    if (isFault(step) || step.kind !== 'mismatch' || call.message.method !== 'tools/call') return step;
    forgetTools(call.session);
    return exchangeOnce(call, answered);
  }

  async function exchangeOnce(call: Call, answered: Answered | null): Promise<Step> {
    const { message, session } = call;
    const { method, params } = message;
    const headers = method === 'tools/call' ? paramHeaders(await headersOf(call, params?.name), params?.arguments) : [];
    const id = newId();
    const body = modernRequest(id, call, envelope(session.client, session.logLevel), answered);
    const answer = await send(call, message, body, headers);
    if (isFault(answer)) return answer;
    if (answer.status === 200 && answer.type === 'stream') return { kind: 'events', id, answer };
    const found = await responseFrom(answer, id);
    if (found !== null && isFault(found)) return found;
    answer.discard();
    if (found !== null) return outcome(call, found);
    if (answer.status === 200) return { kind: 'answer', text: internalError(message.id, 'The target sent no valid answer') };
    return { kind: 'status', answer: statusAnswer(answer.status, answer.retryAfter) };
  }

  function send(
    { request: { target, access }, signal }: Call,
    { method, params }: Pick<RpcRequest, 'method' | 'params'>,
    body: string,
    headers: readonly (readonly [string, string])[],
  ): Promise<UpstreamAnswer | UpstreamFault> {
    const modern = { version: MODERN_REVISION, method, name: nameHeader(method, params), params: headers };
    return http.send({ method: 'POST', target, access, body, modern, signal });
  }

  function outcome(call: Call, response: Read): Outcome {
    const { method, params } = call.message;
    if (method === 'tools/list') learnTools(call.session, params?.cursor, response);
    return outcomeOf(call, response, call.session.client);
  }

  /** From the answer to a request with this cursor. */
  function learnTools(session: BridgedSession, cursor: JsonValue | undefined, { reading }: Read): void {
    const result = isObject(reading.value) ? reading.value.result : undefined;
    if (!isObject(result)) return;
    if (Array.isArray(result['tools']) && result['tools'].length <= MAX_TOOLS) {
      for (const [name, headers] of listedTools(result)) {
        if (headers.length === 0) session.tools.delete(name);
        else if (session.tools.size < MAX_TOOLS || session.tools.has(name)) session.tools.set(name, headers);
      }
    }
    if (cursor !== undefined && cursor !== session.nextTools) return;
    session.nextTools = typeof result['nextCursor'] === 'string' ? result['nextCursor'] : undefined;
    session.hasAllTools ||= session.nextTools === undefined;
  }

  function forgetTools(session: BridgedSession): void {
    session.tools.clear();
    session.hasAllTools = false;
    session.nextTools = undefined;
  }

  /** Of a tool that was never listed, the target is asked: it refuses calls whose headers are not as it declares them. */
  async function headersOf(call: Call, name: JsonValue | undefined): Promise<readonly ParamHeader[]> {
    const { session } = call;
    if (typeof name !== 'string') return [];
    let cursor: string | undefined;
    for (let page = 0; page < MAX_TOOL_PAGES && !session.tools.has(name) && !session.hasAllTools; page++) {
      const id = newId();
      const params = { _meta: envelope(session.client, null), ...(cursor === undefined ? {} : { cursor }) };
      const body = JSON.stringify({ jsonrpc: '2.0', id, method: 'tools/list', params });
      const answer = await send(call, { method: 'tools/list', params: undefined }, body, []);
      const found = isFault(answer) ? null : await responseFrom(answer, id);
      if (!isFault(answer)) answer.discard();
      if (found === null || isFault(found)) break;
      learnTools(session, cursor, found);
      const result = isObject(found.reading.value) ? found.reading.value.result : undefined;
      cursor = isObject(result) && typeof result['nextCursor'] === 'string' ? result['nextCursor'] : undefined;
      // Of a target whose pages do not end, the others are not asked for again with each call.
      session.hasAllTools ||= page === MAX_TOOL_PAGES - 1;
    }
    return session.tools.get(name) ?? [];
  }

  /** The stream of one request of the client, over as many exchanges as the target needs. */
  async function* follow(call: Call, first: Step, leave: () => void): AsyncGenerator<readonly SseEvent[]> {
    const { id } = call.message;
    try {
      let step = first;
      for (let round = 1; ; round++) {
        if (!isFault(step) && step.kind === 'events') step = yield* pass(call, step.id, step.answer);
        if (isFault(step)) throw step.cause ?? new Error(`the target could not be used: ${step.fault}`);
        if (step.kind === 'answer' || step.kind === 'mismatch') return yield [eventOf(step.text)];
        if (step.kind === 'status') {
          return yield [eventOf(internalError(id, `The target failed (HTTP ${step.answer.status})`))];
        }
        if (step.kind === 'lost') {
          forgetEra(call.session, call.request);
          return yield [eventOf(internalError(id, 'The target has changed; open another session'))];
        }
        if (round > MAX_ROUNDS) return yield [eventOf(internalError(id, 'The target asks for more and more'))];
        const responses = yield* askAll(call, step.asked);
        if ('failure' in responses) return yield [eventOf(responses.failure)];
        step = await exchange(call, { responses: responses.text, state: step.state });
      }
    } finally {
      leave();
    }
  }

  /** What comes before the answer goes on, if it may come at all; the answer is the outcome. */
  async function* pass(
    call: Call,
    id: string,
    answer: UpstreamAnswer & { readonly type: 'stream' },
  ): AsyncGenerator<readonly SseEvent[], Outcome> {
    try {
      for await (const events of answer.events) {
        for (const { data } of events) {
          const answered = answering(id, data);
          if (answered !== null) return outcome(call, answered);
          const message = read(data)?.message;
          if (message?.kind === 'notification' && PASSED.includes(message.method)) yield [eventOf(data)];
        }
      }
    } finally {
      answer.discard();
    }
    throw new Error('the target ended its answer too early');
  }

  /** Asks the client on the stream of its own request, as targets of the session revisions do. */
  async function* askAll(
    { session, message, signal }: Call,
    asked: readonly Asked[],
  ): AsyncGenerator<readonly SseEvent[], { readonly text: string | null } | { readonly failure: string }> {
    if (asked.length === 0) {
      await settled(new Promise((resolve) => setTimeout(resolve, PAUSE_MS)), signal);
      return { text: null };
    }
    const open = new Map(asked.map((one) => [newId(), one]));
    const responses = new Map<string, string>();
    const replies: [string, Replied][] = [];
    let wake = (): void => undefined;
    for (const id of open.keys()) {
      session.asked.set(id, (reply) => {
        replies.push([id, reply]);
        wake();
      });
    }
    let isLate = false;
    const late = setTimeout(() => {
      isLate = true;
      wake();
    }, ASK_MS).unref();
    try {
      yield [...open].map(([id, one]) => eventOf(askedRequest(id, one)));
      while (open.size > 0) {
        const reply = replies.shift();
        if (reply === undefined && isLate) {
          yield withdrawn(open);
          return { failure: internalError(message.id, 'The client did not answer what the target asked in time') };
        }
        if (reply === undefined) {
          await settled(new Promise<void>((resolve) => (wake = resolve)), signal);
          continue;
        }
        const [id, replied] = reply;
        const one = open.get(id);
        open.delete(id);
        if (one === undefined) continue;
        const text = inputResponse(one.method, replied);
        if (text === null) {
          if (open.size > 0) yield withdrawn(open);
          return { failure: internalError(message.id, `The client refused ${one.method}, which the target asked for`) };
        }
        responses.set(one.key, text);
      }
    } finally {
      clearTimeout(late);
      for (const id of open.keys()) session.asked.delete(id);
    }
    const members = [...responses].map(([key, text]) => `${JSON.stringify(key)}:${text}`);
    return { text: `{${members.join()}}` };
  }

  /** The message that answers `id`; null: there is none. */
  async function responseFrom(answer: UpstreamAnswer, id: string): Promise<Read | UpstreamFault | null> {
    if (answer.type !== 'stream') {
      if (answer.type === 'other') return null;
      const bytes = await readAll(answer, limits.answerBytes);
      return isFault(bytes) ? bytes : answering(id, bytes.toString('utf8'));
    }
    try {
      for await (const events of answer.events) {
        for (const { data } of events) {
          const found = answering(id, data);
          if (found !== null) return found;
        }
      }
      return null;
    } catch (cause) {
      return { fault: faultOf(cause), cause };
    }
  }

  async function resultFrom(answer: UpstreamAnswer, id: string): Promise<JsonObject | null> {
    const found = await responseFrom(answer, id);
    if (found === null || isFault(found) || !isObject(found.reading.value)) return null;
    const { result } = found.reading.value;
    return isObject(result) ? result : null;
  }

  return {
    send(request) {
      const { method, target, access, session: named } = request;
      if (target.transport !== 'streamable-http' || request.modern !== undefined) return http.send(request);
      if (named === undefined) return method === 'POST' && opensSession(request) ? open(request) : http.send(request);
      if (named.upstreamId === null || !named.upstreamId.startsWith(PREFIX)) return http.send(request);
      const session = sessions.get(named.upstreamId);
      const isUsable =
        session !== undefined &&
        session.address === addressOf(target) &&
        session.binding === access.binding &&
        now() - session.usedAt <= SESSION_MS;
      return isUsable ? proceed(session, request) : Promise.resolve(statusAnswer(404));
    },
    async close() {
      for (const session of sessions.values()) end(session);
      await http.close();
    },
  };
}

const PASSED = ['notifications/progress', 'notifications/message'];

/** An error without an id can only mean the request whose answer this is part of. */
function answering(id: string, text: string): Read | null {
  const found = read(text);
  if (found?.message.kind !== 'response') return null;
  const { message } = found;
  return message.id === id || (message.id === null && message.outcome === 'error') ? found : null;
}

function opensSession({ body }: UpstreamRequest): boolean {
  const message = read(body ?? '')?.message;
  return message?.kind === 'request' && message.method === 'initialize';
}

/** An answer that is looked into and may yet be given on. */
async function keepBody(
  answer: UpstreamAnswer,
): Promise<{ readonly answer: UpstreamAnswer; readonly sessionsAreServed: boolean } | UpstreamFault> {
  if (answer.type !== 'json') return { answer, sessionsAreServed: false };
  const bytes = await readAll(answer, REFUSAL_BYTES);
  if (isFault(bytes)) return bytes;
  const reading = readJson(bytes, { exact: false });
  const error = reading.ok && isObject(reading.value) ? objectOf(reading.value.error) : {};
  const supported = error.code === CODES.unsupportedVersion ? objectOf(error.data)['supported'] : undefined;
  return {
    answer: { ...jsonAnswer(answer.status, bytes.toString('utf8')), retryAfter: answer.retryAfter },
    sessionsAreServed: Array.isArray(supported) && SESSION_REVISIONS.some((revision) => supported.includes(revision)),
  };
}

function objectOf(value: JsonValue | undefined): JsonObject {
  return isObject(value) ? value : {};
}

function done(id: RpcId): UpstreamAnswer {
  return jsonAnswer(200, resultMessage(id, '{}'));
}

function failed(id: RpcId, code: number, message: string): UpstreamAnswer {
  return jsonAnswer(200, errorMessage(id, { code, message }));
}

function eventOf(data: string): SseEvent {
  return { data, id: undefined, retry: undefined };
}

/** The client need not answer these any more. */
function withdrawn(open: ReadonlyMap<string, Asked>): SseEvent[] {
  return [...open.keys()].map((requestId) =>
    eventOf(JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } })),
  );
}

/** Rejects as soon as the signal aborts. */
function settled(promise: Promise<unknown>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(new errors.RequestAbortedError());
    if (signal.aborted) return abort();
    signal.addEventListener('abort', abort, { once: true });
    void promise.then(() => {
      signal.removeEventListener('abort', abort);
      resolve();
    });
  });
}
