/** Reads a request and tells what is to be done, or answers it. Pure: its caller is admitted, and decided on, afterwards. */
import { AppError } from '../base/errors.ts';
import type { JsonReading, JsonSpan, JsonValue } from '../base/json/json.ts';
import { ACCEPTED, type Answer, noSession, problem, refuse } from '../protocol/answer.ts';
import { checkStatelessHeaders, type McpHeaders } from '../protocol/headers.ts';
import {
  CODES,
  type Rejection,
  type RpcId,
  type RpcMessage,
  type RpcNotification,
  type RpcRequest,
  type RpcResponse,
  readMessage,
} from '../protocol/message.ts';
import {
  BATCH_REVISION,
  classifyMode,
  hasEnvelope,
  isSessionRevision,
  SESSION_REVISIONS,
  STATELESS_REVISION,
  unsupportedVersion,
} from '../protocol/mode.ts';
import { isForwardedNotification, isRequestMethod, readOperation } from '../protocol/operation.ts';
import type { Located } from '../protocol/rebuild.ts';
import { type Plan, planRequest } from './aggregate/route.ts';
import type { ClaimedSession, ClientRequest, SessionMessage } from './context/context.ts';
import type { Session } from './sessions/sessions.ts';

/** `id`: of the request, for the refusal of a caller who is not admitted. undefined: the refusal has no id. */
export type Work = { readonly id: RpcId | null | undefined } & (
  | { readonly do: 'request'; readonly request: ClientRequest }
  | { readonly do: 'notification'; readonly posted: SessionMessage<RpcNotification> }
  | { readonly do: 'response'; readonly posted: SessionMessage<RpcResponse> }
  /** A request at the aggregate endpoint. The first opens the session. */
  | { readonly do: 'open aggregate'; readonly message: RpcRequest }
  | { readonly do: 'aggregate'; readonly posted: SessionMessage<RpcRequest>; readonly plan: Plan }
  | { readonly do: 'batch'; readonly elements: readonly Work[] }
  | { readonly do: 'GET'; readonly session: ClaimedSession; readonly lastEventId: string | undefined }
  | { readonly do: 'DELETE'; readonly session: ClaimedSession }
  /** The message has no effect. */
  | { readonly do: 'answer'; readonly answer: Answer }
);

/** A POST whose body is strict JSON. */
export interface Inbound {
  readonly reading: JsonReading & { readonly ok: true };
  readonly headers: McpHeaders;
  /** The session that the request names. null: it names none, or none that this caller has on this target. */
  readonly session: Session | null;
  /** The request came to the aggregate endpoint. */
  readonly everywhere: boolean;
}

export function readPost(inbound: Inbound): Work | Answer {
  const { reading, headers, everywhere } = inbound;
  if (Array.isArray(reading.value)) return readBatch(inbound, reading.value);
  const message = readMessage(reading.value);
  const statelessHeader = (headers.protocol.version ?? '') >= STATELESS_REVISION;
  const noId = statelessHeader ? undefined : null;
  if (message.kind === 'invalid') return refuse(message.id ?? noId, invalidRequest(message.reason));
  const mode = classifyMode(message, headers.protocol);
  const id = message.kind === 'request' ? message.id : noId;
  if ('code' in mode) return refuse(id, mode);
  if (message.kind === 'response' && statelessHeader) {
    return refuse(undefined, invalidRequest('this revision has no posted responses'));
  }
  if (message.kind === 'notification') {
    const absent = mode.mode === 'stateless' ? undefined : null;
    if (isRequestMethod(message.method)) return refuse(absent, invalidRequest('a request needs an id'));
    // In 2026-07-28, closing the connection cancels a request: no notification has an effect.
    if (mode.mode === 'stateless' || headers.sessionId === undefined) return { do: 'answer', id: absent, answer: ACCEPTED };
  }
  if (message.kind === 'request' && mode.mode === 'stateless') {
    return everywhere
      ? refuse(id, unsupportedVersion(mode.revision, SESSION_REVISIONS))
      : readStateless(inbound, message, mode.revision);
  }
  const work = inSession(inbound, message, reading);
  const needsSession = 'do' in work && work.do !== 'answer' && !isInitialize(message);
  return (needsSession ? sessionProblem(headers, message) : null) ?? work;
}

function readStateless({ reading, headers }: Inbound, message: RpcRequest, revision: string): Work | Answer {
  const { id, method, params } = message;
  const disagreement = checkStatelessHeaders(method, params, headers.protocol);
  if (disagreement !== null) return refuse(id, disagreement);
  if (revision !== STATELESS_REVISION) return refuse(id, unsupportedVersion(revision, [STATELESS_REVISION]));
  const operation = readOperation('stateless', method, params);
  if ('code' in operation) return refuse(id, operation);
  const client = { mode: 'stateless', revision, paramHeaders: headers.params } as const;
  return { do: 'request', id, request: { client, message, located: reading, operation } };
}

