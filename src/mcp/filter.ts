/**
 * What of a target's result may go on to the client. Pure: the decisions come in as a function, so that a list shows
 * exactly what calls would be allowed. Only what must change is changed; everything else stays the text it was.
 */
import type { NamedObject } from '../decision/decision.ts';
import { isObject, type JsonObject, type JsonSpan, type JsonValue } from '../http/json.ts';
import type { ResourceType } from '../policies/document.ts';
import type { Askable } from '../targets/target.ts';
import { declaredCapabilities, isOffered, reduceClientCapabilities, reduceServerCapabilities } from './capabilities.ts';
import { type Era, isSessionRevision, MODERN_REVISION, SESSION_REVISIONS } from './era.ts';
import { itemObject, type ListShape, type Operation } from './operation.ts';
import { type Located, withMembers } from './rebuild.ts';
import { RELATED_TASK, relatedTask, TASKS_REVISION, type Task, upstreamTaskId } from './tasks.ts';
import { readTemplate } from './template.ts';
import { isCanonicalUri } from './uri.ts';

/** Spans down to the members of list items: message, result, list, item, member. */
export const RESULT_SPAN_DEPTH = 4;

export interface ResultContext {
  readonly era: Era;
  readonly method: string;
  readonly params: JsonObject | undefined;
  readonly operation: Operation;
  /** May the caller use each of these? */
  readonly decide: (objects: readonly NamedObject[]) => boolean[];
  /** Binds the target's request state to this request (2026-07-28, multi round-trip requests). */
  readonly sealState: (state: string) => string;
  /** What the target may ask the client for. */
  readonly mayAsk: readonly Askable[];
  /** Makes a task that the target has just made the caller's own; null where this request can have made none. */
  readonly sealTask: ((upstreamId: string) => Task) | null;
  /** The caller's own tasks among those that the answer names (`taskIdsIn`), by the ids that the target gave them. */
  readonly tasks: ReadonlyMap<string, Task>;
}

/** Each item is decided, and nothing else runs meanwhile: a target must not be able to keep the gateway busy. */
const MAX_DECIDED = 10_000;
const TOO_MANY = `the answer names more than ${MAX_DECIDED} objects`;

/** What remained of what the target offered. */
export interface Shown {
  readonly resource_type: ResourceType;
  readonly names: readonly string[];
  readonly hidden: number;
}

export type FilteredResult =
  /** `text`: the JSON text of the result. `created`: to be remembered before anybody learns of it. */
  | { readonly ok: true; readonly text: string; readonly shown: Shown | null; readonly created: Task | null }
  | { readonly ok: false; readonly fault: string };

interface Edit {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** Edits of one result, collected and then applied in one go. */
interface Draft {
  readonly text: string;
  readonly span: JsonSpan;
  readonly value: JsonObject;
  readonly edits: Edit[];
}

/** `located` is the whole message with spans to RESULT_SPAN_DEPTH, `result` its verified result. */
export function filterResult(located: Located, result: JsonObject, context: ResultContext): FilteredResult {
  const span = located.span.members?.get('result');
  if (span === undefined) return fault('the answer has no result');
  const draft: Draft = { text: located.text, span, value: result, edits: [] };
  checkMeta(draft, context);
  const kind = result.resultType;
  if (context.era === 'modern' && kind !== undefined && kind !== 'complete') {
    if (kind === 'task') return finish(draft, newTask(draft, draft, context));
    return kind === 'input_required' ? inputRequired(draft, context) : fault('the answer is of an unknown kind');
  }
  const filtered = filterComplete(draft, context);
  if (filtered.ok) forbidCaching(draft, context);
  return finish(draft, filtered);
}

/** For the state of a task that the target tells of on its own: `params` of the notification. */
export function filterTaskParams(located: Located, params: JsonObject, context: ResultContext): FilteredResult {
  const span = located.span.members?.get('params');
  if (span === undefined) return fault('the notification has no params');
  const draft: Draft = { text: located.text, span, value: params, edits: [] };
  checkMeta(draft, context);
  return finish(draft, filterTask(draft, context));
}

function finish(draft: Draft, filtered: Filtered): FilteredResult {
  if (!filtered.ok) return filtered;
  return { ok: true, text: applyEdits(draft), shown: filtered.shown, created: filtered.created ?? null };
}

type Filtered =
  | { readonly ok: true; readonly shown: Shown | null; readonly created?: Task }
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
      return context.era === 'session' && 'task' in draft.value ? createdTask(draft, context) : filterToolResult(draft, context);
    case 'tasks/result':
      return filterToolResult(draft, context);
    case 'tasks/list':
      return filterTasks(draft, context);
    case 'tasks/get':
    case 'tasks/update':
    case 'tasks/cancel':
      return filterTask(draft, context);
    case 'prompts/get':
      return filterLinks(draft, 'messages', (item) => (isObject(item) ? item.content : undefined), context);
    case 'resources/read':
      return filterContents(draft, context);
    case 'completion/complete':
      return filterCompletions(draft, context);
    default:
      return UNCHANGED;
  }
}

