/** The standing stream and the end of a session with all targets. */
import type { Admission } from '../../auth/admission.ts';
import { AppError } from '../../errors.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { type Answer, type OutEvent, problem, problemUnavailable } from '../answer.ts';
import { authorize, type Verdict } from '../authorize.ts';
import type { Caller, ExchangeDeps, RelayContext } from '../context.ts';
import type { LinkPlace } from '../links.ts';
import { createMerge } from '../merge.ts';
import { relayStream } from '../relay.ts';
import { type ClaimedSession, endSession } from '../session-traffic.ts';
import { EVERYWHERE, LIST_KINDS, openEventId, type Session, versionOf } from '../sessions.ts';
import { bindingNow, connectAt, listChanged, rightsOf } from '../standing.ts';
import { isFault } from '../upstream/upstream.ts';
import { renamedEvents } from './everywhere.ts';
import { splitName } from './names.ts';
import { usableTargets } from './usable.ts';

const SESSION_GONE = new AppError('not_found', 'Session not found');
const SESSION_MISSING = new AppError('invalid_request', 'The Mcp-Session-Id header is missing.');

/** null where the session goes on. */
function refusal({ admission }: Caller, session: ClaimedSession): Answer | null {
  if (session === 'missing') return problem(SESSION_MISSING);
  const gone = session === null || session.place !== EVERYWHERE || admission.snapshot.sessions.ended.has(session.id);
  return gone ? problem(SESSION_GONE) : null;
}

/** The streams of all targets in one, which those that become usable join and the others leave. */
export async function getEverywhere(
  deps: ExchangeDeps,
  caller: Caller,
  session: ClaimedSession,
  lastEventId: string | undefined,
): Promise<Answer> {
  const refused = refusal(caller, session);
  if (refused !== null || session === null || session === 'missing') return refused ?? problem(SESSION_GONE);
  const resume = lastEventId === undefined ? null : splitName(lastEventId);
  if (lastEventId !== undefined && resume === null) {
    return problem(new AppError('not_found', 'The event id is not one of this session'));
  }
  try {
    await Promise.all(
      usableTargets(caller.admission).map(async ({ name }) => {
        const { decisionId } = await decide(deps, caller, name, 'GET');
        deps.audit.outcome({ decision_id: decisionId, outcome: 'ok', duration_ms: deps.now() - caller.arrivedAt });
      }),
    );
  } catch (err) {
    deps.log.error({ err }, 'a decision could not be recorded; the request is refused');
    return problemUnavailable(err);
  }
  const from = resume && { targetName: resume.targetName, eventId: resume.name };
  return { kind: 'stream', events: streams(deps, caller, session, from), drain: false };
}

function decide(deps: ExchangeDeps, { admission }: Caller, targetName: string, method: string): Promise<Verdict> {
  return authorize(deps, { admission, targetName, method, operation: { kind: 'target' } });
}

interface Connection {
  readonly binding: string;
  readonly controller: AbortController;
}

async function* streams(
  deps: ExchangeDeps,
  caller: Caller,
  session: Session,
  from: { readonly targetName: string; readonly eventId: string } | null,
): AsyncGenerator<OutEvent> {
  const merged = createMerge<OutEvent>();
  const connections = new Map<string, Connection>();

  async function follow(admission: Admission, target: RoutedTarget, connection: Connection): Promise<void> {
    const now: Caller = { ...caller, admission, targetName: target.name };
    const access = target.accessOf(admission.principal);
    const place: LinkPlace = { session, target, access, admission };
    const signal = AbortSignal.any([caller.gone, connection.controller.signal]);
    const resumed = from?.targetName === target.name ? from.eventId : null;
    const reached = await connectAt(deps, now, place, signal, (linked) =>
      resumed === null ? null : (openEventId(deps.seal, admission.principal, target.name, linked, resumed)?.eventId ?? null),
    );
    // A target without a stream, or that cannot be reached, is asked again when something changes.
    if (reached === null) return;
    const context: RelayContext = {
      caller: now,
      target,
      access,
      era: 'session',
      linked: reached.linked,
      awaited: null,
      standing: true,
      asked: new Map(),
    };
    await merged.add(renamedEvents(target.name, '', relayStream(deps, context, reached.stream)));
  }

  function connect(admission: Admission): void {
    const targets = new Map(usableTargets(admission).map((target) => [target.id, target]));
    for (const [id, { binding, controller }] of connections) {
      const target = targets.get(id);
      if (target !== undefined && binding === bindingNow(admission, target)) continue;
      controller.abort();
      connections.delete(id);
    }
    for (const target of targets.values()) {
      if (connections.has(target.id)) continue;
      const connection: Connection = { binding: bindingNow(admission, target), controller: new AbortController() };
      connections.set(target.id, connection);
      void follow(admission, target, connection).finally(() => {
        if (connections.get(target.id) === connection) connections.delete(target.id);
      });
    }
  }

  const seen = (admission: Admission): string =>
    JSON.stringify(usableTargets(admission).map((target) => [target.name, rightsOf(admission, target)]));
  let rights = seen(caller.admission);
  const leave = caller.changes?.listen((admission) => {
    const rightsNow = seen(admission);
    if (rightsNow === rights) return;
    rights = rightsNow;
    for (const kind of LIST_KINDS) merged.push({ data: listChanged(kind) });
    connect(admission);
  });
  const stop = (): void => merged.end();
  caller.gone.addEventListener('abort', stop, { once: true });
  if (caller.gone.aborted) stop();
  connect(caller.admission);
  // Halves that are opened later, for a target that was down or slow, bring their streams.
  const leaveLinks = deps.links.onOpened(session, () => connect(caller.admission));
  try {
    yield* merged.items;
  } finally {
    leave?.();
    leaveLinks();
    caller.gone.removeEventListener('abort', stop);
    for (const { controller } of connections.values()) controller.abort();
  }
}

/** Every half that this replica knows of ends with the client's; others end when their targets tire of them. */
export async function deleteEverywhere(deps: ExchangeDeps, caller: Caller, session: ClaimedSession): Promise<Answer> {
  const refused = refusal(caller, session);
  if (refused !== null || session === null || session === 'missing') return refused ?? problem(SESSION_GONE);
  const { admission } = caller;
  const open = deps.links.open(session);
  const targets = usableTargets(admission).filter((target) => open.has(target.id));
  try {
    await Promise.all(
      targets.map(async (target) => {
        const verdict = await decide(deps, caller, target.name, 'DELETE');
        const link = open.get(target.id);
        if (!verdict.allowed || link === undefined) return;
        const access = target.accessOf(admission.principal);
        const version = versionOf(caller, { session, link });
        const answer = await deps.upstream.send({ method: 'DELETE', target, access, session: link, version });
        if (!isFault(answer)) answer.discard();
        const outcome = isFault(answer) || answer.status > 299 ? 'upstream_error' : 'ok';
        deps.audit.outcome({ decision_id: verdict.decisionId, outcome, duration_ms: deps.now() - caller.arrivedAt });
      }),
    );
    return (await endSession(deps, session)) ? { kind: 'empty', status: 200 } : problem(SESSION_GONE);
  } catch (err) {
    deps.log.error({ err }, 'the end of a session could not be recorded; the request is refused');
    return problemUnavailable(err);
  }
}
