/**
 * The aggregate endpoint: one session with the client, and an upstream session at each target that the caller may use. Each
 * message to a target is decided, recorded and checked as on that target's own endpoint. Here only names are changed.
 */

import type { JsonSpan } from '../../base/json/json.ts';
import { ACCEPTED, type Answer, finalOf, noSession, type OutEvent, refuse, unavailable } from '../../protocol/answer.ts';
import { mergeServerCapabilities } from '../../protocol/capabilities.ts';
import {
  CODES,
  type RpcNotification,
  type RpcRequest,
  type RpcResponse,
  resultMessage,
  wholeText,
} from '../../protocol/message.ts';
import { isSessionRevision, LOG_LEVELS, SESSION_REVISIONS } from '../../protocol/mode.ts';
import type { Located } from '../../protocol/rebuild.ts';
import { EVERY_TARGET } from '../../sessions/session-store.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { authorizeUse, ifRecorded, recordEnd, type Verdict } from '../context/authorize.ts';
import { type Caller, type SessionMessage, turnsOf } from '../context/context.ts';
import { readmitted, stillUsable } from '../context/readmission.ts';
import { sessionAt, settingOf } from '../context/upstream-opening.ts';
import { isUpstreamSessionFailure } from '../context/upstream-sessions.ts';
import { handleRequest } from '../requests/handle-request.ts';
import { answersNothing, handleNotification, handleResponse } from '../requests/session-messages.ts';
import { keepSession } from '../requests/session-requests.ts';
import { AGGREGATE, LIST_KINDS, type Session } from '../sessions/sessions.ts';
import { TASKS_REVISION } from '../sessions/tasks.ts';
import { askAmong } from './asking.ts';
import { listAggregate } from './lists.ts';
import { bareMeta, bareResponse, joinName, renameLarge, splitName, splitToken } from './names.ts';
import type { Plan } from './route.ts';
import {
  amongAll,
  beginSession,
  forEach,
  type LivePosted,
  live,
  noting,
  recordEmptyAggregate,
  upstreamSessionsOf,
  usableTargets,
} from './usable.ts';

const SERVER_INFO = { name: 'portcullis', version: '1' };
/** The gateway always offers these lists, even if they are empty, and announces changes: a target may become usable later. */
const LISTS = { tools: {}, prompts: {}, resources: {} };

/** Characters of `params` in a message to all targets, without the cursor. */
const MAX_PARAMS = 64 * 1024;

/** Handles `initialize`. The session covers every target that the caller may use, now and later. */
export const openAggregate = (caller: Caller, request: RpcRequest): Promise<Answer> =>
  amongAll(caller, request.id, (now) => open(now, request));

async function open(caller: Caller, { id, params }: RpcRequest): Promise<Answer> {
  const { deps, admission } = caller;
  const targets = usableTargets(admission);
  const verdicts = await decideAll(caller, targets);
  if (verdicts === null) return unavailable(id);
  const asked = params?.protocolVersion;
  const session: Session = {
    id: deps.newId(),
    fingerprint: AGGREGATE,
    binding: '',
    upstreamId: null,
    revision: isSessionRevision(asked) ? asked : SESSION_REVISIONS[0],
    lists: LIST_KINDS,
    replica: deps.replicaId,
    issuedAt: deps.now(),
  };
  const sealed = await keepSession(caller, session, null, params);
  if (sealed === null) return unavailable(id);
  if (targets.length > 0) deps.links.hold(session);
  const joining = Promise.all(
    forEach(caller, targets, async (target, now) => {
      const verdict = verdicts.get(target.name);
      const isDenied = verdict?.allowed !== true || stillUsable(now.admission, target.name, target) === null;
      const failed = isDenied || isUpstreamSessionFailure(await deps.links.joined(sessionAt(session, target, now)));
      if (verdict !== undefined) recordEnd(caller, verdict, isDenied ? 'denied' : failed ? 'upstream_error' : 'ok');
      return failed ? [] : [target.id];
    }),
  );
  const joined = await joining.catch((err: unknown) => {
    deps.links.takeHellos(session);
    throw err;
  });
  const told = deps.links.takeHellos(session);
  const hellos = joined.flat().map((id) => told.get(id)?.capabilities ?? null);
  const result = {
    protocolVersion: session.revision,
    capabilities: mergeServerCapabilities([LISTS, ...hellos], session.revision === TASKS_REVISION ? 'capability' : 'none'),
    serverInfo: SERVER_INFO,
  };
  const { revision } = admission.snapshot.engine;
  deps.log.debug({ session: session.id, targets: targets.length, revision }, 'aggregate session opened');
  const text = resultMessage(id, JSON.stringify(result));
  return { kind: 'message', status: 200, text, headers: { 'mcp-session-id': sealed } };
}

