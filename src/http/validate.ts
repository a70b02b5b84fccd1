/** From an untrusted value to a domain value, or a problem that names every bad member. */
import Joi from 'joi';
import { AppError, type FieldError, invalidRequest } from '../errors.ts';

/** As the gateway makes and shows ids: in lower case, so that comparing texts compares ids. */
export const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const CONTROL = /\p{Cc}/u;
/** All but tabs and line breaks. */
const CONTROL_IN_LINES = /(?!\r?\n|\t)\p{Cc}/u;

/** A string of 1 to `max` code points without control characters, compared byte for byte: nothing is trimmed or normalized. */
export const text = (max: number): Joi.StringSchema => textWithout(CONTROL, 'must not contain control characters', max);

/** The same, with line breaks and tabs. */
export const lines = (max: number): Joi.StringSchema =>
  textWithout(CONTROL_IN_LINES, 'must not contain control characters other than line breaks and tabs', max);

function textWithout(refused: RegExp, refusal: string, max: number): Joi.StringSchema {
  return Joi.string().custom((value: string, helpers) => {
    if (!value.isWellFormed()) return helpers.message({ custom: 'must be well-formed Unicode' });
    if (refused.test(value)) return helpers.message({ custom: refusal });
    if ([...value].length > max) return helpers.message({ custom: `must have at most ${max} characters` });
    return value;
  });
}

export const uuid = (): Joi.StringSchema =>
  Joi.string().pattern(UUID).messages({ 'string.pattern.base': 'must be a lower-case UUID' });

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,3})?)?(Z|[+-]\d\d:\d\d)$/;

/** A point in time, read as milliseconds since the epoch. */
export const instant = (): Joi.StringSchema =>
  Joi.string().custom((value: string, helpers) => {
    const ms = TIME.test(value) ? Date.parse(value) : Number.NaN;
    return Number.isNaN(ms) ? helpers.message({ custom: 'must be a time such as 2026-01-31T12:00:00Z' }) : ms;
  });

/** Joi's sentences begin with the name of the member, which is in `path` already; the whole has no name, and is the body. */
function fieldErrors(error: Joi.ValidationError, hints: Hints): FieldError[] {
  return error.details.map(({ path, type, message }) => ({
    path: path.join('.'),
    message:
      type === 'object.unknown'
        ? ['is not a member of this object', ...(hints.get(String(path.at(-1))) ?? [])].join(': ')
        : message.replace(/^"[^"]*" /, path.length === 0 ? 'the body ' : ''),
  }));
}

/** For members that do not exist but have another name elsewhere, by that name: what to write instead. */
export type Hints = ReadonlyMap<string, readonly [string]>;
const NO_HINTS: Hints = new Map();

/** Throws AppError `invalid_request`. Nothing is converted: "1" is no number. */
export function validate<T>(schema: Joi.Schema<T>, value: unknown, hints: Hints = NO_HINTS): T {
  const result = schema.validate(value, { abortEarly: false, convert: false, errors: { wrap: { label: '"' } } });
  if (result.error) throw invalidRequest(fieldErrors(result.error, hints));
  return result.value as T;
}

/** One error for each member of `given` that is only shown, and is not as it is shown: what was read can be put back. */
export function readOnlyErrors<Name extends string>(
  names: readonly Name[],
  given: Readonly<Partial<Record<Name, unknown>>>,
  shown: Readonly<Record<Name, unknown>>,
): FieldError[] {
  return names
    .filter((name) => given[name] !== undefined && given[name] !== shown[name])
    .map((path) => ({ path, message: 'cannot be changed: leave it out, or give it as it was read' }));
}

/** For a path segment that should be an id: what cannot be one names nothing. */
export function pathId(value: unknown): string {
  if (uuid().required().validate(value).error) throw new AppError('not_found', 'Nothing has this id.');
  return value as string;
}

/** Each query parameter at most once, in its form, and no other. Throws AppError `invalid_request`. */
export function readQuery<Name extends string>(
  query: object,
  forms: Readonly<Record<Name, RegExp>>,
): Partial<Record<Name, string>> {
  const errors = Object.entries(query).flatMap(([path, value]) => {
    const form = Object.hasOwn(forms, path) ? forms[path as Name] : undefined;
    if (form === undefined) return [{ path, message: 'unknown query parameter' }];
    return typeof value === 'string' && form.test(value)
      ? []
      : [{ path, message: 'is not of its form, or there more than once' }];
  });
  if (errors.length > 0) throw invalidRequest(errors);
  return query as Partial<Record<Name, string>>;
}
