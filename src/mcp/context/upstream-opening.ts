/** Opens an upstream session at a target, and gives it the settings of the client's session. */

import { createHash } from 'node:crypto';
import { type Principal, principalKey } from '../../auth/principal.ts';
import { isUnread } from '../../base/json/built.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { decodeLarge, readLargeJson } from '../../base/json/large.ts';
import { TARGET_RULES } from '../../base/json/selection.ts';
import type { Log } from '../../base/log.ts';
import { partInTurnOf } from '../../base/turns/caller-turns.ts';
import { restInLane } from '../../base/turns/lane.ts';
import { decided } from '../../engine/estimate.ts';
import { reduceClientCapabilities } from '../../protocol/capabilities.ts';
import type { ClientHello } from '../../protocol/hello.ts';
import { isSessionRevision } from '../../protocol/mode.ts';
import { resourceOf } from '../../protocol/uri.ts';
import type { SessionSetting } from '../../sessions/session-store.ts';
import { type Admission, decideListed } from '../../state/admission.ts';
import type { Access, RoutedTarget } from '../../targets/target.ts';
import type { McpLimits } from '../limits/limits.ts';
import { AGGREGATE, type Session, type UpstreamSession } from '../sessions/sessions.ts';
import type { Asked, Health } from '../upstream/health.ts';
import { faultOf, readAll } from '../upstream/http.ts';
import type { Attempt, Pace } from '../upstream/pace.ts';
import { chargedTo } from '../upstream/reading-turns.ts';
import {
  isFault,
  isStillAllowed,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamRequest,
} from '../upstream/upstream.ts';
import type { Caller } from './context.ts';
import { accessFor } from './readmission.ts';

/** A session at one target, with the caller's current access. */
export interface SessionTarget {
  readonly session: Session;
  readonly target: RoutedTarget;
  readonly access: Access;
  readonly admission: Admission;
}

export function sessionAt(session: Session, target: RoutedTarget, caller: Caller): SessionTarget {
  return { session, target, access: accessFor(caller, target), admission: caller.admission };
}

/** The target, access and principal for which an upstream session is opened. */
export function askedAt({ target, access, admission }: SessionTarget): Asked {
  return { target, access, principal: admission.principal.sub };
}

/** The parts of requests to several targets that one principal has under way at once. Slow parts do not count. */
export const ASKED_AT_ONCE = 8;

/** Does the work for one of several targets. A request to a hundred targets takes turns with the requests of others. */
export function turnToAsk<R>(principal: Pick<Principal, 'sub'>, work: () => Promise<R>): Promise<R> {
  return partInTurnOf(principalKey(principal), ASKED_AT_ONCE, work);
}

/** The part of the target's answer to `initialize` that is kept. */
export interface ServerHello {
  readonly capabilities: JsonObject;
}

export interface OpeningParts {
  readonly upstream: Upstream;
  readonly limits: McpLimits;
  readonly health: Health;
  readonly pace: Pace;
  readonly log: Log;
}

/** The id of the gateway's own requests. */
export const OWN_ID = 'portcullis';
const INITIALIZED = { jsonrpc: '2.0', method: 'notifications/initialized' };
const LEVEL = 'level';
/** The longest log level of the protocol has nine characters. */
const MAX_LEVEL_LENGTH = 64;
const MAX_HELLO_BYTES = 1024 * 1024;
/** Larger capabilities are not kept, because they would stay in memory as long as the upstream session is known. */
const MAX_CAPABILITIES_LENGTH = 16 * 1024;
export const OPENING = 'initialize';
export const LATE: UpstreamFault = { fault: 'suspended' };

