/** The page that restores the policies of an earlier revision, after it has shown what that changes. */
import { html } from '../../browser/html.ts';
import { field, REASON, refusal } from '../form.ts';
import { HISTORY } from '../history.ts';
import { filterForm, heading, textField } from '../marks.ts';
import { type Act, requireMay, type Shown, type View } from '../view.ts';
import { consequencesOf, isLooser, type Plan, proofNote } from './consequences.ts';

/** `owner` empty: all policies are rolled back. */
const planOf = async ({ post, id }: View, owner: string, expected: object = {}): Promise<Plan> =>
  (
    await post<Plan>('/policies/rollback/plan', {
      ...{ revision: Number(id), ...(owner === '' ? {} : { owner }), ...expected },
    })
  ).body;

export async function rollbackPage(view: View): Promise<Shown> {
  requireMay(view, 'rollBackPolicies');
  const { id, query, refused } = view;
  const owner = refused?.form['owner'] ?? query['owner'] ?? '';
  const plan = await planOf(view, owner);
  const path = `${HISTORY}/${id}/rollback`;
  return {
    title: `Roll back to revision ${id}`,
    body: html`${heading(`Roll back to revision ${id}?`, html`${owner === '' ? 'All policies' : html`The policies of the owner ${owner}`} become as they were at that revision. The rollback is a new revision, so you can undo it.`)}
${filterForm(path, 'Whose policies are rolled back', textField('owner', 'Only the policies of this owner. Empty: all', owner), 'Show')}
${proofNote(view)}${refusal(refused, [REASON])}
${
  plan.changes.length > 0 &&
  html`<form class="stack form" method="post" action="${path}"><input type="hidden" name="owner" value="${owner}"><input type="hidden" name="expected" value="${plan.revision}">
${field(REASON, refused)}<p class="row"><button class="btn danger">Roll back to revision ${id}</button><a class="btn plain" href="${HISTORY}">Keep the policies</a></p></form>`
}
${consequencesOf(plan, null)}`,
  };
}

export const rollBack: Act = async (view) => {
  const { form, id, isRecent, send, prove } = view;
  const { owner = '', expected = 'none', reason = '' } = form;
  // Only what the page showed is done. The operation refuses a text that is no number.
  const asShown = { expected_revision: Number(expected) };
  if (!isRecent && isLooser(await planOf(view, owner, asShown))) prove(form);
  const which = { revision: Number(id), ...(owner === '' ? {} : { owner }), ...asShown };
  await send('POST', '/policies/rollback', { ...which, ...(reason === '' ? {} : { reason }) });
  return `${HISTORY}?done=restored`;
};
