/** The answers that a client gets when its request is denied, or its target fails. */

import { isObject, type JsonObject } from '../../base/json/json.ts';
import type { Now } from '../../base/promises.ts';
import { restInLane } from '../../base/turns/lane.ts';
import type { NamedObject } from '../../engine/decision.ts';
import { type Answer, noTarget, refuse, rpcError, unavailable } from '../../protocol/answer.ts';
import { isWithheldError, NOT_ITS_TO_ASK } from '../../protocol/capabilities.ts';
import { CODES, type RpcId, type RpcRequest } from '../../protocol/message.ts';
import { type Mode, unsupportedVersion } from '../../protocol/mode.ts';
import type { Operation } from '../../protocol/operation.ts';
import { type MemberTexts, rebuildResponse } from '../../protocol/rebuild.ts';
import type { Access, Target } from '../../targets/target.ts';
import { filterError } from '../filter/filter-parts.ts';
import type { McpLimits } from '../limits/limits.ts';
import { isTaskMethod, TASK_NOT_FOUND } from '../sessions/tasks.ts';
import { isWrongMode } from '../upstream/modes.ts';
import { type OwnError, ownError, servedVersions } from '../upstream/own-error.ts';
import { type Hiding, hideSecrets } from '../upstream/stdio/stderr.ts';
import { isFault, openingOf, silenceOf, type Upstream, type UpstreamAnswer, type UpstreamFault } from '../upstream/upstream.ts';
import type { Verdict } from './authorize.ts';
import { type Caller, type RequestContext, type RequestDeps, turnsOf, type UpstreamContext } from './context.ts';
import { accountAnswer, accountText } from './own-account.ts';
import { filteredNow, UndecidedFault } from './readmission.ts';

/** A target that failed, and the services with which that is described and noted. */
export interface FailedContext extends Pick<UpstreamContext, 'target' | 'access'> {
  readonly deps: Pick<RequestDeps, 'health' | 'limits' | 'log' | 'upstream'>;
}

/**
 * Answers for a target that answered with a failure. A JSON-RPC error in reply to this very request is the target's answer and
 * is relayed; any other failure is described in the gateway's words. `read`: the error, if the answer has already been read.
 */
export async function forwardFailure(context: RequestContext, answer: UpstreamAnswer, read?: OwnError | null): Promise<Answer> {
  const { deps } = context;
  const { awaited } = context;
  const { id } = awaited;
  const error = read === undefined ? await ownError(answer, id) : read;
  answer.discard();
  // A target that keeps losing its session is broken, but the client's session is not.
  const lost = context.linked !== null && isLostSession(answer.status, error);
  if (error !== null && !lost) {
    awaited.end('error');
    if (context.mode === 'stateless' && error.error.code === CODES.badSession) deps.modes.forget(context);
    if (isWithheldError(error.error, context.mode, context.target.may_ask, awaited.params))
      return rpcError(id, CODES.internal, NOT_ITS_TO_ASK);
    const supported = servedVersions(error);
    if (supported !== null) return refuse(id, unsupportedVersion(requestedVersion(error), supported));
    const changed = await shownError(context, error.error);
    if (changed === null) return unavailable(id);
    return { kind: 'message', status: answer.status, text: rebuildResponse(id, 'error', error.located, changed) };
  }
  awaited.end('upstream_error');
  // Other failures do not tell of the mode, and any caller can cause some: each would cost the others a `server/discover`.
  if (context.mode === 'stateless' && answer.status !== 200 && isWrongMode(answer.status)) deps.modes.forget(context);
  const failure = rpcError(id, CODES.internal, await noteFailure(context, answer, awaited.method === 'initialize'));
  if (answer.status !== 429 || answer.retryAfter === null || !/^[0-9]{1,6}$/.test(answer.retryAfter)) return failure;
  return { ...failure, headers: { 'retry-after': answer.retryAfter } };
}

/** The members of a target's error that must change before the caller sees it. null: nothing can decide what it may show. */
export function shownError({ caller, target, awaited }: RequestContext, error: JsonObject): Now<MemberTexts | null> {
  const changes = filteredNow(caller, target.id, (decide) =>
    restInLane(turnsOf(caller, target.id), filterError(error, awaited.params, decide)),
  );
  if (!(changes instanceof Promise)) return changes;
  return changes.catch((err: unknown) => {
    if (err instanceof UndecidedFault) return null;
    throw err;
  });
}

/**
 * Returns the text for the caller about an answer that is a failure. Administrators find more in the log and in the health of the target.
 * `opens`: the request was to open a session.
 */
