/**
 * Removes from a target's result what the client may not see. Pure: the caller passes the decisions as a function, so that a
 * list shows exactly what may be called. Only what must change is changed; all other text stays as the target wrote it.
 */

import { isUnread } from '../../base/json/built.ts';
import { isObject, type JsonObject, type JsonSpan, type JsonValue } from '../../base/json/json.ts';
import { jsonText, wrote } from '../../base/json/text.ts';
import { atOnce } from '../../base/turns/slices.ts';
import { reduceServerCapabilities } from '../../protocol/capabilities.ts';
import { type Draft, replaceMember, setMember } from '../../protocol/draft.ts';
import { imitationOf } from '../../protocol/imitation.ts';
import { isSessionRevision, SESSION_REVISIONS, STATELESS_REVISION } from '../../protocol/mode.ts';
import { itemObject } from '../../protocol/operation.ts';
import type { Located } from '../../protocol/rebuild.ts';
import { readTemplate } from '../../protocol/template.ts';
import { isCanonicalUri, MAX_URI_BYTES, resourceOf } from '../../protocol/uri.ts';
import { look, MAX_AT_ONCE, MAX_DECIDED, visibleContents, visibleHolder, visibleMessage } from '../../protocol/visible.ts';
import { TASKS_REVISION } from '../sessions/tasks.ts';
import {
  COMMON,
  CONTENT_MEMBERS,
  checkHead,
  createdTask,
  type DoneList,
  doneBefore,
  type Filtered,
  type FilteredResult,
  type Filtering,
  fault,
  filterItems,
  filterTask,
  filterTasks,
  filterToolResult,
  finish,
  inputRequired,
  isOfTwoKinds,
  mayUse,
  newTask,
  type ResultContext,
  TASK_MEMBERS,
  TOO_MANY,
  TWO_KINDS,
  UNCHANGED,
} from './filter-parts.ts';

/** The depth of spans, down to the members of list items: message, result, list, item, member. */
export const RESULT_SPAN_DEPTH = 4;

/** `located` is the whole message with spans to RESULT_SPAN_DEPTH, `result` its verified result. */
export function filterResult(located: Located, result: JsonObject, context: ResultContext): FilteredResult {
  return atOnce(filterWhole(located, result, context));
}

/** The same. Pauses only before and between decisions that take long. */
export function* filterWhole(located: Located, result: JsonObject, context: ResultContext): Filtering<FilteredResult> {
  const span = located.span.members?.get('result');
  if (span === undefined) return fault('the answer has no result');
  const draft: Draft = { text: located.text, span, value: result, edits: [] };
  const { isImitation, filter } = shapeOf(context);
  const unreadable = yield* checkHead(draft, isImitation, context);
  if (unreadable !== null) return unreadable;
  const kind = result.resultType;
  const isWhole = context.mode === 'stateful' || kind === undefined || kind === 'complete';
  if (isOfTwoKinds(result, isWhole, context)) return fault(TWO_KINDS);
  if (!isWhole) {
    if (kind === 'task') return finish(draft, newTask(draft, draft, context));
    return kind === 'input_required' ? yield* inputRequired(draft, context) : fault('the answer has an unknown resultType');
  }
  const found = filter(draft, context);
  const filtered = 'ok' in found ? found : yield* found;
  if (filtered.ok) forbidCaching(draft, context);
  return finish(draft, filtered);
}

/** How many items are filtered in one step, and about how many characters of them: an item can have a hundred thousand members. */
const ITEMS_AT_ONCE = 50;
const TEXT_AT_ONCE = 64 * 1024;
/** A list with more items is filtered in steps, however short its text is. */
const LONG_LIST = 500;

export function isLongList(result: JsonObject, context: ResultContext): boolean {
  const items = result[shapeOf(context).list ?? ''];
  return Array.isArray(items) && items.length > LONG_LIST;
}

