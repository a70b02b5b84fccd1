/** Which test files a run without SQLite needs. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { testFilesIn } from './progress.ts';

/** What gives a test a database server or a program that a bare machine does not have, or leaves the test out. */
const MORE =
  /^import (?!type ).* from '\.[./]*\/(?:support\/)?(?:databases\/engines|chromium|launch-chromium|terminal|opa|small-disk)\.ts';$|\.skip\b/m;

/** The test files below `folder` that use more than SQLite where a machine has more. All others do the same on every machine. */
export function filesWithMore(folder: string): string[] {
  return testFilesIn(folder).filter((file) => MORE.test(readFileSync(join(folder, file), 'utf8')));
}
