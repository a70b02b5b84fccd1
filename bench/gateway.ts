/**
 * `npm run bench:gateway`: what a call through Portcullis costs, beside the target itself, a bare proxy, an SDK-terminated proxy and rivals,
 * in one run. `--json` prints every figure and ratio as JSON, `--quick` measures for a minute or two and installs nothing that takes long,
 * `--only=<text>` leaves out rivals whose name does not contain the text.
 */
import { cpus, loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { startDatabases } from '../test/support/databases/start.ts';
import type { Bar } from './bars.ts';
import { bars, type IdleFigures, type Ratios, ratiosOf, type SystemFigures } from './gateway/bars.ts';
import { startIssuer } from './gateway/issuer.ts';
import type { RunFigures } from './gateway/load.ts';
import { type Order, orders } from './gateway/orders.ts';
import { bare, direct, portcullisOn, sdk, startPortcullis } from './gateway/own.ts';
import { startNode, usageOf } from './gateway/processes.ts';
import type { Candidate, Surroundings, System } from './gateway/system.ts';
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
  },
});
const { quick } = options;
/** Progress goes to standard error, so that it does not get into the JSON. */
const say = (line: string): void => (options.json ? console.error(line) : console.log(line));

const CALLERS = 16;
const SIZE = quick
  ? { rounds: 3, ms: 1_500, warmUpMs: 500, aloneMs: 700 }
  : { rounds: 5, ms: 5_000, warmUpMs: 1_500, aloneMs: 2_000 };
/** The warm-up before the first round. It is long, because code of slow systems is compiled late. */
const FIRST = quick ? { ms: 6_000, calls: 8_000 } : { ms: 20_000, calls: 40_000 };
/** If the load at the start is higher than this, the machine is busy with other work. */
const QUIET = 0.5;
/** The wait after the last answer before the processor time is read, so that postponed work counts, too. */
const SETTLE_MS = 600;
/** At least four users, because one user may have 256 streams. */
const IDLE = { streams: 1_000, users: 5, before: 20 };
const IDLE_SETTLE_MS = 2_000;

interface Round extends RunFigures {
  readonly cpuMs: number;
  readonly databaseCpuMs: number;
  readonly alone: RunFigures;
}

interface Competitor {
  readonly candidate: Candidate;
  readonly system: System;
  readonly rounds: Round[];
}

