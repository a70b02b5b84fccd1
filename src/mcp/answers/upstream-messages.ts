/**
 * Relays upstream messages (what a target sends back) to the client. Each is read strictly, checked, and bound to its principal.
 */

import type { Outcome } from '../../audit/records/records.ts';
import { principalKey } from '../../auth/principal.ts';
import { UnreadFault } from '../../base/json/built.ts';
import { isObject, type JsonObject, type JsonReading, namelessReason } from '../../base/json/json.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import { TARGET_RULES } from '../../base/json/selection.ts';
import { type Now, whenThere } from '../../base/promises.ts';
import { LEFT_UNREAD } from '../../http/limits/outbox.ts';
import { type Answer, type OutEvent, rpcError } from '../../protocol/answer.ts';
import { farewell } from '../../protocol/listen.ts';
import { CODES, errorMessage, type RpcMessage, type RpcResponse, readMessage, resultMessage } from '../../protocol/message.ts';
import type { AwaitedRequest, RequestContext, UpstreamContext } from '../context/context.ts';
import { forwardFailure, noteFault, upstreamFault } from '../context/failure.ts';
import { RESULT_SPAN_DEPTH } from '../filter/filter.ts';
import { type StreamOrigin, sealEventId } from '../sessions/sessions.ts';
import { faultOf } from '../upstream/http.ts';
import { BacklogFault } from '../upstream/unread.ts';
import { isFault, type UpstreamAnswer, type UpstreamStream } from '../upstream/upstream.ts';
import { DROP, relayError, relayResult, type Seen } from './results.ts';
import { paceNews, relayNotification, relayRequest, stillMayUse } from './unasked-messages.ts';

const RULES = { ...TARGET_RULES, spanDepth: RESULT_SPAN_DEPTH };
/** How many characters of a stream are read after its client has gone, in addition to the answer. */
const MAX_UNHEARD = 1024 * 1024;
const EVENT_COST = 128;
/** An event without a message. It may carry an id or a reconnection time. */
const EMPTY: Extract<Seen, { kind: 'pass' }> = { kind: 'pass', text: '' };

/** Relays an answer with HTTP 200. */
export async function forwardAnswer(context: RequestContext, answer: UpstreamAnswer): Promise<Answer> {
  if (answer.type === 'stream')
    return { kind: 'stream', events: forwardStream(context, answer), drain: context.mode === 'stateful' };
  if (answer.type === 'other') return forwardFailure(context, answer);
  try {
    // Wait until the caller's debt is paid, before its answer takes room that others could use.
    const debt = context.deps.reader.rest(chargedTo(context));
    if (debt !== null) await debt;
    const { claims, revoked } = context.caller;
    const user = principalKey(claims);
    let leftUnread = false;
    const reading = answer.read(() => {
      leftUnread = context.deps.outbox.refusal(user) !== null;
      return !leftUnread;
    });
    const body = reading instanceof Promise ? await reading : reading;
    if (!isFault(body) && body.length > LARGE_TEXT) leftUnread ||= !(await hasRoom(context, body, answer.discard));
    if (revoked.aborted) return upstreamFault(context, { fault: 'aborted' });
    if (leftUnread) {
      // The target is not to blame, so this does not count as its fault.
      context.awaited.end('cancelled');
      return rpcError(context.awaited.id, CODES.internal, LEFT_UNREAD);
    }
    if (isFault(body)) return upstreamFault(context, body);
    // The body keeps its room in memory until it is discarded.
    const inspecting = inspectHeld(context, body);
    const seen = inspecting instanceof Promise ? await inspecting : inspecting;
    // A large answer may have waited for its turn for seconds.
    if (revoked.aborted) return upstreamFault(context, { fault: 'aborted' });
    // The only message must be the answer.
    const isAnswer = seen.kind === 'final';
    context.awaited.end(isAnswer ? seen.outcome : 'upstream_error');
    if (isAnswer) return { kind: 'message', status: 200, text: seen.text, result: seen.result, listed: seen.listed };
    const text = noteFault(
      context,
      { fault: 'malformed', cause: new Error('a message that is no answer') },
      context.awaited.method,
    );
    return { kind: 'message', status: 200, text: brokenText(context.awaited, text) };
  } finally {
    answer.discard();
  }
}

