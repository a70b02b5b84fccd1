/** Pages that make and change users, and end their tokens, sign-ins and applications. */
import { invalidRequest } from '../../base/errors.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import type { AccessRow } from '../../policies/access.ts';
import { USER_LIMITS, type UserDocument } from '../../users/document.ts';
import { act, confirmation, type Field, field, proofFirst, REASON, refusal } from '../form.ts';
import { inSlices, partOf } from '../lists.ts';
import { column, heading, table } from '../marks.ts';
import { type Act, requireMay, type Shown, unlessRefused, type View, withQuery } from '../view.ts';

const USERS = '/console/users';
const pathOf = (id: string): string => `${USERS}/${id}`;
const labelOf = ({ email, subject }: UserDocument): string => email ?? subject;
const linesOf = (text = ''): string[] => text.split(/\r?\n/).filter((line) => line !== '');

const ROLE: Field = {
  name: 'role',
  label: 'Role',
  hint: 'The role admin may administer everything. Policies can name any role.',
};
const GROUPS: Field = { name: 'groups', label: 'Groups', hint: 'One per line.', isLong: true };
const NEW: readonly Field[] = [
  { name: 'email', label: 'E-mail', type: 'email', required: true },
  {
    name: 'password',
    label: 'Password',
    type: 'password',
    required: true,
    autocomplete: 'new-password',
    hint: `At least ${USER_LIMITS.passwordMin} characters. The user can change it.`,
  },
  ROLE,
  GROUPS,
];

export async function newUserPage(view: View): Promise<Shown> {
  requireMay(view, 'createUser');
  const { refused } = view;
  return {
    title: 'Add a user',
    body: html`${heading('Add a user', 'A local account with a password. People of a provider need none: they are listed once they have signed in.')}
${refusal(refused, NEW)}
${
  proofFirst(view) ??
  html`<form class="stack form" method="post" action="${`${USERS}/new`}">${NEW.map((each) => field(each, refused, each === ROLE ? 'user' : ''))}
<p class="row"><button class="btn cta">Add the user</button><a class="btn plain" href="${USERS}">Cancel</a></p></form>`
}`,
  };
}

export const makeUser: Act = async ({ form, send, prove }) => {
  prove();
  const { email, password, role, groups } = form;
  const { body } = await send<UserDocument>('POST', '/users', { email, password, role, groups: linesOf(groups) });
  return `${pathOf(body.id)}?done=added`;
};

/** A local account has its role and groups. A user of a provider has those of the provider, and what administrators add. */
const isLocal = ({ issuer }: UserDocument): boolean => issuer === 'portcullis';

const editFields = (user: UserDocument): readonly Field[] =>
  isLocal(user)
    ? [ROLE, GROUPS, REASON]
    : [
        { ...ROLE, path: 'given_role', label: 'Given role', hint: 'Empty: the provider decides.' },
        { ...GROUPS, path: 'given_groups', label: 'Given groups', hint: 'In addition to those of the provider, one per line.' },
        REASON,
      ];

export async function editUserPage(view: View): Promise<Shown> {
  requireMay(view, 'updateUser');
  const { get, id, refused } = view;
  const { body: user, etag = '' } = await get<UserDocument>(`/users/${id}`);
  const fields = editFields(user);
  const values: Record<string, string> = {
    role: (isLocal(user) ? user.role : user.given_role) ?? '',
    groups: (isLocal(user) ? user.groups : user.given_groups).join('\n'),
  };
  return {
    title: `Edit ${labelOf(user)}`,
    body: html`${heading(html`Edit ${labelOf(user)}`, 'The change counts for the next request of the user.')}
${refusal(refused, fields)}
${refused?.error.code === 'precondition_failed' && note('warn', html`The user was changed meanwhile. <a href="${`${pathOf(id)}/edit`}">Load it again</a> to see how.`)}
${
  proofFirst(view) ??
  html`<form class="stack form" method="post" action="${`${pathOf(id)}/edit`}"><input type="hidden" name="etag" value="${refused?.form['etag'] ?? etag}">
${fields.map((each) => field(each, refused, values[each.name]))}
<p class="row"><button class="btn cta">Save</button><a class="btn plain" href="${pathOf(id)}">Cancel</a></p></form>`
}`,
  };
}

export const editUser: Act = async ({ form, id, get, send, prove }) => {
  prove();
  const { body: user } = await get<UserDocument>(`/users/${id}`);
  const { role = '', etag, reason } = form;
  const groups = linesOf(form['groups']);
  const body = isLocal(user) ? { role, groups } : { given_role: role === '' ? null : role, given_groups: groups };
  await send('PUT', `/users/${id}`, body, { ifMatch: etag, reason });
  return `${pathOf(id)}?done=saved`;
};

/** Enables a user at once. Before it disables one, it shows who loses what. */
export const operateUser: Act = async (view) => {
  const { form, id, get, send, prove } = view;
  if (form['do'] !== 'enable' && form['do'] !== 'disable')
    throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
  prove();
  if (form['do'] === 'disable' && form['sure'] !== 'yes') {
    const [{ body: user }, access] = await Promise.all([
      get<UserDocument>(`/users/${id}`),
      unlessRefused(get<AccessRow[]>(withQuery('/policies/access', { who: `user:${id}` }))),
    ]);
    const targets = [...new Set(access?.body.map(({ target }) => target))];
    return confirmation({
      title: `Disable ${labelOf(user)}`,
      losses: [
        'All tokens and sessions of the user are refused from then on, and running calls end.',
        'Sign-ins and the access of applications end. They do not come back when the user is enabled again.',
        targets.length > 0 &&
          html`The user can no longer use ${targets.slice(0, 20).join(', ')}${targets.length > 20 && ' and others'}.`,
      ],
      action: pathOf(id),
      fields: { do: 'disable' },
      button: `Disable user ${labelOf(user)}`,
      back: pathOf(id),
    });
  }
  await send('PUT', `/users/${id}`, { enabled: form['do'] === 'enable' }, { reason: form['reason'] });
  return `${pathOf(id)}?done=${form['do']}d`;
};

