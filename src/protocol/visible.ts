/**
 * Removes links to resources that the caller may not read from what a target sends. Each function returns the value itself if
 * nothing changes, and undefined if nothing of it may be shown. Pure.
 */

import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';
import { type Decide, decided } from '../engine/estimate.ts';
import { imitationOf } from './imitation.ts';
import { isCanonicalUri, MAX_URI_BYTES, resourceOf } from './uri.ts';

/** Decides on URIs while a value is walked. */
export interface Sight {
  /** Whether to keep a link that is content. It is counted as listed or hidden. */
  link(uri: JsonValue | undefined): boolean;
  /** Whether to keep a pointer in `_meta`. It is not counted. */
  pointer(uri: JsonValue | undefined): boolean;
  /** Counts a value as hidden: it has more than one reading, or names nothing that can be read. */
  hide(): undefined;
}

export interface Looked<T> {
  readonly result: T;
  /** URIs of the links that were kept. */
  readonly names: readonly string[];
  readonly hidden: number;
}

/** How many objects one answer may name. They are decided in steps. */
export const MAX_DECIDED = 10_000;
/** How many objects one part of an answer may name. They are checked in one step: about 25 us for a URI of 2 KiB. */
export const MAX_AT_ONCE = 500;

/** Walks a value with the sight. May pause between parts of the value. */
export type Walk<T> = (sight: Sight) => Generator<undefined, T>;

/** Walks as if every canonical URI were allowed, to collect the URIs. null: there are too many URIs. Pauses with the walk. */
export function* survey<T>(
  walk: Walk<T>,
): Generator<undefined, { readonly looked: Looked<T>; readonly uris: ReadonlySet<string> } | null> {
  const checked = new Map<string, boolean>();
  const looked = yield* lookWith(walk, (uri) => {
    const known = checked.get(uri);
    if (known !== undefined) return known;
    if (checked.size > MAX_AT_ONCE || uri.length > MAX_URI_BYTES) return false;
    const isCanonical = isCanonicalUri(uri);
    checked.set(uri, isCanonical);
    return isCanonical;
  });
  if (checked.size > MAX_AT_ONCE) return null;
  return { looked, uris: new Set([...checked.keys()].filter((uri) => checked.get(uri))) };
}

/** Walks with one decision per URI, all made together. null: there are too many URIs. Pauses if the decisions take long. */
export function* look<T>(walk: (sight: Sight) => T, decide: Decide): Generator<undefined, Looked<T> | null> {
  // biome-ignore lint/correctness/useYield: this walk has no pause
  const whole: Walk<T> = function* (sight) {
    return walk(sight);
  };
  const surveyed = yield* survey(whole);
  if (surveyed === null || surveyed.uris.size === 0) return surveyed?.looked ?? null;
  return yield* lookAt(whole, surveyed.uris, decide);
}

/** `uris`: as `survey` has collected them. Pauses with the walk, and if the decisions take long. */
export function* lookAt<T>(walk: Walk<T>, uris: ReadonlySet<string>, decide: Decide): Generator<undefined, Looked<T>> {
  const objects = [...uris].map(resourceOf);
  const allowed = yield* decided(decide, objects);
  const readable = new Set(objects.filter((_, index) => allowed[index] === true).map(({ resource_name }) => resource_name));
  return yield* lookWith(walk, (uri) => readable.has(uri));
}

function* lookWith<T>(walk: Walk<T>, mayRead: (uri: string) => boolean): Generator<undefined, Looked<T>> {
  const names: string[] = [];
  let hidden = 0;
  const sees = (uri: JsonValue | undefined): uri is string => typeof uri === 'string' && mayRead(uri);
  const result = yield* walk({
    link(uri) {
      const isSeen = sees(uri);
      if (isSeen) names.push(uri);
      else hidden++;
      return isSeen;
    },
    pointer: sees,
    hide() {
      hidden++;
      return undefined;
    },
  });
  return { result, names, hidden };
}

const imitatesBlock = imitationOf('type uri content resource _meta');
const imitatesHolder = imitationOf('_meta');
const imitatesContents = imitationOf('uri _meta');
const imitatesMessage = imitationOf('content _meta');
const imitatesAsked = imitationOf('messages tools _meta');
const imitatesError = imitationOf('code message data');

/**
 * Members of `_meta` with the URI of a resource that renders the object to which the `_meta` belongs. Older clients use these
 * two; MCP Apps uses `ui.resourceUri`.
 */
export const POINTERS = ['ui/resourceUri', 'openai/outputTemplate'];
const imitatesPointer = imitationOf('ui', ...POINTERS);
const imitatesUi = imitationOf('resourceUri');

const isHiddenPointer = (meta: JsonObject, name: string, sight: Sight): boolean =>
  imitatesPointer(name) || (POINTERS.includes(name) && !sight.pointer(meta[name]));

/** The member `ui` of a `_meta`, without what the caller may not follow. */
const visibleUi = (ui: JsonObject, sight: Sight): JsonObject =>
  withoutNames(ui, (name) => imitatesUi(name) || (name === 'resourceUri' && !sight.pointer(ui.resourceUri)));

/** The members of a `_meta` that must change; undefined: remove the member. */
export function changedPointers(meta: JsonObject, sight: Sight): ReadonlyMap<string, JsonObject | undefined> {
  const changed = new Map<string, JsonObject | undefined>();
  for (const name of Object.keys(meta)) if (isHiddenPointer(meta, name, sight)) changed.set(name, undefined);
  const { ui } = meta;
  const seen = isObject(ui) ? visibleUi(ui, sight) : undefined;
  if (seen !== undefined && seen !== ui) changed.set('ui', seen);
  return changed;
}

