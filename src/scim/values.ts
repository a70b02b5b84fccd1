/** Reads the values of attributes. Pure. Names of attributes are compared without regard to case, and each may appear only once. */
import type { JsonValue } from '../base/json/json.ts';
import { invalid } from './errors.ts';

/** Members by their names in lower case. */
export type Members = ReadonlyMap<string, JsonValue>;

/** In characters. */
export const TEXT_MAX = 256;

/** Far more than the attributes of users and groups. */
const MOST_MEMBERS = 1_000;

/** Throws ScimError `invalidSyntax`. `what`: begins the text of the refusal. */
export function membersOf(value: JsonValue | undefined, what: string): Members {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalid('invalidSyntax', `${what} must be a JSON object.`);
  const names = Object.keys(value);
  if (names.length > MOST_MEMBERS) throw invalid('invalidSyntax', `${what} may have at most ${MOST_MEMBERS} members.`);
  const members = new Map<string, JsonValue>();
  for (const name of names) {
    const member = value[name] as JsonValue;
    const key = name.toLowerCase();
    if (members.has(key)) throw invalid('invalidSyntax', `${what} has ${name.slice(0, 100)} more than once.`);
    members.set(key, member);
  }
  return members;
}

/** Returns why the text is not acceptable as a name; null: it is. */
export function textProblem(value: string, max: number): string | null {
  const tooLong = `must have at most ${max} characters`;
  // A character has at most two code units. A text of megabytes is not looked at any further.
  if (value.length > 2 * max) return tooLong;
  if (!value.isWellFormed()) return 'must be well-formed Unicode';
  if (/\p{Cc}/u.test(value)) return 'must not contain control characters';
  // In lower case, some letters become two.
  return Math.max([...value].length, [...value.toLowerCase()].length) > max ? tooLong : null;
}

/** Returns the text; null: there is none, or an empty one. Throws ScimError `invalidValue`. */
export function optionalText(value: JsonValue | undefined, name: string, max = TEXT_MAX): string | null {
  if (value === undefined || value === null || value === '') return null;
  if (typeof value !== 'string') throw invalid('invalidValue', `${name} must be a text.`);
  const problem = textProblem(value, max);
  if (problem !== null) throw invalid('invalidValue', `${name} ${problem}.`);
  return value;
}

/** Throws ScimError `invalidValue` if there is no text. */
export function requiredText(value: JsonValue | undefined, name: string, max = TEXT_MAX): string {
  const text = optionalText(value, name, max);
  if (text === null || text.trim() === '') throw invalid('invalidValue', `${name} is required.`);
  return text;
}

/** Entra writes booleans as the texts `True` and `False`. Throws ScimError `invalidValue`. */
export function readBoolean(value: JsonValue | undefined, name: string): boolean {
  const text = typeof value === 'string' ? value.toLowerCase() : value;
  if (text === true || text === 'true') return true;
  if (text === false || text === 'false') return false;
  throw invalid('invalidValue', `${name} must be true or false.`);
}

/** Returns the elements: of an array, or the only one. */
export const elementsOf = (value: JsonValue | undefined): readonly JsonValue[] =>
  value === undefined || value === null ? [] : Array.isArray(value) ? value : [value];

export type Verb = 'add' | 'replace' | 'remove';

export interface PatchOperation {
  readonly verb: Verb;
  readonly path: string;
  readonly value: JsonValue | undefined;
}

/** Also counts each path of an operation without one: its value is an object whose members are paths. */
const MOST_OPERATIONS = { group: 1_000, user: 50 };
const PATCH_SCHEMA = 'urn:ietf:params:scim:api:messages:2.0:PatchOp';

const tooManyOperations = (most: number) =>
  invalid('invalidSyntax', `Operations must have at most ${most} elements and paths in all. Send several requests.`);

/** Reads the body of a PATCH request: operations with one path each. Throws ScimError. */
export function readPatch(body: JsonValue, of: 'user' | 'group'): readonly PatchOperation[] {
  const most = MOST_OPERATIONS[of];
  const members = membersOf(body, 'The body');
  requireSchema(members, PATCH_SCHEMA);
  const operations = members.get('operations');
  if (!Array.isArray(operations) || operations.length === 0)
    throw invalid('invalidSyntax', 'Operations must be an array with at least one operation.');
  if (operations.length > most) throw tooManyOperations(most);
  const read: PatchOperation[] = [];
  for (const [index, operation] of operations.entries()) {
    const what = `Operations.${index}`;
    const one = membersOf(operation, what);
    const op = one.get('op');
    const verb = typeof op === 'string' ? op.toLowerCase() : '';
    if (verb !== 'add' && verb !== 'replace' && verb !== 'remove')
      throw invalid('invalidSyntax', `${what}.op must be add, replace or remove.`);
    const path = one.get('path') ?? null;
    if (path !== null && typeof path !== 'string') throw invalid('invalidPath', `${what}.path must be a text.`);
    const value = one.get('value');
    if (verb === 'remove' && (path === null || path === '')) throw invalid('noTarget', `${what} must have a path.`);
    if (verb !== 'remove' && value === undefined) throw invalid('invalidValue', `${what} must have a value.`);
    if (path !== null && path !== '') read.push({ verb, path, value });
    // Without a path, the members of the value are paths. Entra also writes filters into them.
    else for (const [name, member] of membersOf(value, 'value')) read.push({ verb, path: name, value: member });
    if (read.length > most) throw tooManyOperations(most);
  }
  return read;
}

/** Throws ScimError `invalidSyntax` unless `schemas` of the body names this one. */
export function requireSchema(members: Members, schema: string): void {
  const schemas = members.get('schemas');
  const isNamed =
    Array.isArray(schemas) && schemas.some((one) => typeof one === 'string' && one.toLowerCase() === schema.toLowerCase());
  if (!isNamed) throw invalid('invalidSyntax', `schemas must contain ${schema}.`);
}