interface Token {
  readonly id: string;
  readonly name: string;
  readonly created_at: string;
  readonly expires_at: string | null;
}
interface SignIn {
  readonly id: string;
  readonly agent: string;
  readonly address: string;
  readonly seen_at: string;
}
interface Grant {
  readonly id: string;
  readonly client: { readonly name: string | null };
  readonly redirect_uri: string;
  readonly used_at: string;
}

/** What is listed of a user, and how each is ended. */
const KINDS = {
  token: {
    path: '/auth/tokens',
    what: 'API token',
    loss: 'Programs that use it are refused from then on, and their streams and calls end.',
  },
  session: { path: '/auth/browser-sessions', what: 'sign-in', loss: 'The browser must sign in again.' },
  grant: { path: '/auth/grants', what: 'access of the application', loss: 'The application must ask the user again.' },
} as const;
type Kind = keyof typeof KINDS;

export async function holdingsPage(view: View): Promise<Shown> {
  requireMay(view, 'getUser');
  const { get, id, done, refused } = view;
  const of = <T>(kind: Kind) => unlessRefused(get<T[]>(withQuery(KINDS[kind].path, { user_id: id })));
  const [{ body: user }, tokens, signIns, grants] = await Promise.all([
    get<UserDocument>(`/users/${id}`),
    of<Token>('token'),
    of<SignIn>('session'),
    of<Grant>('grant'),
  ]);
  const action = `${pathOf(id)}/tokens`;
  const end = (kind: Kind, its: string, name: string): Content =>
    html`<td class="end"><form method="post" action="${action}"><input type="hidden" name="id" value="${its}">${act(kind, html`End<span class="hidden"> the ${KINDS[kind].what} ${name}</span>`, 'danger')}</form></td>`;
  const section = async <T>(
    title: string,
    kind: Kind,
    all: readonly T[] | undefined,
    row: (item: T) => Markup,
    columns: readonly string[],
    none: string,
  ): Promise<Content> => {
    if (all === undefined) return null;
    const { items, others } = partOf(all, view, action, title, kind);
    return html`<section class="stack tight"><h2>${title}</h2>
${items.length === 0 ? html`<p class="muted">${none}</p>` : table(title, [...columns.map(column), ACTION], await inSlices(view, items, row))}${others}</section>`;
  };
  return {
    title: `Tokens of ${labelOf(user)}`,
    body: html`${heading(html`Tokens and sign-ins of ${labelOf(user)}`, 'What lets the user, and programs of the user, into the gateway.')}
${done === 'ended' && note('done', 'It is ended. It no longer counts for any request.')}${refusal(refused, [])}
${await section(
  'API tokens',
  'token',
  tokens?.body,
  ({ id: its, name, created_at, expires_at }) =>
    html`<tr><th scope="row">${name}<span class="sub"><code>${its}</code></span></th><td data-label="Made">${timeOf(Date.parse(created_at))}</td><td data-label="Ends">${expires_at === null ? 'never' : timeOf(Date.parse(expires_at))}</td>${end('token', its, name)}</tr>`,
  ['Token', 'Made', 'Ends'],
  'The user has no API token.',
)}
${await section(
  'Sign-ins',
  'session',
  signIns?.body,
  ({ id: its, agent, address, seen_at }) =>
    html`<tr><th scope="row">${agent}</th><td data-label="Address">${address}</td><td data-label="Last used">${timeOf(Date.parse(seen_at))}</td>${end('session', its, agent)}</tr>`,
  ['Browser', 'Address', 'Last used'],
  'The user is signed in with no browser.',
)}
${await section(
  'Applications',
  'grant',
  grants?.body,
  ({ id: its, client, redirect_uri, used_at }) =>
    html`<tr><th scope="row">${client.name ?? 'without a name'}<span class="sub">${redirect_uri}</span></th><td data-label="Last used">${timeOf(Date.parse(used_at))}</td>${end('grant', its, client.name ?? '')}</tr>`,
  ['Application', 'Last used'],
  'The user has approved no application.',
)}
<p><a class="btn plain" href="${pathOf(id)}">Back to ${labelOf(user)}</a></p>`,
  };
}

const ACTION = html`<th scope="col"><span class="hidden">Action</span></th>`;

export const endHolding: Act = async ({ form, id, send, prove }) => {
  const { do: kind = '', id: its = '', sure } = form;
  if (!Object.hasOwn(KINDS, kind) || !/^[0-9a-f-]{36}$/.test(its))
    throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
  prove();
  const { path, what, loss } = KINDS[kind as Kind];
  const action = `${pathOf(id)}/tokens`;
  if (sure !== 'yes')
    return confirmation({
      ...{ title: `End the ${what}`, losses: [loss], action, fields: { do: kind, id: its } },
      ...{ button: `End ${what} ${its.slice(-12)}`, back: action },
    });
  await send('DELETE', `${path}/${its}`, undefined, { reason: form['reason'] });
  return `${action}?done=ended`;
};
