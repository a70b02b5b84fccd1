/** Starts the published MCP server `@modelcontextprotocol/server-everything` on loopback. */
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface Everything {
  readonly url: string;
  stop(): Promise<void>;
}

/** A port of loopback that was free a moment ago. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (address === null || typeof address === 'string') throw new Error('The machine has no free port');
  return address.port;
}

export async function startEverything(): Promise<Everything> {
  const port = await freePort();
  const require = createRequire(import.meta.url);
  const entry = join(dirname(require.resolve('@modelcontextprotocol/server-everything/package.json')), 'dist', 'index.js');
  const preload = fileURLToPath(new URL('loopback-only.js', import.meta.url));
  const child = spawn(process.execPath, ['--import', preload, entry, 'streamableHttp'], {
    // Its tool `get-env` prints its environment, so it gets next to none.
    env: { PATH: process.env['PATH'], PORT: String(port) },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const killWithUs = (): void => {
    child.kill('SIGKILL');
  };
  process.once('exit', killWithUs);
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  let said = '';
  await new Promise<void>((resolve, reject) => {
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      said = (said + text).slice(-4000);
      if (said.includes('listening on port')) resolve();
    });
    child.once('error', reject);
    void ended.then(() => reject(new Error(`server-everything ended before it listened:\n${said}`)));
  });
  return {
    url: `http://127.0.0.1:${port}/mcp`,
    async stop() {
      process.off('exit', killWithUs);
      child.kill('SIGKILL');
      await ended;
    },
  };
}
