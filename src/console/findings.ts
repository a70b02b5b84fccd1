/** What the analysis of the policy set found. */
import { AppError } from '../base/errors.ts';
import { inTime } from '../base/promises.ts';
import { html, type Markup } from '../browser/html.ts';
import type { LintReport } from '../policies/sets/lint-report.ts';
import { inSlices, SHOWN } from './lists.ts';
import { column, empty, heading, table } from './marks.ts';
import type { Shown, View } from './view.ts';

export const FINDINGS = '/console/findings';
/** The analysis of the current policies, which is at most 10 minutes old. */
const KEPT = '/policies/lint?kept=yes';
const WAIT_MS = 150;

export type Finding = LintReport['findings'][number];

/** For pages whose subject they are not. null: the user may not see them, or the analysis takes longer than `ms`. It goes on for the next page. */
export async function findingsBeside({ get, may }: View, ms: number): Promise<readonly Finding[] | null> {
  if (!may('lintPolicies')) return null;
  const asked = get<LintReport>(KEPT).catch((error: unknown) => {
    if (error instanceof AppError) return null;
    throw error;
  });
  return (await inTime(asked, ms))?.body.findings ?? null;
}

const WORDS = { error: 'Error', warning: 'Warning', info: 'Note' } as const;

export const findingMark = ({ severity, message }: Pick<Finding, 'severity' | 'message'>): Markup =>
  html`<span class="tag find"><b>${WORDS[severity]}</b> ${message}</span>`;

export async function findingsPage(view: View): Promise<Shown> {
  const report = await inTime(view.get<LintReport>(KEPT), WAIT_MS);
  if (report === null)
    return {
      title: 'Findings',
      againIn: 3,
      body: html`${heading('Findings', 'The analysis of all policies is under way. It covers every possible request. This page loads again every three seconds, and shows the findings when they are there.')}`,
    };
  const { analysed, findings } = report.body;
  const row = ({
    code,
    severity,
    message,
    policies,
  }: Finding): Markup => html`<tr><th scope="row">${message}<span class="sub"><code>${code}</code></span></th>
<td data-label="Severity"><span class="tag find"><b>${WORDS[severity]}</b></span></td>
<td data-label="Policies">${policies.slice(0, 5).map(({ id, name }) => html`<a href="/console/policies/${id}">${name}</a><br>`)}${policies.length > 5 && html`<span class="muted">and ${policies.length - 5} more</span>`}</td></tr>`;
  return {
    title: 'Findings',
    body: html`${heading('Findings', `What the analysis of all ${analysed.toLocaleString('en')} enabled policies found. It covers every possible request.`)}
${findings.length > SHOWN && html`<p class="muted">These are the first ${SHOWN} of ${findings.length.toLocaleString('en')} findings. <code>portcullis policies lint</code> shows all.</p>`}
${
  findings.length === 0
    ? empty('The analysis found nothing wrong and nothing useless.')
    : table(
        'Findings',
        [column('Finding'), column('Severity'), column('Policies')],
        await inSlices(view, findings.slice(0, SHOWN), row),
      )
}`,
  };
}
