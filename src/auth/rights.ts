/** Rights of administration: what callers may do besides what every caller may. Pure. */
import { ADMIN, AUDITOR } from '../users/user-store.ts';
import type { Principal, TokenLimits } from './principal.ts';

export const RIGHTS = [
  'read',
  'targets:operate',
  'users:manage',
  'policies:plan',
  'policies:manage',
  'boundaries:manage',
  'bundles:read',
] as const;
export type Right = (typeof RIGHTS)[number];

/** The rights that can be limited to the policies of one owner. */
export const OWNED_RIGHTS = ['policies:plan', 'policies:manage'] as const satisfies readonly Right[];
export const isOwned = (right: Right): boolean => OWNED_RIGHTS.some((owned) => owned === right);

/** The rights that change something. An auditor never has them. */
const CHANGING: readonly Right[] = ['targets:operate', 'users:manage', 'policies:manage', 'boundaries:manage'];

/** What a right contains besides itself. `read` contains those of every owner. */
const CONTAINED: Readonly<Partial<Record<Right, readonly Right[]>>> = {
  read: ['policies:plan', 'bundles:read'],
  'policies:manage': ['policies:plan'],
};

export const RIGHT_SUBJECTS = ['user', 'group', 'role'] as const;
export type RightSubject = (typeof RIGHT_SUBJECTS)[number];

/** A right that an administrator has given. */
export interface GivenRight {
  readonly subject_type: RightSubject;
  /** The id of a user, or the name of a group or a role. */
  readonly subject_value: string;
  readonly right: Right;
  /** The right covers only policies of this owner; null: of every owner, or the right has no owner. */
  readonly owner: string | null;
}

/** The owners that a right covers; null: all of them, and the policies without an owner. */
export type Owners = ReadonlySet<string> | null;

/** The rights of a caller at one moment. */
export interface Held {
  /** Whether the caller may do everything. */
  readonly admin: boolean;
  readonly rights: ReadonlyMap<Right, Owners>;
  /** The ids of the targets that `targets:operate` covers; null: all. */
  readonly targets: ReadonlySet<string> | null;
}

/** `admin`: the caller must be an administrator. A list: at least one of these rights. `all`: every one of these rights. */
export type AdministrativeNeed = 'admin' | readonly Right[] | { readonly all: readonly Right[] };
/**
 * What an operation needs. `any token`: a valid token. `unlimited token`: a valid token without limits. `login token`: a login of the
 * user, by a program or a browser.
 */
export type Need = 'open' | 'any token' | 'unlimited token' | 'login token' | AdministrativeNeed;

/** Only what rules and administrators have given carries rights, and no raw claim of a provider. */
type Facts = Pick<Principal, 'sub' | 'granted'>;

const isOf = ({ subject_type, subject_value }: GivenRight, { sub, granted: { role, groups } }: Facts): boolean => {
  switch (subject_type) {
    case 'user':
      return subject_value === sub;
    case 'role':
      return subject_value === role;
    case 'group':
      return groups.includes(subject_value);
  }
};

/** Whether the user administers anything: an administrator, an auditor, or a user to whom a right was given in any way. */
export const holdsRights = (user: Facts, given: readonly GivenRight[]): boolean =>
  user.granted.role === ADMIN || user.granted.role === AUDITOR || given.some((right) => isOf(right, user));

type Rights = ReadonlyMap<Right, Owners>;

const union = (a: Owners | undefined, b: Owners): Owners => (a === undefined ? b : a && b && new Set([...a, ...b]));
const intersection = (a: Owners, b: Owners): Owners =>
  a === null ? b : b === null ? a : new Set([...a].filter((owner) => b.has(owner)));

function gathered(given: readonly Pick<GivenRight, 'right' | 'owner'>[]): Rights {
  const rights = new Map<Right, Owners>();
  for (const { right, owner } of given) {
    const owners = owner === null ? null : new Set([owner]);
    for (const each of [right, ...(CONTAINED[right] ?? [])]) rights.set(each, union(rights.get(each), owners));
  }
  return rights;
}

