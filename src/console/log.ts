/** The audit log, and why a decision came out as it did. */
import type { LogJson } from '../audit/search/log-json.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import { note, timeOf } from '../browser/page.ts';
import type { Misfit } from '../engine/explain.ts';
import type { Difference } from '../policies/reproduction.ts';
import type { CountsJson } from '../rest/audit/contract.ts';
import { decisionChart } from './chart.ts';
import { refusal } from './form.ts';
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
import { weekAgo } from './policy-changes/consequences.ts';
import { draftButton, draftFor, suggestForm } from './policy-changes/drafts.ts';
import { type Act, nextQuery, type Shown, unlessRefused, type View, withQuery } from './view.ts';

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
const instant = (iso: string): Markup => timeOf(Date.parse(iso), true);

const asked = ({ resource_name, method }: LogJson): Markup => html`<code>${resource_name ?? method}</code>`;

const decider = ({ policy_id, policy_name, reason }: LogJson): Content =>
  policy_id === null ? REASONS[reason] : html`<a href="/console/policies/${policy_id}">${policy_name ?? policy_id}</a>`;

const ended = ({ outcome, duration_ms }: LogJson): string =>
  outcome === null ? 'not known' : outcome === 'ok' && duration_ms !== null ? `${duration_ms} ms` : OUTCOMES[outcome];

/** In a shell, single quotes keep everything except themselves. */
const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

/** Returns the time to which a search came that stopped early; null: it did not. The cursor is the id of a decision. */
function searchedTo(next: URLSearchParams | null): string | null {
  const id = Buffer.from(next?.get('cursor') ?? '', 'base64url').toString();
  const ms = Number.parseInt(id.replaceAll('-', '').slice(0, 12), 16);
  return Number.isNaN(ms) ? null : new Date(ms).toISOString();
}

const COUNTED = new Set(['policy_id', 'target_id', 'from', 'to', 'effect', 'cursor']);

/** Returns the counts that belong to the filter. null: there are none for this filter, because nobody counts by its members. */
async function chartOf({ get, query }: View): Promise<CountsJson | null> {
  if (Object.keys(query).some((name) => !COUNTED.has(name))) return null;
  const { policy_id, target_id, from, to } = query;
  const asked = {
    by: 'hour',
    ...(from && { from }),
    ...(to && { to }),
    ...(policy_id && { policies: policy_id }),
    ...(target_id && { target_id }),
  };
  const { counts, ...rest } =
    (await unlessRefused(get<CountsJson>(withQuery('/logs/counts', asked)), 'invalid_request'))?.body ?? {};
  if (counts === undefined) return null;
  const { effect } = query;
  const shown = counts.map((count) => ({
    ...count,
    ...(effect === 'allow' ? { denied: 0, unmatched: 0 } : effect === 'deny' ? { allowed: 0 } : {}),
  }));
  return { ...(rest as CountsJson), counts: shown };
}

/** The members that are used less often. The form opens them if one is set. */
const RARE = [
  'from',
  'to',
  'id',
  'method',
  'resource_type',
  'resource_name_prefix',
  'reason',
  'user_id',
  'target_id',
  'policy_id',
];

function filterFields(query: View['query']): Content {
  const text = (name: string, label: string, grow = false): Markup => textField(name, label, query[name], grow);
  const options = (of: Readonly<Record<string, string>>) => [['', 'Any'] as const, ...Object.entries(of)];
  return [
    choice({ name: 'effect', label: 'Effect', options: options({ allow: 'Allow', deny: 'Deny' }) }, query['effect']),
    text('target_name', 'Target'),
    text('resource_name', 'Tool, resource or prompt', true),
    html`<details class="wide" ?open="${RARE.some((name) => query[name] !== undefined)}"><summary>More filters</summary><div class="filter">${[
      text('from', 'From, such as 2026-01-31T12:00Z'),
      text('to', 'To, such as 2026-01-31T18:00Z'),
      text('resource_name_prefix', 'Name begins with'),
      choice(
        { name: 'resource_type', label: 'Type', options: options({ tool: 'Tools', resource: 'Resources', prompt: 'Prompts' }) },
        query['resource_type'],
      ),
      choice({ name: 'reason', label: 'Reason', options: options(REASONS) }, query['reason']),
      text('method', 'Method'),
      text('user_id', 'Id of the user'),
      text('target_id', 'Id of the target'),
      text('policy_id', 'Id of the policy'),
      text('id', 'Id of the decision'),
    ]}</div></details>`,
  ];
}