/** Waits for room for the text of an answer, which keeps it until the answer is written. False: there is none. */
async function hasRoom(
  { deps, caller }: UpstreamContext,
  answer: Buffer | { readonly length: number },
  release: () => void = () => undefined,
): Promise<boolean> {
  const { claims, gone, revoked, whenAnswered } = caller;
  const giveBack = await deps.reader.roomForText(principalKey(claims), answer, [gone, revoked], release);
  if (giveBack !== null) whenAnswered(giveBack);
  return giveBack !== null;
}

export async function* forwardStream(context: UpstreamContext, answer: UpstreamStream): AsyncGenerator<OutEvent> {
  const { awaited } = context;
  let outcome: Outcome | null = 'cancelled';
  let resumable = false;
  let unheard = 0;
  try {
    for await (const arrived of answer.events) {
      for (const event of arrived) {
        // The call continues after its client has gone, so that its outcome is recorded. A target that sends on and on is cut off.
        if (unheard > MAX_UNHEARD) return;
        const { length } = event.data;
        if (context.caller.gone.aborted) unheard += length + EVENT_COST;
        const id = event.id === undefined ? undefined : eventId(context, event.id);
        const retry = context.mode === 'stateful' ? event.retry : undefined;
        resumable ||= id !== undefined;
        let seen: Relayed = length === 0 ? EMPTY : await inspect(context, event.data);
        event.data = '';
        const lacksRoom = seen.kind === 'final' && length > LARGE_TEXT && !(await hasRoom(context, { length }));
        // Events that came before the revocation may have waited for their turn since.
        if (seen.kind === 'close' || context.caller.revoked.aborted) {
          const end = parting(context);
          if (end !== null) yield end;
          return;
        }
        if (lacksRoom && awaited !== null) return yield { data: brokenText(awaited, LEFT_UNREAD), final: true };
        const isTold = seen !== EMPTY || id !== undefined || retry !== undefined;
        if (seen.kind === 'pass' && isTold) yield { data: seen.text, id, retry, progressToken: seen.progressToken };
        if (seen.kind === 'final') {
          outcome = seen.outcome;
          yield { data: seen.text, id, retry, final: true, result: seen.result, listed: seen.listed };
          return;
        }
        seen = EMPTY;
        const pause = context.deps.deliveries.pace(principalKey(context.caller.claims), context.target, length);
        if (pause !== null) await pause;
      }
    }
    // The stream of a session may break off before the answer. The client then resumes it, and that stream records the outcome.
    outcome = resumable ? null : 'upstream_error';
    if (!resumable && awaited !== null) yield { data: brokenText(awaited, 'The target ended its answer too early'), final: true };
  } catch (cause) {
    const fault = faultOf(cause);
    if (fault === 'aborted') {
      // The client or the gateway has aborted it. If it was the gateway, the client may wait for the end of its subscription.
      const end = parting(context);
      if (end !== null) yield end;
      return;
    }
    outcome = resumable ? null : 'upstream_error';
    const text = noteFault(context, { fault: fault === 'unreachable' ? 'broken_off' : fault, cause }, awaited?.method);
    if (!resumable && awaited !== null) yield { data: brokenText(awaited, text), final: true };
  } finally {
    answer.discard();
    awaited?.end(outcome);
  }
}

/** The last event of a `subscriptions/listen`, for its client. null: all other streams just end. */
function parting({ listening, awaited }: UpstreamContext): OutEvent | null {
  if (listening === undefined || awaited === null) return null;
  return { data: resultMessage(awaited.id, JSON.stringify(farewell(awaited.id))), final: true };
}

/** undefined: the stream cannot be resumed, because it has no session, or its answer cannot be filtered without the request. */
function eventId({ deps, caller, linked, awaited }: UpstreamContext, upstreamId: string): string | undefined {
  if (linked === null || (awaited !== null && needsRequest(awaited))) return undefined;
  return sealEventId(deps.seal, caller.admission.principal, caller.targetName, linked, upstreamId, awaited && originOf(awaited));
}

function originOf({ id, method, operation, decisionId }: AwaitedRequest): StreamOrigin {
  return { id, method, object: operation.kind === 'object' ? operation.object : null, decisionId };
}

