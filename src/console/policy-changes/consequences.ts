/** What a change of the policies does to decisions, before it is made: the plan of the change and the replay of recorded decisions. */
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import type { Effect } from '../../engine/compile/policy.ts';
import { type Compared, changesShown } from '../history.ts';
import { SHOWN } from '../lists.ts';
import { column, decisionMark, number, numbers, table } from '../marks.ts';
import { peopleWith } from '../people/matching.ts';
import { unlessRefused, type View } from '../view.ts';

/** What operations take that test or replay a change. */
export type Source =
  | Candidate
  | { readonly draft: string }
  | { readonly rollback: { readonly revision: number; readonly owner?: string } }
  | { readonly move: { readonly policy_id: string; readonly position: number } };

/** Policy files in the form of `planPolicies`. */
export interface Candidate {
  readonly files: Readonly<Record<string, string>>;
  readonly owner: string;
  readonly adopt: boolean;
  readonly prune?: boolean;
}

export interface Plan extends Compared {
  readonly revision: number;
  readonly invariants: readonly { readonly name: string }[];
  readonly warnings: readonly { readonly message: string }[];
}

export interface Replayed {
  readonly decisions: number;
  readonly replayed: number;
  readonly grants: number;
  readonly refuses: number;
  readonly lists: { readonly hides: number };
  readonly flips: readonly {
    readonly principal: { readonly sub: string; readonly email: string | null };
    readonly target: { readonly id: string; readonly name: string | null };
    readonly resource_name: string | null;
    readonly recorded: { readonly effect: Effect; readonly policy: { readonly id: string } | null };
    readonly would_be: { readonly effect: Effect; readonly policy: { readonly id: string | null } | null };
    readonly count: number;
  }[];
}

const DAYS = 7;
const FLIPS_SHOWN = 20;

const VERDICTS: Readonly<Record<Plan['verdict'], string>> = {
  equal: 'No decision changes.',
  stricter: 'Stricter: some requests will be denied, and none will be newly allowed.',
  looser: 'Looser: some requests will be allowed, and none will be newly denied.',
  incomparable: 'Some requests will be allowed, and others will be denied.',
  unknown: 'The analysis would take too long, so it is not known which decisions change.',
};

/** Such a change needs a proof of who the user is. */
export const isLooser = ({ verdict }: Pick<Plan, 'verdict'>): boolean => verdict !== 'equal' && verdict !== 'stricter';

/** What a page with a change says first to a user who must sign in again before a change that allows more. */
export const proofNote = ({ isRecent, provePath }: View): Content =>
  !isRecent &&
  note(
    'warn',
    html`A change that allows more is saved only if you have signed in within the last 10 minutes. <a href="${provePath}">Sign in again first</a>, or later: what you enter is kept.`,
  );

export const weekAgo = (): string => new Date(Date.now() - DAYS * 24 * 3600 * 1000).toISOString();

export const planOf = async ({ post }: View, candidate: Candidate): Promise<Plan> =>
  (await post<Plan>('/policies/plan', candidate)).body;

/** Returns null if the user may not know it, or if there are too many decisions. */
export const replayOf = async ({ post }: View, source: Source): Promise<Replayed | null> =>
  (await unlessRefused(post<Replayed>('/policies/replay', { ...source, from: weekAgo() }), 'invalid_request'))?.body ?? null;

/** The operations find so many of the people behind the examples of a plan. */
const EXAMPLES_LOOKED_UP = 10;

export async function consequencesOf(view: View, plan: Plan, replayed: Replayed | null): Promise<Markup> {
  const examples = plan.changes.flatMap(({ flips }) => flips ?? []).slice(0, EXAMPLES_LOOKED_UP);
  const found = await Promise.all(
    examples.map(async ({ subjects }) => [JSON.stringify(subjects), await peopleWith(view, subjects)] as const),
  );
  const people = new Map(found);
  return html`<section class="stack tight" aria-labelledby="consequences"><h2 id="consequences">What this changes</h2>
${note(plan.verdict === 'equal' ? 'done' : 'warn', VERDICTS[plan.verdict])}
${plan.invariants.length > 0 && note('bad', html`<p>The gateway will refuse the change, because it breaks these invariants:</p><ul>${plan.invariants.map(({ name }) => html`<li>${name}</li>`)}</ul>`)}
${plan.warnings.slice(0, SHOWN).map(({ message }) => note('warn', message))}${plan.warnings.length > SHOWN && html`<p class="muted">${SHOWN} of ${number(plan.warnings.length)} warnings are shown.</p>`}
${plan.changes.length === 0 && html`<p class="muted">Nothing differs from the current policies.</p>`}</section>
${await changesShown(view, plan.changes, (subjects) => people.get(JSON.stringify(subjects)))}
${replayed !== null && replaySection('replay', 'Recent decisions', recentText(replayed), replayed)}`;
}

export function recentText({ decisions, replayed, grants, refuses, lists: { hides } }: Replayed): string {
  if (decisions === 0) return `No decision was recorded in the last ${DAYS} days.`;
  const made = `${number(replayed)} of the ${number(decisions)} decisions of the last ${DAYS} days were made again`;
  const changed = `${number(grants)} would be allowed now, ${number(refuses)} would be denied now`;
  return `${made}: ${grants + refuses === 0 ? 'none would be different' : changed}. ${hiddenText(hides)}`;
}

/** `hides`: how many names that lists have shown would be hidden. */
export const hiddenText = (hides: number): string =>
  hides === 0 ? '' : `Lists would hide ${hides === 1 ? 'one name' : `${number(hides)} names`} that they have shown.`;

export function replaySection(id: string, title: string, text: Content, { flips }: Pick<Replayed, 'flips'>): Markup {
  const row = ({ principal, target, resource_name, recorded, would_be, count }: Replayed['flips'][number]): Markup =>
    html`<tr><th scope="row">${principal.email ?? principal.sub}</th><td data-label="Asked for">${resource_name === null ? 'the target itself' : html`<code>${resource_name}</code>`}<span class="sub">${target.name ?? target.id}</span></td>
<td data-label="Recorded">${decisionMark(recorded.effect, recorded.policy?.id ?? null)}</td><td data-label="After the change">${decisionMark(would_be.effect, would_be.policy === null ? null : 'new')}</td><td class="num" data-label="Times">${number(count)}</td></tr>`;
  return html`<section class="stack tight" aria-labelledby="${id}"><h2 id="${id}">${title}</h2><p>${text}</p>
${flips.length > 0 && table(`${title}: decisions that would change`, [column('Who'), column('Asked for'), column('Recorded'), column('After the change'), numbers('Times')], flips.slice(0, FLIPS_SHOWN).map(row))}
${flips.length > FLIPS_SHOWN && html`<p class="muted">These are the ${FLIPS_SHOWN} most frequent.</p>`}</section>`;
}
