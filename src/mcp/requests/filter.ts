/**
 * Removes from a target's result what the client may not see. Pure: the caller passes the decisions as a function, so that a
 * list shows exactly what may be called. Only what must change is changed; all other text stays as the target wrote it.
 */

import { isObject, type JsonObject, type JsonSpan, type JsonValue } from '../../base/json/json.ts';
import { isUnread } from '../../base/json/steps.ts';
import type { ResourceType } from '../../engine/compile/policy.ts';
import type { NamedObject } from '../../engine/decision.ts';
import type { Askable } from '../protocol/capabilities.ts';
import { declaredCapabilities, isOffered, reduceClientCapabilities, reduceServerCapabilities } from '../protocol/capabilities.ts';
import { applyEdits, type Draft, replaceMember, setMember } from '../protocol/draft.ts';
import { imitationOf } from '../protocol/message.ts';
import { isSessionRevision, type Mode, SESSION_REVISIONS, STATELESS_REVISION } from '../protocol/mode.ts';
import { itemObject, type ListShape, type Operation } from '../protocol/operation.ts';
import { type Located, type MemberTexts, withMembers } from '../protocol/rebuild.ts';
import { readTemplate } from '../protocol/template.ts';
import { isCanonicalUri } from '../protocol/uri.ts';
import {
  changedPointers,
  look,
  MAX_AT_ONCE,
  MAX_DECIDED,
  type Sight,
  visibleAsked,
  visibleBlock,
  visibleContents,
  visibleError,
  visibleHolder,
  visibleMessage,
} from '../protocol/visible.ts';
import { isTaskMethod, RELATED_TASK, relatedTask, TASKS_REVISION, type Task, upstreamTaskId } from '../sessions/tasks.ts';

/** The depth of spans, down to the members of list items: message, result, list, item, member. */
export const RESULT_SPAN_DEPTH = 4;

export interface ResultContext {
  readonly mode: Mode;
  readonly method: string;
  readonly params: JsonObject | undefined;
  readonly operation: Operation;
  /** Tells for each object whether the caller may use it. */
  readonly decide: (objects: readonly NamedObject[]) => boolean[];
  /** Binds the target's request state to this request (2026-07-28, multi round-trip requests). */
  readonly sealState: (state: string) => string;
  /** What the target may ask its clients for. */
  readonly mayAsk: readonly Askable[];
  /** Binds a task that the target has just made to the caller. null: this request cannot have made a task. */
  readonly sealTask: ((upstreamId: string) => Task) | null;
  /** The caller's own tasks among those that the answer names (`taskIdsIn`), by the ids that the target gave them. */
  readonly tasks: ReadonlyMap<string, Task>;
  /** A list of the result that has already been filtered; its text replaces the list. */
  readonly done?: DoneList;
  /** The result is a part of a list: the remaining items are reported even if none is hidden. */
  readonly isPart?: boolean;
}

interface DoneList {
  readonly member: string;
  readonly text: string;
  readonly shown: Listed | null;
}

const TOO_MANY = `the answer names more than ${MAX_DECIDED} objects, or one part of it names more than ${MAX_AT_ONCE}`;

/** Which of the objects that the target offered are listed, and how many are hidden. */
export interface Listed {
  readonly resource_type: ResourceType;
  readonly names: readonly string[];
  readonly hidden: number;
}

export type FilteredResult =
  /** `text`: the JSON text of the result. `created`: a new task, which must be stored before the client learns about it. */
  | { readonly ok: true; readonly text: string; readonly shown: Listed | null; readonly created: Task | null }
  | { readonly ok: false; readonly fault: string };

/** `located` is the whole message with spans to RESULT_SPAN_DEPTH, `result` its verified result. */
export function filterResult(located: Located, result: JsonObject, context: ResultContext): FilteredResult {
  const span = located.span.members?.get('result');
  if (span === undefined) return fault('the answer has no result');
  const draft: Draft = { text: located.text, span, value: result, edits: [] };
  const unreadable = checkHead(draft, membersOf(context));
  if (unreadable !== null) return unreadable;
  if (!checkMeta(draft, context)) return fault(TOO_MANY);
  const kind = result.resultType;
  const isWhole = context.mode === 'stateful' || kind === undefined || kind === 'complete';
  if (isOfTwoKinds(result, isWhole, context)) return fault(TWO_KINDS);
  if (!isWhole) {
    if (kind === 'task') return finish(draft, newTask(draft, draft, context));
    return kind === 'input_required' ? inputRequired(draft, context) : fault('the answer has an unknown resultType');
  }
  const filtered = filterComplete(draft, context);
  if (filtered.ok) forbidCaching(draft, context);
  return finish(draft, filtered);
}

