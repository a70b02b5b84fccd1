/** What administrators have changed, and the replicas of the gateway. */
import { type Content, html, type Markup } from '../browser/html.ts';
import { timeOf } from '../browser/page.ts';
import { inSlices } from './lists.ts';
import { column, empty, heading, nextPage, numbers, table } from './marks.ts';
import { nextQuery, type Shown, type View, withQuery } from './view.ts';

export const CHANGES = '/console/changes';

interface Change {
  readonly sequence: number;
  readonly created_at: string;
  readonly actor: { readonly id: string; readonly email: string };
  readonly reason: string | null;
  readonly override: boolean;
  readonly action: string;
  readonly object_id: string;
  readonly before: unknown;
  readonly after: unknown;
}

/** A large change must not make the page large. */
const SHOWN = 4_000;

const json = (value: unknown): string => {
  const text = JSON.stringify(value, null, 1);
  return text.length > SHOWN ? `${text.slice(0, SHOWN)} … (GET /api/changes has the rest)` : text;
};

type Members = Readonly<Record<string, unknown>>;
const membersOf = (value: unknown): Members | null =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Members) : null;

/** The name by which people know the object. */
function nameIn(value: unknown): string | null {
  const { name, email, right, subject_type: type, subject_value: who } = membersOf(value) ?? {};
  if (typeof right === 'string') return [right, 'for', type, who].filter((part) => typeof part === 'string').join(' ');
  return typeof name === 'string' ? name : typeof email === 'string' && email !== '' ? email : null;
}

/** Returns only the members that differ, if an object was changed. */
function difference(before: unknown, after: unknown): Content {
  const [was, is] = [membersOf(before), membersOf(after)];
  if (was === null || is === null) return html`<code class="secret">${json(was ?? is)}</code>`;
  const members = [...new Set([...Object.keys(was), ...Object.keys(is)])].filter(
    (member) => member !== 'updated_at' && JSON.stringify(was[member]) !== JSON.stringify(is[member]),
  );
  return members.map(
    (member) =>
      html`<p class="xs"><b>${member}</b></p><code class="secret">${json(was[member] ?? null)}</code><code class="secret">${json(is[member] ?? null)}</code>`,
  );
}

export async function changesPage(view: View): Promise<Shown> {
  const { get, query } = view;
  const { body: changes, next } = await get<Change[]>(withQuery('/changes', { ...query, limit: '50' }));
  const row = ({ sequence, created_at, actor, reason, override, action, object_id, before, after }: Change): Markup => {
    const name = nameIn(after) ?? nameIn(before);
    return html`<tr><td class="num" data-label="#">${sequence}</td>
<th scope="row">${name ?? html`<code>${object_id}</code>`}<span class="sub"><code>${action}</code></span>${override && html`<span class="tag find">outside of its file</span>`}</th><td data-label="When">${timeOf(Date.parse(created_at))}</td>
<td data-label="Who">${actor.email === '' ? actor.id : actor.email}<span class="sub">${reason}</span></td>
<td data-label="What">${(before !== null || after !== null) && html`<details><summary>${before === null ? 'What was made' : after === null ? 'What there was' : 'What changed'}</summary>${name !== null && html`<p class="xs muted">Id <code>${object_id}</code></p>`}${difference(before, after)}</details>`}</td></tr>`;
  };
  return {
    title: 'Changes',
    body: html`${heading('Changes', 'What administrators have changed, the newest first.')}
${
  changes.length === 0
    ? empty('There is no change.')
    : table(
        'Changes, the newest first',
        [numbers('#'), column('Change'), column('When'), column('Who'), column('What')],
        await inSlices(view, changes, row),
      )
}
${nextPage(CHANGES, nextQuery(next), 'Older')}`,
  };
}

interface Status {
  readonly revision: number;
  readonly replicas: readonly {
    readonly id: string;
    readonly this: boolean;
    readonly started_at: string;
    readonly seen_ms_ago: number;
    readonly revision: number;
    readonly lag: number;
  }[];
}

export async function replicasPage({ get }: View): Promise<Shown> {
  const { revision, replicas } = (await get<Status>('/status')).body;
  const row = (
    replica: Status['replicas'][number],
  ): Markup => html`<tr><th scope="row"><code>${replica.id}</code>${replica.this && html` <span class="tag">this one</span>`}</th>
<td data-label="Started">${timeOf(Date.parse(replica.started_at))}</td><td class="num" data-label="Revision">${replica.revision}</td>
<td data-label="State">${replica.lag === 0 ? 'has the newest state' : html`<span class="tag find">${replica.lag === 1 ? 'one change' : `${replica.lag} changes`} behind</span>`}<span class="sub">seen ${Math.round(replica.seen_ms_ago / 1_000)} s ago</span></td></tr>`;
  return {
    title: 'Replicas',
    body: html`${heading('Replicas', html`The policy set has revision ${revision}. A replica loads what it lacks before its next decision.`)}
${table('Replicas', [column('Replica'), column('Started'), numbers('Revision'), column('State')], replicas.map(row))}`,
  };
}
