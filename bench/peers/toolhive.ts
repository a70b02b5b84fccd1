/** ToolHive's gateway `vmcp`: OpenID token, Cedar policy, audit file. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { AUDIENCE, type Issuer } from '../gateway/issuer.ts';
import { startServer } from '../gateway/processes.ts';
import type { Candidate } from '../gateway/system.ts';
import { install, type Recipe } from './install.ts';

const RECIPE: Recipe = {
  name: 'toolhive-0.44.0',
  slow: true,
  steps: (GOBIN) => [{ command: 'go', args: ['install', 'github.com/stacklok/toolhive/cmd/vmcp@v0.44.0'], env: { GOBIN } }],
};

/** Backends need a name, which tools carry as a prefix. */
const BACKEND = 'bench';
const TOOL = `${BACKEND}_echo`;

const configuration = (upstream: string, { url, jwks_uri }: Issuer, port: number, logFile: string): object => ({
  name: 'bench',
  groupRef: 'bench',
  backends: [{ name: BACKEND, url: upstream, transport: 'streamable-http' }],
  incomingAuth: {
    type: 'oidc',
    oidc: {
      issuer: url,
      clientId: 'bench',
      audience: AUDIENCE,
      resource: `http://127.0.0.1:${port}/mcp`,
      jwksUrl: jwks_uri,
      jwksAllowPrivateIp: true,
      protectedResourceAllowPrivateIp: true,
      insecureAllowHttp: true,
    },
    authz: {
      type: 'cedar',
      policies: [`permit(principal, action == Action::"call_tool", resource == Tool::"${TOOL}");`],
    },
  },
  outgoingAuth: { source: 'inline', default: { type: 'unauthenticated' } },
  aggregation: { conflictResolution: 'prefix', conflictResolutionConfig: { prefixFormat: '{workload}_' } },
  audit: { enabled: true, component: 'bench', logFile },
});

export const toolhive: Candidate = {
  name: 'ToolHive 0.44, vmcp',
  on: 'OIDC, Cedar on the name of the tool, audit file',
  async start(surroundings) {
    const { guardian, upstream, issuer } = surroundings;
    const folder = await install(surroundings, RECIPE);
    const file = join(guardian.folder, 'toolhive.json');
    const { pid, origin } = await startServer(guardian, {
      name: 'ToolHive',
      command: join(folder, 'vmcp'),
      args(port) {
        // JSON is YAML, too.
        writeFileSync(file, JSON.stringify(configuration(upstream, issuer, port, join(guardian.folder, 'toolhive.log'))));
        return ['serve', '--config', file, '--host', '127.0.0.1', '--port', String(port)];
      },
      probe: '/health',
    });
    return { url: `${origin}/mcp`, headers: { authorization: `Bearer ${issuer.token}` }, tool: TOOL, pid, guarded: true };
  },
};