/** Items that are filtered in one step. */
const ITEMS_AT_ONCE = 50;
/** A list with more items is filtered in steps, however short its text is. */
const LONG_LIST = 500;

const listMemberOf = ({ operation, method }: ResultContext): string | undefined =>
  operation.kind === 'list' ? operation.list.member : LIST_OF.get(method);

export function isLongList(result: JsonObject, context: ResultContext): boolean {
  const items = result[listMemberOf(context) ?? ''];
  return Array.isArray(items) && items.length > LONG_LIST;
}

/** The same as `filterResult`, in short steps for a long list. Its items do not depend on each other. */
export function* filterInSteps(
  located: Located,
  result: JsonObject,
  context: ResultContext,
  itemsAtOnce = ITEMS_AT_ONCE,
): Generator<undefined, FilteredResult> {
  const member = listMemberOf(context);
  const list = member === undefined ? undefined : located.span.members?.get('result')?.members?.get(member);
  const items = member === undefined ? undefined : result[member];
  const isLong = Array.isArray(items) && !isUnread(items) && list?.items?.length === items.length && items.length > itemsAtOnce;
  if (member === undefined || !isLong || (context.operation.kind === 'list' && items.length > MAX_DECIDED)) {
    return filterResult(located, result, context);
  }
  const texts: string[] = [];
  const names: string[] = [];
  let hidden = 0;
  for (let from = 0; from < items.length; from += itemsAtOnce) {
    const part = filterPart(located.text, member, items, list?.items ?? [], from, from + itemsAtOnce, context);
    if (!part.ok) return part;
    if (part.text !== '') texts.push(part.text);
    for (const name of part.shown?.names ?? []) names.push(name);
    hidden += part.shown?.hidden ?? 0;
    if (context.operation.kind !== 'list' && new Set(names).size > MAX_DECIDED) return fault(TOO_MANY);
    yield;
  }
  const isTold = context.operation.kind === 'list' || member === 'tasks' || hidden > 0;
  const resource_type =
    context.operation.kind === 'list' ? context.operation.list.resource_type : member === 'tasks' ? 'tool' : 'resource';
  const done: DoneList = { member, text: `[${texts.join()}]`, shown: isTold ? { resource_type, names, hidden } : null };
  return filterResult(located, result, { ...context, done });
}

/** The member that holds the list of a result, by method. */
const LIST_OF: ReadonlyMap<string, string> = new Map([
  ['tools/call', 'content'],
  ['tasks/result', 'content'],
  ['prompts/get', 'messages'],
  ['resources/read', 'contents'],
  ['tasks/list', 'tasks'],
]);

/** Filters some items of a list as a result of their own. `text`: the remaining items, joined. */
function filterPart(
  text: string,
  member: string,
  items: readonly JsonValue[],
  spans: readonly JsonSpan[],
  from: number,
  to: number,
  context: ResultContext,
): FilteredResult {
  const some = spans.slice(from, to);
  const [start, end] = [some[0]?.start ?? 0, some.at(-1)?.end ?? 0];
  const list: JsonSpan = { start, end, members: null, items: some };
  const result: JsonSpan = { start, end, members: new Map([[member, list]]), items: null };
  const located: Located = { text, span: { start, end, members: new Map([['result', result]]), items: null } };
  // In stateful mode, the filter changes only the list.
  const filtered = filterResult(located, { [member]: items.slice(from, to) }, { ...context, mode: 'stateful', isPart: true });
  return filtered.ok ? { ...filtered, text: filtered.text.slice(1, -1) } : filtered;
}

const TWO_KINDS = 'the answer mixes two kinds of results';

/** If a client reads the members of a result and ignores its `resultType`, it would see members that the filter did not check. */
function isOfTwoKinds(result: JsonObject, isWhole: boolean, { mode, method }: ResultContext): boolean {
  if (!isWhole) return [...LIST_OF.values()].some((member) => member in result);
  return mode === 'stateless' && !isTaskMethod(method) && 'inputRequests' in result;
}