const row =
  (view: View) =>
  (entry: LogJson): Markup =>
    html`<tr id="d-${entry.id}"><th scope="row"><a href="/console/log/${entry.id}">${instant(entry.created_at)}</a></th>
<td data-label="Decision">${decisionMark(entry.effect, entry.policy_id)}</td>
<td data-label="Who">${entry.user_email === '' ? entry.user_id : entry.user_email}<span class="sub">${entry.user_role}</span></td>
<td data-label="Asked for">${asked(entry)}<span class="sub">${entry.target_name}</span></td>
<td data-label="By">${decider(entry)}${isDraftable(entry) && draftButton(view, entry)}</td><td class="end" data-label="Outcome">${ended(entry)}</td></tr>`;

/** The newest rows of the log, which the page asks for while it follows the log. */
export async function logRows(view: View): Promise<Content> {
  const { body: entries } = await view.get<LogJson[]>(withQuery('/logs', { ...view.query, limit: AT_ONCE }));
  return entries.map(row(view));
}

/** Follows the log. It needs a script, which shows it. There is none where no new decision would appear. */
function liveTail({ cursor, from: _, to, ...filter }: View['query']): Content {
  if (cursor !== undefined || to !== undefined) return null;
  return html`<live-tail data-rows="${withQuery(`${LOG}/rows`, filter)}" data-since="${new Date().toISOString()}" data-most="${AT_ONCE}" hidden><button class="btn" type="button" aria-pressed="false">Live</button><span class="sm muted" role="status"></span></live-tail>`;
}

export async function logPage(view: View): Promise<Shown> {
  const { get, query, publicUrl } = view;
  const { body: entries, next } = await get<LogJson[]>(withQuery('/logs', { ...query, limit: AT_ONCE }));
  const { cursor: _, ...filter } = query;
  const chart = await chartOf(view);
  const searched = entries.length < Number(AT_ONCE) ? searchedTo(next) : null;
  return {
    title: 'Audit log',
    body: html`${heading('Audit log', 'Every decision, recorded before it took effect. The newest comes first.', liveTail(query))}
${filterForm(LOG, 'Filter decisions', filterFields(query))}
${chart !== null && decisionChart(chart, 1)}
${
  entries.length > 0
    ? html`<div id="decisions">${table(
        'Decisions, the newest first',
        [column('Time'), column('Decision'), column('Who'), column('Asked for'), column('By'), numbers('Outcome')],
        entries.map(row(view)),
      )}</div>`
    : empty(
        next !== null ? 'No decision was found so far.' : html`No decision was found. <a href="${LOG}">Show all decisions</a>`,
      )
}
${searched !== null && html`<p class="muted">Searched to ${instant(searched)}. The search stopped there, so that calls need not wait for it.</p>`}
${nextPage(LOG, nextQuery(next), searched === null ? 'Older' : 'Go on')}
<details><summary>Export</summary><p class="sm">This command writes all decisions that the filter finds. Use an API token of a user with the right <code>read</code>.</p>
<code class="secret">curl -f -H "Authorization: Bearer $TOKEN" -o audit.csv ${quoted(`${publicUrl}/api/logs/export?${new URLSearchParams({ format: 'csv', ...filter })}`)}</code>
<p class="sm">An export as NDJSON without a filter has every record with its place in the chain. <code>portcullis audit verify --export FILE</code> checks that none was altered or is missing.</p></details>`,
  };
}

