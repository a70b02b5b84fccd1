/** User records. `User` does not have the password hash, so that code that shows a user cannot show the hash. */
import { AppError } from '../base/errors.ts';
import { UUID } from '../base/validate.ts';
import type { Connection, Transaction } from '../db/database.ts';
import { onePage, searchInParts } from '../db/page.ts';
import { isDuplicate } from '../db/statement.ts';

/** The issuer of local accounts. Every other issuer is that of a provider. */
export const LOCAL_ISSUER = 'portcullis';

/** What a provider says of a user, before any rule is applied. */
export interface ProviderClaims {
  readonly email: string | null;
  readonly roles: readonly string[];
  readonly groups: readonly string[];
}

/** What the company's directory says of a user over SCIM. */
export interface DirectoryFacts {
  /** If false, the user is refused, whatever administrators and tokens say. */
  readonly active: boolean;
  /** null: the directory gives none, so that of the tokens counts. */
  readonly email: string | null;
  /** The names of the user's groups, sorted. null: they are too large for a record. */
  readonly groups: readonly string[] | null;
}

/**
 * Why the newest facts of a provider do not admit the user. `no_role`: no rule matches, and there is no default role.
 * `email_domain`: the e-mail is missing or in a domain that is not allowed. `directory_inactive`: the directory has deactivated or deleted
 * the user. `not_in_directory`: groups come from the directory, which has not sent this user. `too_many_groups`: role and groups are larger
 * than a record may hold.
 */
export const FACTS_REFUSALS = ['no_role', 'email_domain', 'directory_inactive', 'not_in_directory', 'too_many_groups'] as const;
export type FactsRefusal = (typeof FACTS_REFUSALS)[number];

/** The sources of role and groups of a user of a provider. The members of `User` are computed from this. */
export interface ProviderFacts {
  readonly claims: ProviderClaims;
  /** The `iat` of the token that the claims come from, in seconds. Only a newer token changes them. */
  readonly claims_iat: number;
  /** The role that an administrator gave; null: the provider decides. */
  readonly given_role: string | null;
  readonly given_groups: readonly string[];
  /** Groups that a rule gives. */
  readonly rule_groups: readonly string[];
  readonly role_from: 'administrator' | 'rule' | 'claim' | 'default' | 'none';
  readonly refusal: FactsRefusal | null;
  /** null: the directory has not sent the user. */
  readonly directory: DirectoryFacts | null;
}

export interface User {
  /** UUIDv7, so that ids sort in the order of registration. Policies, the audit log and sessions name the user by it. */
  readonly id: string;
  /** Issuer and subject identify the user (law 7). A local account has its id as subject. */
  readonly issuer: string;
  readonly subject: string;
  /** The e-mail as given, but trimmed; null only for a user of a provider. Unique among local accounts, without regard to case. */
  readonly email: string | null;
  readonly role: string;
  /** All groups: those of the provider and those that administrators gave. */
  readonly groups: readonly string[];
  /** null: a local account. */
  readonly facts: ProviderFacts | null;
  /** A token of a provider that was issued at or before this time is refused. Milliseconds since the epoch; null: no limit. */
  readonly valid_after: number | null;
  /** If false, all tokens of the user are invalid. */
  readonly enabled: boolean;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  readonly updated_at: number;
}

export const ADMIN = 'admin';
/** The role that reads everything and changes nothing. */
export const AUDITOR = 'auditor';

interface UserRow extends Omit<User, 'email' | 'subject' | 'groups' | 'facts' | 'enabled'> {
  readonly subject: string | null;
  /** Empty: there is none. */
  readonly email: string;
  readonly groups: string;
  /** JSON of `ProviderFacts` without `claims_iat`; null for a local account. */
  readonly facts: string | null;
  readonly claims_iat: number | null;
  readonly enabled: boolean | number;
}

const COLUMNS = [
  ...['id', 'issuer', 'subject', 'email', 'role', 'groups', 'facts', 'claims_iat', 'valid_after', 'enabled'],
  ...['created_at', 'updated_at'],
] as const;

