/** What client and target may tell each other they can do: nothing that the gateway would not carry. Pure. */
import { isObject, type JsonObject, type JsonValue } from '../http/json.ts';

const SERVER_MEMBERS = ['tools', 'resources', 'prompts', 'completions', 'logging'];
/** Extensions that need no method beyond the served ones. */
const SERVER_EXTENSIONS = ['io.modelcontextprotocol/ui'];
/** Tasks need methods of their own in both directions. */
const TASKS_EXTENSION = 'io.modelcontextprotocol/tasks';
export function reduceServerCapabilities(capabilities: JsonObject): JsonObject {
  const reduced: JsonObject = {};
  for (const name of SERVER_MEMBERS) {
    const value = own(capabilities, name);
    if (value !== undefined) reduced[name] = value;
  }
  const extensions = own(capabilities, 'extensions');
  if (isObject(extensions)) {
    const kept = Object.entries(extensions).filter(([name]) => SERVER_EXTENSIONS.includes(name));
    if (kept.length > 0) reduced.extensions = Object.fromEntries(kept);
  }
  return reduced;
}

export function reduceClientCapabilities(capabilities: JsonObject): JsonObject {
  const reduced = without(capabilities, ['tasks']);
  const extensions = own(reduced, 'extensions');
  if (isObject(extensions)) reduced.extensions = without(extensions, [TASKS_EXTENSION]);
  return reduced;
}

/** What a client must have declared before a target may ask it for something. */
const ASKED_BY: ReadonlyMap<string, string> = new Map([
  ['sampling/createMessage', 'sampling'],
  ['elicitation/create', 'elicitation'],
  ['roots/list', 'roots'],
]);

export function isAskable(method: string): boolean {
  return method === 'ping' || ASKED_BY.has(method);
}

/** For revision 2026-07-28, where each request declares the capabilities anew. */
export function isDeclared(capabilities: JsonObject, method: JsonValue | undefined): boolean {
  const member = typeof method === 'string' ? ASKED_BY.get(method) : undefined;
  return member !== undefined && isObject(own(capabilities, member));
}

function own(value: JsonObject, name: string): JsonValue | undefined {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

function without(value: JsonObject, names: readonly string[]): JsonObject {
  return Object.fromEntries(Object.entries(value).filter(([name]) => !names.includes(name)));
}
