/**
 * Reads filters and paths (RFC 7644, sections 3.4.2.2 and 3.5.2), each in one pass over the text. Pure. A text has one meaning or is refused:
 * nothing is guessed.
 */
import { invalid, type ScimType } from './errors.ts';

export type Value = string | boolean | number | null;
export type Operator = 'eq' | 'ne' | 'co' | 'sw' | 'ew' | 'gt' | 'ge' | 'lt' | 'le' | 'pr';

/** `path` is in lower case, without the URN of the core schema: `emails.value`. `value` is null for `pr`. */
export interface Comparison {
  readonly path: string;
  readonly operator: Operator;
  readonly value: Value;
}
export type Filter =
  | Comparison
  | { readonly and: readonly Filter[] }
  | { readonly or: readonly Filter[] }
  | { readonly not: Filter };

/** Names are in lower case. */
export interface AttributePath {
  readonly attribute: string;
  /** Which elements of the attribute are meant; null: all. */
  readonly filter: Filter | null;
  /** The name of a sub-attribute; null: the whole attribute. */
  readonly sub: string | null;
  /** Whether the path belongs to a schema other than the core schema, for example the enterprise extension. */
  readonly isForeign: boolean;
}

export const FILTER_LENGTH = 1_024;
const MOST_COMPARISONS = 10;
/** `co`, `sw` and `ew` read every row of the directory, and on SQLite everybody waits meanwhile. */
const MOST_SEARCHES = 2;
const SEARCHES: readonly string[] = ['co', 'sw', 'ew'];
const MOST_DEPTH = 5;
const CORE = /^urn:ietf:params:scim:schemas:core:2\.0:(user|group):/;

const SPACE = /[ \t\r\n]+/y;
const TEXT = /"(?:[^"\\\p{Cc}]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/uy;
const NUMBER = /-?[0-9]+(?:\.[0-9]+)?(?![\w.])/y;
const WORD = /[A-Za-z$][\w$:.-]*/y;
const OPERATORS: readonly string[] = ['eq', 'ne', 'co', 'sw', 'ew', 'gt', 'ge', 'lt', 'le', 'pr'];

type Token =
  | { readonly kind: 'word'; readonly text: string }
  | { readonly kind: 'value'; readonly value: Value }
  | { readonly kind: '(' | ')' | '[' | ']' | 'end' };

