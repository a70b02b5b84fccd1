/** Reads a posted message and routes it to the part of the gateway that answers it. */
import type { JsonReading, JsonSpan, JsonValue } from '../base/json/json.ts';
import { answerAggregate, handleAggregate, notifyAggregate, openAggregate } from './aggregate/aggregate.ts';
import { planRequest } from './aggregate/route.ts';
import { ACCEPTED, type Answer, finalText, noSession, refuse } from './protocol/answer.ts';
import type { McpHeaders } from './protocol/headers.ts';
import {
  CODES,
  type Rejection,
  type RpcId,
  type RpcMessage,
  type RpcNotification,
  type RpcRequest,
  readMessage,
} from './protocol/message.ts';
import {
  BATCH_REVISION,
  checkStatelessHeaders,
  classifyMode,
  hasEnvelope,
  isSessionRevision,
  type Mode,
  SESSION_REVISIONS,
  STATELESS_REVISION,
  unsupportedVersion,
} from './protocol/mode.ts';
import { isForwardedNotification, isRequestMethod, readOperation } from './protocol/operation.ts';
import type { Located } from './protocol/rebuild.ts';
import type { Caller, RequestDeps } from './requests/context.ts';
import { handleRequest } from './requests/handle-request.ts';
import { handleNotification, handleResponse } from './requests/session-messages.ts';
import type { Session } from './sessions/sessions.ts';

/** A POST whose body is strict JSON. */
export interface Inbound {
  readonly reading: JsonReading & { readonly ok: true };
  readonly headers: McpHeaders;
  /** The session that the request names. null: it names none, or none that this caller has on this target. */
  readonly session: Session | null;
  /** The request came to the aggregate endpoint. */
  readonly everywhere: boolean;
}

/** Admits the caller, or returns the refusal. `id`: of the request, for the refusal. */
export type Admitting = (id: RpcId | null | undefined) => Promise<Caller | Answer>;

export function route(deps: RequestDeps, inbound: Inbound, admit: Admitting): Promise<Answer> | Answer {
  const { reading, headers } = inbound;
  if (Array.isArray(reading.value)) return routeBatch(deps, inbound, reading.value, admit);
  const message = readMessage(reading.value);
  const statelessHeader = (headers.protocol.version ?? '') >= STATELESS_REVISION;
  if (message.kind === 'invalid') {
    return refuse(message.id ?? (statelessHeader ? undefined : null), invalidRequest(message.reason));
  }
  const mode = classifyMode(message, headers.protocol);
  const id = message.kind === 'request' ? message.id : statelessHeader ? undefined : null;
  if ('code' in mode) return refuse(id, mode);
  if (message.kind === 'response') {
    if (statelessHeader) return refuse(undefined, invalidRequest('this revision has no posted responses'));
    const answer = inbound.everywhere ? answerAggregate : handleResponse;
    return withSession(inbound, null, admit, (caller, session) => answer(deps, caller, session, message, reading));
  }
  if (message.kind === 'notification') return routeNotification(deps, inbound, message, mode.mode, admit);
  if (inbound.everywhere) {
    return mode.mode === 'stateless'
      ? refuse(id, unsupportedVersion(mode.revision, SESSION_REVISIONS))
      : routeAggregate(deps, inbound, message, admit);
  }
  return mode.mode === 'stateless'
    ? routeStateless(deps, inbound, message, mode.revision, admit)
    : routeInSession(deps, inbound, message, admit);
}

async function routeStateless(
  deps: RequestDeps,
  { reading, headers }: Inbound,
  message: RpcRequest,
  revision: string,
  admit: Admitting,
): Promise<Answer> {
  const disagreement = checkStatelessHeaders(message.method, message.params, headers.protocol);
  if (disagreement !== null) return refuse(message.id, disagreement);
  if (revision !== STATELESS_REVISION) return refuse(message.id, unsupportedVersion(revision, [STATELESS_REVISION]));
  const operation = readOperation('stateless', message.method, message.params);
  if ('code' in operation) return refuse(message.id, operation);
  const caller = await admit(message.id);
  if ('kind' in caller) return caller;
  const manner = { mode: 'stateless', revision, paramHeaders: headers.params } as const;
  return handleRequest(deps, caller, manner, message, operation, reading);
}

function routeInSession(deps: RequestDeps, inbound: Inbound, message: RpcRequest, admit: Admitting): Promise<Answer> | Answer {
  const { reading } = inbound;
  const { id } = message;
  const operation = readOperation('stateful', message.method, message.params);
  if ('code' in operation) return refuse(id, operation);
  if (message.method !== 'initialize') {
    return withSession(inbound, id, admit, (caller, session) =>
      handleRequest(deps, caller, { mode: 'stateful', session: session ?? 'unknown' }, message, operation, reading),
    );
  }
  return admitted(id, admit, (caller) =>
    handleRequest(deps, caller, { mode: 'stateful', session: null }, message, operation, reading),
  );
}

async function admitted(id: RpcId | null, admit: Admitting, perform: (caller: Caller) => Promise<Answer>): Promise<Answer> {
  const caller = await admit(id);
  return 'kind' in caller ? caller : perform(caller);
}

async function routeAggregate(deps: RequestDeps, inbound: Inbound, message: RpcRequest, admit: Admitting): Promise<Answer> {
  const { reading } = inbound;
  const plan = planRequest(message);
  if ('code' in plan) return refuse(message.id, plan);
  if (message.method !== 'initialize') {
    return withSession(inbound, message.id, admit, (caller, session) =>
      handleAggregate(deps, caller, session, message, plan, reading),
    );
  }
  const caller = await admit(message.id);
  return 'kind' in caller ? caller : openAggregate(deps, caller, message);
}