const toUser = (row: UserRow): User => ({
  id: row.id,
  issuer: row.issuer,
  // Replicas of an older version insert local accounts without a subject.
  subject: row.subject ?? row.id,
  email: row.email === '' ? null : row.email,
  role: row.role,
  groups: JSON.parse(row.groups),
  facts: row.facts === null ? null : toFacts(JSON.parse(row.facts), row.claims_iat ?? 0),
  valid_after: row.valid_after,
  // SQLite may store any value. Only a true one enables a user.
  enabled: row.enabled === true || row.enabled === 1,
  created_at: row.created_at,
  updated_at: row.updated_at,
});

/** The members are in a fixed order, so that records can be compared as texts. */
function toFacts(stored: Omit<ProviderFacts, 'claims_iat'>, claims_iat: number): ProviderFacts {
  // Older versions stored no facts of a directory.
  const { claims, given_role, given_groups, rule_groups, role_from, refusal, directory = null } = stored;
  return { claims, claims_iat, given_role, given_groups, rule_groups, role_from, refusal, directory };
}

/** The columns that a change of the user writes. */
const changeable = ({ issuer, subject, email, role, groups, facts, valid_after, enabled, updated_at }: User) => {
  const { claims_iat = null, ...stored } = facts ?? {};
  return {
    ...{ issuer, subject, role, claims_iat, valid_after, enabled, updated_at },
    email: email ?? '',
    email_key: emailKey(email ?? ''),
    groups: JSON.stringify(groups),
    facts: facts === null ? null : JSON.stringify(stored),
  };
};

/** Returns the form in which e-mails are compared. */
export const emailKey = (email: string): string => email.trim().toLowerCase();

export const isLocal = ({ issuer }: Pick<User, 'issuer'>): boolean => issuer === LOCAL_ISSUER;

/** Returns a new local account. */
export const localUser = (
  { id, email, role, groups }: Pick<User, 'id' | 'role' | 'groups'> & { readonly email: string },
  now: number,
): User => ({
  ...{ id, issuer: LOCAL_ISSUER, subject: id, email, role, groups },
  ...{ facts: null, valid_after: null, enabled: true, created_at: now, updated_at: now },
});

/**
 * Returns how logs and changes name the user: the e-mail, or else the subject. The latter contains a space, so it is never equal to
 * an e-mail.
 */
export const labelOf = ({ email, subject }: Pick<User, 'email' | 'subject'>): string => email ?? `subject ${subject}`;

/** The role and the groups that may carry rights of administration. A raw claim of a provider gives no right. */
export interface Granted {
  /** null: only a claim gives the role. */
  readonly role: string | null;
  readonly groups: readonly string[];
}

export function grantedOf({ role, groups, facts }: Pick<User, 'role' | 'groups' | 'facts'>): Granted {
  if (facts === null) return { role, groups };
  const isGranted = facts.role_from !== 'claim' && facts.role_from !== 'none';
  return { role: isGranted ? role : null, groups: [...new Set([...facts.given_groups, ...facts.rule_groups])] };
}

/** Whether the record alone lets the user in. The user's provider must also be enabled. */
export const isAdmissible = ({ enabled, facts }: Pick<User, 'enabled' | 'facts'>): boolean => enabled && !facts?.refusal;

/** Which users are wanted. */
interface Wanted {
  readonly email?: string;
  readonly text?: string;
  readonly role?: string;
  readonly group?: readonly string[];
}

/** How many users are read at once. */
const AT_ONCE = 200;
const IN_ALL_GROUPS = '(select count(distinct value) from json_each(??) where value in (select value from json_each(?))) = ?';

