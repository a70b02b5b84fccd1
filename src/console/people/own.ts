/** Pages for everybody about their own: API tokens, and what was denied. */
import { invalidRequest } from '../../base/errors.ts';
import { html, type Markup } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import { act, box, confirmation, type Field, field, proofFirst, refusal } from '../form.ts';
import { inSlices, partOf } from '../lists.ts';
import { column, empty, heading, nextPage, table } from '../marks.ts';
import { type Act, nextQuery, type Shown, type View, withQuery } from '../view.ts';

export const TOKENS = '/console/tokens';
export const DENIED = '/console/denied';
const DAY_MS = 24 * 60 * 60_000;

interface Token {
  readonly id: string;
  readonly name: string;
  readonly created_at: string;
  readonly expires_at: string | null;
  readonly limits: {
    readonly rights: readonly string[];
    readonly owner: string | null;
    readonly endpoints: readonly string[];
  } | null;
}

interface OwnRights {
  readonly rights: readonly { readonly right: string; readonly owner: string | null }[];
}

const LIFETIMES: readonly (readonly [string, string])[] = [
  ['90', '90 days'],
  ['30', '30 days'],
  ['365', '1 year'],
  ['', 'until it is revoked'],
];
const FIELDS: readonly Field[] = [
  { name: 'name', label: 'Name', required: true, hint: 'For you: which program has it.' },
  { name: 'days', path: 'expires_at', label: 'Valid for', options: LIFETIMES },
  {
    name: 'endpoints',
    path: 'limits.endpoints',
    label: 'Targets',
    isLong: true,
    hint: 'The names of the targets that the token may use, one per line. * stands for every target. Without targets and rights, the token has no limits.',
  },
];
const OWNER: Field = {
  name: 'owner',
  path: 'limits.owner',
  label: 'Owner',
  hint: 'Rights on policies cover only this owner. Empty: every owner that you have.',
};

const limitsOf = ({ limits }: Token): string =>
  limits === null
    ? 'none'
    : [...limits.endpoints.map((name) => (name === '*' ? 'every target' : name)), ...limits.rights, limits.owner ?? '']
        .filter((text) => text !== '')
        .join(', ');

export async function tokensPage(view: View): Promise<Shown> {
  const { get, refused, done } = view;
  const [{ body: all }, { body: own }] = await Promise.all([get<Token[]>('/auth/tokens'), get<OwnRights>('/auth/rights')]);
  const { items: tokens, others } = partOf(all, view, TOKENS, 'tokens');
  const rights = [...new Set(own.rights.map(({ right }) => right))];
  const row = (token: Token): Markup =>
    html`<tr><th scope="row">${token.name}<span class="sub"><code>${token.id}</code></span></th><td data-label="Limits">${limitsOf(token)}</td><td data-label="Made">${timeOf(Date.parse(token.created_at))}</td><td data-label="Ends">${token.expires_at === null ? 'never' : timeOf(Date.parse(token.expires_at))}</td>
<td class="end"><form method="post" action="${TOKENS}"><input type="hidden" name="id" value="${token.id}">${act('revoke', html`Revoke<span class="hidden"> token ${token.name}</span>`, 'danger')}</form></td></tr>`;
  return {
    title: 'Your tokens',
    body: html`${heading('Your tokens', 'Programs that cannot open a browser send a token. It acts for you.')}
${done === 'revoked' && note('done', 'The token is revoked.')}${refusal(refused, [...FIELDS, OWNER])}
${tokens.length === 0 ? empty('You have no token.') : table('Your tokens', [column('Token'), column('Limits'), column('Made'), column('Ends'), html`<th scope="col"><span class="hidden">Action</span></th>`], await inSlices(view, tokens, row))}${others}
<h2>Make a token</h2>${
      proofFirst(view) ??
      html`<form class="stack form" method="post" action="${TOKENS}">${FIELDS.map((each) => field(each, refused, each.options?.[0]?.[0] ?? ''))}
${
  rights.length > 0 &&
  html`<fieldset><legend>Rights</legend>${rights.map((right) => box(`right-${right}`, html`<code>${right}</code>`, refused?.form[`right-${right}`] === 'yes'))}</fieldset>${field(OWNER, refused)}`
}
<p class="row">${act('make', 'Make the token', 'cta')}</p></form>`
    }`,
  };
}

