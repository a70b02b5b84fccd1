/**
 * `npm run bench:replay`: how long it takes to put a million recorded decisions to another set of 1,000 policies, on each database, and for
 * how long other work waits meanwhile. `--json` prints the figures as JSON, `--quick` replays 100,000. `--only=sqlite,mariadb,mysql` leaves
 * out the others.
 */
import { mkdtempSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { parseArgs } from 'node:util';
import { createConnection } from 'mysql2/promise';
import { readConfig } from '../src/config.ts';
import { openDatabase } from '../src/db/database.ts';
import { createEngine, loadPolicyModule } from '../src/decision/engine.ts';
import { replay } from '../src/policies/replay/replay.ts';
import { type Engine, engines } from '../test/support/databases/engines.ts';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { startDatabases } from '../test/support/databases/start.ts';
import { fillLog } from './audit/log-rows.ts';
import type { Bar } from './bars.ts';
import { TITLES } from './gateway/own.ts';
import { type Databases, guarded } from './guarded.ts';
import { columns, number, verdictLine } from './print.ts';
import { createWorkload, MIXES } from './workload.ts';

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: 'sqlite,mariadb,mysql' },
  },
});
/** What is said meanwhile must not get into the JSON. */
const say = (line: string): void => (options.json ? console.error(line) : console.log(line));

const ROWS = options.quick ? 100_000 : 1_000_000;
const POLICIES = 1_000;
/** "In minutes". */
const MOST_SECONDS = 300;

interface ReplayFigures {
  readonly engine: Engine['name'];
  readonly seconds: number;
  /** Of this process, without the database's server. */
  readonly processorSeconds: number;
  /** Milliseconds for which other work waited: one turn in 100 waited longer, and the longest. */
  readonly waitP99: number;
  readonly waitMost: number;
  readonly replayed: number;
  readonly flips: number;
}

async function measureReplay(engine: Engine): Promise<ReplayFigures> {
  const at = await engine.create();
  const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, async () => undefined);
  try {
    if (database.kind === 'sqlite') {
      await database.knex.raw('pragma synchronous = off');
      await fillLog(database, async (sql) => database.knex.raw(sql), ROWS);
    } else {
      const connection = await createConnection(at.url);
      await fillLog(database, (sql) => connection.query(sql), ROWS);
      await connection.end();
    }
    say(`${TITLES[engine.name]}: ${ROWS.toLocaleString('en')} decisions are recorded`);
    const module = await loadPolicyModule();
    const { policies } = createWorkload(MIXES.mixed, POLICIES);
    const wouldBe = await createEngine({ module, policies, revision: 0 });
    const now = await createEngine({ module, policies: policies.slice(0, POLICIES / 2), revision: 0 });
    const parts = { wouldBe, now, refOf: () => null, changed: new Map<string, string>() };
    const delays = monitorEventLoopDelay({ resolution: 1 });
    delays.enable();
    const [began, before] = [performance.now(), process.cpuUsage()];
    const everything = { from: 0, to: Date.UTC(2100, 0) };
    const { counts } = await replay(database.knex, everything, parts, () => {}, new AbortController().signal);
    const { user, system } = process.cpuUsage(before);
    delays.disable();
    return {
      engine: engine.name,
      seconds: (performance.now() - began) / 1_000,
      processorSeconds: (user + system) / 1_000_000,
      waitP99: delays.percentile(99) / 1_000_000,
      waitMost: delays.max / 1_000_000,
      replayed: counts.replayed,
      flips: counts.grants + counts.refuses,
    };
  } finally {
    await database.close();
    await at.drop();
  }
}

/** In the folder that is removed with all else, however the run ends. */
const sqlite: Engine = {
  name: 'sqlite',
  create: async () => ({
    url: `sqlite:${mkdtempSync(join(guardian.folder, 'sqlite-'))}/portcullis.db`,
    drop: async () => undefined,
  }),
};

async function run(databases: Databases): Promise<void> {
  const machine = { cpus: cpus().length, model: cpus()[0]?.model, node: process.version, load: loadavg() };
  say(`${machine.cpus} cores (${machine.model}), node ${machine.node}, load ${machine.load[0]?.toFixed(2)}`);
  const wanted = new Set(options.only.split(','));
  const started = await startDatabases(guardian, wanted, say);
  databases.stop = started.stop;
  Object.assign(process.env, started.urls);
  const figures: ReplayFigures[] = [];
  for (const engine of engines().filter(({ name }) => wanted.has(name))) {
    figures.push(await measureReplay(engine.name === 'sqlite' ? sqlite : engine));
  }
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

const guardian = createGuardian();
await guarded(guardian, run);
