/** The options of a command, from the schemas of an operation's members, and the values that people give for them. */
import { NAMED, type Schema } from '../../rest/openapi/schema.ts';
import { type Option, spanOf, UsageError } from '../command.ts';

/** The members of a body, of all its forms. */
export interface Members {
  readonly properties: Readonly<Record<string, Schema>>;
  readonly required: readonly string[];
}

const own = (schema: Schema): Schema => (schema[NAMED] as readonly [string, Schema] | undefined)?.[1] ?? schema;
const formsOf = (schema: Schema): readonly Schema[] => (schema['anyOf'] ?? schema['oneOf'] ?? []) as Schema[];

export function membersOf(given: Schema): Members {
  const schema = own(given);
  const forms = formsOf(schema).map(membersOf);
  if (forms.length === 0) {
    return {
      properties: (schema['properties'] ?? {}) as Members['properties'],
      required: (schema['required'] ?? []) as string[],
    };
  }
  const properties: Record<string, Schema> = {};
  for (const [name, property] of forms.flatMap((form) => Object.entries(form.properties))) {
    properties[name] = either(properties[name], property);
  }
  const [first] = forms;
  return {
    properties,
    required: (first?.required ?? []).filter((name) => forms.every(({ required }) => required.includes(name))),
  };
}

const choicesOf = (schema: Schema): readonly unknown[] =>
  'const' in schema ? [schema['const']] : ((schema['enum'] ?? []) as unknown[]);

/** A member that forms have in common takes the values of each. */
function either(one: Schema | undefined, other: Schema): Schema {
  const choices = [...new Set([...choicesOf(one ?? {}), ...choicesOf(other)])];
  const { const: _, ...rest } = one ?? other;
  return choices.length < 2 ? (one ?? other) : { ...rest, enum: choices };
}

/** Values of these members are secret, so they are never arguments: every user of a machine can see arguments. */
const SECRETS = new Set(['password', 'value', 'client_secret']);
export const isSecret = (member: string): boolean => SECRETS.has(member);

/** `user_id` is a user, whom people name by e-mail; `resource_name` is `--resource-name`. */
const OF_OTHERS: Readonly<Record<string, string>> = { user_id: 'user', target_id: 'target', policy_id: 'policy' };
export const optionName = (member: string): string =>
  OF_OTHERS[member] ?? (isSecret(member) ? `${member}-file` : member).replaceAll('_', '-');

const PLACEHOLDERS: Readonly<Record<string, string>> = { integer: 'N', number: 'N', boolean: 'true|false', string: 'TEXT' };

/** null: the member cannot be changed. */
export function optionOf(member: string, schema: Schema): Option | null {
  const { type, isList, isTime, constant, values } = kindOf(schema);
  const described = String(schema['description'] ?? '').replaceAll('`', '');
  if (described.startsWith('Read-only')) return null;
  const help = wrapped(described.replace(/^[A-Z](?=[a-z ])/, (letter) => letter.toLowerCase()).replace(/\.$/, ''));
  if (constant !== undefined) return { help };
  if (isSecret(member))
    return { value: 'FILE', help: `the file with the ${member.replaceAll('_', ' ')}; - reads it from standard input` };
  const other = OF_OTHERS[member]?.toUpperCase();
  return { value: other ?? (isTime ? 'TIME' : isList ? 'A,B' : (values?.join('|') ?? PLACEHOLDERS[type] ?? 'JSON')), help };
}

const HELP_WIDTH = 90;
const wrapped = (text: string): string => text.replaceAll(new RegExp(`(.{1,${HELP_WIDTH}})( +|$)`, 'g'), '$1\n').trimEnd();

function kindOf(given: Schema) {
  const schema = own(given);
  const [form] = formsOf(schema).filter(({ type }) => type !== 'null');
  const isOneOrNull = formsOf(schema).length === 2 && formsOf(schema).some(({ type }) => type === 'null');
  const inner = isOneOrNull && form !== undefined ? own(form) : schema;
  const types = [inner['type'] ?? 'object'].flat() as string[];
  const items = own((inner['items'] ?? {}) as Schema);
  return {
    type: types.find((type) => type !== 'null') ?? 'object',
    isNullable: isOneOrNull || types.includes('null'),
    isList: types.includes('array') && items['type'] === 'string',
    isTime: inner['format'] === 'date-time',
    constant: inner['const'],
    values: inner['enum'] as readonly string[] | undefined,
  };
}

/** Returns the value of a member. Throws UsageError if the text cannot be one. The gateway checks everything else. */
export function readValue(member: string, schema: Schema, text: string, spans: 'ago' | 'ahead'): unknown {
  const { type, isNullable, isList, isTime } = kindOf(schema);
  const wrong = (must: string): UsageError => new UsageError(`--${optionName(member)} must be ${must}, not ${text}`);
  if (isNullable && text === 'null') return null;
  if (isTime) {
    const span = spanOf(text);
    return span === null ? text : new Date(Date.now() + (spans === 'ago' ? -span : span)).toISOString();
  }
  if (isList && !text.startsWith('[')) return text === '' ? [] : text.split(',');
  if (type === 'string') return text;
  try {
    const value: unknown = JSON.parse(text);
    if (type === 'boolean' && typeof value !== 'boolean') throw wrong('true or false');
    if (type.match(/integer|number/) && typeof value !== 'number') throw wrong('a number');
    return value;
  } catch (error) {
    throw error instanceof UsageError
      ? error
      : wrong(type === 'boolean' ? 'true or false' : type === 'object' || type === 'array' ? 'JSON' : 'a number');
  }
}
