/** Removes from the capabilities of clients and targets everything that the gateway does not pass on between them. Pure. */
import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';
import { imitationOf } from './imitation.ts';
import { CODES } from './message.ts';
import { META_KEYS, type Mode } from './mode.ts';

/** What a target may request from its client. */
export const ASKABLE = ['sampling', 'elicitation', 'elicitation_url', 'roots'] as const;

export type Askable = (typeof ASKABLE)[number];

const SERVER_MEMBERS = ['tools', 'resources', 'prompts', 'completions', 'logging'];
/** Extensions that need no methods beyond those that the gateway serves. */
const SERVER_EXTENSIONS = ['io.modelcontextprotocol/ui'];
export const TASKS_EXTENSION = 'io.modelcontextprotocol/tasks';

/** How a protocol revision announces tasks: as a capability (2025-11-25), as an extension (2026-07-28), or not at all. */
export type TasksForm = 'capability' | 'extension' | 'none';

export function reduceServerCapabilities(capabilities: JsonObject, tasks: TasksForm): JsonObject {
  const reduced: JsonObject = {};
  for (const name of tasks === 'capability' ? [...SERVER_MEMBERS, 'tasks'] : SERVER_MEMBERS) {
    const value = own(capabilities, name);
    if (value !== undefined) reduced[name] = value;
  }
  const extensions = own(capabilities, 'extensions');
  if (isObject(extensions)) {
    const carried = tasks === 'extension' ? [...SERVER_EXTENSIONS, TASKS_EXTENSION] : SERVER_EXTENSIONS;
    const kept = Object.entries(extensions).filter(([name]) => carried.includes(name));
    if (kept.length > 0) reduced.extensions = Object.fromEntries(kept);
  }
  return reduced;
}

/** Announces changes of lists for a session: the gateway itself sends them when the caller's rights change. */
function withListChanges(capabilities: JsonObject): JsonObject {
  const announced = ['tools', 'prompts', 'resources'].filter((name) => isObject(own(capabilities, name)));
  return {
    ...capabilities,
    ...Object.fromEntries(announced.map((name) => [name, { ...(capabilities[name] as JsonObject), listChanged: true }])),
  };
}

/**
 * Returns the capabilities of several targets as those of one server. null stands for a target that has not stated its capabilities: it may
 * have all of them. If a target lacks one, the call is answered like an unknown method, or with an empty list.
 */
export function mergeServerCapabilities(all: readonly (JsonObject | null)[], tasks: TasksForm): JsonObject {
  const everything: JsonObject = { tools: {}, prompts: {}, resources: { subscribe: true }, completions: {}, logging: {} };
  const merged: JsonObject = {};
  for (const capabilities of all) {
    for (const [name, value] of Object.entries(reduceServerCapabilities(capabilities ?? everything, tasks))) {
      merged[name] = mergeObjects(merged[name], value);
    }
  }
  return withListChanges(merged);
}

function mergeObjects(a: JsonValue | undefined, b: JsonValue): JsonValue {
  if (!isObject(a) || !isObject(b)) return b === false && a !== undefined ? a : b;
  const merged: JsonObject = { ...a };
  for (const [name, value] of Object.entries(b)) merged[name] = mergeObjects(own(merged, name), value);
  return merged;
}

/**
 * Returns the client's capabilities as the target gets them, without those that the target may not ask for. The gateway does not
 * support tasks that a target makes at its client (2025-11-25), so it does not announce them.
 */
export function reduceClientCapabilities(capabilities: JsonObject, mode: Mode, mayAsk: readonly Askable[]): JsonObject {
  const refused = ['tasks', 'sampling', 'roots', 'elicitation'].filter((name) => !(mayAsk as readonly string[]).includes(name));
  const reduced = without(capabilities, refused);
  const elicitation = reduceElicitation(own(capabilities, 'elicitation'), mayAsk);
  if (elicitation === undefined) delete reduced.elicitation;
  else reduced.elicitation = elicitation;
  const extensions = own(reduced, 'extensions');
  if (isObject(extensions) && mode === 'stateful') reduced.extensions = without(extensions, [TASKS_EXTENSION]);
  return reduced;
}

/** An object without a mode means forms (2025-11-25, elicitation capabilities), so an object that becomes empty is removed. */
function reduceElicitation(value: JsonValue | undefined, mayAsk: readonly Askable[]): JsonValue | undefined {
  if (!isObject(value)) return undefined;
  const form = mayAsk.includes('elicitation');
  const url = mayAsk.includes('elicitation_url');
  if (form && url) return value;
  if (form) return offersForms(value) ? without(value, ['url']) : undefined;
  return url && isObject(own(value, 'url')) ? without(value, ['form']) : undefined;
}

function offersForms(elicitation: JsonObject): boolean {
  return own(elicitation, 'form') !== undefined || own(elicitation, 'url') === undefined;
}