/** Filters the state of a task that the target reports by itself: `params` of the notification. */
export function filterTaskParams(located: Located, params: JsonObject, context: ResultContext): FilteredResult {
  const span = located.span.members?.get('params');
  if (span === undefined) return fault('the notification has no params');
  const draft: Draft = { text: located.text, span, value: params, edits: [] };
  const unreadable = checkHead(draft, TASK_MEMBERS);
  if (unreadable !== null) return unreadable;
  if (!checkMeta(draft, context)) return fault(TOO_MANY);
  return finish(draft, filterTask(draft, context));
}

/** Members that the filter reads in every result, whatever the method. */
const COMMON = '_meta resultType inputRequests requestState ttlMs cacheScope';
const CONTENT_MEMBERS = imitationOf(COMMON, 'content task');
const TASK_MEMBERS = imitationOf(COMMON, 'taskId result error');
const OTHER_MEMBERS = imitationOf(COMMON);
const MEMBERS: ReadonlyMap<string, (name: string) => boolean> = new Map([
  ['initialize', imitationOf(COMMON, 'protocolVersion capabilities')],
  ['server/discover', imitationOf(COMMON, 'supportedVersions capabilities')],
  ['tools/list', imitationOf(COMMON, 'tools')],
  ['prompts/list', imitationOf(COMMON, 'prompts')],
  ['resources/list', imitationOf(COMMON, 'resources')],
  ['resources/templates/list', imitationOf(COMMON, 'resourceTemplates')],
  ['tasks/list', imitationOf(COMMON, 'tasks')],
  ['tools/call', CONTENT_MEMBERS],
  ['tasks/result', CONTENT_MEMBERS],
  ['tasks/get', TASK_MEMBERS],
  ['tasks/update', TASK_MEMBERS],
  ['tasks/cancel', TASK_MEMBERS],
  ['prompts/get', imitationOf(COMMON, 'messages')],
  ['resources/read', imitationOf(COMMON, 'contents')],
  ['completion/complete', imitationOf(COMMON, 'completion')],
]);

function membersOf({ method }: ResultContext): (name: string) => boolean {
  return MEMBERS.get(method) ?? OTHER_MEMBERS;
}

/** Refuses names like `Tools`: the filter does not check them, but a client that matches names case-insensitively reads them. */
function checkHead({ value }: Draft, isImitation: (name: string) => boolean): ReturnType<typeof fault> | null {
  const imitated = Object.keys(value).find(isImitation);
  return imitated === undefined ? null : fault(`its member ${JSON.stringify(imitated)} imitates a protocol member`);
}

/** The members of a target's error that must change. `params`: of the request that it answers; undefined: not known. */
export function filterError(error: JsonObject, params: JsonObject | undefined, decide: ResultContext['decide']): MemberTexts {
  const seen = look((sight) => visibleError(error, params?.uri, sight), decide)?.result ?? {};
  const changed = Object.keys(error).filter((name) => seen[name] !== error[name]);
  return Object.fromEntries(changed.map((name) => [name, seen[name] === undefined ? null : JSON.stringify(seen[name])]));
}

function finish(draft: Draft, filtered: Filtered): FilteredResult {
  if (!filtered.ok) return filtered;
  return { ok: true, text: applyEdits(draft), shown: filtered.shown, created: filtered.created ?? null };
}

type Filtered =
  | { readonly ok: true; readonly shown: Listed | null; readonly created?: Task }
  | { readonly ok: false; readonly fault: string };
const UNCHANGED: Filtered = { ok: true, shown: null };

function filterComplete(draft: Draft, context: ResultContext): Filtered {
  if (context.operation.kind === 'list') return filterList(draft, context.operation.list, context);
  switch (context.method) {
    case 'initialize':
      return openedSession(draft);
    case 'server/discover':
      return discovered(draft);
    case 'tools/call':
      return context.mode === 'stateful' && 'task' in draft.value
        ? createdTask(draft, context)
        : filterToolResult(draft, context);
    case 'tasks/result':
      return filterToolResult(draft, context);
    case 'tasks/list':
      return filterTasks(draft, context);
    case 'tasks/get':
    case 'tasks/update':
    case 'tasks/cancel':
      return filterTask(draft, context);
    case 'prompts/get':
      return filterItems(draft, 'messages', visibleMessage, context);
    case 'resources/read':
      return filterContents(draft, context);
    case 'completion/complete':
      return filterCompletions(draft, context);
    default:
      return UNCHANGED;
  }
}

