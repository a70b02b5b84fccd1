/**
 * The names at the aggregate endpoint: `target__name` for tools, prompts and tasks, `target+scheme:...` for resources. The name of a target
 * has neither `_` nor `+`, so it always ends at the first `__` or `+`. Policies and targets never see the joined text. Ids of the client's
 * requests reach targets unchanged; ids of a target's requests get its name as a prefix. Pure.
 */

import { UnreadFault } from '../../base/json/built.ts';
import {
  isObject,
  type JsonObject,
  type JsonReading,
  type JsonSpan,
  type JsonValue,
  readJsonText,
} from '../../base/json/json.ts';
import { LARGE_TEXT, readLargeJson } from '../../base/json/large.ts';
import { CLIENT_RULES, TARGET_RULES } from '../../base/json/selection.ts';
import { restInLane } from '../../base/turns/lane.ts';
import { atOnce } from '../../base/turns/slices.ts';
import { applyEdits, applyInSteps, type Edit } from '../../protocol/draft.ts';
import type { RpcNotification, RpcRequest } from '../../protocol/message.ts';
import type { Located } from '../../protocol/rebuild.ts';
import { POINTERS } from '../../protocol/visible.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import type { ChangeItem } from '../filter/filter-parts.ts';
import { RELATED_TASK } from '../sessions/tasks.ts';

export interface TargetAndName {
  readonly targetName: string;
  /** The name that the target knows. */
  readonly name: string;
}

export function joinName(targetName: string, name: string): string {
  return `${targetName}__${name}`;
}

export function joinUri(targetName: string, uri: string): string {
  return `${targetName}+${uri}`;
}

export function splitName(joined: JsonValue | undefined): TargetAndName | null {
  return split(joined, '__');
}

export function splitUri(joined: JsonValue | undefined): TargetAndName | null {
  return split(joined, '+');
}

function split(joined: JsonValue | undefined, between: string): TargetAndName | null {
  if (typeof joined !== 'string') return null;
  const at = joined.indexOf(between);
  const targetName = joined.slice(0, Math.max(0, at));
  return TARGET_NAME.test(targetName) ? { targetName, name: joined.slice(at + between.length) } : null;
}

/** The member of `params` that names the target of a request, by method. */
const AIMED_BY: ReadonlyMap<string, 'name' | 'uri' | 'taskId'> = new Map([
  ['tools/call', 'name'],
  ['prompts/get', 'name'],
  ['resources/read', 'uri'],
  ['resources/subscribe', 'uri'],
  ['resources/unsubscribe', 'uri'],
  ['tasks/get', 'taskId'],
  ['tasks/result', 'taskId'],
  ['tasks/cancel', 'taskId'],
]);

/** The target of the request, and the request with the names that the target knows. null: the request names no target. */
export function forTarget<Message extends RpcRequest | RpcNotification>(
  message: Message,
): { readonly targetName: string; readonly message: Message } | null {
  const params = message.params ?? {};
  if (message.method === 'completion/complete') return completionForTarget(message, params);
  const member = AIMED_BY.get(message.method);
  const aimed = member === undefined ? null : split(params[member], member === 'uri' ? '+' : '__');
  if (member === undefined || aimed === null) return null;
  const { targetName } = aimed;
  return { targetName, message: bareMeta({ ...message, params: { ...params, [member]: aimed.name } }, targetName) };
}

function completionForTarget<Message extends RpcRequest | RpcNotification>(message: Message, params: JsonObject) {
  const { ref } = params;
  if (!isObject(ref)) return null;
  const aimed = ref.type === 'ref/prompt' ? splitName(ref.name) : splitUri(ref.uri);
  if (aimed === null) return null;
  const bare = ref.type === 'ref/prompt' ? { ...ref, name: aimed.name } : { ...ref, uri: aimed.name };
  const { targetName } = aimed;
  return { targetName, message: bareMeta({ ...message, params: { ...params, ref: bare } }, targetName) };
}

