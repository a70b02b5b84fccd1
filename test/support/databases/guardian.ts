/**
 * The runner starts every process through a guardian. The guardian is a small process in a session of its own, which gets the
 * process ids and folders over a pipe. When the pipe closes, by `close()` or because the runner has died, the guardian kills the
 * processes and removes the folders.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

interface StartOptions {
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
}

export interface Guardian {
  /** A folder of this run. Other users may enter it, because servers that root starts drop their rights. */
  readonly folder: string;
  /** Starts a process in a group of its own, so that Ctrl+C in the terminal reaches only the runner. */
  start(command: string, args: readonly string[], options?: StartOptions): ChildProcess;
  /** Runs a command to its end and returns its output. Throws with the last lines if it fails or takes too long. */
  run(command: string, args: readonly string[], options: StartOptions & { readonly timeoutMs: number }): Promise<string>;
  /** Removes this folder, too, when the guardian closes. */
  removeLater(folder: string): void;
  /** Kills the processes that still run, removes the folders, and resolves when that is done. */
  close(): Promise<void>;
}

// This is plain JavaScript, because it must start fast and depend on nothing that the run could break.
const KEEPER = `
import { createInterface } from 'node:readline';
import { rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
const groups = new Set();
const folders = new Set();
for await (const line of createInterface({ input: process.stdin })) {
  const [word, value] = JSON.parse(line);
  if (word === 'group') groups.add(value);
  if (word === 'ended') groups.delete(value);
  if (word === 'folder') folders.add(value);
}
const signal = (group, name) => { try { process.kill(-group, name); return true; } catch { return false; } };
for (let i = 0; i < 100; i++) {
  let alive = false;
  for (const group of groups) alive = signal(group, 'SIGKILL') || alive;
  if (!alive) break;
  await sleep(50);
}
for (const folder of folders) {
  try { rmSync(folder, { recursive: true, force: true, maxRetries: 5 }); } catch {}
}
`;

export function lastLines(text: string, count = 6): string {
  return text.trim().split('\n').slice(-count).join('\n');
}

export function createGuardian(): Guardian {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-test-'));
  chmodSync(folder, 0o755);
  const keeper = spawn(process.execPath, ['--input-type=module', '-e', KEEPER], {
    stdio: ['pipe', 'ignore', 'inherit'],
    detached: true,
  });
  const gone = once(keeper, 'exit');
  const tell = (word: 'group' | 'ended' | 'folder', value: number | string) =>
    keeper.stdin.write(`${JSON.stringify([word, value])}\n`);
  // If somebody kills the guardian, the run continues without its protection.
  keeper.stdin.on('error', () => undefined);
  tell('folder', folder);

  const start: Guardian['start'] = (command, args, options = {}) => {
    const child = spawn(command, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
    const { pid } = child;
    if (pid !== undefined) tell('group', pid);
    // A group may outlive its first process. Report `ended` only when the system may reuse the number.
    child.once('exit', () => pid !== undefined && !groupLives(pid) && tell('ended', pid));
    return child;
  };

  const run: Guardian['run'] = async (command, args, { timeoutMs, ...options }) => {
    const child = start(command, args, options);
    let output = '';
    child.stdout?.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    child.stderr?.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      if (child.pid !== undefined) killGroup(child.pid, 'SIGKILL');
    }, timeoutMs);
    try {
      // This rejects if the command cannot be started.
      const [code] = await once(child, 'close');
      if (late) throw new Error(`${command} took more than ${timeoutMs / 1000} s`);
      if (code !== 0) throw new Error(`${command} failed: ${lastLines(output, 3)}`);
      return output;
    } finally {
      clearTimeout(timer);
    }
  };

  return {
    folder,
    start,
    run,
    removeLater: (path) => tell('folder', path),
    async close() {
      keeper.stdin.end();
      await gone;
    },
  };
}

function groupLives(group: number): boolean {
  try {
    process.kill(-group, 0);
    return true;
  } catch {
    return false;
  }
}

export function killGroup(group: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-group, signal);
  } catch {
    // The group has already ended.
  }
}
