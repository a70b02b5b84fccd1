/** Tests of policies in the preview of a change. */
import { AppError } from '../../base/errors.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import { failureText, type TestReport } from '../../policies/files/test-run.ts';
import type { Field, Form } from '../form.ts';
import type { View } from '../view.ts';
import type { Source } from './consequences.ts';

export const TESTS: Field = {
  ...{ name: 'tests', label: 'Tests', isLong: true, isCode: true },
  hint: 'A test file, as YAML. The preview runs its tests on the policies with this change. You can leave it out. It is stored only with a draft.',
};

const NAME = 'tests.yaml';

/** Returns what the user entered, by file name. */
export function testsIn(form: Form): Record<string, string> {
  const text = (form['tests'] ?? '').replaceAll('\r\n', '\n');
  return text.trim() === '' ? {} : { [NAME]: text };
}

/** Runs the tests that the user entered. Rejects with the errors of the field. */
export async function testSection(view: View, form: Form, source: Source): Promise<Content> {
  const tests = testsIn(form);
  return Object.keys(tests).length === 0 ? null : aboutTests(testResults(view, source, tests));
}

/** Rejects with the errors of the field, in place of those of its file. */
export async function aboutTests<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof AppError) || error.errors === undefined) throw error;
    const errors = error.errors.map((one) =>
      one.file === NAME ? { path: 'tests', message: `line ${one.line}, column ${one.column}: ${one.message}` } : one,
    );
    throw new AppError(error.code, error.message, { errors });
  }
}

/** `tests`: texts by file name. Rejects with the error of the operation. */
export async function testResults({ post }: View, source: Source, tests: Readonly<Record<string, string>>): Promise<Markup> {
  const { passed, failed, results } = (await post<TestReport>('/policies/test', { ...source, tests })).body;
  const failures = results
    .filter((result) => !result.passed)
    .map((result) => html`<li><b>${result.test}</b>: ${result.principal}, ${result.request}: ${failureText(result)}</li>`);
  return html`<section class="stack tight" aria-labelledby="test-results"><h2 id="test-results">Tests</h2>
${failed === 0 ? note('done', `All ${passed} expectations hold with this change.`) : note('bad', html`<p>${failed} of ${passed + failed} expectations do not hold with this change:</p><ul>${failures}</ul>`)}</section>`;
}
