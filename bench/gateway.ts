/**
 * `npm run bench:gateway`: what a call through Portcullis costs, beside the target itself, a bare proxy, an SDK-terminated proxy and rivals,
 * in one run. `--json` prints every figure and ratio as JSON, `--quick` measures for a minute or two and installs nothing that takes long,
 * `--only=<text>` leaves out rivals whose name does not contain the text, `--tokens` measures only what an access token costs.
 */
import { cpus, loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { startDatabases } from '../test/support/databases/start.ts';
import type { Bar } from './bars.ts';
import { bars, type IdleFigures, LEVELS, type Level, type LevelFigures, ratiosOf, type SystemFigures } from './gateway/bars.ts';
import { type CostFigures, costs, costTable } from './gateway/costs.ts';
import { startIssuer } from './gateway/issuer.ts';
import type { RunFigures } from './gateway/load-orders.ts';
import { type Order, orders } from './gateway/orders.ts';
import { bare, direct, portcullisOn, sdk, startPortcullis } from './gateway/own.ts';
import { startNode, usageOf } from './gateway/processes.ts';
import type { Candidate, Surroundings, System } from './gateway/system.ts';
import { compareTokens, type TokenComparison, tokenTable } from './gateway/tokens.ts';
import { type Databases, guarded } from './guarded.ts';
import { median } from './measure.ts';
import { contextforge } from './peers/contextforge.ts';
import { envoy } from './peers/envoy.ts';
import { fastmcp } from './peers/fastmcp.ts';
import { toolhive } from './peers/toolhive.ts';
import { columns, number, verdictLine } from './print.ts';

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    tokens: { type: 'boolean', default: false },
  },
});
const { quick } = options;
/** Progress goes to standard error, so that it does not get into the JSON. */
const say = (line: string): void => (options.json ? console.error(line) : console.log(line));

const SIZE = quick ? { rounds: 3, ms: 1_500, warmUpMs: 500 } : { rounds: 5, ms: 4_000, warmUpMs: 1_500 };
/** The sessions of rivals. Some of them do not serve more at once. */
const RIVAL_LEVELS = LEVELS.slice(0, 3);
/** The warm-up before the first round. It is long, because code of slow systems is compiled late. */
const FIRST = quick ? { ms: 6_000, calls: 8_000 } : { ms: 20_000, calls: 40_000 };
/** If the load at the start is higher than this, the machine is busy with other work. */
const QUIET = 0.5;
/** The wait after the last answer before the processor time is read, so that postponed work counts, too. */
const SETTLE_MS = 600;
/** At least four users, because one user may have 256 streams. */
const IDLE = { streams: 1_000, users: 5, before: 20, callers: 16 };
const IDLE_SETTLE_MS = 2_000;

interface Turn extends RunFigures {
  readonly level: Level;
  readonly cpuMs: number;
  readonly databaseCpuMs: number;
}

interface Competitor {
  readonly candidate: Candidate;
  readonly system: System;
  readonly levels: readonly Level[];
  readonly turns: Turn[];
}

