/** Policies in the order of evaluation, and one policy. */
import { type Content, html, type Markup } from '../browser/html.ts';
import { timeOf } from '../browser/page.ts';
import type { OrderedPolicyJson, PolicyJson } from '../policies/schema.ts';
import type { CountsJson } from '../rest/audit/contract.ts';
import type { TargetJson } from '../targets/document.ts';
import { FINDINGS, type Finding, findingMark, findingsBeside } from './findings.ts';
import { noteDone } from './form.ts';
import { inSlices } from './lists.ts';
import { DEMAND } from './log/demand.ts';
import {
  choice,
  column,
  DEFAULT_DENY,
  effectMark,
  empty,
  filterForm,
  heading,
  nextPage,
  number,
  numbers,
  subjectMark,
  table,
  textField,
} from './marks.ts';
import { emailsOf, usersIn } from './people/names.ts';
import { changeLinks } from './policy-changes/edit.ts';
import { moveLink, moveLinks } from './policy-changes/move.ts';
import { nextQuery, type Shown, unlessRefused, type View, withQuery } from './view.ts';

export const POLICIES = '/console/policies';
const AT_ONCE = '100';
const SUBJECTS_SHOWN = 3;
const FINDINGS_SHOWN = 3;
/** How long the list waits for findings: with many policies, it is shown without them. */
const FINDINGS_MS = 100;

type Targets = ReadonlyMap<string, string>;

async function targetsOf({ get }: View): Promise<readonly TargetJson[]> {
  return (await unlessRefused(get<TargetJson[]>('/targets')))?.body ?? [];
}

const namesOf = (targets: readonly TargetJson[]): Targets => new Map(targets.map(({ id, name }) => [id, name]));

const targetMark = (id: string | null, names: Targets): Markup =>
  id === null ? html`<span class="muted">every target</span>` : html`<a href="/console/targets/${id}">${names.get(id) ?? id}</a>`;

const TYPES = { all: 'tools, resources, prompts', tool: 'tools', resource: 'resources', prompt: 'prompts' } as const;

const patternMark = (pattern: string | null): Markup =>
  pattern === null ? html`<span class="muted">every name</span>` : html`<code>${pattern}</code>`;

const LIST_DONE: Readonly<Record<string, string>> = {
  deleted: 'The policy is deleted.',
  moved: 'The policy is moved. The new order decides from now on.',
};

/** Whether no policy comes after this one in the whole list. The last page of a filtered list does not tell. */
async function isLastOfAll({ get }: View, { priority, effect, id }: PolicyJson): Promise<boolean> {
  const cursor = Buffer.from(`${priority} ${effect} ${id}`).toString('base64url');
  return (await get<unknown[]>(withQuery('/policies/order', { limit: '1', cursor }))).body.length === 0;
}

