/** Users, and what one user may use. */
import type { Provider } from '../../auth/provider.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import type { AccessRow } from '../../policies/access.ts';
import type { UserDocument } from '../../users/document.ts';
import { act, noteDone, refusal } from '../form.ts';
import { inSlices } from '../lists.ts';
import { column, empty, filterForm, heading, nextPage, subjectMark, table, textField } from '../marks.ts';
import { nextQuery, type Shown, unlessRefused, type View, withQuery } from '../view.ts';
import { accessTable } from './access.ts';

export const USERS = '/console/users';

const nameOf = ({ email, subject }: UserDocument): string => email ?? subject;

/** The list shows so many groups of a user, who can have a thousand. */
const GROUPS_SHOWN = 10;

const groupTags = (groups: readonly string[], most = groups.length): Content =>
  groups.length === 0
    ? html`<span class="muted">none</span>`
    : html`<span class="tags">${groups.slice(0, most).map((group) => subjectMark({ subject_type: 'group', subject_value: group }))}${groups.length > most && html`<span class="tag">${groups.length - most} more</span>`}</span>`;

const state = ({ enabled, refusal }: UserDocument): Content =>
  !enabled
    ? html`<span class="tag find">disabled</span>`
    : refusal === null
      ? 'enabled'
      : html`<span class="tag find">${refusal}</span>`;

/** One field of the page holds several groups, and the operation takes each on its own. */
function listQuery({ group = '', ...query }: View['query']): URLSearchParams {
  const asked = new URLSearchParams({ ...query, limit: '100' });
  for (const each of group.split(',').map((name) => name.trim())) if (each !== '') asked.append('group', each);
  return asked;
}

export async function usersPage(view: View): Promise<Shown> {
  const { get, query, may } = view;
  const { body: users, next } = await get<UserDocument[]>(`/users?${listQuery(query)}`);
  if (next !== null && query['group'] !== undefined) next.set('group', query['group']);
  const isFiltered = Object.keys(query).length > 0;
  const row = (
    user: UserDocument,
  ): Markup => html`<tr><th scope="row"><a href="/console/users/${user.id}">${nameOf(user)}</a><span class="sub">${user.issuer === 'portcullis' ? 'local account' : user.issuer}</span></th>
<td data-label="Role">${user.role}</td><td data-label="Groups">${groupTags(user.groups, GROUPS_SHOWN)}</td><td data-label="State">${state(user)}</td></tr>`;
  return {
    title: 'Users',
    body: html`${heading('Users', 'People and programs with an account, the oldest first.', may('createUser') && html`<a class="btn cta" href="/console/users/new">Add a user</a>`)}
${filterForm(USERS, 'Filter users', [
  textField('text', 'A part of the e-mail, or id', query['text'], true),
  textField('role', 'Role', query['role']),
  textField('group', 'In all of these groups', query['group'], true),
])}
${
  users.length === 0
    ? empty(isFiltered ? html`No user matches the filter. <a href="${USERS}">Show all users</a>` : 'There is no user.')
    : table('Users', [column('User'), column('Role'), column('Groups'), column('State')], await inSlices(view, users, row))
}
${nextPage(USERS, nextQuery(next), 'Next 100')}`,
  };
}

const DONE: Readonly<Record<string, string>> = {
  added: 'The user is added.',
  saved: 'The user is saved.',
  enabled: 'The user is enabled.',
  disabled: 'The user is disabled. No request of the user is let in.',
};

export async function userPage(view: View): Promise<Shown> {
  const { get, id, done, refused, may } = view;
  const [{ body: user }, access, providers] = await Promise.all([
    get<UserDocument>(`/users/${id}`),
    unlessRefused(get<AccessRow[]>(withQuery('/policies/access', { who: `user:${id}` }))),
    unlessRefused(get<Pick<Provider, 'issuer' | 'enabled'>[]>('/providers')),
  ]);
  const isCutOff =
    user.issuer !== 'portcullis' && providers?.body.some(({ issuer, enabled }) => enabled && issuer === user.issuer) === false;
  return {
    title: nameOf(user),
    body: html`${heading(nameOf(user), user.issuer === 'portcullis' ? 'A local account.' : `An account of ${user.issuer}.`)}
${noteDone(DONE, done)}${refusal(refused, [])}
${!user.enabled && note('warn', 'The user is disabled: all tokens of the user are refused.')}
${isCutOff && note('warn', 'The provider of the user is disabled or deleted: all requests of the user are refused.')}
<dl class="dl"><dt>Role</dt><dd>${user.role}</dd><dt>Groups</dt><dd>${groupTags(user.groups)}</dd><dt>State</dt><dd>${state(user)}</dd>
<dt>Subject</dt><dd><code>${user.subject}</code></dd><dt>Created</dt><dd>${timeOf(Date.parse(user.created_at))}</dd><dt>Id</dt><dd><code>${user.id}</code></dd></dl>
${
  access !== null &&
  html`<section class="stack tight" aria-labelledby="access"><h2 id="access">What the user may use now</h2>
${await accessTable(view, access.body, `user:${id}`, access.next !== null, 'No policy allows this user anything that was recently asked for, or no token of the user reaches it.')}</section>`
}
${
  may('updateUser') &&
  html`<form class="row" method="post" action="${`${USERS}/${id}`}"><a class="btn" href="${`${USERS}/${id}/edit`}">Edit role and groups</a>${user.enabled ? act('disable', 'Disable', 'danger') : act('enable', 'Enable')}</form>`
}
<p class="row"><a class="btn" href="${`${USERS}/${id}/tokens`}">Tokens and sign-ins</a>${may('listSessions') && html`<a class="btn" href="${withQuery('/console/sessions', { user_id: id })}">Sessions</a>`}<a class="btn" href="${withQuery('/console/log', { user_id: id })}">Decisions for this user</a><a class="btn plain" href="${USERS}">All users</a></p>`,
  };
}