/**
 * Notifications that are forwarded to the target are decided and recorded as a use of the target. Others are accepted and
 * dropped: unknown ones, those without a session, and all of 2026-07-28, where closing the connection cancels. They have no
 * effect, so they need no decision and no record.
 */
async function routeNotification(
  deps: RequestDeps,
  inbound: Inbound,
  message: RpcNotification,
  mode: Mode,
  admit: Admitting,
): Promise<Answer> {
  const { reading, headers, everywhere } = inbound;
  if (isRequestMethod(message.method)) {
    return refuse(mode === 'stateless' ? undefined : null, invalidRequest('a request needs an id'));
  }
  if (mode === 'stateless' || headers.sessionId === undefined || !isForwardedNotification(message.method)) {
    const caller = await admit(mode === 'stateless' ? undefined : null);
    return 'kind' in caller ? caller : ACCEPTED;
  }
  const notify = everywhere ? notifyAggregate : handleNotification;
  return withSession(inbound, null, admit, (caller, session) => notify(deps, caller, session, message, reading));
}

/**
 * Checks what every message of a session needs: an admitted caller, a session revision, and the session id. If the caller
 * has no such session on this target (null), a request is still decided and recorded, and then refused.
 */
function withSession(
  { headers, session }: Inbound,
  id: RpcId | null,
  admit: Admitting,
  perform: (caller: Caller, session: Session | null) => Promise<Answer>,
): Promise<Answer> | Answer {
  const { version } = headers.protocol;
  if (version !== undefined && !isSessionRevision(version)) {
    return refuse(id, { status: 400, code: CODES.badSession, message: 'Unsupported protocol version' });
  }
  if (headers.sessionId === undefined) {
    return refuse(id, { status: 400, code: CODES.badSession, message: 'The Mcp-Session-Id header is missing' });
  }
  return admitted(id, admit, (caller) => perform(caller, session));
}

const MAX_BATCH = 50;
const NO_BATCH = `a batch needs a session of ${BATCH_REVISION}, 1 to ${MAX_BATCH} messages with distinct ids, and no initialize`;

interface Element {
  readonly message: RpcMessage;
  readonly located: Located;
}

/** Only revision 2025-03-26 has batches. Each element is decided, recorded and forwarded by itself. */
async function routeBatch(deps: RequestDeps, inbound: Inbound, values: JsonValue[], admit: Admitting): Promise<Answer> {
  const { reading, headers, everywhere } = inbound;
  const elements = readBatch(values, reading.span.items ?? [], reading.text);
  const hasVersion = headers.protocol.version === undefined || headers.protocol.version === BATCH_REVISION;
  if (elements === null || headers.sessionId === undefined || !hasVersion) return refuse(null, invalidRequest(NO_BATCH));
  return withSession(inbound, null, admit, async (caller, session) => {
    if (session === null) return noSession(null);
    if (session.revision !== BATCH_REVISION) return refuse(null, invalidRequest(NO_BATCH));
    const answers = await Promise.all(elements.map((element) => routeElement(deps, caller, session, element, everywhere)));
    const texts = answers.filter((text) => text !== null);
    return texts.length === 0 ? ACCEPTED : { kind: 'message', status: 200, text: `[${texts.join()}]` };
  });
}

/** null: no revision allows this batch. */
function readBatch(values: JsonValue[], spans: readonly JsonSpan[], text: string): Element[] | null {
  if (values.length === 0 || values.length > MAX_BATCH || values.length !== spans.length) return null;
  const ids = new Set<RpcId>();
  const elements: Element[] = [];
  for (const [index, span] of spans.entries()) {
    const message = readMessage(values[index] ?? null);
    if (message.kind === 'invalid' || hasEnvelope(message)) return null;
    if (message.kind === 'notification' && isRequestMethod(message.method)) return null;
    if (message.kind === 'request') {
      if (message.method === 'initialize' || ids.has(message.id)) return null;
      ids.add(message.id);
    }
    elements.push({ message, located: { text, span } });
  }
  return elements;
}

/** The text of the answer; null: there is no answer. */
async function routeElement(
  deps: RequestDeps,
  caller: Caller,
  session: Session,
  { message, located }: Element,
  everywhere: boolean,
): Promise<string | null> {
  if (message.kind === 'response') {
    const answer = everywhere ? answerAggregate : handleResponse;
    return finalText(await answer(deps, caller, session, message, located));
  }
  if (message.kind === 'notification') {
    const notify = everywhere ? notifyAggregate : handleNotification;
    if (isForwardedNotification(message.method)) await notify(deps, caller, session, message, located);
    return null;
  }
  if (everywhere) {
    const plan = planRequest(message);
    return finalText(
      'code' in plan ? refuse(message.id, plan) : await handleAggregate(deps, caller, session, message, plan, located),
    );
  }
  const operation = readOperation('stateful', message.method, message.params);
  if ('code' in operation) return finalText(refuse(message.id, operation));
  return finalText(await handleRequest(deps, caller, { mode: 'stateful', session }, message, operation, located));
}

function invalidRequest(reason: string): Rejection {
  return { status: 400, code: CODES.invalidRequest, message: `Invalid Request: ${reason}` };
}