/** If the caller has no such session on this target, a request is still decided and recorded, and then refused. */
function inSession({ session, everywhere }: Inbound, message: RpcMessage, located: Located): Work | Answer {
  switch (message.kind) {
    case 'response':
      return { do: 'response', id: null, posted: { session, message, located } };
    case 'notification':
      // All others have no effect, so they need no decision and no record.
      return isForwardedNotification(message.method)
        ? { do: 'notification', id: null, posted: { session, message, located } }
        : { do: 'answer', id: null, answer: ACCEPTED };
    case 'request': {
      const { id, method, params } = message;
      if (everywhere) {
        if (isInitialize(message)) return { do: 'open aggregate', id, message };
        const plan = planRequest(message);
        return 'code' in plan ? refuse(id, plan) : { do: 'aggregate', id, posted: { session, message, located }, plan };
      }
      const operation = readOperation('stateful', method, params);
      if ('code' in operation) return refuse(id, operation);
      const client = { mode: 'stateful', session: isInitialize(message) ? null : (session ?? 'unknown') } as const;
      return { do: 'request', id, request: { client, message, located, operation } };
    }
  }
}

const isInitialize = (message: RpcMessage): boolean => message.kind === 'request' && message.method === 'initialize';

/** What every message of a session needs besides its caller: a session revision, and the session id. */
function sessionProblem({ protocol: { version }, sessionId }: McpHeaders, message: RpcMessage | null): Answer | null {
  const refused = (text: string): Answer =>
    refuse(message?.kind === 'request' ? message.id : null, { status: 400, code: CODES.badSession, message: text });
  if (version !== undefined && !isSessionRevision(version)) return refused('Unsupported protocol version');
  return sessionId === undefined ? refused('The Mcp-Session-Id header is missing') : null;
}

export const MAX_BATCH = 50;
const NO_BATCH = `a batch needs a session of ${BATCH_REVISION}, 1 to ${MAX_BATCH} messages with distinct ids, and no initialize`;

/** Only revision 2025-03-26 has batches. Each element is decided, recorded and forwarded by itself. */
function readBatch(inbound: Inbound, values: readonly JsonValue[]): Work | Answer {
  const { reading, headers, session } = inbound;
  const elements = readElements(inbound, values, reading.span.items ?? []);
  const hasVersion = headers.protocol.version === undefined || headers.protocol.version === BATCH_REVISION;
  const refusal = refuse(null, invalidRequest(NO_BATCH));
  if (elements === null || headers.sessionId === undefined || !hasVersion) return refusal;
  if (session?.revision === BATCH_REVISION) return { do: 'batch', id: null, elements };
  return { do: 'answer', id: null, answer: session === null ? noSession(null) : refusal };
}

/** null: no revision allows this batch. */
function readElements(inbound: Inbound, values: readonly JsonValue[], spans: readonly JsonSpan[]): Work[] | null {
  if (values.length === 0 || values.length > MAX_BATCH || values.length !== spans.length) return null;
  const ids = new Set<RpcId>();
  const elements: Work[] = [];
  for (const [index, span] of spans.entries()) {
    const message = readMessage(values[index] ?? null);
    if (message.kind === 'invalid' || hasEnvelope(message) || isInitialize(message)) return null;
    if (message.kind === 'notification' && isRequestMethod(message.method)) return null;
    if (message.kind === 'request') {
      if (ids.has(message.id)) return null;
      ids.add(message.id);
    }
    const work = inSession(inbound, message, { text: inbound.reading.text, span });
    elements.push('do' in work ? work : { do: 'answer', id: null, answer: work });
  }
  return elements;
}

/** GET and DELETE belong to sessions; the stateless mode (2026-07-28) has neither. */
export function readBodiless(method: string, headers: McpHeaders, session: ClaimedSession): Work | Answer {
  if ((headers.protocol.version ?? '') >= STATELESS_REVISION) {
    return problem(new AppError('method_not_allowed', 'Use POST: this revision of MCP has no other method.'), { allow: 'POST' });
  }
  if (method === 'DELETE') return { do: 'DELETE', id: null, session };
  return { do: 'GET', id: null, session, lastEventId: headers.lastEventId };
}

function invalidRequest(reason: string): Rejection {
  return { status: 400, code: CODES.invalidRequest, message: `Invalid Request: ${reason}` };
}
