/** What a page says if somebody else has changed its policy since the page was opened. */
import { AppError } from '../../base/errors.ts';
import { type Content, html } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import type { PolicyJson } from '../../policies/schema.ts';
import type { TargetJson } from '../../targets/document.ts';
import type { Form, Refused } from '../form.ts';
import { column, table } from '../marks.ts';
import { unlessRefused, type View } from '../view.ts';
import { documentIn, fieldsFor, formOf } from './wanted.ts';

interface Change {
  readonly created_at: string;
  readonly actor: { readonly id: string; readonly email: string };
  readonly object_id: string;
}

export const isLate = (refused: Refused | null): boolean => refused?.error.code === 'precondition_failed';

/** `policy`: as it is now. */
export async function lateSection({ get, refused }: View, policy: PolicyJson, targets: readonly TargetJson[]): Promise<Content> {
  if (refused === null || !isLate(refused)) return null;
  const recent = (await unlessRefused(get<Change[]>('/changes?limit=100')))?.body;
  const change = recent?.find(({ object_id }) => object_id === policy.id);
  const by = change === undefined ? null : html` by ${change.actor.email === '' ? change.actor.id : change.actor.email}`;
  const [now, entered] = [shownIn(formOf(policy), targets), enteredIn(refused.form, targets)];
  const rows = [...fieldsFor(targets), { name: 'enabled', label: 'Enabled' }].flatMap(({ name, label }) =>
    entered === null || now[name] === entered[name]
      ? []
      : [
          html`<tr><th scope="row">${label}</th><td data-label="Now"><code>${now[name]}</code></td><td data-label="You entered"><code>${entered[name]}</code></td></tr>`,
        ],
  );
  return html`${note('warn', html`The policy was changed at ${timeOf(Date.parse(change?.created_at ?? policy.updated_at))}${by}. Nothing of yours was saved, and the form keeps what you entered. If you save it now, it replaces that change.`)}
${rows.length > 0 && table('What differs', [column('Field'), column('Now'), column('You entered')], rows)}`;
}

/** null: what was entered cannot be read. */
function enteredIn(form: Form, targets: readonly TargetJson[]): Form | null {
  try {
    return shownIn(formOf(documentIn(form, targets)), targets);
  } catch (error) {
    if (error instanceof AppError) return null;
    throw error;
  }
}

/** The order of subjects means nothing. */
const shownIn = (form: Form, targets: readonly TargetJson[]): Form => ({
  ...form,
  subjects: (form['subjects'] ?? '').split('\n').sort().join('\n'),
  target_id: targets.find(({ id }) => id === form['target_id'])?.name ?? form['target_id'] ?? '',
});