/** null: the list has not been filtered yet. */
function doneBefore(draft: Draft, member: string, { done }: ResultContext): Filtered | null {
  if (done?.member !== member) return null;
  replaceMember(draft, member, done.text);
  return { ok: true, shown: done.shown };
}

function filterList(draft: Draft, shape: ListShape, context: ResultContext): Filtered {
  const done = doneBefore(draft, shape.member, context);
  if (done !== null) return done;
  const items = draft.value[shape.member];
  const spans = draft.span.members?.get(shape.member)?.items;
  if (!Array.isArray(items) || !spans) return fault(`the answer has no list of ${shape.member}`);
  if (items.length > MAX_DECIDED) return fault(TOO_MANY);
  const objects = items.map((item) => itemObject(shape, item));
  const readable = objects.filter((object) => object !== null);
  const allowed = new Map(zip(readable, context.decide(readable)));
  const kept = [...items.keys()].filter((index) => isTrue(allowed, objects[index]));
  const looked = look((sight) => kept.map((index) => visibleHolder(items[index] ?? null, sight)), context.decide);
  if (looked === null) return fault(TOO_MANY);
  const texts = kept.map((index, at) => itemText(draft.text, spans[index], items[index], looked.result[at]));
  replaceMember(draft, shape.member, `[${texts.join()}]`);
  const names = kept.map((index) => objects[index]?.resource_name ?? '');
  return { ok: true, shown: { resource_type: shape.resource_type, names, hidden: items.length - kept.length } };
}

/** The item as the target wrote it, except for its `_meta`. */
function itemText(text: string, span: JsonSpan | undefined, item: JsonValue | undefined, seen: JsonValue | undefined): string {
  if (span === undefined || !isObject(seen)) return 'null';
  const meta = seen === item ? undefined : span.members?.get('_meta');
  if (meta === undefined) return text.slice(span.start, span.end);
  return text.slice(span.start, meta.start) + JSON.stringify(seen._meta) + text.slice(meta.end, span.end);
}

function asTexts(changed: { readonly [name: string]: JsonObject | undefined }): MemberTexts {
  return Object.fromEntries(
    Object.entries(changed).map(([name, value]) => [name, value === undefined ? null : JSON.stringify(value)]),
  );
}

function filterToolResult(draft: Draft, context: ResultContext): Filtered {
  return filterItems(draft, 'content', visibleBlock, context);
}

/** In 2025-11-25, the task is a member of the result. */
function createdTask(draft: Draft, context: ResultContext): Filtered {
  const { task } = draft.value;
  const span = draft.span.members?.get('task');
  if (!isObject(task) || span === undefined) return fault('the answer has no task');
  const made = newTask(draft, { ...draft, span, value: task }, context);
  if (!made.ok) return made;
  const filtered = filterToolResult(draft, context);
  return filtered.ok ? { ...made, shown: filtered.shown } : filtered;
}

/** Members with the state of a task. Clients read it with `tasks/get`, where it is filtered. */
const STATE_OF_TASK = ['result', 'error', 'inputRequests'];

function newTask(draft: Draft, task: Draft, { sealTask }: ResultContext): Filtered {
  if (sealTask === null) return fault('the answer is a task, but the client did not ask for one');
  const upstreamId = upstreamTaskId(task.value.taskId);
  if (upstreamId === null) return fault('the task has no id');
  if (STATE_OF_TASK.some((member) => member in draft.value)) return fault('the new task already has a state');
  const created = sealTask(upstreamId);
  setMember(task, 'taskId', created.handle);
  return { ok: true, shown: null, created };
}

