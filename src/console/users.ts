/** Users, and what one user may use. */
import { type Content, html, type Markup } from '../browser/html.ts';
import { note, timeOf } from '../browser/page.ts';
import type { UserDocument } from '../users/document.ts';
import { column, empty, heading, nextPage, subjectMark, table } from './marks.ts';
import { nextQuery, type Shown, unlessRefused, type View, withQuery } from './view.ts';

export const USERS = '/console/users';

const nameOf = ({ email, subject }: UserDocument): string => email ?? subject;

const groupTags = (groups: readonly string[]): Content =>
  groups.length === 0
    ? html`<span class="muted">none</span>`
    : html`<span class="tags">${groups.map((group) => subjectMark({ subject_type: 'group', subject_value: group }))}</span>`;

const state = ({ enabled, refusal }: UserDocument): Content =>
  !enabled
    ? html`<span class="tag find">disabled</span>`
    : refusal === null
      ? 'enabled'
      : html`<span class="tag find">${refusal}</span>`;

export async function usersPage({ get, query }: View): Promise<Shown> {
  const { body: users, next } = await get<UserDocument[]>(withQuery('/users', { ...query, limit: '100' }));
  const row = (
    user: UserDocument,
  ): Markup => html`<tr><th scope="row"><a href="/console/users/${user.id}">${nameOf(user)}</a><span class="sub">${user.issuer === 'portcullis' ? 'local account' : user.issuer}</span></th>
<td data-label="Role">${user.role}</td><td data-label="Groups">${groupTags(user.groups)}</td><td data-label="State">${state(user)}</td></tr>`;
  return {
    title: 'Users',
    body: html`${heading('Users', 'People and programs, in the order in which they came.')}
${table('Users', [column('User'), column('Role'), column('Groups'), column('State')], users.map(row))}
${nextPage(USERS, nextQuery(next), 'Next 100')}`,
  };
}

interface Access {
  readonly target: string;
  readonly resource_type: string | null;
  readonly resource_name: string | null;
  readonly policy_id: string;
  readonly policy_name: string;
}

export async function userPage({ get, id }: View): Promise<Shown> {
  const [{ body: user }, access] = await Promise.all([
    get<UserDocument>(`/users/${id}`),
    unlessRefused(get<Access[]>(withQuery('/policies/access', { who: `user:${id}` }))),
  ]);
  return {
    title: nameOf(user),
    body: html`${heading(nameOf(user), user.issuer === 'portcullis' ? 'A local account.' : `An account of ${user.issuer}.`)}
${!user.enabled && note('warn', 'The user is disabled: all tokens of the user are refused.')}
<dl class="dl"><dt>Role</dt><dd>${user.role}</dd><dt>Groups</dt><dd>${groupTags(user.groups)}</dd><dt>State</dt><dd>${state(user)}</dd>
<dt>Subject</dt><dd><code>${user.subject}</code></dd><dt>Created</dt><dd>${timeOf(Date.parse(user.created_at))}</dd><dt>Id</dt><dd><code>${user.id}</code></dd></dl>
${access !== null && accessSection(access.body, access.next !== null)}
<p class="row"><a class="btn" href="${withQuery('/console/log', { user_id: id })}">Decisions for this user</a><a class="btn plain" href="${USERS}">All users</a></p>`,
  };
}

const ACCESS_SHOWN = 500;

/** By the decision function itself, for the names that were recently asked for. */
function accessSection(access: readonly Access[], hasMore: boolean): Markup {
  const row = ({ target, resource_type, resource_name, policy_id, policy_name }: Access): Markup =>
    html`<tr><th scope="row">${
      resource_name === null ? html`the target itself` : html`<code>${resource_name}</code>`
    }<span class="sub">${resource_type}</span></th><td data-label="Target">${target}</td><td data-label="Allowed by"><a href="/console/policies/${policy_id}">${policy_name}</a></td></tr>`;
  return html`<section class="stack tight" aria-labelledby="access"><h2 id="access">What the user may use now</h2>
<p class="sm muted">Each target, and each name that the newest decisions were about.${(hasMore || access.length > ACCESS_SHOWN) && html` Only the first ${ACCESS_SHOWN} are shown.`}</p>
${
  access.length === 0
    ? empty('No policy allows this user anything that was recently asked for.')
    : table(
        'What the user may use',
        [column('Name'), column('Target'), column('Allowed by')],
        access.slice(0, ACCESS_SHOWN).map(row),
      )
}</section>`;
}
