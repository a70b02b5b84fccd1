/**
 * Wraps the transport of targets with own accounts. It adds the user's own token to each request, and answers in the place of the
 * target if the user has connected no account. `tokens.ts` renews the tokens. The rest of the gateway sees such a target like any
 * other.
 */
import { onAbort } from '../base/cancellation.ts';
import { isObject } from '../base/json/json.ts';
import { keep } from '../base/kept.ts';
import { deferred } from '../base/promises.ts';
import { jsonAnswer, statusAnswer, streamAnswer } from '../mcp/upstream/answers.ts';
import { hideSecrets } from '../mcp/upstream/stdio/stderr.ts';
import {
  type AccountNeed,
  ifStillAllowed,
  isFault,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamRequest,
} from '../mcp/upstream/upstream.ts';
import { isId, readMessage, resultMessage } from '../protocol/message.ts';
import { isSessionRevision, SESSION_REVISIONS } from '../protocol/mode.ts';
import type { SseEvent } from '../protocol/sse.ts';
import { hasOwnAccounts } from '../targets/connections.ts';
import type { Access, Credentials, Target } from '../targets/target.ts';
import { readChallenge, scopesOf } from './challenge.ts';
import type { ConnectionAt, HeldToken, NoToken, TokenKeeper } from './tokens.ts';

export interface AccountUpstreamParts {
  readonly tokens: TokenKeeper;
  /** The address at which a user connects an account at a target. */
  readonly linkTo: (target: Pick<Target, 'id' | 'name'>, user: string) => string;
}

type Answered = UpstreamAnswer | UpstreamFault;

const KEPT = 10_000;

/** Returns how to wrap the upstream of a transport. */
export function createAccountUpstream({ tokens, linkTo }: AccountUpstreamParts): (upstream: Upstream) => Upstream {
  /** The scopes that a target asked for, by connection, so that a repeated call does not write them again. */
  const wanted = new Map<string, string>();

  function fault({ target, access }: UpstreamRequest, need: AccountNeed['need'], cause?: unknown): UpstreamFault {
    return { fault: 'account', account: { need, url: linkTo(target, access.user) }, ...(cause === undefined ? {} : { cause }) };
  }

  /** The user can have connected again, or lost the account, while the request waited. Only then should they not connect it now. */
  const reconnect = (request: UpstreamRequest, cause?: unknown): Promise<Answered> =>
    ifStillAllowed(request, async () => fault(request, 'reconnect', cause));

  const without = async (request: UpstreamRequest, { none, cause }: NoToken): Promise<Answered> =>
    none === 'unavailable' ? fault(request, 'unavailable', cause) : (waiting(request) ?? reconnect(request, cause));

  return (upstream) => {
    const sendWith = (request: UpstreamRequest, { credentials }: HeldToken): Promise<Answered> =>
      upstream.send({ ...request, access: accessWith(request.access, credentials) });

    /** Administrators see where a target redirects to: it must not show them the token in there. */
    function redacted(answer: UpstreamAnswer, { credentials: { headers } }: HeldToken): UpstreamAnswer {
      const { location } = answer;
      if (!location) return answer;
      const hiding = hideSecrets(headers.map(([, value]) => value.replace(/^Bearer /, '')));
      return { ...answer, location: hiding.hide(location) };
    }

    async function refusedBy(
      request: UpstreamRequest,
      at: ConnectionAt,
      token: HeldToken,
      answer: UpstreamAnswer,
    ): Promise<Answered> {
      const challenge = readChallenge(answer.challenge);
      if (challenge?.error === 'insufficient_scope') {
        answer.discard();
        const scopes = scopesOf(challenge.scope);
        const key = scopes.join(' ');
        if (wanted.get(at.id) !== key) {
          await tokens.wants(at.id, scopes);
          keep(wanted, at.id, key, KEPT);
        }
        return fault(request, 'scope');
      }
      if (answer.status !== 401) return redacted(answer, token);
      answer.discard();
      const other = await tokens.afterRefusal(at, token);
      if ('none' in other) return without(request, other);
      const again = await sendWith(request, other);
      if (isFault(again)) return again;
      if (again.status !== 401) return redacted(again, other);
      again.discard();
      return reconnect(request);
    }

    const refused = (...[request, ...rest]: Parameters<typeof refusedBy>): Promise<Answered> =>
      refusedBy(request, ...rest).catch((cause: unknown) => fault(request, 'unavailable', cause));

    /** Every call with a fresh token comes here, so nothing is awaited but the target. */
    const sendAs = (request: UpstreamRequest, at: ConnectionAt, token: HeldToken): Promise<Answered> =>
      sendWith(request, token).then((answer) => {
        if (isFault(answer)) return answer;
        const { status } = answer;
        return status === 401 || status === 403 ? refused(request, at, token, answer) : redacted(answer, token);
      });

    async function sendOnce(request: UpstreamRequest, at: ConnectionAt): Promise<Answered> {
      let token: HeldToken | NoToken;
      try {
        token = await tokens.get(at);
      } catch (cause) {
        return fault(request, 'unavailable', cause);
      }
      return 'none' in token ? without(request, token) : sendAs(request, at, token);
    }

    return {
      send(request) {
        const { target, access } = request;
        const { account } = access;
        if (account === undefined || !hasOwnAccounts(target)) return upstream.send(request);
        if (account.connectionId === null) return Promise.resolve(waiting(request) ?? fault(request, 'connect'));
        const at: ConnectionAt = { id: account.connectionId, target, user: access.user };
        const token = tokens.fresh(at);
        return token === null ? sendOnce(request, at) : sendAs(request, at, token);
      },
      close: () => upstream.close(),
    };
  };
}