/** Filters the state of a task: its id, and in 2026-07-28 also its input requests, its error and its result. */
function filterTask(draft: Draft, context: ResultContext): Filtered {
  const { taskId, inputRequests, result, error } = draft.value;
  if (taskId !== undefined) {
    const task = context.tasks.get(upstreamTaskId(taskId) ?? '');
    if (task === undefined) return fault('the answer is about a different task');
    setMember(draft, 'taskId', task.handle);
  }
  const unasked = inputRequests === undefined ? null : filterInput(draft, inputRequests, context);
  if (unasked !== null) return unasked;
  const failure = draft.span.members?.get('error');
  if (isObject(error) && failure !== undefined) {
    replaceMember(draft, 'error', withMembers(draft.text, failure, filterError(error, undefined, context.decide)));
  }
  const span = draft.span.members?.get('result');
  if (!isObject(result) || span === undefined) return UNCHANGED;
  if (isOfTwoKinds(result, true, { ...context, method: 'tools/call' })) return fault(TWO_KINDS);
  const inner: Draft = { ...draft, span, value: result };
  const unreadable = checkHead(inner, CONTENT_MEMBERS);
  if (unreadable !== null) return unreadable;
  return checkMeta(inner, context) ? filterToolResult(inner, context) : fault(TOO_MANY);
}

const imitatesTask = imitationOf('taskId _meta');

/** Keeps the caller's own tasks, of tools that it may call: a target lists the tasks of all users of one credential. */
function filterTasks(draft: Draft, context: ResultContext): Filtered {
  const done = doneBefore(draft, 'tasks', context);
  if (done !== null) return done;
  const items = draft.value.tasks;
  const spans = draft.span.members?.get('tasks')?.items;
  if (!Array.isArray(items) || !spans) return fault('the answer has no list of tasks');
  if (items.length > MAX_DECIDED) return fault(TOO_MANY);
  const own = items.map((item) =>
    isObject(item) && !Object.keys(item).some(imitatesTask) ? context.tasks.get(upstreamTaskId(item.taskId) ?? '') : undefined,
  );
  const objects = own.map((task) => task && ({ resource_type: 'tool', resource_name: task.tool } as const));
  const readable = objects.filter((object) => object !== undefined);
  const allowed = new Map(zip<NamedObject, boolean>(readable, context.decide(readable)));
  const texts: string[] = [];
  const names: string[] = [];
  for (const [index, task] of own.entries()) {
    const span = spans[index];
    if (task === undefined || span === undefined || !isTrue(allowed, objects[index])) continue;
    texts.push(withMembers(draft.text, span, { taskId: JSON.stringify(task.handle) }));
    names.push(task.tool);
  }
  replaceMember(draft, 'tasks', `[${texts.join()}]`);
  return { ok: true, shown: { resource_type: 'tool', names, hidden: items.length - names.length } };
}

const imitatesRelated = imitationOf(RELATED_TASK);

/**
 * Checks `_meta`. Messages of 2025-11-25 may name the task that they belong to; if it is not the caller's, the reference is
 * removed. The result of a call may, like its tool, point to a resource that renders it. False: it names too many resources.
 */
function checkMeta(draft: Draft, context: ResultContext): boolean {
  const meta = draft.value._meta;
  const span = draft.span.members?.get('_meta');
  if (!isObject(meta) || span === undefined) return true;
  const changed: Record<string, string | null> = {};
  for (const name of Object.keys(meta)) if (imitatesRelated(name)) changed[name] = null;
  const related = relatedTask(draft.value);
  if (related !== undefined) {
    const task = context.tasks.get(related ?? '');
    changed[RELATED_TASK] = task === undefined ? null : JSON.stringify({ taskId: task.handle });
  }
  const looked = look((sight) => changedPointers(meta, sight), context.decide);
  if (looked === null) return false;
  Object.assign(changed, asTexts(looked.result));
  if (Object.keys(changed).length > 0) replaceMember(draft, '_meta', withMembers(draft.text, span, changed));
  return true;
}

/** Ids of tasks in a result, or in the `params` of a notification. Each must be a task of the caller. */
export function taskIdsIn(value: JsonObject): string[] {
  const listed = Array.isArray(value.tasks) ? value.tasks.slice(0, MAX_DECIDED) : [];
  const { result } = value;
  const named = [relatedTask(value), isObject(result) ? relatedTask(result) : undefined, upstreamTaskId(value.taskId)];
  for (const item of listed) if (isObject(item)) named.push(upstreamTaskId(item.taskId));
  const ids = named.filter((id) => typeof id === 'string');
  return ids.length < 2 ? ids : [...new Set(ids)];
}