interface LeftOut {
  readonly name: string;
  readonly why: string;
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

async function turn(order: Order, { candidate: { name: key }, system }: Competitor, level: Level): Promise<Turn> {
  const run = (ms: number) => order('run', { key, concurrency: level, ms });
  await run(SIZE.warmUpMs);
  await sleep(SETTLE_MS);
  const spent = () => ({
    own: usageOf(system.pid).cpuMs,
    database: system.database === undefined ? 0 : usageOf(system.database.pid).cpuMs,
  });
  const before = spent();
  const figures = await run(SIZE.ms);
  await sleep(SETTLE_MS);
  const after = spent();
  return { ...figures, level, cpuMs: after.own - before.own, databaseCpuMs: after.database - before.database };
}

function levelFigures(turns: readonly Turn[]): LevelFigures {
  const over = (of: (turn: Turn) => number): number => median(turns.map(of));
  return {
    perCpuSecond: over(({ calls, cpuMs }) => (1_000 * calls) / cpuMs),
    cpuPerCallUs: over(({ calls, cpuMs }) => (1_000 * cpuMs) / calls),
    databaseCpuPerCallUs: over(({ calls, databaseCpuMs }) => (1_000 * databaseCpuMs) / calls),
    perSecond: over(({ perSecond }) => perSecond),
    p50: over(({ p50 }) => p50),
    p99: over(({ p99 }) => p99),
  };
}

function figuresOf({ candidate: { name, on }, system, levels, turns }: Competitor): SystemFigures {
  const at = new Map(levels.map((level) => [level, levelFigures(turns.filter((turn) => turn.level === level))]));
  const { rss, pss } = usageOf(system.pid);
  return { name, on, at, rss, pss };
}

/** Collects garbage on request. Otherwise the figure would include garbage on the heap. */
const COLLECTING = ['--expose-gc', '--import=data:text/javascript,process.on("SIGUSR2",()=>{gc();gc()})'];

/** Returns the growth of a separate gateway that has already served calls and streams, with garbage collected before and after. */
async function idleStreams(order: Order, surroundings: Surroundings): Promise<IdleFigures> {
  const url = `sqlite:${surroundings.guardian.folder}/idle.db`;
  const { pid, users } = await startPortcullis(surroundings, url, { users: IDLE.users, nodeOptions: COLLECTING });
  const [first] = users;
  if (first === undefined) throw new Error('no user');
  const settled = async (): Promise<number> => {
    await sleep(IDLE_SETTLE_MS);
    process.kill(pid, 'SIGUSR2');
    await sleep(IDLE_SETTLE_MS);
    return usageOf(pid).rss;
  };
  await order('open', { ...first, key: 'idle', sessions: IDLE.callers, tool: 'echo' });
  await order('run', { key: 'idle', concurrency: IDLE.callers, ms: SIZE.warmUpMs });
  await order('idle', { ...first, streams: IDLE.before });
  const rssBefore = await settled();
  for (const user of users) await order('idle', { ...user, streams: IDLE.streams / users.length });
  const rssAfter = await settled();
  const { open } = await order('idle', { ...first, streams: 0 });
  if (open !== IDLE.before + IDLE.streams) throw new Error(`of the idle streams only ${open} are open`);
  process.kill(pid, 'SIGKILL');
  return { streams: IDLE.streams, rssBefore, rssAfter };
}

const small = (value: number): string => (Math.abs(value) < 0.1 ? value.toFixed(3) : number(value));
const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(0);

const head = (level: Level): string[] => [
  level === 1 ? '1 session' : `${level} sessions`,
  ...['calls/CPU-s of bare', 'of SDK', 'p50 of bare', '+p50 ms', 'calls/CPU-s', 'CPU us', 'p50 ms', 'p99 ms', 'calls/s'],
  'database us',
];

function tableAt(level: Level, all: readonly SystemFigures[]): string[] {
  const rows = all.flatMap((system) => {
    const figures = system.at.get(level);
    if (figures === undefined) return [];
    const ratios = ratiosOf(system, all, level);
    const relative =
      ratios === null
        ? ['', '', '', '']
        : [small(ratios.ofBare), number(ratios.ofSdk), number(ratios.p50OfBare), number(ratios.addedP50)];
    const { perCpuSecond, cpuPerCallUs, p50, p99, perSecond, databaseCpuPerCallUs } = figures;
    const aside = databaseCpuPerCallUs === 0 ? '' : number(databaseCpuPerCallUs);
    return [[system.name, ...relative, ...[perCpuSecond, cpuPerCallUs, p50, p99, perSecond].map(number), aside]];
  });
  return ['', ...columns([head(level), ...rows])];
}

const memoryTable = (all: readonly SystemFigures[]): string[] => [
  '',
  ...columns([['memory', 'PSS MiB', 'RSS MiB'], ...all.map(({ name, pss, rss }) => [name, mib(pss), mib(rss)])]),
];

async function begin(
  order: Order,
  surroundings: Surroundings,
  candidate: Candidate,
  levels: readonly Level[],
): Promise<Competitor> {
  const system = await candidate.start(surroundings);
  const most = Math.max(...levels);
  await order('open', { url: system.url, headers: system.headers, tool: system.tool, key: candidate.name, sessions: most });
  if (system.guarded) await order('probe', { url: system.url, headers: system.headers, key: candidate.name });
  await order('run', { key: candidate.name, concurrency: most, ...FIRST });
  return { candidate, system, levels, turns: [] };
}

async function compare(order: Order, surroundings: Surroundings, own: readonly Candidate[], rivals: readonly Candidate[]) {
  const leftOut: LeftOut[] = [];
  let competitors: Competitor[] = [];
  const leave = (name: string, error: unknown): void => {
    leftOut.push({ name, why: reasonOf(error) });
    say(`ATTENTION: ${name} is LEFT OUT: ${reasonOf(error)}`);
  };
  for (const candidate of [...own, ...rivals]) {
    try {
      competitors.push(await begin(order, surroundings, candidate, own.includes(candidate) ? LEVELS : RIVAL_LEVELS));
      say(`started ${candidate.name}: ${candidate.on}`);
    } catch (error) {
      leave(candidate.name, error);
    }
  }
  for (let i = 0; i < SIZE.rounds; i++) {
    for (const level of LEVELS) {
      for (const competitor of competitors.filter(({ levels }) => levels.includes(level))) {
        const { name } = competitor.candidate;
        try {
          const figures = await turn(order, competitor, level);
          competitor.turns.push(figures);
          const { calls, cpuMs, p50, p99 } = figures;
          const told = `${number((1_000 * calls) / cpuMs)} calls/CPU-s, p50 ${number(p50)} ms, p99 ${number(p99)} ms`;
          say(`round ${i + 1}, ${level}: ${name.padEnd(28)} ${told}`);
        } catch (error) {
          leave(name, error);
          competitors = competitors.filter((one) => one !== competitor);
        }
      }
    }
  }
  return { systems: competitors.map(figuresOf), leftOut, competitors };
}

function report(
  systems: readonly SystemFigures[],
  work: readonly CostFigures[],
  tokens: TokenComparison,
  leftOut: readonly LeftOut[],
  verdicts: readonly Bar[],
) {
  for (const level of LEVELS) for (const line of tableAt(level, systems)) say(line);
  for (const line of costTable(work)) say(line);
  for (const line of tokenTable(tokens)) say(line);
  for (const line of memoryTable(systems)) say(line);
  say('');
  say('What was on:');
  for (const { name, on } of systems) say(`  ${name}: ${on}`);
  for (const { name, why } of leftOut) say(`ATTENTION: ${name} was LEFT OUT: ${why}`);
  say('');
  for (const verdict of verdicts) say(verdictLine(verdict));
}

async function run(databases: Databases): Promise<void> {
  const among = (rivals: readonly Candidate[]): Candidate[] =>
    rivals.filter(({ name }) => options.only === undefined || name.toLowerCase().includes(options.only.toLowerCase()));
  const machine = { cpus: cpus().length, model: cpus()[0]?.model, node: process.version, load: loadavg() };
  say(`${machine.cpus} cores (${machine.model}), node ${machine.node}, load ${machine.load[0]?.toFixed(2)}`);
  const busy = (machine.load[0] ?? 0) > QUIET;
  if (busy) say('ATTENTION: this machine is BUSY with something else; ratios suffer, too');
  await guardian.run('npm', ['run', '--silent', 'build'], { timeoutMs: 300_000 });
  if (!options.tokens) {
    const started = await startDatabases(guardian, new Set(['mariadb', 'mysql']), say);
    databases.stop = started.stop;
    Object.assign(process.env, started.urls);
  }
  const [target, load, issuer] = await Promise.all([
    startNode(guardian, 'upstream.ts'),
    startNode(guardian, 'load.ts'),
    startIssuer(),
  ]);
  const order = orders(load.origin);
  const surroundings: Surroundings = { guardian, upstream: `${target.origin}/mcp`, issuer, quick, say };
  const plan = { rounds: SIZE.rounds, ms: SIZE.ms };
  if (options.tokens) {
    const tokens = await compareTokens(order, surroundings, plan);
    return options.json ? console.log(JSON.stringify({ machine, quick, tokens }, null, 2)) : tokenTable(tokens).forEach(say);
  }
  const own = [direct(target.pid), bare, portcullisOn('sqlite'), portcullisOn('mariadb'), portcullisOn('mysql'), sdk];
  const rivals = among([envoy, toolhive, ...fastmcp, contextforge]);
  const { systems, leftOut, competitors } = await compare(order, surroundings, own, rivals);
  const idle = await idleStreams(order, surroundings);
  const verdicts = bars(systems, idle);
  for (const { system } of competitors) await system.release?.();
  const work = await costs(order, surroundings, plan);
  const tokens = await compareTokens(order, surroundings, plan);
  if (!options.json) return report(systems, work, tokens, leftOut, verdicts);
  const figures = systems.map(({ at, ...system }) => ({
    ...system,
    at: Object.fromEntries(
      [...at].map(([level, values]) => [level, { ...values, ratios: ratiosOf({ ...system, at }, systems, level) }]),
    ),
  }));
  console.log(
    JSON.stringify({ machine, quick, size: SIZE, systems: figures, work, tokens, leftOut, idle, bars: verdicts }, null, 2),
  );
}

const guardian = createGuardian();
await guarded(guardian, run);
