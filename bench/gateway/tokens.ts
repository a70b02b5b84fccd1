/** Whether a call with the access token of an OAuth client costs more than one with an API token: both at the same gateway, in turns. */
import { setTimeout as sleep } from 'node:timers/promises';
import { connected } from '../../test/oauth/support.ts';
import { median } from '../measure.ts';
import { columns, number } from '../print.ts';
import type { RunFigures } from './load-orders.ts';
import type { Order } from './orders.ts';
import { passwordOf, startPortcullis } from './own.ts';
import { usageOf } from './processes.ts';
import type { Surroundings } from './system.ts';

const SESSIONS = 16;
const SETTLE_MS = 600;
const KINDS = ['API token', 'access token'] as const;
type Kind = (typeof KINDS)[number];

/** Medians over the rounds. Times are in milliseconds. */
export interface TokenFigures {
  readonly token: Kind;
  readonly cpuPerCallUs: number;
  readonly p50: number;
  readonly p99: number;
}

export interface TokenComparison {
  readonly figures: readonly TokenFigures[];
  /** Processor time of a call with an access token by that of a call with an API token: the median of the rounds, and the extremes. */
  readonly ratio: number;
  readonly least: number;
  readonly most: number;
}

export interface TokenPlan {
  readonly rounds: number;
  readonly ms: number;
}

/** The gateway uses SQLite, so that its figures include the database. */
export async function compareTokens(
  order: Order,
  surroundings: Surroundings,
  { rounds, ms }: TokenPlan,
): Promise<TokenComparison> {
  const { guardian } = surroundings;
  const { pid, origin, users } = await startPortcullis(surroundings, `sqlite:${guardian.folder}/tokens.db`, { users: 1 });
  const [user] = users;
  if (user === undefined) throw new Error('no user');
  const { url, email } = user;
  const person = { id: user.id, email, password: passwordOf(email), token: user.login };
  const { tokens } = await connected({ url: origin }, person, url);
  const headers = { 'API token': user.headers, 'access token': { authorization: `Bearer ${tokens.access_token}` } };
  for (const kind of KINDS) await order('open', { url, headers: headers[kind], tool: 'echo', key: kind, sessions: SESSIONS });
  const turns: Record<Kind, (RunFigures & { readonly cpuPerCallUs: number })[]> = { 'API token': [], 'access token': [] };
  for (let i = 0; i <= rounds; i++) {
    for (const key of i % 2 === 0 ? KINDS : KINDS.toReversed()) {
      const before = usageOf(pid).cpuMs;
      const figures = await order('run', { key, concurrency: SESSIONS, ms });
      await sleep(SETTLE_MS);
      // The first round warms up.
      if (i > 0) turns[key].push({ ...figures, cpuPerCallUs: (1_000 * (usageOf(pid).cpuMs - before)) / figures.calls });
    }
  }
  process.kill(pid, 'SIGKILL');
  const ratios = turns['access token'].map(
    ({ cpuPerCallUs }, n) => cpuPerCallUs / (turns['API token'][n]?.cpuPerCallUs ?? Number.NaN),
  );
  return {
    figures: KINDS.map((token) => ({
      token,
      cpuPerCallUs: median(turns[token].map(({ cpuPerCallUs }) => cpuPerCallUs)),
      p50: median(turns[token].map(({ p50 }) => p50)),
      p99: median(turns[token].map(({ p99 }) => p99)),
    })),
    ratio: median(ratios),
    least: Math.min(...ratios),
    most: Math.max(...ratios),
  };
}

export const tokenTable = ({ figures, ratio, least, most }: TokenComparison): string[] => [
  '',
  ...columns([
    [`${SESSIONS} sessions`, 'CPU us', 'p50 ms', 'p99 ms'],
    ...figures.map(({ token, cpuPerCallUs, p50, p99 }) => [token, number(cpuPerCallUs), number(p50), number(p99)]),
  ]),
  `a call with an access token costs ${ratio.toFixed(2)} of one with an API token (${least.toFixed(2)} to ${most.toFixed(2)} in the rounds)`,
];