/** Returns the permission that a request of a target needs (`may_ask`). null: no target may send its client such a request. */
export function askedFor(method: JsonValue | undefined, params: JsonValue | undefined): Askable | null {
  switch (method) {
    case 'sampling/createMessage':
      return 'sampling';
    case 'roots/list':
      return 'roots';
    case 'elicitation/create':
      return isObject(params) ? elicitationMode(params) : null;
    default:
      return null;
  }
}

const imitatesMode = imitationOf('mode');
const imitatesAsked = imitationOf('method params');

function elicitationMode(params: JsonObject): Askable | null {
  if (Object.keys(params).some(imitatesMode)) return null;
  const mode = own(params, 'mode');
  if (mode === undefined || mode === 'form') return 'elicitation';
  return mode === 'url' ? 'elicitation_url' : null;
}

/** Whether a target with these permissions (`may_ask`) may send its client this request. */
export function mayBeAsked(mayAsk: readonly Askable[], method: string, params: JsonObject | undefined): boolean {
  if (method === 'ping') return true;
  const asked = askedFor(method, params ?? {});
  return asked !== null && mayAsk.includes(asked);
}

/** Whether a target may have this reply of a client to its input request (2026-07-28). A reply has no method, so its form tells. */
export function mayReceive(mayAsk: readonly Askable[], reply: JsonValue): boolean {
  if (!isObject(reply)) return false;
  const has = (name: string): boolean => own(reply, name) !== undefined;
  if (has('roots') && !mayAsk.includes('roots')) return false;
  if (has('action')) return mayAsk.includes('elicitation') || (!has('content') && mayAsk.includes('elicitation_url'));
  return has('roots') || mayAsk.includes('sampling');
}

/** Whether the declared capabilities of a client cover what the request asks for. */
export function isOffered(capabilities: JsonObject, asked: JsonValue): boolean {
  if (!isObject(asked) || Object.keys(asked).some(imitatesAsked)) return false;
  const elicitation = own(capabilities, 'elicitation');
  switch (askedFor(asked.method, asked.params ?? {})) {
    case 'sampling':
      return isObject(own(capabilities, 'sampling'));
    case 'roots':
      return isObject(own(capabilities, 'roots'));
    case 'elicitation':
      return isObject(elicitation) && offersForms(elicitation);
    case 'elicitation_url':
      return isObject(elicitation) && isObject(own(elicitation, 'url'));
    case null:
      return false;
  }
}

/** The capabilities that a request of 2026-07-28 declares. */
export function declaredCapabilities(params: JsonObject | undefined): JsonObject {
  const meta = params?._meta;
  const declared = isObject(meta) ? meta[META_KEYS.capabilities] : undefined;
  return isObject(declared) ? declared : {};
}

export function declaresTasks(params: JsonObject | undefined): boolean {
  const extensions = own(declaredCapabilities(params), 'extensions');
  return isObject(extensions) && isObject(own(extensions, TASKS_EXTENSION));
}

export const MISSING_TASKS: JsonObject = { requiredCapabilities: { extensions: { [TASKS_EXTENSION]: {} } } };

/** The message that the client gets instead of a withheld error. */
export const NOT_ITS_TO_ASK = 'The target asks for something that it may not ask its clients for';

/**
 * Whether an error of a target must not reach the client. Such an error carries URLs although the target may not ask for
 * them (2025-11-25, URL elicitation required), or it complains about capabilities that the gateway itself has withheld.
 */
export function isWithheldError(
  error: JsonObject,
  mode: Mode,
  mayAsk: readonly Askable[],
  params: JsonObject | undefined,
): boolean {
  if (error.code === CODES.urlElicitationRequired) return !mayAsk.includes('elicitation_url');
  if (error.code !== CODES.missingCapability || mode !== 'stateless') return false;
  const declared = declaredCapabilities(params);
  const told = reduceClientCapabilities(declared, mode, mayAsk);
  const required = isObject(error.data) ? error.data.requiredCapabilities : undefined;
  // If the error lists no capabilities, the client can help only if the target got everything that it had declared.
  if (!isObject(required)) return JSON.stringify(told) !== JSON.stringify(declared);
  return covers(declared, required);
}

/** An `elicitation` without a mode means forms. */
function covers(capabilities: JsonObject, required: JsonObject): boolean {
  return Object.entries(required).every(([name, value]) => {
    const declared = own(capabilities, name);
    if (!isObject(declared)) return declared !== undefined && !isObject(value);
    if (!isObject(value)) return true;
    return covers(name === 'elicitation' && offersForms(declared) ? { form: {}, ...declared } : declared, value);
  });
}

function own(value: JsonObject, name: string): JsonValue | undefined {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

function without(value: JsonObject, names: readonly string[]): JsonObject {
  return Object.fromEntries(Object.entries(value).filter(([name]) => !names.includes(name)));
}
