/** Texts from files that a person names, such as passwords. */
import { readFileSync } from 'node:fs';
import { isatty } from 'node:tty';
import { CommandError } from './command.ts';

/**
 * Whether a person could type on standard input. Do not ask `process.stdin`: it makes a pipe non-blocking, and `readText` then fails if the
 * writer is slower than the command.
 */
export const isInputTerminal = (): boolean => isatty(0);

/** Returns the text of a file, without the line break at its end and the byte order mark at its start. `-`: standard input. */
export function readText(path: string): string {
  try {
    return readFileSync(path === '-' ? 0 : path, 'utf8').replace(/^\uFEFF|\r?\n$/g, '');
  } catch (error) {
    const what = path === '-' ? 'standard input' : path;
    throw new CommandError(`${what} cannot be read (${(error as NodeJS.ErrnoException).code})`, 'unreadable');
  }
}
