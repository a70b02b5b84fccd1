/** Who can use what: the matrix of a target, and everything that one user, role or group can use. The decision function answers both. */
import { pause } from '../../base/turns/slices.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import type { AccessRow } from '../../policies/access.ts';
import type { TargetJson } from '../../targets/document.ts';
import { box } from '../form.ts';
import { inSlices } from '../lists.ts';
import { choice, column, empty, filterForm, heading, nextPage, subjectMark, table, textField } from '../marks.ts';
import { nextQuery, type Shown, unlessRefused, type View, withQuery } from '../view.ts';
import { WHY, whoOf } from './why.ts';

export const ACCESS = '/console/access';
const COLUMNS = 50;
const ROWS_SHOWN = 500;

interface Cell {
  readonly effect: 'allow' | 'deny';
  readonly policy: { readonly id: string; readonly name: string } | null;
}

interface Matrix {
  readonly revision: number;
  readonly compared: number | null;
  readonly target: string;
  readonly target_enabled: boolean;
  readonly names: readonly { readonly resource_type: string | null; readonly resource_name: string | null }[];
  readonly names_count: number;
  readonly searched: { readonly rows: number; readonly names: number } | null;
  readonly rows: readonly {
    readonly subject_type: 'role' | 'group' | 'user' | 'everyone';
    readonly subject_value: string | null;
    readonly email: string | null;
    readonly cells: readonly Cell[];
    readonly before: readonly Cell[] | null;
  }[];
}

export async function accessPage(view: View): Promise<Shown> {
  const { query, get, inTurn } = view;
  if (query['who'] !== undefined) return whoPage(view, query['who']);
  const targets = (await unlessRefused(get<TargetJson[]>('/targets')))?.body ?? [];
  const { text: _, changed, ...asked } = query;
  const onlyChanged: View['query'] = changed === 'yes' && asked['compare'] !== undefined ? { changed } : {};
  const target = asked['target'] ?? targets[0]?.name;
  const matrix =
    target === undefined ? null : await get<Matrix>(withQuery('/policies/matrix', { ...asked, ...onlyChanged, target }));
  return {
    title: 'Access',
    body: html`${heading('Access', 'Who can use what, as the gateway itself decides it. Each role and group stands for a caller who has nothing else.')}
${filterForm(
  ACCESS,
  'Choose what the matrix shows',
  [
    choice({ name: 'target', label: 'Target', options: targets.map(({ name }) => [name, name] as const) }, target),
    choice(
      {
        name: 'resource_type',
        label: 'Type',
        options: [
          ['', 'Any'],
          ['tool', 'Tools'],
          ['resource', 'Resources'],
          ['prompt', 'Prompts'],
        ],
      },
      query['resource_type'],
    ),
    choice(
      {
        name: 'rows',
        label: 'For',
        options: [
          ['', 'Roles and groups'],
          ['users', 'Users'],
        ],
      },
      query['rows'],
    ),
    textField('compare', 'Compare with revision', query['compare']),
    box('changed', 'Only what differs', query['changed'] === 'yes'),
  ],
  'Show',
)}
${
  matrix === null
    ? empty('There is no target yet. Until there is one, nobody can use anything.')
    : await inTurn(() => matrixSection(matrix.body, query, matrix.next))
}
${whoForm('')}`,
  };
}

const whoForm = (who: string): Markup =>
  html`<section class="stack tight" aria-labelledby="who"><h2 id="who">One user, role or group</h2>
${filterForm(ACCESS, 'Show what somebody can use', textField('who', 'user:<e-mail>, role:<name>, group:<name> or everyone', who, true), 'Show')}</section>`;

/** All links of a matrix together may have about so many characters. */
const LINKS_LENGTH = 1_000_000;
/** What a cell takes besides the name in its link. */
const OF_CELL = 100;

/** How many columns the page shows: each cell has a link with the name, and URIs can have thousands of characters. At least one. */
function columnsFor({ names, rows }: Pick<Matrix, 'names' | 'rows'>): number {
  let length = 0;
  const end = names.findIndex(({ resource_name }) => {
    length += rows.length * (OF_CELL + encodeURIComponent(resource_name ?? '').length);
    return length > LINKS_LENGTH;
  });
  return end === -1 ? names.length : Math.max(1, end);
}

