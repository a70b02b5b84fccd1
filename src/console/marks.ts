/** Small pieces of markup that several pages of the console show. */
import { type Content, html, type Markup } from '../browser/html.ts';
import type { Effect, PolicySubject } from '../engine/compile/policy.ts';

const CHECK = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M20 6 9 17l-5-5"/></svg>`;
const CROSS = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M18 6 6 18M6 6l12 12"/></svg>`;
const DASH = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M5 12h14"/></svg>`;

/** The effect of a policy. */
export const effectMark = (effect: Effect): Markup =>
  effect === 'allow' ? html`<span class="fx allow">${CHECK}Allow</span>` : html`<span class="fx deny">${CROSS}Deny</span>`;

export const DEFAULT_DENY = html`<span class="fx none">${DASH}Default deny</span>`;

/** A decision: `decidedBy` null means that no policy decided. */
export const decisionMark = (effect: Effect, decidedBy: string | null): Markup =>
  effect === 'deny' && decidedBy === null ? DEFAULT_DENY : effectMark(effect);

/** `emails`: those of users, by id. */
export function subjectMark(
  { subject_type, subject_value }: Pick<PolicySubject, 'subject_type' | 'subject_value'>,
  emails: ReadonlyMap<string, string> = new Map(),
): Markup {
  if (subject_type !== 'user' || subject_value === null)
    return html`<span class="tag">${subject_value === null ? '' : `${subject_type} `}<b>${subject_value ?? subject_type}</b></span>`;
  return html`<span class="tag">user <a href="/console/users/${subject_value}">${emails.get(subject_value) ?? html`<code>${subject_value}</code>`}</a></span>`;
}

export const number = (value: number): string => value.toLocaleString('en');

/** A table that scrolls sideways where it is too wide. `caption`: what it lists, for readers of screens. */
export const table = (
  caption: string,
  columns: readonly Content[],
  rows: Content,
): Markup => html`<div class="table" role="region" aria-label="${caption}" tabindex="0"><table>
<caption class="hidden">${caption}</caption><thead><tr>${columns}</tr></thead><tbody>${rows}</tbody></table></div>`;

export const column = (name: string): Markup => html`<th scope="col">${name}</th>`;
export const numbers = (name: string): Markup => html`<th scope="col" class="num">${name}</th>`;

export const heading = (title: Content, text: Content, actions: Content = null): Markup =>
  html`<div class="head"><div><h1>${title}</h1><p>${text}</p></div>${actions}</div>`;

/** What a list shows that has nothing: why, and what to do. */
export const empty = (text: Content): Markup => html`<p class="empty">${text}</p>`;

/** The link to the next page of a list; nothing if there is none. */
export const nextPage = (path: string, query: URLSearchParams | null, label: string): Content =>
  query !== null && html`<p><a class="btn" href="${`${path}?${query}`}">${label}</a></p>`;

interface Choice {
  readonly name: string;
  readonly label: string;
  readonly options: readonly (readonly [value: string, label: string])[];
}

/** A list to choose from. Its first option stands for no choice. */
export const choice = (
  { name, label, options }: Choice,
  chosen: string | undefined,
): Markup => html`<div class="field"><label for="f-${name}">${label}</label>
<select class="in" id="f-${name}" name="${name}">${options.map(
  ([value, text]) => html`<option value="${value}" ?selected="${value === (chosen ?? '')}">${text}</option>`,
)}</select></div>`;

export const textField = (
  name: string,
  label: string,
  value: string | undefined,
  grow = false,
): Markup => html`<div class="field ${grow ? 'grow' : ''}"><label for="f-${name}">${label}</label>
<input class="in" id="f-${name}" name="${name}" value="${value ?? ''}" spellcheck="false" autocomplete="off"></div>`;

/** The filter of a list. It is part of the address, so that a view can be sent to others. `rare`: fields that few readers need. */
export const filterForm = (path: string, label: string, fields: Content, button = 'Filter', rare: Content = null): Markup =>
  html`<form class="filter" role="search" aria-label="${label}" action="${path}">${fields}<button class="btn">${button}</button>${rare}</form>`;
