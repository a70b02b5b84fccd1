/** Pages that change something: their fields, what is wrong with them, and how a page says that it was done. */
import type { AppError } from '../base/errors.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import { fieldError, note } from '../browser/page.ts';

export type Form = Readonly<Record<string, string>>;

/** A form that the operation refused. The page shows it again, with what was entered. */
export interface Refused {
  readonly form: Form;
  readonly error: AppError;
}

/**
 * Thrown by an action whose user has not proved who they are within 10 minutes. `kept`: the form, which a page keeps meanwhile; null: the
 * browser goes to the sign-in page and comes back, and the form is lost.
 */
export class ProofNeeded extends Error {
  readonly kept: Form | null;
  constructor(kept: Form | null) {
    super();
    this.kept = kept;
  }
}

/** The fields of forms whose values no page shows. */
const SECRETS: readonly string[] = ['password', 'value'];
export const hasSecret = (form: Form): boolean => SECRETS.some((name) => form[name] !== undefined);

/** Keeps a form while its user signs in again in a different tab. `why`: why that is necessary. */
export const keepingPage = (
  action: string,
  kept: Form,
  provePath: string,
  why: string,
): { readonly title: string; readonly body: Markup } => ({
  title: 'Sign in again',
  body: html`<h1>Sign in again to go on</h1><p>${why} Nothing is saved yet. This page keeps what you entered.</p>
<form class="stack form" method="post" action="${action}">${Object.entries(kept).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`)}
<p class="row"><a class="btn" target="_blank" rel="noopener" href="${provePath}">1. Sign in again, in a new tab</a><button class="btn cta">2. Go on with the change</button></p></form>`,
});

/** A field. `path`: the member that the errors of the operation name, if it differs from `name`. */
export interface Field {
  readonly name: string;
  readonly label: string;
  readonly path?: string;
  readonly hint?: Content;
  readonly required?: boolean;
  readonly type?: 'text' | 'email' | 'password' | 'url';
  readonly autocomplete?: string;
  readonly options?: readonly (readonly [value: string, label: string])[];
  /** Several lines. */
  readonly isLong?: boolean;
  /** How many lines show at first. */
  readonly rows?: number;
  /** What a machine reads, such as a pattern. */
  readonly isCode?: boolean;
  /** Three such fields stand beside each other. */
  readonly isThird?: boolean;
  /** What the code editor of a field with several lines completes, as `elements/editor.js` takes it. */
  readonly words?: Readonly<Record<string, readonly string[]>>;
}

function problemsOf({ name, path = name }: Field, refused: Refused | null): string[] {
  const its = refused?.error.errors?.filter((error) => error.path === path || error.path.startsWith(`${path}.`));
  return its?.map(({ message }) => message) ?? [];
}

function messageOf(one: Field, refused: Refused | null): string | null {
  const [first] = problemsOf(one, refused);
  return first === undefined ? null : `${one.label} ${first}.`;
}

/** The field with what was entered before, or else with `value`. A password is never written into a page. */
export function field(one: Field, refused: Refused | null, value = ''): Markup {
  const { name, label, hint, required = false, type = 'text', autocomplete = 'off', options, isLong = false, words } = one;
  const kind = one.isCode ? 'in code' : 'in';
  const message = messageOf(one, refused);
  const entered = type === 'password' ? '' : (refused?.form[name] ?? value);
  const id = `f-${name}`;
  const about = `${id}-about`;
  const invalid = message === null ? 'false' : 'true';
  // Browsers drop a line break at the start of a textarea.
  const area = html`<textarea class="${kind}" id="${id}" name="${name}" rows="${words === undefined ? (one.rows ?? 4) : 12}" ?required="${required}" aria-invalid="${invalid}" aria-describedby="${about}" spellcheck="false">${/^[\r\n]/.test(entered) ? '\n' : ''}${entered}</textarea>`;
  const input =
    options !== undefined
      ? html`<select class="in" id="${id}" name="${name}" aria-invalid="${invalid}" aria-describedby="${about}">${options.map(([each, text]) => html`<option value="${each}" ?selected="${each === entered}">${text}</option>`)}</select>`
      : isLong
        ? words === undefined
          ? area
          : html`<code-editor data-words="${JSON.stringify(words)}" data-problems="${JSON.stringify(problemsOf(one, refused))}">${area}</code-editor>`
        : html`<input class="${kind}" id="${id}" name="${name}" type="${type}" value="${entered}" ?required="${required}" aria-invalid="${invalid}" aria-describedby="${about}" spellcheck="false" autocomplete="${autocomplete}">`;
  return html`<div class="${one.isThird ? 'field third' : 'field'}"><label for="${id}">${label}</label>${input}
