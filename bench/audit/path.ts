/** Calls through whole gateways: with both laws, with one of them, with neither; at each number of callers. */
import { setTimeout as sleep } from 'node:timers/promises';
import { createConnection } from 'mysql2/promise';
import type { Engine } from '../../test/support/databases/engines.ts';
import { type Guardian, killGroup } from '../../test/support/databases/guardian.ts';
import type { Order } from '../gateway/orders.ts';
import { type Portcullis, type ProcessOptions, startPortcullis } from '../gateway/own.ts';
import { median } from '../measure.ts';
import type { Builds } from './builds.ts';
import { startDistance } from './distance.ts';

export type Laws = 'both' | 'audit' | 'freshness' | 'neither';
export const LAWS = ['both', 'audit', 'freshness', 'neither'] as const satisfies Laws[];

export interface PathFigures {
  readonly engine: Engine['name'];
  readonly laws: Laws;
  readonly callers: number;
  readonly perSecond: number;
  /** Milliseconds. */
  readonly p50: number;
  readonly p99: number;
  /** The difference from the gateway with neither law, with as many callers, in the same round. */
  readonly addedP50: number;
  readonly addedP99: number;
  /** The share of the calls per second of the gateway with neither law. */
  readonly share: number;
  /** The reading statements that the server counts, from all senders; null on SQLite. */
  readonly selectsPerCall: number | null;
}

export interface RoundTripFigures {
  readonly engine: Engine['name'];
  readonly callers: number;
  readonly calls: number;
  readonly selects: number;
  /** The number of round trips that fit, one after the other, into the time of the run. */
  readonly roundTrips: number;
}

export interface PathPlan {
  readonly callers: readonly number[];
  readonly rounds: number;
  readonly ms: number;
  readonly warmUpMs: number;
  /** The warm-up of each gateway before the first round, in milliseconds. */
  readonly firstMs: number;
  readonly roundTripsMs: number;
}

export interface PathParts {
  readonly guardian: Guardian;
  readonly upstream: string;
  readonly order: Order;
  readonly builds: Builds;
  readonly plan: PathPlan;
  say(line: string): void;
}

/** The longest that a configuration allows: one read a minute, whatever the load. */
const SELDOM = { FRESHNESS: 'bounded:60000' };

function optionsOf(laws: Laws, { whole, unrecorded }: Builds): ProcessOptions {
  switch (laws) {
    case 'both':
      return { main: whole };
    case 'audit':
      return { main: whole, env: SELDOM };
    case 'freshness':
      return { main: unrecorded };
    case 'neither':
      return { main: unrecorded, env: SELDOM };
  }
}

const TOOL = 'echo';
/** Decisions are remembered, so that their number changes nothing here. */
const POLICIES = 10;

async function open(order: Order, key: string, { users: [place] }: Portcullis, sessions: number): Promise<void> {
  if (place === undefined) throw new Error('no user');
  await order('open', { ...place, key, tool: TOOL, sessions, atOnce: 32 });
  await order('probe', { ...place, key });
}

interface Counter {
  selects(): Promise<number>;
  close(): Promise<void>;
}

/** Reading the count is not counted by it. */
async function counterOf(url: string): Promise<Counter> {
  const connection = await createConnection(url);
  return {
    async selects() {
      const [rows] = await connection.query("show global status like 'Com_select'");
      return Number((rows as { Value: string }[])[0]?.Value);
    },
    close: () => connection.end(),
  };
}

interface Turn {
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
  readonly selectsPerCall: number;
}

