/** Maps a method and its parameters to what must be decided: a table of all methods that the gateway serves. Pure. */

import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';
import type { ResourceType } from '../engine/compile/policy.ts';
import type { NamedObject } from '../engine/decision.ts';
import { imitationOf } from './imitation.ts';
import { LISTEN, type ListenFilter, readListenFilter } from './listen.ts';
import { CODES, isImitated, type Rejection } from './message.ts';
import type { Mode } from './mode.ts';
import { isCanonicalUri, isDecidableResource, MAX_URI_BYTES, resourceOf } from './uri.ts';

/** A method of the target that is not in the protocol, and the member of `params` that names the tool, resource or prompt. */
export interface ExtensionMethod {
  readonly method: string;
  readonly resource_type: Exclude<ResourceType, 'all'>;
  readonly param: string;
}

export const MAX_NAME_LENGTH = 256;

/** How a list result is filtered: each item of `member` is decided by its `key`. */
export interface ListShape {
  readonly member: string;
  readonly key: string;
  readonly resource_type: ResourceType;
  /** Items whose key is a URI template are decided by its literal text. */
  readonly template: boolean;
}

export type Operation =
  /** The request names one object. `canonical` false: its URI has more than one reading, so no policy can allow it. */
  | { readonly kind: 'object'; readonly object: NamedObject; readonly canonical: boolean }
  /** The request is decided as a use of the target; the items of the answer are decided one by one. */
  | { readonly kind: 'list'; readonly list: ListShape }
  /** The request is decided as a use of the target; the resources that it names are decided one by one. */
  | { readonly kind: 'listen'; readonly filter: ListenFilter }
  /** The request names a task. It is decided as the tool that made it; as a use of the target if the task is not the caller's. */
  | { readonly kind: 'task'; readonly taskId: string }
  /** A method that only the target's document can explain; decided as a use of the target if the document does not list it. */
  | { readonly kind: 'extension' }
  | { readonly kind: 'target' };

type Reader = (params: JsonObject) => Operation | Rejection;

const TARGET: Reader = () => ({ kind: 'target' });
const list = (member: string, key: string, resource_type: ResourceType, template = false): Reader => {
  const operation: Operation = { kind: 'list', list: { member, key, resource_type, template } };
  return () => operation;
};

const METHODS: ReadonlyMap<string, { readonly modes: readonly Mode[]; readonly read: Reader }> = new Map([
  ['initialize', { modes: ['stateful'], read: TARGET }],
  ['server/discover', { modes: ['stateless'], read: TARGET }],
  ['ping', { modes: ['stateful'], read: TARGET }],
  ['logging/setLevel', { modes: ['stateful'], read: TARGET }],
  ['tools/list', { modes: ['stateful', 'stateless'], read: list('tools', 'name', 'tool') }],
  ['tools/call', { modes: ['stateful', 'stateless'], read: (params) => named('tool', params.name) }],
  ['prompts/list', { modes: ['stateful', 'stateless'], read: list('prompts', 'name', 'prompt') }],
  ['prompts/get', { modes: ['stateful', 'stateless'], read: (params) => named('prompt', params.name) }],
  ['resources/list', { modes: ['stateful', 'stateless'], read: list('resources', 'uri', 'resource') }],
  [
    'resources/templates/list',
    { modes: ['stateful', 'stateless'], read: list('resourceTemplates', 'uriTemplate', 'resource', true) },
  ],
  ['resources/read', { modes: ['stateful', 'stateless'], read: (params) => resource(params.uri) }],
  ['resources/subscribe', { modes: ['stateful'], read: (params) => resource(params.uri) }],
  // Decided as a use of the target: a caller that has lost its right to the resource must be able to end the subscription.
  ['resources/unsubscribe', { modes: ['stateful'], read: TARGET }],
  [LISTEN, { modes: ['stateless'], read: listen }],
  ['completion/complete', { modes: ['stateful', 'stateless'], read: completion }],
  ['tasks/get', { modes: ['stateful', 'stateless'], read: task }],
  ['tasks/cancel', { modes: ['stateful', 'stateless'], read: task }],
  ['tasks/result', { modes: ['stateful'], read: task }],
  ['tasks/list', { modes: ['stateful'], read: TARGET }],
  ['tasks/update', { modes: ['stateless'], read: task }],
]);

export function readOperation(mode: Mode, method: string, params: JsonObject | undefined): Operation | Rejection {
  const served = METHODS.get(method);
  if (served === undefined) return { kind: 'extension' };
  return served.modes.includes(mode) ? served.read(params ?? {}) : methodNotFound(mode);
}

export function methodNotFound(mode: Mode): Rejection {
  return { status: mode === 'stateless' ? 404 : 200, code: CODES.methodNotFound, message: 'Method not found' };
}

/** Reads a method that the target lists (`extension_methods`): it is decided as the object that its parameter names. */
export function readExtension({ resource_type, param }: ExtensionMethod, params: JsonObject = {}): Operation | Rejection {
  const name = Object.hasOwn(params, param) ? params[param] : undefined;
  const member = `params.${param}`;
  if (isImitated(params, [param])) return invalid(member);
  return resource_type === 'resource' ? resource(name, member) : named(resource_type, name, member);
}

