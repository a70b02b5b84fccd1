/**
 * `npm run bench:neighbours`: what bad neighbours, one after the other, do to a caller who calls steadily. `--quick` gives each a few seconds
 * instead of twenty. `--only=<text>` runs only the neighbours whose name contains the text. `--database=mariadb` or `mysql` replaces SQLite.
 * `--json` prints every figure as JSON. The exit code is 1 if a bar is missed.
 */
import { parseArgs } from 'node:util';
import { type Engine, engines } from '../test/support/databases/engines.ts';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { startDatabases } from '../test/support/databases/start.ts';
import { machineOf, sqliteIn } from './audit/filled-log.ts';
import { ordersFrom } from './gateway/orders.ts';
import { startNode } from './gateway/processes.ts';
import { type Databases, guarded } from './guarded.ts';
import { bars, longestOf, mib, type NeighbourFigures, type PhaseFigures, refusedOf } from './neighbours/bars.ts';
import { byCallers } from './neighbours/by-callers.ts';
import { byTargets } from './neighbours/by-targets.ts';
import { checkInstrument, installInstrument } from './neighbours/instrument.ts';
import { measureNeighbour, type Parts } from './neighbours/measure.ts';
import type { VictimOrders } from './neighbours/victim.ts';
import type { LoadOrders, Tally } from './neighbours/workload.ts';
import { number, verdictLine } from './print.ts';

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: '' },
    database: { type: 'string', default: 'sqlite' },
  },
});
const { quick } = options;
/** Progress must not get into the JSON. */
const say = (line: string): void => (options.json ? console.error(line) : console.log(line));

const PLAN = quick ? { ms: 4_000, warmUpCalls: 1_000, short: true } : { ms: 20_000, warmUpCalls: 4_000, short: false };
/** A higher load at the start means that the machine does something else too. */
const QUIET = 0.5;

const sizeOf = (bytes: number): string => (bytes < 2 ** 20 ? `${Math.ceil(bytes / 1024)} KiB` : `${mib(bytes).toFixed(0)} MiB`);

/** The most frequent first. */
function tallyText(tally: Tally | null): string {
  if (tally === null) return '';
  const outcomes = Object.entries(tally.outcomes).sort(([, a], [, b]) => b - a);
  const texts = outcomes.map(([how, count]) => `${how}: ${count.toLocaleString('en')}`);
  return [...texts, `${sizeOf(tally.sentBytes)} sent, ${sizeOf(tally.receivedBytes)} received`].join('; ');
}

/** The figure, and in parentheses that of the control and the ratio. */
const beside = (figure: number, control: number): string =>
  `${number(figure)} (${number(control)}, ${number(figure / control)}x)`;

function sliceText({ slices }: PhaseFigures): string {
  const [longest] = slices.longest;
  if (longest === undefined) return '';
  const gcMs = Math.min(longest.ms, longest.gcMs);
  return `${number(longest.ms)} ms (${longest.callback}${gcMs < 1 ? '' : `, garbage collection up to ${number(gcMs)}`})`;
}

function row(figures: NeighbourFigures): string[] {
  const { name, what } = figures;
  const met = bars(figures).every(({ reached }) => reached) ? 'met' : 'not met';
  if ('failed' in figures) return [`**${name}**: ${what}`, figures.failed, '', '', '', '', '', met];
  const { beside: own, control } = figures;
  const { p50, p99, calls } = own.victim;
  return [
    `**${name}**: ${what}`,
    beside(p50, control.victim.p50),
    beside(p99, control.victim.p99),
    `${refusedOf(own.victim)} of ${calls}`,
    mib(own.memory).toFixed(0),
    number(longestOf(own.slices)),
    tallyText(own.tally),
    met,
  ];
}

/** Markdown, as in docs/performance.md. */
function table(all: readonly NeighbourFigures[]): string[] {
  const head = ['neighbour', 'p50, ms', 'p99, ms', 'refused', 'memory, MiB', 'longest slice, ms', 'what it got', 'bars'];
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  return [line(head), `|${'---|'.repeat(head.length)}`, ...all.map((figures) => line(row(figures)))];
}

function sayOne(figures: NeighbourFigures): void {
  for (const verdict of bars(figures)) say(verdictLine(verdict));
  if ('failed' in figures) return;
  const { beside: own } = figures;
  const refused = Object.entries(own.victim.refused).map(([why, count]) => `${why}: ${count}`);
  if (refused.length > 0) say(`  the victim was refused: ${refused.join('; ')}`);
  say(`  slices over 50 ms: ${own.slices.over}; the longest: ${sliceText(own)}; in the control: ${sliceText(figures.control)}`);
  say(`  the neighbour got ${tallyText(own.tally)}`);
}

async function engineOf(name: string, databases: Databases): Promise<Engine> {
  if (name === 'sqlite') return sqliteIn(guardian);
  const started = await startDatabases(guardian, new Set([name]), say);
  databases.stop = started.stop;
  Object.assign(process.env, started.urls);
  const engine = engines().find((one) => one.name === name);
  if (engine === undefined) throw new Error(`there is no database ${name} here: --database takes sqlite, mariadb or mysql`);
  return engine;
}

async function run(databases: Databases): Promise<void> {
  const chosen = [...byCallers, ...byTargets].filter(({ name }) => name.includes(options.only));
  if (chosen.length === 0) throw new Error(`no neighbour's name contains ${JSON.stringify(options.only)}`);
  const machine = machineOf(say);
  const busy = (machine.load[0] ?? 0) > QUIET;
  if (busy) say('ATTENTION: this machine is BUSY with something else; ratios suffer, too');
  const engine = await engineOf(options.database, databases);
  await guardian.run('npm', ['run', '--silent', 'build'], { timeoutMs: 300_000 });
  const instrument = installInstrument(guardian);
  const readings = await checkInstrument(guardian, instrument);
  for (const { work, expected, longest } of readings) {
    say(`the instrument reads ${number(longest?.ms ?? 0)} ms of a slice of ${expected} ms (${work})`);
  }
  const [upstream, bad, discard, load, victim] = await Promise.all([
    startNode(guardian, 'upstream.ts'),
    startNode(guardian, '../neighbours/target.ts'),
    startNode(guardian, '../neighbours/discard.ts'),
    startNode(guardian, '../neighbours/load.ts'),
    startNode(guardian, '../neighbours/victim.ts'),
  ]);
  const parts: Parts = {
    ...{ guardian, instrument, plan: PLAN, upstream: `${upstream.origin}/mcp`, bad: bad.origin, discard: discard.origin },
    load: ordersFrom<LoadOrders>(load.origin),
    victim: ordersFrom<VictimOrders>(victim.origin),
    createDatabase: engine.create,
  };
  const all: NeighbourFigures[] = [];
  for (const neighbour of chosen) {
    say(`\n${neighbour.name}: ${neighbour.what}`);
    const figures = await measureNeighbour(parts, neighbour);
    all.push(figures);
    sayOne(figures);
  }
  const verdicts = all.flatMap(bars);
  if (options.json)
    console.log(JSON.stringify({ machine, quick, plan: PLAN, readings, neighbours: all, bars: verdicts }, null, 2));
  else for (const line of ['', ...table(all)]) say(line);
  if (verdicts.some(({ reached }) => !reached)) process.exitCode = 1;
}

const guardian = createGuardian();
await guarded(guardian, run);
