/** The answer of a target to the awaited request: filtered, and recorded as far as it lists names or makes a task. */

import type { Outcome } from '../../audit/records/records.ts';
import { isUnread, UnreadFault } from '../../base/json/built.ts';
import { isObject, type JsonObject } from '../../base/json/json.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import { type Now, whenThere } from '../../base/promises.ts';
import { laneSteps, restInLane } from '../../base/turns/lane.ts';
import type { Decide } from '../../engine/estimate.ts';
import type { ListedItems } from '../../protocol/answer.ts';
import { declaresTasks, isWithheldError, NOT_ITS_TO_ASK } from '../../protocol/capabilities.ts';
import { type MessageText, type RpcId, resultText } from '../../protocol/message.ts';
import { itemObject } from '../../protocol/operation.ts';
import { type Located, rebuildResponse } from '../../protocol/rebuild.ts';
import { type AwaitedRequest, type RequestContext, turnsOf, type UpstreamContext } from '../context/context.ts';
import { shownError } from '../context/failure.ts';
import { filteredNow, UndecidedFault } from '../context/readmission.ts';
import { ownTasks, rememberTask, taskScopeAt } from '../context/tasks-of-caller.ts';
import { settingOf } from '../context/upstream-opening.ts';
import { filterInSteps, filterWhole, isLongList } from '../filter/filter.ts';
import { type FilteredResult, type ResultContext, taskIdsIn } from '../filter/filter-parts.ts';
import { fingerprintOf, type Session, sealState, stateBinding } from '../sessions/sessions.ts';
import { sealTask, TASKS_REVISION, type Task } from '../sessions/tasks.ts';
import { NAMES_OF_LIST } from '../upstream/catalogue.ts';

/** What becomes of a message that a target has sent. */
export type Seen =
  | { readonly kind: 'pass'; readonly text: string; readonly progressToken?: RpcId | undefined }
  | { readonly kind: 'drop' }
  | {
      readonly kind: 'final';
      readonly text: MessageText;
      readonly outcome: Outcome;
      readonly result?: JsonObject | undefined;
      readonly listed?: ListedItems | undefined;
    }
  /** The caller may no longer use the stream. */
  | { readonly kind: 'close' }
  /** The awaited request, if there is one, gets this message instead. */
  | { readonly kind: 'failed'; readonly message: string }
  | { readonly kind: 'malformed'; readonly reason: string };

export const DROP = { kind: 'drop' } as const;
const UNDECIDED = { kind: 'failed', message: 'The gateway cannot decide at the moment; try again' } as const;

/** Methods whose result the gateway itself reads. */
const READ_HERE = ['initialize', 'server/discover'];

export function relayError(context: RequestContext, located: Located, error: JsonObject): Now<Seen> {
  const { target, mode, awaited } = context;
  if (isWithheldError(error, mode, target.may_ask, awaited.params)) return { kind: 'failed', message: NOT_ITS_TO_ASK };
  return whenThere(shownError(context, error), (changed) => {
    if (changed === null) return UNDECIDED;
    return { kind: 'final', text: rebuildResponse(awaited.id, 'error', located, changed), outcome: 'error' };
  });
}

export function relayResult(context: RequestContext, located: Located, result: JsonObject): Now<Seen> {
  const withheld = (err: unknown): Seen => {
    if (err instanceof UnreadFault) throw err;
    if (err instanceof UndecidedFault) return UNDECIDED;
    context.deps.log.error({ err }, 'recording the names in an answer, or its new task, failed; the answer is withheld');
    return { kind: 'failed', message: 'The gateway cannot record at the moment; try again' };
  };
  try {
    const seen = whenThere(filtered(context, located, result), (found) => relayFiltered(context, result, found));
    return seen instanceof Promise ? seen.catch(withheld) : seen;
  } catch (err) {
    return withheld(err);
  }
}

