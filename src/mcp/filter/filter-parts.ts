/**
 * The parts of results: `_meta`, items of lists, tasks and their state, and the input that a target asks for (2026-07-28); and
 * what their filters share. Pure.
 */
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { jsonText } from '../../base/json/text.ts';
import { atOnce } from '../../base/turns/slices.ts';
import type { ResourceType } from '../../engine/compile/policy.ts';
import type { NamedObject } from '../../engine/decision.ts';
import { type Decide, decided } from '../../engine/estimate.ts';
import {
  type Askable,
  declaredCapabilities,
  isOffered,
  isWithheldError,
  NOT_ITS_TO_ASK,
  reduceClientCapabilities,
} from '../../protocol/capabilities.ts';
import { applyEdits, type Draft, replaceMember, setMember } from '../../protocol/draft.ts';
import { imitationOf } from '../../protocol/imitation.ts';
import { CODES, isLongState } from '../../protocol/message.ts';
import type { Mode } from '../../protocol/mode.ts';
import type { Operation } from '../../protocol/operation.ts';
import { type Located, type MemberTexts, withMembers } from '../../protocol/rebuild.ts';
import {
  changedPointers,
  look,
  MAX_AT_ONCE,
  MAX_DECIDED,
  type Sight,
  visibleAsked,
  visibleBlock,
  visibleError,
  visibleHolder,
} from '../../protocol/visible.ts';
import { isTaskMethod, RELATED_TASK, relatedTask, type Task, upstreamTaskId } from '../sessions/tasks.ts';

export interface ResultContext {
  readonly mode: Mode;
  readonly method: string;
  readonly params: JsonObject | undefined;
  readonly operation: Operation;
  readonly decide: Decide;
  /** Binds the target's request state to this request (2026-07-28, multi round-trip requests). */
  readonly sealState: (state: string) => Filtering<string>;
  readonly mayAsk: readonly Askable[];
  /** Binds a task that the target has just made to the caller. null: this request cannot have made a task. */
  readonly sealTask: ((upstreamId: string) => Task) | null;
  /** The caller's own tasks among those that the answer names (`taskIdsIn`), by the ids that the target gave them. */
  readonly tasks: ReadonlyMap<string, Task>;
  /** A list of the result that has already been filtered; its text replaces the list. */
  readonly done?: DoneList;
  /** The result is a part of a list: the remaining items are reported even if none is hidden. */
  readonly isPart?: boolean;
  /** Changes the remaining items of a list for a reader other than the client. */
  readonly changeItem?: ChangeItem | undefined;
}

/** An item of a filtered list. */
export interface ListedItem {
  /** JSON. */
  readonly text: string;
  /** Its name, or the URI by which it is decided. */
  readonly name: string;
  /** The position of the name in the text, if its `_meta` has no other names. */
  readonly at: { readonly start: number; readonly end: number } | null;
}

/** Returns the changed text. null: the item cannot be changed here. */
export type ChangeItem = (item: ListedItem) => string | null;

export interface DoneList {
  readonly member: string;
  readonly text: string;
  readonly shown: Listed | null;
  readonly changed: readonly string[] | null;
}

export const TOO_MANY = `the answer names more than ${MAX_DECIDED} objects, or one part of it names more than ${MAX_AT_ONCE}`;

/** Which of the objects that the target offered are listed, and how many are hidden. */
export interface Listed {
  readonly resource_type: ResourceType;
  readonly names: readonly string[];
  readonly hidden: number;
}

export type FilteredResult =
  /**
   * `text`: the JSON text of the result. `created`: a new task, which must be stored before the client learns about it. `changed`: the items
   * of the list after `changeItem`, in texts of one or more items; the list in `text` is then empty. null: they were not all changed.
   */
  | {
      readonly ok: true;
      readonly text: string;
      readonly shown: Listed | null;
      readonly created: Task | null;
      readonly changed: readonly string[] | null;
    }
  | Fault;

export type Filtered =
  | { readonly ok: true; readonly shown: Listed | null; readonly created?: Task; readonly changed?: readonly string[] | null }
  | Fault;