export async function noteFailure(
  { deps, target, access }: FailedContext,
  answer: UpstreamAnswer,
  opens: boolean,
): Promise<string> {
  const location = answer.location ? shownLocation(answer.location, access) : undefined;
  deps.log.warn({ target: target.name, status: answer.status, location }, 'target answered with a failure');
  const isSse = opens && NO_SUCH_POST.includes(answer.status) && (await isSseServer(deps.upstream, { target, access }));
  const text = isSse ? IS_SSE : errorTextFor(answer.status);
  deps.health.note(target, 'http', location === undefined ? text : `${text}: it redirects to ${location}`, null);
  return `The target \`${target.name}\` ${text}`;
}

/**
 * Returns the text for the caller about a JSON-RPC error with which a target refuses a request of the gateway's own. Administrators also find what
 * the target said.
 */
export function noteRefusal({ deps, target, access }: FailedContext, method: string, error: JsonObject): string {
  const { message } = error;
  const code = typeof error.code === 'number' ? error.code : null;
  const text = `refused \`${method}\` with a JSON-RPC error`;
  const said = typeof message === 'string' ? saidTo(access, message) : '';
  deps.log.warn({ target: target.name, method, code }, 'target refused a request of the gateway');
  deps.health.note(target, 'http', text, new Error(`${said} (code ${code})`));
  return `The target \`${target.name}\` ${text}`;
}

/** A target can repeat the token of a user's own account, which is not known here. */
function saidTo(access: Access, message: string): string {
  if (access.account !== undefined) return 'its message is not shown, because it may contain the token of the account';
  const { hide, cut } = hiding(access);
  return hide(message.length > SAID_LENGTH ? message.slice(0, cut(message, SAID_LENGTH)) : message);
}

/** Searching for secrets takes long in a long text. */
const SAID_LENGTH = 4_000;

/** Hides the credential of the gateway in the words of a target. */
function hiding({ credentials }: Access): Hiding {
  // After a scheme such as `Basic`, the rest is the secret, too.
  const values =
    credentials === 'unusable'
      ? []
      : [...credentials.headers.flatMap(([, value]) => [value, value.replace(/^\S+ +/, '')]), ...Object.values(credentials.env)];
  return hideSecrets(values);
}