/** The object without those pointers in its `_meta` that the caller may not follow. */
export function visibleHolder(value: JsonValue, sight: Sight): JsonValue | undefined {
  if (!isObject(value)) return unlessArray(value, sight);
  return imitates(value, imitatesHolder) ? sight.hide() : withVisibleMeta(value, sight);
}

function withVisibleMeta(value: JsonObject, sight: Sight): JsonObject {
  const meta = value._meta;
  if (!isObject(meta)) return value;
  const kept = withoutNames(meta, (name) => isHiddenPointer(meta, name, sight));
  const { ui } = kept;
  const seen = isObject(ui) ? withMember(kept, 'ui', visibleUi(ui, sight)) : kept;
  return withMember(value, '_meta', seen);
}

/** A block of content. A link to a hidden resource is removed. The result of a tool keeps the visible part of its content. */
export function visibleBlock(block: JsonValue, sight: Sight): JsonValue | undefined {
  if (!isObject(block)) return unlessArray(block, sight);
  if (imitates(block, imitatesBlock)) return sight.hide();
  // A client in C reads the type up to a NUL.
  const isLink = typeof block.type === 'string' && /^resource_link(\0|$)/.test(block.type);
  if (isLink && !sight.link(block.uri)) return undefined;
  let seen = withVisibleMeta(block, sight);
  const { content, resource } = block;
  if (content !== undefined) seen = withMember(seen, 'content', visibleSome(content, sight, visibleBlock) ?? []);
  if (resource === undefined) return seen;
  const embedded = visibleHolder(resource, sight);
  return embedded === undefined ? undefined : withMember(seen, 'resource', embedded);
}

/** MCP does not allow an array here, but a client might look into it. */
const unlessArray = (value: JsonValue, sight: Sight): JsonValue | undefined => (Array.isArray(value) ? sight.hide() : value);

type See = (item: JsonValue, sight: Sight) => JsonValue | undefined;

/** A value that is one item or an array of items. */
function visibleSome(value: JsonValue, sight: Sight, see: See): JsonValue | undefined {
  if (!Array.isArray(value)) return see(value, sight);
  return keptOf(
    value,
    value.map((item) => see(item, sight)),
  );
}

/** The same, with a pause between items. */
function* visibleInSteps(value: JsonValue, sight: Sight, see: See): Generator<undefined, JsonValue | undefined> {
  if (!Array.isArray(value)) return see(value, sight);
  const seen: (JsonValue | undefined)[] = [];
  for (const item of value) {
    if (seen.length > 0) yield;
    seen.push(see(item, sight));
  }
  return keptOf(value, seen);
}

function keptOf(items: JsonValue[], seen: readonly (JsonValue | undefined)[]): JsonValue {
  return seen.every((item, index) => item === items[index]) ? items : seen.filter((item) => item !== undefined);
}

/** A message of a prompt, or of a conversation for which a target requests sampling. */
export function visibleMessage(message: JsonValue, sight: Sight): JsonValue | undefined {
  if (!isObject(message)) return unlessArray(message, sight);
  if (imitates(message, imitatesMessage)) return sight.hide();
  const seen = withVisibleMeta(message, sight);
  if (message.content === undefined) return seen;
  const content = visibleSome(message.content, sight, visibleBlock);
  return content === undefined ? undefined : withMember(seen, 'content', content);
}

/** One of the contents of a resource. `asked`: the requested URI, which has already been decided. */
export function visibleContents(contents: JsonValue, asked: JsonValue | undefined, sight: Sight): JsonValue | undefined {
  if (!isObject(contents) || imitates(contents, imitatesContents)) return sight.hide();
  return isAsked(contents.uri, asked) || sight.link(contents.uri) ? withVisibleMeta(contents, sight) : undefined;
}

/** Parameters of a request of a target to its client; undefined: they have more than one reading. Pauses between items. */
export function* visibleAsked(params: JsonObject, sight: Sight): Generator<undefined, JsonObject | undefined> {
  if (imitates(params, imitatesAsked)) return sight.hide();
  const { messages, tools } = params;
  let seen = withVisibleMeta(params, sight);
  if (messages !== undefined) seen = withMember(seen, 'messages', (yield* visibleInSteps(messages, sight, visibleMessage)) ?? []);
  if (tools !== undefined) seen = withMember(seen, 'tools', (yield* visibleInSteps(tools, sight, visibleHolder)) ?? []);
  return seen;
}

/** An error of a target. Its data may name the missing resource. `asked`: the URI that the caller named. */
export function visibleError(error: JsonObject, asked: JsonValue | undefined, sight: Sight): JsonObject {
  const { data, ...rest } = error;
  if (imitates(error, imitatesError)) return Object.fromEntries(Object.entries(rest).filter(([name]) => !imitatesError(name)));
  if (!isObject(data)) return error;
  const seen = withoutNames(
    data,
    (name) => imitatesContents(name) || (name === 'uri' && !isAsked(data.uri, asked) && !sight.link(data.uri)),
  );
  return seen === data ? error : { ...rest, data: seen };
}

/** The object without the members whose names are hidden. One message can have a hundred thousand members. */
function withoutNames(object: JsonObject, isHidden: (name: string) => boolean): JsonObject {
  const names = Object.keys(object);
  const shown = names.filter((name) => !isHidden(name));
  return shown.length === names.length ? object : Object.fromEntries(shown.map((name) => [name, object[name] ?? null]));
}

function isAsked(uri: JsonValue | undefined, asked: JsonValue | undefined): boolean {
  return typeof asked === 'string' && uri === asked;
}

function withMember(object: JsonObject, name: string, value: JsonValue): JsonObject {
  return object[name] === value ? object : { ...object, [name]: value };
}

function imitates(value: JsonObject, isImitation: (name: string) => boolean): boolean {
  return Object.keys(value).some(isImitation);
}
