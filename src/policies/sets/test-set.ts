/** Reads the test files of a request, and runs them on a policy set. */
import type { Caller } from '../../auth/caller.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { pause } from '../../base/turns/slices.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { createEngine, type PolicyModule } from '../../engine/engine.ts';
import { FILE_NAME, FILE_NAME_RULE } from '../files/file.ts';
import { badFiles } from '../files/read-files.ts';
import { parseTestFile, type TestCase } from '../files/test-file.ts';
import { failureText, runTests, type TestReport, type TestResult } from '../files/test-run.ts';
import type { PolicyFileError } from '../files/yaml.ts';
import type { TargetName } from './planning.ts';
import type { Alongside, ApplyRequest, PolicySets } from './sets.ts';

/** The limit for all files together. */
const MAX_CASES = 10_000;
/** More errors are not looked for. */
const MOST_ERRORS = 1_000;
/** The same for files with errors: each can take as long as a correct one, and correct ones have the limit of cases. */
const MOST_WRONG_FILES = 20;

/**
 * Call this in a thread: it can take a second. `texts`: the member `tests` by file name. Throws AppError `invalid_request` with the
 * positions of the errors.
 */
export async function readTests(texts: ReadonlyMap<string, string>): Promise<TestCase[]> {
  const errors: PolicyFileError[] = [];
  const cases: TestCase[] = [];
  let wrongFiles = 0;
  for (const [file, text] of texts) {
    await pause();
    if (errors.length >= MOST_ERRORS || wrongFiles >= MOST_WRONG_FILES) break;
    if (!FILE_NAME.test(file)) {
      errors.push({ file, line: 1, column: 1, message: FILE_NAME_RULE });
      continue;
    }
    const parsed = parseTestFile(text, file);
    if ('errors' in parsed) {
      wrongFiles++;
      for (const each of parsed.errors) errors.push(each);
    } else if (cases.length + parsed.cases.length > MAX_CASES) {
      throw invalidRequest([{ path: 'tests', message: `must have at most ${MAX_CASES} cases in all files together` }]);
    } else for (const each of parsed.cases) cases.push(each);
  }
  if (errors.length > 0) throw badFiles(errors, 'tests');
  return cases;
}

export interface SetToTest {
  readonly policies: readonly StoredPolicy[];
  /** The stored policies. For any other policy, the report of a test contains no id. */
  readonly stored: readonly StoredPolicy[];
  readonly targets: readonly TargetName[];
}

/** Throws AppError `invalid_request` if a test names a target or policy that does not exist, or if no engine can be built. */
export async function testSet(
  module: PolicyModule,
  cases: readonly TestCase[],
  { policies, stored, targets }: SetToTest,
): Promise<TestReport> {
  const engine = await createEngine({ module, policies, revision: 0 }).catch((cause: unknown) => {
    throw new AppError('invalid_request', 'The policies cannot be compiled, so they cannot be tested.', { cause });
  });
  const known = new Set(stored.map(({ id }) => id));
  const report = await runTests(cases, { engine, policies, targets, isStored: (id) => known.has(id) });
  if ('errors' in report) throw badFiles(report.errors, 'tests');
  return report;
}

export interface ApplyTestedParts {
  readonly sets: PolicySets;
  /** Runs tests on a set, in a turn of the caller. `all` is the number of tests, `failures` has the first ones that failed. */
  readonly test: (
    texts: ReadonlyMap<string, string>,
    set: Pick<SetToTest, 'policies' | 'targets'>,
    caller: Caller,
  ) => Promise<{ readonly failed: number; readonly all: number; readonly failures: readonly TestResult[] }>;
}

export type ApplyTested = ReturnType<typeof createApplyTested>;

export function createApplyTested({ sets, test }: ApplyTestedParts) {
  /** Applies files if every test passes. Throws what `PolicySets.apply` and `readTests` throw, and AppError `tests_failed`. */
  return async (
    caller: Caller,
    request: ApplyRequest,
    tests: ReadonlyMap<string, string>,
    alongside?: Alongside,
  ): ReturnType<PolicySets['apply']> => {
    if (tests.size === 0) return sets.apply(caller, request, alongside);
    const { plan, targets, position } = await sets.plan(caller, request);
    const { failed, all, failures } = await test(tests, { policies: plan.candidate, targets }, caller);
    if (failed > 0) {
      const errors = failures.map((result) => {
        const { file, line, column, test, principal, request } = result;
        return {
          path: `tests.${file}`,
          message: `${test}: ${principal}, ${request}: ${failureText(result)}`,
          ...{ file, line, column },
        };
      });
      throw new AppError('tests_failed', `Nothing was applied, because ${failed} of ${all} tests failed.`, { errors });
    }
    // Apply exactly what was tested.
    return sets.apply(caller, { ...request, tested: { position, targets } }, alongside);
  };
}
