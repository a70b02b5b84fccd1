/** The first page: decisions over time, what needs attention, and what to do next on an empty gateway. */
import { type Content, html, type Markup } from '../browser/html.ts';
import type { CountsJson } from '../rest/audit/contract.ts';
import type { CredentialJson } from '../targets/credentials.ts';
import type { TargetJson } from '../targets/document.ts';
import { decisionChart } from './chart.ts';
import { FINDINGS, findingsBeside } from './findings.ts';
import { chainConcern, verificationOf } from './log/chain.ts';
import { DEMAND } from './log/demand.ts';
import { empty, heading } from './marks.ts';
import { type Shown, unlessRefused, type View, withQuery } from './view.ts';

export const OVERVIEW = '/console/overview';
/** The page looks at the health and the credentials of so many targets. */
const TARGETS_LOOKED_AT = 50;
const SHOWN = 5;
const FINDINGS_MS = 150;

const RANGES = {
  day: ['24 hours', 24, 1],
  week: ['7 days', 7 * 24, 6],
  month: ['31 days', 31 * 24, 24],
} as const;

export async function overviewPage(view: View): Promise<Shown> {
  const { get, query } = view;
  const range = query['range'] === 'week' || query['range'] === 'month' ? query['range'] : 'day';
  const [, hours, step] = RANGES[range];
  const from = new Date(Date.now() - (hours - 1) * 60 * 60_000).toISOString();
  const [counted, targets, policies] = await Promise.all([
    unlessRefused(get<CountsJson>(withQuery('/logs/counts', { by: 'hour', from }))),
    unlessRefused(get<TargetJson[]>('/targets')),
    unlessRefused(get<unknown[]>('/policies/order?limit=1')),
  ]);
  const counts = counted?.body;
  return {
    title: 'Overview',
    body: html`${heading('Overview', 'What the gateway decided, and what needs your attention.')}
${nextSteps(view, targets?.body ?? null, policies?.body ?? null, counts ?? null)}
${
  counts !== undefined &&
  html`<section class="stack tight" aria-labelledby="decisions"><div class="row"><h2 class="grow" id="decisions">Decisions</h2>${Object.entries(
    RANGES,
  ).map(([name, [words]]) =>
    name === range
      ? html`<a class="btn" href="${withQuery(OVERVIEW, { range: name })}" aria-current="true">${words}</a>`
      : html`<a class="btn plain" href="${withQuery(OVERVIEW, { range: name })}">${words}</a>`,
  )}</div>${decisionChart(counts, step)}
<p class="row">${view.may('listDeniedDemand') && html`<a class="btn plain" href="${DEMAND}">Denied requests</a>`}<a class="btn plain" href="/console/log">Audit log</a></p></section>`
}
<section class="stack tight" aria-labelledby="attention"><h2 id="attention">Needs attention</h2>
${await attention(view, targets?.body ?? [], (counts?.counts.length ?? 0) > 0)}</section>`,
  };
}

interface Step {
  readonly text: string;
  readonly path: string;
  readonly operation: string;
  readonly isDone: boolean;
}

/** Returns nothing if the gateway has targets, policies and decisions, or the user cannot see whether it has. */
function nextSteps(
  { may }: View,
  targets: readonly TargetJson[] | null,
  policies: readonly unknown[] | null,
  counts: CountsJson | null,
): Content {
  if (targets === null || policies === null || counts === null) return null;
  const [first] = targets;
  const steps: readonly Step[] = [
    { text: 'Add a target', path: '/console/targets/new', operation: 'createTarget', isDone: first !== undefined },
    {
      text: 'Allow its tools with a first policy',
      path: first === undefined ? '/console/targets' : `/console/targets/${first.id}/allow`,
      operation: 'createPolicy',
      isDone: policies.length > 0,
    },
    { text: 'Connect a client', path: '/console/connect', operation: 'listOwnTargets', isDone: counts.counts.length > 0 },
  ];
  // A quiet gateway is not a new one.
  if (steps[0]?.isDone && steps[1]?.isDone) return null;
  const current = steps.find(({ isDone }) => !isDone);
  return html`<section class="panel" aria-labelledby="next"><h2 id="next">What to do next</h2>
<ol class="steps">${steps.map(({ text, path, operation, isDone }) =>
    isDone
      ? html`<li class="muted">${text} <span class="tag">done</span></li>`
      : text === current?.text && may(operation)
        ? html`<li><a class="btn cta" href="${path}">${text}</a></li>`
        : html`<li>${text}</li>`,
  )}</ol></section>`;
}

