/** Denied requests by what was asked for: who needs what, and how often. */
import type { LogJson } from '../../audit/search/log-json.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { timeOf } from '../../browser/page.ts';
import type { DemandJson } from '../../rest/audit/contract.ts';
import { inSlices } from '../lists.ts';
import { choice, column, decisionMark, empty, filterForm, heading, number, numbers, table, textField } from '../marks.ts';
import { draftButton } from '../policy-changes/drafts.ts';
import { type Shown, unlessRefused, type View, withQuery } from '../view.ts';
import { isDraftable, LOG } from './log.ts';

export const DEMAND = '/console/demand';
/** The page adds up so many denials at first, and the most that the operation does if the reader asks. */
const AT_ONCE = '2000';
const USERS_SHOWN = 3;

type Wish = DemandJson['demand'][number];

/** The decisions that a row adds up. */
const decisionsOf = ({ target_id, target_name, resource_type, resource_name }: Wish, from: string): string =>
  withQuery(LOG, {
    ...{ effect: 'deny', from },
    ...(target_id === null ? { target_name } : { target_id }),
    ...(resource_type === null ? {} : { resource_type }),
    ...(resource_name === null ? {} : { resource_name }),
  });

export async function demandPage(view: View): Promise<Shown> {
  const { query, get } = view;
  const { more: isMore, ...filter } = query;
  const asked = { ...filter, ...(isMore === 'yes' ? {} : { most: AT_ONCE }) };
  const { body: demand } = await get<DemandJson>(withQuery('/logs/demand', asked));
  const { denials, from, read_to, more } = demand;
  const row = (wish: Wish): Markup => {
    const { target_id, target_name, resource_type, resource_name, user_count, users, last } = wish;
    const rest = user_count - Math.min(USERS_SHOWN, users.length);
    return html`<tr><th scope="row">${resource_name === null ? 'the target itself' : html`<code>${resource_name}</code>`}<span class="sub">${resource_type}</span></th>
<td data-label="Target">${target_id === null ? html`<code>${target_name}</code>` : html`<a href="/console/targets/${target_id}">${target_name}</a>`}</td>
<td data-label="Users">${users.slice(0, USERS_SHOWN).map(({ id, email, denials: times }) => html`<span class="line"><a href="/console/users/${id}">${email === '' ? id : email}</a> <span class="muted">${number(times)}×</span></span>`)}${rest > 0 && html`<span class="sub">and ${number(rest)} more</span>`}</td>
<td data-label="Denied by">${decisionMark('deny', last.policy_id)}${last.policy_id !== null && html`<span class="sub"><a href="/console/policies/${last.policy_id}">${last.policy_name ?? last.policy_id}</a></span>`}</td>
<td data-label="Last"><a href="${`${LOG}/${last.id}`}">${timeOf(Date.parse(last.created_at))}</a>${isDraftable({ effect: 'deny', reason: last.reason } as LogJson) && draftButton(view, { id: last.id, user_email: users[0]?.email ?? '' })}</td>
<td class="num" data-label="Times">${
      // The log cannot be narrowed to decisions about no object.
      resource_name === null
        ? html`${number(wish.denials)}<span class="sub"><a href="${decisionsOf(wish, from)}">all denials of the target</a></span>`
        : html`<a href="${decisionsOf(wish, from)}">${number(wish.denials)}</a>`
    }</td></tr>`;
  };
  return {
    title: 'Denied requests',
    body: html`${heading('Denied requests', 'What users and their agents asked for and did not get, the most frequent first. Allow what is needed, and leave the rest denied.')}
${filterForm(DEMAND, 'Filter denied requests', [
  textField('target_name', 'Target', query['target_name']),
  textField('resource_name', 'Tool, resource or prompt', query['resource_name'], true),
  choice(
    {
      name: 'reason',
      label: 'Denied',
      options: [
        ['', 'By policies and by default'],
        ['default', 'By default: no policy matches'],
        ['matched', 'By a policy'],
      ],
    },
    query['reason'],
  ),
])}
${
  demand.demand.length === 0
    ? empty(
        Object.keys(filter).length > 0
          ? html`No denied request since ${timeOf(Date.parse(from))} matches the filter. <a href="${DEMAND}">Show all denied requests</a>`
          : 'Nothing was denied in the last 7 days.',
      )
    : html`<p class="muted">${number(denials)} ${denials === 1 ? 'denied request' : 'denied requests'} since ${timeOf(Date.parse(read_to ?? from))}.${read_to !== null && html` Older ones are not counted. ${isMore !== 'yes' && html`<a href="${withQuery(DEMAND, { ...filter, more: 'yes' })}">Count more</a>`}`}${more && ' Only the 100 most frequent are shown.'}</p>
${table(
  'Denied requests, the most frequent first',
  [column('Asked for'), column('Target'), column('Users'), column('Denied by'), column('Last'), numbers('Times')],
  await inSlices(view, demand.demand, row),
)}`
}`,
  };
}

/** How often a denied request was made in the last 7 days, and by how many. */
export async function demandFor({ get, may }: View, entry: LogJson): Promise<Content> {
  const { target_id, target_name, resource_type, resource_name } = entry;
  if (!may('listDeniedDemand') || resource_type === null || resource_name === null) return null;
  const asked = {
    ...{ resource_type, resource_name, most: AT_ONCE },
    ...(target_id === null ? { target_name } : { target_id }),
  };
  const found = (await unlessRefused(get<DemandJson>(withQuery('/logs/demand', asked))))?.body;
  const wish = found?.demand[0];
  if (found === undefined || wish === undefined) return null;
  const { denials, user_count } = wish;
  return html`<p>Denied <a href="${decisionsOf(wish, found.from)}">${found.read_to !== null && 'at least '}${number(denials)} ${denials === 1 ? 'time' : 'times'}</a> in the last 7 days, to ${number(user_count)} ${user_count === 1 ? 'user' : 'users'}.</p>`;
}
