/** One search over what the user may see. It works without a script. */
import { UUID } from '../base/validate.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import type { OrderedPolicyJson } from '../policies/schema.ts';
import type { TargetJson } from '../targets/document.ts';
import type { User } from '../users/user-store.ts';
import { effectMark, empty, filterForm, heading, textField } from './marks.ts';
import { type Shown, unlessRefused, type View, withQuery } from './view.ts';

export const SEARCH = '/console/search';
const SHOWN = 10;
/** The search looks at what so many targets have listed. */
const TARGETS_LOOKED_AT = 50;
/** The longest text that the filter of policies takes. */
const LONGEST = 256;

interface Catalogue {
  readonly names: readonly { readonly resource_type: string; readonly resource_name: string }[];
}

const link = (href: string, text: Content, about: Content): Markup =>
  html`<li><a href="${href}">${text}</a> <span class="muted">${about}</span></li>`;

const textOf = ({ query }: View): string => [...(query['q'] ?? '')].slice(0, LONGEST).join('').trim();

async function find(view: View, text: string): Promise<Markup[]> {
  if (text === '') return [];
  const all = (await unlessRefused(view.get<TargetJson[]>('/targets')))?.body ?? [];
  const rest = [byId(view, text), policies(view, text), users(view, text), names(view, all, text)];
  return [...pages(view, text), ...targets(all, text), ...(await Promise.all(rest)).flat()];
}

/** What the field in the menu shows while the user types. */
export async function foundBeside(view: View): Promise<Content> {
  const text = textOf(view);
  const found = [...(await find(view, text)), ...elsewhere(view, text)];
  return found.length === 0 ? html`<p class="muted">Nothing that you may see has this name or id.</p>` : html`<ul>${found}</ul>`;
}

export async function searchPage(view: View): Promise<Shown> {
  const text = textOf(view);
  const found = await find(view, text);
  const more = text === '' ? [] : elsewhere(view, text);
  return {
    title: 'Search',
    body: html`${heading('Search', 'Pages, policies, targets, users and tools by a part of their name, and decisions, policies, users and targets by id.')}
${filterForm(SEARCH, 'Search the gateway', textField('q', 'Name or id', text, true), 'Search')}
${text !== '' && (found.length === 0 ? empty('Nothing that you may see has this name or id.') : html`<ul class="attention">${found}</ul>`)}
${more.length > 0 && html`<section class="stack tight" aria-labelledby="more"><h2 id="more">Search on</h2><ul class="attention">${more}</ul></section>`}`,
  };
}

function pages(view: View, text: string): Markup[] {
  const found = view.pages.filter(({ label }) => label.toLowerCase().includes(text.toLowerCase()));
  return found.map(({ path, label }) => link(path, label, 'page'));
}

const targets = (all: readonly TargetJson[], text: string): Markup[] =>
  all
    .filter(({ name }) => name.includes(text.toLowerCase()))
    .slice(0, SHOWN)
    .map(({ id, name }) => link(`/console/targets/${id}`, name, 'target'));

async function users({ get }: View, text: string): Promise<Markup[]> {
  const asked = get<Pick<User, 'id' | 'email'>[]>(withQuery('/users', { text, limit: String(SHOWN) }));
  const found = (await unlessRefused(asked, 'invalid_request'))?.body ?? [];
  return found.map(({ id, email }) => link(`/console/users/${id}`, email ?? id, 'user'));
}

/**
 * Returns the tools, resources and prompts that targets have listed to this replica. The targets are asked one by one, until enough is found:
 * together they may have listed far more names than a search should read.
 */
async function names({ get }: View, all: readonly TargetJson[], text: string): Promise<Markup[]> {
  const found: Markup[] = [];
  for (const { id, name } of all.slice(0, TARGETS_LOOKED_AT)) {
    const answer = await unlessRefused(
      get<Catalogue>(withQuery(`/targets/${id}/catalogue`, { text, limit: `${SHOWN}` })),
      'invalid_request',
    );
    for (const { resource_type, resource_name } of answer?.body.names.slice(0, SHOWN) ?? [])
      found.push(link(`/console/targets/${id}`, html`<code>${resource_name}</code>`, `${resource_type} of ${name}`));
    if (found.length >= SHOWN) break;
  }
  return found.slice(0, SHOWN);
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
