/** Targets, and one target with its health and its credentials. */
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import type { TargetCheck } from '../../mcp/check.ts';
import type { CredentialJson } from '../../targets/credentials.ts';
import type { TargetJson } from '../../targets/document.ts';
import { act, noteDone, refusal } from '../form.ts';
import { inSlices, partOf, SHOWN } from '../lists.ts';
import { column, empty, heading, nextPage, table } from '../marks.ts';
import { nextQuery, type Shown, unlessRefused, type View, withQuery } from '../view.ts';

export const TARGETS = '/console/targets';

const place = (target: TargetJson): Markup =>
  target.transport === 'stdio'
    ? html`<code>${[target.command, ...target.args].join(' ')}</code>`
    : html`<code>${target.url}</code>`;

const state = ({ enabled }: TargetJson): Content => (enabled ? 'enabled' : html`<span class="tag find">disabled</span>`);

/** The list asks for the health of so many targets. */
const HEALTH_ASKED = 50;

const UNWELL: Readonly<Record<string, string>> = { failing: 'fails', suspended: 'fails, is not asked for now' };

export async function targetsPage(view: View): Promise<Shown> {
  const { get, query, may, done, publicUrl } = view;
  const { body: targets, next } = await get<TargetJson[]>(withQuery('/targets', { ...query, limit: '100' }));
  const asked = targets.filter(({ enabled }) => enabled).slice(0, HEALTH_ASKED);
  const health = new Map(
    await Promise.all(
      asked.map(async ({ id }) => [id, (await unlessRefused(get<Health>(`/targets/${id}/health`)))?.body.status] as const),
    ),
  );
  const unwell = ({ id }: TargetJson): Content => {
    const words = UNWELL[health.get(id) ?? ''];
    return words !== undefined && html` <span class="tag find">${words}</span>`;
  };
  const row = (
    target: TargetJson,
  ): Markup => html`<tr><th scope="row"><a href="/console/targets/${target.id}">${target.name}</a><span class="sub">${place(target)}</span></th>
<td data-label="Transport">${target.transport}</td><td data-label="Endpoint"><code>${publicUrl}/mcp/${target.name}</code></td><td data-label="State">${state(target)}${unwell(target)}</td></tr>`;
  return {
    title: 'Targets',
    body: html`${heading('Targets', html`The MCP servers behind the gateway. Clients reach each at its endpoint, and all of them at <code>${publicUrl}/mcp</code>.`, may('createTarget') && html`<a class="btn cta" href="/console/targets/new">Add a target</a>`)}
${done === 'deleted' && note('done', 'The target is deleted.')}
${
  targets.length === 0
    ? empty(
        may('createTarget')
          ? html`There is no target yet. <a href="/console/targets/new">Add a target</a> puts a server behind the gateway.`
          : 'There is no target yet. An administrator can add one.',
      )
    : table(
        'Targets',
        [column('Target'), column('Transport'), column('Endpoint'), column('State')],
        await inSlices(view, targets, row),
      )
}
${nextPage(TARGETS, nextQuery(next), 'Next 100')}`,
  };
}

interface Health {
  readonly replica: string;
  readonly status: string;
  readonly last_success_at: string | null;
  readonly last_fault: { readonly message: string; readonly at: string | null; readonly stderr?: string | null } | null;
  readonly retry_at: string | null;
}

const HEALTH: Readonly<Record<string, string>> = {
  ok: 'works',
  unknown: 'not asked yet',
  failing: 'fails',
  suspended: 'fails, and is not asked for now',
};

const timeOrNever = (iso: string | null): Content => (iso === null ? 'never' : timeOf(Date.parse(iso)));

interface Catalogue {
  readonly names: readonly { readonly resource_type: string; readonly resource_name: string; readonly seen_at: string }[];
  readonly names_count: number;
}

async function catalogueSection(view: View, { names, names_count }: Catalogue): Promise<Markup> {
  const row = ({ resource_type, resource_name, seen_at }: Catalogue['names'][number]): Markup =>
    html`<tr><th scope="row"><code>${resource_name}</code></th><td data-label="Type">${resource_type}</td><td data-label="Last listed">${timeOf(Date.parse(seen_at))}</td></tr>`;
  return html`<section class="stack tight" aria-labelledby="catalogue"><h2 id="catalogue">What it offers</h2>
${
  names.length === 0
    ? html`<p class="muted">The target has listed nothing since this replica started. It lists what it offers when a client asks for it, or when you allow tools.</p>`
    : table('What the target offers', [column('Name'), column('Type'), column('Last listed')], await inSlices(view, names, row))
}
${names_count > names.length && html`<p class="muted">${names.length} of ${names_count} names are shown. The <a href="/console/search">search</a> finds the others by a part of their name.</p>`}</section>`;
}

const DONE: Readonly<Record<string, string>> = {
  saved: 'The target is saved.',
  enabled: 'The target is enabled.',
  disabled: 'The target is disabled. Nobody can use it.',
  recycled: 'The sessions are being reconnected to the target.',
  allowed: 'The policy is made. Users whom it names can use these tools from now on.',
};