export interface Explanation {
  readonly revision: number;
  readonly effect: LogJson['effect'];
  readonly reason: 'matched' | 'default' | 'error' | 'not_canonical';
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

/** Whether policies decided, so that a different policy could allow it. */
const isDraftable = ({ effect, reason }: LogJson): boolean => effect === 'deny' && (reason === 'matched' || reason === 'default');

/** Makes the draft of a policy that would allow a denied decision. */
export const draftDecision: Act = (view) => draftFor(view, weekAgo());

export async function decisionPage(view: View): Promise<Shown> {
  const { get, post, id, may, query, refused } = view;
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
${refusal(refused, [])}
<dl class="dl"><dt>Who</dt><dd><a href="/console/users/${user_id}">${user_email === '' ? user_id : user_email}</a>
<span class="tags">${subjectMark({ subject_type: 'role', subject_value: user_role })}${user_groups.map((group) => subjectMark({ subject_type: 'group', subject_value: group }))}</span></dd>
<dt>Asked for</dt><dd>${resource_type} ${asked(entry)} of ${
      entry.target_id === null ? target_name : html`<a href="/console/targets/${entry.target_id}">${target_name}</a>`
    }</dd><dt>Method</dt><dd><code>${entry.method}</code></dd>
<dt>Decided</dt><dd>${instant(entry.created_at)}, at revision ${entry.revision}</dd><dt>Outcome</dt><dd>${ended(entry)}</dd>
<dt>Decision</dt><dd><code>${entry.id}</code></dd></dl>
${now !== null && walk(now.body, `The same request with the policies of revision ${now.body.revision}`, repeated(now.body, entry))}
${isDraftable(entry) && suggestForm(view, entry.policy_id !== null)}
${
  isDecidable &&
  html`<section class="stack tight" id="again" aria-labelledby="again-title"><h2 id="again-title">Decide it again</h2>
${query['again'] === 'yes' ? await madeAgain(view, entry) : may('reproduceDecision') && html`<p>The gateway makes the decision again with its engine and the policies of revision ${entry.revision}, as their bundle has them.</p><p><a class="btn" href="?again=yes#again">Decide it again here</a></p>`}
${reproduce(entry)}</section>`
}
<p class="row"><a class="btn" href="${withQuery(LOG, { user_id })}">Decisions for this user</a><a class="btn plain" href="${LOG}">Audit log</a></p>`,
  };
}

interface Reproduction {
  readonly result: 'same' | 'differs' | 'not_by_policy' | 'erased';
  readonly differences: readonly Difference[];
}

const DIFFERS: Readonly<Record<Difference['member'], string>> = {
  effect: 'Effect',
  policy_id: 'Policy',
  reason: 'Reason',
  data_hash: 'Hash of the policies',
  engine_hash: 'Hash of the engine',
};

/** What the gateway's own engine decides now, with the policies of that time. */
async function madeAgain({ get }: View, { id, revision }: LogJson): Promise<Content> {
  const { result, differences } = (await get<Reproduction>(`/logs/${id}/reproduction`)).body;
  if (result === 'same')
    return note(
      'done',
      `Same: with the policies of revision ${revision}, the engine made the same decision. Effect, policy, reason, and the hashes of policies and engine are as recorded.`,
    );
  if (result !== 'differs') return note('warn', 'The groups of the user have been erased, so the decision cannot be made again.');
  const isVersion = differences.every(({ member }) => member === 'engine_hash');
  const row = ({ member, recorded, reproduced }: Difference): Markup =>
    html`<tr><th scope="row">${DIFFERS[member]}</th><td data-label="Recorded"><code>${recorded ?? 'none'}</code></td><td data-label="Now"><code>${reproduced ?? 'none'}</code></td></tr>`;
  return html`${isVersion ? note('warn', 'The decision is the same, but a different version of the engine made it then.') : note('bad', `Differs: with the policies of revision ${revision}, the engine makes a different decision than the record has.`)}
${table('What differs', [column('Member'), column('Recorded'), column('Now')], differences.map(row))}`;
}

/** How to make the same decision again, with the policies of that time. */
function reproduce({ id, revision, user_id, user_role, user_groups, target_id, resource_type, resource_name }: LogJson): Markup {
  const caller = { sub: user_id, role: user_role, groups: user_groups, target: target_id };
  const [rule, input] =
    resource_type === null || resource_name === null
      ? ['target', caller]
      : ['decision', { ...caller, type: resource_type, name: resource_name }];
  // A terminal must show what it runs, so characters outside of ASCII are escaped.
  const json = JSON.stringify(input).replaceAll(
    /[^ -~]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
  return html`<details><summary>Decide it again on your machine</summary>
<p class="sm">This command uses the policies of revision ${revision} and the gateway's own engine, and compares the result with the record.</p>
<code class="secret">portcullis audit reproduce ${id}</code>
<p class="sm">Stock OPA needs nothing from the gateway except the bundle. After an erasure, the groups are missing.</p>
<code class="secret">printf '%s\\n' ${quoted(json)} > input.json<br>portcullis bundle --revision ${revision}<br>opa eval -b portcullis.tar.gz -i input.json data.portcullis.reference.${rule}</code></details>`;
}

const repeated = ({ effect, policy }: Explanation, entry: LogJson): string =>
  effect === entry.effect && (policy?.id ?? null) === entry.policy_id
    ? 'The policies decide it as they did then.'
    : 'The policies decide it differently now.';

/** What the policies of today do with a request. Policies that differ in more than the name are only counted. */
export function walk({ effect, policy, passed_over, passed_over_count }: Explanation, title: string, said: string): Markup {
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
  return html`<section class="stack tight" aria-labelledby="walk"><h2 id="walk">${title}</h2>
<p class="muted">${said} They are evaluated from the top. These come before the one that decides, and do not match:</p>
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
