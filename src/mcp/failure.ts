/** What a client is told when its target did not give a proper answer. */
import { isObject } from '../http/json.ts';
import { type Answer, refuse, rpcError } from './answer.ts';
import { decideShown } from './authorize.ts';
import { isWithheldError } from './capabilities.ts';
import type { Awaited, ExchangeDeps, RelayContext } from './context.ts';
import { unsupportedVersion } from './era.ts';
import { filterError } from './filter.ts';
import { CODES } from './message.ts';
import { type OwnError, ownError, servedVersions } from './own-error.ts';
import { rebuildResponse } from './rebuild.ts';
import type { UpstreamAnswer, UpstreamFault } from './upstream/upstream.ts';

export const NOT_ITS_TO_ASK = 'The target asks for something that it may not ask its clients for';

/** `read`: the error, where the answer has been read already. A JSON-RPC error in reply to this very request is the target's answer; any other failure is told in the gateway's words. */
export async function relayFailure(
  deps: ExchangeDeps,
  context: RelayContext,
  awaited: Awaited,
  answer: UpstreamAnswer,
  read?: OwnError | null,
): Promise<Answer> {
  const { id } = awaited;
  const error = read === undefined ? await ownError(answer, id) : read;
  answer.discard();
  // A target that loses its half again and again is broken; the client's half is not.
  const lost = context.linked !== null && isLostSession(answer.status, error);
  if (error !== null && !lost) {
    awaited.end('error');
    if (context.era === 'modern' && error.error.code === CODES.badSession) deps.eras.forget(context);
    if (isWithheldError(error.error, context.era, context.target.may_ask, awaited.params))
      return rpcError(id, CODES.internal, NOT_ITS_TO_ASK);
    const supported = servedVersions(error);
    if (supported !== null) return refuse(id, unsupportedVersion(requestedVersion(error), supported));
    const changed = filterError(error.error, awaited.params, decideShown(context.caller.admission, context.target.id));
    return { kind: 'message', status: answer.status, text: rebuildResponse(id, 'error', error.located, changed) };
  }
  awaited.end('upstream_error');
  if (context.era === 'modern') deps.eras.forget(context);
  deps.log.warn({ target: context.target.name, status: answer.status }, 'a target answered with a failure');
  const text = errorTextFor(context.target.name, answer.status);
  const failure = rpcError(id, CODES.internal, text);
  if (answer.status !== 429 || answer.retryAfter === null || !/^[0-9]{1,6}$/.test(answer.retryAfter)) return failure;
  return { ...failure, headers: { 'retry-after': answer.retryAfter } };
}

function requestedVersion({ error }: OwnError): string {
  const requested = isObject(error.data) ? error.data.requested : undefined;
  return typeof requested === 'string' ? requested : 'unknown';
}

/** HTTP 404 by the specification; server-everything and the SDKs' examples say it with 400. */
export function isLostSession(status: number, own: OwnError | null): boolean {
  return status === 404 || (status === 400 && own !== null && /\bsession\b/i.test(String(own.error.message)));
}

/** Nothing of what the target said: its challenges and locations are between it and the gateway. */
function errorTextFor(targetName: string, status: number): string {
  const target = `The target \`${targetName}\``;
  if (status === 401 || status === 403) return `${target} refuses the gateway's credential`;
  if (status === 429) return `${target} is limiting the rate of requests`;
  if (status >= 300 && status < 400) return `${target} redirects, which the gateway does not follow`;
  return `${target} failed (HTTP ${status})`;
}

const FAULT_TEXTS: Readonly<Record<UpstreamFault['fault'], string>> = {
  credential: 'has an unusable credential: an administrator must set it again',
  transport: 'uses a transport that this gateway does not serve',
  timeout: 'did not answer in time',
  aborted: 'was not waited for',
  unreachable: 'cannot be reached',
  too_large: 'sent an answer that is too large',
  busy: 'cannot be used: the gateway has too much open for its targets',
};

export function upstreamFault(deps: ExchangeDeps, context: RelayContext, awaited: Awaited, fault: UpstreamFault): Answer {
  awaited.end(fault.fault === 'aborted' ? 'cancelled' : 'upstream_error');
  if (fault.fault !== 'aborted') {
    deps.log.warn({ target: context.target.name, fault: fault.fault, err: fault.cause }, 'a target could not be used');
  }
  return rpcError(awaited.id, CODES.internal, `The target \`${context.target.name}\` ${FAULT_TEXTS[fault.fault]}`);
}
