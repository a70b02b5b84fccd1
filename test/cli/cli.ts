/** The `portcullis` command, as a process of its own or in this one. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import type { Terminal } from '../../src/cli/command.ts';
import { runWords } from '../../src/cli/entries.ts';
import { program } from '../support/process.ts';

export interface Ran {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

/** Runs the command as a process that gets only the variables in `environment`. */
export async function portcullis(environment: Record<string, string>, ...args: string[]): Promise<Ran> {
  const child = spawn(process.execPath, [...program('cli/portcullis'), ...args], {
    env: { PATH: process.env['PATH'], ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [out, err] = [[] as string[], [] as string[]];
  child.stdout.setEncoding('utf8').on('data', (text: string) => void out.push(text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => void err.push(text));
  const [code]: (number | null)[] = await once(child, 'close');
  return { code: code ?? null, out: out.join(''), err: err.join('') };
}

/** The same without the start of a process, for tests that call it often: one at a time, because the environment is the process's. */
export async function inProcess(
  environment: Record<string, string>,
  command: (terminal: Terminal) => Promise<number>,
): Promise<Ran> {
  const [out, err] = [[] as string[], [] as string[]];
  const before = { ...process.env };
  Object.assign(process.env, environment);
  try {
    const code = await command({
      stdout: { write: (text) => out.push(text) },
      stderr: { write: (text) => err.push(text) },
    });
    return { code, out: out.join(''), err: err.join('') };
  } finally {
    for (const name of Object.keys(environment)) {
      if (before[name] === undefined) delete process.env[name];
      else process.env[name] = before[name];
    }
  }
}

/** Returns what `portcullis <name>` runs with the words that follow it. */
export const command =
  (name: string) =>
  async (words: readonly string[], terminal: Terminal): Promise<number> =>
    (await runWords([name, ...words], terminal)) ?? -1;

export const policies = command('policies');

export function folder(t: ExecutionContext): string {
  const made = mkdtempSync(join(tmpdir(), 'portcullis-policies-'));
  t.teardown(() => rmSync(made, { recursive: true, force: true }));
  return made;
}

/** Returns a new folder of policies with a manifest. */
export function policyFolder(t: ExecutionContext): string {
  const dir = join(folder(t), 'policies');
  mkdirSync(dir);
  writeFileSync(join(dir, 'portcullis.yaml'), 'owner: default\n');
  return dir;
}