export function userStore(db: Connection) {
  const one = async (where: Partial<UserRow & { email_key: string }>, lock = false): Promise<User | null> => {
    const users = db('users').where(where);
    const row = await (lock ? users.forUpdate() : users).first<UserRow | undefined>(...COLUMNS);
    return row ? toUser(row) : null;
  };

  async function page(limit: number, after: string | null, wanted: Wanted = {}, last: string | null = null): Promise<User[]> {
    const { email, text, role, group = [] } = wanted;
    const names = [...new Set(group)];
    const rows: UserRow[] = await db('users')
      .select(...COLUMNS)
      .modify((users) => {
        if (last !== null) users.where('id', '<=', last);
        if (email !== undefined) users.where({ email_key: emailKey(email) });
        if (text !== undefined) users.whereRaw('(id = ? or instr(lower(email), lower(?)) > 0)', [text, text]);
        if (role !== undefined) users.where({ role });
        // The groups of a user can be many. They are read once, however many are wanted.
        if (names.length === 0) return;
        if (db.client.dialect === 'mysql') users.whereRaw('json_contains(??, ?)', ['groups', JSON.stringify(names)]);
        else users.whereRaw(IN_ALL_GROUPS, ['groups', JSON.stringify(names), names.length]);
      })
      .modify(onePage, limit, after);
    return rows.map(toUser);
  }

  return {
    /** `passwordHash` null: the user has no password. Throws AppError `email_taken`. */
    async insert(user: User, passwordHash: string | null): Promise<void> {
      const { id, created_at } = user;
      try {
        await db('users').insert({ id, created_at, ...changeable(user), password_hash: passwordHash ?? '' });
      } catch (error) {
        if (isDuplicate(error)) throw new AppError('email_taken', 'A user with this e-mail exists.');
        throw error;
      }
    },

    find: (id: string): Promise<User | null> => one({ id }),

    /** Returns the users with these ids. */
    async findAll(ids: readonly string[]): Promise<User[]> {
      const rows: UserRow[] = await db('users')
        .whereIn('id', ids)
        .select(...COLUMNS);
      return rows.map(toUser);
    },

    /** Like `find`, and locks the record until the transaction ends. */
    lock: (id: string): Promise<User | null> => one({ id }, true),

    /**
     * Like `lock`, for a transaction that makes something by which the user is signed in. It also writes the record, as every change does
     * that ends sign-ins. So one of the two comes first, also at different members of a cluster.
     */
    async lockForSignIn(id: string): Promise<User | null> {
      await db('users').where({ id }).increment('sign_ins', 1);
      return one({ id }, true);
    },

    /** Finds local accounts only, because an e-mail from a provider does not identify a user. */
    findByEmail: (email: string): Promise<User | null> => one({ issuer: LOCAL_ISSUER, email_key: emailKey(email) }),

    findBySubject: (issuer: string, subject: string): Promise<User | null> => one({ issuer, subject }),

    /** Like `findBySubject`, and locks the record until the transaction ends. */
    lockBySubject: (issuer: string, subject: string): Promise<User | null> => one({ issuer, subject }, true),

    /** Returns at most two users of any issuer with this e-mail. */
    async withEmail(email: string): Promise<User[]> {
      const rows: UserRow[] = await db('users')
        .where({ email_key: emailKey(email) })
        .limit(2)
        .select(...COLUMNS);
      return rows.map(toUser);
    },

    /** Returns those of the users with these ids that belong to the issuer, in the order of their ids, and locks their records. */
    async lockAll(issuer: string, ids: readonly string[]): Promise<User[]> {
      const rows: UserRow[] = await db('users')
        .where({ issuer })
        .whereIn('id', ids)
        .orderBy('id')
        .forUpdate()
        .select(...COLUMNS);
      return rows.map(toUser);
    },

    /** Returns the users of an issuer in the order of their ids, at most `limit`, with ids after `after`, and locks their records. */
    async lockOfIssuer(issuer: string, limit: number, after: string | null): Promise<User[]> {
      const rows: UserRow[] = await db('users')
        .where({ issuer })
        .forUpdate()
        .select(...COLUMNS)
        .modify(onePage, limit, after);
      return rows.map(toUser);
    },

    /**
     * Finds local accounts only. Makes one query whether or not the user exists, so that the time does not reveal it.
     * `passwordHash` null: the account has no password.
     */
    async credentials(by: { readonly id: string } | { readonly email: string }) {
      const row = await db('users')
        .where({ issuer: LOCAL_ISSUER, ...('id' in by ? { id: by.id } : { email_key: emailKey(by.email) }) })
        .first<(UserRow & { password_hash: string }) | undefined>(...COLUMNS, 'password_hash');
      return row ? { user: toUser(row), passwordHash: row.password_hash === '' ? null : row.password_hash } : null;
    },

    /** Returns users in the order of their ids: at most `limit`, with ids after `after` (null: from the first). */
    page: (limit: number, after: string | null): Promise<User[]> => page(limit, after),

    /**
     * Yields users in the order of their ids, in parts, which can be empty: the groups of one user can have thousands of bytes. `limit` null: all.
     * `email`: the whole e-mail. `text`: a part of it, without regard to the case of ASCII letters, or the whole id. `group`: the user must be in
     * all of these.
     */
    parts(after: string | null, wanted: Wanted = {}, limit: number | null = null): AsyncGenerator<readonly User[]> {
      const { email, ...searched } = wanted;
      const isSearch = email === undefined && Object.keys(searched).length > 0;
      return searchInParts({
        ...{ limit, after, atOnce: AT_ONCE, rows: isSearch ? () => db('users') : null },
        page: (most, from, last) => page(most, from, wanted, last),
      });
    },

    /** Writes everything except the id, the password and the time of creation. Throws AppError `identity_taken`. */
    async update(user: User): Promise<void> {
      try {
        await db('users').where({ id: user.id }).update(changeable(user));
      } catch (error) {
        if (isDuplicate(error)) throw new AppError('identity_taken', 'A different user has this issuer and subject.');
        throw error;
      }
    },

    /**
     * Writes what was derived for these users in one statement: e-mail, role, groups, facts, `valid_after` and the time. Their records must be
     * locked, and at most 100.
     */
    async updateDerived(users: readonly User[]): Promise<void> {
      if (users.length === 0) return;
      const rows = users.map((user) => ({ id: user.id, ...changeable(user) }));
      const byId = (column: Exclude<keyof ReturnType<typeof changeable>, 'issuer' | 'subject' | 'enabled'>) =>
        db.raw(`case ?? ${rows.map(() => 'when ? then ?').join(' ')} else ?? end`, [
          'id',
          ...rows.flatMap((row) => [row.id, row[column]]),
          column,
        ]);
      await db('users')
        .whereIn(
          'id',
          rows.map(({ id }) => id),
        )
        .update({
          email: byId('email'),
          email_key: byId('email_key'),
          role: byId('role'),
          groups: byId('groups'),
          facts: byId('facts'),
          claims_iat: byId('claims_iat'),
          valid_after: byId('valid_after'),
          updated_at: byId('updated_at'),
        });
    },

    /**
     * Remembers that a newer token of a provider repeated the facts, so that no older token can change them. False: the facts are no longer
     * those of `knownIat`.
     */
    async confirmFacts(id: string, knownIat: number, iat: number): Promise<boolean> {
      const changed = await db('users')
        .where({ id })
        .andWhere((query) => {
          query.where('claims_iat', knownIat);
          // A record without the time is read as one of time 0.
          if (knownIat === 0) query.orWhereNull('claims_iat');
        })
        .update({ claims_iat: iat });
      return changed === 1;
    },

    async setPasswordHash(id: string, passwordHash: string, now: number): Promise<void> {
      await db('users').where({ id }).update({ password_hash: passwordHash, updated_at: now });
    },

    /** Counts local accounts only, because a provider can withdraw the role from its users at any time. */
    async countEnabledAdministrators(): Promise<number> {
      const row = await db('users')
        .where({ issuer: LOCAL_ISSUER, role: ADMIN, enabled: true })
        .count<{ n: number | string }[]>({ n: '*' })
        .first();
      return Number(row?.n ?? 0);
    },

    async hasFirstAdministrator(): Promise<boolean> {
      return (await db('first_administrator').where({ id: 1 }).first('id')) !== undefined;
    },
  };
}

/**
 * Tries to make `userId` the first administrator. Returns true for exactly one transaction that commits: an insert with a fixed
 * key decides the race. If the registration rolls back, the row is rolled back with it.
 */
export async function claimFirstAdministrator(trx: Transaction, userId: string): Promise<boolean> {
  if (await userStore(trx).hasFirstAdministrator()) return false;
  try {
    await trx('first_administrator').insert({ id: 1, user_id: userId });
    return true;
  } catch (error) {
    if (isDuplicate(error)) return false;
    throw error;
  }
}

/**
 * `user`: an id or e-mail. Throws AppError `invalid_request` if several users have the e-mail. Otherwise somebody could register a local account
 * with the e-mail of a user of a provider, and stand for that user.
 */
export async function findUser(db: Connection, user: string): Promise<User | null> {
  const store = userStore(db);
  if (UUID.test(user)) return store.find(user);
  if (emailKey(user) === '') return null;
  const [found = null, other] = await store.withEmail(user);
  if (other !== undefined)
    throw new AppError('invalid_request', `Several users have the e-mail ${user}. Give the id of the user instead.`);
  return found;
}
