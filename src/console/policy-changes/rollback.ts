/** The page that restores the policies of an earlier revision, after it has shown what that changes. */
import { type Content, html } from '../../browser/html.ts';
import { act, type Form, field, REASON, refusal } from '../form.ts';
import { HISTORY } from '../history.ts';
import { filterForm, heading, textField } from '../marks.ts';
import { type Act, requireMay, type Shown, type View } from '../view.ts';
import { consequencesOf, isLooser, type Plan, proofNote, replayOf } from './consequences.ts';
import { TESTS, testSection } from './tests.ts';

/** `owner` empty: all policies are rolled back. */
const whichOf = ({ id }: View, owner: string) => ({ revision: Number(id), ...(owner === '' ? {} : { owner }) });

const planOf = async (view: View, owner: string, expected: object = {}): Promise<Plan> =>
  (await view.post<Plan>('/policies/rollback/plan', { ...whichOf(view, owner), ...expected })).body;

export const rollbackPage = (view: View): Promise<Shown> =>
  pageWith(view, view.refused?.form ?? { owner: view.query['owner'] ?? '' }, null);

/** `form`: what was entered. `tested`: the results of the tests. */
async function pageWith(view: View, form: Form, tested: Content): Promise<Shown> {
  requireMay(view, 'rollBackPolicies');
  const { id, refused } = view;
  const owner = form['owner'] ?? '';
  const plan = await planOf(view, owner);
  const path = `${HISTORY}/${id}/rollback`;
  const isChange = plan.changes.length > 0;
  return {
    title: `Roll back to revision ${id}`,
    body: html`${heading(`Roll back to revision ${id}?`, html`${owner === '' ? 'All policies' : html`The policies of the owner ${owner}`} become as they were at that revision. The rollback is a new revision, so you can undo it.`)}
${filterForm(path, 'Whose policies are rolled back', textField('owner', 'Only the policies of this owner. Empty: all', owner), 'Show')}
${proofNote(view)}${refusal(refused, [TESTS, REASON])}
${
  isChange &&
  html`<form class="stack form" method="post" action="${path}"><input type="hidden" name="owner" value="${owner}"><input type="hidden" name="expected" value="${plan.revision}">
${field(TESTS, refused, form['tests'])}${field(REASON, refused, form['reason'])}<p class="row"><button class="btn danger">Roll back to revision ${id}</button>${act('test', 'Run the tests')}<a class="btn plain" href="${HISTORY}">Keep the policies</a></p></form>`
}
${tested}${await consequencesOf(view, plan, isChange ? await replayOf(view, { rollback: whichOf(view, owner) }) : null)}`,
  };
}

export const rollBack: Act = async (view) => {
  const { form, isRecent, send, prove } = view;
  const { owner = '', expected = 'none', reason = '' } = form;
  const which = whichOf(view, owner);
  if (form['do'] === 'test') return pageWith(view, form, await testSection(view, form, { rollback: which }));
  // Only what the page showed is done. The operation refuses a text that is no number.
  const asShown = { expected_revision: Number(expected) };
  if (!isRecent && isLooser(await planOf(view, owner, asShown))) prove(form);
  await send('POST', '/policies/rollback', { ...which, ...asShown, ...(reason === '' ? {} : { reason }) });
  return `${HISTORY}?done=restored`;
};