const ofAll = (rights: readonly Right[]) => rights.map((right) => ({ right, owner: null }));

function rightsOfUser(user: Facts, given: readonly GivenRight[]): Rights {
  if (user.granted.role === ADMIN) return gathered(ofAll(RIGHTS));
  const own = given.filter((right) => isOf(right, user));
  if (user.granted.role !== AUDITOR) return gathered(own);
  return gathered([...ofAll(['read']), ...own.filter(({ right }) => !CHANGING.includes(right))]);
}

function rightsOfToken({ rights, owner }: TokenLimits): Rights {
  return gathered(rights.map((right) => ({ right, owner: isOwned(right) ? owner : null })));
}

/** Returns the rights of the caller: those of the user, without those that the limits of the token leave out. */
export function rightsOf(principal: Facts & Pick<Principal, 'limits'>, given: readonly GivenRight[]): Held {
  const ofUser = rightsOfUser(principal, given);
  const { limits } = principal;
  if (limits === null) return { admin: principal.granted.role === ADMIN, rights: ofUser, targets: null };
  const rights = new Map<Right, Owners>();
  for (const [right, owners] of rightsOfToken(limits)) {
    const own = ofUser.get(right);
    const both = own === undefined ? new Set<string>() : intersection(own, owners);
    if (both === null || both.size > 0) rights.set(right, both);
  }
  // A token that names targets operates only these. A token that names none uses none, but may be made to operate all.
  const targets = limits.endpoints === null || limits.endpoints.length === 0 ? null : limits.endpoints;
  return { admin: false, rights, targets: targets && new Set(targets.map(({ id }) => id)) };
}

/** Whether the caller has the right, for at least one owner. */
export const has = ({ rights }: Held, right: Right): boolean => rights.has(right);

/** Whether the caller has the right for this owner; null: for policies without an owner. */
export function hasFor({ rights }: Held, right: Right, owner: string | null): boolean {
  const owners = rights.get(right);
  return owners === null || (owners !== undefined && owner !== null && owners.has(owner));
}

/** Whether the caller may change more than the policies of single owners: all policies, or the boundaries of owners. */
export const managesAll = (held: Held): boolean => hasFor(held, 'policies:manage', null) || has(held, 'boundaries:manage');

export const operates = ({ targets }: Held, targetId: string): boolean => targets === null || targets.has(targetId);

const named = (rights: readonly Right[], by: string): string => rights.map((right) => `\`${right}\``).join(by);

/** What an operation needs, in words. */
export function needText(need: AdministrativeNeed): string {
  if (need === 'admin') return 'the role `admin`';
  if ('all' in need) return `the rights ${named(need.all, ' and ')}`;
  return `the right ${named(need, ' or ')}`;
}

export function meets(held: Held, need: AdministrativeNeed): boolean {
  if (need === 'admin') return held.admin;
  return 'all' in need ? need.all.every((right) => has(held, right)) : need.some((right) => has(held, right));
}

/** Why a token does not count as a login of its user; null: it does. */
const NO_LOGIN: Readonly<Record<Principal['token_kind'], string | null>> = {
  login: null,
  browser: null,
  provider: 'A token of a provider may not do this: sign in to the gateway itself.',
  api: 'An API token may not do this: use a login token.',
  access: 'An access token of an OAuth client may not do this: use a login token, or a page of the gateway.',
};

/** Returns why the caller may not do what has this need; null: the caller may. */
export function refusalOf(need: Need, principal: Pick<Principal, 'token_kind' | 'limits'>, held: Held): string | null {
  switch (need) {
    case 'open':
    case 'any token':
      return null;
    case 'unlimited token':
      return principal.limits === null ? null : 'A token with limits may not do this: use a token without limits.';
    case 'login token':
      return NO_LOGIN[principal.token_kind];
    default: {
      if (meets(held, need)) return null;
      const limited = principal.limits === null ? '' : ' The limits of this token leave out rights of its user.';
      return `This needs ${needText(need)}. Ask an administrator.${limited}`;
    }
  }
}
