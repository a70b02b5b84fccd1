/** Targets and their credentials. They are only written in administrative transactions, which run one at a time. */

import type { Connection } from '../db/database.ts';
import { onePage } from '../db/page.ts';
import type { CredentialSubject } from './credential-document.ts';
import { type CredentialKey, membersOf, OPTIONS, PROCESS, storedMembers, type Target, TRANSPORTS } from './target.ts';

export interface CredentialRow extends CredentialSubject {
  readonly target_id: string;
  readonly key_type: CredentialKey['type'];
  readonly key_name: string;
  readonly sealed: string;
  /** A hash of the destination; empty after the target has moved. */
  readonly origin: string;
  /** Random. It changes whenever a value is set. */
  readonly version: string;
  readonly supplied_by: 'administrator' | 'user';
  readonly created_at: number;
  readonly updated_at: number;
}

interface Row {
  readonly id: string;
  readonly name: string;
  readonly description: string | null;
  readonly transport: Target['transport'];
  /** Empty for stdio. */
  readonly url: string;
  readonly enabled: number | boolean;
  /** JSON of the members `PROCESS`; null for all but stdio. */
  readonly stdio: string | null;
  /** JSON of the members `OPTIONS`; null: the defaults. */
  readonly options: string | null;
  readonly created_at: number;
  readonly updated_at: number;
}

/**
 * Throws if the row is not one that `toRow` makes, because the gateway must not connect to a target that it does not understand.
 */
function toTarget(row: Row): Target {
  const { id, name, description, transport, url, created_at, updated_at } = row;
  const options = row.options === null ? membersOf(OPTIONS, {}) : storedMembers(OPTIONS, JSON.parse(row.options));
  if (TRANSPORTS.includes(transport) && options !== null) {
    const common = { id, name, description, enabled: Boolean(row.enabled), ...options, created_at, updated_at };
    if (transport !== 'stdio') return { ...common, transport, url };
    const process = storedMembers(PROCESS, JSON.parse(row.stdio ?? 'null'));
    if (process !== null) return { ...common, transport, ...process };
  }
  throw new Error(`The row of target ${id} has an unknown format`);
}

function toRow(target: Target): Row {
  const { id, name, description, transport, enabled, created_at, updated_at } = target;
  const options = JSON.stringify(membersOf(OPTIONS, target));
  const base = { id, name, description, transport, enabled, options, created_at, updated_at };
  if (target.transport !== 'stdio') return { ...base, url: target.url, stdio: null };
  return { ...base, url: '', stdio: JSON.stringify(membersOf(PROCESS, target)) };
}

export type TargetStore = ReturnType<typeof targetStore>;

export function targetStore(db: Connection) {
  const ofSubject = (target_id: string, { subject_type, subject_value }: CredentialSubject) =>
    db<CredentialRow>('target_credentials').where({ target_id, subject_type, subject_value });
  const one = async (where: Partial<Row>): Promise<Target | null> => {
    const row = await db('targets').where(where).first<Row | undefined>();
    return row ? toTarget(row) : null;
  };
  const thatOne = (row: CredentialRow) => ofSubject(row.target_id, row).where('key_name', row.key_name);
  return {
    /**
     * Returns targets in the order of their ids: at most `limit` (null: all), with ids after `after` (null: from the first). `ids`: only
     * these (null: all).
     */
    async page(limit: number | null, after: string | null, ids: ReadonlySet<string> | null = null): Promise<Target[]> {
      const rows: Row[] = await db('targets').modify((query) => {
        if (ids !== null) query.whereIn('id', [...ids]);
        onePage(query, limit, after);
      });
      return rows.map(toTarget);
    },
    find: (id: string): Promise<Target | null> => one({ id }),
    findByName: (name: string): Promise<Target | null> => one({ name }),
    async insert(target: Target): Promise<void> {
      await db('targets').insert(toRow(target));
    },
    async update(target: Target): Promise<void> {
      const { id, ...columns } = toRow(target);
      await db('targets').where({ id }).update(columns);
    },
    /** Also deletes the target's credentials. */
    async delete(id: string): Promise<void> {
      await db('target_credentials').where('target_id', id).delete();
      await db('targets').where({ id }).delete();
    },
    /** Returns the enabled targets with these ids; null: all. */
    async enabled(ids: readonly string[] | null): Promise<Target[]> {
      const rows: Row[] = await db('targets')
        .where('enabled', true)
        .modify((query) => {
          if (ids !== null) query.whereIn('id', ids);
        })
        .orderBy('id');
      return rows.map(toTarget);
    },

    /** Returns the credentials of these targets; null: of all. */
    async credentials(targetIds: readonly string[] | null): Promise<CredentialRow[]> {
      return db('target_credentials')
        .modify((query) => {
          if (targetIds !== null) query.whereIn('target_id', targetIds);
        })
        .orderBy(['target_id', 'subject_type', 'subject_value', 'key_name']);
    },
    /** Returns the credentials of one subject at one target. */
    async credentialsOf(targetId: string, subject: CredentialSubject): Promise<CredentialRow[]> {
      return (await ofSubject(targetId, subject).orderBy('key_name')) as CredentialRow[];
    },
    /** Returns the credentials of one user at every target. */
    async credentialsOfUser(userId: string): Promise<CredentialRow[]> {
      return db('target_credentials').where({ subject_type: 'user', subject_value: userId });
    },
    /** Inserts the credential, or replaces the existing one. */
    async putCredential(row: CredentialRow): Promise<void> {
      await thatOne(row).delete();
      await db('target_credentials').insert({ ...row });
    },
    /** Writes only if `sealed` and `origin` are still those of `before`. */
    async replaceSealed(
      before: CredentialRow,
      { sealed, version, origin }: Pick<CredentialRow, 'sealed' | 'version' | 'origin'>,
    ): Promise<void> {
      await thatOne(before).where({ sealed: before.sealed, origin: before.origin }).update({ sealed, version, origin });
    },
    /** Disables the target's credentials until they are set again, even if the target moves back. */
    async disableCredentials(targetId: string): Promise<void> {
      await db('target_credentials').where('target_id', targetId).update({ origin: '' });
    },
    async deleteCredential(row: CredentialRow): Promise<void> {
      await thatOne(row).delete();
    },
  };
}