/** The same as `filterResult`, in short steps for a long list. Its items do not depend on each other. */
export function* filterInSteps(
  located: Located,
  result: JsonObject,
  context: ResultContext,
  itemsAtOnce = ITEMS_AT_ONCE,
): Generator<undefined, FilteredResult> {
  const member = shapeOf(context).list;
  const list = member === undefined ? undefined : located.span.members?.get('result')?.members?.get(member);
  const items = member === undefined ? undefined : result[member];
  const spans = list?.items ?? [];
  const isLong =
    Array.isArray(items) && !isUnread(items) && spans.length === items.length && endOfStep(spans, 0, itemsAtOnce) < items.length;
  if (member === undefined || !isLong || (context.operation.kind === 'list' && items.length > MAX_DECIDED)) {
    return yield* filterWhole(located, result, context);
  }
  const texts: string[] = [];
  const names: string[] = [];
  const changed: string[] = [];
  let hidden = 0;
  for (let [from, to] = [0, 0]; from < items.length; from = to) {
    to = endOfStep(spans, from, itemsAtOnce);
    const part = yield* filterPart(located.text, member, items, spans, from, to, context);
    if (!part.ok) return part;
    // The parts that are changed have no other text.
    if (context.changeItem !== undefined && part.changed === null)
      return yield* filterInSteps(located, result, { ...context, changeItem: undefined }, itemsAtOnce);
    if (part.text !== '') texts.push(part.text);
    for (const items of part.changed ?? []) changed.push(items);
    for (const name of part.shown?.names ?? []) names.push(name);
    hidden += part.shown?.hidden ?? 0;
    if (context.operation.kind !== 'list' && new Set(names).size > MAX_DECIDED) return fault(TOO_MANY);
    yield;
  }
  const isTold = context.operation.kind === 'list' || member === 'tasks' || hidden > 0;
  const resource_type =
    context.operation.kind === 'list' ? context.operation.list.resource_type : member === 'tasks' ? 'tool' : 'resource';
  const shown = isTold ? { resource_type, names, hidden } : null;
  const done: DoneList = { member, text: `[${texts.join()}]`, shown, changed: context.changeItem === undefined ? null : changed };
  return yield* filterWhole(located, result, { ...context, done });
}

/** The end of the step that begins at the item `from`. */
function endOfStep(spans: readonly JsonSpan[], from: number, itemsAtOnce: number): number {
  const start = spans[from]?.start ?? 0;
  let to = from + 1;
  while (to - from < itemsAtOnce && (spans[to]?.end ?? Number.POSITIVE_INFINITY) - start <= TEXT_AT_ONCE) to++;
  return to;
}

/** Filters some items of a list as a result of their own. `text`: the remaining items, joined. */
function* filterPart(
  text: string,
  member: string,
  items: readonly JsonValue[],
  spans: readonly JsonSpan[],
  from: number,
  to: number,
  context: ResultContext,
): Filtering<FilteredResult> {
  const some = spans.slice(from, to);
  const [start, end] = [some[0]?.start ?? 0, some.at(-1)?.end ?? 0];
  const list: JsonSpan = { start, end, members: null, items: some };
  const result: JsonSpan = { start, end, members: new Map([[member, list]]), items: null };
  const located: Located = { text, span: { start, end, members: new Map([['result', result]]), items: null } };
  // In stateful mode, the filter changes only the list.
  const filtered = yield* filterWhole(
    located,
    { [member]: items.slice(from, to) },
    { ...context, mode: 'stateful', isPart: true },
  );
  return filtered.ok ? { ...filtered, text: filtered.text.slice(1, -1) } : filtered;
}

/** How the result of a method is filtered. */
interface Shape {
  /** Whether the name imitates that of a member which the filter reads. */
  readonly isImitation: (name: string) => boolean;
  readonly filter: (draft: Draft, context: ResultContext) => Filtered | Filtering<Filtered>;
  /** The member that holds the list of the result. */
  readonly list?: string;
}

/** A list is filtered by its operation, also if its method has no shape of its own. */
const OTHER: Shape = { isImitation: imitationOf(COMMON), filter: filterList };
const CONTENT: Shape = { isImitation: CONTENT_MEMBERS, filter: filterToolResult, list: 'content' };
const TASK: Shape = { isImitation: TASK_MEMBERS, filter: filterTask };
const listIn = (list: string, filter: Shape['filter']): Shape => ({ isImitation: imitationOf(COMMON, list), filter, list });

