/** The MCP sessions that are open, of all, of a target or of a user. */
import { invalidRequest } from '../../base/errors.ts';
import { html, type Markup } from '../../browser/html.ts';
import { timeOf } from '../../browser/page.ts';
import type { SessionJson } from '../../rest/sessions/contract.ts';
import type { TargetJson } from '../../targets/document.ts';
import type { UserDocument } from '../../users/document.ts';
import { act, confirmation, type Form, noteDone, refusal } from '../form.ts';
import { inSlices } from '../lists.ts';
import { column, empty, heading, nextPage, table } from '../marks.ts';
import { emailsOf } from '../people/names.ts';
import { type Act, nextQuery, type Shown, unlessRefused, type View, withQuery } from '../view.ts';

export const SESSIONS = '/console/sessions';

const DONE: Readonly<Record<string, string>> = {
  ended: 'The session is ended.',
  recycled: 'The sessions are being reconnected. Clients do not notice.',
};

/** The members that say whose sessions the page is about. */
const filterOf = ({ user_id, target_id }: Form): Record<string, string> => ({
  ...(user_id === undefined ? {} : { user_id }),
  ...(target_id === undefined ? {} : { target_id }),
});

export async function sessionsPage(view: View): Promise<Shown> {
  const { get, query, may, done, refused } = view;
  const filter = filterOf(refused?.form ?? query);
  const { user_id, target_id } = filter;
  const [{ body: sessions, next }, targets, user] = await Promise.all([
    get<SessionJson[]>(withQuery('/sessions', { ...query, ...filter, limit: '100' })),
    unlessRefused(get<TargetJson[]>('/targets')),
    user_id === undefined ? null : unlessRefused(get<UserDocument>(`/users/${encodeURIComponent(user_id)}`)),
  ]);
  const emails = await emailsOf(
    view,
    sessions.map((session) => session.user_id),
  );
  const nameOf = (id: string): string => targets?.body.find((target) => target.id === id)?.name ?? id;
  const hidden = Object.entries(filter).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`);
  const row = ({ id, user_id: whose, target_id: at, client, revision, created_at, seen_at }: SessionJson): Markup =>
    html`<tr><th scope="row"><a href="/console/users/${whose}">${emails.get(whose) ?? whose}</a><span class="sub"><code>${id}</code></span></th>
<td data-label="Target">${at === null ? 'all that the user may use' : html`<a href="/console/targets/${at}">${nameOf(at)}</a>`}</td>
<td data-label="Client">${client.name ?? 'not named'} ${client.version}<span class="sub">revision ${revision}</span></td><td data-label="Opened">${timeOf(Date.parse(created_at))}</td><td data-label="Last used">${timeOf(Date.parse(seen_at))}</td>
<td class="end">${may('endSession') && html`<form method="post" action="${SESSIONS}">${hidden}<input type="hidden" name="id" value="${id}">${act('end', html`End<span class="hidden"> session ${id}</span>`, 'danger')}</form>`}</td></tr>`;
  const whose = [
    user_id === undefined ? '' : ` of ${user?.body.email ?? user_id}`,
    target_id === undefined ? '' : ` with ${nameOf(target_id)}`,
  ].join('');
  return {
    title: 'Sessions',
    body: html`${heading(html`Sessions${whose}`, html`MCP sessions that clients have open. ${target_id !== undefined && html`Sessions with all targets are not in this list. <a href="${SESSIONS}">Show all sessions</a>`}`)}
${noteDone(DONE, done)}${refusal(refused, [])}
${
  sessions.length === 0
    ? empty('No session is open. A session appears here when a client connects. Clients of MCP revision 2026-07-28 need none.')
    : table(
        `Sessions${whose}`,
        [
          ...['User', 'Target', 'Client', 'Opened', 'Last used'].map(column),
          html`<th scope="col"><span class="hidden">Action</span></th>`,
        ],
        await inSlices(view, sessions, row),
      )
}
${nextPage(SESSIONS, nextQuery(next), 'Next 100')}
${
  may('recycleSessions') &&
  hidden.length > 0 &&
  html`<form class="row" method="post" action="${SESSIONS}">${hidden}${act('recycle', 'Reconnect to the targets')}<span class="muted">Each gets a fresh session at its target with its next request${target_id !== undefined && ', also those with all targets'}.</span></form>`
}`,
  };
}

export const changeSessions: Act = async ({ form, send }) => {
  const { do: what, id = '', sure, reason } = form;
  const filter = filterOf(form);
  const back = (done: string): string => withQuery(SESSIONS, { ...filter, done });
  if (what === 'recycle') {
    await send('POST', '/sessions/recycle', filter);
    return back('recycled');
  }
  if (what !== 'end' || !/^[0-9a-f-]{36}$/.test(id))
    throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
  if (sure !== 'yes')
    return confirmation({
      title: 'End the session',
      losses: ['Its calls and streams end.', 'The client can open a new one at once, as long as its user may.'],
      ...{ action: SESSIONS, fields: { ...filter, do: 'end', id }, button: `End session ${id}` },
      back: withQuery(SESSIONS, filter),
    });
  await send('DELETE', `/sessions/${id}`, undefined, { reason });
  return back('ended');
};
