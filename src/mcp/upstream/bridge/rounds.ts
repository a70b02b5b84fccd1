/** Forwards one request of a session's client, with as many requests to the target as it needs until it answers. */

import { signalOf } from '../../../base/cancellation.ts';
import { unlessUnread } from '../../../base/json/built.ts';
import { isObject } from '../../../base/json/json.ts';
import { CODES, errorMessage } from '../../../protocol/message.ts';
import type { SseEvent } from '../../../protocol/sse.ts';
import { jsonAnswer, statusAnswer, streamAnswer } from '../answers.ts';
import { sourceAt } from '../connect.ts';
import { paramHeaders } from '../param-headers.ts';
import type { Unread } from '../unread.ts';
import {
  isFault,
  type Reach,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamRequest,
  type UpstreamStream,
} from '../upstream.ts';
import {
  type Answered,
  declaredIn,
  envelope,
  eventOf,
  internalError,
  type Outcome,
  outcomeOf,
  type Read,
  read,
  type Sourced,
  statelessRequest,
} from './messages.ts';
import { answering, type BoundReach, type BridgeParts, heldBack, responseFrom, sendStateless } from './requests.ts';
import type { BridgedSession } from './sessions.ts';

const MAX_ROUNDS = 10;
/** The notifications that are passed on before the answer. */
const PASSED = ['notifications/progress', 'notifications/message'];

interface Call extends Sourced {
  readonly session: BridgedSession;
  readonly at: BoundReach & { readonly signal: AbortSignal };
  /** Ends the target's last answer, which counts as unread until then. */
  release: () => void;
}

type Step =
  | Outcome
  | UpstreamFault
  | { readonly kind: 'events'; readonly id: string; readonly answer: UpstreamStream }
  | { readonly kind: 'status'; readonly answer: UpstreamAnswer };

/** `forget`: called when the target no longer speaks 2026-07-28. */
export function createRounds({ http, limits, newId, unread }: BridgeParts, forget: (reach: Reach) => void) {
  /** Ends the session, because the target has changed. The next stateful client finds out its mode. */
  function lose({ session, at }: Call): void {
    forget(at);
    session.end();
  }

  /** Sends one request to the target, and repeats it once if the target refused its headers. */
  async function exchange(call: Call, answered: Answered | null): Promise<Step> {
    const step = await exchangeOnce(call, answered);
    if (isFault(step) || step.kind !== 'mismatch' || call.message.method !== 'tools/call') return step;
    call.session.tools.forget();
    return exchangeOnce(call, answered);
  }

  async function exchangeOnce(call: Call, answered: Answered | null): Promise<Step> {
    const { message, session, at } = call;
    const { method, params } = message;
    call.release();
    const declared = method === 'tools/call' ? await session.tools.headersOf(at, params?.name) : [];
    const headers = unlessUnread(() => paramHeaders(declared, params?.arguments));
    if (headers === null) {
      const text = internalError(message.id, 'The arguments hold too many values for a tool that takes some of them as headers');
      return { kind: 'answer', text };
    }
    const id = newId();
    const body = statelessRequest(id, call, envelope(session.client, session.logLevel), answered);
    const sent = await sendStateless(http, at, message, body, headers);
    if (isFault(sent)) return sent;
    const answer = at.toRead === undefined ? sent : heldBack(sent, at.toRead);
    if (answer.status === 200 && answer.type === 'stream') return { kind: 'events', id, answer };
    call.release = answer.discard;
    const found = await responseFrom(answer, id, limits.answerBytes, at);
    if (found !== null && isFault(found)) return found;
    if (found !== null) return wantsSession(answer.status, found) ? { kind: 'lost' } : outcome(call, found);
    if (answer.status === 200) return { kind: 'answer', text: internalError(message.id, 'The target sent no valid answer') };
    return { kind: 'status', answer: statusAnswer(answer.status, answer.retryAfter) };
  }

  /** Returns the event stream for one request of the client. It continues across all requests that the target needs. */
  async function* follow(call: Call, first: Step, leave: () => void): AsyncGenerator<readonly SseEvent[]> {
    const { id } = call.message;
    const account = unread.open(call.at.target.id, call.at.access.user);
    let kept = 0;
    const charge = (characters: number): Error | null => {
      kept += 2 * characters;
      return account.set(kept);
    };
    try {
      let step = first;
      for (let round = 1; ; round++) {
        if (!isFault(step) && step.kind === 'events') step = yield* pass(unread, call, step.id, step.answer);
        if (isFault(step) && step.fault === 'changed') {
          const why =
            step.cause === undefined ? 'the target or your access has changed' : 'the gateway cannot decide at the moment';
          const text = `The call was not continued, because ${why}: send it again`;
          return yield [eventOf(internalError(id, text))];
        }
        if (isFault(step)) throw step.cause ?? new Error(`the target could not be used: ${step.fault}`);
        if (step.kind === 'answer' || step.kind === 'mismatch') return yield [eventOf(step.text)];
        if (step.kind === 'status') {
          return yield [eventOf(internalError(id, `The target failed (HTTP ${step.answer.status})`))];
        }
        if (step.kind === 'lost') {
          lose(call);
          return yield [eventOf(internalError(id, 'The target has changed. Open a new session'))];
        }
        if (round > MAX_ROUNDS)
          return yield [eventOf(internalError(id, `The target asked for input more than ${MAX_ROUNDS} times`))];
        kept = 0;
        // What is kept while the client is asked is charged by itself.
        call.release();
        const fault = charge(step.state?.length ?? 0);
        const replies =
          fault === null ? yield* call.session.questions.ask(step.asked, charge, call.at.signal) : { failure: fault.message };
        if ('failure' in replies) return yield [eventOf(internalError(id, replies.failure))];
        step = await exchange(call, { responses: replies.text, state: step.state });
      }
    } finally {
      account.close();
      call.release();
      leave();
    }
  }

  return {
    async forward(session: BridgedSession, request: UpstreamRequest, source: Sourced): Promise<UpstreamAnswer | UpstreamFault> {
      const { id } = source.message;
      const { running } = session;
      if (running.has(id)) {
        const message = 'Invalid Request: another request with this id is under way';
        return jsonAnswer(200, errorMessage(id, { code: CODES.invalidRequest, message }));
      }
      const cancelled = new AbortController();
      running.set(id, cancelled);
      const leave = (): void => void (running.get(id) === cancelled && running.delete(id));
      const signal =
        request.signal === undefined ? cancelled.signal : AbortSignal.any([signalOf(request.signal), cancelled.signal]);
      const { target, access, toRead } = request;
      const at = { target, access, signal, ...(toRead && { toRead }) };
      const call: Call = { ...source, session, at, release: () => undefined };
      const step = await exchange(call, null).catch((fault: unknown) => {
        call.release();
        leave();
        throw fault;
      });
      if (!isFault(step) && (step.kind === 'events' || step.kind === 'input')) {
        return streamAnswer(follow(call, step, leave), () => {
          cancelled.abort();
          call.release();
          leave();
        });
      }
      leave();
      if (!isFault(step) && (step.kind === 'answer' || step.kind === 'mismatch'))
        return { ...jsonAnswer(200, step.text), discard: call.release };
      call.release();
      if (isFault(step)) return step;
      if (step.kind === 'status') return step.answer;
      lose(call);
      return statusAnswer(404);
    },
  };
}