export async function matrixSection(matrix: Matrix, query: View['query'], next: URLSearchParams | null): Promise<Markup> {
  const { names_count, searched, rows, compared, revision, target, target_enabled } = matrix;
  const skip = Number(query['skip'] ?? 0);
  const names = matrix.names.slice(0, columnsFor(matrix));
  const seen = skip + names.length;
  const onwards = new URLSearchParams({ ...query, skip: String(seen) });
  const following = nextQuery(next);
  // Other rows have other names that differ.
  if (searched !== null) following?.delete('skip');
  const head = names.map(({ resource_type, resource_name }) => {
    const name = resource_name ?? 'the target itself';
    return html`<th scope="col"><span class="turned">${name}${resource_type !== null && resource_type !== 'tool' && html` <span class="muted">${resource_type}</span>`}</span></th>`;
  });
  // Each cell has a link, so each part of it is made only once.
  const objects = names.map(({ resource_type, resource_name }) =>
    new URLSearchParams({ target, ...(resource_type && resource_name ? { resource_type, resource_name } : {}) }).toString(),
  );
  const body: Markup[] = [];
  for (const { subject_type, subject_value, email, cells, before } of rows) {
    await pause();
    const who = whoOf(subject_type, subject_value);
    const why = withQuery(WHY, { who });
    body.push(
      html`<tr><th scope="row"><a href="${withQuery(ACCESS, { who })}">${email ?? subject_value ?? subject_type}</a><span class="sub">${subject_type}</span></th>${cells.slice(0, names.length).map((cell, at) => matrixCell(cell, before?.[at], `${why}&${objects[at]}`))}</tr>`,
    );
  }
  return html`${!target_enabled && note('warn', 'The target is disabled. So the gateway forwards nothing to it, whatever the policies allow.')}
<p class="muted">Revision ${revision}${compared !== null && html`, compared with the policies of revision ${compared} for the users and groups of today`}.
<span class="mx-legend"><span class="mx al">Allow</span> allowed <span class="mx de">Deny</span> denied by a policy <span class="mx no">–</span> no policy matches.</span> Each cell leads to its reason. <a class="skip" href="#after">Skip the matrix</a></p>
${searched !== null && html`<p>${rows.length} of ${searched.rows} rows and ${names_count} of ${searched.names} names differ.${following !== null && ' There are more rows: one page searches only a part of them.'}</p>`}
${
  rows.length === 0
    ? empty(
        searched !== null ? 'Every decision that was searched is the same.' : 'There is no user on this page who may sign in.',
      )
    : html`<div class="matrix">${table(`Access to ${target}`, [column('For'), head], body)}</div>`
}
<p class="row" id="after" tabindex="-1">${names.length > 0 && names_count > seen && html`<a class="btn" href="${`${ACCESS}?${onwards}`}">Next ${Math.min(COLUMNS, names_count - seen)} names</a>`}
${nextPage(ACCESS, following, searched === null ? 'Next 100' : 'Search the next rows')}</p>`;
}

const SIGNS = { al: 'Allow', de: 'Deny', no: html`–<span class="hidden"> default deny</span>` } as const;
const signOf = ({ effect, policy }: Cell): keyof typeof SIGNS => (effect === 'allow' ? 'al' : policy === null ? 'no' : 'de');

function matrixCell(cell: Cell, before: Cell | undefined, why: string): Markup {
  const sign = signOf(cell);
  if (before === undefined || before.effect === cell.effect)
    return html`<td class="mx ${sign}"><a href="${why}">${SIGNS[sign]}</a></td>`;
  return html`<td class="mx ${sign} changed"><a href="${why}">${SIGNS[sign]}<span class="sub">${cell.effect === 'allow' ? 'was denied' : 'was allowed'}</span></a></td>`;
}

/** Rows of `GET /api/policies/access`. */
type Access = Pick<AccessRow, 'target' | 'resource_type' | 'resource_name' | 'policy_id' | 'policy_name'>;

async function whoPage(view: View, who: string): Promise<Shown> {
  const { body: rows, next } = await view.get<Access[]>(withQuery('/policies/access', { who }));
  const [type, value] = who.split(/:(.*)/s);
  const isRoleOrGroup = type === 'role' || type === 'group';
  const mark: Content = isRoleOrGroup ? subjectMark({ subject_type: type, subject_value: value ?? '' }) : who;
  return {
    title: `Access of ${who}`,
    body: html`${heading(html`What ${mark} can use`, isRoleOrGroup ? 'A caller who has this and nothing else. A user may have more, and may be denied what is allowed here.' : 'As the gateway decides it now.')}
${await accessTable(view, rows, who, next !== null, 'No policy allows anything that was recently asked for.')}
${whoForm(who)}
<p class="row"><a class="btn plain" href="${ACCESS}">The matrix</a></p>`,
  };
}

/** By the decision function itself, for the names that were recently asked for. */
export async function accessTable(
  view: View,
  access: readonly Access[],
  who: string,
  hasMore: boolean,
  nothing: string,
): Promise<Markup> {
  const row = ({ target, resource_type, resource_name, policy_id, policy_name }: Access): Markup =>
    html`<tr><th scope="row"><a href="${withQuery(WHY, { who, target, ...(resource_type && resource_name ? { resource_type, resource_name } : {}) })}">${
      resource_name === null ? 'the target itself' : html`<code>${resource_name}</code>`
    }</a><span class="sub">${resource_type}</span></th><td data-label="Target">${target}</td><td data-label="Allowed by"><a href="/console/policies/${policy_id}">${policy_name}</a></td></tr>`;
  return html`<p class="sm muted">Each target, and each name that the newest decisions were about.${(hasMore || access.length > ROWS_SHOWN) && html` Only the first ${ROWS_SHOWN} are shown.`}</p>
${
  access.length === 0
    ? empty(nothing)
    : table(
        'What can be used',
        [column('Name'), column('Target'), column('Allowed by')],
        await inSlices(view, access.slice(0, ROWS_SHOWN), row),
      )
}`;
}
