/** Texts from files that a person names, such as passwords. */
import { isatty } from 'node:tty';
import { readAtMost } from '../base/read-at-most.ts';
import { CommandError } from './command.ts';

/**
 * Whether a person could type on standard input. Do not ask `process.stdin`: it makes a pipe non-blocking, and `readText` then fails if the
 * writer is slower than the command.
 */
export const isInputTerminal = (): boolean => isatty(0);

/** More than any file that a command reads. */
const MAX_BYTES = 64 * 1024 * 1024;

/** Returns the text of a file or of an open descriptor. Throws an error of the file system. */
export function readWhole(file: string | number): string {
  const text = readAtMost(file, MAX_BYTES);
  if (text === null) throw Object.assign(new Error(`it has more than ${MAX_BYTES} bytes`), { code: 'EFBIG' });
  return text;
}

/** Returns the text of a file, without the line break at its end and the byte order mark at its start. `-`: standard input. */
export function readText(path: string): string {
  try {
    return readWhole(path === '-' ? 0 : path).replace(/^\uFEFF|\r?\n$/g, '');
  } catch (error) {
    const what = path === '-' ? 'standard input' : path;
    throw new CommandError(`${what} cannot be read (${(error as NodeJS.ErrnoException).code})`, 'unreadable');
  }
}