/** Whether the target refuses the request as servers with sessions do. */
function wantsSession(status: number, { reading: { value } }: Read): boolean {
  const error = isObject(value) && isObject(value.error) ? value.error : {};
  return (status === 400 && error.code === CODES.badSession) || (status === 404 && error.code === CODES.sessionNotFound);
}

async function outcome(call: Call, response: Read): Promise<Outcome | UpstreamFault> {
  const { session, message, at } = call;
  const declared = message.method === 'tools/list' ? await declaredIn(response, sourceAt(at)) : [];
  if (at.signal.aborted) return { fault: 'aborted' };
  if (message.method === 'tools/list') session.tools.learn(message.params?.cursor, response, declared);
  const read = unlessUnread(() => outcomeOf(call, response, session.client, declared));
  return read ?? { kind: 'answer', text: internalError(message.id, 'The target sent no valid answer') };
}

/** Returns the outcome if the event is the answer, or whether the client gets it. */
async function judge(call: Call, id: string, { data }: SseEvent): Promise<Outcome | UpstreamFault | 'passed' | 'dropped'> {
  const received = await read(data, sourceAt(call.at));
  const answered = answering(id, received);
  if (answered !== null) return outcome(call, answered);
  const message = received?.message;
  return message?.kind === 'notification' && PASSED.includes(message.method) ? 'passed' : 'dropped';
}

/** Passes on the allowed notifications before the answer, and returns the outcome of the answer. */
async function* pass(
  unread: Unread,
  call: Call,
  id: string,
  answer: UpstreamStream,
): AsyncGenerator<readonly SseEvent[], Outcome | UpstreamFault> {
  const { target, access, toRead } = call.at;
  // The stream no longer counts an event that it has handed out.
  const account = unread.open(target.id, access.user, toRead !== undefined);
  try {
    for await (const events of answer.events) {
      for (const event of events) {
        const cause = account.set(event.data.length);
        if (cause !== null) return { fault: 'busy', cause };
        const found = await judge(call, id, event);
        if (typeof found === 'object') return found;
        if (found === 'passed') yield [eventOf(event.data)];
        event.data = '';
        account.set(0);
      }
    }
  } finally {
    account.close();
    answer.discard();
  }
  throw new Error('the target ended its answer too early');
}