export async function policiesPage(view: View): Promise<Shown> {
  const { query } = view;
  const [targets, { body: policies, next }] = await Promise.all([
    targetsOf(view),
    view.get<OrderedPolicyJson[]>(withQuery('/policies/order', { ...query, limit: AT_ONCE })),
  ]);
  const names = namesOf(targets);
  const named = policies.flatMap(({ policy: { subjects } }) => usersIn(subjects.slice(0, SUBJECTS_SHOWN)));
  const { cursor: _, ...filter } = query;
  const isFiltered = Object.keys(filter).length > 0;
  /** Whether the last row is the last policy. */
  const isWhole = next === null && !isFiltered;
  const lastShown = policies.at(-1);
  const [counts, findings, emails, isEnd] = await Promise.all([
    countsOf(
      view,
      policies.map(({ policy }) => policy.id),
    ),
    findingsBeside(view, FINDINGS_MS),
    emailsOf(view, named),
    isWhole || (next === null && lastShown !== undefined && isLastOfAll(view, lastShown.policy)),
  ]);
  const ids = new Set(policies.map(({ policy }) => policy.id));
  const findingsHere = findings?.filter(({ policies: [about] }) => about !== undefined && ids.has(about.id)) ?? [];
  const rows = await inSlices(view, policies, ({ position, policy }, at) => {
    const its = findingsHere.filter(({ policies: [about] }) => about?.id === policy.id);
    const moves = view.may('movePolicy') && moveLinks(policy.id, policy.name, position, isEnd && at === policies.length - 1);
    return row(position, moves, policy, policies[at - 1]?.policy.priority, names, its, emails, counts?.get(policy.id));
  });
  const [first, last] = [policies[0]?.position ?? 0, policies.at(-1)?.position ?? 0];
  const end = html`<tr class="end"><td colspan="${counts === null ? 6 : 7}">${
    isWhole
      ? html`${DEFAULT_DENY} After number ${last}: what no policy allows is denied.`
      : html`${DEFAULT_DENY} After the last policy of the whole list: what no policy allows is denied.`
  }${view.may('listDeniedDemand') && html` <a href="${withQuery(DEMAND, { reason: 'default' })}">Show what was denied this way</a>`}</td></tr>`;
  return {
    title: 'Policies',
    body: html`${heading('Policies', 'Evaluated from the top. The first policy that matches a request decides. If no policy matches, the request is denied.', view.may('createPolicy') && html`<a class="btn cta" href="/console/policies/new">New policy</a>`)}
${noteDone(LIST_DONE, view.done)}
${filterForm(POLICIES, 'Filter policies', [
  textField('text', 'Name, pattern or id', query['text'], true),
  choice(
    {
      name: 'effect',
      label: 'Effect',
      options: [
        ['', 'Any'],
        ['allow', 'Allow'],
        ['deny', 'Deny'],
      ],
    },
    query['effect'],
  ),
  choice(
    {
      name: 'enabled',
      label: 'State',
      options: [
        ['', 'Any'],
        ['true', 'Enabled'],
        ['false', 'Disabled'],
      ],
    },
    query['enabled'],
  ),
  choice(
    { name: 'target_id', label: 'Target', options: [['', 'Any'], ...targets.map(({ id, name }) => [id, name] as const)] },
    query['target_id'],
  ),
])}
${
  policies.length === 0
    ? empty(
        isFiltered
          ? html`No policy matches the filter. <a href="${POLICIES}">Show all policies</a>`
          : html`There is no policy. Until there is one, every request is denied. ${view.may('createPolicy') && html`<a href="/console/policies/new">Make one here</a>.`} The commands <code>portcullis add</code> and <code>portcullis policies apply</code> make policies.`,
      )
    : draggable(
        view,
        table(
          `Policies in the order of evaluation, number ${first} to ${last}`,
          [
            numbers('#'),
            numbers('Priority'),
            column('Effect'),
            column('Policy'),
            column('Target'),
            column('Applies to'),
            counts !== null && numbers('Decisions, 7 days'),
          ],
          [rows, end],
        ),
      )
}
${policies.length > 0 && findings === null && view.may('lintPolicies') && html`<p class="muted">The analysis of the policies is not ready, so their <a href="${FINDINGS}">findings</a> are not shown here.</p>`}
${nextPage(POLICIES, nextQuery(next), 'Next 100')}`,
  };
}

/** Returns how many decisions each policy made in the last seven days. null: the user may not know. */
async function countsOf({ get, may }: View, ids: readonly string[]): Promise<ReadonlyMap<string, number> | null> {
  if (ids.length === 0 || !may('countDecisions')) return null;
  const from = new Date(Date.now() - 7 * 24 * 60 * 60_000).toISOString();
  const { counts } = (await get<CountsJson>(withQuery('/logs/counts', { by: 'policy', policies: ids.join(), from }))).body;
  const known = new Map(counts.map(({ policy_id, allowed, denied }) => [policy_id, allowed + denied]));
  return new Map(ids.map((id) => [id, known.get(id) ?? 0]));
}

/** With a script, rows can be dragged to the position of another. */
const draggable = (view: View, list: Markup): Markup =>
  view.may('movePolicy') ? html`<policy-order data-path="${POLICIES}">${list}</policy-order>` : list;