/** Pauses only before and between decisions that take long, and while long texts are written. */
export type Filtering<T> = Generator<undefined, T>;
export const UNCHANGED: Filtered = { ok: true, shown: null };

export interface Fault {
  readonly ok: false;
  readonly fault: string;
}

export function fault(what: string): Fault {
  return { ok: false, fault: what };
}

export function finish(draft: Draft, filtered: Filtered): FilteredResult {
  if (!filtered.ok) return filtered;
  const { shown, created = null, changed = null } = filtered;
  return { ok: true, text: applyEdits(draft), shown, created, changed };
}

/** For each object whether the caller may use it. An object that cannot be decided (null) counts as not allowed. */
export function* mayUse(objects: readonly (NamedObject | null)[], { decide }: ResultContext): Filtering<boolean[]> {
  const readable = objects.filter((object) => object !== null);
  const decisions = yield* decided(decide, readable);
  const allowed = new Set(readable.filter((_, index) => decisions[index] === true));
  return objects.map((object) => object !== null && allowed.has(object));
}

/** The members of a result whose parts are decided one by one. */
const DECIDED_LISTS = ['content', 'messages', 'contents', 'tasks'];

export const TWO_KINDS = 'the answer mixes two kinds of results';

/** If a client reads the members of a result and ignores its `resultType`, it would see members that the filter did not check. */
export function isOfTwoKinds(result: JsonObject, isWhole: boolean, { method }: Pick<ResultContext, 'method'>): boolean {
  if (!isWhole) return DECIDED_LISTS.some((member) => member in result);
  return !isTaskMethod(method) && 'inputRequests' in result;
}

/** Members that the filter reads in the results of every method. */
export const COMMON = '_meta resultType inputRequests requestState ttlMs cacheScope';
export const CONTENT_MEMBERS = imitationOf(COMMON, 'content task');
export const TASK_MEMBERS = imitationOf(COMMON, 'taskId result error');

/**
 * Checks the names of members, and `_meta`. Refuses names like `Tools`: the filter does not check them, but a client that
 * matches names case-insensitively reads them.
 */
export function* checkHead(
  draft: Draft,
  isImitation: (name: string) => boolean,
  context: ResultContext,
): Filtering<Fault | null> {
  const imitated = Object.keys(draft.value).find(isImitation);
  if (imitated !== undefined) return fault(`its member ${JSON.stringify(imitated)} imitates a protocol member`);
  return (yield* checkMeta(draft, context)) ? null : fault(TOO_MANY);
}

const imitatesRelated = imitationOf(RELATED_TASK);

/** The new values of members; undefined removes a member. */
type Changed = ReadonlyMap<string, JsonValue | undefined>;

/**
 * The members of `_meta` that must change. Messages of 2025-11-25 may name the task that they belong to; if it is not the caller's, the
 * reference is removed. The result of a call may, like its tool, point to a resource that renders it.
 */
function changedMeta(value: JsonObject, { tasks }: ResultContext, sight: Sight): Changed {
  const meta = value._meta;
  const changed = new Map<string, JsonValue | undefined>();
  if (!isObject(meta)) return changed;
  for (const name of Object.keys(meta)) if (imitatesRelated(name)) changed.set(name, undefined);
  const related = relatedTask(value);
  if (related !== undefined) {
    const task = tasks.get(related ?? '');
    changed.set(RELATED_TASK, task && { taskId: task.handle });
  }
  for (const [name, seen] of changedPointers(meta, sight)) changed.set(name, seen);
  return changed;
}

function* replaceMeta(draft: Draft, changed: Changed): Filtering<void> {
  const meta = draft.value._meta;
  const span = draft.span.members?.get('_meta');
  if (!isObject(meta) || span === undefined || changed.size === 0) return;
  // The item of a list has no spans below its members.
  const isLocated = span.members?.size === Object.keys(meta).length;
  const text = isLocated
    ? withMembers(draft.text, span, yield* textsOf(changed))
    : objectOf(yield* textsOf([...Object.entries(meta), ...changed]));
  replaceMember(draft, '_meta', text);
}