export async function measurePath(parts: PathParts, engine: Engine): Promise<PathFigures[]> {
  const { guardian, upstream, order, builds, plan, say } = parts;
  const databases = await Promise.all(LAWS.map(() => engine.create()));
  const server = engine.name === 'sqlite' ? null : await counterOf(databases[0]?.url ?? '');
  const pids: number[] = [];
  const turns = new Map<string, Turn[]>();
  try {
    for (const [i, laws] of LAWS.entries()) {
      const options = { ...optionsOf(laws, builds), users: 1, policies: POLICIES };
      const gateway = await startPortcullis({ guardian, upstream }, databases[i]?.url ?? '', options);
      pids.push(gateway.pid);
      await open(order, laws, gateway, Math.max(...plan.callers));
      await order('run', { key: laws, concurrency: 16, ms: plan.firstMs });
    }
    for (let round = 0; round < plan.rounds; round++) {
      for (const concurrency of plan.callers) {
        for (const laws of LAWS) {
          await order('run', { key: laws, concurrency, ms: plan.warmUpMs });
          const before = await server?.selects();
          const { calls, perSecond, p50, p99 } = await order('run', { key: laws, concurrency, ms: plan.ms });
          const selects = ((await server?.selects()) ?? Number.NaN) - (before ?? Number.NaN);
          const key = `${laws} ${concurrency}`;
          turns.set(key, [...(turns.get(key) ?? []), { perSecond, p50, p99, selectsPerCall: selects / calls }]);
        }
      }
      say(`${engine.name}: round ${round + 1} of ${plan.rounds} of calls through the gateway`);
    }
  } finally {
    await server?.close();
    for (const pid of pids) killGroup(pid, 'SIGKILL');
    await dropped(databases);
  }
  return plan.callers.flatMap((callers) =>
    LAWS.map((laws): PathFigures => {
      const own = turns.get(`${laws} ${callers}`) ?? [];
      const bare = turns.get(`neither ${callers}`) ?? [];
      const over = (figure: (turn: Turn) => number): number => median(own.map(figure));
      // What is measured side by side suffers alike from what else the machine does.
      const beside = (figure: (turn: Turn, neither: Turn) => number): number =>
        median(own.flatMap((turn, i) => (bare[i] === undefined ? [] : [figure(turn, bare[i])])));
      return {
        engine: engine.name,
        laws,
        callers,
        perSecond: over(({ perSecond }) => perSecond),
        p50: over(({ p50 }) => p50),
        p99: over(({ p99 }) => p99),
        addedP50: beside(({ p50 }, neither) => p50 - neither.p50),
        addedP99: beside(({ p99 }, neither) => p99 - neither.p99),
        share: beside(({ perSecond }, neither) => perSecond / neither.perSecond),
        selectsPerCall: server === null ? null : over(({ selectsPerCall }) => selectsPerCall),
      };
    }),
  );
}

/** Of the round trip to the database, so that it is known and what Node takes is little beside it. */
const AWAY_MS = 5;
const ROUND_TRIP_CALLERS = 64;

/** How often a gateway with both laws reads, with a database so far away that its round trips can be counted. */
export async function measureRoundTrips(parts: PathParts, engine: Engine): Promise<RoundTripFigures> {
  const { guardian, upstream, order, builds, plan } = parts;
  const database = await engine.create();
  const distance = await startDistance(database.url);
  const server = await counterOf(database.url);
  let pid: number | undefined;
  try {
    const options = { ...optionsOf('both', builds), users: 1, policies: POLICIES };
    const gateway = await startPortcullis({ guardian, upstream }, distance.url, options);
    pid = gateway.pid;
    await open(order, 'far', gateway, ROUND_TRIP_CALLERS);
    distance.away(AWAY_MS);
    const run = { key: 'far', concurrency: ROUND_TRIP_CALLERS };
    await order('run', { ...run, ms: plan.roundTripsMs });
    const before = { selects: await server.selects(), at: performance.now() };
    const { calls } = await order('run', { ...run, ms: plan.roundTripsMs });
    const took = performance.now() - before.at;
    const selects = (await server.selects()) - before.selects;
    return { engine: engine.name, callers: ROUND_TRIP_CALLERS, calls, selects, roundTrips: took / (2 * AWAY_MS) };
  } finally {
    await server.close();
    if (pid !== undefined) killGroup(pid, 'SIGKILL');
    await distance.close();
    await dropped([database]);
  }
}

/** The server may not have noticed yet that who used them is gone. */
export async function dropped(databases: readonly { drop(): Promise<void> }[]): Promise<void> {
  await sleep(200);
  await Promise.allSettled(databases.map((database) => database.drop()));
}
