/** The audit log, and why a decision came out as it did. */
import type { LogJson } from '../audit/search/log-json.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import type { Misfit } from '../engine/explain.ts';
import {
  choice,
  column,
  DEFAULT_DENY,
  decisionMark,
  effectMark,
  empty,
  filterForm,
  heading,
  nextPage,
  numbers,
  subjectMark,
  table,
  textField,
} from './marks.ts';
import { nextQuery, type Shown, unlessRefused, type View, withQuery } from './view.ts';

export const LOG = '/console/log';
const AT_ONCE = '100';

/** What the gateway recorded as the reason, if no policy decided. */
const REASONS: Readonly<Record<LogJson['reason'], string>> = {
  matched: 'a policy matched',
  default: 'no policy matched',
  error: 'the evaluation failed',
  no_target: 'the target did not exist or was disabled',
  not_canonical: 'the URI was ambiguous',
};

const OUTCOMES: Readonly<Record<NonNullable<LogJson['outcome']>, string>> = {
  ok: 'answered',
  error: 'error of the target',
  upstream_error: 'no usable answer',
  denied: 'not forwarded',
  cancelled: 'cancelled',
};

/** Decisions have milliseconds, so that calls of one second can be told apart. */
const instant = (iso: string): Markup => html`<time datetime="${iso}">${iso.slice(0, 10)} ${iso.slice(11, 23)} UTC</time>`;

const asked = ({ resource_name, method }: LogJson): Markup => html`<code>${resource_name ?? method}</code>`;

const decider = ({ policy_id, policy_name, reason }: LogJson): Content =>
  policy_id === null ? REASONS[reason] : html`<a href="/console/policies/${policy_id}">${policy_name ?? policy_id}</a>`;

const ended = ({ outcome, duration_ms }: LogJson): string =>
  outcome === null ? 'not known' : outcome === 'ok' && duration_ms !== null ? `${duration_ms} ms` : OUTCOMES[outcome];

export async function logPage({ get, query }: View): Promise<Shown> {
  const { body: entries, next } = await get<LogJson[]>(withQuery('/logs', { ...query, limit: AT_ONCE }));
  const row = (
    entry: LogJson,
  ): Markup => html`<tr><th scope="row"><a href="/console/log/${entry.id}">${instant(entry.created_at)}</a></th>
<td data-label="Decision">${decisionMark(entry.effect, entry.policy_id)}</td>
<td data-label="Who">${entry.user_email === '' ? entry.user_id : entry.user_email}<span class="sub">${entry.user_role}</span></td>
<td data-label="Asked for">${asked(entry)}<span class="sub">${entry.target_name}</span></td>
<td data-label="By">${decider(entry)}</td><td class="num" data-label="Outcome">${ended(entry)}</td></tr>`;
  return {
    title: 'Audit log',
    body: html`${heading('Audit log', 'Every decision, recorded before it took effect. The newest comes first.')}
${filterForm(LOG, 'Filter decisions', [
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
  textField('user_id', 'Id of the user', query['user_id']),
  textField('target_name', 'Target', query['target_name']),
  textField('resource_name', 'Tool, resource or prompt', query['resource_name'], true),
  textField('policy_id', 'Id of the policy', query['policy_id']),
])}
${
  entries.length > 0
    ? table(
        'Decisions, the newest first',
        [column('Time'), column('Decision'), column('Who'), column('Asked for'), column('By'), numbers('Outcome')],
        entries.map(row),
      )
    : empty(
        next !== null
          ? 'No decision was found so far. The search stopped early, so that calls need not wait for it.'
          : html`No decision was found. <a href="${LOG}">Show all decisions</a>`,
      )
}
${nextPage(LOG, nextQuery(next), entries.length === 0 ? 'Search on' : 'Older')}`,
  };
}

interface Explanation {
  readonly revision: number;
  readonly effect: LogJson['effect'];
  readonly policy: { readonly id: string; readonly name: string; readonly priority: number } | null;
  readonly passed_over: readonly {
    readonly id?: string;
    readonly name?: string;
    readonly priority?: number;
    readonly effect: LogJson['effect'];
    readonly misfit: Misfit;
    readonly wants: string | null;
  }[];
  readonly passed_over_count: number;
}

