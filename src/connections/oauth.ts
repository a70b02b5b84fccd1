/** The gateway as an OAuth client of the authorization servers of targets. */
import { randomBytes } from 'node:crypto';
import type * as client from 'openid-client';
import { OutboundFault, type OutboundFetch } from '../base/network/outbound.ts';
import type { OAuthClient, Tokens } from '../targets/connections.ts';
import { isLoopback } from '../targets/document.ts';
import { scopesOf } from './challenge.ts';
import { ConnectionFault } from './fault.ts';
import { type FoundServer, OFFLINE } from './servers.ts';

/** The library is loaded soon after the start (`loadLibraries` in `src/gateway.ts`). */
type Library = typeof client;
const load = (): Promise<Library> => import('openid-client');

type Server = Pick<FoundServer, 'metadata' | 'fetch'>;

/** What a token endpoint gave. It is stored before anything else of the answer is checked. */
export interface Given {
  readonly access_token: string;
  /** null: the answer has none. */
  readonly refresh_token: string | null;
  /** Seconds; null: not known. */
  readonly expires_in: number | null;
  /** null: the answer does not say, so they are the scopes that were asked for. */
  readonly scope: string | null;
}

/** How a renewal ended. `unknown`: the server may have used the refresh token, but its answer did not come or was a fault. */
export type Renewal =
  | { readonly outcome: 'renewed' }
  | { readonly outcome: 'refused' | 'unknown' | 'unsent'; readonly cause: unknown };

const MAX_CLIENT_ID = 1024;
const MAX_TOKEN_LENGTH = 16 * 1024;
const TOKEN = /^[\x21-\x7e]+$/;
const MAX_EXPIRES_IN = 10 * 365 * 24 * 3600;

const isToken = (value: unknown): value is string =>
  typeof value === 'string' && value.length <= MAX_TOKEN_LENGTH && TOKEN.test(value);

/** null: the answer holds no token that a header could carry. */
function given(value: unknown): Given | null {
  if (typeof value !== 'object' || value === null) return null;
  const { access_token, refresh_token, expires_in, scope } = value as Readonly<Record<string, unknown>>;
  if (!isToken(access_token)) return null;
  const seconds = Number(expires_in);
  const isTime = expires_in !== undefined && Number.isFinite(seconds) && seconds >= 0;
  return {
    access_token,
    refresh_token: isToken(refresh_token) ? refresh_token : null,
    expires_in: isTime ? Math.min(seconds, MAX_EXPIRES_IN) : null,
    scope: typeof scope === 'string' ? scopesOf(scope).join(' ') : null,
  };
}

export function tokensOf(
  { access_token, refresh_token, expires_in }: Given,
  before: Pick<Tokens, 'refresh_token' | 'resource' | 'client' | 'place'>,
  now: number,
): Tokens {
  return {
    access_token,
    // A server that does not rotate sends none: the old one stays valid.
    refresh_token: refresh_token ?? before.refresh_token,
    issued_at: now,
    expires_at: expires_in === null ? null : now + expires_in * 1_000,
    resource: before.resource,
    client: before.client,
    place: before.place,
  };
}

function authOf(
  lib: Library,
  { client_secret, auth_method }: OAuthClient,
  { metadata }: Pick<Server, 'metadata'>,
): client.ClientAuth {
  if (client_secret === null) return lib.None();
  const supported = metadata.token_endpoint_auth_methods_supported ?? ['client_secret_basic'];
  const method = auth_method ?? (supported.includes('client_secret_basic') ? 'client_secret_basic' : 'client_secret_post');
  return method === 'client_secret_post' ? lib.ClientSecretPost(client_secret) : lib.ClientSecretBasic(client_secret);
}

function configurationOf(lib: Library, server: Server, own: OAuthClient, fetch = server.fetch): client.Configuration {
  const config = new lib.Configuration(server.metadata, own.client_id, undefined, authOf(lib, own, server));
  config[lib.customFetch] = fetch;
  // `servers.ts` and `fetch.ts` accept plain HTTP only on this machine.
  if (isLoopback(new URL(server.metadata.issuer))) lib.allowInsecureRequests(config);
  return config;
}

