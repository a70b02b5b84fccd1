/** The error that refuses policies outside the limits of their owner. */
import { AppError, type FieldError } from '../../base/errors.ts';

export interface OutsideField extends FieldError {
  readonly undecided: boolean;
}

const FIELDS_NAMED = 200;
const FIELDS_IN_DETAIL = 10;

/** `textOf`: the text of an error in the message. */
export function outsideLimits(
  fields: readonly OutsideField[],
  textOf = ({ path, message }: FieldError): string => `${path} ${message}`,
): AppError {
  const code = fields.every(({ undecided }) => undecided) ? 'limits_undecided' : 'outside_limits';
  const more = fields.length - FIELDS_IN_DETAIL;
  const lines = [...fields.slice(0, FIELDS_IN_DETAIL).map(textOf), ...(more > 0 ? [`and ${more} more`] : [])];
  const errors = fields.slice(0, FIELDS_NAMED).map(({ undecided: _, ...error }) => error);
  return new AppError(code, lines.join('; '), { errors });
}
