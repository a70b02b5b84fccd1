/**
 * The sign-in of people at a provider: authorization code with PKCE, `state` and `nonce` (OpenID Connect). The state of a sign-in is
 * sealed into a cookie, so that only the browser that began the sign-in can finish it, at any replica.
 */
import { hash, randomBytes } from 'node:crypto';
// The library is loaded soon after the start (`loadLibraries` in `src/gateway.ts`).
import type * as client from 'openid-client';
import type { Provider } from '../auth/provider.ts';
import type { Vault } from '../auth/vault.ts';
import { type Outbound, OutboundFault } from '../base/network/outbound.ts';
import type { User } from '../users/user-store.ts';
import { readPresented } from './claims.ts';
import { faulty, isFault, type ProviderFault } from './faults.ts';
import { judgeCommon, judgeTimes } from './judge.ts';
import { addressOf, type Metadata, type ProviderKeys, rulesFor } from './keys.ts';
import { type People, refusalOf } from './people.ts';
import { verified } from './tokens.ts';

/** How long a person may take at the provider. */
const PENDING_MS = 10 * 60_000;
/** Browsers drop cookies of more than 4 KiB. */
const MAX_PENDING = 3_800;
const SEALED = 'sign-in at a provider';

/** A sign-in that was begun. */
interface Pending {
  readonly provider: string;
  readonly state: string;
  readonly nonce: string;
  readonly verifier: string;
  readonly returnTo: string;
  readonly begun: number;
  /** Whether the provider was told to ask for the password again. */
  readonly again: boolean;
}

export interface Begun {
  /** The address at the provider to which the browser goes. */
  readonly url: string;
  /** The content of the cookie. */
  readonly pending: string;
}

export interface Finished {
  readonly user: User;
  /** When the provider issued the ID token, in seconds since the epoch. */
  readonly iat: number;
  readonly returnTo: string;
  /**
   * The time at which the provider last asked the user for a proof (`auth_time`), in milliseconds since the epoch. null: the provider does
   * not say, and may have let in the browser without a question.
   */
  readonly provedAt: number | null;
}

export interface ProviderSignInParts {
  readonly vault: Vault;
  readonly keys: ProviderKeys;
  readonly people: People;
  readonly outbound: Pick<Outbound, 'fetchWith'>;
  /** The secret of the gateway at the provider; null: it has none. */
  readonly secretOf: (provider: Provider) => Promise<string | null>;
  /** Where the provider sends the browser back. */
  readonly redirectUri: (provider: Provider) => string;
  readonly now: () => number;
}

export type ProviderSignIn = ReturnType<typeof createProviderSignIn>;

type Library = typeof client;

const newSecret = (): string => randomBytes(32).toString('base64url');
const failed = (reason: string): ProviderFault => faulty('sign_in_failed', reason);

export function createProviderSignIn(parts: ProviderSignInParts) {
  const { vault, keys, people, outbound, secretOf, redirectUri, now } = parts;

  async function configure(provider: Provider): Promise<{ lib: Library; config: client.Configuration } | ProviderFault> {
    const read = await keys.metadata(provider);
    if (isFault(read)) return read;
    const problem = endpointProblem(provider.issuer, read.metadata);
    if (problem !== null) return faulty('provider_unreachable', problem);
    const lib = await import('openid-client');
    const metadata = { [lib.clockTolerance]: provider.clock_skew_seconds };
    const secret = await secretOf(provider);
    const config = new lib.Configuration(
      read.metadata as client.ServerMetadata,
      provider.client_id,
      metadata,
      authOf(lib, secret, read.metadata),
    );
    config[lib.customFetch] = outbound.fetchWith(rulesFor(provider.issuer));
    // `addressProblem` accepts plain HTTP on this machine only.
    if (new URL(provider.issuer).protocol === 'http:') lib.allowInsecureRequests(config);
    return { lib, config };
  }

  /** Returns what the cookie says. null: it is from a different sign-in, too old, or not the gateway's. */
  function opened(pending: string | null, provider: Provider): Pending | null {
    try {
      const read = JSON.parse(vault.open(SEALED, pending ?? '').toString()) as Pending;
      return read.provider === provider.id && now() - read.begun < PENDING_MS ? read : null;
    } catch {
      return null;
    }
  }

  return {
    /** `again`: the provider must ask for the password again. */
    async begin(provider: Provider, returnTo: string, again: boolean): Promise<Begun | ProviderFault> {
      const configured = await configure(provider);
      if (isFault(configured)) return configured;
      const { lib, config } = configured;
      const pending: Pending = {
        ...{ provider: provider.id, state: newSecret(), nonce: newSecret(), verifier: newSecret() },
        ...{ returnTo, begun: now(), again },
      };
      const url = lib.buildAuthorizationUrl(config, {
        redirect_uri: redirectUri(provider),
        scope: provider.scopes.join(' '),
        state: pending.state,
        nonce: pending.nonce,
        code_challenge: hash('sha256', pending.verifier, 'base64url'),
        code_challenge_method: 'S256',
        ...(again ? { prompt: 'login', max_age: '0' } : {}),
      });
      const sealed = vault.seal(SEALED, Buffer.from(JSON.stringify(pending)));
      return sealed.length > MAX_PENDING
        ? failed('the address to return to is too long for a cookie')
        : { url: url.href, pending: sealed };
    },

    /** `query`: that of the address to which the provider sent the browser. `pending`: the cookie; null: there is none. */
    async finish(provider: Provider, query: string, pending: string | null): Promise<Finished | ProviderFault> {
      const begun = opened(pending, provider);
      if (begun === null) return failed('this browser has begun no sign-in at this provider, or more than 10 minutes ago');
      const configured = await configure(provider);
      if (isFault(configured)) return configured;
      const { lib, config } = configured;
      const token = await exchanged(lib, config, new URL(`${redirectUri(provider)}?${query}`), begun);
      if (typeof token !== 'string') return token;
      const signed = await verified(keys, provider, token);
      if (isFault(signed)) return signed;
      const fault =
        judgeCommon(provider, signed) ?? judgeTimes(provider, signed, now()) ?? idTokenFault(provider, signed.payload, begun);
      if (fault !== null) return fault;
      const presented = readPresented(provider, signed.payload, 'id');
      if (isFault(presented)) return presented;
      const user = await people.settle(provider, presented, 'an ID token');
      if (isFault(user)) return user;
      return (
        refusalOf(user, provider, presented) ?? {
          user,
          iat: presented.iat,
          returnTo: begun.returnTo,
          provedAt: provedAt(signed.payload, begun),
        }
      );
    },
  };
}

