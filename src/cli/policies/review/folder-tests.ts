/** Runs the tests of a folder without a gateway. */
import { existsSync, lstatSync, realpathSync } from 'node:fs';
import { join, sep } from 'node:path';
import { createEngine } from '../../../engine/engine.ts';
import { MANIFEST_NAME } from '../../../policies/files/file.ts';
import { parseTestFile, type TestCase } from '../../../policies/files/test-file.ts';
import { failureText, runTests, type TestReport, type TestResult } from '../../../policies/files/test-run.ts';
import type { PolicyFileError } from '../../../policies/files/yaml.ts';
import { CommandError, type Given } from '../../command.ts';
import { dirOf, manifestIn, testDirOf } from '../manifest.ts';
import { readPolicyFolder } from '../policy-folder.ts';
import { type FolderSet, refused } from './folder-set.ts';

/** Throws CommandError if the folder has no tests. */
export function testFiles(given: Given): Map<string, string> {
  const files = testFilesIfAny(given);
  if (files.size === 0) throw noTests(given);
  return files;
}

/** Returns no files if there is no folder of tests. Throws CommandError if --tests or the manifest names one without tests. */
export function testFilesIfAny(given: Given): Map<string, string> {
  const [dir, option] = [testDirOf(given), given.text('tests')];
  const isNamed = option !== undefined || typeof manifestIn(dirOf(given))?.tests === 'string';
  const isThere = lstatSync(dir, { throwIfNoEntry: false }) !== undefined;
  if (!isThere && !isNamed) return new Map();
  // A link can lead nowhere.
  if (!existsSync(dir)) throw noTests(given);
  if (option === undefined && !realpathSync(dir).startsWith(realpathSync(dirOf(given)) + sep))
    throw new CommandError(`${dir} is a link that leads out of ${dirOf(given)}: move the tests into the folder`, 'invalid_file');
  const files = readPolicyFolder(dir);
  if (files.size === 0 && isNamed) throw noTests(given);
  return files;
}

const noTests = (given: Given): CommandError =>
  new CommandError(
    `${testDirOf(given)} contains no tests (*.yaml): write tests there, or name their folder as "tests" in ${join(dirOf(given), MANIFEST_NAME)}; "policies test" also takes --tests`,
    'no_folder',
  );

/** Throws CommandError with the positions of the errors. */
export function testCases(given: Given, files = testFiles(given)): readonly TestCase[] {
  const cases: TestCase[] = [];
  const errors: PolicyFileError[] = [];
  for (const [file, text] of files) {
    const parsed = parseTestFile(text, file);
    if ('errors' in parsed) errors.push(...parsed.errors);
    else for (const each of parsed.cases) cases.push(each);
  }
  if (errors.length > 0) throw refused(testDirOf(given), errors);
  return cases;
}

/** `dir`: the folder of the tests. Throws CommandError if a test names a policy that does not exist. */
export async function testFolder(set: FolderSet, cases: readonly TestCase[], dir: string): Promise<TestReport> {
  const { module, policies, targets, files } = set;
  const engine = await createEngine({ module, policies, revision: 0 });
  const tested = { engine, policies, targets, isStored: () => false, isCovered: (id: string) => files.has(id) };
  const report = await runTests(cases, tested);
  if ('errors' in report) throw refused(dir, report.errors);
  return report;
}

export function failuresText(results: readonly TestResult[], dir: string): string {
  return results
    .filter((result) => !result.passed)
    .map((result) => {
      const { file, line, column, test, principal, request } = result;
      return `${join(dir, file)}:${line}:${column}: ${test}: ${principal}, ${request}: ${failureText(result)}\n`;
    })
    .join('');
}
