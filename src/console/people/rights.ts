/** Rights of administration, and the OAuth clients that users have approved. */

import { RIGHT_SUBJECTS, RIGHTS } from '../../auth/rights.ts';
import { invalidRequest } from '../../base/errors.ts';
import { html, type Markup } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import { act, confirmation, type Field, field, proofFirst, refusal } from '../form.ts';
import { inSlices, partOf } from '../lists.ts';
import { column, empty, heading, nextPage, subjectMark, table } from '../marks.ts';
import { type Act, nextQuery, type Shown, type View, withQuery } from '../view.ts';
import { emailsOf, userIdOf, usersIn } from './names.ts';

export const RIGHTS_PATH = '/console/rights';
export const CLIENTS_PATH = '/console/clients';

const ACTION = html`<th scope="col"><span class="hidden">Action</span></th>`;
const ID = /^[0-9a-f-]{36}$/;

interface Right {
  readonly id: string;
  readonly subject_type: 'user' | 'group' | 'role';
  readonly subject_value: string;
  readonly right: string;
  readonly owner: string | null;
}

const GIVE: readonly Field[] = [
  { name: 'right', label: 'Right', options: RIGHTS.map((right) => [right, right] as const) },
  { name: 'subject_type', label: 'For a', options: RIGHT_SUBJECTS.map((subject) => [subject, subject] as const) },
  { name: 'subject_value', label: 'Who', required: true, hint: 'The e-mail or id of a user, or the name of a group or role.' },
  { name: 'owner', label: 'Owner', hint: 'Only for rights on policies. Empty: every owner, and policies without one.' },
];

export async function rightsPage(view: View): Promise<Shown> {
  const { get, refused, done, may } = view;
  const { items: rights, others } = partOf((await get<Right[]>('/rights')).body, view, RIGHTS_PATH, 'rights');
  const emails = await emailsOf(view, usersIn(rights));
  const row = ({ id, right, owner, ...subject }: Right): Markup =>
    html`<tr><th scope="row"><code>${right}</code></th><td data-label="For">${subjectMark(subject, emails)}</td><td data-label="Owner">${owner ?? 'every owner'}</td><td class="end">${may('takeRight') && html`<form method="post" action="${RIGHTS_PATH}"><input type="hidden" name="id" value="${id}">${act('take', html`Take away<span class="hidden"> ${right} from ${subject.subject_value}</span>`, 'danger')}</form>`}</td></tr>`;
  return {
    title: 'Rights',
    body: html`${heading('Rights', 'Who else may administer a part of the gateway. The role admin has all rights, and the role auditor reads everything.')}
${done === 'given' && note('done', 'The right is given.')}${done === 'taken' && note('done', 'The right is taken away. It no longer counts for any request.')}
${refusal(refused, GIVE)}
${rights.length === 0 ? empty('No right is given. Only administrators and auditors see and change anything.') : table('Rights', [column('Right'), column('For'), column('Owner'), ACTION], await inSlices(view, rights, row))}${others}
${
  may('giveRight') &&
  html`<h2>Give a right</h2>${
    proofFirst(view) ??
    html`<form class="stack form" method="post" action="${RIGHTS_PATH}">${GIVE.map((each) => field(each, refused))}<p class="row">${act('give', 'Give the right', 'cta')}</p></form>`
  }`
}`,
  };
}

