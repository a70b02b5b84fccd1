/** Which tests a run without SQLite needs. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { testFilesIn } from './progress.ts';

const importOf = (modules: string) => new RegExp(`^import (?!type ).* from '\\.[./]*/(?:support/)?(?:${modules})\\.ts';$`, 'm');
/** What gives a test a program that a bare machine does not have, or leaves the test out. */
const PROGRAMS = importOf('chromium|launch-chromium|terminal|opa|small-disk');
const SKIPS = /\.skip\b/;
/** What gives a test a database server. */
const SERVERS = importOf('(?:databases/)?each-engine');

export interface Selection {
  /** Paths below the folder. */
  readonly files: readonly string[];
  /** The titles of the tests, as ava matches them; empty: all. */
  readonly titles: readonly string[];
}

/**
 * The tests below `folder` that use more than SQLite where a machine has more: all tests of a file that uses programs, and those on a server
 * of a file that uses servers only. All other tests do the same on every machine.
 */
export function testsWithMore(folder: string): Selection[] {
  const files = testFilesIn(folder).map((file) => ({ file, source: readFileSync(join(folder, file), 'utf8') }));
  const whole = files.filter(({ source }) => PROGRAMS.test(source) || SKIPS.test(source));
  const servers = files.filter((each) => SERVERS.test(each.source) && !whole.includes(each));
  return [
    { files: whole.map(({ file }) => file), titles: [] },
    { files: servers.map(({ file }) => file), titles: ['*[mariadb]', '*[mysql]'] },
  ];
}
