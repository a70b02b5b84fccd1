/** Decisions over time as bars, made on the server. */
import { html, type Markup } from '../browser/html.ts';
import { timeOf } from '../browser/page.ts';
import type { CountsJson } from '../rest/audit/contract.ts';
import { column, DEFAULT_DENY, effectMark, number, numbers, table } from './marks.ts';

const HOUR_MS = 60 * 60_000;
const HEIGHT = 48;
const STEP = 10;

const KINDS = [
  ['allowed', effectMark('allow'), 'allowed', 'al'],
  ['denied', effectMark('deny'), 'denied by a policy', 'de'],
  ['unmatched', DEFAULT_DENY, 'denied because no policy matched', 'no'],
] as const;

type Sums = Pick<CountsJson['counts'][number], 'allowed' | 'denied' | 'unmatched'>;

interface Bar extends Sums {
  readonly at: number;
}

/** Returns one entry for each `step` hours, also for those without decisions. */
function barsOf({ from, to, counts }: CountsJson, step: number): Bar[] {
  const [first, last] = [Date.parse(from), Date.parse(to)];
  const size = step * HOUR_MS;
  const bars = Array.from({ length: Math.ceil((last - first) / size) }, (_, i) => ({
    ...{ at: first + i * size, allowed: 0, denied: 0, unmatched: 0 },
  }));
  for (const { hour, allowed, denied, unmatched } of counts) {
    const bar = bars[Math.floor((Date.parse(hour ?? from) - first) / size)];
    if (bar === undefined) continue;
    bar.allowed += allowed;
    bar.denied += denied;
    bar.unmatched += unmatched;
  }
  return bars;
}

const label = (ms: number): string => `${new Date(ms).toISOString().slice(0, 16).replace('T', ' ')} UTC`;

/** A row of bars for each kind of decision. They have one scale, and a table has the same numbers. `step`: the hours of a bar. */
export function decisionChart(counted: CountsJson, step: number): Markup {
  const bars = barsOf(counted, step);
  const highest = Math.max(1, ...bars.flatMap(({ allowed, denied, unmatched }) => [allowed, denied, unmatched]));
  const lanes = KINDS.map(([kind, mark, words, fill]) => {
    const sum = bars.reduce((total, bar) => total + bar[kind], 0);
    const rects = bars.map((bar, i) => {
      if (bar[kind] === 0) return null;
      const height = Math.max(1.5, (bar[kind] / highest) * HEIGHT);
      return html`<rect x="${i * STEP + 1}" y="${HEIGHT - height}" width="${STEP - 2}" height="${height}"><title>${label(bar.at)}: ${number(bar[kind])}</title></rect>`;
    });
    return html`<div class="lane"><p>${mark} <b class="figure">${number(sum)}</b></p>
<svg class="bars ${fill}" viewBox="0 0 ${bars.length * STEP} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${`${number(sum)} ${words}. The table has the numbers.`}">${rects}<path d="M0 ${HEIGHT}H${bars.length * STEP}"/></svg></div>`;
  });
  const rows = bars
    .filter(({ allowed, denied, unmatched }) => allowed + denied + unmatched > 0)
    .map(
      ({ at, allowed, denied, unmatched }) =>
        html`<tr><th scope="row">${timeOf(at)}</th><td class="num" data-label="Allowed">${number(allowed)}</td><td class="num" data-label="Denied">${number(denied)}</td><td class="num" data-label="Default deny">${number(unmatched)}</td></tr>`,
    );
  return html`<div class="chart">${lanes}</div>
<p class="xs muted">${timeOf(bars[0]?.at ?? 0)} to ${timeOf(Date.parse(counted.to))}, one bar for ${step === 1 ? 'each hour' : `${step} hours`}. All decisions before ${timeOf(Date.parse(counted.counted_to))} are counted.</p>
${rows.length > 0 && html`<details><summary>The numbers</summary>${table('Decisions over time', [column('From'), numbers('Allowed'), numbers('Denied'), numbers('Default deny')], rows)}</details>`}`;
}
