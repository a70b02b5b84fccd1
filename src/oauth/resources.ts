/** What an access token can be for: an MCP endpoint, or the REST API. Pure. */
import { TARGET_NAME } from '../targets/target.ts';

/** The built-in client of the command line, the only one that may use the REST API. */
export const CLI_CLIENT = 'portcullis-cli';

const ENDPOINT = new RegExp(`^/mcp(/${TARGET_NAME.source.slice(1, -1)})?$`);
const API = '/api';
const MAX_LENGTH = 512;
/** How many resources one request may name. All grants of a user are read at once, each with its resources. */
export const MOST_RESOURCES = 20;

export interface Resource {
  /** The path below the gateway's address. */
  readonly path: string;
  readonly scope: 'mcp' | 'api';
}

/**
 * Reads a resource indicator (RFC 8707). null: this client can get no token for it. Whether a target with the name exists does not matter
 * (law 10).
 */
export function resourceOf(indicator: string, clientId: string, publicUrl: string): Resource | null {
  if (indicator.length > MAX_LENGTH || !URL.canParse(indicator)) return null;
  const { origin, pathname, search, hash, username, password } = new URL(indicator);
  if (origin !== publicUrl || search !== '' || hash !== '' || indicator.endsWith('#') || username !== '' || password !== '')
    return null;
  const path = pathname.replace(/\/$/, '');
  if (clientId === CLI_CLIENT) return path === API ? { path, scope: 'api' } : null;
  // Clients that find no metadata of an endpoint name the whole gateway.
  if (path === '') return { path: '/mcp', scope: 'mcp' };
  return ENDPOINT.test(path) ? { path, scope: 'mcp' } : null;
}

export const ACCESS_TOKEN_SECONDS = 15 * 60;

/** How the library makes access tokens for the resource. */
export const resourceServer = ({ path, scope }: Resource, publicUrl: string) => ({
  scope,
  audience: `${publicUrl}${path}`,
  accessTokenTTL: ACCESS_TOKEN_SECONDS,
  accessTokenFormat: 'jwt' as const,
  jwt: { sign: { alg: 'ES256' as const } },
});

/** The resource of a request that names none. */
export const defaultResource = (clientId: string, publicUrl: string): string =>
  `${publicUrl}${clientId === CLI_CLIENT ? API : '/mcp'}`;

const scopesIn = (scope: string | undefined): string[] => (scope ?? '').split(' ').filter((one) => one !== '');

/** Adds the scope that the client's resources need. Without it, a grant would allow nothing. */
export function withNeededScope(scope: string | undefined, clientId: string): string {
  const needed = clientId === CLI_CLIENT ? 'api' : 'mcp';
  return [...new Set([...scopesIn(scope), needed])].join(' ');
}

export const OPENID_SCOPES = ['openid', 'offline_access'] as const;

/** Returns the OpenID scopes among those that a client asks for. */
export const openidScopes = (scope: string | undefined): string =>
  scopesIn(scope)
    .filter((one) => OPENID_SCOPES.some((known) => known === one))
    .join(' ');
