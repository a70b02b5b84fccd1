/** The published MCP server `@modelcontextprotocol/server-everything`, on loopback, in a process of its own. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

export interface Upstream {
  readonly url: string;
  stop(): Promise<void>;
}

const START_MS = 60_000;

export async function startEverything(): Promise<Upstream> {
  const manifest = createRequire(import.meta.url).resolve('@modelcontextprotocol/server-everything/package.json');
  const entry = join(dirname(manifest), 'dist', 'index.js');
  const preload = new URL('loopback-only.js', import.meta.url).href;
  const child = spawn(process.execPath, ['--import', preload, entry, 'streamableHttp'], {
    // Its tool `get-env` prints its environment, so it gets next to none.
    env: { PATH: process.env['PATH'], PORT: '0' },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const killWithUs = (): void => {
    child.kill('SIGKILL');
  };
  process.once('exit', killWithUs);
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
  return {
    url: `http://127.0.0.1:${port}/mcp`,
    async stop() {
      process.off('exit', killWithUs);
      if (child.exitCode !== null || child.signalCode !== null) return;
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
  };
}