function createReader(text: string, scimType: ScimType) {
  let at = 0;
  let comparisons = 0;
  let searches = 0;
  const fail = (what: string) =>
    invalid(scimType, `The ${scimType === 'invalidPath' ? 'path' : 'filter'} is not valid: ${what}.`);
  if (text.length > FILTER_LENGTH) throw fail(`it has more than ${FILTER_LENGTH} characters`);
  let token: Token = next();

  function match(pattern: RegExp): string | null {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0] ?? null;
    if (found !== null) at += found.length;
    return found;
  }

  function next(): Token {
    match(SPACE);
    const c = text[at];
    if (c === undefined) return { kind: 'end' };
    if (c === '(' || c === ')' || c === '[' || c === ']') {
      at++;
      return { kind: c };
    }
    const quoted = match(TEXT);
    if (quoted !== null) return { kind: 'value', value: JSON.parse(quoted) as string };
    const number = match(NUMBER);
    if (number !== null) return { kind: 'value', value: Number(number) };
    const word = match(WORD);
    if (word !== null) return { kind: 'word', text: word };
    throw fail(`unexpected character at position ${at + 1}`);
  }

  function take(): Token {
    const taken = token;
    token = next();
    return taken;
  }

  function expect(kind: ')' | ']' | '(' | 'end'): void {
    if (token.kind !== kind) throw fail(kind === 'end' ? 'it continues after its end' : `${kind} is missing`);
    if (kind !== 'end') token = next();
  }

  const isWord = (word: string): boolean => token.kind === 'word' && token.text.toLowerCase() === word;

  function series(word: 'and' | 'or', part: () => Filter): readonly Filter[] {
    const parts = [part()];
    while (isWord(word)) {
      take();
      parts.push(part());
    }
    return parts;
  }

  function filter(depth: number): Filter {
    if (depth > MOST_DEPTH) throw fail(`it is nested deeper than ${MOST_DEPTH} levels`);
    const or = series('or', () => {
      const and = series('and', () => term(depth));
      return and.length === 1 ? (and[0] as Filter) : { and };
    });
    return or.length === 1 ? (or[0] as Filter) : { or };
  }

  function grouped(depth: number): Filter {
    expect('(');
    const inner = filter(depth + 1);
    expect(')');
    return inner;
  }

  function term(depth: number): Filter {
    if (token.kind === '(') return grouped(depth);
    const first = take();
    if (first.kind !== 'word') throw fail('the name of an attribute is missing');
    if (first.text.toLowerCase() === 'not' && (token as Token).kind === '(') return { not: grouped(depth) };
    const path = first.text.toLowerCase().replace(CORE, '');
    if ((token as Token).kind === '[') {
      take();
      const inner = filter(depth + 1);
      expect(']');
      // With several conditions, all of them must hold for one element.
      if (!('path' in inner)) throw fail('brackets may hold only one comparison');
      return { ...inner, path: `${path}.${inner.path}` };
    }
    return comparison(path);
  }

  function comparison(path: string): Comparison {
    if (++comparisons > MOST_COMPARISONS) throw fail(`it has more than ${MOST_COMPARISONS} comparisons`);
    const operator = token.kind === 'word' ? token.text.toLowerCase() : '';
    if (!OPERATORS.includes(operator)) throw fail(`after ${path} there must be one of ${OPERATORS.join(', ')}`);
    if (SEARCHES.includes(operator) && ++searches > MOST_SEARCHES)
      throw fail(`it has more than ${MOST_SEARCHES} comparisons with ${SEARCHES.join(', ')}`);
    take();
    if (operator === 'pr') return { path, operator, value: null };
    return { path, operator: operator as Operator, value: value() };
  }

  function value(): Value {
    const taken = take();
    if (taken.kind === 'value') return taken.value;
    const literal = taken.kind === 'word' ? taken.text.toLowerCase() : '';
    if (literal === 'true' || literal === 'false') return literal === 'true';
    if (literal === 'null') return null;
    throw fail('a value is missing; texts stand in double quotes');
  }

  return {
    filter(): Filter {
      const read = filter(1);
      expect('end');
      return read;
    },

    path(): AttributePath {
      const first = take();
      if (first.kind !== 'word') throw fail('it must begin with the name of an attribute');
      const word = first.text.toLowerCase();
      const bare = word.replace(CORE, '');
      const isForeign = bare.startsWith('urn:');
      const [attribute = '', sub = null, ...more] = isForeign ? [bare] : bare.split('.');
      let inner: Filter | null = null;
      let after: string | null = null;
      if (token.kind === '[') {
        take();
        inner = filter(2);
        if ((token as Token).kind !== ']') throw fail('] is missing');
        after =
          match(/\.[A-Za-z$][\w$-]*/y)
            ?.slice(1)
            .toLowerCase() ?? null;
        token = next();
      }
      if (more.length > 0 || (sub !== null && inner !== null)) throw fail('it is too deep');
      expect('end');
      return { attribute, filter: inner, sub: sub ?? after, isForeign };
    },
  };
}

/** Throws ScimError `invalidFilter`. */
export const readFilter = (text: string): Filter => createReader(text, 'invalidFilter').filter();

/** Throws ScimError `invalidPath`. */
export const readPath = (text: string): AttributePath => createReader(text, 'invalidPath').path();

const asText = (value: unknown): string => String(value).toLowerCase();

/** Whether the element of a multi-valued attribute meets the filter. Texts are compared without regard to case. */
export function matches(filter: Filter, element: Readonly<Record<string, unknown>>): boolean {
  if ('and' in filter) return filter.and.every((part) => matches(part, element));
  if ('or' in filter) return filter.or.some((part) => matches(part, element));
  if ('not' in filter) return !matches(filter.not, element);
  const { path, operator, value } = filter;
  const own = Object.hasOwn(element, path) ? element[path] : undefined;
  switch (operator) {
    case 'pr':
      return own !== undefined && own !== null && own !== '';
    case 'eq':
      return own !== undefined && asText(own) === asText(value);
    case 'ne':
      return own === undefined || asText(own) !== asText(value);
    case 'co':
      return own !== undefined && asText(own).includes(asText(value));
    case 'sw':
      return own !== undefined && asText(own).startsWith(asText(value));
    case 'ew':
      return own !== undefined && asText(own).endsWith(asText(value));
    default:
      throw invalid('invalidPath', `The operator ${operator} is not supported in a path.`);
  }
}

/** Returns what the filter says an element has, if it is made of `eq` alone; null: it is not. */
export function stated(filter: Filter): Readonly<Record<string, Value>> | null {
  if ('and' in filter) {
    const parts = filter.and.map(stated);
    return parts.includes(null) ? null : Object.assign({}, ...parts);
  }
  return 'path' in filter && filter.operator === 'eq' ? { [filter.path]: filter.value } : null;
}