/** See `Finished`. */
function provedAt({ auth_time }: Readonly<Record<string, unknown>>, { again, begun }: Pending): number | null {
  if (typeof auth_time !== 'number') return null;
  // The provider counts whole seconds, and its clock may be behind. If it was told to ask again, it did so after the sign-in began.
  const time = Math.floor(auth_time * 1_000);
  return again ? Math.max(time, begun) : time;
}

/** What only an ID token of this very sign-in has. The library has checked it, too. */
function idTokenFault(
  { client_id, clock_skew_seconds }: Provider,
  { aud, azp, nonce, auth_time }: Readonly<Record<string, unknown>>,
  begun: Pending,
): ProviderFault | null {
  const audiences: readonly unknown[] = Array.isArray(aud) ? aud : [aud];
  if (!audiences.includes(client_id) || (audiences.length > 1 && azp !== client_id) || (azp !== undefined && azp !== client_id))
    return faulty('token_audience', `the ID token is for ${JSON.stringify(aud)}, authorized for ${JSON.stringify(azp)}`);
  if (nonce !== begun.nonce) return failed('the nonce of the ID token is not the one of this sign-in');
  if (!begun.again) return null;
  if (typeof auth_time !== 'number')
    return failed('the ID token does not say when the provider asked for the password (auth_time)');
  // Providers count whole seconds.
  const isOld = auth_time < Math.floor(begun.begun / 1_000) - clock_skew_seconds;
  return isOld ? failed('the provider did not ask for the password again') : null;
}

/** Exchanges the code of the address for an ID token. The library checks `state`, `iss` and `nonce`. */
async function exchanged(
  lib: Library,
  config: client.Configuration,
  url: URL,
  { state, nonce, verifier }: Pending,
): Promise<string | ProviderFault> {
  try {
    const checks = { expectedState: state, expectedNonce: nonce, pkceCodeVerifier: verifier, idTokenExpected: true };
    return (await lib.authorizationCodeGrant(config, url, checks)).id_token ?? failed('the provider gave no ID token');
  } catch (cause) {
    if (unreachable(cause) !== null) return faulty('provider_unreachable', String(unreachable(cause)));
    const { code, error, error_description, message, cause: inner } = cause as Readonly<Record<string, unknown>>;
    const detail = inner instanceof Error ? inner.message : null;
    const told = [error, error_description, detail].filter((text) => typeof text === 'string').join(': ');
    if (error === 'access_denied') return failed(`the provider refused: ${told}`);
    return failed(`${String(code ?? '')} ${String(message ?? '')} ${told}`.trim());
  }
}

function unreachable(cause: unknown): string | null {
  for (let error = cause; error instanceof Error; error = error.cause) if (error instanceof OutboundFault) return error.message;
  return null;
}

function endpointProblem(issuer: string, metadata: Metadata): string | null {
  for (const name of ['authorization_endpoint', 'token_endpoint']) {
    const value = metadata[name];
    const problem = typeof value === 'string' ? addressOf(issuer, value) : 'is missing';
    if (problem !== null) return `the metadata of the provider: ${name} ${problem}`;
  }
  return null;
}

function authOf(lib: Library, secret: string | null, metadata: Metadata): client.ClientAuth {
  if (secret === null) return lib.None();
  const supported = metadata['token_endpoint_auth_methods_supported'];
  const basic = !Array.isArray(supported) || supported.includes('client_secret_basic');
  return basic ? lib.ClientSecretBasic(secret) : lib.ClientSecretPost(secret);
}