/** The members are listed one by one because every call comes here: spreading an object is slow. */
const accessWith = ({ account, scope, user, binding, stillAllowed }: Access, credentials: Credentials): Access =>
  account === undefined
    ? { credentials, scope, user, binding, stillAllowed }
    : { credentials, account, scope, user, binding, stillAllowed };

/** The id of an upstream session that waits until the user has connected an account. The target then knows no such session. */
const WAITING = 'portcullis-waiting';
const MAX_LENGTH = 64 * 1024;
/** As at the aggregate endpoint: what the target lacks is answered like an unknown method. */
const CAPABILITIES = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { listChanged: true },
};

/**
 * The gateway's answer for a target at which the user has no account; null: the user must connect first. A session can be opened, so that
 * clients stay and get the target's own tools as soon as the account is connected: the binding of the session changes then.
 */
function waiting({ method, body = '', stateless, signal, target }: UpstreamRequest): UpstreamAnswer | null {
  if (stateless !== undefined) return null;
  switch (method) {
    case 'DELETE':
      return statusAnswer(200);
    case 'GET': {
      const over = deferred();
      onAbort(signal, () => over.resolve());
      return streamAnswer(silent(over.promise), () => over.resolve());
    }
    case 'POST': {
      const message = body.length > MAX_LENGTH ? null : parsed(body);
      if (message === null) return null;
      if (message.kind !== 'request') return message.kind === 'invalid' ? null : statusAnswer(202);
      const { id, params } = message;
      if (message.method === 'ping') return jsonAnswer(200, resultMessage(id, '{}'));
      if (message.method !== 'initialize' || !isId(id)) return null;
      const asked = params?.protocolVersion;
      const result = {
        protocolVersion: isSessionRevision(asked) ? asked : SESSION_REVISIONS[0],
        capabilities: CAPABILITIES,
        serverInfo: { name: target.name, version: '0' },
      };
      return { ...jsonAnswer(200, resultMessage(id, JSON.stringify(result))), sessionId: WAITING };
    }
  }
}

function parsed(body: string): ReturnType<typeof readMessage> | null {
  try {
    const value: unknown = JSON.parse(body);
    return isObject(value as never) ? readMessage(value as never) : null;
  } catch {
    return null;
  }
}

// biome-ignore lint/correctness/useYield: nothing is sent until the stream ends
async function* silent(over: Promise<void>): AsyncGenerator<readonly SseEvent[]> {
  await over;
}