/** Filters `_meta`. False: it names too many resources. */
function* checkMeta(draft: Draft, context: ResultContext): Filtering<boolean> {
  const looked = yield* look((sight) => changedMeta(draft.value, context, sight), context.decide);
  if (looked !== null) yield* replaceMeta(draft, looked.result);
  return looked !== null;
}

function objectOf(texts: MemberTexts): string {
  const members = Object.entries(texts).flatMap(([name, text]) => (text === null ? [] : [`${JSON.stringify(name)}:${text}`]));
  return `{${members.join()}}`;
}

/** If a member has two values, the later one counts. */
function* textsOf(changed: Iterable<readonly [string, JsonValue | undefined]>): Filtering<MemberTexts> {
  const texts: Record<string, string | null> = {};
  for (const [name, value] of changed) texts[name] = value === undefined ? null : yield* jsonText(value);
  return texts;
}

/** The texts of the members that are different in `seen`. */
export function changedTexts(value: JsonObject, seen: JsonObject): Filtering<MemberTexts> {
  const changed = Object.keys({ ...value, ...seen }).filter((name) => seen[name] !== value[name]);
  return textsOf(changed.map((name) => [name, seen[name]] as const));
}

/** The members of a target's error that must change. `params`: of the request that it answers; undefined: not known. */
export function* filterError(error: JsonObject, params: JsonObject | undefined, decide: Decide): Filtering<MemberTexts> {
  const looked = yield* look((sight) => visibleError(error, params?.uri, sight), decide);
  return yield* changedTexts(error, looked?.result ?? {});
}

/** null: the list has not been filtered yet. */
export function doneBefore(draft: Draft, member: string, { done }: ResultContext): Filtered | null {
  if (done?.member !== member) return null;
  replaceMember(draft, member, done.text);
  return { ok: true, shown: done.shown, changed: done.changed };
}

/** Removes links to resources that the caller may not read. */
export function* filterItems(
  draft: Draft,
  member: string,
  see: (item: JsonValue, sight: Sight) => JsonValue | undefined,
  context: ResultContext,
): Filtering<Filtered> {
  const done = doneBefore(draft, member, context);
  if (done !== null) return done;
  const { decide, isPart } = context;
  const value = draft.value[member];
  if (value === undefined) return UNCHANGED;
  const items = Array.isArray(value) ? value : [value];
  const looked = yield* look((sight) => items.map((item) => see(item, sight)), decide);
  if (looked === null) return fault(TOO_MANY);
  const { result: seen, names, hidden } = looked;
  if (isPart || seen.some((item, index) => item !== items[index])) {
    const spans = draft.span.members?.get(member)?.items ?? [];
    const texts: string[] = [];
    for (const [index, item] of seen.entries()) {
      const span = item === items[index] ? spans[index] : undefined;
      if (span !== undefined) texts.push(draft.text.slice(span.start, span.end));
      else if (item !== undefined) texts.push(yield* jsonText(item));
    }
    replaceMember(draft, member, `[${texts.join()}]`);
  }
  return { ok: true, shown: hidden === 0 && !isPart ? null : { resource_type: 'resource', names, hidden } };
}

export function filterToolResult(draft: Draft, context: ResultContext): Filtering<Filtered> {
  return filterItems(draft, 'content', visibleBlock, context);
}

/** Filters the state of a task that the target reports by itself: `params` of the notification. */
export function* filterTaskParams(located: Located, params: JsonObject, context: ResultContext): Filtering<FilteredResult> {
  const span = located.span.members?.get('params');
  if (span === undefined) return fault('the notification has no params');
  const draft: Draft = { text: located.text, span, value: params, edits: [] };
  return finish(draft, (yield* checkHead(draft, TASK_MEMBERS, context)) ?? (yield* filterTask(draft, context)));
}