/** Opens an upstream session. Returns a fault at once if the circuit breaker suspends the target. `asking`: called when `initialize` is sent. */
export async function openAt(
  { health, pace, limits, ...parts }: OpeningParts,
  sessionTarget: SessionTarget,
  client: ClientHello,
  asking: (attempt: Attempt) => void,
): Promise<{ link: UpstreamSession; hello: ServerHello | null } | UpstreamFault> {
  const asked = askedAt(sessionTarget);
  const refusal = health.refusal(asked);
  if (refusal !== null) return refusal;
  const attempt = pace.begin(asked, OPENING);
  const overdue = (): void => {
    if (attempt.overdue()) health.failed(asked, 'timeout');
  };
  const isAggregate = sessionTarget.session.fingerprint === AGGREGATE;
  const timer = isAggregate ? setTimeout(overdue, limits.joinMs).unref() : undefined;
  asking(attempt);
  const opened = await introduce({ ...parts, limits }, sessionTarget, client).finally(() => clearTimeout(timer));
  if (!isFault(opened)) health.answered(asked);
  else {
    if (isAggregate && opened.fault === 'timeout') overdue();
    else health.failed(asked, opened.fault);
    if (opened.fault !== 'suspended' && opened.fault !== 'account' && opened.fault !== 'changed')
      health.note(sessionTarget.target, opened.fault, 'no session could be opened', opened.cause);
  }
  attempt.ended(!isFault(opened));
  return opened;
}

async function introduce(
  { upstream, limits }: Pick<OpeningParts, 'upstream' | 'limits'>,
  { target, access, session }: SessionTarget,
  client: ClientHello,
): Promise<{ link: UpstreamSession; hello: ServerHello | null } | UpstreamFault> {
  const params = {
    protocolVersion: session.revision,
    capabilities: reduceClientCapabilities(client.capabilities, 'stateful', target.may_ask),
    clientInfo: client.clientInfo,
  };
  const body = JSON.stringify({ jsonrpc: '2.0', id: OWN_ID, method: 'initialize', params });
  const signal = AbortSignal.timeout(limits.openMs);
  const late: UpstreamFault = { fault: 'timeout', withinMs: limits.openMs };
  const answer = await upstream.send({ method: 'POST', target, access, body, signal });
  if (isFault(answer)) return answer.fault === 'aborted' ? { ...late, cause: answer.cause } : answer;
  const result = await resultOf(answer, Math.min(MAX_HELLO_BYTES, limits.answerBytes), target.id);
  if (result === null || !isSessionRevision(result.protocolVersion) || !isObject(result.capabilities)) {
    if (signal.aborted) return late;
    return { fault: 'malformed', cause: new Error(`initialize was answered with HTTP ${answer.status} and no session`) };
  }
  const { protocolVersion, capabilities } = result;
  const link: UpstreamSession = { upstreamId: answer.sessionId, revision: protocolVersion };
  return { link, hello: JSON.stringify(capabilities).length > MAX_CAPABILITIES_LENGTH ? null : { capabilities } };
}

/**
 * Sends the client's settings to a new upstream session: the client would not repeat them. One timeout covers all. Those of resources that the
 * caller may no longer use are left out.
 */
export async function setUp(
  parts: OpeningParts,
  sessionTarget: SessionTarget,
  link: UpstreamSession,
  settings: readonly SessionSetting[],
): Promise<void> {
  const { limits, log } = parts;
  const uris = settings.filter(({ key }) => key !== LEVEL).map(({ value }) => value);
  const { admission, target, access } = sessionTarget;
  const steps = decided(decideListed(admission, target.id), uris.map(resourceOf));
  const allowed = await restInLane(principalKey(admission.principal), steps);
  const signal = AbortSignal.timeout(limits.openMs);
  const level = settings.find(({ key }) => key === LEVEL)?.value;
  if (level !== undefined) await post(parts, sessionTarget, link, 'POST', request('logging/setLevel', { level }), signal);
  for (const [index, uri] of uris.entries()) {
    if (allowed[index] !== true || !(await isStillAllowed(access, [resourceOf(uri)]))) continue;
    if (signal.aborted) return log.warn({ target: target.name }, 'restoring settings of an upstream session timed out');
    await post(parts, sessionTarget, link, 'POST', request('resources/subscribe', { uri }), signal);
  }
}

export async function announce(parts: OpeningParts, sessionTarget: SessionTarget, link: UpstreamSession): Promise<void> {
  const { pace } = parts;
  const attempt = pace.begin(askedAt(sessionTarget), INITIALIZED.method);
  await pace.wait(
    askedAt(sessionTarget),
    INITIALIZED.method,
    post(parts, sessionTarget, link, 'POST', INITIALIZED).then(attempt.ended),
  );
}

