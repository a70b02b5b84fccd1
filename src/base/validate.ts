/** Validation: turns an untrusted value into a domain value, or throws a problem that names the wrong members. */
import Joi from 'joi';
import { AppError, type FieldError, invalidRequest } from './errors.ts';

/** The form of ids: lower case, so that comparing the texts compares the ids. */
export const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const CONTROL = /\p{Cc}/u;
/** Control characters except tabs and line breaks. */
const CONTROL_IN_LINES = /(?!\r?\n|\t)\p{Cc}/u;
/** The other characters, in a form that every reader of JSON Schema knows. */
const NOT_CONTROL = '[^\\u0000-\\u001f\\u007f-\\u009f]';

/**
 * A string of 1 to `max` code points without control characters. It is compared byte for byte: nothing is trimmed or normalized.
 */
export const text = (max: number): Joi.StringSchema =>
  textWithout(CONTROL, 'must not contain control characters', max).meta({ pattern: `^${NOT_CONTROL}*$` });

/** Like `text`, but line breaks and tabs are allowed. */
export const lines = (max: number): Joi.StringSchema =>
  textWithout(CONTROL_IN_LINES, 'must not contain control characters other than line breaks and tabs', max).meta({
    pattern: `^(?:${NOT_CONTROL}|\\r?\\n|\\t)*$`,
  });

const tooLong = (max: number): string => `must have at most ${max} characters`;

function textWithout(refused: RegExp, refusal: string, max: number): Joi.StringSchema {
  return checked(Joi.string(), (value) => {
    // A character has at most two code units. A text of megabytes is not looked at any further.
    if (value.length > 2 * max) return tooLong(max);
    if (!value.isWellFormed()) return 'must be well-formed Unicode';
    if (refused.test(value)) return refusal;
    return [...value].length > max ? tooLong(max) : null;
  }).meta({ maxLength: max });
}

/** The schema without the values for which `problemOf` returns a reason. */
export const checked = <S extends Joi.Schema, Value = string>(schema: S, problemOf: (value: Value) => string | null): S =>
  schema.custom((value: Value, helpers) => {
    const problem = problemOf(value);
    return problem === null ? value : helpers.message({ custom: problem });
  }) as S;

export const uuid = (): Joi.StringSchema =>
  Joi.string().pattern(UUID).messages({ 'string.pattern.base': 'must be a lower-case UUID' });

const TIME = /^(\d{4})-(\d\d)-(\d\d)T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)$/;

/** Marks a member as a time in the OpenAPI document. */
export const asTimestamp = <S extends Joi.Schema>(schema: S): S => schema.meta({ format: 'date-time' }) as S;

/** A point in time. The value becomes milliseconds since the epoch. */
export const instant = (): Joi.StringSchema =>
  asTimestamp(Joi.string()).custom((value: string, helpers) => {
    const [, year, month, day] = TIME.exec(value) ?? [];
    // JavaScript takes the 30th of February as the 2nd of March.
    const isDay = Number(day) <= new Date(Date.UTC(Number(year), Number(month), 0)).getUTCDate();
    const ms = Date.parse(value);
    return !isDay || Number.isNaN(ms) ? helpers.message({ custom: 'must be a time such as 2026-01-31T12:00:00Z' }) : ms;
  });

/**
 * The body of a request, or a part of it, under the name that it has in the OpenAPI document. It has exactly the members of `T`.
 */
export const model = <T = Readonly<Record<string, unknown>>>(
  name: string,
  members: { readonly [Name in keyof T]-?: Joi.Schema },
): Joi.ObjectSchema<T> => Joi.object<T>(members as Joi.SchemaMap<T>).meta({ model: name });

/** A member that a client may send back as it was read. `readOnlyErrors` compares it. */
export const readOnly = <S extends Joi.Schema>(schema: S): S =>
  schema.description('Read-only. It must be absent, or have the value that was read.') as S;

