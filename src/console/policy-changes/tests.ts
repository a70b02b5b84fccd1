/** Tests of policies in the preview of a change. */
import { AppError } from '../../base/errors.ts';
import { type Content, html } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import { failureText, type TestReport } from '../../policies/files/test-run.ts';
import type { Field } from '../form.ts';
import type { Changing } from '../view.ts';
import type { Candidate } from './consequences.ts';

export const TESTS: Field = {
  ...{ name: 'tests', label: 'Tests', isLong: true },
  hint: 'A test file, as YAML. The preview runs its tests on the policies with this change. You can leave it out, and nothing stores it.',
};

const NAME = 'tests.yaml';

/** Runs the tests that the user entered. Rejects with the errors of the field. */
export async function testSection({ post, form }: Changing, candidate: Candidate): Promise<Content> {
  const text = (form['tests'] ?? '').replaceAll('\r\n', '\n');
  if (text.trim() === '') return null;
  const { passed, failed, results } = await run();
  const failures = results
    .filter((result) => !result.passed)
    .map((result) => html`<li><b>${result.test}</b>: ${result.principal}, ${result.request}: ${failureText(result)}</li>`);
  return html`<section class="stack tight" aria-labelledby="test-results"><h2 id="test-results">Tests</h2>
${failed === 0 ? note('done', `All ${passed} expectations hold with this change.`) : note('bad', html`<p>${failed} of ${passed + failed} expectations do not hold with this change:</p><ul>${failures}</ul>`)}</section>`;

  async function run(): Promise<TestReport> {
    try {
      return (await post<TestReport>('/policies/test', { ...candidate, tests: { [NAME]: text } })).body;
    } catch (error) {
      if (!(error instanceof AppError) || error.errors === undefined) throw error;
      const errors = error.errors.map((one) =>
        one.file === NAME ? { path: 'tests', message: `line ${one.line}, column ${one.column}: ${one.message}` } : one,
      );
      throw new AppError(error.code, error.message, { errors });
    }
  }
}
