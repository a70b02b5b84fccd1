/**
 * `npm run bench:audit`: what the durable audit log and the freshness gate cost, on each database, alone and together. `--json` prints every
 * figure as JSON, `--quick` measures for two minutes. `--only=calls,commits,size,changes` leaves out the other parts, and
 * `--databases=sqlite,mariadb,mysql` the other databases.
 */
import { parseArgs } from 'node:util';
import { engines } from '../test/support/databases/engines.ts';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { startDatabases } from '../test/support/databases/start.ts';
import { type AuditFigures, bars } from './audit/bars.ts';
import { build } from './audit/builds.ts';
import { type CommitFigures, type CommitPlan, measureCommits, POOL } from './audit/commits.ts';
import { machineOf, sqliteIn } from './audit/filled-log.ts';
import {
  type Laws,
  measurePath,
  measureRoundTrips,
  type PathFigures,
  type PathPlan,
  type RoundTripFigures,
} from './audit/path.ts';
import { measureRebuild, type RebuildFigures, type RebuildPlan } from './audit/rebuild.ts';
import { measureSize, type SizeFigures, type SizePlan } from './audit/size.ts';
import type { Bar } from './bars.ts';
import { orders } from './gateway/orders.ts';
import { TITLES } from './gateway/own.ts';
import { startNode } from './gateway/processes.ts';
import { type Databases, guarded } from './guarded.ts';
import { columns, number, verdictLine } from './print.ts';

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: 'calls,commits,size,changes' },
    databases: { type: 'string', default: 'sqlite,mariadb,mysql' },
  },
});
const { quick } = options;
const [parts, databases] = [new Set(options.only.split(',')), new Set(options.databases.split(','))];
/** Progress goes to standard error, so that it does not get into the JSON. */
const say = (line: string): void => (options.json ? console.error(line) : console.log(line));

const CALLERS = quick ? [1, 16, 64, 256] : [1, 4, 16, 64, 256];
const PATH: PathPlan = quick
  ? { callers: CALLERS, rounds: 2, ms: 150, warmUpMs: 50, firstMs: 500, roundTripsMs: 1_000 }
  : { callers: CALLERS, rounds: 3, ms: 1_000, warmUpMs: 200, firstMs: 3_000, roundTripsMs: 3_000 };
const COMMITS: CommitPlan = quick
  ? { callers: CALLERS, rounds: 2, ms: 100, warmUpMs: 20 }
  : { callers: CALLERS, rounds: 5, ms: 300, warmUpMs: 50 };
/** SQLite has one process, and servers are measured with one and with two. */
const SIZES: readonly SizePlan[] = [1, 2].map((replicas) => ({ calls: quick ? 100_000 : 1_000_000, callers: 64, replicas }));
/** Each change takes the right away and gives it back. */
const REBUILDS: readonly RebuildPlan[] = [
  { policies: 100, changes: quick ? 1 : 10 },
  { policies: 1_000, changes: quick ? 1 : 5 },
  { policies: 10_000, changes: quick ? 1 : 2 },
];
/** More than this at the start, and the figures are of a machine that does something else. */
const QUIET = 0.5;

const ON: Record<Laws, string> = {
  both: 'both laws',
  audit: 'audit alone',
  freshness: 'freshness alone',
  neither: 'neither',
};

function pathTable(path: readonly PathFigures[]): string[] {
  const head = ['', 'callers', 'calls/s', 'of neither', 'p50 ms', '+p50', 'p99 ms', '+p99', 'selects/call'];
  return columns([
    head,
    ...path.map(({ engine, laws, callers, perSecond, share, p50, addedP50, p99, addedP99, selectsPerCall }) => [
      `${TITLES[engine]}: ${ON[laws]}`,
      String(callers),
      ...[perSecond, share, p50, addedP50, p99, addedP99].map(number),
      selectsPerCall === null ? '' : number(selectsPerCall),
    ]),
  ]);
}

const WAYS: Record<CommitFigures['way'], string> = {
  group: 'group commit',
  row: 'a commit each, one connection',
  rows: `a commit each, ${POOL} connections`,
};

function commitTable(commits: readonly CommitFigures[]): string[] {
  return columns([
    ['', 'callers', 'records/s', 'group commit to it', 'p50 ms', 'p99 ms'],
    ...commits.map(({ engine, way, callers, perSecond, p50, p99, groupTo }) => [
      `${TITLES[engine]}: ${WAYS[way]}`,
      String(callers),
      number(perSecond),
      way === 'group' ? '' : `${number(groupTo)}x`,
      number(p50),
      number(p99),
    ]),
  ]);
}