export const changeRights: Act = async (view) => {
  const { form, get, send, prove } = view;
  prove();
  const { do: what, id = '', right, subject_type, subject_value: named = '', owner = '', sure } = form;
  if (what === 'give') {
    const subject_value = subject_type === 'user' ? await userIdOf(view, named, 'subject_value') : named;
    if (subject_value === null) throw invalidRequest([{ path: 'subject_value', message: 'is no e-mail or id of a user' }]);
    await send('POST', '/rights', { right, subject_type, subject_value, ...(owner === '' ? {} : { owner }) });
    return `${RIGHTS_PATH}?done=given`;
  }
  const found = (await get<Right[]>('/rights')).body.find((each) => each.id === id);
  if (what !== 'take' || found === undefined) throw invalidRequest([{ path: 'id', message: 'is no right that is given' }]);
  if (sure !== 'yes')
    return confirmation({
      title: `Take away ${found.right}`,
      losses: [
        html`${subjectMark(found, await emailsOf(view, usersIn([found])))} can no longer use this right, from the next request on.`,
      ],
      ...{ action: RIGHTS_PATH, fields: { do: 'take', id }, button: `Take away ${found.right}`, back: RIGHTS_PATH },
    });
  await send('DELETE', `/rights/${id}`, undefined, { reason: form['reason'] });
  return `${RIGHTS_PATH}?done=taken`;
};

interface Client {
  readonly id: string;
  readonly client_id: string;
  readonly name: string;
  readonly redirect_uris: readonly string[];
  readonly enabled: boolean;
  readonly used_at: string | null;
}

export async function clientsPage(view: View): Promise<Shown> {
  const { get, query, done, refused, may } = view;
  const { body: clients, next } = await get<Client[]>(withQuery('/clients', { ...query, limit: '100' }));
  const row = ({ id, client_id, name, redirect_uris, enabled, used_at }: Client): Markup =>
    html`<tr><th scope="row">${name}<span class="sub"><code>${client_id}</code></span></th><td data-label="Leads to">${redirect_uris.slice(0, 3).join(', ')}</td>
<td data-label="Last approved">${used_at === null ? 'never' : timeOf(Date.parse(used_at))}</td><td data-label="State">${enabled ? 'enabled' : html`<span class="tag find">disabled</span>`}</td>
<td class="end">${may('updateClient') && html`<form class="row" method="post" action="${CLIENTS_PATH}"><input type="hidden" name="id" value="${id}">${act(enabled ? 'disable' : 'enable', html`${enabled ? 'Disable' : 'Enable'}<span class="hidden"> ${name}</span>`)}${act('delete', html`Delete<span class="hidden"> ${name}</span>`, 'danger')}</form>`}</td></tr>`;
  return {
    title: 'Clients',
    body: html`${heading('Clients', 'The applications that users have approved, as they call themselves.')}
${done === 'changed' && note('done', 'The client is changed.')}${refusal(refused, [])}
${clients.length === 0 ? empty('No user has approved an application. One appears here when somebody connects a client that signs in with a browser, and approves it.') : table('Clients', [column('Client'), column('Leads to'), column('Last approved'), column('State'), ACTION], await inSlices(view, clients, row))}
${nextPage(CLIENTS_PATH, nextQuery(next), 'Next 100')}`,
  };
}

export const changeClient: Act = async ({ form, get, send, prove }) => {
  const { do: what = '', id = '', sure } = form;
  if (!['enable', 'disable', 'delete'].includes(what) || !ID.test(id))
    throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
  prove();
  if (what !== 'enable' && sure !== 'yes') {
    const { name } = (await get<Client>(`/clients/${id}`)).body;
    return confirmation({
      title: `${what === 'delete' ? 'Delete' : 'Disable'} ${name}`,
      losses: [
        'The application loses its access for every user who has approved it.',
        what === 'delete' ? 'It must register again.' : 'Users cannot approve it until it is enabled again.',
      ],
      ...{ action: CLIENTS_PATH, fields: { do: what, id }, back: CLIENTS_PATH },
      button: `${what === 'delete' ? 'Delete' : 'Disable'} client ${name}`,
    });
  }
  if (what === 'delete') await send('DELETE', `/clients/${id}`, undefined, { reason: form['reason'] });
  else await send('PUT', `/clients/${id}`, { enabled: what === 'enable' }, { reason: form['reason'] });
  return `${CLIENTS_PATH}?done=changed`;
};