/** Joi's messages begin with the name of the member, which is already in `path`. The root has no name and is called the body. */
function fieldErrors(error: Joi.ValidationError, hints: Hints): FieldError[] {
  return error.details.map(({ path, type, message }) => ({
    path: path.join('.'),
    message:
      type === 'object.unknown'
        ? ['is not a member of this object', ...(hints.get(String(path.at(-1))) ?? [])].join(': ')
        : message.replace(/^"[^"]*" /, path.length === 0 ? 'the body ' : ''),
  }));
}

/** For a member that does not exist here but has a different name elsewhere: what to write instead, by that member's name. */
export type Hints = ReadonlyMap<string, readonly [string]>;
const NO_HINTS: Hints = new Map();

/** If a body has more values, only its first mistake is named. To name thousands would keep the thread busy for too long. */
const MAX_FULLY_CHECKED = 1_000;
/** As many characters count as one value. */
const CHARACTERS_PER_VALUE = 64;

function isFullyChecked(body: unknown): boolean {
  const found = [body];
  let characters = 0;
  for (let at = 0; at < found.length; at++) {
    const one = found[at];
    if (typeof one === 'string') characters += one.length;
    if (found.length + characters / CHARACTERS_PER_VALUE > MAX_FULLY_CHECKED + 1) return false;
    if (typeof one !== 'object' || one === null) continue;
    for (const name in one) {
      if (found.push((one as Readonly<Record<string, unknown>>)[name]) > MAX_FULLY_CHECKED + 1) return false;
    }
  }
  return true;
}

/** Returns the validated value, or throws AppError `invalid_request`. Nothing is converted: "1" is not a number. */
export function validate<T>(schema: Joi.Schema<T>, value: unknown, hints: Hints = NO_HINTS): T {
  const result = schema.validate(value, { abortEarly: !isFullyChecked(value), convert: false, errors: { wrap: { label: '"' } } });
  if (result.error) throw invalidRequest(fieldErrors(result.error, hints));
  return result.value as T;
}

/**
 * Returns one error for each read-only member of `given` whose value differs from the current one. So a client may send back what
 * it read.
 */
export function readOnlyErrors<Name extends string>(
  names: readonly Name[],
  given: Readonly<Partial<Record<Name, unknown>>>,
  shown: Readonly<Record<Name, unknown>>,
): FieldError[] {
  return names
    .filter((name) => given[name] !== undefined && !isSameValue(given[name], shown[name]))
    .map((path) => ({ path, message: 'cannot be changed: leave it out, or send the value that you read' }));
}

/** Clients may write the same time differently than they have read it. */
function isSameValue(given: unknown, shown: unknown): boolean {
  const [one, other] = [given, shown].map((value) => (typeof value === 'string' && TIME.test(value) ? Date.parse(value) : value));
  return one === other;
}

/** Throws AppError `invalid_request` if the body has members, for requests that take none. */
export function refuseMembers({ body }: { readonly body?: unknown }): void {
  validate(Joi.object({}), body);
}

/** Returns a path segment that must be an id. Throws AppError `not_found` if it cannot be one. */
export function pathId(value: unknown): string {
  if (uuid().required().validate(value).error) throw new AppError('not_found', 'No resource has this id.');
  return value as string;
}

/** Reads the query: only these parameters, each at most once and in its format. Throws AppError `invalid_request`. */
export function readQuery<Name extends string>(
  query: object,
  forms: Readonly<Record<Name, RegExp>>,
): Partial<Record<Name, string>> {
  const errors = Object.entries(query).flatMap(([path, value]) => {
    const form = Object.hasOwn(forms, path) ? forms[path as Name] : undefined;
    if (form === undefined) return [{ path, message: 'unknown query parameter' }];
    return typeof value === 'string' && form.test(value)
      ? []
      : [{ path, message: `must match the format ${form.source}, and may appear only once` }];
  });
  if (errors.length > 0) throw invalidRequest(errors);
  return query as Partial<Record<Name, string>>;
}