/** Gives the task that a client's message names the id that the target knows. A task of a different target is removed. */
export function bareMeta<Message extends RpcRequest | RpcNotification>(message: Message, targetName: string): Message {
  const meta = message.params?._meta;
  if (!isObject(meta) || !(RELATED_TASK in meta)) return message;
  const { [RELATED_TASK]: related, ...rest } = meta;
  const aimed = isObject(related) ? splitName(related.taskId) : null;
  const bare = aimed?.targetName === targetName ? { ...rest, [RELATED_TASK]: { taskId: aimed.name } } : rest;
  return { ...message, params: { ...message.params, _meta: bare } };
}

/** The same for a response. Its other text does not change. */
export async function bareResponse(targetName: string, located: Located, owner: string): Promise<Located> {
  const text = located.text.slice(located.span.start, located.span.end);
  if (!text.includes(RELATED_TASK)) return located;
  const found: Found = { edits: [], lists: [] };
  const bare: Renaming = (value, span, { edits }) => {
    const aimed = splitName(value);
    if (aimed?.targetName === targetName) edits.push({ start: span.start, end: span.end, text: JSON.stringify(aimed.name) });
  };
  const rules = { ...CLIENT_RULES, ...RULES };
  const reading = await readLargeJson(text, rules, owner);
  if (!reading.ok) return located;
  at(['result', '_meta', RELATED_TASK, 'taskId'], bare)(reading.value, reading.span, found);
  const edited = await readLargeJson(applyEdits({ text, span: reading.span, edits: found.edits }), rules, owner);
  return edited.ok ? edited : located;
}

/** The depth of spans, down to `_meta.ui.resourceUri` of a list item. */
const LIST_DEPTH = 6;
/** The text has already been read within the limits for targets. */
const RULES = { exact: false, maxDepth: 512, maxValues: 4_000_000, spanDepth: LIST_DEPTH };

/** What renamings have found in a value. */
interface Found {
  readonly edits: Edit[];
  /** Lists whose items are not yet renamed. */
  readonly lists: { readonly items: readonly JsonValue[]; readonly spans: readonly JsonSpan[]; readonly renaming: Renaming }[];
}

type Renaming = (value: JsonValue, span: JsonSpan, found: Found) => void;

/**
 * Joins the names in a message to the client with the name of the target. `text`: the message as on the target's own endpoint.
 * `method`: of the request that it answers.
 */
export function renameMessage(targetName: string, method: string, text: string): string {
  const reading = readJsonText(text, rulesFor(method));
  return reading.ok ? applyEdits({ text, span: reading.span, edits: atOnce(editsFor(targetName, method, reading)) }) : text;
}

/** The same for a message of any size. `owner`: whose turns in the lane reading takes. A message with too many values keeps its names. */
export async function renameLarge(targetName: string, method: string, text: string, owner: string): Promise<string> {
  if (text.length <= LARGE_TEXT) return renameMessage(targetName, method, text);
  const { reading, edits } = await readNames(targetName, method, text, owner);
  return reading.ok ? restInLane(owner, applyInSteps({ text, span: reading.span, edits })) : text;
}

/** Reads the answer to a request for a list. `items`: the items with joined names, as text; null: there is no list. */
export async function readList(
  targetName: string,
  method: string,
  member: string,
  text: string,
  owner: string,
): Promise<{ readonly message: JsonObject; readonly items: string | null }> {
  const { reading, edits } = await readNames(targetName, method, text, owner);
  if (!reading.ok || !isObject(reading.value)) return { message: {}, items: null };
  const list = reading.span.members?.get('result')?.members?.get(member);
  if (list === undefined) return { message: reading.value, items: null };
  const within = edits.filter(({ start }) => start >= list.start && start < list.end);
  const renamed = await restInLane(owner, applyInSteps({ text, span: list, edits: within }));
  return { message: reading.value, items: renamed.slice(1, -1).trim() };
}