function filterList(draft: Draft, shape: ListShape, context: ResultContext): Filtered {
  const items = draft.value[shape.member];
  const spans = draft.span.members?.get(shape.member)?.items;
  if (!Array.isArray(items) || !spans) return fault(`the answer has no list of ${shape.member}`);
  if (items.length > MAX_DECIDED) return fault(TOO_MANY);
  const objects = items.map((item) => itemObject(shape, item));
  const readable = objects.filter((object) => object !== null);
  const allowed = new Map(zip(readable, context.decide(readable)));
  const kept = [...items.keys()].filter((index) => isTrue(allowed, objects[index]));
  const texts = kept.map((index) => {
    const span = spans[index];
    if (span === undefined) return 'null';
    const text = draft.text.slice(span.start, span.end);
    return shape.resource_type === 'tool' ? withoutHiddenLink(draft.text, span, items[index], text, context) : text;
  });
  replaceMember(draft, shape.member, `[${texts.join()}]`);
  const names = kept.map((index) => objects[index]?.resource_name ?? '');
  return { ok: true, shown: { resource_type: shape.resource_type, names, hidden: items.length - kept.length } };
}

/**
 * A tool may point to a resource that renders it (`_meta.ui.resourceUri`, and in older servers `_meta["ui/resourceUri"]`); the
 * pointer goes where the resource may not be read.
 */
function withoutHiddenLink(
  source: string,
  span: JsonSpan,
  item: JsonValue | undefined,
  text: string,
  context: ResultContext,
): string {
  const meta = isObject(item) ? item._meta : undefined;
  const at = span.members?.get('_meta');
  if (!isObject(meta) || at === undefined) return text;
  const hidden = hiddenLinks(meta, context);
  if (Object.keys(hidden).length === 0) return text;
  return source.slice(span.start, at.start) + JSON.stringify({ ...meta, ...hidden }) + source.slice(at.end, span.end);
}

const FLAT_LINK = 'ui/resourceUri';

/** What becomes of the members of a `_meta` that point to a resource that may not be read; undefined: the member goes. */
function hiddenLinks(meta: JsonObject, context: ResultContext): { [name: string]: JsonObject | undefined } {
  const hidden: { [name: string]: JsonObject | undefined } = {};
  if (isObject(meta.ui) && isHiddenLink(meta.ui.resourceUri, context)) {
    const { resourceUri: _, ...ui } = meta.ui;
    hidden.ui = ui;
  }
  if (isHiddenLink(meta[FLAT_LINK], context)) hidden[FLAT_LINK] = undefined;
  return hidden;
}

function isHiddenLink(uri: JsonValue | undefined, context: ResultContext): boolean {
  return uri !== undefined && mayRead([uri], context)[0] !== true;
}

