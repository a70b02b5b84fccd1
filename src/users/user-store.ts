/** User records. `User` does not have the password hash, so that code that shows a user cannot show the hash. */
import { AppError } from '../base/errors.ts';
import { UUID } from '../base/validate.ts';
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

export function userStore(db: Connection) {
  const one = async (where: Partial<UserRow & { email_key: string }>, lock = false): Promise<User | null> => {
    const users = db('users').where(where);
    const row = await (lock ? users.forUpdate() : users).first<UserRow | undefined>(...COLUMNS);
    return row ? toUser(row) : null;
  };

  return {
    /** Throws AppError `email_taken`. */
    async insert(user: User, passwordHash: string): Promise<void> {
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

    findByEmail: (email: string): Promise<User | null> => one({ email_key: emailKey(email) }),

    /** Makes one query whether or not the user exists, so that the time does not reveal it. */
    async credentials(by: { readonly id: string } | { readonly email: string }) {
      const row = await db('users')
        .where('id' in by ? { id: by.id } : { email_key: emailKey(by.email) })
        .first<(UserRow & { password_hash: string }) | undefined>(...COLUMNS, 'password_hash');
      return row ? { user: toUser(row), passwordHash: row.password_hash } : null;
    },

    /** Returns users in the order of their ids: at most `limit` (null: all), with ids after `after` (null: from the first). */
    async page(limit: number | null, after: string | null): Promise<User[]> {
      const rows: UserRow[] = await db('users')
        .select(...COLUMNS)
        .modify(onePage, limit, after);
      return rows.map(toUser);
    },

    /** Writes role, groups, enabled and updated_at. */
    async update({ id, role, groups, enabled, updated_at }: User): Promise<void> {
      await db('users')
        .where({ id })
        .update({ role, groups: JSON.stringify(groups), enabled, updated_at });
    },

    async setPasswordHash(id: string, passwordHash: string, now: number): Promise<void> {
      await db('users').where({ id }).update({ password_hash: passwordHash, updated_at: now });
    },

    async countEnabledAdministrators(): Promise<number> {
      const row = await db('users').where({ role: ADMIN, enabled: true }).count<{ n: number | string }[]>({ n: '*' }).first();
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

/** `user`: an id or e-mail. */
export const findUser = (db: Connection, user: string): Promise<User | null> =>
  UUID.test(user) ? userStore(db).find(user) : userStore(db).findByEmail(user);
