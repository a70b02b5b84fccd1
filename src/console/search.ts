/** One search over what the user may see. It works without a script. */
import { UUID } from '../base/validate.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import type { OrderedPolicyJson } from '../policies/schema.ts';
import type { TargetJson } from '../targets/document.ts';
import { effectMark, empty, filterForm, heading, textField } from './marks.ts';
import { type Shown, unlessRefused, type View, withQuery } from './view.ts';

export const SEARCH = '/console/search';
const SHOWN = 10;
/** The longest text that the filter of policies takes. */
const LONGEST = 256;

const link = (href: string, text: Content, about: Content): Markup =>
  html`<li><a href="${href}">${text}</a> <span class="muted">${about}</span></li>`;

export async function searchPage(view: View): Promise<Shown> {
  const text = [...(view.query['q'] ?? '')].slice(0, LONGEST).join('').trim();
  const found = text === '' ? [] : (await Promise.all([byId(view, text), policies(view, text), targets(view, text)])).flat();
  const more = text === '' ? [] : elsewhere(view, text);
  return {
    title: 'Search',
    body: html`${heading('Search', 'Policies and targets by a part of their name, and decisions, policies, users and targets by id.')}
${filterForm(SEARCH, 'Search the gateway', textField('q', 'Name or id', text, true), 'Search')}
${text !== '' && (found.length === 0 ? empty('No policy or target has this name, and nothing that you may see has this id.') : html`<ul class="attention">${found}</ul>`)}
${more.length > 0 && html`<section class="stack tight" aria-labelledby="more"><h2 id="more">Search on</h2><ul class="attention">${more}</ul></section>`}`,
  };
}

/** Returns what has this id. */
async function byId({ get }: View, text: string): Promise<Markup[]> {
  if (!UUID.test(text)) return [];
  const found = await Promise.all(
    (
      [
        ['logs', 'log', 'decision'],
        ['policies', 'policies', 'policy'],
        ['users', 'users', 'user'],
        ['targets', 'targets', 'target'],
      ] as const
    ).map(async ([rest, page, what]) =>
      (await unlessRefused(get(`/${rest}/${text}`))) === null ? [] : [link(`/console/${page}/${text}`, text, what)],
    ),
  );
  return found.flat();
}

async function policies({ get }: View, text: string): Promise<Markup[]> {
  const found = await unlessRefused(
    get<OrderedPolicyJson[]>(withQuery('/policies/order', { text, limit: String(SHOWN) })),
    'invalid_request',
  );
  const items = (found?.body ?? []).map(
    ({ position, policy: { id, name, effect } }) =>
      html`<li>${effectMark(effect)} <a href="/console/policies/${id}">${name}</a> <span class="muted">policy, number ${position}</span></li>`,
  );
  const all = link(withQuery('/console/policies', { text }), 'All policies that match', '');
  return found?.next === null || found === null ? items : [...items, all];
}

async function targets({ get }: View, text: string): Promise<Markup[]> {
  const all = (await unlessRefused(get<TargetJson[]>('/targets')))?.body ?? [];
  return all
    .filter(({ name }) => name.includes(text.toLowerCase()))
    .slice(0, SHOWN)
    .map(({ id, name }) => link(`/console/targets/${id}`, name, 'target'));
}

/** Returns links to searches that read more than this page should. */
function elsewhere({ may }: View, text: string): Markup[] {
  const log = may('listDecisions')
    ? [
        link(
          withQuery('/console/log', { resource_name: text }),
          'Decisions',
          'about the tool, resource or prompt with this name',
        ),
        link(withQuery('/console/log', { resource_name_prefix: text }), 'Decisions', 'about names that begin so'),
      ]
    : [];
  if (!may('listAccess') || !text.includes('@')) return log;
  return [link(withQuery('/console/access', { who: `user:${text}` }), 'Access', 'of the user with this e-mail'), ...log];
}
