/** Finds the authorization server of a target: its issuer, its metadata, and what the gateway names in requests to it. */
import type { ServerMetadata } from 'openid-client';
import type { OutboundFetch } from '../base/network/outbound.ts';
import { type AccountTarget, type Place, placeOf } from '../targets/connections.ts';
import { issuerProblem } from '../targets/document.ts';
import { readChallenge, scopesOf } from './challenge.ts';
import { ConnectionFault } from './fault.ts';
import type { FetchFor } from './fetch.ts';

export interface FoundServer {
  readonly metadata: ServerMetadata;
  readonly fetch: OutboundFetch;
  /** The `resource` of requests (RFC 8707); null: they name none. */
  readonly resource: string | null;
  /** The scopes that the target names. */
  readonly scopes: readonly string[];
}

/** How long metadata of an authorization server are used without reading them again. */
const KEPT_MS = 5 * 60_000;
const MAX_KEPT = 1_000;
const MAX_ISSUERS = 16;
/** The scope with which a server gives a refresh token. */
export const OFFLINE = 'offline_access';

type Json = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value);
const strings = (value: unknown): string[] =>
  Array.isArray(value) ? value.filter((one): one is string => typeof one === 'string') : [];

export type Servers = ReturnType<typeof createServers>;

export function createServers({ fetchFor, now }: { readonly fetchFor: FetchFor; readonly now: () => number }) {
  const kept = new Map<string, { readonly metadata: ServerMetadata; readonly until: number }>();

  async function metadataOf(place: Place, issuer: string): Promise<ServerMetadata> {
    const key = JSON.stringify([place.url, place.trusted, issuer]);
    const known = kept.get(key);
    if (known !== undefined && known.until > now()) return known.metadata;
    const metadata = await readMetadata(fetchFor(place), issuer);
    kept.delete(key);
    const [oldest] = kept.keys();
    if (kept.size >= MAX_KEPT && oldest !== undefined) kept.delete(oldest);
    kept.set(key, { metadata, until: now() + KEPT_MS });
    return metadata;
  }

  async function found(target: AccountTarget): Promise<Pick<FoundServer, 'resource' | 'scopes'> & { issuer: string }> {
    const { issuer, send_resource } = target.own_accounts;
    const resource = send_resource ? target.url : null;
    if (issuer !== null) return { issuer, resource, scopes: [] };
    const fetch = fetchFor(placeOf(target));
    const { document, scopes } = await readResource(fetch, target);
    // Targets of revision 2025-03-26 have no such document: their own origin is the issuer.
    if (document === null) return { issuer: new URL(target.url).origin, resource, scopes };
    const [named] = strings(document['authorization_servers']).slice(0, MAX_ISSUERS);
    const problem = named === undefined ? 'names none' : issuerProblem(named);
    if (named === undefined || problem !== null) {
      throw new ConnectionFault('metadata', `The target \`${target.name}\` names no usable authorization server.`, {
        cause: problem,
      });
    }
    const supported = scopesOf(strings(document['scopes_supported']).join(' '));
    return {
      issuer: named,
      resource: send_resource ? String(document['resource']) : null,
      scopes: scopes.length > 0 ? scopes : supported,
    };
  }

  return {
    /** Returns the server at which users connect now. Throws ConnectionFault. */
    async find(target: AccountTarget): Promise<FoundServer> {
      const { issuer, ...rest } = await found(target);
      return { ...rest, ...(await this.known(placeOf(target), issuer)) };
    },
    /** Returns the server that gave existing tokens. Throws ConnectionFault. */
    async known(place: Place, issuer: string): Promise<Pick<FoundServer, 'metadata' | 'fetch'>> {
      return { metadata: await metadataOf(place, issuer), fetch: fetchFor(place) };
    },
  };
}

