/** Messages from a target on their way to the client: each is read strictly, checked, and bound to its principal. */

import type { Outcome } from '../audit/event.ts';
import type { Admission } from '../auth/admission.ts';
import { isObject, type JsonObject, type JsonValue, readJsonText } from '../http/json.ts';
import type { OutEvent } from './answer.ts';
import { authorize, decideShown } from './authorize.ts';
import { isAskable } from './capabilities.ts';
import type { Awaited, Caller, ExchangeDeps, RelayContext } from './context.ts';
import { META_KEYS } from './era.ts';
import { filterResult, RESULT_SPAN_DEPTH } from './filter.ts';
import { faultOf, isFault, type UpstreamAnswer } from './forward.ts';
import { ACKNOWLEDGED, acknowledge, farewell, isHeard } from './listen.ts';
import { CODES, errorMessage, type RpcId, type RpcNotification, type RpcRequest, readMessage, resultMessage } from './message.ts';
import { readOperation } from './operation.ts';
import { type Located, rebuildAsked, rebuildResponse } from './rebuild.ts';
import { placeOf, type Session, type StreamOrigin, sealAskedId, sealEventId, sealState } from './sessions.ts';
import { createSseReader, SseFault } from './sse.ts';

type Seen =
  | { readonly kind: 'pass'; readonly text: string }
  | { readonly kind: 'drop' }
  | { readonly kind: 'final'; readonly text: string; readonly outcome: Outcome }
  /** The caller may no longer use the stream. */
  | { readonly kind: 'close' };

const DROP: Seen = { kind: 'drop' };
/** Results may hold numbers and strings that requests may not: they are not decided on, and go on as the text they are. */
const UPSTREAM_RULES = { exact: false, maxDepth: 256, maxValues: 2_000_000, spanDepth: RESULT_SPAN_DEPTH };

/** For the answer in JSON: the one message must be the answer. */
export async function relayMessage(
  deps: ExchangeDeps,
  context: RelayContext,
  text: string,
): Promise<{ text: string; outcome: Outcome }> {
  const seen = await inspect(deps, context, text);
  return seen.kind === 'final' ? seen : broken(context, 'The target sent no valid answer');
}

export async function* relayStream(deps: ExchangeDeps, context: RelayContext, answer: UpstreamAnswer): AsyncGenerator<OutEvent> {
  const { awaited } = context;
  let outcome: Outcome | null = 'cancelled';
  let resumable = false;
  const reader = createSseReader(deps.limits.answerBytes);
  try {
    for await (const chunk of answer.body) {
      for (const event of reader.push(chunk)) {
        const id = event.id === undefined ? undefined : eventId(deps, context, event.id);
        const retry = context.era === 'session' ? event.retry : undefined;
        resumable ||= id !== undefined;
        if (event.data === '') {
          if (id !== undefined || retry !== undefined) yield { data: '', id, retry };
          continue;
        }
        const seen = await inspect(deps, context, event.data);
        if (seen.kind === 'close') {
          const end = parting(context);
          if (end !== null) yield end;
          return;
        }
        if (seen.kind === 'pass') yield { data: seen.text, id, retry };
        if (seen.kind === 'final') {
          outcome = seen.outcome;
          yield { data: seen.text, id, retry, final: true };
          return;
        }
      }
    }
    // A session's stream may break off before the answer; the client then resumes it, and that stream records the end.
    outcome = resumable ? null : 'upstream_error';
    if (!resumable && awaited !== null)
      yield { data: broken(context, 'The target ended its answer too early').text, final: true };
  } catch (cause) {
    const fault = cause instanceof SseFault ? 'malformed' : faultOf(cause);
    if (fault === 'aborted') {
      // By the client, or by the gateway, whose word the client may be waiting for.
      const end = parting(context);
      if (end !== null) yield end;
      return;
    }
    outcome = resumable ? null : 'upstream_error';
    deps.log.warn({ target: context.target.name, fault, err: cause }, 'the stream of a target broke off');
    if (!resumable && awaited !== null) yield { data: broken(context, 'The answer of the target broke off').text, final: true };
  } finally {
    answer.discard();
    if (outcome !== null) awaited?.end(outcome);
  }
}

/** A listener is told that the stream has ended; others learn it from the end of the stream. */
function parting({ listening, awaited }: RelayContext): OutEvent | null {
  if (listening === undefined || awaited === null) return null;
  return { data: resultMessage(awaited.id, JSON.stringify(farewell(awaited.id))), final: true };
}

