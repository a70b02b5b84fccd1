/** What a call costs with large results, many policies and long lists, beside the bare proxy with the same work. */
import { setTimeout as sleep } from 'node:timers/promises';
import { median } from '../measure.ts';
import { columns, number } from '../print.ts';
import type { Place, RunFigures, Work } from './load-orders.ts';
import type { Order } from './orders.ts';
import { apiAt, bare, startPortcullis } from './own.ts';
import { usageOf } from './processes.ts';
import type { Surroundings } from './system.ts';

const SESSIONS = 16;
const SETTLE_MS = 600;
const WORKS: readonly (readonly [name: string, work: Work])[] = [
  ['call with a small result', { pad: 0 }],
  ['call with a result of 100 KB', { pad: 100 * 1024 }],
  ['list of 10 tools', { list: 10 }],
  ['list of 1,000 tools', { list: 1_000 }],
];
const FEW = 10;
/** About as many as one set of files may have. */
const MANY = 9_800;

/** Medians over the rounds. Times are in milliseconds. */
export interface CostFigures {
  readonly work: string;
  readonly system: string;
  readonly cpuPerCallUs: number;
  readonly p50: number;
  readonly p99: number;
}

export interface CostPlan {
  readonly rounds: number;
  readonly ms: number;
}

interface Served extends Place {
  readonly name: string;
  readonly pid: number;
}

async function portcullis({ guardian, upstream }: Surroundings, more: number): Promise<Served> {
  const url = `sqlite:${guardian.folder}/costs-${more}.db`;
  const { pid, origin, admin, users } = await startPortcullis({ guardian, upstream }, url, { users: 1, policies: FEW });
  const [user] = users;
  if (user === undefined) throw new Error('no user');
  const file = (i: number): string =>
    `name: more ${i}\nresource_type: tool\nresource_pattern: ^tool_${i}$\neffect: allow\npriority: ${i % 100}\nsubjects:\n  - group: group-${i % 500}\n`;
  const files = Object.fromEntries(Array.from({ length: more }, (_, i) => [`more-${i}.yaml`, file(i)]));
  if (more > 0) await apiAt(origin).call('POST', '/api/policies/apply', admin, { files });
  return { name: `Portcullis, ${FEW + more} policies`, pid, url: user.url, headers: user.headers };
}

/** The gateways use SQLite, so that their figures include the database. */
export async function costs(order: Order, surroundings: Surroundings, { rounds, ms }: CostPlan): Promise<CostFigures[]> {
  const served: Served[] = [
    { ...(await bare.start(surroundings)), name: 'bare proxy' },
    await portcullis(surroundings, 0),
    await portcullis(surroundings, MANY - FEW),
  ];
  for (const { name, url, headers } of served) {
    await order('open', { url, headers, tool: 'echo', key: name, sessions: SESSIONS });
  }
  const found: CostFigures[] = [];
  for (const [work, what] of WORKS) {
    const turns = new Map<Served, (RunFigures & { readonly cpuMs: number })[]>(served.map((one) => [one, []]));
    for (let i = 0; i <= rounds; i++) {
      for (const [{ name: key, pid }, all] of turns) {
        const before = usageOf(pid).cpuMs;
        const figures = await order('run', { key, concurrency: SESSIONS, ms, work: what });
        await sleep(SETTLE_MS);
        // The first round warms up.
        if (i > 0) all.push({ ...figures, cpuMs: usageOf(pid).cpuMs - before });
      }
    }
    for (const [{ name: system }, all] of turns) {
      found.push({
        work,
        system,
        cpuPerCallUs: median(all.map(({ calls, cpuMs }) => (1_000 * cpuMs) / calls)),
        p50: median(all.map(({ p50 }) => p50)),
        p99: median(all.map(({ p99 }) => p99)),
      });
    }
  }
  for (const { pid } of served) process.kill(pid, 'SIGKILL');
  return found;
}

export function costTable(figures: readonly CostFigures[]): string[] {
  const rows = figures.map(({ work, system, cpuPerCallUs, p50, p99 }) => {
    const proxy = figures.find((other) => other.work === work && other.system === 'bare proxy');
    const share = proxy === undefined ? '' : number(proxy.cpuPerCallUs / cpuPerCallUs);
    return [work, system, share, number(cpuPerCallUs), number(p50), number(p99)];
  });
  return ['', ...columns([[`${SESSIONS} sessions`, '', 'calls/CPU-s of bare', 'CPU us', 'p50 ms', 'p99 ms'], ...rows])];
}