function filterToolResult(draft: Draft, context: ResultContext): Filtered {
  return filterLinks(draft, 'content', (item) => item, context);
}

/** 2025-11-25: the task stands in a member of the result. */
function createdTask(draft: Draft, context: ResultContext): Filtered {
  const { task } = draft.value;
  const span = draft.span.members?.get('task');
  if (!isObject(task) || span === undefined) return fault('the answer has no task');
  const made = newTask(draft, { ...draft, span, value: task }, context);
  if (!made.ok) return made;
  const filtered = filterToolResult(draft, context);
  return filtered.ok ? { ...made, shown: filtered.shown } : filtered;
}

/** What a task has come to is read with `tasks/get`, where it is filtered. */
const STATE_OF_TASK = ['result', 'error', 'inputRequests'];

function newTask(draft: Draft, task: Draft, { sealTask }: ResultContext): Filtered {
  if (sealTask === null) return fault('the answer is a task, which was not asked for');
  const upstreamId = upstreamTaskId(task.value.taskId);
  if (upstreamId === null) return fault('the task has no id');
  if (STATE_OF_TASK.some((member) => member in draft.value)) return fault('the new task has a state already');
  const created = sealTask(upstreamId);
  setMember(task, 'taskId', created.handle);
  return { ok: true, shown: null, created };
}

/** A task as it is: its id, and in 2026-07-28 what it asks for and its result. */
function filterTask(draft: Draft, context: ResultContext): Filtered {
  const { taskId, inputRequests, result } = draft.value;
  if (taskId !== undefined) {
    const task = context.tasks.get(upstreamTaskId(taskId) ?? '');
    if (task === undefined) return fault('the answer is about another task');
    setMember(draft, 'taskId', task.handle);
  }
  const unasked = inputRequests === undefined ? null : unaskedInput(inputRequests, context);
  if (unasked !== null) return unasked;
  const span = draft.span.members?.get('result');
  if (!isObject(result) || span === undefined) return UNCHANGED;
  const inner: Draft = { ...draft, span, value: result };
  checkMeta(inner, context);
  return filterToolResult(inner, context);
}

