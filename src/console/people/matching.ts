/** Which users have a role and groups today: the people behind an example of a changed decision. */
import { type Content, html } from '../../browser/html.ts';
import type { UserDocument } from '../../users/document.ts';
import { unlessRefused, type View, withQuery } from '../view.ts';

const SHOWN = 4;

interface Subject {
  readonly subject_type: 'role' | 'group' | 'user' | 'everyone';
  readonly subject_value: string | null;
}

/** The query of `GET /api/users` and of the page of users. null: the subjects are more than a role and groups. */
function queryFor(subjects: readonly Subject[]): URLSearchParams | null {
  const query = new URLSearchParams();
  for (const { subject_type: type, subject_value: value } of subjects) {
    if (value === null || (type !== 'role' && type !== 'group') || (type === 'role' && query.has('role'))) return null;
    query.append(type, value);
  }
  return query.size === 0 ? null : query;
}

/** Says who has all of these. Returns nothing if the user may not know, or the subjects are not only a role and groups. */
export async function peopleWith({ get, may }: View, subjects: readonly Subject[]): Promise<Content> {
  const query = may('listUsers') ? queryFor(subjects) : null;
  if (query === null) return null;
  const found = (await unlessRefused(get<UserDocument[]>(`/users?${query}&limit=${SHOWN + 1}`)))?.body;
  if (found === undefined) return null;
  const has = subjects.length === 1 ? 'this' : subjects.length === 2 ? 'both' : 'all of these';
  if (found.length === 0) return html`<span class="sub">No user has ${has} today.</span>`;
  const people = found
    .slice(0, SHOWN)
    .map(({ id, email, subject }, at) => html`${at > 0 && ', '}<a href="/console/users/${id}">${email ?? subject}</a>`);
  return html`<span class="sub">Users who have ${has} today: ${people}${found.length > SHOWN && html`, <a href="${withQuery('/console/users', usersQuery(query))}">and others</a>`}.</span>`;
}

/** The page of users takes several groups in one field. */
const usersQuery = (query: URLSearchParams): Record<string, string> => ({
  ...(query.has('role') ? { role: query.get('role') ?? '' } : {}),
  ...(query.has('group') ? { group: query.getAll('group').join(', ') } : {}),
});
