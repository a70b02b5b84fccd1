/** The metadata and the keys of providers: read from the provider, cached, and refused when they are too old (law 6). */
import { createPublicKey, type KeyObject } from 'node:crypto';
import type { JWK } from 'jose';
import type { Provider } from '../auth/provider.ts';
import { isLoopbackName } from '../base/network/network-address.ts';
import { type Outbound, OutboundFault, type OutboundFetch, type OutboundRules } from '../base/network/outbound.ts';
import { addressProblem } from './document.ts';
import { faulty, isFault, type ProviderFault } from './faults.ts';

/** After this time the keys are read again in the background. */
const REFRESH_MS = 5 * 60_000;
/** After this time requests wait for that read, because the provider may have withdrawn a key. If the read fails, the old keys count. */
const OLD_MS = 10 * 60_000;
/** For this time after a failed read, no request waits for the next one. So an outage costs one wait, and not one for each request. */
const FAILED_MS = 60_000;
/** How long an unknown key id, or a failure, does not cause another read. Anybody can send tokens with unknown key ids. */
const PAUSE_MS = 10_000;
const MAX_BYTES = 256 * 1024;
/** The whole request, with its answer. */
const REQUEST_MS = 5_000;
const MAX_KEYS = 100;
const RSA_BITS = { min: 2_048, max: 8_192 } as const;

export interface ProviderKey {
  readonly kid: string | null;
  /** null: the provider does not say. */
  readonly alg: string | null;
  readonly key: KeyObject;
}

/** The discovery document (OpenID Connect Discovery 1.0, section 3), as far as the gateway reads it. */
export interface Metadata {
  readonly issuer: string;
  readonly jwks_uri: string;
  readonly [name: string]: unknown;
}

export interface ReadKeys {
  readonly metadata: Metadata;
  readonly keys: readonly ProviderKey[];
  /** Milliseconds of the monotonic clock, and since the epoch. */
  readonly readAt: number;
  readonly at: number;
}

interface State {
  issuer: string;
  read: ReadKeys | null;
  /** When the last read ended, on the monotonic clock. */
  triedAt: number;
  failure: { readonly reason: string; readonly at: number } | null;
  reading: Promise<void> | null;
}

export type ProviderKeys = ReturnType<typeof createProviderKeys>;

export interface ProviderKeyParts {
  readonly outbound: Pick<Outbound, 'fetchWith'>;
  /** Milliseconds since the epoch. */
  readonly now: () => number;
  /** Milliseconds of a monotonic clock. */
  readonly elapsed?: () => number;
}

