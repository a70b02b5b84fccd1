/** Judges a signed token by the settings of its provider. Pure: the signature is verified elsewhere. */
import type { Provider, TokenType } from '../auth/provider.ts';
import { type Payload, type Presented, readPresented, readSubject, saysRoleAndGroups } from './claims.ts';
import { faulty, isFault, type ProviderFault } from './faults.ts';

export interface SignedToken {
  /** The protected header. */
  readonly header: { readonly alg: string; readonly typ: string | null; readonly kid: string | null };
  readonly payload: Payload;
}

/** Claims that only ID tokens and logout tokens have. */
const NOT_OF_ACCESS_TOKENS = ['nonce', 'at_hash', 'c_hash', 's_hash', 'events'];
/** Keycloak names the kind of a token in the payload. */
const PAYLOAD_TYPES = ['Bearer', 'JWT', 'at+jwt'];

/**
 * Judges an access token that a program presents. `now` in milliseconds; null: the times were judged when the request arrived. A call
 * that was allowed before its token expired may run to its end.
 */
export function judgeAccessToken(provider: Provider, token: SignedToken, now: number | null): Presented | ProviderFault {
  const { tokens } = provider;
  if (tokens === null) return faulty('tokens_not_accepted', 'a program presented a token, and `tokens` of the provider is null');
  const { header, payload } = token;
  const type = typeOf(header.typ);
  if (type === null || !tokens.types.includes(type))
    return faulty('token_type', `the type of the token is ${quote(header.typ)}; tokens.types has ${list(tokens.types)}`);
  const own = NOT_OF_ACCESS_TOKENS.find((name) => payload[name] !== undefined);
  if (own !== undefined) return faulty('token_type', `the token has the claim ${own}, so it is not an access token`);
  const { typ } = payload;
  if (typ !== undefined && !PAYLOAD_TYPES.includes(String(typ)))
    return faulty('token_type', `the claim typ is ${quote(typ)}, so it is not an access token`);
  if (payload['cnf'] !== undefined) return faulty('token_bound', 'the token has the claim cnf');
  const fault = judgeCommon(provider, token) ?? (now === null ? null : judgeTimes(provider, token, now));
  if (fault !== null) return fault;
  const { aud } = payload;
  const audiences: readonly unknown[] = Array.isArray(aud) ? aud : [aud];
  if (!audiences.some((one) => typeof one === 'string' && tokens.audiences.includes(one)))
    return faulty('token_audience', `the audience of the token is ${quote(aud)}; tokens.audiences has ${list(tokens.audiences)}`);
  if (!tokens.app_only && isAppOnly(provider, payload))
    return faulty('app_only', 'an application of Entra presented a token of its own, and tokens.app_only is false');
  return readPresented(provider, payload, 'access');
}

/** An identity assertion that was judged, except for whether it was used before (draft-ietf-oauth-identity-assertion-authz-grant). */
export interface IdJag {
  readonly subject: string;
  /** Seconds since the epoch. */
  readonly iat: number;
  readonly exp: number;
  readonly jti: string;
  /** The claim `resource`. The caller must check that it is an endpoint. */
  readonly resource: string;
  /** What it says of its user, or why that is not enough. */
  readonly presented: Presented | ProviderFault;
  /** Whether it leaves role or groups out, and so only tells who the user is. */
  readonly isPartial: boolean;
}

const ID_JAG_TYPE = /^(application\/)?oauth-id-jag\+jwt$/i;
/** Used assertions are remembered until they expire. */
const MOST_ID_JAG_SECONDS = 3_600;
const MAX_JTI = 256;

