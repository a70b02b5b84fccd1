/** What goes on in a session besides requests: notifications, answers to the target's requests, the standing stream, the end. */
import { AppError } from '../errors.ts';
import { ACCEPTED, type Answer, noSession, noTargetText, problem, problemUnavailable, refuse, unavailable } from './answer.ts';
import { authorize, type Verdict } from './authorize.ts';
import type { Awaited, Caller, ExchangeDeps } from './context.ts';
import { isFault, type UpstreamAnswer, type UpstreamFault } from './forward.ts';
import { CODES, type RpcNotification, type RpcResponse } from './message.ts';
import { type Operation, readOperation } from './operation.ts';
import { type Located, rebuildCall, rebuildResponse } from './rebuild.ts';
import { relayStream } from './relay.ts';
import { openAskedId, openEventId, placeOf, type Session } from './sessions.ts';

const TARGET: Operation = { kind: 'target' };

/** The sender of a notification cannot be told that it is denied, so it is recorded and dropped. */
export async function performNotification(
  deps: ExchangeDeps,
  caller: Caller,
  session: Session | null,
  message: RpcNotification,
  located: Located,
): Promise<Answer> {
  return post(deps, caller, session, message.method, rebuildCall(message, located));
}

/** An answer to a request that the target sent on this very session; any other has nobody to go to. */
export async function performResponse(
  deps: ExchangeDeps,
  caller: Caller,
  session: Session | null,
  message: RpcResponse,
  located: Located,
): Promise<Answer> {
  // Nothing can have been asked in a session that does not exist.
  if (session === null) return noSession(null);
  const asked =
    message.id === null ? null : openAskedId(deps.seal, caller.admission.principal, caller.targetName, session, message.id);
  if (asked === null) {
    return refuse(null, { status: 400, code: CODES.invalidRequest, message: 'The response answers no request of this session' });
  }
  return post(deps, caller, session, asked.method, rebuildResponse(asked.id, message.outcome, located));
}

async function post(deps: ExchangeDeps, caller: Caller, session: Session | null, method: string, body: string): Promise<Answer> {
  let verdict: Verdict;
  try {
    verdict = await ask(deps, caller, method);
  } catch (err) {
    deps.log.error({ err }, 'a decision could not be recorded; the message is refused');
    return unavailable(null);
  }
  if (!verdict.allowed) {
    finish(deps, caller, verdict, 'denied');
    return ACCEPTED;
  }
  if (session?.place !== placeOf(verdict.target)) return lost(deps, caller, verdict);
  const answer = await deps.forwarder.send({ method: 'POST', target: verdict.target, session, version: caller.version, body });
  if (isFault(answer)) {
    deps.log.warn({ target: caller.targetName, fault: answer.fault }, 'a message did not reach its target');
    finish(deps, caller, verdict, 'upstream_error');
    return ACCEPTED;
  }
  answer.discard();
  if (answer.status === 404) return lost(deps, caller, verdict);
  finish(deps, caller, verdict, answer.status < 300 ? 'ok' : 'upstream_error');
  return ACCEPTED;
}

function lost(deps: ExchangeDeps, caller: Caller, verdict: Verdict): Answer {
  finish(deps, caller, verdict, 'upstream_error');
  return noSession(null);
}

function ask(deps: ExchangeDeps, caller: Caller, method: string): Promise<Verdict> {
  return authorize(deps, { admission: caller.admission, targetName: caller.targetName, method, operation: TARGET });
}

function finish(deps: ExchangeDeps, caller: Caller, { decisionId }: Verdict, outcome: Parameters<Awaited['end']>[0]): void {
  deps.audit.outcome({ decision_id: decisionId, outcome, duration_ms: deps.now() - caller.arrivedAt });
}

const SESSION_GONE = new AppError('not_found', 'Session not found');
const SESSION_MISSING = new AppError('invalid_request', 'The Mcp-Session-Id header is missing.');