/** In 2025-11-25, the task is a member of the result. */
export function* createdTask(draft: Draft, context: ResultContext): Filtering<Filtered> {
  const { task } = draft.value;
  const span = draft.span.members?.get('task');
  if (!isObject(task) || span === undefined) return fault('the answer has no task');
  const inner: Draft = { ...draft, span, value: task };
  const unreadable = yield* checkHead(inner, TASK_MEMBERS, context);
  if (unreadable !== null) return unreadable;
  const made = newTask(draft, inner, context);
  if (!made.ok) return made;
  const filtered = yield* filterToolResult(draft, context);
  return filtered.ok ? { ...made, shown: filtered.shown } : filtered;
}

/** Members with the state of a task. Clients read it with `tasks/get`, where it is filtered. */
const STATE_OF_TASK = ['result', 'error', 'inputRequests'];
const hasState = (task: JsonObject): boolean => STATE_OF_TASK.some((member) => member in task);

export function newTask(draft: Draft, task: Draft, { sealTask }: ResultContext): Filtered {
  if (sealTask === null) return fault('the answer is a task, but the client did not ask for one');
  const upstreamId = upstreamTaskId(task.value.taskId);
  if (upstreamId === null) return fault('the task has no id');
  if (hasState(draft.value) || hasState(task.value)) return fault('the new task already has a state');
  const created = sealTask(upstreamId);
  setMember(task, 'taskId', created.handle);
  return { ok: true, shown: null, created };
}

/** Filters the state of a task: its id, and in 2026-07-28 also its input requests, its error and its result. */
export function* filterTask(draft: Draft, context: ResultContext): Filtering<Filtered> {
  const { taskId, inputRequests, result, error } = draft.value;
  if (taskId !== undefined) {
    const task = context.tasks.get(upstreamTaskId(taskId) ?? '');
    if (task === undefined) return fault('the answer is about a different task');
    setMember(draft, 'taskId', task.handle);
  }
  const unasked = inputRequests === undefined ? null : yield* filterInput(draft, inputRequests, context);
  if (unasked !== null) return unasked;
  const failure = draft.span.members?.get('error');
  if (isObject(error) && failure !== undefined) {
    const text = isWithheldError(error, context.mode, context.mayAsk, context.params)
      ? JSON.stringify({ code: CODES.internal, message: NOT_ITS_TO_ASK })
      : withMembers(draft.text, failure, yield* filterError(error, undefined, context.decide));
    replaceMember(draft, 'error', text);
  }
  const span = draft.span.members?.get('result');
  if (!isObject(result) || span === undefined) return UNCHANGED;
  if (isOfTwoKinds(result, true, { method: 'tools/call' })) return fault(TWO_KINDS);
  const inner: Draft = { ...draft, span, value: result };
  return (yield* checkHead(inner, CONTENT_MEMBERS, context)) ?? (yield* filterToolResult(inner, context));
}

const imitatesTask = imitationOf('taskId _meta', STATE_OF_TASK.join(' '));

/** Keeps the caller's own tasks, of tools that it may call: a target lists the tasks of all users of one credential. */
export function* filterTasks(draft: Draft, context: ResultContext): Filtering<Filtered> {
  const done = doneBefore(draft, 'tasks', context);
  if (done !== null) return done;
  const items = draft.value.tasks;
  const spans = draft.span.members?.get('tasks')?.items;
  if (!Array.isArray(items) || !spans) return fault('the answer has no list of tasks');
  if (items.length > MAX_DECIDED) return fault(TOO_MANY);
  const own = items.map((item) =>
    isObject(item) && !hasState(item) && !Object.keys(item).some(imitatesTask)
      ? context.tasks.get(upstreamTaskId(item.taskId) ?? '')
      : undefined,
  );
  const allowed = yield* mayUse(
    own.map((task) => (task === undefined ? null : { resource_type: 'tool', resource_name: task.tool })),
    context,
  );
  const kept = own.flatMap((task, index) => {
    const [value, span] = [items[index], spans[index]];
    if (task === undefined || !isObject(value) || span === undefined || !allowed[index]) return [];
    return [{ task, item: { text: draft.text, span, value, edits: [] } satisfies Draft }];
  });
  const looked = yield* look((sight) => kept.map(({ item }) => changedMeta(item.value, context, sight)), context.decide);
  if (looked === null) return fault(TOO_MANY);
  const texts: string[] = [];
  for (const [at, { task, item }] of kept.entries()) {
    yield* replaceMeta(item, looked.result[at] ?? new Map());
    setMember(item, 'taskId', task.handle);
    texts.push(applyEdits(item));
  }
  const names = kept.map(({ task }) => task.tool);
  replaceMember(draft, 'tasks', `[${texts.join()}]`);
  return { ok: true, shown: { resource_type: 'tool', names, hidden: items.length - names.length } };
}