export const changeTokens: Act = async ({ form, get, send, prove }) => {
  const { do: what, id = '', sure, name, days = '', owner = '' } = form;
  if (what === 'revoke') {
    const found = (await get<Token[]>('/auth/tokens')).body.find((token) => token.id === id);
    if (found === undefined) throw invalidRequest([{ path: 'id', message: 'is no token of yours' }]);
    if (sure !== 'yes')
      return confirmation({
        title: `Revoke ${found.name}`,
        losses: [
          'Programs that use it are refused from then on, and their open streams and calls end.',
          'It cannot be brought back.',
        ],
        ...{ action: TOKENS, fields: { do: 'revoke', id }, button: `Revoke token ${found.name}`, back: TOKENS },
      });
    await send('DELETE', `/auth/tokens/${id}`, undefined, { reason: form['reason'] });
    return `${TOKENS}?done=revoked`;
  }
  if (what !== 'make') throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
  // The thief of a session must not be able to make a token that outlives it.
  prove();
  if (!LIFETIMES.some(([each]) => each === days))
    throw invalidRequest([{ path: 'expires_at', message: 'must be one of the list' }]);
  const endpoints = (form['endpoints'] ?? '').split(/\s+/).filter((each) => each !== '');
  const rights = Object.keys(form).flatMap((each) => (each.startsWith('right-') ? [each.slice('right-'.length)] : []));
  const limits =
    endpoints.length + rights.length === 0
      ? null
      : {
          ...(rights.length > 0 ? { rights } : {}),
          ...(endpoints.length > 0 ? { endpoints } : {}),
          ...(owner === '' ? {} : { owner }),
        };
  if (limits === null && owner !== '') throw invalidRequest([{ path: 'limits.owner', message: 'needs a right on policies' }]);
  const { body } = await send<{ token: string; api_token: Token }>('POST', '/auth/tokens', {
    name,
    expires_at: days === '' ? null : new Date(Date.now() + Number(days) * DAY_MS).toISOString(),
    limits,
  });
  return {
    status: 201,
    title: 'Your new token',
    body: html`${heading(html`The token ${body.api_token.name} is made`, 'Copy it now. It is not shown again.')}
<code class="secret">${body.token}</code><p>Its limits: ${limitsOf(body.api_token)}.</p><p><a class="btn plain" href="${TOKENS}">Your tokens</a></p>`,
  };
};

interface Denial {
  readonly id: string;
  readonly created_at: string;
  readonly target_name: string;
  readonly method: string;
  readonly resource_type: string | null;
  readonly resource_name: string | null;
}

export async function deniedPage(view: View): Promise<Shown> {
  const { get, query } = view;
  const { body: denials, next } = await get<Denial[]>(withQuery('/logs/denials', { ...query, limit: '100' }));
  const row = ({ id, created_at, target_name, method, resource_type, resource_name }: Denial): Markup =>
    html`<tr><th scope="row"><code>${resource_name ?? method}</code><span class="sub">${resource_type}</span></th><td data-label="Target">${target_name}</td><td data-label="When">${timeOf(Date.parse(created_at))}</td><td data-label="Decision"><code>${id}</code></td></tr>`;
  return {
    title: 'What you were denied',
    body: html`${heading('What you were denied', 'To get access, give an administrator the id of the decision.')}
${
  denials.length === 0
    ? empty(next === null ? 'Nothing was denied to you.' : 'Nothing was found so far. The search stopped early.')
    : table(
        'What you were denied, the newest first',
        [column('Asked for'), column('Target'), column('When'), column('Decision')],
        await inSlices(view, denials, row),
      )
}
${nextPage(DENIED, nextQuery(next), denials.length === 0 ? 'Search on' : 'Older')}`,
  };
}
