/**
 * Administrative changes: the counter by which replicas learn that something moved (law 4), and the record of who did what.
 * Both are written in the transaction that makes the change, so neither can be had without the other.
 */
import { randomBytes } from 'node:crypto';
import { AppError } from '../errors.ts';
import type { Connection, Database, Transaction } from './database.ts';
import { transact } from './transact.ts';

/** Where the state of the database is. Two positions with the same sequence and another nonce come from different histories. */
export interface Position {
  readonly sequence: number;
  readonly nonce: string;
  /** Moves with the policy set alone. */
  readonly revision: number;
}

export interface Actor {
  readonly id: string;
  readonly email: string;
  readonly request_id: string;
}

/** One thing that an administrator changed. `before` and `after` are as the API shows them and hold no secret. */
export interface Change {
  /** `<object_type>.<verb>`, for example `policy.update`. */
  readonly action: string;
  readonly object_type: ObjectType;
  readonly object_id: string;
  readonly before: object | null;
  readonly after: object | null;
}

export type ObjectType = 'policy' | 'user' | 'token' | 'target' | 'credential' | 'key' | 'session';

export interface ChangeRow extends Change, Position {
  readonly created_at: number;
  readonly actor: { readonly id: string; readonly email: string };
  readonly request_id: string;
}

/** Reads and advances the counter. On SQLite this process is the only writer, so it remembers where it is. */
export interface Changes {
  /** The position now: a read that begins after the call. */
  position(): Promise<Position>;
  /**
   * Runs `work` in a transaction that holds the counter, so that such transactions run one at a time; records the changes
   * it returns and moves the counter by one for each. No changes: nothing moves. Retried whole on deadlock.
   */
  change<T>(
    actor: Actor,
    work: (trx: Transaction) => Promise<{ result: T; changes: readonly Change[] }>,
  ): Promise<{ result: T; position: Position }>;
  /** Newest first, from before `cursor` (a sequence). */
  list(limit: number, cursor: number | null): Promise<ChangeRow[]>;
}

export async function readPosition(db: Connection): Promise<Position> {
  const row = await db('counter').where('id', 1).first<Position | undefined>('sequence', 'nonce', 'revision');
  if (!row) throw new AppError('unavailable', 'The database has lost its change counter.');
  return row;
}

/** Of a server that takes no writes nothing is current: a replica that lags, or a member that its group has expelled. */
async function readWritable(db: Connection): Promise<Position> {
  const [[row]] = (await db.raw(
    'select sequence, nonce, revision, cast(@@global.read_only as char) as read_only from counter where id = 1',
  )) as [[(Position & { readonly read_only: string }) | undefined]];
  if (!row) throw new AppError('unavailable', 'The database has lost its change counter.');
  const { sequence, nonce, revision, read_only } = row;
  if (read_only !== '0' && read_only !== 'OFF') {
    throw new AppError('unavailable', 'The database server is read-only: it may not have the newest state.', { retryAfter: 1 });
  }
  return { sequence, nonce, revision };
}

/** Whether `position` is part of the history that the database holds now: after a failover or restore it may not be. */
export async function holds(db: Connection, position: Position): Promise<boolean> {
  const row = await db('changes').where('sequence', position.sequence).first<{ nonce: string } | undefined>('nonce');
  return row?.nonce === position.nonce;
}

/** Makes the counter row, under the migration lock. */
export async function makeCounter(db: Connection): Promise<void> {
  if (await db('counter').where('id', 1).first()) return;
  await db('counter').insert({ id: 1, sequence: 0, nonce: newNonce(), revision: 0 });
}

const newNonce = (): string => randomBytes(16).toString('hex');

export async function createChanges(database: Database, now: () => number): Promise<Changes> {
  const { knex } = database;
  let remembered = await readPosition(knex);

  const attempt: Changes['change'] = (actor, work) =>
    transact(database, async (trx) => {
      // The lock comes first: what is read after it is the state that this change is made to.
      if (database.kind === 'mysql') await trx('counter').where('id', 1).forUpdate().first('id');
      const { result, changes } = await work(trx);
      let position = await readPosition(trx);
      for (const change of changes) {
        position = {
          sequence: position.sequence + 1,
          nonce: newNonce(),
          revision: position.revision + (change.object_type === 'policy' ? 1 : 0),
        };
        await trx('changes').insert({
          ...position,
          created_at: now(),
          actor_id: actor.id,
          actor_email: actor.email,
          request_id: actor.request_id,
          action: change.action,
          object_type: change.object_type,
          object_id: change.object_id,
          before: change.before && JSON.stringify(change.before),
          after: change.after && JSON.stringify(change.after),
        });
      }
      if (changes.length > 0)
        await trx('counter')
          .where('id', 1)
          .update({ ...position });
      return { result, position };
    });

  return {
    position: () => (database.kind === 'sqlite' ? Promise.resolve(remembered) : readWritable(database.reader)),

    async change(actor, work) {
      const done = await attempt(actor, work);
      if (done.position.sequence > remembered.sequence) remembered = done.position;
      return done;
    },

    async list(limit, cursor) {
      const rows = await knex('changes')
        .modify((query) => {
          if (cursor !== null) query.where('sequence', '<', cursor);
        })
        .orderBy('sequence', 'desc')
        .limit(limit);
      return rows.map(
        (
          row: Omit<ChangeRow, 'actor' | 'before' | 'after'> & {
            actor_id: string;
            actor_email: string;
            before: string | null;
            after: string | null;
          },
        ) => ({
          sequence: row.sequence,
          nonce: row.nonce,
          revision: row.revision,
          created_at: row.created_at,
          actor: { id: row.actor_id, email: row.actor_email },
          request_id: row.request_id,
          action: row.action,
          object_type: row.object_type,
          object_id: row.object_id,
          before: row.before === null ? null : JSON.parse(row.before),
          after: row.after === null ? null : JSON.parse(row.after),
        }),
      );
    },
  };
}