/** Ids of tasks in a result. Each must be a task of the caller. */
export function taskIdsIn(value: JsonObject): string[] {
  const listed = Array.isArray(value.tasks) ? value.tasks.slice(0, MAX_DECIDED) : [];
  const ids = taskIdsOf(value);
  for (const item of listed) {
    const id = isObject(item) ? upstreamTaskId(item.taskId) : null;
    if (id !== null) ids.push(id);
  }
  return ids.length < 2 ? ids : [...new Set(ids)];
}

/** Ids of tasks in the state of a single task, which is a result or the `params` of a notification. A list of tasks in it means nothing. */
export function taskIdsOf(value: JsonObject): string[] {
  const { result } = value;
  const named = [relatedTask(value), isObject(result) ? relatedTask(result) : undefined, upstreamTaskId(value.taskId)];
  return named.filter((id) => typeof id === 'string');
}

const MULTI_ROUND = ['tools/call', 'prompts/get', 'resources/read'];

/** Filters a result with which the target asks for input (2026-07-28): the method must allow it, and the client must offer it. */
export function* inputRequired(draft: Draft, context: ResultContext): Filtering<FilteredResult> {
  if (!MULTI_ROUND.includes(context.method)) return fault('the target asks for input, which this method does not allow');
  const { inputRequests, requestState } = draft.value;
  const unasked = inputRequests === undefined ? null : yield* filterInput(draft, inputRequests, context);
  if (unasked !== null) return unasked;
  if (requestState !== undefined) {
    if (typeof requestState !== 'string') return fault('the request state is not a string');
    if (isLongState(requestState)) return fault('the request state is too long');
    setMember(draft, 'requestState', yield* context.sealState(requestState));
  }
  return finish(draft, UNCHANGED);
}

/** Checks the input requests of the target and removes links that the caller may not read. A fault: the requests are refused. */
function* filterInput(draft: Draft, requests: JsonValue, context: ResultContext): Filtering<Fault | null> {
  if (!isObject(requests)) return fault('the input requests are not an object');
  const { params, mayAsk, decide } = context;
  const told = reduceClientCapabilities(declaredCapabilities(params), 'stateless', mayAsk);
  if (!Object.values(requests).every((asked) => isOffered(told, asked))) {
    return fault('the target asks for something that the client does not offer, or that the target may not ask for');
  }
  const entries = Object.entries(requests);
  const looked = yield* look((sight) => entries.map(([, asked]) => visibleRequest(asked, sight)), decide);
  if (looked === null) return fault(TOO_MANY);
  const spans = draft.span.members?.get('inputRequests');
  if (spans === undefined) return null;
  const changed: Record<string, string> = {};
  for (const [index, [key, asked]] of entries.entries()) {
    const seen = looked.result[index];
    if (seen === undefined) return fault('an input request can be read in more than one way');
    if (seen !== asked) changed[key] = yield* jsonText(seen);
  }
  if (Object.keys(changed).length > 0) replaceMember(draft, 'inputRequests', withMembers(draft.text, spans, changed));
  return null;
}

function visibleRequest(asked: JsonValue, sight: Sight): JsonValue | undefined {
  const seen = visibleHolder(asked, sight);
  if (!isObject(seen) || !isObject(seen.params)) return seen;
  const params = atOnce(visibleAsked(seen.params, sight));
  if (params === undefined) return undefined;
  return params === seen.params ? seen : { ...seen, params };
}
