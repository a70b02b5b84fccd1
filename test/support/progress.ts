/** Reads from ava's report how far a run of all test files has come. */
import { readdirSync } from 'node:fs';
import { join, sep } from 'node:path';
import { stripVTControlCharacters } from 'node:util';

const TEST_FILE = /\.test\.ts$/;
/** ava puts the path of the file, in parts, before each title. */
const SEPARATOR = ' › ';
const REPORTED = /^ {2}(?:✔|✘|√|×|-) (?:\[\w+\]: |\[skip\] )?(.*)$/u;

export interface Progress {
  /** Returns a line such as `12 of 140 files: mcp › filter` for the first result of each file, and null for every other line. */
  read(line: string): string | null;
}

/** `files`: paths below the folder that holds all of them, for example `mcp/filter/filter.test.ts`. */
export function createProgress(files: readonly string[]): Progress {
  const pending = new Set(files.map((file) => file.replace(TEST_FILE, '').split(sep).join(SEPARATOR)));
  return {
    read(line) {
      const title = REPORTED.exec(stripVTControlCharacters(line))?.[1];
      if (title === undefined) return null;
      const file = [...pending].find((name) => title.startsWith(`${name}${SEPARATOR}`));
      if (file === undefined) return null;
      pending.delete(file);
      return `${files.length - pending.size} of ${files.length} files: ${file}`;
    },
  };
}

/** Every test file below `folder`. */
export function testFilesIn(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && TEST_FILE.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1));
}