/** A target lists the tasks of all who share its credential: the caller sees its own, of tools that it may call. */
function filterTasks(draft: Draft, context: ResultContext): Filtered {
  const items = draft.value.tasks;
  const spans = draft.span.members?.get('tasks')?.items;
  if (!Array.isArray(items) || !spans) return fault('the answer has no list of tasks');
  if (items.length > MAX_DECIDED) return fault(TOO_MANY);
  const own = items.map((item) => (isObject(item) ? context.tasks.get(upstreamTaskId(item.taskId) ?? '') : undefined));
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

/**
 * Messages of 2025-11-25 may say which task they belong to; one that is not the caller's is left out. The result of a call
 * may point to a resource that renders it, as its tool may.
 */
function checkMeta(draft: Draft, context: ResultContext): void {
  const meta = draft.value._meta;
  const span = draft.span.members?.get('_meta');
  if (!isObject(meta) || span === undefined) return;
  const changed: Record<string, string | null> = {};
  const related = relatedTask(draft.value);
  if (related !== undefined) {
    const task = context.tasks.get(related ?? '');
    changed[RELATED_TASK] = task === undefined ? null : JSON.stringify({ taskId: task.handle });
  }
  for (const [name, visible] of Object.entries(hiddenLinks(meta, context))) {
    changed[name] = visible === undefined ? null : JSON.stringify(visible);
  }
  if (Object.keys(changed).length > 0) replaceMember(draft, '_meta', withMembers(draft.text, span, changed));
}

/** Ids of tasks in a result, or in `params` of a notification, that have to be the caller's. */
export function taskIdsIn(value: JsonObject): string[] {
  const listed = Array.isArray(value.tasks) ? value.tasks.slice(0, MAX_DECIDED) : [];
  const { result } = value;
  const named = [relatedTask(value), isObject(result) ? relatedTask(result) : undefined, upstreamTaskId(value.taskId)];
  for (const item of listed) if (isObject(item)) named.push(upstreamTaskId(item.taskId));
  const ids = named.filter((id) => typeof id === 'string');
  return ids.length < 2 ? ids : [...new Set(ids)];
}

/** Links name resources that the caller could then read; those that would be refused are not shown. */
function filterLinks(
  draft: Draft,
  member: string,
  block: (item: JsonValue) => JsonValue | undefined,
  context: ResultContext,
): Filtered {
  const items = draft.value[member];
  if (!Array.isArray(items)) return UNCHANGED;
  const uris = items.map((item) => {
    const content = block(item);
    return isObject(content) && content.type === 'resource_link' ? content.uri : undefined;
  });
  return keepReadable(draft, member, uris, context);
}

/** A read of one URI may answer with contents of others. */
function filterContents(draft: Draft, context: ResultContext): Filtered {
  const { contents } = draft.value;
  if (!Array.isArray(contents)) return fault('the answer has no contents');
  const asked = context.params?.uri;
  const uris = contents.map((item) => {
    const uri = isObject(item) ? item.uri : null;
    return uri === asked ? undefined : (uri ?? null);
  });
  return keepReadable(draft, 'contents', uris, context);
}

/** `uris`: undefined where the item needs no decision. */
function keepReadable(draft: Draft, member: string, uris: readonly (JsonValue | undefined)[], context: ResultContext): Filtered {
  const asked = uris.filter((uri) => uri !== undefined);
  if (asked.length === 0) return UNCHANGED;
  if (asked.length > MAX_DECIDED) return fault(TOO_MANY);
  const readable = mayRead(asked, context);
  let next = 0;
  const keep = uris.map((uri) => uri === undefined || readable[next++] === true);
  if (keep.every(Boolean)) return UNCHANGED;
  const spans = draft.span.members?.get(member)?.items ?? [];
  const kept = spans.filter((_, index) => keep[index]);
  replaceMember(draft, member, `[${kept.map((span) => draft.text.slice(span.start, span.end)).join()}]`);
  const names = uris.filter((uri, index) => typeof uri === 'string' && keep[index]) as string[];
  return { ok: true, shown: { resource_type: 'resource', names, hidden: keep.filter((kept) => !kept).length } };
}

function mayRead(uris: readonly (JsonValue | undefined)[], context: ResultContext): boolean[] {
  const objects = uris.map((uri): NamedObject | null =>
    typeof uri === 'string' && isCanonicalUri(uri) ? { resource_type: 'resource', resource_name: uri } : null,
  );
  const readable = objects.filter((object) => object !== null);
  const allowed = new Map(zip(readable, context.decide(readable)));
  return objects.map((object) => isTrue(allowed, object));
}

/**
 * Completions of a template name resources: those that could not be read are not offered. Where other variables have no
 * values yet, no value names a resource that could be decided on, and none is offered.
 */
function filterCompletions(draft: Draft, context: ResultContext): Filtered {
  const { ref } = context.params ?? {};
  const { completion } = draft.value;
  if (!isObject(completion) || !Array.isArray(completion.values)) return fault('the answer has no completion values');
  if (!isObject(ref) || ref.type !== 'ref/resource' || typeof ref.uri !== 'string') return UNCHANGED;
  if (completion.values.length > MAX_DECIDED) return fault(TOO_MANY);
  const expand = expansion(ref.uri, context.params ?? {});
  const uris = completion.values.map((value) => (typeof value === 'string' && expand !== null ? expand(value) : null));
  const readable = mayRead(uris, context);
  if (expand !== null && readable.every(Boolean)) return UNCHANGED;
  // A total would tell how many there are beyond those that are shown.
  const { total: _, ...rest } = completion;
  setMember(draft, 'completion', { ...rest, values: completion.values.filter((__, index) => readable[index]) });
  const names = uris.filter((text, index) => text !== null && readable[index]) as string[];
  return { ok: true, shown: { resource_type: 'resource', names, hidden: uris.length - names.length } };
}

/** The URI that a value of the completed variable makes of a template; null: the request does not say. */
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
  return version === MODERN_REVISION || (SESSION_REVISIONS as readonly JsonValue[]).includes(version);
}