interface LeftOut {
  readonly name: string;
  readonly why: string;
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

async function round(order: Order, { candidate: { name: key }, system }: Competitor): Promise<Round> {
  const run = (concurrency: number, ms: number) => order('run', { key, concurrency, ms });
  await run(CALLERS, SIZE.warmUpMs);
  const alone = await run(1, SIZE.aloneMs);
  await sleep(SETTLE_MS);
  const spent = () => ({
    own: usageOf(system.pid).cpuMs,
    database: system.database === undefined ? 0 : usageOf(system.database.pid).cpuMs,
  });
  const before = spent();
  const figures = await run(CALLERS, SIZE.ms);
  await sleep(SETTLE_MS);
  const after = spent();
  return { ...figures, alone, cpuMs: after.own - before.own, databaseCpuMs: after.database - before.database };
}

function figuresOf({ candidate: { name, on }, system, rounds }: Competitor): SystemFigures {
  const over = (of: (round: Round) => number): number => median(rounds.map(of));
  const { rss, pss } = usageOf(system.pid);
  const { database } = system;
  return {
    name,
    on,
    perCpuSecond: over(({ calls, cpuMs }) => (1_000 * calls) / cpuMs),
    cpuPerCallUs: over(({ calls, cpuMs }) => (1_000 * cpuMs) / calls),
    perSecond: over(({ perSecond }) => perSecond),
    p50: over(({ p50 }) => p50),
    p99: over(({ p99 }) => p99),
    aloneP50: over(({ alone }) => alone.p50),
    aloneP99: over(({ alone }) => alone.p99),
    rss,
    pss,
    ...(database === undefined
      ? {}
      : {
          database: {
            name: database.name,
            cpuPerCallUs: over(({ calls, databaseCpuMs }) => (1_000 * databaseCpuMs) / calls),
            pss: usageOf(database.pid).pss,
          },
        }),
  };
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
  await order('open', { ...first, key: 'idle', sessions: CALLERS, tool: 'echo' });
  await order('run', { key: 'idle', concurrency: CALLERS, ms: SIZE.warmUpMs });
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

function table(all: readonly (SystemFigures & { readonly ratios: Ratios | null })[]): string[] {
  const head = [
    '',
    'calls/CPU-s of bare',
    'of SDK',
    'p50 of bare',
    '+p50 ms',
    'calls/CPU-s',
    'CPU us',
    'p50 ms',
    'p99 ms',
    'calls/s',
    '1: p50',
    '1: p99',
    'PSS MiB',
    'RSS MiB',
    'database',
  ];
  const rows = all.map((row) => {
    const { name, ratios, database } = row;
    const relative =
      ratios === null
        ? ['', '', '', '']
        : [small(ratios.ofBare), number(ratios.ofSdk), number(ratios.p50OfBare), number(ratios.addedP50)];
    const absolute = [row.perCpuSecond, row.cpuPerCallUs, row.p50, row.p99, row.perSecond, row.aloneP50, row.aloneP99].map(
      number,
    );
    const aside = database === undefined ? '' : `${number(database.cpuPerCallUs)} us, ${mib(database.pss)} MiB`;
    return [name, ...relative, ...absolute, mib(row.pss), mib(row.rss), aside];
  });
  return columns([head, ...rows]);
}

async function begin(order: Order, surroundings: Surroundings, candidate: Candidate): Promise<Competitor> {
  const system = await candidate.start(surroundings);
  await order('open', { url: system.url, headers: system.headers, tool: system.tool, key: candidate.name, sessions: CALLERS });
  if (system.guarded) await order('probe', { url: system.url, headers: system.headers, key: candidate.name });
  await order('run', { key: candidate.name, concurrency: CALLERS, ...FIRST });
  return { candidate, system, rounds: [] };
}

async function compare(order: Order, surroundings: Surroundings, candidates: readonly Candidate[]) {
  const leftOut: LeftOut[] = [];
  let competitors: Competitor[] = [];
  const leave = (name: string, error: unknown): void => {
    leftOut.push({ name, why: reasonOf(error) });
    say(`ATTENTION: ${name} is LEFT OUT: ${reasonOf(error)}`);
  };
  for (const candidate of candidates) {
    try {
      competitors.push(await begin(order, surroundings, candidate));
      say(`started ${candidate.name}: ${candidate.on}`);
    } catch (error) {
      leave(candidate.name, error);
    }
  }
  for (let i = 0; i < SIZE.rounds; i++) {
    for (const competitor of competitors) {
      try {
        const figures = await round(order, competitor);
        competitor.rounds.push(figures);
        const { calls, cpuMs, p50, p99 } = figures;
        say(
          `round ${i + 1}: ${competitor.candidate.name.padEnd(28)} ${number((1_000 * calls) / cpuMs)} calls/CPU-s, p50 ${number(p50)} ms, p99 ${number(p99)} ms`,
        );
      } catch (error) {
        leave(competitor.candidate.name, error);
        competitors = competitors.filter((one) => one !== competitor);
      }
    }
  }
  const all = competitors.map(figuresOf);
  return { systems: all.map((figures) => ({ ...figures, ratios: ratiosOf(figures, all) })), leftOut, competitors };
}

function report(
  systems: readonly (SystemFigures & { readonly ratios: Ratios | null })[],
  leftOut: readonly LeftOut[],
  verdicts: readonly Bar[],
) {
  say('');
  for (const line of table(systems)) say(line);
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
  const started = await startDatabases(guardian, new Set(['mariadb', 'mysql']), say);
  databases.stop = started.stop;
  Object.assign(process.env, started.urls);
  const [target, load, issuer] = await Promise.all([
    startNode(guardian, 'upstream.ts'),
    startNode(guardian, 'load.ts'),
    startIssuer(),
  ]);
  const order = orders(load.origin);
  const surroundings: Surroundings = { guardian, upstream: `${target.origin}/mcp`, issuer, quick, say };
  const own = [direct(target.pid), bare, portcullisOn('sqlite'), portcullisOn('mariadb'), portcullisOn('mysql'), sdk];
  const rivals = among([envoy, toolhive, ...fastmcp, contextforge]);
  const { systems, leftOut, competitors } = await compare(order, surroundings, [...own, ...rivals]);
  const idle = await idleStreams(order, surroundings);
  const verdicts = bars(systems, idle);
  for (const { system } of competitors) await system.release?.();
  if (options.json)
    console.log(
      JSON.stringify({ machine, quick, callers: CALLERS, size: SIZE, systems, leftOut, idle, bars: verdicts }, null, 2),
    );
  else report(systems, leftOut, verdicts);
}

const guardian = createGuardian();
await guarded(guardian, run);
