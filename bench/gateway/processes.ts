/** Starts the measured processes, and reads their usage from `/proc`. */
import type { ChildProcess } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Guardian, lastLines } from '../../test/support/databases/guardian.ts';
import { freePort } from '../../test/support/port.ts';

const START_MS = 120_000;
const ROOT = join(import.meta.dirname, '../..');
/** What `/proc/<pid>/stat` counts in (`USER_HZ`, 100 on every Linux that Node runs on). */
const TICK_MS = 10;

export interface Started {
  readonly pid: number;
  readonly origin: string;
}

interface Watched {
  readonly child: ChildProcess;
  output(): string;
  ended(): boolean;
}

function watch(child: ChildProcess): Watched {
  let output = '';
  let ended = false;
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding('utf8').on('data', (text: string) => {
      output = (output + text).slice(-20_000);
    });
  }
  child.once('exit', () => {
    ended = true;
  });
  child.once('error', (error) => {
    ended = true;
    output += error.message;
  });
  return { child, output: () => output, ended: () => ended };
}

async function until<T>(
  what: string,
  { child, output, ended }: Watched,
  ask: () => Promise<T | null>,
): Promise<T & { pid: number }> {
  const latest = performance.now() + START_MS;
  while (!ended() && performance.now() < latest) {
    const found = await ask();
    if (found !== null && child.pid !== undefined) return { ...found, pid: child.pid };
    await sleep(50);
  }
  throw new Error(`${what} ${ended() ? 'ended' : 'did not start'}: ${lastLines(output())}`);
}

/** A file of the benchmark that `announce`s itself. */
export async function startNode(guardian: Guardian, file: string, ...args: readonly string[]): Promise<Started> {
  const path = join(import.meta.dirname, file);
  const watched = watch(
    guardian.start(process.execPath, ['--import=./scripts/loader/register.js', path, ...args], { cwd: ROOT }),
  );
  return until(file, watched, async () => {
    const port = /listening on (\d+)/.exec(watched.output())?.[1];
    return port === undefined ? null : { origin: `http://127.0.0.1:${port}` };
  });
}

export interface ServerPlan {
  readonly name: string;
  readonly command: string;
  args(port: number): readonly string[];
  readonly env?: (port: number) => NodeJS.ProcessEnv;
  readonly cwd?: string;
  /** Answers with a status below 500 once the server is there. */
  readonly probe: string;
}

/** Starts a server on a given port. Its environment has only `PATH`, `HOME` and the variables of the plan. */
export async function startServer(guardian: Guardian, { name, command, args, env, cwd, probe }: ServerPlan): Promise<Started> {
  const port = await freePort();
  const { PATH, HOME } = process.env;
  const watched = watch(
    guardian.start(command, args(port), { cwd: cwd ?? guardian.folder, env: { PATH, HOME, ...env?.(port) } }),
  );
  const origin = `http://127.0.0.1:${port}`;
  return until(name, watched, async () => {
    const status = await fetch(origin + probe, { signal: AbortSignal.timeout(5_000) }).then(
      async (answer) => {
        await answer.body?.cancel();
        return answer.status;
      },
      () => 599,
    );
    return status < 500 ? { origin } : null;
  });
}

export interface Usage {
  /** User and system time of the process and all that it has started, milliseconds. */
  readonly cpuMs: number;
  /** Resident memory (RSS) and proportional memory (PSS), in bytes. */
  readonly rss: number;
  readonly pss: number;
}

interface Stat {
  readonly parent: number;
  readonly ticks: number;
}

function statOf(pid: number): Stat | null {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name, in parentheses, may hold anything.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    // utime, stime, and those of the children that have ended and were waited for.
    const ticks = [11, 12, 13, 14].reduce((sum, index) => sum + Number(fields[index]), 0);
    return { parent: Number(fields[1]), ticks };
  } catch {
    return null;
  }
}

function memoryOf(pid: number): { rss: number; pss: number } {
  try {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
    const kib = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1] ?? 0);
    return { rss: kib('Rss') * 1024, pss: kib('Pss') * 1024 };
  } catch {
    return { rss: 0, pss: 0 };
  }
}

/** Returns the usage of the process and all its descendants. */
export function usageOf(root: number): Usage {
  const stats = new Map<number, Stat>();
  for (const name of readdirSync('/proc')) {
    const stat = /^\d+$/.test(name) ? statOf(Number(name)) : null;
    if (stat !== null) stats.set(Number(name), stat);
  }
  let [ticks, rss, pss] = [0, 0, 0];
  const tree = [root];
  for (const pid of tree) {
    const stat = stats.get(pid);
    if (stat === undefined) throw new Error(`process ${pid} has ended`);
    const memory = memoryOf(pid);
    ticks += stat.ticks;
    rss += memory.rss;
    pss += memory.pss;
    for (const [child, { parent }] of stats) if (parent === pid) tree.push(child);
  }
  return { cpuMs: ticks * TICK_MS, rss, pss };
}
