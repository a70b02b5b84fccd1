/** The published MCP server `@modelcontextprotocol/server-everything`, on loopback, in a process of its own. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import type { Socket } from 'node:net';
import { dirname, join } from 'node:path';

export interface Upstream {
  readonly url: string;
  stop(): Promise<void>;
}

const START_MS = 60_000;

let shared: Promise<Upstream> | undefined;

/** One for all tests of a file: it takes a second of CPU time to start, and each client has a session of its own there. */
export function sharedEverything(): Promise<Pick<Upstream, 'url'>> {
  shared ??= startEverything();
  return shared;
}

/** It ends with this process at the latest. */
export async function startEverything(): Promise<Upstream> {
  const manifest = createRequire(import.meta.url).resolve('@modelcontextprotocol/server-everything/package.json');
  const entry = join(dirname(manifest), 'dist', 'index.js');
  const preloads = ['loopback-only.js', 'end-with-parent.js'].map((file) => `--import=${new URL(file, import.meta.url).href}`);
  const child = spawn(process.execPath, [...preloads, entry, 'streamableHttp'], {
    // Its tool `get-env` prints its environment, so it gets next to none.
    env: { PATH: process.env['PATH'], PORT: '0' },
    stdio: ['pipe', 'ignore', 'pipe'],
  });
  const port = await new Promise<string>((resolve, reject) => {
    let text = '';
    const late = setTimeout(() => reject(new Error(`server-everything did not start: ${text}`)), START_MS);
    child.stderr.on('data', (chunk: Buffer) => {
      text += chunk;
      const found = /listening on port (\d+)/.exec(text)?.[1];
      if (found === undefined) return;
      clearTimeout(late);
      resolve(found);
    });
    child.once('error', reject);
    child.once('exit', (code) => reject(new Error(`server-everything ended with ${code}: ${text}`)));
  });
  // The process of the tests can end without a call of `stop`.
  for (const one of [child, child.stdin as Socket, child.stderr as Socket]) one.unref();
  return {
    url: `http://127.0.0.1:${port}/mcp`,
    async stop() {
      if (child.exitCode !== null || child.signalCode !== null) return;
      child.ref();
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
  };
}
