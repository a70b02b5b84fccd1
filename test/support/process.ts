/** The gateway as a process of its own, as `npm start` runs it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { freePort } from './port.ts';

export interface GatewayProcess {
  readonly url: string;
  readonly child: ChildProcess;
  /** Returns everything that it has printed so far on both streams. */
  output(): string;
  /** Resolves with the exit code, or the signal that ended it. */
  readonly ended: Promise<number | string>;
}

/** The arguments of node that run a file of `src/`: the built file in a whole run, or the source if a test runs alone. */
export function program(file: string): string[] {
  const built = process.env['PORTCULLIS_TEST_BUILT'] === 'true';
  return built ? [`dist/${file}.js`] : ['--import=./scripts/loader/register.js', `src/${file}.ts`];
}

/** `environment` is all that the process gets, `within` words that come before its command. Does not wait for anything. */
export async function spawnGateway(
  t: ExecutionContext,
  environment: Record<string, string>,
  within: readonly string[] = [],
): Promise<GatewayProcess> {
  const port = environment['PORT'] ?? String(await freePort());
  const [command = process.execPath, ...words] = [...within, process.execPath];
  const child = spawn(command, [...words, ...program('main')], {
    env: { PATH: process.env['PATH'], PORT: port, DRAIN_DELAY_MS: '0', ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  const ended = once(child, 'close').then(([code, signal]: (number | string | null)[]) => code ?? signal ?? 'unknown');
  t.teardown(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  return { url: `http://127.0.0.1:${port}`, child, output: () => output, ended };
}

/** `spawnGateway`, and waits until it is ready; fails where it ends first. */
export async function runGateway(
  t: ExecutionContext,
  environment: Record<string, string>,
  within: readonly string[] = [],
): Promise<GatewayProcess> {
  const gateway = await spawnGateway(t, environment, within);
  let over = false;
  void gateway.ended.then(() => {
    over = true;
  });
  while (!over) {
    const ready = await fetch(`${gateway.url}/health/ready`).then(
      (answer) => answer.status === 200,
      () => false,
    );
    if (ready) return gateway;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`the gateway ended: ${gateway.output()}`);
}

export function dataDir(t: ExecutionContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-data-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