export function createProviderKeys({ outbound, now, elapsed = () => performance.now() }: ProviderKeyParts) {
  const states = new Map<string, State>();

  function stateOf({ id, issuer }: Provider): State {
    const known = states.get(id);
    if (known?.issuer === issuer) return known;
    const made: State = { issuer, read: null, triedAt: Number.NEGATIVE_INFINITY, failure: null, reading: null };
    states.set(id, made);
    return made;
  }

  /** Never rejects. All callers that wait share one read. */
  function readAgain(provider: Provider, state: State): Promise<void> {
    state.reading ??= (async () => {
      try {
        state.read = { ...(await readFrom(outbound, provider.issuer)), readAt: elapsed(), at: now() };
        // A provider that withdraws its only key has answered: the key counts no more.
        const reason = `${state.read.metadata.jwks_uri} has no key that verifies signatures`;
        state.failure = state.read.keys.length === 0 ? { reason, at: now() } : null;
      } catch (error) {
        const { message } = error as Error;
        state.failure = { reason: error instanceof OutboundFault ? message : `reading failed: ${message}`, at: now() };
      } finally {
        state.triedAt = elapsed();
        state.reading = null;
      }
    })();
    return state.reading;
  }

  const mayTry = (state: State): boolean => state.reading !== null || elapsed() - state.triedAt >= PAUSE_MS;

  const ageOf = ({ read }: State): number => (read === null ? Number.POSITIVE_INFINITY : elapsed() - read.readAt);
  const toleratedBy = (provider: Provider): number => provider.outage_minutes * 60_000;

  /** Reads again if the keys are old. Returns the read if requests must wait for it; null: they need not wait. */
  function due(provider: Provider, state: State): Promise<void> | null {
    const tolerated = toleratedBy(provider);
    const age = ageOf(state);
    if (age < Math.min(REFRESH_MS, tolerated) || !mayTry(state)) return null;
    const hasFailed = state.failure !== null && elapsed() - state.triedAt < FAILED_MS;
    const reading = readAgain(provider, state);
    return age >= tolerated || (age >= OLD_MS && !hasFailed) ? reading : null;
  }

  /** Returns what was read last, if it is new enough. Reads again if it is old. */
  async function current(provider: Provider): Promise<ReadKeys | ProviderFault> {
    const state = stateOf(provider);
    await due(provider, state);
    if (state.read !== null && ageOf(state) < toleratedBy(provider)) return state.read;
    const since = state.read === null ? 'since this replica started' : `since ${new Date(state.read.at).toISOString()}`;
    const reason = `metadata and keys could not be read ${since}: ${state.failure?.reason ?? 'no answer'}`;
    return faulty('provider_unreachable', reason);
  }

  return {
    metadata: current,

    /**
     * Returns the key that verifies a token with this header. Reads again if the key is unknown. If the provider cannot be reached then, the
     * key may be a new one, so the fault is that of the provider and not that of the token.
     */
    async find(
      provider: Provider,
      header: { readonly alg: string; readonly kid: string | null },
    ): Promise<KeyObject | ProviderFault> {
      const state = stateOf(provider);
      const read = await current(provider);
      if (isFault(read)) return read;
      const found = chosen(read.keys, header);
      if (!isFault(found)) return found;
      if (mayTry(state)) await readAgain(provider, state);
      if (state.failure !== null) {
        const reason = `${found.reason}, and the keys could not be read again: ${state.failure.reason}`;
        return faulty('provider_unreachable', reason);
      }
      const again = await current(provider);
      return isFault(again) ? again : chosen(again.keys, header);
    },

    /**
     * Whether the provider still publishes the key, as far as this replica knows. False if the keys must be read again first: then ask `find`,
     * which waits.
     */
    isPublished(provider: Provider, key: KeyObject): boolean {
      const state = stateOf(provider);
      if (due(provider, state) !== null || state.read === null || ageOf(state) >= toleratedBy(provider)) return false;
      return state.read.keys.some((one) => one.key === key || one.key.equals(key));
    },

    /** What this replica knows of the provider. */
    report(provider: Provider) {
      const state = stateOf(provider);
      const { read, failure } = state;
      const isUsable = ageOf(state) < toleratedBy(provider);
      const broken = failure === null ? ('unknown' as const) : ('down' as const);
      return { status: isUsable ? (failure === null ? ('ok' as const) : ('failing' as const)) : broken, read, failure };
    },

    /** Reads metadata and keys now. null: both are usable. */
    async probe(provider: Provider): Promise<ProviderFault | null> {
      const state = stateOf(provider);
      await readAgain(provider, state);
      return state.failure === null ? null : faulty('provider_unreachable', state.failure.reason);
    },
  };
}

async function readFrom(outbound: Pick<Outbound, 'fetchWith'>, issuer: string): Promise<Pick<ReadKeys, 'metadata' | 'keys'>> {
  const fetch = outbound.fetchWith(rulesFor(issuer));
  const address = `${issuer.replace(/\/$/, '')}/.well-known/openid-configuration`;
  const metadata = await readObject(fetch, address);
  if (metadata['issuer'] !== issuer)
    throw new OutboundFault(
      `${address} names the issuer ${JSON.stringify(metadata['issuer'])?.slice(0, 300)}, but the provider is registered as ${issuer}`,
    );
  const { jwks_uri } = metadata;
  const problem = typeof jwks_uri === 'string' ? addressOf(issuer, jwks_uri) : 'is missing';
  if (problem !== null) throw new OutboundFault(`${address}: jwks_uri ${problem}`);
  const { keys } = await readObject(fetch, String(jwks_uri));
  if (!Array.isArray(keys)) throw new OutboundFault(`${jwks_uri} has no list of keys`);
  if (keys.length > MAX_KEYS) throw new OutboundFault(`${jwks_uri} has more than ${MAX_KEYS} keys`);
  const usable = keys.map(usableKey).filter((key) => key !== null);
  return { metadata: metadata as Metadata, keys: usable };
}