/** Removes links to resources that the caller may not read. */
function filterItems(
  draft: Draft,
  member: string,
  see: (item: JsonValue, sight: Sight) => JsonValue | undefined,
  context: ResultContext,
): Filtered {
  const done = doneBefore(draft, member, context);
  if (done !== null) return done;
  const { decide, isPart } = context;
  const value = draft.value[member];
  if (value === undefined) return UNCHANGED;
  const items = Array.isArray(value) ? value : [value];
  const looked = look((sight) => items.map((item) => see(item, sight)), decide);
  if (looked === null) return fault(TOO_MANY);
  const { result: seen, names, hidden } = looked;
  if (isPart || seen.some((item, index) => item !== items[index])) {
    const spans = draft.span.members?.get(member)?.items ?? [];
    const texts = seen.flatMap((item, index) => {
      const span = item === items[index] ? spans[index] : undefined;
      if (item === undefined) return [];
      return span === undefined ? JSON.stringify(item) : draft.text.slice(span.start, span.end);
    });
    replaceMember(draft, member, `[${texts.join()}]`);
  }
  return { ok: true, shown: hidden === 0 && !isPart ? null : { resource_type: 'resource', names, hidden } };
}

/** Removes contents that the caller may not read: a target may answer a read of one URI with contents of other URIs. */
function filterContents(draft: Draft, context: ResultContext): Filtered {
  if (!Array.isArray(draft.value.contents)) return fault('the answer has no contents');
  const asked = context.params?.uri;
  return filterItems(draft, 'contents', (item, sight) => visibleContents(item, asked, sight), context);
}

function mayRead(uris: readonly (JsonValue | undefined)[], context: ResultContext): boolean[] {
  const objects = uris.map((uri): NamedObject | null =>
    typeof uri === 'string' && isCanonicalUri(uri) ? { resource_type: 'resource', resource_name: uri } : null,
  );
  const readable = objects.filter((object) => object !== null);
  const allowed = new Map(zip(readable, context.decide(readable)));
  return objects.map((object) => isTrue(allowed, object));
}

const imitatesCompletion = imitationOf('values total');

/**
 * Removes completions of a template that name resources which the caller may not read. If a further variable has no value
 * yet, a completion names no resource that could be decided, so all are removed.
 */
function filterCompletions(draft: Draft, context: ResultContext): Filtered {
  const { ref } = context.params ?? {};
  const { completion } = draft.value;
  if (!isObject(completion) || !Array.isArray(completion.values)) return fault('the answer has no completion values');
  if (Object.keys(completion).some(imitatesCompletion)) return fault('the answer has two kinds of completion values');
  if (!isObject(ref) || ref.type !== 'ref/resource' || typeof ref.uri !== 'string') return UNCHANGED;
  if (completion.values.length > MAX_AT_ONCE) return fault(TOO_MANY);
  const expand = expansion(ref.uri, context.params ?? {});
  const uris = completion.values.map((value) => (typeof value === 'string' && expand !== null ? expand(value) : null));
  const readable = mayRead(uris, context);
  if (expand !== null && readable.every(Boolean)) return UNCHANGED;
  // The total would reveal how many values are hidden.
  const { total: _, ...rest } = completion;
  setMember(draft, 'completion', { ...rest, values: completion.values.filter((__, index) => readable[index]) });
  const names = uris.filter((text, index) => text !== null && readable[index]) as string[];
  return { ok: true, shown: { resource_type: 'resource', names, hidden: uris.length - names.length } };
}

/** Expands the template with a value of the completed variable. null: the request does not say enough for that. */
function expansion(uri: string, { argument, context }: JsonObject): ((value: string) => string | null) | null {
  const template = readTemplate(uri);
  const completed = isObject(argument) ? argument.name : undefined;
  if (template === null || typeof completed !== 'string' || !template.variables.has(completed)) return null;
  const given = isObject(context) && isObject(context.arguments) ? Object.entries(context.arguments) : [];
  const values = new Map(given.filter((entry): entry is [string, string] => typeof entry[1] === 'string'));
  const isWhole = [...template.variables].every((name) => name === completed || values.has(name));
  return isWhole ? (value) => template.expand(values.set(completed, value)) : null;
}

function openedSession(draft: Draft): Filtered {
  const { protocolVersion, capabilities } = draft.value;
  if (!isSessionRevision(protocolVersion)) return fault('the target answers with a revision that the gateway does not serve');
  if (!isObject(capabilities)) return fault('the answer has no capabilities');
  const tasks = protocolVersion === TASKS_REVISION ? 'capability' : 'none';
  setMember(draft, 'capabilities', reduceServerCapabilities(capabilities, tasks));
  return UNCHANGED;
}

