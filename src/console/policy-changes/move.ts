/** The page that moves a policy in the order of evaluation, after it has shown what that changes. */
import { AppError } from '../../base/errors.ts';
import { type Content, html } from '../../browser/html.ts';
import type { OrderedPolicyJson } from '../../policies/schema.ts';
import { act, box, type Field, type Form, field, REASON, refusal } from '../form.ts';
import { filterForm, heading, textField } from '../marks.ts';
import { type Act, requireMay, type Shown, type View, withQuery } from '../view.ts';
import { consequencesOf, isLooser, type Plan, proofNote, replayOf, type Source } from './consequences.ts';
import { TESTS, testSection } from './tests.ts';

const POLICIES = '/console/policies';
const pathOf = (id: string): string => `${POLICIES}/${id}/move`;
const POSITION: Field = { name: 'position', label: 'Position' };
const numberIn = (text: string | undefined): number => (/^[0-9]{1,9}$/.test(text ?? '') ? Number(text) : Number.NaN);

/** The links of a row of the list. They work without a script. */
export const moveLinks = (id: string, name: string, position: number, isLast: boolean): Content =>
  html`<span class="moves">${position > 1 && html`<a class="btn plain" href="${withQuery(pathOf(id), { position: String(position - 1) })}" aria-label="${`Move ${name} up`}">↑</a>`}${!isLast && html`<a class="btn plain" href="${withQuery(pathOf(id), { position: String(position + 1) })}" aria-label="${`Move ${name} down`}">↓</a>`}</span>`;

export const moveLink = ({ may }: View, id: string): Content =>
  may('movePolicy') && html`<a class="btn" href="${pathOf(id)}">Move</a>`;

const sourceOf = ({ id }: View, position: number): Source => ({ move: { policy_id: id, position } });

/** `override`: a plan also shows changes of policies of files. */
const planOf = async ({ post, id }: View, position: number, expected: object = {}): Promise<Plan> =>
  (await post<Plan>('/policies/order/plan', { policy_id: id, position, override: true, ...expected })).body;

export const movePage = (view: View): Promise<Shown> =>
  pageWith(view, view.refused?.form ?? { position: view.query['position'] ?? '' }, null);

/** `form`: what was entered. `tested`: the results of the tests. */
async function pageWith(view: View, form: Form, tested: Content): Promise<Shown> {
  requireMay(view, 'movePolicy');
  const { get, id, refused } = view;
  const [ordered] = (await get<OrderedPolicyJson[]>(withQuery('/policies/order', { id }))).body;
  if (ordered === undefined) throw new AppError('not_found', 'No policy has this id.');
  const { name } = ordered.policy;
  const to = form['position'] ?? '';
  return {
    title: `Move ${name}`,
    body: html`${heading(html`Move ${name}`, `It is number ${ordered.position} in the order of evaluation. Number 1 comes first.`)}
${filterForm(pathOf(id), 'The new position', textField('position', 'New position', to), 'Show what this changes')}
${refusal(refused, [POSITION, TESTS, REASON])}${to !== '' && (await planned(view, form, to, tested))}
<p class="row"><a class="btn plain" href="${POLICIES}">Policies</a></p>`,
  };
}

async function planned(view: View, form: Form, to: string, tested: Content): Promise<Content> {
  const { id, refused } = view;
  const plan = await planOf(view, numberIn(to));
  if (plan.changes.length === 0) return html`<p class="empty">The policy has this position already.</p>`;
  return html`${proofNote(view)}<form class="stack form" method="post" action="${pathOf(id)}"><input type="hidden" name="position" value="${to}"><input type="hidden" name="expected" value="${plan.revision}">
${box('override', 'Also change policies that belong to files, until the files are applied', form['override'] === 'yes')}${field(TESTS, refused, form['tests'])}${field(REASON, refused, form['reason'])}
<p class="row"><button class="btn cta">Move to number ${to}</button>${act('test', 'Run the tests')}</p></form>
${tested}${await consequencesOf(view, plan, await replayOf(view, sourceOf(view, numberIn(to))))}`;
}

export const movePolicy: Act = async (view) => {
  const { form, id, isRecent, send, prove } = view;
  const { expected, override, reason } = form;
  const position = numberIn(form['position']);
  if (form['do'] === 'test') return pageWith(view, form, await testSection(view, form, sourceOf(view, position)));
  // Only what the page showed is done.
  const asShown = { expected_revision: numberIn(expected) };
  if (!isRecent && isLooser(await planOf(view, position, asShown))) prove(form);
  const how = { ...asShown, override: override === 'yes', ...(reason ? { reason } : {}) };
  await send('POST', '/policies/order', { policy_id: id, position, ...how });
  return `${POLICIES}?done=moved`;
};