/** Joins the names in an item of a list with the name of the target, as `readList` does. null: the item is too long to be read at once. */
export function itemRenaming(targetName: string, method: string): ChangeItem {
  const isUri = method.startsWith('resources/');
  const join = (name: string): string => (isUri ? joinUri : joinName)(targetName, name);
  const uri = rename((value) => joinUri(targetName, value));
  const renamings = [at([KEYS.get(method) ?? ''], rename(join)), ...pointed(uri)];
  return ({ text, name, at: own }) => {
    if (own !== null) return text.slice(0, own.start) + JSON.stringify(join(name)) + text.slice(own.end);
    if (text.length > LARGE_TEXT) return null;
    const reading = readJsonText(text, { ...RULES, spanDepth: ITEM_DEPTH });
    const found: Found = { edits: [], lists: [] };
    if (!reading.ok) return null;
    all(renamings)(reading.value, reading.span, found);
    return applyEdits({ text, span: reading.span, edits: found.edits });
  };
}

/** The members that name the items of lists. */
const KEYS = new Map([
  ['tools/list', 'name'],
  ['prompts/list', 'name'],
  ['resources/list', 'uri'],
  ['resources/templates/list', 'uriTemplate'],
]);
/** The depth of spans, down to `_meta.ui.resourceUri` of an item. */
const ITEM_DEPTH = 3;

async function readNames(
  targetName: string,
  method: string,
  text: string,
  owner: string,
): Promise<{ reading: JsonReading; edits: Edit[] }> {
  const reading = await readLargeJson(text, { ...TARGET_RULES, ...rulesFor(method) }, owner);
  try {
    return { reading, edits: reading.ok ? await restInLane(owner, editsFor(targetName, method, reading)) : [] };
  } catch (fault) {
    if (fault instanceof UnreadFault) return { reading, edits: [] };
    throw fault;
  }
}

/** A `tool_result` may contain others, to any depth, so content has spans down to its full depth. */
const rulesFor = (method: string) => ({ ...RULES, spanDepth: method.endsWith('/list') ? LIST_DEPTH : RULES.maxDepth });

const ITEMS_AT_ONCE = 100;

/** Returns the edits in any order. Pauses after some items of lists. */
function* editsFor(
  targetName: string,
  method: string,
  reading: JsonReading & { readonly ok: true },
): Generator<undefined, Edit[]> {
  if (!isObject(reading.value)) return [];
  const message = reading.value;
  const found: Found = { edits: [], lists: [] };
  const name = rename((value) => joinName(targetName, value));
  const uri = rename((value) => joinUri(targetName, value));
  const within = renamings(name, uri);
  if (typeof message.method === 'string') {
    // A request or a notification of the target.
    if ('id' in message) {
      at(['id'], name)(message, reading.span, found);
      at(['params', '_meta', 'progressToken'], token(targetName))(message, reading.span, found);
    }
    if (message.method === 'notifications/resources/updated') at(['params', 'uri'], uri)(message, reading.span, found);
    if (message.method === 'notifications/cancelled') at(['params', 'requestId'], name)(message, reading.span, found);
    if (message.method === 'notifications/tasks/status') at(['params', 'taskId'], name)(message, reading.span, found);
    if (message.method === 'elicitation/create' || message.method === 'notifications/elicitation/complete')
      at(['params', 'elicitationId'], name)(message, reading.span, found);
    at(['params', '_meta', RELATED_TASK, 'taskId'], name)(message, reading.span, found);
    for (const renaming of askedRenamings(uri)) at(['params'], renaming)(message, reading.span, found);
  } else {
    at(['error', 'data', 'uri'], uri)(message, reading.span, found);
    at(['error', 'data'], some('elicitations', at(['elicitationId'], name)))(message, reading.span, found);
    at(['result', '_meta', RELATED_TASK, 'taskId'], name)(message, reading.span, found);
    for (const renaming of pointed(uri)) at(['result'], renaming)(message, reading.span, found);
    for (const renaming of within.get(method) ?? []) at(['result'], renaming)(message, reading.span, found);
  }
  let renamed = 0;
  // A list inside an item joins the end.
  for (const { items, spans, renaming } of found.lists) {
    for (const [index, item] of items.entries()) {
      const span = spans[index];
      if (span !== undefined) renaming(item, span, found);
      if (++renamed % ITEMS_AT_ONCE === 0) yield;
    }
  }
  return found.edits;
}

/** Joins a progress token with the name of its target. The token is kept as JSON text, so that a number stays a number. */
const token =
  (targetName: string): Renaming =>
  (value, span, { edits }) => {
    if (typeof value !== 'string' && typeof value !== 'number') return;
    edits.push({ start: span.start, end: span.end, text: JSON.stringify(joinName(targetName, JSON.stringify(value))) });
  };