function discovered(draft: Draft): Filtered {
  const { supportedVersions, capabilities } = draft.value;
  if (!Array.isArray(supportedVersions) || !isObject(capabilities)) return fault('the answer has no versions or capabilities');
  setMember(draft, 'supportedVersions', supportedVersions.filter(isServedRevision));
  setMember(draft, 'capabilities', reduceServerCapabilities(capabilities, 'extension'));
  return UNCHANGED;
}

function isServedRevision(version: JsonValue): boolean {
  return version === STATELESS_REVISION || (SESSION_REVISIONS as readonly JsonValue[]).includes(version);
}

const MULTI_ROUND = ['tools/call', 'prompts/get', 'resources/read'];

/** Filters a result with which the target asks for input (2026-07-28): the method must allow it, and the client must offer it. */
function inputRequired(draft: Draft, context: ResultContext): FilteredResult {
  if (!MULTI_ROUND.includes(context.method)) return fault('the target asks for input, which this method does not allow');
  const { inputRequests, requestState } = draft.value;
  const unasked = inputRequests === undefined ? null : filterInput(draft, inputRequests, context);
  if (unasked !== null) return unasked;
  if (requestState !== undefined) {
    if (typeof requestState !== 'string') return fault('the request state is not a string');
    setMember(draft, 'requestState', context.sealState(requestState));
  }
  return finish(draft, UNCHANGED);
}

/** Checks the input requests of the target and removes links that the caller may not read. A fault: the requests are refused. */
function filterInput(draft: Draft, requests: JsonValue, context: ResultContext): ReturnType<typeof fault> | null {
  if (!isObject(requests)) return fault('the input requests are not an object');
  const { params, mayAsk, decide } = context;
  const told = reduceClientCapabilities(declaredCapabilities(params), 'stateless', mayAsk);
  if (!Object.values(requests).every((asked) => isOffered(told, asked))) {
    return fault('the target asks for something that the client does not offer, or that the target may not ask for');
  }
  const entries = Object.entries(requests);
  const looked = look((sight) => entries.map(([, asked]) => visibleRequest(asked, sight)), decide);
  if (looked === null) return fault(TOO_MANY);
  const spans = draft.span.members?.get('inputRequests');
  if (spans === undefined) return null;
  const changed: Record<string, string> = {};
  for (const [index, [key, asked]] of entries.entries()) {
    const seen = looked.result[index];
    if (seen === undefined) return fault('an input request can be read in more than one way');
    if (seen !== asked) changed[key] = JSON.stringify(seen);
  }
  if (Object.keys(changed).length > 0) replaceMember(draft, 'inputRequests', withMembers(draft.text, spans, changed));
  return null;
}

function visibleRequest(asked: JsonValue, sight: Sight): JsonValue | undefined {
  const seen = visibleHolder(asked, sight);
  if (!isObject(seen) || !isObject(seen.params)) return seen;
  const params = visibleAsked(seen.params, sight);
  if (params === undefined) return undefined;
  return params === seen.params ? seen : { ...seen, params };
}

/**
 * Forbids clients to cache the result, because it depends on the caller's rights, which may change at any time. 2026-07-28
 * requires the cache hints. In stateful mode they are replaced only if present, because clients follow them there, too.
 */
function forbidCaching(draft: Draft, { mode, method, operation }: ResultContext): void {
  const isCacheable = operation.kind === 'list' || method === 'server/discover' || method === 'resources/read';
  if (!isCacheable) return;
  if (mode === 'stateless' || 'ttlMs' in draft.value) setMember(draft, 'ttlMs', 0);
  if (mode === 'stateless' || 'cacheScope' in draft.value) setMember(draft, 'cacheScope', 'private');
}

function zip<A, B>(left: readonly A[], right: readonly B[]): [A, B | undefined][] {
  return left.map((value, index) => [value, right[index]]);
}

/** A key that is absent, undecided or denied counts as not allowed. */
function isTrue<K>(allowed: ReadonlyMap<K, boolean | undefined>, key: K | null | undefined): boolean {
  return key !== null && key !== undefined && allowed.get(key) === true;
}

function fault(what: string): { readonly ok: false; readonly fault: string } {
  return { ok: false, fault: what };
}