export function isRequestMethod(method: string): boolean {
  return METHODS.has(method);
}

/** Notifications of a session that are forwarded to its target. All others are dropped. */
const FORWARDED: readonly string[] = [
  'notifications/initialized',
  'notifications/cancelled',
  'notifications/progress',
  'notifications/roots/list_changed',
];

export function isForwardedNotification(method: string): boolean {
  return FORWARDED.includes(method);
}

function listen(params: JsonObject): Operation | Rejection {
  const filter = readListenFilter(params);
  return 'code' in filter ? filter : { kind: 'listen', filter };
}

/** The id of a task is sealed; the tool that made the task is inside. */
function task({ taskId }: JsonObject): Operation | Rejection {
  return typeof taskId === 'string' ? { kind: 'task', taskId } : invalid('params.taskId');
}

function named(resource_type: ResourceType, name: JsonValue | undefined, member = 'params.name'): Operation | Rejection {
  if (!isName(name)) return invalid(member);
  return { kind: 'object', object: { resource_type, resource_name: name }, canonical: true };
}

function resource(uri: JsonValue | undefined, member = 'params.uri'): Operation | Rejection {
  if (typeof uri !== 'string' || uri === '' || Buffer.byteLength(uri) > MAX_URI_BYTES) return invalid(member);
  // Readers in C, such as SQLite, end a text at a NUL: the audit log would show a different URI from the requested one.
  if (uri.includes('\0')) return invalid(member);
  return { kind: 'object', object: resourceOf(uri), canonical: isCanonicalUri(uri) };
}

function completion(params: JsonObject): Operation | Rejection {
  const { ref, argument, context } = params;
  if (!isObject(ref)) return invalid('params.ref');
  // The target may read a member that another type of reference has, and that was not decided.
  const undecided = ref.type === 'ref/prompt' ? 'uri' : 'name';
  if (undecided in ref || Object.keys(ref).some(imitatesReference)) return invalid('params.ref');
  if (!isObject(argument) || typeof argument.name !== 'string' || typeof argument.value !== 'string')
    return invalid('params.argument');
  const known = isObject(context) ? context.arguments : undefined;
  if (isObject(known) && haveTwinsOrMany(Object.keys(known))) return invalid('params.context.arguments');
  if (ref.type === 'ref/prompt') return named('prompt', ref.name);
  if (ref.type !== 'ref/resource') return invalid('params.ref.type');
  const { uri } = ref;
  if (!isTemplate(uri)) return invalid('params.ref.uri');
  return { kind: 'object', object: resourceOf(uri), canonical: isDecidableResource(uri) };
}

const MOST_VARIABLES = 100;

/**
 * Whether two of the names could be the same for a target, which chooses them: it may ignore case, `_` and `-`, and end a name at a NUL. The
 * gateway expands templates with their values, and must expand the same.
 */
function haveTwinsOrMany(names: readonly string[]): boolean {
  if (names.length > MOST_VARIABLES || names.some(({ length }) => length > MAX_NAME_LENGTH)) return true;
  const seen = names.map((name) =>
    name
      .replace(/\0.*/s, '')
      .toUpperCase()
      .toLowerCase()
      .replaceAll(/[\s_-]/g, ''),
  );
  return new Set(seen).size < names.length;
}

/** Names are compared byte for byte: no trimming, no folding, no normalization. */
export function isName(name: JsonValue | undefined): name is string {
  // A character has at most two code units. A name of megabytes is not looked at any further.
  return (
    typeof name === 'string' &&
    name !== '' &&
    name.length <= 2 * MAX_NAME_LENGTH &&
    codePoints(name) <= MAX_NAME_LENGTH &&
    isPlainText(name)
  );
}

function isTemplate(text: JsonValue | undefined): text is string {
  return typeof text === 'string' && text !== '' && Buffer.byteLength(text) <= MAX_URI_BYTES && isPlainText(text);
}

function isPlainText(text: string): boolean {
  return !/\p{Cc}|\p{Cs}/u.test(text);
}

function codePoints(text: string): number {
  let count = 0;
  for (const _ of text) count++;
  return count;
}

/** A target that matches names case-insensitively could read such a member instead of the one that was decided. */
const imitatesReference = imitationOf('type name uri');

/** A client that matches names case-insensitively could read such a member instead of the one that was decided. */
const imitatesKey = imitationOf('name uri uriTemplate _meta');

/** The object that an item of a list stands for. null: a call could not name it, so it is not listed either. */
export function itemObject(shape: ListShape, item: JsonValue): NamedObject | null {
  if (!isObject(item) || Object.keys(item).some(imitatesKey)) return null;
  const key = item[shape.key];
  if (shape.resource_type !== 'resource') return isName(key) ? { resource_type: shape.resource_type, resource_name: key } : null;
  // A template without variables is a URI, and is listed only if it is canonical.
  const readable = shape.template ? isTemplate(key) && isDecidableResource(key) : typeof key === 'string' && isCanonicalUri(key);
  return readable ? resourceOf(key as string) : null;
}

function invalid(member: string): Rejection {
  return { status: 200, code: CODES.invalidParams, message: `Invalid params: ${member}` };
}
