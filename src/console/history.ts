/** The revisions of the policy set, and what one of them changed. */
import { type Content, html, type Markup } from '../browser/html.ts';
import { note, timeOf } from '../browser/page.ts';
import type { Effect } from '../engine/compile/policy.ts';
import type { PolicyFile } from '../policies/files/yaml.ts';
import type { RevisionJson } from '../rest/policy-sets/routes.ts';
import { inSlices } from './lists.ts';
import {
  column,
  decisionMark,
  effectMark,
  empty,
  filterForm,
  heading,
  nextPage,
  subjectMark,
  table,
  textField,
} from './marks.ts';
import { nextQuery, type Shown, type View, withQuery } from './view.ts';

export const HISTORY = '/console/history';

const made = ({ created, updated, deleted, override }: RevisionJson): string =>
  [
    ...(created > 0 ? [`${created} created`] : []),
    ...(updated > 0 ? [`${updated} updated`] : []),
    ...(deleted > 0 ? [`${deleted} deleted`] : []),
    ...(override ? ['outside of files'] : []),
  ].join(', ');

const compareForm = ({ from, to }: View['query']): Markup =>
  filterForm(
    `${HISTORY}/compare`,
    'Compare two revisions',
    [textField('from', 'From revision', from), textField('to', 'To revision. Empty: the newest', to)],
    'Compare',
  );

export async function historyPage(view: View): Promise<Shown> {
  const { get, query, done } = view;
  const { body: revisions, next } = await get<RevisionJson[]>(withQuery('/policies/history', { ...query, limit: '100' }));
  const row = (
    revision: RevisionJson,
  ): Markup => html`<tr><th scope="row"><a href="/console/history/${revision.revision}">Revision ${revision.revision}</a><span class="sub">${revision.reason}</span></th>
<td data-label="When">${timeOf(Date.parse(revision.created_at))}</td><td data-label="Who">${revision.actor.email === '' ? revision.actor.id : revision.actor.email}</td>
<td data-label="Policies">${made(revision)}${revision.policy !== null && html`<span class="sub">${revision.policy.name}</span>`}</td></tr>`;
  return {
    title: 'History',
    body: html`${heading('History', 'Each change of the policy set makes a revision. The newest comes first.')}
${done === 'restored' && note('done', 'The earlier policies are restored, as a new revision.')}
${compareForm({})}
${
  revisions.length === 0
    ? empty('The policy set has not been changed yet.')
    : table(
        'Revisions, the newest first',
        [column('Revision'), column('When'), column('Who'), column('Policies')],
        await inSlices(view, revisions, row),
      )
}
${nextPage(HISTORY, nextQuery(next), 'Older')}`,
  };
}

interface Decided {
  readonly effect: Effect;
  readonly policy: { readonly name: string } | null;
}

/** A comparison of two policy sets. */
export interface Compared {
  readonly verdict: 'equal' | 'stricter' | 'looser' | 'incomparable' | 'unknown';
  readonly changes: readonly {
    readonly action: 'create' | 'update' | 'adopt' | 'delete';
    readonly name: string;
    readonly members: readonly string[];
    readonly before: PolicyFile | null;
    readonly after: PolicyFile | null;
    readonly flips:
      | readonly {
          readonly subjects: readonly {
            readonly subject_type: 'role' | 'group' | 'user' | 'everyone';
            readonly subject_value: string | null;
          }[];
          readonly target: string;
          readonly resource_type: string | null;
          readonly resource_name: string | null;
          readonly before: Decided;
          readonly after: Decided;
        }[]
      | null;
  }[];
}

const VERDICTS: Readonly<Record<Compared['verdict'], string>> = {
  equal: 'No decision changed.',
  stricter: 'Stricter: some requests were denied from then on, and none was newly allowed.',
  looser: 'Looser: some requests were allowed from then on, and none was newly denied.',
  incomparable: 'Some requests were allowed from then on, and others were denied.',
  unknown: 'The analysis would take too long, so it is not known which decisions changed.',
};
const ACTIONS = { create: 'created', update: 'updated', adopt: 'updated', delete: 'deleted' } as const;
const CHANGES_SHOWN = 100;
const SUBJECTS_SHOWN = 20;
const VALUE_SHOWN = 1_000;

export async function revisionPage(view: View): Promise<Shown> {
  const { get, id, may } = view;
  const { verdict, changes } = (await get<Compared>(withQuery('/policies/compare', { from: String(Number(id) - 1), to: id })))
    .body;
  return {
    title: `Revision ${id}`,
    body: html`${heading(`Revision ${id}`, VERDICTS[verdict])}
${changes.length === 0 && empty('This revision changed no policy.')}${await changesShown(view, changes)}
<p class="row"><a class="btn" href="${withQuery(`${HISTORY}/compare`, { from: id })}">Compare with the newest</a>${may('rollBackPolicies') && html`<a class="btn" href="${`${HISTORY}/${id}/rollback`}">Roll back to this revision</a>`}<a class="btn plain" href="${HISTORY}">History</a></p>`,
  };
}

