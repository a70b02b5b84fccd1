/** The process of a database server, which can be killed, frozen, and started again on its data. */
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Guardian, killGroup, lastLines } from './guardian.ts';

const START_TIMEOUT_MS = 120_000;

export interface ServerProcess {
  /** Resolves when `isUp` does not throw and gives true; rejects with the last lines of the log where the process ends first. */
  start(args: readonly string[], isUp: () => Promise<boolean>): Promise<void>;
  /** Sends SIGKILL. Resolves when the process is gone. */
  kill(): Promise<void>;
  signal(name: 'SIGSTOP' | 'SIGCONT'): void;
  hasEnded(): boolean;
}

export function serverProcess(guardian: Guardian, name: string, command: string): ServerProcess {
  let pid: number | undefined;
  let ended: Promise<unknown> = Promise.resolve();
  let running = false;
  return {
    async start(args, isUp) {
      const child = guardian.start(command, args);
      pid = child.pid;
      running = true;
      let log = '';
      let over = false;
      const keep = (chunk: Buffer) => {
        log = (log + chunk.toString()).slice(-20_000);
      };
      child.stdout?.on('data', keep);
      child.stderr?.on('data', keep);
      // Rejects where the command cannot be started.
      ended = once(child, 'exit')
        .catch(keep)
        .then(() => {
          over = true;
          running = false;
        });
      const deadline = Date.now() + START_TIMEOUT_MS;
      while (!over && Date.now() < deadline) {
        if (await isUp().catch(() => false)) return;
        await sleep(100);
      }
      throw new Error(`${name} ${over ? 'ended' : `is not up after ${START_TIMEOUT_MS / 1000} s`}: ${lastLines(log, 20)}`);
    },
    signal(name) {
      if (pid !== undefined) killGroup(pid, name);
    },
    hasEnded: () => !running,
    async kill() {
      if (pid !== undefined) killGroup(pid, 'SIGKILL');
      await ended;
    },
  };
}