/** The address to which a target redirects, for administrators, without user, query and credential, which may be secret. */
const shownLocation = (location: string, access: Access): string =>
  hiding(access)
    .hide(location)
    .replace(/[?#].*/s, '?[redacted]')
    .replace(/\/\/[^/]*@/, '//[redacted]@');

function requestedVersion({ error }: OwnError): string {
  const requested = isObject(error.data) ? error.data.requested : undefined;
  return typeof requested === 'string' ? requested : 'unknown';
}

/** Whether the target no longer knows the session: HTTP 404 by the specification, 400 in server-everything and SDK examples. */
export function isLostSession(status: number, own: OwnError | null): boolean {
  return status === 404 || (status === 400 && own !== null && /\bsession\b/i.test(String(own.error.message)));
}

/** Describes a status without repeating the target's words: its challenges and locations concern only the gateway. */
function errorTextFor(status: number): string {
  if (status === 401 || status === 403) return `refuses the gateway's credential (HTTP ${status})`;
  if (status === 429) return 'is limiting the rate of requests';
  if (status >= 300 && status < 400) {
    return 'redirects, which the gateway does not follow: an administrator must set the address that it redirects to';
  }
  if (status === 200)
    return 'answered with something other than JSON or an event stream: an administrator must check its address';
  return `failed (HTTP ${status})`;
}

/** The statuses with which servers refuse a POST. */
const NO_SUCH_POST = [400, 404, 405, 406];
const IS_SSE = 'speaks HTTP with SSE, not Streamable HTTP: an administrator must set its transport to `sse`';
const PROBE_MS = 3_000;

/** Whether the target answers a GET with a stream that begins with an `endpoint` event (2025-11-25, backwards compatibility). */
async function isSseServer(upstream: Upstream, { target, access }: Pick<UpstreamContext, 'target' | 'access'>): Promise<boolean> {
  if (target.transport !== 'streamable-http') return false;
  const answer = await upstream.send({ method: 'GET', target, access, signal: AbortSignal.timeout(PROBE_MS) });
  if (isFault(answer)) return false;
  try {
    if (answer.type !== 'stream') return false;
    for await (const [first] of answer.events) return first?.event === 'endpoint';
    return false;
  } catch {
    return false;
  } finally {
    answer.discard();
  }
}

/** `opening`: the fault occurred while a session was being opened. */
type FaultText = (fault: UpstreamFault, limits: McpLimits, target: Pick<Target, 'timeout_ms'>, opening: boolean) => string;

const seconds = (ms: number): string => `${Math.round(ms / 100) / 10} s`;

/**
 * What callers read about each kind of fault: the kind, the limit, and the setting of that limit. The texts contain no address,
 * and nothing that the target said or printed.
 */
const FAULT_TEXTS: Readonly<Record<UpstreamFault['fault'], string | FaultText>> = {
  credential: 'has an unusable credential: an administrator must set it again',
  transport: 'uses a transport or a command that this gateway does not serve: an administrator must change it',
  timeout: ({ withinMs }, limits, target, opening) =>
    opening || withinMs !== undefined
      ? `did not open a session within ${seconds(withinMs ?? openingOf(target, limits))}`
      : `did not answer in time: it may be silent for ${seconds(silenceOf(target, limits))} (\`timeout_ms\` of the target, or UPSTREAM_TIMEOUT_MS)`,
  aborted: 'did not answer before the request was cancelled',
  unreachable: 'cannot be reached',
  denied_address: 'has an address that the gateway does not connect to: an administrator must change it',
  crashed: 'ended before it answered',
  broken_off: 'closed the connection before its answer was complete',
  malformed: 'sent no valid answer',
  too_large: (_, { answerBytes }) =>
    `sent an answer that is too large: at most ${answerBytes} bytes are read (UPSTREAM_ANSWER_BYTES)`,
  busy: 'cannot be used now: the gateway has reached a limit on what it keeps open for targets. Try again later',
  account: 'needs an account of the user',
  changed: 'was not asked, because it or your access has changed while the request waited: send it again',
  suspended: ({ until }) =>
    until === undefined
      ? 'does not answer at the moment: the gateway keeps trying'
      : `failed before; the gateway does not ask it again before ${new Date(until).toISOString()}`,
};

export function upstreamFault(context: RequestContext, fault: UpstreamFault): Answer | Promise<Answer> {
  const { awaited } = context;
  if (fault.account !== undefined) {
    awaited.end('upstream_error');
    return accountAnswer(context, fault.account);
  }
  if (fault.fault === 'changed' && fault.cause !== undefined) {
    awaited.end('error');
    return unavailable(awaited.id);
  }
  awaited.end(fault.fault === 'aborted' ? 'cancelled' : fault.fault === 'changed' ? 'error' : 'upstream_error');
  const text = noteFault(context, fault, awaited.method);
  const answer = rpcError(awaited.id, CODES.internal, text);
  if (fault.fault !== 'suspended') return answer;
  const wait = Math.max(1, Math.ceil(((fault.until ?? 0) - context.deps.now()) / 1_000));
  return { ...answer, headers: { 'retry-after': String(wait) } };
}

/** Returns the text for the caller. Administrators find the cause in the log and in the health of the target. */
export function noteFault(
  { deps, target }: Omit<FailedContext, 'access'>,
  fault: UpstreamFault,
  method: string | undefined,
): string {
  if (fault.account !== undefined) return accountText(target.name, fault.account);
  const said = FAULT_TEXTS[fault.fault];
  const text = typeof said === 'string' ? said : said(fault, deps.limits, target, method === 'initialize');
  if (!['aborted', 'suspended', 'changed'].includes(fault.fault)) {
    deps.log.warn({ target: target.name, fault: fault.fault, err: fault.cause }, 'target could not be used');
    deps.health.note(target, fault.fault, text, fault.cause);
  }
  return `The target \`${target.name}\` ${text}`;
}

/** Returns the answer to a denied request. It depends on policies and the name alone, so it reveals nothing about the target. */
export function denied(
  { admission, targetName }: Caller,
  mode: Mode,
  { id, method }: RpcRequest,
  operation: Operation,
  { answer, decisionId: decision_id, reason }: Verdict & { allowed: false },
): Answer {
  if (answer === 'no_target') return noTarget(id, targetName);
  const object = operation.kind === 'object' ? operation.object : null;
  if (object !== null && admission.snapshot.targets.get(targetName)?.denials === 'hidden') {
    return isTaskMethod(method) ? rpcError(id, CODES.invalidParams, TASK_NOT_FOUND) : unknownObject(id, mode, object);
  }
  const what =
    object === null
      ? `target \`${targetName}\``
      : `${object.resource_type} \`${object.resource_name}\` of target \`${targetName}\``;
  // Most clients show their user only the message.
  const why =
    reason === 'not_canonical'
      ? `its URI is not in canonical form (decision ${decision_id})`
      : `policy does not allow it. To get access, ask an administrator about decision ${decision_id}`;
  return rpcError(id, CODES.denied, `${what} is denied: ${why}`, { decision_id, reason });
}

/** The answer to a name that does not exist. The target is not asked, so the answer does not tell whether the name exists. */
function unknownObject(id: RpcId, mode: Mode, { resource_type, resource_name }: NamedObject): Answer {
  if (resource_type !== 'resource') return rpcError(id, CODES.invalidParams, `Unknown ${resource_type}: ${resource_name}`);
  const code = mode === 'stateless' ? CODES.invalidParams : CODES.resourceNotFound;
  return rpcError(id, code, 'Resource not found', { uri: resource_name });
}
