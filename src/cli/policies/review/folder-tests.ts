/** Runs the tests of a folder without a gateway. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createEngine } from '../../../engine/engine.ts';
import { parseTestFile, type TestCase } from '../../../policies/files/test-file.ts';
import { failureText, runTests, type TestReport, type TestResult } from '../../../policies/files/test-run.ts';
import type { PolicyFileError } from '../../../policies/files/yaml.ts';
import { CommandError, type Given } from '../../command.ts';
import { testDirOf } from '../manifest.ts';
import { readPolicyFolder } from '../policy-folder.ts';
import { type FolderSet, refused } from './folder-set.ts';

/** Throws CommandError if the folder has no tests. */
export function testFiles(given: Given): Map<string, string> {
  const dir = testDirOf(given);
  const files = existsSync(dir) ? readPolicyFolder(dir) : new Map<string, string>();
  if (files.size === 0)
    throw new CommandError(`${dir} contains no tests (*.yaml): set --tests to the folder of the tests`, 'no_folder');
  return files;
}

/** Throws CommandError with the positions of the errors. */
export function testCases(given: Given): readonly TestCase[] {
  const cases: TestCase[] = [];
  const errors: PolicyFileError[] = [];
  for (const [file, text] of testFiles(given)) {
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
