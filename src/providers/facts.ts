/** From what a provider says of a user to the role and the groups that count here. Pure. */
import type { Provider, ProviderRule } from '../auth/provider.ts';
import { factsTooLarge } from '../users/document.ts';
import {
  ADMIN,
  AUDITOR,
  type DirectoryFacts,
  type FactsRefusal,
  type ProviderClaims,
  type ProviderFacts,
  type User,
} from '../users/user-store.ts';

/** Roles with rights of administration. A provider gives them only through a rule, never by a claim of the same name. */
const RESERVED: readonly string[] = [ADMIN, AUDITOR];
/** Stored for a user without a role, who is refused. */
const NO_ROLE = 'none';

export interface Given {
  readonly role: string | null;
  readonly groups: readonly string[];
}

export const NOTHING_GIVEN: Given = { role: null, groups: [] };

/** What an administrator has given to the user. */
export const givenTo = (user: User): Given =>
  user.facts === null ? NOTHING_GIVEN : { role: user.facts.given_role, groups: user.facts.given_groups };

export type Derived = Pick<User, 'email' | 'role' | 'groups'> & { readonly facts: ProviderFacts };

/** What was learnt of a user, apart from what administrators gave. */
export type Learnt = Pick<ProviderFacts, 'claims' | 'claims_iat' | 'directory'>;

/** Returns what the record of the user holds under the present settings of the provider. */
export function derive(provider: Provider, { claims, claims_iat, directory }: Learnt, given: Given): Derived {
  const heard = heardOf(provider, claims, directory);
  const matching = provider.rules.filter((rule) => matches(rule, heard));
  const [role, role_from] = roleOf(provider, matching, heard, given);
  const rule_groups = unique(matching.flatMap(({ groups }) => groups));
  const groups = unique([...heard.groups, ...rule_groups, ...given.groups]);
  const isTooLarge = directory !== null && (directory.groups === null || factsTooLarge({ role, groups }) !== null);
  const refusal =
    refusalByDirectory(provider, directory, isTooLarge) ??
    (isDomainAllowed(provider, heard.email) ? (role_from === 'none' ? 'no_role' : null) : 'email_domain');
  return {
    email: heard.email,
    role,
    groups: refusal === 'too_many_groups' ? [] : groups,
    facts: {
      ...{ claims, claims_iat, given_role: given.role, given_groups: given.groups, rule_groups, role_from, refusal },
      directory,
    },
  };
}

const rulesGroups = ({ groups_from }: Provider): boolean => groups_from === 'directory';

/** What counts of what tokens and the directory say. Where the directory rules the groups, those of tokens do not count. */
function heardOf(provider: Provider, claims: ProviderClaims, directory: DirectoryFacts | null): ProviderClaims {
  return {
    email: directory?.email ?? claims.email,
    roles: claims.roles,
    groups: rulesGroups(provider) ? (directory?.groups ?? []) : claims.groups,
  };
}

/** A user whose groups are not known would look like one in no group, to whom rules that deny do not apply. So such a user is refused. */
function refusalByDirectory(provider: Provider, directory: DirectoryFacts | null, isTooLarge: boolean): FactsRefusal | null {
  if (directory?.active === false) return 'directory_inactive';
  if (!rulesGroups(provider)) return null;
  if (directory === null) return 'not_in_directory';
  return isTooLarge ? 'too_many_groups' : null;
}

function roleOf(
  { default_role }: Provider,
  matching: readonly ProviderRule[],
  { roles }: ProviderClaims,
  given: Given,
): readonly [role: string, from: ProviderFacts['role_from']] {
  const byRule = matching.find(({ role }) => role !== null)?.role ?? null;
  const byClaim = roles.find((role) => !RESERVED.includes(role)) ?? null;
  if (given.role !== null) return [given.role, 'administrator'];
  if (byRule !== null) return [byRule, 'rule'];
  if (byClaim !== null) return [byClaim, 'claim'];
  if (default_role !== null) return [default_role, 'default'];
  return [NO_ROLE, 'none'];
}

function matches({ if_group, if_role }: ProviderRule, { groups, roles }: ProviderClaims): boolean {
  return (if_group !== null && groups.includes(if_group)) || (if_role !== null && roles.includes(if_role));
}

function isDomainAllowed({ email_domains }: Provider, email: string | null): boolean {
  if (email_domains.length === 0) return true;
  return email !== null && email_domains.includes(email.slice(email.lastIndexOf('@') + 1).toLowerCase());
}

const unique = (values: readonly string[]): readonly string[] => [...new Set(values)];

/** Whether role and groups exceed what a record may hold. */
export const exceedsLimit = ({ role, groups }: Derived): boolean => factsTooLarge({ role, groups }) !== null;

/** Whether the provider says the same. An e-mail that a token leaves out has not changed. */
export const saysTheSame = (a: ProviderClaims, b: ProviderClaims): boolean =>
  a.email === b.email && JSON.stringify([a.roles, a.groups]) === JSON.stringify([b.roles, b.groups]);
