/** The building blocks of schemas. */
import { UUID } from '../../base/validate.ts';
import { TARGET_NAME } from '../../targets/target.ts';

export type Schema = Readonly<Record<string | symbol, unknown>>;

/** A reference from `named` keeps the schema under this symbol, so that neither JSON nor a validator sees it. */
export const NAMED = Symbol('named');

/** Returns a reference to a schema. The document lists the schema under this name, and generated clients use the name. */
export const named = (name: string, schema: Schema): Schema => ({
  $ref: `#/components/schemas/${name}`,
  [NAMED]: [name, schema],
});

export const listOf = (items: Schema): Schema => ({ type: 'array', items });

/** An object with a name and exactly the members of `T`. Members in `optional` may be absent; all others are always present. */
export const model = <T extends object = Readonly<Record<string, unknown>>>(
  name: string,
  properties: Readonly<Record<keyof T & string, Schema>>,
  optional: readonly string[] = [],
): Schema =>
  named(name, { type: 'object', properties, required: Object.keys(properties).filter((one) => !optional.includes(one)) });

export const orNull = (schema: Schema): Schema =>
  typeof schema['type'] === 'string' && !('enum' in schema || 'const' in schema)
    ? { ...schema, type: [schema['type'], 'null'] }
    : { anyOf: [schema, { type: 'null' }] };
export const described = (description: string, schema: Schema): Schema => ({ ...schema, description });

export const string: Schema = { type: 'string' };
export const integer: Schema = { type: 'integer' };
export const boolean: Schema = { type: 'boolean' };
export const oneOf = (values: readonly string[]): Schema => ({ type: 'string', enum: values });
export const uuid: Schema = { type: 'string', pattern: UUID.source };
export const time: Schema = { type: 'string', format: 'date-time' };
export const sha256: Schema = { type: 'string', pattern: '^[0-9a-f]{64}$' };
export const int32: Schema = { type: 'integer', minimum: -(2 ** 31), maximum: 2 ** 31 - 1 };
export const targetName: Schema = { type: 'string', pattern: TARGET_NAME.source };
/** The user who made a change. */
export const actor = model('Actor', { id: string, email: string });
export const times = { created_at: time, updated_at: time };