/**
 * Records a decision for each target before the session is opened there, or one row if there are no targets. null: not recorded.
 */
async function decideAll(caller: Caller, targets: readonly RoutedTarget[]): Promise<ReadonlyMap<string, Verdict> | null> {
  const method = 'initialize';
  if (targets.length === 0) return (await recordEmptyAggregate(caller, method)) ? new Map() : null;
  const verdicts = forEach(
    caller,
    targets,
    async ({ name }, now) => [name, await authorizeUse({ ...now, targetName: name }, method)] as const,
  );
  const decided = await ifRecorded(caller, Promise.all(verdicts));
  return decided && new Map(decided);
}

/** Handles a request of a session at the aggregate endpoint, which may have ended. */
export async function handleAggregate(caller: Caller, posted: SessionMessage<RpcRequest>, plan: Plan): Promise<Answer> {
  const { id } = posted.message;
  const session = await live(caller, posted.session);
  if (session === 'unreadable') return unavailable(id);
  if (plan.kind === 'one') {
    // A client that sends a request is ready, even if it has not said so.
    const hasWaited = session !== null && (await beginSession(caller, session));
    const now = hasWaited ? await readmitted(caller) : caller;
    return now === null ? unavailable(id) : handleAimed(now, { ...posted, session }, plan);
  }
  if (session === null) return noSession(id);
  if (plan.kind === 'own') return { kind: 'message', status: 200, text: resultMessage(id, '{}') };
  const refused = refuseLong(posted.message, posted.located, plan.kind === 'list');
  if (refused !== null) return refused;
  return amongAll(caller, id, async (now) => {
    await beginSession(now, session);
    return plan.kind === 'list' ? listAggregate(now, { ...posted, session }, plan) : setLevel(now, { ...posted, session }, plan);
  });
}

/** Every target gets a text of its own, so the length of `params` counts once for each. The cursor of a list is the gateway's own. */
function refuseLong(message: RpcRequest | RpcNotification, { span }: Located, isList: boolean): Answer | null {
  const params = span.members?.get('params');
  const lengthOf = (at: JsonSpan | undefined): number => (at === undefined ? 0 : at.end - at.start);
  if (lengthOf(params) - (isList ? lengthOf(params?.members?.get('cursor')) : 0) <= MAX_PARAMS) return null;
  const [id, status] = message.kind === 'request' ? [message.id, 200] : [null, 400];
  const text = `Invalid params: a message to all targets may have at most ${MAX_PARAMS} characters in \`params\`, without the cursor of a list`;
  return refuse(id, { status, code: CODES.invalidParams, message: text });
}

async function handleAimed(
  caller: Caller,
  { session, message: { id, method, params }, located }: SessionMessage<RpcRequest>,
  { targetName, message, operation }: Plan & { readonly kind: 'one' },
): Promise<Answer> {
  const client = { mode: 'stateful', session: session ?? 'unknown' } as const;
  const done = caller.deps.inFlight.note(session?.id ?? '', { id, params }, targetName);
  let streams = false;
  try {
    const answer = await handleRequest({ ...caller, targetName }, { client, message, located, operation });
    streams = answer.kind === 'stream';
    return await renamed({ caller, targetName, method }, answer, done);
  } finally {
    if (!streams) done();
  }
}

async function setLevel(
  caller: Caller,
  { session, message, located }: LivePosted,
  { operation }: Plan & { readonly kind: 'level' },
): Promise<Answer> {
  const { deps } = caller;
  const said = settingOf(message.method, message.params);
  if (said === null || !LOG_LEVELS.includes(said.setting.value))
    return refuse(message.id, { status: 200, code: CODES.invalidParams, message: 'Invalid params: params.level' });
  const targets = usableTargets(caller.admission);
  if (targets.length === 0 && !(await recordEmptyAggregate(caller, message.method))) return unavailable(message.id);
  try {
    await deps.sessions.set(session.id, EVERY_TARGET, said.setting, deps.now());
  } catch (err) {
    deps.log.error({ err }, 'storing a log level failed; the request is refused');
    return unavailable(message.id);
  }
  const { noted, isUnrecorded } = noting(caller);
  // A target without logging answers with an error, which is ignored. Each target gets its audit row.
  await Promise.all(
    forEach(noted, targets, (target, now) =>
      askAmong(now, sessionAt(session, target, now), message.method, async (aimed) =>
        finalOf(await handleRequest(aimed, { client: { mode: 'stateful', session }, message, located, operation })),
      ),
    ),
  );
  if (isUnrecorded()) return unavailable(message.id);
  return { kind: 'message', status: 200, text: resultMessage(message.id, '{}') };
}