/** undefined where the stream cannot be resumed: without a session, and for answers whose filter needs the request. */
function eventId(deps: ExchangeDeps, { caller, session, awaited }: RelayContext, upstreamId: string): string | undefined {
  if (session === null || awaited?.method === 'completion/complete') return undefined;
  const origin: StreamOrigin | null = awaited && { id: awaited.id, method: awaited.method, decisionId: awaited.decisionId };
  return sealEventId(deps.seal, caller.admission.principal, caller.targetName, session, upstreamId, origin);
}

async function inspect(deps: ExchangeDeps, context: RelayContext, text: string): Promise<Seen> {
  const reading = readJsonText(text, UPSTREAM_RULES);
  if (!reading.ok) return malformed(deps, context, reading.reason);
  const message = readMessage(reading.value);
  if (message.kind === 'invalid') return malformed(deps, context, message.reason);
  if (context.standing && !(await stillMayUse(deps, context))) return { kind: 'close' };
  if (message.kind === 'request') return relayAsked(deps, context, message, reading);
  if (message.kind === 'notification') return relayNotification(deps, context, message, reading);
  const { awaited } = context;
  // An error without an id can only mean the request whose stream this is.
  const answers = awaited !== null && (message.id === awaited.id || (message.id === null && message.outcome === 'error'));
  if (!answers) return malformed(deps, context, 'an answer to another request');
  if (message.outcome === 'error') {
    return { kind: 'final', text: rebuildResponse(awaited.id, 'error', reading), outcome: 'error' };
  }
  const result = isObject(reading.value) ? reading.value.result : undefined;
  return isObject(result) ? relayResult(deps, context, awaited, reading, result) : malformed(deps, context, 'no result');
}

async function relayResult(
  deps: ExchangeDeps,
  context: RelayContext,
  awaited: Awaited,
  located: Located,
  result: JsonObject,
): Promise<Seen> {
  const { caller, target, era } = context;
  const { method, params, operation } = awaited;
  const { principal } = caller.admission;
  const filtered = filterResult(located, result, {
    era,
    method,
    params,
    operation,
    decide: decideShown(caller.admission, target.id),
    sealState: (state) =>
      sealState(deps.seal, principal, caller.targetName, stateBinding(placeOf(target), method, params), state, deps.now()),
  });
  if (!filtered.ok) return malformed(deps, context, filtered.fault);
  if (filtered.shown !== null) {
    try {
      await deps.audit.shown({ decision_id: awaited.decisionId, ...filtered.shown });
    } catch (err) {
      deps.log.error({ err }, 'what a list shows could not be recorded; it is not answered');
      return { kind: 'final', ...broken(context, 'The gateway cannot record at the moment; try again') };
    }
  }
  return { kind: 'final', text: resultMessage(awaited.id, filtered.text), outcome: 'ok' };
}

export function stateBinding(place: string, method: string, params: JsonObject | undefined) {
  const name = params?.name ?? params?.uri;
  return { place, method, name: typeof name === 'string' ? name : null, arguments: params?.arguments };
}

/** A request of the target for the client, which answers it under an id that nobody else can use. */
function relayAsked(deps: ExchangeDeps, context: RelayContext, message: RpcRequest, located: Located): Seen {
  const { caller, session, asked } = context;
  // 2026-07-28 has no such requests, and before its answer a session has no client that could be asked.
  if (session === null) return malformed(deps, context, 'a request where none may be sent');
  if (!isAskable(message.method)) {
    refuseAsked(deps, context, session, message.id);
    return DROP;
  }
  const id = sealAskedId(deps.seal, caller.admission.principal, caller.targetName, session, message);
  asked.set(message.id, id);
  return { kind: 'pass', text: rebuildAsked(id, message.method, located) };
}

function refuseAsked(deps: ExchangeDeps, { target, caller }: RelayContext, session: Session, id: RpcId): void {
  const body = errorMessage(id, { code: CODES.methodNotFound, message: 'Method not found' });
  const sent = deps.forwarder.send({ method: 'POST', target, session, version: caller.version, body });
  sent.then((answer) => isFault(answer) || answer.discard());
}

