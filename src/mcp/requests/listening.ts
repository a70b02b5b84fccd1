/**
 * `subscriptions/listen` (2026-07-28): reduces its filter to the part that the caller may have, and ends its stream when the caller may
 * no longer have that part.
 */
import { principalKey } from '../../auth/principal.ts';
import type { JsonObject } from '../../base/json/json.ts';
import { type Now, whenThere } from '../../base/promises.ts';
import { mapInLane, restInLane } from '../../base/turns/lane.ts';
import type { NamedObject } from '../../engine/decision.ts';
import { decided } from '../../engine/estimate.ts';
import { type Answer, type OutEvent, refuse, unavailable } from '../../protocol/answer.ts';
import { declaresTasks, MISSING_TASKS } from '../../protocol/capabilities.ts';
import { farewell, honoured, LISTEN, type ListenFilter, listChanges } from '../../protocol/listen.ts';
import { CODES, type RpcId, resultMessage } from '../../protocol/message.ts';
import { isCanonicalUri, resourceOf } from '../../protocol/uri.ts';
import { type Admission, decideListed } from '../../state/admission.ts';
import type { Access, RoutedTarget } from '../../targets/target.ts';
import { createMerge } from '../answers/merge.ts';
import { forwardStream } from '../answers/upstream-messages.ts';
import { authorize } from '../context/authorize.ts';
import type { Caller, RequestContext, UpstreamContext } from '../context/context.ts';
import { accessFor } from '../context/readmission.ts';
import { openTask, type Task, type TaskScope, toolOf } from '../sessions/tasks.ts';
import type { UpstreamStream } from '../upstream/upstream.ts';
import { bindingNow, onRightsChanged } from './standalone-stream.ts';

/** Checking a URI takes about 25 us, if it is long. */
const CHECKED_AT_ONCE = 10;

/** The members that only the context of a listening stream has. */
export interface Listened {
  readonly access: Access;
  readonly longLived: true;
  readonly listening: JsonObject;
  readonly tasks: ReadonlyMap<string, Task>;
}

/** Returns the reduced filter after it is recorded, so before anything is delivered; or the answer that refuses the request. */
export async function listenFor(
  { deps, caller, target, access, awaited }: RequestContext,
  filter: ListenFilter,
  scope: TaskScope,
): Promise<Listened | Answer> {
  const { id, params, decisionId: decision_id } = awaited;
  const wantsTasks =
    filter.taskIds.length > 0 &&
    (await deps.modes.speaksStateless({ target, access }, caller.gone)) === true &&
    deps.modes.hasTasks({ target, access });
  if (wantsTasks && !declaresTasks(params)) return missingTasks(id);
  const decide = decideListed(caller.admission, target.id);
  const by = principalKey(caller.claims);
  // A URI with more than one reading cannot be decided, so it is left out.
  const isDecidable = await mapInLane(by, filter.uris, CHECKED_AT_ONCE, isCanonicalUri);
  const uris = filter.uris.filter((_, index) => isDecidable[index]);
  const allowed = await restInLane(by, decided(decide, uris.map(resourceOf)));
  const names = uris.filter((_, index) => allowed[index]);
  try {
    if (uris.length > 0) {
      const hidden = uris.length - names.length;
      await deps.audit.shown({ decision_id, resource_type: 'resource', names, hidden });
    }
    const tasks = wantsTasks ? await listenedTasks(caller, filter.taskIds, scope) : new Map<string, Task>();
    const listened = { longLived: true, listening: honoured(filter, names, [...tasks.keys()]), tasks } as const;
    return { ...listened, access: accessFor(caller, target, objectsOf(listened)) };
  } catch (err) {
    deps.log.error({ err }, 'recording a subscription failed; the request is refused');
    return unavailable(id);
  }
}

export function missingTasks(id: RpcId): Answer {
  const message = 'Missing required client capability';
  return refuse(id, { status: 400, code: CODES.missingCapability, message, data: MISSING_TASKS });
}

/** Returns the caller's own tasks of tools that the caller may call. For each tool, a decision is made and recorded. */
async function listenedTasks(caller: Caller, taskIds: readonly string[], scope: TaskScope): Promise<ReadonlyMap<string, Task>> {
  const own = taskIds.map((handle) => openTask(scope, handle)).filter((task) => task !== null);
  const tools = new Map(own.map((task) => [task.tool, toolOf(task)] as const));
  const decided = [...tools].map(async ([tool, operation]) => {
    const { allowed, decisionId } = await authorize(caller, { method: LISTEN, operation });
    caller.deps.audit.outcome({ decision_id: decisionId, outcome: allowed ? 'ok' : 'denied', duration_ms: 0 });
    return [tool, allowed] as const;
  });
  const allowed = new Map(await Promise.all(decided));
  return new Map(own.filter(({ tool }) => allowed.get(tool) === true).map((task) => [task.upstreamId, task]));
}

/**
 * The stream of a `subscriptions/listen`, which was opened for a filter. If the caller may no longer have all of that filter, the stream ends
 * with its result, so that the client can listen again for the rest. The caller is a `callerOfStream`.
 */
export async function* listeningStream(
  context: RequestContext & { readonly listening: JsonObject },
  stream: UpstreamStream,
): AsyncGenerator<OutEvent> {
  const { caller, target, awaited } = context;
  const merged = createMerge<OutEvent>();
  const binding = bindingNow(caller.admission, target);
  let acknowledged: JsonObject | null = null;
  /** The client has the acknowledgement. A change before that is told after it. */
  let isTold = false;
  let hasChanged = false;
  const tellChange = (): void => {
    for (const data of listChanges(awaited.id, acknowledged ?? {})) merged.push({ data }, data);
  };
  let newest = 0;
  const leave = onRightsChanged(context, (admission, moved) => {
    const own = ++newest;
    // The stream must not continue with credentials that are no longer the caller's.
    const mayContinue = bindingNow(admission, moved) === binding && mayHaveAll(admission, target, context);
    void whenThere(mayContinue, (may) => {
      // Decisions that take long may come later than those of a newer state.
      if (newest !== own) return;
      if (may) {
        hasChanged = true;
        if (isTold) tellChange();
        return;
      }
      merged.push({ data: resultMessage(awaited.id, JSON.stringify(farewell(awaited.id))), final: true }, 'end');
      merged.end();
    });
  });
  const within = {
    ...context,
    acknowledged: (notifications: JsonObject) => {
      acknowledged = notifications;
    },
  };
  void merged.add(forwardStream(within, stream)).then(() => merged.end());
  try {
    for await (const event of merged.items) {
      yield event;
      if (isTold || acknowledged === null) continue;
      isTold = true;
      if (hasChanged) tellChange();
    }
  } finally {
    leave();
    stream.discard();
    awaited.end('ok');
  }
}

function mayHaveAll(admission: Admission, target: RoutedTarget, context: UpstreamContext): Now<boolean> {
  const steps = decided(decideListed(admission, target.id), objectsOf(context));
  return whenThere(restInLane(principalKey(context.caller.claims), steps), (allowed) => allowed.every(Boolean));
}

/** The resources and tools of a filter that was sent to the target. */
function objectsOf({ listening, tasks }: Pick<UpstreamContext, 'listening' | 'tasks'>): NamedObject[] {
  const subscribed = listening?.['resourceSubscriptions'];
  const uris = Array.isArray(subscribed) ? subscribed : [];
  return [...uris.map((uri) => resourceOf(String(uri))), ...[...(tasks?.values() ?? [])].map((task) => toolOf(task).object)];
}