function row(
  position: number,
  moves: Content,
  policy: PolicyJson,
  previous: number | undefined,
  names: Targets,
  findings: readonly Finding[],
  emails: ReadonlyMap<string, string>,
  decisions: number | undefined,
): Markup {
  const { id, name, priority, effect, enabled, resource_type, resource_pattern, target_id, subjects, managed_as } = policy;
  const more = subjects.length - SUBJECTS_SHOWN;
  const classes = `${priority === previous ? 'same' : ''} ${enabled ? '' : 'off'}`;
  return html`<tr class="${classes}" data-id="${id}" data-position="${position}"><td class="num pos" data-label="#">${position}${moves}</td><td class="num prio" data-label="Priority">${priority}</td>
<td data-label="Effect">${effectMark(effect)}</td>
<th scope="row"><a href="/console/policies/${id}">${name}</a>${!enabled && html` <span class="tag">disabled</span>`}<span class="sub">${patternMark(resource_pattern)}</span>${findings.slice(0, FINDINGS_SHOWN).map((finding) => html`<span class="sub finding">${findingMark(finding)}</span>`)}${findings.length > FINDINGS_SHOWN && html`<span class="sub"><a href="${FINDINGS}">${findings.length - FINDINGS_SHOWN} more findings</a></span>`}</th>
<td data-label="Target">${targetMark(target_id, names)}<span class="sub">${TYPES[resource_type]}</span></td>
<td data-label="Applies to"><span class="tags">${subjects.slice(0, SUBJECTS_SHOWN).map((subject) => subjectMark(subject, emails))}${more > 0 && html`<span class="tag">${more} more</span>`}${subjects.length === 0 && html`<span class="tag find">no subject: matches no request</span>`}</span>
<span class="sub">${managed_as === null ? 'no file' : `file ${managed_as}`}${drift(policy)}</span></td>${decisions !== undefined && html`<td class="num" data-label="Decisions, 7 days"><a href="${withQuery('/console/log', { policy_id: id })}">${number(decisions)}</a></td>`}</tr>`;
}

const DONE: Readonly<Record<string, string>> = {
  made: 'The policy is made. It decides from now on.',
  saved: 'The policy is saved. It decides from now on.',
};

const drift = ({ drift_since }: PolicyJson): Content =>
  drift_since !== null && html` <span class="tag find">changed outside of its file since revision ${drift_since}</span>`;

export async function policyPage(view: View): Promise<Shown> {
  const [targets, { body: policy }] = await Promise.all([targetsOf(view), view.get<PolicyJson>(`/policies/${view.id}`)]);
  const { id, name, description, effect, enabled, priority, resource_type, resource_pattern, target_id, subjects } = policy;
  const [counts, findings, emails, ordered] = await Promise.all([
    countsOf(view, [id]),
    findingsBeside(view, FINDINGS_MS),
    emailsOf(view, usersIn(subjects)),
    view.get<OrderedPolicyJson[]>(withQuery('/policies/order', { id })),
  ]);
  const position = ordered.body[0]?.position;
  const its = findings?.filter((finding) => finding.policies.some((about) => about.id === id)) ?? [];
  return {
    title: name,
    body: html`${heading(name, html`${effectMark(effect)} with priority ${priority}${position !== undefined && `, number ${number(position)} in the order of evaluation`}${!enabled && html` <span class="tag">disabled</span>`}`)}
${noteDone(DONE, view.done)}
${description !== null && description !== '' && html`<p>${description}</p>`}
${its.length > 0 && html`<ul class="attention">${its.map((finding) => html`<li>${findingMark(finding)}</li>`)}</ul>`}
<dl class="dl"><dt>Target</dt><dd>${targetMark(target_id, namesOf(targets))}</dd><dt>Covers</dt><dd>${TYPES[resource_type]}</dd>
<dt>Pattern</dt><dd>${patternMark(resource_pattern)}</dd>
<dt>Applies to</dt><dd><span class="tags">${await inSlices(view, subjects, (subject) => subjectMark(subject, emails))}${subjects.length === 0 && 'no subject, so it matches no request'}</span></dd>
${counts !== null && html`<dt>Decisions</dt><dd>${number(counts.get(id) ?? 0)} in the last 7 days</dd>`}
<dt>File</dt><dd>${policy.managed_as === null ? 'none' : html`<code>${policy.managed_as}.yaml</code>`}${drift(policy)}</dd>
<dt>Created</dt><dd>${timeOf(Date.parse(policy.created_at))}</dd><dt>Updated</dt><dd>${timeOf(Date.parse(policy.updated_at))}</dd>
<dt>Id</dt><dd><code>${id}</code></dd></dl>
<p class="row"><a class="btn" href="${withQuery('/console/log', { policy_id: id })}">Its decisions</a>${changeLinks(view, policy)}${moveLink(view, id)}
<a class="btn plain" href="${POLICIES}">All policies</a></p>`,
  };
}