async function relayNotification(
  deps: ExchangeDeps,
  context: RelayContext,
  message: RpcNotification,
  located: Located,
): Promise<Seen> {
  const { params } = message;
  const pass: Seen = { kind: 'pass', text: rebuildNotification(message, params, located) };
  const { listening, awaited } = context;
  if (listening !== undefined && awaited !== null) {
    if (!isHeard(message.method, params, awaited.id, listening)) return DROP;
    if (message.method === 'notifications/resources/updated') return (await mayLearnOf(deps, context, params)) ? pass : DROP;
    if (message.method !== ACKNOWLEDGED) return pass;
    const honest = acknowledge(params ?? {}, listening);
    return { kind: 'pass', text: JSON.stringify({ jsonrpc: '2.0', method: message.method, params: honest }) };
  }
  const meta = context.awaited?.params?._meta;
  switch (message.method) {
    case 'notifications/progress':
      if (context.standing) return pass;
      return isObject(meta) && meta.progressToken !== undefined && params?.progressToken === meta.progressToken ? pass : DROP;
    case 'notifications/message':
      if (context.era === 'session') return pass;
      return isObject(meta) && meta[META_KEYS.logLevel] !== undefined ? pass : DROP;
    case 'notifications/tools/list_changed':
    case 'notifications/prompts/list_changed':
    case 'notifications/resources/list_changed':
    case 'notifications/elicitation/complete':
      return context.era === 'session' ? pass : DROP;
    case 'notifications/cancelled': {
      const known = isAskedId(params?.requestId) ? context.asked.get(params.requestId) : undefined;
      if (known === undefined) return DROP;
      return {
        kind: 'pass',
        text: JSON.stringify({ jsonrpc: '2.0', method: message.method, params: { ...params, requestId: known } }),
      };
    }
    case 'notifications/resources/updated':
      return context.era === 'session' && (await mayLearnOf(deps, context, params)) ? pass : DROP;
    default:
      return DROP;
  }
}

function isAskedId(id: JsonValue | undefined): id is RpcId {
  return typeof id === 'string' || typeof id === 'number';
}

function rebuildNotification(message: RpcNotification, params: JsonObject | undefined, { text, span }: Located): string {
  const at = params === undefined ? undefined : span.members?.get('params');
  const tail = at === undefined ? '' : `,"params":${text.slice(at.start, at.end)}`;
  return `{"jsonrpc":"2.0","method":${JSON.stringify(message.method)}${tail}}`;
}

/** An update names a resource, so it is decided when it is delivered, with the state of that moment, and recorded. */
async function mayLearnOf(deps: ExchangeDeps, { caller }: RelayContext, params: JsonObject | undefined): Promise<boolean> {
  const method = 'notifications/resources/updated';
  // Revision 2026-07-28 names the resource in the same member.
  const operation = readOperation('session', 'resources/subscribe', params);
  if (!('kind' in operation)) return false;
  const admission = await readmit(deps, caller);
  if (admission === null) return false;
  try {
    const { allowed, decisionId } = await authorize(deps, { admission, targetName: caller.targetName, method, operation });
    deps.audit.outcome({ decision_id: decisionId, outcome: allowed ? 'ok' : 'denied', duration_ms: 0 });
    return allowed;
  } catch {
    return false;
  }
}

async function stillMayUse(deps: ExchangeDeps, { caller, target }: RelayContext): Promise<boolean> {
  const admission = await readmit(deps, caller);
  const current = admission?.snapshot.targets.get(caller.targetName);
  if (admission === null || current?.id !== target.id) return false;
  return admission.snapshot.engine.decideTarget(admission.principal, target.id).effect === 'allow';
}

async function readmit(deps: ExchangeDeps, caller: Caller): Promise<Admission | null> {
  try {
    const admission = await deps.admit(caller.claims);
    return 'refused' in admission ? null : admission;
  } catch {
    return null;
  }
}

function malformed(deps: ExchangeDeps, context: RelayContext, reason: string): Seen {
  deps.log.warn({ target: context.target.name, reason }, 'a target sent a message that cannot be passed on');
  if (context.awaited === null) return DROP;
  return { kind: 'final', ...broken(context, 'The target sent no valid answer') };
}

function broken({ awaited }: RelayContext, what: string): { text: string; outcome: Outcome } {
  return { text: errorMessage(awaited?.id ?? null, { code: CODES.internal, message: what }), outcome: 'upstream_error' };
}
