/** Reads the files of a request, and says what is wrong with them. */
import { AppError, type FieldError } from '../../base/errors.ts';
import { pause } from '../../base/turns/slices.ts';
import { FILE_NAME, FILE_NAME_RULE } from './file.ts';
import { describePolicyFileError, type PolicyFileError } from './yaml.ts';

/** More errors would not help. */
const ERRORS_NAMED = 200;
const ERRORS_IN_DETAIL = 10;

/**
 * Reads each file with `parse`, which can take a second: call this in a thread. `texts`: texts by file name. Throws AppError
 * `invalid_request` with the positions of the errors.
 */
export async function readEach<T extends object>(
  texts: ReadonlyMap<string, string>,
  parse: (text: string, file: string) => T | { readonly errors: readonly PolicyFileError[] },
): Promise<Map<string, T>> {
  const files = new Map<string, T>();
  const errors: PolicyFileError[] = [];
  for (const [file, text] of texts) {
    await pause();
    const parsed = FILE_NAME.test(file) ? parse(text, file) : { errors: [{ file, line: 1, column: 1, message: FILE_NAME_RULE }] };
    if ('errors' in parsed) errors.push(...parsed.errors);
    else files.set(file, parsed);
  }
  if (errors.length > 0) throw badFiles(errors);
  return files;
}

/** `member`: the member of the request that contains the files. */
export function badFiles(errors: readonly PolicyFileError[], member = 'files'): AppError {
  return tooMany(
    errors.map((error) => fieldOf(error, member)),
    describePolicyFileError,
  );
}

export const fieldOf = ({ file, line, column, message }: PolicyFileError, member = 'files') => ({
  path: `${member}.${file}`,
  ...{ message, file, line, column },
});

export function tooMany<E extends FieldError>(errors: readonly E[], describe: (error: E) => string): AppError {
  const more = errors.length - ERRORS_IN_DETAIL;
  const lines = [...errors.slice(0, ERRORS_IN_DETAIL).map(describe), ...(more > 0 ? [`and ${more} more`] : [])];
  return new AppError('invalid_request', lines.join('; '), { errors: errors.slice(0, ERRORS_NAMED) });
}