/** `said`: what stands at the top besides. */
export async function targetPage(view: View, said: Content = null): Promise<Shown> {
  const { get, id, may, done, refused, publicUrl } = view;
  const [{ body: target }, health, credentials, catalogue] = await Promise.all([
    get<TargetJson>(`/targets/${id}`),
    unlessRefused(get<Health>(`/targets/${id}/health`)),
    unlessRefused(get<CredentialJson[]>(`/targets/${id}/credentials`)),
    unlessRefused(get<Catalogue>(`/targets/${id}/catalogue?limit=${SHOWN}`)),
  ]);
  return {
    title: target.name,
    body: html`${heading(target.name, target.description ?? (target.transport === 'stdio' ? 'A program that the gateway runs.' : 'A server that the gateway reaches over HTTP.'), may('checkTarget') && target.enabled && html`<form method="post" action="${`${TARGETS}/${id}`}">${act('check', 'Check')}</form>`)}
${noteDone(DONE, done)}${refusal(refused, [])}${said}
${health?.body.last_fault && faultNote(health.body)}
<dl class="dl"><dt>State</dt><dd>${state(target)}</dd><dt>Transport</dt><dd>${target.transport}</dd><dt>Server</dt><dd>${place(target)}</dd>
<dt>Endpoint</dt><dd><code>${publicUrl}/mcp/${target.name}</code></dd>
${health !== null && html`<dt>Health</dt><dd>${HEALTH[health.body.status] ?? health.body.status}</dd><dt>Last success</dt><dd>${timeOrNever(health.body.last_success_at)} <span class="muted">at the replica <code>${health.body.replica}</code></span></dd>`}
<dt>Id</dt><dd><code>${target.id}</code></dd></dl>
${catalogue !== null && (await catalogueSection(view, catalogue.body))}
${credentials !== null && (await credentialsSection(view, credentials.body))}
${actions(target, may)}`,
  };
}

/** What a check found. */
export function checkNote({ fault, server, protocol_version, tools, more, has_resources, has_prompts }: TargetCheck): Markup {
  if (fault !== null)
    return note(
      'bad',
      html`<p>The target does not work: ${fault.message}</p>${fault.stderr !== null && html`<code class="secret">${fault.stderr}</code>`}`,
    );
  const also = [has_resources ? 'resources' : '', has_prompts ? 'prompts' : ''].filter((each) => each !== '');
  return note(
    'done',
    html`The target works. It ${server === null ? 'gives no name' : html`says that it is ${server.name} ${server.version}`}, speaks revision ${protocol_version}, and has ${more && 'more than '}${tools.length} tools${also.length > 0 && `, and also ${also.join(' and ')}`}.`,
  );
}

/** First where one goes from here, then what changes the target. */
function actions({ id, name, enabled }: TargetJson, may: View['may']): Content {
  const path = `${TARGETS}/${id}`;
  const link = (operation: string, to: string, label: string, kind: 'danger' | '' = ''): Content =>
    may(operation) && html`<a class="btn ${kind}" href="${`${path}/${to}`}">${label}</a>`;
  return html`<p class="row">${may('checkTarget') && may('createPolicy') && html`<a class="btn" href="${`${path}/allow`}">Allow tools</a>`}<a class="btn" href="${withQuery('/console/connect', { target: name })}">Connect a client</a>
<a class="btn" href="${withQuery('/console/policies', { target_id: id })}">Its policies</a><a class="btn" href="${withQuery('/console/log', { target_name: name })}">Its decisions</a>${may('listSessions') && html`<a class="btn" href="${withQuery('/console/sessions', { target_id: id })}">Sessions</a>`}<a class="btn plain" href="${TARGETS}">All targets</a></p>
${
  may('updateTarget') &&
  html`<form class="row" method="post" action="${path}">${link('createTarget', 'edit', 'Edit')}${link('createTarget', 'settings', 'Settings')}${link('setDefaultCredential', 'credentials', 'Change credentials')}${may('recycleSessions') && act('recycle', 'Reconnect its sessions')}${act(enabled ? 'disable' : 'enable', enabled ? 'Disable' : 'Enable')}${link('deleteTarget', 'delete', 'Delete', 'danger')}</form>`
}`;
}

const faultNote = ({ last_fault, retry_at }: Health): Markup =>
  note(
    'warn',
    html`<p>${last_fault?.message}</p><p class="sm">${timeOrNever(last_fault?.at ?? null)}${retry_at !== null && html`. The gateway asks it again at ${timeOrNever(retry_at)}`}</p>${
      last_fault?.stderr && html`<code class="secret">${last_fault.stderr}</code>`
    }`,
  );

async function credentialsSection(view: View, all: readonly CredentialJson[]): Promise<Markup> {
  const { items: credentials, others } = partOf(all, view, `${TARGETS}/${view.id}`, 'credentials');
  const row = ({
    subject_type,
    subject_value,
    type,
    name,
    usable,
    updated_at,
  }: CredentialJson): Markup => html`<tr><th scope="row">${subject_type}${subject_value !== null && html` ${subject_value}`}</th>
<td data-label="Type">${type}</td><td data-label="Name">${name}</td><td data-label="State">${usable ? 'usable' : html`<span class="tag find">set it again</span>`}</td><td data-label="Updated">${timeOrNever(updated_at)}</td></tr>`;
  return html`<section class="stack tight" aria-labelledby="credentials"><h2 id="credentials">Credentials</h2>
${
  credentials.length === 0
    ? html`<p class="muted">The gateway has no credential for this target.</p>`
    : table(
        'Credentials',
        [column('For'), column('Type'), column('Name'), column('State'), column('Updated')],
        await inSlices(view, credentials, row),
      )
}${others}</section>`;
}