function rebuildTable(rebuilds: readonly RebuildFigures[]): string[] {
  return columns([
    ['', 'policies', 'changes', 'change ms', 'usual call ms', 'first call waits ms', 'at most ms', 'stale', '503'],
    ...rebuilds.map(({ engine, replica, policies, changes, change, usual, wait, longestWait, stale, refused }) => [
      `${TITLES[engine]}: ${replica === 'own' ? 'the replica that took the change' : 'another replica'}`,
      ...[policies, changes].map(String),
      ...[change, usual, wait, longestWait].map(number),
      ...[stale, refused].map(String),
    ]),
  ]);
}

function sizeTable(sizes: readonly SizeFigures[]): string[] {
  return columns([
    ['', 'calls', 'processes', 'bytes/call', 'CPU us/call', 'calls/s', 'p50 ms', 'p99 ms', 'tables'],
    ...sizes.map(({ engine, calls, replicas, bytesPerCall, cpuPerCall, perSecond, p50, p99, tables }) => [
      TITLES[engine],
      ...[calls, replicas].map(String),
      ...[bytesPerCall, cpuPerCall, perSecond, p50, p99].map(number),
      Object.entries(tables)
        .map(([table, bytes]) => `${table} ${bytes.toFixed(0)}`)
        .join(', '),
    ]),
  ]);
}

function report({ path, commits, roundTrips, sizes, rebuilds }: AuditFigures, verdicts: readonly Bar[]): void {
  for (const lines of [pathTable(path), commitTable(commits), sizeTable(sizes), rebuildTable(rebuilds)]) {
    if (lines.length === 1) continue;
    say('');
    for (const line of lines) say(line);
  }
  say('');
  for (const { engine, callers, calls, selects, roundTrips: trips } of roundTrips) {
    say(
      `${TITLES[engine]}, 10 ms away, ${callers} callers, both laws: ${calls} calls, ${selects} reads at the server, time for ${number(trips)} round trips`,
    );
  }
  say('');
  for (const verdict of verdicts) say(verdictLine(verdict));
}

async function run(running: Databases): Promise<void> {
  const machine = machineOf(say);
  const busy = (machine.load[0] ?? 0) > QUIET;
  if (busy) say('ATTENTION: this machine is BUSY with something else; ratios suffer, too');
  const started = await startDatabases(guardian, databases, say);
  running.stop = started.stop;
  Object.assign(process.env, started.urls);
  const wanted = engines().filter(({ name }) => databases.has(name));
  const all = wanted.map((engine) => (engine.name === 'sqlite' ? sqliteIn(guardian) : engine));

  const path: PathFigures[] = [];
  const commits: CommitFigures[] = [];
  const sizes: SizeFigures[] = [];
  const roundTrips: RoundTripFigures[] = [];
  const rebuilds: RebuildFigures[] = [];
  for (const engine of parts.has('size') ? all : []) {
    for (const plan of SIZES) {
      if (engine.name === 'sqlite' && plan.replicas > 1) continue;
      say(`${engine.name}: ${plan.calls} calls of ${plan.replicas} processes`);
      const measured = await measureSize(engine, plan);
      sizes.push(measured);
      for (const line of sizeTable([measured])) say(line);
    }
  }
  for (const engine of parts.has('commits') ? all : []) {
    say(`${engine.name}: commits`);
    commits.push(...(await measureCommits(engine, COMMITS)));
  }
  if (parts.has('calls') || parts.has('changes')) {
    const builds = await build(guardian);
    const [target, load] = await Promise.all([startNode(guardian, 'upstream.ts'), startNode(guardian, 'load.ts')]);
    const upstream = `${target.origin}/mcp`;
    const around = { guardian, upstream, order: orders(load.origin), builds, plan: PATH, say };
    for (const engine of parts.has('calls') ? all : []) {
      path.push(...(await measurePath(around, engine)));
      if (engine.name !== 'sqlite') roundTrips.push(await measureRoundTrips(around, engine));
    }
    // One process, and several on the first server that is there.
    for (const engine of parts.has('changes') ? all.slice(0, 2) : []) {
      for (const plan of REBUILDS) {
        say(`${engine.name}: changes among ${plan.policies} policies`);
        rebuilds.push(...(await measureRebuild({ guardian, upstream, main: builds.whole }, engine, plan)));
      }
    }
  }
  const figures: AuditFigures = { path, commits, sizes, roundTrips, rebuilds };
  const verdicts = bars(figures);
  if (options.json)
    console.log(
      JSON.stringify({ machine, quick, plans: { PATH, COMMITS, SIZES, REBUILDS }, ...figures, bars: verdicts }, null, 2),
    );
  else report(figures, verdicts);
}

const guardian = createGuardian();
await guarded(guardian, run);
