/** The audit log. */
import type { LogJson } from '../../audit/search/log-json.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { timeOf } from '../../browser/page.ts';
import type { CountsJson } from '../../rest/audit/contract.ts';
import { decisionChart } from '../chart.ts';
import { inSlices } from '../lists.ts';
import { choice, column, decisionMark, empty, filterForm, heading, nextPage, numbers, table, textField } from '../marks.ts';
import { userIdOf } from '../people/names.ts';
import { draftButton } from '../policy-changes/drafts.ts';
import { nextQuery, requireMay, type Shown, unlessRefused, type View, withQuery } from '../view.ts';
import { chainState, verificationOf } from './chain.ts';

export const LOG = '/console/log';
export const EXPORT = `${LOG}/export`;
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
export const instant = (iso: string): Markup => timeOf(Date.parse(iso), true);

export const asked = ({ resource_name, method }: LogJson): Markup =>
  html`<code>${resource_name ?? method.split('/').map((part, i) => (i === 0 ? part : html`/<wbr>${part}`))}</code>`;

export const decider = ({ policy_id, policy_name, reason }: LogJson): Content =>
  policy_id === null ? REASONS[reason] : html`<a href="/console/policies/${policy_id}">${policy_name ?? policy_id}</a>`;

export const ended = ({ outcome, duration_ms }: LogJson): string =>
  outcome === null ? 'not known' : outcome === 'ok' && duration_ms !== null ? `${duration_ms} ms` : OUTCOMES[outcome];

/** In a shell, single quotes keep everything except themselves. */
export const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

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
const RARE = ['from', 'to', 'id', 'method', 'resource_type', 'resource_name_prefix', 'reason', 'target_id', 'policy_id'];

const options = (of: Readonly<Record<string, string>>) => [['', 'Any'] as const, ...Object.entries(of)];

function filterFields(query: View['query']): Content {
  const text = (name: string, label: string, grow = false): Markup => textField(name, label, query[name], grow);
  return [
    choice({ name: 'effect', label: 'Effect', options: options({ allow: 'Allow', deny: 'Deny' }) }, query['effect']),
    text('user', 'User: e-mail or id'),
    text('target_name', 'Target'),
    text('resource_name', 'Tool, resource or prompt', true),
  ];
}

function rareFields(query: View['query']): Markup {
  const text = (name: string, label: string): Markup => textField(name, label, query[name]);
  return html`<details class="wide" ?open="${RARE.some((name) => query[name] !== undefined)}"><summary>More filters</summary><div class="filter">${[
    text('from', 'From, such as 2026-01-31T12:00Z'),
    text('to', 'To, such as 2026-01-31T18:00Z'),
    text('resource_name_prefix', 'Name begins with'),
    choice(
      { name: 'resource_type', label: 'Type', options: options({ tool: 'Tools', resource: 'Resources', prompt: 'Prompts' }) },
      query['resource_type'],
    ),
    choice({ name: 'reason', label: 'Reason', options: options(REASONS) }, query['reason']),
    text('method', 'Method'),
    text('target_id', 'Id of the target'),
    text('policy_id', 'Id of the policy'),
    text('id', 'Id of the decision'),
  ]}</div></details>`;
}

const row =
  (view: View) =>
  (entry: LogJson): Markup =>
    html`<tr id="d-${entry.id}"><th scope="row"><a href="/console/log/${entry.id}">${instant(entry.created_at)}</a></th>
<td data-label="Decision">${decisionMark(entry.effect, entry.policy_id)}</td>
<td data-label="Who">${entry.user_email === '' ? entry.user_id : entry.user_email}<span class="sub">${entry.user_role}</span></td>
<td data-label="Asked for">${asked(entry)}<span class="sub">${entry.target_name}</span></td>
<td data-label="By">${decider(entry)}${isDraftable(entry) && draftButton(view, entry)}</td><td class="end" data-label="Outcome">${ended(entry)}</td></tr>`;

/** Whether policies decided, so that a different policy could allow it. */
export const isDraftable = ({ effect, reason }: LogJson): boolean =>
  effect === 'deny' && (reason === 'matched' || reason === 'default');

/** The newest rows of the log, which the page asks for while it follows the log. */
export async function logRows(view: View): Promise<Content> {
  const { body: entries } = await view.get<LogJson[]>(withQuery('/logs', { ...view.query, limit: AT_ONCE }));
  return inSlices(view, entries, row(view));
}

