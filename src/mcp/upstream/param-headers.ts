/**
 * The `Mcp-Param-*` headers of 2026-07-28 (Streamable HTTP, custom headers from tool parameters): which arguments of a call are
 * repeated in headers, according to the tool's schema, and with which values. Pure.
 */
import { isObject, type JsonValue } from '../../base/json/json.ts';
import { encodeHeaderValue } from '../../protocol/headers.ts';
import type { StatelessHeaders } from './upstream.ts';

export interface ParamHeader {
  readonly name: string;
  /** The member names that lead to the value. */
  readonly path: readonly string[];
}

const ANNOTATION = 'x-mcp-header';
/** RFC 9110 section 5.6.2. */
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const TYPES: readonly JsonValue[] = ['string', 'integer', 'boolean'];
/** Keywords with subschemas that arguments need not pass through. An annotation inside them makes the tool invalid. */
const LISTS_OR_SCHEMAS = [
  'items prefixItems contains additionalProperties unevaluatedProperties unevaluatedItems propertyNames',
  'oneOf anyOf allOf not if then else',
].flatMap((names) => names.split(' '));
const MAPS = ['patternProperties', 'dependentSchemas', '$defs', 'definitions'];
const SUBSCHEMAS: ReadonlyMap<string, 'properties' | 'list or schema' | 'map'> = new Map([
  ['properties', 'properties'],
  ...LISTS_OR_SCHEMAS.map((keyword) => [keyword, 'list or schema'] as const),
  ...MAPS.map((keyword) => [keyword, 'map'] as const),
]);
/** The maximum of characters of all names and paths that a tool declares. Requests have no room for many headers. */
export const MAX_DECLARED = 4_096;

interface Declared {
  readonly headers: ParamHeader[];
  characters: number;
}

interface Path {
  readonly members: readonly string[];
  readonly characters: number;
}

/**
 * Returns the headers that a tool declares. null: the declarations are invalid, and clients over HTTP must then ignore the tool; or they have
 * too many characters.
 */
export function declaredHeaders(inputSchema: JsonValue | undefined): readonly ParamHeader[] | null {
  const found: Declared = { headers: [], characters: 0 };
  if (!collect(inputSchema, { members: [], characters: 0 }, found)) return null;
  const names = new Set(found.headers.map(({ name }) => name.toLowerCase()));
  return names.size === found.headers.length ? found.headers : null;
}

/** Collects the declarations of a schema. `path` is null where annotations are not allowed. Returns false if one is invalid. */
function collect(schema: JsonValue | undefined, path: Path | null, found: Declared): boolean {
  if (!isObject(schema)) return true;
  if (Object.hasOwn(schema, ANNOTATION)) {
    const name = schema[ANNOTATION];
    if (path === null || path.members.length === 0 || typeof name !== 'string' || !TOKEN.test(name)) return false;
    if (!TYPES.includes(schema['type'] ?? null)) return false;
    found.characters += name.length + path.characters;
    if (found.characters > MAX_DECLARED) return false;
    found.headers.push({ name, path: path.members });
  }
  return Object.entries(schema).every(([keyword, child]) => collectBelow(keyword, child, path, found));
}

function collectBelow(keyword: string, child: JsonValue, path: Path | null, found: Declared): boolean {
  switch (SUBSCHEMAS.get(keyword)) {
    case 'properties':
      return entriesOf(child).every(([member, one]) => collect(one, below(path, member), found));
    case 'list or schema':
      return Array.isArray(child) ? child.every((one) => collect(one, null, found)) : collect(child, null, found);
    case 'map':
      return entriesOf(child).every(([, one]) => collect(one, null, found));
    case undefined:
      return true;
  }
}

/** null: nothing can be declared below a path that is too long. */
function below(path: Path | null, member: string): Path | null {
  const characters = (path?.characters ?? 0) + member.length + 1;
  return path === null || characters > MAX_DECLARED ? null : { members: [...path.members, member], characters };
}

const entriesOf = (value: JsonValue): [string, JsonValue][] => (isObject(value) ? Object.entries(value) : []);

/** Returns the headers of a call. An argument that is absent, null, or not a scalar gets no header. */
export function paramHeaders(declared: readonly ParamHeader[], args: JsonValue | undefined): StatelessHeaders['params'] {
  return declared.flatMap(({ name, path }): [string, string][] => {
    const text = textOf(path.reduce(memberOf, args));
    return text === null ? [] : [[`mcp-param-${name.toLowerCase()}`, encodeHeaderValue(text)]];
  });
}

function memberOf(value: JsonValue | undefined, name: string): JsonValue | undefined {
  return isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}

function textOf(value: JsonValue | undefined): string | null {
  if (typeof value === 'string') return value;
  if (typeof value === 'boolean') return String(value);
  if (typeof value !== 'number' || (Number.isInteger(value) && !Number.isSafeInteger(value))) return null;
  return String(value);
}
