/** FastMCP's proxy, as it is by default and as quick as it can be made: `fastmcp_proxy.py`. */
import { join } from 'node:path';
import { AUDIENCE, GROUP } from '../gateway/issuer.ts';
import { startServer } from '../gateway/processes.ts';
import type { Candidate } from '../gateway/system.ts';
import { fromPypi, install } from './install.ts';

const RECIPE = fromPypi('fastmcp==4.1.2', false);

const proxy = (name: string, shared: boolean): Candidate => ({
  name,
  on: `JWT, authorization by scope, log${shared ? '; one session of the target for all callers' : ''}`,
  async start(surroundings) {
    const { guardian, upstream, issuer } = surroundings;
    const folder = await install(surroundings, RECIPE);
    const { pid, origin } = await startServer(guardian, {
      name,
      command: join(folder, 'bin/python'),
      args: () => [join(import.meta.dirname, 'fastmcp_proxy.py')],
      env: (port) => ({
        BENCH_PORT: String(port),
        BENCH_UPSTREAM: upstream,
        BENCH_PUBLIC_KEY: issuer.publicKey,
        BENCH_ISSUER: issuer.url,
        BENCH_AUDIENCE: AUDIENCE,
        BENCH_SCOPE: GROUP,
        BENCH_SHARED: String(shared),
      }),
      probe: '/mcp',
    });
    return { url: `${origin}/mcp`, headers: { authorization: `Bearer ${issuer.token}` }, tool: 'echo', pid, guarded: true };
  },
});

export const fastmcp: readonly Candidate[] = [proxy('FastMCP 4.1, one shared session', true), proxy('FastMCP 4.1', false)];
