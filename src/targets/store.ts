/** Targets and the rows of their credentials. Written only inside administrative transactions, which run one at a time. */
import type { Connection } from '../db/database.ts';
import { type Target, TRANSPORTS } from './target.ts';

/** Whose calls a credential is for. */
export interface CredentialSubject {
  readonly subject_type: 'default';
  /** Empty for `default`. */
  readonly subject_value: string;
}

export const DEFAULT_CREDENTIAL: CredentialSubject = { subject_type: 'default', subject_value: '' };

export interface CredentialRow extends CredentialSubject {
  readonly target_id: string;
  readonly header: string;
  readonly sealed: string;
  /** Where it may go; empty once the target has moved elsewhere. */
  readonly origin: string;
  readonly created_at: number;
  readonly updated_at: number;
}

export interface TargetStore {
  /** Targets by id: at most `limit` (null: every one) whose ids come after `after` (null: from the first). */
  page(limit: number | null, after: string | null): Promise<Target[]>;
  find(id: string): Promise<Target | null>;
  findByName(name: string): Promise<Target | null>;
  insert(target: Target): Promise<void>;
  update(target: Target): Promise<void>;
  /** With its credentials. */
  delete(id: string): Promise<void>;
  enabled(): Promise<Target[]>;
  /** Of one target, or of all. */
  credentials(targetId: string | null): Promise<CredentialRow[]>;
  findCredential(targetId: string, subject: CredentialSubject): Promise<CredentialRow | null>;
  /** Makes it, or puts it in the place of the one that is there. */
  putCredential(row: CredentialRow): Promise<void>;
  /** Until they are set again, even if the target comes back to where it was. */
  disableCredentials(targetId: string): Promise<void>;
  deleteCredential(targetId: string, subject: CredentialSubject): Promise<void>;
}

interface Row extends Omit<Target, 'enabled'> {
  readonly enabled: number | boolean;
}

function toTarget(row: Row): Target {
  if (!TRANSPORTS.includes(row.transport)) throw new Error(`The table targets holds an unknown transport (${row.id})`);
  return { ...row, enabled: Boolean(row.enabled) };
}

export function targetStore(db: Connection): TargetStore {
  const where = (target_id: string, { subject_type, subject_value }: CredentialSubject) => ({
    target_id,
    subject_type,
    subject_value,
  });
  return {
    async page(limit, after) {
      const rows: Row[] = await db('targets')
        .modify((query) => {
          if (after !== null) query.where('id', '>', after);
          if (limit !== null) query.limit(limit);
        })
        .orderBy('id');
      return rows.map(toTarget);
    },
    async find(id) {
      const row = await db('targets').where({ id }).first<Row | undefined>();
      return row ? toTarget(row) : null;
    },
    async findByName(name) {
      const row = await db('targets').where({ name }).first<Row | undefined>();
      return row ? toTarget(row) : null;
    },
    async insert(target) {
      await db('targets').insert(target);
    },
    async update({ id, ...columns }) {
      await db('targets').where({ id }).update(columns);
    },
    async delete(id) {
      await db('credentials').where('target_id', id).delete();
      await db('targets').where({ id }).delete();
    },
    enabled: async () => (await db<Row>('targets').where('enabled', true).orderBy('id')).map((row) => toTarget(row as Row)),

    async credentials(targetId) {
      return db('credentials')
        .modify((query) => {
          if (targetId !== null) query.where('target_id', targetId);
        })
        .orderBy(['target_id', 'subject_type', 'subject_value']);
    },
    async findCredential(targetId, subject) {
      return (await db('credentials').where(where(targetId, subject)).first<CredentialRow | undefined>()) ?? null;
    },
    async putCredential(row) {
      await db('credentials').where(where(row.target_id, row)).delete();
      await db('credentials').insert(row);
    },
    async disableCredentials(targetId) {
      await db('credentials').where('target_id', targetId).update({ origin: '' });
    },
    async deleteCredential(targetId, subject) {
      await db('credentials').where(where(targetId, subject)).delete();
    },
  };
}