/** The stream of a session, or the rest of one that broke off. */
export async function performGet(
  deps: ExchangeDeps,
  caller: Caller,
  claimed: ClaimedSession,
  lastEventId: string | undefined,
): Promise<Answer> {
  const passed = await pass(deps, caller, claimed, 'GET');
  if ('kind' in passed) return passed;
  const { verdict, target, session } = passed;
  const { principal } = caller.admission;
  const resume = lastEventId === undefined ? null : openEventId(deps.seal, principal, caller.targetName, session, lastEventId);
  if (lastEventId !== undefined && resume === null) {
    finish(deps, caller, verdict, 'error');
    return problem(new AppError('not_found', 'The event id is not one of this session'));
  }
  const last = resume === null ? {} : { lastEventId: resume.eventId };
  const answer = await deps.forwarder.send({
    method: 'GET',
    target,
    session,
    version: caller.version,
    signal: caller.gone,
    ...last,
  });
  if (isFault(answer) || answer.status !== 200 || answer.type !== 'stream') return refusal(deps, caller, verdict, answer);
  finish(deps, caller, verdict, 'ok');
  const origin = resume?.origin ?? null;
  const awaited: Awaited | null = origin && {
    ...origin,
    params: undefined,
    operation: operationOf(origin.method),
    end: (outcome) => {
      if (outcome !== 'cancelled') finish(deps, caller, { ...verdict, decisionId: origin.decisionId }, outcome);
    },
  };
  const context = { caller, target, era: 'session', session, awaited, standing: true, asked: new Map() } as const;
  return { kind: 'stream', events: relayStream(deps, context, answer), drain: false };
}

/** What a resumed answer is filtered as; only lists need more than the method's name. */
function operationOf(method: string): Operation {
  const operation = readOperation('session', method, undefined);
  return 'kind' in operation ? operation : TARGET;
}

export async function performDelete(deps: ExchangeDeps, caller: Caller, claimed: ClaimedSession): Promise<Answer> {
  const passed = await pass(deps, caller, claimed, 'DELETE');
  if ('kind' in passed) return passed;
  const { verdict, target, session } = passed;
  const answer = await deps.forwarder.send({ method: 'DELETE', target, session, version: caller.version });
  if (isFault(answer) || answer.status < 200 || answer.status > 299) return refusal(deps, caller, verdict, answer);
  answer.discard();
  finish(deps, caller, verdict, 'ok');
  return { kind: 'empty', status: 200 };
}

/** What the session header of a request came to: null where it is no session of this caller on this target. */
export type ClaimedSession = Session | 'missing' | null;

interface Passed {
  readonly verdict: Verdict & { allowed: true };
  readonly target: (Verdict & { allowed: true })['target'];
  readonly session: Session;
}

/** The decision on the target for a method without a JSON-RPC message, and only then whether there is such a session. */
async function pass(
  deps: ExchangeDeps,
  caller: Caller,
  session: ClaimedSession,
  method: 'GET' | 'DELETE',
): Promise<Passed | Answer> {
  let verdict: Verdict;
  try {
    verdict = await ask(deps, caller, method);
  } catch (cause) {
    deps.log.error({ err: cause }, 'a decision could not be recorded; the request is refused');
    return problemUnavailable(cause);
  }
  if (!verdict.allowed) {
    finish(deps, caller, verdict, 'denied');
    return problem(new AppError('not_found', noTargetText(caller.targetName)));
  }
  const { target } = verdict;
  if (session !== null && session !== 'missing' && session.place === placeOf(target)) return { verdict, target, session };
  finish(deps, caller, verdict, 'error');
  return problem(session === 'missing' ? SESSION_MISSING : SESSION_GONE);
}

/** Streams and ends that the target does not offer are its answer; the rest is told in the gateway's words. */
function refusal(deps: ExchangeDeps, caller: Caller, verdict: Verdict, answer: UpstreamAnswer | UpstreamFault): Answer {
  finish(deps, caller, verdict, isFault(answer) && answer.fault === 'aborted' ? 'cancelled' : 'upstream_error');
  if (isFault(answer)) {
    if (answer.fault !== 'aborted') {
      deps.log.warn({ target: caller.targetName, fault: answer.fault, err: answer.cause }, 'a target could not be used');
    }
    return problem(new AppError('unavailable', `The target \`${caller.targetName}\` cannot be used`, { retryAfter: 5 }));
  }
  answer.discard();
  if (answer.status === 405) {
    return problem(new AppError('method_not_allowed', 'The target does not offer this'), { allow: 'POST' });
  }
  if (answer.status === 404) return problem(SESSION_GONE);
  return problem(
    new AppError('unavailable', `The target \`${caller.targetName}\` failed (HTTP ${answer.status})`, { retryAfter: 5 }),
  );
}