const MULTI_ROUND = ['tools/call', 'prompts/get', 'resources/read'];

/** The target asks the client for something (2026-07-28): only where the revision allows it, and only what the client offers. */
function inputRequired(draft: Draft, context: ResultContext): FilteredResult {
  if (!MULTI_ROUND.includes(context.method)) return fault('the target asks for input where none can be given');
  const { inputRequests, requestState } = draft.value;
  const unasked = inputRequests === undefined ? null : unaskedInput(inputRequests, context);
  if (unasked !== null) return unasked;
  if (requestState !== undefined) {
    if (typeof requestState !== 'string') return fault('the request state is not a string');
    setMember(draft, 'requestState', context.sealState(requestState));
  }
  return finish(draft, UNCHANGED);
}

/** null where all that the target asks for is offered by the client, and is the target's to ask. */
function unaskedInput(requests: JsonValue, { params, mayAsk }: ResultContext): ReturnType<typeof fault> | null {
  if (!isObject(requests)) return fault('the input requests are no object');
  const told = reduceClientCapabilities(declaredCapabilities(params), 'modern', mayAsk);
  const all = Object.values(requests).every((asked) => isOffered(told, asked));
  return all ? null : fault('the target asks for something that the client does not offer, or that the target may not ask for');
}

/**
 * The result depends on the caller's rights, which may change at any time. 2026-07-28 requires the hints; in a session they
 * are only replaced, because clients heed them there, too.
 */
function forbidCaching(draft: Draft, { era, method, operation }: ResultContext): void {
  const isCacheable = operation.kind === 'list' || method === 'server/discover' || method === 'resources/read';
  if (!isCacheable) return;
  if (era === 'modern' || 'ttlMs' in draft.value) setMember(draft, 'ttlMs', 0);
  if (era === 'modern' || 'cacheScope' in draft.value) setMember(draft, 'cacheScope', 'private');
}

function setMember(draft: Draft, name: string, value: JsonValue): void {
  replaceMember(draft, name, JSON.stringify(value));
}

function replaceMember(draft: Draft, name: string, text: string): void {
  const existing = draft.span.members?.get(name);
  if (existing !== undefined) {
    draft.edits.push({ start: existing.start, end: existing.end, text });
    return;
  }
  const at = draft.span.start + 1;
  const isFirst = (draft.span.members?.size ?? 0) === 0 && !draft.edits.some((edit) => edit.start === at);
  draft.edits.push({ start: at, end: at, text: `${JSON.stringify(name)}:${text}${isFirst ? '' : ','}` });
}

function applyEdits(draft: Draft): string {
  let text = '';
  let at = draft.span.start;
  // Of insertions at one place the later goes in front (the sort is stable): only the first may lack its comma.
  for (const edit of draft.edits.toReversed().sort((a, b) => a.start - b.start)) {
    text += draft.text.slice(at, edit.start) + edit.text;
    at = edit.end;
  }
  return text + draft.text.slice(at, draft.span.end);
}

function zip<A, B>(left: readonly A[], right: readonly B[]): [A, B | undefined][] {
  return left.map((value, index) => [value, right[index]]);
}

/** Absent, undecided and denied are the same. */
function isTrue<K>(allowed: ReadonlyMap<K, boolean | undefined>, key: K | null | undefined): boolean {
  return key !== null && key !== undefined && allowed.get(key) === true;
}

function fault(what: string): { readonly ok: false; readonly fault: string } {
  return { ok: false, fault: what };
}