const SHAPES: ReadonlyMap<string, Shape> = new Map([
  ['initialize', { isImitation: imitationOf(COMMON, 'protocolVersion capabilities'), filter: openedSession }],
  ['server/discover', { isImitation: imitationOf(COMMON, 'supportedVersions capabilities'), filter: discovered }],
  ['tools/list', listIn('tools', filterList)],
  ['prompts/list', listIn('prompts', filterList)],
  ['resources/list', listIn('resources', filterList)],
  ['resources/templates/list', listIn('resourceTemplates', filterList)],
  ['tasks/list', listIn('tasks', filterTasks)],
  ['tools/call', { ...CONTENT, filter: filterCall }],
  ['tasks/result', CONTENT],
  ['tasks/get', TASK],
  ['tasks/update', TASK],
  ['tasks/cancel', TASK],
  ['prompts/get', listIn('messages', (draft, context) => filterItems(draft, 'messages', visibleMessage, context))],
  ['resources/read', listIn('contents', filterContents)],
  ['completion/complete', { isImitation: imitationOf(COMMON, 'completion'), filter: filterCompletions }],
]);

const shapeOf = ({ method }: ResultContext): Shape => SHAPES.get(method) ?? OTHER;

function filterCall(draft: Draft, context: ResultContext): Filtering<Filtered> {
  const isTask = context.mode === 'stateful' && 'task' in draft.value;
  return isTask ? createdTask(draft, context) : filterToolResult(draft, context);
}

function* filterList(draft: Draft, context: ResultContext): Filtering<Filtered> {
  const { operation } = context;
  if (operation.kind !== 'list') return UNCHANGED;
  const shape = operation.list;
  const done = doneBefore(draft, shape.member, context);
  if (done !== null) return done;
  const items = draft.value[shape.member];
  const spans = draft.span.members?.get(shape.member)?.items;
  if (!Array.isArray(items) || !spans) return fault(`the answer has no list of ${shape.member}`);
  if (items.length > MAX_DECIDED) return fault(TOO_MANY);
  const objects = items.map((item) => itemObject(shape, item));
  const allowed = yield* mayUse(objects, context);
  const kept = [...items.keys()].filter((index) => allowed[index]);
  const looked = yield* look((sight) => kept.map((index) => visibleHolder(items[index] ?? null, sight)), context.decide);
  if (looked === null) return fault(TOO_MANY);
  const texts: string[] = [];
  for (const [at, index] of kept.entries())
    texts.push(yield* itemText(draft.text, spans[index], items[index], looked.result[at]));
  const changed = changedItems(texts, context, shape.key, kept, spans, items);
  replaceMember(draft, shape.member, changed === null ? `[${texts.join()}]` : '[]');
  const names = kept.map((index) => objects[index]?.resource_name ?? '');
  const shown = { resource_type: shape.resource_type, names, hidden: items.length - kept.length };
  return { ok: true, shown, changed };
}

/** The texts of the remaining items after `changeItem`, joined to one if there are any. null: there is nothing to change them, or one cannot be changed. */
function changedItems(
  texts: readonly string[],
  { changeItem }: ResultContext,
  key: string,
  kept: readonly number[],
  spans: readonly JsonSpan[],
  items: readonly JsonValue[],
): readonly string[] | null {
  if (changeItem === undefined) return null;
  const changed: string[] = [];
  for (const [at, text] of texts.entries()) {
    const index = kept[at] ?? -1;
    const [item, span] = [items[index], spans[index]];
    const own = span?.members?.get(key);
    if (!isObject(item) || span === undefined || own === undefined) return null;
    // Its `_meta` may name objects, too, and may have a different text now.
    const isPlain = !Object.hasOwn(item, '_meta');
    const position = isPlain ? { start: own.start - span.start, end: own.end - span.start } : null;
    const result = changeItem({ text, name: String(item[key]), at: position });
    if (result === null) return null;
    changed.push(result);
  }
  return changed.length === 0 ? [] : [changed.join()];
}

