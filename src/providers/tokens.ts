/**
 * Access tokens of providers. Before the gate: the signature, and the user whom issuer and subject name. At the gate: everything
 * that an administrator can change, by the provider and the user in the snapshot (`judgeIdentity`).
 */
import type { KeyObject } from 'node:crypto';
import { compactVerify, decodeProtectedHeader, errors as joseErrors } from 'jose';
import { type AuthRefusal, type ProviderToken, type TokenClaims, userKey } from '../auth/principal.ts';
import type { Provider, Providers } from '../auth/provider.ts';
import { AppError } from '../base/errors.ts';
import type { Now } from '../base/promises.ts';
import type { Payload } from './claims.ts';
import { type FaultLog, faulty, forUser, isFault, isPassing, type ProviderFault } from './faults.ts';
import { judgeAccessToken, judgeTimes, type SignedToken } from './judge.ts';
import type { ProviderKeys } from './keys.ts';
import { type People, refusalOf } from './people.ts';

const REMEMBERED = 10_000;
/** The maximum of characters of the remembered tokens: their claims stay in memory. */
const REMEMBERED_CHARACTERS = 16 * 1024 * 1024;
/** A header has room for twice as much. */
const MAX_TOKEN = 16 * 1024;
const MAX_KID = 256;

export interface ProviderTokenParts {
  readonly keys: ProviderKeys;
  readonly people: Pick<People, 'settle'>;
  readonly faults: FaultLog;
  /** The providers as this replica knew them last. They may be old, so they refuse no token for good. */
  readonly known: () => Providers | null;
  /** The providers in a state at least as new as the call. */
  readonly fresh: () => Promise<Providers>;
  readonly now: () => number;
  /** Issuers of tokens that the gateway itself issues. */
  readonly own: readonly string[];
}

interface Remembered {
  readonly claims: TokenClaims;
  readonly key: KeyObject;
  readonly signed: SignedToken;
  /** The characters of the token. */
  readonly length: number;
}

export function createProviderTokens({ keys, people, faults, known, fresh, now, own }: ProviderTokenParts) {
  /** Ordered by last use, oldest first. */
  const remembered = new Map<string, Remembered>();
  let characters = 0;

  function forget(hash: string): void {
    characters -= remembered.get(hash)?.length ?? 0;
    remembered.delete(hash);
  }

  function remember(hash: string, entry: Remembered): TokenClaims {
    forget(hash);
    remembered.set(hash, entry);
    characters += entry.length;
    for (const oldest of remembered.keys()) {
      if (remembered.size <= REMEMBERED && characters <= REMEMBERED_CHARACTERS) break;
      forget(oldest);
    }
    return entry.claims;
  }

  function refusal(provider: Provider, fault: ProviderFault): AuthRefusal {
    faults.note(provider.id, fault);
    if (isPassing(fault)) throw new AppError('unavailable', forUser(fault), { retryAfter: 10 });
    return { refused: 'invalid_token', detail: forUser(fault) };
  }

  /** Verifies and judges the token by this provider, and brings the record of its user up to date. */
  async function read(provider: Provider, token: string, hash: string): Promise<Remembered | ProviderFault> {
    const signed = await verified(keys, provider, token);
    if (isFault(signed)) return signed;
    const presented = judgeAccessToken(provider, signed, now());
    if (isFault(presented)) return presented;
    const user = await people.settle(provider, presented, 'a token');
    if (isFault(user)) return user;
    const refused = refusalOf(user, provider, presented);
    if (refused !== null) return refused;
    const { issuer } = provider;
    const { subject, iat } = presented;
    const foreign: ProviderToken = { issuer, subject, iat, judge: judgement(signed, subject) };
    const exp = Number(signed.payload['exp']) + provider.clock_skew_seconds;
    return {
      claims: { iss: issuer, sub: user.id, jti: userKey(user.id), kid: hash, exp, provider: foreign, resource: null },
      key: signed.key,
      signed,
      length: token.length,
    };
  }

  async function check(token: string, hash: string, issuer: string): Promise<TokenClaims | AuthRefusal | null> {
    const provider = known()?.get(issuer) ?? (await fresh()).get(issuer);
    if (provider === undefined) return null;
    const first = await read(provider, token, hash);
    if (!isFault(first)) return remember(hash, first);
    // What this replica knew may be old. Only a new state can refuse for good.
    const newest = (await fresh()).get(issuer);
    if (newest === undefined) return null;
    const last = newest === provider ? first : await read(newest, token, hash);
    return isFault(last) ? refusal(newest, last) : remember(hash, last);
  }

  return {
    /** Forgets a token that the gate has refused: its account may belong to a different user now. */
    forget: ({ kid }: TokenClaims): void => forget(kid),

    /** Returns the claims of a token that was verified before, is valid now, and whose key the provider still publishes. */
    recall(hash: string): TokenClaims | null {
      const entry = remembered.get(hash);
      if (entry === undefined) return null;
      const provider = known()?.get(entry.claims.iss);
      const isValid =
        provider !== undefined && judgeTimes(provider, entry.signed, now()) === null && keys.isPublished(provider, entry.key);
      if (!isValid) {
        forget(hash);
        return null;
      }
      return remember(hash, entry);
    },

    /**
     * null: no enabled provider has issued the token. Throws AppError `unavailable` if the keys of its provider cannot be read.
     * `hash`: that of the token.
     */
    check(token: string, hash: string): Now<TokenClaims | AuthRefusal | null> {
      const issuer = issuerOf(token);
      return issuer === null || own.includes(issuer) ? null : check(token, hash, issuer);
    },
  };
}