/** Reads what the token endpoint gave, as soon as it has arrived, and hands it to `take` before the library looks at it. */
function watched(
  { metadata, fetch }: Server,
  take: (given: Given) => Promise<void>,
): { fetch: OutboundFetch; sent: () => boolean } {
  let sent = false;
  return {
    sent: () => sent,
    fetch: async (url, options) => {
      if (String(url) !== metadata.token_endpoint) return fetch(url, options);
      sent = true;
      const answer = await fetch(url, options);
      const { status, headers } = answer;
      // The library would report the challenge of a refusal, and not its error code.
      headers.delete('www-authenticate');
      if (status !== 200) return answer;
      const text = await answer.text();
      const read = given(parsed(text));
      if (read !== null) await take(read);
      return new Response(text, { status, headers });
    },
  };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export interface Asking {
  readonly redirectUri: string;
  readonly scopes: readonly string[];
  readonly resource: string | null;
  readonly state: string;
  readonly verifier: string;
}

/** Returns the address at which the user signs in and consents. */
export async function authorizationUrl(server: Server, own: OAuthClient, asking: Asking): Promise<URL> {
  const { redirectUri, resource, state, verifier } = asking;
  const lib = await load();
  // Without it, OpenID providers give no refresh token (OpenID Connect Core, section 11).
  const isOffline = server.metadata.scopes_supported?.includes(OFFLINE) === true;
  const scope = [...new Set([...asking.scopes, ...(isOffline ? [OFFLINE] : [])])].join(' ');
  return lib.buildAuthorizationUrl(configurationOf(lib, server, own), {
    redirect_uri: redirectUri,
    code_challenge: await lib.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    state,
    ...(scope === '' ? {} : { scope }),
    ...(isOffline ? { prompt: 'consent' } : {}),
    ...(resource === null ? {} : { resource }),
  });
}

/** Redeems the code in the address to which the server redirected. Checks `state` and `iss`. Throws ConnectionFault. */
export async function redeem(
  server: Server,
  own: OAuthClient,
  { resource, state, verifier }: Asking,
  returned: URL,
  take: (given: Given) => Promise<void>,
): Promise<void> {
  const { host } = new URL(server.metadata.issuer);
  const lib = await load();
  const checks = { expectedState: state, pkceCodeVerifier: verifier };
  try {
    const config = configurationOf(lib, server, own, watched(server, take).fetch);
    const answer = await lib.authorizationCodeGrant(config, returned, checks, resource === null ? {} : { resource });
    requireBearer(answer);
  } catch (cause) {
    if (cause instanceof ConnectionFault) throw cause;
    if (cause instanceof lib.AuthorizationResponseError) {
      const text =
        cause.error === 'access_denied' ? 'was told not to give access.' : `refused the sign-in (${shown(cause.error)}).`;
      throw new ConnectionFault('refused', `The authorization server ${host} ${text}`, { cause });
    }
    if (cause instanceof lib.ResponseBodyError) {
      throw new ConnectionFault('refused', `The authorization server ${host} gave no token (${shown(cause.error)}).`, { cause });
    }
    throw new ConnectionFault('refused', `The answer of the authorization server ${host} is not valid.`, { cause });
  }
}

/** A code of a server, for people. */
const shown = (code: string): string => (/^[a-z0-9_.-]{1,64}$/i.test(code) ? code : 'unknown error');

function requireBearer({ token_type }: { readonly token_type: string }): void {
  if (token_type !== 'bearer') throw new Error(`The token has the type ${shown(token_type)}, and not Bearer`);
}

/** Renews tokens. Never throws. `take` gets what the server gave before the rest of its answer is checked. */
export async function renew(
  server: Server,
  { client: own, refresh_token, resource }: Pick<Tokens, 'client' | 'resource'> & { readonly refresh_token: string },
  take: (given: Given) => Promise<void>,
): Promise<Renewal> {
  const { fetch, sent } = watched(server, take);
  const lib = await load();
  try {
    const config = configurationOf(lib, server, own, fetch);
    requireBearer(await lib.refreshTokenGrant(config, refresh_token, resource === null ? {} : { resource }));
    return { outcome: 'renewed' };
  } catch (cause) {
    if (cause instanceof lib.ResponseBodyError) return { outcome: isForNow(cause) ? 'unknown' : 'refused', cause };
    return { outcome: sent() && !wasUnsent(cause) ? 'unknown' : 'unsent', cause };
  }
}

const isForNow = ({ status, error }: client.ResponseBodyError): boolean =>
  status >= 500 || status === 429 || error === 'temporarily_unavailable' || error === 'server_error' || error === 'slow_down';

/** Whether the server cannot have read the request. */
function wasUnsent(cause: unknown): boolean {
  for (let error = cause; error instanceof Error; error = error.cause) if (error instanceof OutboundFault) return !error.sent;
  return false;
}

/** Revokes tokens at the server that gave them. Throws if the server does not confirm it; does nothing if it cannot revoke. */
export async function revoke(server: Server, { client: own, refresh_token, access_token }: Tokens): Promise<void> {
  if (typeof server.metadata.revocation_endpoint !== 'string') return;
  const lib = await load();
  const config = configurationOf(lib, server, own);
  if (refresh_token !== null) await lib.tokenRevocation(config, refresh_token, { token_type_hint: 'refresh_token' });
  try {
    await lib.tokenRevocation(config, access_token, { token_type_hint: 'access_token' });
  } catch (error) {
    // Many servers cannot revoke access tokens, which expire soon. The refresh token matters.
    if (refresh_token === null || !(error instanceof lib.ResponseBodyError)) throw error;
  }
}

/** Registers the gateway (RFC 7591), without scopes: a server could refuse others that the target asks for later. Throws ConnectionFault. */
export async function register(
  server: Server,
  names: { readonly redirectUri: string; readonly url: string },
): Promise<OAuthClient> {
  const { metadata, fetch } = server;
  const { host } = new URL(metadata.issuer);
  const supported = metadata.token_endpoint_auth_methods_supported ?? ['client_secret_basic'];
  const method = ['client_secret_basic', 'client_secret_post'].find((one) => supported.includes(one)) ?? 'none';
  const wanted = {
    client_name: 'Portcullis',
    client_uri: names.url,
    redirect_uris: [names.redirectUri],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    application_type: isLoopback(new URL(names.redirectUri)) ? 'native' : 'web',
    token_endpoint_auth_method: method,
  };
  try {
    const answer = await fetch(String(metadata.registration_endpoint), {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept: 'application/json' },
      body: JSON.stringify(wanted),
    });
    // Some servers leave out members that the RFC requires, such as the time at which the secret expires.
    const { client_id, client_secret, client_secret_expires_at, token_endpoint_auth_method } = (parsed(await answer.text()) ??
      {}) as Readonly<Record<string, unknown>>;
    const isMade = answer.status === 201 || answer.status === 200;
    if (!isMade || typeof client_id !== 'string' || client_id === '' || client_id.length > MAX_CLIENT_ID) {
      throw new Error(`the registration was answered with HTTP ${answer.status} and no client`);
    }
    const auth_method = typeof token_endpoint_auth_method === 'string' ? token_endpoint_auth_method : method;
    const expires = Number(client_secret_expires_at);
    return {
      client_id,
      client_secret: auth_method === 'none' || typeof client_secret !== 'string' ? null : client_secret,
      auth_method,
      expires_at: Number.isFinite(expires) && expires > 0 ? expires * 1_000 : null,
    };
  } catch (cause) {
    throw new ConnectionFault('no_client', `The authorization server ${host} did not register the gateway.`, { cause });
  }
}

/** Whether the server no longer knows the gateway's client. */
export function isUnknownClient(cause: unknown): boolean {
  const { name, error } = (cause ?? {}) as { readonly name?: string; readonly error?: string };
  return name === 'ResponseBodyError' && (error === 'invalid_client' || error === 'unauthorized_client');
}

/** 256 random bits, for `state` and the PKCE verifier. */
export const newSecret = (): string => randomBytes(32).toString('base64url');
