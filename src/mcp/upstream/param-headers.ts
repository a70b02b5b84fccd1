/**
 * The `Mcp-Param-*` headers of 2026-07-28 (Streamable HTTP, custom headers from tool parameters): which arguments of a call are
 * repeated in headers, according to the tool's schema, and with which values. Pure.
 */
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
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

/**
 * Returns the headers that a tool declares. null: the declarations are invalid, and clients over HTTP must then ignore the tool.
 */
export function declaredHeaders(inputSchema: JsonValue | undefined): readonly ParamHeader[] | null {
  const found: ParamHeader[] = [];
  if (!collect(inputSchema, [], found)) return null;
  const names = new Set(found.map(({ name }) => name.toLowerCase()));
  return names.size === found.length ? found : null;
}

/** Collects the declarations of a schema. `path` is null where annotations are not allowed. Returns false if one is invalid. */
function collect(schema: JsonValue | undefined, path: readonly string[] | null, found: ParamHeader[]): boolean {
  if (!isObject(schema)) return true;
  if (Object.hasOwn(schema, ANNOTATION)) {
    const name = schema[ANNOTATION];
    if (path === null || path.length === 0 || typeof name !== 'string' || !TOKEN.test(name)) return false;
    if (!TYPES.includes(schema['type'] ?? null)) return false;
    found.push({ name, path });
  }
  for (const [member, child] of childrenOf(schema, 'properties')) {
    if (!collect(child, path === null ? null : [...path, member], found)) return false;
  }
  const elsewhere = [
    ...LISTS_OR_SCHEMAS.flatMap((keyword) => {
      const child = Object.hasOwn(schema, keyword) ? schema[keyword] : undefined;
      return Array.isArray(child) ? child : [child];
    }),
    ...MAPS.flatMap((keyword) => childrenOf(schema, keyword).map(([, child]) => child)),
  ];
  return elsewhere.every((child) => collect(child, null, found));
}

function childrenOf(schema: JsonObject, keyword: string): [string, JsonValue][] {
  const children = Object.hasOwn(schema, keyword) ? schema[keyword] : undefined;
  return isObject(children) ? Object.entries(children) : [];
}

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
