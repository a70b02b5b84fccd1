/** What is measured inside of the gateway's process, and the proof that it measures that. */
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import tsBlankSpace from 'ts-blank-space';
import { type Guardian, killGroup } from '../../test/support/databases/guardian.ts';
import { startServer } from '../gateway/processes.ts';
import type { Slice, Slices } from './slices.ts';

const ROOT = join(import.meta.dirname, '../..');
/** A main thread that is held answers no sooner. */
const PATIENCE_MS = 60_000;

export interface Instrument {
  /** For the process that is measured. */
  readonly nodeOptions: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** What has been since it was last called. Throws when the process has ended, or its main thread does not come to it. */
  slices(pid: number): Promise<Slices>;
}

function signal(pid: number): void {
  try {
    process.kill(pid, 'SIGUSR2');
  } catch (cause) {
    throw new Error('the process has ended', { cause });
  }
}

/** Plain JavaScript: the gateway is not to have a compiler in its process. */
export function installInstrument({ folder }: Guardian): Instrument {
  const file = join(folder, 'slices.mjs');
  writeFileSync(file, tsBlankSpace(readFileSync(join(import.meta.dirname, 'slices.ts'), 'utf8')));
  return {
    // What it is made of is experimental, and Node would say so in the gateway's log.
    nodeOptions: ['--no-warnings', `--import=${file}`],
    env: { BENCH_SLICES: folder },
    async slices(pid) {
      const report = join(folder, `slices-${pid}.json`);
      rmSync(report, { force: true });
      signal(pid);
      for (const latest = performance.now() + PATIENCE_MS; !existsSync(report); await sleep(20)) {
        if (performance.now() > latest) throw new Error(`the main thread was held for ${PATIENCE_MS / 1_000} s`);
      }
      return JSON.parse(readFileSync(report, 'utf8')) as Slices;
    },
  };
}

/** Work of a known size, and what is to be read of it. See `known.ts`. */
const KNOWN: readonly { readonly work: string; readonly ms: number; readonly within: number }[] = [
  { work: 'busy', ms: 80, within: 10 },
  { work: 'wait', ms: 0, within: 10 },
  { work: 'microtasks', ms: 80, within: 10 },
  { work: 'turns', ms: 20, within: 10 },
];

export interface Reading {
  readonly work: string;
  readonly expected: number;
  readonly longest: Slice | undefined;
}

/** Throws when the instrument reads something else than what was done. */
export async function checkInstrument(guardian: Guardian, { nodeOptions, env, slices }: Instrument): Promise<Reading[]> {
  const { pid, origin } = await startServer(guardian, {
    name: 'known.ts',
    command: process.execPath,
    args: (port) => [...nodeOptions, '--import=ts-blank-space/register', join(import.meta.dirname, 'known.ts'), String(port)],
    env: () => ({ ...env }),
    cwd: ROOT,
    probe: '/',
  });
  const readings: Reading[] = [];
  try {
    for (const { work, ms, within } of KNOWN) {
      await slices(pid);
      await (await fetch(`${origin}/${work}`)).text();
      const [longest] = (await slices(pid)).longest;
      const read = longest?.ms ?? 0;
      if (Math.abs(read - ms) > within)
        throw new Error(`the instrument is wrong here: it reads ${read} ms of ${work}, which is ${ms}`);
      readings.push({ work, expected: ms, longest });
    }
  } finally {
    killGroup(pid, 'SIGKILL');
  }
  return readings;
}
