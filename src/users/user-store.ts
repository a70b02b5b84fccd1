/** User records. `User` does not have the password hash, so that code that shows a user cannot show the hash. */

import { AppError } from '../base/errors.ts';
import { type Connection, isDuplicate, type Transaction } from '../db/database.ts';
import { onePage } from '../db/page.ts';

export interface User {
  /** UUIDv7, so that ids sort in the order of registration; also the claim `sub`. */
  readonly id: string;
  /** The e-mail as given, but trimmed. E-mails are unique without regard to case. */
  readonly email: string;
  readonly role: string;
  readonly groups: readonly string[];
  /** If false, all tokens of the user are invalid. */
  readonly enabled: boolean;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  readonly updated_at: number;
}

export const ADMIN = 'admin';

export interface PasswordRecord {
  readonly user: User;
  readonly passwordHash: string;
}

export interface UserStore {
  /** Throws AppError `email_taken`. */
  insert(user: User, passwordHash: string): Promise<void>;
  find(id: string): Promise<User | null>;
  /** Returns the users with these ids. */
  findAll(ids: readonly string[]): Promise<User[]>;
  /** Like `find`, and locks the record until the transaction ends. */
  lock(id: string): Promise<User | null>;
  findByEmail(email: string): Promise<User | null>;
  /** Makes one query whether or not the user exists, so that the time does not reveal it. */
  credentials(by: { readonly id: string } | { readonly email: string }): Promise<PasswordRecord | null>;
  /** Returns users in the order of their ids: at most `limit` (null: all), with ids after `after` (null: from the first). */
  page(limit: number | null, after: string | null): Promise<User[]>;
  /** Writes role, groups, enabled and updated_at. */
  update(user: User): Promise<void>;
  setPasswordHash(id: string, passwordHash: string, now: number): Promise<void>;
  countEnabledAdministrators(): Promise<number>;
  hasFirstAdministrator(): Promise<boolean>;
}

interface UserRow extends Omit<User, 'groups' | 'enabled'> {
  readonly groups: string;
  readonly enabled: boolean | number;
}

const COLUMNS = ['id', 'email', 'role', 'groups', 'enabled', 'created_at', 'updated_at'] as const;

const toUser = (row: UserRow): User => ({
  id: row.id,
  email: row.email,
  role: row.role,
  groups: JSON.parse(row.groups),
  // SQLite may store any value. Only a true one enables a user.
  enabled: row.enabled === true || row.enabled === 1,
  created_at: row.created_at,
  updated_at: row.updated_at,
});

/** Returns the form in which e-mails are compared. */
export const emailKey = (email: string): string => email.trim().toLowerCase();

export function userStore(db: Connection): UserStore {
  const one = async (where: Partial<UserRow & { email_key: string }>): Promise<User | null> => {
    const row = await db('users')
      .where(where)
      .first<UserRow | undefined>(...COLUMNS);
    return row ? toUser(row) : null;
  };

  return {
    async insert(user, passwordHash) {
      try {
        await db('users').insert({
          ...user,
          groups: JSON.stringify(user.groups),
          email_key: emailKey(user.email),
          password_hash: passwordHash,
        });
      } catch (error) {
        if (isDuplicate(error)) throw new AppError('email_taken', 'A user with this e-mail exists.');
        throw error;
      }
    },

    find: (id) => one({ id }),

    async findAll(ids) {
      const rows: UserRow[] = await db('users')
        .whereIn('id', ids)
        .select(...COLUMNS);
      return rows.map(toUser);
    },

    async lock(id) {
      const row = await db('users')
        .where({ id })
        .forUpdate()
        .first<UserRow | undefined>(...COLUMNS);
      return row ? toUser(row) : null;
    },

    findByEmail: (email) => one({ email_key: emailKey(email) }),

    async credentials(by) {
      const row = await db('users')
        .where('id' in by ? { id: by.id } : { email_key: emailKey(by.email) })
        .first<(UserRow & { password_hash: string }) | undefined>(...COLUMNS, 'password_hash');
      return row ? { user: toUser(row), passwordHash: row.password_hash } : null;
    },

    async page(limit, after) {
      const rows: UserRow[] = await db('users')
        .select(...COLUMNS)
        .modify(onePage, limit, after);
      return rows.map(toUser);
    },

    async update({ id, role, groups, enabled, updated_at }) {
      await db('users')
        .where({ id })
        .update({ role, groups: JSON.stringify(groups), enabled, updated_at });
    },

    async setPasswordHash(id, passwordHash, now) {
      await db('users').where({ id }).update({ password_hash: passwordHash, updated_at: now });
    },

    async countEnabledAdministrators() {
      const row = await db('users').where({ role: ADMIN, enabled: true }).count<{ n: number | string }[]>({ n: '*' }).first();
      return Number(row?.n ?? 0);
    },

    async hasFirstAdministrator() {
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
