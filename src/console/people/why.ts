/** Why somebody may or may not use something: the answer for one cell of the access matrix. */
import { invalidRequest } from '../../base/errors.ts';
import { html } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import { type Explanation, walk } from '../log/decision.ts';
import { decisionMark, heading } from '../marks.ts';
import { type Shown, type View, withQuery } from '../view.ts';

export const WHY = '/console/access/why';

/** A subject in the form of `GET /api/policies/access`. */
export const whoOf = (type: string, value: string | null): string => (value === null ? type : `${type}:${value}`);

/** The caller that a row of the matrix stands for. */
function principalOf(who: string): object {
  const [type, value = ''] = who.split(/:(.*)/s);
  if (type === 'everyone') return { role: '' };
  if (type === 'role') return { role: value };
  if (type === 'group') return { role: '', groups: [value] };
  if (type === 'user') return { user: value };
  throw invalidRequest([{ path: 'who', message: 'must be everyone, role:<name>, group:<name> or user:<id or e-mail>' }]);
}

interface Explained extends Explanation {
  readonly principal: { readonly sub: string; readonly email: string | null; readonly enabled: boolean };
  readonly target: { readonly enabled: boolean };
}

export async function whyPage({ post, query }: View): Promise<Shown> {
  const { who = '', target = '', resource_type, resource_name } = query;
  const object = { ...(resource_type && { resource_type }), ...(resource_name && { resource_name }) };
  const { body: answer } = await post<Explained>('/policies/explain', { principal: principalOf(who), target, ...object });
  const { effect, policy, principal, reason, revision } = answer;
  const said = who.startsWith('user:') ? (principal.email ?? principal.sub) : who;
  return {
    title: 'Why?',
    body: html`${heading(html`May ${said} use ${resource_name === undefined ? 'the target' : html`<code>${resource_name}</code>`}?`, html`${decisionMark(effect, policy?.id ?? null)} ${resource_type} of ${target}`)}
${!principal.enabled && note('warn', 'The user or their provider is disabled, or no token that the user has or can get reaches the target. So the gateway refuses every request, whatever the policies say.')}
${!answer.target.enabled && note('warn', 'The target is disabled. So the gateway forwards nothing to it, whatever the policies say.')}
${
  reason === 'not_canonical'
    ? html`<p>The URI is ambiguous, so the gateway refuses it before it evaluates any policy.</p>`
    : reason === 'error'
      ? html`<p>The evaluation failed, so the gateway refuses it.</p>`
      : walk(answer, `The policies of revision ${revision}`, 'This is the decision of the policies as they are now.')
}
<p class="row"><a class="btn" href="${withQuery('/console/access', { who })}">All that ${said} can use</a><a class="btn plain" href="${withQuery('/console/access', { target })}">The matrix</a></p>`,
  };
}
