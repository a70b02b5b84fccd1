/** Requests in stateless mode (2026-07-28), and what the gateway learns of the mode of their target. */

import { type Answer, refuse } from '../../protocol/answer.ts';
import type { RpcId } from '../../protocol/message.ts';
import { SESSION_REVISIONS, STATELESS_REVISION, unsupportedVersion } from '../../protocol/mode.ts';
import type { ClientMode, RequestContext } from '../context/context.ts';
import { upstreamFault } from '../context/failure.ts';
import { accountText } from '../context/own-account.ts';
import { discoversStateless, isWrongMode } from '../upstream/modes.ts';
import { ownError, servedVersions } from '../upstream/own-error.ts';
import { isFault, type UpstreamFault } from '../upstream/upstream.ts';
import type { Reached } from './session-requests.ts';

export async function forwardStateless(
  context: RequestContext,
  { revision: version, paramHeaders: params }: ClientMode & { readonly mode: 'stateless' },
  { body, name }: { readonly body: string; readonly name: string | undefined },
): Promise<Reached | Answer> {
  const { target, access, caller, awaited } = context;
  const { id, method } = awaited;
  // Without an account, the mode of the target cannot be found out.
  const isUnconnected = access.account?.connectionId === null;
  const refused = method === 'server/discover' || isUnconnected ? null : await refuseMode(context);
  if (refused !== null) return refused;
  const stateless = { version, method, name, params };
  // In 2026-07-28 a client that closes the connection cancels its request.
  const answer = await context.deps.upstream.send({ method: 'POST', target, access, stateless, signal: caller.gone, body });
  if (isFault(answer)) {
    // A session can be opened without an account, and works with every target once there is one.
    const { account } = answer;
    if (method !== 'server/discover' || account === undefined || account.need === 'unavailable')
      return upstreamFault(context, answer);
    const refusal = unsupportedVersion(STATELESS_REVISION, SESSION_REVISIONS);
    // A client that cannot open a session shows this message and nothing else.
    const message = `${accountText(target.name, account)}, then try again, or open a session now. ${refusal.message}`;
    return refuse(id, { ...refusal, message, data: { ...(refusal.data as object), account: account.need, url: account.url } });
  }
  if (method === 'server/discover' && answer.status !== 200 && isWrongMode(answer.status)) {
    const error = await ownError(answer, id);
    const named = servedVersions(error);
    if (named !== null) context.deps.modes.learn(context, named.includes(STATELESS_REVISION));
    else if (!(await context.deps.modes.needsSession(context, caller.gone))) return { answer, error, linked: null };
    answer.discard();
    return fallBack(id, named ?? SESSION_REVISIONS);
  }
  return { answer, linked: null };
}

/** The answer to a request that was not sent, because the mode of its target could not be found out. */
function notAsked(context: RequestContext, fault: UpstreamFault): Promise<Answer> | Answer {
  if (fault.fault !== 'aborted' && fault.fault !== 'changed') context.deps.observe.failed(context.target.name, fault.fault);
  return upstreamFault(context, fault);
}

/** The answer to a request for a target that is not stateless, or whose mode cannot be found out; null: it is stateless. */
async function refuseMode(context: RequestContext): Promise<Answer | null> {
  const { deps } = context;
  const { target, access, caller, awaited } = context;
  const asked = { target, access, principal: caller.admission.principal.sub };
  // If the target's mode is known, it is not asked here, so it neither fails nor answers.
  const isKnown = deps.modes.isKnown(asked);
  const refusal = isKnown ? null : deps.health.refusal(asked);
  if (refusal !== null) return notAsked(context, refusal);
  const stateless = await deps.modes.speaksStateless({ target, access }, caller.gone);
  if (typeof stateless !== 'boolean') {
    deps.health.failed(asked, stateless.fault);
    return notAsked(context, stateless);
  }
  if (!isKnown) deps.health.answered(asked);
  return stateless ? null : fallBack(awaited.id, SESSION_REVISIONS);
}

/** The answer to `server/discover` also tells the gateway the mode of the target. */
export async function discovered(context: RequestContext, answered: Answer): Promise<Answer> {
  if (answered.kind !== 'message') return answered;
  const { deps, caller, awaited } = context;
  if (discoversStateless(answered.result)) deps.modes.learn(context, true, answered.result);
  else if (await deps.modes.needsSession(context, caller.gone)) return fallBack(awaited.id, SESSION_REVISIONS);
  return answered;
}

/** Tells the client to use a session: clients that know both modes then open one (2026-07-28, protocol version errors). */
export function fallBack(id: RpcId, supported: readonly string[]): Answer {
  return refuse(id, unsupportedVersion(STATELESS_REVISION, supported));
}
