/** Puts `slices.ts` into the gateway's process, reads it, and tries it on work of known size. */
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import tsBlankSpace from 'ts-blank-space';
import { type Guardian, killGroup } from '../../test/support/databases/guardian.ts';
import { startServer } from '../gateway/processes.ts';
import type { Slice, Slices } from './slices.ts';

const ROOT = join(import.meta.dirname, '../..');
/** The report comes only when the main thread is free. */
const PATIENCE_MS = 60_000;

export interface Instrument {
  /** Options and environment of the process that is measured. */
  readonly nodeOptions: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** The slices since the last call. Throws if the process has ended, or if its main thread is held too long. */
  slices(pid: number): Promise<Slices>;
}

function signal(pid: number): void {
  try {
    process.kill(pid, 'SIGUSR2');
  } catch (cause) {
    throw new Error('the process has ended', { cause });
  }
}

/** Compiles the instrument first, so that the gateway's process has no compiler in it. */
export function installInstrument({ folder }: Guardian): Instrument {
  const file = join(folder, 'slices.mjs');
  writeFileSync(file, tsBlankSpace(readFileSync(join(import.meta.dirname, 'slices.ts'), 'utf8')));
  return {
    // Node warns that WASI is experimental.
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

/** The works of `known.ts`, and the time that the instrument must show for each. */
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

/** Throws if the instrument reads something else. */
export async function checkInstrument(guardian: Guardian, { nodeOptions, env, slices }: Instrument): Promise<Reading[]> {
  const { pid, origin } = await startServer(guardian, {
    name: 'known.ts',
    command: process.execPath,
    args: (port) => [
      ...nodeOptions,
      '--import=./scripts/loader/register.js',
      join(import.meta.dirname, 'known.ts'),
      String(port),
    ],
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
