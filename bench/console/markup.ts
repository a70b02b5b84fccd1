/** Tells the processor time of the markup from that of the services behind a page, by the functions that the main thread runs. */
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { Profiler } from 'node:inspector';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import tsBlankSpace from 'ts-blank-space';
import type { Guardian } from '../../test/support/databases/guardian.ts';

const PATIENCE_MS = 60_000;

/** What makes pages out of the answers of services. `ask` carries out the operations of REST, and `sessions` finds the user. */
const MARKUP = /\/dist\/(console|browser)\/(?!(ask|sessions|sign-in|with-provider)\.js$)/;
const OURS = /\/dist\//;
/** The thread does nothing, or waits for the kernel. */
const IDLE = new Set(['(idle)', '(program)']);
const COLLECTOR = '(garbage collector)';

/**
 * Returns the milliseconds in which the thread made markup. A sample counts if the innermost function of the gateway's own is of the console.
 * Garbage collection counts for what ran before it.
 */
export function markupMs({ nodes, samples = [], timeDeltas = [] }: Profiler.Profile): number {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const parents = new Map(nodes.flatMap(({ id, children = [] }) => children.map((child) => [child, id] as const)));
  const owner = (id: number | undefined): string | null => {
    for (let at = id; at !== undefined; at = parents.get(at)) {
      const url = byId.get(at)?.callFrame.url ?? '';
      if (OURS.test(url)) return url;
    }
    return null;
  };
  let [us, isMarkup] = [0, false];
  for (const [at, id] of samples.entries()) {
    const name = byId.get(id)?.callFrame.functionName ?? '';
    if (IDLE.has(name)) continue;
    if (name !== COLLECTOR) isMarkup = MARKUP.test(owner(id) ?? '');
    // The time until the next sample belongs to this one.
    if (isMarkup) us += Math.max(0, timeDeltas[at + 1] ?? 0);
  }
  return us / 1_000;
}

/** Compiles the profiler first, so that the gateway's process has no compiler in it. */
export function installProfiler({ folder }: Guardian) {
  const file = join(folder, 'profiler.mjs');
  writeFileSync(file, tsBlankSpace(readFileSync(join(import.meta.dirname, 'profiler.ts'), 'utf8')));

  async function signalled(pid: number, what: string): Promise<string> {
    const report = join(folder, `${what}-${pid}.json`);
    rmSync(report, { force: true });
    process.kill(pid, 'SIGWINCH');
    for (const latest = performance.now() + PATIENCE_MS; !existsSync(report); await sleep(5)) {
      if (performance.now() > latest) throw new Error(`the main thread was held for ${PATIENCE_MS / 1_000} s`);
    }
    return readFileSync(report, 'utf8');
  }

  return {
    nodeOption: `--import=${file}`,
    /** Returns the profile of the main thread during `work`. */
    async during(pid: number, work: () => Promise<void>): Promise<Profiler.Profile> {
      await signalled(pid, 'profiling');
      await work();
      return JSON.parse(await signalled(pid, 'profile')) as Profiler.Profile;
    },
  };
}
