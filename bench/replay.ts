/**
 * `npm run bench:replay`: how long it takes to put a million recorded decisions to another set of 1,000 policies, on each database, and for
 * how long other work waits meanwhile. `--json` prints the figures as JSON, `--quick` replays 100,000. `--only=sqlite,mariadb,mysql` leaves
 * out the others. `--suggestions` measures suggestions from such a log instead, and a caller beside them.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import type { Database } from '../src/db/database.ts';
import { createEngine, loadPolicyModule } from '../src/engine/engine.ts';
import { replay } from '../src/policies/replay/replay.ts';
import type { Engine } from '../test/support/databases/engines.ts';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { eachFilledLog, machineOf, readOptions } from './audit/filled-log.ts';
import { evenly, measureSuggestions } from './audit/suggestions.ts';
import type { Bar } from './bars.ts';
import { TITLES } from './gateway/own.ts';
import { type Databases, guarded } from './guarded.ts';
import { columns, number, verdictLine } from './print.ts';
import { createWorkload, MIXES } from './workload.ts';

const { options, say } = readOptions();
const ROWS = options.quick ? 100_000 : 1_000_000;
const POLICIES = 1_000;
/** "In minutes". */
const MOST_SECONDS = 300;

interface ReplayFigures {
  readonly engine: Engine['name'];
  readonly seconds: number;
  /** The time of this process, without the database server. */
  readonly processorSeconds: number;
  /** Milliseconds for which other work waited: one turn in 100 waited longer, and the longest. */
  readonly waitP99: number;
  readonly waitMost: number;
  readonly replayed: number;
  readonly flips: number;
}

async function measureReplay(database: Database, engine: Engine['name']): Promise<ReplayFigures> {
  const module = await loadPolicyModule();
  const { policies } = createWorkload(MIXES.mixed, POLICIES);
  const candidate = await createEngine({ module, policies, revision: 0 });
  const now = await createEngine({ module, policies: policies.slice(0, POLICIES / 2), revision: 0 });
  const parts = { candidate, now, refOf: () => null, changed: new Map<string, string>() };
  const delays = monitorEventLoopDelay({ resolution: 1 });
  delays.enable();
  const [began, before] = [performance.now(), process.cpuUsage()];
  const everything = { from: 0, to: Date.UTC(2100, 0) };
  const { counts } = await replay(database.knex, everything, parts, () => {}, {
    by: 'bench',
    signal: new AbortController().signal,
  });
  const { user, system } = process.cpuUsage(before);
  delays.disable();
  return {
    engine,
    seconds: (performance.now() - began) / 1_000,
    processorSeconds: (user + system) / 1_000_000,
    waitP99: delays.percentile(99) / 1_000_000,
    waitMost: delays.max / 1_000_000,
    replayed: counts.replayed,
    flips: counts.grants + counts.refuses,
  };
}

async function run(databases: Databases): Promise<void> {
  const machine = machineOf(say);
  const figures = await eachFilledLog({ guardian, databases, only: options.only, rows: ROWS, say }, measureReplay);
  const slowest = Math.max(...figures.map(({ seconds }) => seconds));
  const bars: Bar[] = [
    {
      what: `${ROWS.toLocaleString('en')} decisions replayed, seconds, the slowest database`,
      bar: `under ${MOST_SECONDS}`,
      figure: slowest,
      reached: slowest < MOST_SECONDS,
    },
  ];
  const lines = columns([
    ['', 'seconds', 'processor', 'others wait: p99 ms', 'at most', 'replayed', 'flips'],
    ...figures.map(({ engine, seconds, processorSeconds, waitP99, waitMost, replayed, flips }) => [
      TITLES[engine],
      ...[seconds, processorSeconds, waitP99, waitMost].map(number),
      String(replayed),
      String(flips),
    ]),
  ]);
  for (const line of lines) say(line);
  for (const bar of bars) say(verdictLine(bar));
  if (options.json) console.log(JSON.stringify({ machine, rows: ROWS, figures, bars }, null, 2));
}

async function runSuggestions(databases: Databases): Promise<void> {
  const machine = machineOf(say);
  const parts = { guardian, databases, only: options.only, rows: ROWS, say, adapt: evenly };
  const figures = await eachFilledLog(parts, async (database, engine) =>
    (await measureSuggestions(database)).map((each) => ({ engine, ...each })),
  );
  const ratios = figures.flat().map(({ victim, control, ...each }) => {
    return { ...each, victim, control, p50: victim.p50 / control.p50, p99: victim.p99 / control.p99 };
  });
  const worst = (of: 'p50' | 'p99'): number => Math.max(...ratios.map((each) => each[of]));
  const bars: Bar[] = (
    [
      ['p50', 3],
      ['p99', 5],
    ] as const
  ).map(([of, most]) => ({
    what: `${of} of a caller beside a suggestion, of the same caller alone, the highest`,
    ...{ bar: `under ${most}x`, figure: worst(of), reached: worst(of) < most },
  }));
  const lines = columns([
    ['', 'asked for', 'seconds', 'memory, MiB', 'suggested', 'caller: p50 ms', 'p99 ms', 'alone: p50 ms', 'p99 ms'],
    ...ratios.map(({ engine, asked, seconds, memory, suggested, victim, control }) => [
      ...[TITLES[engine], asked],
      ...[seconds, memory, suggested, victim.p50, victim.p99, control.p50, control.p99].map(number),
    ]),
  ]);
  for (const line of lines) say(line);
  for (const bar of bars) say(verdictLine(bar));
  if (options.json) console.log(JSON.stringify({ machine, rows: ROWS, figures: ratios, bars }, null, 2));
}

const guardian = createGuardian();
await guarded(guardian, options.suggestions ? runSuggestions : run);