export async function decisionPage({ get, post, id }: View): Promise<Shown> {
  const { body: entry } = await get<LogJson>(`/logs/${id}`);
  const { user_id, user_email, user_role, user_groups, resource_type, resource_name, target_name } = entry;
  const object = resource_type === null ? {} : { resource_type, resource_name };
  const principal = { role: user_role, groups: user_groups, sub: user_id };
  const isDecidable = entry.reason === 'matched' || entry.reason === 'default';
  const now = isDecidable
    ? await unlessRefused(
        post<Explanation>('/policies/explain', { principal, target: target_name, ...object }),
        // The target may be gone.
        'invalid_request',
      )
    : null;
  return {
    title: 'Decision',
    body: html`${heading(html`Why was this ${entry.effect === 'allow' ? 'allowed' : 'denied'}?`, html`${decisionMark(entry.effect, entry.policy_id)} ${decider(entry)}`)}
<dl class="dl"><dt>Who</dt><dd><a href="/console/users/${user_id}">${user_email === '' ? user_id : user_email}</a>
<span class="tags">${subjectMark({ subject_type: 'role', subject_value: user_role })}${user_groups.map((group) => subjectMark({ subject_type: 'group', subject_value: group }))}</span></dd>
<dt>Asked for</dt><dd>${resource_type} ${asked(entry)} of ${
      entry.target_id === null ? target_name : html`<a href="/console/targets/${entry.target_id}">${target_name}</a>`
    }</dd><dt>Method</dt><dd><code>${entry.method}</code></dd>
<dt>Decided</dt><dd>${instant(entry.created_at)}, at revision ${entry.revision}</dd><dt>Outcome</dt><dd>${ended(entry)}</dd>
<dt>Decision</dt><dd><code>${entry.id}</code></dd></dl>
${now !== null && walk(now.body, entry)}
<p class="row"><a class="btn" href="${withQuery(LOG, { user_id })}">Decisions for this user</a><a class="btn plain" href="${LOG}">Audit log</a></p>`,
  };
}

/** What the policies of today do with the same request. Policies that differ in more than the name are only counted. */
function walk({ revision, effect, policy, passed_over, passed_over_count }: Explanation, entry: LogJson): Markup {
  const same = effect === entry.effect && (policy?.id ?? null) === entry.policy_id;
  const near = passed_over.filter(({ misfit }) => misfit === 'pattern');
  const counted = Object.entries(OTHERS).flatMap(([misfit, [one, many]]) => {
    const count = passed_over.filter((other) => other.misfit === misfit).length;
    return count === 0 ? [] : [html`<li class="muted">${count} ${count === 1 ? one : many}</li>`];
  });
  const passed = near.slice(0, NEAR_SHOWN).map(
    ({
      id,
      name,
      priority,
      effect: its,
      wants,
    }) => html`<li>${effectMark(its)} ${policyLink({ id, name })} <span class="muted">priority ${priority}</span>
<span class="sub">Its pattern <code>${wants}</code> does not match the name.</span></li>`,
  );
  const more = passed_over_count - passed_over.length + Math.max(0, near.length - NEAR_SHOWN);
  return html`<section class="stack tight" aria-labelledby="walk"><h2 id="walk">The same request with the policies of revision ${revision}</h2>
<p class="muted">${same ? 'The policies decide it as they did then.' : 'The policies decide it differently now.'} They are evaluated from the top. These come before the one that decides, and do not match:</p>
<ol class="walk">${counted}${passed}${more > 0 && html`<li class="muted">${more} more</li>`}
<li class="stop">${
    policy === null
      ? html`${DEFAULT_DENY} No policy matches. What no policy allows is denied.`
      : html`${effectMark(effect)} ${policyLink(policy)} <span class="muted">priority ${policy.priority}</span><span class="sub">It matches, so it decides.</span>`
  }</li></ol></section>`;
}

const policyLink = ({ id, name }: { readonly id?: string | null; readonly name?: string }): Content =>
  id === undefined || id === null ? name : html`<a href="/console/policies/${id}">${name}</a>`;

const NEAR_SHOWN = 50;
/** Policies that do not match in anything but the name: one of them, and several. */
const OTHERS = {
  enabled: ['policy that is disabled', 'policies that are disabled'],
  unreadable: ['policy that the gateway cannot read', 'policies that the gateway cannot read'],
  target: ['policy for a different target', 'policies for different targets'],
  resource_type: ['policy for a different type', 'policies for different types'],
  subject: ['policy for different users', 'policies for different users'],
} as const satisfies Record<Exclude<Misfit, 'pattern'>, readonly [string, string]>;
