/** What companies' directories have sent over SCIM: users, groups and members, and the hash of each directory's token. */
import type { Knex } from 'knex';
import { MAX_STATEMENT_ROWS } from '../db/batches.ts';
import type { Connection } from '../db/database.ts';

export interface DirectoryToken {
  readonly provider_id: string;
  readonly hash: string;
  readonly created_at: number;
}

export interface DirectoryUser {
  readonly user_id: string;
  readonly provider_id: string;
  /** The subject of the user. */
  readonly external_id: string;
  readonly user_name: string;
  readonly active: boolean;
  /** JSON: the attributes that only the directory reads. */
  readonly document: string;
  readonly version: number;
  readonly created_at: number;
  readonly updated_at: number;
}

export interface DirectoryGroup {
  readonly id: string;
  readonly provider_id: string;
  readonly name: string;
  readonly external_id: string | null;
  readonly version: number;
  /** Whether records of members may still have an earlier name of the group. */
  readonly stale: boolean;
  readonly created_at: number;
  readonly updated_at: number;
}

export interface DirectoryMember {
  readonly user_id: string;
  readonly user_name: string;
}

/** A condition on rows. `contains`, `starts` and `ends` take texts. null as value: the column is empty. */
export type Condition =
  | { readonly all: readonly Condition[] }
  | { readonly any: readonly Condition[] }
  | { readonly not: Condition }
  | { readonly column: Column; readonly is: 'equal' | 'contains' | 'starts' | 'ends'; readonly value: string | boolean | null };

/** `member`: the id of a user in the group. */
export type Column = 'user_id' | 'id' | 'external_id' | 'name_key' | 'active' | 'member';

/** The form in which names of users and groups are compared. */
export const nameKey = (name: string): string => name.toLowerCase();

type UserRow = Omit<DirectoryUser, 'active'> & { readonly active: boolean | number };
type GroupRow = Omit<DirectoryGroup, 'stale'> & { readonly stale: boolean | number };

const USER_COLUMNS = [
  ...['user_id', 'provider_id', 'external_id', 'user_name', 'active', 'document', 'version', 'created_at', 'updated_at'],
] as const;
const GROUP_COLUMNS = ['id', 'provider_id', 'name', 'external_id', 'version', 'stale', 'created_at', 'updated_at'] as const;

const isTrue = (value: boolean | number): boolean => value === true || value === 1;
const toUser = (row: UserRow): DirectoryUser => ({ ...row, active: isTrue(row.active) });
const toGroup = (row: GroupRow): DirectoryGroup => ({ ...row, stale: isTrue(row.stale) });

function meets(query: Knex.QueryBuilder, condition: Condition): void {
  if ('all' in condition || 'any' in condition) {
    const isAll = 'all' in condition;
    query.where((inner) => {
      for (const part of isAll ? condition.all : condition.any)
        inner[isAll ? 'andWhere' : 'orWhere']((one: Knex.QueryBuilder) => meets(one, part));
    });
  } else if ('not' in condition) query.whereNot((inner) => meets(inner, condition.not));
  else compares(query, condition);
}

function compares(query: Knex.QueryBuilder, { column, is, value }: Extract<Condition, { readonly column: Column }>): void {
  if (column === 'member') {
    query.whereIn('id', (members: Knex.QueryBuilder) => {
      members.from('directory_members').where('user_id', String(value)).select('group_id');
    });
  } else if (value === null) query.whereNull(column);
  else if (is === 'equal') query.where(column, value);
  else {
    const text = String(value);
    const { length } = [...text];
    // Not LIKE: its time grows with the product of both lengths, and SQLite ends a pattern at a NUL.
    if (is === 'contains') query.whereRaw('instr(??, ?) > 0', [column, text]);
    else if (is === 'starts') query.whereRaw('substr(??, 1, ?) = ?', [column, length, text]);
    else query.whereRaw('(? = 0 or substr(??, -?) = ?)', [length, column, length, text]);
  }
}

export interface Paging {
  readonly offset: number;
  readonly limit: number;
}

function* pieces<T>(items: readonly T[]): Generator<readonly T[]> {
  for (let at = 0; at < items.length; at += MAX_STATEMENT_ROWS) yield items.slice(at, at + MAX_STATEMENT_ROWS);
}