export async function notifyAggregate(
  caller: Caller,
  { session: claimed, message, located }: SessionMessage<RpcNotification>,
): Promise<Answer> {
  const { deps } = caller;
  const session = await live(caller, claimed);
  if (session === 'unreadable') return unavailable(null);
  if (session === null) return noSession(null);
  const { noted, isUnrecorded } = noting(caller);
  const send = (targetName: string, own: RpcNotification, by = noted): Promise<Answer> =>
    handleNotification({ ...by, targetName }, { session, message: own, located });
  const { method, params } = message;
  if (method === 'notifications/cancelled') {
    const requestId = params?.requestId;
    const targetName =
      typeof requestId === 'string' || typeof requestId === 'number' ? deps.inFlight.of(session.id, 'id', requestId) : null;
    return targetName === null ? ACCEPTED : send(targetName, bareMeta(message, targetName));
  }
  if (method === 'notifications/progress') {
    const split = splitToken(params?.progressToken);
    if (split === null) return ACCEPTED;
    const own = bareMeta(message, split.targetName);
    return send(split.targetName, { ...own, params: { ...own.params, progressToken: split.token } });
  }
  if (method === 'notifications/initialized') {
    // It completes the opening of the session, which has already been decided and recorded.
    await beginSession(caller, session);
    return ACCEPTED;
  }
  if (method !== 'notifications/roots/list_changed') return ACCEPTED;
  const refused = refuseLong(message, located, false);
  if (refused !== null) return refused;
  return amongAll(noted, null, async (begun) => {
    try {
      const halves = await upstreamSessionsOf(begun, session);
      await Promise.all(
        forEach(begun, halves, ([target], now) =>
          askAmong(now, sessionAt(session, target, now), method, (aimed) =>
            send(target.name, bareMeta(message, target.name), aimed),
          ),
        ),
      );
      return isUnrecorded() ? unavailable(null) : ACCEPTED;
    } catch (err) {
      deps.log.error({ err }, 'looking up upstream sessions failed; the message is refused');
      return unavailable(null);
    }
  });
}

/** Sends the client's answer to the target that asked. The id begins with the name of that target. */
export async function answerAggregate(
  caller: Caller,
  { session: claimed, message, located }: SessionMessage<RpcResponse>,
): Promise<Answer> {
  const session = await live(caller, claimed);
  if (session === 'unreadable') return unavailable(null);
  if (session === null) return noSession(null);
  const aimed = splitName(message.id);
  if (aimed === null) return answersNothing();
  const { targetName, name } = aimed;
  const bare = {
    session,
    message: { ...message, id: name },
    located: await bareResponse(targetName, located, turnsOf(caller, targetName)),
  };
  return handleResponse({ ...caller, targetName }, bare);
}

/** Joins the names in an answer with the name of its target. `done`: called when a streamed answer has ended. */
async function renamed(asked: Renamed, answer: Answer, done: () => void): Promise<Answer> {
  const { caller, targetName, method } = asked;
  if (answer.kind === 'message')
    return { ...answer, text: await renameLarge(targetName, method, wholeText(answer.text), turnsOf(caller, targetName)) };
  if (answer.kind !== 'stream') return answer;
  return { ...answer, events: renamedEvents(asked, answer.events, done) };
}

/** Whose messages are renamed: those of the target to the caller. `method`: of the request that they answer; empty: of none. */
interface Renamed {
  readonly caller: Caller;
  readonly targetName: string;
  readonly method: string;
}

export async function* renamedEvents(
  { caller, targetName, method }: Renamed,
  events: AsyncIterable<OutEvent>,
  done?: () => void,
): AsyncGenerator<OutEvent> {
  try {
    for await (const event of events) {
      const id = event.id === undefined ? undefined : joinName(targetName, event.id);
      const renamed = {
        ...event,
        data: event.data === '' ? '' : await renameLarge(targetName, method, wholeText(event.data), turnsOf(caller, targetName)),
        id,
      };
      event.data = '';
      yield renamed;
    }
  } finally {
    done?.();
  }
}