/** Judges an identity assertion that a client presents. `audience`: the issuer of this authorization server. `now` in milliseconds. */
export function judgeIdJag(
  provider: Provider,
  token: SignedToken,
  { audience, clientId, now }: { readonly audience: string; readonly clientId: string; readonly now: number },
): IdJag | ProviderFault {
  const { header, payload } = token;
  if (!provider.id_jag) return faulty('assertions_not_accepted', 'a client presented an assertion, and id_jag is false');
  if (header.typ === null || !ID_JAG_TYPE.test(header.typ))
    return faulty('assertion_type', `the type of the assertion is ${quote(header.typ)}, not oauth-id-jag+jwt`);
  if (payload['cnf'] !== undefined) return faulty('token_bound', 'the assertion has the claim cnf');
  const fault = judgeCommon(provider, token) ?? judgeTimes(provider, token, now);
  if (fault !== null) return fault;
  const { aud, client_id, resource, scope, jti, exp } = payload;
  const audiences: readonly unknown[] = Array.isArray(aud) ? aud : [aud];
  // An assertion for several servers could be presented at each of them.
  if (audiences.length !== 1 || audiences[0] !== audience)
    return faulty('assertion_audience', `the audience of the assertion is ${quote(aud)}; it must be ${audience} alone`);
  if (client_id !== clientId)
    return faulty('assertion_client', `the assertion is for the client ${quote(client_id)}, and ${quote(clientId)} presented it`);
  const resources: readonly unknown[] = Array.isArray(resource) ? resource : [resource];
  const [only] = resources;
  if (resources.length !== 1 || typeof only !== 'string')
    return faulty('assertion_resource', `the claim resource is ${quote(resource)}`);
  if (scope !== undefined && !(typeof scope === 'string' && scope.split(' ').includes('mcp')))
    return faulty('assertion_scope', `the claim scope is ${quote(scope)}`);
  if (typeof jti !== 'string' || jti === '' || jti.length > MAX_JTI)
    return faulty('assertion_used', `the claim jti is ${quote(jti)}`);
  const identified = readSubject(provider, payload, 'id');
  if (isFault(identified)) return identified;
  const until = Number(exp);
  if (until - identified.iat > MOST_ID_JAG_SECONDS)
    return faulty('assertion_lifetime', `the assertion is valid for ${until - identified.iat} s`);
  const presented = readPresented(provider, payload, 'id');
  return { ...identified, exp: until, jti, resource: only, presented, isPartial: !saysRoleAndGroups(provider, payload) };
}

/** Entra marks these tokens only if that is configured. Without the mark, `sub` is the object id of the application itself. */
const isAppOnly = ({ preset }: Provider, { idtyp, oid, sub }: Payload): boolean =>
  idtyp === 'app' || (preset === 'entra' && typeof oid === 'string' && oid === sub);

/** What holds for every token of the provider at any time: algorithm, issuer and required claims. null: it holds. */
export function judgeCommon(provider: Provider, { header, payload }: SignedToken): ProviderFault | null {
  const { algorithms, issuer, required_claims } = provider;
  if (!algorithms.includes(header.alg))
    return faulty('token_algorithm', `the algorithm of the token is ${quote(header.alg)}; algorithms has ${list(algorithms)}`);
  if (payload['iss'] !== issuer) return faulty('token_claim', `the issuer of the token is ${quote(payload['iss'])}`);
  for (const [name, values] of Object.entries(required_claims)) {
    const value = Object.hasOwn(payload, name) ? payload[name] : undefined;
    const given: readonly unknown[] = Array.isArray(value) ? value : [value];
    if (!given.some((one) => isScalar(one) && values.includes(String(one))))
      return faulty('token_claim', `the claim ${name} is ${quote(value)}; required_claims has ${list(values)}`);
  }
  return null;
}

/** Whether a token of the provider is valid at `now`, in milliseconds. null: it is. */
export function judgeTimes(
  { clock_skew_seconds: skew }: Pick<Provider, 'clock_skew_seconds'>,
  { payload: { exp, iat, nbf = iat } }: Pick<SignedToken, 'payload'>,
  now: number,
): ProviderFault | null {
  const time = now / 1_000;
  if (!isTime(exp) || !isTime(iat) || !isTime(nbf)) return faulty('token_claim', 'exp, iat or nbf is missing or not a number');
  if (time >= exp + skew) return faulty('token_expired', `the token expired at ${iso(exp)}`);
  if (Math.max(iat, nbf) > time + skew) return faulty('token_early', `the token is valid from ${iso(Math.max(iat, nbf))}`);
  return null;
}

/** JSON has numbers such as 1e999, which are read as infinite. */
const isTime = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);
const isScalar = (value: unknown): boolean => ['string', 'number', 'boolean'].includes(typeof value);

/** `typ` is compared without regard to case, and `application/` may be left out (RFC 7515 section 4.1.9). */
function typeOf(typ: string | null): TokenType | null {
  if (typ === null) return 'absent';
  const bare = typ.toLowerCase().replace(/^application\//, '');
  return bare === 'jwt' ? 'JWT' : bare === 'at+jwt' ? 'at+jwt' : null;
}

const iso = (seconds: number): string => (Math.abs(seconds) < 1e11 ? new Date(seconds * 1_000).toISOString() : String(seconds));
const list = (values: readonly string[]): string => values.join(', ');
/** Values come from the token, so they are cut. */
const quote = (value: unknown): string => (value === undefined ? 'missing' : JSON.stringify(value).slice(0, 200));