export async function post(
  { upstream, limits, log }: OpeningParts,
  { target, access }: SessionTarget,
  link: UpstreamSession,
  method: 'POST' | 'DELETE',
  message?: object,
  signal = AbortSignal.timeout(limits.openMs),
): Promise<boolean> {
  const request: UpstreamRequest = {
    method,
    target,
    access,
    session: link,
    version: link.revision,
    signal,
    ...(message === undefined ? {} : { body: JSON.stringify(message) }),
  };
  const answer = await upstream.send(request);
  if (isFault(answer)) {
    log.warn({ target: target.name, fault: answer.fault, err: answer.cause }, 'setting up an upstream session failed');
    return false;
  }
  if (message !== undefined && 'id' in message) await resultOf(answer, MAX_HELLO_BYTES, target.id);
  else answer.discard();
  return true;
}

export function request(method: string, params: JsonObject): object {
  return { jsonrpc: '2.0', id: OWN_ID, method, params };
}

/** What a target answers to a request of the gateway's own: a result, or the JSON-RPC error with which it refuses. */
export type OwnAnswer = { readonly result: JsonObject } | { readonly error: JsonObject };

/** Returns the answer to the gateway's own request, which comes as JSON or in a stream, or why there is none. Never rejects. */
export async function ownAnswer(answer: UpstreamAnswer, maxBytes: number, targetId: string): Promise<OwnAnswer | UpstreamFault> {
  try {
    if (answer.status !== 200) return NO_ANSWER;
    if (answer.type !== 'stream') {
      const bytes = await readAll(answer, maxBytes);
      if (isFault(bytes)) return bytes;
      const text = await decodeLarge(bytes, targetId);
      return (text === null ? null : ownAnswerIn(await readLargeJson(text, TARGET_RULES, targetId))) ?? NO_ANSWER;
    }
    for await (const events of answer.events) {
      for (const event of events) {
        const { length } = event.data;
        const read = (): ReturnType<typeof readLargeJson> => readLargeJson(event.data, TARGET_RULES, targetId);
        const found = length === 0 ? null : ownAnswerIn(await chargedTo(targetId, length, read));
        if (found !== null) return found;
        event.data = '';
      }
    }
    return NO_ANSWER;
  } catch (cause) {
    return { fault: faultOf(cause), cause };
  } finally {
    answer.discard();
  }
}

const NO_ANSWER: UpstreamFault = { fault: 'malformed', cause: new Error('the answer has no JSON-RPC response to the request') };

function ownAnswerIn(reading: { readonly ok: boolean; readonly value?: JsonValue }): OwnAnswer | null {
  const message = reading.ok ? reading.value : undefined;
  if (!isObject(message) || message.id !== OWN_ID) return null;
  const { result, error } = message;
  if (isObject(error) && !isUnread(error)) return { error };
  return isObject(result) && !isUnread(result) && !isUnread(result.capabilities) ? { result } : null;
}

/** Returns the result of the gateway's own request. null: there is none. */
async function resultOf(answer: UpstreamAnswer, maxBytes: number, targetId: string): Promise<JsonObject | null> {
  const found = await ownAnswer(answer, maxBytes, targetId);
  return 'result' in found ? found.result : null;
}

/** The setting in a request that the target has accepted. The gateway repeats it to a new upstream session. null: no setting. */
export function settingOf(
  method: string,
  params: JsonObject | undefined,
): { readonly setting: SessionSetting; readonly on: boolean } | null {
  const { uri, level } = params ?? {};
  if (method === 'logging/setLevel' && typeof level === 'string' && level.length <= MAX_LEVEL_LENGTH)
    return { setting: { key: LEVEL, value: level }, on: true };
  if (typeof uri !== 'string' || (method !== 'resources/subscribe' && method !== 'resources/unsubscribe')) return null;
  const key = createHash('sha256').update(uri).digest('hex');
  return { setting: { key, value: uri }, on: method === 'resources/subscribe' };
}