interface Health {
  readonly status: 'unknown' | 'ok' | 'failing' | 'suspended';
  readonly last_fault: { readonly message: string } | null;
}

interface Status {
  readonly replicas: readonly { readonly id: string; readonly lag: number }[];
}

interface Connection {
  readonly target: string;
  readonly problem: string | null;
}

const line = (what: Content, why: Content): Markup => html`<li><span class="tag find">${what}</span> ${why}</li>`;
const few = <T>(items: readonly T[], show: (item: T) => Markup): Content => [
  items.slice(0, SHOWN).map(show),
  items.length > SHOWN && html`<li class="muted">and ${items.length - SHOWN} more</li>`,
];

/** `isUsed`: the gateway has made decisions lately. */
async function attention(view: View, targets: readonly TargetJson[], isUsed: boolean): Promise<Content> {
  const { get } = view;
  const looked = targets.filter(({ enabled }) => enabled).slice(0, TARGETS_LOOKED_AT);
  const of = <T>(what: string) =>
    Promise.all(
      looked.map(async (target) => ({ target, its: (await unlessRefused(get<T>(`/targets/${target.id}/${what}`)))?.body })),
    );
  const [health, credentials, status, connections, verified, findings] = await Promise.all([
    of<Health>('health'),
    of<CredentialJson[]>('credentials'),
    unlessRefused(get<Status>('/status')),
    unlessRefused(get<Connection[]>('/connections')),
    verificationOf(view),
    findingsBeside(view, FINDINGS_MS),
  ]);
  const link = ({ id, name }: TargetJson): Markup => html`<a href="/console/targets/${id}">${name}</a>`;
  const failing = health.filter(({ its }) => its?.status === 'failing' || its?.status === 'suspended');
  const stopped = credentials.filter(({ its }) => its?.some(({ usable }) => !usable));
  const behind = status?.body.replicas.filter(({ lag }) => lag > 0) ?? [];
  const broken = connections?.body.filter(({ problem }) => problem !== null) ?? [];
  const wrong = findings?.filter(({ severity }) => severity !== 'info') ?? [];
  const chain = verified === null || (verified.verification === null && !isUsed) ? null : chainConcern(verified);
  const lines = [
    chain !== null && line('Audit chain', chain),
    few(failing, ({ target, its }) => line('Target fails', html`${link(target)} ${its?.last_fault?.message}`)),
    few(stopped, ({ target }) =>
      line('Credential to set again', html`${link(target)} has a credential that is not sent any more.`),
    ),
    few(broken, ({ target }) =>
      line(
        'Your account',
        html`Connect your account at ${target} again on the page <a href="/account/connections">Connections</a>.`,
      ),
    ),
    few(behind, ({ id, lag }) =>
      line(
        'Replica behind',
        html`<a href="/console/replicas"><code>${id}</code></a> has not read ${lag === 1 ? 'one change' : `${lag} changes`}.`,
      ),
    ),
    few(wrong, ({ message, policies: [about] }) =>
      line('Policy', html`${about !== undefined && html`<a href="/console/policies/${about.id}">${about.name}</a>: `}${message}`),
    ),
  ];
  const count = (chain === null ? 0 : 1) + failing.length + stopped.length + broken.length + behind.length + wrong.length;
  return html`${count === 0 ? empty(`Nothing, as far as this replica knows: it looks at targets, credentials, the audit chain${findings === null ? ' and replicas' : ', replicas and policies'}.`) : html`<ul class="attention">${lines}</ul>`}
${findings === null && view.may('lintPolicies') && html`<p class="sm muted">The analysis of the policies takes longer than this page waits. <a href="${FINDINGS}">Show its findings</a></p>`}
${findings !== null && findings.length > 0 && html`<p><a href="${FINDINGS}">All findings about policies: ${findings.length.toLocaleString('en')}</a></p>`}
${targets.length > TARGETS_LOOKED_AT && html`<p class="sm muted">The page looked at the first ${TARGETS_LOOKED_AT} targets that are enabled.</p>`}`;
}
