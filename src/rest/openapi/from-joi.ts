/**
 * Schemas of the OpenAPI document from the joi schemas that check requests, so that each request is described once. A joi schema
 * adds with `.meta()` what joi itself does not know: keywords of JSON Schema for checks in code, `model` for the name in the
 * document, and `as` for a joi schema that stands for conditions. `joi-to-json` is not used: it has no names for schemas, gives
 * enums every type, and writes conditions in a form that generators of clients ignore.
 */
import type Joi from 'joi';
import { parameter } from './operation.ts';
import { described, listOf, named, oneOf, orNull, type Schema } from './schema.ts';

/** The members of `Joi.Description` that are read here. */
interface Description {
  readonly type?: string;
  readonly flags?: { readonly only?: true; readonly presence?: string; readonly description?: string; readonly match?: string };
  readonly allow?: readonly unknown[];
  readonly rules?: readonly { readonly name: string; readonly args?: { readonly limit?: number; readonly regex?: string } }[];
  readonly keys?: Readonly<Record<string, Description>>;
  readonly patterns?: readonly { readonly regex?: string; readonly rule: Description }[];
  readonly items?: readonly Description[];
  readonly matches?: readonly (
    | { readonly schema: Description }
    | { readonly then: Description; readonly otherwise: Description }
  )[];
  readonly whens?: readonly unknown[];
  readonly metas?: readonly { readonly model?: string; readonly as?: Description; readonly format?: string }[];
}

export const schemaOf = (schema: Joi.Schema): Schema => convert(schema.describe());

export const schemasOf = <Name extends string>(members: Readonly<Record<Name, Joi.Schema>>): Record<Name, Schema> =>
  Object.fromEntries(Object.entries<Joi.Schema>(members).map(([name, schema]) => [name, schemaOf(schema)])) as never;

/** Returns the query parameters that `members` check. */
export const queryOf = (members: Readonly<Record<string, Joi.Schema>>): Schema[] =>
  Object.entries(members).map(([name, schema]) => {
    const { description = '', ...type } = schemaOf(schema);
    const required = (schema.describe() as Description).flags?.presence === 'required';
    return { ...parameter('query', name, type, String(description)), ...(required ? { required } : {}) };
  });

function convert(given: Description): Schema {
  const { model, as, ...keywords } = Object.assign({}, ...(given.metas ?? [])) as NonNullable<Description['metas']>[number];
  if (given.whens !== undefined && as === undefined) throw new Error('A member with conditions needs `as` in its meta');
  const own = as === undefined ? { ...ofType(given), ...keywords } : convert(as);
  const called = model === undefined ? own : named(model, own);
  const schema = given.allow?.includes(null) ? orNull(called) : called;
  return given.flags?.description === undefined ? schema : described(given.flags.description, schema);
}

function ofType(given: Description): Schema {
  const { type, flags = {}, allow = [], matches = [] } = given;
  const limits = (minimum: string, maximum: string) => limitsOf(given, minimum, maximum);
  if (flags.only) {
    const values = allow.filter((value) => ['string', 'boolean'].includes(typeof value));
    return values.length === 1 ? { type: typeof values[0], const: values[0] } : oneOf(values as string[]);
  }
  switch (type) {
    case 'string': {
      const regex = ruleOf(given, 'pattern')?.regex;
      const isFree = regex === undefined && !allow.includes('') && !given.metas?.some(({ format }) => format !== undefined);
      const notEmpty = isFree ? { minLength: 1 } : {};
      return { type, ...notEmpty, ...limits('minLength', 'maxLength'), ...patternOf(regex) };
    }
    case 'number':
      return { type: ruleOf(given, 'integer') ? 'integer' : 'number', ...limits('minimum', 'maximum') };
    case 'array': {
      const [items] = given.items ?? [];
      const unique = ruleOf(given, 'unique') ? { uniqueItems: true } : {};
      return { ...listOf(items ? convert(items) : {}), ...limits('minItems', 'maxItems'), ...unique };
    }
    case 'object':
      return { type, ...membersOf(given), ...limits('minProperties', 'maxProperties') };
    case 'alternatives': {
      const forms = matches.flatMap((match) => ('schema' in match ? [match.schema] : [match.otherwise, match.then]));
      return { [flags.match === 'one' ? 'oneOf' : 'anyOf']: forms.map(convert) };
    }
    case 'boolean':
      return { type };
    default:
      return {};
  }
}

function membersOf({ keys, patterns }: Description): Schema {
  const [pattern] = patterns ?? [];
  if (pattern) {
    const names = pattern.regex === undefined ? {} : { propertyNames: patternOf(pattern.regex) };
    return { ...names, additionalProperties: convert(pattern.rule) };
  }
  if (!keys) return {};
  const members = Object.entries(keys).filter(([, { flags }]) => flags?.presence !== 'forbidden');
  return {
    properties: Object.fromEntries(members.map(([name, member]) => [name, convert(member)])),
    required: members.filter(([, { flags }]) => flags?.presence === 'required').map(([name]) => name),
    additionalProperties: false,
  };
}

const patternOf = (regex: string | undefined): Schema =>
  regex === undefined ? {} : { pattern: regex.slice(1, regex.lastIndexOf('/')) };

/** Returns the arguments of a rule; undefined: the schema does not have the rule. */
const ruleOf = ({ rules = [] }: Description, name: string) => {
  const rule = rules.find((one) => one.name === name);
  return rule && (rule.args ?? {});
};

function limitsOf(given: Description, minimum: string, maximum: string): Schema {
  const exact = ruleOf(given, 'length')?.limit;
  const [min = exact, max = exact] = [ruleOf(given, 'min')?.limit, ruleOf(given, 'max')?.limit];
  return { ...(min === undefined ? {} : { [minimum]: min }), ...(max === undefined ? {} : { [maximum]: max }) };
}
