/** Reads the claims of a verified token of a provider. Pure. A value that is missing or has a wrong form is never guessed. */
import type { ClaimPath, Provider } from '../auth/provider.ts';
import { email as emailSchema, factsTooLarge, USER_LIMITS } from '../users/document.ts';
import type { ProviderClaims } from '../users/user-store.ts';
import { faulty, isFault, type ProviderFault } from './faults.ts';

export type Payload = Readonly<Record<string, unknown>>;

/** Who presents a token, as the provider says. */
export interface Presented {
  readonly subject: string;
  /** Seconds since the epoch. */
  readonly iat: number;
  readonly claims: ProviderClaims;
  /** Whether the token has an e-mail that the provider has not verified, which therefore is not among the claims. */
  readonly hasUnverifiedEmail: boolean;
}

/** The longest subject of OpenID Connect. */
const SUBJECT_MAX = 255;

/** `kind`: an access token may have the subject in a claim of its own. */
export function readPresented(provider: Provider, payload: Payload, kind: 'access' | 'id'): Presented | ProviderFault {
  const identified = readSubject(provider, payload, kind);
  if (isFault(identified)) return identified;
  const claims = readClaims(provider, payload);
  if (isFault(claims)) return claims;
  return { ...identified, claims, hasUnverifiedEmail: hasUnverifiedEmail(provider, payload) };
}

/** Reads whom the token is about, and nothing else. */
export function readSubject(
  provider: Provider,
  payload: Payload,
  kind: 'access' | 'id',
): Pick<Presented, 'subject' | 'iat'> | ProviderFault {
  const path = (kind === 'access' ? provider.tokens?.subject_claim : null) ?? provider.subject_claim;
  const subject = at(payload, path);
  if (typeof subject !== 'string' || subject === '' || !isName(subject, SUBJECT_MAX))
    return faulty('subject_missing', `the claim ${shown(path)} is not a text of 1 to ${SUBJECT_MAX} characters`);
  const { iat } = payload;
  if (typeof iat !== 'number' || !Number.isSafeInteger(Math.floor(iat))) return faulty('token_claim', 'the claim iat is missing');
  return { subject, iat: Math.floor(iat) };
}

/** Whether the token says both which role and which groups its user has, as far as the provider is asked for them. */
export const saysRoleAndGroups = ({ role_claim, groups_claim, groups_from }: Provider, payload: Payload): boolean =>
  !lacks(payload, role_claim) && (groups_from === 'directory' || !lacks(payload, groups_claim));

function readClaims(provider: Provider, payload: Payload): ProviderClaims | ProviderFault {
  const { role_claim, groups_required, role_required, groups_from } = provider;
  // Groups of the directory do not come from tokens, so it does not matter what tokens say of groups.
  const groups_claim = groups_from === 'directory' ? null : provider.groups_claim;
  const overage = groups_claim === null ? null : overageOf(payload);
  if (overage !== null) return overage;
  const groups = namesAt(payload, groups_claim);
  if (isFault(groups)) return groups;
  if (groups_required && lacks(payload, groups_claim)) return faulty('groups_missing', missing(groups_claim, 'groups_required'));
  if (role_required && lacks(payload, role_claim)) return faulty('role_missing', missing(role_claim, 'role_required'));
  const roles = namesAt(payload, role_claim);
  if (isFault(roles)) return roles;
  const bytes = factsTooLarge({ role: '', groups: [...roles.names, ...groups.names] });
  if (bytes !== null)
    return faulty(
      'facts_too_large',
      `the claims have ${groups.names.length} groups: ${bytes}. Set a group filter at the provider`,
    );
  return { email: emailOf(provider, payload), roles: roles.names, groups: groups.names };
}

/** Whether a token says nothing about a claim that the provider has. An empty list says something. */
const lacks = (payload: Payload, path: ClaimPath | null): path is ClaimPath =>
  path !== null && (at(payload, path) ?? null) === null;

const missing = (path: ClaimPath, setting: string): string =>
  `the claim ${shown(path)} is missing: add it at the provider to this kind of token, or set ${setting} to false`;

/** Entra leaves the groups out when there are too many, and marks the token. Without the mark it would look like no groups. */
function overageOf({ _claim_names: names, hasgroups }: Payload): ProviderFault | null {
  const mark =
    names !== undefined && names !== null ? '_claim_names' : hasgroups !== undefined && hasgroups !== false ? 'hasgroups' : null;
  if (mark === null) return null;
  return faulty(
    'groups_overage',
    `the token has ${mark} instead of the groups: the user is in too many. At the provider, send only groups that are assigned to the application, or application roles`,
  );
}

/** An e-mail that the provider has not verified, or of an unlikely form, does not count. */
function emailOf({ email_claim }: Provider, payload: Payload): string | null {
  const value = email_claim === null ? undefined : at(payload, email_claim);
  if (typeof value !== 'string' || !isVerified(payload)) return null;
  const read = emailSchema().validate(value, { convert: false });
  return read.error ? null : (read.value as string);
}

const isVerified = ({ email_verified: verified }: Payload): boolean =>
  verified === undefined || verified === true || verified === 'true';

const hasUnverifiedEmail = ({ email_claim }: Provider, payload: Payload): boolean =>
  email_claim !== null && typeof at(payload, email_claim) === 'string' && !isVerified(payload);

/** The names are sorted, because providers give them in any order. */
function namesAt(payload: Payload, path: ClaimPath | null): { readonly names: readonly string[] } | ProviderFault {
  const value = path === null ? undefined : at(payload, path);
  if (path === null || value === undefined || value === null) return { names: [] };
  const values: readonly unknown[] = Array.isArray(value) ? value : [value];
  const names = values.filter((one): one is string => typeof one === 'string' && one !== '' && isName(one, USER_LIMITS.name));
  if (names.length !== values.length)
    return faulty('claim_malformed', `the claim ${shown(path)} must have texts of 1 to ${USER_LIMITS.name} characters`);
  return { names: [...new Set(names)].sort() };
}

const isName = (value: string, max: number): boolean =>
  value.isWellFormed() && !/\p{Cc}/u.test(value) && [...value].length <= max;

/** Follows own members only, so that no path reaches the prototype. */
function at(payload: Payload, path: ClaimPath): unknown {
  let value: unknown = payload;
  for (const name of path) {
    if (typeof value !== 'object' || value === null || Array.isArray(value) || !Object.hasOwn(value, name)) return undefined;
    value = (value as Payload)[name];
  }
  return value;
}

export const shown = (path: ClaimPath): string => path.join('.');