/** Follows the log. It needs a script, which shows it. There is none where no new decision would appear. */
function liveTail({ cursor, from: _, to, ...filter }: View['query']): Content {
  if (cursor !== undefined || to !== undefined) return null;
  return html`<live-tail data-rows="${withQuery(`${LOG}/rows`, filter)}" data-since="${new Date().toISOString()}" data-most="${AT_ONCE}" hidden><button class="btn" type="button" aria-pressed="false">Live</button><span class="sm muted" role="status"></span></live-tail>`;
}

/** People know the e-mail of a user, and the log the id. Returns null if no user has the e-mail of the query. */
async function withUserId(view: View): Promise<View['query'] | null> {
  const { user, ...rest } = view.query;
  if (user === undefined) return rest;
  const user_id = await userIdOf(view, user, 'user');
  return user_id === null ? null : { ...rest, user_id };
}

/** An address with the id of a user shows the user in the form. */
const shownIn = ({ user_id, ...query }: View['query']): View['query'] =>
  user_id === undefined ? query : { user: user_id, ...query };

const logFilter = (query: View['query']): Markup =>
  filterForm(LOG, 'Filter decisions', filterFields(shownIn(query)), 'Filter', rareFields(query));

export async function logPage(given: View): Promise<Shown> {
  const { get } = given;
  // Before it says whether a user has the e-mail.
  requireMay(given, 'listDecisions');
  const query = await withUserId(given);
  if (query === null)
    return {
      title: 'Audit log',
      body: html`${heading('Audit log', SUBTITLE)}
${logFilter(given.query)}
${empty(html`No user has the e-mail <b>${given.query['user']}</b>. <a href="${LOG}">Show all decisions</a>`)}`,
    };
  const view = { ...given, query };
  const { body: entries, next } = await get<LogJson[]>(withQuery('/logs', { ...query, limit: AT_ONCE }));
  const { cursor: _, ...filter } = query;
  const chart = await chartOf(view);
  const verified = await verificationOf(view);
  const searched = entries.length < Number(AT_ONCE) ? searchedTo(next) : null;
  return {
    title: 'Audit log',
    body: html`${heading('Audit log', SUBTITLE, liveTail(query))}
${verified !== null && chainState(verified)}
${logFilter({ ...query, ...(given.query['user'] && { user: given.query['user'] }) })}
${chart !== null && decisionChart(chart, 1)}
${
  entries.length > 0
    ? html`<div id="decisions">${table(
        'Decisions, the newest first',
        [column('Time'), column('Decision'), column('Who'), column('Asked for'), column('By'), numbers('Outcome')],
        await inSlices(view, entries, row(view)),
      )}</div>`
    : empty(
        next !== null ? 'No decision was found so far.' : html`No decision was found. <a href="${LOG}">Show all decisions</a>`,
      )
}
${searched !== null && html`<p class="muted">Searched to ${instant(searched)}. The search stopped there, so that calls need not wait for it.</p>`}
${nextPage(LOG, nextQuery(next), searched === null ? 'Older' : 'Go on')}
${exportSection(view, filter)}`,
  };
}

const SUBTITLE = 'Every decision, recorded before it took effect. The newest comes first.';

const exportSection = ({ may, publicUrl }: View, filter: View['query']): Content =>
  may('exportLog') &&
  html`<section class="stack tight" aria-labelledby="export"><h2 id="export">Export</h2><p class="row">${(['csv', 'ndjson'] as const).map((format) => html`<a class="btn" download href="${withQuery(EXPORT, { format, ...filter })}">Download ${format.toUpperCase()}</a>`)}<span class="muted">All decisions that the filter finds.</span></p>
<details><summary>With a command</summary><p class="sm">Use an API token of a user with the right <code>read</code>.</p>
<code class="secret">curl -f -H "Authorization: Bearer $TOKEN" -o audit.csv ${quoted(`${publicUrl}/api/logs/export?${new URLSearchParams({ format: 'csv', ...filter })}`)}</code></details>
<p class="sm muted">An export as NDJSON without a filter has every record with its place in the chain. <code>portcullis audit verify --export FILE</code> checks that none was altered or is missing.</p></section>`;