function filtered(context: RequestContext, located: Located, result: JsonObject): Now<FilteredResult> {
  const { caller, target, awaited } = context;
  return whenThere(ownTasks(context, taskIdsIn(result)), (tasks) =>
    filteredNow(caller, target.id, (decide) => {
      const by = filteredBy(context, awaited, decide, tasks);
      const source = turnsOf(caller, target.id);
      const inSteps = located.text.length > LARGE_TEXT || isLongList(result, by);
      return inSteps
        ? laneSteps(source, filterInSteps(located, result, by))
        : restInLane(source, filterWhole(located, result, by));
    }),
  );
}

/** Records what the answer shows and sets before it is relayed. Most answers to calls show and set nothing. */
function relayFiltered(context: RequestContext, result: JsonObject, found: FilteredResult): Now<Seen> {
  const { awaited, linked } = context;
  if (!found.ok) return { kind: 'malformed', reason: found.fault };
  const { created, shown, changed, text } = found;
  const said = linked === null ? null : settingOf(awaited.method, awaited.params);
  const relayed = (): Seen => {
    const told = READ_HERE.includes(awaited.method) ? result : undefined;
    const listed = changed === null ? undefined : { items: changed, nextCursor: result.nextCursor };
    return { kind: 'final', text: resultText(awaited.id, text), outcome: 'ok', result: told, listed };
  };
  const recorded = async (): Promise<Seen> => {
    if (created !== null) await rememberTask(context, created);
    if (shown !== null) await context.deps.audit.shown({ decision_id: awaited.decisionId, ...shown });
    noteListed(context, result);
    if (linked !== null && said !== null) await rememberSetting(context, linked.session, said);
    return relayed();
  };
  const isRecorded = created !== null || shown !== null || said !== null || awaited.operation.kind === 'list';
  return isRecorded ? recorded() : relayed();
}

/** Notes what the target offers, also what this caller may not see. */
function noteListed({ deps, target, caller, awaited: { operation } }: RequestContext, result: JsonObject): void {
  if (operation.kind !== 'list') return;
  const { list } = operation;
  const items = result[list.member];
  if (!Array.isArray(items) || isUnread(items)) return;
  const names = items
    .slice(0, NAMES_OF_LIST)
    .flatMap((item) => (isUnread(item) ? [] : (itemObject(list, item)?.resource_name ?? [])));
  const access = target.accessOf(caller.admission.principal);
  deps.catalogue.note({ target, access }, list.resource_type, names);
}

/** `decide`: what the caller may see. */
export function filteredBy(
  context: UpstreamContext,
  { method, params, operation, changeItem }: Pick<AwaitedRequest, 'method' | 'params' | 'operation' | 'changeItem'>,
  decide: Decide,
  tasks: ReadonlyMap<string, Task>,
): ResultContext {
  const { caller, target, mode, linked } = context;
  const { principal } = caller.admission;
  const asked =
    mode === 'stateless' ? declaresTasks(params) : linked?.session.revision === TASKS_REVISION && isObject(params?.task);
  const tool = method === 'tools/call' && asked && operation.kind === 'object' ? operation.object.resource_name : null;
  return {
    mode,
    method,
    params,
    operation,
    changeItem,
    decide,
    sealState: (state) =>
      sealState(
        context.deps.seal,
        principal,
        caller.targetName,
        stateBinding(fingerprintOf(target), method, params),
        state,
        context.deps.now(),
      ),
    mayAsk: target.may_ask,
    sealTask: tool === null ? null : (upstreamId) => sealTask(taskScopeAt(caller, target), upstreamId, tool),
    tasks,
  };
}

/** Stores a setting that would be lost with the upstream session, because the client would not repeat it. */
async function rememberSetting(
  { deps, target }: RequestContext,
  { id }: Session,
  said: NonNullable<ReturnType<typeof settingOf>>,
): Promise<void> {
  try {
    await (said.on
      ? deps.sessions.set(id, target.id, said.setting, deps.now())
      : deps.sessions.unset(id, target.id, said.setting.key));
  } catch (err) {
    deps.log.warn({ err }, 'storing a setting of a session failed');
  }
}
