/** Installs rivals that are not npm packages, each once, into a cache folder. */
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Surroundings } from '../gateway/system.ts';

const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'portcullis/peers');
const TIME_BOX_MS = 900_000;
/** Written last: a folder without it was left in the middle. */
const MARK = 'installed';

export interface Recipe {
  /** The name with the version. */
  readonly name: string;
  /** Takes minutes. */
  readonly slow: boolean;
  readonly steps: (folder: string) => readonly {
    readonly command: string;
    readonly args: readonly string[];
    readonly env?: Readonly<Record<string, string>>;
  }[];
}

/** Returns the folder. Rejects with the name of what is missing. */
export async function install({ guardian, quick, say }: Surroundings, { name, slow, steps }: Recipe): Promise<string> {
  const folder = join(CACHE, name);
  if (existsSync(join(folder, MARK))) return folder;
  if (slow && quick) throw new Error('it is not installed yet, which takes minutes: run without --quick once');
  say(`installing ${name} into ${folder}`);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  for (const { command, args, env } of steps(folder)) {
    await guardian.run(command, args, { timeoutMs: TIME_BOX_MS, env: { ...process.env, ...env } });
  }
  writeFileSync(join(folder, MARK), '');
  return folder;
}

/** Packages of PyPI in an environment of their own; its `bin/python` runs them. */
export const fromPypi = (requirement: string, slow: boolean): Recipe => ({
  name: requirement.replace('==', '-'),
  slow,
  steps: (folder) => [
    { command: 'python3', args: ['-m', 'venv', folder] },
    { command: join(folder, 'bin/pip'), args: ['install', '--quiet', '--disable-pip-version-check', requirement] },
  ],
});
