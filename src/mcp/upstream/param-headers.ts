/**
 * `Mcp-Param-*` of 2026-07-28 (Streamable HTTP, custom headers from tool parameters): which arguments of a tool a request
 * repeats in its headers, as the tool's schema declares it, and with which values. Pure.
 */
import { isObject, type JsonObject, type JsonValue } from '../../http/json.ts';
import { encodeHeaderValue } from '../era.ts';
import type { ModernHeaders } from './upstream.ts';

export interface ParamHeader {
  readonly name: string;
  /** Members on the way to the value. */
  readonly path: readonly string[];
}

const ANNOTATION = 'x-mcp-header';
/** RFC 9110 section 5.6.2. */
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const TYPES: readonly JsonValue[] = ['string', 'integer', 'boolean'];
/** Where a schema has others that arguments do not have to pass through: an annotation there makes the tool invalid. */
const LISTS_OR_SCHEMAS = [
  'items prefixItems contains additionalProperties unevaluatedProperties unevaluatedItems propertyNames',
  'oneOf anyOf allOf not if then else',
].flatMap((names) => names.split(' '));
const MAPS = ['patternProperties', 'dependentSchemas', '$defs', 'definitions'];

/** null: the declarations are invalid, and so, for clients over HTTP, is the tool. */
export function declaredHeaders(inputSchema: JsonValue | undefined): readonly ParamHeader[] | null {
  const found: ParamHeader[] = [];
  if (!collect(inputSchema, [], found)) return null;
  const names = new Set(found.map(({ name }) => name.toLowerCase()));
  return names.size === found.length ? found : null;
}

/** `path` is null where no annotation may stand. False: one is wrong. */
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

/** Without those whose value is absent, null, or of a kind that has no text. */
export function paramHeaders(declared: readonly ParamHeader[], args: JsonValue | undefined): ModernHeaders['params'] {
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