${message === null ? html`<p class="xs muted" id="${about}">${hint}</p>` : fieldError(about, message)}</div>`;
}

/** Whether a field still has the text that the page showed. Browsers send each line break as CR LF. */
export const isAsShown = (entered: string, shown: string): boolean => withLineFeeds(entered) === withLineFeeds(shown);
const withLineFeeds = (text: string): string => text.replaceAll(/\r\n?/g, '\n');

/** A box to check. Its value is `yes`. */
export const box = (name: string, label: Content, isChecked: boolean): Markup =>
  html`<div class="check"><input type="checkbox" id="${`f-${name}`}" name="${name}" value="yes" ?checked="${isChecked}"> <label for="${`f-${name}`}">${label}</label></div>`;

/** Says what was done before the browser came here. `words`: what the page may say, by the `done` of its address. */
export const noteDone = (words: Readonly<Record<string, string>>, done: string): Content =>
  Object.hasOwn(words, done) && note('done', words[done]);

/** What the page says at its top after a refusal: each wrong field, with a link to it. */
export function refusal(refused: Refused | null, fields: readonly Field[]): Content {
  if (refused === null) return null;
  const { error } = refused;
  const wrong = fields.flatMap((each) => {
    const message = messageOf(each, refused);
    return message === null ? [] : [html`<li><a href="${`#f-${each.name}`}">${message}</a></li>`];
  });
  const others = (error.errors ?? []).filter(
    ({ path }) => !fields.some(({ name, path: its = name }) => path === its || path.startsWith(`${its}.`)),
  );
  return note(
    'bad',
    html`<p>${wrong.length > 0 ? 'Nothing was saved. Correct this and try again:' : error.message}</p>
<ul>${wrong}${others.map(({ path, message }) => html`<li><code>${path}</code> ${message}</li>`)}</ul>`,
  );
}

/** A button that sends the form of its page with what it does. */
export const act = (what: string, label: Content, kind: 'cta' | 'danger' | '' = ''): Markup =>
  html`<button class="btn ${kind}" name="do" value="${what}">${label}</button>`;

/** The reason of a change, which the gateway stores with it. */
export const REASON: Field = { name: 'reason', label: 'Reason', hint: 'It is stored with the change. You can leave it out.' };

/** What stands in place of a form that needs a renewed proof; null: the user has given it. */
export const proofFirst = ({ isRecent, provePath }: { readonly isRecent: boolean; readonly provePath: string }): Markup | null =>
  isRecent
    ? null
    : html`<p>To change this, you must have signed in within the last 10 minutes. <a href="${provePath}">Sign in again</a></p>`;

interface Confirmation {
  readonly title: string;
  /** What is lost, and who loses it. */
  readonly losses: readonly Content[];
  readonly action: string;
  /** What the form sends besides `sure`. */
  readonly fields: Form;
  /** A verb and its object. */
  readonly button: string;
  readonly back: string;
  /** What the link back says. */
  readonly keep?: string;
}

/** The page before something is destroyed. Its form is the first one again, with `sure`. */
export function confirmation({ title, losses, action, fields, button, back, keep = 'Cancel' }: Confirmation): {
  readonly title: string;
  readonly body: Markup;
} {
  const lost = losses.filter((loss) => loss !== null && loss !== false);
  return {
    title,
    body: html`<h1>${title}?</h1><ul class="bullets">${lost.map((loss) => html`<li>${loss}</li>`)}</ul>
<form class="stack form" method="post" action="${action}"><input type="hidden" name="sure" value="yes">${Object.entries(fields).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`)}
${field(REASON, null)}<p class="row"><button class="btn danger">${button}</button><a class="btn plain" href="${back}">${keep}</a></p></form>`,
  };
}