function needsRequest({ method, params, task }: AwaitedRequest): boolean {
  return method === 'completion/complete' || params?.task !== undefined || (task != null && method !== 'tasks/result');
}

type Relayed = Exclude<Seen, { kind: 'failed' | 'malformed' }>;

async function inspect(context: UpstreamContext, text: string): Promise<Relayed> {
  const { target, access, awaited } = context;
  const giveBack = context.deps.reader.hold(target.id, access.user, text.length);
  if (giveBack instanceof BacklogFault) {
    return failed(context, noteFault(context, { fault: 'busy', cause: giveBack }, awaited?.method));
  }
  try {
    return await inspectHeld(context, text);
  } finally {
    giveBack();
  }
}

function inspectHeld(context: UpstreamContext, message: Buffer | string): Now<Relayed> {
  const charged = chargedTo(context);
  const { reader } = context.deps;
  const broken = (err: unknown): Relayed => {
    if (!(err instanceof UnreadFault)) throw err;
    return relayed(context, malformed(err.message));
  };
  try {
    const decoded = typeof message === 'string' ? message : reader.decode(charged, message);
    const seen = whenThere(decoded, (text) => whenThere(reader.read(charged, text, RULES), (reading) => relay(context, reading)));
    return seen instanceof Promise ? seen.then((late) => relayed(context, late), broken) : relayed(context, seen);
  } catch (err) {
    return broken(err);
  }
}

function relayed(context: UpstreamContext, seen: Seen): Relayed {
  if (seen.kind === 'failed') return failed(context, seen.message);
  if (seen.kind !== 'malformed') return seen;
  const reason = namelessReason(seen.reason);
  if (context.awaited === null) {
    context.deps.log.warn({ target: context.target.name, reason }, 'target sent a message that cannot be relayed');
    return DROP;
  }
  return failed(context, noteFault(context, { fault: 'malformed', cause: new Error(reason) }, context.awaited.method));
}

/** Charges target and caller together, so that the messages for one caller do not delay other callers of the target. */
export function chargedTo({ caller, target }: Pick<UpstreamContext, 'caller' | 'target'>): string {
  return `${principalKey(caller.claims)} at ${target.id} to read`;
}

const malformed = (reason: string): Seen => ({ kind: 'malformed', reason });

function relay(context: UpstreamContext, reading: JsonReading): Now<Seen> {
  if (!reading.ok) return malformed(reading.reason);
  const message = readMessage(reading.value);
  if (message.kind === 'invalid') return malformed(message.reason);
  // The wait comes first: what is decided before it could be denied after it.
  const paced = paceNews(context, message);
  return paced === null ? relayPaced(context, message, reading) : paced.then(() => relayPaced(context, message, reading));
}

function relayPaced(context: UpstreamContext, message: RpcMessage, reading: JsonReading & { readonly ok: true }): Now<Seen> {
  if (!context.longLived) return relayMessage(context, message, reading);
  return stillMayUse(context).then((may) => (may ? relayMessage(context, message, reading) : { kind: 'close' }));
}

function relayMessage(context: UpstreamContext, message: RpcMessage, reading: JsonReading & { readonly ok: true }): Now<Seen> {
  if (message.kind === 'request') return relayRequest(context, message, reading);
  if (message.kind === 'notification') return relayNotification(context, message, reading);
  if (!isAwaited(context, message)) return malformed('an answer to a different request');
  const { result, error } = reading.value as JsonObject;
  if (message.outcome === 'error') return relayError(context, reading, isObject(error) ? error : {});
  return isObject(result) ? relayResult(context, reading, result) : malformed('no result');
}

/** Whether the response answers the request of this context. An error without an id can only belong to the request that opened its stream. */
function isAwaited(context: UpstreamContext, { id, outcome }: RpcResponse): context is RequestContext {
  return context.awaited !== null && (id === context.awaited.id || (id === null && outcome === 'error'));
}

function failed({ awaited }: UpstreamContext, message: string): Extract<Seen, { kind: 'drop' | 'final' }> {
  return awaited === null ? DROP : { kind: 'final', text: brokenText(awaited, message), outcome: 'upstream_error' };
}

function brokenText({ id }: AwaitedRequest, message: string): string {
  return errorMessage(id, { code: CODES.internal, message });
}