/** null: the gateway did not issue this token. */
export function splitToken(
  joined: JsonValue | undefined,
): { readonly targetName: string; readonly token: string | number } | null {
  const aimed = splitName(joined);
  if (aimed === null) return null;
  try {
    const token: unknown = JSON.parse(aimed.name);
    return typeof token === 'string' || typeof token === 'number' ? { targetName: aimed.targetName, token } : null;
  } catch {
    return null;
  }
}

/** The names in a result, by the method that it answers. */
function renamings(name: Renaming, uri: Renaming): ReadonlyMap<string, readonly Renaming[]> {
  const pointers = pointed(uri);
  const content = some('content', blockOf(uri));
  const task = [at(['task', 'taskId'], name), at(['task'], all(pointers))];
  return new Map<string, readonly Renaming[]>([
    ['tools/list', [some('tools', at(['name'], name), ...pointers)]],
    ['prompts/list', [some('prompts', at(['name'], name), ...pointers)]],
    ['resources/list', [some('resources', at(['uri'], uri), ...pointers)]],
    ['resources/templates/list', [some('resourceTemplates', at(['uriTemplate'], uri), ...pointers)]],
    ['tasks/list', [some('tasks', at(['taskId'], name), ...pointers)]],
    ['resources/read', [some('contents', at(['uri'], uri), ...pointers)]],
    ['tools/call', [content, ...task]],
    ['tasks/result', [content]],
    ['tasks/get', [at(['taskId'], name)]],
    ['tasks/cancel', [at(['taskId'], name)]],
    ['prompts/get', [some('messages', content, ...pointers)]],
  ]);
}

/** The names in the parameters of the target's requests and notifications. */
function askedRenamings(uri: Renaming): readonly Renaming[] {
  const pointers = pointed(uri);
  return [...pointers, some('messages', some('content', blockOf(uri)), ...pointers), some('tools', ...pointers)];
}

function pointed(uri: Renaming): readonly Renaming[] {
  return [at(['_meta', 'ui', 'resourceUri'], uri), ...POINTERS.map((pointer) => at(['_meta', pointer], uri))];
}

/** The names in a block of content, and in the blocks that a tool result contains. */
function blockOf(uri: Renaming): Renaming {
  const pointers = pointed(uri);
  const renamings = [linked(uri), at(['resource', 'uri'], uri), ...pointers, at(['resource'], all(pointers))];
  const block: Renaming = (value, span, found) => {
    all(renamings)(value, span, found);
    some('content', block)(value, span, found);
  };
  return block;
}

const all =
  (renamings: readonly Renaming[]): Renaming =>
  (value, span, found) => {
    for (const renaming of renamings) renaming(value, span, found);
  };

const rename =
  (joined: (value: string) => string): Renaming =>
  (value, span, { edits }) => {
    if (typeof value === 'string') edits.push({ start: span.start, end: span.end, text: JSON.stringify(joined(value)) });
  };

/** Applies `renaming` to the value at this path, if it exists. */
function at(path: readonly string[], renaming: Renaming): Renaming {
  return (value, span, found) => {
    let inner: JsonValue | undefined = value;
    let where: JsonSpan | undefined = span;
    for (const member of path) {
      if (!isObject(inner) || !Object.hasOwn(inner, member)) return;
      inner = inner[member];
      where = where?.members?.get(member);
    }
    if (inner !== undefined && where !== undefined) renaming(inner, where, found);
  };
}

/** Applies the renamings to a member that is one item or an array of items. */
function some(member: string, ...renamings: readonly Renaming[]): Renaming {
  return at([member], (value, span, found) => {
    if (Array.isArray(value)) found.lists.push({ items: value, spans: span.items ?? [], renaming: all(renamings) });
    else all(renamings)(value, span, found);
  });
}

const linked =
  (uri: Renaming): Renaming =>
  (value, span, found) => {
    if (isObject(value) && value.type === 'resource_link') at(['uri'], uri)(value, span, found);
  };