export function directoryStore(db: Connection) {
  const matching = (table: 'directory_users' | 'directory_groups', provider_id: string, condition: Condition | null) =>
    db(table)
      .where({ provider_id })
      .modify((query) => {
        if (condition !== null) meets(query, condition);
      });
  const count = async (
    table: 'directory_users' | 'directory_groups',
    provider_id: string,
    condition: Condition | null,
  ): Promise<number> => {
    const row = await matching(table, provider_id, condition).count<{ n: number | string }[]>({ n: '*' }).first();
    return Number(row?.n ?? 0);
  };

  return {
    async token(provider_id: string): Promise<DirectoryToken | null> {
      const row = await db('directory_tokens')
        .where({ provider_id })
        .first<DirectoryToken | undefined>('provider_id', 'hash', 'created_at');
      return row ?? null;
    },

    /** Returns the hashes of the tokens of all directories. */
    async hashes(): Promise<string[]> {
      return await db('directory_tokens').pluck('hash');
    },

    /** Replaces the token, if there is one. */
    async setToken(token: DirectoryToken): Promise<void> {
      await db('directory_tokens').where({ provider_id: token.provider_id }).delete();
      await db('directory_tokens').insert({ ...token });
    },

    async deleteToken(provider_id: string): Promise<boolean> {
      return (await db('directory_tokens').where({ provider_id }).delete()) > 0;
    },

    users: {
      async find(provider_id: string, user_id: string): Promise<DirectoryUser | null> {
        const row = await db('directory_users')
          .where({ provider_id, user_id })
          .first<UserRow | undefined>(...USER_COLUMNS);
        return row ? toUser(row) : null;
      },

      /** Returns the user with this name, compared without regard to case. */
      async findByName(provider_id: string, name: string): Promise<DirectoryUser | null> {
        const row = await db('directory_users')
          .where({ provider_id, name_key: nameKey(name) })
          .first<UserRow | undefined>(...USER_COLUMNS);
        return row ? toUser(row) : null;
      },

      count: (provider_id: string, condition: Condition | null) => count('directory_users', provider_id, condition),

      /** In the order of their ids. */
      async page(provider_id: string, condition: Condition | null, { offset, limit }: Paging): Promise<DirectoryUser[]> {
        const rows: UserRow[] = await matching('directory_users', provider_id, condition)
          .orderBy('user_id')
          .offset(offset)
          .limit(limit)
          .select(...USER_COLUMNS);
        return rows.map(toUser);
      },

      /** Returns which of the ids the directory has sent. `provider_id`: null for any directory. */
      async known(provider_id: string | null, ids: readonly string[]): Promise<Set<string>> {
        const found = new Set<string>();
        for (const some of pieces(ids)) {
          const rows: { user_id: string }[] = await db('directory_users')
            .where(provider_id === null ? {} : { provider_id })
            .whereIn('user_id', some)
            .select('user_id');
          for (const { user_id } of rows) found.add(user_id);
        }
        return found;
      },

      async insert(user: DirectoryUser): Promise<void> {
        await db('directory_users').insert({ ...user, name_key: nameKey(user.user_name) });
      },

      async update({ user_id, user_name, active, document, version, updated_at }: DirectoryUser): Promise<void> {
        const name_key = nameKey(user_name);
        await db('directory_users').where({ user_id }).update({ user_name, name_key, active, document, version, updated_at });
      },

      /** Also takes the user out of all groups. */
      async delete(user_id: string): Promise<void> {
        await db('directory_members').where({ user_id }).delete();
        await db('directory_users').where({ user_id }).delete();
      },
    },

    groups: {
      async find(provider_id: string, id: string): Promise<DirectoryGroup | null> {
        const row = await db('directory_groups')
          .where({ provider_id, id })
          .first<GroupRow | undefined>(...GROUP_COLUMNS);
        return row ? toGroup(row) : null;
      },

      async findByName(provider_id: string, name: string): Promise<DirectoryGroup | null> {
        const row = await db('directory_groups')
          .where({ provider_id, name_key: nameKey(name) })
          .first<GroupRow | undefined>(...GROUP_COLUMNS);
        return row ? toGroup(row) : null;
      },

      /** Returns a group whose members may still have its earlier name; null: there is none. */
      async stale(provider_id: string): Promise<DirectoryGroup | null> {
        const row = await db('directory_groups')
          .where({ provider_id, stale: true })
          .first<GroupRow | undefined>(...GROUP_COLUMNS);
        return row ? toGroup(row) : null;
      },

      count: (provider_id: string, condition: Condition | null) => count('directory_groups', provider_id, condition),

      /** In the order of their ids. */
      async page(provider_id: string, condition: Condition | null, { offset, limit }: Paging): Promise<DirectoryGroup[]> {
        const rows: GroupRow[] = await matching('directory_groups', provider_id, condition)
          .orderBy('id')
          .offset(offset)
          .limit(limit)
          .select(...GROUP_COLUMNS);
        return rows.map(toGroup);
      },

      async insert(group: DirectoryGroup): Promise<void> {
        await db('directory_groups').insert({ ...group, name_key: nameKey(group.name) });
      },

      async update({ id, name, external_id, version, stale, updated_at }: DirectoryGroup): Promise<void> {
        const name_key = nameKey(name);
        await db('directory_groups').where({ id }).update({ name, name_key, external_id, version, stale, updated_at });
      },

      async delete(id: string): Promise<void> {
        await db('directory_groups').where({ id }).delete();
      },
    },

    members: {
      /** Returns members in the order of their ids: at most `limit`, with ids after `after` (null: from the first). */
      async ids(group_id: string, limit: number, after: string | null): Promise<string[]> {
        const rows: { user_id: string }[] = await db('directory_members')
          .where({ group_id })
          .modify((query) => {
            if (after !== null) query.where('user_id', '>', after);
          })
          .orderBy('user_id')
          .limit(limit)
          .select('user_id');
        return rows.map(({ user_id }) => user_id);
      },

      /** Like `ids`, with the names of the users. */
      async named(group_id: string, limit: number, after: string | null): Promise<DirectoryMember[]> {
        return await db('directory_members')
          .join('directory_users', 'directory_users.user_id', 'directory_members.user_id')
          .where({ group_id })
          .modify((query) => {
            if (after !== null) query.where('directory_members.user_id', '>', after);
          })
          .orderBy('directory_members.user_id')
          .limit(limit)
          .select('directory_members.user_id', 'user_name');
      },

      /** Returns which of these users are members. */
      async among(group_id: string, ids: readonly string[]): Promise<Set<string>> {
        const rows: { user_id: string }[] = await db('directory_members')
          .where({ group_id })
          .whereIn('user_id', ids)
          .select('user_id');
        return new Set(rows.map(({ user_id }) => user_id));
      },

      /** The users must not be members. At most `MAX_STATEMENT_ROWS`. */
      async add(group_id: string, ids: readonly string[]): Promise<void> {
        if (ids.length > 0) await db('directory_members').insert(ids.map((user_id) => ({ group_id, user_id })));
      },

      async remove(group_id: string, ids: readonly string[]): Promise<void> {
        await db('directory_members').where({ group_id }).whereIn('user_id', ids).delete();
      },

      /** Returns the names of the groups of each user, sorted. */
      async groupsOf(ids: readonly string[]): Promise<Map<string, string[]>> {
        const rows: { user_id: string; name: string }[] = await db('directory_members')
          .join('directory_groups', 'directory_groups.id', 'directory_members.group_id')
          .whereIn('user_id', ids)
          .select('user_id', 'name');
        const names = new Map<string, string[]>();
        for (const { user_id, name } of rows) {
          const known = names.get(user_id);
          if (known === undefined) names.set(user_id, [name]);
          else known.push(name);
        }
        for (const some of names.values()) some.sort();
        return names;
      },
    },

    /** Deletes everything that the directory of a provider has sent. Their records keep what it said of users, until a provider has the issuer again. */
    async forget(provider_id: string): Promise<void> {
      await db('directory_members').whereIn('group_id', db('directory_groups').where({ provider_id }).select('id')).delete();
      await db('directory_groups').where({ provider_id }).delete();
      await db('directory_users').where({ provider_id }).delete();
      await db('directory_tokens').where({ provider_id }).delete();
    },
  };
}
