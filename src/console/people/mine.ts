/** Pages for everybody: what the signed-in user may use, and how to connect a client to it. They show nothing of others. */
import { type Content, html, type Markup } from '../../browser/html.ts';
import { CLIENTS, filePaths, type McpClient, newText, SDK_TEXTS } from '../../clients/client-files.ts';
import { inSlices, SHOWN } from '../lists.ts';
import { choice, column, empty, filterForm, heading, number, table } from '../marks.ts';
import type { Shown, View } from '../view.ts';

export const MINE = '/console/mine';
export const CONNECT = '/console/connect';

interface Usable {
  readonly target: string;
  readonly endpoint: string;
}

interface OwnAccess extends Usable {
  readonly names: readonly { readonly resource_type: string; readonly resource_name: string }[];
  readonly more: boolean;
}

export async function minePage({ get }: View): Promise<Shown> {
  const { body: targets } = await get<Usable[]>('/auth/access');
  const row = ({ target, endpoint }: Usable): Markup =>
    html`<tr><th scope="row"><a href="/console/mine/${target}">${target}</a></th><td data-label="Endpoint"><code>${endpoint}</code></td></tr>`;
  return {
    title: 'What you may use',
    body: html`${heading('What you may use', 'The targets that policies let you use now.')}
${
  targets.length === 0
    ? empty('No policy lets you use a target. An administrator can make one.')
    : html`${table('Targets that you may use', [column('Target'), column('Endpoint')], targets.map(row))}
<p class="row"><a class="btn cta" href="${CONNECT}">Connect a client</a></p>`
}`,
  };
}

const TYPES = { tool: 'Tools', resource: 'Resources', prompt: 'Prompts' } as const;

export async function ownTargetPage(view: View): Promise<Shown> {
  const { get, id, query } = view;
  const asked = query['skip'] ?? '';
  const skip = /^[0-9]{1,6}$/.test(asked) ? Number(asked) : 0;
  const { target, endpoint, names, more } = (await get<OwnAccess>(`/auth/access/${id}?skip=${skip}&limit=${SHOWN}`)).body;
  const link = (at: number, label: string): Markup => html` <a href="${`${MINE}/${target}?skip=${at}`}">${label}</a>`;
  const others =
    (skip > 0 || more) &&
    html`<p class="muted">Names ${number(skip + 1)} to ${number(skip + names.length)} are shown.${skip > 0 && link(Math.max(0, skip - SHOWN), `Previous ${SHOWN}`)}${more && link(skip + SHOWN, 'Next')}</p>`;
  const section = async ([type, label]: readonly [string, string]): Promise<Content> => {
    const its = names.filter(({ resource_type }) => resource_type === type);
    return (
      its.length > 0 &&
      html`<section class="stack tight" aria-labelledby="${type}"><h2 id="${type}">${label}</h2>
<ul class="names">${await inSlices(view, its, ({ resource_name }) => html`<li><code>${resource_name}</code></li>`)}</ul></section>`
    );
  };
  const sections = await Promise.all(Object.entries(TYPES).map(section));
  return {
    title: target,
    body: html`${heading(target, html`You may use this target at <code>${endpoint}</code>.`)}
${names.length === 0 ? empty('The gateway has not seen what this target offers yet. It does when your client asks for its lists.') : [sections, others]}
<p class="row"><a class="btn cta" href="${`${CONNECT}?target=${target}`}">Connect a client</a><a class="btn plain" href="${MINE}">What you may use</a></p>`,
  };
}

export async function connectPage({ get, query, publicUrl }: View): Promise<Shown> {
  const { body: targets } = await get<Usable[]>('/auth/access');
  const chosen = targets.find(({ target }) => target === query['target']);
  const server = { name: chosen?.target ?? 'gateway', url: chosen?.endpoint ?? `${publicUrl}/mcp`, variable: null };
  const client = (each: McpClient): Markup => html`<details id="${each.id}"><summary>${each.title}</summary>
<p class="sm">Put this into ${filePaths(each).map((path, at) => html`${at > 0 && ' or '}<code>${path}</code>`)}. ${each.next}</p>
<pre class="secret" tabindex="0" aria-label="${`For ${each.title}`}">${newText(each.content(server))}</pre></details>`;
  return {
    title: 'Connect a client',
    body: html`${heading('Connect a client', html`A client needs the address <code>${server.url}</code> and nothing else. It opens a browser, where you sign in.`)}
${filterForm(CONNECT, 'Choose the target', choice({ name: 'target', label: 'Target', options: [['', 'All that you may use'], ...targets.map(({ target }) => [target, target] as const)] }, query['target']), 'Show')}
${CLIENTS.map(client)}
<h2>Your own program</h2><p class="sm">A program without a browser sends a token. <a href="/console/tokens">Make one</a>, and set <code>PORTCULLIS_TOKEN</code> to it.</p>
${SDK_TEXTS.map(({ title, text }) => html`<details><summary>${title}</summary><pre class="secret" tabindex="0" aria-label="${`With the ${title}`}">${text(server)}</pre></details>`)}`,
  };
}
