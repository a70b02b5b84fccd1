/** The keys that sign tokens. */
import { invalidRequest } from '../base/errors.ts';
import { html, type Markup } from '../browser/html.ts';
import { note, timeOf } from '../browser/page.ts';
import type { SigningKeyDocument } from '../rest/accounts/contract.ts';
import { act, confirmation, refusal } from './form.ts';
import { column, heading, number, numbers, table } from './marks.ts';
import type { Act, Shown, View } from './view.ts';

export const KEYS = '/console/keys';

export async function keysPage({ get, may, done, refused }: View): Promise<Shown> {
  const { body: keys } = await get<SigningKeyDocument[]>('/keys');
  const row = ({ kid, created_at, retired_at, api_tokens }: SigningKeyDocument): Markup =>
    html`<tr><th scope="row"><code>${kid}</code></th><td data-label="State">${retired_at === null ? html`<span class="tag"><b>signs</b></span>` : html`retired ${timeOf(Date.parse(retired_at))}`}</td>
<td data-label="Made">${timeOf(Date.parse(created_at))}</td><td class="num" data-label="API tokens">${number(api_tokens)}</td></tr>`;
  return {
    title: 'Keys',
    body: html`${heading('Keys', html`The keys that sign tokens, the newest first. Programs verify the tokens with the public keys at <code>/.well-known/jwks.json</code>.`)}
${done === 'rotated' && note('done', 'The new key signs from now on.')}${refusal(refused, [])}
${table('Signing keys', [column('Key'), column('State'), column('Made'), numbers('API tokens that it signed')], keys.map(row))}
<p class="muted">A retired key signs nothing. Sign-ins under it end within 12 hours. API tokens that it signed stay valid until they end or are revoked.</p>
${may('rotateSigningKey') && html`<form class="row" method="post" action="${KEYS}">${act('rotate', 'Make a new key')}</form>`}`,
  };
}

export const changeKeys: Act = async ({ form, send, prove }) => {
  if (form['do'] !== 'rotate') throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
  prove();
  if (form['sure'] !== 'yes')
    return confirmation({
      title: 'Make a new signing key',
      losses: [
        html`Logins over the REST API (<code>POST /api/auth/login</code>) that the present key signed end within 12 hours. Browsers stay signed in.`,
        'API tokens stay valid. If somebody may have copied the present key, revoke them, too.',
      ],
      ...{ action: KEYS, fields: { do: 'rotate' }, button: 'Make the new key', back: KEYS, keep: 'Keep the present key' },
    });
  await send('POST', '/keys/rotate', undefined, { reason: form['reason'] });
  return `${KEYS}?done=rotated`;
};
