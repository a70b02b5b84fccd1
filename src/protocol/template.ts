/** URI templates (RFC 6570) whose variables have single strings as values. Pure. */
import { MAX_URI_BYTES } from './uri.ts';

interface Variable {
  readonly name: string;
  /** How many code points of the value are used (2.4.1); null: all. */
  readonly prefix: number | null;
}

interface Expression {
  readonly operator: Operator;
  readonly variables: readonly Variable[];
}

interface Operator {
  readonly first: string;
  readonly separator: string;
  /** What follows the name if the value is empty; null: this operator writes no names. */
  readonly whenEmpty: '' | '=' | null;
  readonly allowsReserved: boolean;
}

/** RFC 6570, appendix A. */
const OPERATORS: Readonly<Record<string, Operator>> = {
  '': { first: '', separator: ',', whenEmpty: null, allowsReserved: false },
  '+': { first: '', separator: ',', whenEmpty: null, allowsReserved: true },
  '#': { first: '#', separator: ',', whenEmpty: null, allowsReserved: true },
  '.': { first: '.', separator: '.', whenEmpty: null, allowsReserved: false },
  '/': { first: '/', separator: '/', whenEmpty: null, allowsReserved: false },
  ';': { first: ';', separator: ';', whenEmpty: '', allowsReserved: false },
  '?': { first: '?', separator: '&', whenEmpty: '=', allowsReserved: false },
  '&': { first: '&', separator: '&', whenEmpty: '=', allowsReserved: false },
};

const EXPRESSION = /^([+#./;?&]?)([^+#./;?&=,!@|][^=!@|]*)$/;
const VARIABLE = /^([^*:]+)(?:\*|:([1-9][0-9]{0,3}))?$/;
/** Limits the work: a template is expanded once for each of many values. */
const MAX_VARIABLES = 50;

/** null: a part is not valid, or there are too many variables. */
export function readTemplate(text: string) {
  // The even elements are literals.
  const parts = text.split(/\{([^{}]*)\}/).map((part, index) => (index % 2 === 0 ? part : readExpression(part)));
  const isReadable = parts.every((part) => (typeof part === 'string' ? !/[{}]/.test(part) : part !== null));
  if (!isReadable) return null;
  const read = parts.filter((part) => part !== null);
  const variables = read.flatMap((part) => (typeof part === 'string' ? [] : part.variables));
  if (variables.length > MAX_VARIABLES) return null;
  return {
    variables: new Set(variables.map(({ name }) => name)),
    expand: (values: ReadonlyMap<string, string>) => expand(read, values),
  };
}

function readExpression(text: string): Expression | null {
  const [, sign = '', list = ''] = EXPRESSION.exec(text) ?? [];
  const operator = OPERATORS[sign];
  const variables = list.split(',').map((variable): Variable | null => {
    const [, name, prefix] = VARIABLE.exec(variable) ?? [];
    return name === undefined ? null : { name, prefix: prefix === undefined ? null : Number(prefix) };
  });
  const readable = variables.filter((variable) => variable !== null);
  return operator === undefined || readable.length < variables.length ? null : { operator, variables: readable };
}

/** Every variable must have a value. null: the URI is longer than MAX_URI_BYTES. */
function expand(parts: readonly (string | Expression)[], values: ReadonlyMap<string, string>): string | null {
  let uri = '';
  for (const part of parts) {
    if (typeof part === 'string') uri += part;
    else {
      const { operator, variables } = part;
      for (const [index, variable] of variables.entries()) {
        const value = values.get(variable.name) ?? '';
        if (value.length > MAX_URI_BYTES || uri.length > MAX_URI_BYTES) return null;
        uri += (index === 0 ? operator.first : operator.separator) + written(operator, variable, value);
      }
    }
    if (uri.length > MAX_URI_BYTES) return null;
  }
  return uri;
}

/** Expands one variable. The modifier `*` changes nothing for a single string (3.2.1). */
function written({ whenEmpty, allowsReserved }: Operator, { name, prefix }: Variable, value: string): string {
  // A code point has one or two code units.
  const whole = (prefix === null ? value : value.slice(0, 2 * prefix)).toWellFormed();
  const counted = prefix === null ? whole : [...whole].slice(0, prefix).join('');
  const text = allowsReserved ? encodeBesidesReserved(counted) : encodeURIComponent(counted);
  if (whenEmpty === null) return text;
  return text === '' ? name + whenEmpty : `${name}=${text}`;
}

/** Keeps reserved characters and existing percent-encodings (3.2.3). */
function encodeBesidesReserved(text: string): string {
  return text.replace(/%(?![0-9A-Fa-f]{2})|[^A-Za-z0-9\-._~:/?#[\]@!$&'()*+,;=%]/gu, encodeURIComponent);
}
