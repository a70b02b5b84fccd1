/** Texts from files that a person names, such as passwords. */
import { readFileSync } from 'node:fs';
import { CommandError } from './command.ts';

/** Returns the text of a file, without the line break at its end. `-`: standard input. */
export function readText(path: string): string {
  try {
    return readFileSync(path === '-' ? 0 : path, 'utf8').replace(/\r?\n$/, '');
  } catch (error) {
    const what = path === '-' ? 'standard input' : path;
    throw new CommandError(`${what} cannot be read (${(error as NodeJS.ErrnoException).code})`, 'unreadable');
  }
}