/** Judges a token again under the settings of the moment. Its times are judged when a request arrives. */
function judgement(signed: SignedToken, subject: string): ProviderToken['judge'] {
  return (provider) => {
    const presented = judgeAccessToken(provider, signed, null);
    if (isFault(presented)) return forUser(presented);
    return presented.subject === subject ? null : forUser(faulty('subject_missing', ''));
  };
}

/** Returns the issuer that the token claims to have. It is not verified: it only tells which provider may verify it. */
export function issuerOf(token: string): string | null {
  if (token.length > MAX_TOKEN) return null;
  const payload = readObject(token.split('.')[1] ?? '');
  return typeof payload?.['iss'] === 'string' ? payload['iss'] : null;
}

function readObject(part: string): Payload | null {
  try {
    const value: unknown = JSON.parse(Buffer.from(part, 'base64url').toString());
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Payload) : null;
  } catch {
    return null;
  }
}

/** Verifies the signature of a JWT with the keys of the provider. */
export async function verified(
  keys: Pick<ProviderKeys, 'find'>,
  provider: Provider,
  token: string,
): Promise<(SignedToken & { readonly key: KeyObject }) | ProviderFault> {
  const header = headerOf(token);
  if (header === null) return faulty('token_malformed', 'the header of the token is not one that the gateway can read');
  // The algorithm is pinned before any key is looked up.
  if (!provider.algorithms.includes(header.alg))
    return faulty(
      'token_algorithm',
      `the algorithm of the token is ${JSON.stringify(header.alg).slice(0, 100)}; algorithms has ${provider.algorithms.join(', ')}`,
    );
  const key = await keys.find(provider, header);
  if (isFault(key)) return key;
  try {
    const { payload: bytes } = await compactVerify(token, key, { algorithms: [header.alg] });
    const payload = readObject(Buffer.from(bytes).toString('base64url'));
    return payload === null ? faulty('token_malformed', 'the payload is not a JSON object') : { header, payload, key };
  } catch (error) {
    if (error instanceof joseErrors.JOSEError || error instanceof TypeError)
      return faulty('token_signature', `the signature was not made with the key ${header.kid ?? 'without an id'}`);
    throw error;
  }
}

/** Members such as `jku`, `jwk` and `x5u` are ignored: keys come from the provider's own address alone. */
function headerOf(token: string): SignedToken['header'] | null {
  try {
    const { alg, typ = null, kid = null, crit, b64 } = decodeProtectedHeader(token) as Record<string, unknown>;
    if (typeof alg !== 'string' || crit !== undefined || b64 !== undefined) return null;
    if ((typ !== null && typeof typ !== 'string') || (kid !== null && (typeof kid !== 'string' || kid.length > MAX_KID)))
      return null;
    return { alg, typ, kid };
  } catch {
    return null;
  }
}