async function readJson(fetch: OutboundFetch, url: string): Promise<Json | null> {
  const answer = await fetch(url, { headers: { accept: 'application/json' } });
  if (answer.status !== 200) return null;
  try {
    const value: unknown = JSON.parse(await answer.text());
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

const PING = '{"jsonrpc":"2.0","id":"portcullis","method":"ping"}';

/** Returns the target's protected resource metadata (null: it has none), and the scopes of its challenge. Throws ConnectionFault. */
async function readResource(
  fetch: OutboundFetch,
  target: AccountTarget,
): Promise<{ readonly document: Json | null; readonly scopes: readonly string[] }> {
  const failed = (text: string, cause?: unknown) =>
    new ConnectionFault('metadata', `The target \`${target.name}\` ${text}`, { cause });
  const { origin, pathname } = new URL(target.url);
  try {
    const answer = await fetch(target.url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
      body: PING,
    });
    const challenge = answer.status === 401 ? readChallenge(answer.headers.get('www-authenticate')) : null;
    const scopes = scopesOf(challenge?.scope);
    const path = pathname === '/' ? '' : pathname.replace(/\/$/, '');
    const wellKnown = `${origin}/.well-known/oauth-protected-resource`;
    const named = challenge?.resource_metadata;
    if (named !== undefined && !URL.canParse(named)) throw failed('names no valid address of its metadata.');
    const places = named !== undefined ? [named] : [...new Set([`${wellKnown}${path}`, wellKnown])];
    for (const place of places) {
      const document = await readJson(fetch, place);
      if (document === null) continue;
      if (!isResource(document['resource'], target.url)) {
        throw failed('has metadata of a different resource, so the gateway does not use them.', document['resource']);
      }
      return { document, scopes };
    }
    if (named !== undefined) throw failed('names metadata that cannot be read.');
    return { document: null, scopes };
  } catch (cause) {
    if (cause instanceof ConnectionFault) throw cause;
    throw failed('did not say which authorization server it uses.', cause);
  }
}

/** Whether metadata for `resource` are those of the target: the same address, or one above it at the same origin. */
function isResource(resource: unknown, target: string): boolean {
  if (typeof resource !== 'string' || !URL.canParse(resource)) return false;
  const [named, own] = [new URL(resource), new URL(target)];
  if (named.origin !== own.origin || named.hash !== '') return false;
  if (named.search !== '' && named.search !== own.search) return false;
  const above = named.pathname.endsWith('/') ? named.pathname : `${named.pathname}/`;
  return `${own.pathname}/`.startsWith(above);
}

/** The places of metadata, in the order in which MCP clients try them. */
function placesOf(issuer: string): string[] {
  const { origin, pathname } = new URL(issuer);
  const path = pathname.replace(/\/$/, '');
  const inserted = ['oauth-authorization-server', 'openid-configuration'].map((name) => `${origin}/.well-known/${name}${path}`);
  return path === '' ? inserted : [...inserted, `${origin}${path}/.well-known/openid-configuration`];
}

async function readMetadata(fetch: OutboundFetch, issuer: string): Promise<ServerMetadata> {
  const { host } = new URL(issuer);
  const failed = (text: string, cause?: unknown) =>
    new ConnectionFault('metadata', `The authorization server ${host} ${text}`, { cause });
  let document: Json | null = null;
  try {
    for (const place of placesOf(issuer)) {
      document = await readJson(fetch, place);
      if (document !== null) break;
    }
  } catch (cause) {
    throw new ConnectionFault('unreachable', `The authorization server ${host} cannot be reached.`, { cause });
  }
  if (document === null) throw failed('has no metadata.');
  // Otherwise a server could take the place of another one (mix-up).
  if (document['issuer'] !== issuer || issuer.length > MAX_TEXT)
    throw failed('says that it is a different issuer, so the gateway does not use it.', document['issuer']);
  for (const name of ['authorization_endpoint', 'token_endpoint']) {
    const endpoint = document[name];
    if (typeof endpoint !== 'string' || endpoint.length > MAX_TEXT || !isEndpoint(endpoint))
      throw failed(`has no usable ${name}.`);
  }
  if (!strings(document['code_challenge_methods_supported']).includes('S256')) {
    throw failed('does not support PKCE with S256, so the gateway does not use it.');
  }
  return usedOf(document);
}

/** The members that the gateway and its OAuth library use. A target names the server, so a whole document could be long. */
const TEXTS = ['issuer', 'authorization_endpoint', 'token_endpoint', 'registration_endpoint', 'revocation_endpoint', 'jwks_uri'];
const FLAGS = ['client_id_metadata_document_supported', 'authorization_response_iss_parameter_supported'];
const LISTS = ['token_endpoint_auth_methods_supported', 'id_token_signing_alg_values_supported'];
const MAX_TEXT = 2_048;
const MAX_LIST = 32;

function usedOf(document: Json): ServerMetadata {
  const used: Record<string, unknown> = {};
  for (const name of TEXTS) {
    const value = document[name];
    if (typeof value === 'string' && value.length <= MAX_TEXT) used[name] = value;
  }
  for (const name of FLAGS) if (document[name] === true) used[name] = true;
  for (const name of LISTS) {
    const value = document[name];
    if (Array.isArray(value))
      used[name] = strings(value)
        .filter(({ length }) => length <= 64)
        .slice(0, MAX_LIST);
  }
  if (strings(document['scopes_supported']).includes(OFFLINE)) used['scopes_supported'] = [OFFLINE];
  return used as unknown as ServerMetadata;
}

const isEndpoint = (address: string): boolean => URL.canParse(address) && issuerProblem(address.replace(/\?.*$/s, '')) === null;