/** An administrator has named the issuer, which may be in a private network. Its documents name all other servers. */
export function rulesFor(issuer: string): OutboundRules {
  const { origin, protocol } = new URL(issuer);
  return {
    isChosen: (url) => url.origin === origin,
    mayBePlain: (url) => protocol === 'http:' && isLoopbackName(url.hostname),
    ...{ maxBytes: MAX_BYTES, withinMs: REQUEST_MS },
  };
}

/** A provider with https must not send the gateway to an address without it. */
export function addressOf(issuer: string, address: string): string | null {
  const problem = addressProblem(address);
  if (problem !== null) return problem;
  return new URL(issuer).protocol === 'https:' && new URL(address).protocol !== 'https:' ? 'must begin with https://' : null;
}

async function readObject(fetch: OutboundFetch, address: string): Promise<Record<string, unknown>> {
  const answer = await fetch(address, { headers: { accept: 'application/json' } });
  if (answer.status !== 200) {
    const isRedirect = answer.headers.has('location');
    const what = isRedirect ? 'a redirect, which is not followed' : `status ${answer.status}`;
    throw new OutboundFault(`${address} answers with ${what}`);
  }
  const text = await answer.text();
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // The error below says the same.
  }
  throw new OutboundFault(`${address} does not answer with a JSON object`);
}

const CURVES: Readonly<Record<string, string>> = { 'P-256': 'ES256', 'P-384': 'ES384', 'P-521': 'ES512' };

/** Returns a key for signatures; null: it is for something else, malformed, too weak, or not a public key. */
function usableKey(value: unknown): ProviderKey | null {
  if (typeof value !== 'object' || value === null) return null;
  const { kty, use, key_ops, kid, alg, n, crv } = value as JWK;
  // A private or shared key that is published verifies nothing: everybody can sign with it.
  if (['d', 'p', 'k'].some((name) => Object.hasOwn(value, name))) return null;
  if (use !== undefined && use !== 'sig') return null;
  if (key_ops !== undefined && !(Array.isArray(key_ops) && key_ops.includes('verify'))) return null;
  if ((kid !== undefined && typeof kid !== 'string') || (alg !== undefined && typeof alg !== 'string')) return null;
  const fits =
    (kty === 'RSA' && typeof n === 'string' && n.length * 6 <= RSA_BITS.max + 64) ||
    (kty === 'EC' && typeof crv === 'string' && crv in CURVES) ||
    (kty === 'OKP' && crv === 'Ed25519');
  if (!fits) return null;
  try {
    const key = createPublicKey({ key: value as never, format: 'jwk' });
    const { modulusLength, publicExponent } = key.asymmetricKeyDetails ?? {};
    if (kty === 'RSA' && ((modulusLength ?? 0) < RSA_BITS.min || (publicExponent ?? 0n) > 2n ** 32n)) return null;
    return { kid: kid ?? null, alg: alg ?? null, key };
  } catch {
    return null;
  }
}

/** The algorithms that a key verifies. A key never serves two families. */
function verifies({ key, alg: own }: ProviderKey, alg: string): boolean {
  if (own !== null && own !== alg && !(own === 'EdDSA' && alg === 'Ed25519')) return false;
  switch (key.asymmetricKeyType) {
    case 'rsa':
      return /^(RS|PS)(256|384|512)$/.test(alg);
    case 'ec':
      return { prime256v1: 'ES256', secp384r1: 'ES384', secp521r1: 'ES512' }[key.asymmetricKeyDetails?.namedCurve ?? ''] === alg;
    case 'ed25519':
      return alg === 'EdDSA' || alg === 'Ed25519';
    default:
      return false;
  }
}

/** Exactly one key must fit. A token without a key id is accepted only if there is no choice. */
function chosen(
  keys: readonly ProviderKey[],
  { alg, kid }: { readonly alg: string; readonly kid: string | null },
): KeyObject | ProviderFault {
  const fitting = keys.filter((key) => verifies(key, alg) && (kid === null || key.kid === kid));
  const [only] = fitting;
  if (only !== undefined && fitting.length === 1) return only.key;
  const wanted = kid === null ? 'no key id' : `the key id ${JSON.stringify(kid).slice(0, 100)}`;
  return faulty('token_key', `the token has ${wanted} and the algorithm ${alg}; ${fitting.length} published keys fit`);
}