export async function comparePage(view: View): Promise<Shown> {
  const { get, query } = view;
  const { from, to, verdict, changes } = (
    await get<Compared & { readonly from: number; readonly to: number }>(withQuery('/policies/compare', query))
  ).body;
  return {
    title: `Revision ${from} and revision ${to}`,
    body: html`${heading(`Revision ${from} and revision ${to}`, VERDICTS[verdict])}
${compareForm({ from: String(from), to: String(to) })}
${changes.length === 0 && empty('The two revisions have the same policies.')}${await changesShown(view, changes)}
<p class="row"><a class="btn plain" href="${HISTORY}">History</a></p>`,
  };
}

/** The sections of the changed policies. `peopleWith`: who has the subjects of an example. */
export const changesShown = async (
  view: View,
  changes: Compared['changes'],
  peopleWith?: (subjects: Flip['subjects']) => Content,
): Promise<Content> => [
  changes.length > CHANGES_SHOWN && html`<p>These are the first ${CHANGES_SHOWN} of ${changes.length} changed policies.</p>`,
  await inSlices(view, changes.slice(0, CHANGES_SHOWN), (change, at) => changeSection(change, at, peopleWith)),
];

/** A policy in the form of a file does not say to which file it belongs, nor since when it differs from it. */
const isInFiles = (member: string): boolean => member !== 'managed_as' && member !== 'drift_since';

type Flip = NonNullable<Compared['changes'][number]['flips']>[number];

function changeSection(
  { action, name, members, before, after, flips }: Compared['changes'][number],
  at: number,
  peopleWith: (subjects: Flip['subjects']) => Content = () => null,
): Markup {
  const value = (file: PolicyFile | null, member: string): Content => {
    const its: unknown = file?.[member as keyof PolicyFile];
    if (file === null) return null;
    // Subjects alone can have hundreds of kilobytes.
    const text = typeof its === 'string' ? its : (JSON.stringify(its) ?? '');
    return html`<code>${text.slice(0, VALUE_SHOWN).toWellFormed()}</code>${text.length > VALUE_SHOWN && ' … (GET /api/policies/compare has the rest)'}`;
  };
  const rows = members
    .filter(isInFiles)
    .map(
      (member) =>
        html`<tr><th scope="row"><code>${member}</code></th><td data-label="Before">${value(before, member)}</td><td data-label="After">${value(after, member)}</td></tr>`,
    );
  return html`<section class="stack tight" aria-labelledby="change-${at}"><h2 id="change-${at}">${name} <span class="tag">${ACTIONS[action]}</span></h2>
${members.length === 0 && summary(after ?? before)}
${rows.length > 0 && table(`Members of ${name} that changed`, [column('Member'), column('Before'), column('After')], rows)}
${members.includes('managed_as') && html`<p class="muted">It belongs to a different file than before, or no longer to one.</p>`}
${flips === null && html`<p class="muted">It is not known whether decisions changed: the analysis would take too long.</p>`}
${flips?.map(
  ({ subjects, target, resource_type, resource_name, before: was, after: is }) =>
    html`<p class="sm">For example ${
      resource_name === null ? 'the use' : html`the ${resource_type} <code>${resource_name}</code>`
    } of <b>${target}</b> for ${
      subjects.length === 0
        ? 'users whom no policy names'
        : html`<span class="tags">${subjects.map((subject) => subjectMark(subject))}</span>`
    }: ${decided(was)} before, ${decided(is)} after.${peopleWith(subjects)}</p>`,
)}</section>`;
}

const COVERED = { all: 'everything', tool: 'tools', resource: 'resources', prompt: 'prompts' } as const;

/** A policy that was created or deleted, in one line. */
const summary = (file: PolicyFile | null): Content =>
  file !== null &&
  html`<p class="sm">${effectMark(file.effect)} ${file.resource_pattern === null ? COVERED[file.resource_type] : html`${COVERED[file.resource_type]} <code>${file.resource_pattern}</code>`} of ${file.target === null ? 'every target' : html`<b>${file.target}</b>`}, priority ${file.priority}, for <span class="tags">${file.subjects.length === 0 ? 'no subject' : file.subjects.slice(0, SUBJECTS_SHOWN).map(({ subject_type, subject_value = null }) => subjectMark({ subject_type, subject_value }))}${file.subjects.length > SUBJECTS_SHOWN && html`<span class="tag">${file.subjects.length - SUBJECTS_SHOWN} more</span>`}</span>${file.enabled === false && html` <span class="tag">disabled</span>`}</p>`;

const decided = ({ effect, policy }: Decided): Markup => decisionMark(effect, policy?.name ?? null);