/** The item as the target wrote it, except for its `_meta`. */
function* itemText(
  text: string,
  span: JsonSpan | undefined,
  item: JsonValue | undefined,
  seen: JsonValue | undefined,
): Filtering<string> {
  if (span === undefined || !isObject(seen)) return 'null';
  const meta = seen === item ? undefined : span.members?.get('_meta');
  if (meta === undefined) return text.slice(span.start, span.end);
  return text.slice(span.start, meta.start) + (yield* jsonText(seen._meta ?? null)) + text.slice(meta.end, span.end);
}

/** Removes contents that the caller may not read: a target may answer a read of one URI with contents of other URIs. */
function filterContents(draft: Draft, context: ResultContext): Filtered | Filtering<Filtered> {
  if (!Array.isArray(draft.value.contents)) return fault('the answer has no contents');
  const asked = context.params?.uri;
  return filterItems(draft, 'contents', (item, sight) => visibleContents(item, asked, sight), context);
}

function mayRead(uris: readonly (JsonValue | undefined)[], context: ResultContext): Filtering<boolean[]> {
  const objects = uris.map((uri) => (typeof uri === 'string' && isCanonicalUri(uri) ? resourceOf(uri) : null));
  return mayUse(objects, context);
}

const imitatesCompletion = imitationOf('values total');

/**
 * Removes completions of a template that name resources which the caller may not read. If a further variable has no value
 * yet, a completion names no resource that could be decided, so all are removed.
 */
function* filterCompletions(draft: Draft, context: ResultContext): Filtering<Filtered> {
  const { ref } = context.params ?? {};
  const { completion } = draft.value;
  if (!isObject(completion) || !Array.isArray(completion.values)) return fault('the answer has no completion values');
  if (Object.keys(completion).some(imitatesCompletion)) return fault('the answer has two kinds of completion values');
  if (!isObject(ref) || ref.type !== 'ref/resource' || typeof ref.uri !== 'string') return UNCHANGED;
  if (completion.values.length > MAX_AT_ONCE) return fault(TOO_MANY);
  const expand = expansion(ref.uri, context.params ?? {});
  const uris: (string | null)[] = [];
  for (const value of completion.values) {
    const expanded = typeof value === 'string' && expand !== null ? expand(value) : null;
    uris.push(expanded);
    // The template is also expanded up to this length if the URI is too long.
    yield* wrote(expanded?.length ?? MAX_URI_BYTES);
  }
  const readable = yield* mayRead(uris, context);
  if (expand !== null && readable.every(Boolean)) return UNCHANGED;
  // The total would reveal how many values are hidden.
  const { total: _, ...rest } = completion;
  const shown = { ...rest, values: completion.values.filter((__, index) => readable[index]) };
  replaceMember(draft, 'completion', yield* jsonText(shown));
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

function* openedSession(draft: Draft): Filtering<Filtered> {
  const { protocolVersion, capabilities } = draft.value;
  if (!isSessionRevision(protocolVersion)) return fault('the target answers with a revision that the gateway does not serve');
  if (!isObject(capabilities)) return fault('the answer has no capabilities');
  const tasks = protocolVersion === TASKS_REVISION ? 'capability' : 'none';
  replaceMember(draft, 'capabilities', yield* jsonText(reduceServerCapabilities(capabilities, tasks)));
  return UNCHANGED;
}

function* discovered(draft: Draft): Filtering<Filtered> {
  const { supportedVersions, capabilities } = draft.value;
  if (!Array.isArray(supportedVersions) || !isObject(capabilities)) return fault('the answer has no versions or capabilities');
  setMember(draft, 'supportedVersions', supportedVersions.filter(isServedRevision));
  replaceMember(draft, 'capabilities', yield* jsonText(reduceServerCapabilities(capabilities, 'extension')));
  return UNCHANGED;
}

function isServedRevision(version: JsonValue): boolean {
  return version === STATELESS_REVISION || (SESSION_REVISIONS as readonly JsonValue[]).includes(version);
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
