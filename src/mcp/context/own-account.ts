/**
 * Sends a user to the page on which they connect their own account at a target: by URL elicitation if the client has it, else with an
 * error that holds the address.
 */
import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { isUnread } from '../../base/json/built.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { type Answer, rpcError } from '../../protocol/answer.ts';
import { ASKABLE, declaredCapabilities, isOffered, mayReceive } from '../../protocol/capabilities.ts';
import { CODES, resultMessage } from '../../protocol/message.ts';
import { mayUseTarget } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import type { AccountNeed } from '../upstream/upstream.ts';
import type { Caller, ClientRequest, RequestContext } from './context.ts';
import { readmitted } from './readmission.ts';

const TEXTS: Readonly<Record<AccountNeed['need'], string>> = {
  connect: 'is used with your own account there, and you have not connected one',
  reconnect: 'no longer accepts the account that you have connected',
  scope: 'asks for rights that the account you have connected has not given',
  unavailable: 'is used with your own account there, and its authorization server cannot be asked now. Try again later',
};

export const accountText = (targetName: string, { need, url }: AccountNeed): string =>
  `The target \`${targetName}\` ${TEXTS[need]}${need === 'unavailable' ? '' : `. Connect it at ${url}`}`;

/** The requests that may be answered with `input_required` (2026-07-28). */
const MULTI_ROUND = ['tools/call', 'prompts/get', 'resources/read'];
/** The first revision with elicitation by URL. */
const URL_REVISION = '2025-11-25';
const KEY = 'portcullis-account-';

/** How long a retry waits until the user has connected the account. Clients give a request a minute. */
const WAIT_MS = 30_000;
const POLL_MS = 500;

/** The key of the gateway's question. It differs as soon as the user has connected a different account, or connected again. */
const keyOf = (connectionId: string | null | undefined): string =>
  KEY + createHash('sha256').update(`account ${connectionId}`).digest('base64url').slice(0, 16);

export async function accountAnswer(context: RequestContext, { need, url }: AccountNeed): Promise<Answer> {
  const { mode, access, awaited, target } = context;
  const { id, method, params } = awaited;
  const message = accountText(target.name, { need, url });
  if (need === 'unavailable') return rpcError(id, CODES.internal, message);
  if (mode === 'stateless' && MULTI_ROUND.includes(method) && replyOf(params) === null) {
    const asked = { method: 'elicitation/create', params: { mode: 'url', message, url } };
    if (isOffered(declaredCapabilities(params), asked)) {
      const result = { resultType: 'input_required', inputRequests: { [keyOf(access.account?.connectionId)]: asked } };
      return { kind: 'message', status: 200, text: resultMessage(id, JSON.stringify(result)) };
    }
  }
  if (mode === 'stateful' && (await takesUrls(context))) {
    const elicitations = [{ mode: 'url', elicitationId: randomUUID(), url, message }];
    return rpcError(id, CODES.urlElicitationRequired, message, { elicitations });
  }
  return rpcError(id, CODES.internal, `${message}, then try again`, { account: need, url });
}

const ASKED: JsonObject = { method: 'elicitation/create', params: { mode: 'url' } };

/** Whether the client of the session opens addresses for its user. */
async function takesUrls({ deps, awaited: { method, params, client } }: RequestContext): Promise<boolean> {
  if (method === 'initialize') {
    const { protocolVersion, capabilities } = params ?? {};
    return protocolVersion === URL_REVISION && isObject(capabilities) && isOffered(capabilities, ASKED);
  }
  const session = client?.mode === 'stateful' ? client.session : null;
  if (session === null || session === 'unknown' || session.revision !== URL_REVISION) return false;
  const row = await deps.sessions.find(session.id).catch(() => null);
  return row !== null && isOffered(row.client.capabilities, ASKED);
}

interface Reply {
  readonly key: string;
  readonly isAccepted: boolean;
}

/** The client's reply to the gateway's own question; null: there is none. */
function replyOf(params: JsonObject | undefined): Reply | null {
  const responses = params?.inputResponses;
  if (!isObject(responses) || isUnread(responses)) return null;
  const key = Object.keys(responses).find((name) => name.startsWith(KEY));
  if (key === undefined) return null;
  const reply = responses[key];
  return { key, isAccepted: isObject(reply) && reply.action === 'accept' };
}

/**
 * Returns the replies that are for the target and that it may ask for at this moment, whatever it was allowed when it asked; undefined: there
 * are none; null: nothing changes.
 */
export function targetReplies(
  { own_accounts, may_ask }: RoutedTarget,
  params: JsonObject | undefined,
): JsonObject | undefined | null {
  const responses = params?.inputResponses;
  const mayAskAll = ASKABLE.every((one) => may_ask.includes(one));
  const isOwnAsked = own_accounts !== null && replyOf(params) !== null;
  if (responses === undefined || (mayAskAll && !isOwnAsked)) return null;
  // Replies with too many values are not read, so nobody knows what they answer.
  if (!isObject(responses) || isUnread(responses)) return undefined;
  const mayHave = (reply: JsonValue): boolean => mayAskAll || (!isUnread(reply) && mayReceive(may_ask, reply));
  const kept = Object.entries(responses).filter(([name, reply]) => !(isOwnAsked && name.startsWith(KEY)) && mayHave(reply));
  return kept.length === 0 ? undefined : Object.fromEntries(kept);
}

export const mayReply = ({ client, message: { params } }: ClientRequest): boolean =>
  client.mode === 'stateless' && params?.inputResponses !== undefined;

/**
 * For a retry whose user has gone to connect the account: waits until it is connected, and returns the caller as they are then. A user who
 * takes longer is asked again. null: the caller is refused by then, or the state cannot be read.
 */
export async function whenConnected(caller: Caller, { message }: ClientRequest): Promise<Caller | null> {
  const reply = replyOf(message.params);
  if (reply === null || !reply.isAccepted) return caller;
  const { deps, targetName, gone } = caller;
  const until = deps.now() + WAIT_MS;
  let current = caller;
  for (;;) {
    const { snapshot, principal } = current.admission;
    const target = snapshot.targets.get(targetName);
    // Check access first: a wait would show a caller who may not use the target that it exists (law 10).
    const account =
      target !== undefined && mayUseTarget(current.admission, target) ? target.accessOf(principal).account : undefined;
    if (account === undefined || keyOf(account.connectionId) !== reply.key || deps.now() > until || gone.aborted) return current;
    await sleep(POLL_MS);
    const next = await readmitted(caller);
    if (next === null) return null;
    current = next;
  }
}
